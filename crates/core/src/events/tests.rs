use super::*;
use crate::api::{FullName, Pod, PodUid};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn pod_happening(container: Option<&str>, reason: &str, message: &str, second: i64) -> Happening {
    let path = container.map(|name| format!("spec.containers{{{name}}}"));
    Happening {
        involved: pod_ref(
            &FullName::new("web-box", "default"),
            &PodUid::from("u"),
            path.as_deref(),
        ),
        event_type: EventType::Normal,
        reason: reason.to_owned(),
        message: message.to_owned(),
        at: at(second),
    }
}

fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

#[test]
fn an_event_names_its_pod_its_container_and_us() {
    let mut correlator = Correlator::new("box-docker");
    let happening = pod_happening(Some("main"), "Started", "Container started", 5);
    let write = correlator.correlate(&happening, at(6)).unwrap();
    assert!(!write.update);
    let json = serde_json::to_value(&write.event).unwrap();
    let stamp = at(5).as_nanosecond();
    // pods 62
    assert_eq!(
        json,
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": format!("web-box.{stamp:x}"), "namespace": "default"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "default",
                "name": "web-box",
                "uid": "u",
                "fieldPath": "spec.containers{main}",
            },
            "type": "Normal",
            "reason": "Started",
            "message": "Container started",
            "count": 1,
            "firstTimestamp": "2023-11-14T22:13:25Z",
            "lastTimestamp": "2023-11-14T22:13:25Z",
            "source": {"component": "mirrorlet", "host": "box-docker"},
            "reportingComponent": "mirrorlet",
            "reportingInstance": "box-docker",
        })
    );
}

#[test]
fn an_event_of_the_node_has_its_name_as_uid_and_lies_in_the_default_namespace() {
    let happening = Happening {
        involved: node_ref("box-docker"),
        event_type: EventType::Normal,
        reason: "NodeReady".to_owned(),
        message: "Node box-docker status is now: NodeReady".to_owned(),
        at: at(0),
    };
    let write = Correlator::new("box-docker")
        .correlate(&happening, at(0))
        .unwrap();
    assert_eq!(write.namespace(), "default");
    let involved = write.event.involved_object;
    assert_eq!(text(involved.kind.as_ref()), "Node");
    // events 5
    assert_eq!(involved.name, involved.uid);
    assert_eq!(involved.namespace, None);
}

#[test]
fn a_repeat_counts_up_and_only_patches() {
    let mut correlator = Correlator::new("n");
    let tell = |correlator: &mut Correlator, container, message, second| {
        let happening = pod_happening(Some(container), "BackOff", message, second);
        correlator.correlate(&happening, at(second)).unwrap()
    };
    let first = tell(&mut correlator, "a", "x", 0);
    let again = tell(&mut correlator, "a", "x", 9);
    assert!(again.update);
    assert_eq!(again.name(), first.name());
    assert_eq!(again.event.first_timestamp, first.event.first_timestamp);
    // events 1
    assert_eq!(
        again.patch(),
        serde_json::json!({"count": 2, "lastTimestamp": "2023-11-14T22:13:29Z", "message": "x"})
    );
    // Another container, other words: another event.
    assert!(!tell(&mut correlator, "b", "x", 9).update);
    assert!(!tell(&mut correlator, "a", "y", 9).update);
    assert_eq!(tell(&mut correlator, "a", "x", 12).event.count, Some(3));
}

#[test]
fn a_repeat_after_an_hour_is_a_new_event() {
    let mut correlator = Correlator::new("n");
    let mut tell = |second| {
        let happening = pod_happening(None, "R", "x", second);
        correlator.correlate(&happening, at(second)).unwrap()
    };
    let first = tell(0);
    let again = tell(3600);
    assert_eq!((again.update, again.event.count), (true, Some(2)));
    assert_eq!(again.name(), first.name());
    // An hour after the last one, not after the first.
    let third = tell(7200);
    assert_eq!((third.update, third.event.count), (true, Some(3)));
    assert_eq!(third.event.first_timestamp, first.event.first_timestamp);
    let new = tell(10_801);
    assert_eq!((new.update, new.event.count), (false, Some(1)));
    assert_ne!(new.name(), first.name());
}

