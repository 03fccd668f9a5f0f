//! Requests to the API server, by its own audit log.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

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

/// All requests that are on record, in order of their ends.
pub fn read(log: &Path) -> Vec<AuditEntry> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // The last line may be half written.
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .filter_map(|line| entry(&serde_json::from_str(line).ok()?))
        .collect()
}

fn entry(event: &Value) -> Option<AuditEntry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    Some(AuditEntry {
        verb: text(&event["verb"]),
        stage: text(&event["stage"]),
        resource: text(&object["resource"]),
        subresource: text(&object["subresource"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        uri: text(&event["requestURI"]),
        user: text(&event["user"]["username"]),
        user_agent: text(&event["userAgent"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or(0),
        at: event["requestReceivedTimestamp"].as_str()?.parse().ok()?,
        ended: event["stageTimestamp"].as_str()?.parse().ok()?,
    })
}
