//! Pods whose manifests have gone.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Rollouts;
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::observed::Pods;

/// Pause between two looks at a pod that is still being stopped though its time is over.
const STOPPING_PERIOD: Duration = Duration::from_mins(1);

impl Rollouts {
    /// A pod whose manifest has gone has no current revision any more. Its revisions are forgotten
    /// once it has been gone for a while and nothing of it is left.
    pub(super) fn forget_missing(
        &mut self,
        wanted: &BTreeMap<FullName, SourcePod>,
        listed: &Pods,
        now: Timestamp,
    ) {
        let board = &self.options.board;
        let mut look_in: Option<Duration> = None;
        self.histories.retain(|name, history| {
            let is_wanted = wanted.contains_key(name);
            if !is_wanted {
                history.end(now);
            }
            let Some(left) = history.forgotten_in(now) else {
                return true;
            };
            let is_there = |uid: &PodUid| board.get(uid).is_some() || listed.has(uid);
            let mut revisions = history.revisions.iter();
            let stays = !left.is_zero() || revisions.any(|one| is_there(&one.uid()));
            if stays && !is_wanted {
                let wait = if left.is_zero() {
                    STOPPING_PERIOD
                } else {
                    left
                };
                look_in = Some(look_in.map_or(wait, |known| known.min(wait)));
            }
            stays
        });
        if let Some(wait) = look_in {
            self.look_in(wait);
        }
        self.phases.retain(|name, _| wanted.contains_key(name));
        self.preparations.retain(|name| wanted.contains_key(name));
    }
}
