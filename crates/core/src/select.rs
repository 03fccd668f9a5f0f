//! Selects a pod and a container by user input.

use std::collections::BTreeSet;

use strsim::osa_distance;

use crate::api::report::{CronJobReport, JobReport, PodReport, StatusReport};
use crate::api::{FullName, Pod, split_name};
use crate::small::{SmallCollect, SmallSort};
use crate::spec::{all_container_names, annotation};
use crate::workload::WorkloadKind;

/// Minimum length of a UID prefix; shorter ones collide, or are names.
pub const UID_PREFIX_MIN: usize = 6;

/// Most names suggested for one that is not known.
const NEAR_MAX: usize = 5;

/// kubectl's annotation with the default container of `logs`.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The kind before a pod's name, as kubectl takes it. A namespace of this name wins.
const KINDS: [&str; 3] = ["pod/", "pods/", "po/"];

/// The first readings of a text, which are by name.
const BY_NAME: usize = 2;

/// A text that names no one pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodNotFound {
    /// It names none.
    #[error("pod {text:?} not found{}", suggestion(.near))]
    Unknown {
        /// The text.
        text: String,
        /// Pods with names near to it, as `namespace/name`.
        near: Vec<String>,
    },
    /// It names several.
    #[error("{text:?} matches {} pods: {}; choose one of them", .candidates.len(), .candidates.join(", "))]
    Ambiguous {
        /// The text.
        text: String,
        /// The pods, as `namespace/name`; with the UID if that is needed to distinguish them.
        candidates: Vec<String>,
    },
    /// It is the name of several workloads.
    #[error("{text:?} is the name of {}; choose one of them", .candidates.join(" and "))]
    SeveralWorkloads {
        /// The text.
        text: String,
        /// They, as `deployment/web`.
        candidates: Vec<String>,
    },
}

fn suggestion(near: &[String]) -> String {
    match near {
        [] => "; mirrorlet status lists all pods".to_owned(),
        near => format!("; did you mean {}?", near.join(", ")),
    }
}

/// Finds a pod by a name (the manifest's own, or with the node's suffix), `namespace/name`, a UID, its
/// mirror pod's UID, or a prefix of either of at least [`UID_PREFIX_MIN`] characters. An earlier form
/// in this list takes precedence over later ones. Of several versions of a pod, a name selects the one
/// that is not being stopped, and one that is in a source before one that is in none yet.
///
/// # Errors
/// No pod, or more than one, is meant.
pub fn find_pod<'a>(
    pods: impl IntoIterator<Item = &'a PodReport> + Clone,
    text: &str,
) -> Result<&'a PodReport, PodNotFound> {
    let (namespace, name) = split_name(text);
    let in_namespace = |pod: &&PodReport| namespace.is_none_or(|n| n == pod.namespace);
    let mirror = |pod: &&PodReport| pod.mirror.as_ref().and_then(|mirror| mirror.uid.clone());
    let is_prefix = |uid: &str| text.len() >= UID_PREFIX_MIN && uid.starts_with(text);
    let readings: [&dyn Fn(&&PodReport) -> bool; 6] = [
        &|pod| in_namespace(pod) && pod.name == name,
        &|pod| in_namespace(pod) && pod.manifest_name == name,
        &|pod| pod.uid.as_str() == text,
        &|pod| mirror(pod).is_some_and(|uid| uid == text),
        &|pod| is_prefix(pod.uid.as_str()),
        &|pod| mirror(pod).is_some_and(|uid| is_prefix(&uid)),
    ];
    for (index, reading) in readings.iter().enumerate() {
        let all = pods.clone().into_iter();
        let mut found: Vec<&PodReport> = all.filter(reading).collect();
        if index < BY_NAME {
            let is_newer = |new: &PodReport, old: &PodReport| {
                (old.is_ending() && !new.is_ending())
                    || (old.is_adopted() && !new.source.is_empty())
            };
            let is_replaced = |old: &PodReport| {
                let mut all = pods.clone().into_iter();
                all.any(|new| is_newer(new, old) && new.is_same_pod(old))
            };
            found.retain(|pod| !is_replaced(pod));
        }
        match found.as_slice() {
            [] => {}
            [one] => return Ok(one),
            several => {
                return Err(PodNotFound::Ambiguous {
                    text: text.to_owned(),
                    candidates: candidates(several),
                });
            }
        }
    }
    let without_kind = without_kind(text);
    if without_kind != text {
        return find_pod(pods, without_kind);
    }
    Err(PodNotFound::Unknown {
        text: text.to_owned(),
        near: near_names(pods, name),
    })
}

