//! The life of a running revision: from its start until another one replaces it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ready_since;
use crate::api::Timestamp;
use crate::api::core::{ContainerStatus, PodStatus};
use crate::status::container_statuses;

/// The life of a revision, with the restarts of its containers that don't count against it: those of
/// earlier lives, and the one with which the agent began this life.
///
/// The count in a status covers all lives, because the containers are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Life {
    /// Since when it runs.
    pub since: Timestamp,
    /// Whether it ran before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    again: bool,
    /// The count of a container's restarts at its first instance of this life, if that isn't 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    before: BTreeMap<String, i32>,
    /// Whether the pod was ready at any time in this life.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_ready: bool,
    /// A time since when the pod is ready that was in the future when it was first observed, because
    /// the clock was set back; and when it was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready_ahead: Option<(Timestamp, Timestamp)>,
    /// Whether it was restarted because the clock was set forward, or the Engine was away: how long the
    /// pod was ready before is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    anew: bool,
}

impl Life {
    /// Returns a new life; `again` says whether the revision ran before.
    pub fn new(since: Timestamp, again: bool) -> Self {
        Self {
            since,
            again,
            before: BTreeMap::new(),
            was_ready: false,
            ready_ahead: None,
            anew: false,
        }
    }

    /// Returns a restarted life, because the clock was set forward, or the Engine was away.
    pub(super) fn anew(since: Timestamp) -> Self {
        Self {
            anew: true,
            ..Self::new(since, true)
        }
    }

    /// Processes a status that was observed at that time.
    #[must_use]
    pub fn seen(mut self, status: &PodStatus, now: Timestamp) -> Self {
        for container in container_statuses(status) {
            if self.is_first_instance(container) {
                let count = container.restart_count;
                self.before.insert(container.name.clone(), count);
            }
        }
        let ready = ready_since(status);
        self.was_ready |= ready.is_some();
        let known = self.ready_ahead.filter(|(ahead, _)| ready == Some(*ahead));
        let ahead = ready.filter(|ready| *ready > now).map(|ready| (ready, now));
        self.ready_ahead = match (known, ahead) {
            (Some((ready, seen)), _) => Some((ready, seen.min(now))),
            (None, ahead) => ahead,
        };
        self
    }

    /// Since when the pod is ready, if it is: not before that was observed, if the clock was set back,
    /// nor before the clock was set forward, or the Engine was back.
    pub fn ready_since(&self, status: &PodStatus) -> Option<Timestamp> {
        let ready = ready_since(status)?;
        let ahead = self.ready_ahead.filter(|(ahead, _)| *ahead == ready);
        let since = ahead.map_or(ready, |(_, seen)| seen);
        Some(if self.anew {
            since.max(self.since)
        } else {
            since
        })
    }

    /// Whether the instance before the current one belongs to an earlier life. A status has whole
    /// seconds: if the revision ran before, an instance that was started in the second in which this
    /// life began counts as one of the earlier life.
    fn is_first_instance(&self, container: &ContainerStatus) -> bool {
        let last = container.last_state.as_ref();
        let last = last.and_then(|state| state.terminated.as_ref());
        let started = last.and_then(|ended| ended.started_at.as_ref());
        started.is_some_and(|started| {
            let (started, since) = (started.0.as_second(), self.since.as_second());
            started < since || (self.again && started == since)
        })
    }

    /// The number of restarts of a container in this life.
    pub fn restarts(&self, container: &ContainerStatus) -> i32 {
        let before = self.before.get(&container.name).copied().unwrap_or(0);
        container.restart_count.saturating_sub(before).max(0)
    }
}
