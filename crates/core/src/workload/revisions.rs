//! The versions of a workload in the histories of its pods, for `ReplicaSet`s and
//! `ControllerRevision`s.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::WorkloadKey;
use super::standing::{Member, is_available};
use crate::api::{Pod, Timestamp, keys};
use crate::desired::SourceWorkload;
use crate::names::manifest_name;
use crate::rollout::group::{number, template_hash};
use crate::rollout::{History, Revision, is_rollout_annotation};
use crate::small::{SmallCollect, SmallSort};

/// A version of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadRevision {
    /// Its number: that of the pod with the lowest number.
    pub number: u64,
    /// When its document first had it; none for one that no pod has had.
    pub wanted_at: Option<Timestamp>,
    /// The template as it was written.
    pub template: Arc<Value>,
    /// The hash of the template, which its pods have as an annotation.
    pub template_hash: String,
    /// Whether it is that of the document.
    pub is_newest: bool,
    /// The number of pods that run it.
    pub pods: u32,
    /// Those that are Ready.
    pub ready: u32,
    /// Those that serve.
    pub available: u32,
}

/// The versions of a workload, oldest first: those of its pod with the lowest number, and that of the
/// document. Of equal ones, which an undo creates, only the newest is included, as upstream's
/// controllers give a version that comes back the next number.
pub fn revisions<'a>(
    document: &SourceWorkload,
    histories: impl Iterator<Item = &'a History>,
    members: &[Member<'_>],
) -> Vec<WorkloadRevision> {
    let key = document.key();
    let last = histories.filter_map(|history| Some((history, &history.revisions.last()?.pod)));
    let of_it = last.filter(|(_, pod)| key.is_some() && WorkloadKey::of(pod) == key);
    // Those of pods that are gone are known for a while.
    let first =
        of_it.min_by_key(|(history, pod)| (history.newest.is_none(), number(manifest_name(pod))));
    let mut known: Vec<&Revision> =
        first.map_or(vec![], |(first, _)| first.revisions.iter().collect());
    known.small_sort_by_key(|revision| revision.number);
    let mut all: Vec<(WorkloadRevision, Vec<&str>, &Pod)> = Vec::new();
    for revision in known {
        let (Some(template), hash) = (&revision.template, template_hash(&revision.pod)) else {
            continue;
        };
        // Kept by a release that noted no templates.
        if hash.is_empty() {
            continue;
        }
        let mut hashes = vec![hash];
        all.retain(|(known, of_known, pod)| {
            let is_same = known.template_hash == hash || is_same_version(pod, &revision.pod);
            if is_same {
                hashes.extend(of_known);
            }
            !is_same
        });
        let made = WorkloadRevision {
            number: revision.number,
            wanted_at: Some(revision.wanted_at),
            template: Arc::clone(template),
            template_hash: hash.to_owned(),
            is_newest: false,
            pods: 0,
            ready: 0,
            available: 0,
        };
        all.push((made, hashes, &revision.pod));
    }
    let mut revisions: Vec<_> = all
        .into_iter()
        .map(|(revision, hashes, _)| counted(document, revision, &hashes, members))
        .collect();
    mark_newest(&mut revisions, document, members);
    revisions
}

/// Marks the version of the document, and adds it if no history knows it.
fn mark_newest(
    revisions: &mut Vec<WorkloadRevision>,
    document: &SourceWorkload,
    members: &[Member<'_>],
) {
    let hash = document.template_hash.as_str();
    let last = revisions.last().map_or(0, |revision| revision.number);
    let mut known = revisions.iter_mut();
    if let Some(known) = known.find(|revision| revision.template_hash == hash) {
        known.is_newest = true;
        return;
    }
    let newest = WorkloadRevision {
        number: last + 1,
        wanted_at: None,
        template: Arc::new(document.document["spec"]["template"].clone()),
        template_hash: hash.to_owned(),
        is_newest: true,
        pods: 0,
        ready: 0,
        available: 0,
    };
    revisions.push(counted(document, newest, &[hash], members));
}

/// A version with the counts of the pods that run one of these templates.
fn counted(
    document: &SourceWorkload,
    revision: WorkloadRevision,
    hashes: &[&str],
    members: &[Member<'_>],
) -> WorkloadRevision {
    let count = |is: &dyn Fn(&Member<'_>) -> bool| {
        let its = members.iter().filter(|m| hashes.contains(&m.template_hash));
        u32::try_from(its.filter(|member| is(member)).count()).unwrap_or(u32::MAX)
    };
    WorkloadRevision {
        pods: count(&|member| !member.pod.is_ending()),
        ready: count(&|member| member.pod.is_ready()),
        available: count(&|member| is_available(document, member)),
        ..revision
    }
}

/// The annotations of a pod of a template that are not the template's own.
const MADE: [&str; 5] = [
    keys::CONFIG_HASH,
    keys::CONFIG_SEEN,
    keys::CONFIG_SOURCE,
    keys::TEMPLATE,
    keys::UPDATES,
];

/// Whether two versions of a pod are of templates that mean the same.
fn is_same_version(one: &Pod, other: &Pod) -> bool {
    let annotations = |pod: &Pod| -> BTreeMap<String, String> {
        let all = pod.metadata.annotations.iter().flatten();
        let is_own = |key: &str| !MADE.contains(&key) && !is_rollout_annotation(key);
        let own = all.filter(|(key, _)| is_own(key));
        own.map(|(key, value)| (key.clone(), value.clone()))
            .collect_map()
    };
    one.spec == other.spec
        && one.metadata.labels == other.metadata.labels
        && annotations(one) == annotations(other)
}

#[cfg(test)]
mod tests;
