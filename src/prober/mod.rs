//! Probing: one task per pod, container and kind, while the pod is on the board.
//!
//! [`ProbeManager`] follows the board. A pod gets its workers when its convergence begins, each gets
//! the changes of its pod, and the results of pods that left the board are dropped, as are an earlier
//! agent's results of pods that no longer exist. Results are written to the
//! [results](crate::store::probes), whose changes wake the pod's worker.
//!
//! Upstream: `pkg/kubelet/prober/prober_manager.go`.

mod attempt;
mod kept;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::store::board::{Board, Phase, PodView};
use crate::store::probes::ProbeWriter;
use mirrorlet_core::api::{Pod, PodUid, Timestamp};
use mirrorlet_core::observed::{Pods, Role};
use mirrorlet_core::probe::ProbeKind;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::spec;
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::Runtime;
use worker::Worker;

pub use kept::KEPT_FILE;

/// How long results may change before they are left to the next agent: many pods get ready at once.
const KEEP_AFTER: Duration = Duration::from_secs(1);

/// The clock for initial delays.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// State that all probe workers share.
pub(crate) struct Shared {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) client: Client,
    pub(crate) results: ProbeWriter,
    pub(crate) telemetry: Telemetry,
    pub(crate) now: Now,
    /// When the agent began to probe.
    pub(crate) began: Instant,
}

/// The probe of a pod that a worker runs.
type Key = (Arc<str>, ProbeKind);

/// The set of probe workers.
pub struct ProbeManager {
    shared: Arc<Shared>,
    board: Board,
    pods: HashMap<PodUid, Probed>,
    /// Pods that were on the board.
    seen: HashSet<PodUid>,
    tasks: JoinSet<()>,
    /// Where results are left to the next agent, and what was left there last.
    kept: Option<PathBuf>,
    left: kept::StoredResults,
    /// The runtime's newest list of pods.
    listed: Option<Listed>,
}

/// A reader of the runtime's lists; none before the first one.
type Listed = watch::Receiver<Option<Arc<Pods>>>;

/// A pod with its workers.
struct Probed {
    view: watch::Sender<Arc<PodView>>,
    /// Each worker's token; it stops when this is dropped. The token of a worker that ended by itself
    /// stays, so that it isn't started again.
    workers: BTreeMap<Key, DropGuard>,
    /// Whether the pod was being stopped: if it is converged again, it starts afresh.
    ending: bool,
}

