//! The resources that are served, and the resource that a path refers to.

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
    /// Whether its objects have a generation, provided that they have a spec.
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
    /// API version of its objects; empty if it is the resource's own.
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

const SCALE: Subresource = Subresource {
    name: "scale",
    api_version: "autoscaling/v1",
    kind: "Scale",
    verbs: &["get", "patch", "update"],
};

/// One `static` for each resource: its group, its plural and singular, its kind, and the fields that
/// differ from those of [`BASE`].
macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident = $group:literal $plural:literal $singular:literal $kind:literal
        $({ $($field:ident: $value:expr),* $(,)? })?;)*) => {
        $($(#[$doc])* pub static $name: Resource = Resource {
            group: $group,
            plural: $plural,
            singular: $singular,
            kind: $kind,
            $($($field: $value,)*)?
            ..BASE
        };)*
    };
}

resources! {
    /// Pods.
    PODS = "" "pods" "pod" "Pod" {
        short_names: &["po"], categories: &["all"],
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
    };

    /// `ConfigMap`s.
    CONFIG_MAPS = "" "configmaps" "configmap" "ConfigMap" { short_names: &["cm"] };

    /// Secrets.
    SECRETS = "" "secrets" "secret" "Secret";

    /// Services.
    SERVICES = "" "services" "service" "Service" {
        generations: false, short_names: &["svc"], categories: &["all"],
    };

    /// `Endpoints`: the pods that a Service selects, in the older form.
    ENDPOINTS = "" "endpoints" "endpoints" "Endpoints" {
        generations: false, short_names: &["ep"], verbs: READ,
    };

    /// `EndpointSlice`s: the pods that a Service selects.
    ENDPOINT_SLICES = "discovery.k8s.io" "endpointslices" "endpointslice" "EndpointSlice" {
        generations: false, verbs: READ,
    };

    /// `ReplicationController`s, the predecessors of `ReplicaSet`s: the list is always empty. `kubectl
    /// get all` and `kubectl cluster-info dump` request it.
    REPLICATION_CONTROLLERS = "" "replicationcontrollers" "replicationcontroller"
        "ReplicationController" {
        short_names: &["rc"], categories: &["all"], verbs: READ,
    };

    /// Scales, in which the number of pods of a workload is read and set: not a resource of their own,
    /// but printed like one.
    SCALES = "autoscaling" "scales" "scale" "Scale" { verbs: READ };

    /// `PersistentVolumeClaim`s.
    CLAIMS = "" "persistentvolumeclaims" "persistentvolumeclaim" "PersistentVolumeClaim" {
        generations: false, short_names: &["pvc"],
    };

    /// `PersistentVolume`s.
    VOLUMES = "" "persistentvolumes" "persistentvolume" "PersistentVolume" {
        generations: false, short_names: &["pv"], namespaced: false,
    };

    /// Namespaces.
    NAMESPACES = "" "namespaces" "namespace" "Namespace" {
        generations: false, short_names: &["ns"], namespaced: false,
        verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    };

    /// Nodes: this one.
    NODES = "" "nodes" "node" "Node" {
        short_names: &["no"], namespaced: false, verbs: &["get", "list", "patch", "update", "watch"],
        subresources: &[sub("status", "Node", &["get"])],
    };

    /// Events.
    EVENTS = "" "events" "event" "Event" { short_names: &["ev"], verbs: READ };

    /// Deployments.
    DEPLOYMENTS = "apps" "deployments" "deployment" "Deployment" {
        short_names: &["deploy"], categories: &["all"],
        subresources: &[SCALE, sub("status", "Deployment", &["get"])],
    };

    /// `ReplicaSet`s: the versions of Deployments. They can't be deleted, so they are not among `all`:
    /// `kubectl delete all --all` would fail for them.
    REPLICA_SETS = "apps" "replicasets" "replicaset" "ReplicaSet" {
        short_names: &["rs"], verbs: READ,
    };

    /// `ControllerRevision`s: the versions of `StatefulSet`s.
    CONTROLLER_REVISIONS = "apps" "controllerrevisions" "controllerrevision" "ControllerRevision" {
        verbs: READ,
    };

    /// `StatefulSet`s.
    STATEFUL_SETS = "apps" "statefulsets" "statefulset" "StatefulSet" {
        short_names: &["sts"], categories: &["all"],
        subresources: &[SCALE, sub("status", "StatefulSet", &["get"])],
    };

    /// `DaemonSet`s.
    DAEMON_SETS = "apps" "daemonsets" "daemonset" "DaemonSet" {
        short_names: &["ds"], categories: &["all"],
        subresources: &[sub("status", "DaemonSet", &["get"])],
    };

    /// Jobs.
    JOBS = "batch" "jobs" "job" "Job" {
        categories: &["all"],
        subresources: &[sub("status", "Job", &["get"])],
    };

    /// `CronJob`s.
    CRON_JOBS = "batch" "cronjobs" "cronjob" "CronJob" {
        short_names: &["cj"], categories: &["all"],
        subresources: &[sub("status", "CronJob", &["get"])],
    };

    /// Leases: the Node's own, and those for leader election of programs.
    LEASES = "coordination.k8s.io" "leases" "lease" "Lease" { generations: false };

    /// The usage of pods.
    POD_METRICS = "metrics.k8s.io" "pods" "" "PodMetrics" {
        version: "v1beta1", verbs: &["get", "list"],
    };

    /// The usage of the node.
    NODE_METRICS = "metrics.k8s.io" "nodes" "" "NodeMetrics" {
        version: "v1beta1", namespaced: false, verbs: &["get", "list"],
    };

    /// Reviews whether the caller may do something: the answer is always yes.
    ACCESS_REVIEWS = "authorization.k8s.io" "selfsubjectaccessreviews" "selfsubjectaccessreview"
        "SelfSubjectAccessReview" {
        namespaced: false, verbs: &["create"],
    };

    /// Reviews all that the caller may do in a namespace: the answer is everything.
    RULES_REVIEWS = "authorization.k8s.io" "selfsubjectrulesreviews" "selfsubjectrulesreview"
        "SelfSubjectRulesReview" {
        namespaced: false, verbs: &["create"],
    };

    /// The user that sent a request.
    SUBJECT_REVIEWS = "authentication.k8s.io" "selfsubjectreviews" "selfsubjectreview"
        "SelfSubjectReview" {
        namespaced: false, verbs: &["create"],
    };
}

/// Every resource, by group, in the order of discovery.
pub static RESOURCES: &[&Resource] = &[
    &CONFIG_MAPS,
    &ENDPOINTS,
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
    &ENDPOINT_SLICES,
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

    /// Its name with its group, as in error messages: `deployments.apps`.
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

    /// Whether its objects are stored and can be watched.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"watch")
    }
}
