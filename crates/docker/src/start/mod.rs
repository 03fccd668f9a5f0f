//! Starts a sandbox and containers, in parallel where possible.
//!
//! ```text
//!   create sandbox ──┬── start sandbox ── inspect (address) ── hosts file ──┐
//!                    ├── image, files, create app container 1 ─────────────┴── start
//!                    └── image, files, create app container 2 ─────────────┴── start
//! ```
//!
//! Volumes, the hosts file and the sandbox's image are prepared before. A new sandbox waits for its
//! turn in between, so that a turn is only held for short calls of the Engine, and is released if one
//! hangs.
//!
//! A container needs the sandbox's id to be created and the running sandbox to be started. A container
//! with a postStart hook delays the starts of those after it until the hook is done. Names are
//! deterministic, so a retry after an interruption finds what exists: [`create`](Containers::create)
//! adopts a sandbox and started containers. A container that was only created is created again, unless
//! the Engine was too slow to answer its creation.

mod container;
mod images;
mod prepare;
mod sandbox;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all};
use tokio_util::sync::CancellationToken;

use super::containers::{Containers, Since, Turn, Turns, runtime_error};
use super::engine::EngineError;
use super::facts::Facts;
use super::files::{Files, FilesError, PodFiles, check_mounts};
use super::hooks::Hooks;
use super::image::ImagePuller;
use super::index::Record;
use super::kill::Killer;
use super::log_links::ContainerLogs;
use super::network::Networks;
use super::remove::Remains;
use super::room::Room;
use super::translate::{Kind, MISSING_CLUSTER_DNS, Note};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::ending::is_api_pod;
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::observed::{ContainerState, PodStatus, Role};
use mirrorlet_core::plan::{Reason, Step};
use mirrorlet_core::spec;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::{SyncAction, SyncError, SyncErrorReason, SyncResult};

/// Maximum number of bytes of all requests for containers at a time. Usual ones have some 10 KB each,
/// and wait only if there are hundreds of them.
pub(super) const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Reason of the note that a restart count can't be kept.
const NOT_NOTED: &str = "RestartCountNotKept";

/// The sandbox in which containers start.
pub(super) enum Sandbox<'a> {
    /// In one that runs.
    Running { id: &'a str, ips: Vec<IpAddr> },
    /// A new sandbox, which must be created.
    New { attempt: u32 },
}

impl<'a> Sandbox<'a> {
    /// The sandbox in which a step starts containers; `None` if it is gone.
    pub(super) fn of(step: &Step, status: &'a PodStatus) -> Option<Self> {
        if let Step::CreateSandbox { attempt, .. } = step {
            return Some(Self::New { attempt: *attempt });
        }
        let mut sandboxes = status.sandboxes.iter();
        let running = sandboxes.find(|s| s.state == ContainerState::Running)?;
        Some(Self::Running {
            id: &running.id.id,
            ips: running.ips.clone(),
        })
    }
}

/// The state shared by the starts of one sync.
#[derive(Clone, Copy)]
struct Round<'a> {
    pod: &'a Arc<Pod>,
    sandbox_id: &'a str,
    files: &'a Files,
    cancel: &'a CancellationToken,
}

/// A container to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'a> {
    name: &'a str,
    role: Role,
    restart_count: u32,
    pod_restarts: u32,
    reason: &'a Reason,
}

impl<'a> Start<'a> {
    /// The start that a step contains, if any.
    pub(super) fn of(step: &'a Step) -> Option<Self> {
        match step {
            Step::StartContainer {
                name,
                role,
                restart_count,
                pod_restarts,
                reason,
            } => Some(Self {
                name,
                role: *role,
                restart_count: *restart_count,
                pod_restarts: *pod_restarts,
                reason,
            }),
            Step::KillPod { .. }
            | Step::KillContainer { .. }
            | Step::CreateSandbox { .. }
            | Step::RemoveContainer { .. } => None,
        }
    }
}

/// A sandbox that runs, or why it doesn't. Awaited by every container of the round.
type Up<'a> = Shared<BoxFuture<'a, Result<Vec<IpAddr>, SyncError>>>;

/// Starts sandboxes and containers.
pub(super) struct Starter {
    pub(super) containers: Arc<Containers>,
    pub(super) facts: Arc<Facts>,
    pub(super) files: Arc<PodFiles>,
    pub(super) networks: Arc<Networks>,
    pub(super) images: Arc<ImagePuller>,
    pub(super) hooks: Arc<Hooks>,
    pub(super) killer: Arc<Killer>,
    pub(super) remains: Arc<Remains>,
    pub(super) logs: Arc<ContainerLogs>,
    /// Root directory.
    pub(super) root: PathBuf,
    pub(super) telemetry: Telemetry,
    /// Limits the sandboxes that are started together, so that of many new pods the first ones run
    /// before the last ones begin.
    pub(super) newcomers: Turns,
    /// Limits the requests for containers that are held until the Engine has answered: large ones that
    /// hang delay other large ones rather than fill the memory.
    pub(super) requests: Room,
}

