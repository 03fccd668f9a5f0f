use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;
use crate::api::report::RunAction;
use crate::api::{FullName, NodeName, PodUid, Timestamp};
use crate::cron::Runs;
use crate::desired::PodSource;
use crate::events::of_job;
use crate::job::seen::Failure;
use crate::manifest::{Accepted, ParseContext, parse_manifest};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// A Job of this spec, beside a template of one container.
fn job(spec: &str) -> Job {
    let document = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{{name: c, image: i}}]\n  {spec}\n"
    );
    read(&document)
}

fn read(document: &str) -> Job {
    let node = NodeName::from("box");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: "/m/work.yaml",
    };
    let parsed = parse_manifest(document.as_bytes(), &context);
    let accepted = parsed.documents[0].accepted.as_ref();
    let accepted = accepted.unwrap_or_else(|| panic!("{:?}", parsed.documents[0].problems));
    let Accepted::Workload(workload) = accepted else {
        panic!("no workload")
    };
    let Runs::Job(job) = &**workload.runs.as_ref().unwrap() else {
        panic!("no Job")
    };
    job.clone()
}

/// A Job's life: a record that is always on disk, and pods that end as a test says.
struct Life {
    job: Job,
    record: Option<JobRecord>,
    seen: BTreeMap<PodUid, Seen>,
    /// Pods that run on when they are to stop.
    slow: BTreeSet<PodUid>,
    now: Timestamp,
    look_again: Option<u64>,
    /// The events, as reason and message.
    events: Vec<String>,
}

impl Life {
    fn new(spec: &str) -> Self {
        Self {
            job: job(spec),
            record: None,
            seen: BTreeMap::new(),
            slow: BTreeSet::new(),
            now: at(0),
            look_again: None,
            events: Vec::new(),
        }
    }

    /// Decides until nothing changes, and returns the pods that are to run: `index.attempt`.
    fn step(&mut self) -> String {
        loop {
            let decision = decide(&Input {
                job: &self.job,
                record: self.record.as_ref(),
                seen: &|uid| self.seen.get(uid).cloned().unwrap_or_default(),
                may_run: &|uid| self.slow.contains(uid),
                ordered: false,
                may_start: true,
                now: self.now,
            });
            self.look_again = decision.look_again.map(|wait| wait.as_secs());
            let events = decision
                .notes
                .iter()
                .flat_map(|note| of_job(&self.job, note));
            let events = events.map(|event| format!("{}: {}", event.reason, event.message));
            self.events.extend(events);
            if self.record.as_ref() == Some(&decision.record) {
                break;
            }
            self.record = Some(decision.record);
        }
        let active = self.record().active.iter();
        let active = active.map(|(index, attempt)| format!("{index}.{attempt}"));
        active.collect::<Vec<_>>().join(" ")
    }

    fn record(&self) -> &JobRecord {
        self.record.as_ref().unwrap()
    }

    fn see(&mut self, index: u32, seen: Seen) -> &mut Self {
        let record = self.record();
        let uid = record.uid(&self.job.name, index, record.active[&index]);
        self.seen.insert(uid, seen);
        self
    }

    /// The pods that are to run now take their whole grace once they are to stop.
    fn linger(&mut self) {
        let record = self.record();
        let active = record.active.iter();
        let slow = active.map(|(index, attempt)| record.uid(&self.job.name, *index, *attempt));
        self.slow = slow.collect();
    }

    /// All pods that are to stop have stopped.
    fn stopped(&mut self) -> String {
        self.slow.clear();
        self.step()
    }

    fn succeeds(&mut self, index: u32) -> String {
        self.see(index, Seen::Succeeded).step()
    }

    fn fails(&mut self, index: u32, code: i32) -> String {
        let failure = Failure {
            exits: vec![("c".to_owned(), code)],
            ..Failure::default()
        };
        self.see(index, Seen::Failed(failure)).step()
    }

    fn after(&mut self, seconds: i64) -> String {
        self.now = Timestamp::from_second(self.now.as_second() + seconds).unwrap();
        self.step()
    }

    fn end(&self) -> &str {
        let end = self.record().end.as_ref();
        end.map_or("", |end| end.reason.as_str())
    }
}

/// The statuses of the pods that stay: phase, reason and message.
fn statuses(life: &Life) -> Vec<String> {
    let pods = pods(&life.job, life.record());
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
    statuses
        .map(|status| {
            let words = [&status.phase, &status.reason, &status.message];
            let words = words.map(|text| text.as_deref().unwrap_or("-"));
            words.join("; ")
        })
        .collect()
}

