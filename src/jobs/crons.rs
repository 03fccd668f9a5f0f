//! CronJobs: their runs become Jobs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::handle::{Answer, Order};
use super::problems::{unreadable, unwritten};
use super::{
    Answers, At, Documents, JobStates, Jobs, OrderError, Orders, Wanted, WantedCron, answered,
};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::cron::{CronDecision, CronInput, CronJobRecord, Runs, decide};
use mirrorlet_core::desired::SourceState;
use mirrorlet_core::events::{of_begun_run, of_cron_job, of_deleted_run};
use mirrorlet_core::job::JobName;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;

impl Jobs {
    /// Processes the schedules, and adds the runs that are on disk to the Jobs.
    pub(super) async fn follow(
        &mut self,
        documents: &mut Documents,
        orders: &mut Orders,
        merged: &mut Merged,
        at: &At<'_>,
    ) {
        let files = self.cron_store.unreadable_files(documents.crons.keys());
        let read_next = self.cron_store.read_again(files).await;
        self.look_in(read_next);
        let mut waiting = self.take_runs(orders, documents);
        let deletions = take_deletions(orders);
        let mut deleted: BTreeMap<JobName, JobName> = BTreeMap::new();
        let mut decided: BTreeMap<JobName, CronDecision> = BTreeMap::new();
        for (name, WantedCron { cron, pod }) in &documents.crons {
            if let Some((file, why)) = self.cron_store.unreadable(name) {
                let problem = unreadable("CronJob", name, &pod.origin, &file, why);
                merged.conflicts.push(problem);
                let refused = Err(OrderError::Unreadable(name.clone()));
                self.answers.extend(waiting.remove(name).zip(Some(refused)));
                continue;
            }
            let ended = |job: &JobName| {
                let record = self.store.get(job).filter(|record| record.is_over())?;
                Some(record.end.as_ref()?.complete)
            };
            let mut record = self.cron_store.get(name).map(Cow::Borrowed);
            let forgotten = record
                .iter_mut()
                .flat_map(|record| forget(record, deletions.keys()));
            deleted.extend(forgotten.map(|job| (job.clone(), name.clone())));
            let decision = decide(&CronInput {
                cron,
                record: record.as_deref(),
                ended: &ended,
                ordered: waiting.contains_key(name),
                may_start: at.known,
                now: at.now,
            });
            decided.insert(name.clone(), decision);
        }
        let mut changes: Vec<(JobName, Option<CronJobRecord>)> = decided
            .iter()
            .filter(|(name, decision)| self.cron_store.get(name) != Some(&decision.record))
            .map(|(name, decision)| (name.clone(), Some(decision.record.clone())))
            .collect();
        if merged.delivered.manifests {
            changes.extend(self.forgotten_crons(at).map(|name| (name, None)));
        }
        let ordered = (waiting.keys().chain(deleted.values()).cloned()).collect_set();
        let failed = self.cron_store.keep(changes, &ordered).await;
        self.look_in(self.cron_store.write_in());
        self.answers
            .extend(deletion_answers(deletions, &deleted, &failed));
        for (name, decision) in decided {
            self.look_in(decision.look_again);
            let sender = waiting.remove(&name);
            if let Some(why) = failed.get(&name) {
                if let Some(cron) = documents.crons.get(&name) {
                    let problem = unwritten("CronJob", &name, &cron.pod.origin, why);
                    merged.conflicts.push(problem);
                }
                if let Some(sender) = sender {
                    let refused = Err(OrderError::Disk(why.clone()));
                    self.answers.push((sender, refused));
                }
                continue;
            }
            self.record_events(&name, &decision);
            let answer = report_begun(&name, decision.begun, documents);
            self.answers.extend(sender.zip(answer));
        }
        self.reported
            .retain(|name, _| documents.crons.contains_key(name));
        self.add_runs(documents);
    }

    /// Records the events of a decision. A time that is due and has no run is reported once.
    fn record_events(&mut self, name: &JobName, decision: &CronDecision) {
        let begun = decision.begun.iter().map(|run| of_begun_run(name, run));
        let deleted = decision.deleted.iter();
        let deleted = deleted.map(|run| of_deleted_run(name, run));
        let news = decision
            .note
            .filter(|note| self.reported.get(name) != Some(note));
        self.reported.extend(news.map(|note| (name.clone(), note)));
        let news = news.map(|note| of_cron_job(name, &note));
        for event in begun.chain(deleted).chain(news) {
            occurrences::workload(&self.options.telemetry, &event);
        }
    }

