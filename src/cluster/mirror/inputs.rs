//! The inputs of the mirror task, and a snapshot of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::node::NodeRegistration;
use crate::cluster::reach::ApiReach;
use crate::store::board::{Board, Phase};
use crate::store::cell::{Closed, Reader};
use crate::store::pods::PodManager;
use mirrorlet_core::api::{FullName, NodeName, PodUid, core};
use mirrorlet_core::desired::ApiPodsState;
use mirrorlet_core::manager::PodTable;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::mirror::{AtWork, Standing, standings};
use mirrorlet_core::observed::Pods;

/// How long a listed pod without a worker counts as existing. Once they may, workers adopt listed pods
/// within moments.
const LISTED_COUNTS: Duration = Duration::from_mins(1);

/// Readers of the inputs of mirror decisions.
#[derive(Debug, Clone)]
pub struct MirrorInputs {
    /// Name of our Node.
    pub node_name: NodeName,
    /// Our Node as observed.
    pub node: Reader<Option<Arc<core::Node>>>,
    /// The registration of our Node. Mirrors on a Node of another agent may be that one's.
    pub standing: Reader<NodeRegistration>,
    /// Notifies when the wanted pods change, and has the sources that have delivered.
    pub merged: Reader<Merged>,
    /// The wanted pods and the mirrors.
    pub manager: PodManager,
    /// The workers' views of their pods.
    pub board: Board,
    /// The pods of the runtime's most recent list.
    pub listed: watch::Receiver<Option<Arc<Pods>>>,
}

/// The inputs, and the state derived from them.
pub(super) struct Watched {
    inputs: MirrorInputs,
    /// The API server's pods of our Node.
    api: Reader<ApiPodsState>,
    reach: Reader<ApiReach>,
    board_changed: watch::Receiver<u64>,
    /// When the newest list came.
    listed_at: Option<Instant>,
    /// Listed pods that have, or have had, a worker.
    taken_up: BTreeSet<PodUid>,
}

/// The inputs at one moment.
pub(super) struct Snapshot {
    pub node: Option<Arc<core::Node>>,
    pub standings: BTreeMap<FullName, Standing>,
    pub pods: Arc<PodTable>,
    /// None before the API server's first whole list.
    pub api: ApiPodsState,
    pub orphans_may_go: bool,
    /// Whether the Node may belong to another agent since the API server's outage.
    pub is_doubtful: bool,
    pub reach: ApiReach,
    /// When to check again though nothing changes.
    pub look_again: Option<Instant>,
}

impl Watched {
    pub(super) fn new(inputs: MirrorInputs, reach: Reader<ApiReach>) -> Self {
        let board_changed = inputs.board.changed();
        let listed = inputs.listed.borrow().is_some();
        Self {
            listed_at: listed.then(Instant::now),
            api: inputs.manager.api_pods(),
            inputs,
            reach,
            board_changed,
            taken_up: BTreeSet::new(),
        }
    }

    /// Waits until anything changes. Safe to cancel.
    ///
    /// # Errors
    /// [`Closed`] when a writer is gone: the agent is shutting down.
    pub(super) async fn changed(&mut self) -> Result<(), Closed> {
        let Self { inputs, .. } = self;
        tokio::select! {
            changed = inputs.node.changed() => changed.map(drop),
            changed = inputs.standing.changed() => changed.map(drop),
            changed = inputs.merged.changed() => changed.map(drop),
            changed = self.api.changed() => changed.map(drop),
            changed = self.reach.changed() => changed.map(drop),
            changed = self.board_changed.changed() => changed.map_err(|_| Closed),
            changed = inputs.listed.changed() => {
                self.listed_at = Some(Instant::now());
                changed.map_err(|_| Closed)
            }
        }
    }

    pub(super) fn look(&mut self, now: Instant) -> Snapshot {
        let Self {
            inputs, taken_up, ..
        } = self;
        // These before the table, which each of them is written after.
        let (merged, api) = (inputs.merged.get(), (*self.api.get()).clone());
        let pods = inputs.manager.get();
        let views = inputs.board.all();
        let standing = inputs.standing.get();
        let listed = inputs.listed.borrow_and_update().clone();
        taken_up.extend(views.iter().map(|view| view.uid.clone()));
        taken_up.retain(|uid| {
            listed
                .iter()
                .any(|pods| pods.0.iter().any(|pod| pod.uid == *uid))
        });
        let counts_until = self
            .listed_at
            .map(|at| at + LISTED_COUNTS)
            .filter(|until| *until > now);
        let mut left = listed
            .iter()
            .filter(|_| counts_until.is_some())
            .flat_map(|pods| pods.0.iter())
            .filter(|pod| !taken_up.contains(&pod.uid))
            .peekable();
        let look_again = counts_until.filter(|_| left.peek().is_some());
        let left = left.map(|pod| AtWork {
            full_name: pod.full_name.clone(),
            pod: pods.get_pod_by_uid(&pod.uid),
            waits: false,
        });
        // A version that runs beside the one of the mirror is not the mirror's yet.
        let shown = views
            .iter()
            .filter(|view| !merged.beside.contains_key(&view.uid));
        // The last pod with a name has it: one whose remains can't be removed may have a successor.
        let (ended, others): (Vec<_>, Vec<_>) =
            shown.partition(|view| view.phase == Phase::Terminated);
        let at_work = ended.into_iter().chain(others).map(|view| AtWork {
            full_name: view.full_name.clone(),
            pod: view.pod.clone(),
            waits: view.phase == Phase::WaitingToStart,
        });
        Snapshot {
            node: (*inputs.node.get()).clone(),
            standings: standings(&pods, left.chain(at_work)),
            pods,
            api,
            orphans_may_go: merged.delivered.manifests && listed.is_some() && standing.may_write(),
            is_doubtful: standing.is_doubtful(),
            reach: (*self.reach.get()).clone(),
            look_again,
        }
    }
}
