//! The index after lists, events and inspects.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use bollard::models::{
    ContainerState as EngineState, ContainerStateStatusEnum as Status, ContainerSummaryStateEnum,
    EventActor, EventMessage,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::translate::{ForwardedPort, Kind};
use crate::{events, translate};
use mirrorlet_core::api::keys;
use mirrorlet_core::observed::Role;
use mirrorlet_host::nat::Protocol;

const OWNER: &str = "me";
const ID: &str = "0123456789abcdef";
const UID: &str = "uid-1";
/// The id in statuses of the image that containers were created from.
const PULLED: &str = "docker-pullable://app@sha256:2";
const ZERO: &str = "0001-01-01T00:00:00Z";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn pod() -> mirrorlet_core::api::Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": UID},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    }))
    .unwrap()
}

/// Name and labels of a container of ours.
fn named(sandbox: bool) -> (String, HashMap<String, String>) {
    let pod = pod();
    let (full_name, uid) = (mirrorlet_core::api::FullName::of(&pod), PodUid::of(&pod));
    if sandbox {
        let name = translate::sandbox_name(&full_name, &uid, 0);
        (name, translate::labels::sandbox_labels(OWNER, &pod, 0))
    } else {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let name = translate::container_name("app", &full_name, &uid, 0);
        let labels = translate::labels::container_labels(
            OWNER,
            &pod,
            container,
            Role::App,
            translate::labels::Restarts::default(),
            "sandbox",
            PULLED,
        );
        (name, labels)
    }
}

fn ours(sandbox: bool) -> OurContainer {
    let (name, labels) = named(sandbox);
    translate::parse_ours(OWNER, [name.as_str()], &labels).unwrap()
}

fn summary(state: ContainerSummaryStateEnum, sandbox: bool) -> (ContainerSummary, OurContainer) {
    let summary = ContainerSummary {
        id: Some(ID.to_owned()),
        image: Some("app:1".to_owned()),
        created: Some(at(0).as_second()),
        state: Some(state),
        ..ContainerSummary::default()
    };
    (summary, ours(sandbox))
}

/// An inspect of a container in the state that `truth` says.
fn inspect(truth: Truth) -> ContainerInspectResponse {
    let time = |second| at(second).to_string();
    let (status, running, started, finished, code) = match truth {
        Truth::Created | Truth::Absent => (Status::CREATED, false, None, None, 0),
        Truth::Running => (Status::RUNNING, true, Some(1), None, 0),
        Truth::Exited => (Status::EXITED, false, Some(1), Some(2), 3),
    };
    let or_zero = |second: Option<i64>| Some(second.map_or_else(|| ZERO.to_owned(), time));
    ContainerInspectResponse {
        created: Some(time(0)),
        state: Some(EngineState {
            status: Some(status),
            running: Some(running),
            exit_code: Some(code),
            started_at: or_zero(started),
            finished_at: or_zero(finished),
            ..EngineState::default()
        }),
        ..ContainerInspectResponse::default()
    }
}

fn event(action: &str, second: i64) -> EventMessage {
    let (name, mut attributes) = named(false);
    attributes.insert("name".to_owned(), name);
    attributes.insert("image".to_owned(), "app:1".to_owned());
    if action == "die" {
        attributes.insert("exitCode".to_owned(), "3".to_owned());
    }
    EventMessage {
        action: Some(action.to_owned()),
        actor: Some(EventActor {
            id: Some(ID.to_owned()),
            attributes: Some(attributes),
        }),
        time: Some(at(second).as_second()),
        ..EventMessage::default()
    }
}

fn created() -> Created {
    Created {
        id: ID.into(),
        ours: ours(false),
        image: "app:1".into(),
        at: at(0),
    }
}

fn state(index: &Index) -> Option<ContainerState> {
    index.get(ID).map(|record| record.state)
}

fn list(index: &Index, began: ListBegan, truth: Truth) {
    let shown = match truth {
        Truth::Created => Some(ContainerSummaryStateEnum::CREATED),
        Truth::Running => Some(ContainerSummaryStateEnum::RUNNING),
        Truth::Exited => Some(ContainerSummaryStateEnum::EXITED),
        Truth::Absent => None,
    };
    index.apply_list(
        began,
        shown.map(|s| summary(s, false)).into_iter().collect(),
    );
}

