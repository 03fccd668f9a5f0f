//! Converts the agent's state to the objects of the API. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use mirrorlet_apimachinery::cache::{Cache, Key};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{self, JOBS, NAMESPACES, NODES, PODS, Resource};
use mirrorlet_core::api::report::{JobReport, WorkloadReport};
use mirrorlet_core::api::{Timestamp, hex, keys};
use mirrorlet_core::desired::{Origin, PodSource, SourceObject, SourceWorkload};
use mirrorlet_core::objects::claims::{Bindings, Bound, ClaimName, Presence};
use mirrorlet_core::objects::{Object, ObjectKind};
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::endpoints;
use super::files;
use super::held::Held;
use super::jobs;
use super::leases::NODE_LEASES;
use super::namespace_files::{Ending, StoredNamespace};
use super::namespaces::terminate;
use super::pods::pod_object;
use super::revisions;
use super::templates::{self, Templates};
use super::workloads;
use crate::server::view::Shown;
use mirrorlet_core::small::SmallCollect;

/// Namespaces that every cluster has, whatever is in them.
pub(super) const BUILT_IN: [&str; 3] = [keys::DEFAULT_NAMESPACE, NODE_LEASES, "kube-system"];

/// When the deletion of an object was requested, and the grace period of its containers in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deletion {
    /// When they are killed.
    pub(super) at: Timestamp,
    /// Its grace period.
    pub(super) grace_seconds: i64,
}

/// The other inputs of the objects.
pub(super) struct Context<'a> {
    /// Name of the Node.
    pub(super) node: &'a str,
    /// When the agent started: the age of objects without their own.
    pub(super) started_at: Timestamp,
    /// The first start of an agent with its root directory: the age of this node.
    pub(super) first_started_at: Timestamp,
    /// The namespaces that are stored.
    pub(super) namespaces: &'a BTreeMap<String, StoredNamespace>,
    /// The requested deletions, by the UID of the object.
    pub(super) deletions: &'a BTreeMap<String, Deletion>,
    /// The namespaces that are being deleted.
    pub(super) ending: &'a BTreeMap<String, Ending>,
    /// The objects that finalizers hold after their end, and the directory of their files.
    pub(super) held: (&'a Held, &'a Path),
    /// When the file at a location was first seen.
    pub(super) times: &'a BTreeMap<String, Timestamp>,
    /// The previous objects, and their documents.
    pub(super) before: (&'a Cache, &'a BTreeMap<Key, Object>),
}

impl Context<'_> {
    /// The creation time of a document's object, if the document has none.
    fn since(&self, origin: Option<&Origin>) -> Timestamp {
        let of_file = origin.and_then(|origin| self.times.get(&origin.location));
        of_file.copied().unwrap_or(self.started_at)
    }

    /// The object of a document as it was made last, if nothing else is in it and it hasn't changed.
    /// They may be large.
    fn unchanged(&self, key: &Key, object: &Object) -> Option<Arc<Value>> {
        let is_plain = matches!(object.kind(), ObjectKind::ConfigMap | ObjectKind::Secret);
        let (cache, documents) = self.before;
        let known = documents.get(key).filter(|known| known.is_same(object));
        known.filter(|_| is_plain).and_then(|_| cache.get(key))
    }
}

/// The objects by their keys, and the files that define them.
#[derive(Default)]
pub(super) struct Projection {
    pub(super) objects: BTreeMap<Key, Arc<Value>>,
    pub(super) origins: BTreeMap<Key, Origin>,
    /// The documents of objects that pods refer to, before the API's additions.
    pub(super) documents: BTreeMap<Key, Object>,
    /// The original templates of workloads, and those of their versions.
    pub(super) templates: BTreeMap<Key, Templates>,
}

impl Projection {
    fn add(&mut self, resource: &'static Resource, object: Value, origin: Option<&Origin>) {
        let key = Key::new(resource, meta::namespace(&object), meta::name(&object));
        if let Some(origin) = origin {
            self.origins.insert(key.clone(), origin.clone());
        }
        self.objects.insert(key, object.into());
    }

    /// Adds objects of those kinds that clients can't write.
    fn add_made(&mut self, objects: impl IntoIterator<Item = Value>, context: &Context<'_>) {
        for mut object in objects {
            let kind = object["kind"].as_str().unwrap_or_default();
            if let Some(resource) = Resource::of_kind(kind) {
                complete(&mut object, resource.kind, context.started_at);
                self.add(resource, object, None);
            }
        }
    }
}

