//! Selects a pod and a container by user input.

use std::collections::BTreeSet;

use crate::api::report::PodReport;
use crate::api::{FullName, Pod};
use crate::decode::distance;
use crate::small::SmallSort;
use crate::spec::all_container_names;
use crate::workload::WorkloadKind;

/// Shortest beginning of a UID that is taken for one; shorter ones collide, or are names.
pub const UID_PREFIX_MIN: usize = 6;

/// Most names suggested for one that is not known.
const NEAR_MAX: usize = 5;

/// Annotation naming the container that `logs` means when none is named; kubectl's.
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
        /// They, as `namespace/name`; with the UID where that is needed to tell them apart.
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

/// The pod a text means: a name (the manifest's own, or with the node's suffix),
/// `namespace/name`, a UID, its mirror pod's UID, or a beginning of either of at least
/// [`UID_PREFIX_MIN`] characters.
/// A reading further left in this list wins over those after it. Of several versions of a pod a name
/// means the one that is not being stopped.
///
/// # Errors
/// No pod, or more than one, is meant.
pub fn find_pod<'a>(pods: &'a [PodReport], text: &str) -> Result<&'a PodReport, PodNotFound> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
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
        let mut found: Vec<&PodReport> = pods.iter().filter(reading).collect();
        if index < BY_NAME {
            let is_replaced = |old: &PodReport| {
                let mut pods = pods.iter();
                old.is_ending() && pods.any(|new| !new.is_ending() && new.is_same_pod(old))
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

/// The pods a text means: the one that [`find_pod`] finds, or all those of a workload, named as
/// `deployment/web` in all namespaces, as `deployment/shop/web`, or by its name alone, `web` or
/// `shop/web`, if only one has it.
///
/// # Errors
/// No pod, or more than one by its name, is meant.
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
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let is_owner = |found: &str| found.split_once('/').is_some_and(|(_, own)| own == name);
    let found = of_workloads(pods, namespace, &is_owner);
    let owners = found.iter().flat_map(|pod| owners(pod));
    let owners: BTreeSet<String> = owners.filter(|owner| is_owner(owner)).collect();
    if owners.len() > 1 {
        return Err(PodNotFound::SeveralWorkloads {
            text: text.to_owned(),
            candidates: owners.into_iter().map(|owner| typed(&owner)).collect(),
        });
    }
    Ok(found)
}

/// A workload as a person types it, `deployment/web`.
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

/// The pod that a text means, as [`find_pod`] does, or one of a workload's: a ready one before one
/// that runs, that before the others, none that is ending where there is another; of equal ones the
/// first by name.
///
/// Upstream: `ActivePods` of `k8s.io/kubectl/pkg/util/podutils`, by which `kubectl exec deploy/web`
/// chooses.
///
/// # Errors
/// No pod, or more than one by its name, is meant.
pub fn find_one_of<'a>(pods: &'a [PodReport], text: &str) -> Result<&'a PodReport, PodNotFound> {
    let rank = |pod: &PodReport| (pod.is_ending(), !pod.is_ready(), pod.phase != "Running");
    let found = find_pods(pods, text)?.into_iter();
    let best = found.min_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
    best.ok_or_else(|| PodNotFound::Unknown {
        text: text.to_owned(),
        near: Vec::new(),
    })
}

/// The only pod a text means, also as the pod of a workload.
///
/// # Errors
/// No pod, or more than one, is meant.
pub fn find_only<'a>(pods: &'a [PodReport], text: &str) -> Result<&'a PodReport, PodNotFound> {
    match find_pods(pods, text)?.as_slice() {
        [one] => Ok(one),
        several => Err(PodNotFound::Ambiguous {
            text: text.to_owned(),
            candidates: candidates(several),
        }),
    }
}

/// A pod's name as typed, without the kind before it.
#[must_use]
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
fn near_names(pods: &[PodReport], text: &str) -> Vec<String> {
    let allowed = (text.chars().count() / 3).max(1);
    let mut near: Vec<(usize, String)> = pods
        .iter()
        .filter_map(|pod| {
            let far = distance(&pod.manifest_name, text).min(distance(&pod.name, text));
            let contained = !text.is_empty() && pod.name.contains(text);
            (contained || far <= allowed).then(|| (far, shown(pod)))
        })
        .collect();
    near.small_sort();
    near.truncate(NEAR_MAX);
    near.into_iter().map(|(_, name)| name).collect()
}

/// A container that is not there, or not named though there are several.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerNotFound {
    /// The pod has none of that name.
    #[error("pod {pod} has no container {name:?}; its containers are {}", .containers.join(", "))]
    Unknown {
        /// The pod, as `namespace/name`.
        pod: String,
        /// The name.
        name: String,
        /// The names it has.
        containers: Vec<String>,
    },
    /// The pod has several, and none was named.
    #[error("pod {pod} has several containers; choose one with -c: {}", .containers.join(", "))]
    Unnamed {
        /// The pod, as `namespace/name`.
        pod: String,
        /// Their names.
        containers: Vec<String>,
    },
}

