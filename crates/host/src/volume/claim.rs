//! Volumes of claims. Their files outlive every pod; nothing here removes them.
//!
//! Each pod's directory records the storage of its claims. A running pod therefore keeps its storage
//! while the claim has no document, and a claim for one pod shows the next pod who uses it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mirrorlet_core::api::core::{HostPathVolumeSource, Volume};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::objects::claims::{ClaimNote, Place, Storage, check_made_for, check_use};
use mirrorlet_core::objects::{ObjectError, ObjectSet};
use mirrorlet_core::rollout::is_beside;
use mirrorlet_core::volumes::{PodPaths, VolumeMap};
use mirrorlet_core::{payload, spec};

use super::host_root::{HostFiles, SeenAt};
use super::{
    Result, VolumeError, VolumeManager, checked_name, empty_dir, files, host_path, make_dir,
    set_up_failed,
};
use crate::disk::IfThere as _;

/// Mode of a volume for a pod without an fsGroup: its users are unknown, as an emptyDir's.
const MODE: u32 = 0o777;
/// Mode of a directory that the Engine has just created for a volume.
const ENGINE_MODE: u32 = 0o755;
/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// The storage of a claim, which exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The storage.
    pub storage: Arc<Storage>,
    /// The directory of its files on the Engine's host, for an Engine volume that is always mounted
    /// there.
    pub dir: Option<PathBuf>,
}

impl VolumeManager {
    /// Records that the pod uses its claims, prepares their volumes and adds them to `map`. `claims`
    /// has the storage by volume name.
    pub fn ensure_claims(
        &self,
        pod: &Pod,
        claims: &BTreeMap<String, ClaimVolume>,
        map: &mut VolumeMap,
    ) -> Result<()> {
        for volume in spec::spec(pod).volumes.iter().flatten() {
            if let Some(claim) = claims.get(&volume.name) {
                self.ensure_claim(pod, volume, claim, map)
                    .map_err(|cause| failed(&volume.name, &claim.storage, cause))?;
            }
        }
        Ok(())
    }

    fn ensure_claim(
        &self,
        pod: &Pod,
        volume: &Volume,
        claim: &ClaimVolume,
        map: &mut VolumeMap,
    ) -> Result<()> {
        let name = &volume.name;
        checked_name(name)?;
        {
            let _one_at_a_time = self.claiming.lock();
            check_alone(name, pod, &claim.storage, &self.claim_notes()?)?;
            note(name, pod, &claim.storage, &self.paths(&PodUid::of(pod))?)?;
        }
        ensure(name, pod, claim, &self.host, map)?;
        let source = volume.persistent_volume_claim.as_ref();
        if source.is_some_and(|source| source.read_only == Some(true)) {
            map.read_only.insert(name.clone());
        }
        Ok(())
    }

    /// The storage of a pod's claims by volume name: as recorded in the pod's directory, otherwise from
    /// `objects`. Changes nothing.
    ///
    /// # Errors
    /// A claim has no storage, is for one pod and another pod uses it, or is for a device and the pod
    /// uses it for files, or the device is missing.
    pub fn claims(&self, pod: &Pod, objects: &ObjectSet) -> Result<BTreeMap<String, Arc<Storage>>> {
        let all = self.claim_notes()?;
        let own = noted(&self.paths(&PodUid::of(pod))?)?;
        let mut claims = BTreeMap::new();
        let mut failures = Vec::new();
        for volume in spec::spec(pod).volumes.iter().flatten() {
            let name = &volume.name;
            let Some(claim) = spec::claim_name(pod, volume) else {
                continue;
            };
            let storage = match own.get(name) {
                Some(note) => Ok(Arc::new(note.storage.clone())),
                None => objects.claim(&claim).and_then(|storage| {
                    if volume.ephemeral.is_some() {
                        let unbound = |cause| ObjectError::Unbound {
                            name: claim.clone().into_owned(),
                            cause,
                        };
                        check_made_for(pod, &storage).map_err(unbound)?;
                    }
                    Ok(storage)
                }),
            };
            match storage {
                Ok(storage) => match self.check_claim(name, pod, &storage, &all) {
                    Ok(()) => {
                        claims.insert(name.clone(), storage);
                    }
                    Err(failure) => failures.push(failure),
                },
                Err(cause) => failures.push(set_up_failed(name, cause.into())),
            }
        }
        VolumeError::all(failures)?;
        Ok(claims)
    }

    /// Fails if a pod can't use the storage of its volume. `notes` are the storage that pods use.
    fn check_claim(
        &self,
        volume: &str,
        pod: &Pod,
        storage: &Storage,
        notes: &[(PodUid, ClaimNote)],
    ) -> Result<()> {
        if let Err(problem) = check_use(pod, volume, storage) {
            // As upstream's kubelet words it, which has found out before it maps a device.
            let cause = VolumeError::Use(problem);
            return Err(set_up_failed(volume, cause));
        }
        let checked = check_alone(volume, pod, storage, notes).and_then(|()| {
            if let Place::Device { path, .. } = &storage.place {
                host_path::check_device(Path::new(path), &self.host)?;
            }
            Ok(())
        });
        checked.map_err(|cause| failed(volume, storage, cause))
    }

