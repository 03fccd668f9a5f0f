//! The names under which services are reachable: a `Service` for each.
//!
//! In compose, a network alias resolves to all containers that have it. The pods of such an alias have
//! a label of their own, which its `Service` selects.

use std::collections::BTreeMap;

use crate::project::{Service, is_service_name};
use crate::tree::Place;
use crate::value::Map;

use super::groups::Groups;
use super::{Build, field, ports, replicas};

/// Prefix of the label of pods that have an alias in common.
const SHARED: &str = "mirrorlet.dev/alias-";

/// The advice about a name that can't be carried over.
const RENAME: &str = "rename it: use only letters a to z, digits and -, and begin with a letter";

/// Where a name is valid in compose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope<'b> {
    /// The whole project: the name of a service or container.
    Project,
    /// On one network.
    Network(&'b str),
    /// In one other service: the alias of a link.
    Link,
}

/// A name that must resolve to a service.
struct Claim<'b> {
    name: String,
    /// The service that it resolves to.
    service: &'b Service,
    /// The service that runs the pod.
    owner: &'b Service,
    scope: Scope<'b>,
    place: Place,
    path: String,
}

impl Claim<'_> {
    fn is_main(&self) -> bool {
        self.name == self.service.name
    }

    /// The name of the `Service`.
    fn id(&self) -> &str {
        if self.is_main() {
            &self.service.id
        } else {
            &self.name
        }
    }

    /// Whether a lookup of the name can find both services in compose.
    fn meets(&self, other: &Self) -> bool {
        match (self.scope, other.scope) {
            (Scope::Link, _) | (_, Scope::Link) => false,
            (Scope::Network(one), Scope::Network(two)) => one == two,
            (Scope::Project, _) | (_, Scope::Project) => true,
        }
    }
}

/// The names of a project's services, except for those that a pod resolves by itself.
pub(super) struct Names<'b> {
    claims: Vec<Claim<'b>>,
    /// The services that have a name of their own.
    services: Vec<&'b Service>,
    /// For each name, the claims that its `Service` is for, by index.
    members: BTreeMap<String, Vec<usize>>,
}

impl<'b> Names<'b> {
    pub(super) fn of(build: &Build<'_, 'b>, groups: &Groups) -> Self {
        let project = build.project;
        let has_name = |service: &&Service| !groups.is_init(&service.name);
        let mut names = Self {
            claims: Vec::new(),
            services: project.services.iter().filter(has_name).collect(),
            members: BTreeMap::new(),
        };
        for service in names.services.clone() {
            if let Some(owner) = project.service(&groups.owner(&service.name)) {
                names.claims.extend(claims(build, service, owner));
            }
        }
        for (index, claim) in names.claims.iter().enumerate() {
            // The name of a service resolves to nothing else.
            if !claim.is_main() && names.service(claim.id()).is_some() {
                continue;
            }
            let members = names.members.entry(claim.id().to_owned()).or_default();
            let known = |member: &usize| names.claims.get(*member);
            let mut others = members.iter().filter_map(known);
            if members.is_empty() || others.any(|other| other.meets(claim)) {
                members.push(index);
            }
        }
        names
    }

    /// The claims that the `Service` of a name is for, the first of which names its file.
    fn members(&self, id: &str) -> Vec<&Claim<'b>> {
        let members = self.members.get(id).map(Vec::as_slice).unwrap_or_default();
        let claims = members.iter().filter_map(|index| self.claims.get(*index));
        claims.collect()
    }

    /// The service that has a name as its own.
    fn service(&self, id: &str) -> Option<&'b Service> {
        self.services
            .iter()
            .find(|service| service.id == id)
            .copied()
    }

    /// Whether a name resolves to the pods of several services.
    fn is_shared(&self, id: &str) -> bool {
        let members = self.members(id);
        let mut owners = members.iter().map(|claim| &claim.owner.name);
        let first = owners.next();
        is_service_name(id) && owners.any(|other| Some(other) != first)
    }

    /// The labels of a service's pod by which the `Service`s of shared names select it.
    pub(super) fn labels(&self, service: &Service) -> Map {
        let mut labels = Map::new();
        for id in self.members.keys().filter(|id| self.is_shared(id)) {
            let mut members = self.members(id).into_iter();
            if members.any(|claim| claim.owner.name == service.name) {
                labels.put(&format!("{SHARED}{id}"), "true");
            }
        }
        labels
    }
}

