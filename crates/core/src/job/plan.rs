//! The effect that an edit of the documents would have on a Job.

use super::Job;
use crate::api::report::RunAction;

/// The newest run of a Job, from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Its newest run.
    Run {
        /// The content that it is a run of.
        content: String,
        /// How it ended, if it has: whether it is complete.
        complete: Option<bool>,
    },
    /// Its record can't be read.
    Unreadable,
}

/// Returns the effect of an edit on a Job, with the cause. `present` is the Job in the current
/// document, `known` the state of its run.
pub fn plan(job: &Job, present: Option<&Job>, known: Option<&Known>) -> (RunAction, &'static str) {
    let begins = |action| {
        if job.rules.suspend {
            (
                RunAction::Create,
                "it is suspended: its pods are not started",
            )
        } else {
            action
        }
    };
    let (content, complete) = match known {
        None => return begins((RunAction::Run, "it has not run")),
        Some(Known::Unreadable) => {
            return (RunAction::Held, "its progress can't be read");
        }
        Some(Known::Run { content, complete }) => (content, complete),
    };
    if *content != job.content {
        return begins((
            RunAction::RunAgain,
            "its content has changed; its running pods are stopped first",
        ));
    }
    let is_edited = present.is_some_and(|present| present.rules != job.rules);
    match complete {
        Some(true) => (RunAction::None, "it is complete"),
        Some(false) => (RunAction::None, "it has failed"),
        None if is_edited => (RunAction::Change, "the edit applies to the current run"),
        None if job.rules.suspend => (RunAction::None, "it is suspended"),
        None => (RunAction::None, "it continues"),
    }
}
