//! Pods whose manifests were removed, and those for which that is not known yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Rollouts;
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::{Merged, SourceName};
use mirrorlet_core::observed::Pods;

/// Interval of checks of a pod that is still being stopped after its grace period.
const STOPPING_PERIOD: Duration = Duration::from_mins(1);

impl Rollouts {
    /// Keeps pods that ran before in place of those from other sources with their names, until their
    /// own sources, which may still want them, have delivered.
    pub(super) fn keep_awaited(&self, merged: &mut Merged) {
        let pods = merged.pods.iter();
        let statics = pods.filter(|(_, pod)| !pod.is_api() && pod.runs.is_none());
        let stay: Vec<(PodUid, SourcePod)> = statics
            .filter_map(|(uid, pod)| Some((uid.clone(), self.awaited(pod, &merged.awaited)?)))
            .collect();
        for (uid, known) in stay {
            merged.keep(&uid, known);
        }
    }

    /// The pod with that name in the last known set of a source that has not delivered yet, unless it
    /// is the source of `newest`.
    fn awaited(&self, newest: &SourcePod, awaited: &BTreeSet<SourceName>) -> Option<SourcePod> {
        if awaited.is_empty() {
            return None;
        }
        let history = self.histories.get(&newest.full_name())?;
        let current = history.current()?;
        let known = history.newest_revision().unwrap_or(current);
        let source = awaited.iter().find(|source| source.has(&known.origin))?;
        if source.has(&newest.origin) || known.uid() == newest.uid() {
            return None;
        }
        Some(SourcePod {
            config: known.config.clone(),
            ..SourcePod::new(known.pod.clone(), known.origin.clone())
        })
    }

    /// Clears the current revision of a pod whose manifest was removed. Its revisions are forgotten
    /// after a while, when nothing of it is left.
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
