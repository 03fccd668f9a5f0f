//! Jobs of manifests: between merge and workers, as rollouts are for other static pods.
//!
//! [`Jobs::apply`] takes the pods out of the merged set that stand for Jobs, and puts in those that
//! are to exist now. Which ones those are is decided by [`mirrorlet_core::job`]; here ledgers are
//! kept on disk, and changes told. A pod is started, and one that is over removed, only once the disk
//! has the ledger that says so: an agent that is killed at any moment goes on where the ledger is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::store::board::Board;
use crate::store::cell::{Writer, cell};
use mirrorlet_core::api::report::JobReport;
use mirrorlet_core::api::{Code, Diagnostic, FullName, PodUid, Timestamp};
use mirrorlet_core::desired::{Origin, SourcePod, SourceState};
use mirrorlet_core::job::{
    Decision, Input, Job, JobName, Ledger, Runs, Seen, decide, pods, report,
};
use mirrorlet_core::merge::{Merged, SourceName};
use mirrorlet_host::telemetry::Telemetry;

mod handle;
mod kept;
mod tell;

use handle::Request;
pub use handle::{JobHandle, OrderError};
use kept::LedgerStore;

/// Least time between two looks at the pods: their status changes several times while they start.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a ledger could not be written.
const KEEP_RETRY: Duration = Duration::from_secs(30);

/// The parts of the agent that Jobs need.
pub struct JobOptions {
    /// The workers' states of pods.
    pub board: Board,
    /// Where occurrences are told.
    pub telemetry: Telemetry,
    /// Returns the present time.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// The Jobs of all manifests.
pub struct Jobs {
    options: JobOptions,
    store: LedgerStore,
    published: Writer<Vec<JobReport>>,
    requests: mpsc::Receiver<Request>,
    /// Orders that the next decision obeys.
    orders: BTreeMap<JobName, Vec<oneshot::Sender<Result<(), OrderError>>>>,
    changed: watch::Receiver<u64>,
    /// Whether any of their pods may change.
    watched: bool,
    look_at: Option<Instant>,
}

/// A Job, and the pod that stands for it.
struct Wanted {
    job: Job,
    pod: SourcePod,
}

impl Jobs {
    /// Jobs that go on from what is kept below `root`, and what others reach them by. Blocks.
    #[must_use]
    pub fn load(root: &Path, options: JobOptions) -> (Self, JobHandle) {
        let (published, states) = cell(Vec::new());
        let (handle, requests) = JobHandle::new(states);
        let jobs = Self {
            store: LedgerStore::load(root),
            published,
            requests,
            orders: BTreeMap::new(),
            changed: options.board.changed(),
            watched: false,
            look_at: None,
            options,
        };
        (jobs, handle)
    }

    /// Puts in the place of each pod that stands for a Job those that are to exist now. `states` is
    /// all that sources offer, also what lost to another document; `known` says whether it is known
    /// what runs already.
    pub async fn apply(
        &mut self,
        merged: &mut Merged,
        states: &BTreeMap<SourceName, SourceState>,
        known: bool,
    ) {
        self.changed.mark_unchanged();
        self.look_at = None;
        let wanted = take_out(merged);
        let orders = std::mem::take(&mut self.orders);
        if wanted.is_empty() && self.store.names().next().is_none() && orders.is_empty() {
            self.publish(Vec::new());
            return;
        }
        let now = (self.options.clock)();
        let mut decided: BTreeMap<JobName, Decision> = BTreeMap::new();
        for Wanted { job, pod } in wanted.values() {
            if orders.contains_key(&job.name) {
                let ledger = Ledger::new(&job.content, now);
                decided.insert(
                    job.name.clone(),
                    self.decide(job, Some(&ledger), known, now),
                );
            } else if let Some((file, why)) = self.store.unreadable(&job.name) {
                merged
                    .conflicts
                    .push(unreadable(job, &pod.origin, &file, why));
            } else {
                let ledger = self.store.get(&job.name);
                decided.insert(job.name.clone(), self.decide(job, ledger, known, now));
            }
        }
        let mut changes: Vec<(JobName, Option<Ledger>)> = decided
            .iter()
            .filter(|(name, decision)| self.store.get(name) != Some(&decision.ledger))
            .map(|(name, decision)| (name.clone(), Some(decision.ledger.clone())))
            .collect();
        if merged.delivered.manifests {
            changes.extend(self.forgotten(states).map(|name| (name, None)));
        }
        let failed = self.store.keep(changes).await;
        for (name, decision) in &decided {
            if !failed.contains_key(name)
                && let Some(wanted) = wanted.get(name)
            {
                tell::notes(&self.options.telemetry, &wanted.job, decision);
            }
        }
        answer(orders, &wanted, &failed);
        self.look_in(
            decided
                .values()
                .filter_map(|decision| decision.look_again)
                .min(),
        );
        if !failed.is_empty() {
            self.look_in(Some(KEEP_RETRY));
        }
        self.put_in(merged, &wanted, &failed);
    }

    fn decide(&self, job: &Job, ledger: Option<&Ledger>, known: bool, now: Timestamp) -> Decision {
        let board = &self.options.board;
        let seen = |uid: &PodUid| {
            board.get(uid).map_or(Seen::Nothing, |view| {
                Seen::of(view.status.as_deref(), !view.observed.anything_running())
            })
        };
        decide(&Input {
            job,
            ledger,
            seen: &seen,
            may_start: known,
            now,
        })
    }

