//! CronJobs of manifests: when the next run is due, and the existing runs.
//!
//! Each run is a [`Job`]. A [`CronJobRecord`] is stored: the time up to which the schedule was
//! processed, the times that were due already, and the runs with their Jobs as they were then.
//! [`decide`] returns the next record. As with Jobs, nothing is started before the record is on disk.
//!
//! Upstream: `pkg/controller/cronjob/cronjob_controllerv2.go` (`syncCronJob`).

mod plan;
mod schedule;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::report::CronJobReport;
use crate::api::{FullName, Pod, Timestamp, keys};
use crate::clock::elapsed;
use crate::job::{Job, JobName, name_after, numbers, pod_name};

pub use plan::plan;
pub use schedule::{NotSchedule, Schedule, time_zone};

/// Number of successful runs that are kept by default, as upstream.
pub const SUCCESSFUL_DEFAULT: u32 = 3;
/// Number of failed runs that are kept by default, as upstream.
pub const FAILED_DEFAULT: u32 = 1;
/// The seconds for which all times are remembered: by as much the clock may be set back.
const REMEMBERED: i64 = 2 * 86_400;
/// The number of times that are kept regardless of their age. If a machine's clock is wrong by years at
/// its start, and then corrected, it reaches the last one again, for example of a weekly schedule.
const TIMES_MIN: usize = 32;
/// Most times that are remembered: those of two days at each minute.
const TIMES_MAX: usize = 2 * 24 * 60;
/// Maximum number of unfinished runs: beside as many, the schedule starts no other one. Otherwise a
/// CronJob whose Jobs never end would add Jobs to its record forever.
pub const UNFINISHED_MAX: usize = 100;
/// Longest time between two looks: the clock may be set forward, or the machine sleep.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// The policy for a run that is due while another one runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// Both run.
    #[default]
    Allow,
    /// It waits, and is skipped once the next one is due.
    Forbid,
    /// The other one is ended.
    Replace,
}

impl Concurrency {
    /// Every policy, by its name in documents.
    pub const ALL: [(&str, Self); 3] = [
        ("Allow", Self::Allow),
        ("Forbid", Self::Forbid),
        ("Replace", Self::Replace),
    ];

    /// The policy with that name; the default one for an unknown name.
    pub fn of(name: Option<&str>) -> Self {
        let mut all = Self::ALL.into_iter();
        let known = all.find(|(known, _)| Some(*known) == name);
        known.map_or_else(Self::default, |(_, policy)| policy)
    }
}

/// A CronJob, as its document describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct CronJob {
    /// Its name.
    pub name: JobName,
    /// When it is due.
    pub schedule: Schedule,
    /// The schedule as it is written.
    pub text: String,
    /// The name of its time zone, if its document has one.
    pub zone: Option<String>,
    /// The policy for a run that is due while another one runs.
    pub concurrency: Concurrency,
    /// Seconds after which a due run is too late.
    pub starting_deadline: Option<u64>,
    /// The number of successful runs that stay.
    pub successful: u32,
    /// The number of failed runs that stay.
    pub failed: u32,
    /// Whether nothing is started.
    pub suspend: bool,
    /// The Job of number 0.
    pub job: Job,
}

/// A workload with pods that end.
#[derive(Debug, Clone, PartialEq)]
pub enum Runs {
    /// A Job.
    Job(Job),
    /// A CronJob, of which each run is a Job.
    CronJob(Box<CronJob>),
}

/// The stored state of a CronJob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronJobRecord {
    /// When the CronJob was created: no earlier time is due. An earlier release didn't record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// Up to when the schedule was followed.
    pub followed: Timestamp,
    /// The last due time for which a run was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// The due times for which a run was started, in seconds since 1970, while the clock may reach them
    /// again.
    pub times: BTreeSet<i64>,
    /// The number of the next run that a user orders.
    pub ordered: u32,
    /// The runs that there are, oldest first.
    pub runs: Vec<Run>,
}

/// One run of a CronJob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The time it was due; none if a user ordered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Its Job, as it was then.
    pub job: Job,
}

/// The input of a decision about a CronJob.
pub struct CronInput<'a> {
    /// The CronJob, as its document describes it now.
    pub cron: &'a CronJob,
    /// Its record on disk; none for a new CronJob.
    pub record: Option<&'a CronJobRecord>,
    /// The end of a Job, if it has ended and none of its pods runs: whether it is complete.
    pub ended: &'a dyn Fn(&JobName) -> Option<bool>,
    /// Whether a user orders a run.
    pub ordered: bool,
    /// Whether runs may be started.
    pub may_start: bool,
    /// The present time.
    pub now: Timestamp,
}

