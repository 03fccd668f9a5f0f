//! The API server as a source of pods: those bound to our Node.
//!
//! One watch delivers all our pods, including mirrors, after a list. Only whole sets are published:
//! during a list, the earlier set stays; during an outage of the server, the last set stays, even
//! across restarts of the agent ([`last_known`]). Lists are consistent reads (`docs/adr/0007`): an
//! answer from a stale cache could miss a running pod, which would be stopped.
//!
//! Upstream: `pkg/kubelet/config/apiserver.go`.

mod grown;
mod known;
pub mod last_known;
mod listing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use kube::Api;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use self::last_known::LastKnown;
use self::listing::{LOCATION, Listing};
use super::SourceWriter;
use crate::store::pods::ApiPodsWriter;
use crate::store::settled::{Left, SettledPods};
use mirrorlet_core::api::{
    Code, Diagnostic, FullName, NodeName, Pod, PodUid, Timestamp, Watched, shortened, with_causes,
};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::merge::SourceName;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::occurrences;

/// How long a list may be silent before it counts as failed. Kubernetes ends a stuck request after 60 s
/// by itself; a request without any answer must be ended by the agent.
const LIST_SILENCE_MAX: Duration = Duration::from_mins(1);
/// The time after which a reopened watch without any event counts as open: the client waits 30 s for
/// the headers of an answer, so a failure would be known by then. An open watch of a quiet node
/// delivers nothing.
const OPEN_AFTER: Duration = Duration::from_secs(35);
/// A watch that went well for so long ends a series of failures.
const GOOD: Duration = Duration::from_mins(1);
/// Most bytes that are kept of the API server's words.
const WORDS_BYTES_MAX: usize = 4096;
/// Maximum number of pods in one page of a list. A pod has up to 1.5 MiB, and a page is held twice, as
/// text and as pods.
const PAGE_MAX: u32 = 20;
/// How long the answer about one pod may take.
const ASK_DEADLINE: Duration = Duration::from_secs(10);
/// First and longest pause after an answer about one pod that failed.
const ASK_PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(5), Duration::from_secs(30));
/// Maximum number of changes in one set.
const BATCH_MAX: usize = 512;

/// The inputs of the source.
pub struct ApiOptions {
    /// Talks to the API server.
    pub client: kube::Client,
    /// Our Node.
    pub node_name: NodeName,
    /// Root directory of the agent, in which the last known pods are stored.
    pub root: PathBuf,
    /// Completes once our Node is known to be registered: before that nothing is bound to it.
    pub registered: BoxFuture<'static, ()>,
    /// Ends a pause.
    pub back: Back,
    /// How many pods the node runs at a time.
    pub pods_max: usize,
    /// The settled pods, as reported by the workers.
    pub settled: SettledPods,
}

/// A future that completes when the API server, currently away, answers other calls again; never, while
/// it isn't away.
pub type Back = Box<dyn FnMut() -> BoxFuture<'static, ()> + Send>;

/// The pods that the API server binds to our Node.
pub struct ApiSource {
    options: ApiOptions,
    listing: Listing,
    last_known: LastKnown,
    /// The last reported failure; `None` while there is none.
    reported: Option<String>,
    /// Whether it was reported that pods wait.
    reported_waiting: bool,
    /// Whether it was reported that mirrors are ignored.
    reported_ignored: bool,
    /// When waiting pods are requested again, after a failure.
    ask_at: Option<Instant>,
    ask_pauses: ExponentialBackoff,
}

/// How following a watch came to an end.
struct Ended {
    /// None where nothing failed, and a new list is to be made.
    error: Option<String>,
    /// Whether its place in the history is kept.
    goes_on: bool,
    /// Whether the API server itself said so: it is not away.
    answered: bool,
}

impl Ended {
    /// There was no answer.
    fn silent(error: String) -> Self {
        Self {
            error: Some(error),
            goes_on: false,
            answered: false,
        }
    }

    /// Objects of a list are missing in the known set, or it has some that no list has.
    fn outdated() -> Self {
        Self {
            error: None,
            goes_on: false,
            answered: true,
        }
    }

    /// A list took too long.
    fn unanswered() -> Self {
        Self::silent(format!("no answer within {} s", LIST_SILENCE_MAX.as_secs()))
    }
}

impl ApiSource {
    /// A source of the pods of one Node.
    pub fn new(options: ApiOptions) -> Self {
        let last_known = LastKnown::new(&options.root);
        Self {
            listing: Listing::new(options.pods_max),
            options,
            last_known,
            reported: None,
            reported_waiting: false,
            reported_ignored: false,
            ask_at: None,
            ask_pauses: ASK_PAUSES,
        }
    }

    /// Name of this source.
    pub fn name() -> SourceName {
        SourceName::new(PodSource::Api, LOCATION)
    }

