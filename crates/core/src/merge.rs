//! Merges the sets of all sources into one desired set, and reports conflicts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::api::{Code, Diagnostic, FullName, Pod, PodUid, Timestamp};
use crate::desired::{Delivered, Origin, Places, PodSource, SourceObject, SourcePod, SourceState};
use crate::ending::{Ending, ending};
use crate::finished::FinishedPods;
use crate::names::port_problems;
use crate::objects::claims::{Bindings, ClaimName};
use crate::objects::{KnownObjects, Object, ObjectKey, ObjectKind, references, unmet};
use crate::small::{SmallCollect, SmallSort};
use crate::stateful::StatefulSet;
use crate::workload::WorkloadKey;

use diff::{keep_local_annotations, with_seen};
use heard::{awaited, delivered, finished};
use workloads::{Names, take_workloads};

pub use diff::{PodOperation, diff};
pub use incumbents::{Incumbent, Incumbents};

mod diff;
mod heard;
mod incumbents;
pub mod plan;
mod workloads;

/// Name of a configured source. Ordered by precedence: files, URLs, API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName {
    /// Kind of source.
    pub source: PodSource,
    /// Directory or URL; fixed words for the API server.
    pub location: Arc<str>,
}

impl SourceName {
    /// Names a source.
    pub fn new(source: PodSource, location: impl Into<Arc<str>>) -> Self {
        Self {
            source,
            location: location.into(),
        }
    }

    /// Whether the document belongs to the source: to its URL, or to a file of its directory.
    pub fn has(&self, origin: &Origin) -> bool {
        let is_same = *self.location == *origin.location;
        let is_below = Path::new(&origin.location).starts_with(&*self.location);
        let is_url = self.source == PodSource::Http;
        self.source == origin.source && (is_same || (is_below && !is_url))
    }
}

crate::display!(SourceName, "{} {}", source, location);

/// The desired pods of all sources together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merged {
    /// The pods to run, by UID. No two pods of manifests have the same full name; an API pod may have
    /// the name of one of them.
    pub pods: BTreeMap<PodUid, SourcePod>,
    /// The pods that run beside one of [`pods`](Self::pods) with their full name until they are judged,
    /// by UID. Only the parts that run them use these.
    pub beside: BTreeMap<PodUid, SourcePod>,
    /// The API server's ended pods whose containers stay for their logs.
    pub finished: FinishedPods,
    /// The objects that pods of manifests refer to.
    pub objects: BTreeMap<ObjectKey, SourceObject>,
    /// The `StatefulSet`s of manifests.
    pub sets: BTreeMap<WorkloadKey, Arc<StatefulSet>>,
    /// The documents of [`sets`](Self::sets), and whether each is held at its last good version.
    pub set_origins: BTreeMap<WorkloadKey, (Origin, bool)>,
    /// The pods of `StatefulSet`s that wait for their turn to start or to stop.
    pub waits: BTreeMap<FullName, Waiting>,
    /// The pods that represent Jobs and CronJobs, which others replace in [`pods`](Self::pods).
    pub runs: BTreeMap<FullName, Incumbent>,
    /// The documents that have the names of workloads.
    pub workloads: BTreeMap<WorkloadKey, Origin>,
    /// Why a pod of a workload doesn't run because another has its full name or UID; the first of
    /// several.
    pub clashes: BTreeMap<WorkloadKey, String>,
    /// The bindings of claims.
    pub bindings: Bindings,
    /// One diagnostic for each pod that doesn't run because another has its full name or UID, for each
    /// object that another document defines, and for each unresolved reference.
    pub conflicts: Vec<Diagnostic>,
    /// The sources that have delivered. Before that, a source may still have a pod that is missing from
    /// [`pods`](Self::pods).
    pub delivered: Delivered,
    /// The directories and URLs among those that have not delivered.
    pub awaited: BTreeSet<SourceName>,
    /// Whether each pod is the version that runs. Before the runtime was listed it is the newest one.
    pub settled: bool,
}

/// A pod that waits for its turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The pod, if it was not started; one that does not stop yet is among the others.
    pub pod: Option<SourcePod>,
    /// The condition that it waits for, as a message.
    pub message: String,
}

