//! Approves and denies our agents' certificate signing requests, as
//! [`mirrorlet_core::certificate::approval`] decides.
//!
//! A request is decided once, with Nodes that were listed after it was observed. A request whose
//! decision can't be written is retried by itself, with growing pauses, and blocks no other. After an
//! outage of the API server, everything starts again: a list finds every undecided request.

#[cfg(test)]
mod tests;

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
use tokio::time::Instant;

use super::client::{ADMISSION_DEADLINE, CALL_DEADLINE, ClusterClient};
use super::error::ApiError;
use crate::certificate::wanted;
use mirrorlet_core::api::core::Node;
use mirrorlet_core::api::{Timestamp, Watched};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::certificate::approval::{Approver, Decision, NodeSeen, Nodes, SigningRequest};
use mirrorlet_core::small::SmallSort;
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::{CertificateDecision, Metrics, occurrences};

/// Maximum number of requests in one page: each may have 1.5 MB, etcd's limit, and a user who may
/// create them may create many.
const REQUESTS_PAGE_MAX: u32 = 20;
/// Most Nodes in one answer: each has some tens of kilobytes.
const NODES_PAGE_MAX: u32 = 100;
/// Most events that share one list of Nodes.
const BATCH_MAX: usize = 100;
/// Most requests that wait for their Node; further ones are found by the next list of requests.
const WAITING_MAX: usize = 1000;
/// Pause between two looks for the Nodes that are waited for, and for requests to be tried again.
const WAITING_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of requests whose decision could not be written. Beyond it, the one that failed most
/// often is left to the next list of requests.
const FAILED_MAX: usize = 1000;
/// Most of them that are tried again at a time, so that a new request doesn't wait for them all.
const RETRIES_MAX: usize = 10;
/// Pauses before the retry of a request: some can never be decided, for example because they have the
/// maximum size of etcd, so that no condition can be added.
const RETRY_PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(2), Duration::from_mins(5));
/// Pauses after failures.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// A watch that went well for so long ends a series of failures.
const GOOD: Duration = Duration::from_mins(1);

/// An undecided request.
struct Undecided {
    version: Option<String>,
    conditions: Vec<CertificateSigningRequestCondition>,
    request: SigningRequest,
    /// Whether it was reported that it waits for its Node.
    is_reported: bool,
}

