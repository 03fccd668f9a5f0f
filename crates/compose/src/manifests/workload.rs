//! The kind of document that a service becomes, and the fields around its pod.

use crate::project::Service;
use crate::tree::Node;
use crate::value::{Map, Value};
use crate::words;

use super::groups::{Groups, dependencies};
use super::{Build, field, replicas};

/// The restart policy of a service's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Restart {
    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnFailure => "OnFailure",
            Self::Never => "Never",
        }
    }
}

impl Build<'_, '_> {
    /// The restart policy of a service. One that says nothing is restarted, unless another service
    /// waits for its end.
    pub(super) fn restart(&self, service: &Service) -> Restart {
        let condition = service.node.at(&["deploy", "restart_policy", "condition"]);
        let written = service
            .node
            .set("restart")
            .or(condition)
            .and_then(Node::text);
        match written.as_deref() {
            Some("always" | "unless-stopped" | "any") => Restart::Always,
            Some("no" | "none" | "false") => Restart::Never,
            Some(text) if text.starts_with("on-failure") => Restart::OnFailure,
            _ if self.is_job(service) => Restart::OnFailure,
            _ => Restart::Always,
        }
    }

    /// Whether a service is a `Job`: something that is done once, for which others wait. It is tried
    /// again if it fails, because it doesn't wait for what it needs itself.
    fn is_job(&self, service: &Service) -> bool {
        let mode = service.node.at(&["deploy", "mode"]).and_then(Node::text);
        let restart = service.node.set("restart").and_then(Node::text);
        let restarts = matches!(restart.as_deref(), Some("always" | "unless-stopped"));
        mode.is_some_and(|mode| mode.ends_with("-job"))
            || (self.is_waited_for(service) && !restarts)
    }

    fn is_waited_for(&self, service: &Service) -> bool {
        self.project.services.iter().any(|other| {
            let condition = other.node.at(&["depends_on", &service.name, "condition"]);
            condition.and_then(Node::text).as_deref() == Some("service_completed_successfully")
        })
    }

    /// Whether a service is a `Pod` document.
    pub(super) fn is_pod(&self, service: &Service) -> bool {
        self.restart(service) != Restart::Always && !self.is_job(service)
    }

    /// Adds the documents of a service with a pod of its own.
    pub(super) fn workload(&mut self, service: &Service, groups: &Groups) {
        self.check_restart(service);
        let pod = self.pod(service, groups);
        let restart = self.restart(service);
        let (replicas, file) = (replicas(service), service.id.as_str());
        if self.is_job(service) {
            let template = Map::new()
                .with("metadata", pod_metadata(service, Map::new(), &pod))
                .with("spec", pod.spec().with("restartPolicy", restart.as_str()));
            let many = (replicas > 1).then_some(replicas);
            let spec = Map::new()
                .with_some("completions", many)
                .with_some("parallelism", many)
                .with("template", template);
            let metadata = self.metadata(file);
            self.add(
                file,
                "batch/v1",
                "Job",
                metadata,
                Map::new().with("spec", spec),
            );
            return;
        }
        if restart != Restart::Always {
            for number in 0..replicas {
                let name = match replicas {
                    1 => service.id.clone(),
                    _ => format!("{}-{number}", service.id),
                };
                let metadata = pod_metadata(service, self.metadata(&name), &pod);
                let spec = pod.spec().with("restartPolicy", restart.as_str());
                self.add(file, "v1", "Pod", metadata, Map::new().with("spec", spec));
            }
            return;
        }
        let is_global = service.node.at(&["deploy", "mode"]).and_then(Node::text);
        let is_global = is_global.as_deref() == Some("global");
        let template = Map::new()
            .with("metadata", pod_metadata(service, Map::new(), &pod))
            .with("spec", pod.spec());
        let selector = Map::new().with("matchLabels", Map::new().with("app", file));
        let mut spec = Map::new();
        if !is_global {
            spec.put("replicas", replicas);
        }
        self.update(service, is_global, &mut spec);
        let spec = spec.with("selector", selector).with("template", template);
        let labels = service.node.at(&["deploy", "labels"]).cloned();
        let annotations = labels.map(|labels| self.annotations(service, &labels, "deploy.labels"));
        let metadata = self.metadata(file).with_some("annotations", annotations);
        let kind = if is_global { "DaemonSet" } else { "Deployment" };
        self.add(
            file,
            "apps/v1",
            kind,
            metadata,
            Map::new().with("spec", spec),
        );
    }

    fn check_restart(&mut self, service: &Service) {
        let Some(entry) = service.node.entry("restart") else {
            return;
        };
        let text = entry.value.text().unwrap_or_default();
        let (place, path) = (entry.place.clone(), field(service, "restart"));
        match text.split_once(':') {
            Some(("on-failure", _)) => {
                let why =
                    "the number of attempts: a container that fails is restarted with back-off";
                self.lost(&place, path, why, "");
            }
            _ if ["", "no", "false", "always", "unless-stopped", "on-failure"]
                .contains(&&*text) => {}
            _ => self.invalid(&entry.value.clone(), path, "this is no restart policy"),
        }
    }

    /// The order of an update, and how long a new version is watched.
    fn update(&mut self, service: &Service, is_global: bool, spec: &mut Map) {
        let update = |key: &str| service.node.at(&["deploy", "update_config", key]);
        let starts_first = update("order").and_then(Node::text).as_deref() == Some("start-first");
        if is_global && starts_first {
            let surge = Map::new().with("maxSurge", 1).with("maxUnavailable", 0);
            let update = Map::new().with("rollingUpdate", surge);
            spec.put("updateStrategy", update);
        } else if !is_global {
            let strategy = if starts_first {
                "RollingUpdate"
            } else {
                "Recreate"
            };
            spec.put("strategy", Map::new().with("type", strategy));
        }
        if let Some(monitor) = update("monitor") {
            if let Some(seconds) = monitor.text().and_then(|text| words::seconds(&text)) {
                spec.put("minReadySeconds", seconds);
            } else {
                let path = field(service, "deploy.update_config.monitor");
                self.invalid(&monitor.clone(), path, "this is not a duration");
            }
        }
    }

    /// Reports the services that a service doesn't wait for.
    pub(super) fn dependencies(&mut self, service: &Service, groups: &Groups) {
        for name in dependencies(service) {
            let is_carried = (groups.is_init(&name) && groups.owner(&name) == service.name)
                || groups.owner(&name) == groups.owner(&service.name);
            let entries = service
                .node
                .get("depends_on")
                .and_then(|all| all.entry(&name));
            let Some(entry) = entries.cloned() else {
                continue;
            };
            let path = field(service, &format!("depends_on.{name}"));
            let is_required = entry.value.get("required").and_then(Node::bool) != Some(false);
            if self.project.service(&name).is_none() && is_required {
                self.lost(&entry.place, path, "this service isn't imported", "");
            } else if !is_carried && self.project.service(&name).is_some() {
                let why = format!(
                    "all pods start at the same time, so {} doesn't wait for {name}",
                    service.name
                );
                let help = match self.restart(service) {
                    Restart::Always | Restart::OnFailure => {
                        "a container that fails without it is started again, until it is there"
                    }
                    Restart::Never => {
                        "with restart: on-failure a container that fails without it is started again"
                    }
                };
                self.lost(&entry.place, path, &why, help);
            }
        }
    }
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::Int(i64::from(value))
    }
}

fn pod_metadata(service: &Service, metadata: Map, pod: &super::Pod) -> Map {
    metadata
        .with("labels", Map::new().with("app", &*service.id))
        .with_some("annotations", Some(pod.annotations.clone()))
}
