//! How long the target has been held, and the node's refusals.

use std::time::Duration;

use super::{Cause, History, Phase, Preparation, Revision};
use crate::api::{PodUid, Timestamp};
use crate::clock::{elapsed, since};

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

/// Maximum hold of a revision that the node has refused after the previous one was stopped for it:
/// longer than most pods take to stop, whose resources it may need.
const REFUSED_PAUSE: Duration = Duration::from_mins(5);

/// A node's refusal of a revision that should replace another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// UID of the revision.
    uid: PodUid,
    cause: Cause,
    at: Timestamp,
    /// Whether the preparation was refused for the same reason since.
    is_seen: bool,
    /// Whether it was the second one within the pause: others take the room whenever it is free.
    is_second: bool,
}

impl History {
    /// Restores the last healthy revision, because the node has refused the current one, which
    /// therefore never ran and has not failed. Returns whether there is a healthy one; `restore` is the
    /// node's default.
    pub(super) fn take_back(&mut self, cause: &Cause, restore: bool, now: Timestamp) -> bool {
        let target = self.fallback(restore).map(Revision::uid);
        let refused = self.current().map(|one| (one.uid(), one.ran));
        let (Some(target), Some((uid, ran))) = (target, refused) else {
            return false;
        };
        self.switch(&target, now);
        let mut revisions = self.revisions.iter_mut();
        if let Some(refused) = revisions.find(|revision| revision.uid() == uid) {
            refused.ran = ran;
        }
        let before = self.refused.take().filter(|one| one.uid == uid);
        self.refused = Some(Refusal {
            uid,
            cause: cause.clone(),
            at: now,
            is_seen: false,
            is_second: before.is_some_and(|one| since(one.at, now) < REFUSED_PAUSE),
        });
        true
    }

    /// Why the node has refused a revision, and how long it is still held for that. Once its
    /// preparation, which checks whether the node would accept it, was refused for the same reason, the
    /// preparation alone decides when it is retried. Until then, it may be refused again for reasons
    /// that the preparation doesn't check. One that was refused twice within the pause is held for all
    /// of it: the previous version is stopped for each attempt.
    pub(super) fn refusal(
        &mut self,
        uid: &PodUid,
        preparation: &Preparation,
        now: Timestamp,
    ) -> Option<(Cause, Duration)> {
        let refused = self.refused.as_mut().filter(|one| one.uid == *uid)?;
        let left = REFUSED_PAUSE.checked_sub(since(refused.at, now))?;
        if let Preparation::Failed(cause) = preparation {
            refused.is_seen |= cause.reason == refused.cause.reason;
        }
        let may_go_on = refused.is_seen && !refused.is_second;
        (!may_go_on && !left.is_zero()).then(|| (refused.cause.clone(), left))
    }

    /// Records whether the target, whose UID is `uid`, is held. Returns the rest of its deadline.
    pub(super) fn take_hold(
        &mut self,
        uid: &PodUid,
        phase: &Phase,
        deadline: Duration,
        now: Timestamp,
    ) -> Option<Duration> {
        let known = self.held.take().filter(|held| held.uid == *uid);
        if !matches!(phase, Phase::Held(_)) {
            // A revision that is retried may be refused again: its hold continues then, so that it
            // ends.
            let is_tried = *phase == Phase::Judging;
            let was_refused = self.refused.as_ref().is_some_and(|one| one.uid == *uid);
            self.held = known.filter(|_| is_tried && was_refused);
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
