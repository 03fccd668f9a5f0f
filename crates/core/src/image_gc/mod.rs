//! Decides which images to remove when the disk fills up, or when they were unused for long. The input
//! consists of values: the images, their use, the disk usage and the time; the output is an ordered
//! list of images to remove.
//!
//! Upstream: `pkg/kubelet/images/image_gc_manager.go`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::Timestamp;
use crate::clock::{elapsed, since};
use crate::small::SmallSort;

/// When images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// The disk usage, in percent, above which images are removed to free space.
    pub high_threshold_percent: u8,
    /// Down to which share, in percent.
    pub low_threshold_percent: u8,
    /// An image known for less time is never removed to free space.
    pub min_age: Duration,
    /// An image unused for longer is removed, however empty the disk is; none for no maximum age.
    pub max_age: Option<Duration>,
}

impl Default for ImageGcPolicy {
    /// Upstream's.
    fn default() -> Self {
        Self {
            high_threshold_percent: 85,
            low_threshold_percent: 80,
            min_age: Duration::from_mins(2),
            max_age: None,
        }
    }
}

/// How full a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// Its size, in bytes.
    pub capacity_bytes: u64,
    /// Available space in bytes.
    pub available_bytes: u64,
}

/// The disk reports a capacity of zero, so the reading is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid capacity 0 on image filesystem")]
pub struct InvalidCapacity;

impl DiskUsage {
    /// The used share in percent, rounded as upstream does.
    pub fn used_percent(&self) -> Result<u8, InvalidCapacity> {
        if self.capacity_bytes == 0 {
            return Err(InvalidCapacity);
        }
        let (available, capacity) = (
            u128::from(self.available_bytes),
            u128::from(self.capacity_bytes),
        );
        let free = u8::try_from(available * 100 / capacity).unwrap_or(100);
        Ok(100_u8.saturating_sub(free))
    }

    /// The number of bytes to free; zero below the high threshold.
    pub fn bytes_to_free(&self, policy: &ImageGcPolicy) -> Result<u64, InvalidCapacity> {
        if self.used_percent()? < policy.high_threshold_percent {
            return Ok(0);
        }
        let free_percent = 100_u128.saturating_sub(u128::from(policy.low_threshold_percent));
        let wanted = u128::from(self.capacity_bytes) * free_percent / 100;
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        Ok(wanted.saturating_sub(self.available_bytes))
    }
}

/// An image as a pass sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenImage {
    /// The Engine's id of it.
    pub id: String,
    /// Its size in bytes, including layers that it shares with others.
    pub size_bytes: u64,
    /// When it came, where that is known.
    pub since: Option<Timestamp>,
    /// Whether it has a container, running or not, or a pod or workload may be started with it.
    pub is_in_use: bool,
    /// Whether it is never removed: the sandbox's image, one that another image was built on, or one
    /// that is not the agent's.
    pub is_kept: bool,
}

/// The record of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    first_detected: Timestamp,
    /// When it was last seen in use; never, for none.
    last_used: Option<Timestamp>,
}

/// An image to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evictable {
    /// The Engine's id of it.
    pub id: String,
    /// Bytes that its removal counts for.
    pub size_bytes: u64,
    known: Known,
}

/// A clock that was set back, and has not caught up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SetBack {
    /// The first look after that.
    from: Timestamp,
    /// The last look before that.
    until: Timestamp,
}

/// The records of images between passes. Their times are corrected for changes of the clock: a clock
/// that is behind for a while makes no image look older than it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRecords {
    began: Timestamp,
    /// When they were last checked.
    looked: Timestamp,
    has_looked: bool,
    set_back: Option<SetBack>,
    images: BTreeMap<String, Known>,
}

impl ImageRecords {
    /// Returns new records: the earlier use of images is unknown.
    pub fn new(now: Timestamp) -> Self {
        Self {
            began: now,
            looked: now,
            has_looked: false,
            set_back: None,
            images: BTreeMap::new(),
        }
    }

    /// Handles a clock that was set forward by `step` after it had shown `before`. All earlier times
    /// were read from the clock before that: the step makes no image older.
    pub fn set_forward(&mut self, before: Timestamp, step: Duration) {
        let right = |at: Timestamp| {
            if at <= before {
                at.checked_add(step).unwrap_or(at)
            } else {
                at
            }
        };
        self.began = right(self.began);
        self.looked = right(self.looked);
        if let Some(back) = &mut self.set_back {
            back.from = right(back.from);
        }
        for known in self.images.values_mut() {
            known.first_detected = right(known.first_detected);
            known.last_used = known.last_used.map(right);
        }
    }

