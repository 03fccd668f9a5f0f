//! The agent's report over its socket: the data behind `mirrorlet status`.
//!
//! The JSON form is what `-o json` prints; fields are only ever added.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Diagnostic, PodUid, Timestamp};

mod cluster;
mod images;
mod jobs;
mod port;
mod rollout;
mod story;
mod top;
mod volumes;
mod workloads;

pub use cluster::{ApiReport, CredentialsFault};
pub use images::{ImageReport, ImagesReport};
pub use jobs::{CronJobReport, JobReport, NO_PARALLELISM, PODS_TERMINATING};
pub use port::PortReport;
pub use rollout::{
    Downtime, HistoryReport, ObjectAction, OrderedChange, PlanAction, PlanReport, PlannedObject,
    PlannedOrder, PlannedPod, PlannedRun, RevisionReport, RolloutPhase, RolloutReport, RunAction,
};
pub use story::{EventReport, ExplainReport, JournalReport};
pub use top::{ContainerUsage, PodUsage, TopReport, UsageReport};
pub use volumes::{VolumeReport, VolumeState, VolumesReport};
pub use workloads::{SetRevisions, WorkloadCondition, WorkloadReport};

/// The state of a running agent at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The agent itself.
    pub agent: AgentReport,
    /// Access to the host that is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_access: Vec<MissingAccessReport>,
    /// The same under the earlier JSON key, for clients and agents that know no other.
    #[serde(rename = "lacks", default, skip_serializing_if = "Vec::is_empty")]
    pub missing_access_alias: Vec<MissingAccessReport>,
    /// The Engine it drives.
    pub engine: EngineReport,
    /// The API server that it uses, if one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiReport>,
    /// Its Node, if an API server is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeReport>,
    /// Images being pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pulls: Vec<PullReport>,
    /// Image garbage collection, where it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_gc: Option<ImageGcReport>,
    /// The pressures that the node is under, by condition name, each with the readings with which it
    /// began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pressures: BTreeMap<String, String>,
    /// The sources of pods.
    pub sources: Vec<SourceReport>,
    /// Every pod it manages, by namespace and name.
    pub pods: Vec<PodReport>,
    /// All Deployments, `StatefulSet`s and `DaemonSet`s in its manifests, by namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<WorkloadReport>,
    /// Every Job of its manifests, by namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobReport>,
    /// Every CronJob of its manifests, by namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cron_jobs: Vec<CronJobReport>,
    /// Problems without a running pod: files that were never valid, duplicates.
    pub problems: Vec<Diagnostic>,
}

impl StatusReport {
    /// Whether the Engine answers, the credentials for the API server are valid, every pod is well, no
    /// Job has failed, and no manifest has an error. A failed pod of a Job is well if another one did
    /// its work.
    pub fn is_well(&self) -> bool {
        let of_sources = self.sources.iter().flat_map(|source| &source.problems);
        let mut problems = self.problems.iter().chain(of_sources);
        let is_bad =
            |api: &ApiReport| api.rejected_since.is_some() || api.credentials_error.is_some();
        self.engine.reachable
            && !self.api.as_ref().is_some_and(is_bad)
            && self
                .pods
                .iter()
                .all(|pod| pod.is_well() || pod.is_tried_again())
            && !self.jobs.iter().any(JobReport::has_failed)
            && !problems.any(Diagnostic::is_error)
    }
}

/// The agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// Version of the binary.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// Name of the Node its pods are bound to.
    pub node_name: String,
    /// Its root directory.
    pub root: String,
    /// The value of its ownership label.
    pub owner: String,
}

/// Access to the host that the agent needs and doesn't have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingAccessReport {
    /// The need, in one word: `Socket`, `Root`, `PodNetwork`, `Network`, `Propagation`, `Processes` or
    /// `HostRoot`.
    pub need: String,
    /// The missing access, and what doesn't work without it.
    pub message: String,
    /// The solution.
    pub help: String,
}

/// The Engine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineReport {
    /// Address the agent talks to.
    pub endpoint: String,
    /// Whether the last call got an answer.
    pub reachable: bool,
    /// Whether the agent doesn't know all running pods yet: after its start it lists the containers,
    /// and reads the status of each pod. A pod counts as unknown until its status was read once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlisted: bool,
    /// Version of the Engine, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// API version in use, once negotiated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Why it isn't reachable, and since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_since: Option<Timestamp>,
}

/// Our Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Whether it is registered.
    pub registered: bool,
    /// The UID that the API server gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Why it can't be registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_since: Option<Timestamp>,
    /// Its conditions, as the API server has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ConditionReport>,
    /// When its Lease was renewed last by this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_renewed: Option<Timestamp>,
    /// Why the API server can't call the node API, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_api_error: Option<String>,
}

/// A condition of our Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionReport {
    /// For example `Ready`.
    #[serde(rename = "type")]
    pub condition: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How a static pod stands with its mirror pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorReport {
    /// `Synced`, `Pending`, or what prevents its creation, for example `NamespaceMissing`.
    pub state: String,
    /// The UID that the API server gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Why it can't be created, in the API server's message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// The phase of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullPhase {
    /// Other pulls are before it.
    #[default]
    Waiting,
    /// Layers come in.
    Downloading,
    /// Layers are unpacked.
    Extracting,
}

/// The progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullReport {
    /// The image, as sent to the Engine.
    pub image: String,
    /// Where it is.
    pub phase: PullPhase,
    /// Layers that are complete.
    pub layers_done: usize,
    /// Layers known of.
    pub layers_total: usize,
    /// Bytes downloaded of the layers whose size is known.
    pub bytes_done: u64,
    /// Bytes of the layers whose size is known.
    pub bytes_total: u64,
}

