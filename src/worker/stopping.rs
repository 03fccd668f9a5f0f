//! Pods that are being stopped and that others wait for: those with host ports, and preempted ones.
//!
//! Admission no longer counts a pod that is being stopped. Only pods that need one of its host ports,
//! and critical pods for which it was preempted, wait for it: a critical pod not longer than
//! [`room_wait`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::SharedLocks;
use mirrorlet_core::admit::{HOST_PORT_CONFLICT, has_host_ports, host_port_holder};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::ending;
use mirrorlet_core::rollout::is_beside;

/// Reason of the note that a preempted pod can't be stopped.
const FAILED_PREEMPTION: &str = "FailedPreemption";

/// The shortest time that a critical pod waits for a pod that it preempts to stop.
const ROOM_WAIT_MIN: Duration = Duration::from_secs(10);

/// The maximum wait. A tenant may set a grace period of years, which is honoured; static pods don't
/// wait for that.
const ROOM_WAIT_MAX: Duration = Duration::from_mins(5);

/// How long critical pods wait at most for a preempted pod to stop.
///
/// Upstream: `killPodNow` of `pkg/kubelet/pod_workers.go`, whose wait has no upper limit.
pub(super) fn room_wait(pod: &Pod) -> Duration {
    let grace = ending::grace(None, pod);
    let wait = grace.saturating_add(grace / 2);
    wait.clamp(ROOM_WAIT_MIN, ROOM_WAIT_MAX)
}

/// The pods that others may wait for: they are being stopped, and some of their containers may run.
#[derive(Debug, Default)]
pub(super) struct StoppingPods {
    pods: BTreeMap<PodUid, Stopping>,
    /// The preempted pods that a critical pod waits for, by its UID. All of them are among `pods`.
    room: BTreeMap<PodUid, Vec<PodUid>>,
}

#[derive(Debug)]
struct Stopping {
    pod: Arc<Pod>,
    /// The time until which critical pods wait for it; none if it was not preempted, or that time is
    /// over.
    room_until: Option<Instant>,
    /// Why the last attempt to stop it, or to read what runs of it, failed; empty if none has.
    error: Arc<str>,
}

/// The reason why a pod has to wait before it starts: another pod still has its host port, or
/// resources.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartWait {
    pub(super) message: Arc<str>,
    /// The reason of the event, if it is unknown when the other pod will have stopped.
    pub(super) stuck: Option<&'static str>,
    /// The preempted pods that it waits for.
    pub(super) awaits: Arc<[PodUid]>,
    /// The time until which it waits for the first of them to stop.
    pub(super) until: Option<Instant>,
}

impl StoppingPods {
    fn stop(&mut self, pod: &Arc<Pod>, room_until: Option<Instant>) {
        if room_until.is_some() || has_host_ports(pod) {
            let stopping = self.pods.entry(PodUid::of(pod));
            let stopping = stopping.or_insert_with(|| Stopping {
                pod: Arc::clone(pod),
                room_until,
                error: "".into(),
            });
            stopping.room_until = stopping.room_until.or(room_until);
        }
    }

    /// Records why a pod can't be stopped, empty for no reason any more, and returns whether that
    /// changed.
    fn fail(&mut self, uid: &PodUid, error: &Arc<str>) -> bool {
        let stopping = self.pods.get_mut(uid);
        stopping.is_some_and(|it| std::mem::replace(&mut it.error, Arc::clone(error)) != *error)
    }

    fn free(&mut self, uid: &PodUid) -> bool {
        self.leave_room(uid);
        self.pods.remove(uid).is_some()
    }

    /// No pod waits for the room of that one any more.
    fn leave_room(&mut self, uid: &PodUid) {
        self.room.retain(|_, awaited| {
            awaited.retain(|awaited| awaited != uid);
            !awaited.is_empty()
        });
    }

    /// Ends the waits for preempted pods that take too long to stop. Returns these pods.
    fn end_room_waits(&mut self, now: Instant) -> Vec<Arc<Pod>> {
        let mut overdue = Vec::new();
        for Stopping {
            pod, room_until, ..
        } in self.pods.values_mut()
        {
            if room_until.take_if(|until| *until <= now).is_some() {
                overdue.push(Arc::clone(pod));
            }
        }
        for pod in &overdue {
            self.leave_room(&PodUid::of(pod));
        }
        overdue
    }