impl Starter {
    /// Starts a sandbox, if it is a new one, and containers in it. The objects that the pod refers to
    /// are requested first: without them, no sandbox is needed. Fails as a whole only for a volume that
    /// can't be set up.
    pub(super) async fn start_all(
        &self,
        pod: &Arc<Pod>,
        sandbox: Sandbox<'_>,
        starts: &[Start<'_>],
        cancel: &CancellationToken,
    ) -> Result<Vec<SyncResult>, SyncError> {
        let objects = tokio::select! {
            objects = self.files.pod_objects(pod) => objects,
            () = cancel.cancelled() => return Ok(Vec::new()),
        };
        // A disk may hang forever, and the pod must still be able to end.
        let checking = self.files.check_volumes(pod, &objects);
        match cancel.run_until_cancelled(checking).await {
            Some(checked) => checked?,
            None => return Ok(Vec::new()),
        }
        match sandbox {
            Sandbox::Running { id, ips } => {
                if let Err(error) = self.networks.ensure_resolv_conf(pod, id).await {
                    let target = FullName::of(pod).to_string();
                    let failed = SyncResult::failed(SyncAction::SetupNetwork, target, error);
                    return Ok(vec![failed]);
                }
                let making = self.files.pod_files(pod, objects, &ips);
                let files = match cancel.run_until_cancelled(making).await {
                    Some(Ok(files)) => files,
                    Some(Err(FilesError::Volume(error))) => return Err(error),
                    Some(Err(FilesError::Other(error))) => return Ok(all_failed(starts, &error)),
                    None => return Ok(Vec::new()),
                };
                let up: Up<'_> = async move { Ok(ips) }.boxed().shared();
                let round = Round {
                    pod,
                    sandbox_id: id,
                    files: &files,
                    cancel,
                };
                Ok(self.start_containers(round, &up, starts).await)
            }
            Sandbox::New { attempt } => {
                // Not where it runs: releases before this one had no bound.
                check_mounts(pod)?;
                self.start_anew(pod, attempt, objects, starts, cancel).await
            }
        }
    }

    /// Creates and starts a sandbox, and starts containers in it.
    async fn start_anew(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
        objects: ObjectSet,
        starts: &[Start<'_>],
        cancel: &CancellationToken,
    ) -> Result<Vec<SyncResult>, SyncError> {
        let full_name = FullName::of(pod).to_string();
        let mut result = SyncResult::new(SyncAction::CreatePodSandbox, full_name);
        // Before the turn: a disk that hangs delays this pod alone.
        let files = tokio::select! {
            files = self.files.pod_files(pod, objects, &[]) => files,
            () = cancel.cancelled() => return Ok(Vec::new()),
        };
        let files = match files {
            Ok(files) => files,
            Err(FilesError::Volume(error)) => return Err(error),
            Err(FilesError::Other(error)) => {
                result.fail(error);
                return Ok(vec![result]);
            }
        };
        let (id, mut turn) = match self.create_in_turn(pod, attempt, cancel).await {
            Ok(Some(created)) => created,
            Ok(None) => return Ok(Vec::new()),
            Err(error) => {
                result.fail(error);
                return Ok(vec![result]);
            }
        };
        let up: Up<'_> = async {
            let since = turn.since();
            let starting = Box::pin(self.start_sandbox(pod, &id, &since));
            let up = turn.bound(starting).await;
            drop(turn);
            if let Ok(ips) = &up {
                self.report_sandbox(pod, &id, ips);
            }
            up
        }
        .boxed()
        .shared();
        let round = Round {
            pod,
            sandbox_id: &id,
            files: &files,
            cancel,
        };
        let containers = self.start_containers(round, &up, starts);
        let (up, mut results) = futures::future::join(up.clone(), containers).await;
        if up.is_err() {
            results.clear();
        }
        let network = setup_result(pod, up, &mut result);
        results.splice(0..0, [result].into_iter().chain(network));
        Ok(results)
    }

    async fn start_containers(
        &self,
        round: Round<'_>,
        up: &Up<'_>,
        starts: &[Start<'_>],
    ) -> Vec<SyncResult> {
        // A container with a postStart hook delays those after it: people rely on that order.
        let hooked: Vec<Option<CancellationToken>> = starts
            .iter()
            .map(|start| has_post_start(round.pod, start.name).then(CancellationToken::new))
            .collect();
        let started = starts.iter().enumerate().map(|(index, start)| {
            let (earlier, mine) = hooked.split_at(index);
            let earlier: Vec<CancellationToken> = earlier.iter().flatten().cloned().collect();
            let done = mine.first().cloned().flatten();
            async move {
                // Whatever its result, it delays no other container after that.
                let _done = done.map(CancellationToken::drop_guard);
                let action = match start.role {
                    Role::Init => SyncAction::InitContainer,
                    Role::Sidecar | Role::App | Role::Ephemeral => SyncAction::StartContainer,
                };
                let mut result = SyncResult::new(action, start.name);
                let start = self.counted_on(round.pod, *start, round.files);
                let up = in_turn(up, earlier);
                if let Err(error) = Box::pin(self.start_container(round, up, start)).await {
                    result.fail(error);
                }
                result
            }
        });
        join_all(started).await
    }

    /// The start with a restart count that continues from the recorded one, if no instance is left to
    /// show it.
    ///
    /// Upstream: `calcRestartCountByLogDir` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
    fn counted_on<'a>(&self, pod: &Pod, start: Start<'a>, files: &Files) -> Start<'a> {
        let is_instance = |record: &Record| match &record.ours.kind {
            Kind::Container { name, .. } => name == start.name,
            Kind::Sandbox { .. } => false,
        };
        let records = || self.containers.index.of_pod(&PodUid::of(pod));
        match files.restarts.get(start.name) {
            Some(last) if start.restart_count == 0 && !records().iter().any(is_instance) => Start {
                restart_count: last.saturating_add(1),
                ..start
            },
            Some(_) | None => start,
        }
    }