#[test]
fn a_pod_that_the_end_of_its_job_stops_has_the_reason_of_that_end() {
    let mut late = Life::new("activeDeadlineSeconds: 30\n  backoffLimit: 3");
    late.step();
    late.fails(0, 1);
    late.after(10);
    late.after(20);
    assert_eq!(
        statuses(&late),
        [
            "Failed; -; -",
            "Failed; DeadlineExceeded; Job was active longer than specified deadline"
        ]
    );

    let mut failing = Life::new("completions: 2\n  parallelism: 2\n  backoffLimit: 0");
    failing.step();
    failing.fails(1, 1);
    assert_eq!(
        statuses(&failing),
        [
            "Failed; -; -",
            "Failed; BackoffLimitExceeded; Job has reached the specified backoff limit"
        ]
    );
}

#[test]
fn pods_that_a_job_stops_are_stopped_for_a_reason_that_is_told() {
    let policy = "completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededCount: 1}]}";
    let mut life = Life::new(policy);
    life.step();
    let reason = |life: &Life| {
        let decision = decide(&Input {
            job: &life.job,
            record: life.record.as_ref(),
            seen: &|uid| life.seen.get(uid).cloned().unwrap_or_default(),
            may_run: &|_| false,
            ordered: false,
            may_start: true,
            now: life.now,
        });
        let stopped = |note: &&Note| matches!(note, Note::Stopped(..));
        let stops = decision.notes.iter().filter(stopped).count();
        (stops, decision.stop_reason())
    };
    life.job.rules.parallelism = 1;
    let shrunk = "more pods run than parallelism allows";
    assert_eq!(reason(&life), (1, shrunk.to_owned()));
    life.job.rules.suspend = true;
    assert_eq!(reason(&life), (2, "the Job is suspended".to_owned()));
    life.job.rules.suspend = false;
    life.see(0, Seen::Succeeded);
    let matched = "SuccessPolicy: Matched rules at index 0";
    assert_eq!(reason(&life), (1, matched.to_owned()));
}

#[test]
fn a_job_that_may_run_no_pod_says_why_and_since_when_it_is_there() {
    for (spec, condition, reason) in [
        ("parallelism: 0", "Suspended", "ParallelismZero"),
        ("suspend: true", "Suspended", "JobSuspended"),
        (
            "parallelism: 0\n  suspend: true",
            "Suspended",
            "JobSuspended",
        ),
        ("parallelism: 1", "Running", ""),
    ] {
        let mut life = Life::new(spec);
        let active = life.step();
        assert_eq!(active.is_empty(), condition == "Suspended", "{spec}");
        let report = report(&life.job, life.record(), "/m");
        let said = (report.condition.as_str(), report.reason.as_str());
        assert_eq!(said, (condition, reason), "{spec}");
        assert_eq!(report.created_at, Some(at(0)), "{spec}");
    }
}

#[test]
fn a_job_says_how_many_pods_it_waits_for() {
    let said = |life: &Life| {
        let report = report(&life.job, life.record(), "/m");
        [report.condition, report.reason, report.message].join("; ")
    };
    let mut life = Life::new("completions: 2\n  parallelism: 2");
    life.step();
    life.linger();
    life.job = job("completions: 3");
    life.step();
    // workloads 7
    assert_eq!(
        said(&life),
        "Running; PodsTerminating; waits for 2 pods of its last run to stop"
    );
    life.stopped();
    // workloads 7
    assert_eq!(said(&life), "Running; ; ");
    life.linger();
    life.job.rules.suspend = true;
    life.step();
    life.job.rules.suspend = false;
    life.step();
    // workloads 7
    assert_eq!(
        said(&life),
        "Running; PodsTerminating; waits for 1 pod to stop"
    );
}

#[test]
fn a_job_has_the_events_of_upstreams_controller() {
    let mut life = Life::new("completions: 2\n  parallelism: 2\n  backoffLimit: 0");
    life.step();
    life.job.rules.suspend = true;
    life.step();
    life.job.rules.suspend = false;
    life.step();
    life.succeeds(0);
    life.succeeds(1);
    assert_eq!(
        life.events,
        [
            "SuccessfulCreate: Created pod: work-0-box",
            "SuccessfulCreate: Created pod: work-1-box",
            "SuccessfulDelete: Deleted pod: work-0-box",
            "SuccessfulDelete: Deleted pod: work-1-box",
            "Suspended: Job suspended",
            "Resumed: Job resumed",
            "SuccessfulCreate: Created pod: work-0-1-box",
            "SuccessfulCreate: Created pod: work-1-1-box",
            "Completed: Job completed",
        ]
    );
    let mut life = Life::new("backoffLimit: 0");
    life.step();
    life.fails(0, 1);
    assert_eq!(
        life.events[1..],
        ["BackoffLimitExceeded: Job has reached the specified backoff limit"]
    );
}

