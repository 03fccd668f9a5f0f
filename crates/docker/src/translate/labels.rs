//! Labels, which distinguish our containers from others', and from which state is rebuilt after a
//! restart.
//!
//! An image's labels are copied to its containers unless the request sets them. So every key that is
//! read back is set on every container, and a container counts as ours only if its name matches its
//! labels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::core::{Container, Lifecycle};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp, keys};
use mirrorlet_core::observed::{ContainerHash, Role};
use mirrorlet_core::rollout::is_beside;
use mirrorlet_core::spec;

use super::forwarded_ports::{self, ForwardedPort, forwarded_ports};
use super::names::ContainerName;

/// The directory in which log collectors look for container logs.
const POD_LOGS_DIR: &str = "/var/log/pods";
/// Path of the termination message in a container that names none.
pub const DEFAULT_TERMINATION_PATH: &str = "/dev/termination-log";
/// Value of [`keys::NETWORK`] in the host's network.
const NETWORK_HOST: &str = "host";
/// Value of [`keys::NETWORK`] in a network of the pod's own.
const NETWORK_POD: &str = "pod";
/// Annotation in which `kubectl apply` stores a whole manifest: large, and never needed.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Maximum size of a preStop hook, or of the ports that it may refer to, in a label. Lists and events
/// contain all labels, and the agent keeps them for every container.
const HOOK_LABEL_MAX: usize = 16 << 10;

/// The labels that are read back. A user's pod labels and annotations can't set them, nor the one that
/// we never set.
pub(crate) const READ_BACK: [&str; 23] = [
    keys::POD_NAME,
    keys::POD_NAMESPACE,
    keys::POD_UID,
    keys::CONTAINER_NAME,
    keys::SANDBOX_ID,
    keys::LOG_PATH,
    keys::CONTAINER_HASH,
    keys::RESTART_COUNT,
    keys::POD_RESTARTS,
    keys::TERMINATION_PATH,
    keys::TERMINATION_POLICY,
    keys::TERMINATION_GRACE,
    keys::PRE_STOP_HANDLER,
    keys::CONTAINER_PORTS,
    keys::SHIM_TYPE,
    keys::OWNER,
    keys::KIND,
    keys::ATTEMPT,
    keys::NETWORK,
    keys::POD_STARTED,
    keys::HOST_PORTS,
    keys::ROLE,
    keys::IMAGE_ID,
];

/// Labels by key.
pub type Labels = HashMap<String, String>;

/// One of our containers, as its name and labels describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OurContainer {
    /// UID of the pod.
    pub uid: PodUid,
    /// Full name of the pod.
    pub full_name: FullName,
    /// Grace of the pod when the container was created.
    pub grace: Duration,
    /// Its kind.
    pub kind: Kind,
}

/// The kind of one of our containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A pod's sandbox.
    Sandbox {
        /// How many sandboxes the pod had before.
        attempt: u32,
        /// Whether it is in the host's network.
        host_network: bool,
        /// When the pod was started, as far as it was known when the sandbox was created.
        pod_started_at: Option<Timestamp>,
        /// The host ports that are led to it by rules of ours.
        forwarded_ports: Vec<ForwardedPort>,
    },
    /// An app or init container.
    Container {
        /// Name in the pod's spec.
        name: String,
        /// Its role.
        role: Role,
        /// How many instances of that name came before.
        restart_count: u32,
        /// How many times all containers of its pod were restarted in place before.
        pod_restarts: u32,
        /// Hash of the spec it was created from; 0 when unknown.
        hash: ContainerHash,
        /// Id of the sandbox it belongs to.
        sandbox_id: String,
        /// Its image as its status names it; empty when unknown.
        image_id: Arc<str>,
        /// The mount path of its termination message.
        termination_path: String,
        /// Whether the log's tail replaces a missing termination message after an error.
        fallback_to_logs: bool,
        /// The labels from which its preStop hook is rebuilt.
        hooks: HookLabels,
    },
}

/// The labels from which a container's preStop hook is rebuilt when its spec is no longer known. A hook
/// may contain secrets, so they aren't shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HookLabels {
    pre_stop: String,
    ports: String,
}

mirrorlet_core::partial_debug!(HookLabels);

impl HookLabels {
    /// Builds the labels of a container.
    fn of(container: &Container) -> Self {
        let pre_stop = container.lifecycle.as_ref();
        let mut pre_stop = pre_stop.and_then(|lifecycle| lifecycle.pre_stop.clone());
        // Labels are shown by `docker inspect`, and headers may hold credentials.
        if let Some(get) = pre_stop.as_mut().and_then(|hook| hook.http_get.as_mut()) {
            get.http_headers = None;
        }
        let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
        Self {
            pre_stop: json(pre_stop.as_ref()),
            ports: json(ports),
        }
    }

    /// The labels of the hook and of the ports that it may refer to.
    pub(crate) fn texts(&self) -> (&str, &str) {
        (&self.pre_stop, &self.ports)
    }

