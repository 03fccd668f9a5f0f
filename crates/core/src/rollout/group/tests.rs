use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::{Timestamp, core};
use crate::desired::{Origin, PodSource, SourcePod};
use crate::rollout::{
    Command, Decision, Input, MIN_READY_SECONDS, Phase, Preparation, ROLLOUT, Refused, View, decide,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn percent(text: &str) -> IntOrString {
    IntOrString::String(text.to_owned())
}

fn rolling_update(max_surge: i32, max_unavailable: i32) -> Updates {
    Updates {
        paused: false,
        policy: UpdatePolicy::RollingUpdate {
            max_surge: IntOrString::Int(max_surge),
            max_unavailable: IntOrString::Int(max_unavailable),
        },
    }
}

fn ordered_from(partition: i32) -> Updates {
    Updates {
        paused: false,
        policy: UpdatePolicy::Ordered {
            partition,
            max_unavailable: IntOrString::Int(1),
        },
    }
}

/// The pods of a workload, driven by hand. A version that is named `bad-N` crashes in the pod of that
/// number and those above it, and is healthy in the others.
struct Fleet {
    updates: Updates,
    start_first: bool,
    restore: bool,
    version: String,
    histories: BTreeMap<u32, History>,
    /// Those of pods that the document doesn't want any more.
    gone: BTreeMap<u32, History>,
    /// Since when each revision runs, by its UID.
    since: BTreeMap<PodUid, i64>,
    phases: BTreeMap<u32, Phase>,
    now: i64,
    /// Which versions ever ran, or ran beside another, in which pod.
    seen: BTreeSet<(u32, String)>,
    /// Most pods that didn't serve at a time, though nothing was wrong with them.
    most_missing: usize,
    most_beside: usize,
}

impl Fleet {
    /// Pods that all are healthy at version `a`.
    fn new(pods: u32, updates: Updates, start_first: bool) -> Self {
        let mut fleet = Self {
            updates,
            start_first,
            restore: true,
            version: "a".to_owned(),
            histories: (0..pods)
                .map(|number| (number, History::default()))
                .collect(),
            gone: BTreeMap::new(),
            since: BTreeMap::new(),
            phases: BTreeMap::new(),
            now: 0,
            seen: BTreeSet::new(),
            most_missing: 0,
            most_beside: 0,
        };
        fleet.settle();
        (fleet.most_missing, fleet.most_beside) = (0, 0);
        fleet
    }

    fn pod(&self, number: u32) -> SourcePod {
        let order = if self.start_first {
            "StartFirst"
        } else {
            "Recreate"
        };
        let pod = json!({
            "metadata": {
                "name": format!("web-{number}"), "namespace": "default",
                "uid": format!("{number}/{}", self.version),
                "annotations": {
                    keys::WORKLOAD: "Deployment/web",
                    keys::TEMPLATE: self.version,
                    keys::UPDATES: self.updates.annotation(),
                    ROLLOUT: order,
                    MIN_READY_SECONDS: "10",
                },
            },
            "spec": {"containers": [{"name": "web", "image": "web"}]},
        });
        SourcePod::new(
            Arc::new(serde_json::from_value(pod).unwrap()),
            Origin::whole(PodSource::File, "/m/web.yaml"),
        )
    }

    fn status(&self, uid: &PodUid) -> Option<core::PodStatus> {
        let since = *self.since.get(uid)?;
        if since >= self.now {
            return None;
        }
        let (number, version) = uid.as_str().split_once('/')?;
        let number: u32 = number.parse().unwrap();
        let from = version.strip_prefix("bad-").map(|n| n.parse().unwrap());
        let status = if from.is_some_and(|from: u32| number >= from) {
            json!({"phase": "Running", "containerStatuses": [{
                "name": "web", "image": "web", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            }]})
        } else {
            json!({"phase": "Running", "conditions": [{
                "type": "Ready", "status": "True", "lastTransitionTime": at(since).to_string(),
            }]})
        };
        Some(serde_json::from_value(status).unwrap())
    }

    fn is_ready(&self, uid: &PodUid) -> bool {
        let status = self.status(uid);
        status.is_some_and(|status| crate::status::is_ready(&status))
    }

    /// One look at all pods, by an agent that was just started.
    fn step(&mut self) -> Vec<Decision> {
        self.now += 11;
        let kept = serde_json::to_string(&self.histories).unwrap();
        self.histories = serde_json::from_str(&kept).unwrap();
        let members = self.histories.iter().map(|(number, history)| {
            let mut history = history.clone();
            history.take_newest(&self.pod(*number), at(self.now));
            let current = history.current.as_ref().map(|(uid, _)| uid.clone());
            Member {
                name: FullName::new(format!("web-{number}").as_str(), "default"),
                number: *number,
                ready: current.is_some_and(|uid| self.is_ready(&uid)),
                history,
            }
        });
        let mut members: Vec<Member> = members.collect();
        let turns = turns(&mut members, &self.updates, self.restore);
        let mut decisions = Vec::new();
        for (member, turn) in members.into_iter().zip(&turns) {
            decisions.push(self.decide(member, turn));
        }
        let missing = self.histories.values().filter(|history| {
            let current = history.current().unwrap();
            !self.is_ready(&current.uid()) && !current.uid().as_str().contains("/bad")
        });
        self.most_missing = self.most_missing.max(missing.count());
        let beside = self.histories.values().filter(|one| one.beside.is_some());
        self.most_beside = self.most_beside.max(beside.count());
        decisions
    }

    fn decide(&mut self, member: Member, turn: &Turn) -> Decision {
        let Member {
            number, history, ..
        } = member;
        let status = |known: &Option<(PodUid, Timestamp)>| {
            known.as_ref().and_then(|(uid, _)| self.status(uid))
        };
        let (current, beside) = (status(&history.current), status(&history.beside));
        let view = |status| View {
            status,
            failed_probe: None,
            troubles: &[],
            counts_from: Timestamp::default(),
        };
        let decision = decide(
            &history,
            &Input {
                wanted: &self.pod(number),
                runs: history.current.is_some(),
                current: view(current.as_ref()),
                beside: view(beside.as_ref()),
                preparation: &Preparation::Done,
                turn,
                restore: self.restore,
                restore_waits: None,
                engine_away: false,
                now: at(self.now),
            },
        );
        let (before, after) = (&history, &decision.history);
        let ran = |uid: &PodUid| {
            let known = [&before.current, &before.beside];
            known.into_iter().flatten().any(|(known, _)| known == uid)
        };
        for (uid, _) in [&after.current, &after.beside].into_iter().flatten() {
            if !ran(uid) {
                self.since.insert(uid.clone(), self.now);
            }
            let version = uid.as_str().split_once('/').unwrap().1;
            self.seen.insert((number, version.to_owned()));
        }
        self.phases.insert(number, decision.phase.clone());
        self.histories.insert(number, decision.history.clone());
        decision
    }

    /// Looks until nothing changes any more.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..40 * (self.histories.len() + 1) {
            let before = self.histories.clone();
            let changed = self.step().iter().any(|decision| decision.change.is_some());
            quiet = if changed || before != self.histories {
                0
            } else {
                quiet + 1
            };
            if quiet == 3 {
                return;
            }
        }
        panic!("it never ends: {:?}", self.phases);
    }

    fn edit(&mut self, version: &str) {
        version.clone_into(&mut self.version);
    }

    /// Another number of pods; histories of those that go are kept for a while.
    fn scale(&mut self, pods: u32) {
        for (number, mut history) in self.histories.split_off(&pods) {
            history.end(at(self.now));
            for revision in &history.revisions {
                self.since.remove(&revision.uid());
            }
            self.gone.insert(number, history);
        }
        for number in 0..pods {
            let known = || self.gone.remove(&number).unwrap_or_default();
            self.histories.entry(number).or_insert_with(known);
        }
    }

    /// The versions that run, by number.
    fn versions(&self) -> Vec<&str> {
        let current = self.histories.values().map(|one| one.current.as_ref());
        let uids = current.map(|current| current.unwrap().0.as_str());
        uids.map(|uid| uid.split_once('/').unwrap().1).collect()
    }

    fn ran(&self, number: u32, version: &str) -> bool {
        self.seen.contains(&(number, version.to_owned()))
    }

    fn members(&self) -> Vec<Member> {
        let member = |(number, history): (&u32, &History)| Member {
            name: FullName::new(format!("web-{number}").as_str(), "default"),
            number: *number,
            ready: true,
            history: history.clone(),
        };
        self.histories.iter().map(member).collect()
    }

    fn obey(&mut self, command: &Command) -> Result<u64, Refused> {
        let mut members = self.members();
        let obeyed = obey_all(&mut members, command);
        for member in members {
            self.histories.insert(member.number, member.history);
        }
        obeyed
    }
}

