use clap::Parser as _;
use serde_json::json;

use super::*;
use crate::config::args::Cli;
use crate::config::{Ambient, resolve};
use crate::source::source;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::desired::{Origin, PodSource, SourceSet};

#[test]
fn jobs_have_no_rollouts() {
    for (text, words, help) in [
        (
            "job/idx",
            "a Job has no rollouts",
            "run it again with: mirrorlet restart job/idx",
        ),
        (
            "cj/shop/every",
            "a CronJob has no rollouts",
            "start a run with: mirrorlet run-job shop/every",
        ),
    ] {
        let error =
            rollout_target(text, &[], &Merged::default(), &[], &JobStates::default()).unwrap_err();
        assert_eq!(error.to_string(), words);
        assert_eq!(error.help.as_deref(), Some(help));
    }
    let error = rollout_target(
        "deployment/web",
        &[],
        &Merged::default(),
        &[],
        &JobStates::default(),
    )
    .unwrap_err();
    assert!(matches!(error.kind, ViewErrorKind::NotFound), "{error}");
    assert_eq!(error.to_string(), "deployment \"web\" not found");
}

#[test]
fn a_workload_is_named_by_its_name_alone() {
    let pod = |(namespace, name, owner): &(&str, &str, &str)| {
        let pod = json!({"metadata": {
            "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"),
            "annotations": {"mirrorlet.dev/workload": owner},
        }});
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        let pod = SourcePod::new(pod, Origin::whole(PodSource::File, "/m/web.yaml"));
        (pod.uid(), pod)
    };
    let pods = [
        ("default", "web-0-box", "Deployment/web"),
        ("default", "web-1-box", "Deployment/web"),
        ("default", "db-0-box", "StatefulSet/db"),
        ("shop", "db-0-box", "StatefulSet/db"),
        ("default", "api-0-box", "Deployment/api"),
        ("default", "api-0-1-box", "StatefulSet/api"),
        ("default", "import-0-box", "Job/import"),
    ];
    let merged = Merged {
        pods: pods.iter().map(pod).collect(),
        ..Merged::default()
    };
    let several = |a: &str, b: &str| Err(format!("{a:?} means {b}"));
    for (text, expected) in [
        ("web", Ok("Deployment default/web")),
        ("default/web", Ok("Deployment default/web")),
        ("shop/db", Ok("StatefulSet shop/db")),
        ("deployment/api", Ok("Deployment default/api")),
        (
            "db",
            several("db", "StatefulSet default/db and StatefulSet shop/db"),
        ),
        (
            "api",
            several("api", "Deployment default/api and StatefulSet default/api"),
        ),
        ("import", Err("a Job has no rollouts".to_owned())),
        (
            "shop/web",
            Err("pod \"shop/web\" not found; mirrorlet status lists all pods".to_owned()),
        ),
    ] {
        let found =
            rollout_target(text, &[], &merged, &[], &JobStates::default()).map(
                |target| match target {
                    RolloutTarget::Workload(key) => key.to_string(),
                    RolloutTarget::Pod(name) => panic!("{text}: {name}"),
                },
            );
        let found = found.map_err(|error| error.to_string());
        // workloads 27
        assert_eq!(found, expected.map(str::to_owned), "{text}");
    }
    let error = rollout_target("db", &[], &merged, &[], &JobStates::default()).unwrap_err();
    let help = "name one of them, for example statefulset/default/db";
    assert_eq!(error.help.as_deref(), Some(help));
}

