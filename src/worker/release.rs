//! Releases the disk resources of an ended pod, before it is deleted.
//!
//! Upstream: `SyncTerminatedPod` of `pkg/kubelet/kubelet.go` (`WaitForUnmount`).

use std::sync::Arc;
use std::time::Duration;

use super::state::Volumes;
use super::task::Worker;
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::plan::Plan;
use mirrorlet_host::telemetry::occurrences;

/// Pause before volumes that could not be released are tried again. It doesn't grow: an attempt is about
/// the directories of one pod, and their disk or memory is in use until then.
pub(super) const RELEASE_RETRY: Duration = Duration::from_secs(30);

impl Worker {
    /// Releases the volumes of an ended pod, once, and returns whether that is complete. Its containers
    /// stay, and their logs with them.
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

    /// Releases the volumes of a completed static pod; if it runs again, they are created again. Its
    /// end is published before: volumes may take as long as a hanging disk. Returns when to retry.
    pub(super) async fn release_if_done(
        &mut self,
        status: &Arc<PodStatus>,
        plan: &Plan,
    ) -> Option<Duration> {
        if !plan.is_over(status) {
            if self.volumes == Volumes::Released {
                self.volumes = Volumes::Held;
            }
            return None;
        }
        if self.volumes != Volumes::Released {
            self.publish(status);
        }
        (!self.release_volumes().await).then_some(RELEASE_RETRY)
    }
}
