//! The access to the host that the agent needs, and the effects of missing access.
//!
//! On the machine itself, everything is accessible. In a container, each access has to be granted, and
//! a forgotten one would show long after the start and far from its cause; so it is reported
//! immediately, with its effects and the solution.

use std::path::Path;

crate::words! {
    /// One thing that the agent needs of its host.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Need {
        /// The Engine's socket.
        Socket = "Socket",
        /// The root directory, at the same path for the agent and for the Engine.
        Root = "Root",
        /// The Engine has the network of the setting `network`.
        PodNetwork = "PodNetwork",
        /// The network in which the Engine's pods have their addresses.
        Network = "Network",
        /// The kernel's rules for host ports.
        PortRules = "PortRules",
        /// The Engine sees mounts that the agent makes below its root.
        Propagation = "Propagation",
        /// The Engine's process ids.
        Processes = "Processes",
        /// The host's file system, for reading.
        HostRoot = "HostRoot",
    }
    /// The name in reports and logs.
    pub fn as_str;
}

/// Whether an access exists; `Unknown` if that can't be determined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Found {
    /// It could not be determined.
    #[default]
    Unknown,
    /// It is.
    Yes,
    /// It is not, for that reason.
    No(String),
}

impl Found {
    /// From a yes or no.
    pub fn from_bool(yes: bool, why_not: &str) -> Self {
        if yes {
            Self::Yes
        } else {
            Self::No(why_not.to_owned())
        }
    }
}

/// The agent's access to its host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostAccess {
    /// Whether the Engine sees other files than the agent, which is in a container or on another host.
    pub is_apart: bool,
    /// Whether the Engine's socket can be connected to.
    pub socket: Found,
    /// Whether the Engine sees the agent's root at the same path.
    pub root: Found,
    /// Whether the Engine has the network that pods are attached to.
    pub pod_network: Found,
    /// Whether the agent is in the Engine's network.
    pub network: Found,
    /// Whether the kernel accepts the agent's rules for host ports.
    pub port_rules: Found,
    /// Whether the Engine sees the agent's mounts.
    pub propagation: Found,
    /// Whether the Engine's processes are seen.
    pub processes: Found,
    /// Whether the configured path is the host's file system; `Unknown` if none is configured.
    pub host_root: Found,
}

/// Something the agent needs and hasn't got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingAccess {
    /// The access that is missing.
    pub need: Need,
    /// The missing access, and what doesn't work without it.
    pub message: String,
    /// The solution.
    pub help: String,
}

/// The missing access, in the order of [`Need::ALL`]. `root` is the agent's root,
/// `docker` the Engine's address.
pub fn missing_access(seen: &HostAccess, root: &Path, docker: &str) -> Vec<MissingAccess> {
    Need::ALL
        .into_iter()
        .filter_map(|need| {
            let why = missing(need, seen)?;
            let (costs, help) = words(need, root, docker);
            Some(MissingAccess {
                need,
                message: format!("{why}: {costs}"),
                help,
            })
        })
        .collect()
}

/// Why a need isn't met; none if it is, or that is unknown.
fn missing(need: Need, seen: &HostAccess) -> Option<String> {
    let found = match need {
        Need::Socket => &seen.socket,
        Need::Root => &seen.root,
        Need::PodNetwork => &seen.pod_network,
        Need::Network => &seen.network,
        // In another network they would lead nowhere.
        Need::PortRules if matches!(seen.network, Found::No(_)) => return None,
        Need::PortRules => &seen.port_rules,
        Need::Processes => &seen.processes,
        // Nothing mounted below a root that the Engine doesn't have can be seen by it.
        Need::Propagation if matches!(seen.root, Found::No(_)) => return None,
        Need::Propagation => &seen.propagation,
        // The host's files only need to be mounted if the agent has other ones.
        Need::HostRoot if seen.is_apart && seen.host_root == Found::Unknown => {
            return Some("the agent can't see the host's file system".to_owned());
        }
        Need::HostRoot => &seen.host_root,
    };
    match found {
        Found::No(why) => Some(why.clone()),
        Found::Yes | Found::Unknown => None,
    }
}

