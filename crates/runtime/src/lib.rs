//! The operations of a container runtime on pods: the seeds' `Runtime`, as an async trait.
//!
//! `DockerManager` of `mirrorlet-docker` is the only real implementation, `FakeRuntime` of
//! `mirrorlet-testing` the scriptable one. Methods may be called concurrently, for different pods and
//! for the same one; no implementation holds a lock across a call that can block.
//!
//! Upstream: `pkg/kubelet/container/runtime.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid};
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::objects::claims::{ClaimName, EngineVolume};
use mirrorlet_core::observed::{PodStatus, Pods, RunningPod};
use mirrorlet_core::plan::Plan;

pub mod cache;
pub mod copy;
pub mod exec;
pub mod gc;
pub mod logs;
pub mod objects;
pub mod result;
pub mod version;

pub use copy::{PathKind, PathStat, TarInput, TarStream};
pub use exec::{CommandOutput, DuplexStream, ExecOptions, Session, SessionControl};
pub use logs::{LogOptions, LogSource, LogStream};
pub use mirrorlet_streaming::{Chunk as LogChunk, StreamOptions, TerminalSize};
pub use result::{PodSyncResult, SyncAction, SyncError, SyncErrorReason, SyncResult};
pub use version::Version;

use gc::{GcOutcome, PodStateProvider};

/// Why a runtime call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// The runtime can't be reached: the Engine is down, or its socket is gone.
    #[error("the container runtime is not reachable: {0}")]
    Unavailable(String),
    /// The runtime did not answer within the deadline of the call.
    #[error("{operation} got no answer within {} s", .after.as_secs())]
    Timeout {
        /// The call.
        operation: &'static str,
        /// Its deadline.
        after: Duration,
    },
    /// The thing named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The call conflicts with the state of the named object.
    #[error("{0}")]
    Conflict(String),
    /// The runtime refused the call, with this message.
    #[error("{message}")]
    Refused {
        /// HTTP status, or 0 if there is none.
        status: u16,
        /// The runtime's words.
        message: String,
    },
    /// An operation on the node failed: on a directory or file, or a decoding.
    #[error("{0}")]
    Local(String),
}

impl RuntimeError {
    /// Whether the requested object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// Whether the runtime as a whole is unavailable, as opposed to a refusal of this call.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

/// Result of a runtime call.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// Something happened, or may have happened, to a pod in the runtime: its status must be read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodEvent {
    /// Something changed about this pod.
    Changed {
        /// UID of the pod.
        uid: PodUid,
        /// The event, for the log.
        what: PodEventKind,
    },
    /// The stream has (re)started, and earlier events may be lost: everything must be listed.
    Gap {
        /// Why.
        cause: String,
    },
}

/// The kind of event, in the terms of upstream's pod lifecycle events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodEventKind {
    /// A container was created.
    ContainerCreated,
    /// A container was started.
    ContainerStarted,
    /// A container ended.
    ContainerDied,
    /// A container was removed.
    ContainerRemoved,
    /// Something else.
    ContainerChanged,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullWhen {
    /// As the pull policy says.
    Policy,
    /// Now, whatever the pull policy says.
    Now,
}

/// Requirements of a pod that are not met, and requirements that can't be checked in advance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodCheck {
    /// Images that would be pulled.
    pub pulls: Vec<String>,
    /// Requirements that can't be checked, in sentences.
    pub unknown: Vec<String>,
}

/// The versions of static pods that serve, and those that don't yet.
#[derive(Debug, Clone, Default)]
pub struct ServingPods {
    /// The version that each pod's host ports are forwarded to.
    pub serving: BTreeMap<FullName, Arc<Pod>>,
    /// The versions that run beside those until they are judged.
    pub beside: BTreeSet<PodUid>,
    /// The pods whose serving version has replaced another.
    pub successors: BTreeSet<FullName>,
}

impl ServingPods {
    /// Whether host ports are forwarded to the same versions.
    pub fn has_same_versions(&self, other: &Self) -> bool {
        let mut pairs = self.serving.iter().zip(&other.serving);
        self.beside == other.beside
            && self.serving.len() == other.serving.len()
            && pairs.all(|((name, pod), (other_name, other))| {
                name == other_name && PodUid::of(pod) == PodUid::of(other)
            })
    }
}