/// The decision about a CronJob.
#[derive(Debug, Clone, PartialEq)]
pub struct CronDecision {
    /// Its record from now on.
    pub record: CronJobRecord,
    /// The Jobs that begin.
    pub begun: Vec<JobName>,
    /// The Jobs to remove: they are replaced by a new run, or too many have ended.
    pub deleted: Vec<JobName>,
    /// The time that is due and has no run, while that is the case.
    pub note: Option<CronNote>,
    /// When to decide again though nothing happens.
    pub look_again: Option<Duration>,
}

/// A time that is due and has no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CronNote {
    /// It is too late for it.
    Missed(Timestamp),
    /// It waits for the run before it.
    Busy(Timestamp),
    /// It waits until one of [`UNFINISHED_MAX`] runs has ended.
    Full(Timestamp),
}

/// Decides the next state of a CronJob. Reads nothing but its argument.
pub fn decide(input: &CronInput<'_>) -> CronDecision {
    let (cron, now) = (input.cron, input.now);
    let mut record = input.record.cloned().unwrap_or_else(|| CronJobRecord {
        created: Some(now),
        followed: now,
        last: None,
        times: BTreeSet::new(),
        ordered: 0,
        runs: Vec::new(),
    });
    let mut begun = Vec::new();
    // Before the clock takes it back: the best that is known of a record without it.
    record.created.get_or_insert(record.followed);
    // The clock was set back: what comes again isn't due again.
    record.followed = record.followed.min(now);
    if input.ordered {
        let number = format!("run-{}", record.ordered);
        record.ordered = record.ordered.wrapping_add(1);
        begun.push(start(&mut record, cron, None, &number));
    }
    let mut note = None;
    let due = due(input, &mut record).filter(|_| input.may_start && !cron.suspend);
    if let Some((due, false)) = due {
        note = Some(CronNote::Missed(due));
    }
    if let Some((due, true)) = due {
        let runs = |run: &Run| (input.ended)(&run.job.name).is_none();
        let is_busy = record.runs.iter().any(|run| run.due.is_some() && runs(run));
        let unfinished = record.runs.iter().filter(|run| runs(run)).count();
        if is_busy && cron.concurrency == Concurrency::Forbid {
            note = Some(CronNote::Busy(due));
        } else if unfinished >= UNFINISHED_MAX && cron.concurrency != Concurrency::Replace {
            note = Some(CronNote::Full(due));
        } else {
            if cron.concurrency == Concurrency::Replace {
                record.runs.retain(|run| run.due.is_none() || !runs(run));
            }
            record.followed = due;
            record.last = Some(due);
            record.times.insert(due.as_second());
            let number = due.as_second().div_euclid(60).to_string();
            begun.push(start(&mut record, cron, Some(due), &number));
        }
    }
    forget_times(&mut record, now);
    forget_runs(&mut record, input);
    let next = cron.schedule.next(now).filter(|_| !cron.suspend);
    CronDecision {
        deleted: deleted(input.record, &record),
        record,
        begun,
        note,
        look_again: next.map(|next| elapsed(now, next).min(LOOK_MAX)),
    }
}

/// The Jobs of runs that are no longer in a record.
fn deleted(before: Option<&CronJobRecord>, after: &CronJobRecord) -> Vec<JobName> {
    let is_there = |job: &JobName| after.runs.iter().any(|run| run.job.name == *job);
    let before = before.into_iter().flat_map(|record| &record.runs);
    let gone = before.filter(|run| !is_there(&run.job.name));
    gone.map(|run| run.job.name.clone()).collect()
}

/// The time that is due now, and whether it isn't too late: the last one, if there was no run for it.
/// Those before it are left out, however many. A clock that was wrong and is right again has followed the
/// schedule as far as before.
fn due(input: &CronInput<'_>, record: &mut CronJobRecord) -> Option<(Timestamp, bool)> {
    let due = input.cron.schedule.previous(input.now)?;
    // While the clock is before the creation, one of the two is wrong, and the schedule continues.
    let created = record.created.filter(|created| *created <= input.now);
    let is_early = created.is_some_and(|created| due <= created);
    if is_early || record.times.contains(&due.as_second()) {
        record.followed = record.followed.max(due);
    }
    if due <= record.followed {
        return None;
    }
    let late = elapsed(due, input.now);
    let deadline = input.cron.starting_deadline;
    let in_time = deadline.is_none_or(|seconds| late <= Duration::from_secs(seconds));
    Some((due, in_time))
}

