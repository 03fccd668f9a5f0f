use proptest::prelude::*;
use serde_json::json;

use std::collections::BTreeSet;

use super::*;
use crate::api::ContainerId;
use crate::api::diagnostic::Position;
use crate::api::report::RolloutPhase;
use crate::desired::{Origin, PodSource};
use crate::spec;

mod beside;
mod circle;
mod gap;
mod health;
mod standing;
mod undone;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn revision(uid: &str) -> SourcePod {
    let pod = json!({
        "metadata": {"name": "web-box", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "web", "image": format!("web:{uid}")}]},
    });
    SourcePod::new(
        Arc::new(serde_json::from_value(pod).unwrap()),
        Origin::whole(PodSource::File, "/m/web.yaml"),
    )
}

fn ready(since: i64) -> core::PodStatus {
    let since = at(since).to_string();
    let status = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
    });
    serde_json::from_value(status).unwrap()
}

fn crashing(restarts: i32) -> core::PodStatus {
    let status = json!({
        "phase": "Running",
        "containerStatuses": [{
            "name": "web", "image": "web", "imageID": "", "ready": false, "restartCount": restarts,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
        }],
    });
    serde_json::from_value(status).unwrap()
}

/// Of a pod that the node doesn't admit.
fn rejected() -> core::PodStatus {
    let status = json!({
        "phase": "Failed", "reason": "NodePorts",
        "message": "Pod was rejected: host port 80/tcp is in use by pod default/db-box",
    });
    serde_json::from_value(status).unwrap()
}

#[test]
fn a_pod_that_the_node_refuses_runs_nothing() {
    let mut story = Story::new("a");
    story.decide(Some(&rejected()));
    // No version was healthy before.
    story.edit("b");
    story.preparation = Preparation::Done;
    story.runs = false;
    story.decide(Some(&rejected()));
    let pod = story.decide(Some(&rejected())).pod(&story.wanted);
    assert_eq!(
        pod.problems[0].message,
        "pod web-box_default can't run: host port 80/tcp is in use by pod default/db-box"
    );
}

#[test]
fn a_version_that_the_node_refuses_has_not_failed_and_is_tried_again() {
    let mut story = Story::edited();
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(0)));
    assert_eq!(story.runs(), "b");
    story.now += 1;
    let decision = story.decide(Some(&rejected()));
    let Phase::Held(cause) = &decision.phase else {
        panic!("{:?}", decision.phase);
    };
    assert_eq!((&*cause.reason, story.runs().as_str()), ("NodePorts", "a"));
    assert_eq!(decision.change, Some(Change::Restored));
    let outcome = |story: &Story| {
        let refused = story.history.get(&"b".into()).unwrap();
        (refused.outcome.clone(), refused.ran)
    };
    // rollouts S2b
    assert_eq!(outcome(&story), (Outcome::Open, 0), "it never ran");
    // The old version isn't stopped for it again at once.
    for seconds in [0, 1, 298] {
        story.now += seconds;
        let decision = story.decide(Some(&ready(0)));
        // rollouts S2b
        assert!(matches!(decision.phase, Phase::Held(_)), "{decision:?}");
        assert_eq!((decision.change, story.runs().as_str()), (None, "a"));
    }
    story.now += 1;
    // rollouts S2b
    assert_eq!(story.decide(Some(&ready(0))).change, Some(Change::Switched));
    // It is judged as any other.
    story.decide(Some(&crashing(3)));
    assert_eq!(story.runs(), "a");
    assert!(matches!(outcome(&story).0, Outcome::Failed(_)));
    // A user's order doesn't wait, and without a healthy version there is no rollback.
    let mut story = Story::edited();
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(0)));
    story.decide(Some(&rejected()));
    story.history.obey(Command::Retry).unwrap();
    story.decide(Some(&ready(0)));
    // rollouts S2b
    assert_eq!(story.runs(), "b");
    story.restore = false;
    let decision = story.decide(Some(&rejected()));
    assert!(matches!(decision.phase, Phase::Failed(_)), "{decision:?}");
    assert_eq!(story.runs(), "b");
}

#[test]
fn a_version_that_the_node_refuses_again_is_overdue_and_an_edit_is_tried_at_once() {
    let mut story = Story::edited();
    story.preparation = Preparation::Done;
    for (seconds, overdue) in [(0, false), (300, true)] {
        story.now += seconds;
        story.decide(Some(&ready(0)));
        assert_eq!(story.runs(), "b");
        story.now += 1;
        let decision = story.decide(Some(&rejected()));
        let report = decision.pod(&story.wanted).rollout.unwrap();
        // rollouts S2b
        assert_eq!(
            (report.phase, report.overdue),
            (RolloutPhase::Held, overdue)
        );
    }
    // It keeps its UID, and the edit may have removed the cause.
    let pod = Arc::make_mut(&mut story.wanted.pod);
    pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    let decision = story.decide(Some(&ready(0)));
    // rollouts S2b
    assert_eq!(decision.change, Some(Change::Switched));
}

#[test]
fn a_version_that_the_node_refuses_is_tried_again_as_soon_as_it_would_be_admitted() {
    let failed = |reason: &str| Preparation::Failed(Cause::new(reason, "no"));
    let mut story = Story::edited();
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(0)));
    let decision = story.decide(Some(&rejected()));
    assert_eq!(decision.change, Some(Change::Restored));
    // rollouts S2b
    assert_eq!(decision.look_again, Some(Duration::ZERO));
    // The other pod has the port, and ends. No time passes.
    for (preparation, change) in [
        (failed("NodePorts"), None),
        (failed("NodePorts"), None),
        (Preparation::UnderWay, None),
        (Preparation::Done, Some(Change::Switched)),
    ] {
        story.preparation = preparation;
        // rollouts S2b
        assert_eq!(story.decide(Some(&ready(0))).change, change);
    }
    // It is refused for what the preparation doesn't see, or somebody else is always first: the old version
    // isn't stopped for each look.
    let decision = story.decide(Some(&rejected()));
    assert_eq!(decision.change, Some(Change::Restored));
    for preparation in [
        Preparation::Done,
        failed("ErrImagePull"),
        failed("NodePorts"),
        Preparation::UnderWay,
        Preparation::Done,
    ] {
        story.preparation = preparation;
        let decision = story.decide(Some(&ready(0)));
        // rollouts S2b
        assert!(matches!(decision.phase, Phase::Held(_)), "{decision:?}");
        assert_eq!((decision.change, story.runs().as_str()), (None, "a"));
    }
}

#[test]
fn a_version_has_taken_over_once_another_has_run() {
    let mut story = Story::new("a");
    story.now = 20;
    story.decide(Some(&ready(0)));
    assert!(!story.history.has_taken_over(), "the first");
    story.edit("b");
    story.decide(Some(&ready(0)));
    assert!(!story.history.has_taken_over(), "the new one is prepared");
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(0)));
    // rollouts S7
    assert!(story.history.has_taken_over(), "switched");
    story.edit("a");
    story.runs = false;
    story.decide(None);
    assert_eq!(story.history.current().map(Revision::uid), Some("a".into()));
    assert!(story.history.has_taken_over(), "and back");
    story.history.stopped = true;
    assert!(!story.history.has_taken_over(), "nothing is to run");
}