/// The key of the object of a document.
fn key_of(object: &Object) -> Key {
    let key = object.key();
    let resource = match key.kind {
        ObjectKind::ConfigMap => &resources::CONFIG_MAPS,
        ObjectKind::Secret => &resources::SECRETS,
        ObjectKind::Service => &resources::SERVICES,
        ObjectKind::Claim => &resources::CLAIMS,
        ObjectKind::Volume => &resources::VOLUMES,
    };
    Key::new(resource, key.namespace, key.name)
}

/// The objects for everything that the agent shows, except for events.
pub(super) fn project(shown: &Shown, context: &Context<'_>) -> Projection {
    let mut projection = Projection::default();
    let workloads: Vec<_> = shown.workloads.iter().filter_map(Known::of).collect();
    let owners = workloads.iter();
    let owners = owners.map(|known| (known.key.clone(), known.uid.clone()));
    let owners = context.held.0.workloads().chain(owners);
    let owners: BTreeMap<_, _> = owners.collect_map();
    // A pod that is being stopped gives way to one of its name that is wanted.
    let (leaving, wanted): (Vec<_>, Vec<_>) =
        shown.pods.iter().partition(|pod| pod.origin.is_none());
    let mut pods = BTreeMap::new();
    for pod in leaving.into_iter().chain(wanted) {
        let metadata = &pod.pod.metadata;
        pods.insert((&metadata.namespace, &metadata.name), pod);
        let object = pod_object(pod, &owners, context);
        projection.add(&PODS, object, pod.origin.as_ref());
    }
    for object in &shown.objects {
        let key = key_of(&object.object);
        let made = || plain_object(object, key.resource, &shown.bindings, context).into();
        let value = context.unchanged(&key, &object.object);
        let value = value.unwrap_or_else(made);
        let origin = object.origin.clone();
        projection.origins.insert(key.clone(), origin);
        let document = object.object.clone();
        projection.documents.insert(key.clone(), document);
        if let Object::Service(service) = &object.object {
            let made = endpoints::objects(service, &value, pods.values().copied());
            projection.add_made(made, context);
        }
        projection.objects.insert(key, value);
    }
    for known in &workloads {
        if let Some(resource) = Resource::of_kind(known.key.kind.as_str()) {
            let object = workload_object(known, shown, context);
            let key = Key::new(resource, meta::namespace(&object), meta::name(&object));
            let versions = shown.revisions.get(&known.key);
            let templates = Templates::new(&known.workload.document, versions);
            projection.templates.insert(key, templates);
            for run in runs_of(known, shown) {
                let mut made = jobs::run(&object, run);
                complete(&mut made, JOBS.kind, context.started_at);
                jobs::job(&mut made, Some(run));
                projection.add(&JOBS, made, None);
            }
            let of_it = shown.revisions.get(&known.key).into_iter();
            let of_it = of_it.flat_map(|all| {
                revisions::objects(&object, known.key.kind, all, context.started_at)
            });
            projection.add_made(of_it, context);
            projection.add(resource, object, Some(&known.workload.origin));
        }
    }
    if let Some(node) = &shown.node {
        projection.add(&NODES, node_object(node, context), None);
    }
    let (held, directory) = context.held;
    let live = |key: &Key| projection.objects.get(key).map(|object| &**object);
    for (key, object) in held.objects(shown.complete, live) {
        let path = files::path(directory, &key);
        let origin = Origin::whole(PodSource::Embedded, path.to_string_lossy());
        projection.add(key.resource, object, Some(&origin));
    }
    let mut names: BTreeSet<String> = BUILT_IN.map(str::to_owned).into();
    names.extend(context.namespaces.keys().cloned());
    let of_objects = projection.objects.keys().map(|key| key.namespace.clone());
    names.extend(of_objects.filter(|namespace| !namespace.is_empty()));
    for name in names {
        projection.add(&NAMESPACES, namespace_object(&name, context), None);
    }
    projection
}

/// A UID derived from a text: the same text gives the same UID.
pub(super) fn uid_of(text: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(text).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    // Version 8 is for values of one's own making.
    uuid(bytes, 8)
}

