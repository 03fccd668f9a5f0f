//! Jobs and CronJobs of manifests: between merge and workers, like rollouts for other static pods.
//!
//! [`Jobs::apply`] replaces the pods in the merged set that represent Jobs and CronJobs by those that
//! must exist now. [`mirrorlet_core::job`] and [`mirrorlet_core::cron`] decide which ones; this module
//! stores records on disk, and reports changes. A pod is started, and an ended one removed, only once
//! the record of that is on disk: after an agent is killed at any moment, the next one continues from
//! the record.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::store::board::Board;
use crate::store::cache::CacheReader;
use crate::store::cell::{Writer, cell};
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::clock::LOOK_MAX;
use mirrorlet_core::cron::{CronJob, CronJobRecord, CronNote, Runs};
use mirrorlet_core::desired::{Origin, SourcePod, SourceState};
use mirrorlet_core::job::{
    Decision, Input, Job, JobName, JobRecord, Known, Seen, decide, pods, report,
};
use mirrorlet_core::merge::{Merged, SourceName};
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use mirrorlet_host::telemetry::Telemetry;

mod crons;
mod handle;
mod held;
mod kept;
mod leaving;
mod plan;
mod problems;
mod reporter;

use handle::{Answer, Request};
pub use handle::{JobHandle, JobStates, Order, OrderError};
use kept::RecordStore;
use leaving::LeavingPods;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use problems::{same_name, unreadable, unwritten};

/// Names of the directories under the root.
const JOBS: &str = "jobs";
const CRON_JOBS: &str = "cronjobs";
/// Minimum time between two checks of the pods: their status changes several times while they start.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The parts of the agent that Jobs need.
pub struct JobOptions {
    /// The workers' states of pods.
    pub board: Board,
    /// The observed states of pods, including those without a worker.
    pub cache: CacheReader,
    /// Receives log lines, metrics and journal entries.
    pub telemetry: Telemetry,
    /// Returns the present time.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// The Jobs and CronJobs of all manifests.
pub struct Jobs {
    options: JobOptions,
    store: RecordStore<JobRecord>,
    cron_store: RecordStore<CronJobRecord>,
    published: Writer<JobStates>,
    requests: mpsc::Receiver<Request>,
    /// Orders that the next decision obeys.
    orders: Orders,
    /// Answers to orders that were obeyed or refused; sent once the merge is published.
    answers: Answers,
    /// The Jobs that have records, as the documents had them that these records are of.
    begun: BTreeMap<JobName, Wanted>,
    /// The running pods of records whose documents are unknown, or that can't be read: they are left as
    /// they are.
    spared: BTreeSet<PodUid>,
    /// The times of CronJobs that are due and have no run, as last reported.
    reported: BTreeMap<JobName, CronNote>,
    changed: watch::Receiver<u64>,
    /// Whether any of their pods may change.
    watched: bool,
    /// The pods that are being stopped.
    leaving: LeavingPods,
    look_at: Option<Instant>,
}

/// Orders, with the callers that wait for each answer.
type Orders = BTreeMap<Order, Vec<oneshot::Sender<Answer>>>;

/// Answers, each with its caller.
type Answers = Vec<(oneshot::Sender<Answer>, Answer)>;

/// A Job, and the pod that represents it.
struct Wanted {
    job: Job,
    pod: SourcePod,
}

/// A CronJob, and the pod that represents it.
struct WantedCron {
    cron: CronJob,
    pod: SourcePod,
}

/// The wishes of documents.
#[derive(Default)]
struct Documents {
    jobs: BTreeMap<JobName, Wanted>,
    crons: BTreeMap<JobName, WantedCron>,
}

/// The state of a merge: the sources' sets, whether it is known what runs already, and the time.
struct At<'a> {
    states: &'a BTreeMap<SourceName, SourceState>,
    known: bool,
    now: Timestamp,
}

