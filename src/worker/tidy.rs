//! Removes the remains on disk of unknown pods: an earlier agent was killed between removing a pod's
//! containers and its directory, or something was still mounted there.
//!
//! Upstream: `HandlePodCleanups` of `pkg/kubelet/kubelet_pods.go`, `cleanupOrphanedPodDirs` of
//! `pkg/kubelet/kubelet_volumes.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::PodWorkers;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::cache::RuntimeCache;
use mirrorlet_runtime::{Runtime, RuntimeError};

/// Pause between two looks, while nothing is left.
const PERIOD: Duration = Duration::from_mins(1);
/// Pauses while something can't be removed: each attempt asks the runtime.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_mins(2), Duration::from_hours(1));

/// The next look, the work in progress, and the reported problems.
#[derive(Debug)]
pub(super) struct Tidy {
    /// None before the first look, and while one is in progress.
    next: Option<Instant>,
    /// The look or the removal in progress, one at a time. A disk may take minutes, or never answer: no
    /// worker waits for that.
    work: JoinSet<Step>,
    /// The pods whose remains are being removed. No worker starts for one of them.
    removing: BTreeSet<PodUid>,
    backoff: ExponentialBackoff,
    reported: BTreeMap<PodUid, String>,
}

/// Where it is.
#[derive(Debug)]
pub(super) enum Step {
    /// It is time to look.
    Due,
    /// The pods with remains and without a worker.
    Found(Vec<PodUid>),
    /// The removal has ended; the remaining ones, with the reasons.
    Removed(BTreeMap<PodUid, String>),
}

impl Default for Tidy {
    fn default() -> Self {
        Self {
            next: None,
            work: JoinSet::new(),
            removing: BTreeSet::new(),
            backoff: RETRY,
            reported: BTreeMap::new(),
        }
    }
}

impl Tidy {
    /// Waits for the next step; forever before the first look. Cancel safety: a step that was not
    /// returned stays.
    pub(super) async fn step(&mut self) -> Step {
        let next = self.next;
        tokio::select! {
            // One that panicked has removed nothing more; the panic hook has logged it.
            Some(ended) = self.work.join_next() => {
                ended.unwrap_or_else(|_| Step::Removed(BTreeMap::new()))
            }
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                Step::Due
            }
            else => std::future::pending().await,
        }
    }

    /// Whether the remains of a pod are being removed.
    pub(super) fn removes(&self, uid: &PodUid) -> bool {
        self.removing.contains(uid)
    }

    /// Abandons the work in progress. The next agent finds the remains.
    pub(super) async fn end(&mut self) {
        self.work.shutdown().await;
    }

    fn removed(&mut self, left: BTreeMap<PodUid, String>) {
        for (uid, error) in &left {
            if self.reported.get(uid) != Some(error) {
                occurrences::orphan_left(uid, error);
            }
        }
        let pause = if left.is_empty() {
            self.backoff.reset();
            PERIOD
        } else {
            self.backoff.pause()
        };
        self.removing.clear();
        self.reported = left;
        self.next = Some(Instant::now() + pause);
    }
}

impl PodWorkers {
    /// Looks for the first time once every source has delivered.
    pub(super) fn tidy_once(&mut self) {
        if self.tidy.next.is_none() && self.tidy.work.is_empty() {
            self.look_for_remains();
        }
    }

    /// Continues with the removal of the directories of unknown pods. No worker starts for one of them
    /// meanwhile, so nothing is removed that is wanted again; a pod with that UID would find old
    /// volumes.
    pub(super) fn tidy(&mut self, step: Step, cancel: &CancellationToken) {
        match step {
            Step::Due => self.look_for_remains(),
            Step::Found(orphans) => self.remove_remains(orphans),
            Step::Removed(left) => {
                self.tidy.removed(left);
                // They may be wanted again meanwhile.
                self.apply(cancel);
                self.adopt_and_stop_unwanted(cancel);
            }
        }
    }

    fn look_for_remains(&mut self) {
        self.tidy.next = None;
        if !self.wanted.borrow().delivered.all() {
            return;
        }
        let wanted = self.wanted.borrow().clone();
        let finished = wanted.finished.iter().map(|(uid, _)| uid);
        let keep = self.workers.keys().chain(finished).cloned().collect_set();
        let runtime = Arc::clone(&self.context.runtime);
        let look = async move { Step::Found(runtime.list_orphans(&keep).await) };
        self.tidy.work.spawn(look);
    }

    fn remove_remains(&mut self, mut orphans: Vec<PodUid>) {
        // Some may be wanted again since the look began.
        let wanted = self.wanted.borrow().clone();
        orphans.retain(|uid| {
            let is_kept = wanted.has(uid) || wanted.spared.contains(uid);
            !is_kept && !self.workers.contains_key(uid)
        });
        if orphans.is_empty() {
            return self.tidy.removed(BTreeMap::new());
        }
        self.tidy.removing = orphans.iter().cloned().collect_set();
        let runtime = Arc::clone(&self.context.runtime);
        let running = Arc::clone(&self.running);
        self.tidy.work.spawn(async move {
            let mut left = BTreeMap::new();
            if let Err(error) = remove(&*runtime, &running, orphans, &mut left).await {
                tracing::debug!(error = %error, "failed to list running pods; kept all directories");
            }
            Step::Removed(left)
        });
    }
}

/// Removes the remains of pods, except for those of pods that run after all: irreversible actions are
/// not based on old observations.
async fn remove(
    runtime: &dyn Runtime,
    running: &RuntimeCache,
    orphans: Vec<PodUid>,
    left: &mut BTreeMap<PodUid, String>,
) -> Result<(), RuntimeError> {
    running.force_update_if_older(Instant::now()).await?;
    let running = running.get_pods().await?;
    for uid in orphans {
        if !running.find_pod_by_id(&uid).is_empty() {
            continue;
        }
        if let Err(error) = runtime.delete_pod(&uid).await {
            left.insert(uid, error.to_string());
        }
    }
    Ok(())
}
