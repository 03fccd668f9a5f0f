//! A workload's document → the static pods that it wants.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use serde_json::{Map, Value, json};

use crate::api::meta::ObjectMeta;
use crate::api::{Pod, keys};
use crate::path::Path;
use crate::workload::{Workload, WorkloadKey, WorkloadKind};

use super::build::{decode_noting, names, note_special};
use super::problems::Problems;
use super::{AcceptedWorkload, ParseContext, check, defaults, support, uid};

/// Where a workload's template is.
const TEMPLATE: &str = "spec.template";

/// The fields of a template's metadata that its pods have. Their names come from the workload.
const COPIED: [&str; 2] = ["labels", "annotations"];

/// The workload's key, as far as its metadata can be read.
pub(super) fn workload_key(json: &Value, kind: WorkloadKind) -> Option<WorkloadKey> {
    let (name, namespace) = names(json)?;
    Some(WorkloadKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// JSON of a workload → its pods; none, if any error was noted. Leaves `problems` within the
/// template.
pub(super) fn build_workload(
    kind: WorkloadKind,
    canonical: &Value,
    ctx: &ParseContext<'_>,
    problems: &mut Problems<'_>,
) -> Option<AcceptedWorkload> {
    let (metadata, workload, causes) = decode(kind, canonical, problems);
    let written = canonical.pointer("/spec/template").unwrap_or(&Value::Null);
    problems.within(Path::of(TEMPLATE));
    support::for_each_special(written, &mut |path, verdict| {
        note_special(&path, verdict, problems);
    });
    problems.within(Path::default());
    let (metadata, workload) = metadata.zip(workload)?;
    let pod = template_pod(&metadata, &workload);
    let before = problems.len();
    check::check_workload(&metadata, &workload, &pod, canonical, ctx, problems);
    problems.within(Path::of(TEMPLATE));
    if !written.is_null() {
        check::check_template(&pod, problems);
    }
    problems.drop_consequences(before, &causes);
    if problems.has_error() {
        return None;
    }
    let key = workload_key(canonical, kind)?;
    let expansion = workload.expand(&key.name, &pod);
    let mut pod = pod;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::WORKLOAD.to_owned(), key.owner());
    for (name, value) in expansion.annotations {
        annotations.entry(name.to_owned()).or_insert(value);
    }
    let pods = expansion.names.iter().map(|name| {
        let uid = uid::static_uid(&pod_document(name, canonical), ctx);
        let mut pod = pod.clone();
        pod.metadata.name = Some(name.clone());
        defaults::make_static(&mut pod, &uid, ctx.node_name, ctx.source);
        Arc::new(pod)
    });
    Some(AcceptedWorkload {
        pods: pods.collect(),
        key,
        canonical: canonical.clone(),
    })
}

/// Metadata and description, and the places of values that can't be decoded.
fn decode(
    kind: WorkloadKind,
    canonical: &Value,
    problems: &mut Problems<'_>,
) -> (Option<ObjectMeta>, Option<Workload>, Vec<Path>) {
    let (decoded, causes) = match kind {
        WorkloadKind::Deployment => {
            let (document, causes) = decode_noting::<Deployment>(canonical, problems);
            let of = |d: Deployment| (d.metadata, Workload::Deployment(d.spec));
            (document.map(of), causes)
        }
        WorkloadKind::DaemonSet => {
            let (document, causes) = decode_noting::<DaemonSet>(canonical, problems);
            let of = |d: DaemonSet| (d.metadata, Workload::DaemonSet(d.spec));
            (document.map(of), causes)
        }
    };
    let (metadata, workload) = decoded.unzip();
    (metadata, workload, causes)
}

/// The defaulted pod of a template, without a name.
fn template_pod(metadata: &ObjectMeta, workload: &Workload) -> Pod {
    let template = workload.template();
    let written = template.metadata.clone().unwrap_or_default();
    let mut pod = Pod {
        metadata: ObjectMeta {
            namespace: metadata.namespace.clone(),
            labels: written.labels,
            annotations: written.annotations,
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    };
    if pod.spec.is_some() {
        defaults::apply_defaults(&mut pod);
    }
    pod
}

/// The document that would describe a pod of a workload by itself: what its UID is a hash of.
fn pod_document(name: &str, workload: &Value) -> Value {
    let template = workload.pointer("/spec/template");
    let part = |key: &str| template.and_then(|template| template.get(key)).cloned();
    let written = part("metadata").unwrap_or_default();
    let copied = COPIED.iter().filter_map(|key| {
        let value = written.get(key)?.clone();
        Some(((*key).to_owned(), value))
    });
    let mut metadata: Map<String, Value> = copied.collect();
    metadata.insert("name".to_owned(), name.into());
    if let Some(namespace) = workload.pointer("/metadata/namespace") {
        metadata.insert("namespace".to_owned(), namespace.clone());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": part("spec"),
    })
}