impl ProbeManager {
    /// Returns a manager that follows the board and writes to `results`, starting with the results that
    /// an earlier agent saved in the file `kept`.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        client: Client,
        board: Board,
        results: ProbeWriter,
        telemetry: Telemetry,
        now: Now,
        kept: Option<PathBuf>,
    ) -> Self {
        let left = kept.as_deref().map(kept::read).unwrap_or_default();
        for (uid, before) in &left {
            results.begin(uid);
            results.change(uid, |results| {
                results.clone_from(before);
                true
            });
        }
        let shared = Arc::new(Shared {
            runtime,
            client,
            results,
            telemetry,
            now,
            began: Instant::now(),
        });
        Self {
            shared,
            board,
            pods: HashMap::new(),
            seen: HashSet::new(),
            tasks: JoinSet::new(),
            kept,
            left,
            listed: None,
        }
    }

    /// Uses the runtime's lists: saved results of pods that are not in the first one are dropped.
    #[must_use]
    pub fn following(mut self, listed: Listed) -> Self {
        self.listed = Some(listed);
        self
    }

    /// Follows the board until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut changed = self.board.changed();
        let mut probed = self.shared.results.reader().changed();
        let mut keep_at: Option<Instant> = None;
        let mut listed = self.listed.take();
        loop {
            changed.borrow_and_update();
            self.follow(&cancel);
            let keeping = tokio::time::sleep_until(keep_at.unwrap_or_else(Instant::now));
            tokio::select! {
                () = cancel.cancelled() => break,
                result = changed.changed() => if result.is_err() { break },
                // The store lives as long as this.
                _ = probed.changed() => {
                    keep_at.get_or_insert_with(|| Instant::now() + KEEP_AFTER);
                }
                there = first_list(&mut listed) => {
                    listed = None;
                    if let Some(there) = there {
                        self.forget_gone(&there);
                    }
                }
                () = keeping, if keep_at.is_some() => {
                    keep_at = None;
                    self.keep().await;
                }
                // The panic hook logs one that panicked; its probe keeps its last result.
                Some(_) = self.tasks.join_next() => {}
            }
        }
        if keep_at.is_some() {
            self.keep().await;
        }
        self.pods.clear();
        while self.tasks.join_next().await.is_some() {}
    }

    /// Saves the results for the next agent, unless they are saved already.
    async fn keep(&mut self) {
        let Some(path) = self.kept.clone() else {
            return;
        };
        let all = self.shared.results.reader().all().into_iter();
        let kept = all.map(|(uid, results)| (uid, results.kept()));
        let kept: kept::StoredResults = kept
            .filter(|(_, results)| !results.is_empty())
            .collect_map();
        if kept == self.left {
            return;
        }
        match kept::write(path, &kept).await {
            Ok(()) => self.left = kept,
            Err(error) => occurrences::probes_not_kept(&error.to_string()),
        }
    }

    /// Drops saved results of pods without containers: a result belongs to an instance.
    fn forget_gone(&self, there: &Pods) {
        let there: BTreeSet<&PodUid> = there.0.iter().map(|pod| &pod.uid).collect_set();
        let is_known = |uid: &PodUid| there.contains(uid) || self.seen.contains(uid);
        for gone in self.left.keys().filter(|uid| !is_known(uid)) {
            self.shared.results.forget(gone);
        }
    }

    /// Brings the workers in step with the board.
    fn follow(&mut self, cancel: &CancellationToken) {
        let views = self.board.all();
        let uids: HashSet<PodUid> = views.iter().map(|view| view.uid.clone()).collect();
        self.pods.retain(|uid, _| uids.contains(uid));
        for gone in self.seen.difference(&uids) {
            self.shared.results.forget(gone);
        }
        self.seen = uids;
        for view in views {
            self.follow_pod(view, cancel);
        }
    }

    fn follow_pod(&mut self, view: PodView, cancel: &CancellationToken) {
        let Some(pod) = view.pod.clone() else { return };
        let uid = view.uid.clone();
        let converging = view.phase == Phase::Syncing;
        if converging && self.pods.get(&uid).is_some_and(|probed| probed.ending) {
            self.pods.remove(&uid);
        }
        let wanted = probes(&pod);
        let is_known = self.pods.contains_key(&uid);
        if !is_known && (wanted.is_empty() || !converging) {
            return;
        }
        self.shared.results.begin(&uid);
        let view = Arc::new(view);
        let probed = self.pods.entry(uid).or_insert_with(|| Probed {
            view: watch::Sender::new(Arc::clone(&view)),
            workers: BTreeMap::new(),
            ending: false,
        });
        probed.ending = !converging;
        probed.view.send_if_modified(|known| {
            let is_news = !same(known, &view);
            *known = Arc::clone(&view);
            is_news
        });
        probed.workers.retain(|key, _| wanted.contains(key));
        if !converging {
            return;
        }
        for key in wanted {
            if probed.workers.contains_key(&key) {
                continue;
            }
            let token = cancel.child_token();
            let worker = Worker::new(Arc::clone(&self.shared), probed.view.subscribe(), &key);
            self.tasks.spawn(worker.run(token.clone()));
            probed.workers.insert(key, token.drop_guard());
        }
    }
}

/// Waits for the first list of the runtime; none if there will be none.
async fn first_list(listed: &mut Option<Listed>) -> Option<Arc<Pods>> {
    let Some(listed) = listed else {
        return std::future::pending().await;
    };
    let there = listed.wait_for(Option::is_some).await;
    there.ok().and_then(|there| there.clone())
}

/// The probes of a pod: of its regular containers and sidecars.
fn probes(pod: &Pod) -> Vec<Key> {
    spec::containers(pod)
        .filter(|(role, _)| *role != Role::Init)
        .flat_map(|(_, container)| {
            let name: Arc<str> = container.name.as_str().into();
            ProbeKind::ALL
                .into_iter()
                .filter(|kind| kind.of(container).is_some())
                .map(move |kind| (Arc::clone(&name), kind))
        })
        .collect()
}

/// Whether two views show the same to a probe worker.
fn same(a: &PodView, b: &PodView) -> bool {
    a.phase == b.phase && a.pod == b.pod && a.status == b.status && a.observed == b.observed
}
