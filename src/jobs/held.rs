//! Jobs that wait, or are left alone: until the documents of their records are known, until pods have
//! stopped, or until their records can be read.

use std::collections::BTreeSet;

use super::problems::awaited;
use super::{At, Documents, Jobs, Order, OrderError, Orders, WantedCron, answered};
use crate::store::board::{Phase, PodView};
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::cron::{CronJob, Runs};
use mirrorlet_core::desired::{PodSource, SourcePod, SourceState};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::job::{Job, JobName, JobRecord, is_pod_of};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::observed::{ContainerState, PodStatus};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::workload::WorkloadKey;

impl Jobs {
    /// Whether a Job was begun from a document that this agent has not seen and that a source may have
    /// which has not delivered yet: no other document may repeat its work.
    pub(super) fn is_awaited(&self, job: &Job, at: &At<'_>) -> bool {
        let record = self.store.get(&job.name);
        let mut sources = at.states.iter();
        record.is_some_and(|record| record.content != job.content && !record.is_removed())
            && !self.begun.contains_key(&job.name)
            && sources.any(|(name, state)| name.source != PodSource::Api && state.set().is_none())
    }

    /// Whether an awaited Job may have a running pod. Such a pod can't be stopped before every source
    /// has delivered, and its work must not be done twice at the same time, even on an order.
    pub(super) fn may_have_pods(&self, job: &Job) -> bool {
        let record = self.store.get(&job.name);
        record.is_some_and(|record| !record.active.is_empty())
    }

    /// Whether anything of a pod runs, or may still be started by its worker. The pod must not have
    /// been wanted by the last merge: a worker that has published nothing yet is stopped before it
    /// starts any.
    pub(super) fn may_run(&self, uid: &PodUid, at: &At<'_>) -> bool {
        let cache = &self.options.cache;
        let seen = cache.get(uid);
        let is_unknown = match seen.modified {
            Some(_) => seen.error.is_some() && seen.status.is_empty(),
            // Before the first list is complete, one that runs may not have been seen.
            None => !at.known || cache.known_until().is_none(),
        };
        let view = self.options.board.get(uid);
        let is_at_work = view.is_some_and(|view| !has_stopped(&view, &seen.status));
        is_unknown || seen.status.anything_running() || is_at_work
    }

    /// Whether the runtime's pods were listed, and the status of each was read: a Job whose record
    /// can't be read is known only by its pods.
    pub(super) fn sees_all_pods(&self, at: &At<'_>) -> bool {
        at.known && self.options.cache.knows_all()
    }

    /// Refuses the orders to run a Job again.
    pub(super) fn refuse(
        &mut self,
        job: &JobName,
        why: fn(JobName) -> OrderError,
        orders: &mut Orders,
    ) {
        if let Some(senders) = orders.remove(&Order::Restart(job.clone())) {
            let refused = Err(why(job.clone()));
            self.answers.extend(answered(senders, &refused));
        }
    }

    /// The Jobs of records without a document or run of a CronJob, with the data that is needed while
    /// their pods may run.
    pub(super) fn forgotten(
        &self,
        documents: &Documents,
        at: &At<'_>,
    ) -> Vec<(JobName, Option<JobRecord>)> {
        let sets = at.states.values().filter_map(SourceState::set);
        let offered =
            sets.flat_map(|set| &set.pods)
                .filter_map(|pod| match &**pod.runs.as_ref()? {
                    Runs::Job(job) => Some(job.name.clone()),
                    Runs::CronJob(_) => None,
                });
        let runs = self.cron_store.all().flat_map(|record| &record.runs);
        let runs = runs.map(|run| run.job.name.clone());
        let offered: BTreeSet<JobName> = offered
            .chain(runs)
            .chain(documents.jobs.keys().cloned())
            .collect_set();
        let unreadable: Vec<&CronJob> = self.unreadable_crons(documents).collect();
        let names = self.store.names().filter(|name| {
            !offered.contains(*name) && !unreadable.iter().any(|cron| cron.is_run(name))
        });
        let changes = names.filter_map(|name| {
            let known = self.store.get(name);
            let may_run = |uid: &PodUid| self.may_run(uid, at);
            let left = known.and_then(|record| record.removed(name, &may_run));
            (left.is_none() || left.as_ref() != known).then(|| (name.clone(), left))
        });
        changes.collect()
    }

