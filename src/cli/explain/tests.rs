use clap::Parser as _;

use super::*;
use crate::config::args::{Cli, Cmd};
use mirrorlet_core::api::report::{MirrorReport, PodReport};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
}

fn entry(millis: i64, kind: &str, reason: &str, container: &str, message: &str) -> StoryReport {
    StoryReport {
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
    assert!(story.row(&entry).contains("[from here on pod new]"));
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
