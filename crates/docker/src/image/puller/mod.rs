//! `ImagePuller`: ensures that an image is present before a container is created from it.
//!
//! Upstream: `pkg/kubelet/images/image_manager.go` (`EnsureImageExists`). Unlike there, an image
//! is pulled once for all pods that wait for it, and what is known of it is remembered.

mod download;
mod failures;
#[cfg(test)]
mod tests;
mod turns;
mod waiting;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bollard::models::ImageSummary;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use self::failures::Failures;
use self::turns::{Permit, Turn, Turns, UnderWay, Wanted};
use self::waiting::Wish;
use super::PullPolicy;
use super::access::ImageAccess;
use super::credentials::NodeCredentials;
use super::facts::{FactsCache, ImageFacts, id_of_local, id_of_pulled};
use super::progress::{ProgressBoard, PullProgressReport};
use super::pulled::{PulledImages, named};
use super::remove::remove_image;
use crate::engine::{EngineError, SharedEngine};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::credentials::{
    Credential, MalformedSecret, PullSecrets, RegistryAuth, candidates,
};
use mirrorlet_core::image_access::Verification;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_core::reference::Reference;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

/// Default number of parallel pulls: enough to keep a link busy, few enough that the first pod does not
/// wait for the last.
pub const DEFAULT_PULLS: usize = 4;

/// An image that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnsuredImage {
    /// Image reference to create the container from: the name with its tag or digest.
    pub reference: String,
    /// Facts about it.
    pub facts: Arc<ImageFacts>,
    /// Whether it was pulled for this call.
    pub pulled: bool,
}

/// An image on the Engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListedImage {
    /// The Engine's id of it, `sha256:…`.
    pub id: String,
    /// Its names by tag.
    pub tags: Vec<String>,
    /// Its names by digest.
    pub digests: Vec<String>,
    /// Its size in bytes; shared layers count with each image.
    pub size_bytes: u64,
    /// When this agent, or an earlier one with the same root, last pulled it; none for other images.
    pub pulled_at: Option<Timestamp>,
}

impl ListedImage {
    /// The ids under which statuses of containers may refer to it, see [`ImageFacts::image_id`].
    pub fn image_ids(&self) -> impl Iterator<Item = String> {
        let pulled = self.digests.iter().map(|digest| id_of_pulled(digest));
        pulled.chain([id_of_local(&self.id)])
    }
}

/// An image that was pulled, and the credentials that did it; none where none were needed.
#[derive(Debug, Clone)]
struct Downloaded {
    facts: Arc<ImageFacts>,
    with: Option<RegistryAuth>,
}

/// The result of a pull, for all pods that wait for it.
type Outcome = Result<Downloaded, EngineError>;
/// The credentials to try for a pull, in order.
type Credentials = Arc<[Credential]>;

/// The pod that an image is for.
#[derive(Debug, Clone, Copy)]
pub struct ForPod<'a> {
    /// Its UID.
    pub uid: &'a PodUid,
    /// Its namespace, whose pulls leave a turn for other namespaces; empty for nothing to pull.
    pub namespace: &'a str,
}

impl<'a> From<&'a PodUid> for ForPod<'a> {
    fn from(uid: &'a PodUid) -> Self {
        Self { uid, namespace: "" }
    }
}

/// Options of an [`ImagePuller`].
#[derive(Debug, Clone)]
pub struct PullerOptions {
    /// Maximum number of parallel pulls; at least one. If there are more, those for the pods of one
    /// namespace leave one for other namespaces.
    pub pulls: usize,
    /// Directory of a Docker client's configuration with the node's credentials; none to use only the
    /// pods' own.
    pub docker_config: Option<PathBuf>,
    /// File that records the pulled images; none to keep the record in memory only.
    pub record: Option<PathBuf>,
    /// File that records the credentials of pulls; none to keep the record in memory only.
    pub access_record: Option<PathBuf>,
    /// The images that pods may use only with the credentials that pulled them.
    pub verification: Verification,
}

impl Default for PullerOptions {
    fn default() -> Self {
        Self {
            pulls: DEFAULT_PULLS,
            docker_config: None,
            record: None,
            access_record: None,
            verification: Verification::default(),
        }
    }
}

/// State that pulls share.
struct PullState {
    engine: SharedEngine,
    facts: FactsCache,
    progress: ProgressBoard,
    turns: Turns,
    node: NodeCredentials,
    pulled: PulledImages,
    access: ImageAccess,
    under_way: UnderWay<Wanted, Outcome>,
    /// The turns of the namespaces that are in use or waited for.
    for_namespaces: UnderWay<(String, Wanted), Permit>,
    /// Of all turns, those at images that are pulled or about to be, and those that are waited for.
    for_all: UnderWay<Wanted, Turn>,
}

/// Ensures that images are present.
pub struct ImagePuller {
    shop: Arc<PullState>,
    failures: Mutex<Failures>,
    /// Counts the times when images may have changed.
    changes: watch::Sender<u64>,
}

