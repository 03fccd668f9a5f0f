//! What an edit of a static pod does: the newest revision is prepared while the one before runs on,
//! takes its place, and is judged; one that fails is replaced by the last healthy one.
//!
//! ```text
//! edit ─► prepare (old runs) ─► switch ─► judge ─► healthy
//!              │ can't                       │ failed
//!              ▼                             ▼
//!         held: old runs on             restore: the healthy revision runs
//! ```
//!
//! A *revision* is what a manifest wants of one pod, identified by the pod's UID, a hash of what its
//! author wrote. Decisions take the [`History`] of one pod's revisions and what is seen of the pod,
//! and return a new history; the caller keeps it on disk.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{Code, Diagnostic, Pod, PodUid, Timestamp, core};
use crate::desired::{Origin, SourcePod};

mod health;
mod settings;
#[cfg(test)]
mod tests;

pub use health::{Health, assess};
pub use settings::{ANNOTATION_PREFIX, Settings, is_rollout_annotation};

/// Most revisions of a pod that are kept.
pub const REVISIONS_MAX: usize = 10;

/// Why a revision is not run, or no longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// In one word, as in a pod's status.
    pub reason: Arc<str>,
    /// In a sentence.
    pub message: Arc<str>,
}

impl Cause {
    /// A cause.
    pub fn new(reason: impl Into<Arc<str>>, message: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// What a revision came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It was not run yet, or its judgement is under way.
    Open,
    /// It passed its judgement.
    Healthy,
    /// It has done its work and ended well. It is never gone back to: that would do the work again.
    Ended,
    /// It failed its judgement.
    Failed(Cause),
}

/// One revision of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Where it came from.
    pub origin: Origin,
    /// What it came to.
    pub outcome: Outcome,
}

impl Revision {
    /// Its UID.
    #[must_use]
    pub fn uid(&self) -> PodUid {
        PodUid::of(&self.pod)
    }
}

/// The revisions of one pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// The revisions known, the newest last.
    pub revisions: Vec<Revision>,
    /// The one that is run, and since when.
    pub current: Option<(PodUid, Timestamp)>,
    /// The one that its source wants.
    pub newest: Option<PodUid>,
}

impl History {
    /// A revision by its UID.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&Revision> {
        self.revisions
            .iter()
            .find(|revision| revision.uid() == *uid)
    }

    /// The revision that is run.
    #[must_use]
    pub fn current(&self) -> Option<&Revision> {
        self.current.as_ref().and_then(|(uid, _)| self.get(uid))
    }

    /// The healthy revision that ran last, but for `uid`: the target of a restore.
    fn last_healthy(&self, uid: &PodUid) -> Option<PodUid> {
        let mut newest_first = self.revisions.iter().rev();
        let healthy = |revision: &&Revision| revision.outcome == Outcome::Healthy;
        let found = newest_first.find(|revision| healthy(revision) && revision.uid() != *uid);
        found.map(Revision::uid)
    }

    /// Takes in what the source wants now. An edit is a new attempt, also of what failed before.
    fn take_newest(&mut self, pod: &SourcePod) {
        let uid = pod.uid();
        let edited = self.newest.as_ref() != Some(&uid);
        let known = self.revisions.iter().position(|known| known.uid() == uid);
        let known = known.map(|at| self.revisions.remove(at).outcome);
        let outcome = match known {
            Some(Outcome::Failed(_)) if edited => Outcome::Open,
            Some(outcome) => outcome,
            None => Outcome::Open,
        };
        self.revisions.push(Revision {
            pod: Arc::clone(&pod.pod),
            origin: pod.origin.clone(),
            outcome,
        });
        self.newest = Some(uid);
    }

    fn switch(&mut self, uid: &PodUid, now: Timestamp) {
        self.current = Some((uid.clone(), now));
    }

    fn set_outcome(&mut self, uid: &PodUid, outcome: Outcome) {
        let mut revisions = self.revisions.iter_mut();
        if let Some(revision) = revisions.find(|revision| revision.uid() == *uid) {
            revision.outcome = outcome;
        }
    }

    /// Forgets the oldest revisions that nobody needs.
    fn trim(&mut self) {
        let healthy = self.newest.as_ref().and_then(|uid| self.last_healthy(uid));
        let current = self.current.as_ref().map(|(uid, _)| uid.clone());
        while self.revisions.len() > REVISIONS_MAX {
            let unneeded = |revision: &Revision| {
                let uid = Some(revision.uid());
                uid != healthy && uid != current && uid != self.newest
            };
            let Some(at) = self.revisions.iter().position(unneeded) else {
                return;
            };
            self.revisions.remove(at);
        }
    }
}

/// What is known of a revision's preparation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preparation {
    /// It is under way, or was not begun.
    UnderWay,
    /// It can't be prepared, for now.
    Failed(Cause),
    /// It can be started.
    Done,
}

/// Everything that is decided on.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// What its source wants.
    pub wanted: &'a SourcePod,
    /// Whether anything of the current revision runs.
    pub runs: bool,
    /// The status of the current revision, once there is one.
    pub status: Option<&'a core::PodStatus>,
    /// How far the newest revision is prepared.
    pub preparation: &'a Preparation,
    /// Whether a failed revision is replaced by the healthy one, unless the pod says otherwise.
    pub restore: bool,
    /// The present time.
    pub now: Timestamp,
}

/// Where a pod's newest revision is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It runs, and nothing is to be judged any more.
    Settled,
    /// It is being prepared; the one before runs on.
    Preparing,
    /// It can't be prepared; the one before runs on.
    Held(Cause),
    /// It runs, and is judged.
    Judging,
    /// It failed its judgement; the last healthy one runs.
    Restored(Cause),
}