fn refused(reason: &str) -> core::PodStatus {
    let status = json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "web", "image": "web", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": "no"}},
        }],
    });
    serde_json::from_value(status).unwrap()
}

/// One pod's rollouts, driven by hand.
struct Story {
    history: History,
    wanted: SourcePod,
    preparation: Preparation,
    runs: bool,
    failed_probe: Option<&'static str>,
    restore: bool,
    restore_waits: Option<Cause>,
    engine_away: bool,
    counts_from: i64,
    strategy: &'static str,
    now: i64,
}

impl Story {
    fn new(uid: &str) -> Self {
        Self {
            history: History::default(),
            wanted: revision(uid),
            preparation: Preparation::UnderWay,
            runs: true,
            failed_probe: None,
            restore: true,
            restore_waits: None,
            engine_away: false,
            counts_from: 0,
            strategy: "Recreate",
            now: 0,
        }
    }

    /// A story whose first revision, `a`, is healthy, and whose file says `b` now.
    fn edited() -> Self {
        let mut story = Self::new("a");
        story.now = 20;
        story.decide(Some(&ready(0)));
        story.edit("b");
        story
    }

    /// A story whose file says `b` after the healthy `a`, and in which `b` was started.
    fn started(strategy: &'static str) -> Self {
        let mut story = Self::new("a");
        story.now = 20;
        story.decide(Some(&ready(0)));
        story.strategy = strategy;
        story.edit("b");
        story.preparation = Preparation::Done;
        story.decide(Some(&ready(0)));
        story
    }

    /// Decides by the status of the revision that was started last; under `StartFirst`, the healthy one runs
    /// beside it.
    fn decide_newest(&mut self, status: &core::PodStatus) -> Decision {
        match self.strategy {
            "Recreate" => self.decide(Some(status)),
            _ => self.decide_with(Some(&ready(0)), Some(status)),
        }
    }

    fn edit(&mut self, uid: &str) {
        self.wanted = revision(uid);
        let pod = Arc::make_mut(&mut self.wanted.pod);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert("mirrorlet.dev/rollout".to_owned(), self.strategy.to_owned());
        self.preparation = Preparation::UnderWay;
    }

    fn decide(&mut self, status: Option<&core::PodStatus>) -> Decision {
        self.decide_with(status, None)
    }

    fn decide_with(
        &mut self,
        status: Option<&core::PodStatus>,
        beside: Option<&core::PodStatus>,
    ) -> Decision {
        let decision = decide(
            &self.history,
            &Input {
                wanted: &self.wanted,
                runs: self.runs,
                current: View {
                    status,
                    failed_probe: self.failed_probe,
                    troubles: &[],
                    counts_from: at(self.counts_from),
                },
                beside: View {
                    status: beside,
                    failed_probe: None,
                    troubles: &[],
                    counts_from: at(self.counts_from),
                },
                preparation: &self.preparation,
                turn: &Turn::Now,
                restore: self.restore,
                restore_waits: self.restore_waits.as_ref(),
                engine_away: self.engine_away,
                now: at(self.now),
            },
        );
        self.history = decision.history.clone();
        decision
    }

    fn takes(&mut self, event: Event, status: &mut Option<core::PodStatus>) {
        match event {
            Event::Edit(uid) => self.edit(&uid.to_string()),
            Event::Prepared(true) => self.preparation = Preparation::Done,
            Event::Prepared(false) => self.preparation = Preparation::Failed(cause()),
            Event::Status(0) => *status = None,
            Event::Status(1) => *status = Some(ready(self.now)),
            Event::Status(2) => *status = Some(crashing(3)),
            Event::Status(3) => *status = Some(refused("ErrImagePull")),
            Event::Status(_) => *status = Some(crashing(0)),
            Event::Runs(runs) => self.runs = runs,
            Event::Wait(seconds) => self.now += i64::from(seconds),
        }
    }

    fn runs(&self) -> String {
        self.history.current().unwrap().uid().to_string()
    }
}

fn cause() -> Cause {
    Cause::new("ErrImagePull", "not found")
}

#[test]
fn a_first_revision_runs_at_once_and_is_healthy_once_it_was_ready_for_long_enough() {
    let mut story = Story::new("a");
    let decision = story.decide(None);
    assert_eq!((decision.phase, decision.change), (Phase::Judging, None));
    assert_eq!(decision.history.current, Some((PodUid::from("a"), at(0))));
    story.now = 7;
    let decision = story.decide(Some(&ready(2)));
    assert_eq!(decision.phase, Phase::Judging);
    assert_eq!(decision.look_again, Some(Duration::from_secs(6)));
    // The pod became ready at some moment of second 2.
    story.now = 12;
    assert_eq!(story.decide(Some(&ready(2))).phase, Phase::Judging);
    story.now = 13;
    let decision = story.decide(Some(&ready(2)));
    // rollouts 24
    assert_eq!(decision.phase, Phase::Settled);
    assert_eq!(decision.change, Some(Change::Succeeded));
    let decision = story.decide(Some(&crashing(9)));
    assert_eq!(decision.phase, Phase::Settled, "nothing is judged twice");
}

#[test]
fn a_first_revision_that_crashes_runs_on() {
    let mut story = Story::new("a");
    story.decide(None);
    for (status, reason) in [
        (crashing(5), "CrashLoopBackOff"),
        (refused("ErrImagePull"), "ErrImagePull"),
    ] {
        let decision = story.decide(Some(&status));
        assert_eq!(decision.change, None);
        assert_eq!(story.runs(), "a");
        let pod = decision.pod(&story.wanted);
        assert!(pod.problems.is_empty() && !pod.held, "{reason}");
        let report = pod.rollout.unwrap();
        assert_eq!(report.deadline_seconds, Some(300));
        let told = (report.phase, report.reason.as_str());
        // rollouts 33
        assert_eq!(told, (RolloutPhase::Judging, reason));
    }
    // It comes right after all: from now on, it is one to go back to.
    let mut status = crashing(5);
    status.conditions = ready(10).conditions;
    story.now = 12;
    let decision = story.decide(Some(&status));
    assert_eq!(decision.look_again, Some(Duration::from_secs(9)));
    story.now = 21;
    let decision = story.decide(Some(&status));
    // rollouts M6
    assert_eq!(decision.change, Some(Change::Succeeded));
}

#[test]
fn a_failed_probe_fails_a_revision() {
    let unready: core::PodStatus = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    for (class, reason) in [
        (None, Some("Unhealthy")),
        (Some("system-node-critical"), None),
    ] {
        let mut story = Story::edited();
        let pod = Arc::make_mut(&mut story.wanted.pod);
        pod.spec.as_mut().unwrap().priority_class_name = class.map(str::to_owned);
        (story.preparation, story.now) = (Preparation::Done, 60);
        story.decide(Some(&ready(0)));
        story.failed_probe = Some("container web failed liveness probe");
        match (story.decide(Some(&unready)).phase, reason) {
            (Phase::Restored(cause), Some(reason)) => {
                // rollouts M3
                assert_eq!(&*cause.reason, reason);
                assert_eq!(&*cause.message, "container web failed liveness probe");
                assert_eq!(cause.field.as_deref(), Some("spec.containers[0]"));
            }
            (Phase::Judging, None) => {}
            (phase, _) => panic!("{class:?}: {phase:?}"),
        }
    }
}

