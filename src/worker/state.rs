//! The state of a worker's pod.

use std::sync::Arc;

use tokio::time::Instant;

use super::Phase;
use mirrorlet_core::admit::Failure;
use mirrorlet_core::api::Timestamp;

/// The state of the pod.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    WaitingToStart,
    Syncing,
    /// A manifest's pod that is over: it does its work again only for a user's order or edit.
    Over,
    /// `since` is when the pod began to be stopped, here and below.
    Terminating {
        since: Instant,
    },
    Terminated {
        since: Instant,
    },
    Finished {
        since: Instant,
    },
}

impl State {
    /// The state as published on the board.
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::WaitingToStart => Phase::WaitingToStart,
            Self::Syncing | Self::Over => Phase::Syncing,
            Self::Terminating { .. } => Phase::Terminating,
            Self::Terminated { .. } => Phase::Terminated,
            Self::Finished { .. } => Phase::Finished,
        }
    }

    /// When stopping the pod began, if it did.
    pub(super) fn stopping_since(self) -> Option<Instant> {
        match self {
            Self::WaitingToStart | Self::Syncing | Self::Over => None,
            Self::Terminating { since } | Self::Terminated { since } | Self::Finished { since } => {
                Some(since)
            }
        }
    }
}

/// Why the pod ends as failed, and since when.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub(super) failure: Failure,
    pub(super) at: Timestamp,
}

/// The pod's volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Volumes {
    /// They may hold something.
    Held,
    /// They could not be released, for that reason.
    Stuck(Arc<str>),
    /// They were released since something of the pod last ran.
    Released,
}
