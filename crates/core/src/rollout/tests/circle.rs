use std::collections::BTreeMap;

use super::*;
use crate::api::FullName;

/// A version of a pod with these host ports.
fn with_ports(name: &str, ports: &[u16]) -> Arc<Pod> {
    let ports: Vec<_> = ports
        .iter()
        .map(|port| json!({"containerPort": 80, "hostPort": port}))
        .collect();
    let uid = format!("{name}-{ports:?}");
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn name(pod: &str) -> FullName {
    FullName::new(pod, "default")
}

/// The circles of pods that have some ports and want others.
fn found(pods: &[(&str, &[u16], &[u16])]) -> Vec<String> {
    let next = pods.iter().filter(|(_, has, wants)| has != wants);
    let next = next.map(|(pod, _, wants)| (name(pod), with_ports(pod, wants)));
    let running = pods.iter().map(|(pod, has, _)| with_ports(pod, has));
    let circles = circles(&next.collect(), &running.collect::<Vec<_>>());
    let names = |circle: &BTreeSet<FullName>| {
        let names = circle.iter().map(|name| name.name.to_string());
        names.collect::<Vec<_>>().join(" ")
    };
    circles.iter().map(names).collect()
}

#[test]
fn pods_that_swap_host_ports_are_found() {
    /// Pods with the ports that they have and those that they want.
    type Pods = &'static [(&'static str, &'static [u16], &'static [u16])];
    let cases: [(&str, Pods, &[&str]); 11] = [
        ("nobody has it", &[("a", &[1], &[2])], &[]),
        (
            "another keeps it",
            &[("a", &[1], &[2]), ("b", &[2], &[2])],
            &[],
        ),
        (
            "another gives it up",
            &[("a", &[1], &[2]), ("b", &[2], &[3])],
            &[],
        ),
        ("two", &[("a", &[1], &[2]), ("b", &[2], &[1])], &["a b"]),
        (
            "three",
            &[("a", &[1], &[2]), ("b", &[2], &[3]), ("c", &[3], &[1])],
            &["a b c"],
        ),
        (
            "two circles",
            &[
                ("a", &[1], &[4]),
                ("b", &[2], &[3]),
                ("c", &[3], &[2]),
                ("d", &[4], &[1]),
            ],
            &["a d", "b c"],
        ),
        (
            "one that waits beside a circle",
            &[("a", &[1], &[2]), ("b", &[2], &[3]), ("c", &[3], &[2])],
            &["b c"],
        ),
        (
            "two circles with a pod in common",
            &[
                ("a", &[1, 2], &[3, 4]),
                ("b", &[3], &[1]),
                ("c", &[4], &[2]),
            ],
            &["a b c"],
        ),
        (
            "a circle that waits for a pod outside, which moves",
            &[("a", &[1], &[2, 3]), ("b", &[2], &[1]), ("c", &[3], &[4])],
            &[],
        ),
        (
            "a circle that waits for a pod outside, which stays",
            &[("a", &[1], &[2, 3]), ("b", &[2], &[1]), ("c", &[3], &[3])],
            &[],
        ),
        (
            "one of two ports",
            &[("a", &[1, 5], &[2, 5]), ("b", &[2, 6], &[6, 1])],
            &["a b"],
        ),
    ];
    for (case, pods, expected) in cases {
        // rollouts 31
        assert_eq!(found(pods), expected, "{case}");
    }
}

