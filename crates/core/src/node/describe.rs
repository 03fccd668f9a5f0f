//! Our Node as an object.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::conditions::{PodProblems, compute_conditions};
use super::{NodeFacts, Readings, kubelet_version};
use crate::amounts::Amounts;
use crate::api::core::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeFeatures, NodeSpec, NodeStatus, NodeSystemInfo,
};
use crate::api::meta::ObjectMeta;
use crate::api::quantity::milli_text;
use crate::api::{Timestamp, keys};
use crate::small::{SmallCollect, SmallSort};

/// Most images listed: upstream's `nodeStatusMaxImages`. They are the largest part of a Node.
const IMAGES_MAX: usize = 50;
/// Most names listed of an image: upstream's `maxNamesPerImageInNodeStatus`.
const IMAGE_NAMES_MAX: usize = 5;
/// Longest value of a label.
const LABEL_MAX: usize = 63;
/// Makes the attach-detach controller responsible, as every kubelet does by default.
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The Node as it is registered, with its whole status.
pub fn compute_node(facts: &NodeFacts, status: NodeStatus) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.to_string()),
            labels: Some(labels(facts)),
            annotations: Some(annotations(facts)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(facts.taints.clone()).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// The Node before an API server answers, or without one: admission uses it until then.
///
/// Upstream: `initialNode` of `pkg/kubelet/kubelet_node_status.go`, by way of `getNodeAnyWay`.
pub fn initial_node(facts: &NodeFacts) -> Node {
    let status = NodeStatus {
        allocatable: Some(quantities(&facts.allocatable(), facts.max_pods)),
        ..NodeStatus::default()
    };
    compute_node(facts, status)
}

/// Labels that our Node always has.
pub(super) fn labels(facts: &NodeFacts) -> BTreeMap<String, String> {
    let mut labels = [
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), facts.arch.clone()),
        (
            keys::NODE_LABEL.to_owned(),
            keys::NODE_LABEL_VALUE.to_owned(),
        ),
    ]
    .collect_map();
    // The name of the Node, not of the machine: the machine's kubelet has that one.
    let name = facts.name.as_str();
    if name.len() <= LABEL_MAX {
        labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
    }
    labels.extend(facts.labels.clone());
    labels
}

/// Feature that tells an API server from 1.36 on that it may pass WebSockets on to us unchanged,
/// instead of using SPDY. Older ones don't know the field, and drop it.
///
/// Upstream: `ExtendWebSocketsToKubelet`, KEP-4006.
const EXTEND_WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// Feature without which a scheduler from 1.35 on doesn't bind pods to us whose containers may be
/// restarted all at once.
///
/// Upstream: `RestartAllContainersOnContainerExits`, KEP-5532.
const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";

/// The features of our runtime. The Engine leaves the image's groups out only of a user with a
/// group: `supplementalGroupsPolicy: Strict` is honoured where `runAsGroup` is set, and the feature
/// is all of it.
const FEATURES: NodeFeatures = NodeFeatures {
    supplemental_groups_policy: Some(false),
};

/// Annotations that our Node always has.
pub(super) fn annotations(facts: &NodeFacts) -> BTreeMap<String, String> {
    [
        (ATTACH_DETACH.to_owned(), "true".to_owned()),
        (keys::OWNER.to_owned(), facts.owner.clone()),
    ]
    .collect_map()
}

/// The status our Node should have now. Conditions keep their transition times from `before`.
pub fn compute_node_status(
    facts: &NodeFacts,
    readings: &Readings,
    problems: &PodProblems,
    before: &[NodeCondition],
    now: Timestamp,
) -> NodeStatus {
    NodeStatus {
        addresses: Some(addresses(facts)),
        capacity: Some(quantities(&facts.capacity, facts.max_pods)),
        allocatable: Some(quantities(&facts.allocatable(), facts.max_pods)),
        conditions: Some(compute_conditions(readings, problems, before, now)),
        daemon_endpoints: facts.node_api_port.map(daemon_endpoints),
        declared_features: Some(declared_features(facts)),
        features: Some(FEATURES),
        node_info: Some(node_info(facts)),
        images: Some(images(facts)).filter(|images| !images.is_empty()),
        ..NodeStatus::default()
    }
}

/// The features that others ask the Node for, in the order of the alphabet: the API server refuses
/// another.
fn declared_features(facts: &NodeFacts) -> Vec<String> {
    let streams = facts.node_api_port.map(|_| EXTEND_WEBSOCKETS);
    let all = streams.into_iter().chain([RESTART_ALL_CONTAINERS]);
    all.map(str::to_owned).collect()
}

/// The endpoint that the API server calls: this port of one of the addresses.
fn daemon_endpoints(port: u16) -> NodeDaemonEndpoints {
    NodeDaemonEndpoints {
        kubelet_endpoint: Some(DaemonEndpoint {
            port: i32::from(port),
        }),
    }
}

fn quantities(amounts: &Amounts, pods: usize) -> BTreeMap<String, ApiQuantity> {
    let bytes = |bytes: u64| match bytes {
        bytes if bytes > 0 && bytes % 1024 == 0 => format!("{}Ki", bytes / 1024),
        bytes => bytes.to_string(),
    };
    [
        ("cpu", milli_text(amounts.cpu_milli)),
        ("memory", bytes(amounts.memory_bytes)),
        ("ephemeral-storage", bytes(amounts.ephemeral_storage_bytes)),
        ("pods", pods.to_string()),
    ]
    .into_iter()
    .map(|(resource, text)| (resource.to_owned(), ApiQuantity(text)))
    .collect_map()
}

/// `InternalIP`s, then the machine's name, as upstream orders them.
fn addresses(facts: &NodeFacts) -> Vec<NodeAddress> {
    let address = |type_: &str, address: String| NodeAddress {
        type_: type_.to_owned(),
        address,
    };
    let ips = facts.addresses.iter();
    let mut addresses: Vec<NodeAddress> = ips
        .map(|ip| address("InternalIP", ip.to_string()))
        .collect();
    if !facts.hostname.is_empty() {
        addresses.push(address("Hostname", facts.hostname.clone()));
    }
    addresses
}

fn node_info(facts: &NodeFacts) -> NodeSystemInfo {
    let engine = facts.engine_version.as_deref().unwrap_or("unknown");
    NodeSystemInfo {
        machine_id: facts.machine_id.clone(),
        system_uuid: facts.system_uuid.clone(),
        boot_id: facts.boot_id.clone(),
        kernel_version: facts.kernel_version.clone(),
        os_image: facts.os_image.clone(),
        container_runtime_version: format!("docker://{engine}"),
        kubelet_version: kubelet_version(),
        operating_system: "linux".to_owned(),
        architecture: facts.arch.clone(),
        ..NodeSystemInfo::default()
    }
}

/// The largest images, largest first; equally large ones by name, so that the order is stable.
fn images(facts: &NodeFacts) -> Vec<ContainerImage> {
    let mut images: Vec<_> = facts
        .images
        .iter()
        .filter(|image| !image.names.is_empty())
        .collect();
    images.small_sort_by_key(|image| (Reverse(image.size_bytes), &image.names));
    images
        .into_iter()
        .take(IMAGES_MAX)
        .map(|image| ContainerImage {
            names: Some(image.names.iter().take(IMAGE_NAMES_MAX).cloned().collect()),
            size_bytes: Some(i64::try_from(image.size_bytes).unwrap_or(i64::MAX)),
        })
        .collect()
}