#[test]
fn a_problem_is_at_its_field_where_that_is_known() {
    let mut story = Story::edited();
    let image = "spec.containers[0].image";
    let position = Position {
        line: 7,
        column: 14,
        offset: 90,
        length: 5,
    };
    story.wanted.places = Arc::new([(image.to_owned(), position)].into());
    for (field, found) in [
        (Some(image), true),
        (Some("spec.volumes[0]"), false),
        (None, false),
    ] {
        story.preparation = Preparation::Failed(cause().of_field(field));
        let decision = story.decide(Some(&ready(0)));
        let problem = &decision.pod(&story.wanted).problems[0];
        let at = (problem.position, problem.field.as_deref());
        let expected = (Some(position), Some(image));
        assert_eq!(at, if found { expected } else { (None, None) }, "{field:?}");
    }
}

#[test]
fn a_held_revision_is_overdue_once_its_deadline_has_passed() {
    let mut story = Story::edited();
    let overdue = |decision: &Decision, story: &Story| {
        let report = decision.pod(&story.wanted).rollout.unwrap();
        assert_eq!(report.phase, RolloutPhase::Held);
        report.overdue
    };
    story.preparation = Preparation::Failed(cause());
    for (now, expected, left) in [
        (20, false, Some(300)),
        (319, false, Some(1)),
        (320, true, None),
    ] {
        story.now = now;
        let decision = story.decide(Some(&ready(0)));
        // rollouts 33
        assert_eq!(overdue(&decision, &story), expected, "{now}");
        assert_eq!(decision.look_again, left.map(Duration::from_secs), "{now}");
    }
    // Another attempt has all of it.
    story.history.obey(Command::Retry).unwrap();
    assert!(!overdue(&story.decide(Some(&ready(0))), &story));
    story.now = 620;
    assert!(overdue(&story.decide(Some(&ready(0))), &story));
    // So does one after a time in which nothing kept it from being started.
    story.preparation = Preparation::UnderWay;
    assert_eq!(story.decide(Some(&ready(0))).phase, Phase::Preparing);
    story.preparation = Preparation::Failed(cause());
    assert!(!overdue(&story.decide(Some(&ready(0))), &story));
    // And another edit.
    story.now = 920;
    assert!(overdue(&story.decide(Some(&ready(0))), &story));
    story.edit("c");
    story.preparation = Preparation::Failed(cause());
    assert!(!overdue(&story.decide(Some(&ready(0))), &story));
    // A clock that is set back makes nobody wait longer.
    story.now = 100;
    assert!(!overdue(&story.decide(Some(&ready(0))), &story));
    story.now = 400;
    assert!(overdue(&story.decide(Some(&ready(0))), &story));
}

#[test]
fn the_old_revision_runs_until_the_new_one_is_prepared() {
    let mut story = Story::edited();
    let decision = story.decide(Some(&ready(0)));
    assert_eq!(decision.phase, Phase::Preparing);
    let pod = decision.pod(&story.wanted);
    assert_eq!((pod.uid().as_str(), pod.held), ("a", false));
    story.preparation = Preparation::Failed(cause());
    let decision = story.decide(Some(&ready(0)));
    assert_eq!(decision.phase, Phase::Held(cause()));
    let pod = decision.pod(&story.wanted);
    assert_eq!((pod.uid().as_str(), pod.held), ("a", true));
    assert_eq!(
        pod.problems[0].message,
        "the new version of pod web-box_default can't be started, the previous version keeps running: ErrImagePull: not found"
    );
    assert_eq!(pod.problems[0].file, "/m/web.yaml");
    let annotations = pod.pod.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["mirrorlet.dev/held-revision"], "b");
    assert_eq!(annotations["mirrorlet.dev/held-reason"], "ErrImagePull");
    assert_eq!(
        problem_lines([&pod, &story.wanted].into_iter()),
        ["default/web-box: held: ErrImagePull: not found"]
    );
    story.preparation = Preparation::Done;
    story.now = 60;
    let decision = story.decide(Some(&ready(0)));
    assert_eq!(decision.change, Some(Change::Switched));
    let pod = decision.pod(&story.wanted);
    assert_eq!((&pod.pod, pod.held), (&story.wanted.pod, false));
    assert_eq!(story.runs(), "b");
    story.now = 80;
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(decision.change, Some(Change::Succeeded));
}

#[test]
fn what_runs_badly_and_is_not_there_is_not_waited_for() {
    let mut story = Story::new("a");
    story.decide(Some(&crashing(5)));
    story.edit("b");
    assert_eq!(story.decide(None).phase, Phase::Preparing, "it runs");
    story.runs = false;
    assert_eq!(story.decide(None).change, Some(Change::Switched));
    // A healthy one that is away, after a reboot say, is worth it.
    let mut story = Story::edited();
    story.runs = false;
    assert_eq!(story.decide(None).phase, Phase::Preparing);
}

/// Revision `b` takes the place of `a`, and an edit back to `a` can't be prepared yet when `b` fails.
#[test]
fn a_revision_that_fails_after_an_edit_back_is_replaced_by_the_healthy_one() {
    for (preparation, paused) in [Preparation::UnderWay, Preparation::Failed(cause())]
        .into_iter()
        .flat_map(|preparation| [false, true].map(|paused| (preparation.clone(), paused)))
    {
        let mut story = Story::edited();
        (story.preparation, story.now) = (Preparation::Done, 60);
        assert_eq!(story.decide(Some(&ready(0))).change, Some(Change::Switched));
        story.edit("a");
        (story.preparation, story.history.paused) = (preparation, paused);
        let decision = story.decide(Some(&crashing(3)));
        let seen = (decision.phase.clone(), decision.change);
        // rollouts 13
        assert_eq!(seen, (Phase::Settled, Some(Change::FellBack)));
        assert_eq!(story.runs(), "a");
        assert!(!decision.pod(&story.wanted).held);
    }
}

/// Revision `b` takes the place of `a`, and an edit to `c` comes before the verdict on it.
#[test]
fn a_revision_is_judged_also_after_a_newer_edit() {
    let prepared_as = |preparation: Preparation, paused: bool| {
        let mut story = Story::edited();
        (story.preparation, story.now) = (Preparation::Done, 60);
        assert_eq!(story.decide(Some(&ready(0))).change, Some(Change::Switched));
        story.edit("c");
        (story.preparation, story.history.paused) = (preparation, paused);
        (story.now, story)
    };
    for (preparation, paused, phase) in [
        (Preparation::UnderWay, false, Phase::Preparing),
        (Preparation::Failed(cause()), false, Phase::Held(cause())),
        (Preparation::Done, true, Phase::Paused),
    ] {
        let (began, mut story) = prepared_as(preparation.clone(), paused);
        let decision = story.decide(Some(&crashing(2)));
        let seen = (decision.phase, decision.change, decision.look_again);
        let deadline = Some(Duration::from_mins(5));
        assert_eq!(seen, (phase.clone(), None, deadline), "not failed yet");
        let decision = story.decide(Some(&crashing(3)));
        let seen = (decision.phase, decision.change);
        // rollouts 13
        assert_eq!(seen, (phase.clone(), Some(Change::FellBack)));
        assert_eq!(story.runs(), "a");
        let failed = &story.history.get(&"b".into()).unwrap().outcome;
        assert!(matches!(failed, Outcome::Failed(_)), "{failed:?}");

        let (_, mut story) = prepared_as(preparation, paused);
        story.now = began + 20;
        let decision = story.decide(Some(&ready(began + 1)));
        assert_eq!((decision.phase, decision.change), (phase, None));
        assert_eq!(story.runs(), "b");
        let healthy = &story.history.get(&"b".into()).unwrap().outcome;
        assert_eq!(
            *healthy,
            Outcome::Healthy,
            "from now on, `b` is gone back to"
        );
    }
}