    fn is_awaitable(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|it| it.room_until.is_some())
    }

    fn preempted(&self) -> Vec<Arc<Pod>> {
        let preempted = self.pods.values().filter(|it| it.room_until.is_some());
        preempted.map(|it| Arc::clone(&it.pod)).collect()
    }

    /// Has a pod wait for these, and no others any more. Returns whether that is a change.
    fn await_room(&mut self, uid: &PodUid, mut awaited: Vec<PodUid>) -> bool {
        awaited.retain(|awaited| self.is_awaitable(awaited));
        let before = if awaited.is_empty() {
            self.room.remove(uid)
        } else {
            self.room.insert(uid.clone(), awaited.clone())
        };
        before.unwrap_or_default() != awaited
    }

    /// The preempted pods that each critical pod waits for.
    fn room_waits(&self) -> Vec<(PodUid, Vec<Arc<Pod>>)> {
        let pods = |awaited: &[PodUid]| -> Vec<Arc<Pod>> {
            let awaited = awaited.iter().filter_map(|uid| self.pods.get(uid));
            awaited.map(|it| Arc::clone(&it.pod)).collect()
        };
        let waits = self.room.iter();
        waits
            .map(|(uid, awaited)| (uid.clone(), pods(awaited)))
            .collect()
    }

    /// The preempted pod that a critical pod has to wait for, if there is one.
    fn room_wait_of(&self, pod: &Pod) -> Option<StartWait> {
        let awaits = self.room.get(&PodUid::of(pod))?;
        let awaited = awaits.iter().filter_map(|uid| self.pods.get(uid));
        let awaited: Vec<&Stopping> = awaited.collect();
        let stuck = awaited.iter().find(|it| !it.error.is_empty());
        let Stopping { pod, error, .. } = stuck.or_else(|| awaited.first())?;
        let FullName { namespace, name } = FullName::of(pod);
        let message = if error.is_empty() {
            format!(
                "waiting for pod {namespace}/{name} to stop, which was preempted to make room for this pod"
            )
        } else {
            format!(
                "pod {namespace}/{name}, which was preempted to make room for this pod, can't be stopped: {error}"
            )
        };
        Some(StartWait {
            message: message.into(),
            stuck: (!error.is_empty()).then_some(FAILED_PREEMPTION),
            awaits: awaits.as_slice().into(),
            until: awaited.iter().filter_map(|it| it.room_until).min(),
        })
    }

    /// The host port that a pod has to wait for, if there is one. A version beside another binds none.
    fn port_wait_of(&self, pod: &Pod) -> Option<StartWait> {
        if is_beside(pod) {
            return None;
        }
        let pods = |is_stuck: bool| -> Vec<Arc<Pod>> {
            let all = self.pods.values();
            let of = all.filter(|stopping| stopping.error.is_empty() != is_stuck);
            of.map(|stopping| Arc::clone(&stopping.pod)).collect()
        };
        [true, false].into_iter().find_map(|is_stuck| {
            let pods = pods(is_stuck);
            let (port, holder) = host_port_holder(pod, &pods)?;
            let FullName { namespace, name } = FullName::of(holder);
            let message = if is_stuck {
                let error = &self.pods.get(&PodUid::of(holder))?.error;
                format!("host port {port} is in use by pod {namespace}/{name}, which can't be stopped: {error}")
            } else {
                format!("waiting for pod {namespace}/{name} to stop, which has host port {port}")
            };
            Some(StartWait {
                message: message.into(),
                stuck: is_stuck.then_some(HOST_PORT_CONFLICT),
                awaits: Arc::default(),
                until: None,
            })
        })
    }
}

impl SharedLocks {
    fn with_stopping<T>(&self, f: impl FnOnce(&mut StoppingPods) -> T) -> T {
        f(&mut self.stopping.lock())
    }

    /// Handles a pod that is about to be stopped. `active` says whether any of its containers may run.
    pub(super) fn pod_stops(&self, pod: &Arc<Pod>, active: &AtomicBool) {
        self.stops(pod, active, None);
    }

    /// The same for a preempted pod.
    pub(super) fn pod_preempted(&self, pod: &Arc<Pod>, active: &AtomicBool) {
        self.stops(pod, active, Some(Instant::now() + room_wait(pod)));
    }

    fn stops(&self, pod: &Arc<Pod>, active: &AtomicBool, room_until: Option<Instant>) {
        self.with_stopping(|stopping| {
            if active.load(Ordering::Relaxed) {
                stopping.stop(pod, room_until);
            }
        });
    }

