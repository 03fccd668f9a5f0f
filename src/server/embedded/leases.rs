//! Leases: the Node's own, which shows that the agent is alive, and those for leader election of
//! programs.
//!
//! The latter are renewed every few seconds, and mean nothing without the programs: they are kept in
//! memory and lost with the agent, unlike all other objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::LEASES;
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_core::api::{self, Timestamp};
use serde_json::{Value, json};

use super::project::{seconds, uid_of};

/// The namespace of the Node's lease.
pub(super) const NODE_LEASES: &str = "kube-node-lease";
/// Most leases that are kept: a program has one or two.
const LEASES_MAX: usize = 1000;

/// The leases that clients made.
#[derive(Default)]
pub(super) struct Leases(BTreeMap<Key, Value>);

impl Leases {
    /// Stores a lease.
    ///
    /// # Errors
    /// It is invalid, or there are too many.
    pub(super) fn put(&mut self, key: &Key, object: Value) -> Result<(), Status> {
        check(&object)?;
        if self.0.len() >= LEASES_MAX && !self.0.contains_key(key) {
            let message = format!("the limit of {LEASES_MAX} leases is reached");
            return Err(Status::too_many_requests(&message, 5));
        }
        self.0.insert(key.clone(), object);
        Ok(())
    }

    /// Whether a client made that lease.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Forgets a lease.
    pub(super) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// All leases, that of the Node among them.
    pub(super) fn all(&self, node: &str, started_at: Timestamp) -> BTreeMap<Key, Value> {
        let mut all = self.0.clone();
        let key = Key::new(&LEASES, NODE_LEASES, node);
        all.entry(key).or_insert_with(|| of_node(node, started_at));
        all
    }
}

/// Checks the form of a lease.
pub(super) fn check(object: &Value) -> Result<(), Status> {
    let spec: Result<LeaseSpec, String> = match &object["spec"] {
        Value::Null => Ok(LeaseSpec::default()),
        spec => api::read(spec),
    };
    let cause = match spec {
        Err(error) => Cause::invalid("spec", error),
        Ok(spec) if spec.lease_duration_seconds.is_some_and(|s| s <= 0) => {
            Cause::invalid("spec.leaseDurationSeconds", "must be greater than 0")
        }
        Ok(_) => return Ok(()),
    };
    Err(Status::invalid(&LEASES, meta::name(object), &[cause]))
}

/// The lease of the Node, as of the agent's start: a renewal would be news to every watch.
///
/// Upstream: `pkg/kubelet/kubelet.go` (`nodeLeaseDurationSeconds`).
fn of_node(node: &str, started_at: Timestamp) -> Value {
    json!({
        "apiVersion": LEASES.api_version(),
        "kind": LEASES.kind,
        "metadata": {
            "name": node,
            "namespace": NODE_LEASES,
            "uid": uid_of(&format!("Lease {node}")),
            "creationTimestamp": seconds(started_at),
        },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": micro(started_at),
        },
    })
}

/// The Node's lease in the form for clients: the agent that answers is alive now.
pub(super) fn renewed(object: Arc<Value>, key: &Key, node: &str) -> Arc<Value> {
    if key.resource != &LEASES || key.namespace != NODE_LEASES || key.name != node {
        return object;
    }
    let mut object = Arc::unwrap_or_clone(object);
    object["spec"]["renewTime"] = micro(Timestamp::now()).into();
    Arc::new(object)
}

fn micro(at: Timestamp) -> String {
    at.strftime("%FT%T%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_kept_and_checked() {
        let mut leases = Leases::default();
        let key = Key::new(&LEASES, "default", "leader");
        let lease = |spec: Value| json!({"metadata": {"name": "leader"}, "spec": spec});
        for (spec, expected) in [
            (
                json!({"holderIdentity": "a", "renewTime": "2026-01-02T03:04:05.000006Z"}),
                Ok(()),
            ),
            (Value::Null, Ok(())),
            (json!({"leaseDurationSeconds": 0}), Err(422)),
            (json!({"renewTime": "yesterday"}), Err(422)),
        ] {
            let put = leases.put(&key, lease(spec.clone()));
            // embedded 33
            assert_eq!(put.map_err(|status| status.code), expected, "{spec}");
        }
        let started = "2026-01-02T03:04:05Z".parse().unwrap();
        let all = leases.all("box", started);
        assert_eq!(all.len(), 2);
        let own = Key::new(&LEASES, NODE_LEASES, "box");
        let shown = Arc::new(all[&own].clone());
        assert_eq!(shown["spec"]["renewTime"], "2026-01-02T03:04:05.000000Z");
        let read = renewed(Arc::clone(&shown), &own, "box");
        assert_ne!(read["spec"]["renewTime"], shown["spec"]["renewTime"]);
        assert_eq!(renewed(Arc::clone(&shown), &key, "box"), shown);
        leases.remove(&key);
        assert!(!leases.has(&key) && !leases.has(&own));
    }
}
