//! Whether the API server answers.

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::api::Timestamp;
use mirrorlet_host::telemetry::{Metrics, occurrences};

/// Whether the API server is reachable, according to the outcomes of all calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ApiReach {
    /// No call was made yet.
    #[default]
    Unknown,
    /// It answers.
    Up,
    /// It answers, but only to reject the credentials (401).
    Rejected {
        /// Since when.
        since: Timestamp,
    },
    /// It doesn't answer.
    Down {
        /// Why, with the whole chain.
        cause: String,
        /// Since when.
        since: Timestamp,
    },
}

impl ApiReach {
    /// Whether the last answer accepted the credentials.
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }
}

/// Turns the outcomes of calls into [`ApiReach`].
#[derive(Debug)]
pub(super) struct ReachTracker {
    state: Mutex<State>,
    metrics: Metrics,
}

#[derive(Debug)]
struct State {
    reach: Writer<ApiReach>,
    /// When the newest answer came.
    answered: Option<Instant>,
    /// When the newest answer came that didn't reject the credentials.
    accepted: Option<Instant>,
    lost: Option<Instant>,
}

impl ReachTracker {
    pub(super) fn new(metrics: Metrics) -> (Self, Reader<ApiReach>) {
        // Not reached until it answers: alerts shall see a server that never does.
        metrics.set_api_up(false);
        let (writer, reader) = cell(ApiReach::Unknown);
        let state = Mutex::new(State {
            reach: writer,
            answered: None,
            accepted: None,
            lost: None,
        });
        (Self { state, metrics }, reader)
    }

    /// An answer came. Returns whether it ends a silence.
    pub(super) fn answered(&self) -> bool {
        let mut state = self.state.lock();
        let now = Some(Instant::now());
        (state.answered, state.accepted) = (now, now);
        let lost = state.lost.take();
        let was_rejected = matches!(*state.reach.get(), ApiReach::Rejected { .. });
        if state.reach.publish(ApiReach::Up) {
            if was_rejected {
                occurrences::api_accepts_again(&self.metrics);
            } else {
                occurrences::api_reached(&self.metrics, lost.map(|at| at.elapsed()));
            }
        }
        lost.is_some()
    }

    /// Records that a call that began then was answered with 401. Returns whether that ends an outage.
    /// A later answer that accepted the credentials takes precedence: they may have been replaced.
    pub(super) fn rejected(&self, began: Instant) -> bool {
        let mut state = self.state.lock();
        state.answered = Some(Instant::now());
        let lost = state.lost.take();
        if state.accepted.is_none_or(|at| at <= began) {
            let since = match &*state.reach.get() {
                ApiReach::Rejected { since } => *since,
                ApiReach::Unknown | ApiReach::Up | ApiReach::Down { .. } => Timestamp::now(),
            };
            if state.reach.publish(ApiReach::Rejected { since }) {
                occurrences::api_rejects(&self.metrics);
            }
        } else if lost.is_some() && state.reach.publish(ApiReach::Up) {
            occurrences::api_reached(&self.metrics, lost.map(|at| at.elapsed()));
        }
        lost.is_some()
    }

    /// Records that a call was not made because there is no identity. The server may well answer, so
    /// the provider of the identity reports that separately.
    pub(super) fn unidentified(&self, cause: &str) {
        let state = &mut *self.state.lock();
        let since = match &*state.reach.get() {
            ApiReach::Down { since, .. } => *since,
            ApiReach::Unknown | ApiReach::Up | ApiReach::Rejected { .. } => Timestamp::now(),
        };
        state.reach.publish(ApiReach::Down {
            cause: cause.to_owned(),
            since,
        });
    }

    /// Records that a call that began then got no answer. Later answers take precedence. The server
    /// counts as unreachable since the first such call began.
    pub(super) fn silent(&self, began: Instant, cause: &str) {
        let mut state = self.state.lock();
        if state.answered.is_some_and(|at| at > began) {
            return;
        }
        let now = Timestamp::now();
        let began_at = now.checked_sub(began.elapsed()).unwrap_or(now);
        let since = match &*state.reach.get() {
            ApiReach::Down { since, .. } => began_at.min(*since),
            ApiReach::Unknown | ApiReach::Up | ApiReach::Rejected { .. } => began_at,
        };
        if state.lost.is_none() {
            occurrences::api_lost(&self.metrics, cause);
        }
        state.lost = Some(state.lost.map_or(began, |lost| lost.min(began)));
        state.reach.publish(ApiReach::Down {
            cause: cause.to_owned(),
            since,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_heard_last_counts() {
        let metrics = Metrics::new();
        let up = |value| metrics.encode().contains(&format!("_api_up {value}\n"));
        assert!(!up(0) && !up(1), "there is no API server yet");
        let (tracker, reader) = ReachTracker::new(metrics.clone());
        assert_eq!(*reader.get(), ApiReach::Unknown);
        assert!(up(0), "it never answered");
        let slow = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!tracker.answered());
        assert!(reader.get().is_up());
        assert!(up(1));
        // The call that hung began before the answer came: the server lived meanwhile.
        tracker.silent(slow, "no answer within 10 s");
        assert!(reader.get().is_up());
        tokio::time::advance(Duration::from_secs(1)).await;
        tracker.silent(Instant::now(), "refused");
        let ApiReach::Down { since, .. } = (*reader.get()).clone() else {
            panic!()
        };
        tracker.silent(Instant::now(), "no route");
        let ApiReach::Down {
            since: still,
            cause,
        } = (*reader.get()).clone()
        else {
            panic!()
        };
        assert_eq!((still, cause.as_str()), (since, "no route"));
        assert!(tracker.answered(), "a silence ends");
        assert!(reader.get().is_up());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_begins_with_the_first_call_that_failed() {
        let (tracker, reader) = ReachTracker::new(Metrics::new());
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        let before = Timestamp::now();
        tracker.silent(began, "no answer within 10 s");
        let ApiReach::Down { since, .. } = (*reader.get()).clone() else {
            panic!()
        };
        let told = before.duration_since(since).as_secs();
        // node 6e
        assert!((9..=10).contains(&told), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_credentials_are_not_well() {
        let metrics = Metrics::new();
        let up = |value| metrics.encode().contains(&format!("_api_up {value}\n"));
        let (tracker, reader) = ReachTracker::new(metrics.clone());
        tracker.answered();
        tokio::time::advance(Duration::from_secs(1)).await;
        let slow = Instant::now();
        assert!(!tracker.rejected(slow));
        let ApiReach::Rejected { since } = *reader.get() else {
            panic!()
        };
        // node 6c
        assert!(up(0) && !reader.get().is_up());
        tracker.rejected(Instant::now());
        assert_eq!(*reader.get(), ApiReach::Rejected { since });
        tokio::time::advance(Duration::from_secs(1)).await;
        tracker.answered();
        assert!(up(1) && reader.get().is_up());
        // It was sent with the credentials from before.
        tracker.rejected(slow);
        assert!(up(1) && reader.get().is_up());
        tokio::time::advance(Duration::from_secs(1)).await;
        tracker.silent(Instant::now(), "refused");
        assert!(tracker.rejected(Instant::now()), "a silence ends");
        assert!(matches!(*reader.get(), ApiReach::Rejected { .. }));
        assert!(up(0));
    }
}
