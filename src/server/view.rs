//! The agent's interface for the servers.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use mirrorlet_core::api::report::{
    CronJobReport, EventReport, ExplainReport, HistoryReport, ImagesReport, JobReport, PlanReport,
    StatusReport, TopReport, VolumeReport, WorkloadReport,
};
use mirrorlet_core::api::{ContainerId, Diagnostic, Pod, PodUid, ResolvedPodUid, core, keys};
use mirrorlet_core::desired::{Origin, PodSource, SourceObject, SourceWorkload};
use mirrorlet_core::events::Happening;
use mirrorlet_core::job::JobName;
use mirrorlet_core::logs::Instance;
use mirrorlet_core::node::NodeEdits;
use mirrorlet_core::objects::claims::Bindings;
use mirrorlet_core::rollout::Command;
use mirrorlet_core::select::{ContainerNotFound, PodNotFound};
use mirrorlet_core::workload::WorkloadKey;
use mirrorlet_core::workload::revisions::WorkloadRevision;
use mirrorlet_host::telemetry::PodSamples;
use mirrorlet_runtime::{ContainerAccess, LogOptions, LogStream, RuntimeError};

/// One readiness check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The name of the check, for example `engine` or `source file`.
    pub name: String,
    /// Why it fails; none if it succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// Manifests as they might be.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Files with their contents that replace those with the same name in the manifest directory.
    pub files: Vec<PlanFile>,
    /// Whether the directory would have no other files.
    pub whole: bool,
    /// Whether each pod comes with its manifests.
    pub content: bool,
}

/// An action that a user orders on a static pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// New instances of its containers.
    Restart,
    /// Its images are pulled; nothing is restarted.
    Pull,
    /// The pod is stopped until it is started or its manifest changes.
    Stop,
    /// End that.
    Start,
    /// The pod is stopped until the Node is uncordoned; it gets new containers then.
    Evict,
    /// A run of a CronJob begins.
    Run,
}

/// A user's order for a static pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// The pod.
    pub pod: String,
    /// The action.
    pub verb: Verb,
    /// The only container to restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Whether the images are pulled first.
    #[serde(default)]
    pub pull: bool,
}

/// The answer to a command about rollouts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandAnswer {
    /// Number of the revision that it is about.
    pub revision: u64,
    /// The workload of the command, as `Deployment default/web`; none if it was for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderAnswer {
    /// Namespace of the pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The containers concerned.
    pub containers: Vec<String>,
    /// Whether the names are those of a Job rather than a pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_job: bool,
    /// Whether the pod was in that state already: stopped, or not stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unchanged: bool,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    /// Its name, without a directory.
    pub name: String,
    /// Its content.
    pub text: String,
    /// Its content if that is not UTF-8: the plan reports the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<ByteString>,
}

/// Why a question can't be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ViewError {
    /// The kind of the failure.
    pub kind: ViewErrorKind,
    /// The cause, in words for the user.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
}

/// The kinds of failures, each with its own HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewErrorKind {
    /// The pod, container or instance named does not exist.
    NotFound,
    /// The question can't be answered as it was asked.
    Invalid,
    /// The request conflicts with the state of the object.
    Conflict,
    /// The Engine doesn't answer.
    Unavailable,
    /// Something else failed.
    Failed,
}

impl ViewErrorKind {
    /// An error of this kind.
    pub fn error(self, message: impl Into<String>) -> ViewError {
        ViewError {
            kind: self,
            message: message.into(),
            help: None,
        }
    }
}

impl ViewError {
    /// The error with advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl From<PodNotFound> for ViewError {
    fn from(error: PodNotFound) -> Self {
        let kind = match error {
            PodNotFound::Unknown { .. } => ViewErrorKind::NotFound,
            PodNotFound::Ambiguous { .. } | PodNotFound::SeveralWorkloads { .. } => {
                ViewErrorKind::Invalid
            }
        };
        // Its words say what to do.
        kind.error(error.to_string())
    }
}

impl From<ContainerNotFound> for ViewError {
    fn from(error: ContainerNotFound) -> Self {
        let kind = match error {
            ContainerNotFound::Unknown { .. } => ViewErrorKind::NotFound,
            ContainerNotFound::Unnamed { .. } => ViewErrorKind::Invalid,
        };
        kind.error(error.to_string())
    }
}