#[test]
fn a_job_that_a_person_restarts_begins_anew() {
    let mut done = Life::new("backoffLimit: 0");
    done.step();
    done.succeeds(0);
    let mut suspended = Life::new("suspend: true");
    suspended.step();
    let begins = [Note::Begun, Note::Started(0, 0)];
    for (what, life, notes) in [
        ("done", &done, &begins[..]),
        ("suspended", &suspended, &begins[..1]),
        ("unreadable", &Life::new("backoffLimit: 0"), &begins[..]),
    ] {
        let decision = decide(&Input {
            job: &life.job,
            record: life.record.as_ref(),
            seen: &|uid| life.seen.get(uid).cloned().unwrap_or_default(),
            may_run: &|_| false,
            ordered: true,
            may_start: true,
            now: at(60),
        });
        // workloads 7
        assert_eq!(decision.notes, notes, "{what}");
        let record = decision.record;
        assert_eq!((record.created, record.end), (at(60), None), "{what}");
    }
}

#[test]
fn a_job_runs_until_as_many_pods_have_succeeded() {
    let mut life = Life::new("completions: 3\n  parallelism: 2");
    assert_eq!(life.step(), "0.0 1.0");
    assert_eq!(life.succeeds(1), "0.0 2.0");
    assert_eq!(life.succeeds(0), "2.0");
    assert_eq!(life.succeeds(2), "");
    assert_eq!(life.end(), "CompletionsReached");
    // It stays so, and its pods stay.
    assert_eq!(life.after(1_000_000), "");
    assert_eq!(pods(&life.job, life.record()).len(), 3);
    // Without a number the first success is the last thing to start.
    let mut life = Life::new("parallelism: 2");
    assert_eq!(life.step(), "0.0 1.0");
    assert_eq!(life.succeeds(0), "1.0");
    assert_eq!(life.end(), "");
    assert_eq!(life.fails(1, 1), "");
    assert_eq!(life.end(), "CompletionsReached");
}

#[test]
fn failed_pods_are_tried_again_with_longer_and_longer_pauses() {
    let mut life = Life::new("backoffLimit: 7");
    assert_eq!(life.step(), "0.0");
    for (attempt, pause) in [10, 20, 40, 80, 160, 320, 360].into_iter().enumerate() {
        assert_eq!(life.fails(0, 1), "", "attempt {attempt}");
        // workloads 9
        assert_eq!(life.look_again, Some(pause));
        let pause = i64::try_from(pause).unwrap();
        assert_eq!(life.after(pause - 1), "");
        assert_eq!(life.after(1), format!("0.{}", attempt + 1));
    }
    assert_eq!(life.fails(0, 1), "");
    assert_eq!(life.end(), "BackoffLimitExceeded");
    // A success in between begins anew.
    let mut life = Life::new("completions: 2\n  parallelism: 2");
    life.step();
    assert_eq!(life.fails(0, 1), "1.0");
    assert_eq!(life.succeeds(1), "0.1");
    // A clock that is set back makes nobody wait for longer than the pause.
    assert_eq!(life.fails(0, 1), "");
    assert_eq!(life.after(-1_000_000), "");
    assert_eq!(life.after(10), "0.2");
}

#[test]
fn each_index_may_have_a_limit_of_its_own() {
    let spec =
        "completions: 3\n  parallelism: 3\n  completionMode: Indexed\n  backoffLimitPerIndex: 1";
    let mut life = Life::new(spec);
    assert_eq!(life.step(), "0.0 1.0 2.0");
    assert_eq!(life.fails(1, 1), "0.0 2.0");
    assert_eq!(life.after(10), "0.0 1.1 2.0");
    assert_eq!(life.fails(1, 1), "0.0 2.0");
    assert_eq!(life.record().failed.to_string(), "1");
    assert_eq!(life.succeeds(0), "2.0");
    assert_eq!(life.succeeds(2), "");
    // workloads 9
    assert_eq!(life.end(), "FailedIndexes");
    let mut life = Life::new(&format!("{spec}\n  maxFailedIndexes: 0"));
    life.step();
    life.fails(2, 1);
    life.after(10);
    assert_eq!(life.fails(2, 1), "");
    assert_eq!(life.end(), "MaxFailedIndexesExceeded");
}

