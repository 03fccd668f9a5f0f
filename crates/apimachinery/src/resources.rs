//! The resources that are served, and which of them a path means.

mod paths;

pub use paths::{Target, target};

/// A resource of the API.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// Name in paths, for example `pods`.
    pub plural: &'static str,
    /// Name of one, for example `pod`.
    pub singular: &'static str,
    /// Kind of its objects.
    pub kind: &'static str,
    /// Abbreviations that kubectl takes.
    pub short_names: &'static [&'static str],
    /// Names that mean several resources, `all` for example.
    pub categories: &'static [&'static str],
    /// Whether its objects have a namespace.
    pub namespaced: bool,
    /// Whether its objects have a generation, if they have a spec.
    pub generations: bool,
    /// The verbs that are served.
    pub verbs: &'static [&'static str],
    /// The subresources that are served.
    pub subresources: &'static [Subresource],
}

/// A subresource.
#[derive(Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Its name in paths, for example `log`.
    pub name: &'static str,
    /// API version of its objects; empty for that of the resource.
    pub api_version: &'static str,
    /// Kind of its objects.
    pub kind: &'static str,
    /// The verbs that are served.
    pub verbs: &'static [&'static str],
}

const READ: &[&str] = &["get", "list", "watch"];
const ALL: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const STREAM: &[&str] = &["create", "get"];

const fn sub(
    name: &'static str,
    kind: &'static str,
    verbs: &'static [&'static str],
) -> Subresource {
    Subresource {
        name,
        api_version: "",
        kind,
        verbs,
    }
}

const fn stream(name: &'static str, kind: &'static str) -> Subresource {
    sub(name, kind, STREAM)
}

const BASE: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    generations: true,
    verbs: ALL,
    subresources: &[],
};

/// Pods.
pub static PODS: Resource = Resource {
    plural: "pods",
    singular: "pod",
    kind: "Pod",
    short_names: &["po"],
    categories: &["all"],
    subresources: &[
        stream("attach", "PodAttachOptions"),
        sub("ephemeralcontainers", "Pod", &["get", "patch", "update"]),
        stream("exec", "PodExecOptions"),
        Subresource {
            name: "eviction",
            api_version: "policy/v1",
            kind: "Eviction",
            verbs: &["create"],
        },
        sub("log", "Pod", &["get"]),
        stream("portforward", "PodPortForwardOptions"),
        sub("status", "Pod", &["get"]),
    ],
    ..BASE
};

/// `ConfigMap`s.
pub static CONFIG_MAPS: Resource = Resource {
    plural: "configmaps",
    singular: "configmap",
    kind: "ConfigMap",
    short_names: &["cm"],
    ..BASE
};

/// Secrets.
pub static SECRETS: Resource = Resource {
    plural: "secrets",
    singular: "secret",
    kind: "Secret",
    ..BASE
};

/// Services.
pub static SERVICES: Resource = Resource {
    plural: "services",
    singular: "service",
    kind: "Service",
    generations: false,
    short_names: &["svc"],
    categories: &["all"],
    ..BASE
};

/// `ReplicationController`s, which came before `ReplicaSet`s: there are none. `kubectl get all` and
/// `kubectl cluster-info dump` ask for them.
pub static REPLICATION_CONTROLLERS: Resource = Resource {
    plural: "replicationcontrollers",
    singular: "replicationcontroller",
    kind: "ReplicationController",
    short_names: &["rc"],
    categories: &["all"],
    verbs: READ,
    ..BASE
};

/// Scales, the form in which the number of pods of a workload is read and set: no resource of their
/// own, but printed as one.
pub static SCALES: Resource = Resource {
    group: "autoscaling",
    plural: "scales",
    singular: "scale",
    kind: "Scale",
    verbs: READ,
    ..BASE
};

/// `PersistentVolumeClaim`s.
pub static CLAIMS: Resource = Resource {
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    kind: "PersistentVolumeClaim",
    generations: false,
    short_names: &["pvc"],
    ..BASE
};

/// `PersistentVolume`s.
pub static VOLUMES: Resource = Resource {
    plural: "persistentvolumes",
    singular: "persistentvolume",
    kind: "PersistentVolume",
    generations: false,
    short_names: &["pv"],
    namespaced: false,
    ..BASE
};

/// Namespaces.
pub static NAMESPACES: Resource = Resource {
    plural: "namespaces",
    singular: "namespace",
    kind: "Namespace",
    generations: false,
    short_names: &["ns"],
    namespaced: false,
    verbs: &[
        "create", "delete", "get", "list", "patch", "update", "watch",
    ],
    ..BASE
};

/// Nodes: this one.
pub static NODES: Resource = Resource {
    plural: "nodes",
    singular: "node",
    kind: "Node",
    short_names: &["no"],
    namespaced: false,
    verbs: &["get", "list", "patch", "update", "watch"],
    subresources: &[sub("status", "Node", &["get"])],
    ..BASE
};

/// Events.
pub static EVENTS: Resource = Resource {
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    verbs: READ,
    ..BASE
};

const SCALE: Subresource = Subresource {
    name: "scale",
    api_version: "autoscaling/v1",
    kind: "Scale",
    verbs: &["get", "patch", "update"],
};

