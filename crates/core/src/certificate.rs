//! Certificates that the cluster signs: the identity that is used, when a certificate is requested and
//! renewed, and the reaction to the outcome of a request.
//!
//! Upstream: `pkg/kubelet/certificate/bootstrap/bootstrap.go` (`isClientConfigStillValid`),
//! `k8s.io/client-go/util/certificate` (`certificate_manager.go`).

pub mod approval;

use std::time::Duration;

use crate::api::Timestamp;
use crate::backoff::ExponentialBackoff;

/// Interval of checks of a fresh request, and how long it is fresh: an approver program takes seconds.
const FRESH_PAUSE: Duration = Duration::from_secs(2);
const FRESH_FOR: Duration = Duration::from_mins(1);
/// Pause after that: a user approves by hand, and then watches the Node appear.
const WATCHED_PAUSE: Duration = Duration::from_secs(5);
const WATCHED_FOR: Duration = Duration::from_mins(15);
/// Pause after that, because no approver is active.
const PAUSE: Duration = Duration::from_secs(30);
/// Pauses after refusals. Requests that were denied stay in the cluster for an hour: there are
/// never more than ten of ours.
const REFUSED_PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_mins(1), Duration::from_mins(10));
/// Pause while the API server is away.
const AWAY_PAUSE: Duration = Duration::from_secs(10);

/// From when until when a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From when.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

impl Validity {
    /// When seven to nine tenths of its lifetime are over; `jitter`, 0 to 1, selects the moment in
    /// between, so that nodes that started together don't renew together.
    ///
    /// Upstream: `nextRotationDeadline`, `jitteryDuration`.
    pub fn renew_at(&self, jitter: f64) -> Timestamp {
        let whole = self.not_after.duration_since(self.not_before);
        let share = 0.7 + 0.2 * jitter.clamp(0.0, 1.0);
        let after = Duration::try_from(whole).unwrap_or_default();
        self.not_before
            .saturating_add(after.mul_f64(share))
            .map_or(self.not_after, |at| at.min(self.not_after))
    }
}

/// The user in a node's certificate.
///
/// Upstream: `pkg/auth/nodeidentifier`.
pub fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The group that a node's certificate is of.
pub const NODES_GROUP: &str = "system:nodes";

/// The identity in a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// There is no such file.
    Missing,
    /// The kubeconfig, or a file that it refers to, can't be used, with this message.
    Unusable(String),
    /// A token or a plug-in: the agent doesn't manage it.
    Other,
    /// A client certificate.
    Certificate {
        /// How long it is valid.
        validity: Validity,
        /// Its common name.
        user: String,
        /// Whether it is the file that we keep.
        is_ours: bool,
    },
}

/// The action that an identity requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is good.
    Good,
    /// It is good, and ours to renew.
    Ours(Validity),
    /// Another one is needed, for this reason.
    Needed(String),
}

/// Decides whether the node of that user can use the credentials in the kubeconfig.
pub fn judge(held: &Held, user: &str, now: Timestamp) -> Verdict {
    match held {
        Held::Missing => Verdict::Needed("the kubeconfig does not exist yet".to_owned()),
        Held::Unusable(words) => Verdict::Needed(words.clone()),
        Held::Certificate { validity, .. } if validity.not_after <= now => {
            let ended = validity.not_after;
            Verdict::Needed(format!("its client certificate expired at {ended}"))
        }
        Held::Certificate {
            user: held,
            is_ours: true,
            ..
        } if held != user => Verdict::Needed(format!(
            "its client certificate is for {held}, not for {user}"
        )),
        Held::Certificate {
            validity,
            is_ours: true,
            ..
        } => Verdict::Ours(*validity),
        Held::Other | Held::Certificate { .. } => Verdict::Good,
    }
}

/// The outcome of a certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is not decided yet, or not signed yet.
    Pending,
    /// It was signed: the chain, in PEM.
    Issued(String),
    /// It was denied, or could not be signed, with this message.
    Refused(String),
    /// There is no such request any more.
    Gone,
}

/// The next action for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Look again after that pause.
    Wait(Duration),
    /// Take what was signed.
    Take(String),
    /// Ask again, with the same key.
    AskAgain,
    /// Request again after a pause with another key, because of this message: a request is named after
    /// its key, and this one is refused for good.
    Refused(String),
}

/// Decides the next action for a request that was created `waited` ago.
pub fn next(outcome: Outcome, waited: Duration) -> Next {
    match outcome {
        Outcome::Pending if waited < FRESH_FOR => Next::Wait(FRESH_PAUSE),
        Outcome::Pending if waited < WATCHED_FOR => Next::Wait(WATCHED_PAUSE),
        // However long it takes: another request would only be one more to decide on. The cluster
        // forgets one after a day, and then it is made again.
        Outcome::Pending => Next::Wait(PAUSE),
        Outcome::Issued(chain) => Next::Take(chain),
        Outcome::Gone => Next::AskAgain,
        Outcome::Refused(words) => Next::Refused(words),
    }
}

/// Whether a request has waited long enough to be reported again.
pub fn is_overdue(waited: Duration) -> bool {
    waited >= FRESH_FOR
}

/// Describes how to approve a pending request.
pub fn waiting_words(name: &str) -> String {
    format!("request {name} waits for approval (kubectl certificate approve {name})")
}

/// Pause after a request was made.
pub fn asked_pause() -> Duration {
    FRESH_PAUSE
}

/// Pause while there is nothing to do.
pub fn idle_pause() -> Duration {
    PAUSE
}

/// Pause after that many refusals on end.
pub fn refused_pause(refusals: u32) -> Duration {
    REFUSED_PAUSES.after(refusals)
}

/// Pause after a failed call to the API server: it is away, or has refused so many times in a row.
pub fn unanswered_pause(is_away: bool, refusals: u32) -> Duration {
    if is_away {
        AWAY_PAUSE
    } else {
        refused_pause(refusals)
    }
}

#[cfg(test)]
mod tests;