/// Image garbage collection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageGcReport {
    /// The disk usage above which images are removed, in percent.
    pub high_threshold_percent: u8,
    /// Down to which share, in percent.
    pub low_threshold_percent: u8,
    /// The usage of the Engine's disk, in percent, as of the last pass that could read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_used_percent: Option<u8>,
    /// When the last pass began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pass: Option<Timestamp>,
    /// Images removed since the agent started.
    pub removed: u64,
    /// The total size of those images, in bytes; shared layers count with each.
    pub freed_bytes: u64,
    /// Why the last pass failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One source of pods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceReport {
    /// `file`, `http` or `api`.
    pub kind: String,
    /// Directory or URL.
    pub location: String,
    /// Whether it delivered a whole set yet.
    pub synced: bool,
    /// When it was last read with success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// Number of pods it delivers.
    pub pods: usize,
    /// Number of objects for pods that it delivers.
    #[serde(default)]
    pub objects: usize,
    /// Its current problems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Diagnostic>,
    /// Names of files it ignores by rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    /// Name with the node's suffix.
    pub name: String,
    /// The manifest's own name.
    pub manifest_name: String,
    /// Namespace.
    pub namespace: String,
    /// The workload that it belongs to, as `Deployment/web`; none for a pod with its own document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The CronJob of which its Job is a run, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron_job: Option<String>,
    /// UID: for a static pod, the hash of its manifest.
    pub uid: PodUid,
    /// Its source: file path, URL, or the API server.
    pub source: String,
    /// The value of kubectl's STATUS column: the phase, or a more important reason.
    pub status: String,
    /// Pod phase.
    pub phase: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// One sentence about why it isn't simply running; empty if it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Containers ready.
    pub ready: usize,
    /// Containers in all.
    pub containers_total: usize,
    /// Restarts of all containers together.
    pub restarts: u32,
    /// When the pod was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// The ports of its containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortReport>,
    /// Its containers, init containers first.
    pub containers: Vec<ContainerReport>,
    /// The default container for commands; none for a pod with several containers and no annotation
    /// that selects one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_container: Option<String>,
    /// The state of its mirror pod; none for an API pod, and without a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorReport>,
    /// Whether a different version runs than its manifest has: the last valid one if the manifest can't
    /// be read, or an older one if the newest can't be started, failed or was undone.
    pub held: bool,
    /// Its rollout, until the newest revision is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutReport>,
    /// Current problems of its manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Diagnostic>,
}

/// Status of a pod whose status could not be read yet, and of a running one that no source has.
pub const UNKNOWN: &str = "Unknown";

/// Status of a pod that is being stopped.
pub const TERMINATING: &str = "Terminating";

/// Status of a pod that a user stopped, and the waiting reason of its containers.
pub const STOPPED: &str = "Stopped";

/// Status of a pod that is being stopped by a user's order.
pub const STOPPING: &str = "Stopping";

/// Status of a pod with running instances that a user wants replaced.
pub const RESTARTING: &str = "Restarting";

/// Status of a pod that a user stopped and started again, before any of its containers runs.
pub const STARTING: &str = "Starting";

/// Status of a running pod with a container that a user paused.
pub const PAUSED: &str = "Paused";

impl PodReport {
    /// Whether it is a failed pod of a Job that has a replacement, or that has itself failed.
    pub fn is_tried_again(&self) -> bool {
        let owner = self.workload.as_deref().unwrap_or_default();
        owner.starts_with("Job/") && self.phase == "Failed"
    }

    /// Whether the pod is being stopped, like the old version of an edited pod.
    pub fn is_ending(&self) -> bool {
        self.status == TERMINATING
    }

    /// Whether it runs though no source has delivered it yet: an earlier agent has started it.
    pub fn is_adopted(&self) -> bool {
        self.status == UNKNOWN && self.source.is_empty()
    }

    /// Whether the newest version runs, rather than another one in its place.
    pub fn is_updated(&self) -> bool {
        let rollout = self.rollout.as_ref();
        rollout.is_none_or(|rollout| rollout.revision == rollout.newest)
    }

    /// Whether both have the same namespace and name, and so are versions of one pod.
    pub fn is_same_pod(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name)
    }

    /// Whether all its containers that count are ready and stay so: the pod is not being stopped, no
    /// container has to stop by a user's order, and none is paused.
    pub fn is_ready(&self) -> bool {
        let stays = ![TERMINATING, STOPPING, RESTARTING, PAUSED].contains(&self.status.as_str());
        stays && self.ready == self.containers_total && self.ready > 0
    }

    /// Whether it is in the state that its manifest describes: ready, or succeeded, or stopped by a
    /// user, and no other version runs in its place except during a rollout.
    pub fn is_well(&self) -> bool {
        let rests = self.phase == "Succeeded" || self.status == STOPPED;
        let has_error = self.problems.iter().any(Diagnostic::is_error);
        let is_odd = self.rollout.as_ref().is_some_and(|rollout| {
            !matches!(
                rollout.phase,
                RolloutPhase::Preparing | RolloutPhase::Waiting | RolloutPhase::Judging
            )
        });
        (rests || self.is_ready()) && !self.held && !is_odd && !has_error
    }
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    /// Name in the spec.
    pub name: String,
    /// `init`, `sidecar` or `app`.
    pub role: String,
    /// Image in the spec.
    pub image: String,
    /// `waiting`, `running` or `terminated`.
    pub state: String,
    /// Reason of a waiting or terminated state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message of a waiting or terminated state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Exit code, when terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How the instance before this one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastInstance>,
    /// Whether it counts as ready.
    pub ready: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// The running instance, else the newest one: `docker://…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

/// How an instance of a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastInstance {
    /// Its exit code.
    pub exit_code: i32,
    /// Why, in one word: `Error`, `OOMKilled`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Its termination message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}
