//! The outcome of a decision: the pods to run, and the report of the rollout for users.

use std::sync::Arc;

use super::group::{short_hash, template_hash};
use super::{Cause, Decision, Outcome, Phase, Updates, beside_pod, progress_deadline};
use crate::admit::REJECTED;
use crate::api::report::{RolloutPhase, RolloutReport};
use crate::api::{Code, Diagnostic, FullName, Pod, keys};
use crate::desired::SourcePod;
use crate::small::SmallSort;
use crate::spec;

/// Longest message in an annotation, in bytes.
const HELD_MESSAGE_MAX: usize = 1024;
/// Help for what is tried again by itself.
const RETRIED: &str =
    "correct the manifest or remove the cause; mirrorlet then retries automatically";

impl Decision {
    /// The pod to run: the newest revision, or the one that runs in its place, with the rollout's
    /// problem.
    pub fn pod(&self, wanted: &SourcePod) -> SourcePod {
        let report = self.report(wanted);
        let problem = report.as_ref().and_then(|report| {
            let numbers = [report.revision, report.target, report.newest];
            let problem = problem(wanted, report, numbers.map(|number| self.name_of(number)))?;
            Some(self.placed(problem, wanted, report))
        });
        let current = self.history.current();
        let replaced = current.filter(|revision| revision.uid() != wanted.uid());
        let config = replaced.map_or(&wanted.config, |revision| &revision.config);
        let mut pod = Arc::clone(replaced.map_or(&wanted.pod, |revision| &revision.pod));
        if let Some(report) = &report
            && matches!(report.phase, RolloutPhase::Held | RolloutPhase::Restored)
        {
            annotate(Arc::make_mut(&mut pod), report);
        }
        self.history.annotate(&mut pod);
        SourcePod {
            pod,
            origin: wanted.origin.clone(),
            held: wanted.held || (replaced.is_some() && problem.is_some()),
            problems: problem.into_iter().chain(wanted.problems.clone()).collect(),
            rollout: report,
            config: config.clone(),
            places: Arc::clone(&wanted.places),
            template: None,
            runs: None,
        }
    }

    /// The pod to run beside that one until it is judged, if there is one.
    pub fn beside(&self, wanted: &SourcePod) -> Option<SourcePod> {
        let (uid, _) = self.history.beside.as_ref()?;
        let revision = self.history.get(uid)?;
        let mut pod = beside_pod(&revision.pod);
        self.history.annotate(&mut pod);
        Some(SourcePod {
            config: revision.config.clone(),
            ..SourcePod::new(pod, wanted.origin.clone())
        })
    }

    /// A problem at its field, where that is known and the text is the version's that it is about;
    /// else at the pod's document.
    fn placed(
        &self,
        problem: Diagnostic,
        wanted: &SourcePod,
        report: &RolloutReport,
    ) -> Diagnostic {
        let cause = match &self.phase {
            Phase::Held(cause)
            | Phase::Failed(cause)
            | Phase::FirstFailed(cause)
            | Phase::Restored(cause) => Some(cause),
            Phase::Settled
            | Phase::Preparing
            | Phase::Waiting(_)
            | Phase::Paused
            | Phase::Judging => None,
        };
        let field = cause.filter(|_| report.target == report.newest);
        let field = field.and_then(|cause| cause.field.as_deref());
        let found = field.and_then(|field| Some((field, wanted.places.get(field)?)));
        match found {
            Some((field, position)) => problem.at(*position).field(field),
            None => Diagnostic {
                position: wanted.origin.position,
                ..problem
            },
        }
    }

