//! Making a pod's sandbox.

use std::net::IpAddr;
use std::sync::Arc;

use super::super::engine::EngineError;
use super::super::files::config_error;
use super::super::kill::reason_of;
use super::super::manager::DockerManager;
use super::super::translate::{SandboxInput, hosts_file, sandbox_request};
use super::{refuses_oom_score, runtime_error, tell_notes};
use crate::api::{ContainerId, FullName, Pod, PodUid};
use crate::pod::spec;
use crate::runtime::{SyncError, SyncErrorReason};
use crate::telemetry::occurrences;

impl DockerManager {
    pub(super) async fn create_sandbox(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
    ) -> Result<String, SyncError> {
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
    pub(super) async fn start_sandbox(
        &self,
        pod: &Arc<Pod>,
        id: &str,
    ) -> Result<Vec<IpAddr>, SyncError> {
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

    pub(super) fn tell_sandbox(&self, pod: &Pod, id: &str, ips: &[IpAddr]) {
        occurrences::sandbox_created(
            &self.telemetry,
            &FullName::of(pod),
            &PodUid::of(pod),
            &ContainerId::docker(id),
            ips,
        );
    }
}