/// Access to running containers and pods from outside: their streams, ports and files.
#[async_trait]
pub trait ContainerAccess: Send + Sync + 'static {
    /// Runs a command in a running container and returns its streams.
    ///
    /// # Errors
    /// Those of [`run_in_container`](Runtime::run_in_container), except the timeout.
    async fn exec_in_container(&self, id: &ContainerId, options: &ExecOptions) -> Result<Session>;

    /// Attaches to the main process of a running container: earlier output is not repeated. The
    /// container's definition decides whether there is a TTY.
    ///
    /// # Errors
    /// [`RuntimeError::Conflict`] if the container is not running, or if standard input is
    /// requested and the container has none.
    async fn attach_container(&self, id: &ContainerId, streams: StreamOptions) -> Result<Session>;

    /// Connects to a TCP port inside a pod's network, on its loopback address: IPv4, else IPv6.
    ///
    /// # Errors
    /// The sandbox is not running, its network can't be entered, or nothing listens on the port.
    async fn port_forward(&self, uid: &PodUid, port: u16) -> Result<DuplexStream>;

    /// Returns the metadata of a path in a container, running or not.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] if the path does not exist.
    async fn stat_in_container(&self, id: &ContainerId, path: &str) -> Result<PathStat>;

    /// A file or directory of a container, running or not, as a tar archive. Everything in it lies
    /// below its own name.
    async fn copy_from_container(&self, id: &ContainerId, path: &str) -> Result<TarStream>;

    /// Unpacks a tar archive into a directory of a container, running or not. A directory is never
    /// replaced by a file, nor a file by a directory.
    async fn copy_to_container(&self, id: &ContainerId, dir: &str, tar: TarInput) -> Result<()>;
}

/// The operations of a container runtime.
#[async_trait]
pub trait Runtime: ContainerAccess {
    /// Version of the runtime.
    async fn version(&self) -> Result<Version>;

    /// Version of the API spoken with the runtime.
    async fn api_version(&self) -> Result<Version>;

    /// Whether the runtime answers; the error says why not. Cheap: may be called every few seconds.
    async fn status(&self) -> Result<()>;

    /// Removes dead containers and sandboxes that the policy does not keep, and those of unknown
    /// pods; with `evict_non_deleted` also those of pods that have ended. Never removes a running
    /// one, nor the newest of a known pod. Failures are reported and don't stop the rest. Makes no
    /// call if there is nothing to remove.
    async fn garbage_collect(
        &self,
        policy: ContainerGcPolicy,
        pods: &dyn PodStateProvider,
        evict_non_deleted: bool,
    ) -> GcOutcome;

    /// Returns all of our pods in the runtime, with `all` also dead ones. One list call.
    /// The result is remembered for [`get_pod_status`](Self::get_pod_status).
    async fn get_pods(&self, all: bool) -> Result<Pods>;

    /// Returns the status of one pod. Asks the runtime only for what events and earlier calls have
    /// not reported yet. An unknown pod has an empty status.
    async fn get_pod_status(&self, uid: &PodUid, full_name: &FullName) -> Result<PodStatus>;

    /// Prepares the start of a pod without starting anything: pulls its images, and checks the
    /// configuration of its sandbox and containers. `stops` are the pods that will have stopped when it
    /// starts: the one that it replaces, and those that free their host ports for it. The resources
    /// that they hold count as free.
    ///
    /// # Errors
    /// The error that the start would fail with. Once `cancel` is cancelled, any error.
    async fn prepare_pod(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        cancel: &CancellationToken,
    ) -> Result<(), SyncError>;

    /// Pulls the images of these containers of a pod: as their pull policies say for a start, or
    /// whatever they are. Starts and stops nothing.
    async fn pull_images(
        &self,
        pod: &Arc<Pod>,
        containers: &[String],
        when: PullWhen,
    ) -> Result<(), SyncError>;

    /// Returns the requirements for starting a pod, as [`prepare_pod`](Self::prepare_pod) checks them,
    /// and changes nothing: no image is pulled. `stops` are the pods that will have stopped when it
    /// starts, `objects` are those that it refers to.
    ///
    /// # Errors
    /// The error that the start would fail with, as far as that can be known.
    async fn check_pod(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        objects: ObjectSet,
    ) -> Result<PodCheck, SyncError>;

    /// Forwards the host ports of each static pod to the version that serves, by UID: if a pod has two
    /// versions side by side, all new connections go to that version from one instant on, and existing
    /// connections stay with theirs. Nothing changes for other pods. A version that has ended no longer
    /// serves.
    ///
    /// # Errors
    /// The host ports could not be switched; they are forwarded as before.
    async fn serve_host_ports(&self, _serving: ServingPods) -> Result<(), SyncError> {
        Ok(())
    }

