//! Our containers on the Engine: list, inspect, create, start and stop, and the [index](super::index)
//! that records the results.

mod create;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum};
use tokio::sync::Mutex;

use super::engine::{EngineError, SharedEngine};
use super::index::{Index, Record, network_of, sandbox_mode};
use super::termination;
use super::translate::{Kind, OurContainer, parse_ours};
pub(super) use create::Made;
use mirrorlet_core::api::{ContainerId, PodUid, Timestamp};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{Result, RuntimeError, SyncError, SyncErrorReason};
pub(super) use turn::{Since, Turn, Turns};

/// Attempts to get an inspect that is not older than the newest event.
pub(super) const INSPECT_ATTEMPTS: usize = 3;

/// The containers that one owner has on an Engine.
pub(super) struct Containers {
    pub(super) engine: SharedEngine,
    pub(super) owner: String,
    pub(super) index: Index,
    /// Limits concurrent calls that change something. Fair: turns are given in the order of requests.
    pub(super) changes: Turns,
    listing: Mutex<()>,
    /// The network mode of new sandboxes, until the first list was compared with it.
    new_pods: parking_lot::Mutex<Option<String>>,
    /// Pods that another agent on the Engine was found to run; cleared once reported.
    pub(super) twins: parking_lot::Mutex<BTreeSet<PodUid>>,
    /// The containers that the Engine was too slow to create.
    pub(super) unanswered: create::Unanswered,
}

impl Containers {
    /// The containers of `owner`, with at most that many concurrent calls that change something.
    pub(super) fn new(engine: SharedEngine, owner: String, concurrency: usize) -> Self {
        Self {
            engine,
            owner,
            index: Index::default(),
            changes: Turns::new(concurrency),
            listing: Mutex::default(),
            new_pods: parking_lot::Mutex::default(),
            twins: parking_lot::Mutex::default(),
            unanswered: create::Unanswered::default(),
        }
    }

    /// The same, and reports once the pods that run in another network than this one, in which new pods
    /// run.
    #[must_use]
    pub(super) fn with_new_pods_in(self, network: Option<&str>) -> Self {
        *self.new_pods.lock() = Some(sandbox_mode(network).to_owned());
        self
    }

    /// Lists our containers into the index; only where the index is incomplete, when
    /// `only_if_incomplete`.
    pub(super) async fn list(&self, only_if_incomplete: bool) -> Result<()> {
        let _one_at_a_time = self.listing.lock().await;
        if only_if_incomplete && self.index.is_complete() {
            return Ok(());
        }
        let began = self.index.begin_list();
        let listed = self.engine.list_containers(&self.owner).await?;
        let ours: Vec<_> = listed
            .into_iter()
            .filter_map(|summary| {
                let names = summary.names.iter().flatten().map(String::as_str);
                let ours = parse_ours(&self.owner, names, summary.labels.as_ref()?)?;
                Some((summary, ours))
            })
            .collect();
        let new_pods = self.new_pods.lock().take();
        if let Some(mode) = new_pods {
            for (network, pods) in in_other_networks(&ours, &mode) {
                occurrences::pods_in_another_network(pods, &network, network_of(&mode));
            }
        }
        self.index.apply_list(began, ours);
        Ok(())
    }

