//! Checks which of the agent's files the Engine sees.

use std::path::Path;

use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};

use super::engine::{Engine, Result};

/// An image that no registry and no Engine has: the domain is one that can't exist.
const NO_IMAGE: &str = "mirrorlet.invalid/none:0";
/// Name of the container that is never made.
const NO_CONTAINER: &str = "mirrorlet-never-made";

/// Whether the Engine sees something at that path.
///
/// Requests a container that binds the path, of an image that can't exist. An Engine checks the sources
/// of binds first (400), and only then looks for the image (404), so nothing is ever created.
///
/// # Errors
/// The Engine gave neither answer.
pub async fn engine_sees(engine: &dyn Engine, path: &Path) -> Result<bool> {
    let body = ContainerCreateBody {
        image: Some(NO_IMAGE.to_owned()),
        host_config: Some(HostConfig {
            mounts: Some(vec![Mount {
                target: Some("/seen".to_owned()),
                source: Some(path.to_string_lossy().into_owned()),
                typ: Some(MountType::BIND),
                ..Mount::default()
            }]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    match engine.create_container(NO_CONTAINER, body).await {
        // It can't be: but what was made is not left behind.
        Ok(id) => {
            engine.remove_container(&id, true).await?;
            Ok(true)
        }
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) if error.status() == Some(400) && error.to_string().contains("bind source") => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
