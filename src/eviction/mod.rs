//! Evicts pods from a node that is short of memory, disk or process ids, and pods that exceed their own
//! limits of ephemeral storage.
//!
//! One task reads the machine every ten seconds, which takes a few kernel files and no Engine call.
//! Pods' usage is read only for those that limit their ephemeral storage, and for all once something is
//! short. [`mirrorlet_core::eviction`] decides; the workers execute.
//!
//! Upstream: `pkg/kubelet/eviction/eviction_manager.go`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use crate::store::board::{Board, Phase, PodView};
use crate::store::cell::{Reader, Writer, cell};
use crate::store::evictions::Evict;
use mirrorlet_core::admit::Failure;
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::ending::ending;
use mirrorlet_core::eviction::{
    Candidate, Eviction, EvictionPolicy, IMMEDIATE_GRACE, Observations, Pressure, Pressures,
    Signal, Threshold, evicted_message, has_local_limits, is_reclaimed, local_storage, rank,
    shortages,
};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::spec;
use mirrorlet_core::stats::PodReading;
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// Maximum wait for an evicted pod to stop before the node is read again.
///
/// Upstream: `podCleanupTimeout`.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// Shortest time between two collections of dead containers and unused images: what the last one
/// left is in use.
const COLLECT_WAIT: Duration = Duration::from_mins(1);

/// Maximum wait for such a collection. A slower one continues in the background: a hanging Engine
/// blocks no eviction.
const COLLECTED_WITHIN: Duration = Duration::from_secs(30);

/// How long a slow collection protects pods, if it has freed more at each check. Thousands of images
/// take minutes; a disk that is still short after that has another cause.
const SPARED_WITHIN: Duration = Duration::from_mins(5);

/// How long measuring disks may take once one is short. Pods that were not measured by then count as
/// using nothing.
const MEASURE_WAIT: Duration = Duration::from_secs(10);

/// The readings of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// The signals that can be read.
    pub observations: Observations,
    /// Whether images have a file system of their own.
    pub has_image_fs: bool,
}

/// The operations of its host that eviction needs.
#[async_trait]
pub trait EvictionHost: Send + Sync + 'static {
    /// Reads the machine.
    async fn observe(&self) -> Seen;

    /// Reads the usage of these pods. Disks that were not measured recently are measured concurrently,
    /// with a wait of at most `patience`.
    ///
    /// # Errors
    /// The kernel's numbers can't be read; a message.
    async fn usage(
        &self,
        pods: Vec<PodView>,
        patience: Duration,
    ) -> Result<Vec<PodReading>, String>;

    /// Removes dead containers and unused images.
    async fn collect(&self);
}

/// The node's shortages, for the status report: for each pressure, the readings with which it
/// began.
pub type Shortages = BTreeMap<String, String>;

/// The reads of what pods use. Each may fail by itself: the kernel answers for few pods before it does for
/// all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum UsageRead {
    /// Of the pods with limits of their own.
    Limited,
    /// Of all, once something is short.
    All,
}

/// The progress of a collection.
struct Progress {
    /// When it began.
    began: Instant,
    /// The last readings that were compared with thresholds.
    seen: Observations,
}

/// The task that evicts.
pub struct EvictionManager {
    policy: EvictionPolicy,
    host: Arc<dyn EvictionHost>,
    board: Board,
    orders: mpsc::Sender<Evict>,
    pressures: Writer<Pressures>,
    shortages: Writer<Shortages>,
    telemetry: Telemetry,
    eviction: Eviction,
    /// The signal that is being reclaimed for.
    reclaiming: Option<Signal>,
    /// When the last collection ended.
    collected: Option<Instant>,
    /// The collection in progress, one at a time; it is abandoned with this task.
    collecting: JoinSet<Instant>,
    /// The progress of the last collection.
    progress: Option<Progress>,
    /// The reads of usage that failed the last time. The first one is logged.
    failed_reads: BTreeSet<UsageRead>,
}