    /// The report of the rollout for users; none if the newest revision runs, is not judged, and the
    /// next one wouldn't be held back.
    fn report(&self, wanted: &SourcePod) -> Option<RolloutReport> {
        let history = &self.history;
        let (running, target) = (history.current()?, history.target()?);
        let newest = history.get(&wanted.uid())?;
        let (phase, cause) = match &self.phase {
            Phase::Settled if target.number != newest.number => (RolloutPhase::Undone, None),
            Phase::Settled if history.paused => (RolloutPhase::Paused, None),
            Phase::Settled => return None,
            Phase::Judging => (RolloutPhase::Judging, None),
            Phase::FirstFailed(cause) => (RolloutPhase::Judging, Some(cause)),
            Phase::Preparing => (RolloutPhase::Preparing, None),
            Phase::Waiting(cause) => (RolloutPhase::Waiting, Some(cause)),
            Phase::Paused => (RolloutPhase::Paused, None),
            Phase::Held(cause) => (RolloutPhase::Held, Some(cause)),
            Phase::Failed(cause) => (RolloutPhase::Failed, Some(cause)),
            Phase::Restored(cause) => (RolloutPhase::Restored, Some(cause)),
        };
        let (phase, cause, target) = match self.goes_back(wanted) {
            Some(cause) => (RolloutPhase::Restoring, Some(cause), newest),
            None => (phase, cause, target),
        };
        let text = |of: fn(&Cause) -> &Arc<str>| cause.map(of).map_or("", |text| text).to_owned();
        let (since, judged) = match &history.beside {
            Some((beside, since)) => (Some(*since), history.get(beside).unwrap_or(target)),
            None => (history.current.as_ref().map(|(_, since)| *since), running),
        };
        Some(RolloutReport {
            phase,
            revision: running.number,
            target: target.number,
            target_uid: target.uid(),
            newest: newest.number,
            reason: text(|cause| &cause.reason),
            message: text(|cause| &cause.message),
            since,
            deadline_seconds: matches!(self.phase, Phase::Judging | Phase::FirstFailed(_))
                .then(|| progress_deadline(&judged.pod).as_secs()),
            overdue: history.held.as_ref().is_some_and(|held| held.overdue),
        })
    }
}

impl Decision {
    /// Returns the name of a revision in messages: its number, or the hash of its template if the pod
    /// belongs to a workload, whose pods number their revisions independently.
    fn name_of(&self, number: u64) -> String {
        let mut revisions = self.history.revisions.iter();
        let revision = revisions.find(|revision| revision.number == number);
        match revision.map_or("", |revision| template_hash(&revision.pod)) {
            "" => format!("revision {number}"),
            hash => format!("template {}", short_hash(hash)),
        }
    }

    /// Why the newest revision of a workload's pod is replaced by an older one, while it is.
    fn goes_back(&self, wanted: &SourcePod) -> Option<&Cause> {
        let newest = self.history.get(&wanted.uid())?;
        let target = self.history.target()?;
        let under_way = matches!(
            self.phase,
            Phase::Preparing | Phase::Waiting(_) | Phase::Judging
        );
        match &newest.outcome {
            Outcome::Failed(cause) if under_way && target.number != newest.number => {
                Updates::of(&wanted.pod).map(|_| cause)
            }
            _ => None,
        }
    }
}

