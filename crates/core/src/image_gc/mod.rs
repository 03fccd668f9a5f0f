//! Decides which images to remove when the disk fills up, or when they are unused for long. As
//! values: what is there, what is used, how full the disk is, and the time come in, and images to
//! be removed go out, in order.
//!
//! Upstream: `pkg/kubelet/images/image_gc_manager.go`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::Timestamp;
use crate::clock::{elapsed, past};
use crate::small::SmallSort;

/// When images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// From which share of the disk on, in percent, images are removed for their space.
    pub high_threshold_percent: u8,
    /// Down to which share, in percent.
    pub low_threshold_percent: u8,
    /// An image known for less is never removed for its space.
    pub min_age: Duration,
    /// An image unused for longer is removed, however empty the disk is; none for no such age.
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
    /// Bytes of it that may still be written.
    pub available_bytes: u64,
}

/// A disk without size: what was read is not to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid capacity 0 on image filesystem")]
pub struct InvalidCapacity;

impl DiskUsage {
    /// The share that is used, in percent, as upstream rounds it.
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

    /// How much is to be freed, in bytes; nothing below the high threshold.
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
    /// Its size in bytes, layers it shares with others included.
    pub size_bytes: u64,
    /// When it came, where that is known.
    pub since: Option<Timestamp>,
    /// Whether a container was made from it, running or not, or a pod or workload may be started with
    /// it.
    pub is_in_use: bool,
    /// Whether it stays whatever happens: the sandbox's, one that another image was built on, one
    /// that is none of our business.
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

/// The records of images from pass to pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRecords {
    began: Timestamp,
    has_looked: bool,
    images: BTreeMap<String, Known>,
}

impl ImageRecords {
    /// Records that begin now: nobody knows when images were used before.
    pub fn new(now: Timestamp) -> Self {
        Self {
            began: now,
            has_looked: false,
            images: BTreeMap::new(),
        }
    }

    /// Takes in what is there, and forgets what is gone. An image of which nobody knows when it
    /// came has come with this look; with the first one, it was there for ever. Times that are
    /// still to come are of a clock that was set back since: no image stays until it has caught up.
    ///
    /// Upstream: `detectImages`.
    pub fn detect(&mut self, seen: &[SeenImage], now: Timestamp) {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        self.began = self.began.min(now);
        let mut images = BTreeMap::new();
        for image in seen {
            let known = self.images.get(&image.id).copied();
            let mut known = known.unwrap_or(Known {
                first_detected: image.since.unwrap_or(if is_first {
                    Timestamp::UNIX_EPOCH
                } else {
                    now
                }),
                last_used: None,
            });
            known.first_detected = past(known.first_detected, now);
            // Not long ago: it may have been used until now.
            known.last_used = known.last_used.map(|used| used.min(now));
            if image.is_in_use {
                known.last_used = Some(now);
            }
            images.insert(image.id.clone(), known);
        }
        self.images = images;
    }

    /// Returns the images that may be removed, in order: the least recently used first, then the
    /// one detected first.
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
            let key = |image: &Evictable| (image.known.last_used, image.known.first_detected);
            key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
        });
        order
    }

    /// Of these, what nobody has used for longer than is allowed. Nothing, before these records are
    /// as old: what was used before it began is not known.
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
            known
                .last_used
                .unwrap_or(known.first_detected)
                .max(self.began)
        };
        let is_old = |image: &&Evictable| elapsed(unused_since(image), now) > max_age;
        order.iter().filter(is_old).cloned().collect()
    }

    /// Of these, what is not too young to go for its space.
    ///
    /// Upstream: `freeSpace`.
    pub fn old_enough(
        order: &[Evictable],
        policy: &ImageGcPolicy,
        now: Timestamp,
    ) -> Vec<Evictable> {
        let is_young =
            |image: &Evictable| elapsed(image.known.first_detected, now) < policy.min_age;
        let old = order.iter().filter(|image| !is_young(image));
        old.cloned().collect()
    }
}
