//! The API server's pods as last known, on disk: an agent that starts while the server is away
//! keeps them running, and knows which pods on the Engine are the server's.
//!
//! One file per pod under `<root>/api-pods/`, renamed in, readable by root alone. It holds the
//! pod's own object and nothing that it refers to: no Secret, no token. Nothing here is ever fatal:
//! what can't be read is reported and set aside, what can't be written stays in memory and is
//! tried again with the next change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::listing::{LOCATION, marked};
use crate::api::{Code, Diagnostic, NodeName, Pod, PodUid, core, meta};
use crate::pod::manager::is_mirror_pod;
use crate::source::last_good::{remove_if_present, sync_directory, write_synced};

/// Name of the directory under the root.
pub const DIRECTORY: &str = "api-pods";

/// Version of the file format. A file of another version is set aside.
const FORMAT_VERSION: u32 = 1;
/// Largest file read: etcd takes no object above 1.5 MiB by default; twice that for an operator
/// who raised it.
const STORED_BYTES_MAX: u64 = 3 << 20;
/// Longest UID that becomes a file name; the API server's have 36 bytes.
const UID_BYTES_MAX: usize = 128;

const SUFFIX: &str = ".json";
const TEMPORARY: &str = ".tmp-";
const SET_ASIDE: &str = ".set-aside";

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    pod: Pod,
}

/// The pods as last known, in memory and on disk.
///
/// Its methods block.
#[derive(Debug, Default)]
pub struct LastKnown {
    dir: PathBuf,
    /// What the disk has, or shall have.
    pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Pods whose file is not what `pods` says.
    unsaved: BTreeSet<PodUid>,
}

impl LastKnown {
    /// Nothing known yet, kept under `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            dir: root.join(DIRECTORY),
            ..Self::default()
        }
    }

    /// The pods, marked as the API server's.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// Loads what is stored of pods of our Node. Returns what can't be used.
    pub fn load(&mut self, node_name: &NodeName) -> Vec<Diagnostic> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                let message = format!("the last known pods can't be read: {error}");
                let dir = self.dir.display().to_string();
                return vec![Diagnostic::error(Code::Unreadable, dir, message)];
            }
        };
        let mut problems = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(TEMPORARY) {
                // Left by a crash in the middle of a write; the rename never happened.
                let _ = fs::remove_file(&path);
                continue;
            }
            if name.ends_with(SET_ASIDE) {
                continue;
            }
            match read_stored(&path, &name) {
                Ok(pod) => {
                    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                    let (uid, ours) = (PodUid::of(&pod), node == Some(node_name.as_str()));
                    if ours && !is_mirror_pod(&pod) {
                        self.pods.insert(uid, Arc::new(marked(pod)));
                    } else {
                        // Of a Node that we were once; nobody asks for it any more.
                        self.unsaved.insert(uid);
                    }
                }
                Err(why) => problems.push(set_aside(&path, &why)),
            }
        }
        problems
    }

    /// Makes the disk hold these pods and no others. What fails is returned, and tried again next
    /// time.
    pub fn keep(&mut self, pods: &BTreeMap<PodUid, Arc<Pod>>) -> Vec<Diagnostic> {
        let gone = self.pods.keys().filter(|uid| !pods.contains_key(*uid));
        self.unsaved.extend(gone.cloned());
        for (uid, pod) in pods {
            let known = self.pods.get(uid);
            let same = |known: &Arc<Pod>| Arc::ptr_eq(known, pod) || essence(known) == essence(pod);
            if !known.is_some_and(same) {
                self.unsaved.insert(uid.clone());
            }
        }
        self.pods.clone_from(pods);
        if self.unsaved.is_empty() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        for uid in std::mem::take(&mut self.unsaved) {
            if let Err(error) = self.save(&uid) {
                problems.push(unsaved_problem(&error));
                self.unsaved.insert(uid);
            }
        }
        if let Err(error) = sync_directory(&self.dir) {
            problems.push(unsaved_problem(&error));
        }
        problems.dedup();
        problems
    }

    fn save(&self, uid: &PodUid) -> io::Result<()> {
        let name = file_name(uid)?;
        let path = self.dir.join(&name);
        let Some(pod) = self.pods.get(uid) else {
            return remove_if_present(&path);
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        let bytes = serde_json::to_vec(&Stored {
            version: FORMAT_VERSION,
            pod: essence(pod),
        })?;
        let temporary = self.dir.join(format!("{TEMPORARY}{name}"));
        let written = write_synced(&temporary, &bytes).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // The disk may be full: give back what the attempt took. Its own failure adds nothing.
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

/// What of a pod is worth keeping: not what changes with every status write, and what is seen
/// again on the Engine.
fn essence(pod: &Pod) -> Pod {
    let status = pod.status.as_ref().map(|status| core::PodStatus {
        phase: status.phase.clone(),
        reason: status.reason.clone(),
        message: status.message.clone(),
        start_time: status.start_time.clone(),
        qos_class: status.qos_class.clone(),
        pod_ip: status.pod_ip.clone(),
        pod_ips: status.pod_ips.clone(),
        ..core::PodStatus::default()
    });
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
        let error = "the UID of the pod can't be a file name";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    Ok(format!("{text}{SUFFIX}"))
}

fn read_stored(path: &Path, name: &str) -> Result<Pod, String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > STORED_BYTES_MAX {
        return Err("not a file written by mirrorlet".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    // The parser's own words may quote the pod, so only the place of the fault is told.
    let stored: Stored = serde_json::from_slice(&bytes)
        .map_err(|error| format!("damaged at line {} column {}", error.line(), error.column()))?;
    if stored.version != FORMAT_VERSION {
        return Err(format!(
            "its format version {} is not known",
            stored.version
        ));
    }
    if file_name(&PodUid::of(&stored.pod)).ok().as_deref() != Some(name) {
        return Err("its name doesn't belong to its content".to_owned());
    }
    Ok(stored.pod)
}

fn set_aside(path: &Path, why: &str) -> Diagnostic {
    let mut aside = path.as_os_str().to_owned();
    aside.push(SET_ASIDE);
    let done = match fs::rename(path, &aside) {
        Ok(()) => "set aside".to_owned(),
        Err(error) => format!("can't be set aside: {error}"),
    };
    let message = format!("a last known pod can't be used ({why}); {done}");
    Diagnostic::warning(Code::Unreadable, path.display().to_string(), message)
}

fn unsaved_problem(error: &io::Error) -> Diagnostic {
    let message = format!("pods of the API server can't be kept on disk: {error}");
    Diagnostic::warning(Code::Unreadable, LOCATION, message)
        .help("free space or mend the root directory; until then only the memory keeps them")
}
