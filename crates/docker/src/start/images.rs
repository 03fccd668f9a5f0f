//! The images of a container: its own, and those of its image volumes.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::super::files::config_error;
use super::super::image::{EnsuredImage, ForPod, PullPolicy};
use super::super::translate::check_image_volume;
use super::{Starter, runtime_error};
use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{Pod, PodUid, Timestamp};
use mirrorlet_core::credentials::PullSecrets;
use mirrorlet_core::fields;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::spec;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::SyncError;

/// The images that a container needs, all there.
pub(super) struct Images {
    /// Its own.
    pub(super) own: EnsuredImage,
    /// The Engine's ids of the images of its volumes, by volume name.
    pub(super) volumes: BTreeMap<String, String>,
}

impl Starter {
    /// Ensures that the container's images are present: by their pull policies, or pulled again if a
    /// user ordered that.
    ///
    /// Upstream: `getImageVolumes` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.
    pub(super) async fn images(
        &self,
        pod: &Pod,
        container: &Container,
        ordered: Option<PullPolicy>,
        secrets: &PullSecrets,
    ) -> Result<Images, SyncError> {
        let name = container.image.as_deref().unwrap_or_default();
        let policy = ordered.unwrap_or_else(|| PullPolicy::of(container));
        let own = self.image(pod, container, name, policy, secrets);
        let own = async { own.await.map_err(|error| of_image(error, pod, container)) };
        let volumes = spec::mounted_images(pod, container).map(|(volume, source)| async move {
            let of_volume = || fields::volume(pod, volume);
            let engine = self.facts.engine_facts().await;
            let engine = engine.map_err(|error| runtime_error(&error))?;
            check_image_volume(volume, &engine)
                .map_err(|error| config_error(error).of_field(of_volume))?;
            let name = source.reference.as_deref().unwrap_or_default();
            let policy = ordered.unwrap_or_else(|| PullPolicy::of_volume(source));
            let image = self.image(pod, container, name, policy, secrets).await;
            let image = image.map_err(|error| error.of_field(of_volume))?;
            Ok((volume.to_owned(), image.facts.id.clone()))
        });
        let (own, volumes) = tokio::join!(own, try_join_all(volumes));
        Ok(Images {
            own: own?,
            volumes: volumes?.into_iter().collect_map(),
        })
    }

    /// Ensures that an image for a container is present, and reports its pull.
    async fn image(
        &self,
        pod: &Pod,
        container: &Container,
        image: &str,
        policy: PullPolicy,
        secrets: &PullSecrets,
    ) -> Result<EnsuredImage, SyncError> {
        let for_pod = ForPod {
            uid: &PodUid::of(pod),
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
        };
        let (telemetry, name) = (&self.telemetry, &container.name);
        let began = Instant::now();
        let awaited = || telemetry.about(pod, |of| occurrences::image_awaited(of, name, image));
        let ensured = self
            .images
            .ensure_image(for_pod, image, policy, secrets, Timestamp::now(), awaited)
            .await;
        let took = began.elapsed();
        match &ensured {
            Ok(there) if there.pulled => {
                let size = there.facts.size;
                telemetry.about(pod, |of| {
                    occurrences::image_pulled(of, name, image, size, took);
                });
            }
            Ok(_) => {}
            Err(error) => {
                telemetry.about(pod, |of| {
                    occurrences::image_failed(of, name, image, took, error);
                });
            }
        }
        ensured
    }
}

/// The failure of a container's own image.
pub(super) fn of_image(error: SyncError, pod: &Pod, container: &Container) -> SyncError {
    error.of_field(|| fields::image(pod, &container.name))
}