#[test]
fn names_differ_though_the_time_is_the_same() {
    let mut correlator = Correlator::new("n");
    let mut names: Vec<String> = ["a", "b", "c"]
        .iter()
        .map(|message| pod_happening(None, "R", message, 0))
        .map(|happening| correlator.correlate(&happening, at(0)).unwrap())
        .map(|write| write.name().to_owned())
        .collect();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn many_similar_ones_become_one() {
    let mut correlator = Correlator::new("n");
    let mut tell = |message: String, second| {
        let happening = pod_happening(None, "Failed", &message, second);
        correlator.correlate(&happening, at(second)).unwrap()
    };
    for i in 0..9 {
        let write = tell(format!("error {i}"), i);
        assert!(!write.update);
        assert_eq!(text(write.event.message.as_ref()), format!("error {i}"));
    }
    let tenth = tell("error 9".to_owned(), 9);
    assert!(!tenth.update);
    assert_eq!(
        text(tenth.event.message.as_ref()),
        "(combined from similar events): error 9"
    );
    let eleventh = tell("error 10".to_owned(), 10);
    assert!(eleventh.update);
    assert_eq!(eleventh.name(), tenth.name());
    // events 1
    assert_eq!(eleventh.event.count, Some(2));
    assert_eq!(
        eleventh.patch()["message"],
        "(combined from similar events): error 10"
    );
    // Ten quiet minutes later each counts for itself again.
    let later = tell("error 11".to_owned(), 10 + 601);
    assert_eq!(text(later.event.message.as_ref()), "error 11");
}

#[test]
fn an_object_that_tells_too_much_is_not_listened_to_for_a_while() {
    let mut correlator = Correlator::new("n");
    let mut tell = |second: i64| {
        let happening = pod_happening(None, "BackOff", "x", second);
        correlator.correlate(&happening, at(second))
    };
    for i in 0..25 {
        assert!(tell(i).is_some(), "{i}");
    }
    // events 1
    assert_eq!(tell(26), None);
    assert_eq!(tell(27), None);
    // One passes after five minutes, and its count has those not written.
    let next = tell(300).unwrap();
    assert_eq!(next.event.count, Some(28));
    assert_eq!(tell(301), None);
    assert!(tell(600).is_some());
    // Another object, or another type, has a bucket of its own.
    let mut other = pod_happening(None, "BackOff", "x", 602);
    other.event_type = EventType::Warning;
    assert!(correlator.correlate(&other, at(602)).is_some());
    other.involved.uid = Some("v".to_owned());
    assert!(correlator.correlate(&other, at(602)).is_some());
}

#[test]
fn a_clock_that_was_set_back_silences_nobody_for_ever() {
    let mut correlator = Correlator::new("n");
    let mut tell = |second: i64| {
        let happening = pod_happening(None, "BackOff", "x", second);
        correlator.correlate(&happening, at(second)).is_some()
    };
    for i in 0..30 {
        tell(1_000_000 + i);
    }
    assert!(!tell(0));
    assert!(tell(301));
}

#[test]
fn a_container_is_a_field_of_its_list() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "prod", "uid": "u"},
        "spec": {
            "containers": [{"name": "main"}, {"name": ""}],
            "initContainers": [{"name": "setup"}],
            "ephemeralContainers": [{"name": "debug"}],
        },
    }))
    .unwrap();
    for (container, path) in [
        ("main", "spec.containers{main}"),
        ("", "spec.containers[1]"),
        ("setup", "spec.initContainers{setup}"),
        ("debug", "spec.ephemeralContainers{debug}"),
    ] {
        // docker 66
        assert_eq!(field_path(&pod, container).as_deref(), Some(path));
    }
    assert_eq!(field_path(&pod, "POD"), None);
}

#[test]
fn ids_become_names_and_digests_stay() {
    let id = "0123456789abcdef".repeat(4);
    for (message, expected) in [
        (format!("container {id} died"), "container main died"),
        (id.clone(), "main"),
        (format!("({id}), {id}: no"), "(main), main: no"),
    ] {
        assert_eq!(without_ids(&message, "main"), expected);
    }
    for kept in [
        format!("image sha256:{id} missing"),
        format!("{id}0"),
        format!("x{id}"),
        "größer als 3".to_owned(),
        String::new(),
    ] {
        assert_eq!(without_ids(&kept, "main"), kept);
    }
}

#[test]
fn long_names_and_messages_are_cut() {
    let happening = Happening {
        involved: pod_ref(
            &FullName::new("a.".repeat(126).trim_end_matches('.'), "d"),
            &"u".into(),
            None,
        ),
        ..pod_happening(None, "R", &"ü".repeat(2000), 0)
    };
    let write = Correlator::new("n").correlate(&happening, at(0)).unwrap();
    assert!(write.name().len() <= 253, "{}", write.name());
    assert!(!write.name().contains(".."), "{}", write.name());
    assert_eq!(text(write.event.message.as_ref()).chars().count(), 1024);
}

fn write(number: usize, update: bool) -> Write {
    let mut event = core::Event::default();
    event.metadata.name = Some(format!("e{number}"));
    event.count = Some(if update { 2 } else { 1 });
    Write { event, update }
}

fn names(spool: &mut EventQueue) -> Vec<String> {
    std::iter::from_fn(|| spool.pop())
        .map(|write| write.name().to_owned())
        .collect()
}

#[test]
fn a_repeat_takes_the_place_of_what_waits() {
    let mut spool = EventQueue::default();
    for number in [1, 2, 3] {
        assert_eq!(spool.push(write(number, false)), 0);
    }
    spool.push(write(2, true));
    assert_eq!(spool.len(), 3);
    let first = spool.pop().unwrap();
    let second = spool.pop().unwrap();
    // It was never written, so it is created, with the count it has by now.
    assert!(!second.update);
    assert_eq!(second.event.count, Some(2));
    spool.push(write(1, true));
    spool.put_back(first);
    let first = spool.pop().unwrap();
    assert_eq!((first.update, first.event.count), (false, Some(2)));
    assert_eq!(names(&mut spool), ["e3"]);
}

#[test]
fn the_oldest_are_lost_and_counted() {
    let mut spool = EventQueue::default();
    let lost: usize = (0..SPOOL_MAX + 3)
        .map(|number| spool.push(write(number, false)))
        .sum();
    assert_eq!((lost, spool.len()), (3, SPOOL_MAX));
    assert_eq!(spool.put_back(write(0, false)), 1);
    assert_eq!(names(&mut spool).first().map(String::as_str), Some("e3"));
}
