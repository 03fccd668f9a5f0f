//! Requests to the API server, by its own audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::Value;

use super::super::eventually;
use super::Cluster;

/// The audit policy: all requests, once, without their bodies.
pub const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "None", "users": ["system:apiserver", "system:kube-scheduler"]},
    {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
    {"level": "Metadata"}
  ]
}"#;

/// One request. A watch counts when it has begun and again when it has ended: see `stage`.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// `ResponseComplete`; `ResponseStarted` of a watch that has begun; `Panic`.
    pub stage: String,
    /// Plural; empty for paths that name none.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub uri: String,
    pub user: String,
    /// The credential of the user, such as `X509SHA256=…`; empty where the server doesn't say.
    pub credential: String,
    pub user_agent: String,
    /// HTTP status.
    pub code: u64,
    /// When the request arrived.
    pub at: Timestamp,
    /// When this stage was reached.
    pub ended: Timestamp,
}

impl AuditEntry {
    /// Whether it is a write.
    pub fn writes(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// `create pods`, `patch nodes/status`.
    pub fn what(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{}", self.verb, self.resource, self.subresource)
    }
}

/// The audit log of an API server. Each line is read once: tests look often, and share a cluster.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    known: Mutex<Known>,
}

/// The part of a log that was read.
#[derive(Debug, Default)]
struct Known {
    bytes: u64,
    entries: Vec<AuditEntry>,
}

impl AuditLog {
    /// The log in that file, which may not be there yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            known: Mutex::default(),
        }
    }

    /// The requests on record that are wanted, in order of their ends.
    pub fn entries(&self, wanted: impl Fn(&AuditEntry) -> bool) -> Vec<AuditEntry> {
        let known = self.known.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.read_on(&self.path);
        let entries = known.entries.iter().filter(|entry| wanted(entry));
        entries.cloned().collect()
    }
}

impl Known {
    /// Reads the lines that were added.
    fn read_on(&mut self, log: &Path) {
        let Ok(mut log) = File::open(log) else { return };
        let mut added = Vec::new();
        log.seek(SeekFrom::Start(self.bytes)).unwrap();
        log.read_to_end(&mut added).unwrap();
        // The last line may be half written.
        let last = added.iter().rposition(|byte| *byte == b'\n');
        added.truncate(last.map_or(0, |last| last + 1));
        self.bytes += u64::try_from(added.len()).unwrap();
        let lines = added.split(|byte| *byte == b'\n');
        let entries = lines.filter_map(|line| entry(&serde_json::from_slice(line).ok()?));
        self.entries.extend(entries);
    }
}

impl Cluster {
    /// All requests since the start, but for those of the API server itself and the scheduler.
    pub fn audit_all(&self) -> Vec<AuditEntry> {
        self.audit_where(|_| true)
    }

    /// All of these requests that are wanted.
    pub fn audit_where(&self, wanted: impl Fn(&AuditEntry) -> bool) -> Vec<AuditEntry> {
        self.audit.entries(wanted)
    }

    /// All requests of clients whose user agent begins like that.
    pub fn audit(&self, user_agent: &str) -> Vec<AuditEntry> {
        self.audit_where(|entry| entry.user_agent.starts_with(user_agent))
    }

    /// All requests of that user: `system:node:<name>`,
    /// `system:serviceaccount:kube-system:mirrorlet`.
    pub fn audit_of(&self, user: &str) -> Vec<AuditEntry> {
        self.audit_where(|entry| entry.user == user)
    }

    /// All requests of that user, once there are some: a request is on record after its answer, and
    /// an empty record shows nothing.
    pub async fn audit_of_some(&self, user: &str) -> Vec<AuditEntry> {
        eventually(&format!("a request of {user} on record"), || {
            Some(self.audit_of(user)).filter(|entries| !entries.is_empty())
        })
        .await
    }
}

fn entry(event: &Value) -> Option<AuditEntry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (object, user) = (&event["objectRef"], &event["user"]);
    Some(AuditEntry {
        verb: text(&event["verb"]),
        stage: text(&event["stage"]),
        resource: text(&object["resource"]),
        subresource: text(&object["subresource"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        uri: text(&event["requestURI"]),
        user: text(&user["username"]),
        credential: text(&user["extra"]["authentication.kubernetes.io/credential-id"][0]),
        user_agent: text(&event["userAgent"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or(0),
        at: event["requestReceivedTimestamp"].as_str()?.parse().ok()?,
        ended: event["stageTimestamp"].as_str()?.parse().ok()?,
    })
}
