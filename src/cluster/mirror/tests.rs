//! The task against an API server in memory, on a paused clock: faults, and how often it calls.

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::fake::{FakeApi, NODE, Refused};
use crate::cluster::node::NodeRegistration;
use crate::store::board::{BoardWriter, Phase, PodView, board};
use mirrorlet_core::api::{Pod, core, keys};
use mirrorlet_core::desired::{Delivered, Origin, PodSource, SourcePod};
use mirrorlet_core::manager::is_mirror_pod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::observed::{PodStatus, Pods};

/// Longest wait for anything, on the paused clock.
const PATIENCE: Duration = Duration::from_mins(5);
const NO_NAMESPACE: Refused = (404, "NotFound", "namespaces", "namespaces \"ns\" not found");
const NO_QUOTA: Refused = (
    403,
    "Forbidden",
    "pods",
    "pods \"web\" is forbidden: exceeded quota: none, requested: pods=1",
);

fn registered(is_certain: bool) -> NodeRegistration {
    NodeRegistration::Registered {
        uid: "node-uid".to_owned(),
        is_certain,
    }
}

struct Bed {
    api: FakeApi,
    cluster: ClusterClient,
    merged: Writer<Merged>,
    node: Writer<Option<Arc<core::Node>>>,
    standing: Writer<NodeRegistration>,
    board: BoardWriter,
    listed: watch::Sender<Option<Arc<Pods>>>,
    telemetry: Telemetry,
    states: Reader<BTreeMap<FullName, MirrorState>>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Bed {
    fn start() -> Self {
        Self::start_with(FakeApi::new())
    }

    fn start_with(api: FakeApi) -> Self {
        api.want(&[]);
        let (merged, merged_reader) = cell(Merged {
            delivered: Delivered::ALL,
            ..Merged::default()
        });
        let (node, node_reader) = cell(Some(Arc::new(node("node-uid"))));
        let (standing, standing_reader) = cell(registered(true));
        let (board, board_reader) = board();
        let (listed, listed_reader) = watch::channel(Some(Arc::default()));
        let telemetry = Telemetry::new();
        let inputs = MirrorInputs {
            node_name: NODE.into(),
            node: node_reader,
            standing: standing_reader,
            merged: merged_reader,
            board: board_reader,
            listed: listed_reader,
            manager: api.manager(),
        };
        let cluster = api.client();
        let (task, states) = MirrorTask::new(cluster.clone(), inputs, telemetry.clone());
        let cancel = CancellationToken::new();
        Self {
            api,
            cluster,
            merged,
            node,
            standing,
            board,
            listed,
            telemetry,
            states,
            task: tokio::spawn(task.run(cancel.clone())),
            cancel,
        }
    }

    fn want(&mut self, pods: &[&Arc<Pod>]) {
        self.api.want(pods);
        let pods = pods.iter().map(|pod| {
            let origin = Origin::whole(PodSource::File, "web.yaml");
            let pod = SourcePod::new(Arc::clone(pod), origin);
            (pod.uid(), pod)
        });
        self.merged.publish(Merged {
            pods: pods.collect(),
            delivered: Delivered::ALL,
            ..Merged::default()
        });
    }

    fn work(&self, pod: &Arc<Pod>, phase: Phase) {
        self.board.publish(PodView {
            uid: PodUid::of(pod),
            full_name: FullName::of(pod),
            pod: Some(Arc::clone(pod)),
            phase,
            status: None,
            observed: Arc::new(PodStatus::empty(PodUid::of(pod))),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        });
    }

    async fn until(&mut self, wanted: impl FnMut(&BTreeMap<FullName, MirrorState>) -> bool) {
        tokio::time::timeout(PATIENCE, self.states.wait_for(wanted))
            .await
            .unwrap_or_else(|_| panic!("{:?}", self.states.get()))
            .unwrap();
    }

    async fn synced(&mut self, name: &str) -> PodUid {
        let name = FullName::new(name, "ns");
        let mut found = PodUid::default();
        self.until(|states| match states.get(&name) {
            Some(MirrorState::Synced { uid }) => {
                found = uid.as_str().into();
                true
            }
            _ => false,
        })
        .await;
        found
    }

    async fn problem(&mut self, wanted: ProblemKind) {
        let name = FullName::new("web", "ns");
        self.until(
            |states| matches!(states.get(&name), Some(MirrorState::Problem(p)) if p.kind == wanted),
        )
        .await;
    }

    /// Lets everything happen that happens without time passing.
    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    fn story(&self) -> Vec<String> {
        let story = self.telemetry.journal.story(&FullName::new("web", "ns"));
        story.iter().map(|entry| entry.reason.to_string()).collect()
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

fn node(uid: &str) -> core::Node {
    let mut node = core::Node::default();
    node.metadata.name = Some(NODE.into());
    node.metadata.uid = Some(uid.into());
    node
}

fn static_pod(name: &str, version: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some(version.into());
    pod.metadata.annotations = Some(BTreeMap::from([
        (keys::CONFIG_SOURCE.into(), "file".into()),
        (keys::CONFIG_HASH.into(), version.into()),
    ]));
    pod.spec = Some(core::PodSpec {
        node_name: Some(NODE.into()),
        ..core::PodSpec::default()
    });
    Arc::new(pod)
}

fn on_node(node: &str) -> Pod {
    let mut pod = Pod::clone(&static_pod("web", "x"));
    pod.metadata.uid = None;
    pod.metadata.annotations = None;
    pod.spec.as_mut().unwrap().node_name = Some(node.into());
    pod
}

#[tokio::test(start_paused = true)]
async fn a_mirror_comes_with_its_pod_and_goes_after_it() {
    let mut bed = Bed::start();
    let web = static_pod("web", "v1");
    bed.work(&web, Phase::Syncing);
    bed.want(&[&web]);
    let uid = bed.synced("web").await;
    assert_eq!(bed.api.calls(), ["POST web"]);
    assert_eq!(
        bed.api.manager().get().translate_pod_uid(&uid).as_str(),
        "v1"
    );
    // The manifest goes; the pod is still being stopped.
    bed.want(&[]);
    bed.work(&web, Phase::Terminating);
    bed.settle().await;
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.board.remove(&"v1".into());
    bed.until(BTreeMap::is_empty).await;
    // pods 30
    assert_eq!(bed.api.calls(), ["DELETE web"]);
    assert_eq!(bed.api.manager().get().get_mirror_pod_by_pod(&web), None);
    assert_eq!(bed.story(), ["MirrorCreated", "MirrorDeleted"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_mirror_is_back_at_once() {
    let mut bed = Bed::start();
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    let first = bed.synced("web").await;
    bed.api.calls();
    let began = Instant::now();
    bed.api.with(|api| api.remove("web"));
    bed.settle().await;
    let second = bed.synced("web").await;
    assert_eq!(bed.api.calls(), ["POST web"]);
    bed.api.with(|api| api.delete_gracefully("web"));
    bed.settle().await;
    let third = bed.synced("web").await;
    // pods 25
    assert_eq!(bed.api.calls(), ["DELETE web", "POST web"]);
    assert_eq!(BTreeSet::from([first, second, third]).len(), 3);
    assert_eq!(began.elapsed(), Duration::ZERO);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_edit_shows_when_the_new_pod_has_the_name() {
    let mut bed = Bed::start();
    let (v1, v2) = (static_pod("web", "v1"), static_pod("web", "v2"));
    bed.work(&v1, Phase::Syncing);
    bed.want(&[&v1]);
    let old = bed.synced("web").await;
    bed.want(&[&v2]);
    bed.work(&v1, Phase::Terminating);
    bed.work(&v2, Phase::WaitingToStart);
    bed.settle().await;
    assert_eq!(bed.synced("web").await, old);
    bed.board.remove(&"v1".into());
    bed.settle().await;
    bed.api.calls();
    bed.work(&v2, Phase::Syncing);
    bed.settle().await;
    // pods 26
    assert_ne!(bed.synced("web").await, old);
    assert_eq!(bed.api.calls(), ["DELETE web", "POST web"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_edit_shows_though_the_remains_of_the_old_pod_stay() {
    for (old, new) in [("v1", "v2"), ("v2", "v1")] {
        let mut bed = Bed::start();
        let (old, new) = (static_pod("web", old), static_pod("web", new));
        bed.work(&old, Phase::Syncing);
        bed.want(&[&old]);
        let before = bed.synced("web").await;
        bed.want(&[&new]);
        bed.work(&old, Phase::Terminated);
        bed.work(&new, Phase::Syncing);
        bed.settle().await;
        // pods 26
        assert_ne!(bed.synced("web").await, before);
        bed.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_mirror_waits_for_the_node_and_follows_it() {
    let mut bed = Bed::start();
    bed.node.publish(None);
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    bed.problem(ProblemKind::NodeMissing).await;
    let began = Instant::now();
    bed.node.publish(Some(Arc::new(node("a"))));
    bed.synced("web").await;
    bed.api.calls();
    // Registered anew: its mirrors belong to a Node that is no more.
    bed.node.publish(Some(Arc::new(node("b"))));
    bed.settle().await;
    bed.synced("web").await;
    // pods 24
    assert_eq!(bed.api.calls(), ["DELETE web", "POST web"]);
    let owners = bed.api.pod("web").unwrap().metadata.owner_references;
    // pods 36b
    assert_eq!(owners.unwrap()[0].uid, "b");
    assert_eq!(began.elapsed(), Duration::ZERO);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_back_gets_it_at_once() {
    let mut bed = Bed::start();
    bed.api.with(|api| api.down(true));
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    bed.problem(ProblemKind::ApiAway).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    bed.api.with(|api| api.down(false));
    let began = Instant::now();
    // Somebody else's call finds it back.
    let pods: kube::Api<Pod> = kube::Api::namespaced(bed.cluster.client(), "ns");
    let _ = bed.cluster.read(PATIENCE, pods.get("nobody")).await;
    bed.settle().await;
    bed.synced("web").await;
    // pods 34
    assert_eq!(began.elapsed(), Duration::ZERO);
    // It was away: nobody has to mend anything about this pod.
    assert_eq!(bed.story(), ["MirrorCreated"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_once_and_tried_again() {
    let mut bed = Bed::start();
    bed.api.with(|api| api.refuse(Some(NO_QUOTA)));
    let mut events = bed.telemetry.journal.subscribe();
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    bed.problem(ProblemKind::Quota).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    // 1, 2, 4 … 60 s: eleven or so, not three hundred.
    let calls = bed.api.calls().len();
    // pods 35
    assert!((8..=13).contains(&calls), "{calls}");
    let metrics = bed.telemetry.metrics.encode();
    assert!(metrics.contains("mirrorlet_mirror_problems{kind=\"Quota\"} 1"));
    assert!(metrics.contains("mirrorlet_mirror_pods{state=\"problem\"} 1"));
    bed.api.with(|api| api.refuse(None));
    bed.synced("web").await;
    bed.settle().await;
    let story = ["MirrorRefused", "MirrorCreated", "MirrorMended"];
    assert_eq!(bed.story(), story);
    let (told, _) = events.next().await;
    let told: Vec<&str> = told.iter().map(|entry| &*entry.reason).collect();
    assert_eq!(told, ["MirrorPodRefused", "MirrorPodRecovered"]);
    assert!(!bed.telemetry.metrics.encode().contains("kind=\"Quota\""));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_denied_as_a_conflict_is_none_that_is_done() {
    let mut bed = Bed::start();
    bed.want(&[&static_pod("web", "v1")]);
    bed.synced("web").await;
    bed.api.calls();
    let words = "admission webhook \"guard\" denied the request";
    bed.api
        .with(|api| api.refuse(Some((409, "Conflict", "pods", words))));
    let new = static_pod("web", "v2");
    bed.work(&new, Phase::Syncing);
    bed.want(&[&new]);
    bed.problem(ProblemKind::Webhook).await;
    // pods 35
    assert_eq!(bed.api.calls(), ["DELETE web", "GET web"]);
    bed.api.with(|api| api.refuse(None));
    bed.synced("web").await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_is_tried_often_where_it_cannot_be_watched() {
    let mut bed = Bed::start();
    bed.api.with(|api| api.refuse(Some(NO_NAMESPACE)));
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    bed.problem(ProblemKind::NamespaceMissing).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let calls = bed.api.calls().len();
    assert!((12..=18).contains(&calls), "{calls}");
    let began = Instant::now();
    bed.api.with(|api| api.refuse(None));
    bed.synced("web").await;
    assert!(began.elapsed() <= Duration::from_secs(2));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_version_of_the_manifest_is_tried_at_once() {
    let mut bed = Bed::start();
    bed.api.with(|api| api.refuse(Some(NO_QUOTA)));
    bed.want(&[&static_pod("web", "v1")]);
    bed.problem(ProblemKind::Quota).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    bed.api.with(|api| api.refuse(None));
    let began = Instant::now();
    bed.want(&[&static_pod("web", "v2")]);
    bed.settle().await;
    bed.synced("web").await;
    // pods 35
    assert_eq!(began.elapsed(), Duration::ZERO);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_pod_is_never_touched() {
    for node in [NODE, "n2", ""] {
        let mut bed = Bed::start();
        bed.api.with(|api| api.put(on_node(node)));
        let foreign = bed.api.pod("web").unwrap();
        let web = static_pod("web", "v1");
        bed.want(&[&web]);
        bed.problem(ProblemKind::NameTaken).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        // pods 36a
        assert_eq!(bed.api.pod("web").unwrap(), foreign);
        let deletes = |calls: Vec<String>| calls.iter().any(|call| call.starts_with("DELETE"));
        assert!(!deletes(bed.api.calls()));
        bed.api.with(|api| api.remove("web"));
        bed.synced("web").await;
        assert!(is_mirror_pod(&bed.api.pod("web").unwrap()));
        bed.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_makes_nothing_twice() {
    let mut bed = Bed::start();
    bed.api.with(|api| api.lag(true));
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    let uid = bed.synced("web").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(bed.api.calls(), ["POST web"]);
    // Much later it is asked for, seldom.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(bed.synced("web").await, uid);
    let calls = bed.api.calls().len();
    // pods 27
    assert!((2..=8).contains(&calls), "{calls}");
    // A mirror that was deleted isn't deleted again while the watch still shows it.
    bed.api.with(|api| api.lag(false));
    bed.settle().await;
    bed.api.with(|api| api.lag(true));
    bed.want(&[]);
    bed.until(BTreeMap::is_empty).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(bed.api.calls(), ["DELETE web"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_behind_a_deletion_makes_no_storm() {
    let mut bed = Bed::start();
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    bed.synced("web").await;
    // Somebody deletes the mirror, the manifest goes, and the watch tells of nothing.
    bed.api.with(|api| api.lag(true));
    bed.api.with(|api| api.remove("web"));
    bed.api.calls();
    bed.want(&[]);
    bed.settle().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let calls = bed.api.calls();
    // pods 27
    assert!((2..=40).contains(&calls.len()), "{}", calls.len());
    // Each deletion that finds nothing is followed by a look whether that is so.
    let turns = calls
        .chunks(2)
        .all(|call| call == ["DELETE web", "GET web"]);
    assert!(turns, "{calls:?}");
    bed.api.with(|api| api.lag(false));
    bed.until(BTreeMap::is_empty).await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_is_there_is_found() {
    let api = FakeApi::new();
    let mut bed = Bed::start_with(api.clone());
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    let uid = bed.synced("web").await;
    bed.stop().await;
    api.calls();
    // A new agent: the same manifest, the same mirror.
    let mut bed = Bed::start_with(api.clone());
    bed.want(&[&web]);
    assert_eq!(bed.synced("web").await, uid);
    // pods 27
    assert_eq!(api.calls(), Vec::<String>::new());
    // Even if its watch had not told of it.
    let client = MirrorClient::new(bed.cluster.clone(), NODE.into(), bed.node.reader());
    let found = client.create_mirror_pod(&web).await.unwrap();
    assert!(matches!(&found, Mirrored::Found(mirror) if PodUid::of(mirror) == uid));
    let other = client.create_mirror_pod(&static_pod("web", "v2")).await;
    assert!(
        matches!(other, Err(CreateError::OtherVersion(_))),
        "{other:?}"
    );
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphans_wait_until_everything_is_known() {
    let api = FakeApi::new();
    let mut bed = Bed::start_with(api.clone());
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    bed.synced("web").await;
    bed.stop().await;
    api.calls();
    // The manifest went while no agent ran.
    let mut bed = Bed::start_with(api.clone());
    bed.listed.send_replace(None);
    bed.merged.publish(Merged::default());
    bed.settle().await;
    bed.merged.publish(Merged {
        delivered: Delivered::ALL,
        ..Merged::default()
    });
    bed.settle().await;
    assert_eq!(api.calls(), Vec::<String>::new());
    // Its pod still runs.
    let running = mirrorlet_core::observed::RunningPod {
        uid: "v1".into(),
        full_name: FullName::new("web", "ns"),
        ..mirrorlet_core::observed::RunningPod::default()
    };
    bed.listed.send_replace(Some(Arc::new(Pods(vec![running]))));
    bed.settle().await;
    assert_eq!(api.calls(), Vec::<String>::new());
    bed.work(&web, Phase::Terminating);
    bed.settle().await;
    bed.board.remove(&"v1".into());
    bed.settle().await;
    // pods 29
    assert_eq!(api.calls(), ["DELETE web"]);
    bed.stop().await;
}

/// A mirror of that name that no agent made, and that a finalizer keeps.
fn forged(name: &str) -> Pod {
    let mut mirror = Pod::clone(&static_pod(name, "forged"));
    mirror.metadata.uid = None;
    mirror.metadata.finalizers = Some(vec!["example.com/f".to_owned()]);
    let annotations = mirror.metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::CONFIG_MIRROR.into(), "forged".into());
    mirror
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_a_finalizer_keeps_is_deleted_once() {
    let bed = Bed::start();
    bed.api.with(|api| api.put(forged("web")));
    tokio::time::sleep(Duration::from_mins(1)).await;
    // pods 29
    assert_eq!(bed.api.calls(), ["DELETE web"]);
    let kept = bed.api.pod("web").unwrap();
    assert_eq!(kept.metadata.deletion_grace_period_seconds, Some(0));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn mirrors_of_static_pods_go_before_orphans() {
    let mut bed = Bed::start();
    let (db, web) = (static_pod("db", "v1"), static_pod("web", "v1"));
    bed.want(&[&db]);
    bed.synced("db").await;
    bed.api.calls();
    // They gather while nothing may be written.
    bed.standing.publish(registered(false));
    bed.want(&[&db, &web]);
    for n in 0..40 {
        bed.api.with(|api| api.put(forged(&format!("forged-{n}"))));
    }
    bed.settle().await;
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.standing.publish(registered(true));
    bed.synced("web").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let calls = bed.api.calls();
    let first = &calls[..ATTEMPTS_MAX];
    // pods 29
    assert!(first.contains(&"POST web".to_owned()), "{first:?}");
    assert_eq!(calls.len(), 41);
    bed.stop().await;
}

/// Another agent took our Node, and made mirrors of its own static pods on it.
#[tokio::test(start_paused = true)]
async fn mirrors_of_whoever_took_our_node_are_left_alone() {
    let mut bed = Bed::start();
    let refused = NodeRegistration::Refused {
        cause: "another's".to_owned(),
        since: mirrorlet_core::api::Timestamp::UNIX_EPOCH,
        is_anothers: true,
    };
    bed.standing.publish(refused);
    bed.node.publish(None);
    let mut theirs = Pod::clone(&static_pod("web", "v1"));
    let annotations = theirs.metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::CONFIG_MIRROR.into(), "v1".into());
    bed.api.with(|api| api.put(theirs));
    bed.settle().await;
    // node 6l
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    // Ours again: it has no static pod now.
    bed.standing.publish(registered(true));
    bed.node.publish(Some(Arc::new(node("node-uid"))));
    bed.settle().await;
    assert_eq!(bed.api.calls(), ["DELETE web"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn mirrors_wait_until_the_node_was_seen_again() {
    let mut bed = Bed::start();
    let (web, db) = (static_pod("web", "v1"), static_pod("db", "v1"));
    bed.want(&[&web]);
    bed.synced("web").await;
    bed.api.calls();
    bed.standing.publish(registered(false));
    bed.want(&[&db]);
    bed.settle().await;
    // node 6l
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.standing.publish(registered(true));
    bed.synced("db").await;
    bed.settle().await;
    assert!(bed.api.pod("web").is_none());
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn somebody_who_keeps_deleting_is_met_with_pauses() {
    let mut bed = Bed::start();
    let web = static_pod("web", "v1");
    bed.want(&[&web]);
    let began = Instant::now();
    for _ in 0..12 {
        bed.synced("web").await;
        bed.api.with(|api| api.remove("web"));
        bed.settle().await;
    }
    let took = began.elapsed();
    // pods 25
    assert!(took > Duration::from_secs(20), "{took:?}");
    assert!(took < Duration::from_mins(5), "{took:?}");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_are_made_side_by_side_and_in_time() {
    let mut bed = Bed::start();
    let pods: Vec<_> = (0..100)
        .map(|i| static_pod(&format!("p{i}"), &format!("v{i}")))
        .collect();
    bed.want(&pods.iter().collect::<Vec<_>>());
    let all_synced = |states: &BTreeMap<FullName, MirrorState>| {
        let is_synced = |state| matches!(state, &MirrorState::Synced { .. });
        states.len() == 100 && states.values().all(is_synced)
    };
    bed.until(all_synced).await;
    // pods 36c
    assert_eq!(bed.api.calls().len(), 100);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_deletes_by_uid_only() {
    let bed = Bed::start();
    bed.api.with(|api| api.put(on_node("n2")));
    let uid = PodUid::of(&bed.api.pod("web").unwrap());
    let reader = bed.node.reader();
    let client = MirrorClient::new(bed.cluster.clone(), NODE.into(), reader);
    let stale = "stale".into();
    let [web, no]: [FullName; 2] = ["web_ns", "no_ns"].map(|name| name.parse().unwrap());
    assert_eq!(client.delete_mirror_pod(&web, &stale).await, Ok(false));
    assert_eq!(client.delete_mirror_pod(&no, &stale).await, Ok(false));
    // pods 28
    assert!(bed.api.pod("web").is_some());
    let uid = uid.as_str().to_owned();
    let fresh = mirrorlet_core::api::MirrorPodUid::from(uid);
    let deleted = client.delete_mirror_pod(&web, &fresh).await;
    assert_eq!(deleted, Ok(true));
    assert!(bed.api.pod("web").is_none());
    bed.stop().await;
}
