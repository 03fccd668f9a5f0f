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
    EventReport {
        number,
        namespace,
        name: name.to_owned(),
        entry: StoryReport {
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
    ]
}

#[test]
fn events_are_selected() {
    let reasons = |pod: Option<&str>, flags: &[&str]| {
        let cli = Cli::try_parse_from(["mirrorlet", "events"].iter().chain(flags));
        let Cmd::Events(args) = cli.unwrap().command else {
            panic!("{flags:?}")
        };
        let pod = pod.map(|namespace| (namespace.to_owned(), "web-box".to_owned()));
        let known = Filter { args: &args, pod }.known(all(), at(4));
        let reasons = known.into_iter().map(|event| event.entry.reason);
        reasons.collect::<Vec<_>>().join(" ")
    };
    for (pod, flags, expected) in [
        (None, &[][..], "Starting Started BackOff"),
        (Some("default"), &[], "Started"),
        (None, &["-n", "prod"], "BackOff"),
        (None, &["--types", "warning"], "BackOff"),
        (None, &["--types=Normal,Warning", "--tail=1"], "BackOff"),
        (None, &["--since", "2s"], "Started BackOff"),
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
        let pod = pod.map(|name| ("default".to_owned(), name.to_owned()));
        Filter { args: &args, pod }.none()
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