/// Deployments.
pub static DEPLOYMENTS: Resource = Resource {
    group: "apps",
    plural: "deployments",
    singular: "deployment",
    kind: "Deployment",
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &[SCALE, sub("status", "Deployment", &["get"])],
    ..BASE
};

/// `ReplicaSet`s: the versions of Deployments. They can't be deleted, so they are not among `all`:
/// `kubectl delete all --all` would fail for them.
pub static REPLICA_SETS: Resource = Resource {
    group: "apps",
    plural: "replicasets",
    singular: "replicaset",
    kind: "ReplicaSet",
    short_names: &["rs"],
    verbs: READ,
    ..BASE
};

/// `ControllerRevision`s: the versions of `StatefulSet`s.
pub static CONTROLLER_REVISIONS: Resource = Resource {
    group: "apps",
    plural: "controllerrevisions",
    singular: "controllerrevision",
    kind: "ControllerRevision",
    verbs: READ,
    ..BASE
};

/// `StatefulSet`s.
pub static STATEFUL_SETS: Resource = Resource {
    group: "apps",
    plural: "statefulsets",
    singular: "statefulset",
    kind: "StatefulSet",
    short_names: &["sts"],
    categories: &["all"],
    subresources: &[SCALE, sub("status", "StatefulSet", &["get"])],
    ..BASE
};

/// `DaemonSet`s.
pub static DAEMON_SETS: Resource = Resource {
    group: "apps",
    plural: "daemonsets",
    singular: "daemonset",
    kind: "DaemonSet",
    short_names: &["ds"],
    categories: &["all"],
    subresources: &[sub("status", "DaemonSet", &["get"])],
    ..BASE
};

/// Jobs.
pub static JOBS: Resource = Resource {
    group: "batch",
    plural: "jobs",
    singular: "job",
    kind: "Job",
    categories: &["all"],
    subresources: &[sub("status", "Job", &["get"])],
    ..BASE
};

/// `CronJob`s.
pub static CRON_JOBS: Resource = Resource {
    group: "batch",
    plural: "cronjobs",
    singular: "cronjob",
    kind: "CronJob",
    short_names: &["cj"],
    categories: &["all"],
    subresources: &[sub("status", "CronJob", &["get"])],
    ..BASE
};

/// Leases: the Node's own, and those that programs elect their leaders with.
pub static LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    generations: false,
    ..BASE
};

/// The usage of pods.
pub static POD_METRICS: Resource = Resource {
    group: "metrics.k8s.io",
    version: "v1beta1",
    plural: "pods",
    singular: "",
    kind: "PodMetrics",
    verbs: &["get", "list"],
    ..BASE
};

/// The usage of the node.
pub static NODE_METRICS: Resource = Resource {
    group: "metrics.k8s.io",
    version: "v1beta1",
    plural: "nodes",
    singular: "",
    kind: "NodeMetrics",
    namespaced: false,
    verbs: &["get", "list"],
    ..BASE
};

/// Whether who asks may do something: always.
pub static ACCESS_REVIEWS: Resource = Resource {
    group: "authorization.k8s.io",
    plural: "selfsubjectaccessreviews",
    singular: "selfsubjectaccessreview",
    kind: "SelfSubjectAccessReview",
    namespaced: false,
    verbs: &["create"],
    ..BASE
};

/// All that who asks may do in a namespace: everything.
pub static RULES_REVIEWS: Resource = Resource {
    group: "authorization.k8s.io",
    plural: "selfsubjectrulesreviews",
    singular: "selfsubjectrulesreview",
    kind: "SelfSubjectRulesReview",
    namespaced: false,
    verbs: &["create"],
    ..BASE
};

/// Who asks.
pub static SUBJECT_REVIEWS: Resource = Resource {
    group: "authentication.k8s.io",
    plural: "selfsubjectreviews",
    singular: "selfsubjectreview",
    kind: "SelfSubjectReview",
    namespaced: false,
    verbs: &["create"],
    ..BASE
};

/// Every resource, by group, in the order of discovery.
pub static RESOURCES: &[&Resource] = &[
    &CONFIG_MAPS,
    &EVENTS,
    &NAMESPACES,
    &NODES,
    &CLAIMS,
    &VOLUMES,
    &PODS,
    &REPLICATION_CONTROLLERS,
    &SECRETS,
    &SERVICES,
    &CONTROLLER_REVISIONS,
    &DAEMON_SETS,
    &DEPLOYMENTS,
    &REPLICA_SETS,
    &STATEFUL_SETS,
    &SUBJECT_REVIEWS,
    &ACCESS_REVIEWS,
    &RULES_REVIEWS,
    &CRON_JOBS,
    &JOBS,
    &LEASES,
    &NODE_METRICS,
    &POD_METRICS,
];

impl Resource {
    /// Group and version, as in `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Its name with its group, as errors have it: `deployments.apps`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The resource of a kind.
    pub fn of_kind(kind: &str) -> Option<&'static Self> {
        let mut all = RESOURCES.iter().copied();
        all.find(|resource| resource.kind == kind)
    }

    /// Whether objects of it are kept and can be watched.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"watch")
    }
}
