//! Starting one container: its image, its files, its creation, its start.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::containers::Made;
use super::super::files::config_error;
use super::super::index::Record;
use super::super::kill::{Stop, reason_of};
use super::super::room::Taken;
use super::super::translate::{
    ContainerInput, EngineFacts, ImageFacts, Kind, Request, SeccompWanted, container_request,
    seccomp_wanted,
};
use super::images::Images;
use super::{EngineError, Round, Start, Starter, Up, names_oom_score, report_notes, runtime_error};
use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{ContainerId, Pod, PodUid};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::plan::Reason;
use mirrorlet_core::sizes::json_size;
use mirrorlet_core::spec;
use mirrorlet_core::status::one_per_family;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

/// Largest seccomp profile, in MiB.
const SECCOMP_MIB_MAX: u64 = 1;
/// Directory of seccomp profiles below the root.
const SECCOMP_DIR: &str = "seccomp";

/// The inputs of a container's creation besides its image.
struct Prepared {
    pod_ips: Vec<IpAddr>,
    seccomp: Option<String>,
    termination_log: PathBuf,
    engine: EngineFacts,
    target: Option<String>,
}

/// Copies of a request while it is sent: the request, the copy for another attempt, its text.
const REQUEST_COPIES: usize = 3;

/// The bytes that a request takes until its container is created.
fn bytes_of(request: &Result<Request, SyncError>) -> usize {
    let bytes = |request: &Request| json_size(&request.body).bytes;
    REQUEST_COPIES * request.as_ref().map_or(0, bytes)
}

/// Why a container was not created.
struct CreateFailure {
    error: SyncError,
    /// Whether the Engine may have created it all the same.
    may_exist: bool,
}

impl From<SyncError> for CreateFailure {
    fn from(error: SyncError) -> Self {
        Self {
            error,
            may_exist: false,
        }
    }
}

impl Starter {
    pub(super) async fn start_container(
        &self,
        round: Round<'_>,
        up: Up<'_>,
        start: Start<'_>,
    ) -> Result<(), SyncError> {
        let Some((_, container)) = spec::find_any_container(round.pod, start.name) else {
            return Err(SyncError::new(
                SyncErrorReason::CreateContainerConfigError,
                "no matching container",
            ));
        };
        let Some(id) = self.created(round, up, start, &container).await? else {
            return Ok(());
        };
        match self.containers.start(&id, None).await {
            Err(error) if self.refused_oom_score(&error, &id, round.sandbox_id).await => {
                self.facts.learn_no_negative_oom_score();
                let _ = self.remains.remove(&id).await;
                let error = SyncError::new(SyncErrorReason::RunContainerError, error.to_string());
                Err(SyncError {
                    retry_after: Some(std::time::Duration::ZERO),
                    ..error.passing()
                })
            }
            Err(error) => {
                // Collectors find out why it failed.
                self.logs.link_log(&id).await;
                // The container or its sandbox was removed meanwhile.
                let passing = says_nothing(&error) || error.is_not_found();
                Err(failed(&error, SyncErrorReason::RunContainerError, passing))
            }
            Ok(()) => {
                self.logs.link_log(&id).await;
                self.telemetry.about(round.pod, |of| {
                    let (id, why) = (ContainerId::docker(id.as_str()), start.reason.to_string());
                    let count = start.restart_count;
                    occurrences::container_started(of, start.name, &id, count, &why);
                });
                self.note_restarts(round.pod, start).await;
                tokio::select! {
                    hooked = self.hooked(round.pod, &container, &id) => hooked,
                    // Cancelling the pod's start cancels the container's, too.
                    () = round.cancel.cancelled() => Ok(()),
                }
            }
        }
    }

    /// Whether the start of a container failed because of its OOM score. Its author can provoke that
    /// error message, for example by the name of a command, but can't change its sandbox: that has a
    /// score below 0 unless the Engine refused one before.
    async fn refused_oom_score(&self, error: &EngineError, id: &str, sandbox: &str) -> bool {
        names_oom_score(error)
            && self.has_negative_oom_score(id).await
            && !self.has_negative_oom_score(sandbox).await
    }

