//! How our Node stands.

use mirrorlet_core::api::Timestamp;

/// How our Node stands with the API server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodeRegistration {
    /// Not registered yet, or deleted and not registered again; without a problem so far.
    #[default]
    Waiting,
    /// Registered.
    Registered {
        /// Its UID.
        uid: String,
        /// Whether it was observed as ours since the last outage of the API server. Another agent may
        /// have taken it meanwhile, so nothing is written before that.
        is_certain: bool,
    },
    /// It can't be registered.
    Refused {
        /// Why, and what to do about it.
        cause: String,
        /// Since when.
        since: Timestamp,
        /// Whether the Node of our name was another's when it was seen last.
        is_anothers: bool,
    },
}

impl NodeRegistration {
    /// Whether the Node is registered, and certainly ours.
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            Self::Registered {
                is_certain: true,
                ..
            }
        )
    }

    /// Whether the Node was ours before an outage of the API server, and wasn't observed since.
    pub fn is_doubtful(&self) -> bool {
        matches!(
            self,
            Self::Registered {
                is_certain: false,
                ..
            }
        )
    }

    /// Whether the Node of our name is another's.
    pub fn is_anothers(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                is_anothers: true,
                ..
            }
        )
    }

    /// Whether we write the statuses of the Node's pods and delete orphaned mirrors: not while the Node
    /// is, or may be, another agent's. If it can't be registered for another reason, we do.
    pub fn may_write(&self) -> bool {
        match self {
            Self::Waiting => false,
            Self::Registered { is_certain, .. } => *is_certain,
            Self::Refused { is_anothers, .. } => !is_anothers,
        }
    }
}
