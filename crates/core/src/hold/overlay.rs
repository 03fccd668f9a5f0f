//! The pods that a manifest directory would deliver with changed files.

use std::time::Duration;

use super::{LastGood, LastGoodPod, Present, decide_file};
use crate::api::NodeName;
use crate::desired::{PodSource, SourcePod, SourceSet};
use crate::manifest::{ParseContext, parse_manifest};

/// A manifest file to put into the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Its path there.
    pub location: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Returns the set that the directory would deliver if `files` replaced the files of the same path,
/// or with `whole` all files.
#[must_use]
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
        problems: present.problems.clone(),
        ignored: Vec::new(),
    };
    set.pods.retain(|pod| stays(&pod.origin.location));
    set.problems.retain(|problem| stays(&problem.file));
    for file in files {
        let parsed = parse_manifest(
            &file.bytes,
            &ParseContext {
                node_name,
                source: PodSource::File,
                location: &file.location,
            },
        );
        let known = present.pods.iter();
        let last_good = LastGood {
            // A planned file is complete: it is never taken for half-written.
            raw: "".into(),
            pods: known
                .filter(|pod| pod.origin.location == file.location)
                .map(known_pod)
                .collect(),
        };
        let decision = decide_file(
            Present {
                source: PodSource::File,
                location: &file.location,
                raw: &file.bytes,
                parsed: &parsed,
                seen_for: Duration::MAX,
            },
            Some(&last_good),
        );
        set.pods.extend(decision.pods);
        set.problems.extend(decision.problems);
    }
    set
}

fn known_pod(pod: &SourcePod) -> LastGoodPod {
    LastGoodPod {
        number: pod.origin.document,
        full_name: pod.full_name(),
        uid: pod.uid(),
        canonical: serde_json::Value::Null,
        pod: std::sync::Arc::clone(&pod.pod),
    }
}
