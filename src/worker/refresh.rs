//! Updates the files of a running pod's volumes: when their sources change, when a token must be
//! renewed, and when the agent has just started.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Context;
use mirrorlet_core::api::Pod;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::objects::references;
use mirrorlet_core::observed::{ContainerState, PodStatus};
use mirrorlet_core::payload::is_live;
use mirrorlet_host::telemetry::occurrences;

/// Pauses after failures; an event ends one early, so that they may be long.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(10), Duration::from_mins(2));

/// The refresh state of one pod's volumes.
pub(super) struct Refresh {
    /// Changes when something that the pod refers to does; none for a pod that refers to nothing.
    news: Option<watch::Receiver<u64>>,
    /// The pod as of the last attempt; none when one is due.
    done_for: Option<Arc<Pod>>,
    /// When the next attempt is due though nothing changes.
    due: Option<Instant>,
    backoff: ExponentialBackoff,
}

impl Refresh {
    /// Returns the state of a newly adopted pod: the first attempt is due.
    pub(super) fn new() -> Self {
        Self {
            news: None,
            done_for: None,
            due: None,
            backoff: RETRY,
        }
    }

    /// Subscribes before the first request, so that no change is missed.
    pub(super) fn listen(&mut self, context: &Context, pod: &Pod) {
        let is_deaf = match &self.news {
            Some(news) => news.has_changed().is_err(),
            None => !references(pod).is_empty(),
        };
        if is_deaf {
            self.news = Some(context.runtime.references_changed(pod));
        }
    }

    /// Waits for a change; forever if there can't be any. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if let Some(news) = &mut self.news
            && news.changed().await.is_ok()
        {
            self.done_for = None;
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Updates volumes if that is due, and returns when it will be due again.
    pub(super) async fn run(
        &mut self,
        context: &Context,
        pod: &Arc<Pod>,
        status: &PodStatus,
        cancel: &CancellationToken,
    ) -> Option<Duration> {
        let mut sandboxes = status.sandboxes.iter();
        if !is_live(pod) || !sandboxes.any(|s| s.state == ContainerState::Running) {
            return None;
        }
        let now = Instant::now();
        let is_due = self.due.is_some_and(|due| due <= now);
        let is_done = self
            .done_for
            .as_ref()
            .is_some_and(|done| Arc::ptr_eq(done, pod) || done == pod);
        if is_due || !is_done {
            self.done_for = Some(Arc::clone(pod));
            let after = match context.runtime.refresh_volumes(pod, cancel).await {
                Ok(after) => {
                    self.backoff.reset();
                    after
                }
                Err(error) => {
                    context
                        .telemetry
                        .about(pod, |of| occurrences::volumes_not_refreshed(of, &error));
                    Some(self.backoff.pause())
                }
            };
            self.due = after.map(|after| Instant::now() + after);
        }
        self.due
            .map(|due| due.saturating_duration_since(Instant::now()))
    }
}
