//! Objects of manifests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{ObjectError, ObjectKey, ObjectKind, ObjectSet, References};
use crate::api::core::{ConfigMap, Secret};
use crate::api::meta::ObjectMeta;

/// An object that pods refer to. Its `Debug` text doesn't hold its data.
#[derive(Clone, PartialEq)]
pub enum Object {
    /// A `ConfigMap`.
    ConfigMap(Arc<ConfigMap>),
    /// A `Secret`, its `stringData` merged into its `data`.
    Secret(Arc<Secret>),
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.key(), f)
    }
}

impl Object {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::ConfigMap(_) => ObjectKind::ConfigMap,
            Self::Secret(_) => ObjectKind::Secret,
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
        }
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey {
            kind: self.kind(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Whether an edit of it to `other` is one that Kubernetes refuses: an immutable object keeps
    /// its data, and stays immutable.
    #[must_use]
    pub fn forbids(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ConfigMap(old), Self::ConfigMap(new)) => {
                let data = |o: &ConfigMap| (o.immutable, o.data.clone(), o.binary_data.clone());
                old.immutable == Some(true) && data(old) != data(new)
            }
            (Self::Secret(old), Self::Secret(new)) => {
                old.immutable == Some(true) && (new.immutable != Some(true) || old.data != new.data)
            }
            (Self::ConfigMap(_) | Self::Secret(_), _) => false,
        }
    }

    /// Whether it has a value of that name. Variables take no binary data.
    #[must_use]
    pub fn has(&self, entry: &str, for_variable: bool) -> bool {
        match self {
            Self::ConfigMap(object) => {
                let text = object.data.as_ref().is_some_and(|d| d.contains_key(entry));
                let binary = object.binary_data.as_ref();
                text || (!for_variable && binary.is_some_and(|d| d.contains_key(entry)))
            }
            Self::Secret(object) => object.data.as_ref().is_some_and(|d| d.contains_key(entry)),
        }
    }

    /// Its text for the disk; none of a Secret, which is never written there.
    #[must_use]
    pub fn canonical(&self) -> Option<Value> {
        match self {
            Self::ConfigMap(object) => serde_json::to_value(&**object).ok(),
            Self::Secret(_) => None,
        }
    }
}

/// The objects of all manifests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KnownObjects {
    /// By key.
    pub objects: BTreeMap<ObjectKey, Object>,
    /// Whether every source of manifests has delivered: what is missing doesn't exist then.
    pub complete: bool,
}

impl KnownObjects {
    /// The object of that key.
    ///
    /// # Errors
    /// No manifest defines it, or that can't be told yet.
    pub fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        if let Some(found) = self.objects.get(key) {
            return Ok(found.clone());
        }
        if self.complete {
            return Err(ObjectError::NoDocument {
                resource: key.kind.resource(),
                kind: key.kind.as_str(),
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            });
        }
        Err(ObjectError::Away {
            what: key.to_string(),
            cause: "not every source of manifests has been read yet".to_owned(),
        })
    }

    /// What of it has another value in `other`, is missing there, or is only there.
    pub fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a ObjectKey> {
        let (old, new) = (&self.objects, &other.objects);
        let changed = old
            .iter()
            .filter(|(key, object)| new.get(*key) != Some(*object));
        let added = new.keys().filter(|key| !old.contains_key(*key));
        changed.map(|(key, _)| key).chain(added)
    }

    /// Everything that a pod of a manifest refers to.
    #[must_use]
    pub fn set(&self, references: &References) -> ObjectSet {
        let mut set = ObjectSet::default();
        for key in &references.objects {
            let name = key.name.clone();
            match (key.kind, self.get(key)) {
                (ObjectKind::ConfigMap, Ok(Object::ConfigMap(found))) => {
                    set.config_maps.insert(name, Ok(found));
                }
                (ObjectKind::Secret, Ok(Object::Secret(found))) => {
                    set.secrets.insert(name, Ok(found));
                }
                // An object has the kind of its key.
                (_, Ok(Object::ConfigMap(_) | Object::Secret(_))) => {}
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
