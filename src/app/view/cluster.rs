//! The report's part about the API server, our Node and mirror pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::{
    ApiReach, ClusterClient, CredentialsProblem, IdentityState, NodeRegistration,
};
use crate::store::cell::Reader;
use mirrorlet_core::api::report::{ApiReport, ConditionReport, MirrorReport, NodeReport};
use mirrorlet_core::api::{FullName, NodeName, Timestamp, core};
use mirrorlet_core::mirror::MirrorState;
use mirrorlet_core::node::ImageSeen;

/// Message of a new pod that is bound to a Node which is another agent's.
const LEFT_TO_ANOTHER: &str =
    "not started here: the Node belongs to another agent or a kubelet, which runs its new pods";

/// The state that the components for the API server publish.
#[derive(Debug, Clone)]
pub(in crate::app) struct ClusterView {
    /// The client of the API server, which knows its address.
    pub(in crate::app) client: ClusterClient,
    /// Whether it answers.
    pub(in crate::app) reach: Reader<ApiReach>,
    /// The state of the client's identity.
    pub(in crate::app) identity: Reader<IdentityState>,
    /// The problem with the credentials on disk or the credential plug-in.
    pub(in crate::app) credentials: Reader<Option<CredentialsProblem>>,
    /// Why the API server can't call the node API.
    pub(in crate::app) node_api: Reader<Option<String>>,
    /// Our Node as the API server has it.
    pub(in crate::app) node: Reader<Option<Arc<core::Node>>>,
    /// How we stand with it.
    pub(in crate::app) standing: Reader<NodeRegistration>,
    /// When its Lease was renewed last.
    pub(in crate::app) lease: Reader<Option<Timestamp>>,
    /// How static pods stand with their mirrors.
    pub(in crate::app) mirrors: Reader<BTreeMap<FullName, MirrorState>>,
    /// Images on the Engine.
    pub(in crate::app) images: Reader<Vec<ImageSeen>>,
}

impl ClusterView {
    /// Waits until its reports have changed, except for the Lease, whose renewals don't count.
    /// Cancel-safe. Never returns once the parts are gone.
    pub(in crate::app) async fn changed(&mut self) {
        let changed = tokio::select! {
            changed = self.reach.changed() => changed.map(drop),
            // One that the cluster gave us has no writer.
            Ok(_) = self.identity.changed() => Ok(()),
            changed = self.credentials.changed() => changed.map(drop),
            // It has no writer where the node API isn't served.
            Ok(_) = self.node_api.changed() => Ok(()),
            changed = self.node.changed() => changed.map(drop),
            changed = self.standing.changed() => changed.map(drop),
            changed = self.mirrors.changed() => changed.map(drop),
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn api(&self) -> ApiReport {
        let credentials = self.credentials.get();
        let credentials = (*credentials).as_ref();
        let report = ApiReport {
            server: self.client.server().to_string(),
            credentials_error: credentials.map(|problem| problem.words.clone()),
            credentials_fault: credentials.map(|problem| problem.fault),
            ..ApiReport::default()
        };
        let report = match &*self.reach.get() {
            ApiReach::Unknown => report,
            ApiReach::Up => ApiReport {
                reachable: true,
                ..report
            },
            ApiReach::Rejected { since } => ApiReport {
                reachable: true,
                rejected_since: Some(*since),
                ..report
            },
            ApiReach::Down { cause, since } => ApiReport {
                error: Some(cause.clone()),
                unreachable_since: Some(*since),
                ..report
            },
        };
        match &*self.identity.get() {
            IdentityState::Given => report,
            IdentityState::Certificate { ends, problem } => ApiReport {
                certificate_ends: Some(*ends),
                certificate_error: problem.clone(),
                ..report
            },
            // That there is no identity is more informative than that it isn't called.
            IdentityState::Needed { words, since } => ApiReport {
                reachable: false,
                error: Some(words.clone()),
                unreachable_since: Some(*since),
                certificate_error: Some(words.clone()),
                ..report
            },
        }
    }

    pub(super) fn node(&self, name: &NodeName) -> NodeReport {
        let report = NodeReport {
            name: name.to_string(),
            lease_renewed: *self.lease.get(),
            conditions: conditions((*self.node.get()).as_deref()),
            node_api_error: (*self.node_api.get()).clone(),
            ..NodeReport::default()
        };
        match &*self.standing.get() {
            NodeRegistration::Waiting => report,
            NodeRegistration::Registered { uid, .. } => NodeReport {
                registered: true,
                uid: Some(uid.clone()),
                ..report
            },
            NodeRegistration::Refused { cause, since, .. } => NodeReport {
                error: Some(cause.clone()),
                refused_since: Some(*since),
                ..report
            },
        }
    }

    /// Why a new pod that is bound to our Node is not started here, if it isn't.
    pub(super) fn left_to_another(&self) -> Option<&'static str> {
        self.standing.get().is_anothers().then_some(LEFT_TO_ANOTHER)
    }

    /// How a static pod stands with its mirror.
    pub(super) fn mirror(&self, name: &FullName) -> MirrorReport {
        mirror(self.mirrors.get().get(name))
    }
}

fn mirror(state: Option<&MirrorState>) -> MirrorReport {
    match state {
        Some(MirrorState::Synced { uid }) => MirrorReport {
            state: "Synced".to_owned(),
            uid: Some(uid.to_string()),
            ..MirrorReport::default()
        },
        Some(MirrorState::Pending) | None => MirrorReport {
            state: "Pending".to_owned(),
            ..MirrorReport::default()
        },
        Some(MirrorState::Problem(problem)) => MirrorReport {
            state: problem.kind.to_string(),
            message: problem.message.clone(),
            since: Some(problem.since),
            uid: None,
        },
    }
}

fn conditions(node: Option<&core::Node>) -> Vec<ConditionReport> {
    let status = node.and_then(|node| node.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let reports = conditions
        .into_iter()
        .flatten()
        .map(|condition| ConditionReport {
            condition: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        });
    reports.collect()
}
