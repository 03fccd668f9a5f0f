//! Eviction: whether the node is short of memory, disk or process ids, and which pods are evicted.
//!
//! [`Eviction::observe`] compares readings with thresholds and returns the node's pressures and the
//! threshold to reclaim for; [`rank`] orders pods, [`local_storage`] finds pods above their own limits.
//! The caller reads, reclaims and evicts.
//!
//! Two rules differ from upstream, which never evicts a static pod. A static pod is evicted after all
//! others, only if it uses at least 1 % of the short resource, and never if it has the priority of a
//! system pod. Its own limits of ephemeral storage apply to it as to any other pod.
//!
//! Upstream: `pkg/kubelet/eviction/eviction_manager.go`, `helpers.go`.

mod local_storage;
mod rank;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::api::Timestamp;
use crate::api::quantity::{Quantity, binary_text};
use crate::clock::elapsed;
use crate::small::SmallCollect;

pub use crate::pressure::{Pressure, Pressures, listed};
pub use local_storage::{LocalLimit, Overuse, has_local_limits, local_storage};
pub use rank::{Candidate, evicted_message, is_spared, rank};

/// Grace period of a pod that is evicted immediately.
///
/// Upstream: `immediateEvictionGracePeriodSeconds`.
pub const IMMEDIATE_GRACE: Duration = Duration::from_secs(1);
/// How often the machine is read: upstream's `evictionMonitoringPeriod`.
const LOOK_PERIOD: Duration = Duration::from_secs(10);
/// The same when memory is nearly short: it can go within seconds, where a disk can't.
const NEAR_PERIOD: Duration = Duration::from_secs(1);
/// The whole, in the units of [`Amount::Share`].
const WHOLE: u64 = 100_000;

crate::words! {
    /// Something that can run short, as settings name it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Signal {
        /// Memory of the machine without its working set.
        MemoryAvailable = "memory.available",
        /// Space on the file system of the agent's root directory.
        NodeFsAvailable = "nodefs.available",
        /// Inodes there.
        NodeFsInodesFree = "nodefs.inodesFree",
        /// Space on the file system of the Engine's root directory.
        ImageFsAvailable = "imagefs.available",
        /// Inodes there.
        ImageFsInodesFree = "imagefs.inodesFree",
        /// Process numbers.
        PidAvailable = "pid.available",
    }
    /// The name in settings and metrics.
    pub fn as_str;
}

impl Signal {
    /// The signal with that name.
    ///
    /// # Errors
    /// There is none; the message lists the known ones.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|signal| signal.as_str() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("{name:?} is not an eviction signal: {names}")
        })
    }

    /// The pressure of the node while this resource is short.
    #[must_use]
    pub fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable => Pressure::Memory,
            Self::NodeFsAvailable
            | Self::NodeFsInodesFree
            | Self::ImageFsAvailable
            | Self::ImageFsInodesFree => Pressure::Disk,
            Self::PidAvailable => Pressure::Pid,
        }
    }

    /// The resource that pods use of it, as in messages.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory",
            Self::NodeFsAvailable | Self::ImageFsAvailable => "ephemeral-storage",
            Self::NodeFsInodesFree | Self::ImageFsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// Whether dead containers and unused images are removed before a pod is evicted. If images have a
    /// file system of their own, that frees nothing on the other one.
    pub fn frees_by_collection(self, has_image_fs: bool) -> bool {
        match self {
            Self::MemoryAvailable | Self::PidAvailable => false,
            Self::NodeFsAvailable | Self::NodeFsInodesFree => !has_image_fs,
            Self::ImageFsAvailable | Self::ImageFsInodesFree => true,
        }
    }
}

/// An amount of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Amount {
    /// Bytes, inodes or process numbers.
    Units(u64),
    /// A share of the capacity, in thousandths of a percent.
    Share(u64),
}

impl Amount {
    /// A quantity such as `100Mi`, or a percentage such as `10%`.
    ///
    /// # Errors
    /// It is neither, or negative, or more than `100%`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else {
            let quantity: Quantity = text
                .parse()
                .map_err(|error| format!("{text:?} is not a quantity: {error}"))?;
            let units = u64::try_from(quantity.ceil()).ok();
            return units
                .map(Self::Units)
                .ok_or_else(|| format!("{text:?} is negative"));
        };
        let is_plain = percent.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let share = percent.parse::<Quantity>().ok().filter(|_| is_plain);
        let share = share.and_then(|share| u64::try_from(share.milli_ceil()).ok());
        match share {
            Some(share) if share <= WHOLE => Ok(Self::Share(share)),
            Some(_) | None => Err(format!("{text:?} is not a percentage up to 100%")),
        }
    }

    /// Whether a threshold with this amount is never met, or always: upstream ignores `0%` and `100%`.
    pub fn is_trivial(self) -> bool {
        matches!(self, Self::Share(0 | WHOLE))
    }

    /// The amount of `capacity` that this is.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Share(share) => {
                let part = u128::from(capacity) * u128::from(share) / u128::from(WHOLE);
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => f.write_str(&binary_text(*units)),
            Self::Share(share) if share % 1000 == 0 => write!(f, "{}%", share / 1000),
            Self::Share(share) => {
                let part = format!("{:03}", share % 1000);
                write!(f, "{}.{}%", share / 1000, part.trim_end_matches('0'))
            }
        }
    }
}

