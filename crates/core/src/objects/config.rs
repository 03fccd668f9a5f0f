//! `ConfigMap`s and Secrets as a part of a pod's version, if the pod requests that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Object, ObjectError, ObjectKey, ObjectKind, ObjectSet, uses};
use crate::api::core::{ConfigMap, Secret};
use crate::api::{Pod, PodUid, keys};
use crate::small::SmallCollect;
use crate::spec::annotation;

/// Value of [`keys::RESTART_ON`].
const CONFIG: &str = "config";

/// The data of the `ConfigMap`s and Secrets that one version of a pod has in its variables and volumes.
/// A missing object, which is allowed if it is optional, is `None`. Its `Debug` text doesn't contain
/// the data.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The UID of the pod without its objects: the hash of its manifest.
    pub manifest: PodUid,
    maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    secrets: BTreeMap<String, Option<Arc<Secret>>>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("config_maps", &self.maps.keys())
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

/// Whether an edit of a referenced object counts as an edit of the pod.
pub fn restarts_on_config(pod: &Pod) -> bool {
    annotation(&pod.metadata, keys::RESTART_ON) == Some(CONFIG)
}

/// Checks a value of [`keys::RESTART_ON`].
///
/// # Errors
/// The value is invalid; the message lists the valid ones.
pub fn check_restart_on(value: &str) -> Result<(), &'static str> {
    (value == CONFIG).then_some(()).ok_or("must be config")
}

/// Whether a pod has the data of any object in its variables or volumes.
pub fn has_config(pod: &Pod) -> bool {
    uses(pod).iter().any(super::ObjectUse::is_config)
}

impl Config {
    /// The data for the pod `pod` of a manifest, `None` while one of the objects is missing or unknown.
    /// `complete` says that an object that `find` doesn't return doesn't exist.
    pub(crate) fn of(
        pod: &Pod,
        find: impl Fn(&ObjectKey) -> Option<Object>,
        complete: bool,
    ) -> Option<Self> {
        let mut config = Self {
            manifest: PodUid::of(pod),
            maps: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        for used in uses(pod).iter().filter(|used| used.is_config()) {
            let name = used.key.name.clone();
            let found = find(&used.key);
            if found.is_none() && (used.is_required() || !complete) {
                return None;
            }
            if used.key.kind == ObjectKind::ConfigMap {
                let found = found.and_then(|object| config_map(&object));
                config.maps.insert(name, found);
            } else {
                let found = found.and_then(|object| secret(&object));
                config.secrets.insert(name, found);
            }
        }
        Some(config)
    }

    /// Whether the objects are those of another pod's version.
    pub(crate) fn has_objects_of(&self, other: &Self) -> bool {
        (&self.maps, &self.secrets) == (&other.maps, &other.secrets)
    }

    /// The values by kind, object and key, including those of Secrets.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let config_maps = self.maps.iter().filter_map(|(name, found)| {
            let found = found.as_ref()?;
            let mut values = Map::new();
            for (key, value) in found.data.iter().flatten() {
                values.insert(key.clone(), json!(value));
            }
            for (key, value) in found.binary_data.iter().flatten() {
                values.insert(key.clone(), json!({"base64": STANDARD.encode(&value.0)}));
            }
            Some((name.clone(), Value::Object(values)))
        });
        let secrets = self.secrets.iter().filter_map(|(name, found)| {
            let values = found.as_ref()?.data.iter().flatten();
            let values = values.map(|(key, value)| (key.clone(), json!(STANDARD.encode(&value.0))));
            Some((name.clone(), Value::Object(values.collect_object())))
        });
        let kinds = [
            ("configMaps", Value::Object(config_maps.collect_object())),
            ("secrets", Value::Object(secrets.collect_object())),
        ];
        kinds
            .into_iter()
            .map(|(kind, objects)| (kind.to_owned(), objects))
            .collect_object()
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        let maps = self.maps.values().flatten().map(|found| {
            let text = found.data.iter().flatten().map(|(_, value)| value.len());
            let binary = found.binary_data.iter().flatten();
            text.sum::<usize>() + binary.map(|(_, value)| value.0.len()).sum::<usize>()
        });
        let secrets = self.secrets.values().flatten().map(|found| {
            let values = found.data.iter().flatten();
            values.map(|(_, value)| value.0.len()).sum::<usize>()
        });
        maps.chain(secrets).sum()
    }

    /// Replaces the data of these objects by the data of this version.
    pub fn pin(&self, set: &mut ObjectSet, namespace: &str) {
        let missing = |kind, name: &String| {
            ObjectError::NoDocument(ObjectKey {
                kind,
                namespace: namespace.to_owned(),
                name: name.clone(),
            })
        };
        for (name, found) in &self.maps {
            let found = found
                .clone()
                .ok_or_else(|| missing(ObjectKind::ConfigMap, name));
            set.config_maps.insert(name.clone(), found);
        }
        for (name, found) in &self.secrets {
            let found = found
                .clone()
                .ok_or_else(|| missing(ObjectKind::Secret, name));
            set.secrets.insert(name.clone(), found);
        }
    }
}

/// The data of a `ConfigMap` without its metadata, which pods don't see.
fn config_map(object: &Object) -> Option<Arc<ConfigMap>> {
    let Object::ConfigMap(found) = object else {
        return None;
    };
    Some(Arc::new(ConfigMap {
        data: found.data.clone(),
        binary_data: found.binary_data.clone(),
        ..ConfigMap::default()
    }))
}

fn secret(object: &Object) -> Option<Arc<Secret>> {
    let Object::Secret(found) = object else {
        return None;
    };
    Some(Arc::new(Secret {
        data: found.data.clone(),
        ..Secret::default()
    }))
}