#[test]
fn percentages_are_rounded_as_upstream() {
    // Upstream: `TestResolveFenceposts`.
    for (surge, unavailable, total, expected) in [
        (percent("0%"), percent("0%"), 0, (0, 1)),
        (percent("39%"), percent("39%"), 10, (4, 3)),
        (percent("0%"), percent("0%"), 10, (0, 1)),
        (percent("25%"), percent("25%"), 3, (1, 0)),
        (percent("25%"), percent("25%"), 4, (1, 1)),
        (percent("100%"), percent("0%"), 3, (3, 0)),
        (IntOrString::Int(2), IntOrString::Int(1), 3, (2, 1)),
        (IntOrString::Int(0), percent("10%"), 5, (0, 1)),
    ] {
        // workloads 12
        assert_eq!(fenceposts(&surge, &unavailable, total), expected);
    }
}

#[test]
fn a_number_is_that_of_the_name() {
    for (name, expected) in [("web-0", 0), ("web-12", 12), ("my-web-3", 3), ("web", 0)] {
        assert_eq!(number(name), expected);
    }
}

#[test]
fn a_good_edit_goes_from_pod_to_pod() {
    for (updates, start_first, first, missing, beside) in [
        (rolling_update(1, 0), true, 0, 0, 1),
        (rolling_update(2, 0), true, 0, 0, 2),
        (rolling_update(0, 1), false, 0, 1, 0),
        (rolling_update(0, 2), false, 0, 2, 0),
        (ordered_from(0), false, 3, 1, 0),
    ] {
        let mut fleet = Fleet::new(4, updates, start_first);
        fleet.edit("b");
        fleet.step();
        // workloads 12
        assert!(fleet.ran(first, "b"));
        assert!(matches!(fleet.phases[&(3 - first)], Phase::Waiting(_)));
        fleet.settle();
        assert_eq!(fleet.versions(), ["b"; 4]);
        // workloads 12
        assert_eq!((fleet.most_missing, fleet.most_beside), (missing, beside));
    }
}