/// What happened by a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The newest revision takes the place of another.
    Switched,
    /// The newest revision passed its judgement.
    Succeeded,
    /// The newest revision failed, and the healthy one takes its place.
    Restored,
}

/// What to do about one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The revisions, as they are from now on.
    pub history: History,
    /// Where the newest one is.
    pub phase: Phase,
    /// What has changed, if anything.
    pub change: Option<Change>,
    /// When to decide again though nothing happens.
    pub look_again: Option<Duration>,
}

impl Decision {
    /// The pod to run: the newest revision, or the one that runs in its place, with what is wrong.
    #[must_use]
    pub fn pod(&self, wanted: &SourcePod) -> SourcePod {
        let current = self.history.current();
        let Some(revision) = current.filter(|revision| revision.uid() != wanted.uid()) else {
            return wanted.clone();
        };
        let problem = problem(wanted, &self.phase);
        SourcePod {
            pod: Arc::clone(&revision.pod),
            origin: wanted.origin.clone(),
            held: problem.is_some(),
            problems: problem.into_iter().chain(wanted.problems.clone()).collect(),
        }
    }
}

/// What people are told of a newest revision that isn't run.
fn problem(wanted: &SourcePod, phase: &Phase) -> Option<Diagnostic> {
    let (words, cause, help) = match phase {
        Phase::Settled | Phase::Preparing | Phase::Judging => return None,
        Phase::Held(cause) => (
            "can't be started",
            cause,
            "mend the manifest, or what it needs: it is tried again by itself",
        ),
        Phase::Restored(cause) => (
            "failed",
            cause,
            "mend the manifest: this version is not tried again until the file changes",
        ),
    };
    let name = wanted.full_name();
    let Cause { reason, message } = cause;
    let message =
        format!("the new version of pod {name} {words}, the one before runs: {reason}: {message}");
    let origin = &wanted.origin;
    let mut problem =
        Diagnostic::error(Code::RolloutFailed, origin.location.as_str(), message).help(help);
    problem.position = origin.position;
    Some(problem)
}

/// Decides which revision of a static pod runs.
///
/// The newest one takes the place of another only once it is prepared; while it can't be, the other
/// runs on. It is judged where a healthy one is known to go back to. What failed is not tried again
/// until its source wants something else; nothing is judged after a restore.
#[must_use]
pub fn decide(history: &History, input: &Input<'_>) -> Decision {
    let (wanted, now) = (input.wanted, input.now);
    let uid = wanted.uid();
    let mut history = history.clone();
    history.take_newest(wanted);
    let current = history.current.clone();
    let (phase, change, look_again) = match (&current, history.current()) {
        (Some((current, since)), Some(_)) if *current == uid => judge(&mut history, input, *since),
        (Some(_), Some(running)) => {
            // What neither runs nor ever did well is not worth waiting for.
            let did_well = matches!(running.outcome, Outcome::Healthy | Outcome::Ended);
            let worth_keeping = input.runs || did_well;
            instead_of(worth_keeping, &mut history, input)
        }
        // What runs is not known any more, or nothing does.
        _ => {
            let change = current.map(|_| Change::Switched);
            history.switch(&uid, now);
            let (phase, _, look_again) = judge(&mut history, input, now);
            (phase, change, look_again)
        }
    };
    history.trim();
    Decision {
        history,
        phase,
        change,
        look_again,
    }
}

type Step = (Phase, Option<Change>, Option<Duration>);

/// Another revision than the newest one runs.
fn instead_of(worth_keeping: bool, history: &mut History, input: &Input<'_>) -> Step {
    let uid = input.wanted.uid();
    let outcome = history.get(&uid).map(|revision| revision.outcome.clone());
    if let Some(Outcome::Failed(cause)) = outcome {
        return (Phase::Restored(cause), None, None);
    }
    match input.preparation {
        Preparation::Failed(cause) if worth_keeping => (Phase::Held(cause.clone()), None, None),
        Preparation::UnderWay if worth_keeping => (Phase::Preparing, None, None),
        _ => {
            history.switch(&uid, input.now);
            // A revision that passed its judgement before has nothing to prove.
            let phase = match outcome {
                Some(Outcome::Healthy | Outcome::Ended) => Phase::Settled,
                _ => Phase::Judging,
            };
            (phase, Some(Change::Switched), Some(Duration::ZERO))
        }
    }
}

/// The newest revision runs.
fn judge(history: &mut History, input: &Input<'_>, since: Timestamp) -> Step {
    let uid = input.wanted.uid();
    let settled = (Phase::Settled, None, None);
    let open = history.get(&uid).map(|revision| &revision.outcome) == Some(&Outcome::Open);
    let (true, Some(status)) = (open, input.status) else {
        return if open {
            (Phase::Judging, None, None)
        } else {
            settled
        };
    };
    let pod = &input.wanted.pod;
    let settings = Settings::of(pod);
    match assess(pod, status, &settings, since, input.now) {
        Health::Healthy => {
            history.set_outcome(&uid, Outcome::Healthy);
            (Phase::Settled, Some(Change::Succeeded), None)
        }
        Health::Ended => {
            history.set_outcome(&uid, Outcome::Ended);
            (Phase::Settled, Some(Change::Succeeded), None)
        }
        Health::Open(look_again) => (Phase::Judging, None, look_again),
        Health::Failed(cause) => {
            let target = history.last_healthy(&uid);
            let restore = settings.restore.unwrap_or(input.restore);
            let Some(target) = target.filter(|_| restore) else {
                // It may still come right; there is nothing to go back to.
                return (Phase::Judging, None, None);
            };
            history.set_outcome(&uid, Outcome::Failed(cause.clone()));
            history.switch(&target, input.now);
            (Phase::Restored(cause), Some(Change::Restored), None)
        }
    }
}