#[test]
fn a_policy_says_what_becomes_of_a_failed_pod() {
    let spec = "backoffLimit: 0\n  podFailurePolicy:\n    rules:\n    - {action: Ignore, onExitCodes: {operator: In, values: [3]}}\n    - {action: Count, onExitCodes: {containerName: c, operator: In, values: [4]}}\n    - {action: FailJob, onExitCodes: {operator: NotIn, values: [5]}}\n    - {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}";
    for (code, active, end) in [
        (3, "", ""),
        (4, "", "BackoffLimitExceeded"),
        (5, "", "BackoffLimitExceeded"),
        (6, "", "PodFailurePolicy"),
    ] {
        let mut life = Life::new(spec);
        life.step();
        assert_eq!(life.fails(0, code), active, "{code}");
        // workloads 9
        assert_eq!(life.end(), end, "{code}");
    }
    let mut life = Life::new(spec);
    life.step();
    let failure = Failure {
        conditions: vec![("DisruptionTarget".to_owned(), "True".to_owned())],
        ..Failure::default()
    };
    assert_eq!(life.see(0, Seen::Failed(failure)).step(), "");
    assert_eq!(life.after(10), "0.1");
    assert_eq!(life.record().failures, 0);
    let mut life = Life::new(spec);
    life.step();
    life.fails(0, 9);
    let end = life.record().end.clone().unwrap();
    assert_eq!(
        end.message,
        "Container c failed with exit code 9 matching FailJob rule at index 2"
    );
}

/// Upstream: `newBackoffRecord` has them too.
#[test]
fn failures_that_a_policy_ignores_are_waited_after_too() {
    let policy = "podFailurePolicy:\n    rules:\n    - {action: Ignore, onExitCodes: {operator: In, values: [3]}}";
    let indexed = "completions: 1\n  completionMode: Indexed\n  backoffLimitPerIndex: 0\n  ";
    for spec in ["backoffLimit: 0\n  ", indexed] {
        let mut life = Life::new(&format!("{spec}{policy}"));
        life.step();
        for (attempt, pause) in [10, 20, 40, 80].into_iter().enumerate() {
            assert_eq!(life.fails(0, 3), "", "{spec}");
            // workloads 9
            assert_eq!(life.look_again, Some(pause), "{spec}");
            let pause = i64::try_from(pause).unwrap();
            assert_eq!(life.after(pause), format!("0.{}", attempt + 1), "{spec}");
        }
        assert_eq!((life.record().failures, life.end()), (0, ""));
    }
}

#[test]
fn a_deadline_ends_a_job_and_a_time_to_live_its_pods() {
    let mut life = Life::new("activeDeadlineSeconds: 60\n  ttlSecondsAfterFinished: 30");
    assert_eq!(life.step(), "0.0");
    assert_eq!(life.look_again, Some(60));
    assert_eq!(life.after(59), "0.0");
    assert_eq!(life.after(1), "");
    // workloads 9
    assert_eq!(life.end(), "DeadlineExceeded");
    // The pod that is stopped for it stays for its log, until its time is over.
    assert_eq!(pods(&life.job, life.record()).len(), 1);
    assert_eq!(life.look_again, Some(30));
    life.after(30);
    assert!(pods(&life.job, life.record()).is_empty());
    assert_eq!(life.after(1_000_000), "");
}

#[test]
fn a_clock_that_is_wrong_for_a_while_ends_no_job_and_removes_no_pod() {
    const DAY: i64 = 86_400;
    // By how much the clock is wrong at the boot, and for how long.
    for (wrong, looks) in [(-11 * DAY, 1), (-11 * DAY, 20), (-3_600, 1), (-30, 2)] {
        let mut life = Life::new("activeDeadlineSeconds: 600\n  ttlSecondsAfterFinished: 300");
        assert_eq!(life.step(), "0.0");
        assert_eq!(life.after(60), "0.0");
        let before = life.record().clone();
        life.after(wrong);
        for _ in 0..looks {
            assert_eq!(life.after(2), "0.0", "{wrong}");
            assert!(life.look_again.is_some_and(|seconds| seconds <= 600));
        }
        // workloads 9
        assert_eq!(life.after(-wrong), "0.0", "{wrong}");
        assert_eq!(*life.record(), before);
        // The deadline is that of the right clock.
        let spent = 60 + 2 * looks;
        assert_eq!(life.after(600 - spent - 1), "0.0");
        assert_eq!(life.after(1), "");
        assert_eq!(life.end(), "DeadlineExceeded");

        // So is the time to live.
        life.after(wrong);
        for _ in 0..looks {
            life.after(2);
        }
        life.after(-wrong);
        assert_eq!(pods(&life.job, life.record()).len(), 1, "{wrong}");
        life.after(300 - 2 * looks - 1);
        assert_eq!(pods(&life.job, life.record()).len(), 1);
        life.after(1);
        assert!(pods(&life.job, life.record()).is_empty());
    }
}