#[test]
fn a_workload_without_pods_is_known_and_has_no_revisions() {
    let workloads = ["Deployment/idle", "Job/import"].map(|owner| SourceWorkload {
        namespace: "default".to_owned(),
        owner: owner.to_owned(),
        document: Arc::default(),
        pods: BTreeSet::new(),
        set: None,
        template_hash: String::new(),
        origin: Origin::whole(PodSource::File, "/m/idle.yaml"),
        held: false,
    });
    let found = |text: &str| {
        rollout_target(
            text,
            &[],
            &Merged::default(),
            &workloads,
            &JobStates::default(),
        )
    };
    let idle = WorkloadKey::of_owner("default", "Deployment/idle").unwrap();
    for text in ["idle", "default/idle", "deployment/idle"] {
        let is_idle = matches!(found(text), Ok(RolloutTarget::Workload(key)) if key == idle);
        // workloads 27
        assert!(is_idle, "{text}");
    }
    for text in ["shop/idle", "statefulset/idle"] {
        let error = found(text).unwrap_err();
        assert!(matches!(error.kind, ViewErrorKind::NotFound), "{error}");
    }
    let error = found("import").unwrap_err();
    assert_eq!(error.to_string(), "a Job has no rollouts");
    let told =
        |wants_no_pods| workload_history(&idle, &Histories::default(), wants_no_pods, |_| false);
    let history = told(true).unwrap();
    assert_eq!(history.name, "Deployment/idle");
    assert!(history.revisions.is_empty());
    let error = told(false).unwrap_err().to_string();
    assert_eq!(error, "Deployment default/idle has no revisions yet");
    let target = RolloutTarget::Workload(idle);
    let refused = |wants_no_pods| {
        let refused = Err(CommandError::Refused(Refused::NotStarted));
        let error = answer(refused, &target, wants_no_pods).unwrap_err();
        (error.message, error.help.unwrap_or_default())
    };
    let owned = |words: (&str, &str)| (words.0.to_owned(), words.1.to_owned());
    // workloads 27
    assert_eq!(
        refused(true),
        owned((
            "Deployment default/idle has 0 desired pods, and therefore no revisions",
            "set spec.replicas in its manifest to start some",
        ))
    );
    assert_eq!(
        refused(false),
        owned((
            "Deployment default/idle has no running revision yet",
            "see mirrorlet explain deployment/default/idle",
        ))
    );
}

#[test]
fn a_version_that_was_not_started_does_not_run() {
    let pod = json!({"metadata": {"name": "web-box", "namespace": "default", "uid": "a"}});
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    let wanted = SourcePod::new(pod, Origin::whole(PodSource::File, "/m/web.yaml"));
    let mut known = History::default();
    known.take_newest(&wanted, Timestamp::UNIX_EPOCH);
    known.current = Some((wanted.uid(), Timestamp::UNIX_EPOCH));
    let name = wanted.full_name();
    for runs in [false, true] {
        let told = history(&name, Some(&known), |_| runs).unwrap();
        assert_eq!(told.revisions[0].runs, runs);
    }
}

#[test]
fn a_refusal_names_the_pod_or_the_workload() {
    let key = WorkloadKey::of_owner("shop", "Deployment/web").unwrap();
    for (refused, target, words) in [
        (
            Refused::Stopped,
            RolloutTarget::Pod(FullName::new("web-box", "shop")),
            "pod shop/web-box is stopped",
        ),
        (
            Refused::Paused,
            RolloutTarget::Workload(key),
            "the rollouts of Deployment shop/web are paused",
        ),
    ] {
        let error = view_error(CommandError::Refused(refused), &target);
        assert_eq!(error.to_string(), words);
        // The help ends with a command that can be typed so.
        let help = error.help.unwrap();
        let (_, command) = help.split_once(": ").unwrap();
        let parsed = Cli::try_parse_from(command.split(' '));
        assert!(parsed.is_ok(), "{help}: {}", parsed.unwrap_err());
    }
}

#[test]
fn a_plan_of_the_whole_manifest_directory_keeps_the_dns_server() {
    let resolved = resolve(&BTreeMap::new(), None, &Ambient::default()).unwrap();
    let directory = FileSource::new(&resolved.config).name();
    let server = SourceName::new(PodSource::File, "/var/lib/mirrorlet/dns/pod.yaml");
    let delivered = |name: &SourceName, location: &str| {
        let pod = json!({"metadata": {"name": "a-box", "namespace": "default", "uid": location}});
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        let origin = Origin::whole(PodSource::File, location);
        let (mut writer, reader) = source(name.clone());
        writer.publish(SourceSet {
            pods: vec![SourcePod::new(pod, origin)],
            ..SourceSet::default()
        });
        (writer, reader)
    };
    let web = format!("{}/web.yaml", directory.location);
    let (_web, of_directory) = delivered(&directory, &web);
    let (_server, of_server) = delivered(&server, &server.location);
    let before = SourceState::clone(&of_server.state.get());
    let sources = [of_directory, of_server];
    for (whole, left) in [(true, 0), (false, 1)] {
        let request = PlanRequest {
            whole,
            ..PlanRequest::default()
        };
        let states = with_request(&sources, &request, &resolved.config);
        let set = states[&directory].set().unwrap();
        assert_eq!(set.pods.len(), left, "{whole}");
        // names 20
        assert_eq!(states[&server], before, "{whole}");
    }
}