/// The names of a service that its pod doesn't have by itself.
fn claims<'b>(build: &Build<'_, 'b>, service: &'b Service, owner: &'b Service) -> Vec<Claim<'b>> {
    let mut claims = Vec::new();
    let mut add = |name: String, scope, place: &Place, path| {
        claims.push(Claim {
            name,
            service,
            owner,
            scope,
            place: place.clone(),
            path,
        });
    };
    if !build.has_own_name(service, owner) {
        let path = format!("services.{}", service.name);
        add(service.name.clone(), Scope::Project, &service.place, path);
    }
    if let Some(name) = service.node.entry("container_name") {
        let text = name.value.text().unwrap_or_default();
        let path = field(service, "container_name");
        add(text, Scope::Project, &name.place, path);
    }
    for network in service.node.entries_of("networks") {
        for alias in network.value.items_of("aliases") {
            let path = field(service, &format!("networks.{}.aliases", network.key));
            let text = alias.text().unwrap_or_default();
            add(text, Scope::Network(&network.key), &alias.place, path);
        }
    }
    for other in &build.project.services {
        for link in other.node.items_of("links") {
            let text = link.text().unwrap_or_default();
            if let Some((target, alias)) = text.split_once(':')
                && target == service.name
            {
                let path = field(other, "links");
                add(alias.to_owned(), Scope::Link, &link.place, path);
            }
        }
    }
    claims
}

impl Build<'_, '_> {
    /// Whether a service's pod has its name by itself: that of a Pod document is the service's.
    fn has_own_name(&self, service: &Service, owner: &Service) -> bool {
        owner.name == service.name && self.is_pod(owner) && replicas(owner) == 1
    }

    /// Adds a `Service` for each name.
    pub(super) fn names(&mut self, names: &Names<'_>, groups: &Groups) {
        for service in &names.services {
            if self.has_own_name(service, service)
                && groups.has_own_pod(&service.name)
                && service.id != service.name
            {
                self.renamed(service);
            }
        }
        for claim in &names.claims {
            self.name(claim, names, groups);
        }
    }

    fn renamed(&mut self, service: &Service) {
        let why = format!("its name isn't a DNS label; it is called {}", service.id);
        let place = service.place.clone();
        self.lost(&place, format!("services.{}", service.name), &why, RENAME);
    }

    fn name(&mut self, claim: &Claim<'_>, names: &Names<'_>, groups: &Groups) {
        let (id, at, path) = (claim.id(), &claim.place, claim.path.clone());
        if !is_service_name(id) {
            self.lost(at, path, "the name isn't a DNS label", RENAME);
            return;
        }
        if claim.is_main() && claim.service.id != claim.service.name {
            self.renamed(claim.service);
        }
        let other = names.service(id).filter(|_| !claim.is_main());
        if let Some(other) = other {
            // The pod of the other service may be the same.
            if groups.owner(&other.name) != claim.owner.name {
                let why = format!("{id} resolves only to the service of that name");
                self.lost(at, path, &why, "give it another name");
            }
            return;
        }
        let members = names.members(id);
        let Some(first) = members.first() else {
            return;
        };
        let mut owners = members.iter().map(|member| &member.owner.name);
        if !owners.any(|owner| *owner == claim.owner.name) {
            let why = format!(
                "{id} resolves only to {}: a name means the same in all pods of a namespace",
                first.service.name
            );
            self.lost(at, path, &why, "give it another name");
        } else if std::ptr::eq(*first, claim) {
            self.service(id, &members, names.is_shared(id));
        }
    }

    /// Adds the `Service` of a name.
    fn service(&mut self, id: &str, members: &[&Claim<'_>], is_shared: bool) {
        let Some(first) = members.first() else {
            return;
        };
        let (selector, ports) = if is_shared {
            let services: Vec<&Service> = members.iter().map(|member| member.service).collect();
            let selector = Map::new().with(&format!("{SHARED}{id}"), "true");
            (selector, ports::service_ports(&services))
        } else {
            let selector = Map::new().with("app", &*first.owner.id);
            (selector, ports::service_ports(&[first.service]))
        };
        let spec = Map::new()
            .with("clusterIP", "None")
            .with("publishNotReadyAddresses", true)
            .with("selector", selector)
            .with_some("ports", Some(ports));
        let (file, metadata) = (&first.owner.id, self.metadata(id));
        let rest = Map::new().with("spec", spec);
        self.add(file, "v1", "Service", metadata, rest);
    }
}