    /// Labels with these values, as [`texts`](Self::texts) returns them.
    pub(crate) fn of_texts(pre_stop: String, ports: String) -> Self {
        Self { pre_stop, ports }
    }

    /// The parts of the container that its preStop hook needs. Without valid labels there is no hook,
    /// as upstream.
    pub fn container(&self, name: &str) -> Container {
        Container {
            name: name.to_owned(),
            ports: serde_json::from_str(&self.ports).ok(),
            lifecycle: Some(Lifecycle {
                pre_stop: serde_json::from_str(&self.pre_stop).ok(),
                ..Lifecycle::default()
            }),
            ..Container::default()
        }
    }
}

/// A value in the form of a label: empty for none, and for one that is too long. Such a hook runs only
/// while the pod's manifest is known.
fn json<T: serde::Serialize>(value: Option<&T>) -> String {
    let written = value.and_then(|value| serde_json::to_string(value).ok());
    let written = written.filter(|text| text.len() <= HOOK_LABEL_MAX);
    written.unwrap_or_default()
}

/// Labels of a sandbox.
pub(crate) fn sandbox_labels(owner: &str, pod: &Pod, attempt: u32) -> Labels {
    let mut labels = Labels::new();
    for (key, value) in pod.metadata.labels.iter().flatten() {
        insert_users(&mut labels, key.clone(), value);
    }
    for (key, value) in pod.metadata.annotations.iter().flatten() {
        if key != LAST_APPLIED {
            insert_users(
                &mut labels,
                format!("{}{key}", keys::ANNOTATION_PREFIX),
                value,
            );
        }
    }
    let network = if spec::is_host_network(pod) {
        NETWORK_HOST
    } else {
        NETWORK_POD
    };
    let started = spec::started_at(pod).map(|time| time.to_string());
    let led = if is_beside(pod) {
        forwarded_ports(pod)
    } else {
        Vec::new()
    };
    insert_common(&mut labels, owner, pod, attempt);
    labels.extend(written([
        (keys::POD_STARTED, started.unwrap_or_default()),
        (keys::HOST_PORTS, forwarded_ports::to_label(&led)),
        (keys::CONTAINER_NAME, keys::SANDBOX_NAME.to_owned()),
        (keys::KIND, keys::KIND_SANDBOX.to_owned()),
        (keys::NETWORK, network.to_owned()),
    ]));
    let unused = [
        keys::SANDBOX_ID,
        keys::LOG_PATH,
        keys::ROLE,
        keys::IMAGE_ID,
        keys::CONTAINER_HASH,
        keys::RESTART_COUNT,
        keys::POD_RESTARTS,
        keys::TERMINATION_PATH,
        keys::TERMINATION_POLICY,
        keys::PRE_STOP_HANDLER,
        keys::CONTAINER_PORTS,
    ];
    labels.extend(written(unused.map(|key| (key, String::new()))));
    labels
}

/// The restarts before an instance of a container.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Restarts {
    /// How many instances of that name came before.
    pub(crate) own: u32,
    /// How many times all containers of its pod were restarted in place before.
    pub(crate) of_pod: u32,
}

/// Labels of an app or init container.
pub(crate) fn container_labels(
    owner: &str,
    pod: &Pod,
    container: &Container,
    role: Role,
    restarts: Restarts,
    sandbox_id: &str,
    image_id: &str,
) -> Labels {
    let mut labels = Labels::new();
    insert_common(&mut labels, owner, pod, restarts.own);
    let hooks = HookLabels::of(container);
    let policy = container.termination_message_policy.as_deref();
    labels.extend(written([
        (keys::CONTAINER_NAME, container.name.clone()),
        (keys::KIND, keys::KIND_CONTAINER.to_owned()),
        (keys::ROLE, role.as_str().to_owned()),
        (keys::SANDBOX_ID, sandbox_id.to_owned()),
        (keys::IMAGE_ID, image_id.to_owned()),
        (keys::NETWORK, String::new()),
        (keys::POD_STARTED, String::new()),
        (keys::HOST_PORTS, String::new()),
        (keys::LOG_PATH, log_path(pod, container, restarts.own)),
        (
            keys::CONTAINER_HASH,
            spec::container_hash(container).to_string(),
        ),
        (keys::RESTART_COUNT, restarts.own.to_string()),
        (keys::POD_RESTARTS, restarts.of_pod.to_string()),
        (keys::TERMINATION_PATH, termination_path(container)),
        (
            keys::TERMINATION_POLICY,
            policy.unwrap_or("File").to_owned(),
        ),
        (keys::PRE_STOP_HANDLER, hooks.pre_stop),
        (keys::CONTAINER_PORTS, hooks.ports),
    ]));
    labels
}

/// The mount path of the container's termination message, in the form in which the Engine reports
/// mounts.
pub fn termination_path(container: &Container) -> String {
    clean_termination_path(container.termination_message_path.as_deref())
}

