use clap::Parser as _;

use super::*;
use crate::config::args::{Cli, Cmd};
use mirrorlet_core::api::report::{MirrorReport, PodReport, StatusReport};
use mirrorlet_core::api::{Code, Diagnostic};
use serde_json::json;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
}

fn entry(millis: i64, kind: &str, reason: &str, container: &str, message: &str) -> JournalReport {
    JournalReport {
        at: at(millis),
        kind: kind.to_owned(),
        reason: reason.to_owned(),
        container: (!container.is_empty()).then(|| container.to_owned()),
        message: message.to_owned(),
        uid: "3f1c0de5".into(),
    }
}

fn pod() -> PodReport {
    PodReport {
        name: "web-box-docker".to_owned(),
        manifest_name: "web".to_owned(),
        namespace: "default".to_owned(),
        workload: None,
        cron_job: None,
        uid: "3f1c0de5".into(),
        source: "/m/web.yaml".to_owned(),
        status: "Running".to_owned(),
        phase: "Running".to_owned(),
        labels: std::collections::BTreeMap::new(),
        message: String::new(),
        ready: 1,
        containers_total: 1,
        restarts: 2,
        started_at: None,
        ips: Vec::new(),
        ports: Vec::new(),
        containers: Vec::new(),
        default_container: None,
        mirror: Some(MirrorReport {
            state: "NamespaceMissing".to_owned(),
            uid: None,
            message: "namespaces \"default\" not found".to_owned(),
            since: Some(at(-60_000)),
        }),
        held: false,
        rollout: None,
        problems: Vec::new(),
    }
}

fn report() -> ExplainReport {
    let mut old = entry(0, "Trace", "Removed", "", "to be stopped: edited");
    old.uid = "0ld".into();
    ExplainReport {
        name: "web-box-docker".to_owned(),
        namespace: "default".to_owned(),
        pod: Some(pod()),
        rejected: None,
        source_read: Some(at(1_000)),
        truncated: true,
        next: 6,
        story: vec![
            old,
            entry(
                50,
                "Trace",
                "ManifestRead",
                "",
                "read from /m/web.yaml, hash 3f1c0de5",
            ),
            entry(
                100,
                "Trace",
                "Planned",
                "",
                "create a sandbox (the pod has no sandbox)",
            ),
            entry(200, "Trace", "EngineCalls", "", "create 3 ms"),
            entry(800, "Normal", "Started", "main", "Container started"),
            entry(
                900,
                "Warning",
                "BackOff",
                "main",
                "Back-off\nrestarting \u{1b}[2J",
            ),
        ],
    }
}

fn plain(report: &ExplainReport) -> String {
    let styled = render::render(report, &mut Story::default(), at(9_000));
    anstream::adapter::strip_str(&styled).to_string()
}

#[test]
fn a_story_is_told_oldest_first() {
    // events 6
    insta::assert_snapshot!(plain(&report()));
}

#[test]
fn entries_are_selected_and_later_ones_align() {
    let reasons = |flags: &[&str]| {
        let cli = Cli::try_parse_from(["mirrorlet", "explain", "web"].iter().chain(flags));
        let Cmd::Explain(args) = cli.unwrap().command else {
            panic!("{flags:?}")
        };
        let story = selected(report().story, &args, at(1_000));
        let reasons = story.into_iter().map(|entry| entry.reason);
        reasons.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(reasons(&[]), "Removed ManifestRead Planned Started BackOff");
    assert_eq!(
        reasons(&["-v"]),
        "Removed ManifestRead Planned EngineCalls Started BackOff"
    );
    assert_eq!(reasons(&["--tail", "2"]), "Started BackOff");
    assert_eq!(reasons(&["--tail=9", "--since=100ms"]), "BackOff");
    let mut story = Story::default();
    let before = render::render(&report(), &mut story, at(9_000));
    let mut entry = entry(950, "Normal", "Started", "main", "Container started");
    let known = before
        .lines()
        .find(|line| line.contains("Container started"));
    let row = story.row(&entry);
    assert_eq!(
        row.trim_end().find("Container"),
        known.unwrap().find("Container")
    );
    entry.uid = "new".into();
    assert!(story.row(&entry).contains("[pod UID from here on: new]"));
}

#[test]
fn a_pod_that_is_gone_has_its_story() {
    let gone = ExplainReport {
        pod: None,
        source_read: None,
        truncated: false,
        ..report()
    };
    insta::assert_snapshot!("gone", plain(&gone));
    let problem = Diagnostic::error(Code::InvalidValue, "/m/web.yaml", "not good").help("mend it");
    let rejected = ExplainReport {
        rejected: Some(problem),
        ..gone.clone()
    };
    let words = "default/web-box-docker: not running, its manifest is rejected: /m/web.yaml: not good [invalid-value]\n  help: mend it\n\nTIME";
    assert!(plain(&rejected).starts_with(words), "{}", plain(&rejected));
    let silent = ExplainReport {
        story: Vec::new(),
        ..gone
    };
    assert!(plain(&silent).ends_with("since the agent started.\n"));
}

#[test]
fn a_story_drives_nobodys_terminal() {
    let styled = render::render(&report(), &mut Story::default(), at(9_000));
    assert!(!styled.contains("\u{1b}[2J"), "{styled:?}");
}

#[test]
fn json_and_yaml_read_back() {
    let report = report();
    let yaml = serde_saphyr::to_string(&report).unwrap();
    let read: ExplainReport = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, report);
    assert_eq!(
        client::parse::<ExplainReport>(&serde_json::to_vec(&report).unwrap()).unwrap(),
        report
    );
    assert!(client::parse::<ExplainReport>(b"{}").is_err());
}