#[test]
fn a_job_is_suspended_and_goes_on_where_it_was() {
    let mut life = Life::new("completions: 2\n  activeDeadlineSeconds: 60");
    assert_eq!(life.step(), "0.0");
    assert_eq!(life.succeeds(0), "1.0");
    life.job.rules.suspend = true;
    assert_eq!(life.step(), "");
    assert_eq!(life.after(1000), "");
    life.job.rules.suspend = false;
    // Another pod, since the first one may have been stopped in the middle.
    // workloads 9
    assert_eq!(life.step(), "1.1");
    assert_eq!(life.succeeds(1), "");
    assert_eq!(life.end(), "CompletionsReached");
}

#[test]
fn fewer_pods_at_a_time_stop_the_last_ones() {
    let mut life = Life::new("completions: 5\n  parallelism: 3");
    assert_eq!(life.step(), "0.0 1.0 2.0");
    life.job.rules.parallelism = 1;
    assert_eq!(life.step(), "0.0");
    life.job.rules.parallelism = 2;
    assert_eq!(life.step(), "0.0 1.1");
    assert_eq!(life.record().failures, 0);
}

#[test]
fn a_success_policy_ends_a_job_early() {
    let spec = "completions: 4\n  parallelism: 4\n  completionMode: Indexed\n  successPolicy:\n    rules: [{succeededIndexes: \"0,2-3\", succeededCount: 2}]";
    let mut life = Life::new(spec);
    life.step();
    assert_eq!(life.succeeds(1), "0.0 2.0 3.0");
    assert_eq!(life.succeeds(3), "0.0 2.0");
    assert_eq!(life.succeeds(0), "");
    assert_eq!(life.end(), "SuccessPolicy");
}

#[test]
fn restarts_within_pods_count_too() {
    let document = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec:\n  backoffLimit: 2\n  template:\n    spec:\n      restartPolicy: OnFailure\n      containers: [{name: c, image: i}]\n";
    let mut life = Life::new("backoffLimit: 2");
    life.job = read(document);
    assert_eq!(life.step(), "0.0");
    assert_eq!(life.see(0, Seen::Runs { restarts: 1 }).step(), "0.0");
    assert_eq!(life.see(0, Seen::Runs { restarts: 2 }).step(), "");
    assert_eq!(life.end(), "BackoffLimitExceeded");
}

#[test]
fn another_content_is_another_job_with_other_pods() {
    let one = job("completions: 2");
    for (spec, same) in [
        ("completions: 2\n  parallelism: 3", true),
        ("completions: 2\n  backoffLimit: 1", true),
        ("completions: 2\n  suspend: true", true),
        ("completions: 2\n  activeDeadlineSeconds: 1", true),
        ("completions: 3", false),
        ("completions: 2\n  completionMode: Indexed", false),
    ] {
        // workloads 7
        assert_eq!(job(spec).content == one.content, same, "{spec}");
    }
    let mut life = Life::new("completions: 2");
    life.step();
    life.succeeds(0);
    let before: Vec<PodUid> = pods(&life.job, life.record())
        .iter()
        .map(|pod| PodUid::of(pod))
        .collect();
    life.job = job("completions: 3");
    life.now = at(1);
    assert_eq!(life.step(), "0.0");
    let after = pods(&life.job, life.record());
    assert!(after.iter().all(|pod| !before.contains(&PodUid::of(pod))));
}

#[test]
fn a_run_waits_until_the_pods_of_the_one_before_have_stopped() {
    for (spec, succeeds, active) in [
        ("completions: 2", true, "1.0"),
        ("backoffLimit: 3", false, "0.1"),
    ] {
        let mut life = Life::new(spec);
        life.step();
        if succeeds {
            life.succeeds(0);
        } else {
            life.fails(0, 1);
        }
        assert_eq!(life.after(10), active);
        life.linger();
        let restarted = decide(&Input {
            job: &life.job,
            record: life.record.as_ref(),
            seen: &|_| Seen::default(),
            may_run: &|uid| life.slow.contains(uid),
            ordered: true,
            may_start: true,
            now: at(60),
        });
        // workloads 7
        assert_eq!(restarted.notes, [Note::Begun], "{spec}");
        assert_eq!(restarted.record.leaving.len(), 1, "{spec}");
        life.job = job("completions: 4");
        // workloads 7
        assert_eq!(life.step(), "", "{spec}");
        assert_eq!(life.after(60), "", "{spec}");
        // Another edit meanwhile forgets nobody.
        life.job = job("completions: 5");
        // workloads 7
        assert_eq!(life.step(), "", "{spec}");
        assert_eq!(life.stopped(), "0.0", "{spec}");
        assert_eq!(life.record().leaving, []);
    }
}

