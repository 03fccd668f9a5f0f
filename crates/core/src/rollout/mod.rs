//! Rollouts: the newest revision of a static pod is prepared while the previous one runs, replaces it,
//! and is judged; one that fails is replaced by the last healthy one.
//!
//! ```text
//! edit ─► prepare (old runs) ─► switch ─► judge ─► healthy
//!              │ can't                       │ failed
//!              ▼                             ▼
//!         held: old runs on             restore: the healthy revision runs
//! ```
//!
//! Under `StartFirst` the newest revision is judged while it runs beside the previous one, which it
//! replaces once it is healthy; if it fails, it is stopped, and nothing else changes.
//!
//! A *revision* is one version of a pod's manifest, identified by the pod's UID, a hash of its author's
//! text. Decisions take the [`History`] of one pod's revisions and the observed state of the pod, and
//! return a new history; the caller stores it on disk.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::admit::REJECTED;
use crate::api::{Pod, PodUid, Timestamp, core};
use crate::desired::SourcePod;
use crate::status::trouble::Trouble;

mod beside;
mod changes;
mod circle;
mod command;
mod gap;
pub mod group;
mod health;
mod held;
mod history;
mod life;
mod report;
mod settings;
#[cfg(test)]
mod tests;

pub use beside::{
    HAND_OVER_FAILED, admitted_pod, beside_pod, beside_refused, is_beside, not_handed_over,
    without_host_ports,
};
pub use changes::{Version, changed_fields, compared_fields};
pub use circle::{Swapped, all_move, circles, next_version, swap_refused, together};
pub use command::{Command, Refused};
pub use gap::Gap;
pub use group::{Turn, UpdatePolicy, Updates};
pub use health::{Health, Seen, assess, progress_deadline, ready_since};
pub use held::{Hold, Refusal};
pub use history::{GONE_KEPT, History, Outcome, REVISIONS_MAX, Revision};
pub use life::Life;
pub use report::problem_lines;
pub use settings::{
    ANNOTATION_PREFIX, MIN_READY_SECONDS, PROGRESS_DEADLINE_SECONDS, ROLLOUT, ROLLOUT_ANNOTATIONS,
    RolloutStrategy, Settings, is_rollout_annotation,
};

/// Interval of checks of a revision that the node has refused.
const REJECTED_LOOK: Duration = Duration::from_secs(10);

/// Why a revision does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// One word, as in a pod's status.
    pub reason: Arc<str>,
    /// One sentence.
    pub message: Arc<str>,
    /// The field of the pod that caused it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Arc<str>>,
}

impl Cause {
    /// A cause.
    pub fn new(reason: impl Into<Arc<str>>, message: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
            field: None,
        }
    }

    /// The same, about that field.
    #[must_use]
    pub fn of_field(self, field: Option<impl Into<Arc<str>>>) -> Self {
        let field = field.map(Into::into);
        Self { field, ..self }
    }
}

/// The state of a revision's preparation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preparation {
    /// It is in progress, or was not started.
    UnderWay,
    /// It can't be prepared, for now.
    Failed(Cause),
    /// It can be started.
    Done,
}

/// The observed state of a revision that was started.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// Its status, once there is one.
    pub status: Option<&'a core::PodStatus>,
    /// Why its liveness or startup probe last stopped a container, if it did.
    pub failed_probe: Option<&'a str>,
    /// The failures of its probes and hooks, oldest first.
    pub troubles: &'a [Trouble],
    /// The earliest start of its deadline: before, the agent couldn't start it. Not in the future.
    pub counts_from: Timestamp,
}

/// The input of [`decide`].
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The pod that its source wants.
    pub wanted: &'a SourcePod,
    /// Whether anything of the current revision runs.
    pub runs: bool,
    /// The observed state of the current revision.
    pub current: View<'a>,
    /// The observed state of the revision that runs beside the current one.
    pub beside: View<'a>,
    /// How far the newest revision is prepared.
    pub preparation: &'a Preparation,
    /// Whether the other pods of its workload allow its update now.
    pub turn: &'a Turn,
    /// Whether a failed revision is replaced by the healthy one, unless the pod forbids that.
    pub restore: bool,
    /// Why the healthy one could not replace the current one, if another pod has its host port.
    pub restore_waits: Option<&'a Cause>,
    /// Whether the Engine is away: nothing is judged meanwhile, because nothing can become ready.
    pub engine_away: bool,
    /// The present time.
    pub now: Timestamp,
}

