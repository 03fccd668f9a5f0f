//! Whether connections to a host port are held while one revision of a pod replaces another.

use std::time::Duration;

/// How long after the stop signal a container is assumed to be shutting down. One that still accepts
/// connections after that serves until it is killed.
const STOP_MAX: Duration = Duration::from_secs(2);
/// How long before it is killed connections to it wait again.
const KILL_MARGIN: Duration = Duration::from_secs(1);
/// How long a container is assumed to be ending after the time of its kill. If it still accepts
/// connections later, it serves: the Engine that should kill it hangs.
const KILL_MAX: Duration = Duration::from_secs(5);
/// How long connections wait for the next step: the successor's network, and a process that
/// accepts them.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A host port between two revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// The container with the port runs, and an earlier agent may have signalled it to end.
    Serving,
    /// The container with the port was signalled to end.
    Stopping {
        /// How long ago.
        since: Duration,
        /// Until when it may take; zero once it should have been killed.
        left: Duration,
        /// How long ago it should have been killed.
        overdue: Duration,
        /// Whether it still accepts connections; checked once [`is_overdue`](Self::is_overdue).
        accepts: bool,
    },
    /// The container with the port was signalled to end, but the stop failed, and it still runs.
    Unstopped {
        /// How long ago the stop failed.
        since: Duration,
        /// Whether it accepts connections.
        accepts: bool,
    },
    /// The container has ended; its successor doesn't accept connections yet.
    Starting {
        /// How long ago the last step was: the end of the one, the network of the other.
        since: Duration,
    },
    /// The successor accepts connections, or there is none.
    Over,
}

impl Gap {
    /// Whether a container that was signalled that long ago should have ended.
    pub fn is_overdue(since: Duration) -> bool {
        since >= STOP_MAX
    }

    /// Whether a container that started that long ago should accept connections by now.
    pub fn is_late(since: Duration) -> bool {
        since >= WAIT_MAX
    }

    /// Whether connections to the port wait.
    pub fn waits(self) -> bool {
        match self {
            Self::Stopping {
                since,
                left,
                overdue,
                accepts,
            } => {
                let serves_on = left > KILL_MARGIN || overdue >= KILL_MAX;
                !(accepts && Self::is_overdue(since) && serves_on)
            }
            Self::Unstopped { since, accepts } => !accepts && !Self::is_late(since),
            Self::Starting { since } => !Self::is_late(since),
            Self::Serving | Self::Over => false,
        }
    }

    /// Whether the gap is over for good.
    pub fn is_over(self) -> bool {
        match self {
            Self::Serving | Self::Stopping { .. } => false,
            Self::Unstopped { .. } | Self::Starting { .. } => !self.waits(),
            Self::Over => true,
        }
    }
}
