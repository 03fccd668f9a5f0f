//! Approves and denies the certificate signing requests of our agents, as
//! [`mirrorlet_core::certificate::approval`] decides.
//!
//! A request is decided once, with Nodes that were listed after it was seen. Whatever fails is begun
//! anew: a list finds every request that is still undecided.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};

use super::client::{CALL_DEADLINE, ClusterClient};
use super::error::{ApiError, chain};
use crate::certificate::wanted;
use mirrorlet_core::api::core::Node;
use mirrorlet_core::api::{Timestamp, Watched};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::certificate::approval::{Approver, Decision, NodeSeen, Nodes, SigningRequest};
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::{CertificateDecision, Metrics, occurrences};

/// Most requests in one answer: each may have 1.5 MB, which is what etcd takes, and whoever may
/// request may make many of them.
const REQUESTS_PAGE_MAX: u32 = 20;
/// Most Nodes in one answer: each has some tens of kilobytes.
const NODES_PAGE_MAX: u32 = 100;
/// Most events that share one list of Nodes.
const BATCH_MAX: usize = 100;
/// Most requests that wait for their Node; further ones are found by the next list of requests.
const WAITING_MAX: usize = 1000;
/// Pause between two looks for the Nodes that are waited for.
const WAITING_PAUSE: Duration = Duration::from_secs(2);
/// Pauses after failures.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A request that nobody has decided.
struct Undecided {
    version: Option<String>,
    conditions: Vec<CertificateSigningRequestCondition>,
    request: SigningRequest,
}

impl Undecided {
    fn of(object: CertificateSigningRequest) -> Option<Self> {
        let status = object.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is_decided = |one: &CertificateSigningRequestCondition| {
            matches!(one.type_.as_str(), "Approved" | "Denied" | "Failed")
        };
        if status.certificate.is_some() || conditions.iter().any(is_decided) {
            return None;
        }
        let spec = object.spec;
        Some(Self {
            version: object.metadata.resource_version,
            conditions,
            request: SigningRequest {
                wanted: wanted(&spec.request.0),
                signer: spec.signer_name,
                user: spec.username.unwrap_or_default(),
                groups: spec.groups.unwrap_or_default(),
                extra: spec.extra.unwrap_or_default(),
                usages: spec.usages.unwrap_or_default(),
            },
        })
    }
}

/// A change of a request. It doesn't hold the request itself, which may be large.
struct Change {
    name: String,
    /// The request, if it is ours and undecided.
    undecided: Option<Undecided>,
}

impl Change {
    fn of(approver: &Approver, event: Event<CertificateSigningRequest>) -> Option<Self> {
        let (object, is_there) = match event {
            Event::Apply(object) | Event::InitApply(object) => (object, true),
            Event::Delete(object) => (object, false),
            Event::Init | Event::InitDone => return None,
        };
        let name = object.metadata.name.clone().unwrap_or_default();
        let user = object.spec.username.as_deref().unwrap_or_default();
        let concerns = is_there && approver.concerns(&object.spec.signer_name, user);
        let undecided = concerns.then(|| Undecided::of(object)).flatten();
        Some(Self { name, undecided })
    }
}

/// Requests by name.
type Requests = BTreeMap<String, Undecided>;

/// The task that decides requests.
pub struct ApproverTask {
    client: ClusterClient,
    requests: Api<CertificateSigningRequest>,
    nodes: Api<Watched<Node>>,
    approver: Approver,
    /// Those whose Node isn't there yet.
    waiting: Requests,
    metrics: Metrics,
    /// The failure reported last.
    told: Option<String>,
}

impl ApproverTask {
    /// A task that decides as `approver` does.
    pub fn new(client: ClusterClient, approver: Approver, metrics: Metrics) -> Self {
        Self {
            requests: Api::all(client.client()),
            nodes: Api::all(client.client()),
            client,
            approver,
            waiting: Requests::new(),
            metrics,
            told: None,
        }
    }

    /// Runs until cancelled.
    ///
    /// # Cancel safety
    /// A decision that was on its way is made, or is made again.
    pub async fn run(&mut self) {
        let mut backoff = PAUSES;
        loop {
            let error = self.follow(&mut backoff).await;
            if self.told.as_ref() != Some(&error) {
                occurrences::watch_failed("certificatesigningrequests", &error);
                self.told = Some(error);
            }
            tokio::time::sleep(spread(backoff.pause())).await;
        }
    }

