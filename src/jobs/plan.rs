//! Plans of edits of Jobs and CronJobs.

use std::collections::BTreeMap;

use super::JobStates;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{PlannedRun, RunAction};
use mirrorlet_core::cron::{self, Runs};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::job::{self, JobName};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::workload::WorkloadKind;

/// The documents of Jobs and CronJobs by kind and name, with the pods that represent them.
type Documents<'a> = BTreeMap<(WorkloadKind, &'a JobName), (&'a Runs, &'a SourcePod)>;

impl JobStates {
    /// Returns the action for each Job and CronJob if `newest` were the sources' state; `present` is
    /// the current state, before any of them was expanded.
    pub fn plan(&self, newest: &Merged, present: &Merged, now: Timestamp) -> Vec<PlannedRun> {
        let (wanted, before) = (documents(newest), documents(present));
        let mut planned: Vec<PlannedRun> = wanted
            .iter()
            .map(|((kind, name), (runs, pod))| {
                let present = before.get(&(*kind, *name)).map(|(runs, _)| *runs);
                self.plan_one(runs, present, pod, now)
            })
            .collect();
        if newest.delivered.manifests {
            let gone = before.iter().filter(|(key, _)| !wanted.contains_key(key));
            planned.extend(gone.map(|(_, (runs, pod))| PlannedRun {
                reason: "its document is removed; its running pods are stopped".to_owned(),
                ..row(runs, pod, RunAction::Remove)
            }));
        }
        planned.small_sort_by(|a, b| {
            let [a, b] = [a, b].map(|run| (&run.kind, &run.namespace, &run.name));
            a.cmp(&b)
        });
        planned
    }

    fn plan_one(
        &self,
        runs: &Runs,
        present: Option<&Runs>,
        pod: &SourcePod,
        now: Timestamp,
    ) -> PlannedRun {
        if pod.held {
            let problem = pod.problems.iter().find(|problem| problem.is_error());
            return PlannedRun {
                reason: problem.map_or_else(String::new, |problem| problem.message.clone()),
                ..row(runs, pod, RunAction::Held)
            };
        }
        match (runs, present) {
            (Runs::Job(wanted), present) => {
                let present = present.and_then(|present| match present {
                    Runs::Job(present) => Some(present),
                    Runs::CronJob(_) => None,
                });
                let (action, reason) = job::plan(wanted, present, self.known.get(&wanted.name));
                PlannedRun {
                    reason: reason.to_owned(),
                    ..row(runs, pod, action)
                }
            }
            (Runs::CronJob(wanted), present) => {
                let present = present.and_then(|present| match present {
                    Runs::CronJob(present) => Some(&**present),
                    Runs::Job(_) => None,
                });
                let (action, reason) = cron::plan(wanted, present);
                PlannedRun {
                    reason,
                    next_schedule: wanted.schedule.next(now).filter(|_| !wanted.suspend),
                    ..row(runs, pod, action)
                }
            }
        }
    }
}

fn documents(merged: &Merged) -> Documents<'_> {
    let runs = merged.pods.values().filter_map(|pod| {
        let runs = &**pod.runs.as_ref()?;
        Some((identity(runs), (runs, pod)))
    });
    runs.collect_map()
}

/// The kind and name of the document.
fn identity(runs: &Runs) -> (WorkloadKind, &JobName) {
    match runs {
        Runs::Job(job) => (WorkloadKind::Job, &job.name),
        Runs::CronJob(cron) => (WorkloadKind::CronJob, &cron.name),
    }
}

fn row(runs: &Runs, pod: &SourcePod, action: RunAction) -> PlannedRun {
    let (kind, name) = identity(runs);
    PlannedRun {
        kind: kind.to_string(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        source: pod.origin.location.clone(),
        action,
        reason: String::new(),
        next_schedule: None,
    }
}
