//! The pods of a Job.

use std::sync::Arc;

use super::{Job, JobName, JobRecord};
use crate::api::core::{Container, EnvVar, PodStatus};
use crate::api::{FullName, Pod, keys};

/// The variable of a container that has its pod's index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Annotation and label that have it, too.
const INDEX_KEY: &str = "batch.kubernetes.io/job-completion-index";
/// The labels that name the Job.
const JOB_KEYS: [&str; 2] = [keys::JOB_NAME, "job-name"];

/// Name of a pod of a Job, without the node's suffix: `<job>-<index>`, followed by the number of the
/// attempt unless it is the first.
pub fn pod_name(job: &str, index: u32, attempt: u32) -> String {
    match attempt {
        0 => format!("{job}-{index}"),
        attempt => format!("{job}-{index}-{attempt}"),
    }
}

/// Full name of a pod of a Job.
pub fn full_name(job: &Job, index: u32, attempt: u32) -> FullName {
    let name = pod_name(&job.name.name, index, attempt);
    FullName::new(
        format!("{name}{}", suffix(job)),
        job.name.namespace.as_str(),
    )
}

/// Whether a pod belongs to the Job, by its name alone: for a Job whose record is missing. The first
/// pod of an index has no number after the index: `work-1-0` belongs to Job `work-1`, and not to
/// `work`.
pub fn is_pod_of(job: &Job, pod: &FullName) -> bool {
    let rest = name_after(&job.name, job, pod);
    rest.is_some_and(|rest| match numbers(rest) {
        Some(1) => true,
        Some(2) => !rest.ends_with("-0"),
        _ => false,
    })
}

/// The part of a pod's name between that of a Job or `CronJob` and the node's suffix, which the
/// template of `job` has: `-<index>` and an optional attempt. None if the name has a different form.
pub(crate) fn name_after<'a>(of: &JobName, job: &Job, pod: &'a FullName) -> Option<&'a str> {
    let name = Some(&*pod.name).filter(|_| *pod.namespace == *of.namespace);
    let rest = name?.strip_prefix(of.name.as_str())?;
    rest.strip_suffix(suffix(job))
}

/// The number of numbers in a text that consists only of numbers: 2 for `-4-1`.
pub(crate) fn numbers(text: &str) -> Option<usize> {
    let mut numbers = text.strip_prefix('-')?.split('-');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    numbers.try_fold(0, |count, part| is_number(part).then_some(count + 1))
}

/// The node's suffix, which the template's name has.
fn suffix(job: &Job) -> &str {
    let template = job.template.metadata.name.as_deref().unwrap_or_default();
    let suffix = template.strip_prefix(&*pod_name(&job.name.name, 0, 0));
    suffix.unwrap_or_default()
}

/// The pods of a Job that must exist: those that should run, and ended ones that stay for their logs,
/// which the worker never starts again because of their status. The status of a pod that is stopped by
/// the end of the Job has the reason of that end.
pub fn pods(job: &Job, record: &JobRecord) -> Vec<Arc<Pod>> {
    let active = record.active.iter();
    let active = active.map(|(index, attempt)| pod(job, record, *index, *attempt, None));
    let over = record.over.iter().map(|over| {
        let phase = if over.succeeded {
            "Succeeded"
        } else {
            "Failed"
        };
        let end = record.end.as_ref().filter(|_| over.stopped);
        let status = PodStatus {
            phase: Some(phase.to_owned()),
            reason: end.map(|end| end.reason.clone()),
            message: end.map(|end| end.message.clone()),
            ..PodStatus::default()
        };
        pod(job, record, over.index, over.attempt, Some(status))
    });
    active.chain(over).map(Arc::new).collect()
}

fn pod(job: &Job, record: &JobRecord, index: u32, attempt: u32, status: Option<PodStatus>) -> Pod {
    let uid = record.uid(&job.name, index, attempt);
    let mut pod = Pod::clone(&job.template);
    pod.metadata.name = Some(full_name(job, index, attempt).name.to_string());
    pod.metadata.uid = Some(uid.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_HASH.to_owned(), uid.to_string());
    let labels = pod.metadata.labels.get_or_insert_default();
    for key in JOB_KEYS {
        labels.insert(key.to_owned(), job.name.name.clone());
    }
    if job.rules.indexed {
        let index = index.to_string();
        labels.insert(INDEX_KEY.to_owned(), index.clone());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX_KEY.to_owned(), index.clone());
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{}-{index}", job.name.name));
        let inits = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(inits) {
            add_index(container, &index);
        }
    }
    pod.status = status.or(pod.status);
    pod
}

fn add_index(container: &mut Container, index: &str) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    env.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value: Some(index.to_owned()),
        ..EnvVar::default()
    });
}
