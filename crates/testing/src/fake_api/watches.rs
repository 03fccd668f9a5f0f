//! Watches: they begin at a revision and end when they are broken or time out.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use mirrorlet_apimachinery::resources::Target;
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::Status;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::FakeApi;
use super::faults::Reach;
use super::requests::{AnswerBody, BoxError, Call};

/// The default duration of a watch.
///
/// Upstream: `--min-request-timeout` of kube-apiserver.
const LENGTH: Duration = Duration::from_mins(30);

struct Watching {
    api: FakeApi,
    woken: watch::Receiver<u64>,
    target: Target,
    selector: Selector,
    /// Changes up to this revision were sent, or are waiting.
    revision: u64,
    /// How often watches had been broken when it began.
    broken: u64,
    until: Instant,
    waiting: VecDeque<Bytes>,
    is_over: bool,
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

impl FakeApi {
    pub(super) fn watch(&self, call: &Call) -> Result<AnswerBody, Status> {
        let (selector, options) = (call.selector()?, &call.options);
        let woken = self.inner.woken.subscribe();
        let state = self.inner.state.lock();
        let (revision, begins_with_all) = match options.resource_version {
            None | Some(0) => (state.cache.revision(), true),
            Some(revision) => (revision, false),
        };
        let mut waiting = VecDeque::new();
        if begins_with_all {
            let target = &call.target;
            let all = state
                .cache
                .list(target.resource, &target.namespace, &selector);
            waiting.extend(all.iter().map(|object| line("ADDED", object)));
        }
        let lasts = options.timeout_seconds.map_or(LENGTH, Duration::from_secs);
        let watching = Watching {
            api: self.clone(),
            woken,
            target: call.target.clone(),
            selector,
            revision,
            broken: state.watches_broken,
            until: Instant::now() + lasts,
            waiting,
            is_over: false,
        };
        drop(state);
        let pieces = futures::stream::unfold(watching, |mut watching| async move {
            let piece = watching.next().await?;
            Some((piece.map(Frame::data), watching))
        });
        Ok(BodyExt::boxed_unsync(StreamBody::new(pieces.boxed())))
    }
}

impl Watching {
    /// The next line; none at the end.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            let more_at = match self.look() {
                Ok(more_at) => more_at,
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            };
            if self.reaches()
                && let Some(line) = self.waiting.pop_front()
            {
                return Some(Ok(line));
            }
            if self.is_over || Instant::now() >= self.until {
                return None;
            }
            let wake = more_at.map_or(self.until, |at| at.min(self.until));
            tokio::select! {
                // The server itself holds the sender.
                _ = self.woken.changed() => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn reaches(&self) -> bool {
        self.api.inner.state.lock().reach == Reach::Up
    }

    /// Takes the changes since the last look. Returns when there are more to deliver.
    fn look(&mut self) -> Result<Option<Instant>, BoxError> {
        if self.is_over {
            return Ok(None);
        }
        let state = self.api.inner.state.lock();
        if state.reach == Reach::Refused || state.watches_broken > self.broken {
            return Err("connection reset by peer".into());
        }
        let (delivered, more_at) = state.delivered();
        match state.cache.since(self.revision) {
            Err(expired) => {
                self.is_over = true;
                self.waiting.push_back(line("ERROR", &expired.to_value()));
            }
            Ok(changes) => {
                let ours = changes
                    .take_while(|change| change.revision <= delivered)
                    .filter(|change| change.key.resource == self.target.resource)
                    .filter(|change| {
                        let namespace = &self.target.namespace;
                        namespace.is_empty() || change.key.namespace == *namespace
                    })
                    .filter_map(|change| change.seen_by(&self.selector));
                let lines = ours.map(|(kind, object)| line(kind.as_str(), &object));
                self.waiting.extend(lines);
                self.revision = self.revision.max(delivered);
            }
        }
        Ok(more_at)
    }
}