impl Merged {
    /// Notes why a pod doesn't run: another has its name or UID.
    fn lose(&mut self, loser: &SourcePod, field: &str, why: String, help: &str) {
        let document = loser.origin.document;
        let workload = WorkloadKey::of(&loser.pod).filter(|_| !loser.is_api());
        let message = match &workload {
            Some(key) => format!("a pod of {key} (document {document}) does not run: {why}"),
            None => format!("document {document} is ignored: {why}"),
        };
        self.conflicts
            .push(at_origin(&loser.origin, field, message).help(help));
        if let Some(key) = workload {
            self.clashes.entry(key).or_insert(why);
        }
    }

    /// Keeps `known`, whose source has not delivered yet, in place of the pod with that UID, which has
    /// its name.
    pub fn keep(&mut self, uid: &PodUid, known: SourcePod) {
        let Some(loser) = self.pods.remove(uid) else {
            return;
        };
        let why = same_name(&known.full_name(), &known.origin);
        self.lose(&loser, "metadata.name", why, RENAME);
        self.conflicts.small_sort();
        self.pods.insert(known.uid(), known);
    }

    /// Copies the annotations of the previous merge to each pod, or sets them on new ones. `given` are
    /// the pods of that merge as delivered: for an unchanged pod, the earlier result is reused. Returns
    /// those of this merge.
    ///
    /// The API server's ended pods are left as they are: they accumulate, their first-seen time is
    /// never needed, and so there is one copy of each.
    pub fn carry_over(
        &mut self,
        before: &Self,
        given: &BTreeMap<PodUid, Arc<Pod>>,
        now: Timestamp,
    ) -> BTreeMap<PodUid, Arc<Pod>> {
        let mut taken = BTreeMap::new();
        for (uid, pod) in self.pods.iter_mut().chain(&mut self.beside) {
            taken.insert(uid.clone(), Arc::clone(&pod.pod));
            if ending(&pod.pod) == Some(Ending::Over) {
                continue;
            }
            let known = before.pods.get(uid).or_else(|| before.beside.get(uid));
            let is_same = |given: &Arc<Pod>| Arc::ptr_eq(given, &pod.pod);
            match known {
                Some(known) if given.get(uid).is_some_and(is_same) => {
                    pod.pod = Arc::clone(&known.pod);
                }
                Some(known) => *pod = keep_local_annotations(pod, &known.pod),
                // A pod keeps the time it was first seen by this process.
                None => *pod = with_seen(pod, now),
            }
        }
        taken
    }

    /// The objects, for pods of manifests.
    pub fn known_objects(&self) -> KnownObjects {
        let objects = self.objects.iter();
        KnownObjects {
            objects: objects
                .map(|(key, known)| (key.clone(), known.object.clone()))
                .collect_map(),
            bindings: self.bindings.clone(),
            complete: self.delivered.manifests,
        }
    }

    /// Keeps the bindings of `before`, and adds those of the claims that pods of manifests use. A claim
    /// is bound only once every source has delivered its volumes. Bound claims of a `StatefulSet` stay
    /// its own when it is scaled down.
    pub fn bind_claims(&mut self, before: &Bindings) {
        self.bindings.clone_from(before);
        self.keep_left_claims();
        if !self.delivered.manifests {
            return;
        }
        let pods = self.pods.values().filter(|pod| !pod.is_api());
        let keys = pods.flat_map(|pod| references(&pod.pod).objects);
        let claims = keys.filter(|key| key.kind == ObjectKind::Claim);
        let wanted: BTreeSet<ClaimName> = claims.map(|key| ClaimName::of(&key)).collect_set();
        let known = self.known_objects();
        self.bindings = known.claims().bind(&wanted);
    }

    /// Adds the bound claims of pods that `StatefulSet`s don't want any more.
    fn keep_left_claims(&mut self) {
        for (key, set) in &self.sets {
            let Some((origin, held)) = self.set_origins.get(key) else {
                continue;
            };
            let names = self.bindings.keys();
            for name in names.filter(|name| name.namespace == set.namespace) {
                let place = self.objects.entry(name.key());
                if let Entry::Vacant(place) = place
                    && let Some(claim) = set.claim(&name.name)
                {
                    place.insert(SourceObject {
                        object: Object::Claim(Arc::new(claim)),
                        origin: origin.clone(),
                        held: *held,
                        places: Places::default(),
                    });
                }
            }
        }
    }

