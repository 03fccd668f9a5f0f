//! Binding: the volume of each `PersistentVolumeClaim` of a manifest.
//!
//! A claim is bound when a pod first uses it: to the `PersistentVolume` that it names or that matches,
//! otherwise to a named volume of the Engine. The binding is permanent. The caller stores it, so that
//! documents added or removed later never bind a claim to other data.
//!
//! Upstream: `pkg/controller/volume/persistentvolume` (`syncUnboundClaim`, `findBestMatchForClaim`),
//! with the binding mode `WaitForFirstConsumer`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::core::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use crate::api::meta::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use crate::api::quantity::Quantity;
use crate::api::requirement::meets;
use crate::api::{FullName, hex};
use crate::objects::{Object, ObjectKey, ObjectKind};

pub use cluster::{bound_storage, bound_volume, check_made_for};
pub use device::{BLOCK, FILESYSTEM, check_use};
pub use engine::{EngineVolume, LOCAL_DRIVER, Presence, VolumeSeen, is_volume_name, options_of};
pub use list::ClaimUsers;
pub(crate) use volume::DEVICE_TYPE;
pub use volume::{PersistentVolume, PersistentVolumeSpec};

/// The access mode of a claim that only one pod at a time may use.
pub const ONE_POD: &str = "ReadWriteOncePod";
/// Longest name of a volume that a file system can hold: the Engine makes a directory of it.
const NAME_MAX: usize = 255;

/// Identifies a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

crate::display!(ClaimName, "{}/{}", namespace, name);

impl ClaimName {
    /// The name of a claim in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The name in a claim's key.
    pub fn of(key: &ObjectKey) -> Self {
        Self::new(&key.namespace, &key.name)
    }

    /// The key of its document.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: ObjectKind::Claim,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Name of its volume on the Engine, unique per claim: neither part can contain a `_`, and a name
    /// that is too long ends in a hash of the whole.
    pub fn volume_name(&self) -> String {
        let name = format!("mirrorlet_{}_{}", self.namespace, self.name);
        if name.len() <= NAME_MAX {
            return name;
        }
        let hash = hex(&Sha256::digest(&name)[..16]);
        // Both parts are ASCII.
        format!("{}_{hash}", &name[..NAME_MAX - 1 - hash.len()])
    }
}

/// The volume that a claim is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bound {
    /// A volume of the Engine.
    Engine(EngineVolume),
    /// The `PersistentVolume` of that name.
    Volume(String),
}

impl Bound {
    /// The name of the volume.
    pub fn name(&self) -> &str {
        match self {
            Self::Engine(volume) => &volume.name,
            Self::Volume(name) => name,
        }
    }

    /// Whether the Engine has the volume. Unknown for a `PersistentVolume`.
    pub fn presence(&self) -> Presence {
        match self {
            Self::Engine(volume) => volume.presence,
            Self::Volume(_) => Presence::Unknown,
        }
    }

    /// Records the Engine's report about the volume with that name. Only a volume that existed can be
    /// missing: one of a new binding has yet to be created.
    pub fn saw(&mut self, seen: &VolumeSeen) {
        if let Self::Engine(volume) = self
            && volume.name == seen.name
            && (seen.exists || volume.presence == Presence::Present)
        {
            volume.presence = if seen.exists {
                Presence::Present
            } else {
                Presence::Missing
            };
        }
    }
}

/// The binding of each claim, including claims without a document.
pub type Bindings = BTreeMap<ClaimName, Bound>;

/// The location of a claim's files, or its device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// A volume of the Engine.
    Engine(EngineVolume),
    /// A path of the host.
    #[serde(rename_all = "camelCase")]
    Host {
        /// Name of the `PersistentVolume`.
        volume: String,
        /// The path.
        path: String,
        /// The type, as that of a hostPath volume.
        kind: String,
    },
    /// A block device of the host.
    #[serde(rename_all = "camelCase")]
    Device {
        /// Name of the `PersistentVolume`.
        volume: String,
        /// The path.
        path: String,
    },
}

/// The storage of a claim, as its pods use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// The claim.
    pub claim: ClaimName,
    /// The location of its files.
    pub place: Place,
    /// Whether only one pod at a time may use it.
    #[serde(default)]
    pub one_pod: bool,
    /// The UID of the pod that owns the claim of its ephemeral volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// The record of a claim's volume in the directory of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimNote {
    /// The pod.
    pub pod: FullName,
    /// The storage.
    pub storage: Storage,
}

/// The claims and volumes of manifests, and the bindings.
#[derive(Debug, Clone, Copy)]
pub struct Claims<'a> {
    /// The objects of manifests.
    pub objects: &'a BTreeMap<ObjectKey, Object>,
    /// The bindings so far.
    pub bindings: &'a Bindings,
}

