use clap::Parser as _;

use super::*;
use crate::config::args::{Cli, Cmd};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn event(number: u64, object: &str, kind: &str, reason: &str) -> EventReport {
    let (namespace, name) = match object.split_once('/') {
        Some((namespace, name)) => (Some(namespace.to_owned()), name),
        None => (None, object),
    };
    let (workload, name) = match name.split_once('/') {
        Some((kind, name)) => (Some(kind.to_owned()), name),
        None => (None, name),
    };
    EventReport {
        number,
        workload,
        namespace,
        name: name.to_owned(),
        entry: JournalReport {
            at: at(i64::try_from(number).unwrap()),
            kind: kind.to_owned(),
            reason: reason.to_owned(),
            container: (reason == "Started").then(|| "main".to_owned()),
            message: "Words\n\u{1b}[2J".to_owned(),
            uid: "u".into(),
        },
    }
}

fn all() -> Vec<EventReport> {
    vec![
        event(0, "box", "Normal", "Starting"),
        event(1, "default/web-box", "Trace", "Planned"),
        event(2, "default/web-box", "Normal", "Started"),
        event(3, "prod/web-box", "Warning", "BackOff"),
        event(4, "prod/Deployment/web-box", "Normal", "ScalingReplicaSet"),
    ]
}

#[test]
fn events_are_selected() {
    let reasons = |pod: Option<&str>, flags: &[&str]| {
        let cli = Cli::try_parse_from(["mirrorlet", "events"].iter().chain(flags));
        let Cmd::Events(args) = cli.unwrap().command else {
            panic!("{flags:?}")
        };
        let about = pod.map_or(About::All, |text| match text.split_once('/') {
            Some((namespace, "web-box")) => {
                let namespace = (namespace != "*").then(|| namespace.to_owned());
                About::Workload(namespace, "Deployment/web-box".to_owned())
            }
            _ => About::Pod(text.to_owned(), "web-box".to_owned()),
        });
        let args = &args;
        let known = Filter { args, about }.known(all(), at(4));
        let reasons = known.into_iter().map(|event| event.entry.reason);
        reasons.collect::<Vec<_>>().join(" ")
    };
    for (pod, flags, expected) in [
        (None, &[][..], "Starting Started BackOff ScalingReplicaSet"),
        (Some("default"), &[], "Started"),
        (Some("prod"), &[], "BackOff"),
        (Some("prod/web-box"), &[], "ScalingReplicaSet"),
        (Some("*/web-box"), &[], "ScalingReplicaSet"),
        (Some("default/web-box"), &[], ""),
        (None, &["-n", "prod"], "BackOff ScalingReplicaSet"),
        (None, &["--types", "warning"], "BackOff"),
        (
            None,
            &["--types=Normal,Warning", "--tail=1"],
            "ScalingReplicaSet",
        ),
        (
            None,
            &["--since", "2s"],
            "Started BackOff ScalingReplicaSet",
        ),
        (Some("other"), &[], ""),
    ] {
        // agent 9
        assert_eq!(reasons(pod, flags), expected, "{pod:?} {flags:?}");
    }
}

#[test]
fn no_events_means_none_at_all_or_none_that_match() {
    let none = |pod: Option<&str>, flags: &[&str]| {
        let cli = Cli::try_parse_from(["mirrorlet", "events"].iter().chain(flags));
        let Cmd::Events(args) = cli.unwrap().command else {
            panic!("{flags:?}")
        };
        let about = pod.map_or(About::All, |name| {
            About::Pod("default".to_owned(), name.to_owned())
        });
        let args = &args;
        Filter { args, about }.none()
    };
    assert_eq!(none(None, &[]), "No events since the agent started.\n");
    for flags in [
        &["-n", "nope"][..],
        &["--since", "2m"],
        &["--types=Warning"],
    ] {
        assert_eq!(none(None, flags), "No events match.\n", "{flags:?}");
    }
    assert_eq!(none(Some("web-box"), &[]), "No events match.\n");
}

#[test]
fn rows_align_over_prints_and_drive_no_terminal() {
    let mut table = Table::default();
    let first = table.rows(&all()[..3]);
    let text = first + &table.rows(&all()[3..]);
    insta::assert_snapshot!(anstream::adapter::strip_str(&text));
    assert!(!text.contains("\u{1b}[2J"), "{text:?}");
}
