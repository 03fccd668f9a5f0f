//! The source against a scripted server: what counts as a whole set, and what is kept on disk.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::source::{SourceReader, source};
use crate::store::cell::Reader;
use crate::store::pods::{PodManager, pod_manager};
use mirrorlet_core::api::{PodUid, core};
use mirrorlet_core::desired::{ApiPods, ApiPodsState, SourceState};
use mirrorlet_core::ending::{is_api_pod, is_settled};
use tokio_util::sync::CancellationToken;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// A request that waits for its answer.
struct Asked {
    uri: String,
    answer: oneshot::Sender<Answer>,
}

impl Asked {
    fn is_watch(&self) -> bool {
        self.uri.contains("watch=true")
    }

    fn say(self, code: u16, body: &Value) {
        let body = Full::new(Bytes::from(body.to_string()));
        let body = body.map_err(std::io::Error::other).boxed_unsync();
        let answer = Response::builder().status(code).body(body).unwrap();
        assert!(self.answer.send(answer).is_ok());
    }

    fn list(self, pods: &[Value]) {
        assert!(!self.is_watch(), "{}", self.uri);
        self.say(200, &list(pods, None));
    }

    /// Begins a watch. It ends with the sender.
    fn watch(self) -> mpsc::UnboundedSender<Value> {
        assert!(self.is_watch(), "{}", self.uri);
        let (sender, receiver) = mpsc::unbounded_channel::<Value>();
        let frames = futures::stream::unfold(receiver, |mut receiver| async {
            let event = receiver.recv().await?;
            let line = Bytes::from(format!("{event}\n"));
            Some((Ok::<_, std::io::Error>(Frame::data(line)), receiver))
        });
        let answer = Response::new(StreamBody::new(frames).boxed_unsync());
        assert!(self.answer.send(answer).is_ok());
        sender
    }
}

fn list(pods: &[Value], more: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PodList",
        "metadata": {"resourceVersion": "10", "continue": more},
        "items": pods,
    })
}

fn failure(code: u16, reason: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": reason,
    })
}

fn pod(uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": uid, "namespace": "ns", "uid": uid, "resourceVersion": "5",
            "annotations": {"kubernetes.io/config.source": "file"},
            "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app:1"}]},
        "status": {"phase": "Pending"},
    })
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

struct Bench {
    root: tempfile::TempDir,
    asked: mpsc::UnboundedReceiver<Asked>,
    reader: SourceReader,
    objects: Reader<ApiPodsState>,
    manager: PodManager,
    back: Arc<Notify>,
    settled: SettledPods,
    registered: Option<oneshot::Sender<()>>,
    cancel: CancellationToken,
    running: JoinHandle<Option<()>>,
}

impl Bench {
    fn start() -> Self {
        let mut bench = Self::at(tempfile::tempdir().unwrap());
        bench.register();
        bench
    }

    fn at(root: tempfile::TempDir) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answer, answered) = oneshot::channel();
            let uri = request.uri().to_string();
            let sent = sender.send(Asked { uri, answer });
            async move {
                sent.map_err(|_| std::io::Error::other("the test is over"))?;
                let lost = |_| std::io::Error::other("connection lost");
                answered.await.map_err(lost)
            }
        });
        let back = Arc::new(Notify::new());
        let told = Arc::clone(&back);
        let (registered, waits) = oneshot::channel();
        let settled = SettledPods::default();
        let api = ApiSource::new(ApiOptions {
            client: kube::Client::new(service, "default"),
            node_name: NodeName::new("n1"),
            root: root.path().to_owned(),
            registered: async {
                if waits.await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            .boxed(),
            back: Box::new(move || {
                let told = Arc::clone(&told);
                async move { told.notified().await }.boxed()
            }),
            pods_max: 110,
            settled: settled.clone(),
        });
        let (writer, reader) = source(ApiSource::name());
        let (_, api_pods, manager) = pod_manager();
        let cancel = CancellationToken::new();
        let running = tokio::spawn(
            cancel
                .clone()
                .run_until_cancelled_owned(api.run(writer, api_pods)),
        );
        Self {
            root,
            asked,
            reader,
            objects: manager.api_pods(),
            manager,
            back,
            settled,
            registered: Some(registered),
            cancel,
            running,
        }
    }

    fn register(&mut self) {
        self.registered.take().unwrap().send(()).unwrap();
    }

    async fn next(&mut self) -> Asked {
        let waited = tokio::time::timeout(Duration::from_hours(1), self.asked.recv()).await;
        waited.expect("nothing is asked").unwrap()
    }

    /// Waits until the source wants exactly these.
    async fn until_wanted(&mut self, uids: &[&str]) {
        let wanted = self.reader.state.wait_for(|state| match state {
            SourceState::Synced(set) => uids_of(set.pods.iter().map(|p| &p.pod)) == uids,
            SourceState::NotSynced | SourceState::LastKnown(_) => false,
        });
        let outcome = tokio::time::timeout(Duration::from_hours(1), wanted).await;
        assert!(outcome.is_ok(), "{:?}", self.reader.state.get());
    }

    /// Waits until exactly these objects are known.
    async fn until_known(&mut self, uids: &[String]) {
        let known = self.objects.wait_for(|told| {
            let pods = told.iter().flat_map(|told| told.pods.keys());
            pods.map(PodUid::as_str).eq(uids)
        });
        let outcome = tokio::time::timeout(Duration::from_hours(1), known).await;
        assert!(outcome.is_ok(), "{:?}", self.known());
    }

    fn known(&self) -> Vec<String> {
        match &*self.objects.get() {
            None => vec!["nothing".to_owned()],
            Some(objects) => uids_of(objects.pods.values()),
        }
    }

    /// Ends the agent, as abruptly as may be.
    async fn end(self) -> tempfile::TempDir {
        self.cancel.cancel();
        self.running.await.unwrap();
        self.root
    }

    fn files(&self) -> Vec<String> {
        files(self.root.path())
    }
}

