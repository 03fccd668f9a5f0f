use std::collections::BTreeMap;

use super::*;
use crate::api::report::{MirrorReport, UNKNOWN};

fn pod(namespace: &str, manifest_name: &str, uid: &str) -> PodReport {
    PodReport {
        name: format!("{manifest_name}-box-docker"),
        manifest_name: manifest_name.to_owned(),
        namespace: namespace.to_owned(),
        workload: None,
        cron_job: None,
        uid: uid.into(),
        source: String::new(),
        status: "Running".to_owned(),
        phase: "Running".to_owned(),
        labels: BTreeMap::new(),
        message: String::new(),
        ready: 1,
        containers_total: 1,
        restarts: 0,
        started_at: None,
        ips: Vec::new(),
        ports: Vec::new(),
        containers: Vec::new(),
        default_container: None,
        mirror: None,
        held: false,
        rollout: None,
        problems: Vec::new(),
    }
}

#[test]
fn a_job_is_named_as_kubectl_and_the_status_name_it() {
    let job: JobReport = serde_json::from_value(serde_json::json!({
        "namespace": "default", "name": "backup", "source": "/m", "active": 0,
        "succeeded": 0, "failed": 0, "condition": "Running",
    }))
    .unwrap();
    let cron: CronJobReport = serde_json::from_value(serde_json::json!({
        "namespace": "default", "name": "backup", "source": "/m", "schedule": "@daily",
        "timeZone": "UTC", "suspended": false, "active": 0,
    }))
    .unwrap();
    for (text, is_job, is_cron) in [
        ("job/backup", true, false),
        ("jobs/default/backup", true, false),
        ("job.batch/backup", true, false),
        ("Job/backup", true, false),
        ("cronjob/backup", false, true),
        ("CronJob/default/backup", false, true),
        ("cj/backup", false, true),
        ("job/other", false, false),
        ("job/shop/backup", false, false),
        ("cj/shop/backup", false, false),
        ("deployment/backup", false, false),
        ("default/backup", false, false),
        ("backup", false, false),
    ] {
        // workloads 27
        assert_eq!(names_job(text, &job), is_job, "{text}");
        assert_eq!(names_cron_job(text, &cron), is_cron, "{text}");
    }
}

#[test]
fn a_workload_means_its_pods() {
    let of = |namespace: &str, name: &str, owner: Option<&str>| PodReport {
        workload: owner.map(str::to_owned),
        ..pod(namespace, name, name)
    };
    let pods = [
        of("default", "web", None),
        of("default", "web-0", Some("Deployment/web")),
        of("shop", "web-1", Some("Deployment/web")),
        of("default", "agent-x", Some("DaemonSet/agent")),
        of("ds", "log", None),
        of("default", "api-0", Some("Deployment/api")),
        of("shop", "api-1", Some("StatefulSet/api")),
        of("default", "night-1", Some("Job/night-1")),
    ];
    for (text, expected) in [
        ("web", "web"),
        ("deployment/web", "web-0 web-1"),
        ("deploy/web", "web-0 web-1"),
        ("deployments/web", "web-0 web-1"),
        ("Deployment/web", "web-0 web-1"),
        ("ds/agent", "agent-x"),
        ("agent", "agent-x"),
        ("default/agent", "agent-x"),
        ("shop/agent", "pod \"shop/agent\" not found"),
        (
            "api",
            "\"api\" is the name of deployment/api and statefulset/api; choose one of them",
        ),
        ("shop/api", "api-1"),
        ("night-1", "night-1"),
        // A namespace of this name wins.
        ("ds/log", "log"),
        ("pod/web", "web"),
        ("ds/web", "pod \"ds/web\" not found"),
        ("deployment/db", "pod \"deployment/db\" not found"),
    ] {
        let found = match find_pods(&pods, text) {
            Ok(pods) => pods
                .iter()
                .map(|pod| pod.manifest_name.as_str())
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => error.to_string(),
        };
        assert!(found.starts_with(expected), "{text}: {found}");
    }
}

#[test]
fn a_workload_means_its_best_pod_where_one_is_needed() {
    let of = |name: &str, status: &str, ready: usize| PodReport {
        workload: Some("Deployment/web".to_owned()),
        status: status.to_owned(),
        phase: if status == "Pending" {
            "Pending"
        } else {
            "Running"
        }
        .to_owned(),
        ready,
        ..pod("default", name, name)
    };
    let mut pods = vec![
        of("web-0", "Terminating", 1),
        of("web-1", "Pending", 0),
        of("web-3", "Running", 0),
        of("web-2", "Running", 0),
        of("web-5", "Running", 1),
        of("web-4", "Running", 1),
    ];
    for best in ["web-4", "web-5", "web-2", "web-3", "web-1", "web-0"] {
        let found = find_one_of(&pods, "deploy/web").unwrap();
        assert_eq!(found.manifest_name, best);
        pods.retain(|pod| pod.manifest_name != best);
    }
    assert!(find_one_of(&pods, "deploy/web").is_err());
}

#[test]
fn a_name_means_the_version_that_is_not_being_stopped() {
    let mut old = pod("default", "web", "aaaaaa11");
    old.status = "Terminating".to_owned();
    let pods = [old.clone(), pod("default", "web", "aaaaaa22")];
    for text in ["web", "web-box-docker", "default/web", "aaaaaa22"] {
        let found = find_pod(&pods, text).unwrap();
        assert_eq!(found.uid.as_str(), "aaaaaa22", "{text}");
    }
    assert_eq!(find_pod(&pods, "aaaaaa11").unwrap(), &old);
    assert!(find_pod(&pods, "aaaaaa").is_err());
    assert_eq!(find_pod(&pods[..1], "web").unwrap(), &old);
}

