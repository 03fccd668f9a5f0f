//! Failed plans, and how long they are not retried.

use std::time::Duration;

use tokio::time::Instant;

use super::task::Worker;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::plan::{Plan, Step};
use mirrorlet_runtime::{PodSyncResult, SyncErrorReason};

/// Pause after a failed round, stretched by up to half at random (upstream `backOffPeriod`).
const RETRY: Duration = Duration::from_secs(10);

/// A plan that failed, or that left a dead container behind.
pub(super) struct Held {
    pub(super) plan: Plan,
    /// Until when the same is not tried again.
    pub(super) until: Instant,
    /// When it is retried after images were added, if a missing image was the cause.
    pub(super) images_from: Option<Instant>,
    /// When it failed, if the only cause was an unavailable runtime, whose return ends the hold.
    pub(super) away_since: Option<Instant>,
}

impl Worker {
    /// How long that plan is not retried after a failure.
    pub(super) fn held_for(&self, plan: &Plan) -> Option<Duration> {
        let held = self
            .held
            .as_ref()
            .filter(|held| same_work(&held.plan, plan))?;
        let back = held
            .away_since
            .zip(self.context.cache.known_until())
            .is_some_and(|(away, known)| known >= away);
        let left = held.until.saturating_duration_since(Instant::now());
        (!back && !left.is_zero()).then_some(left)
    }

    /// Whether nothing is held that the pod needs: removing ended containers doesn't affect running
    /// ones.
    pub(super) fn holds_nothing_needed(&self) -> bool {
        let is_removal = |step: &Step| matches!(step, Step::RemoveContainer { .. });
        let held = self.held.as_ref();
        held.is_none_or(|held| held.plan.steps.iter().all(is_removal))
    }

    /// Whether a plan is held because of a missing image.
    pub(super) fn waits_for_image(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.images_from.is_some())
    }

    /// Shortens the hold of a plan because of a missing image, which may be available by now. Other
    /// images come and go, so the usual pause stays.
    pub(super) fn try_images_soon(&mut self) {
        if let Some(held) = &mut self.held
            && let Some(from) = held.images_from.take()
        {
            held.until = held.until.min(from);
        }
    }
}

/// Whether two plans are equal except for the sandbox's number: one that can't be started must not be
/// retried immediately under the next number, endlessly.
fn same_work(a: &Plan, b: &Plan) -> bool {
    let same = |a: &Step, b: &Step| {
        if let (Step::CreateSandbox { reason: a, .. }, Step::CreateSandbox { reason: b, .. }) =
            (a, b)
        {
            a == b
        } else {
            a == b
        }
    };
    a.steps.len() == b.steps.len() && a.steps.iter().zip(&b.steps).all(|(a, b)| same(a, b))
}

/// When to retry after a round: never by itself after a complete one, or while the runtime is away,
/// whose return wakes all workers.
pub(super) fn retry_after(result: &PodSyncResult, uid: &PodUid) -> Option<Duration> {
    let mut advised: Option<Duration> = None;
    let mut failed = false;
    for error in result.errors() {
        failed = true;
        if let Some(retry) = error.retry_after {
            advised = Some(advised.map_or(retry, |known| known.min(retry)));
        } else if error.reason != SyncErrorReason::RuntimeUnavailable {
            let usual = usual_pause(uid);
            advised = Some(advised.map_or(usual, |known| known.min(usual)));
        }
    }
    if failed {
        return Some(advised.unwrap_or(RETRY));
    }
    result.left_behind.then(|| usual_pause(uid))
}

/// The pause of a pod after a failed round, where nothing advises another.
fn usual_pause(uid: &PodUid) -> Duration {
    RETRY + jitter(uid, RETRY / 2)
}

/// When a round that failed because of a missing image is retried after images were added.
pub(super) fn images_from(result: &PodSyncResult, uid: &PodUid) -> Option<Instant> {
    let mut errors = result.errors();
    let image_missing = errors.any(|error| is_of_image(error.reason));
    image_missing.then(|| Instant::now() + usual_pause(uid))
}

/// Whether an image was missing, for whatever reason.
fn is_of_image(reason: SyncErrorReason) -> bool {
    matches!(
        reason,
        SyncErrorReason::ErrImagePull
            | SyncErrorReason::ImagePullBackOff
            | SyncErrorReason::ErrImageNeverPull
            | SyncErrorReason::RegistryUnavailable
    )
}

/// A share of `spread` that differs from pod to pod, so that pods that fail together don't come
/// back together.
fn jitter(uid: &PodUid, spread: Duration) -> Duration {
    let sum: u32 = uid.as_str().bytes().fold(17, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    spread * (sum % 100) / 100
}
