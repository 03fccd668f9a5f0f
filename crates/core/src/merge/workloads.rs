//! The documents that have the names of workloads, including documents without pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Candidate, Incumbents, Merged, SourceName, at_origin, place};
use crate::api::Diagnostic;
use crate::desired::{Origin, Places, SourceObject, SourceState, SourceWorkload};
use crate::objects::Object;
use crate::small::SmallCollect;
use crate::workload::{WorkloadKey, WorkloadKind};

/// The document that has each name of a workload, during one merge.
pub(super) struct Names<'a> {
    owners: BTreeMap<WorkloadKey, &'a Origin>,
    /// The documents that have lost a name, and were reported.
    losers: BTreeSet<(WorkloadKey, &'a Origin)>,
    /// The documents of sources that have not delivered: no other document had their names before.
    awaited: BTreeMap<WorkloadKey, &'a Origin>,
}

/// How well a document matches the one that had its name: whether none of its pods was wanted before,
/// it is another document, at another place. Lower is better.
type Fit = (bool, bool, bool);

impl<'a> Names<'a> {
    /// The names that are kept. A document keeps its name as long as its place delivers it, unless pods
    /// of another one run. While its source hasn't delivered, no other document gets the name, except
    /// for a Job: its record decides whether its work may be repeated.
    pub(super) fn kept(
        incumbents: &'a Incumbents,
        candidates: &[Candidate<'a>],
        offered: impl Iterator<Item = &'a SourceWorkload>,
        silent: &BTreeSet<SourceName>,
    ) -> Self {
        let mut best: BTreeMap<WorkloadKey, (Fit, &'a Origin)> = BTreeMap::new();
        let mut offer = |key: WorkloadKey, origin: &'a Origin, is_wanted: bool| {
            let Some(before) = incumbents.workloads.get(&key) else {
                return;
            };
            let is_other = !before.is_same_document(origin);
            let fit = (!is_wanted, is_other, !before.is_same_place(origin));
            let known = best.entry(key).or_insert((fit, origin));
            if (fit, origin) < *known {
                *known = (fit, origin);
            }
        };
        for candidate in candidates.iter().filter(|one| !one.pod.is_api()) {
            let Candidate { pod, uid, name } = candidate;
            let (is_newcomer, _) = incumbents.rank(name, uid, pod);
            if let Some(key) = WorkloadKey::of(&pod.pod) {
                offer(key, &pod.origin, !is_newcomer);
            }
        }
        for workload in offered {
            if let Some(key) = workload.key() {
                offer(key, &workload.origin, false);
            }
        }
        let mut names = Self {
            owners: BTreeMap::new(),
            losers: BTreeSet::new(),
            awaited: BTreeMap::new(),
        };
        for (key, before) in &incumbents.workloads {
            match best.get(key) {
                Some(((_, _, false), origin)) => {
                    names.owners.insert(key.clone(), *origin);
                }
                // Pods of another one run.
                Some(((false, _, true), _)) => {}
                Some(((true, _, true), _)) | None => {
                    if silent.iter().any(|source| source.has(before)) {
                        names.awaited.insert(key.clone(), before);
                    }
                }
            }
        }
        let awaited = names.awaited.iter();
        let reserved = awaited.filter(|(key, _)| key.kind != WorkloadKind::Job);
        names
            .owners
            .extend(reserved.map(|(key, origin)| (key.clone(), *origin)));
        names
    }

    /// Whether a document has the name, which it gets if it is free. Otherwise adds the problem of the
    /// document.
    pub(super) fn take(
        &mut self,
        key: &WorkloadKey,
        origin: &'a Origin,
        problems: &mut Vec<Diagnostic>,
    ) -> bool {
        let owner = *self.owners.entry(key.clone()).or_insert(origin);
        let is_owner = owner.is_same_document(origin);
        if !is_owner && self.losers.insert((key.clone(), origin)) {
            problems.push(same_workload(origin, key, owner));
        }
        is_owner
    }

    /// The documents that have the names, or had them last and are awaited.
    pub(super) fn into_origins(self) -> BTreeMap<WorkloadKey, Origin> {
        let all = self.awaited.into_iter().chain(self.owners);
        all.map(|(key, origin)| (key, origin.clone())).collect_map()
    }
}

impl Merged {
    /// Whether another document has the name of the workload. A name without a document is not lost.
    pub fn has_lost(&self, workload: &SourceWorkload) -> bool {
        let owner = workload.key().and_then(|key| self.workloads.get(&key));
        owner.is_some_and(|owner| !owner.is_same_document(&workload.origin))
    }

    /// One document of each delivered workload, by namespace and owner: the one that has the name, or
    /// else the first.
    pub fn one_of_each<'a>(
        &self,
        offered: impl Iterator<Item = &'a SourceWorkload>,
    ) -> Vec<&'a SourceWorkload> {
        let mut known: BTreeMap<(&str, &str), &'a SourceWorkload> = BTreeMap::new();
        for workload in offered {
            let key = (&*workload.namespace, &*workload.owner);
            let one = known.entry(key).or_insert(workload);
            if self.has_lost(one) && !self.has_lost(workload) {
                *one = workload;
            }
        }
        known.into_values().collect()
    }
}

/// Assigns names to workloads without pods, and collects the `StatefulSet`s among all. Returns their
/// claims.
pub(super) fn take_workloads<'a>(
    sources: &'a BTreeMap<SourceName, SourceState>,
    names: &mut Names<'a>,
    merged: &mut Merged,
) -> Vec<SourceObject> {
    let mut claims = Vec::new();
    let sets = sources.values().filter_map(SourceState::set);
    for known in sets.flat_map(|set| &set.workloads) {
        let Some(key) = known.key() else {
            continue;
        };
        let has_name = names.take(&key, &known.origin, &mut merged.conflicts);
        if let Some(set) = known.set.as_ref().filter(|_| has_name) {
            let origin = (known.origin.clone(), known.held);
            merged.set_origins.insert(key.clone(), origin);
            merged.sets.insert(key, Arc::clone(set));
            claims.extend(set.claims.iter().map(|claim| SourceObject {
                object: Object::Claim(Arc::clone(claim)),
                origin: known.origin.clone(),
                held: known.held,
                places: Places::default(),
            }));
        }
    }
    claims
}

fn same_workload(loser: &Origin, key: &WorkloadKey, winner: &Origin) -> Diagnostic {
    let message = format!(
        "document {} is ignored: {key} is already defined by {}",
        loser.document,
        place(winner)
    );
    at_origin(loser, "metadata.name", message)
        .help("rename one of the two workloads or remove one of the documents")
}