#[test]
fn the_deadline_stands_still_while_the_engine_is_away() {
    for strategy in ["Recreate", "StartFirst"] {
        let mut story = Story::started(strategy);
        let starting = crashing(0);
        let of = |story: &mut Story| story.decide_newest(&starting).phase;
        story.engine_away = true;
        story.now += 3600;
        // rollouts S10
        assert_eq!(of(&mut story), Phase::Judging, "away");
        story.engine_away = false;
        story.history.engine_is_back(at(story.now));
        story.now += 299;
        assert_eq!(
            of(&mut story),
            Phase::Judging,
            "its whole time from then on"
        );
        story.now += 2;
        assert!(matches!(of(&mut story), Phase::Restored(_)), "and no more");
    }
}

/// A pod that was ready before the Engine went may have crashed with it, or since.
#[test]
fn a_status_from_before_the_engine_was_away_makes_no_version_healthy() {
    for strategy in ["Recreate", "StartFirst"] {
        let mut story = Story::started(strategy);
        let of = |story: &mut Story| story.decide_newest(&ready(20)).phase;
        assert_eq!(of(&mut story), Phase::Judging);
        story.engine_away = true;
        story.now += 25;
        assert_eq!(of(&mut story), Phase::Judging, "away");
        story.engine_away = false;
        story.history.engine_is_back(at(story.now));
        // rollouts S10
        assert_eq!(of(&mut story), Phase::Judging, "{strategy}");
        story.now += 12;
        assert_eq!(of(&mut story), Phase::Settled, "{strategy}");
    }
}

/// Before a version can be started, no deadline counts: its agent was away, or the version before it
/// had not stopped.
#[test]
fn the_deadline_counts_from_the_time_when_a_version_can_be_started() {
    let unready: core::PodStatus = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    for strategy in ["Recreate", "StartFirst"] {
        let mut story = Story::edited();
        story.strategy = strategy;
        story.edit("b");
        (story.preparation, story.now) = (Preparation::Done, 60);
        story.decide(Some(&ready(0)));
        let of = |story: &mut Story| match strategy {
            "Recreate" => story.decide(Some(&unready)).phase,
            _ => story.decide_with(Some(&ready(0)), Some(&unready)).phase,
        };
        (story.counts_from, story.now) = (3600, 3600);
        // rollouts S15
        assert_eq!(
            of(&mut story),
            Phase::Judging,
            "{strategy}: began an hour later"
        );
        story.now = 3899;
        assert_eq!(of(&mut story), Phase::Judging, "{strategy}");
        story.now = 3900;
        assert!(matches!(of(&mut story), Phase::Restored(_)), "{strategy}");
    }
}

/// The clock is set back by an hour while `b` is ready for a second: it is healthy once it was ready
/// for ten, by the clock as it is then.
#[test]
fn a_clock_that_is_set_back_makes_nothing_healthy_at_once() {
    let mut story = Story::edited();
    (story.preparation, story.now) = (Preparation::Done, 3660);
    story.decide(Some(&ready(0)));
    let ready = ready(3662);
    for (now, phase) in [
        (3663, Phase::Judging),
        (63, Phase::Judging),
        (73, Phase::Judging),
        (74, Phase::Settled),
    ] {
        story.now = now;
        assert_eq!(story.decide(Some(&ready)).phase, phase, "{now}");
    }
}

/// The clock is set back by an hour once `b` has taken the place of `a`: its deadline begins anew.
#[test]
fn a_clock_that_is_set_back_delays_no_verdict_and_hastens_none() {
    let unready: core::PodStatus = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    let mut story = Story::edited();
    (story.preparation, story.now) = (Preparation::Done, 3660);
    story.decide(Some(&ready(0)));
    for (now, phase) in [
        (70, None),
        (369, None),
        (370, Some("ProgressDeadlineExceeded")),
    ] {
        story.now = now;
        match (story.decide(Some(&unready)).phase, phase) {
            (Phase::Judging, None) => {}
            (Phase::Restored(cause), Some(reason)) => assert_eq!(&*cause.reason, reason),
            (phase, _) => panic!("{now}: {phase:?}"),
        }
    }
}

/// The clock is set forward by an hour while `b` is judged, which has been ready for a second or not at
/// all.
#[test]
fn a_clock_that_is_set_forward_begins_a_judgement_anew() {
    for (strategy, is_ready) in [
        ("Recreate", false),
        ("Recreate", true),
        ("StartFirst", false),
        ("StartFirst", true),
    ] {
        let mut story = Story::edited();
        story.strategy = strategy;
        story.edit("b");
        (story.preparation, story.now) = (Preparation::Done, 60);
        story.decide(Some(&ready(0)));
        let (status, whole) = if is_ready {
            (ready(61), 11)
        } else {
            (crashing(0), 300)
        };
        let is_judged = |story: &mut Story, now: i64| {
            story.now = now;
            let decision = match strategy {
                "Recreate" => story.decide(Some(&status)),
                _ => story.decide_with(Some(&ready(0)), Some(&status)),
            };
            decision.phase == Phase::Judging
        };
        assert!(is_judged(&mut story, 62));
        story.history.clock_is_ahead(at(3662));
        for (passed, expected) in [(0, true), (whole - 1, true), (whole, false)] {
            // rollouts S15a
            assert_eq!(
                is_judged(&mut story, 3662 + passed),
                expected,
                "{strategy} {is_ready} {passed}"
            );
        }
    }
}

/// Each way to fail, for a revision that was switched to at 60.
#[test]
fn a_revision_that_fails_is_replaced_by_the_healthy_one() {
    let failed: core::PodStatus = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
    let unready: core::PodStatus = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    for (status, now, reason) in [
        (crashing(3), 61, Some("CrashLoopBackOff")),
        (crashing(2), 61, None),
        (refused("RunContainerError"), 61, Some("RunContainerError")),
        (refused("ContainerCreating"), 61, None),
        (failed, 61, Some("PodFailed")),
        (unready.clone(), 359, None),
        (unready, 360, Some("ProgressDeadlineExceeded")),
    ] {
        let mut story = Story::edited();
        (story.preparation, story.now) = (Preparation::Done, 60);
        story.decide(Some(&ready(0)));
        story.now = now;
        let decision = story.decide(Some(&status));
        let Some(reason) = reason else {
            assert_eq!(decision.phase, Phase::Judging, "{status:?}");
            continue;
        };
        let Phase::Restored(cause) = &decision.phase else {
            panic!("{:?}", decision.phase)
        };
        assert_eq!(&*cause.reason, reason);
        assert_eq!(decision.change, Some(Change::Restored));
        let pod = decision.pod(&story.wanted);
        // rollouts 3, rollouts 5
        assert_eq!((pod.uid().as_str(), pod.held), ("a", true));
        // Whatever becomes of the healthy one: nothing restores a restore.
        let again = story.decide(Some(&crashing(9)));
        assert_eq!((&again.phase, again.change), (&decision.phase, None));
        assert_eq!(story.runs(), "a");
        // The healthy text again: what runs is what is wanted.
        story.edit("a");
        let reverted = story.decide(Some(&ready(0)));
        // rollouts 14
        assert_eq!((reverted.phase, reverted.change), (Phase::Settled, None));
        assert_eq!(story.runs(), "a");
        // What failed may be tried again by an edit.
        story.edit("b");
        assert_eq!(story.decide(Some(&ready(0))).phase, Phase::Preparing);
    }
}