/// An amount below which a signal must not fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// Less than this is too little.
    pub value: Amount,
    /// How long the shortage may last; zero for a hard threshold.
    pub grace: Duration,
    /// How much more than `value` must be available before the shortage is over.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether pods are evicted immediately, without their own grace period.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// Whether the threshold is met; with `reclaimed`, whether too little is available to stop
    /// reclaiming.
    pub fn is_met(&self, observations: &Observations, reclaimed: bool) -> bool {
        let Some(seen) = observations.get(&self.signal) else {
            return false;
        };
        let more = self.min_reclaim.filter(|_| reclaimed);
        let more = more.map_or(0, |more| more.of(seen.capacity));
        seen.available < self.value.of(seen.capacity).saturating_add(more)
    }
}

/// When to evict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvictionPolicy {
    /// The thresholds.
    pub thresholds: Vec<Threshold>,
    /// Maximum grace period of a pod that a soft threshold evicts.
    pub max_pod_grace: Duration,
    /// How long a pressure persists after it was last observed.
    pub transition: Duration,
}

/// The reading of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observation {
    /// How much is left.
    pub available: u64,
    /// How much there is in all.
    pub capacity: u64,
}

/// The readings of the signals that can be read.
pub type Observations = BTreeMap<Signal, Observation>;

/// The result of one comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The pressures that the node is under, or was until recently.
    pub pressures: Pressures,
    /// The threshold to reclaim for; none while nothing is short, or not for long enough.
    pub starved: Option<Threshold>,
    /// When to read again, though nothing happens.
    pub look_again: Duration,
}

/// The state between readings.
#[derive(Debug, Clone, Default)]
pub struct Eviction {
    /// Since when thresholds are met, by their index.
    met_since: BTreeMap<usize, Timestamp>,
    /// Thresholds whose grace period is over, and for which too little was reclaimed so far.
    starved: BTreeSet<usize>,
    /// When each pressure was last seen.
    seen: BTreeMap<Pressure, Timestamp>,
}

impl Eviction {
    /// Compares new readings with the thresholds. A clock that was set back counts as stopped.
    pub fn observe(
        &mut self,
        policy: &EvictionPolicy,
        observations: &Observations,
        now: Timestamp,
    ) -> Look {
        for since in self.met_since.values_mut().chain(self.seen.values_mut()) {
            *since = (*since).min(now);
        }
        let is_met = |(index, threshold): &(usize, &Threshold)| {
            threshold.is_met(observations, self.starved.contains(index))
        };
        let met: Vec<(usize, &Threshold)> = policy
            .thresholds
            .iter()
            .enumerate()
            .filter(is_met)
            .collect();
        let mut since = BTreeMap::new();
        for (index, threshold) in &met {
            since.insert(*index, self.met_since.get(index).copied().unwrap_or(now));
            self.seen.insert(threshold.signal.pressure(), now);
        }
        self.met_since = since;
        let lasted = |index: &usize| self.met_since.get(index).map(|at| elapsed(*at, now));
        let (starved, waiting): (Vec<_>, Vec<_>) = met
            .into_iter()
            .partition(|(index, threshold)| lasted(index) >= Some(threshold.grace));
        let grace_ends = waiting.iter().filter_map(|(index, threshold)| {
            threshold
                .grace
                .checked_sub(lasted(index).unwrap_or_default())
        });
        let is_near = policy.thresholds.iter().any(|threshold| {
            let doubled = Threshold {
                min_reclaim: Some(threshold.value),
                ..*threshold
            };
            threshold.signal == Signal::MemoryAvailable && doubled.is_met(observations, true)
        });
        let period = if is_near { NEAR_PERIOD } else { LOOK_PERIOD };
        let look_again = grace_ends.fold(period, Duration::min).max(NEAR_PERIOD);
        self.starved = starved.iter().map(|(index, _)| *index).collect_set();
        self.seen.retain(|_, at| {
            let age = elapsed(*at, now);
            age.is_zero() || age < policy.transition
        });
        Look {
            pressures: self.seen.keys().copied().collect_set(),
            // Memory first: a machine without it does nothing at all.
            starved: starved
                .into_iter()
                .map(|(_, t)| *t)
                .min_by_key(|t| t.signal),
            look_again,
        }
    }
}

/// Whether enough of every resource was reclaimed that no pod has to be evicted.
///
/// Upstream: the end of `reclaimNodeLevelResources`.
pub fn is_reclaimed(policy: &EvictionPolicy, observations: &Observations) -> bool {
    let mut thresholds = policy.thresholds.iter();
    !thresholds.any(|threshold| threshold.is_met(observations, true))
}

/// For each current pressure, the readings that show it.
pub fn shortages(
    policy: &EvictionPolicy,
    observations: &Observations,
) -> BTreeMap<Pressure, String> {
    let mut short: BTreeMap<Pressure, String> = BTreeMap::new();
    for threshold in &policy.thresholds {
        let signal = threshold.signal;
        if let Some(seen) = observations
            .get(&signal)
            .filter(|_| threshold.is_met(observations, false))
        {
            let (name, available) = (signal.as_str(), binary_text(seen.available));
            let words = format!("{name} is {available}, below {}", threshold.value);
            let all = short.entry(signal.pressure()).or_default();
            if !all.is_empty() {
                all.push_str("; ");
            }
            all.push_str(&words);
        }
    }
    short
}
