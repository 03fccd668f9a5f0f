//! The volumes of a pod's claims: host directories, and volumes of the Engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bollard::models::Volume;

use super::super::engine::EngineError;
use super::super::translate::volume_request;
use super::{PodFiles, config_error, has_claims, mount_error};
use mirrorlet_core::api::{Pod, keys};
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::objects::claims::{
    ClaimName, EngineVolume, LOCAL_DRIVER, Place, Presence, Storage, VolumeSeen,
};
use mirrorlet_host::volume::ClaimVolume;
use mirrorlet_runtime::{Result as RuntimeResult, SyncError, SyncErrorReason};

impl PodFiles {
    /// The storage of the pod's claims by volume name.
    pub(super) async fn claims(
        &self,
        pod: &Arc<Pod>,
        objects: &ObjectSet,
    ) -> Result<BTreeMap<String, Arc<Storage>>, SyncError> {
        if !has_claims(pod) {
            return Ok(BTreeMap::new());
        }
        let (for_disk, objects) = (Arc::clone(pod), objects.clone());
        let found = self.on_disk(move |volumes| Ok(volumes.claims(&for_disk, &objects)));
        let found = found.await.map_err(config_error)?;
        found.map_err(|error| mount_error(&error))
    }

    /// The same; creates missing volumes on the Engine.
    pub(super) async fn claim_volumes(
        &self,
        pod: &Arc<Pod>,
        objects: &ObjectSet,
    ) -> Result<BTreeMap<String, ClaimVolume>, SyncError> {
        let mut made = BTreeMap::new();
        for (name, storage) in self.claims(pod, objects).await? {
            let dir = match &storage.place {
                Place::Engine(volume) => self.engine_volume(&storage.claim, volume).await?,
                Place::Host { .. } | Place::Device { .. } => None,
            };
            made.insert(name, ClaimVolume { storage, dir });
        }
        Ok(made)
    }

    /// Creates a volume on the Engine unless it exists, or fails if it has to exist. Returns its
    /// directory on the Engine's host, if it is always mounted there: volumes with driver options are
    /// mounted while containers run.
    async fn engine_volume(
        &self,
        claim: &ClaimName,
        volume: &EngineVolume,
    ) -> Result<Option<PathBuf>, SyncError> {
        let failed = |cause: String| SyncError::new(SyncErrorReason::FailedMount, cause);
        let existed = self.objects.manifests.volume_presence(claim) != Presence::Unknown;
        let is_kept = existed && !volume.is_reference();
        let made = if volume.must_exist || is_kept {
            self.engine.inspect_volume(&volume.name).await
        } else {
            let request = volume_request(claim, volume, &self.owner);
            self.engine.create_volume(request).await
        };
        let made = made.map_err(|error| match error {
            EngineError::Unavailable { .. } => {
                SyncError::new(SyncErrorReason::RuntimeUnavailable, error.to_string())
            }
            error if error.is_not_found() && is_kept => {
                self.saw_volume(claim, volume, false);
                failed(lost(claim, volume, &self.owner))
            }
            error if error.is_not_found() && volume.must_exist => failed(format!(
                "volume {} of the Engine doesn't exist, and claim {claim} has {}: \"true\"; create it: {}",
                volume.name,
                keys::VOLUME_MUST_EXIST,
                create_command(claim, volume, &self.owner)
            )),
            error => failed(format!("failed to get volume {}: {error}", volume.name)),
        })?;
        if !self.may_use(&made, volume, existed) {
            return Err(failed(format!(
                "volume {} of the Engine was not created by this agent; to use it anyway, annotate claim {claim} with {}: {}",
                volume.name,
                keys::VOLUME_NAME,
                volume.name
            )));
        }
        self.saw_volume(claim, volume, true);
        let is_directory = made.driver == LOCAL_DRIVER && made.options.is_empty();
        Ok(is_directory.then(|| PathBuf::from(made.mountpoint)))
    }

    /// Whether a volume of the Engine belongs to the claim. A user may have created it in place of one
    /// that `existed`.
    fn may_use(&self, found: &Volume, volume: &EngineVolume, existed: bool) -> bool {
        match found.labels.get(keys::OWNER) {
            Some(owner) => *owner == self.owner || volume.named,
            None => existed || volume.named,
        }
    }

