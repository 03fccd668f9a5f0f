//! Recorded requests, sent to the embedded API and to a real kube-apiserver that have the same
//! objects: what differs is in a list, with its reason.
//!
//! `requests.txt` has the requests in the order in which they were recorded, `allowed.txt` the
//! differences: a pattern of requests, one of places in their answers, and the reason, with tabs
//! between. A difference that isn't allowed fails the test, and so does an entry that allows nothing.

mod compare;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use regex::{Captures, Regex};
use serde_json::Value;

use self::compare::{Allowed, Answer, differences};
use crate::common::cluster::{Options, client};
use crate::embedded::Box;

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// Headers that clients read.
const HEADERS: [&str; 3] = ["content-type", "retry-after", "warning"];

/// A value of an earlier answer in a recorded request.
static REFERENCE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{([0-9]+)(/[^}]*)\}\}").unwrap());
/// How long a recorded watch lasts.
static LENGTH: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"&timeout(Seconds)?=[0-9a-z]+").unwrap());

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/embedded_replay");
    std::fs::read_to_string(path.join(name)).unwrap()
}

/// A recorded request. `{{N/POINTER}}` in it is a value of the answer to request N.
struct Recorded {
    number: usize,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Recorded {
    fn parse(block: &str) -> Self {
        let (head, body) = block.split_once("\n\n").unwrap_or((block, ""));
        let mut lines = head.lines();
        let title = lines.next().unwrap().trim_start_matches('#');
        let number = title.split(' ').next().unwrap().parse().unwrap();
        let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        });
        Self {
            number,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: headers.collect(),
            body: body.trim_end().to_owned(),
        }
    }

    fn all() -> Vec<Self> {
        let text = file("requests.txt");
        let blocks = text.trim_end().split("\n\n\n");
        blocks.map(Self::parse).collect()
    }

    fn is_watch(&self) -> bool {
        self.path.contains("watch=true") || self.path.contains("watch=1")
    }

    /// The request for a server that has given those answers so far.
    fn request(&self, answers: &BTreeMap<usize, Value>) -> Request<Body> {
        let filled = |text: &str| {
            let value = |found: &Captures<'_>| {
                let answer = &answers[&found[1].parse().unwrap()];
                let value = answer.pointer(&found[2]).and_then(Value::as_str);
                value.unwrap_or("0").to_owned()
            };
            REFERENCE.replace_all(text, value).into_owned()
        };
        let mut path = filled(&self.path);
        if self.is_watch() {
            path = format!("{}&timeoutSeconds=1", LENGTH.replace_all(&path, ""));
        }
        let mut request = Request::builder().method(self.method.as_str()).uri(path);
        for (name, value) in &self.headers {
            // Protobuf is not answered here; its meaning is compared in JSON.
            let forms = value.split(',').filter(|form| !form.contains("protobuf"));
            let value = match name.as_str() {
                "Accept" => forms.collect::<Vec<_>>().join(","),
                _ => value.clone(),
            };
            request = request.header(name, value);
        }
        let body = match self.body.strip_prefix("base64:") {
            Some(encoded) => {
                let decoder = base64::engine::general_purpose::STANDARD;
                decoder.decode(encoded).unwrap()
            }
            None => filled(&self.body).into_bytes(),
        };
        request.body(Body::from(body)).unwrap()
    }
}

/// Sends all requests, one after the other.
async fn replay(client: &Client, all: &[Recorded]) -> Vec<Answer> {
    let (mut known, mut answers) = (BTreeMap::new(), Vec::new());
    for recorded in all {
        let request = recorded.request(&known);
        let asked = async {
            let answer = client.send(request).await.unwrap();
            let (head, body) = answer.into_parts();
            (head, body.collect().await.unwrap().to_bytes())
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        let (head, body) = asked.unwrap_or_else(|_| panic!("no answer to #{}", recorded.number));
        let text = String::from_utf8_lossy(&body).into_owned();
        let body = if recorded.is_watch() && head.status.is_success() {
            let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
            Value::Array(events.collect())
        } else {
            serde_json::from_str(&text).unwrap_or(Value::String(text))
        };
        known.insert(recorded.number, body.clone());
        let headers = HEADERS.map(|name| {
            let values = head.headers.get_all(name).into_iter();
            let values: Vec<_> = values.map(|v| v.to_str().unwrap().into()).collect();
            (name.to_owned(), Value::Array(values))
        });
        answers.push(Answer {
            status: head.status.as_u16(),
            headers: headers.into_iter().collect(),
            body,
        });
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_requests_are_answered_as_by_a_real_api_server() {
    let alone = Box::start().await;
    // Nothing runs on either side.
    alone.kubectl(&["cordon", "box"]);
    let ours = client(&alone.kubeconfig()).await;
    // Changes that only other components of a cluster would undo.
    let disabled = "ServiceAccount,DefaultTolerationSeconds,Priority";
    let cluster = Options::default()
        .without_scheduler()
        .without_controller_manager()
        .apiserver(&[&format!("--disable-admission-plugins={disabled}")])
        .start()
        .await;
    let theirs = cluster.admin().await;
    let all = Recorded::all();
    let (ours, theirs) = tokio::join!(replay(&ours, &all), replay(&theirs, &all));

    let mut allowed = Allowed::parse(&file("allowed.txt"));
    let (mut equal, mut refused) = (0, String::new());
    for ((recorded, ours), theirs) in all.iter().zip(&ours).zip(&theirs) {
        let title = format!("{} {} {}", recorded.number, recorded.method, recorded.path);
        let found = differences(ours, theirs);
        equal += usize::from(found.is_empty());
        for difference in found {
            if !allowed.allow(&title, &difference.place) {
                // Writing to a String can't fail.
                let _ = writeln!(refused, "#{title}\n{difference}");
            }
        }
    }
    println!("{equal} of {} answers are equal", all.len());
    print!("{}", allowed.table());
    // embedded 38
    assert!(refused.is_empty(), "{refused}");
    assert_eq!(allowed.unused(), Vec::<String>::new());
}