#[test]
fn a_deadline_counts_once_the_pods_of_the_run_before_have_stopped() {
    let mut life = Life::new("completions: 2");
    life.step();
    life.linger();
    life.events.clear();
    life.job = job("completions: 3\n  activeDeadlineSeconds: 30");
    assert_eq!(life.step(), "");
    assert_eq!(life.after(60), "");
    // workloads 9
    assert_eq!((life.record().started, life.end()), (None, ""));
    // workloads 9
    assert_eq!(life.stopped(), "0.0");
    assert_eq!(life.record().started, Some(life.now));
    let resumed = life.events.iter().any(|event| event.contains("Resumed"));
    assert!(!resumed, "{:?}", life.events);
    assert_eq!(life.after(29), "0.0");
    life.after(1);
    // workloads 9
    assert_eq!(life.end(), "DeadlineExceeded");
}

#[test]
fn a_run_that_never_started_its_pods_keeps_no_other_waiting() {
    let mut life = Life::new("completions: 2\n  parallelism: 2");
    assert_eq!(life.step(), "0.0 1.0");
    life.job = job("completions: 3");
    let decide_once = |life: &Life| {
        decide(&Input {
            job: &life.job,
            record: life.record.as_ref(),
            seen: &|_| Seen::default(),
            may_run: &|_| false,
            ordered: false,
            may_start: true,
            now: life.now,
        })
    };
    // Their workers have yet to hear that they are to start none.
    let first = decide_once(&life);
    // workloads 7
    assert_eq!(first.record.active, BTreeMap::new());
    assert_eq!(first.record.leaving.len(), 2);
    life.record = Some(first.record);
    // workloads 7
    assert_eq!(decide_once(&life).record.active, BTreeMap::from([(0, 0)]));
}

#[test]
fn a_job_whose_document_is_put_back_waits_for_the_pods_that_it_had() {
    let mut life = Life::new("completions: 2\n  parallelism: 2");
    life.step();
    life.linger();
    let name = life.job.name.clone();
    // Their workers have yet to hear that nobody wants them.
    let removed = life.record().removed(&name, &|_| false).unwrap();
    assert_eq!((removed.is_removed(), removed.leaving.len()), (true, 2));
    let looked = removed.removed(&name, &|uid| life.slow.contains(uid));
    assert_eq!(looked.as_ref(), Some(&removed));
    // workloads 7
    assert_eq!(removed.removed(&name, &|_| false), None);
    life.record = Some(removed);
    // workloads 7
    assert_eq!(life.after(1), "");
    assert_eq!(life.stopped(), "0.0 1.0");
    // One that is done leaves nobody.
    life.succeeds(0);
    life.succeeds(1);
    assert_eq!(life.record().removed(&name, &|_| true), None);
}

#[test]
fn records_of_the_release_before_have_no_pod_that_is_being_stopped() {
    let text = r#"{"content":"a","created":"2026-05-17T00:00:00Z","active":{"1":2}}"#;
    let record: JobRecord = serde_json::from_str(text).unwrap();
    assert_eq!(record.active, BTreeMap::from([(1, 2)]));
    assert_eq!((record.leaving.len(), record.is_removed()), (0, false));
}

#[test]
fn a_pod_that_is_being_stopped_counts_until_it_has() {
    let mut life = Life::new("completions: 3");
    assert_eq!(life.step(), "0.0");
    life.linger();
    life.job.rules.suspend = true;
    assert_eq!(life.step(), "");
    life.job.rules.suspend = false;
    // workloads 9
    assert_eq!(life.step(), "");
    assert_eq!(life.stopped(), "0.1");

    let mut life = Life::new("completions: 5\n  parallelism: 3");
    assert_eq!(life.step(), "0.0 1.0 2.0");
    life.linger();
    life.job.rules.parallelism = 1;
    assert_eq!(life.step(), "0.0");
    life.job.rules.parallelism = 2;
    // workloads 9
    assert_eq!(life.step(), "0.0");
    life.job.rules.parallelism = 4;
    // Not of their indexes.
    // workloads 9
    assert_eq!(life.step(), "0.0 3.0");
    assert_eq!(life.stopped(), "0.0 1.1 2.1 3.0");
}

#[test]
fn a_job_is_over_once_none_of_its_pods_runs() {
    let policy = "completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededCount: 1}]}";
    for (spec, succeeds) in [("activeDeadlineSeconds: 30", false), (policy, true)] {
        let mut life = Life::new(spec);
        life.step();
        life.linger();
        if succeeds {
            life.succeeds(0);
        }
        life.after(30);
        let record = life.record();
        // workloads 10
        assert_eq!((record.end.is_some(), record.is_over()), (true, false));
        life.stopped();
        // workloads 10
        assert!(life.record().is_over(), "{spec}");
    }
}

