//! The next record of a Job.
//!
//! Upstream: `syncJob`, `manageJob` and `getNextAttempt…` of `pkg/controller/job`.

use std::time::Duration;

use super::rules::{FailureAction, FailureRule, FailureWhen};
use super::seen::Failure;
use super::{End, Job, JobRecord, Seen, Wait};
use crate::api::{PodUid, Timestamp};
use crate::clock::elapsed;

/// First and longest pause between a failed pod and the next one, as upstream.
const BACKOFF_FIRST: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_mins(6);

/// Under which index the failures are counted that concern all indexes together.
const ALL: u32 = u32::MAX;

/// The input of a decision about a Job.
pub struct Input<'a> {
    /// The Job, as its document describes it now.
    pub job: &'a Job,
    /// Its record on disk; none for a new Job.
    pub record: Option<&'a JobRecord>,
    /// The observed state of a pod.
    pub seen: &'a dyn Fn(&PodUid) -> Seen,
    /// Whether containers of a pod that had to be stopped may still run, or be started.
    pub may_run: &'a dyn Fn(&PodUid) -> bool,
    /// Whether a user orders a new run from its beginning.
    pub ordered: bool,
    /// Whether pods may be started, because the running ones are known.
    pub may_start: bool,
    /// The present time.
    pub now: Timestamp,
}

/// The decision about a Job.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Its record from now on.
    pub record: JobRecord,
    /// The news, for users.
    pub notes: Vec<Note>,
    /// When to decide again though nothing happens; pods that are being stopped are checked anyway.
    pub look_again: Option<Duration>,
}

impl Decision {
    /// Why unfinished pods of the Job are stopped.
    pub fn stop_reason(&self) -> String {
        if let Some(end) = &self.record.end {
            format!("{}: {}", end.reason, end.message)
        } else if self.notes.contains(&Note::Suspended) {
            "the Job is suspended".to_owned()
        } else {
            "more pods run than parallelism allows".to_owned()
        }
    }
}

/// Something that happened to a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// It was begun.
    Begun,
    /// A pod was started: its index and attempt.
    Started(u32, u32),
    /// A pod succeeded.
    Succeeded(u32, u32),
    /// A pod failed.
    Failed(u32, u32),
    /// An unfinished pod was stopped: its index and attempt.
    Stopped(u32, u32),
    /// Its pods were stopped, since it is suspended.
    Suspended,
    /// It continues after it was suspended.
    Resumed,
    /// It has ended.
    Ended(End),
}

/// Decides the next state of a Job. Reads nothing but its argument.
pub fn decide(input: &Input<'_>) -> Decision {
    let (name, content) = (&input.job.name, &input.job.content);
    let waited = input.record.is_some_and(|record| record.awaited() > 0);
    let before = input.record.cloned().map(|mut record| {
        // Before others are added, whose workers don't know of it yet.
        record.let_go(input.may_run);
        record
    });
    let is_known = |record: &JobRecord| record.content == *content && !input.ordered;
    let (record, notes) = match before {
        Some(record) if is_known(&record) => (record, Vec::new()),
        Some(record) => (
            record.successor(name, content, input.now),
            vec![Note::Begun],
        ),
        None => (JobRecord::new(content, input.now), vec![Note::Begun]),
    };
    let mut draft = Draft {
        input,
        record,
        waited,
        notes,
        look_again: None,
    };
    draft.decide();
    Decision {
        record: draft.record,
        notes: draft.notes,
        look_again: draft.look_again,
    }
}

struct Draft<'a> {
    input: &'a Input<'a>,
    record: JobRecord,
    /// Whether it waited for pods of the run before, so that it has not started yet.
    waited: bool,
    notes: Vec<Note>,
    look_again: Option<Duration>,
}

