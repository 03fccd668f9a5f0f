//! Giving back what a pod that has ended holds on disk, before it is deleted.
//!
//! Upstream: `SyncTerminatedPod` of `pkg/kubelet/kubelet.go` (`WaitForUnmount`).

use std::time::Duration;

use super::state::Volumes;
use super::task::Worker;
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::plan::Plan;
use mirrorlet_host::telemetry::occurrences;

/// Pause before volumes that could not be released are tried again.
pub(super) const RELEASE_RETRY: Duration = Duration::from_secs(30);

impl Worker {
    /// Releases the volumes of a pod of which nothing runs and nothing will, once, and says
    /// whether that is done. Its containers stay, and their logs with them.
    pub(super) async fn release_volumes(&mut self) -> bool {
        if self.volumes == Volumes::Released {
            return true;
        }
        self.volumes = match self.context.runtime.release_volumes(&self.uid).await {
            Ok(()) => Volumes::Released,
            Err(error) => {
                let stuck = Volumes::Stuck(error.to_string().into());
                if self.volumes != stuck {
                    occurrences::remove_failed(self.telemetry(), &error.to_string());
                }
                stuck
            }
        };
        self.volumes == Volumes::Released
    }

    /// Releases the volumes of a manifest's pod that is done; one that runs again has them made
    /// anew. Returns when to try again.
    pub(super) async fn release_if_done(
        &mut self,
        status: &PodStatus,
        plan: &Plan,
    ) -> Option<Duration> {
        if !plan.is_over(status) {
            if self.volumes == Volumes::Released {
                self.volumes = Volumes::Held;
            }
            return None;
        }
        (!self.release_volumes().await).then_some(RELEASE_RETRY)
    }
}