#[test]
fn a_version_that_fails_at_one_pod_is_run_by_none() {
    for start_first in [true, false] {
        for updates in [rolling_update(1, 1), ordered_from(0)] {
            let is_ordered = matches!(updates.policy, UpdatePolicy::Ordered { .. });
            let mut fleet = Fleet::new(3, updates, start_first);
            fleet.edit("bad-1");
            fleet.settle();
            // workloads 13
            assert_eq!(fleet.versions(), ["a"; 3]);
            let (first, last) = if is_ordered { (2, 0) } else { (0, 2) };
            assert!(fleet.ran(first, "bad-1"));
            assert!(!fleet.ran(last, "bad-1"), "{start_first}");
            for (number, phase) in &fleet.phases {
                let Phase::Restored(cause) = phase else {
                    panic!("{number}: {phase:?}");
                };
                let failed_here = &*cause.reason != FAILED_ELSEWHERE;
                let at = if is_ordered { 2 } else { 1 };
                assert_eq!(failed_here, *number == at, "{cause:?}");
            }
            // The next edit begins anew; the one that failed, put back, is tried again.
            fleet.edit("c");
            fleet.settle();
            assert_eq!(fleet.versions(), ["c"; 3]);
            fleet.seen.clear();
            fleet.edit("bad-1");
            fleet.settle();
            assert!(fleet.ran(first, "bad-1"));
            assert_eq!(fleet.versions(), ["c"; 3]);
        }
    }
}

/// Three pods, the first of which is healthy at version `b`, and the others at `a`.
fn halfway(updates: Updates, start_first: bool) -> Fleet {
    let mut fleet = Fleet::new(3, updates, start_first);
    fleet.edit("b");
    while fleet.histories[&0].current().unwrap().outcome != Outcome::Healthy
        || fleet.versions() != ["b", "a", "a"]
    {
        fleet.step();
    }
    fleet.seen.clear();
    fleet
}

