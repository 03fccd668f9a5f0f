//! Removing what is left on disk of pods that nobody has: an agent before this one was killed
//! between a pod's containers and its directory, or something was still mounted there.
//!
//! Upstream: `HandlePodCleanups` of `pkg/kubelet/kubelet_pods.go`, `cleanupOrphanedPodDirs` of
//! `pkg/kubelet/kubelet_volumes.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::PodWorkers;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::RuntimeError;

/// Pause between two looks, while nothing is left.
const PERIOD: Duration = Duration::from_mins(1);
/// Pauses while something can't be removed: each attempt asks the runtime.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_mins(2), Duration::from_hours(1));

/// The next look, and the reported problems.
#[derive(Debug)]
pub(super) struct Tidy {
    next: Option<Instant>,
    backoff: ExponentialBackoff,
    told: BTreeMap<PodUid, String>,
}

impl Default for Tidy {
    fn default() -> Self {
        Self {
            next: None,
            backoff: RETRY,
            told: BTreeMap::new(),
        }
    }
}

impl Tidy {
    /// Ends when it is time to look, for ever before the first look.
    pub(super) async fn due(&self) {
        match self.next {
            Some(next) => tokio::time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }
}

impl PodWorkers {
    /// Looks for the first time once every source has delivered.
    pub(super) async fn tidy_once(&mut self) {
        if self.tidy.next.is_none() {
            self.tidy().await;
        }
    }

    /// Removes the directories of unknown pods. No worker starts during that, so nothing
    /// is removed that comes back; a pod of that UID would find old volumes.
    pub(super) async fn tidy(&mut self) {
        if !self.wanted.borrow().delivered.all() {
            return;
        }
        let mut left = BTreeMap::new();
        let keep = self.workers.keys().cloned().collect();
        let orphans = self.context.runtime.list_orphans(&keep).await;
        if !orphans.is_empty()
            && let Err(error) = self.remove_orphans(orphans, &mut left).await
        {
            tracing::debug!(error = %error, "failed to list running pods; kept all directories");
        }
        for (uid, error) in &left {
            if self.tidy.told.get(uid) != Some(error) {
                occurrences::orphan_left(uid, error);
            }
        }
        let pause = if left.is_empty() {
            self.tidy.backoff.reset();
            PERIOD
        } else {
            self.tidy.backoff.pause()
        };
        self.tidy.told = left;
        self.tidy.next = Some(Instant::now() + pause);
    }

    /// Removes them, but for those of pods that run after all: what can't be undone is not done on
    /// the strength of what was seen some time ago.
    async fn remove_orphans(
        &self,
        orphans: Vec<PodUid>,
        left: &mut BTreeMap<PodUid, String>,
    ) -> Result<(), RuntimeError> {
        self.running.force_update_if_older(Instant::now()).await?;
        let running = self.running.get_pods().await?;
        for uid in orphans {
            if !running.find_pod_by_id(&uid).is_empty() {
                continue;
            }
            if let Err(error) = self.context.runtime.delete_pod(&uid).await {
                left.insert(uid, error.to_string());
            }
        }
        Ok(())
    }
}