proptest! {
    /// Where each pod wants the port of one pod, those of each cycle of two or more are updated together.
    #[test]
    fn the_circles_of_a_permutation_are_its_cycles(
        wants in Just((0..8u16).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let pods: Vec<(String, [u16; 1], [u16; 1])> = (0u16..)
            .zip(&wants)
            .map(|(has, wants)| (format!("p{has}"), [has + 1], [wants + 1]))
            .collect();
        let as_slices: Vec<(&str, &[u16], &[u16])> = pods
            .iter()
            .map(|(name, has, wants)| (name.as_str(), &has[..], &wants[..]))
            .collect();
        let mut expected = BTreeSet::new();
        for start in 0..wants.len() {
            let mut cycle = BTreeSet::new();
            let mut at = start;
            while cycle.insert(format!("p{at}")) {
                at = usize::from(wants[at]);
            }
            if cycle.len() > 1 {
                expected.insert(cycle.into_iter().collect::<Vec<_>>().join(" "));
            }
        }
        let found: BTreeSet<String> = found(&as_slices).into_iter().collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn no_pod_of_a_circle_is_prepared_before_all_are() {
    use Preparation::{Done, Failed, UnderWay};
    let taken = |by: &str| Cause::new("NodePorts", format!("in use by pod default/{by}"));
    let waits = |by: &str, other: &str| {
        let message = format!(
            "in use by pod default/{by}; the pods swap host ports and are updated together, but pod default/{other} can't be updated yet: ErrImagePull: not found"
        );
        Failed(Cause::new("NodePorts", message))
    };
    let no_image = || Failed(Cause::new("ErrImagePull", "not found"));
    for (own, expected) in [
        ([Done, Done], [Done, Done]),
        ([Done, UnderWay], [UnderWay, UnderWay]),
        ([UnderWay, UnderWay], [UnderWay, UnderWay]),
        ([Done, no_image()], [waits("b", "b"), no_image()]),
        ([UnderWay, no_image()], [waits("b", "b"), no_image()]),
        ([no_image(), Done], [no_image(), waits("a", "a")]),
        ([no_image(), no_image()], [no_image(), no_image()]),
    ] {
        let [a, b] = own.clone();
        let swapped = |by: &str, own| Swapped {
            alone: taken(by),
            own,
        };
        let pods = BTreeMap::from([(name("a"), swapped("b", a)), (name("b"), swapped("a", b))]);
        let found: Vec<Preparation> = together(&pods).into_values().collect();
        // rollouts 31
        assert_eq!(found, expected, "{own:?}");
    }
}

#[test]
fn the_next_version_is_the_newest_or_of_one_that_failed_the_healthy_one() {
    let next = |story: &Story, turn: &Turn, has_failed: bool| {
        let next = next_version(&story.history, &story.wanted, turn, has_failed, true);
        next.map(|pod| PodUid::of(&pod).to_string())
    };
    let mut story = two_healthy();
    assert_eq!(next(&story, &Turn::Now, false), None, "it runs");
    assert_eq!(next(&story, &Turn::Now, true), None, "it has its verdict");
    story.edit("c");
    assert_eq!(next(&story, &Turn::Now, false).as_deref(), Some("c"));
    assert_eq!(next(&story, &Turn::Paused, false), None);
    story.history.paused = true;
    assert_eq!(next(&story, &Turn::Now, false), None);
    story.history.paused = false;
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(61)));
    assert_eq!(story.runs(), "c");
    assert_eq!(next(&story, &Turn::Now, false), None);
    assert_eq!(next(&story, &Turn::Now, true).as_deref(), Some("b"));
    story.edit("d");
    let edited = next(&story, &Turn::Now, true);
    assert_eq!(edited.as_deref(), Some("d"), "an edit comes first");
    story.history.beside = Some(("d".into(), at(0)));
    assert_eq!(
        next(&story, &Turn::Now, true),
        None,
        "it is started already"
    );
}

#[test]
fn a_version_that_failed_runs_on_while_the_healthy_one_waits_for_a_port() {
    let mut story = two_healthy();
    story.edit("c");
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(61)));
    let taken = "host port 80/tcp is in use by pod default/db";
    story.restore_waits = Some(Cause::new("NodePorts", taken));
    let decision = story.decide(Some(&crashing(3)));
    let Phase::Failed(cause) = &decision.phase else {
        panic!("{:?}", decision.phase)
    };
    // rollouts 31d
    assert_eq!((story.runs(), decision.change), ("c".to_owned(), None));
    let words = "container web was restarted 3 times, last with exit code 3 (Error); the last healthy version is restored once its host port is free: host port 80/tcp is in use by pod default/db";
    assert_eq!(&*cause.message, words);
    story.restore_waits = None;
    let decision = story.decide(Some(&crashing(4)));
    // rollouts 31d
    assert_eq!(decision.change, Some(Change::Restored));
    assert_eq!(story.runs(), "b");
    assert!(all_move([&decision].into_iter()));
    let settled = story.decide(Some(&ready(61)));
    assert!(!all_move([&decision, &settled].into_iter()));
}