impl Jobs {
    /// Returns the Jobs, which continue from the data below `root`, and their handle. Blocks.
    pub fn load(root: &Path, options: JobOptions) -> (Self, JobHandle) {
        let (published, states) = cell(JobStates::default());
        let (handle, requests) = JobHandle::new(states);
        let jobs = Self {
            store: RecordStore::load(root, JOBS),
            cron_store: RecordStore::load(root, CRON_JOBS),
            published,
            requests,
            orders: BTreeMap::new(),
            answers: Answers::new(),
            begun: BTreeMap::new(),
            spared: BTreeSet::new(),
            reported: BTreeMap::new(),
            changed: options.board.changed(),
            watched: false,
            leaving: LeavingPods::default(),
            look_at: None,
            options,
        };
        (jobs, handle)
    }

    /// Replaces each pod that represents a Job or CronJob by those that must exist now. `states` is
    /// everything that sources deliver, including documents that lost their name to another; `known`
    /// says that the running pods are known.
    pub async fn apply(
        &mut self,
        merged: &mut Merged,
        states: &BTreeMap<SourceName, SourceState>,
        known: bool,
    ) {
        self.changed.mark_unchanged();
        self.look_at = None;
        let mut documents = take_out(merged);
        let mut orders = std::mem::take(&mut self.orders);
        let is_idle = documents.jobs.is_empty() && documents.crons.is_empty();
        if is_idle && orders.is_empty() && self.store.is_empty() && self.cron_store.is_empty() {
            self.watched = false;
            self.begun.clear();
            self.spared.clear();
            self.published.publish(JobStates::default());
            return;
        }
        let now = (self.options.clock)();
        let at = At { states, known, now };
        let mut reports = JobStates::default();
        self.follow(&mut documents, &mut orders, merged, &at).await;
        let failed = self.run(&documents, &mut orders, merged, &at).await;
        self.put_in(merged, &documents.jobs, &failed, &mut reports);
        self.spare_unreadable(&documents, merged);
        self.report_crons(&documents, now, &mut reports);
        reports.known = self.known(&documents.jobs);
        self.published.publish(reports);
        self.take_begun(documents.jobs);
        merged.conflicts.small_sort();
    }

    /// Keeps the Jobs that the records on disk are of.
    fn take_begun(&mut self, wanted: BTreeMap<JobName, Wanted>) {
        let store = &self.store;
        let is_begun = |name: &JobName, wanted: &Wanted| {
            let record = store.get(name);
            record.is_some_and(|record| record.content == wanted.job.content)
        };
        self.begun.retain(|name, known| is_begun(name, known));
        let begun = wanted.into_iter();
        self.begun
            .extend(begun.filter(|(name, wanted)| is_begun(name, wanted)));
    }

    /// Decides the next states of Jobs, and writes them to disk. Returns the error of each failed
    /// write.
    async fn run(
        &mut self,
        documents: &Documents,
        orders: &mut Orders,
        merged: &mut Merged,
        at: &At<'_>,
    ) -> BTreeMap<JobName, String> {
        let wanted = &documents.jobs;
        let files = self.store.unreadable_files(wanted.keys());
        let read_next = self.store.read_again(files).await;
        self.look_in(read_next);
        let mut decided: BTreeMap<JobName, Decision> = BTreeMap::new();
        for Wanted { job, pod } in wanted.values() {
            let is_ordered = orders.contains_key(&Order::Restart(job.name.clone()));
            if let Some((file, why)) = self.store.unreadable(&job.name)
                && !(is_ordered && self.sees_all_pods(at))
            {
                let problem = unreadable("Job", &job.name, &pod.origin, &file, why);
                merged.conflicts.push(problem);
                self.refuse(&job.name, OrderError::Unseen, orders);
                continue;
            }
            let may_run = self.may_have_pods(job);
            if self.is_awaited(job, at) && (!is_ordered || may_run) {
                held::hold(job, pod, may_run, merged);
                self.refuse(&job.name, OrderError::Awaited, orders);
                continue;
            }
            let record = with_orders(self.store.get(&job.name), &job.name, orders);
            let unknown = || self.unknown_run(job, documents, merged, at);
            let record = record.or_else(|| unknown().map(Cow::Owned));
            let decision = self.decide(job, record.as_deref(), is_ordered, at);
            decided.insert(job.name.clone(), decision);
        }
        let mut changes: Vec<(JobName, Option<JobRecord>)> = decided
            .iter()
            .filter(|(name, decision)| self.store.get(name) != Some(&decision.record))
            .map(|(name, decision)| (name.clone(), Some(decision.record.clone())))
            .collect();
        let has_ended = changes.iter().any(|(name, record)| {
            let before = self.store.get(name).is_some_and(JobRecord::is_over);
            !before && record.as_ref().is_some_and(JobRecord::is_over)
        });
        if merged.delivered.manifests {
            changes.extend(self.forgotten(documents, at));
        }
        let ordered = orders.keys().map(Order::job).cloned().collect_set();
        let failed = self.store.keep(changes, &ordered).await;
        for (name, decision) in &decided {
            if let Some(wanted) = wanted.get(name).filter(|_| !failed.contains_key(name)) {
                reporter::notes(&self.options.telemetry, &wanted.job, decision);
            }
        }
        self.answers.extend(answers(orders, wanted, &failed));
        self.look_again(&decided, &failed, merged);
        self.look_in(self.store.write_in());
        if failed.is_empty() && has_ended {
            // A CronJob may have waited for that, or have one run more than it keeps.
            self.look_in(Some(Duration::ZERO));
        }
        failed
    }

