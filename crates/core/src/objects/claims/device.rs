//! Volumes that are block devices, and those that hold files.

use super::{Place, Storage};
use crate::api::Pod;
use crate::api::core::PersistentVolumeClaimSpec;
use crate::spec;

/// The mode of a volume that is a device.
pub const BLOCK: &str = "Block";
/// The mode of a volume that holds files, which is the default.
pub const FILESYSTEM: &str = "Filesystem";

/// Whether a claim is for a device.
pub(super) fn wants_block(claim: &PersistentVolumeClaimSpec) -> bool {
    claim.volume_mode.as_deref() == Some(BLOCK)
}

/// Checks that a pod's containers use the volume of a claim according to its mode.
///
/// Upstream: `createVolumeSpec` of
/// `pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go`.
///
/// # Errors
/// One of them mounts a device, or uses a volume with files as a device.
pub fn check_use(pod: &Pod, volume: &str, storage: &Storage) -> Result<(), String> {
    let is_device = storage.place.is_device();
    let (mode, wrong) = if is_device {
        (BLOCK, "volumeMounts")
    } else {
        (FILESYSTEM, "volumeDevices")
    };
    let is_wrong = spec::containers(pod).any(|(_, container)| {
        let mut mounts = container.volume_mounts.iter().flatten();
        let mut devices = container.volume_devices.iter().flatten();
        if is_device {
            mounts.any(|mount| mount.name == volume)
        } else {
            devices.any(|device| device.name == volume)
        }
    });
    if is_wrong {
        return Err(format!(
            "volume {volume} has volumeMode {mode}, but is specified in {wrong}"
        ));
    }
    Ok(())
}

impl Place {
    /// Whether it is a device instead of files.
    pub fn is_device(&self) -> bool {
        match self {
            Self::Device { .. } => true,
            Self::Engine(_) | Self::Host { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::claims::{ClaimName, EngineVolume};

    #[test]
    fn a_volume_is_used_as_what_it_is() {
        let name = ClaimName {
            namespace: "n".to_owned(),
            name: "data".to_owned(),
        };
        let own = EngineVolume::of(&name, &crate::api::meta::ObjectMeta::default());
        let storage = |place| Storage {
            claim: name.clone(),
            place,
            one_pod: false,
            pod: None,
        };
        let device = storage(Place::Device {
            volume: "disk".to_owned(),
            path: "/dev/sdb".to_owned(),
        });
        let path = storage(Place::Host {
            volume: "disk".to_owned(),
            path: "/srv".to_owned(),
            kind: String::new(),
        });
        let engine = storage(Place::Engine(own));
        let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/d"}]});
        let devices = json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/d"}]});
        let other = json!({
            "volumeMounts": [{"name": "a", "mountPath": "/d"}],
            "volumeDevices": [{"name": "b", "devicePath": "/dev/d"}],
        });
        let mounted = Err("volume data has volumeMode Block, but is specified in volumeMounts");
        let mapped =
            Err("volume data has volumeMode Filesystem, but is specified in volumeDevices");
        for (container, storage, expected) in [
            (&devices, &device, Ok(())),
            (&mounts, &device, mounted),
            (&other, &device, Ok(())),
            (&mounts, &path, Ok(())),
            (&devices, &path, mapped),
            (&mounts, &engine, Ok(())),
            (&devices, &engine, mapped),
            (&other, &engine, Ok(())),
        ] {
            let named = |name: &str, container: &Value| {
                let mut container = container.clone();
                container["name"] = json!(name);
                container
            };
            for list in ["initContainers", "containers"] {
                let mut pod = json!({"metadata": {"name": "p"}, "spec": {
                    "containers": [named("a", &json!({}))],
                }});
                pod["spec"][list] = json!([named("x", &json!({})), named("y", container)]);
                let pod: Pod = serde_json::from_value(pod).unwrap();
                let expected = expected.map_err(str::to_owned);
                // box 18
                assert_eq!(
                    check_use(&pod, "data", storage),
                    expected,
                    "{list} {container}"
                );
            }
        }
    }
}