#[test]
fn the_image_of_a_container_has_one_id_however_it_is_known() {
    let of_engine = Some("sha256:1".to_owned());
    let read = |with_label: bool| {
        let (name, mut labels) = named(false);
        if !with_label {
            labels.remove(keys::IMAGE_ID);
        }
        translate::parse_ours(OWNER, [name.as_str()], &labels).unwrap()
    };
    // Without the label: of an agent before this one.
    for (with_label, expected) in [(true, PULLED), (false, "docker://sha256:1")] {
        let shown = |index: &Index| {
            let status = pod_status(&UID.into(), index.of_pod(&UID.into()));
            status.containers[0].image_id.to_string()
        };
        let list = |index: &Index, state| {
            let mut listed = summary(state, false);
            listed.0.image_id.clone_from(&of_engine);
            listed.1 = read(with_label);
            index.apply_list(index.begin_list(), vec![listed]);
        };
        let look = |index: &Index, truth| {
            let mut found = inspect(truth);
            found.image.clone_from(&of_engine);
            index.inspected(ID, u64::MAX, &found, "");
        };
        let index = Index::default();
        if with_label {
            index.created(created());
            assert_eq!(shown(&index), expected, "just created");
        }
        list(&index, ContainerSummaryStateEnum::RUNNING);
        assert_eq!(shown(&index), expected, "listed");
        look(&index, Truth::Running);
        assert_eq!(shown(&index), expected, "inspected");
        look(&index, Truth::Exited);
        assert_eq!(shown(&index), expected, "dead");
        let restarted = Index::default();
        list(&restarted, ContainerSummaryStateEnum::EXITED);
        assert_eq!(shown(&restarted), expected, "listed by another agent");
        look(&restarted, Truth::Exited);
        assert_eq!(shown(&restarted), expected, "inspected by another agent");
    }
}

#[test]
fn inspects_are_read_as_upstream_reads_them() {
    struct Case {
        what: &'static str,
        shown: EngineState,
        state: ContainerState,
        reason: &'static str,
        started: Option<Timestamp>,
        finished: Option<Timestamp>,
        code: Option<i32>,
    }
    let ended = |code: i64, oom: bool| EngineState {
        status: Some(Status::EXITED),
        exit_code: Some(code),
        oom_killed: Some(oom),
        started_at: Some(at(1).to_string()),
        finished_at: Some(at(2).to_string()),
        ..EngineState::default()
    };
    let never = |status, code: i64| EngineState {
        status: Some(status),
        exit_code: Some(code),
        started_at: Some(ZERO.to_owned()),
        finished_at: Some(ZERO.to_owned()),
        ..EngineState::default()
    };
    let runs = |status| EngineState {
        status: Some(status),
        started_at: Some(at(1).to_string()),
        finished_at: Some(ZERO.to_owned()),
        ..EngineState::default()
    };
    let exited = |what, shown, reason, code| Case {
        what,
        shown,
        state: ContainerState::Exited,
        reason,
        started: Some(at(1)),
        finished: Some(at(2)),
        code: Some(code),
    };
    let live = |what, shown| Case {
        what,
        shown,
        state: ContainerState::Running,
        reason: "",
        started: Some(at(1)),
        finished: None,
        code: None,
    };
    let cases = [
        exited("ended well", ended(0, false), "Completed", 0),
        exited("ended badly", ended(3, false), "Error", 3),
        exited("killed for its memory", ended(137, true), "OOMKilled", 137),
        exited("a child killed for memory", ended(0, true), "OOMKilled", 0),
        live("running", runs(Status::RUNNING)),
        live("paused", runs(Status::PAUSED)),
        Case {
            started: None,
            ..live("restarting", runs(Status::RESTARTING))
        },
        Case {
            what: "its command is not there",
            shown: never(Status::CREATED, 127),
            state: ContainerState::Exited,
            reason: "ContainerCannotRun",
            started: Some(at(0)),
            finished: Some(at(0)),
            code: Some(127),
        },
        Case {
            what: "never started",
            shown: never(Status::CREATED, 0),
            state: ContainerState::Created,
            reason: "",
            started: None,
            finished: None,
            code: None,
        },
        Case {
            what: "its start was given up with the one who asked for it",
            shown: EngineState {
                error: Some("Canceled: context canceled".to_owned()),
                ..never(Status::CREATED, 128)
            },
            state: ContainerState::Created,
            reason: "",
            started: None,
            finished: None,
            code: None,
        },
        Case {
            what: "caught in the middle of its removal",
            shown: never(Status::DEAD, 0),
            state: ContainerState::Exited,
            reason: "Error",
            started: None,
            finished: Some(at(0)),
            code: Some(0),
        },
    ];
    for case in cases {
        let index = Index::default();
        let began = index.begin_list();
        list(&index, began, Truth::Created);
        let found = ContainerInspectResponse {
            created: Some(at(0).to_string()),
            state: Some(case.shown),
            ..ContainerInspectResponse::default()
        };
        let asked = index.get(ID).unwrap();
        assert!(asked.stale, "{}: a list tells too little", case.what);
        index.inspected(ID, asked.touched, &found, "");
        assert!(!index.get(ID).unwrap().stale, "{}", case.what);
        let status = pod_status(&UID.into(), index.of_pod(&UID.into()));
        let seen = &status.containers[0];
        assert_eq!(
            (seen.state, &*seen.reason, seen.exit_code),
            (case.state, case.reason, case.code),
            "{}",
            case.what
        );
        assert_eq!(
            (seen.started_at, seen.finished_at),
            (case.started, case.finished),
            "{}",
            case.what
        );
    }
}