/// A report with a Deployment whose document is rejected, a Job, a CronJob, and pods of the three.
fn status_report() -> StatusReport {
    let of = |name: &str, owner: &str, status: &str, message: &str| PodReport {
        name: format!("{name}-box-docker"),
        manifest_name: name.to_owned(),
        workload: Some(owner.to_owned()),
        cron_job: (owner == "Job/every-1").then(|| "every".to_owned()),
        status: status.to_owned(),
        message: message.to_owned(),
        mirror: None,
        ..pod()
    };
    let problem = |workload: &str| {
        json!({
            "severity": "error", "code": "unknown-field", "file": "/m/dd.yaml",
            "position": {"line": 7, "column": 3, "offset": 9, "length": 7}, "field": "spec.replica", "workload": workload,
            "message": "unknown field", "help": "did you mean replicas?",
        })
    };
    let job = |name: &str, condition: &str| {
        json!({
            "namespace": "default", "name": name, "source": "/m/jobs.yaml", "active": 0,
            "succeeded": 0, "failed": 1, "condition": condition,
            "reason": "BackoffLimitExceeded", "message": "it failed too often",
        })
    };
    serde_json::from_value(json!({
        "agent": {
            "version": "1", "pid": 1, "startedAt": at(0).to_string(), "nodeName": "box",
            "root": "/r", "owner": "o",
        },
        "engine": {"endpoint": "", "reachable": true},
        "sources": [{
            "kind": "file", "location": "/m", "synced": true, "pods": 2, "problems": [
                problem("Deployment default/dd"), problem("Deployment shop/never"),
            ],
        }],
        "problems": [],
        "pods": [
            of("dd-0", "Deployment/dd", "Running", ""),
            of("dd-1", "Deployment/dd", "CrashLoopBackOff", "exited with code 1"),
            of("mig", "Job/mig", "Error", ""),
            of("every-1-a", "Job/every-1", "Completed", ""),
        ],
        "workloads": [{
            "namespace": "default", "owner": "Deployment/dd", "source": "/m/dd.yaml",
            "wanted": 2, "pods": 2, "ready": 1, "updated": 2, "available": 1,
            "progress": "NewReplicaSetAvailable", "message": "pod dd-1 is not Ready",
            "conditions": [],
        }],
        "jobs": [job("mig", "Failed"), job("every-1", "Complete")],
        "cronJobs": [{
            "namespace": "default", "name": "every", "source": "/m/jobs.yaml",
            "schedule": "*/5 * * * *", "timeZone": "UTC", "suspended": false, "active": 0,
            "nextSchedule": at(300_000).to_string(),
        }],
    }))
    .unwrap()
}

#[test]
fn a_workload_has_its_problems_and_a_line_for_each_pod() {
    let report = status_report();
    let text = |name: &str| {
        let found = Workloads::named(&report, name, at(9_000))?;
        Some(anstream::adapter::strip_str(&found.render()).to_string())
    };
    let all = ["deploy/dd", "job/mig", "cronjob/every", "deployment/never"];
    let all = all.map(|name| text(name).unwrap());
    insta::assert_snapshot!("workloads", all.join("----\n"));
    assert_eq!(text("deployment/default/dd"), text("deploy/dd"));
    // workloads 27
    assert_eq!(text("dd"), text("deploy/dd"));
    assert_eq!(text("default/dd"), text("deploy/dd"));
    for other in [
        "deployment/shop/dd",
        "deployment/x",
        "dd-0",
        "default/dd-0",
        "shop/dd",
    ] {
        assert_eq!(text(other), None, "{other}");
    }
    let found = Workloads::named(&report, "deploy/dd", at(9_000));
    let document = serde_json::to_value(found.unwrap()).unwrap();
    let workload = &document["workloads"][0];
    // workloads 23
    assert_eq!(workload["problems"][0]["position"]["line"], 7);
    assert_eq!(workload["pods"][1]["status"], "CrashLoopBackOff");
}