#[test]
fn all_pods_go_back_to_one_version() {
    // Version b reached one pod before the next edit, which fails at the last one.
    let mut fleet = halfway(rolling_update(0, 1), false);
    fleet.edit("bad-2");
    fleet.settle();
    assert!(fleet.ran(0, "bad-2") && fleet.ran(1, "bad-2"));
    // workloads 13
    assert_eq!(fleet.versions(), ["a"; 3]);
}

#[test]
fn pods_that_run_another_healthy_version_are_left_alone() {
    for (updates, start_first, restore) in [
        (rolling_update(1, 0), true, true),
        (rolling_update(1, 0), true, false),
        (rolling_update(0, 1), false, true),
    ] {
        let mut fleet = halfway(updates, start_first);
        fleet.restore = restore;
        fleet.edit("bad-0");
        fleet.settle();
        assert!(fleet.ran(0, "bad-0"));
        // workloads 13a
        assert_eq!(fleet.versions(), ["b", "a", "a"], "{start_first} {restore}");
        assert!(!fleet.ran(0, "a"), "{start_first} {restore}");
        let is_restored = |phase: &Phase| matches!(phase, Phase::Restored(_));
        assert!(fleet.phases.values().all(is_restored), "{:?}", fleet.phases);
    }
}

#[test]
fn an_edit_that_fails_after_an_undo_leads_back_to_what_ran() {
    for (updates, start_first) in [
        (rolling_update(1, 0), true),
        (rolling_update(0, 1), false),
        (ordered_from(0), false),
    ] {
        for restore in [true, start_first] {
            let mut fleet = Fleet::new(3, updates.clone(), start_first);
            fleet.edit("b");
            fleet.settle();
            fleet.obey(&Command::Undo { to_revision: None }).unwrap();
            fleet.settle();
            assert_eq!(fleet.versions(), ["a"; 3]);
            fleet.seen.clear();
            fleet.restore = restore;
            fleet.edit("bad-1");
            fleet.settle();
            if restore {
                // workloads 13a
                assert_eq!(fleet.versions(), ["a"; 3]);
            }
            for number in 0..3 {
                assert!(!fleet.ran(number, "b"), "{number}: {start_first}");
            }
        }
    }
}

#[test]
fn a_person_may_undo_what_a_failure_led_back_to() {
    for start_first in [true, false] {
        let mut fleet = Fleet::new(3, rolling_update(1, 1), start_first);
        fleet.edit("b");
        fleet.settle();
        fleet.edit("bad-1");
        fleet.settle();
        assert_eq!(fleet.versions(), ["b"; 3]);
        let undo = Command::Undo {
            to_revision: Some(1),
        };
        fleet.obey(&undo).unwrap();
        fleet.settle();
        assert_eq!(fleet.versions(), ["a"; 3]);
        // It stays an undo: nothing of it failed.
        let undone = |history: &History| history.undone_to == history.current().map(Revision::uid);
        // workloads 14
        assert!(fleet.histories.values().all(undone), "{start_first}");
        assert!(fleet.phases.values().all(|phase| *phase == Phase::Settled));
    }
}

#[test]
fn a_workload_is_paused_undone_and_tried_again() {
    let mut fleet = Fleet::new(3, rolling_update(1, 1), true);
    fleet.obey(&Command::Pause).unwrap();
    fleet.edit("b");
    fleet.settle();
    // workloads 14
    assert_eq!(fleet.versions(), ["a"; 3]);
    // A pod that is added is paused, too.
    fleet.histories.insert(3, History::default());
    fleet.settle();
    assert!(fleet.histories[&3].paused);
    assert_eq!(fleet.obey(&Command::Resume), Ok(2));
    fleet.settle();
    assert_eq!(fleet.versions(), ["b"; 4]);
    assert_eq!(fleet.obey(&Command::Resume), Err(Refused::NotPaused));
    // The one that was added knows no other version.
    assert_eq!(fleet.obey(&Command::Undo { to_revision: None }), Ok(1));
    fleet.settle();
    assert_eq!(fleet.versions(), ["a", "a", "a", "b"]);
    assert_eq!(fleet.obey(&Command::Undo { to_revision: None }), Ok(2));
    fleet.settle();
    assert_eq!(fleet.versions(), ["b"; 4]);
    assert_eq!(
        fleet.obey(&Command::Retry),
        Err(Refused::NothingFailed { number: 2 })
    );
    fleet.edit("bad-2");
    fleet.settle();
    assert_eq!(fleet.versions(), ["b"; 4]);
    fleet.seen.clear();
    // workloads 14
    assert_eq!(fleet.obey(&Command::Retry), Ok(3));
    fleet.settle();
    assert!(fleet.ran(0, "bad-2") && fleet.ran(2, "bad-2"));
    assert_eq!(fleet.versions(), ["b"; 4]);
}

