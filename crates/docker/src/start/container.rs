//! Starting one container: its image, its files, its creation, its start.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::files::{Files, config_error};
use super::super::image::{EnsuredImage, PullPolicy};
use super::super::kill::{Stop, reason_of};
use super::super::manager::DockerManager;
use super::super::translate::{
    ContainerInput, ImageFacts, Kind, SeccompWanted, container_request, seccomp_wanted,
};
use super::{Start, Up, refuses_oom_score, runtime_error, tell_notes};
use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::credentials::PullSecrets;
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::plan::Reason;
use mirrorlet_core::spec;
use mirrorlet_core::status::one_per_family;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

/// Directory of seccomp profiles below the root.
const SECCOMP_DIR: &str = "seccomp";

impl DockerManager {
    pub(super) async fn start_container(
        &self,
        pod: &Arc<Pod>,
        sandbox_id: &str,
        up: Up<'_>,
        files: &Files,
        start: Start<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        let Some((_, container)) = spec::find_any_container(pod, start.name) else {
            return Err(SyncError::new(
                SyncErrorReason::CreateContainerConfigError,
                "no matching container",
            ));
        };
        let container = &*container;
        let policy = PullPolicy::of(container);
        let image = tokio::select! {
            image = self.image(pod, container, policy, &files.pull_secrets) => image,
            () = cancel.cancelled() => Err(cancelled()),
        };
        let was_present = image.as_ref().is_ok_and(|image| !image.pulled);
        let created = match image {
            Ok(image) => {
                let create = self.prepare_and_create(
                    pod,
                    container,
                    sandbox_id,
                    up.clone(),
                    files,
                    start,
                    image,
                );
                create.await
            }
            Err(error) => Err(error),
        };
        // Whether the sandbox runs comes first: without it a container's own failure is noise.
        if let Err(error) = up.await {
            if let Ok(id) = created {
                let _ = self.remove(&id).await;
            }
            return Err(error);
        }
        // Told of a start that comes to something: one that is repeated at once would tell it again.
        if was_present {
            let (full_name, uid) = (FullName::of(pod), PodUid::of(pod));
            let image = container.image.as_deref().unwrap_or_default();
            occurrences::image_present(&self.telemetry, &full_name, &uid, start.name, image);
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
        let started = self.start(&id).await;
        if started
            .as_ref()
            .err()
            .is_none_or(|error| !refuses_oom_score(error))
        {
            // Also of one that failed to start: collectors find out why.
            self.link_log(&id).await;
        }
        match started {
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
                tokio::select! {
                    hooked = self.hooked(pod, container, &id) => hooked,
                    // What stops the pod stops the container, too.
                    () = cancel.cancelled() => Ok(()),
                }
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

    /// Runs the postStart hook of a container that was started. One whose hook fails is stopped.
    async fn hooked(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        id: &str,
    ) -> Result<(), SyncError> {
        let Err(error) = self.post_start(pod, container, id).await else {
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
            after: &[],
        };
        // One that can't be stopped is seen running by the next round, and is left so.
        let _ = self.stop_container(stop).await;
        Err(SyncError::new(
            SyncErrorReason::PostStartHookError,
            format!("the postStart hook failed: {error}"),
        ))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call site; what a create depends on"
    )]
    pub(super) async fn prepare_and_create(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        sandbox_id: &str,
        up: Up<'_>,
        files: &Files,
        start: Start<'_>,
        mut image: EnsuredImage,
    ) -> Result<String, SyncError> {
        let uid = PodUid::of(pod);
        let image_name = container.image.as_deref().unwrap_or_default();
        let pod_ips = if needs_pod_ips(container) {
            // As its status tells them.
            one_per_family(&up.await?, &self.node.node_ips)
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
        let target = self.target(pod, start.name)?;
        let mut pulled_anew = false;
        loop {
            let mut input = ContainerInput {
                owner: &self.owner,
                pod,
                container,
                role: start.role,
                restart_count: start.restart_count,
                sandbox_id,
                target: target.as_deref(),
                pod_ips: &pod_ips,
                volumes: &files.volumes,
                objects: &files.objects,
                image: Some(ImageFacts {
                    id: &image.facts.id,
                    name: &image.reference,
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
                    image = self
                        .image(
                            pod,
                            container,
                            PullPolicy::of(container),
                            &files.pull_secrets,
                        )
                        .await?;
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

    /// Id of the container whose processes an added one is to see, if it names one.
    ///
    /// Upstream: `getTargetID` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
    fn target(&self, pod: &Pod, name: &str) -> Result<Option<String>, SyncError> {
        let Some(target) = spec::target_container(pod, name) else {
            return Ok(None);
        };
        let records = self.index.of_pod(&PodUid::of(pod));
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

    /// Makes sure that the container's image is there, and tells of its pull.
    pub(super) async fn image(
        &self,
        pod: &Pod,
        container: &Container,
        policy: PullPolicy,
        secrets: &PullSecrets,
    ) -> Result<EnsuredImage, SyncError> {
        let (uid, full_name) = (PodUid::of(pod), FullName::of(pod));
        let image = container.image.as_deref().unwrap_or_default();
        let (telemetry, name) = (&self.telemetry, &container.name);
        let began = Instant::now();
        let awaited = || occurrences::image_awaited(telemetry, &full_name, &uid, name, image);
        let ensured = self
            .images
            .ensure_image(&uid, image, policy, secrets, Timestamp::now(), awaited)
            .await;
        let took = began.elapsed();
        match &ensured {
            Ok(there) if there.pulled => {
                let size = there.facts.size;
                occurrences::image_pulled(telemetry, &full_name, &uid, name, image, size, took);
            }
            Ok(_) => {}
            Err(error) => {
                occurrences::image_failed(telemetry, &full_name, &uid, name, image, took, error);
            }
        }
        ensured
    }

    /// Content of the container's seccomp profile; none where it wants none or it can't be read,
    /// which the translation reports.
    pub(super) async fn seccomp_profile(&self, pod: &Pod, container: &Container) -> Option<String> {
        match seccomp_wanted(pod, container) {
            SeccompWanted::Localhost(profile) => {
                let path = self.root.join(SECCOMP_DIR).join(profile);
                tokio::fs::read_to_string(path).await.ok()
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

fn cancelled() -> SyncError {
    SyncError::new(
        SyncErrorReason::RunContainerError,
        "the pod was told to stop meanwhile",
    )
}