impl From<RuntimeError> for ViewError {
    fn from(error: RuntimeError) -> Self {
        let kind = match error {
            RuntimeError::NotFound(message) => return ViewErrorKind::NotFound.error(message),
            RuntimeError::Conflict(message) => return ViewErrorKind::Conflict.error(message),
            RuntimeError::Unavailable(_) | RuntimeError::Timeout { .. } => {
                ViewErrorKind::Unavailable
            }
            RuntimeError::Refused { .. } | RuntimeError::Local(_) => ViewErrorKind::Failed,
        };
        kind.error(error.to_string())
    }
}

/// A pod, as the embedded API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownPod {
    /// The running version of the pod, with its current status.
    pub pod: Pod,
    /// The pod in its newest document, if the embedded API stores that: another version of it may run.
    pub newest: Option<Arc<Pod>>,
    /// The document that defines it; none if it is no longer wanted.
    pub origin: Option<Origin>,
    /// Whether it is being stopped.
    pub terminating: bool,
}

impl ShownPod {
    /// Whether the embedded API stores it, or the workload that it belongs to.
    pub fn is_stored(&self) -> bool {
        let annotations = self.pod.metadata.annotations.as_ref();
        let source = annotations.and_then(|all| all.get(keys::CONFIG_SOURCE));
        source.is_some_and(|source| *source == PodSource::Embedded.to_string())
    }
}

/// All that the embedded API shows, but for events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shown {
    /// The wanted pods, and those that are being stopped.
    pub pods: Vec<ShownPod>,
    /// The objects that pods refer to.
    pub objects: Vec<SourceObject>,
    /// The bindings of claims.
    pub bindings: Bindings,
    /// The workloads.
    pub workloads: Vec<SourceWorkload>,
    /// The states of those with permanent pods.
    pub standings: Vec<WorkloadReport>,
    /// The versions of those whose pods are updated together.
    pub revisions: BTreeMap<WorkloadKey, Vec<WorkloadRevision>>,
    /// The states of Jobs, those of CronJobs included.
    pub jobs: Vec<JobReport>,
    /// The states of CronJobs.
    pub cron_jobs: Vec<CronJobReport>,
    /// This Node.
    pub node: Option<core::Node>,
    /// Whether all sources of manifests have delivered, and the running pods are known, so that a
    /// missing pod is really gone.
    pub complete: bool,
}

