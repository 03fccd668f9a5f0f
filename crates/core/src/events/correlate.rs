//! Correlation: repeated events become one event with a count, many similar events become one, and
//! events about an object with too many of them are dropped for a while.
//!
//! Upstream: `client-go/tools/record/events_cache.go` (`EventCorrelator`), with its constants.

use std::time::Duration;

use serde_json::json;

use super::recent::{Fingerprint, Recent};
use super::{Happening, event_name, make_event};
use crate::api::meta::Time;
use crate::api::{Timestamp, core};
use crate::clock::elapsed;

/// Keys remembered of each kind: nine for each of the 110 pods of a full node. Upstream's
/// `maxLruCacheEntries` is 4,096, for components that see a whole cluster; filled, those hold over a
/// MiB.
const REMEMBERED: usize = 1024;
/// How long a written event is remembered after its last repeat. By then the API server has deleted
/// it, so the next one is new; upstream, which remembers it, writes it again, too.
///
/// Upstream: `--event-ttl` of kube-apiserver.
const WRITTEN_FOR: Duration = Duration::from_hours(1);
/// Distinct messages of one reason from which on they are combined.
const SIMILAR_MAX: usize = 10;
/// How long similar ones count together.
const SIMILAR_WITHIN: Duration = Duration::from_mins(10);
/// Events of one object that pass at once.
const SPAM_BURST: u32 = 25;
/// After a burst, one event of the object passes in that time.
const SPAM_REFILL: Duration = Duration::from_mins(5);

/// An event to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The event as it should be.
    pub event: core::Event,
    /// Whether an event with its name was written before: then [`patch`](Self::patch) is enough.
    pub update: bool,
}

impl Write {
    /// The changes of a repeat, as a merge patch.
    pub fn patch(&self) -> serde_json::Value {
        json!({
            "count": self.event.count,
            "lastTimestamp": self.event.last_timestamp,
            "message": self.event.message,
        })
    }

    /// Namespace of the event.
    pub fn namespace(&self) -> &str {
        self.event.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Name of the event.
    pub fn name(&self) -> &str {
        self.event.metadata.name.as_deref().unwrap_or_default()
    }
}

/// An event written before.
#[derive(Debug, Clone)]
struct Written {
    count: i32,
    first: Timestamp,
    last: Timestamp,
    /// The time in its name.
    stamp: i128,
}

/// Messages of one reason.
#[derive(Debug, Clone)]
struct Similar {
    messages: Vec<Fingerprint>,
    last: Timestamp,
}

/// Turns what happened into events to write.
#[derive(Debug, Clone)]
pub struct Correlator {
    node: String,
    /// The last name's time.
    stamp: i128,
    written: Recent<Written>,
    similar: Recent<Similar>,
    /// When an object's bucket is full again.
    full_at: Recent<Timestamp>,
}

impl Correlator {
    /// One for the events of that node's agent.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            stamp: 0,
            written: Recent::new(REMEMBERED),
            similar: Recent::new(REMEMBERED),
            full_at: Recent::new(REMEMBERED),
        }
    }

    /// The event to write for it; none if its object had too many recently.
    pub fn correlate(&mut self, happening: &Happening, now: Timestamp) -> Option<Write> {
        self.stamp = happening.at.as_nanosecond().max(self.stamp + 1);
        let mut event = make_event(happening, &self.node, self.stamp);
        let (key, combined) = self.aggregate(happening, &event, now);
        if let Some(message) = combined {
            event.message = Some(message);
        }
        let write = self.observe(key, event, happening.at, now);
        // After the count, as upstream: what is not written now is counted in the next one.
        self.admit(happening, now).then_some(write)
    }

    /// Under which key the event is counted, and its message if it is combined with others.
    fn aggregate(
        &mut self,
        happening: &Happening,
        event: &core::Event,
        now: Timestamp,
    ) -> (Fingerprint, Option<String>) {
        let message = event.message.as_deref().unwrap_or_default();
        let group = key(happening, &[&happening.reason]);
        let is_over = |similar: &Similar| elapsed(similar.last, now) > SIMILAR_WITHIN;
        let known = self.similar.take(group);
        let mut similar = known
            .filter(|similar| !is_over(similar))
            .unwrap_or_else(|| Similar {
                messages: Vec::new(),
                last: now,
            });
        similar.last = now;
        let words = Fingerprint::of([message]);
        if !similar.messages.contains(&words) {
            // Most have one: a list grown by itself begins with room for four.
            similar.messages.reserve_exact(1);
            similar.messages.push(words);
        }
        let many = similar.messages.len() >= SIMILAR_MAX;
        if many {
            similar.messages.swap_remove(0);
        }
        self.similar.put(group, similar, is_over);
        if many {
            let combined = format!("(combined from similar events): {message}");
            return (group, Some(combined));
        }
        let path = happening.involved.field_path.as_deref().unwrap_or_default();
        let whole = key(happening, &[&happening.reason, path, message]);
        (whole, None)
    }

    /// Counts the event.
    fn observe(
        &mut self,
        key: Fingerprint,
        mut event: core::Event,
        at: Timestamp,
        now: Timestamp,
    ) -> Write {
        let is_over = |written: &Written| elapsed(written.last, now) > WRITTEN_FOR;
        let known = self.written.take(key).filter(|written| !is_over(written));
        let update = known.is_some();
        let written = match known {
            Some(known) => Written {
                count: known.count.saturating_add(1),
                last: now,
                ..known
            },
            None => Written {
                count: 1,
                first: at,
                last: now,
                stamp: self.stamp,
            },
        };
        let object = event.involved_object.name.as_deref().unwrap_or_default();
        event.metadata.name = Some(event_name(object, written.stamp));
        event.first_timestamp = Some(Time(written.first));
        event.count = Some(written.count);
        self.written.put(key, written, is_over);
        Write { event, update }
    }

    /// Whether its object may have one more.
    fn admit(&mut self, happening: &Happening, now: Timestamp) -> bool {
        let bucket = key(happening, &[]);
        let empty = now.saturating_add(SPAM_REFILL * SPAM_BURST).unwrap_or(now);
        // Never later than when an empty bucket would be full, should the clock have been set back.
        let full = self
            .full_at
            .take(bucket)
            .map_or(now, |at| at.clamp(now, empty));
        let after = full.saturating_add(SPAM_REFILL).unwrap_or(full);
        let admitted = after <= empty;
        let full = if admitted { after } else { full };
        // One that is full again is as one that nothing was taken from.
        self.full_at.put(bucket, full, |at| *at <= now);
        admitted
    }
}

/// A key of the object, the event's type and more.
fn key(happening: &Happening, more: &[&str]) -> Fingerprint {
    let involved = &happening.involved;
    let parts = [
        &involved.kind,
        &involved.namespace,
        &involved.name,
        &involved.uid,
    ];
    let parts = parts
        .into_iter()
        .map(|part| part.as_deref().unwrap_or_default());
    let parts = parts.chain([happening.event_type.as_str()]);
    Fingerprint::of(parts.chain(more.iter().copied()))
}
