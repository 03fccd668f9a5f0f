//! Accessors for a pod's spec, shared by all decisions.

use std::borrow::Cow;
use std::time::Duration;

use crate::api::core::{Container, EphemeralContainer, ImageVolumeSource, PodSpec, Volume};
use crate::api::meta::ObjectMeta;
use crate::api::{ContainerId, FullName, Pod, Timestamp, keys};
use crate::observed::{ContainerHash, Role};

/// `spec.terminationGracePeriodSeconds` of a pod that sets none.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Maximum grace period that timers support: ten years. A manifest may set more than a timer can count.
pub const GRACE_MAX: Duration = Duration::from_hours(10 * 365 * 24);

/// A pod's restart policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RestartPolicy {
    /// Restart after any exit code.
    Always,
    /// Unless the exit code is 0.
    OnFailure,
    /// Not at all.
    Never,
}

static EMPTY_SPEC: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);

/// The spec; an empty one for a pod without.
pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&EMPTY_SPEC)
}

/// `spec.restartPolicy`.
pub fn restart_policy(pod: &Pod) -> RestartPolicy {
    match spec(pod).restart_policy.as_deref() {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

/// Init containers and sidecars in order, then regular containers in order.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    let spec = spec(pod);
    spec.init_containers
        .iter()
        .flatten()
        .map(|c| (init_role(c), c))
        .chain(spec.containers.iter().map(|c| (Role::App, c)))
}

/// All containers of a spec, whatever their role.
pub fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
}

/// Names of all containers, those added for debugging included.
pub fn all_container_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let ephemeral = spec(pod).ephemeral_containers.iter().flatten();
    let all = all_containers(spec(pod)).map(|c| c.name.as_str());
    all.chain(ephemeral.map(|c| c.name.as_str()))
}

/// Role of an entry of `spec.initContainers`.
pub fn init_role(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") {
        Role::Sidecar
    } else {
        Role::Init
    }
}

/// Ephemeral containers of the running pod, in order, each converted to a container.
pub fn ephemeral_containers(pod: &Pod) -> impl Iterator<Item = Container> {
    let all = spec(pod).ephemeral_containers.iter().flatten();
    all.map(ephemeral_container)
}

/// Upstream converts one type to the other; they have the same fields except for the target.
fn ephemeral_container(added: &EphemeralContainer) -> Container {
    let added = added.clone();
    // Those that only a regular container may have are refused by the API server.
    Container {
        args: added.args,
        command: added.command,
        env: added.env,
        env_from: added.env_from,
        image: added.image,
        image_pull_policy: added.image_pull_policy,
        name: added.name,
        security_context: added.security_context,
        stdin: added.stdin,
        stdin_once: added.stdin_once,
        termination_message_path: added.termination_message_path,
        termination_message_policy: added.termination_message_policy,
        tty: added.tty,
        volume_devices: added.volume_devices,
        volume_mounts: added.volume_mounts,
        working_dir: added.working_dir,
        ..Container::default()
    }
}

/// The target container of an ephemeral container, if it names one.
pub fn target_container<'a>(pod: &'a Pod, added: &str) -> Option<&'a str> {
    let mut all = spec(pod).ephemeral_containers.iter().flatten();
    let found = all.find(|container| container.name == added)?;
    let target = found.target_container_name.as_deref();
    target.filter(|name| !name.is_empty())
}

/// The container with that name in any list, including ephemeral containers.
pub fn find_any_container<'a>(pod: &'a Pod, name: &str) -> Option<(Role, Cow<'a, Container>)> {
    let found = find_container(pod, name).map(|(role, found)| (role, Cow::Borrowed(found)));
    found.or_else(|| {
        let added = ephemeral_containers(pod).find(|container| container.name == name);
        added.map(|container| (Role::Ephemeral, Cow::Owned(container)))
    })
}

/// The init, sidecar or regular container with that name.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<(Role, &'a Container)> {
    containers(pod).find(|(_, c)| c.name == name)
}

/// Whether a user stopped the pod with `mirrorlet stop`.
pub fn is_stopped(pod: &Pod) -> bool {
    annotation(&pod.metadata, keys::STOPPED).is_some()
}

/// Whether the pod waits until its Node is uncordoned.
pub fn is_cordoned(pod: &Pod) -> bool {
    annotation(&pod.metadata, keys::STOPPED) == Some(keys::CORDONED)
}

/// The pod as commands take it: `default/web-box`.
pub fn typed_name(pod: &Pod) -> String {
    let FullName { name, namespace } = FullName::of(pod);
    format!("{namespace}/{name}")
}

/// The argument for rollout commands: the pod's workload, `deployment/default/web`, or the pod.
pub fn typed_rollout(pod: &Pod) -> String {
    let owner = annotation(&pod.metadata, keys::WORKLOAD).and_then(|owner| owner.split_once('/'));
    let Some((kind, name)) = owner else {
        return typed_name(pod);
    };
    let namespace = FullName::of(pod).namespace;
    format!("{}/{namespace}/{name}", kind.to_lowercase())
}

/// Why a pod is stopped, with the command that starts it.
pub fn why_stopped(pod: &Pod) -> String {
    if is_cordoned(pod) {
        let node = spec(pod).node_name.as_deref().unwrap_or_default();
        format!("the node is cordoned; uncordon it with: kubectl uncordon {node}")
    } else {
        let name = typed_name(pod);
        format!("a user stopped the pod; start it with: mirrorlet start {name}")
    }
}

