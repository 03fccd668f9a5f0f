//! Waits for a turn, while the image may become available in another way.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Credentials, Downloaded, ImagePuller, unusable};
use crate::engine::EngineError;
use crate::image::PullPolicy;
use crate::image::facts::ImageFacts;
use mirrorlet_core::credentials::{MalformedSecret, PullSecrets};
use mirrorlet_core::reference::Reference;

/// Pause after a change of images before a waiting pod looks for its image: all pods of a node may
/// wait, and each new image notifies all of them.
const LOOK_PAUSE: Duration = Duration::from_secs(10);

/// An image that a pod needs and that it can't use yet.
pub(super) struct Wish<'a> {
    /// The pod's namespace.
    pub(super) namespace: &'a str,
    pub(super) reference: &'a Reference,
    /// The pod's secrets.
    pub(super) secrets: &'a PullSecrets,
    pub(super) policy: PullPolicy,
    /// Whether the image is known to be missing on the Engine.
    pub(super) is_absent: bool,
}

impl ImagePuller {
    /// Pulls an image once there is a turn. Also returns whether it was pulled: not if it became
    /// available in another way while the pod waited, and the pod may use it.
    pub(super) async fn pull_or_find(
        &self,
        wish: &Wish<'_>,
        credentials: &Result<Credentials, MalformedSecret>,
    ) -> (Result<Arc<ImageFacts>, EngineError>, bool) {
        let credentials = match credentials {
            Ok(credentials) => credentials,
            Err(error) => return (Err(unusable(error)), true),
        };
        let asked = Instant::now();
        let wanted = (wish.reference.as_str().to_owned(), Arc::clone(credentials));
        let mut had_to_wait = false;
        let of_namespace = self.shop.namespace_turn(wish.namespace, &wanted);
        let found = self.found_before(wish, of_namespace.wait(), &mut had_to_wait);
        if let Some(facts) = found.await {
            return (Ok(facts), false);
        }
        let of_all = self.shop.turn_at(&wanted);
        let found = self.found_before(wish, of_all.wait(), &mut had_to_wait);
        if let Some(facts) = found.await {
            return (Ok(facts), false);
        }
        // A pull whose end was not observed may have brought it meanwhile.
        let is_absent = wish.is_absent && !had_to_wait;
        let outcome = self.pull_noted(wish, is_absent, credentials, asked).await;
        // Held until now, so that a pod that gets the next turn knows who may use the image.
        drop(of_all);
        (outcome, true)
    }

    /// Waits for a turn; sets `had_to_wait` if there is none immediately. Returns the image if it
    /// becomes available in another way before, and the pod may use it.
    async fn found_before<T: Clone>(
        &self,
        wish: &Wish<'_>,
        mut turn: Shared<BoxFuture<'static, T>>,
        had_to_wait: &mut bool,
    ) -> Option<Arc<ImageFacts>> {
        if (&mut turn).now_or_never().is_some() {
            return None;
        }
        *had_to_wait = true;
        if wish.policy != PullPolicy::IfNotPresent {
            turn.await;
            return None;
        }
        let mut changed = self.changed();
        loop {
            let has_turn = tokio::select! {
                biased;
                _ = &mut turn => true,
                () = change(&mut changed) => false,
            };
            let name = wish.reference.as_str();
            // On an error, the pull reports more.
            let present = self.present(name, name).await.unwrap_or_default();
            let found = self.usable(present, wish.reference, wish.secrets).await;
            if found.is_some() || has_turn {
                return found;
            }
        }
    }

    /// Pulls an image, and records who may use it. The pod has waited since `asked`.
    async fn pull_noted(
        &self,
        wish: &Wish<'_>,
        is_absent: bool,
        credentials: &Credentials,
        asked: Instant,
    ) -> Result<Arc<ImageFacts>, EngineError> {
        let (access, reference) = (&self.shop.access, wish.reference);
        let noted = access.begin(reference, is_absent).await;
        let noted = noted.map_err(|error| EngineError::Api {
            status: http::StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
            message: format!(
                "Failed to record image pull intent for container image {:?}: {error}",
                reference.as_str()
            ),
        })?;
        let wanted = (reference.as_str().to_owned(), Arc::clone(credentials));
        let pull = self.shop.pull_for_all(wanted, asked);
        match pull.wait().await {
            Ok(Downloaded { facts, with }) => {
                access
                    .succeeded(noted, &facts.id, reference, with.as_ref(), wish.secrets)
                    .await;
                Ok(facts)
            }
            // Whether the image came is not known.
            Err(error @ (EngineError::Unavailable { .. } | EngineError::Timeout { .. })) => {
                Err(error)
            }
            Err(error) => {
                access.failed(noted).await;
                Err(error)
            }
        }
    }
}

/// Ends some time after images have changed.
async fn change(changed: &mut watch::Receiver<u64>) {
    // The sender is the puller's own.
    let _ = changed.changed().await;
    sleep(LOOK_PAUSE).await;
}
