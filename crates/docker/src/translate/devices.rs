//! Devices of an app container: volumes that are block devices.
//!
//! Upstream: `makeBlockVolumes` of `pkg/kubelet/kubelet_pods.go`.

use bollard::models::DeviceMapping;

use mirrorlet_core::api::core::Container;
use mirrorlet_core::volumes::VolumeMap;

use super::ConfigError;

/// What the cgroup allows of a device, as the Engine spells it: reading, writing and making its node.
const READ_WRITE: &str = "rwm";
/// The same, of a device that is not written to.
const READ: &str = "r";

/// The block devices of the container, in the spec's order; none where it has none.
pub(super) fn devices(
    container: &Container,
    volumes: &VolumeMap,
) -> Result<Option<Vec<DeviceMapping>>, ConfigError> {
    let mut devices = Vec::new();
    for device in container.volume_devices.iter().flatten() {
        if !device.device_path.starts_with('/') {
            let path = device.device_path.clone();
            return Err(ConfigError::RelativeDevice(path));
        }
        let path = volumes.devices.get(&device.name);
        let path = path.ok_or_else(|| ConfigError::NoSuchDevice {
            volume: device.name.clone(),
            container: container.name.clone(),
        })?;
        let is_read = volumes.read_only.contains(&device.name);
        devices.push(DeviceMapping {
            path_on_host: Some(path.to_string_lossy().into_owned()),
            path_in_container: Some(device.device_path.clone()),
            cgroup_permissions: Some(if is_read { READ } else { READ_WRITE }.to_owned()),
        });
    }
    Ok((!devices.is_empty()).then_some(devices))
}
