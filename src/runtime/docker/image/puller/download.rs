//! One pull from its beginning to its end.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, timeout};

use super::{Outcome, Shop, lock};
use crate::runtime::docker::engine::EngineError;
use crate::runtime::docker::image::progress::BoardEntry;

/// How long a download may say nothing. Upstream: `defaultImagePullingStuckTimeout`.
const STALL: Duration = Duration::from_mins(1);

/// What the last message of a whole pull begins with.
const DONE: &str = "Status: ";

/// What registries in trouble answer.
const TROUBLE: [u16; 3] = [502, 503, 504];

impl Shop {
    /// Waits for a turn, pulls, and looks at what came.
    pub(super) async fn download(&self, image: &str) -> Outcome {
        let asked = Instant::now();
        let entry = self.progress.begin(image);
        // Never closed while the shop stands.
        let _turn = self.slots.acquire().await;
        entry.started();
        tracing::info!(image, reason = "Pulling", "Pulling image {image:?}");
        let began = Instant::now();
        let outcome = match self.receive(image, &entry).await {
            Ok(()) => self.inspect(image).await,
            Err(error) => Err(error),
        };
        drop(entry);
        lock(&self.under_way).remove(image);
        match &outcome {
            Ok(facts) => tracing::info!(
                image,
                reason = "Pulled",
                size = facts.size,
                "Successfully pulled image {image:?} in {:.3}s ({:.3}s including waiting). Image \
                 size: {} bytes.",
                began.elapsed().as_secs_f64(),
                asked.elapsed().as_secs_f64(),
                facts.size,
            ),
            Err(error) => tracing::warn!(
                image,
                reason = "Failed",
                "Failed to pull image {image:?}: {error}"
            ),
        }
        outcome
    }

    /// Reads a pull's messages to their end. A download that says nothing for long is given up;
    /// one that unpacks never is, since that can take its time in silence.
    async fn receive(&self, image: &str, entry: &BoardEntry<'_>) -> Result<(), EngineError> {
        let mut messages = self.engine.pull_image(image, None).await?;
        let mut extracting = false;
        let mut done = false;
        loop {
            let next = if extracting {
                messages.next().await
            } else {
                timeout(STALL, messages.next())
                    .await
                    .map_err(|_| stalled(image))?
            };
            match next {
                None => return Ok(()),
                Some(Ok(message)) => {
                    extracting |= message.status.starts_with("Extracting");
                    done |= message.status.starts_with(DONE);
                    entry.note(&message);
                }
                // All is there; only the end of the stream was lost.
                Some(Err(_)) if done => return Ok(()),
                Some(Err(error)) => return Err(error),
            }
        }
    }
}

fn stalled(image: &str) -> EngineError {
    EngineError::Api {
        status: http::StatusCode::REQUEST_TIMEOUT.as_u16(),
        message: format!(
            "pull of {image:?} was cancelled: no progress for {} s",
            STALL.as_secs()
        ),
    }
}

/// Whether the registry is in trouble, rather than without the image. The Engine tells by a code,
/// or in words with the code and its name in them.
pub(super) fn is_registry_unavailable(error: &EngineError) -> bool {
    let EngineError::Api { status, message } = error else {
        return false;
    };
    let named = |code: &u16| {
        let name = http::StatusCode::from_u16(*code)
            .ok()
            .and_then(|c| c.canonical_reason());
        name.is_some_and(|name| message.contains(&format!("{code} {name}")))
    };
    TROUBLE.contains(status) || TROUBLE.iter().any(named)
}
