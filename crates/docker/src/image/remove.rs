//! Removes an image as a whole: all its names, and then the image.

use super::pulled::named;
use crate::engine::{Engine, EngineError};

/// Removes an image, given by any of its names or its id, with all its names. A missing one is success;
/// one with a container, running or not, is a conflict and keeps all its names. Never forced: an image
/// whose removal the Engine refuses stays.
///
/// Upstream: dockershim's `RemoveImage` (`docker_image.go`), which takes away names of images that
/// are in use.
pub(super) async fn remove_image(engine: &dyn Engine, image: &str) -> Result<(), EngineError> {
    let Some(Names { id, tags, digests }) = names_of(engine, image).await? else {
        return Ok(());
    };
    if engine.images_in_use().await?.contains(&id) {
        return Err(EngineError::api(
            http::StatusCode::CONFLICT,
            format!("image {image} is in use by a container"),
        ));
    }
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

/// The names of an image.
struct Names {
    id: String,
    tags: Vec<String>,
    digests: Vec<String>,
}

/// The names of an image, given by any of them or its id; none if it is missing. An image that is too
/// large to be inspected is found in the list.
async fn names_of(engine: &dyn Engine, image: &str) -> Result<Option<Names>, EngineError> {
    match engine.inspect_image(image).await {
        Ok(found) => Ok(Some(Names {
            id: found.id.unwrap_or_default(),
            tags: found.repo_tags.unwrap_or_default(),
            digests: found.repo_digests.unwrap_or_default(),
        })),
        Err(error) if error.is_not_found() => Ok(None),
        Err(EngineError::TooLarge { .. }) => {
            let mut listed = engine.list_images(true).await?.into_iter();
            let found = listed.find(|found| {
                let mut names = found.repo_tags.iter().chain(&found.repo_digests);
                found.id == image || names.any(|name| name == image)
            });
            Ok(found.map(|found| Names {
                id: found.id,
                tags: found.repo_tags,
                digests: found.repo_digests,
            }))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_engine::{FakeEngine, FakeImage, FaultPoint};
    use crate::operation::Operation;

    #[tokio::test]
    async fn an_image_too_large_to_be_inspected_is_removed_all_the_same() {
        let engine = FakeEngine::new();
        let image = FakeImage {
            id: "sha256:1".to_owned(),
            ..FakeImage::default()
        };
        for name in ["a:1", "b:1"] {
            engine.add_image(name, image.clone());
        }
        let large = EngineError::TooLarge {
            what: "it",
            max: 1 << 20,
        };
        engine.fail(Operation::InspectImage, None, FaultPoint::Before, large);
        remove_image(&engine, "b:1").await.unwrap();
        assert_eq!(engine.list_images(true).await.unwrap(), []);
    }
}