    /// Whether a container was created with an OOM score below 0.
    pub(super) async fn has_negative_oom_score(&self, id: &str) -> bool {
        let found = self.containers.engine.inspect_container(id).await;
        let host = found.ok().and_then(|found| found.host_config);
        host.and_then(|host| host.oom_score_adj)
            .is_some_and(|score| score < 0)
    }

    /// Ensures that the container is created and its sandbox runs. None if there is nothing to start:
    /// the pod is being stopped, or the container was already started by others.
    async fn created(
        &self,
        round: Round<'_>,
        up: Up<'_>,
        start: Start<'_>,
        container: &Container,
    ) -> Result<Option<String>, SyncError> {
        let pod = round.pod;
        let images = tokio::select! {
            images = self.images(pod, container, None, &round.files.pull_secrets) => images,
            () = round.cancel.cancelled() => Err(cancelled()),
        };
        let was_present = images.as_ref().is_ok_and(|images| !images.own.pulled);
        let created = match images {
            Ok(images) => {
                let create = self.prepare_and_create(round, up.clone(), start, container, images);
                create.await
            }
            Err(error) => Err(error),
        };
        // Whether the sandbox runs comes first: without it a container's own failure is noise.
        if let Err(error) = up.await {
            if let Ok(id) = created {
                let _ = self.remains.remove(&id).await;
            }
            return Err(error);
        }
        // Only once the sandbox runs: an immediate retry would log it twice.
        if was_present {
            let image = container.image.as_deref().unwrap_or_default();
            self.telemetry
                .about(pod, |of| occurrences::image_present(of, start.name, image));
        }
        let id = created?;
        if round.cancel.is_cancelled() {
            let _ = self.remains.remove(&id).await;
            return Ok(None);
        }
        let adopted = self.containers.index.get(&id);
        if adopted.is_some_and(|record| record.state != ContainerState::Created) {
            return Ok(None);
        }
        if self.runs_already(pod, start.name, &id).await? {
            // The next plan knows what to do about it.
            let _ = self.remains.remove(&id).await;
            return Ok(None);
        }
        let container_id = ContainerId::docker(id.as_str());
        self.telemetry.about(pod, |of| {
            occurrences::container_created(of, start.name, &container_id);
        });
        Ok(Some(id))
    }

    /// Whether a user has started an earlier instance of the container, and it runs.
    async fn runs_already(&self, pod: &Pod, name: &str, id: &str) -> Result<bool, SyncError> {
        let is_namesake = |record: &Record| match &record.ours.kind {
            Kind::Container { name: other, .. } => other == name && &*record.id != id,
            Kind::Sandbox { .. } => false,
        };
        let uid = PodUid::of(pod);
        let runs = self.containers.runs_already(&uid, is_namesake);
        runs.await.map_err(|error| runtime_error(&error))
    }

    /// Runs the postStart hook of a started container. If the hook fails, the container is stopped.
    async fn hooked(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        id: &str,
    ) -> Result<(), SyncError> {
        let Err(error) = self.hooks.post_start(pod, container, id).await else {
            return Ok(());
        };
        let reason = Reason::PostStartFailed {
            container: container.name.as_str().into(),
        };
        let grace = spec::termination_grace(pod);
        let stop = Stop {
            pod: Some(pod),
            id,
            name: &container.name,
            grace,
            reason: Some(&reason),
            is_replaced: false,
            after: &[],
        };
        // One that can't be stopped is seen running by the next round, and is left so.
        let _ = self.killer.stop_container(stop).await;
        Err(SyncError::new(
            SyncErrorReason::PostStartHookError,
            format!("the postStart hook failed: {error}"),
        ))
    }

    async fn prepare_and_create(
        &self,
        round: Round<'_>,
        up: Up<'_>,
        start: Start<'_>,
        container: &Container,
        images: Images,
    ) -> Result<String, SyncError> {
        let prepared = self.prepare(round, up, start, container).await?;
        let created = self
            .create_prepared(round, start, container, &prepared, images)
            .await;
        let path = prepared.termination_log;
        let is_mounted = match &created {
            Ok(id) => self.containers.index.has_termination_log(id, &path),
            Err(uncreated) => uncreated.may_exist,
        };
        if !is_mounted {
            let uid = PodUid::of(round.pod);
            self.remains.remove_message(&uid, start.name, path).await;
        }
        created.map_err(|uncreated| uncreated.error)
    }