impl Draft<'_> {
    fn decide(&mut self) {
        if self.record.end.is_none() {
            self.mend_clock();
            let ended = self.take_in();
            if let Some((complete, reason, message)) = ended.or_else(|| self.verdict()) {
                self.end(complete, reason, message);
            }
        }
        if self.record.end.is_some() {
            return self.expire();
        }
        if self.input.job.rules.suspend {
            return self.suspend();
        }
        if self.record.started.is_none() {
            if self.record.awaited() > 0 {
                return;
            }
            self.record.started = Some(self.input.now);
            if !self.waited && !self.notes.contains(&Note::Begun) {
                self.notes.push(Note::Resumed);
            }
            // A deadline is counted from here.
            self.look_at_deadline();
        }
        self.shrink();
        if self.input.may_start {
            self.fill();
        }
    }

    /// After the clock was set back, no pod waits until it has caught up. When the Job was started stays
    /// as it is: the clock may be wrong now, and the years until it is right again are not the Job's.
    fn mend_clock(&mut self) {
        let now = self.input.now;
        for wait in self.record.waits.values_mut() {
            wait.last = wait.last.min(now);
        }
    }

    /// Processes the outcome of the pods that should run; returns the Job's end if it follows
    /// immediately.
    fn take_in(&mut self) -> Option<(bool, &'static str, String)> {
        let job = self.input.job;
        let mut ended = None;
        let active: Vec<(u32, u32)> = self.record.active.clone().into_iter().collect();
        for (index, attempt) in active {
            let uid = self.record.uid(&job.name, index, attempt);
            match (self.input.seen)(&uid) {
                Seen::Nothing | Seen::Runs { .. } => {}
                Seen::Succeeded => {
                    self.record.close(index, true);
                    self.record.succeeded.insert(index);
                    self.record.waits.remove(&self.wait_of(index));
                    self.notes.push(Note::Succeeded(index, attempt));
                }
                Seen::Failed(failure) => {
                    self.record.close(index, false);
                    self.notes.push(Note::Failed(index, attempt));
                    let end = self.count(index, &failure);
                    ended = ended.or(end);
                }
            }
        }
        ended
    }

    /// Counts a failed pod as the document's rules say. The next pod of its index waits after each,
    /// even after one that doesn't count.
    ///
    /// Upstream: `newBackoffRecord` of `pkg/controller/job/backoff_utils.go`, which has the failures that
    /// a policy ignores, too.
    fn count(&mut self, index: u32, failure: &Failure) -> Option<(bool, &'static str, String)> {
        self.wait_after(index, failure);
        let rules = &self.input.job.rules;
        let found = rules.failure_rules.iter().enumerate();
        let mut found =
            found.filter_map(|(number, rule)| Some((number, rule, met(rule, failure)?)));
        let mut ended = None;
        match found.next() {
            Some((_, rule, _)) if rule.action == FailureAction::Ignore => return None,
            Some((number, rule, why)) if rule.action == FailureAction::FailJob => {
                let message = format!("{why} matching FailJob rule at index {number}");
                ended = Some((false, "PodFailurePolicy", message));
            }
            Some((_, rule, _)) if rule.action == FailureAction::FailIndex => {
                self.record.failed.insert(index);
            }
            _ => {}
        }
        self.record.failures = self.record.failures.saturating_add(1);
        let of_index = self.record.index_failures.entry(index).or_default();
        *of_index = of_index.saturating_add(1);
        let of_index = *of_index;
        if rules
            .backoff_limit_per_index
            .is_some_and(|limit| of_index > limit)
        {
            self.record.failed.insert(index);
        }
        ended
    }

    /// Notes a failure that the next attempt waits for.
    fn wait_after(&mut self, index: u32, failure: &Failure) {
        let now = self.input.now;
        let at = failure.at.map_or(now, |at| at.min(now));
        let wait = self.wait_of(index);
        let wait = self.record.waits.entry(wait).or_insert(Wait {
            failures: 0,
            last: at,
        });
        wait.failures = wait.failures.saturating_add(1);
        wait.last = wait.last.max(at);
    }

    /// Where the failures are kept that an index waits for.
    fn wait_of(&self, index: u32) -> u32 {
        let per_index = self.input.job.rules.backoff_limit_per_index;
        per_index.map_or(ALL, |_| index)
    }

    /// The end of the Job, if it has reached it.
    fn verdict(&mut self) -> Option<(bool, &'static str, String)> {
        let (rules, record) = (&self.input.job.rules, &self.record);
        let fail = |reason, words: &str| Some((false, reason, words.to_owned()));
        if record.failures > rules.backoff_limit || self.restarted_too_often() {
            let words = "Job has reached the specified backoff limit";
            return fail("BackoffLimitExceeded", words);
        }
        if self.look_at_deadline() {
            let words = "Job was active longer than specified deadline";
            return fail("DeadlineExceeded", words);
        }
        let record = &self.record;
        if rules
            .max_failed_indexes
            .is_some_and(|most| record.failed.len() > most)
        {
            let words = "Job has exceeded the specified maximal number of failed indexes";
            return fail("MaxFailedIndexesExceeded", words);
        }
        let mut success = rules.success_rules.iter();
        if let Some(number) = success.position(|rule| rule.is_met(&record.succeeded)) {
            let message = format!("Matched rules at index {number}");
            return Some((true, "SuccessPolicy", message));
        }
        let done = match rules.completions {
            Some(wanted) => record.succeeded.len() + record.failed.len() >= wanted,
            None => !record.succeeded.is_empty() && record.active.is_empty(),
        };
        if !done {
            return None;
        }
        if !record.failed.is_empty() {
            return fail("FailedIndexes", "Job has failed indexes");
        }
        let message = "Reached expected number of succeeded pods".to_owned();
        Some((true, "CompletionsReached", message))
    }

    /// Whether the containers of pods that run were restarted as often as pods may fail.
    ///
    /// Upstream: `pastBackoffLimitOnFailure`.
    fn restarted_too_often(&self) -> bool {
        let rules = &self.input.job.rules;
        if !rules.restarts {
            return false;
        }
        let restarts = self.record.active.iter().map(|(index, attempt)| {
            let uid = self.record.uid(&self.input.job.name, *index, *attempt);
            match (self.input.seen)(&uid) {
                Seen::Runs { restarts } => restarts,
                Seen::Nothing | Seen::Succeeded | Seen::Failed(_) => 0,
            }
        });
        let restarts = restarts.fold(0, u32::saturating_add);
        restarts > 0 && restarts >= rules.backoff_limit
    }

    /// Whether the Job exceeds its deadline. Otherwise sets the time of the next check to the deadline.
    fn look_at_deadline(&mut self) -> bool {
        let deadline = self.input.job.rules.active_deadline;
        let Some((started, seconds)) = self.record.started.zip(deadline) else {
            return false;
        };
        let left = Duration::from_secs(seconds).saturating_sub(elapsed(started, self.input.now));
        if left.is_zero() {
            return true;
        }
        self.look_in(left);
        false
    }

    fn end(&mut self, complete: bool, reason: &str, message: String) {
        let active: Vec<u32> = self.record.active.keys().copied().collect();
        for index in active {
            if complete {
                self.drop(index);
            } else {
                self.record.stop(&self.input.job.name, index);
            }
        }
        let end = End {
            complete,
            reason: reason.to_owned(),
            message,
            at: self.input.now,
        };
        self.record.waits.clear();
        self.notes.push(Note::Ended(end.clone()));
        self.record.end = Some(end);
    }

    /// The remains of an ended Job stay as long as its document says.
    fn expire(&mut self) {
        let Some(end) = &self.record.end else {
            return;
        };
        let Some(seconds) = self.input.job.rules.ttl else {
            return;
        };
        if self.record.over.is_empty() {
            return;
        }
        let left = Duration::from_secs(seconds).saturating_sub(elapsed(end.at, self.input.now));
        if left.is_zero() {
            self.record.over.clear();
        } else {
            self.look_in(left);
        }
    }

    /// Stops all pods without counting them.
    fn suspend(&mut self) {
        let active: Vec<u32> = self.record.active.keys().copied().collect();
        for index in active {
            self.drop(index);
        }
        if self.record.started.take().is_some() {
            self.notes.push(Note::Suspended);
        }
        // Deadlines and pauses restart.
        self.record.waits.clear();
        self.look_again = None;
    }

    /// Stops pods that are more than may run at a time, the last ones first.
    fn shrink(&mut self) {
        let most = usize::try_from(self.input.job.rules.parallelism).unwrap_or(usize::MAX);
        while self.record.active.len() > most {
            let Some(index) = self.record.active.keys().next_back().copied() else {
                return;
            };
            self.drop(index);
        }
    }

    /// Stops a pod without counting it.
    fn drop(&mut self, index: u32) {
        if let Some(attempt) = self.record.active.get(&index) {
            self.notes.push(Note::Stopped(index, *attempt));
        }
        self.record.drop(&self.input.job.name, index);
    }

    /// Starts as many pods as may run, those with the lowest indexes first. A pod that is being stopped
    /// counts until it has stopped: its successor, or the next run, could do the same work at the same
    /// time.
    ///
    /// Upstream: `podReplacementPolicy: Failed` of `manageJob`.
    fn fill(&mut self) {
        let rules = &self.input.job.rules;
        if self.record.awaited() > 0 {
            return;
        }
        let most = usize::try_from(rules.parallelism).unwrap_or(usize::MAX);
        let most = most.saturating_sub(self.record.leaving.len());
        // For pods without an index, the first success means that nothing remains to be done.
        if rules.completions.is_none() && !self.record.succeeded.is_empty() {
            return;
        }
        let indexes = 0..rules.completions.unwrap_or(rules.parallelism);
        for index in indexes {
            if self.record.active.len() >= most {
                return;
            }
            let record = &self.record;
            let is_done = record.succeeded.contains(index) || record.failed.contains(index);
            if is_done || record.active.contains_key(&index) || record.is_leaving(index) {
                continue;
            }
            if let Some(left) = self.pause(index) {
                self.look_in(left);
                if rules.backoff_limit_per_index.is_none() {
                    return;
                }
                continue;
            }
            let attempt = self.record.attempt(index);
            self.record.active.insert(index, attempt);
            self.notes.push(Note::Started(index, attempt));
        }
    }

    /// The wait of an index after failures: 10 s, twice as long after each, at most 6 min.
    fn pause(&self, index: u32) -> Option<Duration> {
        let wait = self.record.waits.get(&self.wait_of(index))?;
        let doubled = 2_u32.saturating_pow(wait.failures.saturating_sub(1));
        let pause = BACKOFF_FIRST.saturating_mul(doubled).min(BACKOFF_MAX);
        let left = pause.saturating_sub(elapsed(wait.last, self.input.now));
        (!left.is_zero()).then_some(left)
    }

    fn look_in(&mut self, wait: Duration) {
        self.look_again = Some(self.look_again.map_or(wait, |known| known.min(wait)));
    }
}

/// Whether a rule is about a failed pod, and why.
///
/// Upstream: `matchPodFailurePolicy` of `pkg/controller/job/pod_failure_policy.go`.
fn met(rule: &FailureRule, failure: &Failure) -> Option<String> {
    match &rule.when {
        FailureWhen::ExitCode {
            container,
            values,
            others,
        } => {
            let mut exits = failure.exits.iter();
            let (name, code) = exits.find(|(name, code)| {
                let is_meant = container.as_ref().is_none_or(|container| container == name);
                is_meant && values.contains(code) != *others
            })?;
            Some(format!("Container {name} failed with exit code {code}"))
        }
        FailureWhen::Conditions(patterns) => {
            let mut patterns = patterns.iter();
            let (kind, _) = patterns.find(|pattern| failure.conditions.contains(pattern))?;
            Some(format!("A pod has condition {kind}"))
        }
    }
}
