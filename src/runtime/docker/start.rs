//! Starting a sandbox and containers, overlapped.
//!
//! ```text
//!   create sandbox ──┬── start sandbox ── inspect (address) ── hosts file ──┐
//!                    ├── image, files, create app container 1 ─────────────┴── start
//!                    └── image, files, create app container 2 ─────────────┴── start
//! ```
//!
//! A container needs the sandbox's id to be created and the sandbox running to be started. Names
//! are deterministic, so whatever is interrupted here and tried again finds what it made:
//! [`conflict`](DockerManager::create) adopts it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::engine::EngineError;
use super::files::{Files, FilesError, config_error};
use super::image::{EnsuredImage, PullPolicy};
use super::index::{Created, Record};
use super::kill::reason_of;
use super::manager::DockerManager;
use super::translate::{
    ContainerInput, ImageFacts, Kind, MISSING_CLUSTER_DNS, Note, OurContainer, Request,
    SandboxInput, SeccompWanted, container_request, hosts_file, names, parse_ours, sandbox_request,
    seccomp_wanted,
};
use crate::api::core::Container;
use crate::api::{ContainerId, FullName, Pod, PodUid, Timestamp};
use crate::pod::observed::{ContainerState, Role};
use crate::pod::plan::{Reason, Step};
use crate::pod::spec;
use crate::runtime::{RuntimeError, SyncAction, SyncError, SyncErrorReason, SyncResult};
use crate::telemetry::{Telemetry, occurrences};

/// Directory of seccomp profiles below the root.
const SECCOMP_DIR: &str = "seccomp";
/// Reason of the note that a restart count can't be kept.
const NOT_NOTED: &str = "RestartCountNotKept";
/// Times a create is tried again after it collided with something of ours that was in its way.
const CREATE_ATTEMPTS: usize = 3;

/// How long a name may be taken by nobody until another one is used, and how often it is looked
/// into: a create that is under way holds its name before it can be inspected, and two containers
/// in one place would be one too many. Longer than a create takes on slow storage.
const GHOST_WAIT: Duration = Duration::from_secs(5);
const GHOST_POLL: Duration = Duration::from_millis(100);

/// Where containers start.
pub(super) enum Sandbox<'a> {
    /// In one that runs.
    Running { id: &'a str, ips: Vec<IpAddr> },
    /// In one that is to be created.
    New { attempt: u32 },
}

/// A container to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'a> {
    name: &'a str,
    role: Role,
    restart_count: u32,
    reason: &'a Reason,
}

