//! Removing an image whole: all its names, and then the image.

use bollard::models::ImageInspect;

use super::pulled::named;
use crate::engine::{Engine, EngineError};

/// Removes an image, by any of its names or its id, with all its names. One that is not there is
/// success; one that a container was made from, running or not, is a conflict and keeps all its
/// names. Never forced: what the Engine refuses stays.
///
/// Upstream: dockershim's `RemoveImage` (`docker_image.go`), which takes away names of images that
/// are in use.
pub(super) async fn remove_image(engine: &dyn Engine, image: &str) -> Result<(), EngineError> {
    let found = match engine.inspect_image(image).await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let ImageInspect {
        id,
        repo_tags,
        repo_digests,
        ..
    } = found;
    let id = id.unwrap_or_default();
    if engine.images_in_use().await?.contains(&id) {
        return Err(EngineError::Api {
            status: http::StatusCode::CONFLICT.as_u16(),
            message: format!("image {image} is in use by a container"),
        });
    }
    let (tags, digests) = (
        repo_tags.unwrap_or_default(),
        repo_digests.unwrap_or_default(),
    );
    for name in named(&tags).chain(named(&digests)).chain([&id]) {
        match engine.remove_image(name).await {
            Ok(()) => {}
            // With the last name the image went, and its other names with it.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