/// Returns the features that need the access, and how to grant it.
fn words(need: Need, root: &Path, docker: &str) -> (&'static str, String) {
    let root = root.display();
    match need {
        Need::Socket => (
            "containers can't be started, stopped or inspected",
            format!(
                "start Docker; in a container, mount the directory of {} from the host",
                docker.trim_start_matches("unix://")
            ),
        ),
        Need::Root => (
            "pods don't start, because their files are mounted by the host's paths",
            format!("mount {root} of the host at {root}, or choose another --root"),
        ),
        Need::PodNetwork => (
            "pods without hostNetwork don't start",
            "create the network (docker network create NAME), or choose another one with --network"
                .to_owned(),
        ),
        Need::Network => (
            "HTTP, TCP and gRPC probes and HTTP hooks can't reach pods, and the process that uses a host port can't be identified",
            "run the agent in the host's network (hostNetwork: true, --network host)".to_owned(),
        ),
        Need::PortRules => (
            "edits of pods with host ports are held with StartFirst; with Recreate, host ports refuse connections while the pod is replaced",
            "grant the agent CAP_NET_ADMIN (capabilities.add: [NET_ADMIN], --cap-add NET_ADMIN), on a kernel with nf_tables".to_owned(),
        ),
        Need::Propagation => (
            "pods with secret, projected or memory-backed emptyDir volumes or with subPath don't start",
            format!(
                "mount {root} with mountPropagation: Bidirectional in a privileged container (-v {root}:{root}:rshared), and share the host's tree: mount --make-rshared /"
            ),
        ),
        Need::Processes => (
            "port-forward doesn't work, and commands in containers that exceed their timeout aren't killed",
            "run the agent in the host's process namespace (hostPID: true, --pid host)".to_owned(),
        ),
        Need::HostRoot => (
            "pods with hostPath volumes whose type must be checked don't start, and disk pressure on the Engine's disk isn't detected",
            "mount / of the host read-only and set --host-root DIR".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(seen: &HostAccess) -> Vec<&'static str> {
        missing_access(seen, Path::new("/r"), "unix:///run/docker.sock")
            .iter()
            .map(|lack| lack.need.as_str())
            .collect()
    }

    fn all() -> HostAccess {
        HostAccess {
            is_apart: true,
            socket: Found::Yes,
            root: Found::Yes,
            pod_network: Found::Yes,
            network: Found::Yes,
            port_rules: Found::Yes,
            propagation: Found::Yes,
            processes: Found::Yes,
            host_root: Found::Yes,
        }
    }

    fn no() -> Found {
        Found::No("it is not".to_owned())
    }

    #[test]
    fn each_need_is_told_by_its_absence_alone() {
        assert!(named(&all()).is_empty());
        for need in Need::ALL {
            let mut seen = all();
            match need {
                Need::Socket => seen.socket = no(),
                Need::Root => seen.root = no(),
                Need::PodNetwork => seen.pod_network = no(),
                Need::Network => seen.network = no(),
                Need::PortRules => seen.port_rules = no(),
                Need::Propagation => seen.propagation = no(),
                Need::Processes => seen.processes = no(),
                Need::HostRoot => seen.host_root = no(),
            }
            // installed 3
            assert_eq!(named(&seen), [need.as_str()]);
        }
    }

    #[test]
    fn nothing_is_told_of_what_nobody_knows() {
        assert!(named(&HostAccess::default()).is_empty());
    }

    #[test]
    fn the_hosts_files_are_needed_by_who_does_not_have_them() {
        let seen = |is_apart| HostAccess {
            is_apart,
            host_root: Found::Unknown,
            ..all()
        };
        assert_eq!(named(&seen(true)), ["HostRoot"]);
        assert!(named(&seen(false)).is_empty());
    }

    #[test]
    fn of_a_root_that_the_engine_lacks_nothing_else_is_said() {
        let seen = HostAccess {
            root: no(),
            propagation: no(),
            ..all()
        };
        // installed 3
        assert_eq!(named(&seen), ["Root"]);
    }

    #[test]
    fn a_lack_says_what_it_costs_and_how_it_is_mended() {
        let seen = HostAccess {
            root: Found::No("the Engine has no /r".to_owned()),
            ..all()
        };
        let lack = &missing_access(&seen, Path::new("/r"), "unix:///run/docker.sock")[0];
        // installed 3
        assert!(
            lack.message
                .starts_with("the Engine has no /r: pods don't start")
        );
        assert!(lack.help.contains("mount /r of the host at /r"));
    }
}