#[test]
fn a_retry_of_one_pod_tries_the_version_at_all() {
    let mut fleet = Fleet::new(3, rolling_update(0, 1), false);
    fleet.edit("bad-1");
    fleet.settle();
    fleet.seen.clear();
    let mut members = fleet.members();
    members[1].history.obey(Command::Retry).unwrap();
    try_again(&mut members, &FullName::new("web-1", "default"));
    for member in members {
        fleet.histories.insert(member.number, member.history);
    }
    fleet.settle();
    assert!(fleet.ran(0, "bad-1"));
    assert_eq!(fleet.versions(), ["a"; 3]);
}

#[test]
fn a_document_that_is_paused_is_not_rolled_out() {
    let mut fleet = Fleet::new(3, rolling_update(1, 1), true);
    fleet.updates.paused = true;
    fleet.edit("b");
    fleet.settle();
    // workloads 14
    assert!(fleet.phases.values().all(|phase| *phase == Phase::Paused));
    assert_eq!(fleet.versions(), ["a"; 3]);
    fleet.updates.paused = false;
    fleet.settle();
    assert_eq!(fleet.versions(), ["b"; 3]);
}

#[test]
fn a_partition_keeps_the_pods_below_it() {
    let mut fleet = Fleet::new(4, ordered_from(2), false);
    fleet.edit("b");
    fleet.settle();
    // workloads 26
    assert_eq!(fleet.versions(), ["a", "a", "b", "b"]);
    fleet.updates = ordered_from(0);
    fleet.settle();
    // workloads 26
    assert_eq!(fleet.versions(), ["b"; 4]);
}

/// The pods that an edit changes at each look, by number.
fn done(fleet: &mut Fleet, version: &str) -> Vec<Vec<u32>> {
    let mut done = Vec::new();
    for _ in 0..50 {
        let before = fleet.seen.clone();
        fleet.step();
        let new = fleet.seen.difference(&before);
        let new = new.filter(|(_, seen)| seen == version);
        let step: Vec<u32> = new.map(|(number, _)| *number).collect();
        done.extend((!step.is_empty()).then_some(step));
    }
    done
}

#[test]
fn a_planned_order_is_the_order_in_which_pods_are_updated() {
    let percents = Updates {
        paused: false,
        policy: UpdatePolicy::RollingUpdate {
            max_surge: percent("25%"),
            max_unavailable: percent("50%"),
        },
    };
    let recreate = Updates {
        paused: false,
        policy: UpdatePolicy::Recreate,
    };
    for (updates, start_first, expected) in [
        (rolling_update(1, 0), true, vec![vec![0], vec![1], vec![2]]),
        (rolling_update(2, 0), true, vec![vec![0, 1], vec![2]]),
        (rolling_update(0, 2), false, vec![vec![0, 1], vec![2]]),
        (percents.clone(), false, vec![vec![0], vec![1], vec![2]]),
        (percents, true, vec![vec![0], vec![1], vec![2]]),
        (recreate, false, vec![vec![0, 1, 2]]),
        (ordered_from(0), false, vec![vec![2], vec![1], vec![0]]),
        (ordered_from(2), false, vec![vec![2]]),
    ] {
        let mut fleet = Fleet::new(3, updates, start_first);
        fleet.version = "b".to_owned();
        let wanted = fleet.members().into_iter().map(|mut member| {
            member
                .history
                .take_newest(&fleet.pod(member.number), at(fleet.now));
            member
        });
        let wanted: Vec<Member> = wanted.collect();
        let planned = steps(wanted, &fleet.updates, true, &BTreeSet::new());
        let numbers = planned.steps.iter().map(|step| {
            let numbers = step.iter().map(|name| number(&name.name));
            numbers.collect::<Vec<u32>>()
        });
        let numbers: Vec<Vec<u32>> = numbers.collect();
        // workloads 24
        assert_eq!(numbers, expected, "{:?}", fleet.updates);
        assert_eq!(planned.kept.len(), 3 - expected.iter().flatten().count());
        assert_eq!(done(&mut fleet, "b"), expected, "{:?}", fleet.updates);
    }
}