impl fmt::Debug for ImagePuller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImagePuller")
            .field("endpoint", &self.shop.engine.endpoint())
            .finish_non_exhaustive()
    }
}

impl ImagePuller {
    /// A puller on that Engine.
    pub fn new(engine: SharedEngine, options: PullerOptions) -> Self {
        let access = ImageAccess::new(
            options.verification,
            Arc::clone(&engine),
            options.access_record,
        );
        Self {
            shop: Arc::new(PullState {
                engine,
                access,
                facts: FactsCache::default(),
                progress: ProgressBoard::default(),
                turns: Turns::new(options.pulls),
                node: NodeCredentials::new(options.docker_config),
                pulled: PulledImages::new(options.record),
                under_way: UnderWay::default(),
                for_namespaces: UnderWay::default(),
                for_all: UnderWay::default(),
            }),
            failures: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Ensures that an image is present for a container of a pod, pulling it as the policy requires.
    ///
    /// A known image costs no Engine call, an unknown present one an inspect. The image may have been
    /// removed since: if a create reports that it is missing, [`forget`](Self::forget) it and call
    /// again. `awaited` is called when a pull is begun or joined.
    ///
    /// # Errors
    /// With upstream's reasons; `retry_after` is set if only waiting helps.
    pub async fn ensure_image<'a>(
        &self,
        pod: impl Into<ForPod<'a>>,
        image: &str,
        policy: PullPolicy,
        secrets: &PullSecrets,
        now: Timestamp,
        awaited: impl FnOnce(),
    ) -> Result<EnsuredImage, SyncError> {
        let ForPod { uid, namespace } = pod.into();
        let began = Instant::now();
        let reference = Reference::parse(image).map_err(|error| {
            SyncError::new(
                SyncErrorReason::InvalidImageName,
                format!("Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: {error}"),
            )
        })?;
        let present = match policy {
            // Its pull answers the question.
            PullPolicy::Always | PullPolicy::Ordered => None,
            PullPolicy::IfNotPresent | PullPolicy::Never => {
                self.present(image, reference.as_str()).await?
            }
        };
        // One that the pod may not use counts as absent, in upstream's words too: it is not said
        // that the image is here.
        let is_looked_up = matches!(policy, PullPolicy::IfNotPresent | PullPolicy::Never);
        let is_absent = is_looked_up && present.is_none();
        match (self.usable(present, &reference, secrets).await, policy) {
            (Some(facts), _) => {
                tracing::debug!(
                    image,
                    "Container image {image:?} already present on machine"
                );
                Ok(EnsuredImage {
                    reference: reference.as_str().to_owned(),
                    facts,
                    pulled: false,
                })
            }
            (None, PullPolicy::Never) => Err(SyncError::new(
                SyncErrorReason::ErrImageNeverPull,
                format!("Container image {image:?} is not present with pull policy of Never"),
            )),
            (None, PullPolicy::Always | PullPolicy::IfNotPresent | PullPolicy::Ordered) => {
                let key = format!("{uid}_{image}");
                let credentials = self.shop.credentials(&reference, secrets).await;
                if policy != PullPolicy::Ordered {
                    self.failures
                        .lock()
                        .check_backoff(&key, image, &credentials, now)?;
                }
                awaited();
                let wish = Wish {
                    namespace,
                    reference: &reference,
                    secrets,
                    policy,
                    is_absent,
                };
                let (outcome, pulled) = self.pull_or_find(&wish, &credentials).await;
                let is_present = match &outcome {
                    Err(error) if policy == PullPolicy::Always && download::has_no_image(error) => {
                        let present = self.present(image, reference.as_str()).await;
                        let present = present.unwrap_or_default();
                        self.usable(present, &reference, secrets).await.is_some()
                    }
                    Ok(_) | Err(_) => false,
                };
                let now = now + began.elapsed();
                let mut failures = self.failures.lock();
                let settled = failures.settle(key, image, credentials, outcome, now, is_present);
                let facts = settled?;
                Ok(EnsuredImage {
                    reference: reference.as_str().to_owned(),
                    facts,
                    pulled,
                })
            }
        }
    }

    /// The image that is present, if the pod may use it.
    async fn usable(
        &self,
        present: Option<Arc<ImageFacts>>,
        reference: &Reference,
        secrets: &PullSecrets,
    ) -> Option<Arc<ImageFacts>> {
        let facts = present?;
        let access = &self.shop.access;
        let may_use = access.may_use(&facts.id, reference, secrets).await;
        may_use.then_some(facts)
    }

    /// Pulls an image with the node's credentials now, even if it is known.
    ///
    /// # Errors
    /// An error of the Engine or the registry, or the name is invalid.
    pub async fn pull(
        &self,
        image: &str,
        secrets: &PullSecrets,
    ) -> Result<Arc<ImageFacts>, EngineError> {
        let reference = Reference::parse(image).map_err(|error| EngineError::Api {
            status: http::StatusCode::BAD_REQUEST.as_u16(),
            message: format!("{image:?}: {error}"),
        })?;
        let credentials = self.shop.credentials(&reference, secrets).await;
        let credentials = credentials.map_err(|error| unusable(&error))?;
        let shop = Arc::clone(&self.shop);
        let pull = shop.pull("", reference.as_str(), &credentials);
        pull.await.map(|downloaded| downloaded.facts)
    }

    /// Forgets the facts of an image: a create reported that it is missing, or its name may refer to
    /// another image now.
    pub fn forget(&self, image: &str) {
        if let Ok(reference) = Reference::parse(image) {
            self.shop.facts.forget(reference.as_str());
        }
    }

    /// Forgets the facts of all images: the Engine was away, and another one may have come back.
    pub fn forget_all(&self) {
        self.shop.facts.clear();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Changes whenever images may have been added, removed or renamed, and when the Engine is back.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the images on the Engine that this agent, or an earlier one with the same root, pulled,
    /// by id, with the time. `listed_at` is when the list was requested.
    pub(super) async fn pulled(
        &self,
        listed: &[ImageSummary],
        listed_at: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        self.shop.access.prune(listed, listed_at).await;
        self.shop.pulled.ours(listed, listed_at).await
    }

    /// Retries failed writes of the records of pulls, if there were some.
    pub(super) async fn write_due(&self) {
        self.shop.access.write_due().await;
        self.shop.pulled.write_due().await;
    }

    /// Removes an image with all its names; a missing one is success.
    ///
    /// # Errors
    /// It is in use, or an error of the Engine.
    pub async fn remove(&self, image: &str) -> Result<(), EngineError> {
        let removed = remove_image(&*self.shop.engine, image).await;
        self.forget_all();
        removed
    }

    /// All images with a name. One Engine call.
    ///
    /// # Errors
    /// An error of the Engine.
    pub async fn list(&self) -> Result<Vec<ImageSeen>, EngineError> {
        let images = self.shop.engine.list_images(false).await?;
        Ok(images.into_iter().map(super::facts::seen).collect())
    }

    /// All images, also those without a name, with the time of the pull for those that are ours. One
    /// Engine call.
    ///
    /// # Errors
    /// An error of the Engine.
    pub async fn list_all(&self) -> Result<Vec<ListedImage>, EngineError> {
        let at = Timestamp::now();
        let images = self.shop.engine.list_images(false).await?;
        let ours = self.pulled(&images, at).await;
        let listed = |image: ImageSummary| ListedImage {
            pulled_at: ours.get(&image.id).copied(),
            tags: named(&image.repo_tags).cloned().collect(),
            digests: named(&image.repo_digests).cloned().collect(),
            size_bytes: image.size.try_into().unwrap_or(0),
            id: image.id,
        };
        Ok(images.into_iter().map(listed).collect())
    }

    /// The progress of all pulls, by image.
    pub fn progress(&self) -> Vec<PullProgressReport> {
        self.shop.progress.reports()
    }

    /// Changes with the progress of pulls: many times a second while there is one.
    pub fn progressed(&self) -> watch::Receiver<u64> {
        self.shop.progress.changed()
    }

    /// The image's facts if it is present.
    async fn present(
        &self,
        image: &str,
        reference: &str,
    ) -> Result<Option<Arc<ImageFacts>>, SyncError> {
        if let Some(facts) = self.shop.facts.get(reference) {
            return Ok(Some(facts));
        }
        match self.shop.inspect(reference).await {
            Ok(facts) => Ok(Some(facts)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error @ EngineError::Unavailable { .. }) => Err(away(&error)),
            Err(error) => Err(SyncError::new(
                SyncErrorReason::ImageInspectError,
                format!("Failed to inspect image {image:?}: {error}"),
            )),
        }
    }
}

/// A pull that is not tried: its credentials can't be read.
fn unusable(secret: &MalformedSecret) -> EngineError {
    EngineError::Api {
        status: http::StatusCode::UNAUTHORIZED.as_u16(),
        message: secret.to_string(),
    }
}

fn away(error: &EngineError) -> SyncError {
    SyncError::new(SyncErrorReason::RuntimeUnavailable, error.to_string())
}

impl PullState {
    /// Returns the credentials to try for a pull of that image.
    async fn credentials(
        &self,
        reference: &Reference,
        secrets: &PullSecrets,
    ) -> Result<Credentials, MalformedSecret> {
        if let Some(error) = &secrets.malformed {
            return Err(error.clone());
        }
        let node = self.node.config().await;
        Ok(candidates(&secrets.keyring, &node, &reference.repository()).into())
    }

    /// Asks the Engine about an image and remembers the answer.
    async fn inspect(&self, reference: &str) -> Result<Arc<ImageFacts>, EngineError> {
        let facts = Arc::new(ImageFacts::from(
            self.engine.inspect_image(reference).await?,
        ));
        self.facts.put(reference, facts.clone());
        Ok(facts)
    }
}