#[test]
fn a_message_is_the_engines_words_then_the_containers() {
    for (error, message, whole) in [
        ("", "", ""),
        ("", "bye", "bye"),
        ("no such file", "", "no such file"),
        ("killed", "bye", "killed: bye"),
    ] {
        let index = Index::default();
        index.created(created());
        let mut found = inspect(Truth::Exited);
        found.state.as_mut().unwrap().error = Some(error.to_owned());
        index.inspected(ID, u64::MAX, &found, message);
        let status = pod_status(&UID.into(), index.of_pod(&UID.into()));
        assert_eq!(&*status.containers[0].message, whole);
    }
}

/// An index whose list has the container, which runs.
fn listed() -> Index {
    let index = Index::default();
    let began = index.begin_list();
    index.apply_list(
        began,
        vec![summary(ContainerSummaryStateEnum::RUNNING, true)],
    );
    index
}

/// From API 1.52 on there is no address but those of the networks.
#[test]
fn addresses_are_those_of_the_networks() {
    let index = listed();
    let mut found = inspect(Truth::Running);
    found.network_settings = serde_json::from_value(json!({
        "SandboxID": "5d4c",
        "SandboxKey": "/var/run/docker/netns/5d4c",
        "Ports": {},
        "Networks": {"bridge": {
            "Gateway": "172.17.0.1",
            "IPAddress": "172.17.0.9",
            "IPPrefixLen": 16,
            "IPv6Gateway": "",
            "GlobalIPv6Address": "fd00::9",
            "GlobalIPv6PrefixLen": 64,
        }},
    }))
    .unwrap();
    index.inspected(ID, u64::MAX, &found, "");
    let both: Vec<IpAddr> = vec!["172.17.0.9".parse().unwrap(), "fd00::9".parse().unwrap()];
    let status = || pod_status(&UID.into(), index.of_pod(&UID.into()));
    assert_eq!(status().ips, both);
    index.died(ID, Some(0), at(9));
    assert_eq!(status().ips, Vec::<IpAddr>::new(), "they end with it");
}