    /// Decides all requests that there are and come, until something fails; the words say what.
    async fn follow(&mut self, backoff: &mut ExponentialBackoff) -> String {
        self.waiting.clear();
        let config = watcher::Config::default().page_size(REQUESTS_PAGE_MAX);
        let approver = self.approver.clone();
        let events = watcher(self.requests.clone(), config)
            .map_ok(move |event| Change::of(&approver, event))
            .ready_chunks(BATCH_MAX);
        let mut events = pin!(events);
        loop {
            let pause = if self.waiting.is_empty() {
                Duration::MAX
            } else {
                WAITING_PAUSE
            };
            let (mut due, mut is_new) = (Requests::new(), true);
            match tokio::time::timeout(pause, events.next()).await {
                Err(_) => {
                    due = std::mem::take(&mut self.waiting);
                    is_new = false;
                }
                Ok(None) => return "the watch ended".to_owned(),
                Ok(Some(batch)) => {
                    for event in batch {
                        match event {
                            Err(error) => return chain(&error),
                            Ok(None) => {}
                            Ok(Some(Change { name, undecided })) => {
                                self.waiting.remove(&name);
                                due.remove(&name);
                                due.extend(undecided.map(|undecided| (name, undecided)));
                            }
                        }
                    }
                }
            }
            if due.is_empty() {
                continue;
            }
            if let Err(error) = self.decide(due, is_new).await {
                return error.to_string();
            }
            *backoff = PAUSES;
            self.told = None;
        }
    }

    /// Decides these requests; `is_new` unless they have waited for their Nodes.
    async fn decide(&mut self, due: Requests, is_new: bool) -> Result<(), ApiError> {
        // Listed now: a Node that was registered before a request was made is among them.
        let nodes = self.list_nodes().await?;
        for (name, undecided) in due {
            let user = &undecided.request.user;
            let (decided, kind, reason, message) =
                match self.approver.decide(&undecided.request, &nodes) {
                    Decision::Ignore => {
                        self.metrics
                            .certificate_request(CertificateDecision::Ignored);
                        continue;
                    }
                    Decision::Wait(node) => {
                        if self.waiting.len() < WAITING_MAX {
                            if is_new {
                                occurrences::certificate_request_waits(&name, user, &node);
                            }
                            self.waiting.insert(name, undecided);
                        }
                        continue;
                    }
                    Decision::Approve(message) => (
                        CertificateDecision::Approved,
                        "Approved",
                        "MirrorletApproved",
                        message,
                    ),
                    Decision::Deny { reason, message } => {
                        (CertificateDecision::Denied, "Denied", reason, message)
                    }
                };
            let now = Time(Timestamp::now());
            let mut conditions = undecided.conditions;
            conditions.push(CertificateSigningRequestCondition {
                type_: kind.to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.clone()),
                last_update_time: Some(now),
                last_transition_time: None,
            });
            // On the version that was read: who decided it meanwhile was first.
            let patch = serde_json::json!({
                "metadata": {"resourceVersion": undecided.version},
                "status": {"conditions": conditions},
            });
            let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let call = self.requests.patch_approval(&name, &params, &patch);
            match self.client.write(CALL_DEADLINE, call).await {
                Ok(_) => occurrences::certificate_request_decided(
                    &self.metrics,
                    decided,
                    &name,
                    user,
                    &message,
                ),
                // The watch brings what it is now.
                Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn list_nodes(&self) -> Result<Nodes, ApiError> {
        let mut nodes = Nodes::new();
        let mut params = ListParams::default().limit(NODES_PAGE_MAX);
        loop {
            let call = self.nodes.list(&params);
            let page = self.client.read(CALL_DEADLINE, call).await?;
            for Watched(node) in page.items {
                let seen = NodeSeen::of(&node);
                nodes.insert(node.metadata.name.unwrap_or_default(), seen);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                None => return Ok(nodes),
                Some(token) => params = params.continue_token(&token),
            }
        }
    }
}
