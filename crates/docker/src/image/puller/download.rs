//! One pull from its beginning to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, timeout};

use super::turns::Turn;
use super::{Credentials, Downloaded, Outcome, PullState};
use crate::engine::{EngineError, PullProgress};
use crate::image::directory::is_of_containerd;
use crate::image::progress::BoardEntry;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::credentials::{Credential, RegistryAuth};
use mirrorlet_core::reference::Reference;
use mirrorlet_host::telemetry::occurrences;

/// How long a download may be silent. Upstream: `defaultImagePullingStuckTimeout`.
const STALL: Duration = Duration::from_mins(1);

/// The limit while all missing layers wait in the Engine's queue, which is shared by all pulls: the
/// Engine reports neither the waiting time nor its end. containerd reports nothing while it unpacks
/// complete layers, either. Since Engine 29.9 its downloads also wait in a queue, including manifests,
/// and it doesn't report those that wait.
const WAIT_STALL: Duration = Duration::from_mins(30);

/// Most layers of one pull that are watched; an image has some hundred at most.
const LAYERS_MAX: usize = 4096;

/// Time between two log lines of one pull. Upstream: `defaultImagePullingProgressReportInterval`.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The prefix of the last message of a complete pull.
const DONE: &str = "Status: ";

/// The same, where the name stood for no image or for another one before.
const DONE_ANEW: &str = "Status: Downloaded newer image";

/// Whether a pull changed the image that its name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// Everything was present before.
    Before,
    /// By this pull.
    Anew,
}

/// A layer that has not arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// It is to come.
    Announced,
    /// It is downloaded, with progress messages.
    Moving,
    /// There may be no messages for long.
    Silent,
    /// It is downloaded, and being unpacked for as long as that takes.
    Extracting,
}

/// The layers of one pull that have not arrived.
#[derive(Debug, Default)]
struct Layers(BTreeMap<String, Layer>);

impl Layers {
    fn note(&mut self, message: &PullProgress) {
        let (layer, status) = (&message.layer, message.status.as_str());
        // The first message carries the tag where layers have their id.
        if layer.is_empty() || status.starts_with("Pulling from") {
            return;
        }
        let state = match status {
            "Pull complete" | "Already exists" => {
                self.0.remove(layer);
                return;
            }
            "Waiting" | "Verifying Checksum" | "Download complete" => Layer::Silent,
            "Extracting" => Layer::Extracting,
            "Pulling fs layer" => Layer::Announced,
            _ => Layer::Moving,
        };
        if self.0.contains_key(layer) || self.0.len() < LAYERS_MAX {
            self.0.insert(layer.clone(), state);
        }
    }

    fn any(&self, state: Layer) -> bool {
        self.0.values().any(|layer| *layer == state)
    }

    /// The time without messages after which the pull is aborted; none for no limit. When all layers
    /// have arrived, the configuration of the image may be missing, about which the Engine sends no
    /// messages. `is_quiet` says that the Engine sends no messages about waiting and unpacking.
    fn patience(&self, is_quiet: bool) -> Option<Duration> {
        let moves = self.any(Layer::Moving) || (!is_quiet && self.any(Layer::Announced));
        if moves {
            Some(STALL)
        } else if self.any(Layer::Extracting) {
            None
        } else if is_quiet || self.any(Layer::Silent) {
            Some(WAIT_STALL)
        } else {
            Some(STALL)
        }
    }
}

/// Status codes of unavailable registries.
const TROUBLE: [u16; 3] = [502, 503, 504];

/// The code of the distribution protocol for credentials that are missing or wrong.
const UNAUTHORIZED: &str = "unauthorized";

