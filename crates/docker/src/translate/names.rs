//! Container names: `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`.
//!
//! Upstream: cri-dockerd `core/naming.go`. No part can contain the separator: pod, namespace and
//! container names are DNS labels or subdomains.

use mirrorlet_core::api::{FullName, PodUid, keys};

const PREFIX: &str = "k8s";
const SEPARATOR: char = '_';
/// Hex digits of the suffix that distinguishes two containers with colliding names.
const CONFLICT_SUFFIX_LEN: usize = 8;

/// A container's name, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerName {
    /// Name in the pod's spec, or `POD` for a sandbox.
    pub container: String,
    /// Full name of the pod.
    pub full_name: FullName,
    /// UID of the pod.
    pub uid: PodUid,
    /// Attempt of a sandbox, restart count of a container.
    pub attempt: u32,
}

/// Name of a pod's sandbox.
pub fn sandbox_name(full_name: &FullName, uid: &PodUid, attempt: u32) -> String {
    container_name(keys::SANDBOX_NAME, full_name, uid, attempt)
}

/// Name of a pod's container.
pub fn container_name(container: &str, pod: &FullName, uid: &PodUid, attempt: u32) -> String {
    format!(
        "{PREFIX}_{container}_{}_{}_{uid}_{attempt}",
        pod.name, pod.namespace
    )
}

/// The alternative name if another container, which can't be found, holds `name`.
pub fn conflict_name(name: &str, random: u32) -> String {
    format!("{name}_{random:08x}")
}

impl ContainerName {
    /// Parses a name; the Engine's leading `/` and a conflict suffix are accepted.
    pub fn parse(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name
            .strip_prefix('/')
            .unwrap_or(name)
            .split(SEPARATOR)
            .collect();
        let (parts, suffix) = match parts.len() {
            6 => (&parts[..], None),
            7 => (&parts[..6], parts.last()),
            _ => return None,
        };
        let [prefix, container, pod, namespace, uid, attempt] = parts else {
            return None;
        };
        let is_suffix =
            |s: &&str| s.len() == CONFLICT_SUFFIX_LEN && s.bytes().all(|b| b.is_ascii_hexdigit());
        if *prefix != PREFIX || suffix.is_some_and(|s| !is_suffix(s)) {
            return None;
        }
        if [container, pod, namespace, uid]
            .iter()
            .any(|p| p.is_empty())
        {
            return None;
        }
        Some(Self {
            container: (*container).to_owned(),
            full_name: FullName::new(*pod, *namespace),
            uid: PodUid::from(*uid),
            attempt: attempt.parse().ok()?,
        })
    }
}