/// A path as Go's `path.Clean` makes it, below the root; the default for none.
fn clean_termination_path(path: Option<&str>) -> String {
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return DEFAULT_TERMINATION_PATH.to_owned();
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn insert_common(labels: &mut Labels, owner: &str, pod: &Pod, attempt: u32) {
    let full_name = FullName::of(pod);
    let grace = spec::termination_grace(pod).as_secs();
    labels.extend(written([
        (keys::OWNER, owner.to_owned()),
        (keys::POD_NAME, full_name.name.to_string()),
        (keys::POD_NAMESPACE, full_name.namespace.to_string()),
        (keys::POD_UID, PodUid::of(pod).as_str().to_owned()),
        (keys::ATTEMPT, attempt.to_string()),
        (keys::TERMINATION_GRACE, grace.to_string()),
    ]));
}

/// Labels with the keys as text.
fn written<const N: usize>(labels: [(&str, String); N]) -> [(String, String); N] {
    labels.map(|(key, value)| (key.to_owned(), value))
}

fn insert_users(labels: &mut Labels, key: String, value: &str) {
    if !READ_BACK.contains(&key.as_str()) {
        labels.insert(key, value.to_owned());
    }
}

fn log_path(pod: &Pod, container: &Container, restart_count: u32) -> String {
    let full_name = FullName::of(pod);
    format!(
        "{POD_LOGS_DIR}/{}_{}_{}/{}/{restart_count}.log",
        full_name.namespace,
        full_name.name,
        PodUid::of(pod),
        container.name
    )
}

/// Parses a container of ours from its names and labels. None if it has another owner's label or none,
/// if none of its names parses, or if name and labels disagree.
pub fn parse_ours<'a>(
    owner: &str,
    names: impl IntoIterator<Item = &'a str>,
    labels: &Labels,
) -> Option<OurContainer> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    if owner.is_empty() || label(keys::OWNER) != Some(owner) {
        return None;
    }
    let name = names
        .into_iter()
        .filter_map(ContainerName::parse)
        .find(|name| agrees(name, labels))?;
    let is_sandbox = name.container == keys::SANDBOX_NAME;
    let kind = match (label(keys::KIND)?, is_sandbox) {
        (keys::KIND_SANDBOX, true) => Kind::Sandbox {
            attempt: name.attempt,
            host_network: match label(keys::NETWORK)? {
                NETWORK_HOST => true,
                NETWORK_POD => false,
                _ => return None,
            },
            pod_started_at: label(keys::POD_STARTED).and_then(|time| time.parse().ok()),
            forwarded_ports: forwarded_ports::from_label(
                label(keys::HOST_PORTS).unwrap_or_default(),
            ),
        },
        (keys::KIND_CONTAINER, false) => parse_container(&name, labels)?,
        _ => return None,
    };
    Some(OurContainer {
        uid: name.uid,
        full_name: name.full_name,
        grace: label(keys::TERMINATION_GRACE)
            .and_then(|seconds| seconds.parse().ok())
            .map_or(spec::DEFAULT_GRACE, Duration::from_secs),
        kind,
    })
}

fn agrees(name: &ContainerName, labels: &Labels) -> bool {
    let is = |key: &str, value: &str| labels.get(key).is_some_and(|label| label == value);
    is(keys::CONTAINER_NAME, &name.container)
        && is(keys::POD_NAME, &name.full_name.name)
        && is(keys::POD_NAMESPACE, &name.full_name.namespace)
        && is(keys::POD_UID, name.uid.as_str())
        && is(keys::ATTEMPT, &name.attempt.to_string())
}

fn parse_container(name: &ContainerName, labels: &Labels) -> Option<Kind> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let restart_count: u32 = label(keys::RESTART_COUNT)?.parse().ok()?;
    if restart_count != name.attempt {
        return None;
    }
    let hash = label(keys::CONTAINER_HASH)
        .and_then(|hash| u32::from_str_radix(hash, 16).ok())
        .unwrap_or_default();
    Some(Kind::Container {
        name: name.container.clone(),
        role: Role::parse(label(keys::ROLE)?)?,
        restart_count,
        // Containers of an agent before this one have no such label: it knew no such restart.
        pod_restarts: label(keys::POD_RESTARTS)
            .and_then(|count| count.parse().ok())
            .unwrap_or_default(),
        hash: ContainerHash(hash),
        sandbox_id: label(keys::SANDBOX_ID)?.to_owned(),
        // Containers of an agent before this one have no such label.
        image_id: label(keys::IMAGE_ID).unwrap_or_default().into(),
        // Labels of an agent before this one have it as the manifest does.
        termination_path: clean_termination_path(label(keys::TERMINATION_PATH)),
        fallback_to_logs: label(keys::TERMINATION_POLICY) == Some("FallbackToLogsOnError"),
        hooks: HookLabels {
            pre_stop: label(keys::PRE_STOP_HANDLER).unwrap_or_default().to_owned(),
            ports: label(keys::CONTAINER_PORTS).unwrap_or_default().to_owned(),
        },
    })
}
