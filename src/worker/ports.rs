//! The host ports of pods that are being stopped: a pod that wants one of them starts once it is free.
//!
//! Admission counts a pod that is being stopped no longer, since it holds nobody back but those that
//! want the same port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::SharedLocks;
use mirrorlet_core::admit::{has_host_ports, host_port_holder};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::rollout::is_beside;

/// The pods with host ports that are being stopped, and of which something may run.
#[derive(Debug, Default)]
pub(super) struct StoppingPorts(BTreeMap<PodUid, Stopping>);

#[derive(Debug)]
struct Stopping {
    pod: Arc<Pod>,
    /// Why the last attempt to stop it failed; empty if none has.
    error: Arc<str>,
}

/// A host port that a pod waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PortWait {
    pub(super) message: Arc<str>,
    /// Whether it is not known when the port will be free.
    pub(super) is_stuck: bool,
}

impl StoppingPorts {
    fn stop(&mut self, pod: &Arc<Pod>) {
        if has_host_ports(pod) {
            let error = "".into();
            let pod = Arc::clone(pod);
            self.0.insert(PodUid::of(&pod), Stopping { pod, error });
        }
    }

    /// Notes why an attempt to stop a pod failed, and says whether that is news.
    fn fail(&mut self, uid: &PodUid, error: &Arc<str>) -> bool {
        let stopping = self.0.get_mut(uid);
        stopping.is_some_and(|it| std::mem::replace(&mut it.error, Arc::clone(error)) != *error)
    }

    fn free(&mut self, uid: &PodUid) -> bool {
        self.0.remove(uid).is_some()
    }

    /// The host port that a pod has to wait for, if there is one. A version beside another binds none.
    fn wait_of(&self, pod: &Pod) -> Option<PortWait> {
        if is_beside(pod) {
            return None;
        }
        let pods = |is_stuck: bool| -> Vec<Arc<Pod>> {
            let all = self.0.values();
            let of = all.filter(|stopping| stopping.error.is_empty() != is_stuck);
            of.map(|stopping| Arc::clone(&stopping.pod)).collect()
        };
        [true, false].into_iter().find_map(|is_stuck| {
            let pods = pods(is_stuck);
            let (port, holder) = host_port_holder(pod, &pods)?;
            let FullName { namespace, name } = FullName::of(holder);
            let message = if is_stuck {
                let error = &self.0.get(&PodUid::of(holder))?.error;
                format!("host port {port} is in use by pod {namespace}/{name}, which can't be stopped: {error}")
            } else {
                format!("waiting for pod {namespace}/{name} to stop, which has host port {port}")
            };
            Some(PortWait { message: message.into(), is_stuck })
        })
    }
}

impl SharedLocks {
    fn with_ports<T>(&self, f: impl FnOnce(&mut StoppingPorts) -> T) -> T {
        f(&mut self.ports.lock())
    }

    /// A pod is about to be told to stop. `active` says whether anything of it may run.
    pub(super) fn pod_stops(&self, pod: &Arc<Pod>, active: &AtomicBool) {
        self.with_ports(|ports| {
            if active.load(Ordering::Relaxed) {
                ports.stop(pod);
            }
        });
    }

    /// An attempt to stop a pod failed.
    pub(super) fn stop_failed(&self, uid: &PodUid, error: &Arc<str>) {
        if self.with_ports(|ports| ports.fail(uid, error)) {
            self.changed.send_replace(());
        }
    }

    /// Nothing of a pod runs: its host ports are free.
    pub(super) fn free_ports(&self, uid: &PodUid) {
        if self.with_ports(|ports| ports.free(uid)) {
            self.changed.send_replace(());
        }
    }

    /// Nothing of a pod runs any more, and nothing will.
    pub(super) fn ended(&self, uid: &PodUid, active: &AtomicBool) {
        // Within the lock: the pod may be told to stop at this moment.
        let was_active = self.with_ports(|_| active.swap(false, Ordering::Relaxed));
        self.free_ports(uid);
        if was_active {
            self.ended.notify_one();
        }
    }

    /// The host port that a pod has to wait for, if there is one.
    pub(super) fn port_wait(&self, pod: &Pod) -> Option<PortWait> {
        self.with_ports(|ports| ports.wait_of(pod))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, spec: &Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-uid")},
            "spec": spec,
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn with_port(name: &str, port: &Value) -> Arc<Pod> {
        pod(
            name,
            &json!({"containers": [{"name": "c", "ports": [port]}]}),
        )
    }

    #[test]
    fn a_pod_waits_for_the_ports_that_it_wants_and_no_others() {
        let tcp = json!({"containerPort": 80, "hostPort": 8080});
        let udp = json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"});
        let other = json!({"containerPort": 80, "hostPort": 8081});
        let none = json!({"containerPort": 8080});
        let at = |ip: &str| json!({"containerPort": 80, "hostPort": 8080, "hostIP": ip});
        let cases = [
            ("the same", &tcp, &tcp, Some("8080/tcp")),
            ("another protocol", &tcp, &udp, None),
            ("UDP", &udp, &udp, Some("8080/udp")),
            ("another port", &tcp, &other, None),
            ("a port of the container alone", &none, &tcp, None),
            (
                "one address and all",
                &at("10.0.0.1"),
                &tcp,
                Some("8080/tcp"),
            ),
            (
                "all and one address",
                &tcp,
                &at("10.0.0.1"),
                Some("8080/tcp"),
            ),
            ("two addresses", &at("10.0.0.1"), &at("10.0.0.2"), None),
        ];
        for (case, old, new, port) in cases {
            let mut ports = StoppingPorts::default();
            ports.stop(&with_port("old", old));
            let expected = port.map(|port| PortWait {
                message: format!("waiting for pod ns/old to stop, which has host port {port}")
                    .into(),
                is_stuck: false,
            });
            // pods 43b
            assert_eq!(ports.wait_of(&with_port("new", new)), expected, "{case}");
            assert_eq!(
                ports.wait_of(&with_port("old", new)),
                None,
                "{case}: its own"
            );
        }
        let host = json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [tcp]}]});
        let mut ports = StoppingPorts::default();
        ports.stop(&pod("old", &host));
        assert!(ports.wait_of(&with_port("new", &tcp)).is_some());
        assert!(ports.free(&"old-uid".into()));
        assert!(!ports.free(&"old-uid".into()));
        assert_eq!(ports.wait_of(&with_port("new", &tcp)), None);
    }

    #[test]
    fn a_pod_that_can_not_be_stopped_is_named_with_the_error() {
        let port = json!({"containerPort": 80, "hostPort": 8080});
        let mut ports = StoppingPorts::default();
        ports.stop(&with_port("a", &port));
        ports.stop(&with_port("b", &port));
        assert!(ports.fail(&"b-uid".into(), &"no answer".into()));
        assert!(!ports.fail(&"b-uid".into(), &"no answer".into()));
        assert!(!ports.fail(&"unknown".into(), &"no answer".into()));
        let wait = ports.wait_of(&with_port("new", &port)).unwrap();
        let words = "host port 8080/tcp is in use by pod ns/b, which can't be stopped: no answer";
        // pods 43b
        assert_eq!((&*wait.message, wait.is_stuck), (words, true));
    }
}
