//! Images: their names, and how they get here.

mod access;
mod credentials;
mod directory;
pub mod facts;
pub mod gc;
mod noted;
pub mod progress;
mod pulled;
pub mod puller;
mod remove;

use sha2::{Digest, Sha256};

use mirrorlet_core::api::core::{Container, ImageVolumeSource};
use mirrorlet_core::api::hex;
use mirrorlet_core::reference::Reference;

pub use directory::image_directory;
pub use facts::ImageFacts;
pub(crate) use facts::id_of_local;
pub use gc::{DiskReader, ImageGc, ImageGcOptions, ImageReclaim, LocalDisk, WorkloadImages};
pub use progress::{PullPhase, PullProgressReport};
pub use puller::{EnsuredImage, ForPod, ImagePuller, ListedImage, PullerOptions};

/// Name of our sandbox image, which is never collected. The tag changes with the image's program.
pub const SANDBOX_IMAGE: &str = "mirrorlet/pause:1";

/// The digest of some content in the format of images: `sha256:` and 64 hexadecimal digits.
pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullPolicy {
    /// Before every start.
    Always,
    /// When it is absent.
    IfNotPresent,
    /// Never.
    Never,
    /// Now, whatever the container's policy is: a user ordered it.
    Ordered,
}

impl PullPolicy {
    /// The pull policy of a container; by default `Always` for the tag `latest` and `IfNotPresent`
    /// otherwise.
    ///
    /// Upstream: `pkg/apis/core/v1/defaults.go` (`SetDefaults_Container`).
    pub fn of(container: &Container) -> Self {
        let policy = container.image_pull_policy.as_deref();
        Self::of_image(container.image.as_deref(), policy)
    }

    /// The pull policy of an image volume, by the same rule.
    pub fn of_volume(source: &ImageVolumeSource) -> Self {
        Self::of_image(source.reference.as_deref(), source.pull_policy.as_deref())
    }

    fn of_image(image: Option<&str>, policy: Option<&str>) -> Self {
        match policy {
            Some("Always") => Self::Always,
            Some("IfNotPresent") => Self::IfNotPresent,
            Some("Never") => Self::Never,
            _ => match Reference::parse(image.unwrap_or_default()) {
                Ok(reference) if reference.is_latest() => Self::Always,
                Ok(_) | Err(_) => Self::IfNotPresent,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_defaulted_by_the_tag() {
        for (image, policy, expected) in [
            ("a", None, PullPolicy::Always),
            ("a:latest", None, PullPolicy::Always),
            ("a:1", None, PullPolicy::IfNotPresent),
            ("a:1", Some("Always"), PullPolicy::Always),
            ("a", Some("Never"), PullPolicy::Never),
            ("a", Some("IfNotPresent"), PullPolicy::IfNotPresent),
            ("A", None, PullPolicy::IfNotPresent),
        ] {
            let container = Container {
                image: Some(image.into()),
                image_pull_policy: policy.map(str::to_owned),
                ..Container::default()
            };
            // docker 47
            assert_eq!(PullPolicy::of(&container), expected, "{image} {policy:?}");
        }
    }
}
