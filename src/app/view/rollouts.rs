//! The rollouts of static pods, for users.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::ByteString;

use self::without::{no_pods, without_rollouts};
use super::View;
use super::shown::staying;
use crate::config::Config;
use crate::jobs::JobStates;
use crate::rollout::{CommandError, Histories, RolloutTarget};
use crate::server::view::{CommandAnswer, PlanRequest, ViewError, ViewErrorKind};
use crate::source::SourceReader;
use crate::source::files::FileSource;
use mirrorlet_core::api::report::{HistoryReport, PodReport, RevisionReport};
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::desired::{SourcePod, SourceState, SourceWorkload};
use mirrorlet_core::hold::{NewFile, with_files};
use mirrorlet_core::merge::{Merged, SourceName};
use mirrorlet_core::names::manifest_name;
use mirrorlet_core::rollout::group::{FAILED_ELSEWHERE, Key, number};
use mirrorlet_core::rollout::{Cause, History, Outcome, Refused, Revision, changed_fields};
use mirrorlet_core::select::find_pod;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};

impl View {
    /// Full name of the static pod that `text` names.
    pub(super) fn static_pod(&self, text: &str) -> Result<FullName, ViewError> {
        let merged = self.merged.get();
        let pods = self.pods(&merged);
        self.find_typed(text, |text| static_pod(text, &pods, &merged))
    }

    /// The static pod, or the workload, that `text` names.
    pub(super) fn rollout_target(&self, text: &str) -> Result<RolloutTarget, ViewError> {
        let merged = self.merged.get();
        let (pods, workloads) = (self.pods(&merged), self.workloads());
        let jobs = self.jobs.states();
        self.find_typed(text, |text| {
            rollout_target(text, &pods, &merged, &workloads, &jobs)
        })
    }

    /// Whether the document of a workload wants no pods.
    pub(super) fn wants_no_pods(&self, key: &WorkloadKey) -> bool {
        let workloads = self.workloads();
        staying(&workloads).any(|(known, workload)| known == *key && workload.pods.is_empty())
    }
}

/// Full name of the static pod that `text` names.
fn static_pod(text: &str, pods: &[PodReport], merged: &Merged) -> Result<FullName, ViewError> {
    // Of a pod that is being stopped there is nothing to roll out.
    let is_wanted =
        |pod: &&PodReport| merged.pods.contains_key(&pod.uid) || merged.finished.contains(&pod.uid);
    let pod = find_pod(pods.iter().filter(is_wanted), text)?;
    let wanted = merged.pods.get(&pod.uid);
    if wanted.is_some_and(SourcePod::is_api) || merged.finished.contains(&pod.uid) {
        return Err(ViewErrorKind::Invalid
            .error(format!(
                "pod {}/{} is a pod of the API server",
                pod.namespace, pod.name
            ))
            .help("its controller rolls it out: see kubectl rollout"));
    }
    if let Some(owner) = &pod.workload
        && merged
            .pods
            .get(&pod.uid)
            .is_some_and(|pod| pod.runs.is_some())
    {
        return Err(ViewErrorKind::Invalid
            .error(format!(
                "pod {}/{} is a pod of {owner}",
                pod.namespace, pod.name
            ))
            .help(format!(
                "run the Job again with: mirrorlet restart {}",
                owner.replace("Job/", "job/")
            )));
    }
    Ok(FullName::new(pod.name.as_str(), pod.namespace.as_str()))
}

/// The static pod that `text` names, or the workload, as `deployment/web` or by its name alone.
fn rollout_target(
    text: &str,
    pods: &[PodReport],
    merged: &Merged,
    workloads: &[SourceWorkload],
    jobs: &JobStates,
) -> Result<RolloutTarget, ViewError> {
    let not_found = match static_pod(text, pods, merged) {
        Err(error) if error.kind == ViewErrorKind::NotFound => error,
        found => return found.map(RolloutTarget::Pod),
    };
    let named = WorkloadKind::named(text);
    if let Some(error) = named.as_ref().and_then(|_| without_rollouts(text, jobs)) {
        return Err(error);
    }
    let (of, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let is_in = |namespace: Option<&str>, key: &WorkloadKey| {
        namespace.is_none_or(|namespace| namespace == key.namespace)
    };
    let is_named = |key: &WorkloadKey| match &named {
        Some((namespace, owner)) => key.owner() == *owner && is_in(*namespace, key),
        None => key.name == name && is_in(of, key),
    };
    let of_manifests = merged.pods.values().filter(|pod| !pod.is_api());
    let keys = of_manifests.filter_map(|pod| WorkloadKey::of(&pod.pod));
    let mut keys: BTreeSet<WorkloadKey> = keys.filter(&is_named).collect_set();
    if keys.is_empty() {
        // One that wants no pods has none.
        let of_documents = staying(workloads).map(|(key, _)| key);
        keys = of_documents.filter(&is_named).collect_set();
    }
    if keys.is_empty() {
        // A Job or CronJob may have none now.
        let of_documents = workloads.iter().filter_map(SourceWorkload::key);
        keys = of_documents.filter(is_named).collect_set();
    }
    let mut keys = keys.into_iter();
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) => without_rollouts(&key.typed(), jobs).map_or(Ok(key), Err),
        (None, _) if named.is_none() => Err(not_found),
        (None, _) => Err(ViewErrorKind::NotFound
            .error(format!("{} not found", described(text)))
            .help("mirrorlet status lists all workloads")),
        (Some(one), Some(other)) => Err(ViewErrorKind::Invalid
            .error(format!("{text:?} means {one} and {other}"))
            .help(format!("name one of them, for example {}", one.typed()))),
    };
    key.map(RolloutTarget::Workload)
}

