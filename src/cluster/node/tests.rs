//! Two agents with one Node name, over an API server in memory, on a paused clock.

use std::convert::Infallible;
use std::sync::Mutex;

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::lease::LeaseTask;
use mirrorlet_host::telemetry::Metrics;

const NAME: &str = "n1";
const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Longest wait for anything, on the paused clock.
const PATIENCE: Duration = Duration::from_mins(5);

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Frames = mpsc::UnboundedSender<Bytes>;

#[derive(Default)]
struct State {
    version: u64,
    node: Option<Value>,
    lease: Option<Value>,
    /// The watches of the Node, each with the owner of the agent that has it.
    watches: Vec<(String, Frames)>,
    /// The agent that can't reach the server.
    cut_off: Option<String>,
    /// The writes of each agent: `first PATCH nodes`.
    writes: Vec<String>,
    /// The request that the server refuses: `get`, `list`, `POST` or `watch` of the Node.
    fails: &'static str,
    /// How many watches have failed.
    failed_watches: usize,
    /// Whether somebody changes the Node before the next patch of it.
    changes: bool,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

fn answer(code: u16, body: &Value) -> Answer {
    let mut answer = Response::new(Full::from(body.to_string()).boxed_unsync());
    *answer.status_mut() = code.try_into().unwrap();
    answer
}

fn refusal(code: u16, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": "no"});
    answer(code, &status)
}

/// A merge patch, or what of a strategic one agents send of a Node.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        let mut value = patch.clone();
        if let Value::Array(items) = &mut value {
            items.retain(|item| item.get("$patch").is_none());
        }
        *object = value;
        return;
    };
    for (field, value) in fields.iter().filter(|(field, _)| !field.starts_with('$')) {
        merge(&mut object[field.as_str()], value);
    }
}

/// Whether a patch is for another version of the Node.
fn is_of_another(patch: &Value, node: &Value) -> bool {
    let version = &patch["metadata"]["resourceVersion"];
    version.is_string() && *version != node["metadata"]["resourceVersion"]
}

impl State {
    fn next_version(&mut self) -> Value {
        self.version += 1;
        json!(self.version.to_string())
    }

    /// Stores the Node, and has the watches show it.
    fn store(&mut self, mut node: Value) -> Value {
        node["metadata"]["resourceVersion"] = self.next_version();
        self.node = Some(node.clone());
        let event = json!({"type": "MODIFIED", "object": node});
        let line = Bytes::from(format!("{event}\n"));
        self.watches
            .retain(|(_, frames)| frames.send(line.clone()).is_ok());
        node
    }