/// A UUID (RFC 9562) of that version, from these bytes.
pub(super) fn uuid(mut bytes: [u8; 16], version: u8) -> String {
    bytes[6] = (bytes[6] & 0x0f) | (version << 4);
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = hex(&bytes);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
    parts
        .map(|part| text.get(part).unwrap_or_default())
        .join("-")
}

/// A moment as objects have it: to the second.
pub(super) fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}

/// A workload, with its key and the UID of its object.
struct Known<'a> {
    workload: &'a SourceWorkload,
    key: WorkloadKey,
    /// The UID of its object: the one that it was created with, if the API stores it.
    uid: String,
}

impl<'a> Known<'a> {
    fn of(workload: &'a SourceWorkload) -> Option<Self> {
        let key = workload.key()?;
        let uid = match meta::uid(&workload.document) {
            "" => uid_of(&key.to_string()),
            uid => uid.to_owned(),
        };
        Some(Self { workload, key, uid })
    }
}

pub(super) fn node_uid(name: &str) -> String {
    uid_of(&format!("Node {name}"))
}

/// Fills in the common fields of all objects. `since` is the creation time if it has none.
fn complete(object: &mut Value, kind: &str, since: Timestamp) {
    let identity = format!("{kind} {}/{}", meta::namespace(object), meta::name(object));
    let metadata = meta::metadata(object);
    metadata
        .entry("uid")
        .or_insert_with(|| uid_of(&identity).into());
    // Programs that make manifests write `null`.
    let created = metadata.entry("creationTimestamp").or_insert(Value::Null);
    if !created.is_string() {
        *created = seconds(since).into();
    }
}

fn plain_object(
    object: &SourceObject,
    resource: &Resource,
    bindings: &Bindings,
    context: &Context<'_>,
) -> Value {
    let value = match &object.object {
        Object::ConfigMap(map) => serde_json::to_value(&**map),
        Object::Secret(secret) => serde_json::to_value(&**secret),
        Object::Service(service) => serde_json::to_value(&**service),
        Object::Claim(claim) => serde_json::to_value(&**claim),
        Object::Volume(volume) => serde_json::to_value(&**volume),
    };
    let mut value = value.unwrap_or_default();
    value["apiVersion"] = resource.api_version().into();
    value["kind"] = resource.kind.into();
    let since = context.since(Some(&object.origin));
    complete(&mut value, resource.kind, since);
    match object.object.kind() {
        ObjectKind::Secret if !value["type"].is_string() => value["type"] = "Opaque".into(),
        ObjectKind::Service => service_defaults(&mut value),
        ObjectKind::Claim => claim_status(&mut value, bindings),
        ObjectKind::Volume => volume_status(&mut value, bindings),
        ObjectKind::Secret | ObjectKind::ConfigMap => {}
    }
    value
}

/// A Service here is only a name: it resolves to the pods, and has no address of its own.
fn service_defaults(service: &mut Value) {
    let spec = &mut service["spec"];
    for (key, default) in [
        ("type", "ClusterIP"),
        ("clusterIP", "None"),
        ("sessionAffinity", "None"),
        ("internalTrafficPolicy", "Cluster"),
        ("ipFamilyPolicy", "SingleStack"),
    ] {
        if !spec[key].is_string() {
            spec[key] = default.into();
        }
    }
    for (key, default) in [("clusterIPs", "None"), ("ipFamilies", "IPv4")] {
        if !spec[key].is_array() {
            spec[key] = json!([default]);
        }
    }
    if let Some(ports) = spec["ports"].as_array_mut() {
        for port in ports {
            if !port["protocol"].is_string() {
                port["protocol"] = "TCP".into();
            }
            if port["targetPort"].is_null() {
                port["targetPort"] = port["port"].clone();
            }
        }
    }
    service["status"] = json!({"loadBalancer": {}});
}

fn claim_status(claim: &mut Value, bindings: &Bindings) {
    let name = ClaimName::new(meta::namespace(claim), meta::name(claim));
    claim["status"] = match bindings.get(&name) {
        Some(bound) => {
            claim["spec"]["volumeName"] = bound.name().into();
            let capacity = claim["spec"]["resources"]["requests"].clone();
            let modes = claim["spec"]["accessModes"].clone();
            let phase = match bound.presence() {
                Presence::Missing => "Lost",
                Presence::Unknown | Presence::Present => "Bound",
            };
            json!({"phase": phase, "accessModes": modes, "capacity": capacity})
        }
        None => json!({"phase": "Pending"}),
    };
}