    /// Records that an attempt to stop a pod failed, or, without an error, that it may succeed now.
    pub(super) fn stop_failed(&self, uid: &PodUid, error: &Arc<str>) {
        if self.with_stopping(|stopping| stopping.fail(uid, error)) {
            self.changed.send_replace(());
        }
    }

    /// Handles a stopped pod: its host ports and its resources are free.
    pub(super) fn pod_stopped(&self, uid: &PodUid) {
        if self.with_stopping(|stopping| stopping.free(uid)) {
            self.changed.send_replace(());
        }
    }

    /// Handles an ended pod: nothing of it runs, and nothing will.
    pub(super) fn ended(&self, uid: &PodUid, active: &AtomicBool) {
        // Within the lock: the pod may be ordered to stop at this moment.
        let was_active = self.with_stopping(|_| active.swap(false, Ordering::Relaxed));
        self.pod_stopped(uid);
        if was_active {
            self.ended.notify_one();
        }
    }

    /// Ends the waits for preempted pods that take too long to stop. Returns these pods.
    pub(super) fn end_room_waits(&self) -> Vec<Arc<Pod>> {
        let overdue = self.with_stopping(|stopping| stopping.end_room_waits(Instant::now()));
        if !overdue.is_empty() {
            self.changed.send_replace(());
        }
        overdue
    }

    /// The preempted pods that critical pods may have to wait for.
    pub(super) fn preempted(&self) -> Vec<Arc<Pod>> {
        self.stopping.lock().preempted()
    }

    /// Makes a critical pod wait for exactly these preempted pods.
    pub(super) fn await_room(&self, uid: &PodUid, awaited: Vec<PodUid>) {
        if self.with_stopping(|stopping| stopping.await_room(uid, awaited)) {
            self.changed.send_replace(());
        }
    }

    /// The preempted pods that each critical pod waits for.
    pub(super) fn room_waits(&self) -> Vec<(PodUid, Vec<Arc<Pod>>)> {
        self.stopping.lock().room_waits()
    }