/// Sets the annotations that name the held revision and the cause; the mirror pod copies them.
fn annotate(pod: &mut Pod, rollout: &RolloutReport) {
    let mut message = rollout.message.clone();
    message.truncate(message.floor_char_boundary(HELD_MESSAGE_MAX));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.extend(
        [
            (keys::HELD_REVISION, rollout.target_uid.to_string()),
            (keys::HELD_REASON, rollout.reason.clone()),
            (keys::HELD_MESSAGE, message),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
}

/// A line for each pod whose newest revision is held, failed or was restored, for the Node's condition.
pub fn problem_lines<'a>(pods: impl Iterator<Item = &'a SourcePod>) -> Vec<String> {
    let line = |pod: &SourcePod| {
        let report = pod.rollout.as_ref()?;
        let word = match report.phase {
            RolloutPhase::Held => "held",
            RolloutPhase::Failed => "failed",
            RolloutPhase::Restoring | RolloutPhase::Restored => "restored",
            RolloutPhase::Preparing
            | RolloutPhase::Waiting
            | RolloutPhase::Judging
            | RolloutPhase::Undone
            | RolloutPhase::Paused => return None,
        };
        let FullName { name, namespace } = pod.full_name();
        let RolloutReport {
            reason, message, ..
        } = report;
        Some(format!("{namespace}/{name}: {word}: {reason}: {message}"))
    };
    let mut lines: Vec<String> = pods.filter_map(line).collect();
    lines.small_sort();
    lines
}

/// The problem to report while another revision runs than the one in the manifest. The names are
/// those of the revision that runs, the target and the manifest's.
fn problem(
    wanted: &SourcePod,
    rollout: &RolloutReport,
    [runs, aim, said]: [String; 3],
) -> Option<Diagnostic> {
    let name = wanted.full_name();
    let RolloutReport {
        revision,
        target,
        newest,
        reason,
        message,
        ..
    } = rollout;
    let which = if target == newest {
        "the new version".to_owned()
    } else {
        aim.clone()
    };
    let location = wanted.origin.location.as_str();
    let typed = spec::typed_rollout(&wanted.pod);
    Some(match rollout.phase {
        RolloutPhase::Preparing | RolloutPhase::Waiting | RolloutPhase::Judging
            if target == newest =>
        {
            return None;
        }
        RolloutPhase::Paused if revision == newest => return None,
        RolloutPhase::Held => {
            let message = format!(
                "{which} of pod {name} can't be started, the previous version keeps running: {reason}: {message}"
            );
            Diagnostic::error(Code::RolloutFailed, location, message).help(RETRIED)
        }
        RolloutPhase::Failed => {
            let (message, help) = failed(&which, &name, &typed, reason, message);
            Diagnostic::error(Code::RolloutFailed, location, message).help(help)
        }
        RolloutPhase::Restoring | RolloutPhase::Restored => {
            let is_back = rollout.phase == RolloutPhase::Restored;
            let verb = if is_back { "runs" } else { "is being restored" };
            let message = format!(
                "{which} of pod {name} failed, the previous version {verb}: {reason}: {message}"
            );
            let help = format!(
                "correct the manifest, or this version is not retried until: mirrorlet rollout retry {typed}"
            );
            Diagnostic::error(Code::RolloutFailed, location, message).help(help)
        }
        RolloutPhase::Preparing
        | RolloutPhase::Waiting
        | RolloutPhase::Judging
        | RolloutPhase::Undone => {
            let verb = if target == revision {
                "runs"
            } else {
                "will run"
            };
            let message = format!(
                "a user ran `mirrorlet rollout undo` for pod {name}: {aim} {verb} instead of {said} of the manifest"
            );
            undone(location, message, &typed)
        }
        RolloutPhase::Paused => {
            let (message, help) = paused(wanted, &runs, &said, &typed);
            Diagnostic::warning(Code::RolloutPaused, location, message).help(help)
        }
    })
}

/// The problem of a version that runs because of an undo.
fn undone(location: &str, message: String, typed: &str) -> Diagnostic {
    let help = format!(
        "change the manifest, or return to its revision with: mirrorlet rollout undo {typed}"
    );
    Diagnostic::warning(Code::RolloutUndone, location, message).help(help)
}

/// The message about a version that waits for the end of a pause, and the help for it.
fn paused(wanted: &SourcePod, runs: &str, said: &str, typed: &str) -> (String, String) {
    let name = wanted.full_name();
    if Updates::of(&wanted.pod).is_some_and(|updates| updates.paused) {
        return (
            format!(
                "pod {name} keeps {runs}: its workload has paused: true; the document defines {said}"
            ),
            "to resume, set paused: false in the document".to_owned(),
        );
    }
    (
        format!(
            "the rollouts of pod {name} are paused: {runs} is running, its manifest defines {said}"
        ),
        format!("resume them with: mirrorlet rollout resume {typed}"),
    )
}

/// The message about a version that has failed and keeps running, and the help for it.
fn failed(
    which: &str,
    name: &FullName,
    typed: &str,
    reason: &str,
    message: &str,
) -> (String, String) {
    // The node starts nothing of a pod that it refuses.
    if let Some(why) = message.strip_prefix(REJECTED) {
        return (format!("pod {name} can't run: {why}"), RETRIED.to_owned());
    }
    (
        format!("{which} of pod {name} failed and keeps running: {reason}: {message}"),
        format!(
            "correct the manifest, or return to an older version with: mirrorlet rollout undo {typed}"
        ),
    )
}
