//! Workers, the observer and the cache on the runtime in memory.

use super::super::*;
use crate::observe::Observer;
use crate::store::board::{Board, board};
use crate::store::cache::cache;
use crate::store::cell::{Writer, cell};
use crate::store::looks::look_requests;
use crate::store::probes::probe_results;
use crate::store::settled::SettledPods;
use mirrorlet_core::api::meta;
use mirrorlet_core::ending::{is_api_pod, is_over};
use mirrorlet_core::finished::{FinishedPod, FinishedPods};
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::observed::{ContainerState, ContainerStatus, PodStatus, Role, SandboxStatus};
use mirrorlet_testing::fake_runtime::FakeRuntime;

pub(super) const SWEEP: Duration = Duration::from_mins(5);
/// Longer than anything that is waited for.
const LONG: Duration = Duration::from_hours(2);
/// Annotation that names a field which the node under test can't honour.
pub(super) const UNSUPPORTED: &str = "test/unsupported";

pub(super) struct Bed {
    pub(super) fake: FakeRuntime,
    wanted: watch::Sender<Arc<Wanted>>,
    pub(super) board: Board,
    /// What the observer keeps.
    pub(super) cache: CacheReader,
    pub(super) telemetry: Telemetry,
    node: Writer<AdmitNode>,
    addresses: Writer<Vec<IpAddr>>,
    settled: SettledPods,
    orders: mpsc::Sender<Evict>,
    known: Arc<Mutex<BTreeMap<PodUid, Arc<Pod>>>>,
    /// Whether the API server takes the ends of its pods.
    pub(super) takes_ends: watch::Sender<bool>,
    pub(super) cancel: CancellationToken,
    pub(super) parts: JoinSet<()>,
}

impl Bed {
    pub(super) fn start() -> Self {
        Self::on(FakeRuntime::new())
    }

    /// An agent with that runtime, and its clock.
    pub(super) fn on(fake: FakeRuntime) -> Self {
        let clock = fake.clone();
        Self::with(fake, Clock::new(move || clock.now()))
    }

    pub(super) fn with(fake: FakeRuntime, clock: Clock) -> Self {
        fake.set_latency(Duration::from_millis(1));
        let (writer, reader) = cache();
        let (looks, requests) = look_requests();
        let telemetry = Telemetry::new();
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let (observer, _reach, listed) = Observer::new(
            Arc::clone(&runtime),
            writer,
            requests,
            SWEEP,
            telemetry.clone(),
        );
        let settled = SettledPods::default();
        let observer = observer.without(settled.clone());
        let (board_writer, board) = board();
        let (node, node_reader) = cell(AdmitNode::default());
        let (addresses, node_ips) = cell(Vec::new());
        let (wanted, wanted_reader) = watch::channel(Arc::new(Wanted::default()));
        let known: Arc<Mutex<BTreeMap<PodUid, Arc<Pod>>>> = Arc::default();
        let context = Arc::new(Context {
            runtime,
            cache: reader.clone(),
            looks,
            probes: probe_results().1,
            board: board_writer,
            telemetry: telemetry.clone(),
            node_ips,
            backoff_max: Duration::from_mins(5),
            gc: ContainerGcPolicy::default(),
            clock,
            graces: crate::store::graces::Graces::default(),
            settled: settled.clone(),
            node: node_reader,
            unsupported: |pod| {
                let fields = pod.metadata.annotations.as_ref();
                let fields = fields.and_then(|all| all.get(UNSUPPORTED));
                fields.into_iter().cloned().collect()
            },
            versions: {
                let known = Arc::clone(&known);
                Arc::new(move |_, uid| known.lock().get(uid).cloned())
            },
        });
        let (orders, evictions) = evictions();
        let workers = PodWorkers::new(context, wanted_reader, listed).evicting(evictions);
        let cancel = CancellationToken::new();
        let mut parts = JoinSet::new();
        let observing = cancel.clone().run_until_cancelled_owned(observer.run());
        parts.spawn(async move { observing.await.unwrap_or_default() });
        parts.spawn(workers.run(cancel.clone()));
        let takes_ends = watch::Sender::new(true);
        let ends = take_ends(
            board.clone(),
            wanted.clone(),
            takes_ends.subscribe(),
            cancel.clone(),
        );
        parts.spawn(ends);
        Self {
            fake,
            wanted,
            board,
            cache: reader,
            telemetry,
            node,
            addresses,
            settled,
            orders,
            known,
            takes_ends,
            cancel,
            parts,
        }
    }

