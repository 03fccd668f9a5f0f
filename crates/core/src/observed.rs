//! The observed state of a pod in the runtime, as values.
//!
//! These are the seeds' `container` package types (upstream `pkg/kubelet/container/runtime.go`): a
//! runtime's reports about containers, independent of how it obtained them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{ContainerId, FullName, PodUid, Timestamp};
use crate::clock::since;

crate::words! {
    /// The state of a container. A container of ours only moves down this list.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ContainerState {
        /// Created, not started yet.
        Created = "created",
        /// Its process runs (a paused one counts).
        Running = "running",
        /// Its process ended, or could not be started.
        Exited = "exited",
        /// The runtime doesn't know, for example in the middle of a removal.
        Unknown = "unknown",
    }
    /// The state as messages write it.
    pub fn as_str;
    impl Display;
}

crate::words! {
    /// A container's part in its pod.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Role {
        /// A regular init container: runs to its end before the next starts.
        Init = "init",
        /// An init container with `restartPolicy: Always`.
        Sidecar = "sidecar",
        /// A regular container.
        App = "app",
        /// An ephemeral container, which was added to a running pod for debugging; never started twice.
        Ephemeral = "ephemeral",
    }
    /// The role as written in labels.
    pub fn as_str;
}

impl Role {
    /// The role of that label value.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// How long a container that a user stopped with docker is left alone: `docker restart` starts it again
/// within this time, and two instances must not run side by side. The Engine begins that start
/// immediately, and answers no inspect of the container before it is complete.
pub const BY_HAND_SETTLES: Duration = Duration::from_millis(500);

crate::words! {
    /// A user's action on an instance, through the Engine.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum UserAction {
        /// It was sent a signal, which may be the beginning of a stop.
        Signalled = "sent a signal to",
        /// `docker stop`, or the first half of `docker restart`.
        Stopped = "stopped",
        /// `docker restart`.
        Restarted = "restarted",
        /// `docker start` of an instance that had ended.
        Started = "started an ended instance of",
        /// `docker pause` of one that runs.
        Paused = "paused",
        /// `docker unpause`.
        Unpaused = "unpaused",
    }
    /// The action as messages write it.
    pub fn as_str;
    impl Display;
}

/// The last action of a user on an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserActionRecord {
    /// The action.
    pub what: UserAction,
    /// When it was noticed; for a stop, when its last step was.
    pub at: Timestamp,
}

impl UserActionRecord {
    /// How long the same action may still start the instance again.
    pub fn settles(&self, now: Timestamp) -> Option<Duration> {
        match self.what {
            UserAction::Signalled | UserAction::Stopped => {
                let left = BY_HAND_SETTLES.checked_sub(since(self.at, now));
                left.filter(|left| !left.is_zero())
            }
            UserAction::Restarted
            | UserAction::Started
            | UserAction::Paused
            | UserAction::Unpaused => None,
        }
    }
}

/// FNV-1a hash (32 bits) of a container's image and name; 0 means "not known".
///
/// Upstream: `pkg/kubelet/container/helpers.go` (`HashContainer`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ContainerHash(pub u32);

crate::display!(ContainerHash, "{:x}", 0);

/// One instance of a container of a pod's spec, as observed in the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// The runtime's identity of the instance.
    pub id: ContainerId,
    /// Name in the pod's spec.
    pub name: Arc<str>,
    /// Role the instance was created in.
    pub role: Role,
    /// Its state.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was started; none while `created`.
    pub started_at: Option<Timestamp>,
    /// When it ended; only when `exited`.
    pub finished_at: Option<Timestamp>,
    /// Exit code; only when `exited`.
    pub exit_code: Option<i32>,
    /// Image as named by the spec.
    pub image: Arc<str>,
    /// Image as identified by the runtime.
    pub image_id: Arc<str>,
    /// Hash of the spec it was created from; 0 when unknown.
    pub hash: ContainerHash,
    /// How many instances of that name came before.
    pub restart_count: u32,
    /// How many times all containers of its pod had been restarted in place when it was created.
    #[serde(default)]
    pub pod_restarts: u32,
    /// `Completed`, `Error`, `OOMKilled` or `ContainerCannotRun`; empty unless `exited`.
    pub reason: Arc<str>,
    /// The Engine's error, then the termination message.
    pub message: Arc<str>,
    /// The last action of a user on it.
    #[serde(default)]
    pub by_hand: Option<UserActionRecord>,
}

/// Reason of an instance that was killed for its memory.
const OOM_KILLED: &str = "OOMKilled";

/// Exit code of a process that was killed.
const EXIT_KILLED: i32 = 137;

