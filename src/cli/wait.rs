//! `mirrorlet wait`: waits until pods, or all pods of a workload, reach a state.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;

use super::status::watch_reports;
use super::table::one_line;
use super::{Failure, Outcome, print};
use crate::config::args::{WaitArgs, WaitFor};
use mirrorlet_core::api::keys::DEFAULT_NAMESPACE;
use mirrorlet_core::api::report::{
    JobReport, PodReport, RolloutReport, STOPPED, SourceReport, StatusReport, WorkloadReport,
};
use mirrorlet_core::api::split_name;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::select::{PodNotFound, find_pod, without_kind, workload_kind};
use mirrorlet_core::workload::WorkloadKind;

/// Kinds of objects that have no state to wait for, as kubectl takes them before a name.
const OTHER_KINDS: [&str; 16] = [
    "service",
    "services",
    "svc",
    "configmap",
    "configmaps",
    "cm",
    "secret",
    "secrets",
    "node",
    "nodes",
    "no",
    "replicaset",
    "replicasets",
    "rs",
    "persistentvolumeclaim",
    "pvc",
];

/// Waits until pods reach a state, one after another, and prints each in their order, as kubectl does.
/// After the timeout, pods that have reached it are printed, too.
pub async fn wait(args: &WaitArgs, root: &Path) -> Outcome {
    let mut waiting: VecDeque<Awaited> = args.pods.iter().map(|pod| Awaited::new(pod)).collect();
    let follow = follow(&mut waiting, args.state, root);
    if args.timeout.is_zero() {
        return follow.await;
    }
    let followed = tokio::time::timeout(args.timeout, follow).await;
    followed.unwrap_or_else(|_| not_in_time(args.timeout, args.state, &waiting))
}

fn not_in_time(limit: Duration, state: WaitFor, waiting: &VecDeque<Awaited>) -> Outcome {
    for pod in waiting.iter().filter(|pod| pod.met) {
        print(&pod.line())?;
    }
    let missing = waiting.iter().filter(|pod| !pod.met).map(Awaited::name);
    let missing = missing.collect::<Vec<_>>().join(", ");
    let limit = limit.as_secs_f64();
    let wanted = match state {
        WaitFor::Ready => "be ready",
        WaitFor::Healthy => "be healthy",
        WaitFor::Stopped => "be stopped",
        WaitFor::Complete => "complete",
        WaitFor::Deleted => "be deleted",
    };
    Err(Failure::Failed(anyhow!(
        "timed out after {limit} s waiting for {missing} to {wanted}; see mirrorlet status"
    )))
}

async fn follow(waiting: &mut VecDeque<Awaited>, state: WaitFor, root: &Path) -> Outcome {
    let mut reports = watch_reports(root, true).await?;
    while !waiting.is_empty() {
        let report = reports.next().await?;
        for pod in waiting.iter_mut() {
            pod.look(&report, state)?;
        }
        while let Some(pod) = waiting.pop_front_if(|pod| pod.met) {
            print(&pod.line())?;
        }
    }
    Ok(())
}

/// A pod or workload that is waited for.
#[derive(Debug)]
struct Awaited {
    /// As the user typed it.
    typed: String,
    /// Its namespace, if known, and its name.
    name: (Option<String>, String),
    /// The kind of workload that it is, if it is one.
    workload: Option<WorkloadKind>,
    /// Whether it has the state, by the newest report.
    met: bool,
    /// Whether the API server had it when it was seen last.
    is_api: bool,
}

impl Awaited {
    fn new(typed: &str) -> Self {
        let workload = typed
            .split_once('/')
            .and_then(|(word, name)| Some((WorkloadKind::of_word(word)?, name)));
        let named = workload.map_or_else(|| without_kind(typed), |(_, name)| name);
        let (namespace, name) = split_name(named);
        Self {
            typed: typed.to_owned(),
            name: (namespace.map(str::to_owned), name.to_owned()),
            workload: workload.map(|(kind, _)| kind),
            met: false,
            is_api: false,
        }
    }