    async fn create_prepared(
        &self,
        round: Round<'_>,
        start: Start<'_>,
        container: &Container,
        prepared: &Prepared,
        mut images: Images,
    ) -> Result<String, CreateFailure> {
        let image_name = container.image.as_deref().unwrap_or_default();
        let (mut pulled_anew, mut made_room) = (false, false);
        loop {
            // Sub-paths may be on a disk that hangs.
            let making = self.request(round, start, container, prepared, &images);
            let request = round.cancel.run_until_cancelled(making).await;
            let (request, room) = request.unwrap_or_else(|| Err(cancelled()))?;
            report_notes(&self.telemetry, round.pod, &request.notes);
            let created = self.containers.create(request, image_name, None).await;
            drop(room);
            match created {
                // Creating it again would take too long again: a slow Engine would never start it.
                Ok(Made::New(id) | Made::Late(id)) => return Ok(id),
                Ok(Made::Found(id)) => {
                    if made_room || !self.remove_unstarted(&id).await? {
                        return Ok(id);
                    }
                    made_room = true;
                }
                Err(error) if error.is_not_found() && !pulled_anew => {
                    pulled_anew = true;
                    self.images.forget(image_name);
                    for (_, source) in spec::mounted_images(round.pod, container) {
                        let image = source.reference.as_deref().unwrap_or_default();
                        self.images.forget(image);
                    }
                    let secrets = &round.files.pull_secrets;
                    let pulling = self.images(round.pod, container, None, secrets);
                    let pulled = round.cancel.run_until_cancelled(pulling).await;
                    images = pulled.unwrap_or_else(|| Err(cancelled()))?;
                }
                Err(error) => {
                    let reason = SyncErrorReason::CreateContainerError;
                    return Err(CreateFailure {
                        may_exist: !matches!(error, EngineError::Api { .. }),
                        error: failed(&error, reason, says_nothing(&error)),
                    });
                }
            }
        }
    }

    /// Removes an existing container that was to be created, and returns whether it did; not one that
    /// was started. Its environment, mounts and settings may be older than the request, and the kubelet
    /// creates a new one for each attempt. The Engine refuses to remove one whose start is in progress.
    async fn remove_unstarted(&self, id: &str) -> Result<bool, SyncError> {
        let found = self.containers.index.get(id);
        if found.is_some_and(|record| record.state != ContainerState::Created) {
            return Ok(false);
        }
        match self.remains.remove(id).await {
            Ok(()) => Ok(true),
            Err(error) => {
                let reason = if error.is_unavailable() {
                    SyncErrorReason::RuntimeUnavailable
                } else {
                    SyncErrorReason::CreateContainerError
                };
                Err(SyncError::new(reason, error.to_string()).passing())
            }
        }
    }

    async fn prepare(
        &self,
        round: Round<'_>,
        up: Up<'_>,
        start: Start<'_>,
        container: &Container,
    ) -> Result<Prepared, SyncError> {
        let pod_ips = if needs_pod_ips(container) {
            // As its status has them.
            one_per_family(&up.await?, &self.files.node_ips())
        } else {
            Vec::new()
        };
        let engine = self.facts.engine_facts().await;
        let engine = engine.map_err(|error| runtime_error(&error))?;
        let target = self.target(round.pod, start.name)?;
        let seccomp = self.seccomp_profile(round.pod, container).await;
        // Last, so that no error leaves it behind.
        let (uid, name) = (PodUid::of(round.pod), container.name.clone());
        let termination_log = self
            .files
            .on_disk(move |volumes| volumes.ensure_termination_log(&uid, &name));
        Ok(Prepared {
            pod_ips,
            seccomp,
            termination_log: termination_log.await.map_err(config_error)?,
            engine,
            target,
        })
    }

