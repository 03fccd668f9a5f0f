//! The problems of Jobs and CronJobs, for users.

use super::kept::READ_RETRY;
use mirrorlet_core::api::{Code, Diagnostic, FullName};
use mirrorlet_core::desired::Origin;
use mirrorlet_core::job::JobName;

/// The record of a workload can't be read.
pub(super) fn unreadable(
    kind: &str,
    name: &JobName,
    origin: &Origin,
    file: &str,
    why: &str,
) -> Diagnostic {
    let message =
        format!("{kind} {name} doesn't run: its progress can't be read from {file} ({why})");
    let restore = format!(
        "restore the file, which is read again within {} s",
        READ_RETRY.as_secs()
    );
    let help = match kind {
        "Job" => format!(
            "{restore}; or run the Job from its beginning with: mirrorlet restart job/{}",
            name.name
        ),
        _ => format!(
            "{restore}; or remove it and restart the agent: the CronJob then continues with its next scheduled time"
        ),
    };
    at(origin, Code::Unreadable, message).help(help)
}

/// The record of a workload can't be written.
pub(super) fn unwritten(kind: &str, name: &JobName, origin: &Origin, why: &str) -> Diagnostic {
    let message = format!("{kind} {name} waits until its progress can be written to disk: {why}");
    at(origin, Code::Unreadable, message)
}

/// The Job that was begun may be that of a document that is not known yet.
pub(super) fn awaited(name: &JobName, origin: &Origin, may_run: bool) -> Diagnostic {
    let message = format!(
        "Job {name} waits for sources that have not been read: another document may define it"
    );
    let help = if may_run {
        "a pod of the Job may run: wait until they are read, or remove those that can't be read from the configuration"
            .to_owned()
    } else {
        format!("run this Job now with: mirrorlet restart job/{}", name.name)
    };
    at(origin, Code::Unreadable, message).help(help)
}

/// Another document's pod has the name of a Job's.
pub(super) fn same_name(
    job: &JobName,
    origin: &Origin,
    name: &FullName,
    other: &Origin,
) -> Diagnostic {
    let message = format!(
        "a pod of Job {job} does not run: pod {name} is already defined by {}",
        other.location
    );
    at(origin, Code::DuplicatePod, message).help("rename the Job or the other one")
}

fn at(origin: &Origin, code: Code, message: String) -> Diagnostic {
    let mut problem = Diagnostic::error(code, origin.location.as_str(), message);
    problem.position = origin.position;
    problem
}
