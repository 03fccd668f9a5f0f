//! Converts the runtime's events and answers to the status `Cache`.
//!
//! Why both events and lists: events are prompt but get lost, a list is complete but costs a call. One
//! task subscribes, lists after every (re)subscription, reads the status of pods named in events, and
//! otherwise lists infrequently. It is the sole writer of the cache; workers read it, and request their
//! own pod's status after each action.
//!
//! Reading one pod never delays another: reads run concurrently, at most one per pod, and a limited
//! number begin together; a read that is requested while one is in progress is repeated after it.

mod reporter;
mod restart;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use self::reporter::{report_deaths, report_user_actions};
use self::restart::{ran_lately, was_restarted};
use crate::config::Config;
use crate::store::cache::CacheWriter;
use crate::store::looks::Request;
use crate::store::settled::SettledPods;
use mirrorlet_core::api::{ContainerId, FullName, PodUid};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::observed::{PodStatus, Pods};
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::{PodEvent, Result, Runtime, RuntimeError, Version};

/// Maximum number of reads of pods that begin together: enough to hide one slow inspect, few enough to
/// leave the Engine to the workers.
const LOOKS_MAX: usize = 16;
/// How long a read counts towards that limit. A slower one most likely hangs, and must not block other
/// pods; an inspect of a busy Engine takes less.
const LOOK_USUAL: Duration = Duration::from_secs(2);
/// Pauses between attempts to reach the runtime.
const RECONNECT: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// How long a stream of events must last before the pauses are reset: otherwise streams that end at
/// once would cause many full lists a second.
const STREAM_LASTS: Duration = Duration::from_secs(10);
/// Pause after which a failed look is taken again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Deadline for a runtime that is suspected to be away to report its health, which takes it no work;
/// and for one that was available to deliver its events again.
const DOUBT_DEADLINE: Duration = Duration::from_secs(5);

/// The same once its events have ended: a proxy may close a quiet stream, and the runtime behind it
/// answers soon, though a busy machine may take a second: dockerd 20.10 starts two programs to report
/// its version. One that is being restarted usually refuses, or takes longer.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// The task that keeps the cache.
pub struct Observer {
    runtime: Arc<dyn Runtime>,
    cache: CacheWriter,
    requests: mpsc::Receiver<Request>,
    reach: watch::Sender<RuntimeReach>,
    /// The newest list of everything.
    listed: watch::Sender<Option<Arc<Pods>>>,
    sweep_period: Duration,
    telemetry: Telemetry,
    /// When the runtime was lost, until it is back.
    away_since: Option<Instant>,
    /// Its version when it was back last.
    version: Option<Version>,
    /// The containers that ran when its events ended while it answered: the next list shows whether it was
    /// restarted.
    answered: Option<HashSet<ContainerId>>,
    looks: JoinSet<(PodUid, Instant, Result<PodStatus>)>,
    /// Pods being read.
    looking: HashMap<PodUid, Look>,
    /// Pods to read as soon as the limit allows.
    queue: VecDeque<PodUid>,
    /// Pods whose last read failed.
    failed: HashSet<PodUid>,
    /// The runtime's address, for messages.
    endpoint: String,
    /// When they are read again.
    retry_at: Option<Instant>,
    /// The relist with reads in progress.
    sweep: Option<Sweep>,
    /// Asks a runtime that is doubted for a word, until it gives one.
    doubt: JoinSet<Result<(), String>>,
    /// Reads the facts of an available runtime, again for each subscription.
    learning: JoinSet<Result<()>>,
    /// Includes the ended pods without a worker: their observed status is not needed, and they may be
    /// many.
    settled: SettledPods,
}

/// A read in progress.
struct Look {
    began: Instant,
    /// Whether another one was requested meanwhile.
    again: bool,
}

/// A relist in progress.
struct Sweep {
    began: Instant,
    outstanding: HashSet<PodUid>,
}

