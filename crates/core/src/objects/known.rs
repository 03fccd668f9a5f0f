//! Objects of manifests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{ObjectError, ObjectKey, ObjectKind, ObjectSet, References};
use crate::api::core::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use crate::api::keys;
use crate::api::meta::ObjectMeta;
use crate::objects::claims::{Bindings, ClaimName, Claims, PersistentVolume, Storage};
use crate::spec::annotation;

/// Why a field of an immutable object stays.
const IMMUTABLE: &str = "field is immutable when `immutable` is set";
/// Why the spec of a claim stays.
const CLAIM_SPEC_STAYS: &str = "spec is immutable after creation except resources";
/// Why an annotation of a claim stays.
const ANNOTATION_STAYS: &str = "annotation is immutable after creation";
/// Why the source of a volume stays.
const VOLUME_SOURCE_STAYS: &str = "spec.persistentvolumesource is immutable after creation";
/// Why the mode of a volume stays.
const VOLUME_MODE_STAYS: &str = "field is immutable";

/// An object that pods refer to. Its `Debug` text doesn't contain its data.
#[derive(Clone, PartialEq)]
pub enum Object {
    /// A `ConfigMap`.
    ConfigMap(Arc<ConfigMap>),
    /// A `Secret`, its `stringData` merged into its `data`.
    Secret(Arc<Secret>),
    /// A `Service`.
    Service(Arc<Service>),
    /// A `PersistentVolumeClaim`.
    Claim(Arc<PersistentVolumeClaim>),
    /// A `PersistentVolume`.
    Volume(Arc<PersistentVolume>),
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.key(), f)
    }
}

impl Object {
    /// Its kind.
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::ConfigMap(_) => ObjectKind::ConfigMap,
            Self::Secret(_) => ObjectKind::Secret,
            Self::Service(_) => ObjectKind::Service,
            Self::Claim(_) => ObjectKind::Claim,
            Self::Volume(_) => ObjectKind::Volume,
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
            Self::Service(object) => &object.metadata,
            Self::Claim(object) => &object.metadata,
            Self::Volume(object) => &object.metadata,
        }
    }

    /// Its key.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey {
            kind: self.kind(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Whether it is the same allocation, and so unchanged.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ConfigMap(one), Self::ConfigMap(other)) => Arc::ptr_eq(one, other),
            (Self::Secret(one), Self::Secret(other)) => Arc::ptr_eq(one, other),
            (Self::Service(one), Self::Service(other)) => Arc::ptr_eq(one, other),
            (Self::Claim(one), Self::Claim(other)) => Arc::ptr_eq(one, other),
            (Self::Volume(one), Self::Volume(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether Kubernetes refuses an edit of it to `other`: an immutable object keeps its data, and
    /// stays immutable; a claim keeps everything but its size, a volume its source and mode.
    pub fn forbids(&self, other: &Self) -> bool {
        !self.forbidden_fields(other).is_empty()
    }

    /// The immutable fields that an edit of it to `other` changes, with Kubernetes' message for each.
    ///
    /// Upstream: `ValidateConfigMapUpdate`, `ValidateSecretUpdate`,
    /// `ValidatePersistentVolumeClaimUpdate` and `ValidatePersistentVolumeUpdate` of
    /// `pkg/apis/core/validation/validation.go`.
    pub fn forbidden_fields(&self, other: &Self) -> Vec<(String, &'static str)> {
        let changed = |fields: &[(&str, bool)], why: &'static str| {
            let changed = fields.iter().filter(|(_, is_changed)| *is_changed);
            changed
                .map(|(field, _)| ((*field).to_owned(), why))
                .collect()
        };
        match (self, other) {
            (Self::ConfigMap(old), Self::ConfigMap(new)) if old.immutable == Some(true) => {
                let fields = [
                    ("immutable", new.immutable != Some(true)),
                    ("data", old.data != new.data),
                    ("binaryData", old.binary_data != new.binary_data),
                ];
                changed(&fields, IMMUTABLE)
            }
            (Self::Secret(old), Self::Secret(new)) if old.immutable == Some(true) => {
                let fields = [
                    ("immutable", new.immutable != Some(true)),
                    ("data", old.data != new.data),
                ];
                changed(&fields, IMMUTABLE)
            }
            (Self::Claim(old), Self::Claim(new)) => changed_wishes(old, new),
            (Self::Volume(old), Self::Volume(new)) => {
                let source = |volume: &PersistentVolume| {
                    let spec = &volume.spec;
                    (spec.host_path.clone(), spec.local.clone())
                };
                let field = ("spec.persistentvolumesource", source(old) != source(new));
                let mut forbidden = changed(&[field], VOLUME_SOURCE_STAYS);
                let mode = ("volumeMode", old.is_block() != new.is_block());
                forbidden.extend(changed(&[mode], VOLUME_MODE_STAYS));
                forbidden
            }
            (
                Self::ConfigMap(_)
                | Self::Secret(_)
                | Self::Service(_)
                | Self::Claim(_)
                | Self::Volume(_),
                _,
            ) => Vec::new(),
        }
    }

    /// Whether it has a value with that name. Variables can't use binary data.
    pub fn has(&self, entry: &str, for_variable: bool) -> bool {
        match self {
            Self::ConfigMap(object) => {
                let text = object.data.as_ref().is_some_and(|d| d.contains_key(entry));
                let binary = object.binary_data.as_ref();
                text || (!for_variable && binary.is_some_and(|d| d.contains_key(entry)))
            }
            Self::Secret(object) => object.data.as_ref().is_some_and(|d| d.contains_key(entry)),
            Self::Service(_) | Self::Claim(_) | Self::Volume(_) => false,
        }
    }

    /// Its text for the disk; none for a Secret, which is never written there.
    pub fn canonical(&self) -> Option<Value> {
        match self {
            Self::ConfigMap(object) => serde_json::to_value(&**object).ok(),
            Self::Service(object) => serde_json::to_value(&**object).ok(),
            Self::Secret(_) => None,
            Self::Claim(object) => serde_json::to_value(&**object).ok(),
            Self::Volume(object) => serde_json::to_value(&**object).ok(),
        }
    }
}