/// Progress of the target revision: the newest one, or the one named by an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It runs, and doesn't have to be judged any more.
    Settled,
    /// It is being prepared; the previous one keeps running.
    Preparing,
    /// It can't be prepared; the previous one keeps running.
    Held(Cause),
    /// Other pods of its workload are updated first; the previous revision keeps running.
    Waiting(Cause),
    /// Rollouts are paused; the previous one keeps running.
    Paused,
    /// It runs, and is judged.
    Judging,
    /// It replaced another, failed, and keeps running: no healthy one is known, another pod has its
    /// host port now, or a restore is declined.
    Failed(Cause),
    /// It is the pod's first revision, and has failed so far. It keeps running, because there is no
    /// older one.
    FirstFailed(Cause),
    /// It failed its judgement; the last healthy one runs.
    Restored(Cause),
}

/// The change that a decision makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The newest revision starts beside another.
    StartedBeside,
    /// The newest revision was judged healthy beside another, and replaces it.
    HandedOver,
    /// The newest revision takes the place of another.
    Switched,
    /// The newest revision passed its judgement.
    Succeeded,
    /// The newest revision failed, or the node has refused it, and the healthy one replaces it.
    Restored,
    /// The current revision, which is no longer the newest, failed, or the node has refused it, and the
    /// healthy one replaces it.
    FellBack,
}

/// A decision about one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The revisions, as they are from now on.
    pub history: History,
    /// Progress of the target revision.
    pub phase: Phase,
    /// The change, if there is one.
    pub change: Option<Change>,
    /// When to decide again though nothing happens.
    pub look_again: Option<Duration>,
}

/// Decides which revision of a static pod runs.
///
/// The newest one, or the one selected by an undo, replaces another only once it is prepared; while it
/// can't be, or rollouts are paused, the other keeps running. It is judged if there is a healthy one to
/// roll back to; under `StartFirst`, before it replaces the other. A running revision is still judged
/// after a newer edit, until that edit replaces it. A failed revision is not retried until its source
/// changes; nothing is judged after a restore. A revision that the node has refused never ran: the
/// healthy one replaces it, and it is retried as soon as the node would accept it, or after a while.
pub fn decide(history: &History, input: &Input<'_>) -> Decision {
    let now = input.now;
    let mut history = history.clone();
    history.take_clock(now);
    take_end(&mut history, input);
    history.take_newest(input.wanted, now);
    let (uid, pod) = match history.target() {
        Some(target) => (target.uid(), Arc::clone(&target.pod)),
        None => (input.wanted.uid(), Arc::clone(&input.wanted.pod)),
    };
    let beside = history.beside_since(&uid);
    let current = history.current.clone();
    let (phase, change, look_again) = match (&current, history.current()) {
        (Some((current, since)), Some(_)) if *current == uid => {
            judge(&mut history, &uid, &pod, input, *since)
        }
        (Some(_), Some(running)) => {
            // What neither runs nor ever did well is not worth waiting for.
            let did_well = matches!(running.outcome, Outcome::Healthy | Outcome::Ended);
            let worth_keeping = input.runs || did_well;
            let step = match beside {
                Some(since) => judge_beside(&mut history, &uid, &pod, input, since),
                None => instead_of(worth_keeping, &mut history, &uid, &pod, input),
            };
            judge_current(&mut history, step, input)
        }
        // What runs is not known any more, or nothing does.
        _ => {
            let change = current.map(|_| Change::Switched);
            history.switch(&uid, now);
            let (phase, _, look_again) = judge(&mut history, &uid, &pod, input, now);
            (phase, change, look_again)
        }
    };
    let left = history.take_hold(&uid, &phase, progress_deadline(&pod), now);
    history.trim();
    Decision {
        history,
        phase,
        change,
        look_again: look_again.into_iter().chain(left).min(),
    }
}

type Step = (Phase, Option<Change>, Option<Duration>);

