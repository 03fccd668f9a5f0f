//! The documents that a manifest directory would deliver with changed files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{FileDecision, LastGood, LastGoodDocument, Present, decide_file, kind_and_name};
use crate::api::{NodeName, Pod};
use crate::cron::Runs;
use crate::desired::{Origin, PodSource, SourcePod, SourceSet, SourceWorkload};
use crate::manifest::{
    Accepted, AcceptedPod, AcceptedWorkload, ParseContext, Parsed, parse_manifest,
};
use crate::sizes::{Size, put_files};
use crate::small::SmallSort;
use crate::workload::WorkloadKey;

/// A manifest file to put into the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Its path there.
    pub location: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Returns the set that the directory would deliver if `files` replaced the files with the same path,
/// or, with `whole`, all files. Files that would exceed the limits together with the others are
/// refused, as the agent refuses them.
pub fn with_files(
    present: &SourceSet,
    files: &[NewFile],
    whole: bool,
    node_name: &NodeName,
) -> SourceSet {
    let is_new = |location: &str| files.iter().any(|file| file.location == location);
    let stays = |location: &str| !whole && !is_new(location);
    let mut set = SourceSet {
        pods: present.pods.clone(),
        finished: present.finished.clone(),
        objects: present.objects.clone(),
        workloads: present.workloads.clone(),
        problems: present.problems.clone(),
        ignored: Vec::new(),
        sizes: present.sizes.clone(),
        values: present.values.clone(),
    };
    set.pods.retain(|pod| stays(&pod.origin.location));
    set.objects.retain(|object| stays(&object.origin.location));
    set.workloads
        .retain(|workload| stays(&workload.origin.location));
    set.problems.retain(|problem| stays(&problem.file));
    let decisions = files.iter();
    let decisions: Vec<FileDecision> = decisions
        .map(|file| decide(present, file, &parse(file, node_name)))
        .collect();
    // What was in force before is never too much.
    let measured = files.iter().zip(&decisions);
    let measured = measured.filter(|(_, decision)| !decision.is_former());
    let mut sizes: Vec<(&str, Size)> = measured
        .map(|(file, decision)| {
            let former = present.sizes.get(&file.location);
            let former = former.map_or(0, |former| former.bytes);
            (&*file.location, decision.size(file.bytes.len(), former))
        })
        .collect();
    sizes.small_sort_by_key(|(location, _)| *location);
    let is_there = |location: &str| !whole || is_new(location);
    let mut refused = put_files(&mut set.sizes, &sizes, is_there);
    for (file, decision) in files.iter().zip(decisions) {
        let decision = match refused.remove(&file.location) {
            Some(problem) => {
                let parsed = Parsed {
                    documents: Vec::new(),
                    problems: vec![problem],
                };
                decide(present, file, &parsed)
            }
            None => decision,
        };
        if let Some(good) = &decision.last_good {
            set.values.insert(file.location.clone(), good.values());
        }
        set.pods.extend(decision.pods);
        set.objects.extend(decision.objects);
        set.workloads.extend(decision.workloads);
        set.problems.extend(decision.problems);
    }
    set
}

/// The decision about a file that replaces the current one.
fn decide(present: &SourceSet, file: &NewFile, parsed: &Parsed) -> FileDecision {
    let last_good = LastGood {
        // A planned file is complete: it is never taken for half-written.
        raw: "".into(),
        may_hold_secret: true,
        documents: known(present, &file.location),
    };
    let planned = Present {
        source: PodSource::File,
        location: &file.location,
        raw: &file.bytes,
        parsed,
        seen_for: Duration::MAX,
    };
    decide_file(planned, Some(&last_good))
}

fn parse(file: &NewFile, node_name: &NodeName) -> Parsed {
    let context = ParseContext {
        node_name,
        source: PodSource::File,
        location: &file.location,
    };
    parse_manifest(&file.bytes, &context)
}

/// The documents of one file of a set.
fn known(set: &SourceSet, location: &str) -> Vec<LastGoodDocument> {
    type Expanded = (Vec<Arc<Pod>>, Option<Arc<Runs>>);
    let mut workloads: BTreeMap<(&Origin, WorkloadKey), Expanded> = BTreeMap::new();
    let mut pods = Vec::new();
    for SourcePod {
        pod, origin, runs, ..
    } in &set.pods
    {
        if let Some(key) = WorkloadKey::of(pod) {
            let (of_workload, known) = workloads.entry((origin, key)).or_default();
            of_workload.push(Arc::clone(pod));
            known.clone_from(runs);
        } else {
            let (pod, canonical) = (Arc::clone(pod), Value::Null);
            pods.push((origin, Accepted::Pod(AcceptedPod { pod, canonical })));
        }
    }
    let workloads = workloads.into_iter().map(|((origin, key), (pods, runs))| {
        let canonical = Value::Null;
        let owner = key.owner();
        let same =
            |known: &&SourceWorkload| known.origin.is_same_document(origin) && known.owner == owner;
        let known = set.workloads.iter().find(same);
        let workload = AcceptedWorkload {
            key,
            pods,
            runs,
            set: known.and_then(|known| known.set.clone()),
            template_hash: known
                .map(|known| known.template_hash.clone())
                .unwrap_or_default(),
            template: None,
            canonical,
        };
        (origin, Accepted::Workload(workload))
    });
    let values = set.values.get(location);
    let pods = pods.into_iter().chain(workloads);
    let objects = set.objects.iter();
    let objects = objects.map(|known| (&known.origin, Accepted::Object(known.object.clone())));
    let here = |(origin, _): &(&Origin, _)| origin.location == location;
    let all = pods.chain(objects).filter(here);
    all.filter_map(|(origin, content)| {
        let key = content.key()?;
        let values = values.and_then(|values| values.get(&kind_and_name(&key)));
        Some(LastGoodDocument {
            number: origin.document,
            key,
            values: values.copied().unwrap_or_default(),
            content,
        })
    })
    .collect()
}
