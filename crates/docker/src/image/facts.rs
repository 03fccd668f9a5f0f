//! Facts about images, cached by reference, so that a start with a known image makes no call.

use std::collections::HashMap;
use std::sync::Arc;

use bollard::models::{ImageInspect, ImageSummary};
use parking_lot::Mutex;

use mirrorlet_core::node::ImageSeen;

/// How many images are remembered. Beyond it everything is forgotten and asked again: no node
/// runs that many, so only a stream of one-off images gets there.
const MAX_REMEMBERED: usize = 1024;

/// The facts about an image that a start needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageFacts {
    /// The Engine's id of it, `sha256:…`.
    pub id: String,
    /// `USER` of its configuration; none for root.
    pub user: Option<String>,
    /// Its first repository digest, `name@sha256:…`; none for an image that was built or loaded
    /// locally.
    pub repo_digest: Option<String>,
    /// Its size in bytes.
    pub size: u64,
}

impl ImageFacts {
    /// The image id in a container's status: `docker-pullable://` with its digest, or `docker://` with
    /// its id.
    ///
    /// Upstream: dockershim `convert.go` (`toRuntimeAPIImage`), `docker_container.go`
    /// (`toPullableImageID`).
    pub fn image_id(&self) -> String {
        match &self.repo_digest {
            Some(digest) => id_of_pulled(digest),
            None => id_of_local(&self.id),
        }
    }
}

/// The id of an image in statuses, by its repository digest.
pub(super) fn id_of_pulled(digest: &str) -> String {
    format!("docker-pullable://{digest}")
}

/// The id in statuses of an image without repository digests, by the Engine's id.
pub(crate) fn id_of_local(id: &str) -> String {
    format!("docker://{id}")
}

impl From<ImageInspect> for ImageFacts {
    fn from(image: ImageInspect) -> Self {
        Self {
            id: image.id.unwrap_or_default(),
            user: image
                .config
                .and_then(|c| c.user)
                .filter(|user| !user.is_empty()),
            repo_digest: image.repo_digests.and_then(|d| d.into_iter().next()),
            size: image.size.and_then(|s| s.try_into().ok()).unwrap_or(0),
        }
    }
}

/// An image in the form of our Node's status: names with a digest first, as upstream. The Engine's
/// placeholders for missing names are dropped.
///
/// Upstream: `pkg/kubelet/images/image_gc_manager.go`, `pkg/kubelet/nodestatus/setters.go`.
pub(crate) fn seen(image: ImageSummary) -> ImageSeen {
    let names = image.repo_digests.into_iter().chain(image.repo_tags);
    ImageSeen {
        names: names.filter(|name| !name.contains("<none>")).collect(),
        size_bytes: image.size.try_into().unwrap_or(0),
    }
}

/// Facts by reference as sent to the Engine. Only the puller writes them.
#[derive(Debug, Default)]
pub(super) struct FactsCache(Mutex<HashMap<String, Arc<ImageFacts>>>);

impl FactsCache {
    pub(super) fn get(&self, reference: &str) -> Option<Arc<ImageFacts>> {
        self.0.lock().get(reference).cloned()
    }

    pub(super) fn put(&self, reference: &str, facts: Arc<ImageFacts>) {
        let mut all = self.0.lock();
        if all.len() >= MAX_REMEMBERED {
            all.clear();
        }
        all.insert(reference.to_owned(), facts);
    }

    pub(super) fn forget(&self, reference: &str) {
        self.0.lock().remove(reference);
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_its_digest_where_it_has_one() {
        let mut facts = ImageFacts {
            id: "sha256:1".into(),
            ..ImageFacts::default()
        };
        assert_eq!(facts.image_id(), "docker://sha256:1");
        facts.repo_digest = Some("r/a@sha256:2".into());
        assert_eq!(facts.image_id(), "docker-pullable://r/a@sha256:2");
    }

    #[test]
    fn the_cache_is_bounded() {
        let cache = FactsCache::default();
        for n in 0..=MAX_REMEMBERED {
            cache.put(&n.to_string(), Arc::default());
        }
        assert!(cache.get("0").is_none());
        assert!(cache.get(&MAX_REMEMBERED.to_string()).is_some());
    }

    #[test]
    fn nameless_images_have_no_names() {
        let image = |digests: &[&str], tags: &[&str]| ImageSummary {
            repo_digests: digests.iter().map(ToString::to_string).collect(),
            repo_tags: tags.iter().map(ToString::to_string).collect(),
            size: 7,
            ..ImageSummary::default()
        };
        let named = seen(image(&["a@sha256:1"], &["a:1"]));
        assert_eq!(named.names, ["a@sha256:1", "a:1"]);
        assert_eq!(named.size_bytes, 7);
        let nameless = seen(image(&["<none>@<none>"], &["<none>:<none>"]));
        assert!(nameless.names.is_empty());
    }
}
