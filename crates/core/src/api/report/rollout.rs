//! The reports of rollouts: their progress, their history, and plans.

use serde::{Deserialize, Serialize};

use crate::api::{Diagnostic, PodUid, Timestamp};

/// Progress of a static pod's target revision: the newest one, or the one named by an undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolloutPhase {
    /// It is being prepared; the one before runs.
    Preparing,
    /// Other pods of its workload are updated first; the previous revision runs.
    Waiting,
    /// It can't be prepared; the one before runs.
    Held,
    /// It runs, and is judged.
    Judging,
    /// It failed and keeps running.
    Failed,
    /// It failed in another pod of its workload; the last healthy revision is about to run.
    Restoring,
    /// It failed; the last healthy one runs.
    Restored,
    /// It is older than the manifest and runs because of an undo.
    Undone,
    /// Rollouts are paused; the previous revision runs, or the newest one if nothing was edited since.
    Paused,
}

/// The rollout of a static pod; reported until the newest revision is healthy, and while rollouts are
/// paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutReport {
    /// Its progress.
    pub phase: RolloutPhase,
    /// Number of the revision that runs.
    pub revision: u64,
    /// Number of the target revision: the newest one, or the one named by an undo.
    pub target: u64,
    /// UID of that revision.
    pub target_uid: PodUid,
    /// Number of the revision in the manifest.
    pub newest: u64,
    /// Why it doesn't run, in one word; for a first revision that is judged, why it has failed so far.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the running revision was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Seconds within which it must become ready, while it is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// Whether it has been held for as long as its progress deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
}

impl RolloutReport {
    /// Whether the newest revision runs, and rollouts of future revisions are paused.
    pub fn is_paused_when_done(&self) -> bool {
        self.phase == RolloutPhase::Paused && self.revision == self.newest
    }
}

/// The plan for a set of manifests: the data behind `mirrorlet plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// The static pods, by namespace and name.
    pub pods: Vec<PlannedPod>,
    /// The order of updates of a workload's pods, unless they are all updated at the same time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<PlannedOrder>,
    /// The Jobs and CronJobs, by kind, namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<PlannedRun>,
    /// The `ConfigMap`s, Secrets, Services, claims and volumes that would change, by kind, namespace
    /// and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<PlannedObject>,
    /// Problems of the manifests without a pod, and warnings.
    pub problems: Vec<Diagnostic>,
}

/// The change of an object that pods refer to. Contains no value of the object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedObject {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The planned action.
    pub action: ObjectAction,
    /// The keys of data that would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// The pods that refer to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
}

crate::words! {
    /// The planned action for an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ObjectAction {
        /// It would be known.
        Create = "create",
        /// It would have other content. Files of it change in containers; variables don't.
        Change = "change",
        /// It would be gone.
        Remove = "remove",
    }
    /// Its word in tables.
    pub fn as_str;
}

/// The order of updates of a workload's pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedOrder {
    /// Kind of the workload.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The change that the steps are of.
    pub change: OrderedChange,
    /// The pods of each step, by their names with the node's suffix. A step begins once the pods of
    /// earlier steps are healthy, or have stopped.
    pub steps: Vec<Vec<String>>,
}

/// A change of pods that take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderedChange {
    /// They start.
    Start,
    /// They stop.
    Stop,
    /// A new version replaces the running one.
    Update,
}

/// The plan for a Job or CronJob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRun {
    /// `Job` or `CronJob`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// File or URL.
    pub source: String,
    /// The planned action.
    pub action: RunAction,
    /// Because of what.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The next time that a CronJob is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_schedule: Option<Timestamp>,
}

crate::words! {
    /// The planned action for a Job or CronJob.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum RunAction {
        /// It would be known, and nothing of it would run now.
        Create = "create",
        /// The Job would run.
        Run = "run",
        /// The Job would run from its beginning, though it did before.
        RunAgain = "run again",
        /// Other rules would apply to it from now on.
        Change = "change",
        /// It would stay as it is, though its document says otherwise.
        Held = "held",
        /// It would end: pods that run are stopped, and all are removed.
        Remove = "remove",
        /// Nothing.
        None = "none",
    }
    /// Its word in tables.
    pub fn as_str;
}

crate::words! {
    /// The planned action for a pod.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PlanAction {
        /// It would be started; none of its name runs.
        Create = "create",
        /// It would take the place of the one that runs.
        Replace = "replace",
        /// The one that runs would run on, though its manifest says otherwise.
        Held = "held",
        /// It would be stopped.
        Remove = "remove",
        /// Nothing.
        None = "none",
    }
    /// Its word in tables.
    pub fn as_str;
}

/// For how long a pod would not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Downtime {
    /// Not at all.
    None,
    /// For the time of a stop and a start.
    Gap,
    /// From the stop of the old version until the probes of the new one succeed.
    UntilReady,
}

/// The plan for one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPod {
    /// Name with the node's suffix.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// File or URL.
    pub source: String,
    /// The planned action.
    pub action: PlanAction,
    /// The fields that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// For how long it would not serve.
    pub downtime: Downtime,
    /// The emptyDir volumes of the running pod, whose files would be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emptied: Vec<String>,
    /// Images that would be pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pulls: Vec<String>,
    /// Facts that only the start itself can show, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// Why it is held, or would not start, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it is held, or would not start, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Labels, annotations and spec of the running pod, with defaults; set on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<serde_json::Value>,
    /// The same fields of the pod in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<serde_json::Value>,
}

/// The revisions of one static pod: the data behind `mirrorlet rollout history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    /// Name with the node's suffix.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Whether its rollouts are paused.
    pub paused: bool,
    /// Its revisions, oldest first.
    pub revisions: Vec<RevisionReport>,
}

/// One revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionReport {
    /// Its number.
    pub number: u64,
    /// Its UID.
    pub uid: PodUid,
    /// When its manifest said it first.
    pub wanted_at: Timestamp,
    /// `Open`, `Healthy`, `Ended` or `Failed`.
    pub outcome: String,
    /// Why it failed, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it failed, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether it runs.
    pub runs: bool,
    /// Whether its manifest says it.
    pub wanted: bool,
    /// Of a workload, how many pods run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<usize>,
    /// The fields in which it differs from the revision before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}