impl<'a> Claims<'a> {
    /// The existing bindings, and those of the `wanted` claims that can be bound now.
    #[must_use]
    pub fn bind(self, wanted: &BTreeSet<ClaimName>) -> Bindings {
        let mut bindings = self.bindings.clone();
        // A claim with a volumeName comes before claims that its volume merely matches.
        let (named, others): (Vec<_>, Vec<_>) = wanted
            .iter()
            .partition(|name| self.claim(name).is_some_and(|c| volume_named(c).is_some()));
        for name in named.into_iter().chain(others) {
            let claims = Claims {
                bindings: &bindings,
                ..self
            };
            if let Ok(bound) = claims.find(name) {
                bindings.insert(name.clone(), bound);
            }
        }
        bindings
    }

    /// The storage of a claim with a document.
    ///
    /// # Errors
    /// The reason why it has none.
    pub fn storage(self, name: &ClaimName) -> Result<Storage, String> {
        let Some(bound) = self.bindings.get(name).cloned() else {
            self.find(name)?;
            return Err("its binding can't be written to disk".to_owned());
        };
        let modes = self
            .claim(name)
            .and_then(|claim| claim_spec(claim).access_modes.as_ref());
        let place = match bound {
            // Pods record their storage, and would keep using an old report.
            Bound::Engine(volume) => Place::Engine(EngineVolume {
                presence: Presence::Unknown,
                ..volume
            }),
            Bound::Volume(volume) => {
                let found = self.volume(&volume).ok_or_else(|| no_volume(&volume))?;
                found.place(volume)?
            }
        };
        Ok(Storage {
            claim: name.clone(),
            place,
            one_pod: modes.is_some_and(|modes| modes.iter().any(|mode| mode == ONE_POD)),
            pod: None,
        })
    }

    /// The binding of a claim, or the one that it would get.
    fn find(self, name: &ClaimName) -> Result<Bound, String> {
        if let Some(bound) = self.bindings.get(name) {
            return Ok(bound.clone());
        }
        let claim = self
            .claim(name)
            .ok_or_else(|| format!("no manifest defines it: {name}"))?;
        let spec = claim_spec(claim);
        if let Some(volume) = volume_named(claim) {
            return self.named(name, spec, volume);
        }
        match self.best_match(name, spec) {
            Some(volume) => Ok(Bound::Volume(volume)),
            None => self.provision(name, claim).map(Bound::Engine),
        }
    }

    /// The volume of the Engine for a claim that no `PersistentVolume` matches.
    fn provision(
        self,
        name: &ClaimName,
        claim: &PersistentVolumeClaim,
    ) -> Result<EngineVolume, String> {
        let spec = claim_spec(claim);
        let cause = "no PersistentVolume matches";
        if device::wants_block(spec) {
            return Err(
                "no PersistentVolume with volumeMode Block matches, and a volume of the Engine can't be a block device".to_owned(),
            );
        }
        match spec.storage_class_name.as_deref() {
            Some("") => return Err(format!("{cause}, and its storageClassName is empty")),
            Some(class) if self.volumes().any(|(_, volume)| volume.class() == class) => {
                return Err(format!(
                    "{cause}: those of class {class} are too small, do not have its access modes or its volumeMode, or are bound"
                ));
            }
            Some(_) | None => {}
        }
        if spec.selector.is_some() {
            return Err(format!(
                "{cause}, and no volume is created for a claim with a selector"
            ));
        }
        let volume = EngineVolume::of(name, &claim.metadata);
        let same =
            |bound: &Bound| matches!(bound, Bound::Engine(other) if other.name == volume.name);
        match self.bindings.iter().find(|(_, bound)| same(bound)) {
            Some((other, _)) => Err(format!(
                "volume {} of the Engine is bound to claim {other}",
                volume.name
            )),
            None => Ok(volume),
        }
    }

    /// The `PersistentVolume` that a claim names, if the claim may use it.
    ///
    /// Upstream: `checkVolumeSatisfyClaim` of `pkg/controller/volume/persistentvolume/pv_controller.go`.
    fn named(
        self,
        name: &ClaimName,
        spec: &PersistentVolumeClaimSpec,
        volume: &str,
    ) -> Result<Bound, String> {
        let found = self.volume(volume).ok_or_else(|| no_volume(volume))?;
        if let Some(other) = self.owner(volume, found).filter(|owner| owner != name) {
            return Err(format!(
                "PersistentVolume {volume} is bound to claim {other}"
            ));
        }
        let unfit = if found.capacity() < requested(spec) {
            Some("is smaller than the claim asks for")
        } else if found.class() != spec.storage_class_name.as_deref().unwrap_or_default() {
            Some("has a different storageClassName")
        } else if !found.has_modes(spec) {
            Some("does not have all access modes that the claim asks for")
        } else if found.is_block() != device::wants_block(spec) {
            Some("has a different volumeMode")
        } else {
            None
        };
        match unfit.filter(|_| found.spec.claim_ref.is_none()) {
            Some(unfit) => Err(format!("PersistentVolume {volume} {unfit}")),
            None => Ok(Bound::Volume(volume.to_owned())),
        }
    }

