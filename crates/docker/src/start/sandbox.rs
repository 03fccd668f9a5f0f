//! Making a pod's sandbox.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::super::containers::Made;
use super::super::engine::EngineError;
use super::super::files::config_error;
use super::super::index::Record;
use super::super::kill::{SANDBOX_GRACE, reason_of};
use super::super::translate::{
    CgroupDriver, Kind, SandboxInput, forwarded_ports, hosts_file, pod_cgroup_limits,
    sandbox_request,
};
use super::{Since, Starter, Turn, names_oom_score, report_notes, runtime_error};
use mirrorlet_core::admit::HOST_PORT_CONFLICT;
use mirrorlet_core::api::{ContainerId, Pod, PodUid, keys};
use mirrorlet_core::resources::{CgroupLimits, of_pod};
use mirrorlet_core::rollout::is_beside;
use mirrorlet_core::spec;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

pub(super) fn sandbox_error(message: String) -> SyncError {
    SyncError::new(SyncErrorReason::CreatePodSandboxError, message)
}

/// The failure of a call that makes a sandbox.
fn failed(error: &EngineError) -> SyncError {
    let reason = reason_of(error, SyncErrorReason::CreatePodSandboxError);
    SyncError::new(reason, error.to_string())
}

impl Starter {
    /// Waits for a turn and creates a sandbox. Returns its id with the turn, or none once cancelled.
    /// The image is prepared before the turn, because a pull may take long.
    pub(super) async fn create_in_turn(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
        cancel: &CancellationToken,
    ) -> Result<Option<(String, Turn<'_>)>, SyncError> {
        let mut image_made_anew = false;
        loop {
            let making = self.facts.sandbox_image();
            let Some(image) = cancel.run_until_cancelled(making).await else {
                return Ok(None);
            };
            let image = image.map_err(|error| failed(&error))?;
            let mut turn = tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(None),
                turn = Turn::begin(&self.newcomers) => turn,
            };
            // On the heap: it is large.
            let since = turn.since();
            let creating = Box::pin(self.create_sandbox(pod, attempt, &image, &since));
            let created = turn.bound(creating).await?;
            match created {
                Ok(id) => {
                    self.report_twin(pod);
                    return Ok(Some((id, turn)));
                }
                // The image was removed behind our back, by `docker image prune -a` say.
                Err(error) if error.is_not_found() && !image_made_anew => {
                    image_made_anew = true;
                    self.facts.forget_sandbox_image();
                }
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Creates a sandbox of that image. The outer error prevents the request, the inner one is the
    /// Engine's answer.
    async fn create_sandbox(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
        image: &str,
        since: &Since,
    ) -> Result<Result<String, EngineError>, SyncError> {
        let facts = self
            .facts
            .engine_facts()
            .await
            .map_err(|error| runtime_error(&error))?;
        self.networks.check_network(pod).await?;
        self.limit_cgroup(pod, facts.cgroup_driver).await?;
        let node = self.networks.node_now(pod).await?;
        let gateway = self.gateway_of(pod).await?;
        let request = sandbox_request(&SandboxInput {
            owner: &self.containers.owner,
            pod,
            attempt,
            network_mode: self.networks.network.sandbox_mode(),
            gateway,
            image,
            node: &node,
            engine: &facts,
        })
        .map_err(|error| sandbox_error(error.to_string()))?;
        report_notes(&self.telemetry, pod, &request.notes);
        let made = self.containers.create(request, image, Some(since)).await;
        // An existing one is adopted: its start may be in progress.
        Ok(made.map(Made::into_id))
    }

    /// Reports a pod that another agent on the Engine runs, too.
    fn report_twin(&self, pod: &Pod) {
        let uid = PodUid::of(pod);
        if self.containers.twins.lock().remove(&uid) {
            let message = format!(
                "the pod runs twice: another mirrorlet on this Engine still runs its containers (docker ps --filter label={}={uid}); stop that agent and run mirrorlet cleanup --yes with its root directory",
                keys::POD_UID
            );
            self.telemetry
                .about(pod, |of| occurrences::note(of, "RunsTwice", &message));
        }
    }

    /// The host's address in the pods' network, for a pod whose host ports are forwarded there.
    pub(super) async fn gateway_of(&self, pod: &Pod) -> Result<Option<Ipv4Addr>, SyncError> {
        if !is_beside(pod) || forwarded_ports(pod).is_empty() {
            return Ok(None);
        }
        self.networks.host_ports.gateway().await.map(Some)
    }

    /// Starts a sandbox, sets up its network and writes its hosts file. A sandbox that can't be started
    /// or connected is removed; the error has all details.
    pub(super) async fn start_sandbox(
        &self,
        pod: &Arc<Pod>,
        id: &str,
        since: &Since,
    ) -> Result<Vec<IpAddr>, SyncError> {
        // Its address and its ports may be those of one that has ended.
        self.networks.host_ports.refresh().await?;
        let is_other =
            |record: &Record| matches!(record.ours.kind, Kind::Sandbox { .. }) && &*record.id != id;
        let uid = PodUid::of(pod);
        let other_runs = self.containers.runs_already(&uid, is_other);
        if other_runs.await.map_err(|error| runtime_error(&error))? {
            let _ = self.remains.remove(id).await;
            return Err(SyncError {
                retry_after: Some(std::time::Duration::ZERO),
                ..SyncError::new(
                    SyncErrorReason::CreatePodSandboxError,
                    "a previous sandbox of the pod is being started by hand",
                )
            });
        }
        if let Err(error) = self.containers.start(id, Some(since)).await {
            return Err(self.failed_start(pod, id, &error).await);
        }
        if let Err(error) = self.check_cgroup(pod, id).await {
            let _ = self.containers.stop(id, SANDBOX_GRACE).await;
            let _ = self.remains.remove(id).await;
            return Err(error);
        }
        let ips = match self.networks.set_up_network(pod, id).await {
            Ok(ips) => ips,
            Err(error) if error.reason == SyncErrorReason::SetupNetworkError => {
                // A step that fails here is repeated by the next sync or by garbage collection.
                let _ = self.containers.stop(id, SANDBOX_GRACE).await;
                let _ = self.remains.remove(id).await;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        if spec::is_host_network(pod) {
            return Ok(ips);
        }
        let hosts = hosts_file(pod, &ips, &self.files.node).map_err(config_error)?;
        let (pod, files) = (Arc::clone(pod), self.files.hosts.clone());
        self.files
            .on_disk(move |volumes| files.write(volumes, &pod, hosts))
            .await
            .map_err(config_error)?;
        Ok(ips)
    }

    /// Limits the cgroup of a pod with pod-level resources, before anything runs in it.
    ///
    /// Upstream: `EnsureExists` of `pkg/kubelet/cm/pod_container_manager_linux.go`.
    pub(super) async fn limit_cgroup(
        &self,
        pod: &Pod,
        driver: CgroupDriver,
    ) -> Result<(), SyncError> {
        let cgroup = self.pod_cgroup(pod, driver)?;
        let Some((parts, limits)) = cgroup else {
            return Ok(());
        };
        let by_systemd = driver == CgroupDriver::Systemd;
        self.files
            .on_disk(move |volumes| volumes.limit_pod_cgroup(&parts, limits, by_systemd))
            .await
            .map_err(|error| {
                let what = "spec.resources: the pod's cgroup can't be limited";
                sandbox_error(format!("{what}: {error}"))
            })
    }

    /// Fails if a pod has pod-level resources and its sandbox is not limited by them: the Engine or the
    /// kernel may not apply them, or show us other cgroups than theirs.
    async fn check_cgroup(&self, pod: &Pod, id: &str) -> Result<(), SyncError> {
        if of_pod(pod).is_none() {
            return Ok(());
        }
        let facts = self.facts.engine_facts().await;
        let driver = facts.map_err(|error| runtime_error(&error))?.cgroup_driver;
        let Some((parts, limits)) = self.pod_cgroup(pod, driver)? else {
            return Ok(());
        };
        let id = id.to_owned();
        self.files
            .on_disk(move |volumes| volumes.check_pod_cgroup(&parts, limits, &id))
            .await
            .map_err(|error| sandbox_error(error.to_string()))
    }

    fn pod_cgroup(
        &self,
        pod: &Pod,
        driver: CgroupDriver,
    ) -> Result<Option<(Vec<String>, CgroupLimits)>, SyncError> {
        pod_cgroup_limits(pod, &self.files.node.cgroup_root, driver)
            .map_err(|error| sandbox_error(error.to_string()))
    }

    /// Tidies up after a sandbox that did not start, and says why it did not.
    async fn failed_start(&self, pod: &Pod, id: &str, error: &EngineError) -> SyncError {
        let learnt = names_oom_score(error) && self.has_negative_oom_score(id).await;
        if learnt {
            self.facts.learn_no_negative_oom_score();
        }
        // Perhaps its network has gone since it was seen last.
        self.networks.network.forget();
        self.networks.host_ports.forget();
        let explained = self.networks.explain_start(error).await;
        if let Some(conflict) = &explained.conflict {
            self.telemetry.about(pod, |of| {
                occurrences::note(of, HOST_PORT_CONFLICT, conflict);
            });
        }
        let _ = self.remains.remove(id).await;
        SyncError {
            // The next attempt differs by what this one found: make it at once.
            retry_after: learnt.then_some(std::time::Duration::ZERO),
            ..SyncError::new(
                reason_of(error, SyncErrorReason::CreatePodSandboxError),
                explained.message,
            )
        }
    }

    pub(super) fn report_sandbox(&self, pod: &Pod, id: &str, ips: &[IpAddr]) {
        self.telemetry.about(pod, |of| {
            occurrences::sandbox_created(of, &ContainerId::docker(id), ips);
        });
    }
}
