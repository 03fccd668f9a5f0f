//! The kinds of documents that are read.

use serde_json::{Map, Value};

use super::problems::At;
use crate::api::{Code, Severity};
use crate::decode;
use crate::objects::ObjectKind;
use crate::workload::WorkloadKind;

/// The kind of a document that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    Object(ObjectKind),
    Workload(WorkloadKind),
    Namespace,
}

impl Kind {
    /// The API version that its documents have.
    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::Object(_) | Self::Namespace => "v1",
            Self::Workload(kind) => kind.api_version(),
        }
    }
}

/// Every kind that is read, beside lists of them.
const KINDS: [(&str, Kind); 12] = [
    ("Pod", Kind::Pod),
    ("ConfigMap", Kind::Object(ObjectKind::ConfigMap)),
    ("Secret", Kind::Object(ObjectKind::Secret)),
    ("Service", Kind::Object(ObjectKind::Service)),
    ("PersistentVolumeClaim", Kind::Object(ObjectKind::Claim)),
    ("PersistentVolume", Kind::Object(ObjectKind::Volume)),
    ("Namespace", Kind::Namespace),
    ("Deployment", Kind::Workload(WorkloadKind::Deployment)),
    ("StatefulSet", Kind::Workload(WorkloadKind::StatefulSet)),
    ("DaemonSet", Kind::Workload(WorkloadKind::DaemonSet)),
    ("Job", Kind::Workload(WorkloadKind::Job)),
    ("CronJob", Kind::Workload(WorkloadKind::CronJob)),
];

/// The kind of a document; none, with the problem recorded, if it is not supported.
pub(super) fn check_kind(json: &Value, is_item: bool, root: &At<'_>) -> Option<Kind> {
    let Some(map) = json.as_object() else {
        let message = "a manifest must be a mapping with apiVersion, kind, metadata and spec";
        root.report(Severity::Error, Code::WrongKind, message);
        return None;
    };
    if is_compose(map) {
        let message = "this is a Docker Compose file; mirrorlet runs Kubernetes manifests";
        let at = root.key("services");
        at.report_key(Severity::Error, Code::WrongKind, message);
        at.help(format!(
            "convert it to manifests with mirrorlet import compose FILE: {COMPOSE_PAGE}"
        ));
        return None;
    }
    let wrong = |key: &str, message: String| {
        let written = map.get("kind").filter(|_| key == "kind");
        let meant = written.and_then(Value::as_str).and_then(meant_kind);
        let at = root.key(key);
        at.report(Severity::Error, Code::WrongKind, message);
        at.help(meant.map_or_else(known_kinds, |kind| format!("did you mean {kind}?")));
    };
    let kind = match map.get("kind") {
        None if is_item => Some(Kind::Pod),
        None => {
            wrong("kind", "kind is missing".to_owned());
            None
        }
        Some(Value::String(name)) => {
            let known = KINDS.iter().find(|(known, _)| known == name);
            if known.is_none() {
                let message = if is_kind_name(name) {
                    format!("documents of kind {name} are not supported")
                } else {
                    "this is not a valid kind".to_owned()
                };
                wrong("kind", message);
                return None;
            }
            known.map(|(_, kind)| *kind)
        }
        Some(_) => {
            wrong("kind", "this is not a valid kind".to_owned());
            return None;
        }
    };
    let wanted = kind.map_or("v1", Kind::api_version);
    match map.get("apiVersion") {
        Some(Value::String(version)) if version == wanted => return kind,
        None if is_item => return kind,
        Some(_) => wrong("apiVersion", format!("must be {wanted}")),
        None => wrong(
            "apiVersion",
            format!("apiVersion is missing; it must be {wanted}"),
        ),
    }
    None
}

/// The words about the kinds that are read.
fn known_kinds() -> String {
    let of = |version: &str| {
        let of = KINDS
            .iter()
            .filter(|(_, kind)| kind.api_version() == version);
        of.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    format!(
        "mirrorlet reads documents of apiVersion v1 and the kinds {}, and List; of apiVersion apps/v1 the kinds {}; of apiVersion batch/v1 the kinds {}",
        of("v1"),
        of("apps/v1"),
        of("batch/v1")
    )
}

/// The kind that was probably meant by an unknown name.
fn meant_kind(name: &str) -> Option<&'static str> {
    let names: Vec<&'static str> = KINDS.iter().map(|(known, _)| *known).collect();
    decode::closest(name, &names)
}

/// The page for users of Docker Compose.
const COMPOSE_PAGE: &str = concat!(
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/start/compose.md"
);

/// Whether a document is a Docker Compose file: it has services, and neither a kind nor an API version.
fn is_compose(map: &Map<String, Value>) -> bool {
    let is_kubernetes = map.contains_key("kind") || map.contains_key("apiVersion");
    !is_kubernetes && map.get("services").is_some_and(Value::is_object)
}

/// Whether a text is fit to be shown as a kind.
fn is_kind_name(text: &str) -> bool {
    const KIND_MAX: usize = 63;
    text.len() <= KIND_MAX && text.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