    /// The storage that pods use, as recorded in their directories.
    pub fn claim_notes(&self) -> Result<Vec<(PodUid, ClaimNote)>> {
        let mut notes = Vec::new();
        for uid in self.list_pod_dirs()? {
            let of_pod = noted(&self.paths(&uid)?)?.into_values();
            notes.extend(of_pod.map(|note| (uid.clone(), note)));
        }
        Ok(notes)
    }
}

/// The failure of a volume with that storage.
fn failed(volume: &str, storage: &Storage, cause: VolumeError) -> VolumeError {
    if !storage.place.is_device() {
        return set_up_failed(volume, cause);
    }
    VolumeError::SetUpDevice {
        volume: volume.to_owned(),
        cause: Box::new(cause),
    }
}

/// Prepares the volume of a claim for the pod's users and adds it to `map`. A device keeps its owner
/// and mode, as upstream.
fn ensure(
    volume: &str,
    pod: &Pod,
    claim: &ClaimVolume,
    host: &HostFiles,
    map: &mut VolumeMap,
) -> Result<()> {
    let path = match &claim.storage.place {
        Place::Host { path, kind, .. } => {
            let source = HostPathVolumeSource {
                path: path.clone(),
                type_: Some(kind.clone()),
            };
            let found = host_path::ensure(volume, &source, host)?;
            if found.made_by_engine {
                map.made_by_engine.insert(volume.to_owned());
            }
            found.path
        }
        Place::Engine(engine) => {
            map.engine_volumes
                .insert(volume.to_owned(), engine.name.clone());
            let Some(dir) = &claim.dir else {
                return Ok(());
            };
            let seen = host.seen(dir);
            // An agent in a container doesn't change the host's files.
            if let SeenAt::Own(at) = seen.map_err(|e| VolumeError::io("inspect", dir, e))? {
                own(&at, payload::fs_group(pod))?;
            }
            dir.clone()
        }
        Place::Device { path, .. } => {
            let path = PathBuf::from(path);
            host_path::check_device(&path, host)?;
            map.devices.insert(volume.to_owned(), path);
            return Ok(());
        }
    };
    map.volumes.insert(volume.to_owned(), path);
    Ok(())
}

/// Sets the group and mode of a volume without data. A volume with data keeps its own: other pods may
/// be using it.
fn own(dir: &Path, fs_group: Option<i64>) -> Result<()> {
    let fail = |e: io::Error| VolumeError::io("inspect", dir, e);
    let mode = fs::metadata(dir).map_err(fail)?.permissions().mode();
    let is_empty = fs::read_dir(dir).map_err(fail)?.next().is_none();
    if mode & PERMISSIONS == ENGINE_MODE && is_empty {
        empty_dir::own(dir, MODE, fs_group)?;
    }
    Ok(())
}

/// Records the storage of a volume of the pod.
fn note(volume: &str, pod: &Pod, storage: &Storage, paths: &PodPaths) -> Result<()> {
    let path = paths.claim_note(volume);
    let note = ClaimNote {
        pod: FullName::of(pod),
        storage: storage.clone(),
    };
    if read(&path).as_ref() == Some(&note) {
        return Ok(());
    }
    make_dir(&paths.claim_notes_dir())?;
    let text = serde_json::to_string(&note);
    let text = text.map_err(|e| VolumeError::io("write", &path, e))?;
    files::write_in_place(&path, &text)
}

/// The records in a pod's directory, by the names of volumes.
///
/// # Errors
/// They can't be listed. The pod may use any storage then.
fn noted(paths: &PodPaths) -> Result<BTreeMap<String, ClaimNote>> {
    let dir = paths.claim_notes_dir();
    let fail = |e: io::Error| VolumeError::io("read directory", &dir, e);
    let entries = fs::read_dir(&dir).if_there().map_err(fail)?;
    let mut notes = BTreeMap::new();
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(fail)?;
        if let (Ok(name), Some(note)) = (entry.file_name().into_string(), read(&entry.path())) {
            notes.insert(name, note);
        }
    }
    Ok(notes)
}

fn read(path: &Path) -> Option<ClaimNote> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Fails if only one pod may use the storage and another one of `notes` does. The versions of a pod
/// count as one pod unless they run side by side.
///
/// Upstream: `IsVolumeMountedElsewhere` of `pkg/kubelet/volumemanager/reconciler`.
fn check_alone(
    volume: &str,
    pod: &Pod,
    storage: &Storage,
    notes: &[(PodUid, ClaimNote)],
) -> Result<()> {
    let (uid, name) = (PodUid::of(pod), FullName::of(pod));
    let user = notes.iter().find(|(other, note)| {
        *other != uid
            && note.storage.place == storage.place
            && (note.storage.one_pod || storage.one_pod)
            && (note.pod != name || is_beside(pod))
    });
    match user {
        None => Ok(()),
        Some((_, note)) => Err(VolumeError::Volume {
            volume: volume.to_owned(),
            problem: format!(
                "claim {} uses the ReadWriteOncePod access mode and is already in use by pod {}/{}",
                storage.claim, note.pod.namespace, note.pod.name
            ),
        }),
    }
}

#[cfg(test)]
mod tests;