#[test]
fn a_pods_addresses_are_those_of_its_own_network() {
    let networks = json!({
        "bridge": {"NetworkID": "b00", "IPAddress": "172.17.0.2", "GlobalIPv6Address": "fd00::2"},
        "db": {"NetworkID": "d00", "IPAddress": "10.0.0.2", "GlobalIPv6Address": ""},
        "none": {"NetworkID": "900", "IPAddress": "", "GlobalIPv6Address": ""},
    });
    for (mode, expected) in [
        ("default", vec!["172.17.0.2", "fd00::2"]),
        ("bridge", vec!["172.17.0.2", "fd00::2"]),
        ("db", vec!["10.0.0.2"]),
        ("d00", vec!["10.0.0.2"]),
        // Disconnected from its own.
        ("none", vec!["10.0.0.2", "172.17.0.2", "fd00::2"]),
        ("gone", vec!["10.0.0.2", "172.17.0.2", "fd00::2"]),
    ] {
        let index = listed();
        let mut found = inspect(Truth::Running);
        found.host_config = serde_json::from_value(json!({"NetworkMode": mode})).unwrap();
        let settings = json!({"Networks": networks.clone()});
        found.network_settings = serde_json::from_value(settings).unwrap();
        index.inspected(ID, u64::MAX, &found, "");
        let expected: Vec<IpAddr> = expected.iter().map(|ip| ip.parse().unwrap()).collect();
        let status = pod_status(&UID.into(), index.of_pod(&UID.into()));
        // docker 22a
        assert_eq!(status.ips, expected, "{mode}");
    }
}

