//! Volumes of the Engine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClaimName, NAME_MAX};
use crate::api::keys;
use crate::api::meta::ObjectMeta;

/// Driver of the Engine's own volumes: directories on its host.
pub const LOCAL_DRIVER: &str = "local";
/// The option of the driver `local` that says what it mounts as the volume.
const DEVICE_OPTION: &str = "device";

/// A named volume of the Engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineVolume {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Options of the driver.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Whether the claim sets the name: the volume is then used even if it was created by others.
    #[serde(default)]
    pub named: bool,
    /// Whether it must exist already: the agent never creates it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_exist: bool,
    /// Whether the Engine has it, according to the binding.
    #[serde(default, skip_serializing_if = "Presence::is_unknown")]
    pub presence: Presence,
}

/// Whether the Engine has the volume of a binding. A volume that existed is never created again: an
/// empty one in its place would hide the loss of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Presence {
    /// It may not have been created yet.
    #[default]
    Unknown,
    /// It existed when it was last used.
    Present,
    /// It existed, and was missing when a pod needed it.
    Missing,
}

impl Presence {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

impl EngineVolume {
    /// The volume of a claim that has no `PersistentVolume`.
    pub(super) fn of(claim: &ClaimName, metadata: &ObjectMeta) -> Self {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).cloned();
        let named = annotation(keys::VOLUME_NAME);
        let options = annotation(keys::VOLUME_OPTIONS).unwrap_or_default();
        Self {
            named: named.is_some(),
            name: named.unwrap_or_else(|| claim.volume_name()),
            driver: annotation(keys::VOLUME_DRIVER).unwrap_or_else(|| LOCAL_DRIVER.to_owned()),
            options: options_of(&options).unwrap_or_default(),
            must_exist: annotation(keys::VOLUME_MUST_EXIST).is_some_and(|value| value == "true"),
            presence: Presence::Unknown,
        }
    }

    /// Whether it only refers to files elsewhere, such as an NFS export, so that its removal loses no
    /// data.
    pub fn is_reference(&self) -> bool {
        self.driver == LOCAL_DRIVER && self.options.contains_key(DEVICE_OPTION)
    }
}

/// Parses the options of a driver: `key=value`, separated by whitespace. `None` for anything else.
pub fn options_of(text: &str) -> Option<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    for pair in text.split_whitespace() {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty())?;
        options.insert(key.to_owned(), value.to_owned());
    }
    Some(options)
}

/// Whether the Engine accepts a name for a volume.
pub fn is_volume_name(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    name.len() > 1
        && name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(rest)
}

/// A report of the Engine about the volume of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSeen {
    /// Name of the volume.
    pub name: String,
    /// Whether the Engine has it.
    pub exists: bool,
}
