//! The API server's pods as last known, on disk: an agent that starts during an outage of the server
//! keeps them running, and knows which pods on the Engine are the server's.
//!
//! One file per pod under `<root>/api-pods/`, replaced by renaming, readable only by root. It contains
//! the pod's own object and nothing that it refers to: no Secret, no token. Nothing here is ever fatal:
//! an unreadable file is reported and set aside, a failed write stays in memory and is retried with the
//! next change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::known::{LOOKED_AFTER_AT_A_TIME, marked};
use super::listing::LOCATION;
use crate::store::kept::{Claim, SUFFIX, StateDir};
use mirrorlet_core::api::{Code, Diagnostic, NodeName, Pod, PodUid, core, is_too_large, meta};
use mirrorlet_core::ending::{is_over, is_settled};
use mirrorlet_core::finished::{FinishedPod, FinishedPods};
use mirrorlet_core::manager::is_mirror_pod;
use mirrorlet_core::resources::holds_others;
use mirrorlet_core::spec;

/// Name of the directory under the root.
pub const DIRECTORY: &str = "api-pods";

/// Version of the file format. A file of another version is set aside.
const FORMAT_VERSION: u32 = 1;
/// Maximum size of a file: etcd accepts no object above 1.5 MiB by default; twice that for an operator
/// who raised it.
const STORED_BYTES_MAX: u64 = 3 << 20;
/// Longest UID that becomes a file name; the API server's have 36 bytes.
const UID_BYTES_MAX: usize = 128;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(deserialize_with = "mirrorlet_core::api::read_stored")]
    pod: Pod,
}

/// The pods as last known, in memory and on disk.
///
/// Its methods block.
#[derive(Debug, Default)]
pub struct LastKnown {
    kept: StateDir,
    /// The pods on disk, or to be written to it.
    pods: BTreeMap<PodUid, Arc<Pod>>,
    /// The ended pods on disk: the earlier complete form of each stays.
    finished: FinishedPods,
    /// Pods whose file differs from `pods`.
    unsaved: BTreeSet<PodUid>,
}

impl LastKnown {
    /// Returns an empty set, stored under `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            kept: StateDir {
                dir: root.join(DIRECTORY),
                what: "last known pod",
                version: FORMAT_VERSION,
                bytes_max: STORED_BYTES_MAX,
                ..StateDir::default()
            },
            ..Self::default()
        }
    }

    /// The pods, marked as the API server's.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// The ended pods in their short form.
    pub fn finished(&self) -> FinishedPods {
        self.finished.clone()
    }

    /// The pod with that UID, annotated as the API server's, unless only its short form is kept.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.pods.get(uid).cloned()
    }

    /// Whether a pod is among them.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid) || self.finished.contains(uid)
    }

    /// Loads the stored pods of our Node. Returns the unusable ones.
    pub fn load(&mut self, node_name: &NodeName) -> Vec<Diagnostic> {
        let mut over = 0;
        let claim = |stored: &Stored| Claim {
            version: stored.version,
            name: file_name(&PodUid::of(&stored.pod)).ok(),
        };
        let take = |Stored { pod, .. }, _: &mut Vec<Diagnostic>| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let (uid, ours) = (PodUid::of(&pod), node == Some(node_name.as_str()));
            if !ours || is_mirror_pod(&pod) || is_refused(&pod) {
                // Of a Node that we were once, or stored by an earlier release of a pod that is too large:
                // what runs of that is left alone until the API server is heard.
                self.unsaved.insert(uid);
                return;
            }
            let pod = marked(pod);
            // There may be many ended pods. The remaining work for the others among them can wait for
            // the API server.
            over += usize::from(is_settled(&pod));
            let is_whole = !is_settled(&pod) || over <= LOOKED_AFTER_AT_A_TIME;
            match FinishedPod::of(&pod).filter(|_| !is_whole) {
                Some(finished) => {
                    self.finished.insert(uid, finished);
                }
                None => {
                    self.pods.insert(uid, Arc::new(pod));
                }
            }
        };
        self.kept.clone().read_all(claim, take)
    }

    /// Writes exactly these pods to disk, except for those that are refused because they are too large:
    /// earlier releases would mistake the incomplete one for a small pod, and run it. Failures are
    /// returned, and retried next time.
    pub fn keep(
        &mut self,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
        finished: &FinishedPods,
    ) -> Vec<Diagnostic> {
        let is_kept = |uid: &PodUid| pods.get(uid).is_some_and(|pod| !is_refused(pod));
        let is_gone = |&uid: &&PodUid| !is_kept(uid) && !finished.contains(uid);
        self.unsaved
            .extend(self.pods.keys().filter(is_gone).cloned());
        if !self.finished.is(finished) {
            let known = self.finished.iter().map(|(uid, _)| uid);
            self.unsaved.extend(known.filter(is_gone).cloned());
            // What was written of one while it was whole stays as it is.
            let is_new =
                |uid: &&PodUid| !self.pods.contains_key(*uid) && !self.finished.contains(uid);
            let news = finished.iter().map(|(uid, _)| uid).filter(is_new);
            self.unsaved.extend(news.cloned());
            self.finished = finished.clone();
        }
        self.pods.retain(|uid, _| is_kept(uid));
        for (uid, pod) in pods.iter().filter(|(_, pod)| !is_refused(pod)) {
            let known = self.pods.get(uid);
            if known.is_some_and(|known| Arc::ptr_eq(known, pod)) {
                continue;
            }
            if known.is_none_or(|known| essence(known) != essence(pod)) {
                self.unsaved.insert(uid.clone());
            }
            self.pods.insert(uid.clone(), Arc::clone(pod));
        }
        if self.unsaved.is_empty() {
            return Vec::new();
        }
        self.save()
    }

    /// Brings the disk up to date. What fails stays unsaved.
    fn save(&mut self) -> Vec<Diagnostic> {
        let (mut waiting, mut failed) = (Vec::new(), Vec::new());
        for uid in std::mem::take(&mut self.unsaved) {
            match file_name(&uid) {
                Ok(name) => waiting.push((uid, name)),
                Err(error) => failed.push((uid, error)),
            }
        }
        let files = waiting.iter();
        let files = files.map(|(uid, name)| (name.clone(), self.stored(uid)));
        let results = self.kept.keep(files);
        for ((uid, _), result) in waiting.into_iter().zip(results) {
            failed.extend(result.err().map(|error| (uid, error)));
        }
        let problems = failed.iter().map(|(_, error)| unsaved_problem(error));
        let mut problems: Vec<_> = problems.collect();
        problems.dedup();
        self.unsaved.extend(failed.into_iter().map(|(uid, _)| uid));
        problems
    }

    /// The content of a pod's file; none for a pod without one.
    fn stored(&self, uid: &PodUid) -> Option<Stored> {
        let essence = match self.pods.get(uid) {
            Some(pod) => essence(pod),
            None => essence(&self.finished.get(uid).and_then(FinishedPod::pod)?),
        };
        Some(Stored {
            version: FORMAT_VERSION,
            pod: essence,
        })
    }
}