fn files(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join(last_known::DIRECTORY));
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn uids_of<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Vec<String> {
    pods.into_iter()
        .map(|p| PodUid::of(p).to_string())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn ordinary_pods_are_wanted_and_mirrors_are_only_known() {
    let mut bench = Bench::start();
    let mirror = with(
        pod("m"),
        "/metadata/annotations",
        json!({"kubernetes.io/config.mirror": "h", "kubernetes.io/config.source": "file"}),
    );
    let asked = bench.next().await;
    assert!(
        asked.uri.contains("fieldSelector=spec.nodeName%3Dn1"),
        "{}",
        asked.uri
    );
    assert!(!asked.uri.contains("resourceVersion=0"), "{}", asked.uri);
    asked.list(&[pod("a"), mirror]);
    bench.until_wanted(&["a"]).await;
    assert_eq!(bench.known(), ["a", "m"]);
    let state = bench.reader.state.get();
    let wanted = &state.set().unwrap().pods[0].pod;
    let annotations = wanted.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        annotations["kubernetes.io/config.source"], "api",
        "whatever it says"
    );
    assert_eq!(wanted.metadata.managed_fields, None);

    let events = bench.next().await.watch();
    events
        .send(json!({"type": "ADDED", "object": pod("b")}))
        .unwrap();
    bench.until_wanted(&["a", "b"]).await;
    events
        .send(json!({"type": "DELETED", "object": pod("a")}))
        .unwrap();
    bench.until_wanted(&["b"]).await;
    assert_eq!(bench.known(), ["b", "m"]);
    assert_eq!(bench.reader.health.get().last_error, None);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn only_names_are_kept_of_pods_that_are_over_and_left_nothing() {
    let mut bench = Bench::start();
    let over = |uid: &str| with(pod(uid), "/status/phase", json!("Failed"));
    let settled = |bench: &Bench| -> Vec<String> {
        let objects = bench.objects.get();
        let names = objects.iter().flat_map(|pods| pods.settled.values());
        names.map(|name| name.name.to_string()).collect()
    };
    // Something of one is on this node, and nobody knows why.
    bench.settled.start_with(["held".into()]);
    let all = [over("gone"), over("held"), pod("run")];
    bench.next().await.list(&all);
    bench.until_wanted(&["held", "run"]).await;
    // node 6i
    assert_eq!(settled(&bench), ["gone"]);
    assert_eq!(bench.known(), ["held", "run"]);
    assert_eq!(bench.files(), ["held.json", "run.json"]);

    // A pod that is over is its worker's until that says that nothing is left.
    let events = bench.next().await.watch();
    let say = |kind: &str, object: Value| {
        let event = json!({"type": kind, "object": object});
        events.send(event).unwrap();
    };
    say("MODIFIED", over("run"));
    say("MODIFIED", over("gone"));
    let is_over = |told: &ApiPodsState| {
        let run = &told.as_ref().unwrap().pods[&PodUid::from("run")];
        is_settled(run)
    };
    assert!(bench.objects.wait_for(is_over).await.is_ok());
    bench.settled.settle(&"run".into(), Left::Nothing);
    bench.until_wanted(&["held"]).await;
    assert_eq!(settled(&bench), ["gone", "run"]);
    assert_eq!(bench.files(), ["held.json"]);

    // Deleted with a finalizer, it is seen again; without one, it is forgotten.
    let deletion = json!("2026-01-01T00:00:00Z");
    say(
        "MODIFIED",
        with(over("run"), "/metadata/deletionTimestamp", deletion),
    );
    bench.until_wanted(&["held", "run"]).await;
    assert_eq!(settled(&bench), ["gone"]);
    say("DELETED", over("gone"));
    say("DELETED", over("run"));
    bench.until_wanted(&["held"]).await;
    assert_eq!(settled(&bench), Vec::<String>::new());
    // A list anew makes no difference.
    say("ERROR", failure(410, "Expired"));
    bench.next().await.list(&[over("held"), over("late")]);
    let is_late = |told: &ApiPodsState| {
        let pods = told.as_ref().unwrap();
        pods.settled.keys().eq([&PodUid::from("late")])
    };
    assert!(bench.objects.wait_for(is_late).await.is_ok());
    assert_eq!(bench.known(), ["held"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn of_deleted_pods_that_finalizers_keep_only_the_names_are_kept() {
    let mut bench = Bench::start();
    let kept = |uid: &str, phase: &str| {
        let at = json!("2026-01-01T00:00:00Z");
        let pod = with(pod(uid), "/metadata/deletionTimestamp", at);
        let pod = with(pod, "/metadata/deletionGracePeriodSeconds", json!(0));
        let pod = with(pod, "/metadata/finalizers", json!(["example.com/f"]));
        with(pod, "/status/phase", json!(phase))
    };
    let settled = |told: &ApiPodsState| -> Vec<String> {
        let names = told.iter().flat_map(|pods| pods.settled.values());
        names.map(|name| name.name.to_string()).collect()
    };
    bench.settled.start_with(["held".into()]);
    let all = [
        kept("gone", "Failed"),
        kept("held", "Failed"),
        kept("runs", "Running"),
    ];
    bench.next().await.list(&all);
    bench.until_wanted(&["held", "runs"]).await;
    // node 6i
    assert_eq!(settled(&bench.objects.get()), ["gone"]);
    assert_eq!(bench.files(), ["held.json", "runs.json"]);

    // Of one that was here its worker says when nothing is left.
    let events = bench.next().await.watch();
    let say = |kind: &str, object: Value| {
        let event = json!({"type": kind, "object": object});
        events.send(event).unwrap();
    };
    bench.settled.settle(&"runs".into(), Left::Nothing);
    bench.settled.settle(&"held".into(), Left::Nothing);
    bench.until_wanted(&["runs"]).await;
    assert_eq!(settled(&bench.objects.get()), ["gone", "held"]);
    // A change of the object makes no difference, but its end does.
    say("MODIFIED", kept("held", "Failed"));
    say("DELETED", kept("gone", "Failed"));
    let is_left = |told: &ApiPodsState| settled(told) == ["held"];
    assert!(bench.objects.wait_for(is_left).await.is_ok());
    assert_eq!(bench.known(), ["runs"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_over_and_has_containers_is_kept_in_short() {
    let mut bench = Bench::start();
    bench.settled.start_with(["a".into(), "b".into()]);
    let over = |uid: &str| with(pod(uid), "/status/phase", json!("Succeeded"));
    let at =
        |object: Value, version: &str| with(object, "/metadata/resourceVersion", json!(version));
    let kept = |bench: &Bench| -> Vec<Pod> {
        let state = bench.reader.state.get();
        state.set().unwrap().finished.pods().collect()
    };
    bench.next().await.list(&[over("a"), over("b")]);
    bench.until_wanted(&["a", "b"]).await;
    bench.settled.settle(&"a".into(), Left::Containers);
    bench.until_wanted(&["b"]).await;
    // node 6k
    assert_eq!(
        uids_of(&kept(&bench).into_iter().map(Arc::new).collect::<Vec<_>>()),
        ["a"]
    );
    assert_eq!(bench.known(), ["b"]);
    assert!(is_api_pod(&kept(&bench)[0]));
    // The next agent knows it, too.
    assert_eq!(bench.files(), ["a.json", "b.json"]);

    // It follows its object, but isn't taken up again.
    let events = bench.next().await.watch();
    let say = |kind: &str, object: Value| {
        let event = json!({"type": kind, "object": object});
        events.send(event).unwrap();
    };
    say(
        "MODIFIED",
        at(with(over("a"), "/status/reason", json!("Late")), "2000"),
    );
    let reason = |state: &SourceState| {
        let mut pods = state.set().into_iter().flat_map(|set| set.finished.pods());
        pods.any(|pod| pod.status.and_then(|s| s.reason).as_deref() == Some("Late"))
    };
    assert!(bench.reader.state.wait_for(reason).await.is_ok());
    say(
        "MODIFIED",
        at(with(over("a"), "/status/phase", json!("Running")), "2001"),
    );
    say("ERROR", failure(410, "Expired"));
    let listed = at(with(over("a"), "/status/phase", json!("Running")), "2001");
    bench.next().await.list(&[listed, over("b"), pod("c")]);
    bench.until_wanted(&["b", "c"]).await;
    assert_eq!(
        kept(&bench)[0].status.as_ref().unwrap().reason.as_deref(),
        Some("Late")
    );

    // Its deletion is its worker's.
    let events = bench.next().await.watch();
    let deletion = json!("2026-01-01T00:00:00Z");
    let object = with(over("a"), "/metadata/deletionTimestamp", deletion);
    events
        .send(json!({"type": "MODIFIED", "object": object}))
        .unwrap();
    bench.until_wanted(&["a", "b", "c"]).await;
    assert!(kept(&bench).is_empty());
    // One that vanishes is kept no longer.
    bench.settled.settle(&"b".into(), Left::Containers);
    bench.until_wanted(&["a", "c"]).await;
    events
        .send(json!({"type": "DELETED", "object": over("b")}))
        .unwrap();
    let none = |state: &SourceState| state.set().is_some_and(|set| set.finished.is_empty());
    assert!(bench.reader.state.wait_for(none).await.is_ok());
    assert_eq!(bench.files(), ["a.json", "c.json"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn of_many_pods_that_are_over_some_are_looked_after_at_a_time() {
    let mut bench = Bench::start();
    let uids: Vec<String> = (0..300).map(|n| format!("p{n:03}")).collect();
    let held = uids.iter().map(|uid| uid.as_str().into());
    bench.settled.start_with(held);
    let over = |uid: &String| with(pod(uid), "/status/phase", json!("Succeeded"));
    let all: Vec<Value> = uids.iter().map(over).collect();
    let counts = |state: &SourceState| {
        let set = state.set().unwrap();
        (set.pods.len(), set.finished.len())
    };
    bench.next().await.list(&all);
    let are = |pods, finished| {
        move |state: &SourceState| match state {
            SourceState::Synced(set) => (set.pods.len(), set.finished.len()) == (pods, finished),
            SourceState::NotSynced | SourceState::LastKnown(_) => false,
        }
    };
    // node 6k
    assert!(bench.reader.state.wait_for(are(256, 44)).await.is_ok());
    let _events = bench.next().await.watch();
    bench.settled.settle(&"p000".into(), Left::Containers);
    let is_next = |state: &SourceState| {
        let set = state.set().unwrap();
        set.finished.contains(&"p000".into()) && !set.finished.contains(&"p256".into())
    };
    assert!(bench.reader.state.wait_for(is_next).await.is_ok());
    assert_eq!(counts(&bench.reader.state.get()), (256, 44));
    // One whose status is not told yet takes no other's turn.
    bench.settled.settle(&"p001".into(), Left::Unreported);
    assert!(bench.reader.state.wait_for(are(257, 43)).await.is_ok());

    let root = bench.end().await;
    assert_eq!(files(root.path()).len(), 300);
    let mut bench = Bench::at(root);
    let known = |state: &SourceState| matches!(state, SourceState::LastKnown(_));
    let state = bench.reader.state.wait_for(known).await.unwrap();
    assert_eq!(counts(&state), (256, 44));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_cut_short_changes_nothing() {
    let mut bench = Bench::start();
    bench.next().await.list(&[pod("a"), pod("b")]);
    bench.until_wanted(&["a", "b"]).await;
    let events = bench.next().await.watch();
    let expired = failure(410, "Expired");
    events
        .send(json!({"type": "ERROR", "object": expired}))
        .unwrap();
    // The list anew has two pages, and the second one fails.
    bench
        .next()
        .await
        .say(200, &list(&[pod("a")], Some("more")));
    let second = bench.next().await;
    assert!(second.uri.contains("continue=more"), "{}", second.uri);
    second.say(500, &failure(500, "InternalError"));
    let again = bench.next().await;
    bench.until_wanted(&["a", "b"]).await;
    assert!(bench.reader.health.get().failures > 0);
    // Connections are lost just as well.
    drop(again);
    let again = bench.next().await;
    // api 12
    bench.until_wanted(&["a", "b"]).await;
    assert_eq!(bench.files(), ["a.json", "b.json"]);
    // b went meanwhile: a whole list says so.
    again.list(&[pod("a")]);
    bench.until_wanted(&["a"]).await;
    bench.next().await.watch();
    assert_eq!(bench.files(), ["a.json"]);
    assert_eq!(bench.reader.health.get().failures, 0);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_place_in_history_that_the_server_lost_is_found_by_a_list() {
    let mut bench = Bench::start();
    bench.next().await.list(&[pod("a")]);
    bench.until_wanted(&["a"]).await;
    // A watch that ends goes on where it was.
    drop(bench.next().await.watch());
    let again = bench.next().await;
    assert!(again.uri.contains("resourceVersion=10"), "{}", again.uri);
    // A server restored from a backup doesn't know that place, and never will.
    again.say(504, &failure(504, "Timeout"));
    bench.next().await.list(&[pod("b")]);
    // api 12
    bench.until_wanted(&["b"]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_the_watch_after_each_list_is_asked_less_and_less() {
    let mut bench = Bench::start();
    let began = Instant::now();
    for _ in 0..7 {
        bench.next().await.list(&[pod("a")]);
        let watch = bench.next().await;
        assert!(watch.is_watch(), "{}", watch.uri);
        watch.say(410, &failure(410, "Expired"));
    }
    // node 6e
    assert!(
        began.elapsed() > Duration::from_secs(40),
        "{:?}",
        began.elapsed()
    );
    bench.end().await;
}

#[test]
fn long_words_of_a_refusal_are_shortened() {
    let words = "x".repeat(100_000);
    let status = kube::core::Status::failure(&words, "Expired").with_code(410);
    let said = ended(&watcher::Error::WatchError(status.boxed()));
    // node 6e
    assert_eq!(said.error.unwrap().len(), WORDS_BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_open_again_is_no_failure_though_nothing_happens() {
    let mut bench = Bench::start();
    bench.next().await.list(&[pod("a")]);
    bench.until_wanted(&["a"]).await;
    drop(bench.next().await.watch());
    drop(bench.next().await);
    let failed = bench.reader.health.wait_for(|h| h.last_error.is_some());
    failed.await.unwrap();
    // As long as the client waits for an answer, nobody knows.
    let asked = bench.next().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(bench.reader.health.get().last_error.is_some());
    let _events = asked.watch();
    let well = bench.reader.health.wait_for(|h| h.last_error.is_none());
    let well = tokio::time::timeout(Duration::from_hours(1), well).await;
    // api 12
    assert!(well.is_ok(), "{:?}", bench.reader.health.get());
    assert!(bench.asked.try_recv().is_err(), "nothing more is asked");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_nobody_answers_is_given_up_and_tried_again() {
    let mut bench = Bench::start();
    let silent = bench.next().await;
    let began = Instant::now();
    let again = bench.next().await;
    assert!(began.elapsed() >= LIST_SILENCE_MAX);
    let error = bench.reader.health.get().last_error.clone().unwrap();
    // api 12
    assert!(error.message.contains("no answer"), "{error}");
    again.list(&[pod("a")]);
    bench.until_wanted(&["a"]).await;
    drop(silent);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_servers_return_ends_a_pause() {
    let mut bench = Bench::start();
    // Failures in a row make pauses longer.
    for _ in 0..8 {
        drop(bench.next().await);
    }
    let lost = bench.next().await;
    drop(lost);
    // Let it come to its pause.
    bench
        .reader
        .health
        .wait_for(|h| h.failures == 9)
        .await
        .unwrap();
    let began = Instant::now();
    bench.back.notify_one();
    bench.next().await.list(&[]);
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    bench.until_wanted(&[]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_and_refuses_is_asked_again_soon() {
    let mut bench = Bench::start();
    bench.next().await.list(&[pod("a")]);
    bench.until_wanted(&["a"]).await;
    drop(bench.next().await.watch());
    // Away for long; then it answers, but has forgotten our place in its history.
    for _ in 0..8 {
        drop(bench.next().await);
    }
    bench.next().await.say(410, &failure(410, "Expired"));
    let began = Instant::now();
    bench.next().await.list(&[pod("b")]);
    // away 4
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    bench.until_wanted(&["b"]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_agent_knows_what_was_known_last() {
    let mut bench = Bench::start();
    let secret = json!({"name": "app", "image": "app:1", "env": [{"name": "A", "value": "b"}]});
    let running = with(pod("a"), "/spec/containers", json!([secret]));
    let restarted = json!({
        "phase": "Running",
        "containerStatuses": [
            {"name": "app", "restartCount": 3, "ready": true, "image": "app:1", "imageID": ""},
        ],
    });
    let restarted = with(pod("b"), "/status", restarted);
    bench.next().await.list(&[running.clone(), restarted]);
    bench.until_wanted(&["a", "b"]).await;
    let events = bench.next().await.watch();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let dir = bench.root.path().join(last_known::DIRECTORY);
    assert_eq!((mode(&dir), mode(&dir.join("a.json"))), (0o700, 0o600));
    // Fields that every status write changes don't cause a write to the disk.
    let before = std::fs::read(dir.join("a.json")).unwrap();
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    let told = with(
        running,
        "/status",
        json!({"phase": "Pending", "conditions": conditions}),
    );
    events
        .send(json!({"type": "MODIFIED", "object": told}))
        .unwrap();
    events
        .send(json!({"type": "ADDED", "object": pod("c")}))
        .unwrap();
    bench.until_wanted(&["a", "b", "c"]).await;
    assert_eq!(std::fs::read(dir.join("a.json")).unwrap(), before);
    let root = bench.end().await;

    // The server is away: the pods are wanted, and no more is claimed.
    let mut bench = Bench::at(root);
    let last_known = bench
        .reader
        .state
        .wait_for(|state| matches!(state, SourceState::LastKnown(_)))
        .await
        .unwrap();
    let set = last_known.set().unwrap();
    // api 13
    assert_eq!(uids_of(set.pods.iter().map(|p| &p.pod)), ["a", "b", "c"]);
    let spec = set.pods[0].pod.spec.as_ref().unwrap();
    let value = spec.containers[0].env.as_ref().unwrap()[0].value.clone();
    assert_eq!(value.as_deref(), Some("b"), "it can be started again");
    assert!(set.pods[0].is_api());
    let restarts =
        |status: &core::PodStatus| Some(status.container_statuses.as_ref()?[0].restart_count);
    let restarts = set.pods[1].pod.status.as_ref().and_then(restarts);
    assert_eq!(restarts, Some(3), "its container may be gone by now");
    assert_eq!(bench.known(), ["nothing"]);
    assert!(!bench.reader.report().synced);
    assert!(
        bench.asked.try_recv().is_err(),
        "not before the Node is registered"
    );
    // The server is back.
    bench.register();
    bench.next().await.list(&[pod("b")]);
    bench.until_wanted(&["b"]).await;
    bench.next().await.watch();
    assert_eq!(bench.files(), ["b.json"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_agent_knows_what_a_resized_container_was_started_with() {
    let of = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let resized = json!([{"name": "app", "image": "app:1", "resources": of("2")}]);
    let resized = with(pod("a"), "/spec/containers", resized);
    let status = json!({
        "phase": "Running",
        "containerStatuses": [{
            "name": "app", "image": "app:1", "imageID": "", "containerID": "docker://1",
            "ready": true, "restartCount": 0, "state": {"running": {}}, "resources": of("100m"),
        }],
    });
    // One that was resized as a whole.
    let whole = with(pod("b"), "/spec/resources", of("2"));
    let whole = with(whole, "/status/resources", of("100m"));
    let mut bench = Bench::start();
    bench
        .next()
        .await
        .list(&[with(resized, "/status", status), whole]);
    bench.until_wanted(&["a", "b"]).await;
    bench.next().await.watch();
    let root = bench.end().await;
    let mut bench = Bench::at(root);
    let state = bench
        .reader
        .state
        .wait_for(|state| matches!(state, SourceState::LastKnown(_)))
        .await
        .unwrap();
    let set = state.set().unwrap();
    for known in &set.pods {
        let requests = mirrorlet_core::admit::pod_requests(&known.pod);
        // pods 61a
        assert_eq!(requests["cpu"].milli_ceil(), 100, "{}", known.uid());
    }
    let known = &set.pods[0].pod;
    let status = known.status.as_ref().unwrap();
    let container = &status.container_statuses.as_ref().unwrap()[0];
    // Its status goes on from that of the same instance.
    assert_eq!(container.container_id.as_deref(), Some("docker://1"));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_used_on_disk_is_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join(last_known::DIRECTORY);
    std::fs::create_dir(&dir).unwrap();
    let stored = |pod: Value| json!({"version": 1, "pod": pod}).to_string();
    let files = BTreeMap::from([
        ("good.json", stored(pod("good"))),
        ("half.json", stored(pod("half"))[..40].to_owned()),
        (
            "future.json",
            json!({"version": 9, "pod": pod("future")}).to_string(),
        ),
        ("renamed.json", stored(pod("other"))),
        (
            "elsewhere.json",
            stored(with(pod("elsewhere"), "/spec/nodeName", json!("n2"))),
        ),
        ("cut.json.new", "{".to_owned()),
    ]);
    for (name, content) in files {
        std::fs::write(dir.join(name), content).unwrap();
    }
    let mut bench = Bench::at(root);
    let state = bench
        .reader
        .state
        .wait_for(|state| matches!(state, SourceState::LastKnown(_)))
        .await
        .unwrap();
    let set = state.set().unwrap();
    assert_eq!(uids_of(set.pods.iter().map(|p| &p.pod)), ["good"]);
    assert_eq!(set.problems.len(), 3, "{:#?}", set.problems);
    bench.register();
    bench.next().await.list(&[]);
    bench.until_wanted(&[]).await;
    bench.next().await.watch();
    // api 13
    assert_eq!(
        bench.files(),
        [
            "future.json.set-aside",
            "half.json.set-aside",
            "renamed.json.set-aside"
        ]
    );
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_nothing_holds_nothing_up() {
    let root = tempfile::tempdir().unwrap();
    // A file where the directory should be.
    std::fs::write(root.path().join(last_known::DIRECTORY), "").unwrap();
    let mut bench = Bench::at(root);
    bench.register();
    bench.next().await.list(&[pod("a")]);
    // api 13
    bench.until_wanted(&["a"]).await;
    let report = bench.reader.report();
    let told = report
        .problems
        .iter()
        .any(|p| p.message.contains("failed to save the API server's pods"));
    assert!(told, "{:#?}", report.problems);
    bench.end().await;
}

/// Pods that are over pile up until somebody deletes them, as large as their authors like.
#[tokio::test(start_paused = true)]
async fn of_pods_that_are_over_only_the_remains_are_held() {
    let mut bench = Bench::start();
    let large = |uid: &str, phase: &str| {
        let text = "x".repeat(250_000);
        let pod = with(pod(uid), "/metadata/annotations", json!({ "note": text }));
        with(pod, "/status/phase", json!(phase))
    };
    let list = bench.next().await;
    // tenants M5
    assert!(list.uri.contains("limit=20"), "{}", list.uri);
    list.list(&[large("listed", "Failed"), large("watched", "Running")]);
    bench.until_wanted(&["listed", "watched"]).await;
    let watch = bench.next().await.watch();
    let over = large("watched", "Succeeded");
    watch
        .send(json!({"type": "MODIFIED", "object": over}))
        .unwrap();
    let is_over = |pod: &Pod| mirrorlet_core::ending::is_over(pod.status.as_ref());
    let ended = bench.reader.state.wait_for(|state| {
        let pods = state.set().into_iter().flat_map(|set| &set.pods);
        pods.filter(|pod| is_over(&pod.pod)).count() == 2
    });
    let set = Arc::clone(ended.await.unwrap().set().unwrap());
    let objects = Option::clone(&bench.objects.get()).unwrap();
    let held = set.pods.iter().map(|pod| &pod.pod);
    for pod in held.chain(objects.pods.values()) {
        let bytes = serde_json::to_string(&**pod).unwrap().len();
        assert!(bytes < 1024, "{bytes}");
    }
    let root = bench.end().await;
    for file in files(root.path()) {
        let path = root.path().join(last_known::DIRECTORY).join(file);
        assert!(std::fs::metadata(path).unwrap().len() < 1024);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_object_becomes_too_large_runs_by_the_spec_that_is_known() {
    let mut bench = Bench::start();
    let limited = json!([{"name": "app", "image": "app:1", "securityContext": {"runAsUser": 7}}]);
    let small = with(pod("a"), "/spec/containers", limited);
    let labels = (0..=mirrorlet_core::api::VALUES_MAX).map(|n| (format!("l{n}"), json!("")));
    let labels: serde_json::Map<String, Value> = labels.collect();
    let large = |pod: Value, version: &str| {
        let pod = with(pod, "/metadata/labels", json!(labels));
        with(pod, "/metadata/resourceVersion", json!(version))
    };
    let user = |set: &SourceState, n: usize| {
        let spec = set.set().unwrap().pods[n].pod.spec.clone().unwrap();
        spec.containers[0].security_context.as_ref()?.run_as_user
    };
    // One that is too large from the start is refused: only its remains are held, and not on disk.
    let newcomer = large(pod("b"), "5");
    let list = [small.clone(), newcomer.clone()];
    bench.next().await.list(&list);
    bench.until_wanted(&["a", "b"]).await;
    assert_eq!(bench.files(), ["a.json"]);
    let events = bench.next().await.watch();
    events
        .send(json!({"type": "MODIFIED", "object": large(small.clone(), "6")}))
        .unwrap();
    let version = |told: &ApiPodsState, version: &str| {
        let a = &told.as_ref().unwrap().pods[&PodUid::from("a")];
        a.metadata.resource_version.as_deref() == Some(version)
    };
    assert!(
        bench
            .objects
            .wait_for(|told| version(told, "6"))
            .await
            .is_ok()
    );
    events
        .send(json!({"type": "ADDED", "object": pod("c")}))
        .unwrap();
    bench.until_wanted(&["a", "b", "c"]).await;
    // tenants M8
    assert_eq!(user(&bench.reader.state.get(), 0), Some(7));
    let root = bench.end().await;

    // The next agent knows its spec from disk, and takes the other for no small pod.
    let mut bench = Bench::at(root);
    let told = bench.reader.state.wait_for(|state| state.set().is_some());
    let told = told.await.unwrap();
    assert_eq!(
        uids_of(told.set().unwrap().pods.iter().map(|p| &p.pod)),
        ["a", "c"]
    );
    bench.register();
    let list = [large(small, "7"), newcomer];
    bench.next().await.list(&list);
    bench.until_wanted(&["a", "b"]).await;
    // tenants M8
    assert_eq!(user(&bench.reader.state.get(), 0), Some(7));
    let state = bench.reader.state.get();
    let b = &state.set().unwrap().pods[1].pod;
    assert!(mirrorlet_core::api::is_too_large(&b.metadata));
    bench.end().await;
}

/// A tenant can make mirrors, as large as any object.
/// Earlier releases stored what was left of such a pod, with a mark that they took off when they read it.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_release_stored_of_a_pod_that_is_too_large_is_no_small_pod() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join(last_known::DIRECTORY);
    std::fs::create_dir(&dir).unwrap();
    let store = |uid: &str, pod: Value| {
        let text = json!({"version": 1, "pod": pod}).to_string();
        std::fs::write(dir.join(format!("{uid}.json")), text).unwrap();
    };
    for (uid, phase) in [("large", "Running"), ("over", "Failed")] {
        let annotations = json!({
            "kubernetes.io/config.source": "api",
            "mirrorlet.dev/too-large": "true",
        });
        store(
            uid,
            json!({
                "metadata": {
                    "name": uid, "namespace": "ns", "uid": uid, "annotations": annotations,
                },
                "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app:1"}]},
                "status": {"phase": phase},
            }),
        );
    }
    store("small", pod("small"));
    let mut bench = Bench::at(root);
    let state = bench.reader.state.wait_for(|state| state.set().is_some());
    let state = state.await.unwrap();
    let set = state.set().unwrap();
    // tenants M8
    assert_eq!(uids_of(set.pods.iter().map(|p| &p.pod)), ["over", "small"]);
    assert!(set.problems.is_empty(), "{:#?}", set.problems);
    // By now it is small again, and is stored whole.
    bench.register();
    bench.next().await.list(&[pod("large"), pod("small")]);
    bench.until_wanted(&["large", "small"]).await;
    bench.next().await.watch();
    assert_eq!(bench.files(), ["large.json", "small.json"]);
    let text = std::fs::read_to_string(dir.join("large.json")).unwrap();
    // tenants M8
    assert!(!text.contains("too-large"), "{text}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn of_mirrors_nothing_is_held_that_their_author_chose() {
    let mut bench = Bench::start();
    let text = "x".repeat(1_300_000);
    let forged = |uid: &str| {
        let note = "x".repeat(250_000);
        let annotations = json!({"kubernetes.io/config.mirror": "h", "note": note});
        let mirror = with(pod(uid), "/metadata/annotations", annotations);
        let mirror = with(mirror, "/metadata/finalizers", json!(["example.com/f"]));
        with(mirror, "/spec/containers/0/args", json!([text]))
    };
    bench.next().await.list(&[forged("listed")]);
    bench.until_known(&["listed".to_owned()]).await;
    let events = bench.next().await.watch();
    let event = json!({"type": "ADDED", "object": forged("watched")});
    events.send(event).unwrap();
    bench
        .until_known(&["listed", "watched"].map(str::to_owned))
        .await;
    let objects = Option::clone(&bench.objects.get()).unwrap();
    for mirror in objects.pods.values() {
        let bytes = serde_json::to_string(&**mirror).unwrap().len();
        // tenants M5
        assert!(bytes < 1024, "{bytes}");
        assert!(mirrorlet_core::manager::is_mirror_pod(mirror));
    }
    bench.end().await;
}

#[tokio::test]
async fn pods_that_are_too_much_together_wait() {
    let mut bench = Bench::start();
    bench.settled.start_with([]);
    // Of each some 2.5 MB are held; one has more values than any pod may have, and waits for nothing.
    let variables = |count: usize| json!(vec![json!({"name": "a"}); count]);
    let long = |n: usize, count: usize| {
        let pod = pod(&format!("p{n:03}"));
        with(pod, "/spec/containers/0/env", variables(count))
    };
    let mut all: Vec<Value> = (0..40).map(|n| long(n, 4_900)).collect();
    all.push(long(40, 50_000));
    bench.next().await.list(&all);
    let events = bench.next().await.watch();
    let first = bench.objects.wait_for(Option::is_some);
    first.await.unwrap();
    let first = bench.known();
    // tenants M8
    assert!(first.contains(&"p040".to_owned()), "{first:?}");
    assert!((10..40).contains(&first.len()), "{first:?}");
    // Once one has gone, the next one is taken up.
    let next = format!("p{:03}", first.len() - 1);
    assert!(!first.contains(&next));
    let event = json!({"type": "DELETED", "object": all[0]});
    events.send(event).unwrap();
    let mut wanted: Vec<String> = first.into_iter().filter(|name| name != "p000").collect();
    wanted.push(next);
    wanted.sort();
    bench.until_known(&wanted).await;
}

#[tokio::test(start_paused = true)]
async fn pods_beyond_those_that_can_run_wait_as_text() {
    let mut bench = Bench::start();
    bench.settled.start_with([]);
    // The node runs 110 pods, and refuses 64 at a time.
    let all: Vec<Value> = (0..500).map(|n| pod(&format!("p{n:03}"))).collect();
    let last = with(all[499].clone(), "/spec/priority", json!(2_000_000_000));
    let mut listed = all.clone();
    listed[499] = last;
    bench.next().await.list(&listed);
    let wanted = |from: usize, to: usize| -> Vec<String> {
        (from..to).map(|n| format!("p{n:03}")).collect()
    };
    // node 6j
    bench.until_known(&wanted(0, 174)).await;
    let events = bench.next().await.watch();
    let say = |kind: &str, object: Value| {
        let event = json!({"type": kind, "object": object});
        events.send(event).unwrap();
    };
    // One is over: the most important of those that wait is next, and then the oldest.
    say(
        "MODIFIED",
        with(all[0].clone(), "/status/phase", json!("Failed")),
    );
    let mut next = wanted(0, 174);
    next.push("p499".to_owned());
    bench.until_known(&next).await;
    // One that waits is deleted, another one that does not.
    say("DELETED", all[174].clone());
    say("DELETED", all[1].clone());
    let mut next = wanted(2, 174);
    next.insert(0, "p000".to_owned());
    next.extend(["p175".to_owned(), "p499".to_owned()]);
    bench.until_known(&next).await;
    // Those that run or are on their way go on over a list anew, which may bring others before them.
    say("ERROR", failure(410, "Expired"));
    let rest: Vec<Value> = listed[2..].to_vec();
    bench.next().await.list(&rest);
    let mut next = wanted(2, 176);
    next.push("p499".to_owned());
    bench.until_known(&next).await;
    bench.end().await;
}

/// Whatever is bound to the node, only so much of it is held: of pods that wait behind others, their names.
#[tokio::test]
async fn the_texts_of_pods_that_wait_have_a_bound_and_the_rest_is_asked_for() {
    let mut bench = Bench::start();
    bench.settled.start_with([]);
    let large = |n: usize| {
        let pod = pod(&format!("p{n:03}"));
        with(
            pod,
            "/spec/containers/0/args",
            json!(["x".repeat(1_300_000)]),
        )
    };
    let all: Vec<Value> = (0..40).map(large).collect();
    bench.next().await.list(&all);
    let events = bench.next().await.watch();
    let delete = |n: usize| {
        let event = json!({"type": "DELETED", "object": all[n]});
        events.send(event).unwrap();
    };
    let first = bench.objects.wait_for(Option::is_some);
    first.await.unwrap();
    let first = bench.known().len();
    assert!((15..25).contains(&first), "{first}");
    // The text of one pod is kept: it is taken up from that.
    let names = |from: usize, to: usize| -> Vec<String> {
        (from..to).map(|n| format!("p{n:03}")).collect()
    };
    delete(0);
    bench.until_known(&names(1, first + 1)).await;
    // The next one is asked for; one that is gone by then is passed over, and so is another one of its name.
    delete(1);
    let next = first + 1;
    let asked = bench.next().await;
    assert!(
        asked.uri.contains(&format!("/pods/p{next:03}")),
        "{}",
        asked.uri
    );
    asked.say(404, &failure(404, "NotFound"));
    let asked = bench.next().await;
    let other = with(all[next + 1].clone(), "/metadata/uid", json!("other"));
    assert!(
        asked.uri.contains(&format!("/pods/p{:03}", next + 1)),
        "{}",
        asked.uri
    );
    asked.say(200, &other);
    let asked = bench.next().await;
    asked.say(200, &all[next + 2]);
    let mut known = names(2, next);
    known.extend(names(next + 2, next + 3));
    // tenants M8
    bench.until_known(&known).await;
    // Of one that is deleted while it waits little is held.
    let at = json!("2026-01-02T03:04:05Z");
    let deleted = with(
        all[next + 3].clone(),
        "/metadata/deletionTimestamp",
        at.clone(),
    );
    events
        .send(json!({"type": "MODIFIED", "object": deleted}))
        .unwrap();
    known.push(format!("p{:03}", next + 3));
    bench.until_known(&known).await;
    let objects = Option::clone(&bench.objects.get()).unwrap();
    let bytes = |objects: &ApiPods, n: usize| {
        let held = &objects.pods[&PodUid::from(format!("p{n:03}").as_str())];
        serde_json::to_string(&**held).unwrap().len()
    };
    assert!(bytes(&objects, next + 3) < 1024);
    drop(objects);
    // Nor of one that is deleted by the time that it is asked for.
    delete(2);
    let asked = bench.next().await;
    let name = format!("p{:03}", next + 4);
    assert!(
        asked.uri.contains(&format!("/pods/{name}")),
        "{}",
        asked.uri
    );
    asked.say(
        200,
        &with(all[next + 4].clone(), "/metadata/deletionTimestamp", at),
    );
    known.remove(0);
    known.push(name);
    bench.until_known(&known).await;
    let objects = Option::clone(&bench.objects.get()).unwrap();
    assert!(bytes(&objects, next + 4) < 1024);
    bench.end().await;
}

/// On a quiet node no event comes after an answer that failed.
#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_is_asked_for_until_there_is_an_answer() {
    let mut bench = Bench::start();
    bench.settled.start_with([]);
    let mut all: Vec<Value> = (0..176).map(|n| pod(&format!("p{n:03}"))).collect();
    // There is no room for the text of the second one that waits, and it is the first in turn.
    for waiting in &mut all[174..] {
        waiting["spec"]["containers"][0]["args"] = json!(["x".repeat(1_300_000)]);
    }
    all[175]["spec"]["priority"] = json!(1_000);
    bench.next().await.list(&all);
    let names = |from: usize| -> Vec<String> { (from..174).map(|n| format!("p{n:03}")).collect() };
    bench.until_known(&names(0)).await;
    let events = bench.next().await.watch();
    let event = json!({"type": "DELETED", "object": all[0]});
    events.send(event).unwrap();
    let unavailable = failure(503, "ServiceUnavailable");
    for _ in 0..3 {
        let asked = bench.next().await;
        // tenants M8
        assert!(asked.uri.contains("/pods/p175"), "{}", asked.uri);
        asked.say(503, &unavailable);
    }
    // One that nobody answers is given up.
    let silent = bench.next().await;
    let asked = bench.next().await;
    assert!(asked.uri.contains("/pods/p175"), "{}", asked.uri);
    asked.say(200, &all[175]);
    let mut known = names(1);
    known.push("p175".to_owned());
    // tenants M8
    bench.until_known(&known).await;
    drop(silent);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_namespace_waits_for_all_the_pods_of_another() {
    let mut bench = Bench::start();
    bench.settled.start_with([]);
    let of = |name: &str, namespace: &str| with(pod(name), "/metadata/namespace", json!(namespace));
    let many = (0..400).map(|n| of(&format!("p{n:03}"), "many"));
    let few = ["q", "r"].map(|name| of(name, "few"));
    let all: Vec<Value> = many.chain(few).collect();
    bench.next().await.list(&all);
    let names = |from: usize| (from..174).map(|n| format!("p{n:03}"));
    bench.until_known(&names(0).collect::<Vec<_>>()).await;
    let events = bench.next().await.watch();
    for (gone, next) in [(0, &["q"][..]), (1, &["q", "r"])] {
        let event = json!({"type": "DELETED", "object": all[gone]});
        events.send(event).unwrap();
        let next = next.iter().map(|&name| name.to_owned());
        // tenants M8
        bench
            .until_known(&names(gone + 1).chain(next).collect::<Vec<_>>())
            .await;
    }
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_anew_holds_no_pod_twice() {
    let mut bench = Bench::start();
    let new = with(pod("b"), "/metadata/resourceVersion", json!("6"));
    bench.next().await.list(&[pod("a"), pod("b")]);
    bench.until_known(&["a", "b"].map(str::to_owned)).await;
    let before = Option::clone(&bench.objects.get()).unwrap();
    let events = bench.next().await.watch();
    let expired = json!({"type": "ERROR", "object": failure(410, "Expired")});
    events.send(expired).unwrap();
    bench.next().await.list(&[pod("a"), new, pod("c")]);
    bench.until_known(&["a", "b", "c"].map(str::to_owned)).await;
    let after = Option::clone(&bench.objects.get()).unwrap();
    let is_same = |uid: &str| {
        Arc::ptr_eq(
            &before.pods[&PodUid::from(uid)],
            &after.pods[&PodUid::from(uid)],
        )
    };
    assert_eq!((is_same("a"), is_same("b")), (true, false));
    bench.end().await;
}

/// The watch brings a change of a pod once more, after its deletion.
#[tokio::test(start_paused = true)]
async fn a_list_anew_ends_a_pod_that_is_not_there() {
    let mut bench = Bench::start();
    bench.next().await.list(&[pod("a"), pod("b")]);
    let events = bench.next().await.watch();
    bench.until_wanted(&["a", "b"]).await;
    let say = |kind: &str, object: Value| {
        let event = json!({"type": kind, "object": object});
        events.send(event).unwrap();
    };
    say("DELETED", pod("b"));
    bench.until_wanted(&["a"]).await;
    say("MODIFIED", pod("b"));
    bench.until_wanted(&["a", "b"]).await;
    bench.manager.list_again();
    bench.next().await.list(&[pod("a")]);
    // pods 50a
    bench.until_wanted(&["a"]).await;
    bench.end().await;
}

#[test]
fn a_refusal_is_told_in_the_servers_words() {
    let status = kube::core::Status::failure("Unauthorized", "Unauthorized").with_code(401);
    let error = watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()));
    assert_eq!(ended(&error).error, Some("Unauthorized".to_owned()));
}
