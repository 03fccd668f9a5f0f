//! Events of workloads, in the words of upstream's controllers.
//!
//! Upstream: `pkg/controller/deployment/sync.go` (`scaleReplicaSet`),
//! `pkg/controller/statefulset/stateful_pod_control.go` (`recordPodEvent`),
//! `pkg/controller/controller_utils.go` (`RealPodControl`), `pkg/controller/job/job_controller.go`,
//! `pkg/controller/cronjob/cronjob_controllerv2.go`.

use std::collections::{BTreeMap, BTreeSet};

use super::EventType;
use crate::api::{FullName, Pod, PodUid, Timestamp, keys};
use crate::cron::{CronNote, UNFINISHED_MAX};
use crate::job::{End, Job, JobName, Note, full_name};
use crate::small::SmallCollect;
use crate::spec::annotation;
use crate::workload::standing::revision_name;
use crate::workload::{WorkloadKey, WorkloadKind};

/// An event of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadEvent {
    /// The workload.
    pub key: WorkloadKey,
    /// Type of the event.
    pub event_type: EventType,
    /// Why, in one word.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

impl WorkloadEvent {
    fn normal(key: &WorkloadKey, reason: &str, message: String) -> Self {
        Self {
            key: key.clone(),
            event_type: EventType::Normal,
            reason: reason.to_owned(),
            message,
        }
    }
}

/// The pods of one workload.
#[derive(Default)]
struct Row<'a> {
    pods: BTreeSet<(FullName, PodUid)>,
    /// The number of pods of each version, by the hash of its template.
    versions: BTreeMap<&'a str, usize>,
}

/// The pods of each Deployment, `StatefulSet` and `DaemonSet`.
fn rows<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<WorkloadKey, Row<'a>> {
    let mut rows = BTreeMap::<WorkloadKey, Row<'a>>::new();
    for pod in pods {
        let Some(key) = WorkloadKey::of(pod).filter(|key| key.kind.stays()) else {
            continue;
        };
        let row = rows.entry(key).or_default();
        let version = annotation(&pod.metadata, keys::TEMPLATE).unwrap_or_default();
        *row.versions.entry(version).or_default() += 1;
        row.pods.insert((FullName::of(pod), PodUid::of(pod)));
    }
    rows
}

/// The events of a change from one set of wanted pods to another.
pub fn of_pods<'a>(
    before: impl IntoIterator<Item = &'a Pod>,
    after: impl IntoIterator<Item = &'a Pod>,
) -> Vec<WorkloadEvent> {
    let (before, after) = (rows(before), rows(after));
    let none = Row::default();
    let keys: BTreeSet<&WorkloadKey> = before.keys().chain(after.keys()).collect_set();
    let events = keys.into_iter().flat_map(|key| {
        let old = before.get(key).unwrap_or(&none);
        let new = after.get(key).unwrap_or(&none);
        match key.kind {
            WorkloadKind::Deployment => scaled(key, old, new),
            WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => replaced(key, old, new),
            WorkloadKind::Job | WorkloadKind::CronJob => Vec::new(),
        }
    });
    events.collect()
}

/// The versions of a Deployment of which there are more pods, then those of which there are fewer.
fn scaled(key: &WorkloadKey, old: &Row<'_>, new: &Row<'_>) -> Vec<WorkloadEvent> {
    let versions: BTreeSet<&str> = old
        .versions
        .keys()
        .chain(new.versions.keys())
        .copied()
        .collect_set();
    let count = |row: &Row<'_>, version| row.versions.get(version).copied().unwrap_or_default();
    let changes = versions.into_iter().map(|version| {
        let (from, to) = (count(old, version), count(new, version));
        (version, from, to)
    });
    let changes: Vec<_> = changes.filter(|(_, from, to)| from != to).collect();
    let (up, down): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, from, to)| to > from);
    let event = |(version, from, to): (&str, usize, usize)| {
        let direction = if to > from { "up" } else { "down" };
        let name = revision_name(&key.name, version);
        let message = format!("Scaled {direction} replica set {name} from {from} to {to}");
        WorkloadEvent::normal(key, "ScalingReplicaSet", message)
    };
    up.into_iter().chain(down).map(event).collect()
}