    /// The reason why a pod has to wait before it starts, if there is one: for its host ports only if
    /// it `binds` them.
    pub(super) fn start_wait(&self, pod: &Pod, binds: bool) -> Option<StartWait> {
        self.with_stopping(|stopping| {
            let port = || stopping.port_wait_of(pod).filter(|_| binds);
            stopping.room_wait_of(pod).or_else(port)
        })
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
            let mut ports = StoppingPods::default();
            ports.stop(&with_port("old", old), None);
            let expected = port.map(|port| StartWait {
                message: format!("waiting for pod ns/old to stop, which has host port {port}")
                    .into(),
                stuck: None,
                awaits: Arc::default(),
                until: None,
            });
            // pods 43b
            assert_eq!(
                ports.port_wait_of(&with_port("new", new)),
                expected,
                "{case}"
            );
            assert_eq!(
                ports.port_wait_of(&with_port("old", new)),
                None,
                "{case}: its own"
            );
        }
        let host = json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [tcp]}]});
        let mut ports = StoppingPods::default();
        ports.stop(&pod("old", &host), None);
        assert!(ports.port_wait_of(&with_port("new", &tcp)).is_some());
        assert!(ports.free(&"old-uid".into()));
        assert!(!ports.free(&"old-uid".into()));
        assert_eq!(ports.port_wait_of(&with_port("new", &tcp)), None);
    }

    #[test]
    fn a_pod_that_can_not_be_stopped_is_named_with_the_error() {
        let port = json!({"containerPort": 80, "hostPort": 8080});
        let mut ports = StoppingPods::default();
        ports.stop(&with_port("a", &port), None);
        ports.stop(&with_port("b", &port), None);
        assert!(ports.fail(&"b-uid".into(), &"no answer".into()));
        assert!(!ports.fail(&"b-uid".into(), &"no answer".into()));
        assert!(!ports.fail(&"unknown".into(), &"no answer".into()));
        let wait = ports.port_wait_of(&with_port("new", &port)).unwrap();
        let words = "host port 8080/tcp is in use by pod ns/b, which can't be stopped: no answer";
        // pods 43b
        assert_eq!(
            (&*wait.message, wait.stuck),
            (words, Some(HOST_PORT_CONFLICT))
        );
    }

    #[test]
    fn a_pod_waits_for_the_preempted_pods_it_was_told_to_until_they_have_stopped() {
        let none = json!({"containers": []});
        let [critical, other] = ["critical", "other"].map(|name| pod(name, &none));
        let uid = PodUid::of(&critical);
        let mut stopping = StoppingPods::default();
        let until = Some(Instant::now());
        for name in ["a", "b"] {
            stopping.stop(&pod(name, &none), until);
        }
        // One without host ports that is not preempted keeps nobody waiting.
        stopping.stop(&pod("c", &none), None);
        let uids = |names: &[&str]| -> Vec<PodUid> {
            names
                .iter()
                .map(|name| format!("{name}-uid").into())
                .collect()
        };
        assert!(stopping.await_room(&uid, uids(&["a", "b", "c"])));
        assert!(!stopping.await_room(&uid, uids(&["a", "b"])));
        let waiting = |awaits: &[&str]| StartWait {
            message: format!(
                "waiting for pod ns/{} to stop, which was preempted to make room for this pod",
                awaits[0]
            )
            .into(),
            stuck: None,
            awaits: uids(awaits).into(),
            until,
        };
        // pods 61c
        assert_eq!(stopping.room_wait_of(&critical), Some(waiting(&["a", "b"])));
        assert_eq!(stopping.room_wait_of(&other), None);
        // It is told to stop once more, as one that is deleted: it stays preempted.
        stopping.stop(&pod("a", &none), None);
        assert!(stopping.fail(&"b-uid".into(), &"no answer".into()));
        let words =
            "pod ns/b, which was preempted to make room for this pod, can't be stopped: no answer";
        let wait = stopping.room_wait_of(&critical).unwrap();
        // pods 61c
        assert_eq!(
            (&*wait.message, wait.stuck),
            (words, Some(FAILED_PREEMPTION))
        );
        assert!(stopping.free(&"b-uid".into()));
        assert_eq!(stopping.room_wait_of(&critical), Some(waiting(&["a"])));
        assert!(stopping.free(&"a-uid".into()));
        // pods 61c
        assert_eq!(stopping.room_wait_of(&critical), None);
        assert_eq!(
            (stopping.room_waits().len(), stopping.preempted().len()),
            (0, 0)
        );
    }

    #[test]
    fn critical_pods_wait_one_and_a_half_times_the_grace_and_five_minutes_at_most() {
        for (grace, seconds) in [
            (json!(0), 10),
            (json!(6), 10),
            (json!(20), 30),
            (json!(null), 45),
            (json!(31_536_000), 300),
            (json!(i64::MAX), 300),
        ] {
            let spec = json!({"containers": [], "terminationGracePeriodSeconds": grace});
            // pods 62a
            assert_eq!(room_wait(&pod("a", &spec)).as_secs(), seconds, "{grace}");
        }
    }

    #[test]
    fn nobody_waits_for_the_room_of_a_pod_that_takes_too_long_to_stop() {
        let none = json!({"containers": []});
        let critical = pod("critical", &none);
        let (uid, now) = (PodUid::of(&critical), Instant::now());
        let later = now + Duration::from_secs(1);
        let mut stopping = StoppingPods::default();
        stopping.stop(&pod("a", &none), Some(later));
        stopping.stop(&pod("b", &none), Some(now));
        let both = || -> Vec<PodUid> { vec!["a-uid".into(), "b-uid".into()] };
        assert!(stopping.await_room(&uid, both()));
        let until = |stopping: &StoppingPods| stopping.room_wait_of(&critical)?.until;
        assert_eq!(until(&stopping), Some(now));
        let names = |pods: Vec<Arc<Pod>>| -> Vec<String> {
            let names = pods.iter().map(|pod| FullName::of(pod).name);
            names.map(|name| name.to_string()).collect()
        };
        // pods 62a
        assert_eq!(names(stopping.end_room_waits(now)), ["b"]);
        assert_eq!(until(&stopping), Some(later));
        // It is not waited for again, nor reported.
        assert!(!stopping.await_room(&uid, both()));
        assert_eq!(names(stopping.preempted()), ["a"]);
        // pods 62a
        assert_eq!(names(stopping.end_room_waits(later)), ["a"]);
        assert_eq!(stopping.room_wait_of(&critical), None);
        assert!(!stopping.await_room(&uid, both()));
        assert!(stopping.end_room_waits(later).is_empty());
        // Something of both may run.
        assert!(stopping.free(&"a-uid".into()) && stopping.free(&"b-uid".into()));
    }
}
