//! The parts of the agent that rollouts need.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::store::board::Board;
use crate::store::cell::Reader;
use crate::store::node_edits::NodeEditsHandle;
use mirrorlet_core::admit::{AdmitInput, AdmitNode, Verdict, admit};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::rollout::{
    Cause, Settings, admitted_pod, beside_refused, is_beside, without_host_ports,
};
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::objects::ManifestObjects;
use mirrorlet_runtime::{Runtime, ServingPods, SyncError, SyncErrorReason};

/// Whether a pod counts when another needs resources: the node hasn't refused it, and it hasn't ended.
pub(super) fn takes_room(board: &Board, pod: &Pod) -> bool {
    let view = board.get(&PodUid::of(pod));
    let status = view.as_ref().and_then(|view| view.status.as_deref());
    !is_over(status) || view.is_some_and(|view| view.observed.anything_running())
}

/// Longest time for leading host ports to other versions: a few reads of the Engine.
const SERVE_DEADLINE: Duration = Duration::from_secs(20);

/// The parts of the agent that rollouts need.
pub struct RolloutOptions {
    /// Prepares pods.
    pub runtime: Arc<dyn Runtime>,
    /// Receives the data of the objects that are part of versions.
    pub objects: Arc<ManifestObjects>,
    /// A random text that only this machine knows, for the UIDs of pods with their objects.
    pub salt: String,
    /// The workers' states of pods.
    pub board: Board,
    /// The node as admission sees it.
    pub node: Reader<AdmitNode>,
    /// Whether a failed revision is replaced by the last healthy one.
    pub restore: bool,
    /// Changes that users made to the Node: no new API pod is started on a cordoned one.
    pub node_edits: NodeEditsHandle,
    /// Sets the images that image garbage collection must keep: those of versions that may be started.
    pub needed_images: watch::Sender<BTreeSet<String>>,
    /// Receives log lines, metrics and journal entries.
    pub telemetry: Telemetry,
    /// Returns the present time.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl RolloutOptions {
    /// Why the node would refuse a revision in place of the running one, or beside it.
    pub(super) fn refused(
        &self,
        revision: &Pod,
        running: Option<&Pod>,
        before: &Merged,
    ) -> Option<Cause> {
        let name = FullName::of(revision);
        // Versions that are judged beside others take room, too; they bind no host ports.
        let others = before.pods.values().chain(before.beside.values());
        let others = others
            .filter(|pod| pod.is_api() || pod.full_name() != name)
            .filter(|pod| takes_room(&self.board, &pod.pod));
        let mut others: Vec<Arc<Pod>> = others.map(|pod| admitted_pod(&pod.pod)).collect();
        if let Some(running) = running.filter(|_| is_beside(revision)) {
            if let Some(cause) = beside_refused(running, revision, &Settings::of(revision)) {
                return Some(cause);
            }
            others.push(without_host_ports(running));
        }
        let verdict = admit(&AdmitInput {
            pod: revision,
            others: &others,
            node: &self.node.get(),
        });
        match verdict {
            Verdict::Admitted { .. } => None,
            Verdict::Refused(failure) => {
                Some(Cause::new(failure.reason, failure.message).of_field(failure.field))
            }
        }
    }

    pub(super) async fn serve(&self, pods: ServingPods) -> Result<(), SyncError> {
        let serving = self.runtime.serve_host_ports(pods);
        let served = tokio::time::timeout(SERVE_DEADLINE, serving).await;
        served.unwrap_or_else(|_| {
            let words = format!("no answer within {} s", SERVE_DEADLINE.as_secs());
            Err(SyncError::new(SyncErrorReason::RuntimeUnavailable, words))
        })
    }
}
