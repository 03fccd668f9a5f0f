//! How long the target has been held.

use std::time::Duration;

use super::{History, Phase};
use crate::api::{PodUid, Timestamp};
use crate::clock::elapsed;

/// The time for which the target can't be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// UID of the target.
    uid: PodUid,
    /// Since when, as far as this agent knows.
    since: Timestamp,
    /// Whether its progress deadline has passed since.
    pub overdue: bool,
}

impl History {
    /// Takes in whether the target, whose UID is `uid`, is held. Returns the rest of its deadline.
    pub(super) fn take_hold(
        &mut self,
        uid: &PodUid,
        phase: &Phase,
        deadline: Duration,
        now: Timestamp,
    ) -> Option<Duration> {
        let known = self.held.take().filter(|held| held.uid == *uid);
        if !matches!(phase, Phase::Held(_)) {
            return None;
        }
        let since = known.map_or(now, |held| held.since.min(now));
        let left = deadline.checked_sub(elapsed(since, now));
        let left = left.filter(|left| !left.is_zero());
        self.held = Some(Hold {
            uid: uid.clone(),
            since,
            overdue: left.is_none(),
        });
        left
    }
}
