//! A URL as a source of pods: polled, and only used after a valid response.
//!
//! The pods of its last response keep running during an outage, even across restarts of the agent. Its
//! body is treated like a file's text ([`hold`](mirrorlet_core::hold)): an invalid item of a list only
//! holds that item, an empty body holds everything, and only a list without the pod removes it.
//!
//! Upstream: `pkg/kubelet/config/http.go`.

mod content;
mod fetch;
mod levels;

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use self::content::Content;
use self::fetch::{FetchError, Fetched, Fetcher};
use self::levels::{FailureLevels, FailureLogLevel};
use super::SourceWriter;
use crate::config::Config;
use mirrorlet_core::api::{Code, Diagnostic, NodeName, Timestamp};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::merge::SourceName;
use mirrorlet_host::disk;

pub use self::fetch::HttpSourceError;

/// Total deadline of a response, including redirects and the body, as upstream.
const DEADLINE: Duration = Duration::from_secs(10);

/// The URL to fetch, and how.
///
/// Not `Debug`: headers may be secret.
#[derive(Clone)]
pub struct HttpOptions {
    /// The URL; user and password in it are sent as basic authentication.
    pub url: String,
    /// Headers sent with every request.
    pub headers: Vec<(String, String)>,
    /// PEM file of CAs trusted beside the system's.
    pub ca: Option<PathBuf>,
    /// Root directory of the agent, in which the last good versions are stored.
    pub root: PathBuf,
    /// Node the pods are bound to.
    pub node_name: NodeName,
    /// How often the URL is asked.
    pub period: Duration,
    /// Total deadline of a response.
    pub deadline: Duration,
}

impl HttpOptions {
    /// The options of one of the configured URLs.
    pub fn new(config: &Config, url: &str) -> Self {
        Self {
            url: url.to_owned(),
            headers: config.manifest_url_headers.clone(),
            ca: config.manifest_url_ca.clone(),
            root: config.root.clone(),
            node_name: config.node_name.clone(),
            period: config.url_period,
            deadline: DEADLINE,
        }
    }
}

/// A manifest URL.
#[derive(Debug)]
pub struct HttpSource {
    fetcher: Fetcher,
    root: PathBuf,
    node_name: NodeName,
    period: Duration,
    deadline: Duration,
}

impl HttpSource {
    /// Sets up the source.
    ///
    /// # Errors
    /// When the URL, a header or the CA file can't be used.
    pub fn new(options: HttpOptions) -> Result<Self, HttpSourceError> {
        Ok(Self {
            fetcher: Fetcher::new(&options.url, &options.headers, options.ca.as_deref())?,
            root: options.root,
            node_name: options.node_name,
            period: options.period,
            deadline: options.deadline,
        })
    }

    /// Its name: the URL without credentials.
    pub fn name(&self) -> SourceName {
        SourceName::new(PodSource::Http, self.fetcher.location())
    }

    /// Delivers sets until cancelled. Nothing is delivered before the first valid response, unless an
    /// earlier agent stored one.
    ///
    /// # Cancel safety
    /// After cancellation nothing of this source is used any more.
    pub async fn run(self, mut writer: SourceWriter) {
        let (root, node) = (self.root.clone(), self.node_name.clone());
        let location = self.fetcher.location().to_owned();
        let mut content = disk::blocking(move || Content::load(location, &root, node)).await;
        let mut levels = FailureLevels::default();
        let mut etag: Option<HeaderValue> = None;
        loop {
            let started = Instant::now();
            let answer = match timeout(self.deadline, self.fetcher.fetch(etag.as_ref())).await {
                Ok(Ok(fetched)) => Ok(fetched),
                Ok(Err(error)) => Err(self.problem(&error)),
                Err(_) => Err(self.too_slow()),
            };
            content = match answer {
                Ok(fetched) => {
                    self.log_success(&mut levels);
                    writer.succeeded(Timestamp::now());
                    let body = match fetched {
                        Fetched::NotModified => None,
                        Fetched::Body(body, tag) => {
                            etag = tag;
                            Some(body)
                        }
                    };
                    let take = |content: &mut Content| content.take(body);
                    self.publish(content, &mut writer, take).await
                }
                Err(problem) => {
                    self.log_failure(&mut levels, &problem);
                    writer.failed(problem.clone());
                    let fail = |content: &mut Content| content.fail(problem);
                    self.publish(content, &mut writer, fail).await
                }
            };
            let next = started + self.period;
            let again = content.again(started.into_std()).map(Instant::from_std);
            sleep_until(again.map_or(next, |again| next.min(again))).await;
        }
    }

    /// Works on the content, publishes it, then stores it.
    async fn publish(
        &self,
        mut content: Content,
        writer: &mut SourceWriter,
        work: impl FnOnce(&mut Content) + Send,
    ) -> Content {
        work(&mut content);
        if let Some(set) = content.set() {
            writer.publish(set);
        }
        let (content, changed) = disk::blocking(move || {
            let changed = content.flush();
            (content, changed)
        })
        .await;
        if let Some(set) = content.set().filter(|_| changed) {
            writer.publish(set);
        }
        content
    }

    fn problem(&self, error: &FetchError) -> Diagnostic {
        let code = match error {
            FetchError::TooLarge => Code::TooLarge,
            FetchError::Transport(_)
            | FetchError::Status(_)
            | FetchError::Redirects
            | FetchError::RedirectTarget => Code::FetchFailed,
        };
        let message = format!("failed to fetch the URL, its pods keep running: {error}");
        Diagnostic::error(code, self.fetcher.location(), message)
    }

    fn too_slow(&self) -> Diagnostic {
        let message = format!(
            "failed to fetch the URL, its pods keep running: no complete response within {:?}",
            self.deadline
        );
        Diagnostic::error(Code::FetchFailed, self.fetcher.location(), message)
    }

    fn log_failure(&self, levels: &mut FailureLevels, problem: &Diagnostic) {
        let source = self.fetcher.location();
        match levels.failed() {
            FailureLogLevel::Loud => {
                warn!(source, reason = %problem.message, "manifest URL failed");
            }
            FailureLogLevel::LoudForTheLastTime => warn!(
                source,
                reason = %problem.message,
                "manifest URL failed; further failures are logged at the debug level"
            ),
            FailureLogLevel::Quiet => {
                debug!(source, reason = %problem.message, "manifest URL failed");
            }
        }
    }

    fn log_success(&self, levels: &mut FailureLevels) {
        if let Some(failures) = levels.succeeded() {
            info!(
                source = self.fetcher.location(),
                failures, "manifest URL answers again"
            );
        }
    }
}