#[test]
fn pods_wait_for_one_that_can_not_be_updated() {
    let fleet = Fleet::new(3, rolling_update(1, 0), true);
    let mut edited = Fleet::new(0, rolling_update(1, 0), true);
    edited.version = "b".to_owned();
    let wanted = fleet.members().into_iter().map(|mut member| {
        member
            .history
            .take_newest(&edited.pod(member.number), at(fleet.now));
        member
    });
    let held = BTreeSet::from([FullName::new("web-1", "default")]);
    let planned = steps(wanted.collect(), &fleet.updates, true, &held);
    assert_eq!(planned.steps, [[FullName::new("web-0", "default")]]);
    let (name, cause) = planned.kept.first_key_value().unwrap();
    assert_eq!(&*name.name, "web-2");
    assert_eq!(&*cause.message, "pod web-1 is being updated");
}

#[test]
fn pods_that_do_not_serve_anyway_are_first() {
    let mut fleet = Fleet::new(3, rolling_update(0, 1), false);
    // The last one has lost its readiness.
    fleet.since.remove(&PodUid::from("2/a"));
    fleet.edit("b");
    fleet.step();
    assert_eq!(fleet.versions(), ["a", "a", "b"]);
    fleet.settle();
    assert_eq!(fleet.versions(), ["b"; 3]);
    assert_eq!(fleet.most_missing, 1);
}

#[test]
fn a_pod_that_a_person_stopped_is_waited_for_by_none() {
    for updates in [rolling_update(0, 1), ordered_from(0)] {
        let mut fleet = Fleet::new(3, updates, false);
        for number in [0, 2] {
            // As on a cordoned Node: an edit doesn't start it.
            fleet.histories.get_mut(&number).unwrap().hold_back();
        }
        fleet.edit("b");
        fleet.settle();
        assert_eq!(fleet.versions(), ["b"; 3]);
        assert!(fleet.histories[&0].stopped);
    }
}

#[test]
fn without_a_restore_a_failed_version_stops_where_it_is() {
    let mut fleet = Fleet::new(3, rolling_update(0, 1), false);
    fleet.edit("b");
    fleet.step();
    let mut members = fleet.members();
    let uid = PodUid::from("0/b");
    let cause = Cause::new("CrashLoopBackOff", "it crashed");
    members[1].history.take_newest(&fleet.pod(1), at(fleet.now));
    let other = PodUid::from("1/b");
    members[1]
        .history
        .set_outcome(&other, Outcome::Failed(cause));
    turns(&mut members, &fleet.updates, false);
    assert!(members[0].history.undone_to.is_none());
    assert!(!is_failed(members[0].history.get(&uid).unwrap()));
    assert!(members[2].history.target().is_some_and(is_failed));
    turns(&mut members, &fleet.updates, true);
    assert_eq!(members[0].history.undone_to, Some(PodUid::from("0/a")));
}

