//! Groups of services that share a pod.

use std::collections::BTreeMap;

use crate::project::{Project, Service};
use crate::tree::Node;

use super::replicas;
use super::workload::{Restart, written_restart};
use mirrorlet_core::small::SmallSort;

/// Keys of a service that concern its whole pod: with one of them it can't be an init container.
const OF_A_POD: [&str; 11] = [
    "extra_hosts",
    "dns",
    "dns_search",
    "dns_opt",
    "sysctls",
    "pid",
    "ipc",
    "network_mode",
    "hostname",
    "group_add",
    "ports",
];

/// The service in whose pod each service runs.
pub(super) struct Groups {
    joined: BTreeMap<String, String>,
    inits: Vec<(String, String)>,
}

impl Groups {
    pub(super) fn of(project: &Project) -> Self {
        let mut joined = BTreeMap::new();
        // A pod would run the container of a service of which compose starts none.
        for service in project.services.iter().filter(|one| replicas(one) > 0) {
            if let Some(owner) = network_owner(project, service) {
                joined.insert(service.name.clone(), owner);
            }
        }
        let mut groups = Self {
            joined,
            inits: Vec::new(),
        };
        for service in &project.services {
            if let Some(owner) = groups.init_owner(project, service) {
                groups.inits.push((service.name.clone(), owner));
            }
        }
        // One that waits for another one comes behind it.
        let inits = std::mem::take(&mut groups.inits);
        let waits = |one: &(String, String)| {
            let service = project.service(&one.0);
            let names = service.map(dependencies).unwrap_or_default();
            names
                .iter()
                .filter(|name| inits.iter().any(|i| i.0 == **name))
                .count()
        };
        let mut sorted = inits.clone();
        sorted.small_sort_by_key(waits);
        groups.inits = sorted;
        groups
    }

    /// The service that owns a service's pod: itself, or the one whose pod it joins.
    pub(super) fn owner(&self, name: &str) -> String {
        let init = self.inits.iter().find(|(init, _)| init == name);
        let joined = self.joined.get(name).or(init.map(|(_, owner)| owner));
        joined.cloned().unwrap_or_else(|| name.to_owned())
    }

    pub(super) fn has_own_pod(&self, name: &str) -> bool {
        self.owner(name) == name
    }

    pub(super) fn is_init(&self, name: &str) -> bool {
        self.inits.iter().any(|(init, _)| init == name)
    }

    /// The init containers of a service's pod.
    pub(super) fn inits(&self, owner: &str) -> Vec<String> {
        let own = self.inits.iter().filter(|(_, other)| other == owner);
        own.map(|(name, _)| name.clone()).collect()
    }

    /// The other containers of a service's pod.
    pub(super) fn joined(&self, owner: &str) -> Vec<String> {
        let own = self.joined.iter().filter(|(_, other)| *other == owner);
        own.map(|(name, _)| name.clone()).collect()
    }

    /// The only service that waits for this service's completion, if this one can be its init
    /// container.
    fn init_owner(&self, project: &Project, service: &Service) -> Option<String> {
        let mut dependents = project
            .services
            .iter()
            .filter(|other| dependencies(other).contains(&service.name));
        let owner = dependents.next()?;
        let condition = owner
            .node
            .at(&["depends_on", &service.name, "condition"])
            .and_then(Node::text);
        let restarts = written_restart(service) == Some(Restart::Always);
        let is_free = OF_A_POD.iter().all(|key| service.node.set(key).is_none());
        let fits = dependents.next().is_none()
            && condition.as_deref() == Some("service_completed_successfully")
            && is_free
            && !restarts
            && replicas(service) == 1
            && replicas(owner) == 1
            && !self.joined.contains_key(&owner.name)
            && !self.joined.values().any(|other| *other == service.name)
            && !dependencies(owner).is_empty()
            // An init container can't have init containers.
            && !project.services.iter().any(|third| {
                let needs = third.node.at(&["depends_on", &owner.name, "condition"]);
                needs.and_then(Node::text).as_deref() == Some("service_completed_successfully")
            });
        fits.then(|| owner.name.clone())
    }
}

/// The services that a service depends on.
pub(super) fn dependencies(service: &Service) -> Vec<String> {
    let entries = service.node.entries_of("depends_on").iter();
    entries.map(|entry| entry.key.clone()).collect()
}

/// The service that a service shares the network of, over several steps.
fn network_owner(project: &Project, service: &Service) -> Option<String> {
    let mut owner = None;
    let mut current = service;
    for _ in 0..project.services.len() {
        let mode = current.node.set("network_mode").and_then(Node::text);
        let Some(name) = mode
            .as_deref()
            .and_then(|mode| mode.strip_prefix("service:"))
        else {
            break;
        };
        let Some(next) = project
            .service(name)
            .filter(|next| next.name != service.name)
        else {
            break;
        };
        owner = Some(next.name.clone());
        current = next;
    }
    owner
}