/// Whether a user wants that instance replaced, with `mirrorlet restart` or `start`.
pub fn to_restart(pod: &Pod, instance: &ContainerId) -> bool {
    annotation(&pod.metadata, keys::RESTART)
        .is_some_and(|ids| ids.split(',').any(|id| id == instance.to_string()))
}

/// Users' orders in the annotations of a pod.
pub fn orders(pod: &Pod) -> [Option<&str>; 2] {
    [keys::STOPPED, keys::RESTART].map(|key| annotation(&pod.metadata, key))
}

/// The value of an annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The name of the claim of a pod's volume; none for any other volume. The claim of an ephemeral volume
/// is created by a controller of the API server.
///
/// Upstream: `VolumeClaimName` of
/// `staging/src/k8s.io/component-helpers/storage/ephemeral/ephemeral.go`.
pub fn claim_name<'a>(pod: &Pod, volume: &'a Volume) -> Option<Cow<'a, str>> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(Cow::Borrowed(&source.claim_name));
    }
    volume.ephemeral.as_ref()?;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(Cow::Owned(format!("{name}-{}", volume.name)))
}

/// The images of a pod's image volumes, by volume name.
pub fn image_volumes(pod: &Pod) -> impl Iterator<Item = (&str, &ImageVolumeSource)> {
    let volumes = spec(pod).volumes.iter().flatten();
    volumes.filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
}

/// The images of the volumes that the container mounts, by volume name, without duplicates.
pub fn mounted_images<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let mounts = || container.volume_mounts.iter().flatten();
    image_volumes(pod).filter(move |(volume, _)| mounts().any(|mount| mount.name == *volume))
}

/// The names of all images of a pod: of its containers and its volumes.
pub fn image_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = containers(pod).filter_map(|(_, container)| container.image.as_deref());
    let volumes = image_volumes(pod).filter_map(|(_, source)| source.reference.as_deref());
    containers.chain(volumes)
}

/// `spec.hostNetwork`.
pub fn is_host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or(false)
}

/// When the pod was started, as its status says.
pub fn started_at(pod: &Pod) -> Option<Timestamp> {
    let started = pod.status.as_ref()?.start_time.as_ref()?;
    Some(started.0)
}

/// The grace period of the pod's containers: the API's deletion grace period if it is being deleted,
/// otherwise the spec's.
pub fn termination_grace(pod: &Pod) -> Duration {
    pod.metadata
        .deletion_grace_period_seconds
        .or(spec(pod).termination_grace_period_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(DEFAULT_GRACE, Duration::from_secs)
}

/// Names of the pull secrets of a pod, in its spec's order. They include those of its service account,
/// which the API server's admission adds.
pub fn pull_secret_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let references = spec(pod).image_pull_secrets.iter().flatten();
    references
        .map(|reference| reference.name.as_str())
        .filter(|name| !name.is_empty())
}

/// Hash that decides whether a running container still matches its spec: FNV-1a (32 bits) over the JSON
/// of `{image, name}`, so that no other edit restarts a container.
///
/// Upstream: `pkg/kubelet/container/helpers.go` (`HashContainer`).
pub fn container_hash(container: &Container) -> ContainerHash {
    #[derive(serde::Serialize)]
    struct Picked<'a> {
        image: &'a str,
        name: &'a str,
    }
    let picked = Picked {
        image: container.image.as_deref().unwrap_or_default(),
        name: &container.name,
    };
    let json = serde_json::to_vec(&picked).unwrap_or_default();
    let hash = json.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    ContainerHash(hash)
}

/// Converts `net/ipv4/conf/eth0.1/x` to `net.ipv4.conf.eth0/1.x`; a name whose first separator is a dot
/// is unchanged. Upstream: `k8s.io/component-helpers/node/util/sysctl` (`NormalizeName`).
pub fn normalized_sysctl(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_pod_or_its_workload() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-0-box".to_owned());
        pod.metadata.namespace = Some("shop".to_owned());
        assert_eq!(typed_rollout(&pod), "shop/web-0-box");
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::WORKLOAD.to_owned(), "Deployment/web".to_owned());
        annotations.insert(keys::STOPPED.to_owned(), "true".to_owned());
        assert_eq!(typed_rollout(&pod), "deployment/shop/web");
        assert!(why_stopped(&pod).ends_with(": mirrorlet start shop/web-0-box"));
        pod.spec.get_or_insert_default().node_name = Some("box".to_owned());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::STOPPED.to_owned(), keys::CORDONED.to_owned());
        assert!(why_stopped(&pod).ends_with(": kubectl uncordon box"));
    }

    #[test]
    fn only_image_and_name_change_the_hash() {
        let base = Container {
            name: "web".into(),
            image: Some("nginx:1".into()),
            ..Container::default()
        };
        let relabelled = Container {
            command: Some(vec!["x".into()]),
            tty: Some(true),
            ..base.clone()
        };
        let image = Container {
            image: Some("nginx:2".into()),
            ..base.clone()
        };
        let name = Container {
            name: "web2".into(),
            ..base.clone()
        };
        assert_eq!(container_hash(&base), container_hash(&relabelled));
        // docker 6
        assert_ne!(container_hash(&base), container_hash(&image));
        assert_ne!(container_hash(&base), container_hash(&name));
        // Pinned for ever: a changed hash restarts every container on upgrade.
        assert_eq!(container_hash(&base).to_string(), "28f15340");
    }
}