    /// The incumbents of the next merge. For a pod whose newest version doesn't run, the document is
    /// that of the newest version.
    pub fn incumbents(&self) -> Incumbents {
        let mut pods = incumbents::of_pods(self.pods.values().filter(|pod| !pod.is_api()));
        pods.extend(self.runs.clone());
        Incumbents {
            pods,
            workloads: self.workloads.clone(),
            begun: BTreeMap::new(),
        }
    }
}

/// Merges the sets of all sources.
///
/// Of several pods with the same full name (or UID), the incumbent stays as long as a source delivers
/// it, also edited at its place; without one, the first by source kind, location and document runs. The
/// others are reported. Pods that represent Jobs and CronJobs are no exception, nor are workloads, even
/// without pods. The order of pods within the sets makes no difference. Names of API pods are
/// independent: as upstream, such a pod runs beside a manifest's with the same name.
///
/// Of several documents of one object, the one in `before` stays as long as its place delivers it.
pub fn merge_sources(
    sources: &BTreeMap<SourceName, SourceState>,
    incumbents: &Incumbents,
    before: &BTreeMap<ObjectKey, SourceObject>,
) -> Merged {
    let mut merged = empty(sources);
    let sets = sources.values().filter_map(SourceState::set);
    let mut candidates: Vec<_> = sets
        .flat_map(|set| set.pods.iter().map(Candidate::of))
        .collect();
    candidates.small_sort_by(|a, b| a.rank(incumbents).cmp(&b.rank(incumbents)));

    let mut owners: BTreeMap<FullName, &Origin> = BTreeMap::new();
    let sets = sources.values().filter_map(SourceState::set);
    let offered = sets.flat_map(|set| &set.workloads);
    let mut names = Names::kept(incumbents, &candidates, offered, &merged.awaited);
    for candidate in candidates {
        let Candidate { pod, uid, name } = candidate;
        if !pod.is_api()
            && let Some(key) = WorkloadKey::of(&pod.pod)
            && !names.take(&key, &pod.origin, &mut merged.conflicts)
        {
            continue;
        }
        if let Some(winner) = owners.get(&name)
            && !pod.is_api()
        {
            let why = same_name(&name, winner);
            merged.lose(pod, "metadata.name", why, RENAME);
            continue;
        }
        match merged.pods.entry(uid) {
            Entry::Vacant(place) => {
                place.insert(pod.clone());
                if !pod.is_api() {
                    owners.insert(name, &pod.origin);
                }
            }
            Entry::Occupied(winner) => {
                let why = same_uid(&name, winner.get());
                merged.lose(pod, "metadata.uid", why, COMPUTE_UID);
            }
        }
    }
    merged.runs = incumbents::of_pods(merged.pods.values().filter(|pod| pod.runs.is_some()));
    let claims = take_workloads(sources, &mut names, &mut merged);
    merged.workloads = names.into_origins();
    merge_objects(sources, &claims, before, &mut merged);
    if merged.delivered.manifests {
        find_unmet(&mut merged);
    }
    merged.conflicts.small_sort();
    merged
}

/// A merge of nothing yet, with what the sources say of themselves.
fn empty(sources: &BTreeMap<SourceName, SourceState>) -> Merged {
    Merged {
        delivered: delivered(sources),
        awaited: awaited(sources),
        finished: finished(sources),
        ..Merged::default()
    }
}

/// Takes the objects of documents, then the `claims` of `StatefulSet`s: a claim with a document is that
/// of its document.
fn merge_objects(
    sources: &BTreeMap<SourceName, SourceState>,
    claims: &[SourceObject],
    before: &BTreeMap<ObjectKey, SourceObject>,
    merged: &mut Merged,
) {
    let sets = sources.values().filter_map(SourceState::set);
    let mut offered: Vec<_> = sets
        .flat_map(|set| &set.objects)
        .map(|object| (object.object.key(), object))
        .collect();
    let is_newcomer = |key: &ObjectKey, origin: &Origin| {
        before
            .get(key)
            .is_none_or(|known| known.origin.location != origin.location)
    };
    offered.small_sort_by_key(|(key, object)| (is_newcomer(key, &object.origin), &object.origin));
    for (key, object) in offered {
        match merged.objects.entry(key) {
            Entry::Vacant(place) => {
                place.insert(object.clone());
            }
            Entry::Occupied(winner) => {
                let message = format!(
                    "document {} is ignored: {} is already defined by {}",
                    object.origin.document,
                    winner.key().words(),
                    place(&winner.get().origin)
                );
                let location = object.origin.location.as_str();
                let mut conflict = Diagnostic::error(Code::DuplicateObject, location, message)
                    .field("metadata.name")
                    .help("rename one of the two objects or remove one of the documents");
                conflict.position = object.origin.position;
                merged.conflicts.push(conflict);
            }
        }
    }
    for claim in claims {
        let place = merged.objects.entry(claim.object.key());
        place.or_insert_with(|| claim.clone());
    }
}