/// The pods of a `StatefulSet` or `DaemonSet` that are gone, then those that are new.
fn replaced(key: &WorkloadKey, old: &Row<'_>, new: &Row<'_>) -> Vec<WorkloadEvent> {
    let event = |reason: &str, (name, _): &(FullName, PodUid)| {
        let is_new = reason == CREATED;
        let message = match (key.kind, is_new) {
            (WorkloadKind::StatefulSet, true) => {
                format!(
                    "create Pod {} in StatefulSet {} successful",
                    name.name, key.name
                )
            }
            (WorkloadKind::StatefulSet, false) => {
                format!(
                    "delete Pod {} in StatefulSet {} successful",
                    name.name, key.name
                )
            }
            (_, true) => format!("Created pod: {}", name.name),
            (_, false) => format!("Deleted pod: {}", name.name),
        };
        WorkloadEvent::normal(key, reason, message)
    };
    let gone = old.pods.difference(&new.pods);
    let gone = gone.map(|pod| event(DELETED, pod));
    let added = new.pods.difference(&old.pods);
    gone.chain(added.map(|pod| event(CREATED, pod))).collect()
}

const CREATED: &str = "SuccessfulCreate";
const DELETED: &str = "SuccessfulDelete";

fn key_of(kind: WorkloadKind, name: &JobName) -> WorkloadKey {
    WorkloadKey {
        kind,
        namespace: name.namespace.clone(),
        name: name.name.clone(),
    }
}

/// The events of a note about a Job: of the Job itself, and of the `CronJob` that it is a run of.
pub fn of_job(job: &Job, note: &Note) -> Vec<WorkloadEvent> {
    let key = key_of(WorkloadKind::Job, &job.name);
    let pod = |index, attempt| full_name(job, index, attempt).name;
    let event = |reason, message: String| vec![WorkloadEvent::normal(&key, reason, message)];
    match note {
        Note::Started(index, attempt) => {
            event(CREATED, format!("Created pod: {}", pod(*index, *attempt)))
        }
        Note::Stopped(index, attempt) => {
            event(DELETED, format!("Deleted pod: {}", pod(*index, *attempt)))
        }
        Note::Suspended => event("Suspended", "Job suspended".to_owned()),
        Note::Resumed => event("Resumed", "Job resumed".to_owned()),
        Note::Ended(end) => {
            let mut events = vec![ended(&key, end)];
            events.extend(seen_by_cron_job(job, end));
            events
        }
        Note::Begun | Note::Succeeded(..) | Note::Failed(..) => Vec::new(),
    }
}

fn ended(key: &WorkloadKey, end: &End) -> WorkloadEvent {
    if end.complete {
        return WorkloadEvent::normal(key, "Completed", "Job completed".to_owned());
    }
    WorkloadEvent {
        key: key.clone(),
        event_type: EventType::Warning,
        reason: end.reason.clone(),
        message: end.message.clone(),
    }
}

/// The event of the `CronJob` that a Job is a run of.
fn seen_by_cron_job(job: &Job, end: &End) -> Option<WorkloadEvent> {
    let cron = JobName::new(&job.name.namespace, job.cron_job()?);
    let key = key_of(WorkloadKind::CronJob, &cron);
    let (name, condition) = (&job.name.name, end.condition());
    let message = format!("Saw completed job: {name}, condition: {condition}");
    Some(WorkloadEvent::normal(&key, "SawCompletedJob", message))
}

/// The event of a run of a `CronJob` that starts.
pub fn of_begun_run(cron: &JobName, run: &JobName) -> WorkloadEvent {
    let key = key_of(WorkloadKind::CronJob, cron);
    WorkloadEvent::normal(&key, CREATED, format!("Created job {}", run.name))
}

/// The event of a run of a `CronJob` that is removed.
pub fn of_deleted_run(cron: &JobName, run: &JobName) -> WorkloadEvent {
    let key = key_of(WorkloadKind::CronJob, cron);
    WorkloadEvent::normal(&key, DELETED, format!("Deleted job {}", run.name))
}