#[test]
fn a_pod_is_known_by_its_name_to_be_a_jobs() {
    let job = job("completions: 2");
    for (name, namespace, expected) in [
        ("work-0-box", "default", true),
        ("work-12-3-box", "default", true),
        ("work-12-10-box", "default", true),
        ("work-12-0-box", "default", false),
        ("work-0-box", "other", false),
        ("work-0-1-2-box", "default", false),
        ("work-box", "default", false),
        ("work-a-box", "default", false),
        ("work--box", "default", false),
        ("work-0", "default", false),
        ("works-0-box", "default", false),
    ] {
        let pod = FullName::new(name, namespace);
        assert_eq!(is_pod_of(&job, &pod), expected, "{pod}");
    }
}

#[test]
fn pods_are_named_and_marked_as_upstream_marks_them() {
    let mut life = Life::new("completions: 2\n  completionMode: Indexed");
    life.step();
    life.succeeds(0);
    life.fails(1, 1);
    life.after(10);
    let pods = pods(&life.job, life.record());
    let names: Vec<_> = pods
        .iter()
        .map(|pod| pod.metadata.name.as_deref())
        .collect();
    assert_eq!(
        names,
        [Some("work-1-1-box"), Some("work-0-box"), Some("work-1-box")]
    );
    let pod = json!(pods[0]);
    let uid = PodUid::of(&pods[0]).to_string();
    assert_eq!(
        pod["metadata"]["annotations"]["kubernetes.io/config.hash"],
        uid
    );
    assert_eq!(
        pod["metadata"]["annotations"]["mirrorlet.dev/workload"],
        "Job/work"
    );
    for part in ["annotations", "labels"] {
        let index = &pod["metadata"][part]["batch.kubernetes.io/job-completion-index"];
        assert_eq!(index, "1", "{part}");
    }
    assert_eq!(pod["metadata"]["labels"]["job-name"], "work");
    // workloads 8
    assert_eq!(pod["spec"]["hostname"], "work-1");
    let env = &pod["spec"]["containers"][0]["env"];
    assert_eq!(
        env,
        &json!([{"name": "JOB_COMPLETION_INDEX", "value": "1"}])
    );
    let phases: Vec<_> = pods
        .iter()
        .map(|pod| json!(pod)["status"]["phase"].clone())
        .collect();
    assert_eq!(phases, ["Pending", "Succeeded", "Failed"]);
}

/// The problems of a Job, by field.
fn problems(spec: &str) -> String {
    let document = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{{name: c, image: i}}]\n  {spec}\n"
    );
    let node = NodeName::from("box");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: "/m/work.yaml",
    };
    let parsed = parse_manifest(document.as_bytes(), &context);
    let problems = parsed.documents[0].problems.iter();
    let problems = problems.map(|problem| {
        assert!(problem.position.is_some(), "{problem}");
        let word = if problem.is_error() { "" } else { "warning " };
        format!("{word}{}", problem.field.as_deref().unwrap_or_default())
    });
    problems.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_job_is_checked_as_the_api_server_checks_it() {
    for (spec, fields) in [
        ("completions: 5", ""),
        ("completions: -1", "spec.completions"),
        ("parallelism: -1", "spec.parallelism"),
        ("parallelism: 5000", "spec.parallelism"),
        ("backoffLimit: -1", "spec.backoffLimit"),
        ("activeDeadlineSeconds: -1", "spec.activeDeadlineSeconds"),
        (
            "ttlSecondsAfterFinished: -1",
            "spec.ttlSecondsAfterFinished",
        ),
        ("completionMode: Indexed", "spec.completions"),
        ("completionMode: Other", "spec.completionMode"),
        ("backoffLimitPerIndex: 1", "spec.backoffLimitPerIndex"),
        ("maxFailedIndexes: 1", "spec.maxFailedIndexes"),
        ("completions: 2147483647", ""),
        ("completions: 2147483647\n  completionMode: Indexed", ""),
        (
            "completions: 100001\n  completionMode: Indexed\n  backoffLimitPerIndex: 1",
            "spec.maxFailedIndexes",
        ),
        (
            "completions: 100001\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n  maxFailedIndexes: 10000",
            "",
        ),
        (
            "completions: 100001\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n  maxFailedIndexes: 10001",
            "spec.maxFailedIndexes",
        ),
        (
            "completions: 100000\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n  maxFailedIndexes: 100000",
            "",
        ),
        ("managedBy: example.com/other", "spec.managedBy"),
        ("manualSelector: true", "warning spec.manualSelector"),
        ("podReplacementPolicy: Never", "spec.podReplacementPolicy"),
        (
            "podFailurePolicy: {rules: []}",
            "spec.podFailurePolicy.rules",
        ),
        (
            "podFailurePolicy: {rules: [{action: FailIndex, onExitCodes: {operator: In, values: [0, 0]}}]}",
            "spec.podFailurePolicy.rules[0].action spec.podFailurePolicy.rules[0].onExitCodes.values spec.podFailurePolicy.rules[0].onExitCodes.values",
        ),
        (
            "podFailurePolicy: {rules: [{action: Ignore, onExitCodes: {containerName: x, operator: In, values: [1]}}]}",
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName",
        ),
        (
            "successPolicy: {rules: [{succeededCount: 1}]}",
            "spec.successPolicy spec.successPolicy.rules[0].succeededCount",
        ),
    ] {
        // workloads 4a
        assert_eq!(problems(spec), fields, "{spec}");
    }
}

