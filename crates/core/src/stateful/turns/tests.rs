use std::ops::Range;

use proptest::prelude::*;

use super::*;

fn set(ordinals: Range<i32>, min_ready: u64) -> StatefulSet {
    StatefulSet {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        ordinals,
        ordered: true,
        min_ready: Duration::from_secs(min_ready),
        claims: Vec::new(),
        claim_templates: Vec::new(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const READY: Member = Member::Started(Some(Timestamp::UNIX_EPOCH));
const UNREADY: Member = Member::Started(None);
const STOPPING: Member = Member::Stopping;

#[test]
fn each_pod_starts_and_stops_in_its_turn() {
    use Wait::{Available, Ready, Stopped};
    let three = set(0..3, 0);
    let one = set(0..1, 0);
    let from_five = set(5..7, 0);
    let none = set(0..0, 0);
    let slow = set(0..2, 30);
    for (set, members, runs, waits) in [
        // Starts, from the first on.
        (&three, vec![], vec![0], vec![(1, Ready(0)), (2, Ready(0))]),
        (
            &three,
            vec![(0, UNREADY)],
            vec![0],
            vec![(1, Ready(0)), (2, Ready(0))],
        ),
        (&three, vec![(0, READY)], vec![0, 1], vec![(2, Ready(1))]),
        (&three, vec![(0, READY), (1, READY)], vec![0, 1, 2], vec![]),
        (&from_five, vec![], vec![5], vec![(6, Ready(5))]),
        // A pod that was started stays, whatever happens to others.
        (
            &three,
            vec![(0, UNREADY), (1, READY), (2, READY)],
            vec![0, 1, 2],
            vec![],
        ),
        (&three, vec![(1, READY)], vec![0, 1], vec![(2, Ready(0))]),
        (
            &three,
            vec![(0, UNREADY), (2, READY)],
            vec![0, 2],
            vec![(1, Ready(0))],
        ),
        // minReadySeconds.
        (&slow, vec![(0, READY)], vec![0], vec![(1, Available(0))]),
        // One that is being stopped is started anew once it has stopped.
        (
            &three,
            vec![(0, READY), (1, STOPPING)],
            vec![0],
            vec![(1, Stopped(1)), (2, Stopped(1))],
        ),
        // Stops, from the last on.
        (
            &one,
            vec![(0, READY), (1, READY), (2, READY)],
            vec![0, 1],
            vec![(1, Stopped(2))],
        ),
        (
            &one,
            vec![(0, READY), (1, READY), (2, STOPPING)],
            vec![0, 1],
            vec![(1, Stopped(2))],
        ),
        (&one, vec![(0, READY), (1, READY)], vec![0], vec![]),
        (&one, vec![(0, READY), (1, UNREADY)], vec![0], vec![]),
        // Not while one that stays is not Ready, or not there.
        (
            &one,
            vec![(0, UNREADY), (1, READY), (2, READY)],
            vec![0, 1, 2],
            vec![(1, Ready(0)), (2, Ready(0))],
        ),
        (&one, vec![(1, READY)], vec![0, 1], vec![(1, Ready(0))]),
        (
            &none,
            vec![(0, READY), (1, UNREADY)],
            vec![0],
            vec![(0, Stopped(1))],
        ),
        // Other numbers.
        (
            &from_five,
            vec![(0, READY), (5, READY), (6, READY), (7, READY)],
            vec![0, 5, 6],
            vec![(0, Stopped(7))],
        ),
    ] {
        let members: BTreeMap<i32, Member> = members.into_iter().collect();
        let found = turns(set, &members, at(10));
        // workloads 20
        assert_eq!(found.runs, runs.into_iter().collect(), "{members:?}");
        assert_eq!(found.waits, waits.into_iter().collect(), "{members:?}");
    }
}

#[test]
fn the_next_turn_comes_by_itself() {
    let slow = set(0..3, 30);
    let members = BTreeMap::from([(0, READY), (1, Member::Started(Some(at(5))))]);
    let found = turns(&slow, &members, at(10));
    assert_eq!(found.look_again, Some(Duration::from_secs(20)));
    let found = turns(&slow, &members, at(30));
    assert_eq!(found.look_again, Some(Duration::from_secs(5)));
    assert_eq!(found.waits[&2], Wait::Available(1));
    let found = turns(&slow, &members, at(35));
    assert_eq!((found.look_again, found.runs.len()), (None, 3));
}

#[test]
fn parallel_pods_wait_for_nobody() {
    let parallel = StatefulSet {
        ordered: false,
        ..set(0..3, 30)
    };
    let members = BTreeMap::from([(0, UNREADY), (2, STOPPING), (3, READY), (4, READY)]);
    let found = turns(&parallel, &members, at(0));
    assert_eq!(found.runs, BTreeSet::from([0, 1, 2]));
    assert!(found.waits.is_empty());
}

#[test]
fn words_name_the_pod() {
    let slow = set(0..3, 30);
    for (wait, words) in [
        (Wait::Ready(0), "web-0 is Running and Ready"),
        (Wait::Available(1), "web-1 has been Ready for 30 s"),
        (Wait::Stopped(2), "web-2 has stopped"),
    ] {
        assert_eq!(wait.words(&slow), words);
    }
}

fn members() -> impl Strategy<Value = BTreeMap<i32, Member>> {
    let member = prop_oneof![Just(READY), Just(UNREADY), Just(STOPPING)];
    proptest::collection::btree_map(0..8, member, 0..8)
}

proptest! {
    #[test]
    fn at_most_one_pod_starts_or_stops_and_none_that_is_wanted_stops(
        members in members(),
        start in 0..4,
        replicas in 0..5,
    ) {
        let set = set(start..start + replicas, 0);
        let found = turns(&set, &members, at(0));
        let mut changes = 0;
        for ordinal in 0..10 {
            let runs = found.runs.contains(&ordinal);
            match members.get(&ordinal) {
                None if runs => {
                    changes += 1;
                    let mut before = start..ordinal;
                    // workloads 20
                    prop_assert!(before.all(|lower| members.get(&lower) == Some(&READY)));
                }
                Some(Member::Started(_)) if !runs => {
                    changes += 1;
                    prop_assert!(!set.ordinals.contains(&ordinal));
                    prop_assert!(set.ordinals.clone().all(|stays| members.get(&stays) == Some(&READY)));
                    let mut above = members.range(ordinal + 1..);
                    prop_assert!(above.all(|(other, _)| set.ordinals.contains(other)));
                }
                Some(Member::Stopping) => prop_assert!(!runs),
                _ => {}
            }
            let is_wanted = set.ordinals.contains(&ordinal);
            let waits = found.waits.contains_key(&ordinal);
            let stays = members.contains_key(&ordinal) && !is_wanted && runs;
            prop_assert_eq!(waits, stays || is_wanted && !runs, "{}", ordinal);
        }
        prop_assert!(changes <= 1);
    }

    #[test]
    fn a_world_that_obeys_gets_there(mut members in members(), start in 0..4, replicas in 0..5) {
        let set = set(start..start + replicas, 0);
        let (mut started, mut stopped) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            // The agent may be killed here: nothing is known but the members.
            let found = turns(&set, &members, at(0));
            members.retain(|_, member| *member != STOPPING);
            for ordinal in 0..10 {
                let is_there = members.contains_key(&ordinal);
                match (is_there, found.runs.contains(&ordinal)) {
                    (false, true) => {
                        started.push(ordinal);
                        members.insert(ordinal, UNREADY);
                    }
                    (true, true) => {
                        members.insert(ordinal, READY);
                    }
                    (true, false) => {
                        stopped.push(ordinal);
                        members.insert(ordinal, STOPPING);
                    }
                    (false, false) => {}
                }
            }
        }
        // workloads 20
        prop_assert!(members.keys().copied().eq(set.ordinals.clone()));
        prop_assert!(members.values().all(|member| *member == READY));
        prop_assert!(started.is_sorted(), "{:?}", started);
        prop_assert!(stopped.iter().rev().is_sorted(), "{:?}", stopped);
    }
}