    fn answer(&mut self, owner: &str, method: &Method, uri: &http::Uri, body: Value) -> Answer {
        let is_lease = uri.path().starts_with(LEASES);
        if *method != Method::GET {
            let kind = if is_lease { "leases" } else { "nodes" };
            self.writes.push(format!("{owner} {method} {kind}"));
        }
        if is_lease {
            return self.answer_lease(method, body);
        }
        let of_all = uri.path() == NODES;
        if *method == Method::PATCH && std::mem::take(&mut self.changes) {
            let node = self.node.clone().unwrap();
            self.store(node);
        }
        match (method.as_str(), self.node.clone()) {
            ("GET", _) if of_all && self.fails == "list" => refusal(403, "Forbidden"),
            ("GET", _) if !of_all && self.fails == "get" => refusal(500, "InternalError"),
            ("POST", _) if self.fails == "POST" => refusal(500, "InternalError"),
            ("GET", _) if uri.query().unwrap_or_default().contains("watch=") => {
                if self.fails == "watch" {
                    self.failed_watches += 1;
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "code": 410, "reason": "Expired", "message": "too old"});
                    return answer(200, &json!({"type": "ERROR", "object": status}));
                }
                let (frames, received) = mpsc::unbounded_channel();
                self.watches.push((owner.to_owned(), frames));
                let frames = stream::unfold(received, |mut received| async move {
                    let frame = Frame::data(received.recv().await?);
                    Some((Ok::<_, Infallible>(frame), received))
                });
                Response::new(StreamBody::new(frames).boxed_unsync())
            }
            ("GET", node) if of_all => {
                let version = json!({"resourceVersion": self.version.to_string()});
                let items: Vec<Value> = node.into_iter().collect();
                let list = json!({"kind": "NodeList", "apiVersion": "v1",
                    "metadata": version, "items": items});
                answer(200, &list)
            }
            ("POST", None) => {
                let mut node = body;
                node["metadata"]["uid"] = json!("node-uid");
                answer(201, &self.store(node))
            }
            ("POST", Some(_)) => refusal(409, "AlreadyExists"),
            (_, None) => refusal(404, "NotFound"),
            ("GET", Some(node)) => answer(200, &node),
            ("PATCH", Some(node)) if is_of_another(&body, &node) => refusal(409, "Conflict"),
            ("PATCH", Some(mut node)) => {
                merge(&mut node, &body);
                answer(200, &self.store(node))
            }
            (_, Some(_)) => refusal(405, "MethodNotAllowed"),
        }
    }

    fn answer_lease(&mut self, method: &Method, mut body: Value) -> Answer {
        match (method.as_str(), self.lease.clone()) {
            ("GET", None) => refusal(404, "NotFound"),
            ("GET", Some(lease)) => answer(200, &lease),
            ("POST", Some(_)) => refusal(409, "AlreadyExists"),
            ("PUT", lease)
                if lease
                    .as_ref()
                    .map(|lease| &lease["metadata"]["resourceVersion"])
                    != Some(&body["metadata"]["resourceVersion"]) =>
            {
                refusal(409, "Conflict")
            }
            (_, _) => {
                body["metadata"]["resourceVersion"] = self.next_version();
                self.lease = Some(body.clone());
                answer(200, &body)
            }
        }
    }
}

impl Server {
    fn client(&self, owner: &'static str) -> ClusterClient {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let mut state = server.0.lock().unwrap();
                if state.cut_off.as_deref() == Some(owner) {
                    return Err(tower::BoxError::from("no route to host"));
                }
                Ok(state.answer(owner, &head.method, &head.uri, body))
            }
        });
        ClusterClient::over_service(service, Metrics::new())
    }

    /// Cuts that agent off, or none any more.
    fn cut_off(&self, owner: Option<&str>) {
        let mut state = self.0.lock().unwrap();
        state.cut_off = owner.map(str::to_owned);
        state
            .watches
            .retain(|(watcher, _)| Some(watcher.as_str()) != owner);
    }

    /// Has the server fail on that from now on.
    fn fail(&self, what: &'static str) {
        self.0.lock().unwrap().fails = what;
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.0.lock().unwrap();
        let mut node = state.node.clone().unwrap();
        change(&mut node);
        state.store(node);
    }

    fn owner(&self) -> Value {
        let state = self.0.lock().unwrap();
        state.node.as_ref().unwrap()["metadata"]["annotations"]["mirrorlet.dev/owner"].clone()
    }

    /// The writes of an agent since the last time.
    fn writes_of(&self, owner: &str) -> Vec<String> {
        let mut state = self.0.lock().unwrap();
        let writes = std::mem::take(&mut state.writes).into_iter();
        writes.filter(|write| write.starts_with(owner)).collect()
    }
}

/// The parts of an agent that speak for its Node.
struct Agent {
    node: Reader<Option<Arc<Node>>>,
    standing: Reader<NodeRegistration>,
    // Readers end with their writers.
    inputs: (Writer<NodeFacts>, Writer<Readings>, Writer<PodProblems>),
    tasks: [JoinHandle<()>; 2],
}

impl Agent {
    fn start(server: &Server, owner: &'static str) -> Self {
        Self::start_on(server, owner, RuntimeReach::Up, false)
    }