impl PullState {
    /// Pulls with that turn, and inspects the image. The pod has waited since `asked`.
    pub(super) async fn download(
        &self,
        image: &str,
        credentials: &Credentials,
        asked: Instant,
        turn: &Turn,
    ) -> Outcome {
        let entry = self.progress.begin(image);
        tracing::info!(image, reason = "Pulling", "Pulling image {image:?}");
        let began = Instant::now();
        let received = self.receive_with_any(image, &entry, credentials);
        let outcome = match self.turns.bound(turn, received).await {
            Ok((came, with)) => {
                let found = self.inspect(image).await;
                // An image that existed before is not ours.
                if let (Came::Anew, Ok(found), Ok(name)) = (came, &found, Reference::parse(image)) {
                    self.pulled.note(&found.id, &name, Timestamp::now()).await;
                }
                found.map(|facts| Downloaded { facts, with })
            }
            Err(error) => Err(error),
        };
        drop(entry);
        let key = (image.to_owned(), Arc::clone(credentials));
        self.under_way.lock().remove(&key);
        match &outcome {
            Ok(Downloaded { facts, .. }) => tracing::info!(
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

    /// Pulls with each of the credentials until one works; without any if there are none.
    ///
    /// Upstream: `PullImage` of `pkg/kubelet/kuberuntime/kuberuntime_image.go`.
    async fn receive_with_any(
        &self,
        image: &str,
        entry: &BoardEntry<'_>,
        credentials: &Credentials,
    ) -> Result<(Came, Option<RegistryAuth>), EngineError> {
        let mut failures: Vec<EngineError> = Vec::new();
        // Why credentials were not tried, reported if every attempt fails.
        let mut hindrances: Vec<String> = self.node.problem().into_iter().collect();
        for credential in credentials.iter() {
            let auth = match credential {
                Credential::Known(auth) => auth.clone(),
                Credential::Helper { helper, server } => {
                    match self.node.ask(helper, server).await {
                        Ok(Some(auth)) => auth,
                        Ok(None) => continue,
                        Err(error) => {
                            hindrances.push(error.to_string());
                            continue;
                        }
                    }
                }
            };
            entry.started();
            match self.receive(image, entry, Some(&auth)).await {
                Ok(came) => return Ok((came, Some(auth))),
                Err(error) => {
                    let is_final = !another_may_help(&error);
                    failures.push(error);
                    if is_final {
                        break;
                    }
                }
            }
        }
        if failures.is_empty() {
            entry.started();
            match self.receive(image, entry, None).await {
                Ok(came) => return Ok((came, None)),
                Err(error) => failures.push(error),
            }
        }
        Err(joined(failures, &hindrances))
    }

    /// Whether the Engine leaves images to containerd; not if it doesn't answer.
    async fn is_quiet(&self) -> bool {
        let info = self.engine.info().await;
        info.is_ok_and(|info| is_of_containerd(&info))
    }

    /// Processes a pull's messages to their end. A silent download is aborted after a while; much later
    /// while its layers wait in the Engine, and never while they are unpacked, because that can take
    /// long without messages.
    async fn receive(
        &self,
        image: &str,
        entry: &BoardEntry<'_>,
        auth: Option<&RegistryAuth>,
    ) -> Result<Came, EngineError> {
        let mut messages = self.engine.pull_image(image, auth).await?;
        let mut layers = Layers::default();
        let mut done = false;
        let mut came = Came::Before;
        let mut logged = Instant::now();
        let mut is_quiet = false;
        loop {
            let next = match layers.patience(is_quiet) {
                Some(patience) => match timeout(patience, messages.next()).await {
                    Ok(next) => next,
                    Err(_) if !is_quiet && !layers.any(Layer::Moving) && self.is_quiet().await => {
                        is_quiet = true;
                        continue;
                    }
                    Err(_) => return Err(stalled(image, patience)),
                },
                None => messages.next().await,
            };
            match next {
                None => return Ok(came),
                Some(Ok(message)) => {
                    layers.note(&message);
                    done |= message.status.starts_with(DONE);
                    if message.status.starts_with(DONE_ANEW) {
                        came = Came::Anew;
                    }
                    entry.note(&message);
                    if logged.elapsed() >= LOG_PERIOD
                        && let Some(report) = entry.report()
                    {
                        logged = Instant::now();
                        occurrences::image_pull_progress(&report);
                    }
                }
                // Everything is present; only the end of the stream was lost.
                Some(Err(_)) if done => return Ok(came),
                Some(Err(error)) => return Err(error),
            }
        }
    }
}

/// Whether other credentials may work when these did not: not if there was no answer.
fn another_may_help(error: &EngineError) -> bool {
    match error {
        EngineError::Unavailable { .. }
        | EngineError::Timeout { .. }
        | EngineError::TooLarge { .. } => false,
        EngineError::Api { status, .. } => {
            *status != http::StatusCode::REQUEST_TIMEOUT.as_u16() && !is_registry_unavailable(error)
        }
        EngineError::Decode { .. } => true,
    }
}

/// The failures of all tries as one message, each once.
///
/// Upstream: `NewAggregate` of `k8s.io/apimachinery/pkg/util/errors`.
fn joined(failures: Vec<EngineError>, hindrances: &[String]) -> EngineError {
    let mut words: Vec<String> = Vec::new();
    for failure in &failures {
        let text = failure.to_string();
        if !words.contains(&text) {
            words.push(text);
        }
    }
    let Some(last) = failures.into_iter().next_back() else {
        return EngineError::api(0_u16, "no attempt was made");
    };
    // An error that contains its own advice.
    if matches!(last, EngineError::Unavailable { .. }) || words.len() + hindrances.len() < 2 {
        return last;
    }
    let mut message = if let [only] = &words[..] {
        only.clone()
    } else {
        format!("[{}]", words.join(", "))
    };
    if !hindrances.is_empty() {
        message = format!("{message} ({})", hindrances.join("; "));
    }
    EngineError::api(last.status().unwrap_or_default(), message)
}

fn stalled(image: &str, patience: Duration) -> EngineError {
    EngineError::api(
        http::StatusCode::REQUEST_TIMEOUT,
        format!(
            "pull of {image:?} was cancelled: no progress for {} s",
            patience.as_secs()
        ),
    )
}

/// Whether the registry can't offer the image: it is unavailable, can't be resolved, or doesn't know
/// the image. False if credentials are refused or can't be read, because those can be corrected.
///
/// A registry that denies all access to an unknown repository, as Docker Hub does, counts as not
/// knowing it.
pub(super) fn has_no_image(error: &EngineError) -> bool {
    let EngineError::Api { status, message } = error else {
        return false;
    };
    // The Engine passes most refusals on as errors of its own, with the registry's code in words.
    *status != http::StatusCode::UNAUTHORIZED.as_u16() && !message.contains(UNAUTHORIZED)
}

/// Whether the registry is unavailable, as opposed to not having the image. The Engine reports that
/// with a status code, or in a message with the code and its name.
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
