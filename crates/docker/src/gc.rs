//! Garbage collection of containers: decided from the index, so that it makes no calls if there is
//! nothing to collect.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};

use super::remove::Remains;
use super::translate::Kind;
use mirrorlet_core::api::keys::SANDBOX_NAME;
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::gc::{
    Cause, ContainerGcPolicy, GcInput, PodLife, Removal, compute_container_gc,
};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::gc::{GcOutcome, PodStateProvider};
use mirrorlet_runtime::{Result, RuntimeError};

/// Removals at a time: few, so that they don't hold up starts.
const REMOVALS_MAX: usize = 4;

impl Remains {
    /// See [`Runtime::garbage_collect`](mirrorlet_runtime::Runtime::garbage_collect).
    pub(super) async fn collect(
        &self,
        policy: ContainerGcPolicy,
        pods: &dyn PodStateProvider,
        evict_non_deleted: bool,
    ) -> GcOutcome {
        let mut outcome = GcOutcome::default();
        // Before everything was listed, or after a gap, the newest is not known.
        if !self.containers.index.is_complete() {
            return outcome;
        }
        let statuses = self.containers.index.statuses();
        let lives: BTreeMap<PodUid, PodLife> = statuses
            .iter()
            .map(|pod| (pod.uid.clone(), pods.life(&pod.uid)))
            .collect_map();
        let removals = compute_container_gc(&GcInput {
            policy,
            pods: &statuses,
            lives: &lives,
            all_sources_ready: pods.all_sources_ready(),
            evict_non_deleted,
            now: Timestamp::now(),
        });
        let (sandboxes, containers): (Vec<_>, Vec<_>) = removals
            .into_iter()
            .partition(|removal| *removal.name == *SANDBOX_NAME);
        for removals in [containers, sandboxes] {
            let removed: Vec<_> = stream::iter(removals)
                .map(|removal| async move {
                    let removed = self.collect_one(&removal, pods).await;
                    (removal, removed)
                })
                .buffer_unordered(REMOVALS_MAX)
                .collect()
                .await;
            for (removal, removed) in removed {
                match removed {
                    Ok(true) => *outcome.removed.entry(removal.cause).or_default() += 1,
                    Ok(false) => {}
                    Err(error) => outcome.failed.push((removal.id, error)),
                }
            }
        }
        outcome
    }

    /// Removes one container or sandbox, and returns whether it did: the decision may be outdated by
    /// now.
    async fn collect_one(&self, removal: &Removal, pods: &dyn PodStateProvider) -> Result<bool> {
        let is_sandbox = *removal.name == *SANDBOX_NAME;
        let still = match removal.cause {
            Cause::PodGone => pods.life(&removal.uid) == PodLife::Gone,
            Cause::PodOver => pods.life(&removal.uid) == PodLife::Over,
            Cause::PerContainer | Cause::Total | Cause::Replaced => true,
        };
        let goes_last = matches!(removal.cause, Cause::PodGone | Cause::PodOver);
        if !still || (is_sandbox && goes_last && self.has_containers(&removal.uid)) {
            return Ok(false);
        }
        if removal.stop_first {
            let grace = self
                .containers
                .index
                .get(&removal.id.id)
                .map(|r| r.ours.grace);
            self.containers
                .stop(&removal.id.id, grace.unwrap_or_default())
                .await
                .map_err(RuntimeError::from)?;
        }
        self.remove(&removal.id.id).await?;
        occurrences::container_collected(&self.files.telemetry, removal);
        Ok(true)
    }

    fn has_containers(&self, uid: &PodUid) -> bool {
        let records = self.containers.index.of_pod(uid);
        records
            .iter()
            .any(|record| matches!(record.ours.kind, Kind::Container { .. }))
    }
}