/// Notes the references of manifests' pods that lead nowhere, and ports of Services that their pods
/// don't have.
fn find_unmet(merged: &mut Merged) {
    let objects = &merged.objects;
    let find = |key: &ObjectKey| objects.get(key).map(|known| known.object.clone());
    for pod in merged.pods.values().filter(|pod| !pod.is_api()) {
        let found = unmet(&pod.pod, find).into_iter();
        let found = found.map(|unmet| placed(unmet.diagnostic(&pod.origin.location), pod));
        // The pods of a workload have the same.
        for problem in found {
            if !merged.conflicts.contains(&problem) {
                merged.conflicts.push(problem);
            }
        }
    }
    for known in merged.objects.values() {
        if let Object::Service(service) = &known.object {
            let pods = merged.pods.values().filter(|pod| !pod.is_api());
            let pods = pods.map(|pod| &*pod.pod);
            let found = port_problems(service, &known.origin.location, pods);
            let placed = found.into_iter().map(|problem| {
                let field = problem.field.as_deref().unwrap_or_default();
                let place = known.places.get(field).copied();
                Diagnostic {
                    position: place.or(known.origin.position),
                    ..problem
                }
            });
            merged.conflicts.extend(placed);
        }
    }
}

/// A problem of a pod's field, at its place in the document: below the template of a workload.
fn placed(problem: Diagnostic, pod: &SourcePod) -> Diagnostic {
    let field = problem.field.as_deref().unwrap_or_default();
    let place = pod.places.get(field).copied();
    let position = place.or(pod.origin.position);
    if let Some(key) = WorkloadKey::of(&pod.pod) {
        return Diagnostic {
            field: Some(format!("{}.{field}", key.kind.template_path())),
            workload: Some(key.to_string()),
            position,
            ..problem
        };
    }
    let FullName { name, namespace } = pod.full_name();
    Diagnostic {
        pod: Some(format!("{namespace}/{name}")),
        position,
        ..problem
    }
}

/// A pod offered by a source, with its keys computed once.
struct Candidate<'a> {
    pod: &'a SourcePod,
    uid: PodUid,
    name: FullName,
}

impl<'a> Candidate<'a> {
    fn of(pod: &'a SourcePod) -> Self {
        Self {
            pod,
            uid: pod.uid(),
            name: pod.full_name(),
        }
    }

    /// Lower wins.
    fn rank(&self, incumbents: &Incumbents) -> ((bool, bool), &Origin, &PodUid) {
        let rank = incumbents.rank(&self.name, &self.uid, self.pod);
        (rank, &self.pod.origin, &self.uid)
    }
}

/// Help for two pods of one name.
const RENAME: &str = "rename one of the two pods or remove one of the manifests";
/// Help for two pods of one UID.
pub const COMPUTE_UID: &str =
    "remove metadata.uid from one of the two manifests: mirrorlet then computes a UID";

fn same_name(name: &FullName, winner: &Origin) -> String {
    format!("pod {name} is already defined by {}", place(winner))
}

fn same_uid(name: &FullName, winner: &SourcePod) -> String {
    format!(
        "pod {name} has the same UID as pod {}, defined by {}",
        winner.full_name(),
        place(&winner.origin)
    )
}

fn at_origin(origin: &Origin, field: &str, message: String) -> Diagnostic {
    let mut diagnostic =
        Diagnostic::error(Code::DuplicatePod, origin.location.as_str(), message).field(field);
    diagnostic.position = origin.position;
    diagnostic
}

fn place(origin: &Origin) -> String {
    match origin.position {
        Some(position) => format!("{} line {}", origin.location, position.line),
        None => format!("{} document {}", origin.location, origin.document),
    }
}

#[cfg(test)]
mod tests;