    /// Has these names in the hosts files of the pods of manifests: of `pods`, which run, and of those
    /// that start from now on.
    ///
    /// # Errors
    /// Not every file could be written.
    async fn serve_names(&self, _names: Arc<Names>, _pods: Vec<NamedPod>) -> Result<(), SyncError> {
        Ok(())
    }

    /// Executes a plan once. Waits for a container to exit only if it stops that container. Safe to
    /// call again after a failure at any step.
    ///
    /// The seeds passed `backoff` here and planned inside; now the caller makes the plan, so that it
    /// can be explained and tested without a runtime (`docs/adr/0002`).
    ///
    /// Once `cancel` is cancelled, no further step starts, a pull is aborted, and a stop in progress is
    /// abandoned, because the stop that follows may have a shorter grace period. Any other call in
    /// progress is awaited, so that nothing starts after the method has returned.
    async fn sync_pod(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult;

    /// Stops all containers of a pod in parallel, sidecars after the others and in reverse order,
    /// then its sandboxes. `pod` may be absent after a restart: grace is rebuilt from labels.
    /// Killing nothing is success; a second call is a no-op.
    async fn kill_pod(
        &self,
        pod: Option<&Arc<Pod>>,
        running: &RunningPod,
        grace_override: Option<Duration>,
    ) -> PodSyncResult;

    /// Updates the files of a running pod's volumes from the objects that it refers to, and returns
    /// when to do so again without a change, because a token must be renewed. Fails with the volumes
    /// that could not be updated; they keep their content. A runtime without such volumes does nothing.
    /// Once `cancel` is cancelled, no more objects are requested; a write in progress is awaited.
    async fn refresh_volumes(
        &self,
        _pod: &Arc<Pod>,
        _cancel: &CancellationToken,
    ) -> Result<Option<Duration>, SyncError> {
        Ok(None)
    }

    /// Changes whenever an object that the pod refers to is created, changed or deleted. Ends when
    /// there will be no more notifications.
    fn references_changed(&self, _pod: &Pod) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    /// Changes whenever images may have been added or removed. Closed when there will be no more
    /// notifications.
    fn images_changed(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    /// Unmounts and removes the volumes of a pod without running containers, and stops watching the
    /// objects that it refers to. Containers, logs and termination messages are kept. A repeated call
    /// succeeds; volumes are created again when the pod starts again. Fails while a container runs.
    async fn release_volumes(&self, uid: &PodUid) -> Result<()>;

    /// Returns the volumes that were created for claims, with those claims. Not their options, which
    /// may hold passwords.
    async fn list_volumes(&self) -> Result<Vec<(ClaimName, EngineVolume)>> {
        Ok(Vec::new())
    }

    /// Removes a volume that was created for a claim, and its data.
    ///
    /// # Errors
    /// [`RuntimeError::Conflict`] while a container has it, running or not.
    async fn remove_volume(&self, name: &str) -> Result<()> {
        Err(RuntimeError::NotFound(format!("no volume {name}")))
    }

    /// Removes every dead container and sandbox of a pod, and its directories. Fails while
    /// anything of it runs.
    async fn delete_pod(&self, uid: &PodUid) -> Result<()>;

    /// Returns pods with a directory on disk but without a known container, except those in `keep`:
    /// remains of an interrupted removal. Makes no call to the runtime.
    async fn list_orphans(&self, keep: &BTreeSet<PodUid>) -> Vec<PodUid>;

    /// Runs a command in a running container to its end: no shell, no input, no terminal. An exit
    /// code other than 0 is no error.
    ///
    /// # Errors
    /// [`RuntimeError::Conflict`] if the container is not running or is paused;
    /// [`RuntimeError::Timeout`] if the command had not exited after `timeout`. It is then killed
    /// with its process group; if that fails, the error says so.
    async fn run_in_container(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<CommandOutput>;

    /// The log of one container instance.
    async fn get_container_logs(&self, id: &ContainerId, options: &LogOptions)
    -> Result<LogStream>;

    /// Streams the events of our pods from now on. The first item is always [`PodEvent::Gap`]. The
    /// stream ends when the connection does; the caller subscribes again and lists.
    async fn watch(&self) -> Result<BoxStream<'static, PodEvent>>;

    /// Asks the runtime for the facts about it that other calls need, which a subscription forgets. A
    /// runtime that is busy may take seconds for them while it shows its events.
    ///
    /// # Errors
    /// The facts are unavailable, or no pod can run with them.
    async fn learn_facts(&self) -> Result<()>;
}