    /// The Jobs of ledgers that no document describes any more.
    fn forgotten(
        &self,
        states: &BTreeMap<SourceName, SourceState>,
    ) -> impl Iterator<Item = JobName> {
        let sets = states.values().filter_map(SourceState::set);
        let offered = sets.flat_map(|set| &set.pods).filter_map(|pod| {
            let Runs::Job(job) = &**pod.runs.as_ref()?;
            Some(job.name.clone())
        });
        let offered: BTreeSet<JobName> = offered.collect();
        let names = self.store.names().filter(|name| !offered.contains(*name));
        names.cloned().collect::<Vec<_>>().into_iter()
    }

    /// Adds the pods that the ledgers on disk stand for.
    fn put_in(
        &mut self,
        merged: &mut Merged,
        wanted: &BTreeMap<JobName, Wanted>,
        failed: &BTreeMap<JobName, String>,
    ) {
        let of_manifests = merged.pods.values().filter(|pod| !pod.is_api());
        let mut taken: BTreeMap<FullName, Origin> = of_manifests
            .map(|pod| (pod.full_name(), pod.origin.clone()))
            .collect();
        let mut reports = Vec::new();
        self.watched = false;
        for (name, Wanted { job, pod }) in wanted {
            if let Some(why) = failed.get(name) {
                merged.conflicts.push(unwritten(job, &pod.origin, why));
            }
            let Some(ledger) = self.store.get(name) else {
                continue;
            };
            reports.push(report(job, ledger, &pod.origin.location));
            // One of another content is stopped once the disk has a ledger of the new one.
            self.watched |= !ledger.active.is_empty();
            for instance in pods(job, ledger) {
                let full_name = FullName::of(&instance);
                if let Some(other) = taken.get(&full_name) {
                    merged
                        .conflicts
                        .push(same_name(job, &pod.origin, &full_name, other));
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
        merged.conflicts.sort();
        self.publish(reports);
    }

    fn publish(&mut self, reports: Vec<JobReport>) {
        self.published.publish(reports);
    }

    fn look_in(&mut self, wait: Option<Duration>) {
        let Some(wait) = wait else { return };
        let at = Instant::now() + wait;
        self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
    }

    /// Ends when what was decided may have to be decided anew.
    pub async fn changed(&mut self) {
        let look_at = self.look_at;
        tokio::select! {
            changed = self.changed.changed(), if self.watched => match changed {
                Ok(()) => tokio::time::sleep(LOOK_PAUSE).await,
                Err(_) => std::future::pending().await,
            },
            Some(Request { job, answer }) = self.requests.recv() => {
                self.orders.entry(job).or_default().push(answer);
            }
            () = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {}
            // Nobody can ask any more, and nothing is to change.
            else => std::future::pending().await,
        }
    }
}

/// Answers orders by what could be written.
fn answer(
    orders: BTreeMap<JobName, Vec<oneshot::Sender<Result<(), OrderError>>>>,
    wanted: &BTreeMap<JobName, Wanted>,
    failed: &BTreeMap<JobName, String>,
) {
    for (name, senders) in orders {
        let answer = match failed.get(&name) {
            _ if !wanted.contains_key(&name) => Err(OrderError::Unknown(name)),
            Some(why) => Err(OrderError::Disk(why.clone())),
            None => Ok(()),
        };
        for sender in senders {
            // Whoever asked may have gone.
            let _ = sender.send(answer.clone());
        }
    }
}

/// Takes the pods that stand for Jobs out of a set.
fn take_out(merged: &mut Merged) -> BTreeMap<JobName, Wanted> {
    let stand_ins = merged.pods.extract_if(.., |_, pod| pod.runs.is_some());
    let wanted = stand_ins.filter_map(|(_, pod)| {
        let Runs::Job(job) = &**pod.runs.as_ref()?;
        let job = job.clone();
        Some((job.name.clone(), Wanted { job, pod }))
    });
    wanted.collect()
}

fn unreadable(job: &Job, origin: &Origin, file: &str, why: &str) -> Diagnostic {
    let message = format!(
        "nothing of Job {} runs: what was done of it can't be read from {file} ({why})",
        job.name
    );
    at(origin, Code::Unreadable, message).help(format!(
        "restore the file; or have the Job run from its beginning: mirrorlet restart job/{}",
        job.name.name
    ))
}

fn unwritten(job: &Job, origin: &Origin, why: &str) -> Diagnostic {
    let message = format!(
        "Job {} goes on once what was done of it can be written to disk: {why}",
        job.name
    );
    at(origin, Code::Unreadable, message)
}

fn same_name(job: &Job, origin: &Origin, name: &FullName, other: &Origin) -> Diagnostic {
    let message = format!(
        "a pod of Job {} does not run: pod {name} is already defined by {}",
        job.name, other.location
    );
    at(origin, Code::DuplicatePod, message).help("rename the Job or the other one")
}

fn at(origin: &Origin, code: Code, message: String) -> Diagnostic {
    let mut problem = Diagnostic::error(code, origin.location.as_str(), message);
    problem.position = origin.position;
    problem
}