    /// Inspects a container while that can show something new.
    pub(super) async fn freshen(&self, id: &str) -> Result<()> {
        let Some(record) = self.index.get(id) else {
            return Ok(());
        };
        let _asked_once = record.inspecting.lock().await;
        for _ in 0..INSPECT_ATTEMPTS {
            let Some(record) = self.index.get(id).filter(|record| record.stale) else {
                return Ok(());
            };
            match self.engine.inspect_container(id).await {
                Ok(found) => {
                    let message = self.termination_message(&record, &found).await;
                    self.index.inspected(id, record.touched, &found, &message);
                }
                Err(error) if error.is_not_found() => self.index.not_found(id, record.touched),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether another instance of a container that is about to be started runs, or is being started by
    /// a user. The Engine answers an inspect only once a start in progress is over.
    pub(super) async fn runs_already(
        &self,
        pod: &PodUid,
        is_instance: impl Fn(&Record) -> bool,
    ) -> Result<bool> {
        let records = self.index.of_pod(pod);
        for record in records.iter().filter(|record| is_instance(record)) {
            if let Some(by_hand) = record.by_hand
                && record.state == ContainerState::Exited
            {
                if by_hand.settles(Timestamp::now()).is_some() {
                    return Ok(true);
                }
                self.index.doubt(&record.id);
                self.freshen(&record.id).await?;
            }
            let state = self.index.get(&record.id).map(|now| now.state);
            if state == Some(ContainerState::Running) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the content of a container's termination message path, or the tail of its log.
    async fn termination_message(
        &self,
        record: &Record,
        found: &ContainerInspectResponse,
    ) -> String {
        let Kind::Container {
            termination_path,
            fallback_to_logs,
            ..
        } = &record.ours.kind
        else {
            return String::new();
        };
        termination::message(
            &*self.engine,
            &record.id,
            found,
            termination_path,
            *fallback_to_logs,
        )
        .await
    }

    /// Refuses a container that is known not to run.
    pub(super) fn check_running(&self, id: &ContainerId) -> Result<()> {
        let state = self.index.get(&id.id).map(|record| record.state);
        match state {
            Some(ContainerState::Created | ContainerState::Exited) => Err(not_running(&id.id)),
            Some(ContainerState::Running | ContainerState::Unknown) | None => Ok(()),
        }
    }

    /// All containers of a pod, unless one of them runs.
    pub(super) fn stopped_records(&self, uid: &PodUid) -> Result<Vec<Record>> {
        let records = self.index.of_pod(uid);
        match records.iter().find(|r| r.state == ContainerState::Running) {
            None => Ok(records),
            Some(running) => Err(RuntimeError::Conflict(format!(
                "container {} of the pod is still running",
                running.id.get(..12).unwrap_or(&running.id)
            ))),
        }
    }

    /// Stops a container; success if it has ended or is gone.
    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let asked = self.index.get(id).map_or(0, |record| record.touched);
        self.index.stopping(id);
        match self.engine.stop_container(id, grace).await {
            Ok(()) => {
                self.index.died(id, None, Timestamp::now());
                Ok(())
            }
            Err(error) if error.is_not_found() => {
                self.index.not_found(id, asked);
                Ok(())
            }
            Err(error) => {
                self.index.doubt(id);
                Err(error)
            }
        }
    }
}

/// Upstream: `core/streaming.go` of cri-dockerd.
pub(super) fn not_running(id: &str) -> RuntimeError {
    RuntimeError::Conflict(format!("container not running ({id})"))
}

/// The failure of a call that a sandbox needs.
pub(super) fn runtime_error(error: &RuntimeError) -> SyncError {
    let reason = if error.is_unavailable() {
        SyncErrorReason::RuntimeUnavailable
    } else {
        SyncErrorReason::CreatePodSandboxError
    };
    SyncError::new(reason, error.to_string())
}

/// Whether a sandbox that was created in the network `own` is in the network `other`: they are equal,
/// or one is the name and the other one the id of the same network.
fn is_in(summary: &ContainerSummary, own: &str, other: &str) -> bool {
    let settings = summary.network_settings.as_ref();
    let networks = settings.and_then(|settings| settings.networks.as_ref());
    let mut networks = networks.into_iter().flatten();
    own == other
        || networks.any(|(name, network)| {
            let known = [Some(name.as_str()), network.network_id.as_deref()];
            known.contains(&Some(own)) && known.contains(&Some(other))
        })
}

/// Networks with pods other than that of `mode`, with the number of their pods. An agent with another
/// `--network` has left them there.
pub(super) fn in_other_networks(
    listed: &[(ContainerSummary, OurContainer)],
    mode: &str,
) -> BTreeMap<String, usize> {
    let networks = listed.iter().filter_map(|(summary, ours)| {
        let host_network = match &ours.kind {
            Kind::Sandbox { host_network, .. } => *host_network,
            Kind::Container { .. } => true,
        };
        let runs = summary.state == Some(ContainerSummaryStateEnum::RUNNING);
        let network = network_of(summary.host_config.as_ref()?.network_mode.as_deref()?);
        (runs && !host_network && !is_in(summary, network, network_of(mode))).then_some(network)
    });
    let mut counted = BTreeMap::new();
    for network in networks {
        *counted.entry(network.to_owned()).or_default() += 1;
    }
    counted
}