/// Finds the pods for a text: the one that [`find_pod`] finds, or all those of a workload, given as
/// `deployment/web` in all namespaces, as `deployment/shop/web`, or by its name alone, `web` or
/// `shop/web`, if only one has it.
///
/// # Errors
/// No pod, or more than one by its name, matches.
pub fn find_pods<'a>(pods: &'a [PodReport], text: &str) -> Result<Vec<&'a PodReport>, PodNotFound> {
    let not_found = match find_pod(pods, text) {
        Ok(pod) => return Ok(vec![pod]),
        Err(error) => error,
    };
    let of_workload = match (WorkloadKind::named(text), &not_found) {
        (Some((namespace, owner)), _) => {
            let is_owner = |found: &str| found == owner;
            of_workloads(pods, namespace, &is_owner)
        }
        (None, PodNotFound::Unknown { .. }) => by_name(pods, text)?,
        (None, PodNotFound::Ambiguous { .. } | PodNotFound::SeveralWorkloads { .. }) => Vec::new(),
    };
    if of_workload.is_empty() {
        return Err(not_found);
    }
    Ok(of_workload)
}

/// The pods of the workload with that name, of whatever kind.
fn by_name<'a>(pods: &'a [PodReport], text: &str) -> Result<Vec<&'a PodReport>, PodNotFound> {
    let (namespace, name) = split_name(text);
    let is_owner = |found: &str| found.split_once('/').is_some_and(|(_, own)| own == name);
    let found = of_workloads(pods, namespace, &is_owner);
    let owners = found.iter().flat_map(|pod| owners(pod));
    let owners: BTreeSet<String> = owners.filter(|owner| is_owner(owner)).collect_set();
    if owners.len() > 1 {
        return Err(PodNotFound::SeveralWorkloads {
            text: text.to_owned(),
            candidates: owners.into_iter().map(|owner| typed(&owner)).collect(),
        });
    }
    Ok(found)
}

/// The kind of the only workload in a report with that name, in any namespace if none is given.
///
/// # Errors
/// Workloads of several kinds have it.
pub fn workload_kind(
    report: &StatusReport,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<WorkloadKind>, PodNotFound> {
    let sets = report.workloads.iter();
    let sets = sets.map(|set| (set.namespace.as_str(), set.owner.clone()));
    let jobs = report.jobs.iter();
    let jobs = jobs.map(|job| (job.namespace.as_str(), format!("Job/{}", job.name)));
    let crons = report.cron_jobs.iter();
    let crons = crons.map(|cron| (cron.namespace.as_str(), format!("CronJob/{}", cron.name)));
    let is_meant = |of: &str, owner: &str| {
        let own = owner.split_once('/').map(|(_, own)| own);
        own == Some(name) && namespace.is_none_or(|namespace| namespace == of)
    };
    let all = sets.chain(jobs).chain(crons);
    let owners = all.filter_map(|(of, owner)| is_meant(of, &owner).then_some(owner));
    let owners: BTreeSet<String> = owners.collect_set();
    if owners.len() > 1 {
        return Err(PodNotFound::SeveralWorkloads {
            text: name.to_owned(),
            candidates: owners.iter().map(|owner| typed(owner)).collect(),
        });
    }
    let kind = owners.first().and_then(|owner| owner.split_once('/'));
    Ok(kind.and_then(|(word, _)| WorkloadKind::of_word(word)))
}

/// Whether a text refers to a Job: `job/backup`, also with its namespace.
pub fn names_job(text: &str, job: &JobReport) -> bool {
    names(text, WorkloadKind::Job, &job.namespace, &job.name)
}

/// Whether a text refers to a `CronJob`: `cronjob/backup`, also with its namespace.
pub fn names_cron_job(text: &str, cron: &CronJobReport) -> bool {
    names(text, WorkloadKind::CronJob, &cron.namespace, &cron.name)
}

fn names(text: &str, kind: WorkloadKind, namespace: &str, name: &str) -> bool {
    WorkloadKind::named(text).is_some_and(|(of, owner)| {
        owner == format!("{kind}/{name}") && of.is_none_or(|of| of == namespace)
    })
}

/// A workload in the form that users type, `deployment/web`.
fn typed(owner: &str) -> String {
    let (kind, name) = owner.split_once('/').unwrap_or((owner, ""));
    format!("{}/{name}", kind.to_lowercase())
}

/// The workload and the `CronJob` that a pod belongs to, as `Deployment/web`.
fn owners(pod: &PodReport) -> impl Iterator<Item = String> {
    let cron_job = pod.cron_job.as_ref().map(|name| format!("CronJob/{name}"));
    pod.workload.clone().into_iter().chain(cron_job)
}

fn of_workloads<'a>(
    pods: &'a [PodReport],
    namespace: Option<&str>,
    is_owner: &dyn Fn(&str) -> bool,
) -> Vec<&'a PodReport> {
    let is_its = |pod: &&PodReport| {
        namespace.is_none_or(|namespace| namespace == pod.namespace)
            && owners(pod).any(|owner| is_owner(&owner))
    };
    pods.iter().filter(is_its).collect()
}