    /// The orders to run CronJobs, at most one of each; further ones are obeyed next.
    fn take_runs(
        &mut self,
        orders: &mut Orders,
        documents: &Documents,
    ) -> BTreeMap<JobName, oneshot::Sender<Answer>> {
        let mut taken = BTreeMap::new();
        for (order, mut senders) in std::mem::take(orders) {
            let Order::Run(name) = &order else {
                orders.insert(order, senders);
                continue;
            };
            if !documents.crons.contains_key(name) {
                let refused = Err(OrderError::Unknown(name.clone()));
                self.answers.extend(answered(senders, &refused));
                continue;
            }
            if !senders.is_empty() {
                taken.insert(name.clone(), senders.remove(0));
            }
            if !senders.is_empty() {
                self.orders.insert(order, senders);
                self.look_in(Some(Duration::ZERO));
            }
        }
        taken
    }

    /// The CronJobs of records that no document describes any more.
    fn forgotten_crons(&self, at: &At<'_>) -> impl Iterator<Item = JobName> + use<> {
        let sets = at.states.values().filter_map(SourceState::set);
        let offered: Vec<&JobName> = sets
            .flat_map(|set| &set.pods)
            .filter_map(|pod| match &**pod.runs.as_ref()? {
                Runs::Job(_) => None,
                Runs::CronJob(cron) => Some(&cron.name),
            })
            .collect();
        let names = self.cron_store.names();
        let names = names.filter(|name| !offered.contains(name));
        names.cloned().collect::<Vec<_>>().into_iter()
    }

    /// Adds the runs of CronJobs to the Jobs. A document of the same name goes first.
    fn add_runs(&self, documents: &mut Documents) {
        for (name, WantedCron { pod, .. }) in &documents.crons {
            let runs = self.cron_store.get(name).map(|record| &record.runs);
            for run in runs.into_iter().flatten() {
                let job = run.job.clone();
                let entry = documents.jobs.entry(job.name.clone());
                entry.or_insert_with(|| Wanted {
                    job,
                    pod: pod.clone(),
                });
            }
        }
    }

    /// Adds the states of CronJobs to the reports.
    pub(super) fn report_crons(
        &self,
        documents: &Documents,
        now: Timestamp,
        reports: &mut JobStates,
    ) {
        for (name, WantedCron { cron, pod }) in &documents.crons {
            let Some(record) = self.cron_store.get(name) else {
                continue;
            };
            let runs = |job: &JobName| {
                let record = self.store.get(job);
                record.is_some_and(|record| !record.is_over())
            };
            let active = record.runs.iter().filter(|run| runs(&run.job.name)).count();
            let active = u32::try_from(active).unwrap_or(u32::MAX);
            let report = cron.report(record, active, &pod.origin.location, now);
            reports.cron_jobs.push(report);
        }
    }
}

/// The orders to delete runs, which are answered once all records are decided.
fn take_deletions(orders: &mut Orders) -> BTreeMap<JobName, Vec<oneshot::Sender<Answer>>> {
    let is_deletion = |order: &Order| matches!(order, Order::Delete(_));
    let taken = orders.extract_if(.., |order, _| is_deletion(order));
    let named = taken.filter_map(|(order, senders)| match order {
        Order::Delete(job) => Some((job, senders)),
        _ => None,
    });
    named.collect_map()
}

/// Takes those runs of `jobs` out of a record that are in it, and returns them.
fn forget<'a>(
    record: &mut Cow<'_, CronJobRecord>,
    jobs: impl Iterator<Item = &'a JobName>,
) -> impl Iterator<Item = &'a JobName> {
    let is_run = |job: &&JobName| record.runs.iter().any(|run| run.job.name == **job);
    let found: Vec<&JobName> = jobs.filter(is_run).collect();
    for job in &found {
        record.to_mut().forget(job);
    }
    found.into_iter()
}

/// The answers to the orders to delete runs. `deleted` has the CronJob of each that was found.
fn deletion_answers(
    orders: BTreeMap<JobName, Vec<oneshot::Sender<Answer>>>,
    deleted: &BTreeMap<JobName, JobName>,
    failed: &BTreeMap<JobName, String>,
) -> Answers {
    let mut answers = Answers::new();
    for (job, senders) in orders {
        let answer = match deleted.get(&job).map(|cron| failed.get(cron)) {
            Some(None) => Ok(job),
            Some(Some(why)) => Err(OrderError::Disk(why.clone())),
            None => Err(OrderError::Unknown(job)),
        };
        answers.extend(answered(senders, &answer));
    }
    answers
}

/// Reports the runs of a CronJob that begin. Returns the answer for the user who ordered one.
fn report_begun(name: &JobName, begun: Vec<JobName>, documents: &Documents) -> Option<Answer> {
    for job in &begun {
        let message = format!("Created job {}", job.name);
        occurrences::job(&name.to_string(), &message, false);
    }
    let job = begun.into_iter().next()?;
    let taken = documents.jobs.contains_key(&job);
    Some(if taken {
        Err(OrderError::Taken(job))
    } else {
        Ok(job)
    })
}
