//! Registering our Node, and finding out whether the one that is there is ours.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};

use super::{NODE_DEADLINE, NodeRegistration, NodeTask};
use crate::cluster::error::ApiError;
use mirrorlet_core::api::core::{Node, NodeStatus};
use mirrorlet_core::api::{Timestamp, Watched};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::node::{Claim, LeaseSeen, claim, compute_node, decide_metadata};
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::occurrences;

/// Pauses between tries: upstream's.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// Why a try to register failed.
enum Failed {
    Api(ApiError),
    /// The Node of our name isn't ours.
    Foreign(String),
}

impl NodeTask {
    /// Tries until our Node is there.
    pub(super) async fn register(&mut self) -> Node {
        let mut backoff = PAUSES;
        loop {
            let told = self.told.clone();
            let cause = match self.try_register().await {
                Ok(node) => return node,
                // Said once by the client itself, for all that call.
                Err(Failed::Api(ApiError::Away { .. })) => None,
                Err(Failed::Api(error)) => Some(error.to_string()),
                Err(Failed::Foreign(words)) => Some(words),
            };
            // Its events were not reported: those of the next try are all since then.
            self.told = told;
            if let Some(cause) = cause {
                self.refused(cause);
            }
            tokio::time::sleep(spread(backoff.pause())).await;
        }
    }

    fn refused(&mut self, cause: String) {
        let since = match &*self.standing.get() {
            NodeRegistration::Refused { cause: told, .. } if *told == cause => return,
            NodeRegistration::Refused { since, .. } => *since,
            NodeRegistration::Waiting | NodeRegistration::Registered { .. } => Timestamp::now(),
        };
        occurrences::node_refused(&self.name, &cause);
        self.standing
            .publish(NodeRegistration::Refused { cause, since });
    }

    async fn try_register(&mut self) -> Result<Node, Failed> {
        let now = Timestamp::now();
        let (status, events) = self.compute(&NodeStatus::default(), now);
        let facts = self.inputs.facts.get();
        let node = Watched(compute_node(&facts, status));
        let params = PostParams::default();
        let call = self.nodes.create(&params, &node);
        let refusal = match self.client.heartbeat(NODE_DEADLINE, call).await {
            Ok(Watched(node)) => {
                self.written = Some(now);
                self.report(&events);
                occurrences::node_registered(&self.telemetry, &self.name, true);
                return Ok(node);
            }
            // An identity that may not create Nodes may still own one.
            Err(error @ (ApiError::AlreadyExists(_) | ApiError::Forbidden(_))) => error,
            Err(error) => return Err(Failed::Api(error)),
        };
        let call = self.nodes.get(&self.name);
        let existing = match self.client.read(NODE_DEADLINE, call).await {
            Ok(Watched(existing)) => existing,
            // Gone again, or never there: the first answer counts.
            Err(ApiError::NotFound(_)) => return Err(Failed::Api(refusal)),
            Err(error) => return Err(Failed::Api(error)),
        };
        let lease = self.lease().await.map_err(Failed::Api)?;
        let is_held = self.lease_seen.holds(lease, self.began.elapsed());
        if let Claim::Foreign(words) = claim(&existing, &facts, is_held) {
            return Err(Failed::Foreign(words));
        }
        let existing = match decide_metadata(&existing, &facts) {
            None => existing,
            Some(patch) => {
                // As upstream: labels are written with the status, which every node may.
                let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
                let call = self.nodes.patch_status(&self.name, &params, &patch);
                let written = self.client.heartbeat(NODE_DEADLINE, call).await;
                written.map_err(Failed::Api)?.0
            }
        };
        // The Node's status is what an earlier run wrote, so this run's first look compares with
        // it: a reboot in between is reported, and transition times stay.
        self.told = NodeStatus::default();
        self.written = None;
        occurrences::node_registered(&self.telemetry, &self.name, false);
        Ok(existing)
    }

    /// Reads the Lease of our name, if there is one.
    async fn lease(&self) -> Result<Option<LeaseSeen>, ApiError> {
        let call = self.leases.get_opt(&self.name);
        let lease: Option<Lease> = self.client.read(NODE_DEADLINE, call).await?;
        Ok(lease.and_then(|lease| {
            let spec = lease.spec?;
            let seconds = u64::try_from(spec.lease_duration_seconds?).ok()?;
            Some(LeaseSeen {
                renewed: spec.renew_time?.0,
                duration: Duration::from_secs(seconds),
            })
        }))
    }
}