    /// An agent before this one ran that version.
    pub(super) fn knows(&self, pod: &Arc<Pod>) {
        let mut known = self.known.lock();
        known.insert(PodUid::of(pod), Arc::clone(pod));
    }

    pub(super) fn settled(&self) -> SettledPods {
        self.settled.clone()
    }

    pub(super) fn want(&self, pods: &[&Arc<Pod>]) {
        self.tell(pods, Delivered::ALL);
    }

    pub(super) fn tell(&self, pods: &[&Arc<Pod>], delivered: Delivered) {
        let pods = pods.iter().map(|pod| (PodUid::of(pod), Arc::clone(pod)));
        self.wanted.send_replace(Arc::new(Wanted {
            pods: pods.collect(),
            delivered,
            ..Wanted::default()
        }));
    }

    /// These are wanted, and of all others that one is left as it is.
    pub(super) fn spare(&self, pods: &[&Arc<Pod>], spared: &str) {
        let pods = pods.iter().map(|pod| (PodUid::of(pod), Arc::clone(pod)));
        self.wanted.send_replace(Arc::new(Wanted {
            pods: pods.collect(),
            delivered: Delivered::ALL,
            spared: [spared.into()].into(),
            ..Wanted::default()
        }));
    }

    /// These are over, and are kept without a worker; no other pods are wanted.
    pub(super) fn keep_finished(&self, pods: &[&Arc<Pod>]) {
        let mut finished = FinishedPods::default();
        for pod in pods {
            finished.insert(PodUid::of(pod), FinishedPod::of(pod).unwrap());
        }
        self.wanted.send_replace(Arc::new(Wanted {
            finished,
            delivered: Delivered::ALL,
            ..Wanted::default()
        }));
    }

    /// The pod is evicted for want of memory.
    pub(super) async fn evict(&self, uid: &str, grace: Duration) {
        let order = Evict {
            uid: uid.into(),
            failure: Failure::evicted("no memory. ", grace, true),
            signal: "memory.available",
        };
        self.orders.send(order).await.unwrap();
    }

    /// The agent learns anew what its node is like.
    pub(super) fn node_is(&mut self, node: AdmitNode) {
        self.node.publish(node);
    }

    /// The machine has that address from now on.
    pub(super) fn has_address(&mut self, address: IpAddr) {
        self.addresses.publish(vec![address]);
    }

    pub(super) async fn until(&self, what: &str, holds: impl Fn(&FakeRuntime) -> bool) {
        let waited = tokio::time::timeout(LONG, self.fake.wait_until(holds)).await;
        assert!(
            waited.is_ok(),
            "never: {what}; board: {:#?}; calls: {:?}",
            self.board.all(),
            self.fake.called_functions()
        );
    }

    pub(super) async fn until_runs(&self, uid: &str) {
        self.until(&format!("{uid} runs"), |fake| runs(fake, uid))
            .await;
    }

    pub(super) async fn until_gone(&self, uid: &str) {
        self.until(&format!("{uid} is gone"), |fake| {
            fake.pod(&uid.into()).is_empty()
        })
        .await;
    }

