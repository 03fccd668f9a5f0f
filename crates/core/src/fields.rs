//! The fields of a pod that can cause a failure, as paths: `spec.containers[0].image`.
//!
//! A failure names its field in the defaulted pod; the manifest has it at the same path.

use crate::api::Pod;
use crate::api::core::{Container, ContainerPort};
use crate::path::Path;
use crate::spec;

/// The containers of both lists, with their paths.
fn containers(pod: &Pod) -> impl Iterator<Item = (Path, &Container)> {
    let spec = spec::spec(pod);
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(index, container)| ("spec.initContainers", index, container));
    let regular = spec.containers.iter().enumerate();
    let regular = regular.map(|(index, container)| ("spec.containers", index, container));
    let all = init.chain(regular);
    all.map(|(list, index, container)| (Path::of(list).index(index), container))
}

/// The host ports, with their paths.
fn host_ports(pod: &Pod) -> impl Iterator<Item = (Path, &ContainerPort)> {
    containers(pod).flat_map(|(at, container)| {
        let ports = container.ports.iter().flatten().enumerate();
        let with_host_port = ports.filter(|(_, port)| port.host_port.is_some());
        let at = at.key("ports");
        with_host_port.map(move |(index, port)| (at.index(index).key("hostPort"), port))
    })
}

/// The container of that name.
pub fn container(pod: &Pod, name: &str) -> Option<String> {
    container_path(pod, name).map(|at| at.to_string())
}

/// The same, as a path.
pub(crate) fn container_path(pod: &Pod, name: &str) -> Option<Path> {
    let mut all = containers(pod);
    let found = all.find(|(_, container)| container.name == name);
    found.map(|(at, _)| at)
}

/// The image of the container of that name.
pub fn image(pod: &Pod, container: &str) -> Option<String> {
    Some(self::container(pod, container)? + ".image")
}

/// The host port of that number and protocol.
pub fn host_port(pod: &Pod, number: i32, protocol: &str) -> Option<String> {
    let is_it = |port: &ContainerPort| {
        let of = port.protocol.as_deref().unwrap_or("TCP");
        port.host_port == Some(number) && of == protocol
    };
    let found = host_ports(pod).find(|(_, port)| is_it(port));
    found.map(|(at, _)| at.to_string())
}

/// The volume of that name.
pub fn volume(pod: &Pod, name: &str) -> Option<String> {
    let mut volumes = spec::spec(pod).volumes.iter().flatten();
    let index = volumes.position(|volume| volume.name == name)?;
    Some(Path::of("spec.volumes").index(index).to_string())
}

/// All of them.
pub(crate) fn all(pod: &Pod) -> Vec<Path> {
    let containers = containers(pod).flat_map(|(at, _)| [at.key("image"), at]);
    let ports = host_ports(pod).map(|(at, _)| at);
    let volumes = spec::spec(pod).volumes.iter().flatten().enumerate();
    let volumes = volumes.map(|(index, _)| Path::of("spec.volumes").index(index));
    containers.chain(ports).chain(volumes).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_have_their_places_in_the_pod() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [{"name": "init"}],
                "containers": [
                    {"name": "a", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 80}]},
                    {"name": "b", "ports": [{"containerPort": 53, "hostPort": 80, "protocol": "UDP"}]},
                ],
                "volumes": [{"name": "v"}, {"name": "w"}],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let known: Vec<String> = all(&pod).iter().map(Path::to_string).collect();
        for (found, expected) in [
            (container(&pod, "init"), Some("spec.initContainers[0]")),
            (container(&pod, "b"), Some("spec.containers[1]")),
            (container(&pod, "c"), None),
            (image(&pod, "a"), Some("spec.containers[0].image")),
            (image(&pod, "c"), None),
            (
                host_port(&pod, 80, "TCP"),
                Some("spec.containers[0].ports[1].hostPort"),
            ),
            (
                host_port(&pod, 80, "UDP"),
                Some("spec.containers[1].ports[0].hostPort"),
            ),
            (host_port(&pod, 1, "TCP"), None),
            (volume(&pod, "w"), Some("spec.volumes[1]")),
            (volume(&pod, "x"), None),
        ] {
            assert_eq!(found.as_deref(), expected);
            assert!(
                found.is_none_or(|found| known.contains(&found)),
                "{expected:?}"
            );
        }
    }
}
