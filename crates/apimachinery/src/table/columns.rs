//! The columns of each resource, and the values of their cells.

use mirrorlet_core::api::Timestamp;
use serde_json::Value;

use super::cells::{
    NONE, UNKNOWN, UNSET, access_modes, address, array, claim_modes, claimed, completions,
    controller, count, duration, endpoints, entries, external, involved, job_status, last_schedule,
    node_status, or, owned, ports, ready, roles, selector, since, slice_addresses, slice_ports,
    source, suspended,
};
use super::pods::pod_cells;
use crate::resources::{PODS, Resource};

/// A column: its title and its cells. The title is prefixed with `~` for columns of `-o wide` only, `#`
/// for numbers and `?` for booleans.
pub(super) struct Column(pub &'static str, Cell);

/// The source of a cell's value. Places in an object are JSON pointers.
enum Cell {
    /// The text there, or another where it is empty.
    Text(&'static str, &'static str),
    /// The number there, or 0.
    Count(&'static str),
    /// The time since the moment there.
    Since(&'static str),
    /// A property of the containers in the list at this path.
    Containers(&'static str, &'static str),
    /// The labels there, as a selector is printed.
    Labels(&'static str),
    /// The result of a function of the object.
    Made(fn(&Value, Timestamp) -> Value),
    /// One of those that [`pod_cells`] makes together.
    OfPod,
}
use Cell::{Containers, Count, Labels, Made, OfPod, Since, Text};

const NAME: Column = Column("Name", Text("/metadata/name", ""));
const AGE: Column = Column("Age", Since("/metadata/creationTimestamp"));
const CONTAINERS: &str = "/spec/template/spec/containers";
const NAMES: Column = Column("~Containers", Containers(CONTAINERS, "name"));
const IMAGES: Column = Column("~Images", Containers(CONTAINERS, "image"));
const JOB_CONTAINERS: &str = "/spec/jobTemplate/spec/template/spec/containers";
const SELECTOR: Column = Column("~Selector", Labels("/spec/selector/matchLabels"));
const ATTRIBUTES_CLASS: Column = Column(
    "VolumeAttributesClass",
    Text("/spec/volumeAttributesClassName", UNSET),
);

/// The columns of what keeps a number of pods.
const REPLICA_SETS: &[Column] = &[
    NAME,
    Column("#Desired", Count("/spec/replicas")),
    Column("#Current", Count("/status/replicas")),
    Column("#Ready", Count("/status/readyReplicas")),
    AGE,
    NAMES,
    IMAGES,
    SELECTOR,
];

/// The columns of each resource.
static COLUMNS: &[(&str, &[Column])] = &[
    (
        "pods",
        &[
            NAME,
            Column("Ready", OfPod),
            Column("Status", OfPod),
            Column("Restarts", OfPod),
            AGE,
            Column("~IP", OfPod),
            Column("~Node", OfPod),
            Column("~Nominated Node", OfPod),
            Column("~Readiness Gates", OfPod),
        ],
    ),
    (
        "nodes",
        &[
            NAME,
            Column("Status", Made(node_status)),
            Column("Roles", Made(roles)),
            AGE,
            Column("Version", Text("/status/nodeInfo/kubeletVersion", UNKNOWN)),
            Column("~Internal-IP", Made(|node, _| address(node, "InternalIP"))),
            Column("~External-IP", Made(|node, _| address(node, "ExternalIP"))),
            Column("~OS-Image", Text("/status/nodeInfo/osImage", UNKNOWN)),
            Column(
                "~Kernel-Version",
                Text("/status/nodeInfo/kernelVersion", UNKNOWN),
            ),
            Column(
                "~Container-Runtime",
                Text("/status/nodeInfo/containerRuntimeVersion", UNKNOWN),
            ),
        ],
    ),
    (
        "events",
        &[
            Column("Last Seen", Since("/lastTimestamp")),
            Column("Type", Text("/type", "")),
            Column("Reason", Text("/reason", "")),
            Column("Object", Made(involved)),
            Column("~Subobject", Text("/involvedObject/fieldPath", "")),
            Column("~Source", Made(source)),
            Column(
                "Message",
                Made(|event, _| owned(&event["message"]).trim().into()),
            ),
            Column("~First Seen", Since("/firstTimestamp")),
            Column(
                "~Count",
                Made(|event, _| event["count"].as_i64().unwrap_or(1).into()),
            ),
            Column("~Name", Text("/metadata/name", "")),
        ],
    ),
    (
        "namespaces",
        &[NAME, Column("Status", Text("/status/phase", "Active")), AGE],
    ),
    (
        "configmaps",
        &[
            NAME,
            Column(
                "Data",
                Made(|map, _| (entries(&map["data"]) + entries(&map["binaryData"])).into()),
            ),
            AGE,
        ],
    ),
    (
        "leases",
        &[
            NAME,
            Column("Holder", Text("/spec/holderIdentity", "")),
            AGE,
        ],
    ),
    (
        "secrets",
        &[
            NAME,
            Column("Type", Text("/type", "Opaque")),
            Column("Data", Made(|secret, _| entries(&secret["data"]).into())),
            AGE,
        ],
    ),
    (
        "services",
        &[
            NAME,
            Column("Type", Text("/spec/type", "ClusterIP")),
            Column("Cluster-IP", Text("/spec/clusterIP", NONE)),
            Column("External-IP", Made(external)),
            Column("Port(s)", Made(ports)),
            AGE,
            Column("~Selector", Labels("/spec/selector")),
        ],
    ),
    (
        "endpoints",
        &[NAME, Column("Endpoints", Made(endpoints)), AGE],
    ),
    (
        "endpointslices",
        &[
            NAME,
            Column("AddressType", Text("/addressType", "")),
            Column("Ports", Made(slice_ports)),
            Column("Endpoints", Made(slice_addresses)),
            AGE,
        ],
    ),
    (
        "persistentvolumeclaims",
        &[
            NAME,
            Column("Status", Text("/status/phase", "Pending")),
            Column("Volume", Text("/spec/volumeName", "")),
            Column("Capacity", Text("/status/capacity/storage", "")),
            Column("Access Modes", Made(claim_modes)),
            Column("StorageClass", Text("/spec/storageClassName", "")),
            ATTRIBUTES_CLASS,
            AGE,
            Column("~VolumeMode", Text("/spec/volumeMode", UNSET)),
        ],
    ),
    (
        "persistentvolumes",
        &[
            NAME,
            Column("Capacity", Text("/spec/capacity/storage", "")),
            Column(
                "Access Modes",
                Made(|volume, _| access_modes(&volume["spec"]["accessModes"])),
            ),
            Column(
                "Reclaim Policy",
                Text("/spec/persistentVolumeReclaimPolicy", "Retain"),
            ),
            Column("Status", Text("/status/phase", "Available")),
            Column("Claim", Made(claimed)),
            Column("StorageClass", Text("/spec/storageClassName", "")),
            ATTRIBUTES_CLASS,
            Column("Reason", Text("/status/reason", "")),
            AGE,
            Column("~VolumeMode", Text("/spec/volumeMode", UNSET)),
        ],
    ),
    (
        "deployments",
        &[
            NAME,
            Column("Ready", Made(ready)),
            Column("Up-to-date", Count("/status/updatedReplicas")),
            Column("Available", Count("/status/availableReplicas")),
            AGE,
            NAMES,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "statefulsets",
        &[NAME, Column("Ready", Made(ready)), AGE, NAMES, IMAGES],
    ),
    ("replicationcontrollers", REPLICA_SETS),
    ("replicasets", REPLICA_SETS),
    (
        "controllerrevisions",
        &[
            NAME,
            Column("Controller", Made(controller)),
            Column("Revision", Count("/revision")),
            AGE,
        ],
    ),
    (
        "daemonsets",
        &[
            NAME,
            Column("#Desired", Count("/status/desiredNumberScheduled")),
            Column("#Current", Count("/status/currentNumberScheduled")),
            Column("#Ready", Count("/status/numberReady")),
            Column("#Up-to-date", Count("/status/updatedNumberScheduled")),
            Column("#Available", Count("/status/numberAvailable")),
            Column("Node Selector", Labels("/spec/template/spec/nodeSelector")),
            AGE,
            NAMES,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "jobs",
        &[
            NAME,
            Column("Status", Made(job_status)),
            Column("Completions", Made(completions)),
            Column("Duration", Made(duration)),
            AGE,
            NAMES,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "scales",
        &[
            NAME,
            Column("#Desired", Count("/spec/replicas")),
            Column("#Available", Count("/status/replicas")),
            AGE,
        ],
    ),
    (
        "cronjobs",
        &[
            NAME,
            Column("Schedule", Text("/spec/schedule", "")),
            Column("Timezone", Text("/spec/timeZone", NONE)),
            Column("?Suspend", Made(suspended)),
            Column(
                "#Active",
                Made(|cron_job, _| array(&cron_job["status"]["active"]).count().into()),
            ),
            Column("Last Schedule", Made(last_schedule)),
            AGE,
            Column("~Containers", Containers(JOB_CONTAINERS, "name")),
            Column("~Images", Containers(JOB_CONTAINERS, "image")),
            Column(
                "~Selector",
                Labels("/spec/jobTemplate/spec/selector/matchLabels"),
            ),
        ],
    ),
];

/// The columns of a resource.
pub(super) fn columns(resource: &Resource) -> &'static [Column] {
    let mut all = COLUMNS.iter().filter(|_| resource.is_stored());
    let found = all.find(|(plural, _)| *plural == resource.plural);
    found.map_or(&[NAME, AGE], |(_, columns)| columns)
}

/// The cells of an object's row, in column order.
pub(super) fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    if resource == &PODS {
        return pod_cells(object, now);
    }
    let columns = columns(resource).iter();
    columns
        .map(|Column(_, cell)| cell.of(object, now))
        .collect()
}

impl Cell {
    fn of(&self, object: &Value, now: Timestamp) -> Value {
        let at = |pointer| object.pointer(pointer).unwrap_or(&Value::Null);
        match *self {
            Text(pointer, other) => or(at(pointer), other),
            Count(pointer) => count(at(pointer)).into(),
            Since(pointer) => since(at(pointer), now).into(),
            Containers(pointer, key) => {
                let each: Vec<_> = array(at(pointer)).map(|c| owned(&c[key])).collect();
                each.join(",").into()
            }
            Labels(pointer) => selector(at(pointer)),
            Made(make) => make(object, now),
            OfPod => Value::Null,
        }
    }
}