#[test]
fn a_pod_that_is_added_again_goes_back_to_no_replaced_version() {
    for start_first in [true, false] {
        let mut fleet = Fleet::new(3, rolling_update(1, 1), start_first);
        fleet.scale(2);
        fleet.edit("b");
        fleet.settle();
        fleet.seen.clear();
        fleet.scale(3);
        fleet.edit("bad-2");
        fleet.settle();
        // workloads 13b
        assert!(!fleet.ran(2, "a"), "{:?}", fleet.versions());
        assert_eq!(fleet.versions()[2], "bad-2");
        assert!(matches!(fleet.phases[&2], Phase::Failed(_)));
        fleet.edit("c");
        fleet.settle();
        assert_eq!(fleet.versions(), ["c"; 3]);
    }
    // The others still run what it ran.
    let mut fleet = Fleet::new(3, rolling_update(1, 1), true);
    fleet.scale(2);
    fleet.settle();
    fleet.scale(3);
    fleet.edit("bad-2");
    fleet.settle();
    // workloads 13b
    assert_eq!(fleet.versions(), ["a"; 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever the number of pods was meanwhile, none runs a version that none of them ran before the
    /// last edit.
    #[test]
    fn no_pod_runs_a_version_that_was_replaced(
        pods in prop::collection::vec(1..6_u32, 2..5),
        surge in 0..3_i32,
        unavailable in 0..3_i32,
        is_ordered in any::<bool>(),
        last in 0..8_u32,
        most in 1..7_u32,
    ) {
        let start_first = surge > 0 && !is_ordered;
        let updates = if is_ordered { ordered_from(0) } else { rolling_update(surge, unavailable) };
        let mut fleet = Fleet::new(pods[0], updates, start_first);
        for (index, pods) in pods.iter().enumerate() {
            fleet.scale(*pods);
            fleet.edit(&format!("good-{index}"));
            fleet.settle();
        }
        let before = fleet.version.clone();
        prop_assert!(fleet.versions().iter().all(|one| *one == before));
        fleet.scale(most);
        fleet.edit(&if last < most { format!("bad-{last}") } else { "good".to_owned() });
        fleet.settle();
        let versions = fleet.versions();
        let known = [before.as_str(), fleet.version.as_str()];
        // workloads 13b
        prop_assert!(versions.iter().all(|one| known.contains(one)), "{versions:?}");
    }

    /// Every edit ends with all pods at the newest version, if it is good, and else with what ran
    /// before. Limits hold meanwhile, also on the way back.
    #[test]
    fn every_edit_ends_with_the_newest_version_or_with_what_ran(
        pods in 1..7_u32,
        surge in 0..4_i32,
        unavailable in 0..4_i32,
        is_ordered in any::<bool>(),
        edits in prop::collection::vec((0..8_u32, 0..12_usize, any::<bool>()), 1..5),
        last in 0..8_u32,
    ) {
        let start_first = surge > 0 && !is_ordered;
        let updates = if is_ordered { ordered_from(0) } else { rolling_update(surge, unavailable) };
        let mut fleet = Fleet::new(pods, updates, start_first);
        let version = |bad: u32, index: usize| {
            if bad < pods { format!("bad-{bad}") } else { format!("good-{index}") }
        };
        for (index, (bad, steps, is_undone)) in edits.iter().enumerate() {
            fleet.edit(&version(*bad, index));
            // The next edit, or an undo, comes early or late.
            for _ in 0..*steps {
                fleet.step();
            }
            if *is_undone {
                // It may be refused.
                let _ = fleet.obey(&Command::Undo { to_revision: None });
            }
        }
        fleet.settle();
        let before: Vec<String> = fleet.versions().into_iter().map(str::to_owned).collect();
        fleet.seen.clear();
        fleet.edit(&version(last, edits.len()));
        fleet.settle();
        let versions = fleet.versions();
        for (number, version) in (0..pods).zip(&versions) {
            let from = version.strip_prefix("bad-").map(|from| from.parse::<u32>().unwrap());
            prop_assert!(from.is_none_or(|from| number < from), "{versions:?}");
        }
        if last >= pods {
            prop_assert!(versions.iter().all(|one| *one == fleet.version), "{versions:?}");
        } else if before.iter().all(|one| *one == before[0]) {
            // workloads 13a
            prop_assert_eq!(&versions, &before);
            let known = [&fleet.version, &before[0]];
            prop_assert!(fleet.seen.iter().all(|(_, seen)| known.contains(&seen)), "{:?}", fleet.seen);
        }
        let limit = if is_ordered { 1 } else { unavailable.max(1) };
        // workloads 12
        prop_assert!(fleet.most_beside <= usize::try_from(surge.max(1)).unwrap());
        if start_first {
            prop_assert_eq!(fleet.most_missing, 0);
        } else {
            prop_assert!(fleet.most_missing <= usize::try_from(limit).unwrap());
        }
    }
}