/// A workload as it was typed, as `deployment "web"`.
fn described(text: &str) -> String {
    let (kind, name) = text.split_once('/').unwrap_or(("workload", text));
    format!("{kind} {name:?}")
}

/// The sources' states with a request's manifests in the manifest directory.
pub(super) fn with_request(
    sources: &[SourceReader],
    request: &PlanRequest,
    config: &Config,
) -> BTreeMap<SourceName, SourceState> {
    let manifests = FileSource::new(config).name();
    let planned = |name: &SourceName, state: SourceState| {
        let asked = request.whole || !request.files.is_empty();
        if *name != manifests || !asked {
            return state;
        }
        let directory = Path::new(&*name.location);
        let none = Arc::default();
        let present = state.set().unwrap_or(&none);
        let files: Vec<NewFile> = request
            .files
            .iter()
            .map(|file| NewFile {
                location: directory.join(&file.name).to_string_lossy().into_owned(),
                bytes: match &file.binary {
                    Some(ByteString(bytes)) => bytes.clone(),
                    None => file.text.clone().into_bytes(),
                },
            })
            .collect();
        let set = with_files(present, &files, request.whole, &config.node_name);
        SourceState::Synced(Arc::new(set))
    };
    let states = sources.iter().map(|source| {
        let state = (*source.state.get()).clone();
        (source.name.clone(), planned(&source.name, state))
    });
    states.collect_map()
}

/// The revisions of a pod. `runs` says whether any container of a revision runs.
pub(super) fn history(
    name: &FullName,
    history: Option<&History>,
    runs: impl Fn(&PodUid) -> bool,
) -> Result<HistoryReport, ViewError> {
    let history = history
        .ok_or_else(|| ViewErrorKind::NotFound.error(format!("pod {name} has no revisions yet")))?;
    let mut known: Vec<&Revision> = history.revisions.iter().collect();
    known.small_sort_by_key(|revision| revision.number);
    let before = std::iter::once(None).chain(known.iter().copied().map(Some));
    let revisions = known.iter().zip(before);
    Ok(HistoryReport {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        paused: history.paused,
        revisions: revisions
            .map(|(revision, before)| report(history, revision, before, &runs))
            .collect(),
    })
}

/// The revisions of a workload: those of its pod with the lowest number that has some, with their
/// outcomes in all pods. A workload without pods may have none.
pub(super) fn workload_history(
    key: &WorkloadKey,
    histories: &Histories,
    wants_no_pods: bool,
    runs: impl Fn(&PodUid) -> bool,
) -> Result<HistoryReport, ViewError> {
    let is_its = |history: &&History| {
        let newest = history.newest_revision();
        newest.is_some_and(|newest| WorkloadKey::of(&newest.pod).as_ref() == Some(key))
    };
    let mut members: Vec<&History> = histories.values().filter(is_its).collect();
    members.small_sort_by_key(|member| {
        let newest = member.revisions.last();
        newest.map(|newest| number(manifest_name(&newest.pod)))
    });
    if members.is_empty() && wants_no_pods {
        return Ok(HistoryReport {
            name: key.owner(),
            namespace: key.namespace.clone(),
            paused: false,
            revisions: Vec::new(),
        });
    }
    let first = members
        .first()
        .ok_or_else(|| ViewErrorKind::NotFound.error(format!("{key} has no revisions yet")))?;
    let name = FullName::new(key.owner(), key.namespace.as_str());
    let mut report = history(&name, Some(first), &runs)?;
    report.paused = members.iter().all(|member| member.paused);
    for row in &mut report.revisions {
        let Some(revision) = first.get(&row.uid) else {
            continue;
        };
        let version = Key::of(revision);
        let of_version = |history: &&&History| {
            let current = history.current();
            current.is_some_and(|current| Key::of(current) == version && runs(&current.uid()))
        };
        let pods = members.iter().filter(of_version).count();
        (row.runs, row.pods) = (pods > 0, Some(pods));
        let outcomes = members.iter().flat_map(|member| &member.revisions);
        let mut failed = outcomes.filter_map(|revision| match &revision.outcome {
            Outcome::Failed(cause) if Key::of(revision) == version => Some(cause),
            _ => None,
        });
        let own = failed
            .clone()
            .find(|cause| &*cause.reason != FAILED_ELSEWHERE);
        if let Some(cause) = own.or_else(|| failed.next()) {
            "Failed".clone_into(&mut row.outcome);
            row.reason = cause.reason.to_string();
            row.message = cause.message.to_string();
        }
    }
    Ok(report)
}