#[test]
fn a_plan_says_what_would_run_and_because_of_what() {
    let run = |content: &Job, complete| Known::Run {
        content: content.content.clone(),
        complete,
    };
    let (once, twice) = (job("completions: 1"), job("completions: 2"));
    let (suspended, deadline) = (
        job("completions: 1\n  suspend: true"),
        job("completions: 1\n  activeDeadlineSeconds: 9"),
    );
    for (wanted, present, known, action, reason) in [
        (&once, None, None, RunAction::Run, "it has not run"),
        (&suspended, None, None, RunAction::Create, "it is suspended"),
        (
            &twice,
            Some(&once),
            Some(run(&once, None)),
            RunAction::RunAgain,
            "its content has changed",
        ),
        (
            &twice,
            Some(&once),
            Some(run(&once, Some(true))),
            RunAction::RunAgain,
            "its content has changed",
        ),
        (
            &once,
            Some(&once),
            Some(run(&once, Some(true))),
            RunAction::None,
            "it is complete",
        ),
        (
            &once,
            Some(&once),
            Some(run(&once, Some(false))),
            RunAction::None,
            "it has failed",
        ),
        (
            &once,
            Some(&once),
            Some(run(&once, None)),
            RunAction::None,
            "it continues",
        ),
        (
            &suspended,
            Some(&suspended),
            Some(run(&once, None)),
            RunAction::None,
            "it is suspended",
        ),
        (
            &suspended,
            Some(&once),
            Some(run(&once, None)),
            RunAction::Change,
            "the edit applies",
        ),
        (
            &deadline,
            Some(&once),
            Some(run(&once, None)),
            RunAction::Change,
            "the edit applies",
        ),
        (
            &deadline,
            Some(&once),
            Some(run(&once, Some(true))),
            RunAction::None,
            "it is complete",
        ),
        (
            &once,
            Some(&once),
            Some(Known::Unreadable),
            RunAction::Held,
            "its progress can't be read",
        ),
    ] {
        let planned = plan(wanted, present, known.as_ref());
        // workloads 25
        assert_eq!(planned.0, action, "{reason}");
        assert!(planned.1.starts_with(reason), "{} {reason}", planned.1);
        // What is planned is decided.
        let begins = match &known {
            Some(Known::Run { content, .. }) => *content != wanted.content,
            Some(Known::Unreadable) => continue,
            None => true,
        };
        let record = known.as_ref().and_then(|known| match known {
            Known::Run { content, .. } => Some(JobRecord::new(content, at(0))),
            Known::Unreadable => None,
        });
        let decision = decide(&Input {
            job: wanted,
            record: record.as_ref(),
            seen: &|_| Seen::default(),
            may_run: &|_| false,
            ordered: false,
            may_start: true,
            now: at(0),
        });
        assert_eq!(decision.notes.contains(&Note::Begun), begins, "{reason}");
    }
}

#[test]
fn a_pod_that_is_over_can_be_forgotten() {
    let mut life = Life::new("completions: 2\n  parallelism: 1");
    assert_eq!(life.step(), "0.0");
    let uid = life.record().uid(&life.job.name, 0, 0);
    let mut record = life.record().clone();
    assert!(!record.forget(&life.job.name, &uid), "it runs");
    life.seen.insert(uid.clone(), Seen::Succeeded);
    assert_eq!(life.step(), "1.0");
    let mut record = life.record().clone();
    let counted = record.succeeded.clone();
    assert!(record.forget(&life.job.name, &uid));
    // embedded 55
    assert_eq!((record.over.len(), &record.succeeded), (0, &counted));
    life.record = Some(record);
    assert_eq!(life.step(), "1.0", "what is done is not done again");
}