fn start(
    record: &mut CronJobRecord,
    cron: &CronJob,
    due: Option<Timestamp>,
    number: &str,
) -> JobName {
    let job = cron.run(number);
    let name = job.name.clone();
    record.runs.retain(|run| run.job.name != name);
    record.runs.push(Run { due, job });
    name
}

/// The rest of a Job's name after the CronJob's, without the `-run` of runs that a user ordered.
fn without_order(rest: &str) -> &str {
    rest.strip_prefix("-run").unwrap_or(rest)
}

/// Forgets times that the clock won't reach again, but not the newest ones.
fn forget_times(record: &mut CronJobRecord, now: Timestamp) {
    let oldest = now.as_second() - REMEMBERED;
    let times = &mut record.times;
    let is_old = |times: &BTreeSet<i64>| times.first().is_some_and(|time| *time < oldest);
    while times.len() > TIMES_MAX || (times.len() > TIMES_MIN && is_old(times)) {
        times.pop_first();
    }
}

/// Of the ended runs, keeps as many of the newest ones as the document says.
fn forget_runs(record: &mut CronJobRecord, input: &CronInput<'_>) {
    let limits = [(true, input.cron.successful), (false, input.cron.failed)];
    for (complete, limit) in limits {
        let is_one = |run: &Run| (input.ended)(&run.job.name) == Some(complete);
        let count = record.runs.iter().filter(|run| is_one(run)).count();
        let mut surplus = count.saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        record.runs.retain(|run| {
            let goes = surplus > 0 && is_one(run);
            surplus -= usize::from(goes);
            !goes
        });
    }
}

impl CronJobRecord {
    /// Forgets a run, whether it has ended or not; its due time does not become due again. Returns
    /// whether there was a run with that name.
    pub fn forget(&mut self, job: &JobName) -> bool {
        let before = self.runs.len();
        self.runs.retain(|run| run.job.name != *job);
        self.runs.len() < before
    }
}

impl CronJob {
    /// Whether a pod belongs to one of its runs, by its name alone.
    pub fn is_pod_of(&self, pod: &FullName) -> bool {
        let rest = name_after(&self.name, &self.job, pod).map(without_order);
        matches!(rest.and_then(numbers), Some(2 | 3))
    }

    /// Whether a Job is one of its runs, by its name alone.
    pub fn is_run(&self, job: &JobName) -> bool {
        let name = Some(&*job.name).filter(|_| job.namespace == self.name.namespace);
        let rest = name.and_then(|name| name.strip_prefix(&*self.name.name));
        rest.map(without_order).and_then(numbers) == Some(1)
    }

    /// The Job of one of its runs.
    fn run(&self, number: &str) -> Job {
        let name = format!("{}-{number}", self.name.name);
        let mut template = Pod::clone(&self.job.template);
        let of_template = pod_name(&self.job.name.name, 0, 0);
        let full = template.metadata.name.as_deref().unwrap_or_default();
        let suffix = full.strip_prefix(&of_template).unwrap_or_default();
        template.metadata.name = Some(format!("{}{suffix}", pod_name(&name, 0, 0)));
        let annotations = template.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::WORKLOAD.to_owned(), format!("Job/{name}"));
        annotations.insert(keys::CRON_JOB.to_owned(), self.name.name.clone());
        Job {
            name: JobName::new(&self.name.namespace, name),
            template: Arc::new(template),
            ..self.job.clone()
        }
    }

    /// Its report for users; `active` is the number of its running Jobs, and `source` is the location
    /// of its document.
    pub fn report(
        &self,
        record: &CronJobRecord,
        active: u32,
        source: &str,
        now: Timestamp,
    ) -> CronJobReport {
        CronJobReport {
            namespace: self.name.namespace.clone(),
            name: self.name.name.clone(),
            source: source.to_owned(),
            schedule: self.text.clone(),
            time_zone: self.zone.clone().unwrap_or_else(|| "UTC".to_owned()),
            suspended: self.suspend,
            active,
            last_schedule: record.last,
            next_schedule: self.schedule.next(now).filter(|_| !self.suspend),
        }
    }
}

#[cfg(test)]
mod tests;
