//! An API server in memory, for faults: it stores pods, and can refuse calls, be silent, or delay its
//! watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Value, json};

use super::client::ClusterClient;
use crate::store::pods::{ApiPodsWriter, PodManager, PodWriter, pod_manager};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp, meta};
use mirrorlet_core::desired::ApiPods;
use mirrorlet_core::spec;
use mirrorlet_host::telemetry::Metrics;

pub(super) const NODE: &str = "n1";

/// A refusal: status code, reason, affected object, message.
pub(super) type Refused = (u16, &'static str, &'static str, &'static str);

/// Method, path and body of a call.
type Call = (http::Method, http::Uri, Value);

/// A write that takes effect only later.
#[derive(Default)]
enum Delayed {
    #[default]
    None,
    /// The next one.
    Next,
    Held(Call),
}

struct State {
    pods: BTreeMap<FullName, Pod>,
    /// The last number given out: UIDs and resource versions.
    number: u64,
    calls: Vec<String>,
    down: bool,
    refusal: Option<Refused>,
    lags: bool,
    drops_ips: bool,
    delayed: Delayed,
    /// Reads after each of which the pod changes.
    changed_reads: u32,
    /// Deletions that are yet to be refused.
    refused_deletions: u32,
    wanted: PodWriter,
    api_pods: ApiPodsWriter,
    manager: PodManager,
}

/// The server; clones share it.
#[derive(Clone)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
    manager: PodManager,
}

impl FakeApi {
    pub(super) fn new() -> Self {
        let (wanted, mut api_pods, manager) = pod_manager();
        api_pods.publish(Arc::default());
        let state = State {
            pods: BTreeMap::new(),
            number: 0,
            calls: Vec::new(),
            down: false,
            refusal: None,
            lags: false,
            drops_ips: false,
            delayed: Delayed::None,
            changed_reads: 0,
            refused_deletions: 0,
            wanted,
            api_pods,
            manager: manager.clone(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            manager,
        }
    }

    pub(super) fn client(&self) -> ClusterClient {
        let state = Arc::clone(&self.state);
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = Arc::clone(&state);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let mut state = state.lock().unwrap();
                if state.down {
                    return Err(tower::BoxError::from("connection refused"));
                }
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                if parts.method != "GET" && matches!(state.delayed, Delayed::Next) {
                    state.delayed = Delayed::Held((parts.method, parts.uri, body));
                    return Err(tower::BoxError::from("connection reset"));
                }
                let (code, answer) = state.answer(parts.method.as_str(), &parts.uri, body);
                let mut response = Response::new(Full::from(answer.to_string()));
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Ok(response)
            }
        });
        ClusterClient::over_service(service, Metrics::new())
    }

    /// Pods from the watch, and from [`want`](Self::want).
    pub(super) fn manager(&self) -> PodManager {
        self.manager.clone()
    }

    /// Makes these the wanted pods.
    pub(super) fn want(&self, pods: &[&Arc<Pod>]) {
        let pods = pods.iter().map(|pod| Arc::clone(pod));
        self.state.lock().unwrap().wanted.set_pods(pods);
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut FakeApiState<'_>) -> T) -> T {
        let mut state = self.state.lock().unwrap();
        let result = f(&mut FakeApiState(&mut state));
        state.publish();
        result
    }

    /// Calls since the last time, as `POST web`.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().calls)
    }

    /// Whether a new list was requested since the last call.
    pub(super) fn is_outdated(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.api_pods.outdated().now_or_never().is_some()
    }

    pub(super) fn pod(&self, name: &str) -> Option<Pod> {
        let name = FullName::new(name, "ns");
        self.state.lock().unwrap().pods.get(&name).cloned()
    }
}

/// Changes that tests make behind the clients' backs.
pub(super) struct FakeApiState<'a>(&'a mut State);

impl FakeApiState<'_> {
    pub(super) fn down(&mut self, down: bool) {
        self.0.down = down;
    }

    pub(super) fn refuse(&mut self, refusal: Option<Refused>) {
        self.0.refusal = refusal;
    }

    /// Sets whether the watch delivers nothing.
    pub(super) fn lag(&mut self, lags: bool) {
        self.0.lags = lags;
    }

    /// Breaks the connection at the next write, which takes effect at [`delayed`](Self::delayed).
    pub(super) fn delay(&mut self) {
        self.0.delayed = Delayed::Next;
    }

    /// The delayed write takes effect.
    pub(super) fn delayed(&mut self) {
        let Delayed::Held((method, uri, body)) = std::mem::take(&mut self.0.delayed) else {
            panic!("nothing was written")
        };
        self.0.answer(method.as_str(), &uri, body);
    }

    /// It doesn't know `status.podIPs`.
    pub(super) fn drop_ips(&mut self) {
        self.0.drops_ips = true;
    }

    /// Changes a pod right after each of the next `number` reads.
    pub(super) fn change_after_reads(&mut self, number: u32) {
        self.0.changed_reads = number;
    }

    /// It fails on so many deletions.
    pub(super) fn refuse_deletions(&mut self, number: u32) {
        self.0.refused_deletions = number;
    }

    /// Restores the server from a backup with this state of a pod: its resource versions start there
    /// again.
    pub(super) fn restore(&mut self, pod: Pod) {
        let version = pod.metadata.resource_version.as_ref();
        self.0.number = version.unwrap().parse::<u64>().unwrap() - 1;
        self.0.store(pod);
    }

    pub(super) fn put(&mut self, pod: Pod) {
        self.0.store(pod);
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Pod> {
        self.0.pods.remove(&FullName::new(name, "ns"))
    }

    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = self.0.pods[&FullName::new(name, "ns")].clone();
        change(&mut pod);
        self.0.store(pod);
    }

    /// Deletes like `kubectl delete`: the pod is marked, and stays until its node ends it.
    pub(super) fn delete_gracefully(&mut self, name: &str) {
        self.change(name, |pod| {
            pod.metadata.deletion_timestamp = Some(meta::Time(Timestamp::UNIX_EPOCH));
        });
    }
}