impl<'a> Start<'a> {
    /// The start that a step is, if it is one.
    pub(super) fn of(step: &'a Step) -> Option<Self> {
        match step {
            Step::StartContainer {
                name,
                role,
                restart_count,
                reason,
            } => Some(Self {
                name,
                role: *role,
                restart_count: *restart_count,
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

impl DockerManager {
    /// Starts a sandbox, where it is a new one, and containers in it. What the pod refers to is
    /// asked for first: without it, there is nothing to make a sandbox for. Fails as a whole only
    /// for a volume that can't be set up.
    pub(super) async fn start_all(
        &self,
        pod: &Arc<Pod>,
        sandbox: Sandbox<'_>,
        starts: &[Start<'_>],
        cancel: &CancellationToken,
    ) -> Result<Vec<SyncResult>, SyncError> {
        let full_name = FullName::of(pod).to_string();
        let objects = tokio::select! {
            objects = self.pod_objects(pod) => objects,
            () = cancel.cancelled() => return Ok(Vec::new()),
        };
        self.check_volumes(pod, &objects).await?;
        match sandbox {
            Sandbox::Running { id, ips } => {
                let files = match self.pod_files(pod, objects, &ips).await {
                    Ok(files) => files,
                    Err(FilesError::Volume(error)) => return Err(error),
                    Err(FilesError::Other(error)) => return Ok(all_failed(starts, &error)),
                };
                let up: Up<'_> = async move { Ok(ips) }.boxed().shared();
                Ok(self
                    .start_containers(pod, id, &up, &files, starts, cancel)
                    .await)
            }
            Sandbox::New { attempt } => {
                let mut result = SyncResult::new(SyncAction::CreatePodSandbox, full_name);
                let turn = tokio::select! {
                    turn = self.newcomers.acquire() => turn,
                    () = cancel.cancelled() => return Ok(Vec::new()),
                };
                let files = self.pod_files(pod, objects, &[]);
                let created = futures::future::join(self.create_sandbox(pod, attempt), files);
                let (id, files) = match created.await {
                    (Ok(id), Ok(files)) => (id, files),
                    (Ok(id), Err(error)) => {
                        let _ = self.remove(&id).await;
                        let error = match error {
                            FilesError::Volume(error) => return Err(error),
                            FilesError::Other(error) => error,
                        };
                        result.fail(error);
                        return Ok(vec![result]);
                    }
                    (Err(error), _) => {
                        result.fail(error);
                        return Ok(vec![result]);
                    }
                };
                let up: Up<'_> = async {
                    let up = self.start_sandbox(pod, &id).await;
                    drop(turn);
                    if let Ok(ips) = &up {
                        self.tell_sandbox(pod, &id, ips);
                    }
                    up
                }
                .boxed()
                .shared();
                let containers = self.start_containers(pod, &id, &up, &files, starts, cancel);
                let (up, mut results) = futures::future::join(up.clone(), containers).await;
                if let Err(error) = up {
                    result.fail(error);
                    results.clear();
                }
                results.insert(0, result);
                Ok(results)
            }
        }
    }

    async fn start_containers(
        &self,
        pod: &Arc<Pod>,
        sandbox_id: &str,
        up: &Up<'_>,
        files: &Files,
        starts: &[Start<'_>],
        cancel: &CancellationToken,
    ) -> Vec<SyncResult> {
        let started = starts.iter().map(|start| async move {
            let action = match start.role {
                Role::Init => SyncAction::InitContainer,
                Role::Sidecar | Role::App => SyncAction::StartContainer,
            };
            let mut result = SyncResult::new(action, start.name);
            let start = self.counted_on(pod, *start, files);
            let started = self.start_container(pod, sandbox_id, up.clone(), files, start, cancel);
            if let Err(error) = started.await {
                result.fail(error);
            }
            result
        });
        join_all(started).await
    }

    /// The start with a restart count that goes on from the last one, though no instance is left
    /// to tell it.
    ///
    /// Upstream: `calcRestartCountByLogDir` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
    fn counted_on<'a>(&self, pod: &Pod, start: Start<'a>, files: &Files) -> Start<'a> {
        let is_instance = |record: &Record| match &record.ours.kind {
            Kind::Container { name, .. } => name == start.name,
            Kind::Sandbox { .. } => false,
        };
        let records = || self.index.of_pod(&PodUid::of(pod));
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
        let noted = self.on_disk(move |volumes| volumes.note_restarts(&uid, &name, count));
        if let Err(error) = noted.await {
            let message = format!("failed to note the restarts of {}: {error}", start.name);
            occurrences::note(
                &self.telemetry,
                &FullName::of(pod),
                &PodUid::of(pod),
                NOT_NOTED,
                &message,
            );
        }
    }

    async fn create_sandbox(&self, pod: &Arc<Pod>, attempt: u32) -> Result<String, SyncError> {
        let failed = |error: &EngineError| {
            SyncError::new(
                reason_of(error, SyncErrorReason::CreatePodSandboxError),
                error.to_string(),
            )
        };
        let facts = self
            .engine_facts()
            .await
            .map_err(|error| runtime_error(&error))?;
        let mut image_made_anew = false;
        loop {
            let image = self.sandbox_image().await.map_err(|error| failed(&error))?;
            let request = sandbox_request(&SandboxInput {
                owner: &self.owner,
                pod,
                attempt,
                image: &image,
                node: &self.node,
                engine: &facts,
            })
            .map_err(|error| {
                SyncError::new(SyncErrorReason::CreatePodSandboxError, error.to_string())
            })?;
            tell_notes(&self.telemetry, pod, &request.notes);
            match self.create(request, &image, "").await {
                Ok(id) => return Ok(id),
                // The image was removed behind our back, by `docker image prune -a` say.
                Err(error) if error.is_not_found() && !image_made_anew => {
                    image_made_anew = true;
                    self.forget_sandbox_image();
                }
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Starts a sandbox and finds its addresses. One that can't be started is removed: it has
    /// nothing to tell that the error doesn't.
    async fn start_sandbox(&self, pod: &Arc<Pod>, id: &str) -> Result<Vec<IpAddr>, SyncError> {
        let started = self.start(id).await;
        if let Err(error) = started {
            if refuses_oom_score(&error) {
                self.learn_no_negative_oom_score();
            }
            let _ = self.remove(id).await;
            return Err(SyncError {
                // What was learnt makes the next attempt a different one: at once.
                retry_after: refuses_oom_score(&error).then_some(std::time::Duration::ZERO),
                ..SyncError::new(
                    reason_of(&error, SyncErrorReason::CreatePodSandboxError),
                    error.to_string(),
                )
            });
        }
        if spec::is_host_network(pod) {
            return Ok(Vec::new());
        }
        self.freshen(id)
            .await
            .map_err(|error| runtime_error(&error))?;
        let ips = self
            .index
            .get(id)
            .map(|record| record.ips().to_vec())
            .unwrap_or_default();
        let hosts = hosts_file(pod, &ips, &self.node).map_err(config_error)?;
        let uid = PodUid::of(pod);
        self.on_disk(move |volumes| volumes.write_hosts(&uid, &hosts))
            .await
            .map_err(config_error)?;
        Ok(ips)
    }

    async fn start_container(
        &self,
        pod: &Arc<Pod>,
        sandbox_id: &str,
        up: Up<'_>,
        files: &Files,
        start: Start<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        let Some((_, container)) = spec::find_container(pod, start.name) else {
            return Err(SyncError::new(
                SyncErrorReason::CreateContainerConfigError,
                "no matching container",
            ));
        };
        let created =
            self.prepare_and_create(pod, container, sandbox_id, up.clone(), files, start, cancel);
        let created = created.await;
        // Whether the sandbox runs comes first: without it a container's own failure is noise.
        if let Err(error) = up.await {
            if let Ok(id) = created {
                let _ = self.remove(&id).await;
            }
            return Err(error);
        }
        let id = created?;
        if cancel.is_cancelled() {
            let _ = self.remove(&id).await;
            return Ok(());
        }
        if self
            .index
            .get(&id)
            .is_some_and(|record| record.state != ContainerState::Created)
        {
            // Adopted, and somebody was here before.
            return Ok(());
        }
        occurrences::container_created(
            &self.telemetry,
            &FullName::of(pod),
            &PodUid::of(pod),
            start.name,
            &ContainerId::docker(id.as_str()),
        );
        match self.start(&id).await {
            Ok(()) => {
                occurrences::container_started(
                    &self.telemetry,
                    &FullName::of(pod),
                    &PodUid::of(pod),
                    start.name,
                    &ContainerId::docker(id.as_str()),
                    start.restart_count,
                    &start.reason.to_string(),
                );
                self.note_restarts(pod, start).await;
                Ok(())
            }
            Err(error) if refuses_oom_score(&error) => {
                self.learn_no_negative_oom_score();
                let _ = self.remove(&id).await;
                Err(SyncError {
                    retry_after: Some(std::time::Duration::ZERO),
                    ..SyncError::new(SyncErrorReason::RunContainerError, error.to_string())
                })
            }
            Err(error) => Err(SyncError::new(
                reason_of(&error, SyncErrorReason::RunContainerError),
                error.to_string(),
            )),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call site; what a create depends on"
    )]
    async fn prepare_and_create(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        sandbox_id: &str,
        up: Up<'_>,
        files: &Files,
        start: Start<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, SyncError> {
        let uid = PodUid::of(pod);
        let image_name = container.image.as_deref().unwrap_or_default();
        let policy = PullPolicy::of(container);
        let image = tokio::select! {
            image = self.image(pod, container, policy) => image?,
            () = cancel.cancelled() => return Err(cancelled()),
        };
        let pod_ips = if needs_pod_ips(container) {
            up.await?
        } else {
            Vec::new()
        };
        let seccomp = self.seccomp_profile(pod, container).await;
        let termination_log = {
            let (uid, name) = (uid.clone(), container.name.clone());
            self.on_disk(move |volumes| volumes.ensure_termination_log(&uid, &name))
                .await
                .map_err(config_error)?
        };
        let facts = self
            .engine_facts()
            .await
            .map_err(|error| runtime_error(&error))?;
        let mut image = image;
        let mut pulled_anew = false;
        loop {
            let mut input = ContainerInput {
                owner: &self.owner,
                pod,
                container,
                role: start.role,
                restart_count: start.restart_count,
                sandbox_id,
                pod_ips: &pod_ips,
                volumes: &files.volumes,
                objects: &files.objects,
                image: Some(ImageFacts {
                    id: &image.reference,
                    user: image.facts.user.as_deref().unwrap_or_default(),
                }),
                seccomp_json: seccomp.as_deref(),
                termination_log: Some(&termination_log),
                etc_hosts: Some(&files.etc_hosts),
                node: &self.node,
                engine: &facts,
            };
            let with_subpaths = self.subpaths(&input).await?;
            input.volumes = &with_subpaths;
            let request = container_request(&input).map_err(config_error)?;
            tell_notes(&self.telemetry, pod, &request.notes);
            match self
                .create(request, image_name, &image.facts.image_id())
                .await
            {
                Ok(id) => return Ok(id),
                Err(error) if error.is_not_found() && !pulled_anew => {
                    pulled_anew = true;
                    self.images.forget(image_name);
                    image = self.image(pod, container, policy).await?;
                }
                Err(error) => {
                    return Err(SyncError::new(
                        reason_of(&error, SyncErrorReason::CreateContainerError),
                        error.to_string(),
                    ));
                }
            }
        }
    }

    /// Makes sure that the container's image is there.
    async fn image(
        &self,
        pod: &Pod,
        container: &Container,
        policy: PullPolicy,
    ) -> Result<EnsuredImage, SyncError> {
        let (uid, full_name) = (PodUid::of(pod), FullName::of(pod));
        let image = container.image.as_deref().unwrap_or_default();
        let (telemetry, name) = (&self.telemetry, &container.name);
        let began = Instant::now();
        let awaited = || occurrences::image_awaited(telemetry, &full_name, &uid, name, image);
        let ensured = self
            .images
            .ensure_image(&uid, image, policy, Timestamp::now(), awaited)
            .await;
        let took = began.elapsed();
        match &ensured {
            Ok(there) if there.pulled => {
                let size = there.facts.size;
                occurrences::image_pulled(telemetry, &full_name, &uid, name, image, size, took);
            }
            Ok(_) => occurrences::image_present(telemetry, &full_name, &uid, name, image),
            Err(error) => {
                occurrences::image_failed(telemetry, &full_name, &uid, name, image, took, error);
            }
        }
        ensured
    }

    /// Content of the container's seccomp profile; none where it wants none or it can't be read,
    /// which the translation reports.
    async fn seccomp_profile(&self, pod: &Pod, container: &Container) -> Option<String> {
        match seccomp_wanted(pod, container) {
            SeccompWanted::Localhost(profile) => {
                let path = self.root.join(SECCOMP_DIR).join(profile);
                tokio::fs::read_to_string(path).await.ok()
            }
            SeccompWanted::Unconfined | SeccompWanted::RuntimeDefault => None,
        }
    }

    fn tell_sandbox(&self, pod: &Pod, id: &str, ips: &[IpAddr]) {
        occurrences::sandbox_created(
            &self.telemetry,
            &FullName::of(pod),
            &PodUid::of(pod),
            &ContainerId::docker(id),
            ips,
        );
    }

    /// Starts a container and tells the index what came of it.
    async fn start(&self, id: &str) -> Result<(), EngineError> {
        let permit = self.changes.acquire().await;
        let started = self.engine.start_container(id).await;
        drop(permit);
        match &started {
            Ok(()) => self.index.started(id, Timestamp::now()),
            // It may have been started none the less, or hold the reason why not.
            Err(_) => self.index.doubt(id),
        }
        started
    }

    /// Creates a container exactly once: a name that is taken is looked into.
    async fn create(
        &self,
        request: Request,
        image: &str,
        image_id: &str,
    ) -> Result<String, EngineError> {
        let Some(ours) = identity(&self.owner, &request) else {
            return Err(EngineError::Api {
                status: 0,
                message: format!(
                    "the name {:?} is not one of a container of ours",
                    request.name
                ),
            });
        };
        let mut name = request.name.clone();
        let mut attempt = 0;
        let began = Instant::now();
        loop {
            attempt += 1;
            let permit = self.changes.acquire().await;
            let created = self
                .engine
                .create_container(&name, request.body.clone())
                .await;
            drop(permit);
            match created {
                Ok(id) => {
                    self.index.created(Created {
                        id: id.as_str().into(),
                        ours,
                        image: image.into(),
                        image_id: image_id.into(),
                        at: Timestamp::now(),
                    });
                    return Ok(id);
                }
                Err(error) if error.is_conflict() && attempt < CREATE_ATTEMPTS => {
                    match self.holder(&error, &ours, &request.body).await? {
                        Holder::Identical(id) => return Ok(id),
                        Holder::Removed => {}
                        Holder::Ghost if began.elapsed() < GHOST_WAIT => {
                            attempt -= 1;
                            tokio::time::sleep(GHOST_POLL).await;
                        }
                        Holder::Ghost | Holder::Foreign => {
                            name = names::conflict_name(&request.name, fresh_suffix());
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Finds out what holds a name that a create needs, and clears the way where that is ours
    /// to do.
    async fn holder(
        &self,
        conflict: &EngineError,
        wanted: &OurContainer,
        body: &ContainerCreateBody,
    ) -> Result<Holder, EngineError> {
        let Some(id) = holder_id(&conflict.to_string()) else {
            return Err(conflict.clone());
        };
        let found = match self.engine.inspect_container(&id).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(Holder::Ghost),
            Err(error) => return Err(error),
        };
        let name = found.name.clone().unwrap_or_default();
        let labels = found
            .config
            .as_ref()
            .and_then(|c| c.labels.clone())
            .unwrap_or_default();
        let Some(ours) = parse_ours(&self.owner, [name.as_str()], &labels) else {
            return Ok(Holder::Foreign);
        };
        let network = |mode: Option<&bollard::models::HostConfig>| {
            mode.and_then(|host| host.network_mode.clone())
        };
        let same_sandbox =
            network(found.host_config.as_ref()) == network(body.host_config.as_ref());
        let image = found
            .config
            .as_ref()
            .and_then(|c| c.image.clone())
            .unwrap_or_default();
        self.index
            .told_created(&id, ours.clone(), &image, Timestamp::now());
        self.index.inspected(&id, u64::MAX, &found, "");
        let state = self.index.get(&id).map(|record| record.state);
        let is_sandbox = matches!(ours.kind, Kind::Sandbox { .. });
        if ours == *wanted
            && (is_sandbox || same_sandbox)
            && matches!(
                state,
                Some(ContainerState::Created | ContainerState::Running)
            )
        {
            return Ok(Holder::Identical(id));
        }
        // One that ran, by a call that took effect late, is news to the plan that wanted its name:
        // it has to be made again, by what is known by now.
        if matches!(
            state,
            Some(ContainerState::Running | ContainerState::Exited)
        ) {
            return Err(conflict.clone());
        }
        match self.engine.remove_container(&id, false).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(_) => return Err(conflict.clone()),
        }
        self.index.removed(&id);
        Ok(Holder::Removed)
    }
}

/// Who holds a name.
enum Holder {
    /// The very container that was to be created.
    Identical(String),
    /// Nobody any more.
    Removed,
    /// Nobody the Engine knows: it went just now, it is only being created by a call of an agent
    /// before this one, or its name is stuck in the Engine's books.
    Ghost,
    /// Somebody else's container, which is none of our business.
    Foreign,
}

/// What the request's container will be known as.
fn identity(owner: &str, request: &Request) -> Option<OurContainer> {
    parse_ours(
        owner,
        [request.name.as_str()],
        request.body.labels.as_ref()?,
    )
}

/// The id in `Conflict. The container name "/x" is already in use by container "<id>". …`
fn holder_id(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("is already in use by container ")?;
    let id: String = rest
        .chars()
        .skip_while(|c| *c == '"')
        .take_while(char::is_ascii_hexdigit)
        .collect();
    (id.len() >= 12).then_some(id)
}

/// A suffix no other container is likely to have.
fn fresh_suffix() -> u32 {
    let nanos = Timestamp::now().as_nanosecond();
    u32::try_from(nanos.rem_euclid(i128::from(u32::MAX))).unwrap_or(0)
}

/// Whether the Engine could not give a process an OOM score below 0: it lacks
/// `CAP_SYS_RESOURCE`. Old runtimes only say that the process could not be made.
fn refuses_oom_score(error: &EngineError) -> bool {
    let text = error.to_string();
    text.contains("can't get final child's PID from pipe") || text.contains("oom_score_adj")
}

/// Whether the container's environment names an address of the pod.
fn needs_pod_ips(container: &Container) -> bool {
    container.env.iter().flatten().any(|variable| {
        variable
            .value_from
            .as_ref()
            .and_then(|from| from.field_ref.as_ref())
            .is_some_and(|field| field.field_path.starts_with("status.podIP"))
    })
}

/// Logs what a request does otherwise than asked.
fn tell_notes(telemetry: &Telemetry, pod: &Pod, notes: &[Note]) {
    for note in notes {
        // Every pod that names no DNS policy wants the cluster's, and a box has none.
        let tell = if note.reason == MISSING_CLUSTER_DNS {
            occurrences::usual_note
        } else {
            occurrences::note
        };
        let (full_name, uid) = (FullName::of(pod), PodUid::of(pod));
        tell(telemetry, &full_name, &uid, note.reason, &note.message);
    }
}

fn runtime_error(error: &RuntimeError) -> SyncError {
    let reason = if error.is_unavailable() {
        SyncErrorReason::RuntimeUnavailable
    } else {
        SyncErrorReason::CreatePodSandboxError
    };
    SyncError::new(reason, error.to_string())
}

fn cancelled() -> SyncError {
    SyncError::new(
        SyncErrorReason::RunContainerError,
        "the pod was told to stop meanwhile",
    )
}

fn all_failed(starts: &[Start<'_>], error: &SyncError) -> Vec<SyncResult> {
    starts
        .iter()
        .map(|start| SyncResult::failed(SyncAction::StartContainer, start.name, error.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_name_is_read_from_the_conflict() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let message = format!(
            "Conflict. The container name \"/k8s_POD_a_b_c_0\" is already in use by container \"{id}\". You have to remove (or rename) that container to be able to reuse that name."
        );
        assert_eq!(holder_id(&message).as_deref(), Some(id));
        assert_eq!(
            holder_id("removal of container x is already in progress"),
            None
        );
    }
}