/// The container meant: the one named, else the one the pod's annotation
/// [`DEFAULT_CONTAINER`] names, else the only one.
///
/// # Errors
/// There is no such container, or several and none named.
pub fn choose_container(pod: &Pod, asked: Option<&str>) -> Result<String, ContainerNotFound> {
    let app: &[_] = pod.spec.as_ref().map_or(&[], |spec| &spec.containers);
    let names = || -> Vec<String> { all_container_names(pod).map(str::to_owned).collect() };
    let full_name = FullName::of(pod);
    let shown = || format!("{}/{}", full_name.namespace, full_name.name);
    let has = |name: &str| all_container_names(pod).any(|known| known == name);
    let annotated = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(DEFAULT_CONTAINER))
        .map(String::as_str)
        .filter(|name| has(name));
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
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::report::MirrorReport;

    fn pod(namespace: &str, manifest_name: &str, uid: &str) -> PodReport {
        PodReport {
            name: format!("{manifest_name}-box-docker"),
            manifest_name: manifest_name.to_owned(),
            namespace: namespace.to_owned(),
            workload: None,
            cron_job: None,
            uid: uid.into(),
            source: String::new(),
            status: "Running".to_owned(),
            phase: "Running".to_owned(),
            labels: BTreeMap::new(),
            message: String::new(),
            ready: 1,
            containers_total: 1,
            restarts: 0,
            started_at: None,
            ips: Vec::new(),
            ports: Vec::new(),
            containers: Vec::new(),
            mirror: None,
            held: false,
            rollout: None,
            problems: Vec::new(),
        }
    }

    #[test]
    fn a_workload_means_its_pods() {
        let of = |namespace: &str, name: &str, owner: Option<&str>| PodReport {
            workload: owner.map(str::to_owned),
            ..pod(namespace, name, name)
        };
        let pods = [
            of("default", "web", None),
            of("default", "web-0", Some("Deployment/web")),
            of("shop", "web-1", Some("Deployment/web")),
            of("default", "agent-x", Some("DaemonSet/agent")),
            of("ds", "log", None),
            of("default", "api-0", Some("Deployment/api")),
            of("shop", "api-1", Some("StatefulSet/api")),
            of("default", "night-1", Some("Job/night-1")),
        ];
        for (text, expected) in [
            ("web", "web"),
            ("deployment/web", "web-0 web-1"),
            ("deploy/web", "web-0 web-1"),
            ("deployments/web", "web-0 web-1"),
            ("Deployment/web", "web-0 web-1"),
            ("ds/agent", "agent-x"),
            ("agent", "agent-x"),
            ("default/agent", "agent-x"),
            ("shop/agent", "pod \"shop/agent\" not found"),
            (
                "api",
                "\"api\" is the name of deployment/api and statefulset/api; choose one of them",
            ),
            ("shop/api", "api-1"),
            ("night-1", "night-1"),
            // A namespace of this name wins.
            ("ds/log", "log"),
            ("pod/web", "web"),
            ("ds/web", "pod \"ds/web\" not found"),
            ("deployment/db", "pod \"deployment/db\" not found"),
        ] {
            let found = match find_pods(&pods, text) {
                Ok(pods) => pods
                    .iter()
                    .map(|pod| pod.manifest_name.as_str())
                    .collect::<Vec<_>>()
                    .join(" "),
                Err(error) => error.to_string(),
            };
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn a_workload_means_its_best_pod_where_one_is_needed() {
        let of = |name: &str, status: &str, ready: usize| PodReport {
            workload: Some("Deployment/web".to_owned()),
            status: status.to_owned(),
            phase: if status == "Pending" {
                "Pending"
            } else {
                "Running"
            }
            .to_owned(),
            ready,
            ..pod("default", name, name)
        };
        let mut pods = vec![
            of("web-0", "Terminating", 1),
            of("web-1", "Pending", 0),
            of("web-3", "Running", 0),
            of("web-2", "Running", 0),
            of("web-5", "Running", 1),
            of("web-4", "Running", 1),
        ];
        for best in ["web-4", "web-5", "web-2", "web-3", "web-1", "web-0"] {
            let found = find_one_of(&pods, "deploy/web").unwrap();
            assert_eq!(found.manifest_name, best);
            pods.retain(|pod| pod.manifest_name != best);
        }
        assert!(find_one_of(&pods, "deploy/web").is_err());
    }

    #[test]
    fn a_name_means_the_version_that_is_not_being_stopped() {
        let mut old = pod("default", "web", "aaaaaa11");
        old.status = "Terminating".to_owned();
        let pods = [old.clone(), pod("default", "web", "aaaaaa22")];
        for text in ["web", "web-box-docker", "default/web", "aaaaaa22"] {
            let found = find_pod(&pods, text).unwrap();
            assert_eq!(found.uid.as_str(), "aaaaaa22", "{text}");
        }
        assert_eq!(find_pod(&pods, "aaaaaa11").unwrap(), &old);
        assert!(find_pod(&pods, "aaaaaa").is_err());
        assert_eq!(find_pod(&pods[..1], "web").unwrap(), &old);
    }

    #[test]
    fn a_pod_is_found_by_name_namespace_and_uid() {
        let pods = [
            pod("default", "web", "aaaaaa11"),
            pod("default", "db", "aaaaaa22"),
            pod("prod", "db", "bbbbbb33"),
        ];
        for (text, uid) in [
            ("web", "aaaaaa11"),
            ("web-box-docker", "aaaaaa11"),
            ("default/web", "aaaaaa11"),
            ("prod/db", "bbbbbb33"),
            ("prod/db-box-docker", "bbbbbb33"),
            ("bbbbbb33", "bbbbbb33"),
            ("bbbbbb", "bbbbbb33"),
            ("pod/web", "aaaaaa11"),
            ("pods/web-box-docker", "aaaaaa11"),
        ] {
            assert_eq!(find_pod(&pods, text).unwrap().uid.as_str(), uid, "{text}");
        }
        for (text, words) in [
            (
                "db",
                "\"db\" matches 2 pods: default/db-box-docker, prod/db-box-docker; choose one of them",
            ),
            (
                "aaaaaa",
                "\"aaaaaa\" matches 2 pods: default/web-box-docker, default/db-box-docker; choose one of them",
            ),
            (
                "wbe",
                "pod \"wbe\" not found; did you mean default/web-box-docker?",
            ),
            (
                "bwe",
                "pod \"bwe\" not found; mirrorlet status lists all pods",
            ),
            (
                "wep",
                "pod \"wep\" not found; did you mean default/web-box-docker?",
            ),
            (
                "prod/web",
                "pod \"prod/web\" not found; did you mean default/web-box-docker?",
            ),
            (
                "bbbbb",
                "pod \"bbbbb\" not found; mirrorlet status lists all pods",
            ),
        ] {
            assert_eq!(find_pod(&pods, text).unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn a_mirrors_uid_means_its_pod() {
        let mirrored = |name: &str, uid: &str, mirror: &str| PodReport {
            mirror: Some(MirrorReport {
                uid: Some(mirror.to_owned()),
                ..MirrorReport::default()
            }),
            ..pod("default", name, uid)
        };
        let pods = [
            mirrored("web", "aaaaaa11", "cccccc11"),
            mirrored("db", "aaaaaa22", "dddddd22"),
        ];
        for text in ["dddddd22", "dddddd"] {
            assert_eq!(find_pod(&pods, text).unwrap().manifest_name, "db");
        }
        assert!(find_pod(&pods, "dddd").is_err());
    }

    #[test]
    fn pods_of_the_same_name_are_told_apart_by_uid() {
        let pods = [pod("default", "web", "u1"), pod("default", "web", "u2")];
        let error = find_pod(&pods, "web").unwrap_err().to_string();
        assert!(error.contains("default/web-box-docker (u1)"), "{error}");
    }

    #[test]
    fn the_container_is_named_annotated_or_the_only_one() {
        let make = |init: &[&str], app: &[&str], default: Option<&str>| -> Pod {
            let list = |names: &[&str]| -> Vec<serde_json::Value> {
                names
                    .iter()
                    .map(|n| serde_json::json!({"name": n}))
                    .collect()
            };
            let mut pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "p", "namespace": "n"},
                "spec": {"initContainers": list(init), "containers": list(app)},
            }))
            .unwrap();
            pod.metadata.annotations =
                default.map(|name| [(DEFAULT_CONTAINER.to_owned(), name.to_owned())].into());
            pod
        };
        let cases = vec![
            (make(&[], &["a"], None), None, Ok("a")),
            (make(&["i"], &["a"], None), None, Ok("a")),
            (make(&["i"], &["a"], None), Some("i"), Ok("i")),
            (make(&[], &["a", "b"], Some("b")), None, Ok("b")),
            (make(&[], &["a", "b"], Some("b")), Some("a"), Ok("a")),
            (
                make(&[], &["a", "b"], Some("gone")),
                None,
                Err("choose one with -c: a, b"),
            ),
            (
                make(&["i"], &["a", "b"], None),
                None,
                Err("choose one with -c: i, a, b"),
            ),
            (
                make(&[], &["a"], None),
                Some("x"),
                Err("its containers are a"),
            ),
        ];
        for (pod, asked, expected) in cases {
            match (choose_container(&pod, asked), expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name, expected),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                (got, expected) => panic!("{got:?} is not {expected:?}"),
            }
        }
    }
}
