//! The log lines, events and metrics of Jobs.

use mirrorlet_core::events::of_job;
use mirrorlet_core::job::{Decision, Job, Note, full_name};
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// Reports a decision about a Job: in the log, and in the histories of its pods.
pub(super) fn notes(telemetry: &Telemetry, job: &Job, decision: &Decision) {
    let of_pod = |index: u32, attempt: u32, reason: &str, what: &str| {
        let name = full_name(job, index, attempt);
        let uid = decision.record.uid(&job.name, index, attempt);
        let message = format!("pod {} of Job {} {what}", name.name, job.name);
        occurrences::job_pod(telemetry.pod(&name, &uid), reason, &message);
    };
    for note in &decision.notes {
        match note {
            Note::Begun => occurrences::job(&job.name.to_string(), "the Job starts", false),
            Note::Started(index, attempt) => {
                of_pod(*index, *attempt, "JobStarted", "will be started");
            }
            Note::Succeeded(index, attempt) => {
                of_pod(*index, *attempt, "JobPodSucceeded", "succeeded");
            }
            Note::Failed(index, attempt) => of_pod(*index, *attempt, "JobPodFailed", "failed"),
            Note::Stopped(index, attempt) => {
                let what = format!("will be stopped: {}", decision.stop_reason());
                of_pod(*index, *attempt, "JobPodStopped", &what);
            }
            Note::Suspended => occurrences::job(&job.name.to_string(), "Job suspended", false),
            Note::Resumed => occurrences::job(&job.name.to_string(), "Job resumed", false),
            Note::Ended(end) => {
                let message = format!("{}: {}: {}", end.condition(), end.reason, end.message);
                occurrences::job(&job.name.to_string(), &message, !end.complete);
            }
        }
        for event in of_job(job, note) {
            occurrences::workload(telemetry, &event);
        }
    }
}
