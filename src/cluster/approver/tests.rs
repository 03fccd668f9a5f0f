//! The task against an API server in memory that refuses single requests, on a paused clock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const AGENTS: &str = "system:serviceaccount:ns:agents";

/// How the server answers the decision on a request.
#[derive(Clone, Copy)]
enum Fate {
    Refused(u16, &'static str),
    Hangs,
}

#[derive(Default)]
struct State {
    requests: BTreeMap<String, Value>,
    fates: BTreeMap<String, Fate>,
    /// Names of requests whose decision was sent, in order.
    sent: Vec<String>,
    /// Whether each watch fails after its list, and there are no Nodes.
    fails: bool,
    /// How many watches were begun.
    watches: usize,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(code: u16, body: &Value) -> Answer {
    let mut answer = Response::new(Full::from(body.to_string()).boxed_unsync());
    *answer.status_mut() = code.try_into().unwrap();
    answer
}

impl Server {
    fn client(&self) -> ClusterClient {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let answer = server.answer(&head.method, &head.uri, &body);
                match answer {
                    Some(answer) => Ok::<_, tower::BoxError>(answer),
                    None => std::future::pending().await,
                }
            }
        });
        ClusterClient::over_service(service, Metrics::of_approver())
    }

    fn answer(&self, method: &Method, uri: &http::Uri, body: &Value) -> Option<Answer> {
        let mut state = self.0.lock().unwrap();
        let list = |kind: &str, items: Vec<Value>| {
            let list = json!({"kind": kind, "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"}, "items": items});
            Some(answer(200, &list))
        };
        if *method == Method::GET && uri.path() == "/api/v1/nodes" {
            let nodes = vec![json!({"metadata": {"name": "host"}})];
            return list("NodeList", if state.fails { Vec::new() } else { nodes });
        }
        if *method == Method::GET && uri.query().unwrap_or_default().contains("watch=") {
            state.watches += 1;
            if state.fails {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "code": 410, "reason": "Expired", "message": "too old"});
                return Some(answer(200, &json!({"type": "ERROR", "object": status})));
            }
            let nothing = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            return Some(Response::new(StreamBody::new(nothing).boxed_unsync()));
        }
        if *method == Method::GET {
            let items = state.requests.values().cloned().collect();
            return list("CertificateSigningRequestList", items);
        }
        let name = uri.path().strip_prefix(PATH).unwrap();
        let name = name.strip_suffix("/approval").unwrap();
        let name = name.trim_start_matches('/').to_owned();
        state.sent.push(name.clone());
        match state.fates.get(&name) {
            Some(Fate::Hangs) => None,
            Some(Fate::Refused(code, reason)) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "code": code, "reason": reason, "message": "no"});
                Some(answer(*code, &status))
            }
            None => {
                let object = state.requests.get_mut(&name).unwrap();
                object["status"] = body["status"].clone();
                Some(answer(200, object))
            }
        }
    }

    /// A request for the first certificate of the Node of host `host`.
    fn put(&self, name: &str) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let subject = &mut params.distinguished_name;
        subject.push(DnType::OrganizationName, "system:nodes");
        subject.push(DnType::CommonName, "system:node:host-docker");
        let key = KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let object = json!({
            "kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"name": name, "resourceVersion": "1"},
            "spec": {
                "request": STANDARD.encode(pem),
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
                "username": AGENTS,
                "extra": {
                    "authentication.kubernetes.io/node-name": ["host"],
                    "authentication.kubernetes.io/pod-name": ["agent"],
                },
            },
        });
        let mut state = self.0.lock().unwrap();
        state.requests.insert(name.to_owned(), object);
    }

    fn fate(&self, name: &str, fate: Option<Fate>) {
        let mut state = self.0.lock().unwrap();
        match fate {
            Some(fate) => state.fates.insert(name.to_owned(), fate),
            None => state.fates.remove(name),
        };
    }

    fn is_approved(&self, name: &str) -> bool {
        let state = self.0.lock().unwrap();
        state.requests[name]["status"]["conditions"][0]["type"] == "Approved"
    }

    /// How often a decision on that request was sent.
    fn sent(&self, name: &str) -> usize {
        let state = self.0.lock().unwrap();
        state.sent.iter().filter(|sent| *sent == name).count()
    }

    /// Runs an approver for that long.
    async fn decided_for(&self, task: &mut ApproverTask, time: Duration) {
        let running = tokio::time::timeout(time, task.run());
        assert!(running.await.is_err(), "it runs until it is cancelled");
    }
}

fn approver(server: &Server) -> ApproverTask {
    let approver = Approver::new("ns", "agents", "docker");
    ApproverTask::new(server.client(), approver, Metrics::of_approver())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_can_not_be_decided_holds_up_no_other() {
    for fate in [
        // One that is as large as etcd takes, and would be larger with a condition.
        Fate::Refused(500, "InternalError"),
        Fate::Refused(403, "Forbidden"),
        Fate::Refused(413, "RequestEntityTooLarge"),
        Fate::Refused(422, "Invalid"),
        Fate::Refused(429, "TooManyRequests"),
        Fate::Refused(504, "Timeout"),
        Fate::Hangs,
    ] {
        let server = Server::default();
        // More than are tried again at a time.
        let stuck: Vec<String> = (0..RETRIES_MAX + 5).map(|n| format!("a{n:02}")).collect();
        for name in stuck.iter().map(String::as_str).chain(["b"]) {
            server.put(name);
        }
        // Of those that end a round there is one.
        let stuck = match fate {
            Fate::Refused(429 | 504, _) | Fate::Hangs => &stuck[..1],
            Fate::Refused(..) => &stuck[..],
        };
        for name in stuck {
            server.fate(name, Some(fate));
        }
        let mut task = approver(&server);
        server.decided_for(&mut task, Duration::from_mins(1)).await;
        // identity 13
        assert!(server.is_approved("b"));
        server.decided_for(&mut task, Duration::from_mins(30)).await;
        for name in stuck {
            let sent = server.sent(name);
            assert!((5..=25).contains(&sent), "{name}: {sent}");
            server.fate(name, None);
        }
        assert_eq!(server.sent("b"), 1);
        server.decided_for(&mut task, Duration::from_mins(10)).await;
        // Once it can be decided, it is.
        assert!(stuck.iter().all(|name| server.is_approved(name)));
        assert!(task.failed.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn requests_whose_watch_fails_after_each_list_are_asked_for_less_and_less() {
    let server = Server::default();
    // Looked at after each list, as its Node isn't there.
    server.put("a");
    server.0.lock().unwrap().fails = true;
    let mut task = approver(&server);
    server.decided_for(&mut task, Duration::from_mins(5)).await;
    let watches = server.0.lock().unwrap().watches;
    // node 6e
    assert!((5..40).contains(&watches), "{watches}");
}