/// The event of a due time of a `CronJob` without a run.
pub fn of_cron_job(cron: &JobName, note: &CronNote) -> WorkloadEvent {
    let key = key_of(WorkloadKind::CronJob, cron);
    match note {
        CronNote::Busy(_) => {
            let message = "Not starting job because prior execution is running and concurrency \
                           policy is Forbid";
            WorkloadEvent::normal(&key, "JobAlreadyActive", message.to_owned())
        }
        CronNote::Full(_) => WorkloadEvent {
            key,
            event_type: EventType::Warning,
            reason: "TooManyActiveJobs".to_owned(),
            message: format!("Not starting job because {UNFINISHED_MAX} jobs have not finished"),
        },
        CronNote::Missed(due) => WorkloadEvent {
            key,
            event_type: EventType::Warning,
            reason: "MissSchedule".to_owned(),
            message: format!("Missed scheduled time to start a job: {}", rfc1123(*due)),
        },
    }
}

/// A time as Go's `RFC1123Z` writes it.
fn rfc1123(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(owner: &str, name: &str, version: &str) -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {
            "name": name, "namespace": "default", "uid": format!("{name}-{version}"),
            "annotations": {keys::WORKLOAD: owner, keys::TEMPLATE: version},
        }}))
        .unwrap()
    }

    fn told(before: &[Pod], after: &[Pod]) -> Vec<String> {
        let events = of_pods(before, after).into_iter();
        events
            .map(|event| format!("{}: {}: {}", event.key, event.reason, event.message))
            .collect()
    }

    #[test]
    fn a_deployment_says_how_its_versions_are_scaled() {
        let web = |number: u32, version: &str| {
            pod("Deployment/web", &format!("web-{number}-box"), version)
        };
        let (old, new) = ("aaaaaaaaaabb", "ccccccccccdd");
        let two = [web(0, old), web(1, old)];
        let scaled = |words: &str| format!("Deployment default/web: ScalingReplicaSet: {words}");
        assert_eq!(
            told(&[], &two),
            [scaled("Scaled up replica set web-aaaaaaaaaa from 0 to 2")]
        );
        assert!(told(&two, &two).is_empty());
        assert_eq!(
            told(&two, &[web(0, old), web(1, new)]),
            [
                scaled("Scaled up replica set web-cccccccccc from 0 to 1"),
                scaled("Scaled down replica set web-aaaaaaaaaa from 2 to 1"),
            ]
        );
        assert_eq!(
            told(&two, &[]),
            [scaled("Scaled down replica set web-aaaaaaaaaa from 2 to 0")]
        );
    }

    #[test]
    fn sets_name_the_pods_that_go_and_come() {
        let db = |version: &str| pod("StatefulSet/db", "db-0-box", version);
        assert_eq!(
            told(&[db("a")], &[db("b")]),
            [
                "StatefulSet default/db: SuccessfulDelete: delete Pod db-0-box in StatefulSet db successful",
                "StatefulSet default/db: SuccessfulCreate: create Pod db-0-box in StatefulSet db successful",
            ]
        );
        let agent = pod("DaemonSet/agent", "agent-box", "a");
        assert_eq!(
            told(&[], &[agent]),
            ["DaemonSet default/agent: SuccessfulCreate: Created pod: agent-box"]
        );
        // The pods of Jobs are reported by what is decided about these, plain pods not at all.
        let plain = pod("", "plain", "");
        assert!(told(&[], &[pod("Job/once", "once-0-box", ""), plain]).is_empty());
    }

    #[test]
    fn a_missed_time_is_named_as_upstream_names_it() {
        let name = JobName::new("default", "backup");
        let due = "2026-03-04T02:30:00Z".parse().unwrap();
        let event = of_cron_job(&name, &CronNote::Missed(due));
        assert_eq!(event.event_type, EventType::Warning);
        assert_eq!(
            event.message,
            "Missed scheduled time to start a job: Wed, 04 Mar 2026 02:30:00 +0000"
        );
    }
}