/// The agent's interface for the servers. Methods are cheap, and never wait for the Engine except those
/// that return a stream, and those about volumes.
#[async_trait]
pub trait AgentView: Send + Sync + 'static {
    /// The current report.
    fn status(&self) -> StatusReport;

    /// Reads the manifest directory and merges it, so that later calls see files that were just saved.
    /// Returns within a second or two, whether complete or not.
    async fn refresh(&self) -> bool;

    /// Reads and merges the embedded API's stored objects. Returns within a second or two, whether
    /// complete or not.
    async fn refresh_stored(&self) -> bool;

    /// The error for which the present content of a manifest file isn't in force, if there is one.
    fn problem_of(&self, location: &str) -> Option<Diagnostic>;

    /// Changes value whenever [`status`](Self::status) may have changed. A burst may count once.
    fn changed(&self) -> watch::Receiver<u64>;

    /// The pod of that namespace and name, whether static or of the API server; never a mirror.
    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// Whether a pod with that name has ended, and nothing of it is left on this node.
    fn is_settled(&self, namespace: &str, name: &str) -> bool;

    /// The revisions of a static pod, by name, namespace/name, or UID.
    ///
    /// # Errors
    /// There is no such static pod.
    fn rollout_history(&self, pod: &str) -> Result<HistoryReport, ViewError>;

    /// Has a command about the rollouts of a static pod or a workload obeyed.
    ///
    /// # Errors
    /// There is no such static pod, or the command is refused.
    async fn command_rollout(
        &self,
        pod: &str,
        command: Command,
    ) -> Result<CommandAnswer, ViewError>;

    /// Changes that users made to the Node.
    fn node_edits(&self) -> Arc<NodeEdits>;

    /// Changes the Node. Blocks on the disk.
    ///
    /// # Errors
    /// As the system says.
    fn edit_node(&self, edits: NodeEdits) -> io::Result<()>;

    /// Has a static pod restarted, stopped or started.
    ///
    /// # Errors
    /// There is no such static pod or container, an image can't be pulled, or it is refused.
    async fn order(&self, order: &Order) -> Result<OrderAnswer, ViewError>;

    /// Removes what is left of a finished Job's pod. Its result stays counted.
    ///
    /// # Errors
    /// The Job is not there any more, or its state can't be written.
    async fn forget_job_pod(&self, job: JobName, pod: &PodUid) -> Result<(), ViewError>;

    /// Ends a Job that is a run of a CronJob, and removes its pods. Its time does not become due again.
    ///
    /// # Errors
    /// No CronJob has such a run any more, or its state can't be written.
    async fn delete_run(&self, job: JobName) -> Result<(), ViewError>;

    /// The volumes of claims.
    ///
    /// # Errors
    /// Sources have not been read, or the Engine doesn't answer.
    async fn volumes(&self) -> Result<Vec<VolumeReport>, ViewError>;

    /// Removes the binding of a volume to its claim; a volume that this agent created is removed with
    /// its data.
    ///
    /// # Errors
    /// There is no such volume, or a pod uses it.
    async fn remove_volume(&self, name: &str) -> Result<VolumeReport, ViewError>;

    /// Returns the changes to static pods with these manifests in place; it changes nothing.
    async fn plan(&self, request: &PlanRequest) -> PlanReport;

    /// All pods that are wanted here, with their status as it is now; no mirrors.
    fn pods(&self) -> Vec<Pod>;

    /// The pods of which a container runs, with those containers, as the Engine has them.
    fn running_pods(&self) -> Vec<Pod>;

    /// UID of the pod that runs: of a mirror its static pod's, and any other as it is.
    fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid;

    /// The log of an instance of a container; by default of the pod's only or default container.
    ///
    /// # Errors
    /// The pod, container or instance does not exist; none was given and the pod has several; the
    /// Engine refused.
    async fn logs(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        options: &LogOptions,
        instance: Instance<'_>,
    ) -> Result<LogStream, ViewError>;

    /// The newest instance of a container; by default of the pod's only or default container.
    ///
    /// # Errors
    /// The pod, container or instance does not exist, or is not running though it `must_run`; none was
    /// given and the pod has several.
    fn instance(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        must_run: bool,
    ) -> Result<ContainerId, ViewError>;

    /// Checks that a pod is wanted, or still being stopped.
    ///
    /// # Errors
    /// It is not.
    fn check_pod(&self, uid: &PodUid) -> Result<(), ViewError>;

    /// The way into containers and pods.
    fn access(&self) -> &dyn ContainerAccess;

    /// The history of a pod, given as for [`find_pod`](mirrorlet_core::select::find_pod); also of a
    /// removed one.
    ///
    /// # Errors
    /// No pod, or more than one, matches.
    fn explain(&self, pod: &str) -> Result<ExplainReport, ViewError>;

    /// The images on the Engine.
    ///
    /// # Errors
    /// The Engine doesn't answer.
    async fn images(&self) -> Result<ImagesReport, ViewError>;

    /// Returns processors and memory in use, after a second and then every two.
    fn top(&self) -> BoxStream<'static, Result<TopReport, ViewError>>;

    /// Returns the entries of the journal from that number on, oldest first.
    fn events(&self, from: u64) -> Vec<EventReport>;

    /// Changes value with each new entry of the journal.
    fn events_changed(&self) -> watch::Receiver<u64>;

    /// The configuration in use as JSON, nothing secret in it (`Resolved::show`).
    fn config(&self) -> serde_json::Value;

    /// Gives a pod of a manifest that is about to be removed at most that long to end.
    fn shorten_grace(&self, uid: &PodUid, grace: Duration);

    /// Reverts that for a pod whose removal has failed.
    fn forget_grace(&self, uid: &PodUid);

    /// All that the embedded API shows, but for events. The Node's conditions keep their times from
    /// those of `before`.
    fn shown(&self, before: &[core::NodeCondition]) -> Shown;

    /// The journal's news for users from that number on, oldest first, and the number after them.
    fn happenings(&self, from: u64) -> (Vec<Happening>, u64);

    /// Every readiness check: sources synced, Engine reachable.
    fn checks(&self) -> Vec<Check>;

    /// The pods with series of their own on `/metrics`; none unless enabled.
    fn pod_samples(&self) -> Option<PodSamples>;
}
