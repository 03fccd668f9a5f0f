//! Registers our Node, and determines whether an existing one is ours.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use tokio::time::Instant;

use super::{Looked, NODE_DEADLINE, NodeRegistration, NodeTask};
use crate::cluster::error::ApiError;
use crate::cluster::reach::ApiReach;
use mirrorlet_core::api::core::{Node, NodeStatus};
use mirrorlet_core::api::{Timestamp, Watched};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::node::{Claim, LeaseSeen, claim, compute_node, decide_metadata, still_claimed};
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::occurrences;

/// Pauses between tries: upstream's.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// Doubts within this time of each other are of one kind: each is followed by a longer pause, so that
/// what fails and is tried again with each answer is no load.
const DOUBTS_APART: Duration = Duration::from_mins(1);

/// Most conflicts of one registration that are not reported: the Node changed between reading and writing it.
const CONFLICTS_MAX: u32 = 3;

/// Why a try to register failed.
enum Failed {
    Api(ApiError),
    /// The Node of our name isn't ours.
    Foreign(String),
}

impl NodeTask {
    /// Retries until our Node exists.
    pub(super) async fn register(&mut self) -> Node {
        let mut backoff = PAUSES;
        let mut conflicts = 0;
        loop {
            let computed = self.computed.clone();
            let failed = match self.try_register().await {
                Ok(node) => return node,
                Err(failed) => failed,
            };
            // Its events were not reported: those of the next try are all since then.
            self.computed = computed;
            match failed {
                // Said once by the client itself, for all that call.
                Failed::Api(ApiError::Away { .. }) => {}
                // It has changed since it was read: the next try reads it again.
                Failed::Api(ApiError::Conflict(_)) if conflicts < CONFLICTS_MAX => conflicts += 1,
                Failed::Api(error) => self.refused(error.to_string(), false),
                Failed::Foreign(words) => self.refused(words, true),
            }
            tokio::time::sleep(spread(backoff.pause())).await;
        }
    }

    fn refused(&mut self, cause: String, is_foreign: bool) {
        let before = self.standing.get();
        // Another failure doesn't mean that it no longer belongs to another agent.
        let is_anothers = is_foreign || before.is_anothers();
        let since = match &*before {
            NodeRegistration::Refused { cause: known, .. } if *known == cause => return,
            NodeRegistration::Refused { since, .. } => *since,
            NodeRegistration::Waiting | NodeRegistration::Registered { .. } => Timestamp::now(),
        };
        occurrences::node_refused(&self.name, &cause);
        self.standing.publish(NodeRegistration::Refused {
            cause,
            since,
            is_anothers,
        });
    }

    /// Processes whether the API server answers. While it is away or rejects us, the ownership of the
    /// Node is uncertain, and all writes wait until it was read again. Returns when to do that, on a
    /// change: immediately, unless the server fails some calls and answers others.
    pub(super) fn read_at(&mut self, reach: &ApiReach) -> Option<Instant> {
        let now = Instant::now();
        match reach {
            ApiReach::Unknown => return None,
            ApiReach::Up => return self.unread.as_ref().map(|_| now.max(self.read_after)),
            ApiReach::Rejected { .. } | ApiReach::Down { .. } if self.unread.is_some() => {
                return None;
            }
            ApiReach::Rejected { .. } | ApiReach::Down { .. } => {}
        }
        self.unread = Some(String::new());
        self.read_after = now;
        if self.doubted.is_some_and(|at| at.elapsed() <= DOUBTS_APART) {
            self.read_after += spread(self.doubts.pause());
        } else {
            self.doubts.reset();
        }
        self.doubted = Some(now);
        if let NodeRegistration::Registered { uid, .. } = &*self.standing.get() {
            self.standing.publish(NodeRegistration::Registered {
                uid: uid.clone(),
                is_certain: false,
            });
        }
        Some(self.read_after)
    }

    /// Reads the Node again after an outage of the API server: an agent must not write a Node that
    /// another took meanwhile. Returns the outcome, unless the Node is ours.
    pub(super) async fn read_again(&mut self, node: &mut Node) -> Option<Looked> {
        let call = self.nodes.get(&self.name);
        let seen = match self.client.read(NODE_DEADLINE, call).await {
            Ok(Watched(seen)) => seen,
            Err(ApiError::NotFound(_)) => return Some(Looked::Gone),
            Err(error) => {
                self.report_unread(&error);
                return Some(Looked::Failed);
            }
        };
        if seen.metadata.uid != node.metadata.uid {
            return Some(Looked::Gone);
        }
        if let Claim::Foreign(cause) = still_claimed(&seen, &self.inputs.facts.get()) {
            return Some(Looked::Taken(cause));
        }
        self.report_schedulable(node, &seen);
        *node = seen;
        self.answered = Some(Instant::now());
        self.unread = None;
        self.take(node);
        None
    }

    /// Reports once why the Node can't be read. The client reports an unavailable server, and rejected
    /// credentials, for all callers.
    fn report_unread(&mut self, error: &ApiError) {
        if matches!(error, ApiError::Away { .. } | ApiError::Unauthorized(_)) {
            return;
        }
        let words = error.to_string();
        if self.unread.as_ref() != Some(&words) {
            occurrences::node_unread(&self.name, &words);
            self.unread = Some(words);
        }
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
        self.computed = NodeStatus::default();
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