#[test]
fn what_runs_at_the_start_is_current_unless_it_has_failed() {
    // The last agent started `b`, and its note of that was lost.
    let mut story = Story::edited();
    story.decide(Some(&ready(0)));
    story.history.take_running(&"b".into());
    assert_eq!(story.runs(), "b");
    // It found that `b` failed, and was killed before it stopped it.
    let mut story = Story::edited();
    (story.preparation, story.now) = (Preparation::Done, 60);
    story.decide(Some(&ready(0)));
    let decision = story.decide(Some(&crashing(3)));
    assert_eq!(decision.change, Some(Change::Restored));
    story.history.take_running(&"b".into());
    // rollouts 16
    assert_eq!(story.runs(), "a");
}

#[test]
fn the_newest_edit_wins_and_the_healthy_one_stays_the_target() {
    let mut story = Story::edited();
    (story.preparation, story.now) = (Preparation::Done, 60);
    story.decide(Some(&ready(0)));
    story.edit("c");
    assert_eq!(story.decide(Some(&crashing(1))).phase, Phase::Preparing);
    story.preparation = Preparation::Done;
    assert_eq!(
        story.decide(Some(&crashing(1))).change,
        Some(Change::Switched)
    );
    assert_eq!(story.runs(), "c");
    assert_eq!(
        story.decide(Some(&crashing(3))).change,
        Some(Change::Restored)
    );
    // rollouts 13
    assert_eq!(story.runs(), "a");
}

