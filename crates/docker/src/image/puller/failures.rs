//! Failed pulls: the back-off of each, and its last error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Credentials, away, download};
use crate::engine::EngineError;
use crate::image::facts::ImageFacts;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::backoff::Backoff;
use mirrorlet_core::credentials::MalformedSecret;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

/// Back-off of failing pulls, and their last errors. Keys are `<uid>_<image>`.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) backoff: Backoff<String>,
    pub(super) last: BTreeMap<String, Failure>,
}

/// A pull that failed.
#[derive(Debug)]
pub(super) struct Failure {
    error: SyncError,
    /// The credentials it was tried with. A pull with any others need not wait.
    credentials: Result<Credentials, MalformedSecret>,
}

impl Failures {
    /// Refuses a pull in back-off.
    pub(super) fn check_backoff(
        &self,
        key: &String,
        image: &str,
        credentials: &Result<Credentials, MalformedSecret>,
        now: Timestamp,
    ) -> Result<(), SyncError> {
        let last = self.last.get(key);
        if last.is_some_and(|last| last.credentials != *credentials) {
            return Ok(());
        }
        let Some(remaining) = self.backoff.is_in_backoff_since_update(key, now) else {
            return Ok(());
        };
        let mut message = format!("Back-off pulling image {image:?}");
        if let Some(last) = last {
            message = format!("{message}: {}", last.error);
        }
        Err(SyncError {
            retry_after: Some(remaining),
            ..SyncError::new(SyncErrorReason::ImagePullBackOff, message)
        })
    }

    /// Records the outcome of a pull. `is_present` says that the pod may use the image on this machine,
    /// and only the policy asks for a pull.
    pub(super) fn settle(
        &mut self,
        key: String,
        image: &str,
        credentials: Result<Credentials, MalformedSecret>,
        outcome: Result<Arc<ImageFacts>, EngineError>,
        now: Timestamp,
        is_present: bool,
    ) -> Result<Arc<ImageFacts>, SyncError> {
        let error = match outcome {
            Ok(facts) => {
                self.backoff.reset(&key);
                self.last.remove(&key);
                return Ok(facts);
            }
            // Not the image's fault: the pod is tried again when the Engine is back.
            Err(error @ EngineError::Unavailable { .. }) => return Err(away(&error)),
            Err(error) => error,
        };
        self.backoff.gc(now);
        let last = self.last.get(&key);
        if last.is_some_and(|last| last.credentials != credentials) {
            self.backoff.reset(&key);
        }
        self.backoff.next(key.clone(), now, now);
        let mut error = pull_error(image, &error, self.backoff.delay(&key));
        if is_present {
            error.message.push_str(ALWAYS_PULLS);
        }
        let failure = Failure {
            error: error.clone(),
            credentials,
        };
        self.last.insert(key, failure);
        let backoff = &self.backoff;
        self.last.retain(|key, _| !backoff.delay(key).is_zero());
        Err(error)
    }
}

/// Appended to the error of a pull that only the policy makes necessary.
const ALWAYS_PULLS: &str = "; the image is present on this machine, but imagePullPolicy Always, the default for an image without a tag or with the tag latest, pulls it at each start: set imagePullPolicy to IfNotPresent to use it";

/// A failed pull in upstream's words.
fn pull_error(image: &str, error: &EngineError, delay: Duration) -> SyncError {
    let (reason, prefix) = if download::is_registry_unavailable(error) {
        (
            SyncErrorReason::RegistryUnavailable,
            "RegistryUnavailable: ",
        )
    } else {
        (SyncErrorReason::ErrImagePull, "")
    };
    SyncError {
        retry_after: Some(delay),
        ..SyncError::new(
            reason,
            format!("Failed to pull image {image:?}: {prefix}{error}"),
        )
    }
}