/// Records that the current revision, which was judged healthy while it ran, has completed its work. An
/// edit may replace it in the same decision, and must not roll back to it.
fn take_end(history: &mut History, input: &Input<'_>) {
    let looked_at = !history.stopped && !input.engine_away;
    let status = input.current.status.filter(|_| looked_at);
    let has_ended = status.is_some_and(|status| is_over(status) && !history.is_of_replaced(status));
    let current = history.current().filter(|_| has_ended);
    let healthy = current.filter(|revision| revision.outcome == Outcome::Healthy);
    if let Some(uid) = healthy.map(Revision::uid) {
        history.set_outcome(&uid, Outcome::Ended);
    }
}

/// Whether a pod has ended well.
fn is_over(status: &core::PodStatus) -> bool {
    status.phase.as_deref() == Some("Succeeded")
}

/// Handles a target with UID `uid` that is not the running revision.
fn instead_of(
    worth_keeping: bool,
    history: &mut History,
    uid: &PodUid,
    pod: &Pod,
    input: &Input<'_>,
) -> Step {
    let outcome = history.get(uid).map(|revision| revision.outcome.clone());
    if let Some(Outcome::Failed(cause)) = outcome {
        return (Phase::Restored(cause), None, None);
    }
    match input.turn {
        _ if history.paused => return (Phase::Paused, None, None),
        Turn::Paused => return (Phase::Paused, None, None),
        Turn::Waits(cause) => return (Phase::Waiting(cause.clone()), None, None),
        Turn::Now => {}
    }
    let refusal = history.refusal(uid, input.preparation, input.now);
    if let Some((cause, left)) = refusal.filter(|_| worth_keeping) {
        return (Phase::Held(cause), None, Some(left));
    }
    match input.preparation {
        Preparation::Failed(cause) if worth_keeping => (Phase::Held(cause.clone()), None, None),
        Preparation::UnderWay if worth_keeping => (Phase::Preparing, None, None),
        _ if input.runs && Settings::of(pod).strategy == RolloutStrategy::StartFirst => {
            history.beside = Some((uid.clone(), input.now));
            (
                Phase::Judging,
                Some(Change::StartedBeside),
                Some(Duration::ZERO),
            )
        }
        _ => {
            history.switch(uid, input.now);
            // A revision that passed its judgement before has nothing to prove.
            let phase = match outcome {
                Some(Outcome::Healthy) => Phase::Settled,
                _ => Phase::Judging,
            };
            (phase, Some(Change::Switched), Some(Duration::ZERO))
        }
    }
}

/// Judges the target, `pod` with UID `uid`, which runs beside the current revision. The current one has
/// never stopped, so it is not judged.
fn judge_beside(
    history: &mut History,
    uid: &PodUid,
    pod: &Pod,
    input: &Input<'_>,
    since: Timestamp,
) -> Step {
    let looked_at = !history.stopped && !input.engine_away;
    let Some(status) = input.beside.status.filter(|_| looked_at) else {
        return (Phase::Judging, None, None);
    };
    if let Some(cause) = rejected(status) {
        // It never ran. The worker starts it once there is room.
        return (Phase::Held(cause), None, Some(REJECTED_LOOK));
    }
    let life = history.live(uid, since, status, input.now);
    let seen = Seen {
        status,
        failed_probe: input.beside.failed_probe,
        troubles: input.beside.troubles,
        life: &life,
        counts_from: input.beside.counts_from,
        now: input.now,
    };
    let outcome = match assess(pod, &seen, &Settings::of(pod)) {
        Health::Open(look_again) => return (Phase::Judging, None, look_again),
        Health::Failed(cause) => {
            history.set_outcome(uid, Outcome::Failed(cause.clone()));
            history.beside = None;
            let look_again = Some(Duration::ZERO);
            return (Phase::Restored(cause), Some(Change::Restored), look_again);
        }
        Health::Healthy => Outcome::Healthy,
        Health::Ended => Outcome::Ended,
    };
    history.switch(uid, input.now);
    history.set_outcome(uid, outcome);
    (Phase::Settled, Some(Change::HandedOver), None)
}

/// Why the node has refused a pod, which therefore never ran, if it has.
pub fn rejected(status: &core::PodStatus) -> Option<Cause> {
    let failed = status.phase.as_deref() == Some("Failed");
    let message = status.message.as_deref().filter(|_| failed)?;
    let why = message.strip_prefix(REJECTED)?;
    let reason = status.reason.as_deref().unwrap_or("Rejected");
    Some(Cause::new(reason, why))
}