    /// Notes whether the clock was set back since the last look, or has caught up since.
    fn take_clock(&mut self, now: Timestamp) {
        let looked = std::mem::replace(&mut self.looked, now);
        if now < looked {
            let until = self.set_back.map_or(looked, |back| back.until.max(looked));
            self.set_back = Some(SetBack { from: now, until });
        } else if let Some(back) = self.set_back.filter(|back| back.until <= now) {
            // What was seen by the clock that was behind was seen not long ago.
            let right = |at: Timestamp| {
                let is_wrong = (back.from..=looked).contains(&at);
                if is_wrong { now } else { at }
            };
            for known in self.images.values_mut() {
                known.first_detected = right(known.first_detected);
                known.last_used = known.last_used.map(right);
            }
            self.set_back = None;
        }
    }

    /// A recorded time, limited to the past. Future times are from before the clock was set back, and
    /// count as the first look after that: no image stays until the clock has caught up, and no
    /// recently used image is removed for its age.
    fn past(&self, at: Timestamp, now: Timestamp) -> Timestamp {
        if at <= now {
            return at;
        }
        let seen = self.set_back.map_or(self.began, |back| back.from);
        seen.min(now)
    }

    /// Updates the records from the current images, and drops those of removed images. An image with an
    /// unknown age counts as new; on the first look, as arbitrarily old.
    ///
    /// Upstream: `detectImages`.
    pub fn detect(&mut self, seen: &[SeenImage], now: Timestamp) {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let unknown = if is_first { Timestamp::UNIX_EPOCH } else { now };
        // An image that was missing at the last check is new, though its pull may have been recorded by
        // a clock that was behind.
        let is_known = !is_first && self.looked <= now;
        let not_before = if is_known {
            self.looked
        } else {
            Timestamp::UNIX_EPOCH
        };
        self.take_clock(now);
        let mut images = BTreeMap::new();
        for image in seen {
            let known = self.images.get(&image.id).copied();
            let mut known = known.unwrap_or(Known {
                first_detected: image.since.map_or(unknown, |since| since.max(not_before)),
                last_used: None,
            });
            if image.is_in_use {
                known.last_used = Some(now);
            }
            images.insert(image.id.clone(), known);
        }
        self.images = images;
    }

    /// Returns the images that may be removed, in order: the least recently used first, then the
    /// earliest detected.
    ///
    /// Upstream: `imagesInEvictionOrder`.
    pub fn eviction_order(&self, seen: &[SeenImage]) -> Vec<Evictable> {
        let free = seen.iter().filter(|seen| !seen.is_in_use && !seen.is_kept);
        let mut order: Vec<Evictable> = free
            .filter_map(|seen| {
                Some(Evictable {
                    id: seen.id.clone(),
                    size_bytes: seen.size_bytes,
                    known: *self.images.get(&seen.id)?,
                })
            })
            .collect();
        order.small_sort_by(|a, b| {
            let past = |at: Timestamp| self.past(at, self.looked);
            let key = |image: &Evictable| {
                let (used, came) = (image.known.last_used, image.known.first_detected);
                (used.map(past), past(came), used, came)
            };
            key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
        });
        order
    }

    /// Those of the images that were unused for longer than allowed. None before these records are that
    /// old themselves: earlier use is unknown.
    ///
    /// Upstream: `freeOldImages`.
    pub fn too_old(
        &self,
        order: &[Evictable],
        policy: &ImageGcPolicy,
        now: Timestamp,
    ) -> Vec<Evictable> {
        let Some(max_age) = policy.max_age else {
            return Vec::new();
        };
        let unused_since = |image: &Evictable| {
            let known = image.known;
            let unused = known.last_used.unwrap_or(known.first_detected);
            self.past(unused, now).max(self.past(self.began, now))
        };
        let is_old = |image: &&Evictable| elapsed(unused_since(image), now) > max_age;
        order.iter().filter(is_old).cloned().collect()
    }

    /// Those of the images that are old enough to be removed to free space. An image that came while
    /// the clock was ahead is not young.
    ///
    /// Upstream: `freeSpace`.
    pub fn old_enough(
        order: &[Evictable],
        policy: &ImageGcPolicy,
        now: Timestamp,
    ) -> Vec<Evictable> {
        let is_young = |image: &Evictable| since(image.known.first_detected, now) < policy.min_age;
        let old = order.iter().filter(|image| !is_young(image));
        old.cloned().collect()
    }
}