/// They are a part of every inspect, and of use for few.
#[test]
fn published_ports_are_kept_of_sandboxes_that_rules_lead_to() {
    let led = ForwardedPort {
        protocol: Protocol::Tcp,
        host_ip: None,
        host_port: 80,
        container_port: 8080,
    };
    for forwarded_ports in [vec![], vec![led]] {
        let mut ours = ours(true);
        let Kind::Sandbox {
            forwarded_ports: of,
            ..
        } = &mut ours.kind
        else {
            panic!("not a sandbox");
        };
        of.clone_from(&forwarded_ports);
        let index = Index::default();
        index.created(Created { ours, ..created() });
        index.started(ID, at(1));
        let mut found = inspect(Truth::Running);
        let ports = json!({"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}]});
        found.network_settings =
            serde_json::from_value(json!({"Ports": ports, "Networks": {}})).unwrap();
        index.inspected(ID, u64::MAX, &found, "");
        let record = index.get(ID).unwrap();
        let kept = serde_json::to_value(record.published()).unwrap();
        let expected = if forwarded_ports.is_empty() {
            json!(null)
        } else {
            ports
        };
        assert_eq!(kept, expected);
    }
}

#[test]
fn an_own_start_needs_no_inspect_but_for_an_address() {
    let index = Index::default();
    index.created(created());
    index.started(ID, at(1));
    let record = index.get(ID).unwrap();
    assert_eq!(
        (record.state, record.stale),
        (ContainerState::Running, false)
    );

    index.removed(ID);
    let sandbox = "fedcba9876543210";
    index.created(Created {
        id: sandbox.into(),
        ours: ours(true),
        ..created()
    });
    index.started(sandbox, at(1));
    assert!(index.get(sandbox).unwrap().stale);
}

/// The last action of a user on that record.
fn hand(index: &Index) -> Option<UserAction> {
    index.get(ID)?.by_hand.map(|by_hand| by_hand.what)
}

#[test]
fn a_stop_that_was_begun_before_this_agent_listened_is_no_persons_doing() {
    let listed = || {
        let index = Index::default();
        let began = index.begin_list();
        index.apply_list(
            began,
            vec![summary(ContainerSummaryStateEnum::RUNNING, false)],
        );
        index
    };
    let tell = |index: &Index, (action, signal): (&str, &str)| {
        let mut event = event(action, 2);
        let attributes = event.actor.as_mut().and_then(|a| a.attributes.as_mut());
        if !signal.is_empty() {
            attributes
                .unwrap()
                .insert("signal".to_owned(), signal.to_owned());
        }
        events::apply(index, OWNER, &event);
    };
    let (term, kill) = (("kill", "15"), ("kill", "9"));
    let (die, stop) = (("die", ""), ("stop", ""));
    for (told, expect) in [
        (&[die, stop][..], None),
        (&[kill, die, stop], None),
        (&[die, kill, stop], None),
        // A user's stop, which this agent saw begin.
        (&[term, die, stop], Some(UserAction::Stopped)),
        (&[term, kill, die, stop], Some(UserAction::Stopped)),
        (&[die, term, stop], Some(UserAction::Stopped)),
        // Of Docker Engine 29.
        (&[term, stop, die], Some(UserAction::Stopped)),
        (&[term, kill, stop, die], Some(UserAction::Stopped)),
    ] {
        for is_asked_between in [false, true] {
            let index = listed();
            let (last, first) = told.split_last().unwrap();
            for event in first {
                tell(&index, *event);
            }
            if is_asked_between {
                index.inspected(ID, u64::MAX, &inspect(Truth::Exited), "");
            }
            tell(&index, *last);
            // box 12
            assert_eq!(hand(&index), expect, "{told:?} {is_asked_between}");
        }
    }
    // It ends before the first list.
    let index = Index::default();
    for event in [die, stop] {
        tell(&index, event);
    }
    assert_eq!(hand(&index), None);
}

#[test]
fn the_signal_of_a_stop_is_noted_when_the_engine_reports_it() {
    let index = Index::default();
    index.created(created());
    index.started(ID, at(1));
    let tell = |signal: &str| {
        let mut event = event("kill", 2);
        let attributes = event.actor.as_mut().and_then(|a| a.attributes.as_mut());
        let signal = signal.to_owned();
        attributes.unwrap().insert("signal".to_owned(), signal);
        events::apply(&index, OWNER, &event);
        index.get(ID).unwrap().signalled
    };
    assert_eq!(tell("15"), None, "a user's");
    index.stopping(ID);
    assert_eq!(tell("9"), None, "the end of a stop");
    let signalled = tell("15");
    // rollouts S6
    assert!(signalled.is_some());
    assert_eq!(
        tell("1"),
        signalled,
        "a user's, of a container that is ending"
    );
    index.stopping(ID);
    assert_eq!(index.get(ID).unwrap().signalled, None, "another stop");
}

#[test]
fn what_a_person_did_is_read_from_events_and_from_an_inspect_alone() {
    let running = || {
        let index = Index::default();
        index.created(created());
        index.started(ID, at(1));
        index
    };
    let tell = |index: &Index, actions: &[&str]| {
        for action in actions {
            events::apply(index, OWNER, &event(action, 2));
        }
    };
    // box 12
    for (actions, expect) in [
        (&["die"][..], None),
        (&["kill"], Some(UserAction::Signalled)),
        (&["kill", "die"], Some(UserAction::Signalled)),
        // The Engine may report a signal after the end that it caused.
        (&["die", "kill"], Some(UserAction::Signalled)),
        (&["kill", "die", "stop"], Some(UserAction::Stopped)),
        (&["kill", "stop", "die"], Some(UserAction::Stopped)),
    ] {
        let index = running();
        tell(&index, actions);
        assert_eq!(hand(&index), expect, "{actions:?}");
        // Of a stop of ours they say nothing new.
        let index = running();
        index.stopping(ID);
        tell(&index, actions);
        assert_eq!(hand(&index), None, "{actions:?} by us");
        // An Engine that ends stops its containers in the same words.
        let index = running();
        tell(&index, actions);
        index.events_ended();
        assert_eq!(hand(&index), None, "{actions:?} at the end");
    }
    let again = |ended: i64, started: i64| {
        let mut found = inspect(Truth::Running);
        let state = found.state.as_mut().unwrap();
        state.finished_at = Some(at(ended).to_string());
        state.started_at = Some(at(started).to_string());
        found
    };
    for (found, expect) in [
        (inspect(Truth::Running), None),
        (again(2, 3), Some(UserAction::Restarted)),
        (again(2, 60), Some(UserAction::Started)),
    ] {
        let index = running();
        // All but the gap is lost.
        index.begin_gap();
        assert!(index.get(ID).unwrap().stale);
        index.inspected(ID, u64::MAX, &found, "");
        assert_eq!(hand(&index), expect);
        // Late news changes nothing before the Engine was asked again.
        tell(&index, &["kill", "stop"]);
        assert!(index.get(ID).unwrap().stale);
        index.inspected(ID, u64::MAX, &found, "");
        assert_eq!(hand(&index), expect.or(Some(UserAction::Signalled)));
    }
    // A pause is known by an inspect alone, which its event asks for.
    let index = running();
    for (action, paused, expect) in [
        ("pause", true, Some(UserAction::Paused)),
        ("pause", true, Some(UserAction::Paused)),
        ("unpause", false, Some(UserAction::Unpaused)),
    ] {
        tell(&index, &[action]);
        assert!(index.get(ID).unwrap().stale);
        let mut found = inspect(Truth::Running);
        found.state.as_mut().unwrap().paused = Some(paused);
        index.inspected(ID, u64::MAX, &found, "");
        assert_eq!(hand(&index), expect);
    }
    tell(&index, &["die"]);
    assert_eq!(hand(&index), None);
    // The Engine starts it again by a policy of its own, and is asked in between.
    let index = running();
    tell(&index, &["die"]);
    let mut between = inspect(Truth::Running);
    between.state.as_mut().unwrap().restarting = Some(true);
    index.inspected(ID, u64::MAX, &between, "");
    assert!(!index.get(ID).unwrap().stale);
    tell(&index, &["start"]);
    assert!(index.get(ID).unwrap().stale);
    index.inspected(ID, u64::MAX, &again(2, 3), "");
    assert_eq!(hand(&index), Some(UserAction::Restarted));
}

#[test]
fn an_end_needs_an_inspect_unless_it_is_a_sandboxs() {
    for sandbox in [false, true] {
        let index = Index::default();
        index.created(Created {
            ours: ours(sandbox),
            ..created()
        });
        index.started(ID, at(1));
        index.died(ID, Some(0), at(2));
        let record = index.get(ID).unwrap();
        assert_eq!(
            (record.state, record.stale),
            (ContainerState::Exited, !sandbox)
        );
    }
}

#[test]
fn a_list_that_began_earlier_takes_nothing_away_and_brings_nothing_back() {
    let index = Index::default();
    let began = index.begin_list();
    index.created(created());
    list(&index, began, Truth::Absent);
    assert_eq!(state(&index), Some(ContainerState::Created), "just made");

    let began = index.begin_list();
    index.removed(ID);
    list(&index, began, Truth::Exited);
    assert_eq!(state(&index), None, "just removed");

    let began = index.begin_list();
    list(&index, began, Truth::Absent);
    assert_eq!(state(&index), None);
}

#[test]
fn what_is_listed_before_it_can_be_found_is_told_by_its_create_event() {
    let index = Index::default();
    let began = index.begin_list();
    list(&index, began, Truth::Created);
    index.not_found(ID, index.get(ID).unwrap().touched);
    assert_eq!(state(&index), None);
    events::apply(&index, OWNER, &event("create", 1));
    assert_eq!(state(&index), Some(ContainerState::Created));

    // The event comes before the answer.
    let index = Index::default();
    let began = index.begin_list();
    list(&index, began, Truth::Created);
    let asked = index.get(ID).unwrap().touched;
    events::apply(&index, OWNER, &event("create", 1));
    index.not_found(ID, asked);
    assert_eq!(state(&index), Some(ContainerState::Created));
    let record = index.get(ID).unwrap();
    assert!(record.stale, "it is asked for once more");

    // What has run and can't be found is gone, whatever late news says.
    index.started(ID, at(1));
    index.not_found(ID, u64::MAX);
    events::apply(&index, OWNER, &event("create", 1));
    assert_eq!(state(&index), None);
}

#[test]
fn what_a_list_lacks_is_gone() {
    let index = Index::default();
    index.created(created());
    let began = index.begin_list();
    list(&index, began, Truth::Absent);
    assert_eq!(state(&index), None);
    assert!(index.is_complete());
    index.begin_gap();
    assert!(!index.is_complete());
}

#[test]
fn an_inspect_older_than_what_is_known_moves_nothing_back() {
    let index = Index::default();
    index.created(created());
    let asked = index.get(ID).unwrap().touched;
    index.started(ID, at(1));
    index.inspected(ID, asked, &inspect(Truth::Created), "");
    assert_eq!(state(&index), Some(ContainerState::Running));
    let asked = index.get(ID).unwrap().touched;
    index.died(ID, Some(3), at(2));
    index.inspected(ID, asked, &inspect(Truth::Running), "");
    assert_eq!(state(&index), Some(ContainerState::Exited));
    assert!(index.get(ID).unwrap().stale, "it is asked for once more");
}

#[test]
fn only_an_inspect_says_that_an_exited_one_runs_again() {
    let index = Index::default();
    index.created(created());
    index.inspected(ID, u64::MAX, &inspect(Truth::Exited), "");
    // Late news of the start it had.
    events::apply(&index, OWNER, &event("start", 1));
    assert!(!index.get(ID).unwrap().stale);
    // Somebody starts it by hand.
    events::apply(&index, OWNER, &event("start", 9));
    assert_eq!(state(&index), Some(ContainerState::Exited));
    let record = index.get(ID).unwrap();
    assert!(record.stale);
    index.inspected(ID, record.touched, &inspect(Truth::Running), "");
    assert_eq!(state(&index), Some(ContainerState::Running));
}

#[test]
fn events_of_others_are_nobodys() {
    let index = Index::default();
    let mut forged = event("start", 1);
    let attributes = |e: &mut EventMessage| e.actor.take().unwrap().attributes.unwrap();
    let mut labels = attributes(&mut forged);
    // The labels of ours, copied into a container of another name.
    labels.insert("name".to_owned(), "somebodys".to_owned());
    let mut unlabelled = labels.clone();
    unlabelled.remove(keys::OWNER);
    for attributes in [labels, unlabelled] {
        let message = EventMessage {
            action: Some("start".to_owned()),
            actor: Some(EventActor {
                id: Some(ID.to_owned()),
                attributes: Some(attributes),
            }),
            ..EventMessage::default()
        };
        assert_eq!(events::apply(&index, OWNER, &message), None);
    }
    assert_eq!(events::apply(&index, "other", &event("start", 1)), None);
    assert_eq!(state(&index), None);
}

/// Where the container of the property test is in truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    Created,
    Running,
    Exited,
    Absent,
}

/// Something the index is told.
#[derive(Debug, Clone)]
enum News {
    Event(&'static str),
    OwnCreate,
    OwnStart,
    OwnStop,
    OwnRemove,
    LivenessCheck,
    /// A list asked for at one moment and answered later, with what was true in between.
    ListBegins,
    ListEnds(Truth),
    /// An inspect likewise.
    Asked,
    Inspected(Truth),
}

fn news() -> impl Strategy<Value = News> {
    let truth = prop_oneof![
        Just(Truth::Created),
        Just(Truth::Running),
        Just(Truth::Exited),
        Just(Truth::Absent)
    ];
    prop_oneof![
        4 => prop_oneof![Just("create"), Just("start"), Just("die"), Just("destroy"), Just("oom")]
            .prop_map(News::Event),
        1 => Just(News::OwnCreate),
        1 => Just(News::OwnStart),
        1 => Just(News::OwnStop),
        1 => Just(News::OwnRemove),
        1 => Just(News::LivenessCheck),
        1 => Just(News::ListBegins),
        1 => truth.clone().prop_map(News::ListEnds),
        1 => Just(News::Asked),
        1 => truth.prop_map(News::Inspected),
    ]
}

fn tell(index: &Index, news: &News, began: &mut Option<ListBegan>, asked: &mut Option<u64>) {
    match news {
        News::Event(action) => {
            let second = match *action {
                "create" => 0,
                "start" => 1,
                _ => 2,
            };
            events::apply(index, OWNER, &event(action, second));
        }
        News::OwnCreate => index.created(created()),
        News::OwnStart => index.started(ID, at(1)),
        News::OwnStop => index.died(ID, None, at(2)),
        News::OwnRemove => index.removed(ID),
        News::LivenessCheck => index.doubt(ID),
        News::ListBegins => *began = Some(index.begin_list()),
        News::ListEnds(truth) => {
            if let Some(began) = began.take() {
                list(index, began, *truth);
            }
        }
        News::Asked => *asked = index.get(ID).map(|record| record.touched),
        News::Inspected(truth) => {
            if let Some(asked) = asked.take() {
                look(index, asked, *truth);
            }
        }
    }
}

fn look(index: &Index, asked: u64, truth: Truth) {
    if truth == Truth::Absent {
        index.not_found(ID, asked);
    } else {
        index.inspected(ID, asked, &inspect(truth), "");
    }
}

fn expected(truth: Truth) -> Option<ContainerState> {
    match truth {
        Truth::Created => Some(ContainerState::Created),
        Truth::Running => Some(ContainerState::Running),
        Truth::Exited => Some(ContainerState::Exited),
        Truth::Absent => None,
    }
}

proptest! {
    /// One list and the inspects it asks for end in the truth, after any news of a container's
    /// life, in any order, doubled or lost. And nothing but an inspect brings an ended one back.
    #[test]
    fn a_list_and_inspects_settle_everything(
        told in proptest::collection::vec(news(), 0..24),
        truth in prop_oneof![Just(Truth::Running), Just(Truth::Exited), Just(Truth::Absent)],
    ) {
        let index = Index::default();
        let (mut began, mut asked) = (None, None);
        // An id is never used again: one that is said to be gone is. Only of one that is being
        // created, it says nothing that the Engine can't find it yet.
        let mut gone = false;
        for news in &told {
            let before = state(&index);
            gone |= match news {
                News::OwnRemove | News::Event("destroy") => true,
                News::Inspected(Truth::Absent) => {
                    asked.is_some() && before.is_some_and(|before| before != ContainerState::Created)
                }
                _ => false,
            };
            tell(&index, news, &mut began, &mut asked);
            let back = before == Some(ContainerState::Exited)
                && state(&index) == Some(ContainerState::Running);
            prop_assert!(!back || matches!(news, News::Inspected(_)), "{news:?}");
        }
        let truth = if gone { Truth::Absent } else { truth };
        let began = index.begin_list();
        list(&index, began, truth);
        for _ in 0..3 {
            if let Some(record) = index.get(ID).filter(|record| record.stale) {
                look(&index, record.touched, truth);
            }
        }
        prop_assert_eq!(state(&index), expected(truth));
        prop_assert!(index.get(ID).is_none_or(|record| !record.stale));
    }

    /// The same life told in order by events and own calls ends in the truth without any list,
    /// whatever is doubled.
    #[test]
    fn in_order_news_need_no_list(repeats in proptest::collection::vec(1..3_usize, 4), steps in 1..5_usize) {
        let index = Index::default();
        let life = [("create", Truth::Created), ("start", Truth::Running), ("die", Truth::Exited), ("destroy", Truth::Absent)];
        for ((action, truth), repeat) in life.iter().zip(repeats).take(steps) {
            for _ in 0..repeat {
                tell(&index, &News::Event(action), &mut None, &mut None);
            }
            prop_assert_eq!(state(&index), expected(*truth));
        }
    }
}

#[test]
fn pods_are_listed_newest_first_and_dead_ones_on_demand() {
    let index = Index::default();
    index.created(created());
    assert_eq!(index.pods(false), Vec::new());
    assert_eq!(index.pods(true)[0].containers.len(), 1);
    index.started(ID, at(1));
    assert_eq!(index.pods(false)[0].uid, UID.into());
    let later = at(0) + Duration::from_secs(5);
    let status = {
        let mut newer = created();
        newer.id = "ffffffffffff".into();
        newer.at = later;
        index.created(newer);
        pod_status(&UID.into(), index.of_pod(&UID.into()))
    };
    assert_eq!(status.containers[0].created_at, later);
    assert_eq!(status.containers.len(), 2);
}