/// Judges the current revision if it keeps running instead of the target, because the edit to the
/// target came before its verdict. `step` is the decision about the target.
fn judge_current(history: &mut History, step: Step, input: &Input<'_>) -> Step {
    let (phase, None, look_again) = step else {
        return step;
    };
    let Some((uid, since)) = history.current.clone().filter(|_| history.beside.is_none()) else {
        return (phase, None, look_again);
    };
    let Some(pod) = history.current().map(|revision| Arc::clone(&revision.pod)) else {
        return (phase, None, look_again);
    };
    let (_, change, judged_again) = judge(history, &uid, &pod, input, since);
    let look_again = look_again.into_iter().chain(judged_again).min();
    if change != Some(Change::Restored) {
        return (phase, None, look_again);
    }
    let target = history.target().map(Revision::uid);
    let runs = history.current().map(Revision::uid);
    // An edit back to the healthy one wants what runs now.
    let phase = if runs == target {
        Phase::Settled
    } else {
        phase
    };
    (phase, Some(Change::FellBack), look_again)
}

/// Judges `pod`, whose UID is `uid`: it runs, and is the current revision.
fn judge(
    history: &mut History,
    uid: &PodUid,
    pod: &Pod,
    input: &Input<'_>,
    since: Timestamp,
) -> Step {
    let settled = (Phase::Settled, None, None);
    let open = history.get(uid).map(|revision| &revision.outcome) == Some(&Outcome::Open);
    // A pod that a user stopped is judged once it is started.
    let status = input.current.status.filter(|_| !history.stopped);
    let status = status.filter(|_| !input.engine_away);
    // One that is about to run again is judged once it does.
    let status = status.filter(|status| !is_over(status) || !history.is_of_replaced(status));
    let (true, Some(status)) = (open, status) else {
        return if open && !history.stopped {
            (Phase::Judging, None, None)
        } else {
            settled
        };
    };
    if let Some(cause) = rejected(status).filter(|_| input.restore_waits.is_none())
        && history.take_back(&cause, input.restore, input.now)
    {
        // Whether its preparation is refused, too, decides when it is tried again.
        let look_again = Some(Duration::ZERO);
        return (Phase::Held(cause), Some(Change::Restored), look_again);
    }
    let settings = Settings::of(pod);
    let life = history.live(uid, since, status, input.now);
    let seen = Seen {
        status,
        failed_probe: input.current.failed_probe,
        troubles: input.current.troubles,
        life: &life,
        counts_from: input.current.counts_from,
        now: input.now,
    };
    match assess(pod, &seen, &settings) {
        Health::Healthy => {
            history.set_outcome(uid, Outcome::Healthy);
            (Phase::Settled, Some(Change::Succeeded), None)
        }
        Health::Ended => {
            history.set_outcome(uid, Outcome::Ended);
            (Phase::Settled, Some(Change::Succeeded), None)
        }
        Health::Open(look_again) => (Phase::Judging, None, look_again),
        Health::Failed(cause) => {
            let target = history.fallback(input.restore).map(Revision::uid);
            let (target, cause) = match (target, input.restore_waits) {
                (Some(_), Some(waits)) => (None, unrestored(cause, waits)),
                (target, _) => (target, cause),
            };
            let Some(target) = target else {
                return (fails_on(history, cause), None, seen.healthy_in(&settings));
            };
            history.set_outcome(uid, Outcome::Failed(cause.clone()));
            history.switch(&target, input.now);
            (Phase::Restored(cause), Some(Change::Restored), None)
        }
    }
}

/// The cause of a failure after which the healthy revision has to wait for a host port.
fn unrestored(cause: Cause, waits: &Cause) -> Cause {
    let message = format!(
        "{}; the last healthy version is restored once its host port is free: {}",
        cause.message, waits.message
    );
    Cause {
        message: message.into(),
        ..cause
    }
}

/// The phase of a revision that failed and keeps running, as a kubelet's would: it may still recover. A
/// first one replaced no other: that is not a problem of a rollout.
fn fails_on(history: &History, cause: Cause) -> Phase {
    if history.revisions.len() > 1 {
        Phase::Failed(cause)
    } else {
        Phase::FirstFailed(cause)
    }
}