/// A request whose decision could not be written.
struct Failed {
    /// How often in a row.
    failures: u32,
    /// When it may be tried again.
    due: Instant,
    /// The request; none until a new list has returned it.
    undecided: Option<Undecided>,
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
            is_reported: false,
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
    /// Requests whose Node doesn't exist yet.
    waiting: Requests,
    /// Requests whose decision could not be written, by name. Kept across new lists, so that such a
    /// request doesn't abort each of them.
    failed: BTreeMap<String, Failed>,
    metrics: Metrics,
    /// The failure reported last.
    reported: Option<String>,
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
            failed: BTreeMap::new(),
            metrics,
            reported: None,
        }
    }

    /// Runs until cancelled.
    ///
    /// # Cancel safety
    /// A decision in progress is written, or is made again.
    pub async fn run(&mut self) {
        let mut backoff = PAUSES;
        loop {
            let began = Instant::now();
            let error = self.follow().await;
            // A list alone ends no series: the watch after it may be refused each time.
            if began.elapsed() > GOOD {
                backoff.reset();
                self.reported = None;
            }
            if self.reported.as_ref() != Some(&error) {
                occurrences::watch_failed("certificatesigningrequests", &error);
                self.reported = Some(error);
            }
            tokio::time::sleep(spread(backoff.pause())).await;
        }
    }

    /// Decides all existing and new requests, until the API server fails; returns the reason.
    async fn follow(&mut self) -> String {
        self.waiting.clear();
        // What the list shows again is waited for, what it doesn't is gone.
        let now = Instant::now();
        self.failed
            .retain(|_, failed| failed.due + RETRY_PAUSES.longest() > now);
        for failed in self.failed.values_mut() {
            failed.undecided = None;
        }
        let config = watcher::Config::default().page_size(REQUESTS_PAGE_MAX);
        let approver = self.approver.clone();
        let events = watcher(self.requests.clone(), config)
            .map_ok(move |event| Change::of(&approver, event))
            .ready_chunks(BATCH_MAX);
        let mut events = pin!(events);
        let mut looked = Instant::now();
        loop {
            let look_at = self.look_at(looked);
            let mut due = Requests::new();
            match timeout_at(look_at, events.next()).await {
                Err(()) => {}
                Ok(None) => return "the watch ended".to_owned(),
                Ok(Some(batch)) => {
                    for event in batch {
                        match event {
                            Err(error) => return ApiError::from(error).to_string(),
                            Ok(None) => {}
                            Ok(Some(change)) => self.take(change, &mut due),
                        }
                    }
                }
            }
            // Also if events come all the time.
            let now = Instant::now();
            if look_at.is_some_and(|at| at <= now) {
                looked = now;
                self.take_due(now, &mut due);
            }
            if !due.is_empty()
                && let Err(error) = self.decide(due).await
            {
                return error.to_string();
            }
        }
    }

    /// When waiting requests must be checked; never, while there are none.
    fn look_at(&self, looked: Instant) -> Option<Instant> {
        let soon = looked + WAITING_PAUSE;
        if !self.waiting.is_empty() {
            return Some(soon);
        }
        let failed = self.failed.values();
        let due = failed.filter_map(|failed| failed.undecided.as_ref().map(|_| failed.due));
        due.min().map(|due| due.max(soon))
    }

    /// Processes a change: requests that must be decided now are added to `due`.
    fn take(&mut self, change: Change, due: &mut Requests) {
        let Change { name, undecided } = change;
        self.waiting.remove(&name);
        due.remove(&name);
        let Some(undecided) = undecided else {
            self.failed.remove(&name);
            return;
        };
        match self.failed.get_mut(&name) {
            Some(failed) if failed.due > Instant::now() => failed.undecided = Some(undecided),
            Some(_) | None => {
                due.insert(name, undecided);
            }
        }
    }

    /// Adds all requests that wait for their Nodes, and some of those that are to be tried again.
    fn take_due(&mut self, now: Instant, due: &mut Requests) {
        due.append(&mut self.waiting);
        let again = self
            .failed
            .iter_mut()
            .filter(|(_, failed)| failed.due <= now);
        let again =
            again.filter_map(|(name, failed)| Some((name.clone(), failed.undecided.take()?)));
        due.extend(again.take(RETRIES_MAX));
    }

    /// Decides these requests.
    ///
    /// # Errors
    /// The API server doesn't answer, or rejects us. Failures with single requests are not errors.
    async fn decide(&mut self, due: Requests) -> Result<(), ApiError> {
        // Listed now: a Node that was registered before a request was made is among them.
        let nodes = self.list_nodes().await?;
        let failures = |name: &String| self.failed.get(name).map_or(0, |failed| failed.failures);
        let mut due: Vec<_> = due.into_iter().collect();
        // One that gets no answer in time ends the round: the others come first.
        due.small_sort_by_key(|(name, _)| failures(name));
        for (name, mut undecided) in due {
            let (decided, kind, reason, message) =
                match self.approver.decide(&undecided.request, &nodes) {
                    Decision::Ignore => {
                        self.failed.remove(&name);
                        self.metrics
                            .certificate_request(CertificateDecision::Ignored);
                        continue;
                    }
                    Decision::Wait(node) => {
                        self.failed.remove(&name);
                        if self.waiting.len() < WAITING_MAX {
                            if !std::mem::replace(&mut undecided.is_reported, true) {
                                let user = &undecided.request.user;
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
            let condition = CertificateSigningRequestCondition {
                type_: kind.to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.clone()),
                last_update_time: Some(Time(Timestamp::now())),
                last_transition_time: None,
            };
            match self.write(&name, &undecided, condition).await {
                Ok(()) => {
                    self.failed.remove(&name);
                    occurrences::certificate_request_decided(
                        &self.metrics,
                        decided,
                        &name,
                        &undecided.request.user,
                        &message,
                    );
                }
                // The watch brings what it is now.
                Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {
                    self.failed.remove(&name);
                }
                Err(error) => self.failed(name, undecided, error)?,
            }
        }
        Ok(())
    }

    /// Writes a decision.
    async fn write(
        &self,
        name: &str,
        undecided: &Undecided,
        condition: CertificateSigningRequestCondition,
    ) -> Result<(), ApiError> {
        let conditions: Vec<_> = undecided.conditions.iter().chain([&condition]).collect();
        // For the version that was read: a decision made meanwhile takes precedence.
        let patch = serde_json::json!({
            "metadata": {"resourceVersion": undecided.version},
            "status": {"conditions": conditions},
        });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let call = self.requests.patch_approval(name, &params, &patch);
        self.client.write(ADMISSION_DEADLINE, call).await.map(drop)
    }

    /// Notes that a decision could not be written: the request waits, the others don't.
    ///
    /// # Errors
    /// The API server doesn't answer, or rejects us: others would fail, too.
    fn failed(
        &mut self,
        name: String,
        undecided: Undecided,
        error: ApiError,
    ) -> Result<(), ApiError> {
        let before = self.failed.get(&name).map_or(0, |failed| failed.failures);
        let failures = before.saturating_add(1);
        if self.failed.len() >= FAILED_MAX && before == 0 {
            let most = self.failed.iter().max_by_key(|(_, failed)| failed.failures);
            if let Some(most) = most.map(|(name, _)| name.clone()) {
                self.failed.remove(&most);
            }
        }
        let fails_all = match &error {
            ApiError::Away { .. }
            | ApiError::Unauthorized(_)
            | ApiError::TooManyRequests { .. } => true,
            ApiError::Forbidden(_)
            | ApiError::NotFound(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Conflict(_)
            | ApiError::Invalid(_)
            | ApiError::Expired(_)
            | ApiError::Internal(_)
            | ApiError::Refused(_)
            | ApiError::Undecodable { .. } => false,
        };
        if !fails_all && before == 0 {
            let user = &undecided.request.user;
            occurrences::certificate_request_failed(&name, user, &error.to_string());
        }
        // After one of these, too: it may be this request alone that is not answered in time.
        let failed = Failed {
            failures,
            due: Instant::now() + spread(RETRY_PAUSES.after(failures)),
            undecided: Some(undecided),
        };
        self.failed.insert(name, failed);
        if fails_all { Err(error) } else { Ok(()) }
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

/// As [`tokio::time::timeout_at`]; without a timeout if there is none.
async fn timeout_at<T>(end: Option<Instant>, wanted: impl Future<Output = T>) -> Result<T, ()> {
    match end {
        Some(end) => tokio::time::timeout_at(end, wanted).await.map_err(drop),
        None => Ok(wanted.await),
    }
}