impl EvictionManager {
    /// Returns a task that evicts by that policy, and a reader of the node's shortages. Publishes the
    /// pressures in `pressures`.
    pub fn new(
        policy: EvictionPolicy,
        host: Arc<dyn EvictionHost>,
        board: Board,
        orders: mpsc::Sender<Evict>,
        pressures: Writer<Pressures>,
        telemetry: Telemetry,
    ) -> (Self, Reader<Shortages>) {
        let (shortages, reader) = cell(Shortages::new());
        let manager = Self {
            policy,
            host,
            board,
            orders,
            pressures,
            shortages,
            telemetry,
            eviction: Eviction::default(),
            reclaiming: None,
            collected: None,
            collecting: JoinSet::new(),
            progress: None,
            failed_reads: BTreeSet::new(),
        };
        (manager, reader)
    }

    /// Runs until cancelled.
    pub async fn run(mut self) {
        loop {
            let pause = self.look().await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks once, evicts if need be, and returns when to look again.
    async fn look(&mut self) -> Duration {
        let seen = self.host.observe().await;
        let observations = &seen.observations;
        let look = self
            .eviction
            .observe(&self.policy, observations, Timestamp::now());
        let short = shortages(&self.policy, observations);
        let known = self.shortages.get();
        self.shortages.publish(
            look.pressures
                .iter()
                .map(|pressure| {
                    let known = known.get(pressure.as_str()).or(short.get(pressure));
                    let known = known.cloned().unwrap_or_default();
                    (pressure.as_str().to_owned(), known)
                })
                .collect_map(),
        );
        self.pressures.publish(look.pressures);

        let active = self.active();
        if let Some(evicted) = self.evict_over_limits(&active, seen.has_image_fs).await {
            self.wait_until_stopped(&evicted).await;
            return Duration::ZERO;
        }
        let Some(threshold) = look.starved else {
            self.reclaiming = None;
            self.failed_reads.remove(&UsageRead::All);
            return look.look_again;
        };
        let signal = threshold.signal;
        if self.reclaiming.replace(signal) != Some(signal) {
            occurrences::eviction_threshold_met(&self.telemetry, signal.resource());
        }
        if self.is_enough_after_collection(signal, &seen).await {
            return look.look_again;
        }
        match self.evict_for(&threshold, &seen, active).await {
            Some(evicted) => {
                self.wait_until_stopped(&evicted).await;
                Duration::ZERO
            }
            None => look.look_again,
        }
    }

    /// The pods that may be evicted: those that are neither over nor being stopped.
    fn active(&self) -> Vec<PodView> {
        let mut views = self.board.all();
        views.retain(|view| {
            let pod = view.pod.as_deref();
            view.phase == Phase::Syncing && pod.is_some_and(|pod| ending(pod).is_none())
        });
        views
    }

    /// Reads the usage of pods. None if it can't be read: then no pod is evicted, because a pod without
    /// a reading would come before all others.
    async fn usage(
        &mut self,
        read: UsageRead,
        pods: Vec<PodView>,
        patience: Duration,
    ) -> Option<Vec<PodReading>> {
        match self.host.usage(pods, patience).await {
            Ok(readings) => {
                self.failed_reads.remove(&read);
                Some(readings)
            }
            Err(error) => {
                if self.failed_reads.is_empty() {
                    occurrences::eviction_waits(&error);
                }
                self.failed_reads.insert(read);
                None
            }
        }
    }

    /// Evicts the first pod that exceeds a limit of its own.
    async fn evict_over_limits(
        &mut self,
        active: &[PodView],
        has_image_fs: bool,
    ) -> Option<PodUid> {
        let is_limited = |view: &&PodView| view.pod.as_deref().is_some_and(has_local_limits);
        let limited: Vec<PodView> = active.iter().filter(is_limited).cloned().collect();
        if limited.is_empty() {
            self.failed_reads.remove(&UsageRead::Limited);
            return None;
        }
        let readings = self
            .usage(UsageRead::Limited, limited, Duration::ZERO)
            .await?;
        for reading in readings {
            let view = active.iter().find(|view| view.uid == reading.uid);
            let Some(pod) = view.and_then(|view| view.pod.as_deref()) else {
                continue;
            };
            if let Some(over) = local_storage(pod, &reading, has_image_fs) {
                let failure = Failure::evicted(&over.message, IMMEDIATE_GRACE, false);
                return self.order(reading.uid, failure, over.limit.as_str()).await;
            }
        }
        None
    }

    /// Removes unused data, if that helps, and returns whether no pod has to be evicted for now. While
    /// a collection is slow, one has to be unless it frees more and more.
    async fn is_enough_after_collection(&mut self, signal: Signal, seen: &Seen) -> bool {
        // One that panicked has removed nothing more; the panic hook has logged it.
        let end = |ended: Result<Instant, JoinError>| ended.unwrap_or_else(|_| Instant::now());
        if let Some(ended) = self.collecting.try_join_next() {
            self.collected = Some(end(ended));
        }
        if !signal.frees_by_collection(seen.has_image_fs) {
            return false;
        }
        if !self.collecting.is_empty() {
            return self.frees_more(signal, &seen.observations);
        }
        let is_due = |at: Instant| at.elapsed() >= COLLECT_WAIT;
        if !self.collected.is_none_or(is_due) {
            return false;
        }
        self.progress = Some(Progress {
            began: Instant::now(),
            seen: seen.observations.clone(),
        });
        let host = Arc::clone(&self.host);
        self.collecting.spawn(async move {
            host.collect().await;
            Instant::now()
        });
        let ended = timeout(COLLECTED_WITHIN, self.collecting.join_next()).await;
        let now = self.host.observe().await.observations;
        let frees_more = self.frees_more(signal, &now);
        let goes_on = ended.is_err();
        if let Ok(ended) = ended {
            self.collected = ended.map(end);
        }
        is_reclaimed(&self.policy, &now) || goes_on && frees_more
    }

    /// Whether a collection in progress has freed something since the last check, and may continue.
    fn frees_more(&mut self, signal: Signal, now: &Observations) -> bool {
        let Some(progress) = &mut self.progress else {
            return false;
        };
        let before = std::mem::replace(&mut progress.seen, now.clone());
        let available = |of: &Observations| of.get(&signal).map(|seen| seen.available);
        progress.began.elapsed() < SPARED_WITHIN && available(now) > available(&before)
    }

    /// Evicts the pod that is to go first.
    async fn evict_for(
        &mut self,
        threshold: &Threshold,
        seen: &Seen,
        active: Vec<PodView>,
    ) -> Option<PodUid> {
        // The sizes of disks rank pods only where a disk is short.
        let patience = match threshold.signal.pressure() {
            Pressure::Disk => MEASURE_WAIT,
            Pressure::Memory | Pressure::Pid => Duration::ZERO,
        };
        let readings = self.usage(UsageRead::All, active.clone(), patience).await?;
        let of = |view: &PodView| readings.iter().find(|reading| reading.uid == view.uid);
        let candidates: Vec<Candidate<'_>> = active
            .iter()
            .filter_map(|view| {
                Some(Candidate {
                    pod: view.pod.as_deref()?,
                    reading: of(view),
                })
            })
            .collect();
        let capacity = seen.observations.get(&threshold.signal)?.capacity;
        let order = rank(threshold.signal, seen.has_image_fs, capacity, &candidates);
        let first = order.first()?;
        let grace = if threshold.is_hard() {
            IMMEDIATE_GRACE
        } else {
            let own = spec::termination_grace(first.pod);
            own.min(self.policy.max_pod_grace).max(IMMEDIATE_GRACE)
        };
        let message = evicted_message(threshold, &seen.observations, first);
        let failure = Failure::evicted(&message, grace, true);
        let uid = PodUid::of(first.pod);
        self.order(uid, failure, threshold.signal.as_str()).await
    }

    async fn order(&self, uid: PodUid, failure: Failure, signal: &'static str) -> Option<PodUid> {
        let order = Evict {
            uid: uid.clone(),
            failure,
            signal,
        };
        self.orders.send(order).await.ok().map(|()| uid)
    }

    /// Waits until nothing of an evicted pod runs any more: only then is it known how much that freed.
    async fn wait_until_stopped(&self, uid: &PodUid) {
        let mut changed = self.board.changed();
        let stopped = async {
            loop {
                changed.borrow_and_update();
                let phase = self.board.get(uid).map(|view| view.phase);
                if matches!(phase, None | Some(Phase::Terminated | Phase::Finished))
                    || changed.changed().await.is_err()
                {
                    return;
                }
            }
        };
        let _ = timeout(STOP_WAIT, stopped).await;
    }
}
