//! The subjects of events: references to pods, to containers in them, and to our Node.

use crate::api::core::ObjectReference;
use crate::api::{FullName, Pod, PodUid};
use crate::spec;
use crate::workload::WorkloadKey;

/// A reference to a pod, or with a field path to a part of it.
pub fn pod_ref(full_name: &FullName, uid: &PodUid, field_path: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(full_name.namespace.to_string()),
        name: Some(full_name.name.to_string()),
        uid: Some(uid.to_string()),
        field_path: field_path.map(str::to_owned),
        ..ObjectReference::default()
    }
}

/// A reference to our Node. Its UID is its name, because that is how events of Nodes are looked up.
///
/// Upstream: `nodeRef` of `pkg/kubelet/kubelet.go`.
pub fn node_ref(node: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

/// A reference to a workload of a manifest. It has no UID: only the embedded API assigns one.
pub fn workload_ref(key: &WorkloadKey) -> ObjectReference {
    ObjectReference {
        api_version: Some(key.kind.api_version().to_owned()),
        kind: Some(key.kind.as_str().to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        ..ObjectReference::default()
    }
}

/// The field path of a container: `spec.containers{name}`; by index if it has no name; none if the spec
/// doesn't have it.
///
/// Upstream: `fieldPath` of `pkg/kubelet/container/ref.go`.
pub fn field_path(pod: &Pod, container: &str) -> Option<String> {
    let spec = spec::spec(pod);
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let lists: [(&str, Vec<&str>); 3] = [
        (
            "containers",
            spec.containers.iter().map(|c| c.name.as_str()).collect(),
        ),
        ("initContainers", init.map(|c| c.name.as_str()).collect()),
        (
            "ephemeralContainers",
            ephemeral.map(|c| c.name.as_str()).collect(),
        ),
    ];
    lists.iter().find_map(|(list, names)| {
        let index = names.iter().position(|name| *name == container)?;
        Some(if container.is_empty() {
            format!("spec.{list}[{index}]")
        } else {
            format!("spec.{list}{{{container}}}")
        })
    })
}
