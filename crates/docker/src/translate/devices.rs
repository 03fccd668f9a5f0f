//! Devices of an app container: volumes that are block devices, and CDI devices.
//!
//! Upstream: `makeBlockVolumes` of `pkg/kubelet/kubelet_pods.go`.

use bollard::models::{DeviceMapping, DeviceRequest};

use mirrorlet_core::api::Pod;
use mirrorlet_core::api::core::Container;
use mirrorlet_core::cdi;
use mirrorlet_core::volumes::VolumeMap;

use super::{ConfigError, EngineFacts, Note};

/// The access to a device that the cgroup allows, in the Engine's letters: read, write, and make its node.
const READ_WRITE: &str = "rwm";
/// The same for a read-only device.
const READ: &str = "r";

/// First API of an Engine that can have devices by CDI: that of Docker Engine 25.
const API_CDI: (u16, u16) = (1, 44);
/// The Engine's name of that driver.
const CDI_DRIVER: &str = "cdi";
/// Reason of the note that annotations about devices have no effect.
const CDI_IGNORED: &str = "CDIAnnotationIgnored";

/// The request for the pod's CDI devices; none if it has none.
pub(super) fn cdi_requests(
    pod: &Pod,
    engine: &EngineFacts,
) -> Result<Option<Vec<DeviceRequest>>, ConfigError> {
    let devices = cdi::devices(pod).map_err(ConfigError::CdiAnnotation)?;
    let Some(first) = devices.first() else {
        return Ok(None);
    };
    if !engine.cdi {
        return Err(ConfigError::NoCdi {
            device: (*first).to_owned(),
            api: engine.api_version,
        });
    }
    Ok(Some(vec![DeviceRequest {
        driver: Some(CDI_DRIVER.to_owned()),
        device_ids: Some(devices.into_iter().map(str::to_owned).collect()),
        ..DeviceRequest::default()
    }]))
}

/// Why the Engine doesn't support CDI devices, and which one does.
pub(super) fn no_cdi(api: (u16, u16)) -> String {
    let on = r#""features": {"cdi": true} in the Engine's daemon.json"#;
    if api < API_CDI {
        let (major, minor) = api;
        format!(
            "CDI devices need Docker Engine 28.2 or newer, or 25 or newer with {on}; this Engine has API {major}.{minor}"
        )
    } else {
        format!("this Docker Engine has CDI turned off; set {on} and restart it")
    }
}

/// A note that the annotations of an API pod are ignored, so that it gets no devices.
pub(super) fn ignored_annotation(pod: &Pod) -> Option<Note> {
    cdi::ignored(pod).map(|key| Note {
        reason: CDI_IGNORED,
        message: format!(
            "annotation {key} has no effect: only static pods can request CDI devices with annotations"
        ),
    })
}

/// The block devices of the container, in the spec's order; none if it has none.
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
