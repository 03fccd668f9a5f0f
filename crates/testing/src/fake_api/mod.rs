//! An API server in memory: nodes, pods, leases, events and namespaces, with lists, watches, patches
//! and preconditions as in Kubernetes, and fault injection.
//!
//! It is built on `mirrorlet-apimachinery`, which implements paths, selectors, patches and revisions.
//! `rules` has the additional behaviour of a real server for pods and nodes. Time is Tokio's, so that
//! it can be paused; dates come from the clock passed in.

mod faults;
mod requests;
mod rules;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet_apimachinery::cache::{Cache, Key};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{NAMESPACES, NODES, PODS, Resource};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_core::api::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

pub use faults::{ApiFault, Reach};
pub use requests::{AnswerBody, BoxError};
pub use rules::is_mirror;

/// Time of a request on its way.
const LATENCY: Duration = Duration::from_millis(1);

/// The server. Clones share it.
#[derive(Clone)]
pub struct FakeApi {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Counts the causes that wake watches and waiting requests: changes, and faults of the network.
    woken: watch::Sender<u64>,
}

type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

struct State {
    cache: Cache,
    /// Number of UIDs given out.
    uids: u64,
    reach: Reach,
    /// Watches that were begun before have ended.
    watches_broken: u64,
    faults: Vec<faults::Rule>,
    /// The time of the last fault.
    troubled: Instant,
    /// How late watches deliver.
    lag: Duration,
    /// Changes that watches deliver late: those after a revision, with the time, oldest first.
    late: Vec<(u64, Instant)>,
    calls: BTreeMap<String, usize>,
    /// Promises of a node that what was written breaks.
    violations: Vec<String>,
    clock: Clock,
}

impl fmt::Debug for FakeApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeApi").finish_non_exhaustive()
    }
}

impl FakeApi {
    /// A server with these namespaces, and with that clock.
    pub fn new(namespaces: &[&str], clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let mut cache = Cache::new(0);
        for name in namespaces {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "uid": format!("namespace-{name}")},
                "status": {"phase": "Active"},
            });
            cache.put(Key::new(&NAMESPACES, "", *name), namespace);
        }
        let state = State {
            cache,
            uids: 0,
            reach: Reach::Up,
            watches_broken: 0,
            faults: Vec::new(),
            troubled: Instant::now(),
            lag: Duration::ZERO,
            late: Vec::new(),
            calls: BTreeMap::new(),
            violations: Vec::new(),
            clock: Box::new(clock),
        };
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(state),
                woken: watch::Sender::new(0),
            }),
        }
    }

    /// Changes the state, and wakes everything that waits for a change.
    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.inner.state.lock();
            let before = state.cache.revision();
            let result = f(&mut state);
            state.note_lag(before);
            result
        };
        self.inner.woken.send_modify(|count| *count += 1);
        result
    }

    /// The objects of a resource, by namespace and name.
    pub fn objects(&self, resource: &'static Resource) -> Vec<Arc<Value>> {
        self.inner
            .state
            .lock()
            .cache
            .list(resource, "", &Selector::default())
    }

    /// The object with that name, if it exists.
    pub fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = Key::new(resource, namespace, name);
        let found = self.inner.state.lock().cache.get(&key);
        found.map(|object| (*object).clone())
    }

    /// Deletes a pod as `kubectl delete` does, with the pod's own grace period: a pod that may still
    /// run is marked, and its node ends it.
    pub fn delete_pod(&self, namespace: &str, name: &str) {
        self.delete(&Key::new(&PODS, namespace, name), &Value::Null);
    }

    /// Deletes a pod without a grace period, as `kubectl delete --force` does.
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        let now = json!({"gracePeriodSeconds": 0});
        self.delete(&Key::new(&PODS, namespace, name), &now);
    }

    /// Creates a pod that is not bound to a node, if the name is free.
    pub fn take_name(&self, namespace: &str, name: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        // An existing pod keeps the name.
        let _ = self.make_pod(pod);
    }

    /// Creates a pod, unless its name is taken. Returns the UID of the pod that has the name.
    pub fn make_pod(&self, pod: Value) -> String {
        self.change(|state| {
            let key = Key::new(&PODS, meta::namespace(&pod), meta::name(&pod));
            let there = state.cache.get(&key);
            let there = there.map_or_else(|| state.begin(&key, pod), |there| (*there).clone());
            meta::uid(&there).to_owned()
        })
    }

    /// Deletes a Node. Its pods stay until [`collect_garbage`](Self::collect_garbage).
    pub fn delete_node(&self, name: &str) {
        self.delete(&Key::new(&NODES, "", name), &Value::Null);
    }

    fn delete(&self, key: &Key, options: &Value) {
        self.change(|state| {
            // It may be gone already.
            let _ = state.delete(key, options);
        });
    }

    /// Deletes pods whose owner is a deleted Node, as the controller manager does.
    pub fn collect_garbage(&self) {
        self.change(|state| {
            let nodes = state.cache.list(&NODES, "", &Selector::default());
            let pods = state.cache.list(&PODS, "", &Selector::default());
            let left = pods.iter().filter(|pod| !rules::has_owner(pod, &nodes));
            for pod in left {
                let key = Key::new(&PODS, meta::namespace(pod), meta::name(pod));
                // It existed a moment ago.
                let _ = state.delete(&key, &Value::Null);
            }
        });
    }

    /// The number of calls of that name: method and resource, such as `POST pods`, `PATCH pods/status`,
    /// `LIST pods`, `WATCH pods`.
    pub fn call_count(&self, call: &str) -> usize {
        self.inner
            .state
            .lock()
            .calls
            .get(call)
            .copied()
            .unwrap_or(0)
    }

    /// The rules for nodes that clients' writes have broken so far.
    pub fn violations(&self) -> Vec<String> {
        self.inner.state.lock().violations.clone()
    }
}