    /// The best `PersistentVolume` for a claim: one whose `claimRef` names it, else the smallest of
    /// those with the fewest access modes.
    ///
    /// Upstream: `findBestMatchForClaim` of `pkg/controller/volume/persistentvolume/index.go`,
    /// `FindMatchingVolume` of `k8s.io/component-helpers/storage/volume`.
    fn best_match(self, name: &ClaimName, spec: &PersistentVolumeClaimSpec) -> Option<String> {
        let class = spec.storage_class_name.as_deref().unwrap_or_default();
        let reserved = |volume: &str| {
            let claims = self.objects.values().filter_map(as_claim);
            claims
                .clone()
                .any(|claim| volume_named(claim) == Some(volume))
        };
        let fits = self.volumes().filter_map(|(volume, found)| {
            let is_unfit =
                found.capacity() < requested(spec) || found.is_block() != device::wants_block(spec);
            if is_unfit {
                return None;
            }
            let owner = self.owner(volume, found);
            if owner.as_ref() == Some(name) {
                return Some((false, 0, found.capacity(), volume));
            }
            let fits = owner.is_none()
                && !reserved(volume)
                && found.class() == class
                && found.has_modes(spec)
                && spec
                    .selector
                    .as_ref()
                    .is_none_or(|s| selects(s, &found.metadata));
            fits.then_some((
                true,
                found.spec.access_modes.len(),
                found.capacity(),
                volume,
            ))
        });
        fits.min().map(|(.., volume)| volume.to_owned())
    }

    /// The claim that a volume is bound to or reserved for.
    fn owner(self, volume: &str, found: &PersistentVolume) -> Option<ClaimName> {
        let is_it = |bound: &&Bound| matches!(bound, Bound::Volume(name) if name == volume);
        let bound = self.bindings.iter().find(|(_, bound)| is_it(bound));
        let reserved = || {
            let claim = found.spec.claim_ref.as_ref()?;
            Some(ClaimName::new(
                claim.namespace.clone().unwrap_or_default(),
                claim.name.clone().unwrap_or_default(),
            ))
        };
        bound.map(|(name, _)| name.clone()).or_else(reserved)
    }

    fn claim(self, name: &ClaimName) -> Option<&'a PersistentVolumeClaim> {
        self.objects.get(&name.key()).and_then(as_claim)
    }

    fn volume(self, name: &str) -> Option<&'a PersistentVolume> {
        let key = ObjectKey {
            kind: ObjectKind::Volume,
            namespace: String::new(),
            name: name.to_owned(),
        };
        self.objects.get(&key).and_then(as_volume)
    }

    fn volumes(self) -> impl Iterator<Item = (&'a str, &'a PersistentVolume)> {
        let volumes = self.objects.iter();
        volumes.filter_map(|(key, object)| Some((key.name.as_str(), as_volume(object)?)))
    }
}

fn as_claim(object: &Object) -> Option<&PersistentVolumeClaim> {
    match object {
        Object::Claim(claim) => Some(claim),
        _ => None,
    }
}

fn as_volume(object: &Object) -> Option<&PersistentVolume> {
    match object {
        Object::Volume(volume) => Some(volume),
        _ => None,
    }
}

fn no_volume(name: &str) -> String {
    format!("no manifest defines PersistentVolume {name}")
}

/// The spec of a claim; empty if it has none.
fn claim_spec(claim: &PersistentVolumeClaim) -> &PersistentVolumeClaimSpec {
    static NONE: std::sync::LazyLock<PersistentVolumeClaimSpec> =
        std::sync::LazyLock::new(PersistentVolumeClaimSpec::default);
    claim.spec.as_ref().unwrap_or(&NONE)
}

fn volume_named(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

fn requested(spec: &PersistentVolumeClaimSpec) -> i64 {
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    size(requests.and_then(|requests| requests.get("storage")))
}

fn size(quantity: Option<&ApiQuantity>) -> i64 {
    quantity.map_or(0, |quantity| {
        Quantity::try_from(quantity).map_or(0, Quantity::ceil)
    })
}

/// Whether labels match a selector.
///
/// Upstream: `LabelSelectorAsSelector` of `k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go`.
pub fn selects(selector: &LabelSelector, metadata: &ObjectMeta) -> bool {
    let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
    let is_met = |wanted: &LabelSelectorRequirement| {
        let values = wanted.values.as_deref().unwrap_or_default();
        meets(&wanted.operator, values, label(&wanted.key))
    };
    let mut labels = selector.match_labels.iter().flatten();
    labels.all(|(key, value)| label(key) == Some(value))
        && selector.match_expressions.iter().flatten().all(is_met)
}

mod cluster;
mod device;
mod engine;
mod list;
#[cfg(test)]
mod tests;
mod volume;