fn report(
    history: &History,
    revision: &Revision,
    before: Option<&Revision>,
    runs: impl Fn(&PodUid) -> bool,
) -> RevisionReport {
    let uid = revision.uid();
    let (outcome, cause) = match &revision.outcome {
        Outcome::Open => ("Open", None),
        Outcome::Healthy => ("Healthy", None),
        Outcome::Ended => ("Ended", None),
        Outcome::Failed(cause) => ("Failed", Some(cause)),
    };
    let changes = before.map(|before| changed_fields(before.version(), revision.version()));
    let text = |of: fn(&Cause) -> String| cause.map(of).unwrap_or_default();
    RevisionReport {
        number: revision.number,
        wanted_at: revision.wanted_at,
        outcome: outcome.to_owned(),
        reason: text(|cause| cause.reason.to_string()),
        message: text(|cause| cause.message.to_string()),
        runs: history
            .current()
            .is_some_and(|current| current.uid() == uid && runs(&uid)),
        wanted: history.newest.as_ref() == Some(&uid),
        changes: changes.unwrap_or_default(),
        pods: None,
        uid,
    }
}

/// The answer to a command for that pod or workload, which may have no pods.
pub(super) fn answer(
    obeyed: Result<u64, CommandError>,
    target: &RolloutTarget,
    wants_no_pods: bool,
) -> Result<CommandAnswer, ViewError> {
    let revision = obeyed.map_err(|error| {
        let is_not_started = matches!(error, CommandError::Refused(Refused::NotStarted));
        match target {
            RolloutTarget::Workload(key) if is_not_started && wants_no_pods => no_pods(key),
            RolloutTarget::Workload(_) | RolloutTarget::Pod(_) => view_error(error, target),
        }
    })?;
    let workload = match target {
        RolloutTarget::Pod(_) => None,
        RolloutTarget::Workload(key) => Some(key.to_string()),
    };
    Ok(CommandAnswer { revision, workload })
}

/// Why a command for that pod or workload failed, with advice.
pub(super) fn view_error(error: CommandError, target: &RolloutTarget) -> ViewError {
    let (target, typed) = match target {
        RolloutTarget::Pod(FullName { name, namespace }) => {
            let name = format!("{namespace}/{name}");
            (format!("pod {name}"), name)
        }
        RolloutTarget::Workload(key) => (key.to_string(), key.typed()),
    };
    let message = error.to_string().replacen("the pod", &target, 1);
    let refused = match error {
        CommandError::Refused(refused) => refused,
        CommandError::Busy => return ViewErrorKind::Unavailable.error(message),
        CommandError::NotKept(_) => return ViewErrorKind::Failed.error(message),
    };
    let help = match refused {
        Refused::UnknownRevision { .. } => Some("see mirrorlet rollout history"),
        Refused::NoneBefore { .. } => Some(
            "mirrorlet rollout undo accepts any revision with --to-revision; list the revisions with: mirrorlet rollout history",
        ),
        Refused::Paused => Some("resume the rollouts first with: mirrorlet rollout resume"),
        Refused::Stopped => Some("start it with: mirrorlet start"),
        Refused::NotStopped => Some("restart its containers with: mirrorlet restart"),
        Refused::NotStarted => Some("see mirrorlet explain"),
        Refused::ContainerExists { .. }
        | Refused::TooManyAdded
        | Refused::RunsAlready { .. }
        | Refused::NothingFailed { .. }
        | Refused::AlreadyPaused
        | Refused::NotPaused => None,
    };
    ViewError {
        help: help.map(|help| format!("{help} {typed}")),
        ..ViewErrorKind::Conflict.error(message)
    }
}

#[cfg(test)]
mod tests;
mod without;