    /// The same, with that Engine.
    fn start_on(
        server: &Server,
        owner: &'static str,
        engine: RuntimeReach,
        engine_is_new: bool,
    ) -> Self {
        let client = server.client(owner);
        let (facts, facts_reader) = cell(NodeFacts {
            name: NAME.into(),
            owner: owner.to_owned(),
            engine_version: Some("27.1.0".to_owned()),
            ..NodeFacts::default()
        });
        let (readings, readings_reader) = cell(Readings {
            engine,
            ..Readings::default()
        });
        let (problems, problems_reader) = cell(PodProblems::default());
        let inputs = NodeInputs {
            facts: facts_reader,
            readings: readings_reader,
            problems: problems_reader,
            engine_is_new,
        };
        let (task, node, standing) = NodeTask::new(client.clone(), inputs, Telemetry::new());
        let lease = LeaseTask::new(client, NAME.into(), node.clone(), standing.clone());
        Self {
            node,
            standing,
            inputs: (facts, readings, problems),
            tasks: [tokio::spawn(task.run()), tokio::spawn(lease.run())],
        }
    }

    fn is_registered(&self) -> bool {
        matches!(*self.standing.get(), NodeRegistration::Registered { .. })
    }

    /// Waits until it stands as wanted; says how long that took.
    async fn until(&self, wanted: impl Fn(&NodeRegistration) -> bool) -> Duration {
        let began = Instant::now();
        while !wanted(&self.standing.get()) {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.standing.get());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        began.elapsed()
    }

    async fn registered(&self) -> Duration {
        let is =
            |standing: &NodeRegistration| matches!(standing, NodeRegistration::Registered { .. });
        self.until(is).await
    }

