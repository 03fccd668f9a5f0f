//! The story of one pod: what the journal keeps of it, and how it is now.

use std::collections::BTreeSet;

use crate::server::view::ViewError;
use mirrorlet_core::api::report::{ExplainReport, PodReport, SourceReport, StoryReport};
use mirrorlet_core::api::{FullName, NodeName};
use mirrorlet_core::select::{PodNotFound, UID_PREFIX_MIN, find_pod};
use mirrorlet_host::telemetry::journal::{Entry, Journal, Kind, STORY_MAX, Subject};

/// The story of the pod that `text` names; also of one that is gone.
pub(super) fn explain(
    text: &str,
    pods: &[PodReport],
    sources: &[SourceReport],
    journal: &Journal,
    node: &NodeName,
) -> Result<ExplainReport, ViewError> {
    let pod = match find_pod(pods, text) {
        Ok(pod) => Some(pod),
        Err(PodNotFound::Ambiguous { .. }) => Some(one_of_one_name(pods, text)?),
        Err(PodNotFound::Unknown { .. }) => None,
    };
    let name = match pod {
        Some(pod) => FullName::new(pod.name.as_str(), pod.namespace.as_str()),
        None => gone(text, journal, node).ok_or_else(|| not_found(pods, text))?,
    };
    let story = journal.story(&name);
    let of_its_source = |source: &&SourceReport| {
        pod.is_some_and(|pod| {
            pod.source == source.location
                || std::path::Path::new(&pod.source).starts_with(&source.location)
        })
    };
    Ok(ExplainReport {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        pod: pod.cloned(),
        source_read: sources
            .iter()
            .find(of_its_source)
            .and_then(|s| s.last_success),
        truncated: story.len() >= STORY_MAX,
        story: story.iter().rev().filter_map(told).collect(),
    })
}

/// Of several pods of the same full name the one that is not on its way out: an edited pod and its
/// old version share a story.
fn one_of_one_name<'a>(pods: &'a [PodReport], text: &str) -> Result<&'a PodReport, ViewError> {
    let mut named: Vec<PodReport> = Vec::new();
    for pod in pods {
        let same =
            |other: &PodReport| (&other.namespace, &other.name) == (&pod.namespace, &pod.name);
        match named.iter_mut().find(|other| same(other)) {
            Some(other) if other.status == "Terminating" => *other = pod.clone(),
            Some(_) => {}
            None => named.push(pod.clone()),
        }
    }
    let uid = match find_pod(&named, text) {
        Ok(pod) => pod.uid.clone(),
        Err(error) => return Err(error.into()),
    };
    pods.iter()
        .find(|pod| pod.uid == uid)
        .ok_or_else(|| not_found(pods, text))
}

/// Full name of a pod that is not there any more, by name, `namespace/name` or UID.
fn gone(text: &str, journal: &Journal, node: &NodeName) -> Option<FullName> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let names: BTreeSet<FullName> = journal.names().into_iter().collect();
    let by_name = |full: &&FullName| {
        *full.name == *name && namespace.is_none_or(|namespace| namespace == &*full.namespace)
    };
    let suffixed = format!("{name}-{node}").to_lowercase();
    let by_manifest = |full: &&FullName| {
        *full.name == *suffixed && namespace.is_none_or(|namespace| namespace == &*full.namespace)
    };
    let by_uid = |full: &&FullName| {
        let is_it =
            |uid: &str| uid == text || (text.len() >= UID_PREFIX_MIN && uid.starts_with(text));
        journal
            .story(full)
            .iter()
            .any(|entry| match &entry.subject {
                Subject::Pod { uid, .. } => is_it(uid.as_str()),
                Subject::Node => false,
            })
    };
    names
        .iter()
        .find(by_name)
        .or_else(|| names.iter().find(by_manifest))
        .or_else(|| names.iter().find(by_uid))
        .cloned()
}

fn not_found(pods: &[PodReport], text: &str) -> ViewError {
    match find_pod(pods, text) {
        Err(error) => error.into(),
        Ok(_) => ViewError::NotFound {
            message: format!("pod {text:?} not found"),
            help: None,
        },
    }
}

fn told(entry: &Entry) -> Option<StoryReport> {
    let Subject::Pod { uid, container, .. } = &entry.subject else {
        return None;
    };
    let kind = match entry.kind {
        Kind::Trace => "Trace",
        Kind::Normal => "Normal",
        Kind::Warning => "Warning",
    };
    Some(StoryReport {
        at: entry.at,
        kind: kind.to_owned(),
        reason: entry.reason.to_string(),
        container: container.as_ref().map(ToString::to_string),
        message: entry.message.to_string(),
        uid: uid.clone(),
    })
}

#[cfg(test)]
mod tests;