    /// Delivers sets of ordinary pods to `source`, and all objects to `objects`, until cancelled.
    ///
    /// # Cancel safety
    /// After cancellation nothing of this source is used any more.
    pub async fn run(mut self, mut source: SourceWriter, mut objects: ApiPodsWriter) {
        let (mut known, node) = (self.last_known, self.options.node_name.clone());
        let problems;
        (known, problems) = disk::blocking(move || {
            let problems = known.load(&node);
            (known, problems)
        })
        .await;
        let finished = known.finished();
        source.publish_last_known(listing::source_set(known.pods(), finished, problems));
        self.last_known = known;
        (&mut self.options.registered).await;
        // kube's pauses, which are random in part: agents that lost the API server together don't come
        // back together.
        let mut backoff = DefaultBackoff::default();
        let mut away = false;
        loop {
            let api: Api<Watched<Pod>> = Api::all(self.options.client.clone());
            let field = format!("spec.nodeName={}", self.options.node_name);
            let config = watcher::Config::default().page_size(PAGE_MAX);
            let events = watcher(api, config.fields(&field));
            let mut events = pin!(events);
            // Followed until its place in the history is lost.
            loop {
                let began = Instant::now();
                let ended = self.follow(&mut events, &mut source, &mut objects).await;
                // A list alone ends no series of failures: the watch after it may be refused each time.
                if self.listing.is_whole() && began.elapsed() > GOOD {
                    backoff.reset();
                }
                // Pauses that grew during an outage of the server are not due to its refusals.
                if away && ended.answered {
                    backoff.reset();
                }
                away = !ended.answered;
                let Some(error) = &ended.error else { break };
                self.failed(&mut source, error);
                self.pause(&mut backoff).await;
                if !ended.goes_on {
                    break;
                }
            }
            self.listing.abandon();
        }
    }

    /// Applies watch events until the watch fails.
    async fn follow(
        &mut self,
        events: &mut (impl Stream<Item = watcher::Result<Event<Watched<Pod>>>> + Unpin),
        source: &mut SourceWriter,
        objects: &mut ApiPodsWriter,
    ) -> Ended {
        let open_at = Instant::now() + OPEN_AFTER;
        loop {
            let is_whole = self.listing.is_whole();
            let until = if is_whole {
                // The watch itself ends when it is silent for longer than it should be.
                self.reported.as_ref().map(|_| open_at)
            } else {
                Some(Instant::now() + LIST_SILENCE_MAX)
            };
            let ask_at = self.ask_at.filter(|_| is_whole);
            // Cancel safety: a stream's next, the settled pods and the wish for a list lose nothing.
            let first = tokio::select! {
                first = next_until(events, until) => first,
                settled = self.options.settled.next() => {
                    self.settle(&settled, source, objects).await;
                    continue;
                }
                () = objects.outdated(), if is_whole => return Ended::outdated(),
                () = tokio::time::sleep_until(ask_at.unwrap_or(open_at)), if ask_at.is_some() => {
                    self.ask_for_waiting(source, objects).await;
                    self.report_waiting();
                    continue;
                }
            };
            let first = match first {
                Ok(first) => first,
                Err(_) if is_whole => {
                    self.succeeded(source);
                    continue;
                }
                Err(_) => return Ended::unanswered(),
            };
            let (mut next, mut taken) = (Some(first), 0);
            let (mut changed, mut heard, mut failure) = (false, false, None);
            // Events that arrived together make one set.
            while let Some(event) = next.take() {
                match event {
                    None => failure = Some(Ended::silent("the watch ended".to_owned())),
                    Some(Err(error)) => failure = Some(ended(&error)),
                    Some(Ok(event)) => {
                        // The first event of a list comes before anything was asked.
                        heard |= !matches!(event, Event::Init);
                        changed |= self.take(event, objects);
                        taken += 1;
                        if taken < BATCH_MAX {
                            next = events.next().now_or_never();
                        }
                    }
                }
            }
            if changed {
                self.publish(source, objects).await;
            }
            self.ask_for_waiting(source, objects).await;
            self.report_waiting();
            self.report_ignored();
            if heard && failure.is_none() && self.listing.is_whole() {
                self.succeeded(source);
            }
            if let Some(failure) = failure {
                return failure;
            }
            if self.listing.is_outdated() {
                return Ended::outdated();
            }
        }
    }

    /// Processes an event. Returns whether the set has changed.
    fn take(&mut self, event: Event<Watched<Pod>>, objects: &ApiPodsWriter) -> bool {
        let (known, settled) = (&self.last_known, &self.options.settled);
        // This agent may have started what it knew from disk alone.
        let may_be_here = |uid: &PodUid| known.contains(uid) || settled.may_be_here(uid);
        let last_known = |uid: &PodUid| known.pod(uid);
        let is_static_pod = |name: &FullName| objects.is_static_pod(name);
        let changed = self
            .listing
            .take(event, may_be_here, last_known, is_static_pod);
        for name in self.listing.newly_grown() {
            occurrences::api_pod_too_large(&name);
        }
        changed
    }