    /// Answers executed and refused orders. The merge is published by then, so the caller finds the
    /// effect of its order.
    pub fn answer(&mut self) {
        for (sender, answer) in self.answers.drain(..) {
            // The receiver may be gone.
            let _ = sender.send(answer);
        }
    }

    fn decide(
        &self,
        job: &Job,
        record: Option<&JobRecord>,
        ordered: bool,
        at: &At<'_>,
    ) -> Decision {
        let board = &self.options.board;
        let seen = |uid: &PodUid| {
            board.get(uid).map_or(Seen::Nothing, |view| {
                let ended = !view.observed.anything_running();
                Seen::of(view.status.as_deref(), ended)
            })
        };
        decide(&Input {
            job,
            record,
            seen: &seen,
            may_run: &|uid| self.may_run(uid, at),
            ordered,
            may_start: at.known,
            now: at.now,
        })
    }

    /// The contents of the Jobs with a record, and of the last run of each CronJob.
    pub fn begun(&self) -> BTreeMap<WorkloadKey, String> {
        let key = |kind: WorkloadKind, name: &JobName| WorkloadKey {
            kind,
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        };
        let jobs = self.store.names().filter_map(|name| {
            let content = self.store.get(name)?.content.clone();
            Some((key(WorkloadKind::Job, name), content))
        });
        let crons = self.cron_store.names().filter_map(|name| {
            let run = self.cron_store.get(name)?.runs.last()?;
            Some((key(WorkloadKind::CronJob, name), run.job.content.clone()))
        });
        jobs.chain(crons).collect_map()
    }

    /// The newest run of each Job, by its record.
    fn known(&self, wanted: &BTreeMap<JobName, Wanted>) -> BTreeMap<JobName, Known> {
        let known = wanted.keys().filter_map(|name| {
            let known = match self.store.get(name) {
                Some(record) => Known::Run {
                    content: record.content.clone(),
                    complete: record.end.as_ref().map(|end| end.complete),
                },
                None => self.store.unreadable(name).map(|_| Known::Unreadable)?,
            };
            Some((name.clone(), known))
        });
        known.collect_map()
    }