/// The fields of a claim that can't be edited, because they have no effect once it is bound, and that
/// differ.
fn changed_wishes(
    old: &PersistentVolumeClaim,
    new: &PersistentVolumeClaim,
) -> Vec<(String, &'static str)> {
    let spec = |claim: &PersistentVolumeClaim| {
        let mut spec = claim.spec.clone();
        if let Some(spec) = &mut spec {
            spec.resources = None;
        }
        spec
    };
    let is_changed = spec(old) != spec(new);
    let spec = is_changed.then(|| ("spec".to_owned(), CLAIM_SPEC_STAYS));
    let annotations = keys::VOLUME_SETTINGS
        .into_iter()
        .filter(|key| annotation(&old.metadata, key) != annotation(&new.metadata, key))
        .map(|key| (format!("metadata.annotations[{key}]"), ANNOTATION_STAYS));
    spec.into_iter().chain(annotations).collect()
}

/// The objects of all manifests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KnownObjects {
    /// By key.
    pub objects: BTreeMap<ObjectKey, Object>,
    /// The bindings of claims.
    pub bindings: Bindings,
    /// Whether every source of manifests has delivered: a missing object doesn't exist then.
    pub complete: bool,
}

impl KnownObjects {
    /// The object with that key.
    ///
    /// # Errors
    /// No manifest defines it, or that is not known yet.
    pub fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        if let Some(found) = self.objects.get(key) {
            return Ok(found.clone());
        }
        if self.complete {
            return Err(ObjectError::NoDocument(key.clone()));
        }
        Err(unread(key))
    }

    /// The claims and volumes.
    pub fn claims(&self) -> Claims<'_> {
        Claims {
            objects: &self.objects,
            bindings: &self.bindings,
        }
    }

    /// The storage of a claim.
    ///
    /// # Errors
    /// No manifest defines the claim, it has no volume, or that isn't known yet.
    pub fn storage(&self, key: &ObjectKey) -> Result<Storage, ObjectError> {
        self.get(key)?;
        let name = ClaimName::of(key);
        if !self.bindings.contains_key(&name) && !self.complete {
            return Err(unread(key));
        }
        self.claims()
            .storage(&name)
            .map_err(|cause| ObjectError::Unbound {
                name: name.name,
                cause,
            })
    }

    /// Returns the objects whose values differ from those in `other`, and those that only one of the
    /// two has.
    pub fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = ObjectKey> {
        let (old, new) = (&self.objects, &other.objects);
        let changed = old
            .iter()
            .filter(|(key, object)| new.get(*key) != Some(*object));
        let added = new.keys().filter(|key| !old.contains_key(*key));
        let changed = changed.map(|(key, _)| key).chain(added);
        // A volume that was added or removed may be that of any claim.
        let volumes = changed.clone().any(|key| key.kind == ObjectKind::Volume);
        let claims = new.keys().filter(move |key| {
            let name = || ClaimName::of(key);
            let rebound = || self.bindings.get(&name()) != other.bindings.get(&name());
            key.kind == ObjectKind::Claim && (volumes || rebound())
        });
        changed.chain(claims).cloned()
    }

    /// Everything that a pod of a manifest refers to.
    pub fn set(&self, references: &References) -> ObjectSet {
        let mut set = ObjectSet::default();
        for key in &references.objects {
            let name = key.name.clone();
            if key.kind == ObjectKind::Claim {
                set.claims.insert(name, self.storage(key).map(Arc::new));
                continue;
            }
            match (key.kind, self.get(key)) {
                (ObjectKind::ConfigMap, Ok(Object::ConfigMap(found))) => {
                    set.config_maps.insert(name, Ok(found));
                }
                (ObjectKind::Secret, Ok(Object::Secret(found))) => {
                    set.secrets.insert(name, Ok(found));
                }
                // An object has the kind of its key, and pods refer to no other kinds.
                (_, Ok(_))
                | (ObjectKind::Service | ObjectKind::Claim | ObjectKind::Volume, Err(_)) => {}
                (ObjectKind::ConfigMap, Err(error)) => {
                    set.config_maps.insert(name, Err(error));
                }
                (ObjectKind::Secret, Err(error)) => {
                    set.secrets.insert(name, Err(error));
                }
            }
        }
        set
    }
}

fn unread(key: &ObjectKey) -> ObjectError {
    ObjectError::Away {
        what: key.to_string(),
        cause: "not every source of manifests has been read yet".to_owned(),
    }
}