#[test]
fn what_may_be_started_keeps_its_images() {
    let mut story = two_healthy();
    let images = |story: &Story| {
        let images = story.history.needed_images();
        images.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(images(&story), "web:a web:b");
    story.edit("c");
    story.decide(Some(&ready(61)));
    assert_eq!(images(&story), "web:b web:c", "prepared, and to go back to");
    story.edit("d");
    story.decide(Some(&ready(61)));
    // rollouts M2
    assert_eq!(images(&story), "web:b web:d");
    story.history.end(at(story.now));
    assert_eq!(images(&story), "");
}

#[test]
fn restores_can_be_declined() {
    for by_pod in [false, true] {
        let mut story = Story::edited();
        story.restore = by_pod;
        if by_pod {
            let pod = Arc::make_mut(&mut story.wanted.pod);
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert("mirrorlet.dev/rollout-restore".into(), "false".into());
        }
        story.preparation = Preparation::Done;
        story.decide(Some(&ready(0)));
        let decision = story.decide(Some(&crashing(7)));
        let Phase::Failed(cause) = &decision.phase else {
            panic!("{:?}", decision.phase)
        };
        assert_eq!(
            (&*cause.reason, decision.change),
            ("CrashLoopBackOff", None)
        );
        assert_eq!(story.runs(), "b");
        let pod = decision.pod(&story.wanted);
        assert_eq!((pod.uid().as_str(), pod.held), ("b", false));
        assert_eq!(
            pod.problems[0].message,
            "the new version of pod web-box_default failed and keeps running: CrashLoopBackOff: container web was restarted 7 times, last with exit code 3 (Error)"
        );
        assert_eq!(problem_lines([&pod].into_iter()).len(), 1);
        story.now = 91;
        let decision = story.decide(Some(&ready(80)));
        // rollouts M6
        assert_eq!(decision.change, Some(Change::Succeeded));
    }
}

#[test]
fn what_has_ended_well_is_not_run_again() {
    let phase = |phase: &str| -> core::PodStatus {
        serde_json::from_value(json!({"phase": phase})).unwrap()
    };
    let (succeeded, failed) = (phase("Succeeded"), phase("Failed"));
    // Whether it was healthy before it ended, and whether its end was seen before the edit.
    for (was_healthy, seen_before) in [(false, true), (true, true), (true, false)] {
        let mut story = Story::new("a");
        assert_eq!(story.decide(None).phase, Phase::Judging);
        if was_healthy {
            story.now = 20;
            let decision = story.decide(Some(&ready(0)));
            assert_eq!(decision.change, Some(Change::Succeeded));
        }
        if seen_before {
            let decision = story.decide(Some(&succeeded));
            let change = (!was_healthy).then_some(Change::Succeeded);
            assert_eq!((decision.phase, decision.change), (Phase::Settled, change));
        }
        story.edit("b");
        story.runs = false;
        if seen_before {
            assert_eq!(story.decide(None).phase, Phase::Preparing, "its log stays");
        }
        story.preparation = Preparation::Done;
        let decision = story.decide(Some(&succeeded));
        assert_eq!(decision.change, Some(Change::Switched));
        let decision = story.decide(Some(&failed));
        let has_failed = matches!(decision.phase, Phase::Failed(_));
        // rollouts 23
        assert_eq!((has_failed, decision.change), (true, None));
        assert_eq!(story.runs(), "b", "{was_healthy} {seen_before}");
    }
}

/// Of a pod whose container with that id is in that state.
fn with_instance(phase: &str, id: &str) -> core::PodStatus {
    let mut status = json!({
        "phase": phase,
        "containerStatuses": [{
            "name": "web", "image": "web", "imageID": "", "containerID": format!("docker://{id}"),
            "ready": phase == "Running", "restartCount": 0,
        }],
    });
    if phase == "Running" {
        let since = at(1_000).to_string();
        status["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
    }
    serde_json::from_value(status).unwrap()
}

/// As a server whose processes end with 0 when the machine goes down.
#[test]
fn what_has_ended_well_and_is_run_again_by_a_person_is_judged_anew() {
    let (ended, runs) = (
        with_instance("Succeeded", "old"),
        with_instance("Running", "new"),
    );
    // How it comes to run again, and whether its end was seen before that.
    for (order, is_seen) in [
        ("restart", true),
        ("restart", false),
        ("start", true),
        ("start", false),
        ("uncordon", true),
    ] {
        let mut story = Story::new("a");
        story.now = 20;
        story.decide(Some(&ready(0)));
        if is_seen {
            story.decide(Some(&ended));
            assert_eq!(story.history.revisions[0].outcome, Outcome::Ended);
        }
        story.now = 1_000;
        let instances = BTreeSet::from([ContainerId::docker("old")]);
        let at = at(story.now);
        match order {
            "restart" => {
                let restart = Command::Restart { instances, at };
                story.history.obey(restart).unwrap();
            }
            "start" => {
                story.history.obey(Command::Stop).unwrap();
                story.decide(Some(&ended));
                let start = Command::Start { instances, at };
                story.history.obey(start).unwrap();
            }
            _ => {
                story.history.obey(Command::Evict { instances }).unwrap();
                story.history.uncordon(at);
            }
        }
        // Its old instances are still there, and it has its whole time.
        story.now = 1_001;
        story.decide(Some(&ended));
        assert!(story.history.revisions[0].outcome != Outcome::Ended);
        story.now = 1_020;
        story.decide(Some(&runs));
        // rollouts 23
        assert_eq!(story.history.revisions[0].outcome, Outcome::Healthy);
        story.edit("b");
        story.preparation = Preparation::Done;
        story.decide(Some(&runs));
        let decision = story.decide(Some(&crashing(9)));
        // rollouts 23
        assert_eq!(
            (decision.change, story.runs()),
            (Some(Change::Restored), "a".to_owned()),
            "{order} {is_seen}"
        );
    }
}

#[test]
fn what_has_ended_well_and_is_edited_to_again_is_judged_anew() {
    let succeeded = with_instance("Succeeded", "old");
    let mut story = Story::new("a");
    story.decide(Some(&succeeded));
    // Nothing of it is run again before another version takes its place.
    story.edit("b");
    story.decide(Some(&succeeded));
    story.edit("a");
    story.decide(Some(&succeeded));
    assert_eq!(story.history.current().unwrap().outcome, Outcome::Ended);
    story.edit("b");
    story.preparation = Preparation::Done;
    story.decide(Some(&succeeded));
    story.edit("a");
    story.preparation = Preparation::Done;
    let decision = story.decide(None);
    assert_eq!(decision.change, Some(Change::Switched));
    // rollouts 23
    assert_eq!(decision.phase, Phase::Judging);
    assert_eq!(story.history.current().unwrap().outcome, Outcome::Open);
}

#[test]
fn what_was_stopped_or_is_not_seen_has_not_ended() {
    let succeeded: core::PodStatus = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    for (stopped, engine_away, expected) in [
        (true, false, Outcome::Healthy),
        (false, true, Outcome::Healthy),
        (false, false, Outcome::Ended),
    ] {
        let mut story = Story::new("a");
        story.now = 20;
        story.decide(Some(&ready(0)));
        (story.history.stopped, story.engine_away) = (stopped, engine_away);
        story.decide(Some(&succeeded));
        // rollouts 23
        assert_eq!(story.history.revisions[0].outcome, expected);
    }
}

#[test]
fn annotations_say_how_a_pod_is_judged() {
    let mut settings = Settings::default();
    for (key, value, fault) in [
        ("mirrorlet.dev/min-ready-seconds", "0", false),
        ("mirrorlet.dev/min-ready-seconds", "soon", true),
        ("mirrorlet.dev/progress-deadline-seconds", "20", false),
        ("mirrorlet.dev/progress-deadline-seconds", "-1", true),
        ("mirrorlet.dev/max-restarts", "1", false),
        ("mirrorlet.dev/max-restarts", "0", true),
        ("mirrorlet.dev/rollout-restore", "no", true),
        ("example.com/other", "x", false),
    ] {
        assert_eq!(settings.set(key, value).is_err(), fault, "{key}: {value}");
    }
    assert_eq!(settings.min_ready, Duration::ZERO);
    assert_eq!(settings.progress_deadline, Duration::from_secs(20));
    assert_eq!(settings.max_restarts, 1);
}

#[test]
fn a_startup_probe_has_its_whole_budget() {
    let mut slow = revision("b");
    let probe = json!({"failureThreshold": 60, "periodSeconds": 10, "exec": {"command": ["x"]}});
    let spec = Arc::make_mut(&mut slow.pod).spec.as_mut().unwrap();
    spec.containers[0].startup_probe = serde_json::from_value(probe).unwrap();
    let unready: core::PodStatus = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    let assess = |now| {
        let seen = Seen {
            status: &unready,
            failed_probe: None,
            troubles: &[],
            life: &Life::new(at(0), false),
            counts_from: Timestamp::default(),
            now: at(now),
        };
        assess(&slow.pod, &seen, &Settings::default())
    };
    assert_eq!(assess(599), Health::Open(Some(Duration::from_secs(1))));
    assert!(matches!(assess(600), Health::Failed(_)));
}

#[test]
fn old_revisions_are_forgotten_but_not_the_healthy_one() {
    let mut story = Story::edited();
    for number in 0..30 {
        story.edit(&format!("r{number}"));
        story.decide(Some(&ready(0)));
    }
    assert_eq!(story.history.revisions.len(), REVISIONS_MAX);
    assert_eq!(story.runs(), "a");
    assert!(story.history.get(&"a".into()).is_some());
}

/// A story whose revision 1, `a`, and revision 2, `b`, were healthy; `b` runs.
fn two_healthy() -> Story {
    let mut story = Story::edited();
    (story.preparation, story.now) = (Preparation::Done, 60);
    story.decide(Some(&ready(0)));
    story.now = 80;
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(decision.change, Some(Change::Succeeded));
    story
}

const UNDO: Command = Command::Undo { to_revision: None };

#[test]
fn an_undo_runs_an_older_revision_until_an_edit() {
    let mut story = two_healthy();
    assert_eq!(story.history.obey(UNDO), Ok(1));
    story.preparation = Preparation::UnderWay;
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(
        decision.phase,
        Phase::Preparing,
        "it is prepared as any other"
    );
    assert_eq!(story.history.target_of(&story.wanted).0, revision("a").pod);
    story.preparation = Preparation::Done;
    assert_eq!(
        story.decide(Some(&ready(61))).change,
        Some(Change::Switched)
    );
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(
        (decision.phase.clone(), story.runs().as_str()),
        (Phase::Settled, "a")
    );
    let pod = decision.pod(&story.wanted);
    assert_eq!((pod.uid().as_str(), pod.held), ("a", true));
    assert_eq!(
        pod.problems[0].message,
        "a user ran `mirrorlet rollout undo` for pod web-box_default: revision 1 runs instead of revision 2 of the manifest"
    );
    assert_eq!(
        pod.problems[0].help.as_deref(),
        Some(
            "change the manifest, or return to its revision with: mirrorlet rollout undo default/web-box"
        )
    );
    assert_eq!(pod.rollout.unwrap().phase, RolloutPhase::Undone);
    // The undo of the undo: what the manifest says.
    assert_eq!(story.history.obey(UNDO), Ok(2));
    assert_eq!(
        story.decide(Some(&ready(61))).change,
        Some(Change::Switched)
    );
    assert_eq!(story.decide(Some(&ready(61))).phase, Phase::Settled);
    assert_eq!(story.runs(), "b");
    // An edit ends an undo.
    assert_eq!(
        story.history.obey(Command::Undo {
            to_revision: Some(1)
        }),
        Ok(1)
    );
    story.decide(Some(&ready(61)));
    assert_eq!(story.runs(), "a");
    story.edit("c");
    assert_eq!(story.decide(Some(&ready(61))).phase, Phase::Preparing);
    assert_eq!(story.history.undone_to, None);
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(61)));
    // rollouts 22
    assert_eq!(story.runs(), "c");
    // The text of an old revision is a new revision, as of a Deployment.
    story.edit("a");
    story.decide(Some(&ready(61)));
    assert_eq!(story.history.get(&"a".into()).unwrap().number, 4);
}