    /// The CronJobs whose records can't be read.
    pub(super) fn unreadable_crons<'a>(
        &self,
        documents: &'a Documents,
    ) -> impl Iterator<Item = &'a CronJob> {
        let crons = documents.crons.values().map(|WantedCron { cron, .. }| cron);
        crons.filter(|cron| self.cron_store.unreadable(&cron.name).is_some())
    }

    /// The record of a Job that will run again, though its own can't be read: its pods in the runtime
    /// may run. If a Job with a longer name may also have such a pod, it is that one's.
    pub(super) fn unknown_run(
        &self,
        job: &Job,
        documents: &Documents,
        merged: &Merged,
        at: &At<'_>,
    ) -> Option<JobRecord> {
        self.store.unreadable(&job.name)?;
        let length = job.name.name.len();
        let others = documents.jobs.values().map(|wanted| &wanted.job);
        let others = others.filter(|other| {
            other.name.name.len() > length && self.store.unreadable(&other.name).is_some()
        });
        let others: Vec<&Job> = others.collect();
        let crons = self.unreadable_crons(documents);
        // Their runs have longer names than they have.
        let crons: Vec<&CronJob> = crons
            .filter(|cron| cron.name.name.len() >= length)
            .collect();
        let is_anothers = |name: &FullName| {
            let mut others = others.iter();
            others.any(|other| is_pod_of(other, name))
                || crons.iter().any(|cron| cron.is_pod_of(name))
        };
        let pods = self.unclaimed_pods(merged).into_iter();
        let pods = pods.filter(|(name, _)| is_pod_of(job, name) && !is_anothers(name));
        Some(JobRecord::unknown(pods.map(|(_, uid)| uid), at.now))
    }

    /// Protects the pods of Jobs whose records can't be read, and of the runs of CronJobs whose records
    /// can't be read: it is unknown which of them should run.
    pub(super) fn spare_unreadable(&mut self, documents: &Documents, merged: &Merged) {
        let jobs = documents.jobs.values().map(|wanted| &wanted.job);
        let jobs = jobs.filter(|job| self.store.unreadable(&job.name).is_some());
        let jobs: Vec<&Job> = jobs.collect();
        let crons: Vec<&CronJob> = self.unreadable_crons(documents).collect();
        if jobs.is_empty() && crons.is_empty() {
            return;
        }
        let runs = self.store.names();
        let runs = runs.filter(|job| crons.iter().any(|cron| cron.is_run(job)));
        let known = runs.filter_map(|job| Some(pods_of(job, self.store.get(job)?)));
        let is_one = |(name, _): &(FullName, PodUid)| {
            let mut jobs = jobs.iter();
            jobs.any(|job| is_pod_of(job, name)) || crons.iter().any(|cron| cron.is_pod_of(name))
        };
        let held = self.unclaimed_pods(merged).into_iter();
        let held = held.filter(is_one).map(|(_, uid)| uid);
        let spared: BTreeSet<PodUid> = known.flatten().chain(held).collect_set();
        self.spared.extend(spared);
    }

    /// The pods in the runtime about which no record on disk, and no wanted pod, has more data than
    /// their names.
    fn unclaimed_pods(&self, merged: &Merged) -> Vec<(FullName, PodUid)> {
        let names = self.store.names();
        let records = names.filter_map(|name| Some((name, self.store.get(name)?)));
        let recorded = records.flat_map(|(name, record)| {
            let leaving = record.leaving.iter().map(|pod| pod.uid.clone());
            pods_of(name, record).chain(leaving)
        });
        let recorded: BTreeSet<PodUid> = recorded.collect_set();
        let of_manifests = merged.pods.values().filter(|pod| !pod.is_api());
        let taken: BTreeSet<FullName> = of_manifests.map(SourcePod::full_name).collect_set();
        let entries = self.options.cache.all().into_iter();
        let held = entries.filter(|entry| !entry.status.is_empty());
        let held = held.map(|entry| (entry.status.full_name.clone(), entry.status.uid.clone()));
        let unclaimed = held.filter(|(name, uid)| {
            !recorded.contains(uid) && !merged.pods.contains_key(uid) && !taken.contains(name)
        });
        unclaimed.collect()
    }

    /// The pods that must not be stopped, though they are not wanted: an earlier agent started them,
    /// and either their document is not known any more and the record of the newest one not on disk, or
    /// their record can't be read.
    pub fn spared(&self) -> &BTreeSet<PodUid> {
        &self.spared
    }
}

/// Whether nothing of a pod that must stop runs, and nothing of it will be started. `seen` is its
/// newest known status.
fn has_stopped(view: &PodView, seen: &PodStatus) -> bool {
    let starts_nothing = match view.phase {
        // What looks created may be in the middle of its start, which outlives the worker's call. The
        // Engine doesn't remove it then.
        Phase::Terminated => !has_unstarted(seen),
        Phase::Finished => true,
        Phase::Terminating => false,
        // A pod that stays for its log is wanted, as an ended pod.
        Phase::WaitingToStart | Phase::Syncing => {
            let pod = view.pod.as_ref();
            pod.is_some_and(|pod| is_over(pod.status.as_ref()))
        }
    };
    starts_nothing && !view.observed.anything_running()
}

/// Whether anything of a pod was created and is not known to have been started.
fn has_unstarted(seen: &PodStatus) -> bool {
    let containers = seen.containers.iter().map(|container| container.state);
    let sandboxes = seen.sandboxes.iter().map(|sandbox| sandbox.state);
    let mut states = containers.chain(sandboxes);
    states.any(|state| state == ContainerState::Created)
}

/// The pods of a record: those that should run, and ended ones that stay for their logs.
pub(super) fn pods_of(name: &JobName, record: &JobRecord) -> impl Iterator<Item = PodUid> {
    let active = record
        .active
        .iter()
        .map(|(index, attempt)| (*index, *attempt));
    let over = record.over.iter().map(|over| (over.index, over.attempt));
    let all = active.chain(over);
    all.map(|(index, attempt)| record.uid(name, index, attempt))
}

/// Makes a document wait. It is not an incumbent: the awaited one takes precedence.
pub(super) fn hold(job: &Job, pod: &SourcePod, may_run: bool, merged: &mut Merged) {
    let problem = awaited(&job.name, &pod.origin, may_run);
    merged.conflicts.push(problem);
    merged.runs.remove(&pod.full_name());
    if let Some(key) = WorkloadKey::of(&pod.pod) {
        merged.workloads.remove(&key);
    }
}
