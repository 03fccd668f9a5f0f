//! When to check pods again that are being stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::Jobs;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::job::{Decision, JobName};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::small::SmallCollect;

/// Minimum and maximum interval of checks of pods that are being stopped. The board shows the end of
/// most of them immediately; a pod that was never started is never shown. Otherwise one with a long
/// grace period, or that can't be stopped, would cause a merge each second.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(30);

/// The pods that are being stopped, and since when the set is unchanged.
#[derive(Default)]
pub(super) struct LeavingPods(Option<(BTreeSet<PodUid>, Instant)>);

impl LeavingPods {
    /// Returns the time until the next check of these pods, which equals the time since the first one;
    /// none if there are none.
    fn look_again(&mut self, pods: BTreeSet<PodUid>, now: Instant) -> Option<Duration> {
        if pods.is_empty() {
            self.0 = None;
            return None;
        }
        let known = self.0.take().filter(|(known, _)| *known == pods);
        let (pods, since) = known.unwrap_or((pods, now));
        self.0 = Some((pods, since));
        let looked = now.saturating_duration_since(since);
        Some(looked.clamp(LOOK_MIN, LOOK_MAX))
    }
}

impl Jobs {
    /// Checks again when decisions require it, and while pods are being stopped. Jobs whose records
    /// could not be written have their own pause.
    pub(super) fn look_again(
        &mut self,
        decided: &BTreeMap<JobName, Decision>,
        failed: &BTreeMap<JobName, String>,
        merged: &Merged,
    ) {
        let written = decided
            .iter()
            .filter(|(name, _)| !failed.contains_key(*name));
        let written: Vec<&Decision> = written.map(|(_, decision)| decision).collect();
        let removed = self.store.names().filter_map(|name| {
            let record = self.store.get(name).filter(|_| !failed.contains_key(name));
            record.filter(|record| merged.delivered.manifests && record.is_removed())
        });
        let records = written.iter().map(|decision| &decision.record);
        let leaving = records
            .chain(removed)
            .flat_map(|record| &record.leaving)
            .map(|pod| pod.uid.clone())
            .collect_set();
        let waits = written.iter().filter_map(|decision| decision.look_again);
        self.look_in(waits.min());
        let wait = self.leaving.look_again(leaving, Instant::now());
        self.look_in(wait);
    }
}
