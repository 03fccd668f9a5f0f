//! A workload: its problems, and one line for each of its pods. Pure: the time is an argument.

use std::collections::BTreeSet;

use anstyle::Style;
use serde::Serialize;

use crate::cli::status::render::beside;
use crate::cli::table::{self, BAD, BOLD, Cell, DIM, one_line};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use mirrorlet_core::api::{Diagnostic, PodUid, Timestamp};
use mirrorlet_core::select::find_pod;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};

/// The workloads for a text: one, or those of several namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Workloads {
    workloads: Vec<Workload>,
}

/// A Deployment, `StatefulSet`, `DaemonSet`, Job or `CronJob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Workload {
    kind: String,
    namespace: String,
    name: String,
    /// The file or URL of its document; empty if no version of it was ever usable.
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
    /// Its state in one word, as `mirrorlet status` has it.
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    problems: Vec<Diagnostic>,
    pods: Vec<PodLine>,
}

/// One pod of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodLine {
    namespace: String,
    name: String,
    uid: PodUid,
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Workloads {
    /// Returns the workloads for a text with their kind or only their name; none if it is a pod, or
    /// unknown.
    pub(super) fn named(report: &StatusReport, text: &str, now: Timestamp) -> Option<Self> {
        if find_pod(&report.pods, text).is_ok() {
            return None;
        }
        let named = WorkloadKind::named(text);
        let (of, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let keys = keys(report).into_iter().filter(|key| {
            let (namespace, is_named) = match &named {
                Some((namespace, owner)) => (*namespace, key.owner() == *owner),
                None => (of, key.name == name),
            };
            is_named && namespace.is_none_or(|namespace| namespace == key.namespace)
        });
        let workloads: Vec<_> = keys.map(|key| Workload::of(report, &key, now)).collect();
        (!workloads.is_empty()).then_some(Self { workloads })
    }

    /// The workloads as text with ANSI styles.
    pub(super) fn render(&self) -> String {
        let texts: Vec<String> = self.workloads.iter().map(Workload::render).collect();
        texts.join("\n")
    }
}

/// The workloads in the report, including those whose document was never valid.
fn keys(report: &StatusReport) -> BTreeSet<WorkloadKey> {
    let key = |kind, namespace: &str, name: &str| WorkloadKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let own = report.workloads.iter();
    let own = own.filter_map(|one| WorkloadKey::of_owner(&one.namespace, &one.owner));
    let jobs = report.jobs.iter();
    let jobs = jobs.map(|job| key(WorkloadKind::Job, &job.namespace, &job.name));
    let cron_jobs = report.cron_jobs.iter();
    let cron_jobs = cron_jobs.map(|cron| key(WorkloadKind::CronJob, &cron.namespace, &cron.name));
    let of_pods = report.pods.iter();
    let of_pods =
        of_pods.filter_map(|pod| WorkloadKey::of_owner(&pod.namespace, pod.workload.as_deref()?));
    let rejected = problems(report);
    let rejected = rejected.filter_map(|problem| WorkloadKey::read(problem.workload.as_deref()?));
    let all = own.chain(jobs).chain(cron_jobs);
    all.chain(of_pods).chain(rejected).collect_set()
}

fn problems(report: &StatusReport) -> impl Iterator<Item = &Diagnostic> {
    let of_sources = report.sources.iter().flat_map(|source| &source.problems);
    let of_pods = report.pods.iter().flat_map(|pod| &pod.problems);
    report.problems.iter().chain(of_sources).chain(of_pods)
}

impl Workload {
    fn of(report: &StatusReport, key: &WorkloadKey, now: Timestamp) -> Self {
        let is_its = |pod: &&PodReport| {
            let is_run =
                key.kind == WorkloadKind::CronJob && pod.cron_job.as_ref() == Some(&key.name);
            let is_own = pod.workload.as_ref() == Some(&key.owner());
            pod.namespace == key.namespace && (is_run || is_own)
        };
        let pods: Vec<&PodReport> = report.pods.iter().filter(is_its).collect();
        let shown = key.to_string();
        let is_own = |problem: &&Diagnostic| problem.workload.as_ref() == Some(&shown);
        let is_of_pod = |problem: &&Diagnostic| {
            let is_it = |pod: &&&PodReport| {
                problem.pod.as_deref() == Some(&*format!("{}/{}", pod.namespace, pod.name))
            };
            pods.iter()
                .any(|pod| is_it(&pod) || pod.problems.contains(problem))
        };
        // A set: a problem may be reported by its source and by several pods.
        let found = problems(report).filter(|problem| is_own(problem) || is_of_pod(problem));
        let found: BTreeSet<&Diagnostic> = found.collect_set();
        let (source, status, message) = standing(report, key).unwrap_or_else(|| {
            let status = if found.iter().any(|problem| problem.is_error()) {
                "Rejected"
            } else {
                ""
            };
            (String::new(), status.to_owned(), String::new())
        });
        Self {
            kind: key.kind.to_string(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            source,
            status,
            message,
            problems: found.into_iter().cloned().collect(),
            pods: pods.into_iter().map(|pod| PodLine::of(pod, now)).collect(),
        }
    }

    fn render(&self) -> String {
        let name = one_line(&format!("{} {}/{}", self.kind, self.namespace, self.name));
        let words = [&self.status, &self.message].map(|words| one_line(words));
        let words = words.into_iter().filter(|words| !words.is_empty());
        let words: Vec<String> = words.collect();
        let mut out = format!("{BOLD}{name}{BOLD:#}");
        if !words.is_empty() {
            out = format!("{out}: {}", words.join(": "));
        }
        out.push('\n');
        let mut facts = Vec::new();
        let mut fact = |title: &str, words: &str, style: Style| {
            facts.push(vec![
                Cell::styled(&format!("  {title}"), DIM),
                Cell::styled(words, style),
            ]);
        };
        if !self.source.is_empty() {
            fact("Source", &self.source, Style::new());
        }
        for problem in &self.problems {
            fact("Problem", &problem.to_string(), BAD);
            if let Some(help) = &problem.help {
                fact("Help", help, Style::new());
            }
        }
        out.push_str(&table::render(&facts));
        out.push('\n');
        let [first, ..] = self.pods.as_slice() else {
            out.push_str("It has no pods.\n");
            return out;
        };
        let titles = ["NAMESPACE", "POD", "STATUS", "MESSAGE"];
        let titles = titles.map(|title| Cell::styled(title, BOLD)).to_vec();
        let rows = self.pods.iter().map(|pod| {
            let cells = [&pod.namespace, &pod.name, &pod.status, &pod.message];
            cells.map(|text| Cell::from(text.as_str())).to_vec()
        });
        let rows: Vec<_> = std::iter::once(titles).chain(rows).collect();
        out.push_str(&table::render(&rows));
        let pod = one_line(&format!("{}/{}", first.namespace, first.name));
        out + &format!("\nTo show the history of one pod: mirrorlet explain {pod}\n")
    }
}

/// Source, status and message of a workload, if one of its documents was usable.
fn standing(report: &StatusReport, key: &WorkloadKey) -> Option<(String, String, String)> {
    let is_it = |namespace: &str, name: &str| namespace == key.namespace && name == key.name;
    match key.kind {
        WorkloadKind::Deployment | WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => {
            let mut all = report.workloads.iter();
            let owner = key.owner();
            let one = all.find(|one| one.namespace == key.namespace && one.owner == owner)?;
            Some((
                one.source.clone(),
                one.progress.clone(),
                one.message.clone(),
            ))
        }
        WorkloadKind::Job => {
            let mut all = report.jobs.iter();
            let job = all.find(|job| is_it(&job.namespace, &job.name))?;
            let because = [job.reason.as_str(), job.message.as_str()];
            let because: Vec<_> = because
                .into_iter()
                .filter(|words| !words.is_empty())
                .collect();
            Some((
                job.source.clone(),
                job.condition.clone(),
                because.join(": "),
            ))
        }
        WorkloadKind::CronJob => {
            let mut all = report.cron_jobs.iter();
            let cron = all.find(|cron| is_it(&cron.namespace, &cron.name))?;
            let status = if cron.suspended {
                "Suspended"
            } else {
                "Scheduled"
            };
            let next = cron
                .next_schedule
                .map(|next| format!(", next run at {next}"));
            let message = format!("{}{}", cron.schedule, next.unwrap_or_default());
            Some((cron.source.clone(), status.to_owned(), message))
        }
    }
}

impl PodLine {
    fn of(pod: &PodReport, now: Timestamp) -> Self {
        let of_rollout = pod.rollout.as_ref().map(|rollout| &rollout.message);
        let message = if pod.message.is_empty() {
            of_rollout.cloned().unwrap_or_default()
        } else {
            pod.message.clone()
        };
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            status: format!("{}{}", pod.status, beside(pod, now)),
            message,
        }
    }
}