    fn stop(self) {
        for task in self.tasks {
            task.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_registered_once_its_first_engine_has_answered() {
    for is_new in [true, false] {
        let server = Server::default();
        let down = RuntimeReach::Down("no such socket".to_owned());
        let mut agent = Agent::start_on(&server, "first", down, is_new);
        tokio::time::sleep(Duration::from_mins(10)).await;
        // node 6p
        assert_eq!(server.writes_of("first").is_empty(), is_new);
        agent.inputs.1.publish(Readings {
            engine: RuntimeReach::Up,
            ..Readings::default()
        });
        agent.registered().await;
        agent.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_whose_node_was_taken_meanwhile_leaves_it_to_the_other() {
    let server = Server::default();
    let first = Agent::start(&server, "first");
    first.registered().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = Agent::start(&server, "second");
    second.until(NodeRegistration::is_anothers).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    // The first lives: its Lease changes.
    assert!(first.is_registered() && !second.is_registered());
    assert_eq!(server.owner(), "first");
    server.cut_off(Some("first"));
    let took = second.registered().await.as_secs();
    assert!((30..=60).contains(&took), "{took}");
    assert_eq!(server.owner(), "second");
    tokio::time::sleep(Duration::from_mins(10)).await;
    server.writes_of("first");
    server.cut_off(None);
    first.until(NodeRegistration::is_anothers).await;
    let NodeRegistration::Refused { cause, .. } = &*first.standing.get() else {
        panic!()
    };
    assert!(cause.contains("another mirrorlet"), "{cause}");
    assert!(first.node.get().is_none());
    tokio::time::sleep(Duration::from_mins(10)).await;
    // It tries to create the Node, and nothing else, from the first moment on.
    let mut writes = server.writes_of("first");
    writes.retain(|write| write != "first POST nodes");
    // node 6l
    assert_eq!(writes, Vec::<String>::new());
    assert!(second.is_registered() && first.standing.get().is_anothers());
    assert_eq!(server.owner(), "second");
    // The other one ends for good.
    second.stop();
    let took = first.registered().await.as_secs();
    assert!((30..=60).contains(&took), "{took}");
    assert_eq!(server.owner(), "first");
    first.stop();
}

/// A patch of an agent before may arrive late, with its labels.
#[tokio::test(start_paused = true)]
async fn labels_are_written_to_the_node_that_was_read() {
    let server = Server::default();
    let agent = Agent::start(&server, "first");
    agent.registered().await;
    agent.stop();
    server.change(|node| node["metadata"]["labels"] = json!({}));
    server.writes_of("first");
    server.0.lock().unwrap().changes = true;
    let agent = Agent::start(&server, "first");
    agent.registered().await;
    let mut writes = server.writes_of("first");
    writes.retain(|write| !write.ends_with("leases"));
    // node 1
    assert_eq!(
        writes[..4],
        [
            "first POST nodes",
            "first PATCH nodes",
            "first POST nodes",
            "first PATCH nodes"
        ]
    );
    let node = server.0.lock().unwrap().node.clone().unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    agent.stop();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_kubelet_takes_is_left_to_it() {
    let server = Server::default();
    let agent = Agent::start(&server, "first");
    agent.registered().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    server.change(|node| node["status"]["nodeInfo"]["kubeletVersion"] = json!("v1.35.4"));
    agent.until(NodeRegistration::is_anothers).await;
    let NodeRegistration::Refused { cause, .. } = &*agent.standing.get() else {
        panic!()
    };
    assert!(cause.contains("belongs to a kubelet (v1.35.4)"), "{cause}");
    tokio::time::sleep(Duration::from_secs(20)).await;
    server.writes_of("first");
    tokio::time::sleep(Duration::from_mins(10)).await;
    let mut writes = server.writes_of("first");
    writes.retain(|write| write != "first POST nodes");
    // node 6l
    assert_eq!(writes, Vec::<String>::new());
    agent.stop();
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_restored_api_server_is_seen_as_it_is() {
    let server = Server::default();
    let agent = Agent::start(&server, "first");
    agent.registered().await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    server.0.lock().unwrap().version = 0;
    server.change(|node| node["spec"]["unschedulable"] = json!(true));
    let is_off = |node: &Option<Arc<Node>>| {
        let spec = node.as_ref().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.unschedulable) == Some(true)
    };
    let mut node = agent.node.clone();
    let seen = tokio::time::timeout(Duration::from_secs(10), node.wait_for(is_off)).await;
    // node 6n
    assert!(seen.is_ok_and(|seen| seen.is_ok()));
    agent.stop();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_an_absence_before_the_node_was_read() {
    let server = Server::default();
    let agent = Agent::start(&server, "first");
    agent.registered().await;
    for fails in ["get", "list"] {
        tokio::time::sleep(Duration::from_mins(1)).await;
        server.cut_off(Some("first"));
        agent.until(NodeRegistration::is_doubtful).await;
        // It counts as registered: only what is written waits.
        assert!(agent.is_registered() && agent.node.get().is_some());
        tokio::time::sleep(Duration::from_mins(10)).await;
        server.writes_of("first");
        server.fail(fails);
        server.cut_off(None);
        if fails == "get" {
            // The watch goes on, and doesn't decide.
            tokio::time::sleep(Duration::from_mins(10)).await;
            // node 6l
            assert_eq!(server.writes_of("first"), Vec::<String>::new());
            assert!(agent.standing.get().is_doubtful());
            server.fail("");
        }
        agent.until(NodeRegistration::is_ours).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The Lease isn't kept waiting for its turn.
        let writes = server.writes_of("first");
        assert!(
            writes.contains(&"first PUT leases".to_owned()),
            "{writes:?}"
        );
        server.fail("");
    }
    agent.stop();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_another_kind_says_nothing_of_whose_the_node_is() {
    let server = Server::default();
    server.fail("POST");
    let agent = Agent::start(&server, "first");
    let is_refused =
        |standing: &NodeRegistration| matches!(standing, NodeRegistration::Refused { .. });
    agent.until(is_refused).await;
    // node 6l
    assert!(agent.standing.get().may_write() && !agent.standing.get().is_anothers());
    server.fail("");
    agent.registered().await;
    server.change(|node| node["status"]["nodeInfo"]["kubeletVersion"] = json!("v1.35.4"));
    agent.until(NodeRegistration::is_anothers).await;
    server.fail("POST");
    let says_failed = |standing: &NodeRegistration| match standing {
        NodeRegistration::Refused { cause, .. } => cause.contains("the API server failed"),
        NodeRegistration::Waiting | NodeRegistration::Registered { .. } => false,
    };
    agent.until(says_failed).await;
    assert!(agent.standing.get().is_anothers());
    agent.stop();
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_watch_fails_after_each_list_is_asked_for_less_and_less() {
    let server = Server::default();
    server.fail("watch");
    let agent = Agent::start(&server, "first");
    agent.registered().await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let failed = server.0.lock().unwrap().failed_watches;
    // node 6e
    assert!((5..40).contains(&failed), "{failed}");
    agent.stop();
}