#[test]
fn a_failed_undo_is_restored_too() {
    let mut story = two_healthy();
    let mut failed = story.history.clone();
    failed.set_outcome(&"a".into(), Outcome::Failed(cause()));
    story.history = failed;
    assert_eq!(
        story.history.obey(Command::Undo {
            to_revision: Some(1)
        }),
        Ok(1)
    );
    assert_eq!(
        story.decide(Some(&ready(61))).change,
        Some(Change::Switched)
    );
    let decision = story.decide(Some(&crashing(3)));
    assert_eq!(decision.change, Some(Change::Restored));
    assert_eq!(story.runs(), "b");
    let pod = decision.pod(&story.wanted);
    let problem = &pod.problems[0].message;
    assert!(
        problem.starts_with("revision 1 of pod web-box_default failed"),
        "{problem}"
    );
    assert_eq!(story.decide(Some(&ready(61))).change, None, "once");
}

#[test]
fn a_restore_can_be_kept_or_tried_again() {
    let restored = || {
        let mut story = Story::edited();
        story.preparation = Preparation::Done;
        story.decide(Some(&ready(0)));
        story.decide(Some(&crashing(3)));
        assert_eq!(story.runs(), "a");
        story
    };
    let mut story = restored();
    assert_eq!(story.history.obey(Command::Retry), Ok(2));
    assert_eq!(story.decide(Some(&ready(0))).change, Some(Change::Switched));
    assert_eq!(
        story.decide(Some(&crashing(3))).change,
        Some(Change::Restored)
    );
    // What runs in its place stays.
    let mut story = restored();
    assert_eq!(story.history.obey(UNDO), Ok(1));
    assert_eq!(story.decide(Some(&ready(0))).phase, Phase::Settled);
    assert_eq!(story.runs(), "a");
}

#[test]
fn a_pause_keeps_what_runs() {
    let mut story = two_healthy();
    assert_eq!(story.history.obey(Command::Pause), Ok(2));
    let paused = story.decide(Some(&ready(60)));
    assert_eq!(
        (&paused.phase, paused.change.as_ref()),
        (&Phase::Settled, None)
    );
    let pod = paused.pod(&story.wanted);
    assert!(pod.rollout.unwrap().is_paused_when_done());
    assert_eq!((pod.held, pod.problems.len()), (false, 0));
    story.edit("c");
    story.preparation = Preparation::Done;
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(
        (decision.phase.clone(), story.runs().as_str()),
        (Phase::Paused, "b")
    );
    let pod = decision.pod(&story.wanted);
    assert_eq!((pod.uid().as_str(), pod.held), ("b", true));
    assert_eq!(
        pod.problems[0].message,
        "the rollouts of pod web-box_default are paused: revision 2 is running, its manifest defines revision 3"
    );
    assert_eq!(story.history.obey(Command::Resume), Ok(3));
    assert_eq!(
        story.decide(Some(&ready(61))).change,
        Some(Change::Switched)
    );
    // A pod that is gone takes its pause along.
    story.history.obey(Command::Pause).unwrap();
    story.history.end(at(story.now));
    assert!(!story.history.paused);
}

fn start(story: &Story) -> Command {
    Command::Start {
        instances: BTreeSet::from([ContainerId::docker("old")]),
        at: at(story.now),
    }
}

#[test]
fn a_stop_lasts_until_a_start_or_an_edit_and_is_judged_by_nobody() {
    let orders = |decision: &Decision, story: &Story| {
        let pod = decision.pod(&story.wanted).pod;
        spec::orders(&pod).map(|order| order.map(str::to_owned))
    };
    let mut story = Story::new("a");
    story.decide(None);
    story.history.obey(Command::Stop).unwrap();
    // Far beyond the time that it has to become ready.
    story.now = 10_000;
    let decision = story.decide(Some(&crashing(9)));
    // box 13
    assert_eq!(orders(&decision, &story), [Some("true".to_owned()), None]);
    assert_eq!(decision.phase, Phase::Settled);
    assert_eq!(story.history.revisions[0].outcome, Outcome::Open);
    let kept = serde_json::to_string(&story.history).unwrap();
    assert_eq!(
        serde_json::from_str::<History>(&kept).unwrap(),
        story.history
    );
    let command = start(&story);
    story.history.obey(command).unwrap();
    let decision = story.decide(Some(&refused("ContainerCreating")));
    let restart = Some("docker://old".to_owned());
    assert_eq!(orders(&decision, &story), [None, restart]);
    // Its time counts from the start.
    assert_eq!(decision.phase, Phase::Judging);
    // An edit ends it, also of a pod that keeps its UID; what is read anew unchanged doesn't.
    for keeps_uid in [false, true] {
        story.history.obey(Command::Stop).unwrap();
        story.decide(Some(&ready(0)));
        assert!(story.history.stopped);
        if keeps_uid {
            let pod = Arc::make_mut(&mut story.wanted.pod);
            pod.spec.as_mut().unwrap().containers[0].image = Some("web:9".to_owned());
        } else {
            story.edit("b");
        }
        story.preparation = Preparation::Done;
        story.decide(Some(&ready(0)));
        assert!(!story.history.stopped, "{keeps_uid}");
    }
    story.history.obey(Command::Stop).unwrap();
    story.history.end(at(story.now));
    assert!(!story.history.stopped && story.history.restart.is_empty());
}

#[test]
fn a_pod_without_a_manifest_is_forgotten_after_a_while() {
    let minutes = |minutes: i64| at(minutes * 60);
    let mut story = two_healthy();
    assert_eq!(story.history.forgotten_in(minutes(100)), None);
    story.history.end(minutes(0));
    // Once more at each look.
    story.history.end(minutes(3));
    for (now, left) in [(0, 10), (4, 6), (10, 0), (30, 0), (-4, 6), (-60, 0)] {
        let left = Some(Duration::from_mins(left));
        // rollouts M4
        assert_eq!(story.history.forgotten_in(minutes(now)), left, "{now}");
    }
    // In time, it is an edit.
    story.edit("c");
    story.decide(None);
    assert_eq!(story.history.forgotten_in(minutes(100)), None);
    let newest = story.history.revisions.last().unwrap();
    assert_eq!(newest.number, 3);
}

#[test]
fn a_restart_names_instances() {
    let mut story = two_healthy();
    for id in ["1", "2"] {
        let instances = BTreeSet::from([ContainerId::docker(id)]);
        let at = at(story.now);
        story
            .history
            .obey(Command::Restart { instances, at })
            .unwrap();
    }
    let pod = story.decide(Some(&ready(61))).pod(&story.wanted).pod;
    for (id, expect) in [("1", true), ("2", true), ("12", false)] {
        assert_eq!(spec::to_restart(&pod, &ContainerId::docker(id)), expect);
    }
    assert!(!spec::is_stopped(&pod));
    story.history.obey(Command::Stop).unwrap();
    let restart = Command::Restart {
        instances: BTreeSet::new(),
        at: at(story.now),
    };
    assert_eq!(story.history.obey(restart), Err(Refused::Stopped));
}