/// The exit code that rules, policies and the pod's status use for an ended instance. A regular init
/// container that was OOM-killed counts as failed, regardless of its exit code: one of its processes
/// may have been killed, while another one ended well.
///
/// Upstream: `pkg/kubelet/kuberuntime/helpers.go` (`isInitContainerFailed`). Upstream's status goes by the
/// code alone, so that such a pod which is never restarted is stopped and stays Pending.
pub fn judged_exit_code(role: Role, exit_code: i32, reason: &str) -> i32 {
    if role == Role::Init && exit_code == 0 && reason == OOM_KILLED {
        EXIT_KILLED
    } else {
        exit_code
    }
}

impl ContainerStatus {
    /// Whether the instance ended well: exit code 0 and not OOM-killed.
    pub fn succeeded(&self) -> bool {
        self.state == ContainerState::Exited
            && self.exit_code == Some(0)
            && &*self.reason != OOM_KILLED
    }

    /// The exit code of an ended instance that rules use, see [`judged_exit_code`].
    pub fn judged_exit_code(&self) -> i32 {
        judged_exit_code(self.role, self.exit_code.unwrap_or_default(), &self.reason)
    }

    /// Whether its process may be alive.
    pub fn may_be_running(&self) -> bool {
        matches!(
            self.state,
            ContainerState::Running | ContainerState::Unknown
        )
    }

    /// The user's action that ended it or started it; a mere signal or pause is none.
    pub fn hand(&self) -> Option<UserAction> {
        hand(self.by_hand)
    }

    /// The user's action that started it again, if one did and it runs.
    pub fn started_by_hand(&self) -> Option<UserAction> {
        self.hand()
            .filter(|_| self.state == ContainerState::Running)
    }
}

/// The user's action that ended or started an instance.
fn hand(by_hand: Option<UserActionRecord>) -> Option<UserAction> {
    by_hand.map(|by| by.what).filter(|what| match what {
        UserAction::Stopped | UserAction::Restarted | UserAction::Started => true,
        UserAction::Signalled | UserAction::Paused | UserAction::Unpaused => false,
    })
}

/// One instance of a pod's sandbox, as observed in the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// The runtime's identity of the instance.
    pub id: ContainerId,
    /// How many sandboxes the pod had before this one.
    pub attempt: u32,
    /// Its state; `running` is called ready in the CRI.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its pod was started, if that was known when the sandbox was created.
    pub pod_started_at: Option<Timestamp>,
    /// Whether it was created in the host's network.
    pub host_network: bool,
    /// Its addresses, IPv4 first. Empty in the host's network, or while not running.
    pub ips: Vec<IpAddr>,
    /// The last action of a user on it.
    #[serde(default)]
    pub by_hand: Option<UserActionRecord>,
}

impl SandboxStatus {
    /// The user's action that ended it or started it; a mere signal or pause is none.
    pub fn hand(&self) -> Option<UserAction> {
        hand(self.by_hand)
    }
}

/// Everything the runtime knows of one pod. Newest instances come first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodStatus {
    /// UID of the pod.
    pub uid: PodUid,
    /// Full name; with empty parts if nothing was found.
    pub full_name: FullName,
    /// Addresses of the newest sandbox, if it runs.
    pub ips: Vec<IpAddr>,
    /// Container instances, newest first.
    pub containers: Vec<ContainerStatus>,
    /// Sandbox instances, newest first.
    pub sandboxes: Vec<SandboxStatus>,
}

impl PodStatus {
    /// The status of a pod nothing is known of.
    pub fn empty(uid: PodUid) -> Self {
        Self {
            uid,
            ..Self::default()
        }
    }