    /// Notes the restart count of a start that succeeded. One that can't be noted is only lost
    /// together with every instance.
    async fn note_restarts(&self, pod: &Pod, start: Start<'_>) {
        let (uid, name, count) = (PodUid::of(pod), start.name.to_owned(), start.restart_count);
        let noted = self
            .files
            .on_disk(move |volumes| volumes.note_restarts(&uid, &name, count));
        if let Err(error) = noted.await {
            let message = format!(
                "failed to record the restart count of {}: {error}",
                start.name
            );
            self.telemetry
                .about(pod, |of| occurrences::note(of, NOT_NOTED, &message));
        }
    }
}

/// The result of setting up a sandbox's network; a failure that is not its own is the sandbox's.
fn setup_result(
    pod: &Pod,
    up: Result<Vec<IpAddr>, SyncError>,
    sandbox: &mut SyncResult,
) -> Option<SyncResult> {
    let mut network = SyncResult::new(SyncAction::SetupNetwork, FullName::of(pod).to_string());
    match up {
        Ok(_) if spec::is_host_network(pod) => None,
        Ok(_) => Some(network),
        Err(error) if error.reason == SyncErrorReason::SetupNetworkError => {
            network.fail(error);
            Some(network)
        }
        Err(error) => {
            sandbox.fail(error);
            None
        }
    }
}

/// A sandbox that runs, once those that come earlier are done too.
fn in_turn<'a>(up: &Up<'a>, earlier: Vec<CancellationToken>) -> Up<'a> {
    if earlier.is_empty() {
        return up.clone();
    }
    let up = up.clone();
    async move {
        let ips = up.await?;
        for done in earlier {
            done.cancelled().await;
        }
        Ok(ips)
    }
    .boxed()
    .shared()
}

/// Whether a container has a postStart hook.
fn has_post_start(pod: &Pod, container: &str) -> bool {
    spec::find_container(pod, container).is_some_and(|(_, container)| {
        let lifecycle = container.lifecycle.as_ref();
        lifecycle.is_some_and(|lifecycle| lifecycle.post_start.is_some())
    })
}

/// Whether an error looks as if the runtime could not set a process's OOM score below 0, which takes
/// `CAP_SYS_RESOURCE`. Old runtimes only report that the process could not be created. The text also
/// quotes input from the pod's author, so this alone proves nothing.
fn names_oom_score(error: &EngineError) -> bool {
    let text = error.to_string().to_lowercase();
    text.contains("can't get final child's pid from pipe")
        || text.contains("/oom_score_adj") && text.contains("permission denied")
}

/// Logs the differences of a request from the pod's spec.
fn report_notes(telemetry: &Telemetry, pod: &Pod, notes: &[Note]) {
    for note in notes {
        // Every pod that names no DNS policy wants the cluster's, and a box has none; a pod of a
        // cluster has a right to know.
        let report = if note.reason == MISSING_CLUSTER_DNS && !is_api_pod(pod) {
            occurrences::usual_note
        } else {
            occurrences::note
        };
        telemetry.about(pod, |of| report(of, note.reason, &note.message));
    }
}

fn all_failed(starts: &[Start<'_>], error: &SyncError) -> Vec<SyncResult> {
    starts
        .iter()
        .map(|start| SyncResult::failed(SyncAction::StartContainer, start.name, error.clone()))
        .collect()
}
