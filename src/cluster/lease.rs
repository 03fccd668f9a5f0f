//! The Lease of our Node: renewed every few seconds while the agent lives.
//!
//! Upstream: `staging/src/k8s.io/component-helpers/apimachinery/lease/controller.go`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::Api;
use kube::api::PostParams;

use super::client::ClusterClient;
use super::error::ApiError;
use super::node::{LEASE_NAMESPACE, NodeRegistration};
use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::api::core::Node;
use mirrorlet_core::api::meta::ObjectMeta;
use mirrorlet_core::api::{NodeName, Timestamp};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_host::random::{spread, stretched};
use mirrorlet_host::telemetry::occurrences;

/// How long a renewal holds, in seconds: upstream's `nodeLeaseDurationSeconds`.
const LEASE_SECONDS: i32 = 40;
/// How often it is renewed: a quarter of [`LEASE_SECONDS`], as upstream.
const RENEW_PERIOD: Duration = Duration::from_secs(10);
/// Maximum delay of a renewal, as a share of [`RENEW_PERIOD`]: upstream's.
const JITTER: f64 = 0.04;
/// Deadline of one call. Two fit between two renewals.
const LEASE_DEADLINE: Duration = Duration::from_secs(4);
/// Tries of one renewal before it waits for its next turn: upstream's `maxUpdateRetries`.
const TRIES_MAX: usize = 5;
/// Deadline of all tries of one renewal: the next one is due then.
const RENEW_DEADLINE: Duration = Duration::from_secs(9);
/// Pauses between tries.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The task that renews the Lease. It renews while the Node exists and is certainly ours, whatever the
/// Engine's state: the Node's condition reports an unavailable Engine, and clients only trust it while
/// the Lease is fresh.
pub struct LeaseTask {
    client: ClusterClient,
    leases: Api<Lease>,
    name: NodeName,
    node: Reader<Option<Arc<Node>>>,
    standing: Reader<NodeRegistration>,
    /// The Lease as it was written last.
    known: Option<Lease>,
    is_failing: bool,
    renewed_at: Writer<Option<Timestamp>>,
}

impl LeaseTask {
    /// Returns a task that renews the Lease of the Node in `node`, while it is ours.
    pub fn new(
        client: ClusterClient,
        name: NodeName,
        node: Reader<Option<Arc<Node>>>,
        standing: Reader<NodeRegistration>,
    ) -> Self {
        Self {
            leases: Api::namespaced(client.client(), LEASE_NAMESPACE),
            client,
            name,
            node,
            standing,
            known: None,
            is_failing: false,
            renewed_at: cell(None).0,
        }
    }

    /// When the Lease was last renewed; none before the first time.
    pub fn renewed(&self) -> Reader<Option<Timestamp>> {
        self.renewed_at.reader()
    }

    /// Runs until cancelled. The Lease stays, and runs out.
    pub async fn run(mut self) {
        let mut standing = self.standing.clone();
        let is_lost = |standing: &NodeRegistration| !standing.is_ours();
        loop {
            // There is no publisher any more: the agent ends.
            if standing.wait_for(NodeRegistration::is_ours).await.is_err() {
                return;
            }
            // It is published before how we stand, and taken back after that.
            let Some(owner) = (*self.node.get()).as_deref().and_then(owner_reference) else {
                if self.node.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let uid = owner.uid.clone();
            // Another may have the Lease by the time of the next try.
            tokio::select! {
                () = self.renew(owner) => {}
                Ok(_) = standing.wait_for(is_lost) => continue,
            }
            let other = |node: &Option<Arc<Node>>| {
                node.as_ref().and_then(|node| node.metadata.uid.as_ref()) != Some(&uid)
            };
            tokio::select! {
                () = tokio::time::sleep(stretched(RENEW_PERIOD, JITTER)) => {}
                // A Node that was registered again has no Lease: it dies with its Node.
                Ok(_) = self.node.wait_for(other) => {}
                Ok(_) = standing.wait_for(is_lost) => {}
            }
        }
    }

    async fn renew(&mut self, owner: OwnerReference) {
        let tries = self.tries(owner);
        let error = match tokio::time::timeout(RENEW_DEADLINE, tries).await {
            Ok(Ok(())) => {
                self.renewed_at.publish(Some(Timestamp::now()));
                if std::mem::take(&mut self.is_failing) {
                    occurrences::lease_back();
                }
                return;
            }
            Ok(Err(error)) => error,
            Err(_) => ApiError::deadline(RENEW_DEADLINE),
        };
        // The client reports a server that is away, for all callers.
        if !error.is_away() && !std::mem::replace(&mut self.is_failing, true) {
            occurrences::lease_failed(&error.to_string());
        }
    }

    async fn tries(&mut self, owner: OwnerReference) -> Result<(), ApiError> {
        let mut backoff = PAUSES;
        let mut outcome = Ok(());
        for turn in 0..TRIES_MAX {
            if turn > 0 {
                tokio::time::sleep(spread(backoff.pause())).await;
            }
            outcome = self.write(owner.clone()).await;
            match &outcome {
                Ok(()) => return outcome,
                // Another client wrote or deleted it: its current state counts.
                Err(error) if !error.is_away() => self.known = None,
                Err(_) => {}
            }
        }
        outcome
    }

    /// Writes the Lease based on its last known, or its current state.
    async fn write(&mut self, owner: OwnerReference) -> Result<(), ApiError> {
        let mut known = self.known.take();
        if known.is_none() {
            let call = self.leases.get_opt(self.name.as_str());
            known = self.client.heartbeat(LEASE_DEADLINE, call).await?;
        }
        let params = PostParams::default();
        let written = if let Some(known) = known {
            let next = renewed(&self.name, Some(&known), owner);
            // Kept for the next try, unless this one says otherwise.
            self.known = Some(known);
            let call = self.leases.replace(self.name.as_str(), &params, &next);
            self.client.heartbeat(LEASE_DEADLINE, call).await?
        } else {
            let next = renewed(&self.name, None, owner);
            let call = self.leases.create(&params, &next);
            self.client.heartbeat(LEASE_DEADLINE, call).await?
        };
        self.known = Some(written);
        Ok(())
    }
}

fn owner_reference(node: &Node) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        ..OwnerReference::default()
    })
}

/// The Lease as it is written next; what others added to it stays.
fn renewed(name: &NodeName, known: Option<&Lease>, owner: OwnerReference) -> Lease {
    let mut lease = known.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(name.to_string()),
            namespace: Some(LEASE_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    lease.metadata.managed_fields = None;
    lease.metadata.owner_references = Some(vec![owner]);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(name.to_string());
    spec.lease_duration_seconds = Some(LEASE_SECONDS);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    lease
}