#[test]
fn a_restart_is_forgotten_once_its_instances_are_gone() {
    let mut story = two_healthy();
    let id = |id: u32| ContainerId::docker(id.to_string());
    let restart = |story: &mut Story, instances: &[u32]| {
        let instances = instances.iter().map(|one| id(*one)).collect();
        let at = at(story.now);
        story
            .history
            .obey(Command::Restart { instances, at })
            .unwrap();
    };
    // One that takes long to stop, and another that is replaced again and again.
    restart(&mut story, &[0]);
    for newest in 1..=1_000 {
        let there = [0, newest - 1, newest].map(id);
        story.history.forget_restarts(&there.into());
        restart(&mut story, &[newest]);
        // box 13
        assert!(story.history.restart.len() <= 3, "{newest}");
        assert!(story.history.restart.contains(&id(0)), "{newest}");
    }
    // What was not looked at yet may be there.
    story.history.forget_restarts(&BTreeSet::new());
    assert_eq!(story.history.restart, [0, 999, 1_000].map(id).into());
}

#[test]
fn commands_that_change_nothing_are_refused() {
    let undo = |number| Command::Undo {
        to_revision: Some(number),
    };
    let obey = |story: &Story, command| story.history.clone().obey(command).unwrap_err();
    let new = Story::new("a");
    assert_eq!(obey(&new, UNDO), Refused::NotStarted);
    let mut first = Story::new("a");
    first.decide(None);
    assert_eq!(obey(&first, UNDO), Refused::NoneBefore { newest: 1 });
    let mut story = two_healthy();
    let number = 2;
    assert_eq!(
        obey(&story, Command::Retry),
        Refused::NothingFailed { number }
    );
    assert_eq!(obey(&story, undo(2)), Refused::RunsAlready { number });
    assert_eq!(
        obey(&story, undo(9)).to_string(),
        "revision 9 not found; the stored revisions are: 1, 2"
    );
    assert_eq!(obey(&story, start(&story)), Refused::NotStopped);
    assert_eq!(obey(&story, Command::Resume), Refused::NotPaused);
    story.history.obey(Command::Pause).unwrap();
    assert_eq!(obey(&story, Command::Pause), Refused::AlreadyPaused);
    assert_eq!(obey(&story, UNDO), Refused::Paused);
    assert_eq!(obey(&story, Command::Retry), Refused::Paused);
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Edit(u8),
    Prepared(bool),
    Status(u8),
    Runs(bool),
    Wait(u16),
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        Just(Command::Retry),
        Just(Command::Pause),
        Just(Command::Resume),
        Just(Command::Stop),
        Just(Command::Evict {
            instances: BTreeSet::new()
        }),
        Just(Command::Start {
            instances: BTreeSet::new(),
            at: at(0)
        }),
        prop::option::of(1u64..6).prop_map(|to_revision| Command::Undo { to_revision }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0u8..5).prop_map(Event::Edit),
        any::<bool>().prop_map(Event::Prepared),
        (0u8..5).prop_map(Event::Status),
        any::<bool>().prop_map(Event::Runs),
        (0u16..400).prop_map(Event::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_one_known_revision_runs(events in prop::collection::vec(event(), 0..60)) {
        let mut story = Story::new("0");
        let mut status = None;
        let mut restored: Option<PodUid> = None;
        for event in events {
            story.takes(event, &mut status);
            let was_healthy = |history: &History, uid: &PodUid| {
                history.get(uid).is_some_and(|r| r.outcome == Outcome::Healthy)
            };
            let before = story.history.clone();
            let decision = story.decide(status.as_ref());
            let wanted = story.wanted.uid();
            let (current, _) = story.history.current.clone().unwrap();
            // One revision runs, and what it is is known.
            // rollouts 19
            prop_assert!(story.history.get(&current).is_some());
            prop_assert_eq!(decision.pod(&story.wanted).uid(), current.clone());
            // Nothing takes a healthy revision's place unprepared.
            if let Some((old, _)) = &before.current
                && decision.change == Some(Change::Switched) && was_healthy(&before, old)
            {
                prop_assert_eq!(&story.preparation, &Preparation::Done);
            }
            // A restore leads to a healthy one, and is not restored: only an edit ends it.
            if decision.change == Some(Change::Restored) {
                prop_assert!(was_healthy(&before, &current));
                prop_assert!(restored.as_ref() != Some(&wanted));
                restored = Some(wanted.clone());
            } else if restored.as_ref().is_some_and(|failed| *failed != wanted) {
                restored = None;
            }
            if restored.as_ref() == Some(&wanted) {
                prop_assert!(matches!(decision.phase, Phase::Restored(_)));
                prop_assert!(current != wanted);
            }
            // Also one that an edit came after is gone back from only once it failed.
            if decision.change == Some(Change::FellBack) {
                prop_assert!(was_healthy(&before, &current));
                let (old, _) = before.current.unwrap();
                let failed = &story.history.get(&old).unwrap().outcome;
                prop_assert!(matches!(failed, Outcome::Failed(_)));
            }
            // What is held or restored is told.
            let told = decision.pod(&story.wanted).held;
            prop_assert_eq!(told, matches!(decision.phase, Phase::Held(_) | Phase::Restored(_)));
            prop_assert!(story.history.revisions.len() <= REVISIONS_MAX + 2);
        }
    }

    #[test]
    fn commands_leave_one_known_revision_running(
        events in prop::collection::vec((event(), prop::option::weighted(0.3, command())), 0..60)
    ) {
        let mut story = Story::new("0");
        let mut status = None;
        // The revisions that have run, the last one at the end.
        let mut ran: Vec<PodUid> = Vec::new();
        for (event, command) in events {
            story.takes(event, &mut status);
            if let Some(command) = command {
                let before = story.history.clone();
                if story.history.obey(command).is_err() {
                    prop_assert_eq!(&before, &story.history, "what is refused changes nothing");
                }
            }
            let before = story.history.clone();
            let decision = story.decide(status.as_ref());
            let (current, _) = story.history.current.clone().unwrap();
            prop_assert!(story.history.get(&current).is_some());
            let pod = decision.pod(&story.wanted);
            prop_assert_eq!(pod.uid(), current.clone());
            // What failed is replaced by the healthy one that ran last.
            if let (Some(Change::Restored | Change::FellBack), Some((failed, _))) =
                (decision.change, &before.current)
                && *failed != current
            {
                let healthy = |uid: &&PodUid| {
                    before.get(uid).is_some_and(|known| known.outcome == Outcome::Healthy)
                };
                let last = ran.iter().rev().find(|uid| *uid != failed && healthy(uid));
                // rollouts 22a
                prop_assert_eq!(last, Some(&current));
            }
            ran.retain(|uid| *uid != current);
            ran.push(current.clone());
            // A pause keeps what runs, but for a judgement that is under way.
            if let (true, Some((old, _))) = (before.paused, &before.current)
                && !matches!(decision.change, Some(Change::Restored | Change::FellBack))
            {
                prop_assert_eq!(old, &current);
            }
            // Whatever runs instead of the manifest's is told, but for a preparation's time.
            let other = current != story.wanted.uid();
            let prepares = decision.phase == Phase::Preparing && story.history.undone_to.is_none();
            prop_assert_eq!(pod.held, other && !prepares);
            prop_assert_eq!(!pod.problems.is_empty() && other, pod.held);
            // Numbers are given once.
            let mut numbers: Vec<u64> = story.history.revisions.iter().map(|r| r.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), story.history.revisions.len());
        }
    }
}