/// Whether a write is for another version of the object than that one.
fn is_of_another(version: &Value, pod: &Pod) -> bool {
    version.is_string() && *version != json!(pod.metadata.resource_version)
}

fn status(refused: Refused) -> (u16, Value) {
    let (code, reason, kind, message) = refused;
    let details = json!({"kind": kind});
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    });
    (code, status)
}

impl State {
    fn answer(&mut self, method: &str, uri: &http::Uri, body: Value) -> (u16, Value) {
        let path: Vec<&str> = uri.path().split('/').filter(|p| !p.is_empty()).collect();
        let &["api", "v1", "namespaces", namespace, "pods", ref rest @ ..] = &path[..] else {
            return status((403, "Forbidden", "namespaces", "namespaces is forbidden"));
        };
        let name = match rest.first() {
            Some(name) => (*name).to_owned(),
            None => body["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        };
        if name.is_empty() {
            return status((403, "Forbidden", "pods", "pods is forbidden"));
        }
        let below = rest.get(1).map(|sub| format!("/{sub}"));
        let below = below.unwrap_or_default();
        self.calls.push(format!("{method} {name}{below}"));
        if method != "GET"
            && let Some(refused) = self.refusal
        {
            return status(refused);
        }
        if method == "DELETE" && self.refused_deletions > 0 {
            self.refused_deletions -= 1;
            return status((500, "InternalError", "pods", "etcd is away"));
        }
        let full_name = FullName::new(name, namespace);
        let found = self.pods.get(&full_name).cloned();
        let wanted_uid = match method {
            "DELETE" => &body["preconditions"]["uid"],
            _ => &body["metadata"]["uid"],
        };
        match (method, found) {
            ("POST", None) => {
                let mut pod: Pod = serde_json::from_value(body).unwrap();
                pod.metadata.uid = None;
                (201, self.store(pod))
            }
            ("POST", Some(_)) => status((409, "AlreadyExists", "pods", "already exists")),
            (_, None) => status((404, "NotFound", "pods", "not found")),
            ("GET", Some(pod)) => {
                let answer = serde_json::to_value(&pod).unwrap();
                if self.changed_reads > 0 {
                    self.changed_reads -= 1;
                    self.store(pod);
                }
                (200, answer)
            }
            (_, Some(pod)) if wanted_uid.is_string() && *wanted_uid != json!(pod.metadata.uid) => {
                status((409, "Conflict", "pods", "the UID differs"))
            }
            ("PATCH", Some(pod)) if is_of_another(&body["metadata"]["resourceVersion"], &pod) => {
                status((409, "Conflict", "pods", "the object has been modified"))
            }
            ("DELETE", Some(pod)) => {
                assert_eq!(body["gracePeriodSeconds"], json!(0));
                (200, self.delete(&full_name, pod))
            }
            ("PATCH", Some(mut pod)) => {
                assert_eq!(below, "/status");
                let mut value = serde_json::to_value(pod.status.unwrap_or_default()).unwrap();
                let patched = mirrorlet_testing::patch::apply_patch(&mut value, &body["status"]);
                assert!(patched, "{body}");
                pod.status = serde_json::from_value(value).unwrap();
                (200, self.store(pod))
            }
            (_, Some(_)) => status((405, "MethodNotAllowed", "pods", "what?")),
        }
    }

    /// Deletes a pod with no grace. Finalizers keep it.
    fn delete(&mut self, full_name: &FullName, mut pod: Pod) -> Value {
        let finalizers = pod.metadata.finalizers.as_ref();
        if finalizers.is_some_and(|list| !list.is_empty()) {
            let at = meta::Time(Timestamp::UNIX_EPOCH);
            pod.metadata.deletion_timestamp.get_or_insert(at);
            pod.metadata.deletion_grace_period_seconds = Some(0);
            return self.store(pod);
        }
        self.pods.remove(full_name);
        self.publish();
        serde_json::to_value(pod).unwrap()
    }

    fn store(&mut self, mut pod: Pod) -> Value {
        self.number += 1;
        pod.metadata.resource_version = Some(self.number.to_string());
        let uid = format!("uid-{}", self.number);
        pod.metadata.uid.get_or_insert(uid);
        let status = pod.status.get_or_insert_default();
        for container in status.container_statuses.iter_mut().flatten() {
            // As a real one writes them.
            container.state.get_or_insert_default();
            container.last_state.get_or_insert_default();
        }
        if self.drops_ips {
            status.pod_ips = None;
        }
        let value = serde_json::to_value(&pod).unwrap();
        self.pods.insert(FullName::of(&pod), pod);
        self.publish();
        value
    }

    fn publish(&mut self) {
        if self.lags || self.down {
            return;
        }
        let before = self.manager.api_pods().get();
        let known = before.as_ref().as_ref().map(|known| &known.pods);
        let ours = self
            .pods
            .values()
            .filter(|pod| spec::spec(pod).node_name.as_deref() == Some(NODE));
        let pods = ours.map(|pod| {
            let uid = PodUid::of(pod);
            let same = known
                .and_then(|known| known.get(&uid))
                .filter(|k| ***k == *pod);
            let pod = same.map_or_else(|| Arc::new(pod.clone()), Arc::clone);
            (uid, pod)
        });
        let pods = pods.collect();
        self.api_pods.publish(Arc::new(ApiPods {
            pods,
            ..ApiPods::default()
        }));
    }
}