fn volume_status(volume: &mut Value, bindings: &Bindings) {
    let own = meta::name(volume).to_owned();
    let is_it = |bound: &Bound| matches!(bound, Bound::Volume(name) if *name == own);
    let claim = bindings.iter().find(|(_, bound)| is_it(bound));
    volume["status"] = match claim {
        Some((claim, _)) => {
            volume["spec"]["claimRef"] = json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace,
                "name": claim.name,
            });
            json!({"phase": "Bound"})
        }
        None => json!({"phase": "Available"}),
    };
}

/// The Jobs that are runs of a CronJob.
fn runs_of<'a>(known: &Known<'_>, shown: &'a Shown) -> Vec<&'a JobReport> {
    if known.key.kind != WorkloadKind::CronJob {
        return Vec::new();
    }
    let is_run = |job: &&JobReport| {
        job.namespace == known.key.namespace && job.cron_job.as_ref() == Some(&known.key.name)
    };
    shown.jobs.iter().filter(is_run).collect()
}

fn workload_object(known: &Known<'_>, shown: &Shown, context: &Context<'_>) -> Value {
    let (workload, key) = (known.workload, &known.key);
    let mut object = (*workload.document).clone();
    let metadata = meta::metadata(&mut object);
    metadata.insert("namespace".to_owned(), key.namespace.as_str().into());
    metadata.insert("uid".to_owned(), known.uid.as_str().into());
    templates::show(&mut object);
    let since = context.since(Some(&workload.origin));
    let is_it = |namespace: &str, name: &str| namespace == key.namespace && name == key.name;
    if key.kind != WorkloadKind::Job {
        complete(&mut object, key.kind.as_str(), since);
    }
    match key.kind {
        WorkloadKind::Job => {
            let mut all = shown.jobs.iter();
            let report = all.find(|job| is_it(&job.namespace, &job.name) && job.cron_job.is_none());
            let since = report.and_then(|job| job.started_at).unwrap_or(since);
            complete(&mut object, key.kind.as_str(), since);
            jobs::job(&mut object, report);
            return object;
        }
        WorkloadKind::CronJob => {
            let mut all = shown.cron_jobs.iter();
            let report = all.find(|job| is_it(&job.namespace, &job.name));
            jobs::cron_job(&mut object, report, &runs_of(known, shown));
            return object;
        }
        WorkloadKind::Deployment | WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => {}
    }
    let of_it = |report: &&WorkloadReport| {
        report.namespace == workload.namespace && report.owner == workload.owner
    };
    if let Some(report) = shown.standings.iter().find(of_it) {
        workloads::complete(&mut object, key.kind, report);
    }
    let known = shown.revisions.get(key);
    if let Some(all) = known.filter(|_| key.kind == WorkloadKind::Deployment) {
        revisions::mark(&mut object, all);
    }
    object
}

fn node_object(node: &mirrorlet_core::api::core::Node, context: &Context<'_>) -> Value {
    let mut object = serde_json::to_value(node).unwrap_or_default();
    meta::metadata(&mut object).insert("uid".to_owned(), node_uid(context.node).into());
    complete(&mut object, "Node", context.first_started_at);
    object
}

/// The UID of a namespace: the one in its file, if there is one.
pub(super) fn namespace_uid(name: &str, stored: Option<&StoredNamespace>) -> Value {
    let said = stored.and_then(|stored| stored.metadata.get("uid").cloned());
    said.unwrap_or_else(|| uid_of(&format!("Namespace {name}")).into())
}

fn namespace_object(name: &str, context: &Context<'_>) -> Value {
    let ending = context.ending.get(name);
    let of_ending = ending.and_then(|ending| ending.stored.as_ref());
    let stored = context.namespaces.get(name).or(of_ending);
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": stored.map(|stored| stored.metadata.clone()).unwrap_or_default(),
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    });
    let metadata = meta::metadata(&mut object);
    metadata.insert("name".to_owned(), name.into());
    metadata.insert("uid".to_owned(), namespace_uid(name, stored));
    meta::label_namespace(&mut object);
    let since = stored.map_or(context.first_started_at, |stored| stored.since);
    complete(&mut object, NAMESPACES.kind, since);
    if let Some(ending) = ending {
        terminate(&mut object, &seconds(ending.since));
    }
    object
}