    /// Adds the pods in the records on disk. While the record of an edited Job can't be written, its
    /// pods are those from before the edit, or protected if those are unknown.
    fn put_in(
        &mut self,
        merged: &mut Merged,
        wanted: &BTreeMap<JobName, Wanted>,
        failed: &BTreeMap<JobName, String>,
        reports: &mut JobStates,
    ) {
        let of_manifests = merged.pods.values().filter(|pod| !pod.is_api());
        let mut taken: BTreeMap<FullName, Origin> = of_manifests
            .map(|pod| (pod.full_name(), pod.origin.clone()))
            .collect_map();
        self.watched = self.store.all().any(|record| !record.leaving.is_empty());
        self.spared.clear();
        for (name, newest) in wanted {
            if let Some(why) = failed.get(name) {
                let problem = unwritten("Job", name, &newest.pod.origin, why);
                merged.conflicts.push(problem);
            }
            let Some(record) = self.store.get(name) else {
                continue;
            };
            let is_begun = |known: &&Wanted| known.job.content == record.content;
            let known = self.begun.get(name).filter(is_begun);
            let begun = Some(newest).filter(is_begun).or(known);
            if begun.is_none() {
                self.spared.extend(held::pods_of(name, record));
            }
            let Wanted { job, pod } = begun.unwrap_or(newest);
            reports.jobs.push(report(job, record, &pod.origin.location));
            self.watched |= !record.active.is_empty();
            let instances = begun.map_or_else(Vec::new, |begun| pods(&begun.job, record));
            if instances.is_empty() {
                // Its pods would show them.
                merged.conflicts.extend(pod.problems.iter().cloned());
            }
            for instance in instances {
                let full_name = FullName::of(&instance);
                if let Some(other) = taken.get(&full_name) {
                    let problem = same_name(&job.name, &pod.origin, &full_name, other);
                    merged.conflicts.push(problem);
                    continue;
                }
                taken.insert(full_name, pod.origin.clone());
                let instance = SourcePod {
                    pod: instance,
                    ..pod.clone()
                };
                merged.pods.insert(instance.uid(), instance);
            }
        }
    }

    fn look_in(&mut self, wait: Option<Duration>) {
        let Some(wait) = wait else { return };
        let at = Instant::now() + wait.min(LOOK_MAX);
        self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
    }

    /// Completes when the decision may have to be made again.
    pub async fn changed(&mut self) {
        let look_at = self.look_at;
        tokio::select! {
            changed = self.changed.changed(), if self.watched => match changed {
                Ok(()) => tokio::time::sleep(LOOK_PAUSE).await,
                Err(_) => std::future::pending().await,
            },
            Some(Request { order, answer }) = self.requests.recv() => {
                self.orders.entry(order).or_default().push(answer);
            }
            () = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {}
            // There are no more callers, and nothing will change.
            else => std::future::pending().await,
        }
    }
}

/// Removes the pods that represent Jobs and CronJobs from a set.
fn take_out(merged: &mut Merged) -> Documents {
    let mut documents = Documents::default();
    for (_, pod) in merged.pods.extract_if(.., |_, pod| pod.runs.is_some()) {
        let Some(runs) = pod.runs.clone() else {
            continue;
        };
        match &*runs {
            Runs::Job(job) => {
                let job = job.clone();
                let wanted = Wanted { job, pod };
                documents.jobs.insert(wanted.job.name.clone(), wanted);
            }
            Runs::CronJob(cron) => {
                // It has no pod of its own that would show them.
                merged.conflicts.extend(pod.problems.iter().cloned());
                let cron = CronJob::clone(cron);
                let wanted = WantedCron { cron, pod };
                documents.crons.insert(wanted.cron.name.clone(), wanted);
            }
        }
    }
    documents
}

/// The record of a Job without the pods that a user's order drops from it.
fn with_orders<'a>(
    record: Option<&'a JobRecord>,
    job: &JobName,
    orders: &Orders,
) -> Option<Cow<'a, JobRecord>> {
    let mut record = Cow::Borrowed(record?);
    for order in orders.keys() {
        if let Order::Forget(of, uid) = order
            && of == job
        {
            record.to_mut().forget(job, uid);
        }
    }
    Some(record)
}

/// The answers to orders, by what could be written.
fn answers(
    orders: &mut Orders,
    wanted: &BTreeMap<JobName, Wanted>,
    failed: &BTreeMap<JobName, String>,
) -> Answers {
    let mut answers = Answers::new();
    for (order, senders) in std::mem::take(orders) {
        let (Order::Restart(name) | Order::Forget(name, _)) = order else {
            continue;
        };
        let answer = match failed.get(&name) {
            _ if !wanted.contains_key(&name) => Err(OrderError::Unknown(name)),
            Some(why) => Err(OrderError::Disk(why.clone())),
            None => Ok(name),
        };
        answers.extend(answered(senders, &answer));
    }
    answers
}

/// Sends the same answer to all callers that wait for it.
fn answered(
    senders: Vec<oneshot::Sender<Answer>>,
    answer: &Answer,
) -> impl Iterator<Item = (oneshot::Sender<Answer>, Answer)> {
    let senders = senders.into_iter();
    senders.map(move |sender| (sender, answer.clone()))
}