#[test]
fn a_name_means_the_version_that_a_source_has() {
    let adopted = |uid: &str| PodReport {
        status: UNKNOWN.to_owned(),
        ready: 0,
        ..pod("default", "web", uid)
    };
    let mut new = pod("default", "web", "aaaaaa22");
    new.source = "/m/web.yaml".to_owned();
    // One that no look has succeeded at is wanted all the same.
    for status in ["Running", "Pending", UNKNOWN] {
        new.status = status.to_owned();
        let pods = [adopted("aaaaaa11"), new.clone()];
        for text in ["web", "web-box-docker", "default/web", "aaaaaa22"] {
            let found = find_pod(&pods, text).map(|pod| pod.uid.as_str());
            // box 13
            assert_eq!(found, Ok("aaaaaa22"), "{text} {status}");
        }
        assert_eq!(find_pod(&pods, "aaaaaa11").unwrap(), &pods[0]);
    }
    // Which of them a source will have is not known.
    let both = [adopted("aaaaaa11"), adopted("aaaaaa33")];
    assert!(find_pod(&both, "web").is_err());
    assert_eq!(find_pod(&both[..1], "web").unwrap(), &both[0]);
}

#[test]
fn a_pod_is_found_by_name_namespace_and_uid() {
    let pods = [
        pod("default", "web", "aaaaaa11"),
        pod("default", "db", "aaaaaa22"),
        pod("prod", "db", "bbbbbb33"),
    ];
    for (text, uid) in [
        ("web", "aaaaaa11"),
        ("web-box-docker", "aaaaaa11"),
        ("default/web", "aaaaaa11"),
        ("prod/db", "bbbbbb33"),
        ("prod/db-box-docker", "bbbbbb33"),
        ("bbbbbb33", "bbbbbb33"),
        ("bbbbbb", "bbbbbb33"),
        ("pod/web", "aaaaaa11"),
        ("pods/web-box-docker", "aaaaaa11"),
    ] {
        assert_eq!(find_pod(&pods, text).unwrap().uid.as_str(), uid, "{text}");
    }
    for (text, words) in [
        (
            "db",
            "\"db\" matches 2 pods: default/db-box-docker, prod/db-box-docker; choose one of them",
        ),
        (
            "aaaaaa",
            "\"aaaaaa\" matches 2 pods: default/web-box-docker, default/db-box-docker; choose one of them",
        ),
        (
            "wbe",
            "pod \"wbe\" not found; did you mean default/web-box-docker?",
        ),
        (
            "bwe",
            "pod \"bwe\" not found; mirrorlet status lists all pods",
        ),
        (
            "wep",
            "pod \"wep\" not found; did you mean default/web-box-docker?",
        ),
        (
            "prod/web",
            "pod \"prod/web\" not found; did you mean default/web-box-docker?",
        ),
        (
            "bbbbb",
            "pod \"bbbbb\" not found; mirrorlet status lists all pods",
        ),
    ] {
        assert_eq!(find_pod(&pods, text).unwrap_err().to_string(), words);
    }
}

#[test]
fn a_mirrors_uid_means_its_pod() {
    let mirrored = |name: &str, uid: &str, mirror: &str| PodReport {
        mirror: Some(MirrorReport {
            uid: Some(mirror.to_owned()),
            ..MirrorReport::default()
        }),
        ..pod("default", name, uid)
    };
    let pods = [
        mirrored("web", "aaaaaa11", "cccccc11"),
        mirrored("db", "aaaaaa22", "dddddd22"),
    ];
    for text in ["dddddd22", "dddddd"] {
        assert_eq!(find_pod(&pods, text).unwrap().manifest_name, "db");
    }
    assert!(find_pod(&pods, "dddd").is_err());
}

#[test]
fn pods_of_the_same_name_are_told_apart_by_uid() {
    let pods = [pod("default", "web", "u1"), pod("default", "web", "u2")];
    let error = find_pod(&pods, "web").unwrap_err().to_string();
    assert!(error.contains("default/web-box-docker (u1)"), "{error}");
}

#[test]
fn the_container_is_named_annotated_or_the_only_one() {
    let make = |init: &[&str], app: &[&str], default: Option<&str>| -> Pod {
        let list = |names: &[&str]| -> Vec<serde_json::Value> {
            names
                .iter()
                .map(|n| serde_json::json!({"name": n}))
                .collect()
        };
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"initContainers": list(init), "containers": list(app)},
        }))
        .unwrap();
        pod.metadata.annotations =
            default.map(|name| [(DEFAULT_CONTAINER.to_owned(), name.to_owned())].into());
        pod
    };
    let cases = vec![
        (make(&[], &["a"], None), None, Ok("a")),
        (make(&["i"], &["a"], None), None, Ok("a")),
        (make(&["i"], &["a"], None), Some("i"), Ok("i")),
        (make(&[], &["a", "b"], Some("b")), None, Ok("b")),
        (make(&[], &["a", "b"], Some("b")), Some("a"), Ok("a")),
        (
            make(&[], &["a", "b"], Some("gone")),
            None,
            Err("choose one with -c: a, b"),
        ),
        (
            make(&["i"], &["a", "b"], None),
            None,
            Err("choose one with -c: i, a, b"),
        ),
        (
            make(&[], &["a"], None),
            Some("x"),
            Err("its containers are a"),
        ),
    ];
    for (pod, asked, expected) in cases {
        match (choose_container(&pod, asked), expected) {
            (Ok(name), Ok(expected)) => assert_eq!(name, expected),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (got, expected) => panic!("{got:?} is not {expected:?}"),
        }
    }
}
