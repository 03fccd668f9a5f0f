//! Pods whose workers panicked: the next worker of such a pod starts after a pause.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Command;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::ending::{ending, is_api_pod};
use mirrorlet_core::spec;

/// Pauses before the next worker of a pod. The cause of the panic most likely persists, and each
/// panic is logged.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// A panic this long after the last pause begins a new series of pauses: twice the longest pause,
/// as for other back-offs.
const STABLE_AFTER: Duration = Duration::from_mins(10);

/// The pauses of pods whose workers panicked.
#[derive(Debug, Default)]
pub(super) struct Panics(HashMap<PodUid, Series>);

/// The panics of one pod's workers in a row.
#[derive(Debug)]
struct Series {
    backoff: ExponentialBackoff,
    /// The end of the newest pause.
    until: Instant,
}

impl Panics {
    /// Notes that a worker of the pod panicked.
    pub(super) fn note(&mut self, uid: &PodUid) {
        let now = Instant::now();
        self.0
            .retain(|_, series| now.saturating_duration_since(series.until) < STABLE_AFTER);
        let series = self.0.entry(uid.clone()).or_insert(Series {
            backoff: PAUSES,
            until: now,
        });
        series.until = now + series.backoff.pause();
    }

    /// Forgets the panics of a pod, after a worker that ended without one.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.0.remove(uid);
    }

    /// How long the next worker of the pod has to wait.
    pub(super) fn left(&self, uid: &PodUid) -> Duration {
        let until = self.0.get(uid).map(|series| series.until);
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }
}

/// Waits for a newer order that ends the pause: to end the pod, or a user's order or edit of a manifest's
/// pod. Others don't: an API pod changes with each status that its worker reports, and with each edit
/// of a tenant.
///
/// Newer than the order at the time of the call, not of the first poll: an order in between counts.
pub(super) fn urgent_order(
    mut orders: watch::Receiver<Command>,
) -> impl Future<Output = ()> + Send {
    let known = orders.borrow_and_update().clone();
    async move {
        while orders.changed().await.is_ok() {
            if is_urgent(&known, &orders.borrow()) {
                return;
            }
        }
        // The workers end, as does the pause.
        std::future::pending::<()>().await;
    }
}

fn is_urgent(known: &Command, order: &Command) -> bool {
    match (known, order) {
        (Command::Run(known), Command::Run(pod))
        | (Command::Fail(known, _), Command::Fail(pod, _)) => {
            // One that is over may be deleted.
            let ends = ending(pod).is_some() && ending(pod) != ending(known);
            let is_new = spec::orders(known) != spec::orders(pod) || known.spec != pod.spec;
            ends || (is_new && !is_api_pod(pod))
        }
        (Command::Stop { .. }, Command::Stop { .. }) => false,
        (Command::Run(_) | Command::Fail(..) | Command::Stop { .. }, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_of_a_pod_grow_with_each_panic_of_its_workers() {
        let (mut panics, a, b) = (Panics::default(), PodUid::from("a"), PodUid::from("b"));
        assert_eq!(panics.left(&a), Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            panics.note(&a);
            let pause = panics.left(&a);
            pauses.push(pause.as_secs());
            tokio::time::advance(pause).await;
        }
        // pods 48a
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(panics.left(&a), Duration::ZERO);
        // Each pod has its own.
        panics.note(&b);
        assert_eq!(panics.left(&b).as_secs(), 1);
        // A worker lived for almost ten minutes, the next one for ten.
        tokio::time::advance(STABLE_AFTER.saturating_sub(Duration::from_secs(1))).await;
        panics.note(&a);
        assert_eq!(panics.left(&a).as_secs(), 300);
        tokio::time::advance(Duration::from_mins(5) + STABLE_AFTER).await;
        panics.note(&a);
        assert_eq!(panics.left(&a).as_secs(), 1);
        panics.note(&a);
        panics.forget(&a);
        assert_eq!(panics.left(&a), Duration::ZERO);
        panics.note(&a);
        assert_eq!(panics.left(&a).as_secs(), 1);
    }
}