    /// The create request, and the room that it takes.
    async fn request(
        &self,
        round: Round<'_>,
        start: Start<'_>,
        container: &Container,
        prepared: &Prepared,
        images: &Images,
    ) -> Result<(Request, Taken), SyncError> {
        let image = &images.own;
        let image_id = image.facts.image_id();
        let node = self.files.node_with_ips();
        let mut input = ContainerInput {
            owner: &self.containers.owner,
            pod: round.pod,
            container,
            role: start.role,
            restart_count: start.restart_count,
            pod_restarts: start.pod_restarts,
            sandbox_id: round.sandbox_id,
            target: prepared.target.as_deref(),
            pod_ips: &prepared.pod_ips,
            volumes: &round.files.volumes,
            objects: &round.files.objects,
            env_files: None,
            image: Some(ImageFacts {
                id: &image.facts.id,
                name: &image.reference,
                user: image.facts.user.as_deref().unwrap_or_default(),
                status_id: &image_id,
            }),
            seccomp_json: prepared.seccomp.as_deref(),
            termination_log: Some(&prepared.termination_log),
            etc_hosts: Some(&round.files.etc_hosts),
            node: &node,
            engine: &prepared.engine,
        };
        let mut volumes = round.files.volumes.clone();
        volumes.images.clone_from(&images.volumes);
        let volumes = self.files.subpaths(&input, volumes).await?;
        input.volumes = &volumes;
        let (env_files, files_room) = self.files.env_files(round.pod, container).await?;
        input.env_files = Some(&env_files);
        let build = || container_request(&input).map_err(config_error);
        let (request, taken) = self.requests.made(build, bytes_of).await;
        drop(files_room);
        Ok((request?, taken))
    }

    /// Id of the target container whose processes an ephemeral container should see, if it names one.
    ///
    /// Upstream: `getTargetID` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
    fn target(&self, pod: &Pod, name: &str) -> Result<Option<String>, SyncError> {
        let Some(target) = spec::target_container(pod, name) else {
            return Ok(None);
        };
        let records = self.containers.index.of_pod(&PodUid::of(pod));
        let instances = records.iter().filter_map(|record| match &record.ours.kind {
            Kind::Container {
                name,
                restart_count,
                ..
            } if name == target => Some((*restart_count, record.id.to_string())),
            Kind::Container { .. } | Kind::Sandbox { .. } => None,
        });
        let newest = instances.max_by_key(|(restart_count, _)| *restart_count);
        newest.map(|(_, id)| Some(id)).ok_or_else(|| {
            SyncError::new(
                SyncErrorReason::CreateContainerConfigError,
                format!("unable to find target container {target}"),
            )
        })
    }

    /// Content of the container's seccomp profile; none if it needs none or it can't be read, which the
    /// translation reports.
    pub(super) async fn seccomp_profile(&self, pod: &Pod, container: &Container) -> Option<String> {
        match seccomp_wanted(pod, container, self.files.node.seccomp_default) {
            SeccompWanted::Localhost(profile) => {
                let path = self.root.join(SECCOMP_DIR).join(profile);
                let read = disk::blocking(move || disk::read_small(&path, SECCOMP_MIB_MAX));
                String::from_utf8(read.await.ok()?).ok()
            }
            SeccompWanted::Unconfined | SeccompWanted::RuntimeDefault => None,
        }
    }
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

/// Whether a failed call says nothing about its container: it wasn't answered, or conflicted with
/// another operation.
fn says_nothing(error: &EngineError) -> bool {
    match error {
        EngineError::Unavailable { .. } | EngineError::Timeout { .. } => true,
        EngineError::Api { .. } | EngineError::Decode { .. } | EngineError::TooLarge { .. } => {
            error.is_conflict()
        }
    }
}

/// The failure of a call for a container.
fn failed(error: &EngineError, reason: SyncErrorReason, passing: bool) -> SyncError {
    SyncError {
        passing,
        ..SyncError::new(reason_of(error, reason), error.to_string())
    }
}

pub(super) fn cancelled() -> SyncError {
    SyncError::new(
        SyncErrorReason::RunContainerError,
        "the pod is being stopped",
    )
    .passing()
}