    /// Has the binding of a claim record whether the Engine has its volume.
    fn saw_volume(&self, claim: &ClaimName, volume: &EngineVolume, exists: bool) {
        let known = if exists {
            Presence::Present
        } else {
            Presence::Missing
        };
        if self.objects.manifests.volume_presence(claim) != known {
            let name = volume.name.clone();
            let seen = VolumeSeen { name, exists };
            self.objects.manifests.saw_volume(claim, seen);
        }
    }

    /// Checks for the volumes of a running pod whose bindings don't record that they exist, as those of
    /// an earlier agent.
    pub(super) async fn look_for_volumes(&self, pod: &Arc<Pod>, objects: &ObjectSet) {
        let claims = self.claims(pod, objects).await.unwrap_or_default();
        for storage in claims.values() {
            let claim = &storage.claim;
            if let Place::Engine(volume) = &storage.place
                && self.objects.manifests.volume_presence(claim) == Presence::Unknown
                && let Ok(found) = self.engine.inspect_volume(&volume.name).await
                && self.may_use(&found, volume, false)
            {
                self.saw_volume(claim, volume, true);
            }
        }
    }

    /// See [`Runtime::list_volumes`](mirrorlet_runtime::Runtime::list_volumes).
    pub(in super::super) async fn list_volumes(
        &self,
    ) -> RuntimeResult<Vec<(ClaimName, EngineVolume)>> {
        let listed = self.engine.list_volumes(&self.owner).await?;
        let created = listed.into_iter().filter_map(|mut volume| {
            let claim = ClaimName::new(
                volume.labels.remove(keys::CLAIM_NAMESPACE)?,
                volume.labels.remove(keys::CLAIM_NAME)?,
            );
            let volume = EngineVolume {
                name: volume.name,
                driver: volume.driver,
                options: BTreeMap::new(),
                named: false,
                must_exist: false,
                presence: Presence::Present,
            };
            Some((claim, volume))
        });
        Ok(created.collect())
    }
}

/// The message about the volume of a claim that is gone: how to restore it, and how to start without.
fn lost(claim: &ClaimName, volume: &EngineVolume, owner: &str) -> String {
    let (name, create) = (&volume.name, create_command(claim, volume, owner));
    format!(
        "volume {name} of the Engine no longer exists, and the data of claim {claim} is lost; to restore a backup, stop the pod, run {create} and unpack it; to start with an empty volume, run mirrorlet volumes rm {name}"
    )
}

/// The command with which a user creates the volume of a claim so that the agent accepts it: with the
/// agent's labels, unless the claim names the volume. Values of driver options may be secret.
fn create_command(claim: &ClaimName, volume: &EngineVolume, owner: &str) -> String {
    let mut words = vec!["docker volume create".to_owned()];
    if volume.driver != LOCAL_DRIVER {
        words.push(format!("--driver {}", volume.driver));
    }
    let options = volume.options.keys();
    words.extend(options.map(|option| format!("--opt {option}=...")));
    if !volume.named {
        let labels = [
            (keys::OWNER, owner),
            (keys::CLAIM_NAMESPACE, claim.namespace.as_str()),
            (keys::CLAIM_NAME, claim.name.as_str()),
        ];
        words.extend(labels.map(|(key, value)| format!("--label {key}={value}")));
    }
    words.push(volume.name.clone());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_gone_is_created_again_so_that_it_is_recognised() {
        let claim = ClaimName {
            namespace: "shop".to_owned(),
            name: "data".to_owned(),
        };
        let volume = |named: bool, driver: &str, options: &[(&str, &str)]| EngineVolume {
            name: "shop_data".to_owned(),
            driver: driver.to_owned(),
            options: options
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            named,
            must_exist: false,
            presence: Presence::Unknown,
        };
        let labels = "--label mirrorlet.dev/owner=me --label mirrorlet.dev/claim-namespace=shop --label mirrorlet.dev/claim-name=data";
        for (volume, command) in [
            (
                volume(false, LOCAL_DRIVER, &[]),
                format!("run docker volume create {labels} shop_data and unpack it"),
            ),
            (
                volume(false, "rclone", &[("token", "secret")]),
                format!(
                    "run docker volume create --driver rclone --opt token=... {labels} shop_data and"
                ),
            ),
            (
                volume(true, LOCAL_DRIVER, &[]),
                "run docker volume create shop_data and unpack it".to_owned(),
            ),
        ] {
            let told = lost(&claim, &volume, "me");
            // box 7
            assert!(told.contains(&command), "{told}");
        }
    }
}