impl Observer {
    /// Returns an observer that writes `cache`, with readers of its health and of its newest list.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        cache: CacheWriter,
        requests: mpsc::Receiver<Request>,
        sweep_period: Duration,
        telemetry: Telemetry,
    ) -> (
        Self,
        watch::Receiver<RuntimeReach>,
        watch::Receiver<Option<Arc<Pods>>>,
    ) {
        let (reach, reach_reader) = watch::channel(RuntimeReach::Unknown);
        let (listed, listed_reader) = watch::channel(None);
        let observer = Self {
            runtime,
            cache,
            requests,
            reach,
            listed,
            sweep_period,
            telemetry,
            endpoint: String::new(),
            away_since: None,
            version: None,
            answered: None,
            looks: JoinSet::new(),
            looking: HashMap::new(),
            queue: VecDeque::new(),
            failed: HashSet::new(),
            retry_at: None,
            sweep: None,
            doubt: JoinSet::new(),
            learning: JoinSet::new(),
            settled: SettledPods::default(),
        };
        (observer, reach_reader, listed_reader)
    }

    /// With the runtime's address for messages.
    #[must_use]
    pub fn at(mut self, config: &Config) -> Self {
        config.docker.clone_into(&mut self.endpoint);
        self
    }

    /// With the pods that have no worker.
    #[must_use]
    pub fn without(mut self, settled: SettledPods) -> Self {
        self.settled = settled;
        self
    }

    /// Observes until cancelled.
    pub async fn run(mut self) {
        let mut backoff = RECONNECT;
        loop {
            let lost = match self.subscribe().await {
                Ok(events) => {
                    let opened = Instant::now();
                    self.telemetry.metrics.set_event_stream_up(true);
                    let followed = self.follow(events).await;
                    self.telemetry.metrics.set_event_stream_up(false);
                    if opened.elapsed() >= STREAM_LASTS {
                        backoff.reset();
                    }
                    match followed {
                        // If it answers, this is a gap, which the next subscription begins with.
                        Ok(()) => {
                            let seen = self.cache.reader().all();
                            let listed = self.listed.borrow().clone();
                            let ran = ran_lately(&seen, listed.as_deref(), Instant::now());
                            let answers = word(&*self.runtime, END_DEADLINE).await.is_ok();
                            self.answered = answers.then_some(ran);
                            (!answers).then(|| "the event stream ended".to_owned())
                        }
                        Err(error) => Some(error.to_string()),
                    }
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(cause) = lost {
                self.lost(cause);
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// Subscribes to the runtime's events, and reads its facts again. A runtime that was available and
    /// doesn't deliver its events counts as away meanwhile, because no suspicion is checked then. The
    /// facts of an available one are read concurrently with its events.
    async fn subscribe(&mut self) -> Result<BoxStream<'static, PodEvent>> {
        self.learning = JoinSet::new();
        let runtime = Arc::clone(&self.runtime);
        let mut watch = runtime.watch();
        let shown = soon(self.is_up(), &mut watch).await;
        if shown.is_none() && self.is_up() {
            let silent = DOUBT_DEADLINE.as_secs();
            self.lost(format!(
                "it has not answered the subscription to its events for {silent} s"
            ));
        }
        let events = match shown {
            Some(events) => events?,
            None => watch.await?,
        };
        let facts = Arc::clone(&runtime);
        let facts = async move { facts.learn_facts().await };
        if self.is_up() {
            self.learning.spawn(facts);
        } else {
            facts.await?;
        }
        Ok(events)
    }

    fn is_up(&self) -> bool {
        *self.reach.borrow() == RuntimeReach::Up
    }

    /// Handles an unavailable runtime. Only the first of several failures is reported.
    fn lost(&mut self, cause: String) {
        if self.away_since.is_none() {
            self.away_since = Some(Instant::now());
            occurrences::engine_lost(&self.telemetry, &self.endpoint, &cause);
        }
        self.reach.send_if_modified(|reach| {
            let changed = *reach != RuntimeReach::Down(cause.clone());
            *reach = RuntimeReach::Down(cause);
            changed
        });
    }

    /// The runtime answers.
    async fn back(&mut self) {
        if self.is_up() {
            return;
        }
        // The version is for users; a runtime that goes away again is noticed anyway.
        self.version = self.runtime.version().await.ok();
        let version = self.version.as_ref().map(ToString::to_string);
        let away = self.away_since.take().map(|since| since.elapsed());
        occurrences::engine_back(&self.telemetry, &version.unwrap_or_default(), away);
        self.reach.send_replace(RuntimeReach::Up);
    }

    /// Processes one subscription until it ends, or a list or the facts fail. A runtime that is slow to
    /// report its facts may be busy, and counts as away only if it sends nothing else either.
    async fn follow(&mut self, mut events: BoxStream<'static, PodEvent>) -> Result<()> {
        let is_learning = !self.learning.is_empty();
        let mut doubt_at = is_learning.then(|| Instant::now() + DOUBT_DEADLINE);
        let mut sweep =
            tokio::time::interval_at(Instant::now() + self.sweep_period, self.sweep_period);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room_at = self.start_looks();
            let retry_at = self.retry_at.unwrap_or_else(Instant::now);
            let listed = tokio::select! {
                event = events.next() => match event {
                    None => return Ok(()),
                    Some(PodEvent::Changed { uid, .. }) => { self.want(uid); Ok(()) }
                    Some(PodEvent::Gap { cause }) => {
                        let first = *self.reach.borrow() == RuntimeReach::Unknown;
                        occurrences::gap(&self.telemetry, &cause, first);
                        self.relist().await
                    }
                },
                Some(request) = self.requests.recv() => {
                    match request {
                        Request::Look(uid) => self.want(uid),
                        Request::Forget(uid) => self.forget_resting(&uid),
                        Request::Doubt => self.ask_for_a_word(Duration::ZERO),
                    }
                    Ok(())
                }
                Some(word) = self.doubt.join_next() => {
                    match word {
                        Ok(Ok(())) => self.back().await,
                        // It may still answer calls in progress at some time: nothing is abandoned, but
                        // it is reported.
                        Ok(Err(cause)) => { self.lost(cause); self.ask_for_a_word(RECONNECT.longest()); }
                        // A panic is logged by the panic hook; the next doubt asks again.
                        Err(_) => {}
                    }
                    Ok(())
                }
                Some(done) = self.looks.join_next() => { self.looked(done); Ok(()) }
                _ = sweep.tick() => self.relist().await,
                () = tokio::time::sleep_until(retry_at), if self.retry_at.is_some() => {
                    self.retry_at = None;
                    for uid in std::mem::take(&mut self.failed) { self.want(uid); }
                    Ok(())
                }
                () = until(room_at) => Ok(()),
                // A panic is logged by the panic hook.
                Some(facts) = self.learning.join_next() => { doubt_at = None; facts.unwrap_or(Ok(())) }
                () = until(doubt_at) => {
                    doubt_at = None;
                    self.ask_for_a_word(Duration::ZERO);
                    Ok(())
                }
            };
            listed?;
        }
    }

    /// Checks the runtime's health after a pause, unless a check is in progress: one that accepted a
    /// call and is silent since may have stopped for good, and nothing else would show that.
    fn ask_for_a_word(&mut self, pause: Duration) {
        if !self.doubt.is_empty() {
            return;
        }
        let runtime = Arc::clone(&self.runtime);
        self.doubt.spawn(async move {
            tokio::time::sleep(pause).await;
            word(&*runtime, DOUBT_DEADLINE).await
        });
    }

    /// Records that a pod must be read.
    fn want(&mut self, uid: PodUid) {
        if let Some(look) = self.looking.get_mut(&uid) {
            look.again = true;
        } else if !self.queue.contains(&uid) {
            self.queue.push_back(uid);
        }
    }

    /// Starts as many looks as there is room for. Says when there is room for more, if some wait.
    fn start_looks(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let counts = |look: &&Look| now.duration_since(look.began) < LOOK_USUAL;
        let mut counted = self.looking.values().filter(counts).count();
        while counted < LOOKS_MAX
            && let Some(uid) = self.queue.pop_front()
        {
            counted += 1;
            let look = Look {
                began: now,
                again: false,
            };
            self.looking.insert(uid.clone(), look);
            let runtime = Arc::clone(&self.runtime);
            self.looks.spawn(async move {
                let began = Instant::now();
                let found = runtime.get_pod_status(&uid, &FullName::new("", "")).await;
                (uid, began, found)
            });
        }
        let oldest = self.looking.values().filter(counts).map(|look| look.began);
        oldest
            .min()
            .map(|began| began + LOOK_USUAL)
            .filter(|_| !self.queue.is_empty())
    }

    /// Stores what a look found.
    fn looked(
        &mut self,
        done: Result<(PodUid, Instant, Result<PodStatus>), tokio::task::JoinError>,
    ) {
        // A read that panicked is a defect, reported by the panic hook; its pod is unknown, so every
        // pod being read is read again.
        let Ok((uid, began, found)) = done else {
            let again: Vec<PodUid> = self.looking.drain().map(|(uid, _)| uid).collect();
            self.queue.extend(again);
            return;
        };
        let again = self.looking.remove(&uid).is_some_and(|look| look.again);
        let gone = matches!(&found, Ok(status) if status.is_empty());
        if let Ok(status) = &found {
            self.failed.remove(&uid);
            let before = self.cache.reader().get(&uid);
            report_deaths(&self.telemetry, &before, status);
            report_user_actions(&self.telemetry, &before, status);
        } else {
            self.failed.insert(uid.clone());
            self.retry_at
                .get_or_insert_with(|| Instant::now() + LOOK_AGAIN);
        }
        self.cache.set(&uid, found, began);
        if gone {
            self.cache.delete(&uid);
        }
        self.forget_resting(&uid);
        if self
            .sweep
            .as_ref()
            .is_some_and(|sweep| began >= sweep.began)
        {
            self.raise_floor(Some(&uid));
        }
        if again {
            self.want(uid);
        }
    }

    /// Forgets a pod without a worker; not one that has a worker again by now.
    fn forget_resting(&self, uid: &PodUid) {
        if self.settled.rests(uid) {
            self.cache.forget(uid);
        }
    }

    /// Lists everything, then reads every current or former pod that has, or will have, a worker. One
    /// that hangs only delays the floor, not the entries of the others.
    async fn relist(&mut self) -> Result<(), RuntimeError> {
        let began = Instant::now();
        let mut pods = self.runtime.get_pods(true).await?;
        // Workers that are created from now on request a read that is newer than this list.
        pods.0.retain(|pod| !self.settled.rests(&pod.uid));
        pods.0.shrink_to_fit();
        if let Some(ran) = self.answered.take()
            && was_restarted(&*self.runtime, self.version.as_ref(), &ran, &pods).await
        {
            self.lost("it was restarted".to_owned());
        }
        let mut uids: HashSet<PodUid> = pods.0.iter().map(|pod| pod.uid.clone()).collect();
        uids.extend(
            self.cache
                .reader()
                .all()
                .into_iter()
                .map(|entry| entry.status.uid.clone()),
        );
        for uid in &uids {
            self.want(uid.clone());
        }
        self.listed.send_replace(Some(Arc::new(pods)));
        self.sweep = Some(Sweep {
            began,
            outstanding: uids,
        });
        self.raise_floor(None);
        self.telemetry.metrics.relisted();
        self.back().await;
        Ok(())
    }

    /// Raises the cache's floor once every read of the last relist is complete, including failed ones,
    /// whose entries say so.
    fn raise_floor(&mut self, looked: Option<&PodUid>) {
        let Some(sweep) = &mut self.sweep else { return };
        if let Some(uid) = looked {
            sweep.outstanding.remove(uid);
        }
        if sweep.outstanding.is_empty() {
            self.cache.update_time(sweep.began);
            self.sweep = None;
        }
    }
}

/// The answer of a runtime that was available, within a deadline; none for any other runtime.
async fn soon<T>(was_up: bool, call: impl Future<Output = T>) -> Option<T> {
    if !was_up {
        return None;
    }
    tokio::time::timeout(DOUBT_DEADLINE, call).await.ok()
}

/// Asks the runtime how it is. The error says why it can't be used.
async fn word(runtime: &dyn Runtime, deadline: Duration) -> Result<(), String> {
    match tokio::time::timeout(deadline, runtime.status()).await {
        Ok(status) => status.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "it accepts calls but has not answered for {} s",
            deadline.as_secs_f32()
        )),
    }
}

/// Waits until a moment; forever without one.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