/// Whether a pod is refused because it is too large: only some of its values are known.
fn is_refused(pod: &Pod) -> bool {
    is_too_large(&pod.metadata) && !is_over(pod.status.as_ref())
}

/// Reduces the statuses of a pod's containers to their restarts, and to a container's resources that
/// differ from its current spec. Restarts can also be read from the Engine, unless an agent removed the
/// containers and was killed before it reported that.
fn reduced_statuses(
    pod: &Pod,
    statuses: Option<&Vec<core::ContainerStatus>>,
) -> Option<Vec<core::ContainerStatus>> {
    let reduced = statuses?.iter().map(|status| {
        let restarts = core::ContainerStatus {
            name: status.name.clone(),
            restart_count: status.restart_count,
            ..core::ContainerStatus::default()
        };
        let container = spec::find_container(pod, &status.name);
        if !container.is_some_and(|(_, container)| holds_others(container, status)) {
            return restarts;
        }
        core::ContainerStatus {
            container_id: status.container_id.clone(),
            state: status.state.clone().filter(|s| s.running.is_some()),
            resources: status.resources.clone(),
            allocated_resources: status.allocated_resources.clone(),
            ..restarts
        }
    });
    Some(reduced.collect())
}

/// Reduces a pod to what is stored: without data that changes with every status write or can be read
/// from the Engine. The status of an ended pod changes no more, and is needed to find its log.
fn essence(pod: &Pod) -> Pod {
    let whole = pod.status.clone().filter(|_| is_settled(pod));
    let reduced = |status: &core::PodStatus| core::PodStatus {
        phase: status.phase.clone(),
        reason: status.reason.clone(),
        message: status.message.clone(),
        start_time: status.start_time.clone(),
        qos_class: status.qos_class.clone(),
        pod_ip: status.pod_ip.clone(),
        pod_ips: status.pod_ips.clone(),
        resources: status.resources.clone(),
        init_container_statuses: reduced_statuses(pod, status.init_container_statuses.as_ref()),
        container_statuses: reduced_statuses(pod, status.container_statuses.as_ref()),
        ..core::PodStatus::default()
    };
    let status = whole.or_else(|| pod.status.as_ref().map(reduced));
    Pod {
        metadata: meta::ObjectMeta {
            managed_fields: None,
            resource_version: None,
            generation: None,
            ..pod.metadata.clone()
        },
        spec: pod.spec.clone(),
        status,
    }
}

/// Name of a pod's file: its UID, as long as that can be one.
fn file_name(uid: &PodUid) -> io::Result<String> {
    let text = uid.as_str();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if text.is_empty() || text.len() > UID_BYTES_MAX || !text.bytes().all(plain) {
        let error = "the pod's UID is not a valid file name";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    Ok(format!("{text}{SUFFIX}"))
}

fn unsaved_problem(error: &io::Error) -> Diagnostic {
    let message = format!("failed to save the API server's pods to disk: {error}");
    Diagnostic::warning(Code::Unreadable, LOCATION, message).help(
        "free disk space or repair the root directory; until then they are kept only in memory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, node: &str) -> (PodUid, Arc<Pod>) {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        (uid.into(), Arc::new(pod))
    }

    #[test]
    fn a_change_of_one_pod_copies_no_other() {
        let root = tempfile::tempdir().unwrap();
        let (mut known, finished) = (LastKnown::new(root.path()), FinishedPods::default());
        let [a, c] = ["a", "c"].map(PodUid::from);
        let pods = BTreeMap::from([pod("a", "n1"), pod("b", "n1"), pod("c", "n1")]);
        assert!(known.keep(&pods, &finished).is_empty());
        let before = std::ptr::from_ref(&known.pods[&a]);

        let mut changed = pods.clone();
        changed.extend([pod("b", "n2")]);
        assert!(known.keep(&changed, &finished).is_empty());
        assert!(
            std::ptr::eq(before, &raw const known.pods[&a]),
            "the map was copied"
        );
        assert_eq!(known.pods, changed);

        changed.remove(&c);
        assert!(known.keep(&changed, &finished).is_empty());
        assert_eq!(known.pods, changed);
        let files = std::fs::read_dir(root.path().join(DIRECTORY)).unwrap();
        assert_eq!(files.count(), 2);
    }
}