/// Finds a pod as [`find_pod`] does, or one pod of a workload: a ready one before a running one before
/// the others, and one that is being stopped only if there is no other; of equal ones the first by
/// name.
///
/// Upstream: `ActivePods` of `k8s.io/kubectl/pkg/util/podutils`, by which `kubectl exec deploy/web`
/// chooses.
///
/// # Errors
/// No pod, or more than one by its name, matches.
pub fn find_one_of<'a>(pods: &'a [PodReport], text: &str) -> Result<&'a PodReport, PodNotFound> {
    let rank = |pod: &PodReport| (pod.is_ending(), !pod.is_ready(), pod.phase != "Running");
    let found = find_pods(pods, text)?.into_iter();
    let best = found.min_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
    best.ok_or_else(|| PodNotFound::Unknown {
        text: text.to_owned(),
        near: Vec::new(),
    })
}

/// Finds the only pod for a text, also as the pod of a workload.
///
/// # Errors
/// No pod, or more than one, matches.
pub fn find_only<'a>(pods: &'a [PodReport], text: &str) -> Result<&'a PodReport, PodNotFound> {
    match find_pods(pods, text)?.as_slice() {
        [one] => Ok(one),
        several => Err(PodNotFound::Ambiguous {
            text: text.to_owned(),
            candidates: candidates(several),
        }),
    }
}

/// A pod's name as typed, without a kind prefix.
pub fn without_kind(text: &str) -> &str {
    let found = KINDS.iter().find_map(|kind| text.strip_prefix(kind));
    found.unwrap_or(text)
}

fn shown(pod: &PodReport) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn candidates(pods: &[&PodReport]) -> Vec<String> {
    pods.iter()
        .map(|pod| {
            let same = |other: &&&PodReport| shown(other) == shown(pod);
            if pods.iter().filter(same).count() > 1 {
                format!("{} ({})", shown(pod), pod.uid)
            } else {
                shown(pod)
            }
        })
        .collect()
}

/// Names that contain the text or differ from it by little, nearest first.
fn near_names<'a>(pods: impl IntoIterator<Item = &'a PodReport>, text: &str) -> Vec<String> {
    let allowed = (text.chars().count() / 3).max(1);
    let mut near: Vec<(usize, String)> = pods
        .into_iter()
        .filter_map(|pod| {
            let far = osa_distance(&pod.manifest_name, text).min(osa_distance(&pod.name, text));
            let contained = !text.is_empty() && pod.name.contains(text);
            (contained || far <= allowed).then(|| (far, shown(pod)))
        })
        .collect();
    near.small_sort();
    near.truncate(NEAR_MAX);
    near.into_iter().map(|(_, name)| name).collect()
}

/// A container that does not exist, or was not selected though there are several.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerNotFound {
    /// The pod has no container with that name.
    #[error("pod {pod} has no container {name:?}; its containers are {}", .containers.join(", "))]
    Unknown {
        /// The pod, as `namespace/name`.
        pod: String,
        /// The name.
        name: String,
        /// The names it has.
        containers: Vec<String>,
    },
    /// The pod has several, and none was selected.
    #[error("pod {pod} has several containers; choose one with -c: {}", .containers.join(", "))]
    Unnamed {
        /// The pod, as `namespace/name`.
        pod: String,
        /// Their names.
        containers: Vec<String>,
    },
}

/// Selects a container: the given one, otherwise the one in the pod's annotation [`DEFAULT_CONTAINER`],
/// otherwise the only one.
///
/// # Errors
/// There is no such container, or there are several and none is given.
pub fn choose_container(pod: &Pod, asked: Option<&str>) -> Result<String, ContainerNotFound> {
    let app: &[_] = pod.spec.as_ref().map_or(&[], |spec| &spec.containers);
    let names = || -> Vec<String> { all_container_names(pod).map(str::to_owned).collect() };
    let full_name = FullName::of(pod);
    let shown = || format!("{}/{}", full_name.namespace, full_name.name);
    let has = |name: &str| all_container_names(pod).any(|known| known == name);
    let annotated = annotation(&pod.metadata, DEFAULT_CONTAINER).filter(|name| has(name));
    match (asked.or(annotated), app) {
        (Some(name), _) if has(name) => Ok(name.to_owned()),
        (Some(name), _) => Err(ContainerNotFound::Unknown {
            pod: shown(),
            name: name.to_owned(),
            containers: names(),
        }),
        (None, [only]) => Ok(only.name.clone()),
        (None, _) => Err(ContainerNotFound::Unnamed {
            pod: shown(),
            containers: names(),
        }),
    }
}

#[cfg(test)]
mod tests;
