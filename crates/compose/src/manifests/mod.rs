//! Converts a resolved project to manifests.
//!
//! Each service becomes a pod with one container. Services that share another service's network become
//! containers of its pod, and a service that must complete before one other service starts becomes an
//! init container of that one's pod.

use mirrorlet_core::api::diagnostic::Severity;
use mirrorlet_core::api::{Code, Diagnostic};

use crate::input::Options;
use crate::keys;
use crate::load::Loader;
use crate::project::{Project, Service};
use crate::tree::{Entry, Node, Place};
use crate::value::{Map, Value};

mod container;
mod groups;
mod names;
mod objects;
mod pod;
mod ports;
mod probe;
mod resources;
mod security;
mod volumes;
mod workload;

use groups::Groups;
use names::Names;
use pod::Pod;
use workload::Kind;

/// Keys of a service that concern its own pod, its end or its name. A service that becomes an init
/// container in another service's pod can't have them.
const NOT_OF_AN_INIT: [&[&str]; 12] = [
    &["labels"],
    &["annotations"],
    &["label_file"],
    &["logging"],
    &["stop_grace_period"],
    &["stop_signal"],
    &["init"],
    &["container_name"],
    &["deploy", "labels"],
    &["deploy", "update_config", "order"],
    &["deploy", "update_config", "monitor"],
    &["deploy", "update_config", "failure_action"],
];

/// A manifest, and the file that it belongs into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// Name of the file, without its ending.
    pub(crate) file: String,
    /// The manifest.
    pub(crate) value: Map,
}

impl Document {
    fn text_at(&self, keys: [&str; 2]) -> &str {
        let [first, second] = keys;
        let found = match self.value.get(first) {
            Some(Value::Map(map)) => map.get(second),
            other => other,
        };
        match found {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    pub(crate) fn kind(&self) -> &str {
        self.text_at(["kind", ""])
    }

    pub(crate) fn name(&self) -> &str {
        self.text_at(["metadata", "name"])
    }
}

/// Makes the manifests of a project.
pub(crate) struct Build<'a, 'b> {
    pub(crate) loader: &'b mut Loader<'a>,
    pub(crate) project: &'b Project,
    pub(crate) documents: Vec<Document>,
}

/// Builds the manifests of a project. Keys that aren't imported are added to the loader's problems.
pub(crate) fn build(loader: &mut Loader<'_>, project: &Project) -> Vec<Document> {
    let services = project.services.iter();
    let services = services.map(|service| (service.name.as_str(), &service.node));
    keys::report(&project.root, services, &mut loader.problems);
    let groups = Groups::of(project);
    let mut build = Build {
        loader,
        project,
        documents: Vec::new(),
    };
    let names = Names::of(&build, &groups);
    for service in &project.services {
        if groups.has_own_pod(&service.name) {
            build.workload(service, &groups, &names);
        } else if !groups.has_own_pod(&groups.owner(&service.name)) {
            let message = "network_mode leads back to this service: one of these services needs a network of its own";
            let path = field(service, "network_mode");
            build.loader.error(&service.place, &path, message);
        }
        build.dependencies(service, &groups);
    }
    build.names(&names, &groups);
    build.note_restarts(&groups);
    build.claims();
    build.configs();
    build.networks();
    build.unique();
    build.documents
}

/// Help for a value that is no duration.
const WRITE_DURATION: &str = "write a number with its unit, for example 1m30s";
/// Help for a value that is no size.
const WRITE_SIZE: &str = "write a number with its unit, for example 512m";

impl Build<'_, '_> {
    fn options(&self) -> &Options {
        self.loader.options
    }

    /// Reports something that isn't carried over.
    fn lost(&mut self, place: &Place, field: impl Into<String>, why: &str, help: &str) {
        self.differs(place, field, format!("not carried over: {why}"), help);
    }

    /// Reports something of which the manifests don't say the same.
    fn differs(&mut self, place: &Place, field: impl Into<String>, message: String, help: &str) {
        let mut problem = Diagnostic::new(Severity::Warning, Code::UnsupportedField, "", message)
            .field(field.into());
        if !help.is_empty() {
            problem = problem.help(help);
        }
        self.loader.problems.push(place.mark(problem));
    }

    /// Reports a key of a service that isn't carried over.
    fn lost_key(&mut self, service: &Service, key: &str, why: &str, help: &str) {
        self.lost(&place_of(service, key), field(service, key), why, help);
    }

    /// Reports a value that can't be read, and how it is written. The value may be secret.
    fn invalid(&mut self, node: &Node, field: impl Into<String>, message: &str, help: &str) {
        let problem = Diagnostic::error(Code::InvalidValue, "", message);
        let problem = problem.field(field.into()).help(help);
        self.loader.problems.push(node.place.mark(problem));
    }

    fn metadata(&self, name: &str) -> Map {
        let namespace = self.options().namespace.clone();
        Map::new()
            .with("name", name)
            .with_some("namespace", namespace)
    }

    fn add(&mut self, file: &str, api: &str, kind: &str, metadata: Map, rest: Map) {
        let mut value = Map::new()
            .with("apiVersion", api)
            .with("kind", kind)
            .with("metadata", metadata);
        for (key, entry) in rest.0 {
            value.put(&key, entry);
        }
        self.documents.push(Document {
            file: file.to_owned(),
            value,
        });
    }

    /// Networks separate services; names of manifests don't.
    fn networks(&mut self) {
        let networks = self.project.root.get("networks").cloned();
        let networks = networks.as_ref().map(Node::entries).unwrap_or_default();
        let mut used: Vec<&str> = Vec::new();
        for service in &self.project.services {
            let own = service.node.entries_of("networks");
            let is_defined = |entry: &&Entry| {
                entry.key == "default" || networks.iter().any(|network| network.key == entry.key)
            };
            for entry in own.iter().filter(|entry| !is_defined(entry)) {
                let message = format!("the network {} is not defined below networks", entry.key);
                let path = field(service, "networks");
                self.loader.error(&entry.place, &path, message);
            }
            let names: Vec<&str> = match own {
                [] => vec!["default"],
                own => own.iter().map(|entry| &*entry.key).collect(),
            };
            for name in names {
                if !used.contains(&name) {
                    used.push(name);
                }
            }
        }
        if used.len() < 2 {
            return;
        }
        for network in networks
            .iter()
            .filter(|network| used.contains(&&*network.key))
        {
            let why =
                "networks don't separate the services: all pods of a namespace reach one another";
            self.lost(&network.place, format!("networks.{}", network.key), why, "");
        }
    }

    /// Two objects can't have the same kind and name.
    fn unique(&mut self) {
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for document in &self.documents {
            let key = (document.kind(), document.name());
            if !seen.contains(&key) {
                seen.push(key);
                continue;
            }
            let mut services = self.project.services.iter();
            let Some(service) = services.find(|service| service.id == document.file) else {
                continue;
            };
            let message = format!("the project would define {} {} twice", key.0, key.1);
            let problem = Diagnostic::error(Code::InvalidValue, "", message)
                .field(format!("services.{}", service.name))
                .help("rename one of them");
            self.loader.problems.push(service.place.mark(problem));
        }
    }
}

/// The field of a service's key in messages.
fn field(service: &Service, key: &str) -> String {
    format!("services.{}.{key}", service.name)
}

/// The entry of a service below several keys.
fn entry_at<'a>(service: &'a Service, path: &[&str]) -> Option<&'a Entry> {
    let (last, above) = path.split_last()?;
    service.node.at(above)?.entry(last)
}

