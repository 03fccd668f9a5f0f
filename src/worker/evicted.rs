//! Evicted pods of manifests: each is started again after a pause, once the node has no shortage.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Command, PodWorkers};
use crate::store::evictions::Evict;
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::backoff::Backoff;
use mirrorlet_core::ending::is_api_pod;
use mirrorlet_host::telemetry::occurrences;

/// When evicted pods may start again.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    backoff: Backoff<PodUid>,
    until: HashMap<PodUid, Instant>,
    /// When it was last asked whether they may come back.
    asked: Option<Instant>,
}

impl Evicted {
    /// A pod was evicted. One that is evicted again soon waits longer.
    fn note(&mut self, uid: &PodUid, now: Timestamp) {
        self.backoff.gc(now);
        self.backoff.next(uid.clone(), now, now);
        let pause = self.backoff.delay(uid);
        self.until.insert(uid.clone(), Instant::now() + pause);
    }

    /// A pod runs again, or is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.until.remove(uid);
    }

    /// Whether an evicted pod has to wait longer.
    pub(super) fn holds(&self, uid: &PodUid, node: &AdmitNode) -> bool {
        let until = self.until.get(uid);
        until.is_some_and(|until| !node.pressures.is_empty() || *until > Instant::now())
    }

    /// Records that a check whether evicted pods may start again begins.
    pub(super) fn ask(&mut self) {
        self.asked = Some(Instant::now());
    }

    /// Time until the next pause ends: zero if one has ended since the last check. None if only the
    /// node's pressures hold pods.
    pub(super) fn next(&self) -> Option<Duration> {
        let is_due = |until: &&Instant| self.asked.is_none_or(|asked| **until > asked);
        let next = self.until.values().filter(is_due).min()?;
        Some(next.duration_since(Instant::now()))
    }
}

impl PodWorkers {
    /// Ends a pod as evicted, unless it is ending already.
    pub(super) fn evict(&mut self, order: &Evict) {
        let Evict {
            uid,
            failure,
            signal,
        } = order;
        let Some(handle) = self.workers.get(uid) else {
            return;
        };
        let mut is_static = false;
        let is_evicted = handle.commands.send_if_modified(|command| match command {
            Command::Run(pod) => {
                self.locks.pod_stops(pod, &handle.active);
                is_static = !is_api_pod(pod);
                *command = Command::Fail(Arc::clone(pod), failure.clone());
                true
            }
            Command::Fail(..) | Command::Stop { .. } => false,
        });
        if !is_evicted {
            return;
        }
        let telemetry = &self.context.telemetry;
        occurrences::pod_evicted(
            telemetry.pod(&handle.full_name, uid),
            signal,
            &failure.message,
        );
        if is_static {
            self.evicted.note(uid, self.context.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_has_ended_counts_until_it_is_asked_about() {
        let mut evicted = Evicted::default();
        let uid = PodUid::from("a");
        assert_eq!(evicted.next(), None);
        evicted.note(&uid, Timestamp::UNIX_EPOCH);
        assert_eq!(evicted.next(), Some(Duration::from_secs(10)));
        evicted.ask();
        tokio::time::advance(Duration::from_millis(10_001)).await;
        // eviction 8
        assert_eq!(evicted.next(), Some(Duration::ZERO));
        // A pod that only the node's pressures hold causes no further wake-up.
        evicted.ask();
        // eviction 8
        assert_eq!(evicted.next(), None);
        evicted.note(&PodUid::from("b"), Timestamp::UNIX_EPOCH);
        assert_eq!(evicted.next(), Some(Duration::from_secs(10)));
    }
}