    /// Processes a report. A pod that doesn't exist yet may appear. When waiting for deletion, the name
    /// that the user typed is kept: whether the pod was seen before is chance.
    fn look(&mut self, report: &StatusReport, state: WaitFor) -> Result<(), Failure> {
        let pod = match find_pod(&report.pods, &self.typed) {
            Ok(pod) => Some(pod),
            Err(PodNotFound::Unknown { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let (None, None, (namespace, name)) = (self.workload, pod, &self.name) {
            // Once known, it is one also when its document has gone.
            self.workload = workload_kind(report, namespace.as_deref(), name)?;
        }
        if let Some(pod) = pod.filter(|pod| !pod.source.is_empty()) {
            let is_its = |source: &SourceReport| is_of_api(source) && source.location == pod.source;
            self.is_api = report.sources.iter().any(is_its);
        }
        let is_known = state != WaitFor::Deleted || has_all(report, self.is_api);
        if let (Some(kind), None) = (self.workload, pod) {
            self.met = self.workload_is(kind, report, state)? && is_known;
            return Ok(());
        }
        if pod.is_none() {
            self.refuse_other_kind(report)?;
        }
        if let Some(pod) = pod.filter(|_| state != WaitFor::Deleted) {
            // A namespace that is called as a kind.
            self.workload = None;
            self.name = (Some(pod.namespace.clone()), pod.name.clone());
        }
        self.met = match (state, pod) {
            (WaitFor::Deleted, pod) => pod.is_none() && is_known,
            (_, None) => false,
            (_, Some(pod)) if pod.is_ending() => false,
            (WaitFor::Ready, Some(pod)) => pod.is_ready(),
            (WaitFor::Healthy, Some(pod)) => is_healthy(pod),
            (WaitFor::Stopped, Some(pod)) => pod.status == STOPPED,
            (WaitFor::Complete, Some(pod)) => pod.phase == "Succeeded",
        };
        Ok(())
    }

    /// Refuses a name of another kind than those that can be waited for. No pod would be found for it,
    /// which is not the end of one.
    fn refuse_other_kind(&self, report: &StatusReport) -> Result<(), Failure> {
        let kind = self.name.0.as_deref().unwrap_or_default();
        let is_namespace = report.pods.iter().any(|pod| pod.namespace == kind);
        if is_namespace || !OTHER_KINDS.contains(&kind.to_ascii_lowercase().as_str()) {
            return Ok(());
        }
        Err(Failure::Usage(anyhow!(
            "can't wait for {}; wait takes pods, workloads (deployment/NAME) and Jobs (job/NAME)",
            one_line(&self.typed)
        )))
    }

    /// Whether a workload has the state: all its wanted pods have. A pod that no source has delivered
    /// yet may be of a former version, with an unknown state; it counts as existing.
    fn workload_is(
        &self,
        kind: WorkloadKind,
        report: &StatusReport,
        state: WaitFor,
    ) -> Result<bool, Failure> {
        let (namespace, name) = (self.name.0.as_deref(), self.name.1.as_str());
        let owner = format!("{kind}/{name}");
        let is_of = |of: &str| namespace.is_none_or(|namespace| namespace == of);
        let is_its =
            |pod: &&PodReport| pod.workload.as_ref() == Some(&owner) && is_of(&pod.namespace);
        let counts = |pod: &&PodReport| state == WaitFor::Deleted || !pod.is_adopted();
        let pods: Vec<&PodReport> = report.pods.iter().filter(is_its).filter(counts).collect();
        match kind {
            WorkloadKind::CronJob => Err(Failure::Usage(anyhow!(
                "a CronJob reaches no state; wait for one of its Jobs: mirrorlet wait job/NAME --for=complete"
            ))),
            WorkloadKind::Job => {
                let is_it = |job: &&JobReport| job.name == name && is_of(&job.namespace);
                let jobs: Vec<_> = report.jobs.iter().filter(is_it).collect();
                jobs_are(&jobs, &pods, state)
            }
            WorkloadKind::Deployment | WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => {
                let is_it = |one: &&WorkloadReport| one.owner == owner && is_of(&one.namespace);
                let found: Vec<_> = report.workloads.iter().filter(is_it).collect();
                all_are(&found, &pods, state)
            }
        }
    }

    fn name(&self) -> String {
        let kind = self.workload.map(|kind| kind.as_str().to_ascii_lowercase());
        let kind = kind.unwrap_or_else(|| "pod".to_owned());
        format!("{kind}/{}", one_line(&self.name.1))
    }

    /// As kubectl prints it, with the namespace where it isn't the default one.
    fn line(&self) -> String {
        let namespace = self.name.0.as_deref();
        let namespace = namespace.filter(|namespace| *namespace != DEFAULT_NAMESPACE);
        let namespace = namespace.map_or_else(String::new, |namespace| {
            format!(" in namespace {}", one_line(namespace))
        });
        format!("{} condition met{namespace}\n", self.name())
    }
}

fn is_of_api(source: &SourceReport) -> bool {
    source.kind == PodSource::Api.as_str()
}

/// Whether a pod or Job that is missing in the report is gone: the agent has listed the containers and
/// read the sources. The API server only matters for its own pods, `of_api`: its silence affects no
/// other.
fn has_all(report: &StatusReport, of_api: bool) -> bool {
    let counts = |source: &&SourceReport| of_api || !is_of_api(source);
    let mut sources = report.sources.iter().filter(counts);
    let engine = &report.engine;
    engine.reachable && !engine.unlisted && sources.all(|source| source.synced)
}

fn is_healthy(pod: &PodReport) -> bool {
    let rollout = pod.rollout.as_ref();
    pod.is_ready() && !pod.held && rollout.is_none_or(RolloutReport::is_paused_when_done)
}

/// Whether Jobs have the state; in several namespaces, all of them. A failed one never completes.
fn jobs_are(jobs: &[&JobReport], pods: &[&PodReport], state: WaitFor) -> Result<bool, Failure> {
    match state {
        WaitFor::Deleted => Ok(jobs.is_empty() && pods.is_empty()),
        WaitFor::Complete => {
            if let Some(job) = jobs.iter().find(|job| job.has_failed()) {
                let name = one_line(&format!("{}/{}", job.namespace, job.name));
                let why = one_line(&format!("{}: {}", job.reason, job.message));
                return Err(Failure::Failed(anyhow!("job {name} has failed: {why}")));
            }
            let are = jobs.iter().all(|job| job.condition == "Complete");
            Ok(!jobs.is_empty() && are)
        }
        WaitFor::Ready | WaitFor::Healthy | WaitFor::Stopped => Err(Failure::Usage(anyhow!(
            "for a Job, use --for=complete or --for=deleted"
        ))),
    }
}

/// Whether all wanted pods of workloads have the state; in several namespaces, all of them.
fn all_are(
    workloads: &[&WorkloadReport],
    pods: &[&PodReport],
    state: WaitFor,
) -> Result<bool, Failure> {
    let wanted: usize = workloads.iter().map(|one| one.wanted as usize).sum();
    let is = |state: fn(&PodReport) -> bool| {
        let are = pods.iter().all(|pod| !pod.is_ending() && state(pod));
        !workloads.is_empty() && pods.len() >= wanted && are
    };
    match state {
        WaitFor::Deleted => Ok(workloads.is_empty() && pods.is_empty()),
        WaitFor::Ready => Ok(is(PodReport::is_ready)),
        WaitFor::Healthy => Ok(is(is_healthy)),
        WaitFor::Stopped => Ok(is(|pod| pod.status == STOPPED)),
        WaitFor::Complete => Err(Failure::Usage(anyhow!(
            "only Jobs and pods complete; for a workload, use --for=ready, healthy, stopped or deleted"
        ))),
    }
}

#[cfg(test)]
mod tests;
