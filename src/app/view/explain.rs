//! The history of one pod: its journal entries, and its current state.

use std::collections::{BTreeMap, BTreeSet};

use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::report::{
    EventReport, ExplainReport, JournalReport, PodReport, SourceReport,
};
use mirrorlet_core::api::{Diagnostic, FullName, NodeName, split_name};
use mirrorlet_core::select::{PodNotFound, UID_PREFIX_MIN, find_only};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use mirrorlet_host::telemetry::journal::{Entry, Journal, Kind, Subject};

/// The history of the pod that `text` names; also of a removed pod, or one that ran before its manifest
/// was rejected.
pub(super) fn explain(
    text: &str,
    pods: &[PodReport],
    sources: &[SourceReport],
    journal: &Journal,
    node: &NodeName,
) -> Result<ExplainReport, ViewError> {
    let found = find_only(pods, text);
    let rejections = rejections(sources);
    let name = match &found {
        Ok(pod) => FullName::new(pod.name.as_str(), pod.namespace.as_str()),
        Err(error @ PodNotFound::Unknown { .. }) => {
            let rejected = by_name(text, rejections.keys(), node);
            let known = match rejected {
                Some(name) => Some(name.clone()).filter(|name| !journal.story(name).is_empty()),
                None => gone(text, journal, node),
            };
            if let Some(name) = known {
                name
            } else {
                let found =
                    rejected.and_then(|name| Some(not_running(name, rejections.get(name)?)));
                let found = found.or_else(|| rejected_workload(text, pods, sources));
                return Err(found.unwrap_or(error.clone().into()));
            }
        }
        Err(error) => {
            let found = rejected_workload(text, pods, sources);
            return Err(found.unwrap_or(error.clone().into()));
        }
    };
    let pod = found.ok();
    // An entry between the two is shown twice rather than not at all.
    let next = journal.next();
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
        rejected: rejections
            .get(&name)
            .copied()
            .filter(|_| pod.is_none())
            .cloned(),
        source_read: sources
            .iter()
            .find(of_its_source)
            .and_then(|s| s.last_success),
        truncated: journal.is_cut(&name),
        next,
        story: story
            .iter()
            .map(|entry| journal_report(entry, node))
            .collect(),
    })
}

/// The pods with rejected manifests, and the reasons.
fn rejections(sources: &[SourceReport]) -> BTreeMap<FullName, &Diagnostic> {
    let problems = sources.iter().flat_map(|source| &source.problems);
    problems
        .filter(|problem| problem.is_error())
        .filter_map(|problem| {
            let (namespace, name) = problem.pod.as_deref()?.split_once('/')?;
            Some((FullName::new(name, namespace), problem))
        })
        .rev()
        .collect_map()
}

/// Why a pod with a rejected manifest doesn't exist.
fn not_running(name: &FullName, problem: &Diagnostic) -> ViewError {
    ViewError {
        help: problem.help.clone(),
        ..ViewErrorKind::NotFound.error(format!(
            "pod {}/{} is not running, its manifest is rejected: {problem}",
            name.namespace, name.name
        ))
    }
}

/// The error of the rejected document of a workload, if `text` names one: `deployment/web`.
fn rejected_workload(
    text: &str,
    pods: &[PodReport],
    sources: &[SourceReport],
) -> Option<ViewError> {
    let (namespace, owner) = WorkloadKind::named(text)?;
    let is_it = |key: &WorkloadKey| {
        key.owner() == owner && namespace.is_none_or(|namespace| namespace == key.namespace)
    };
    let mut problems = sources.iter().flat_map(|source| &source.problems);
    let (key, problem) = problems.find_map(|problem| {
        let key = WorkloadKey::read(problem.workload.as_deref()?)?;
        (problem.is_error() && is_it(&key)).then_some((key, problem))
    })?;
    let runs = pods
        .iter()
        .any(|pod| pod.workload.as_ref() == Some(&owner) && pod.namespace == key.namespace);
    let consequence = if runs {
        "its pods are those of the last good version"
    } else {
        "none of its pods run"
    };
    Some(ViewError {
        help: problem.help.clone(),
        ..ViewErrorKind::NotFound.error(format!("{key} is rejected, {consequence}: {problem}"))
    })
}

/// The one of these that `text` names, as the pod's name or its manifest's, with or without the
/// namespace.
fn by_name<'a>(
    text: &str,
    names: impl Iterator<Item = &'a FullName> + Clone,
    node: &NodeName,
) -> Option<&'a FullName> {
    let (namespace, name) = split_name(text);
    let suffixed = format!("{name}-{node}").to_lowercase();
    let mut all = names.filter(|full| namespace.is_none_or(|wanted| wanted == &*full.namespace));
    let is = |name: &str| {
        let name = name.to_owned();
        move |full: &&FullName| *full.name == *name
    };
    all.clone()
        .find(is(name))
        .or_else(|| all.find(is(&suffixed)))
}

/// Full name of a pod that is not there any more, by name, `namespace/name` or UID.
fn gone(text: &str, journal: &Journal, node: &NodeName) -> Option<FullName> {
    let names: BTreeSet<FullName> = journal.names().into_iter().collect_set();
    let by_uid = |full: &&FullName| {
        let is_it =
            |uid: &str| uid == text || (text.len() >= UID_PREFIX_MIN && uid.starts_with(text));
        journal
            .story(full)
            .iter()
            .any(|entry| match &*entry.subject {
                Subject::Pod { uid, .. } => is_it(uid.as_str()),
                Subject::Workload(_) | Subject::Node => false,
            })
    };
    by_name(text, names.iter(), node)
        .or_else(|| names.iter().find(by_uid))
        .cloned()
}

/// The entries of all pods, workloads and the node, from that number on.
pub(super) fn events(journal: &Journal, from: u64, node: &NodeName) -> Vec<EventReport> {
    let entries = journal.entries(from).into_iter();
    let event = |entry: Entry| {
        let (namespace, name) = match &*entry.subject {
            Subject::Pod { full_name, .. } => {
                (Some(full_name.namespace.to_string()), &*full_name.name)
            }
            Subject::Workload(key) => (Some(key.namespace.clone()), key.name.as_str()),
            Subject::Node => (None, node.as_str()),
        };
        let workload = match &*entry.subject {
            Subject::Workload(key) => Some(key.kind.to_string()),
            Subject::Pod { .. } | Subject::Node => None,
        };
        EventReport {
            number: entry.number,
            workload,
            namespace,
            name: name.to_owned(),
            entry: journal_report(&entry, node),
        }
    };
    entries.map(event).collect()
}

fn journal_report(entry: &Entry, node: &NodeName) -> JournalReport {
    let (uid, container) = match &*entry.subject {
        Subject::Pod { uid, container, .. } => (uid.clone(), container.as_deref()),
        Subject::Workload(key) => (key.name.as_str().into(), None),
        Subject::Node => (node.as_str().into(), None),
    };
    let kind = match entry.kind {
        Kind::Trace => "Trace",
        Kind::Normal => "Normal",
        Kind::Warning => "Warning",
    };
    JournalReport {
        at: entry.at,
        kind: kind.to_owned(),
        reason: entry.reason.to_string(),
        container: container.map(str::to_owned),
        message: entry.message.to_string(),
        uid,
    }
}

#[cfg(test)]
mod tests;