    /// The newest instance of that name.
    pub fn find_container_status_by_name(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| &*c.name == name)
    }

    /// How many times all containers of the pod have been restarted in place, as far as instances were
    /// created since. Ephemeral containers don't count.
    pub fn pod_restarts(&self) -> u32 {
        let instances = self.containers.iter();
        let restarted = instances.filter(|c| c.role != Role::Ephemeral);
        restarted.map(|c| c.pod_restarts).max().unwrap_or(0)
    }

    /// Whether a dead instance must stay because it may be the evidence that the pod's regular
    /// containers must be restarted. They are restarted in place after the init containers, and
    /// replacing the sandbox before that removes the new instances of those: without the old instance
    /// whose exit required the restart, it would be forgotten.
    pub fn shows_pod_restart(&self, seen: &ContainerStatus) -> bool {
        let is_before = matches!(seen.role, Role::Init | Role::Sidecar)
            && seen.pod_restarts.checked_add(1) == Some(self.pod_restarts());
        let follows =
            |c: &ContainerStatus| c.role == Role::App && c.pod_restarts > seen.pod_restarts;
        is_before && !self.containers.iter().any(follows)
    }

    /// Instances whose process runs.
    pub fn running_containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.containers
            .iter()
            .filter(|c| c.state == ContainerState::Running)
    }

    /// Users' last actions on its containers, and on its sandboxes, which have no name.
    pub fn by_hand(&self) -> impl Iterator<Item = (&ContainerId, Option<&str>, UserActionRecord)> {
        let containers = self.containers.iter();
        let of_containers = containers.map(|c| (&c.id, Some(&*c.name), c.by_hand));
        let of_sandboxes = self.sandboxes.iter().map(|s| (&s.id, None, s.by_hand));
        let all = of_containers.chain(of_sandboxes);
        all.filter_map(|(id, name, by_hand)| Some((id, name, by_hand?)))
    }

    /// Whether any process of the pod may be alive, including its sandbox's.
    pub fn anything_running(&self) -> bool {
        self.containers.iter().any(ContainerStatus::may_be_running)
            || self
                .sandboxes
                .iter()
                .any(|s| matches!(s.state, ContainerState::Running | ContainerState::Unknown))
    }

    /// When the pod was started, according to its sandboxes: the time that was known at their creation,
    /// or else their creation, in whole seconds as in a pod's status. It doesn't change when an agent
    /// restarts or older sandboxes are removed.
    pub fn pod_started_at(&self) -> Option<Timestamp> {
        let of_sandbox = |s: &SandboxStatus| {
            let created = Timestamp::from_second(s.created_at.as_second()).unwrap_or(s.created_at);
            s.pod_started_at
                .map_or(created, |started| started.min(created))
        };
        self.sandboxes.iter().map(of_sandbox).min()
    }

    /// Whether the runtime has nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }

    /// The running part of this, for `kill_pod`. Keeps running containers, and all sandboxes: a sandbox
    /// that isn't ready may still have a network to tear down.
    ///
    /// Upstream: `pkg/kubelet/container/helpers.go` (`ConvertPodStatusToRunningPod`).
    pub fn to_running_pod(&self) -> RunningPod {
        RunningPod {
            uid: self.uid.clone(),
            full_name: self.full_name.clone(),
            created_at: self.sandboxes.iter().map(|s| s.created_at).min(),
            containers: self
                .containers
                .iter()
                .filter(|c| c.may_be_running())
                .map(Container::from)
                .collect(),
            sandboxes: self
                .sandboxes
                .iter()
                .map(|s| Container {
                    id: s.id.clone(),
                    name: crate::api::keys::SANDBOX_NAME.into(),
                    image: "".into(),
                    image_id: "".into(),
                    hash: ContainerHash::default(),
                    created_at: s.created_at,
                    state: if s.state == ContainerState::Running {
                        ContainerState::Running
                    } else {
                        ContainerState::Exited
                    },
                })
                .collect(),
        }
    }
}

/// A container in a list of the runtime (the seeds' `Container`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The runtime's identity of the instance.
    pub id: ContainerId,
    /// Name in the pod's spec; `POD` for a sandbox.
    pub name: Arc<str>,
    /// Image as named by the spec.
    pub image: Arc<str>,
    /// Image as identified by the runtime.
    pub image_id: Arc<str>,
    /// Hash of the spec it was created from; 0 when unknown or a sandbox's.
    pub hash: ContainerHash,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its state.
    pub state: ContainerState,
}

impl From<&ContainerStatus> for Container {
    fn from(status: &ContainerStatus) -> Self {
        Self {
            id: status.id.clone(),
            name: status.name.clone(),
            image: status.image.clone(),
            image_id: status.image_id.clone(),
            hash: status.hash,
            created_at: status.created_at,
            state: status.state,
        }
    }
}

/// A pod in a list of the runtime (the seeds' `Pod`; renamed, because [`crate::api::Pod`] is the API
/// object).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningPod {
    /// UID of the pod.
    pub uid: PodUid,
    /// Full name.
    pub full_name: FullName,
    /// When its oldest sandbox was created.
    pub created_at: Option<Timestamp>,
    /// Containers, newest first.
    pub containers: Vec<Container>,
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Container>,
}

impl RunningPod {
    /// Whether it is empty: look-ups return such a pod for "not found".
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A list of pods.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pods(pub Vec<RunningPod>);

impl Pods {
    /// The pod of that UID, or the empty pod.
    pub fn find_pod_by_id(&self, uid: &PodUid) -> RunningPod {
        self.0
            .iter()
            .find(|p| p.uid == *uid)
            .cloned()
            .unwrap_or_default()
    }

    /// Whether there is a pod of that UID.
    pub fn has(&self, uid: &PodUid) -> bool {
        self.0.iter().any(|pod| pod.uid == *uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, name: &str) -> RunningPod {
        RunningPod {
            uid: uid.into(),
            full_name: FullName::new(name, "ns"),
            ..RunningPod::default()
        }
    }

    #[test]
    fn a_pod_is_found_by_its_uid_and_an_unknown_one_is_the_empty_pod() {
        let pods = Pods(vec![pod("1", "a"), pod("2", "b")]);
        // docker 2
        assert_eq!(pods.find_pod_by_id(&"2".into()), pod("2", "b"));
        assert!(pods.find_pod_by_id(&"3".into()).is_empty());
        assert!(pods.has(&"2".into()) && !pods.has(&"3".into()));
    }
}