/// The place of a key of a service; that of the service where it has no such key.
fn place_of(service: &Service, key: &str) -> Place {
    let entry = service.node.entry(key);
    entry.map_or_else(|| service.place.clone(), |entry| entry.place.clone())
}

/// The number of containers of a service.
fn replicas(service: &Service) -> i64 {
    let node = &service.node;
    let scale = node
        .set("scale")
        .or_else(|| node.at(&["deploy", "replicas"]));
    scale.and_then(Node::int).unwrap_or(1).max(0)
}

impl Build<'_, '_> {
    /// Reports the keys of a service that it can't have as an init container of another one's pod.
    fn check_init(&mut self, init: &Service, owner: &Service) {
        let mut found: Vec<(String, &Entry)> = Vec::new();
        for path in NOT_OF_AN_INIT {
            let entry = entry_at(init, path);
            found.extend(entry.map(|entry| (path.join("."), entry)));
        }
        for network in init.node.entries_of("networks") {
            let path = format!("networks.{}.aliases", network.key);
            let aliases = network.value.entry("aliases");
            found.extend(aliases.map(|entry| (path, entry)));
        }
        let why = format!(
            "the service runs as an init container of {}'s pod",
            owner.name
        );
        for (path, entry) in found {
            if !keys::is_default(&entry.value) {
                self.lost(&entry.place, field(init, &path), &why, "");
            }
        }
        self.check_restart(init);
    }

    /// Reports the scale of a service whose containers are in another one's pods, if there are more
    /// or fewer of those.
    fn check_scale(&mut self, joined: &Service, owner: &Service) {
        let (own, pods) = (replicas(joined), replicas(owner));
        if own != pods {
            let name = &owner.name;
            let why = format!(
                "the scale of {own}: each pod of {name} has one container of this service, and {name} has a scale of {pods}"
            );
            self.lost_key(joined, "network_mode", &why, "");
        }
    }

    /// A pod of a service's containers.
    fn pod(&mut self, service: &Service, groups: &Groups) -> Pod {
        let mut pod = Pod::default();
        for init in groups.inits(&service.name) {
            if let Some(init) = self.project.service(&init).cloned() {
                self.check_init(&init, service);
                let container = self.container(&init, &mut pod, true);
                pod.init.push(container);
            }
        }
        self.pod_settings(service, &mut pod);
        let container = self.container(service, &mut pod, false);
        pod.containers.push(container);
        let joined = groups.joined(&service.name);
        let joined: Vec<Service> = joined
            .iter()
            .filter_map(|other| self.project.service(other).cloned())
            .collect();
        for other in &joined {
            self.check_restart(other);
            self.check_scale(other, service);
            self.check_workload(other, &Kind::Joined(service));
            self.pod_settings(other, &mut pod);
            let container = self.container(other, &mut pod, false);
            let restart = self.joined_restart(other, service);
            pod.containers
                .push(container.with_some("restartPolicy", restart));
        }
        let all: Vec<&Service> = std::iter::once(service).chain(&joined).collect();
        self.init(&all, &mut pod);
        self.check_shared(&all);
        pod
    }
}