    pub(super) async fn until_view(&self, uid: &str, holds: impl Fn(Option<&PodView>) -> bool) {
        let mut changed = self.board.changed();
        let waits = async {
            while !holds(self.board.get(&uid.into()).as_ref()) {
                changed.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(LONG, waits).await;
        assert!(waited.is_ok(), "{:#?}", self.board.get(&uid.into()));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The API server's part: the phase in which a pod of its ended comes back with the pod.
async fn take_ends(
    board: Board,
    wanted: watch::Sender<Arc<Wanted>>,
    mut takes: watch::Receiver<bool>,
    cancel: CancellationToken,
) {
    let mut changed = board.changed();
    while takes.wait_for(|takes| *takes).await.is_ok() {
        wanted.send_if_modified(|wanted| {
            let over = wanted.pods.iter().filter_map(|(uid, pod)| {
                let view = board.get(uid).filter(|_| is_api_pod(pod))?;
                let status = view.status.filter(|status| is_over(Some(&**status)))?;
                let news = !is_over(pod.status.as_ref());
                news.then(|| (uid.clone(), changed_to(pod, &status)))
            });
            let over: Vec<_> = over.collect();
            let is_news = !over.is_empty();
            if is_news {
                Arc::make_mut(wanted).pods.extend(over);
            }
            is_news
        });
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = changed.changed() => if changed.is_err() { return },
        }
    }
}

fn changed_to(pod: &Arc<Pod>, status: &mirrorlet_core::api::core::PodStatus) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    pod.status
        .get_or_insert_default()
        .phase
        .clone_from(&status.phase);
    Arc::new(pod)
}

pub(super) fn runs(fake: &FakeRuntime, uid: &str) -> bool {
    let pod = fake.pod(&uid.into());
    pod.running_containers().next().is_some()
}

pub(super) fn named(uid: &str, name: &str) -> Arc<Pod> {
    Arc::new(Pod {
        metadata: meta::ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some(uid.to_owned()),
            ..meta::ObjectMeta::default()
        },
        spec: Some(mirrorlet_core::api::core::PodSpec {
            containers: vec![mirrorlet_core::api::core::Container {
                name: "app".to_owned(),
                image: Some("app:1".to_owned()),
                ..Default::default()
            }],
            ..Default::default()
        }),
        status: None,
    })
}

pub(super) fn pod(uid: &str) -> Arc<Pod> {
    named(uid, &format!("pod-{uid}"))
}

/// A pod that runs already, left behind by an agent before.
pub(super) fn left_behind(fake: &FakeRuntime, pod: &Arc<Pod>) {
    let now = fake.now();
    let uid = PodUid::of(pod);
    let id = |what: &str| mirrorlet_core::api::ContainerId::docker(format!("{what}-{uid}"));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    fake.adopt(PodStatus {
        full_name: FullName::of(pod),
        containers: vec![ContainerStatus {
            by_hand: None,
            id: id("app"),
            name: "app".into(),
            role: Role::App,
            state: ContainerState::Running,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
            exit_code: None,
            image: "app:1".into(),
            image_id: "".into(),
            hash: mirrorlet_core::spec::container_hash(container),
            restart_count: 0,
            pod_restarts: 0,
            reason: "".into(),
            message: "".into(),
        }],
        sandboxes: vec![SandboxStatus {
            by_hand: None,
            id: id("pause"),
            attempt: 0,
            state: ContainerState::Running,
            created_at: now,
            pod_started_at: None,
            host_network: false,
            ips: vec!["10.0.0.9".parse().unwrap()],
        }],
        ips: vec!["10.0.0.9".parse().unwrap()],
        uid,
    });
}

/// A pod of the API server, with that much JSON merged over its metadata, spec and status.
pub(super) fn api(uid: &str, over: serde_json::Value) -> Arc<Pod> {
    let pod = serde_json::json!({
        "metadata": {
            "name": format!("pod-{}", &uid[..4]),
            "namespace": "ns",
            "uid": uid,
            "annotations": {"kubernetes.io/config.source": "api"},
        },
        "spec": {
            "containers": [{"name": "app", "image": "app:1"}],
            "terminationGracePeriodSeconds": 30,
        },
    });
    changed(&Arc::new(serde_json::from_value(pod).unwrap()), over)
}

/// The pod with that much JSON merged over it.
pub(super) fn changed(pod: &Arc<Pod>, over: serde_json::Value) -> Arc<Pod> {
    fn merge(base: &mut serde_json::Value, over: serde_json::Value) {
        match (base, over) {
            (serde_json::Value::Object(base), serde_json::Value::Object(over)) => {
                for (key, value) in over {
                    merge(base.entry(key).or_insert(serde_json::Value::Null), value);
                }
            }
            (base, over) => *base = over,
        }
    }
    let mut json = serde_json::to_value(&**pod).unwrap();
    merge(&mut json, over);
    Arc::new(serde_json::from_value(json).unwrap())
}

/// The pod, being deleted with that grace.
pub(super) fn deleted(pod: &Arc<Pod>, grace_seconds: i64) -> Arc<Pod> {
    changed(
        pod,
        serde_json::json!({"metadata": {
            "deletionTimestamp": "2026-11-21T12:00:00Z",
            "deletionGracePeriodSeconds": grace_seconds,
        }}),
    )
}

pub(super) fn phase_of(view: &PodView) -> Option<&str> {
    view.status.as_ref()?.phase.as_deref()
}