    /// Keeps only the names of settled pods, or the short forms of those with containers. A pod that a
    /// list in progress has already delivered gets a worker again, and settles again.
    async fn settle(
        &mut self,
        settled: &BTreeMap<PodUid, Left>,
        source: &mut SourceWriter,
        objects: &mut ApiPodsWriter,
    ) {
        let mut changed = false;
        for (uid, left) in settled {
            changed |= match left {
                Left::Nothing => self.listing.settle(uid),
                Left::Containers => self.listing.finish(uid),
                Left::Unreported => self.listing.stays_whole(uid),
            };
        }
        if changed {
            self.publish(source, objects).await;
            self.ask_for_waiting(source, objects).await;
        }
    }

    /// Requests the next waiting pods of which only the names are known. A failure is retried with the
    /// next event, and after a pause in any case.
    async fn ask_for_waiting(&mut self, source: &mut SourceWriter, objects: &mut ApiPodsWriter) {
        self.ask_at = None;
        while let Some((uid, name)) = self.listing.to_ask_for() {
            let client = self.options.client.clone();
            let api: Api<Watched<Pod>> = Api::namespaced(client, &name.namespace);
            let asked = tokio::time::timeout(ASK_DEADLINE, api.get_opt(&name.name)).await;
            let Ok(Ok(found)) = asked else {
                self.ask_at = Some(Instant::now() + self.ask_pauses.pause());
                return;
            };
            self.ask_pauses.reset();
            let found = found.map(|Watched(pod)| pod);
            if self.listing.answered(&uid, found) {
                self.publish(source, objects).await;
            }
        }
    }

    /// Stores changes, so that a later agent knows the owner of these pods, then publishes them.
    async fn publish(&mut self, source: &mut SourceWriter, objects: &mut ApiPodsWriter) {
        let (pods, finished) = (self.listing.ordinary(), self.listing.finished());
        let mut known = std::mem::take(&mut self.last_known);
        let (known, problems) = disk::blocking(move || {
            let problems = known.keep(&pods, &finished);
            (known, problems)
        })
        .await;
        self.last_known = known;
        objects.publish(self.listing.objects());
        let pods = self.listing.ordinary();
        let finished = self.listing.finished();
        source.publish(listing::source_set(pods.values(), finished, problems));
    }

    /// Reports when pods start to wait, and when none does any more.
    fn report_waiting(&mut self) {
        let any = self.listing.any_waits();
        if self.reported_waiting != any {
            self.reported_waiting = any;
            occurrences::api_pods_wait(any);
        }
    }

    /// Reports when mirrors start to be ignored, and when none is any more.
    fn report_ignored(&mut self) {
        let any = self.listing.ignores_mirrors();
        if self.reported_ignored != any {
            self.reported_ignored = any;
            occurrences::api_mirrors_ignored(any);
        }
    }

    fn succeeded(&mut self, source: &mut SourceWriter) {
        if self.reported.take().is_some() {
            occurrences::source_back(LOCATION);
        }
        source.succeeded(Timestamp::now());
    }

    fn failed(&mut self, source: &mut SourceWriter, error: &str) {
        let message = format!("failed to watch the API server's pods: {error}");
        source.failed(
            Diagnostic::error(Code::FetchFailed, LOCATION, message)
                .help("the last known pods keep running"),
        );
        if self.reported.as_deref() != Some(error) {
            occurrences::source_failed(LOCATION, error);
            self.reported = Some(error.to_owned());
        }
    }

    /// Waits longer after each failure; not when the API server is heard of again.
    async fn pause(&mut self, backoff: &mut DefaultBackoff) {
        let pause = backoff.next().unwrap_or(LIST_SILENCE_MAX);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = (self.options.back)() => backoff.reset(),
        }
    }
}

/// The next item of a stream, unless that time comes first.
///
/// # Cancel safety
/// Nothing is lost.
async fn next_until<T>(
    items: &mut (impl Stream<Item = T> + Unpin),
    until: Option<Instant>,
) -> Result<Option<T>, Elapsed> {
    match until {
        Some(until) => tokio::time::timeout_at(until, items.next()).await,
        None => Ok(items.next().await),
    }
}

/// Decides how to continue after a watch error. The resource version is kept during an outage of the
/// server; once the server itself refuses, it may be unusable: a list provides a new one.
fn ended(error: &watcher::Error) -> Ended {
    let refused = matches!(
        error,
        watcher::Error::WatchStartFailed(kube::Error::Api(_))
            | watcher::Error::WatchError(_)
            | watcher::Error::NoResourceVersion
    );
    // kube's own words about a refusal are its debug text.
    let refusal = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => {
            Some(shortened(status.message.clone(), WORDS_BYTES_MAX))
        }
        _ => None,
    };
    let answered = refused
        || matches!(
            error,
            watcher::Error::InitialListFailed(kube::Error::Api(_))
        );
    Ended {
        error: Some(refusal.unwrap_or_else(|| with_causes(error))),
        goes_on: !refused,
        answered,
    }
}

#[cfg(test)]
mod tests;
