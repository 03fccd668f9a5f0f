//! The kind of object for a service, and the fields around its pod template.

use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::rollout::PROGRESS_DEADLINE_SECONDS;

use crate::keys;
use crate::project::Service;
use crate::tree::Node;
use crate::value::{Map, Value};
use crate::words;

use super::groups::{Groups, dependencies};
use super::names::Names;
use super::{Build, WRITE_DURATION, entry_at, field, replicas};

/// The condition of a service that waits for the end of another.
const COMPLETED: &str = "service_completed_successfully";

/// The restart policy of a service that takes the place of `restart`.
const RESTART_POLICY: [&str; 2] = ["deploy", "restart_policy"];

/// Labels that are those of a service, and not of its containers.
const DEPLOY_LABELS: &[&str] = &["deploy", "labels"];

/// Keys of a service that concern its Deployment or `DaemonSet`.
const OF_A_DEPLOYMENT: &[&[&str]] = &[
    DEPLOY_LABELS,
    &["deploy", "update_config", "order"],
    &["deploy", "update_config", "monitor"],
];

/// The order of an update that every document has if it names no other.
const STOP_FIRST: &str = "stop-first";

/// The seconds within which a Deployment's pod must become Ready if it says none.
const DEPLOYMENT_DEADLINE_SECONDS: i64 = 600;

/// The same of a Pod document.
const POD_DEADLINE_SECONDS: i64 = 300;

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

/// The kind of object for a service that is neither a Deployment nor a `DaemonSet`.
pub(super) enum Kind<'a> {
    Pod,
    Job,
    /// A container in the pod of another service.
    Joined(&'a Service),
}

impl Build<'_, '_> {
    /// Reports the keys of a service that concern a Deployment, if it has none of its own. Keys with
    /// the same value as those of the service whose pod it joins are imported with that one.
    pub(super) fn check_workload(&mut self, service: &Service, kind: &Kind<'_>) {
        let why = match kind {
            Kind::Pod => "the service is a Pod, which has no Deployment".to_owned(),
            Kind::Job => "the service is a Job, which is not updated".to_owned(),
            Kind::Joined(owner) => format!("the service runs in {}'s pod", owner.name),
        };
        for path in OF_A_DEPLOYMENT {
            let Some(entry) = entry_at(service, path) else {
                continue;
            };
            let value = &entry.value;
            let is_kept = match kind {
                Kind::Pod => false,
                Kind::Job => *path == DEPLOY_LABELS,
                Kind::Joined(owner) => entry_at(owner, path).is_some_and(|own| own.value == *value),
            };
            let is_default = keys::is_default(value) || value.text().as_deref() == Some(STOP_FIRST);
            if !is_kept && !is_default {
                self.lost(&entry.place, field(service, &path.join(".")), &why, "");
            }
        }
    }

    /// The metadata of a service's workload.
    fn workload_metadata(&mut self, service: &Service) -> Map {
        let labels = service.node.at(DEPLOY_LABELS).cloned();
        let annotations = labels.map(|labels| self.annotations(service, &labels, "deploy.labels"));
        let metadata = self.metadata(&service.id);
        metadata.with_some("annotations", annotations)
    }

    /// The restart policy of a service. A service without one is restarted, unless another service
    /// waits for its completion.
    pub(super) fn restart(&self, service: &Service) -> Restart {
        let is_job = self.is_job(service);
        match written_restart(service) {
            // A Job's pods can't have it.
            Some(Restart::Always) if !is_job => Restart::Always,
            Some(Restart::Always) | None if is_job => Restart::OnFailure,
            written => written.unwrap_or(Restart::Always),
        }
    }

    /// The restart policy of the container of a service that joins another one's pod, unless it equals
    /// the pod's. Without one it has the pod's policy, so that it doesn't keep a pod running that
    /// should complete.
    pub(super) fn joined_restart(
        &self,
        service: &Service,
        owner: &Service,
    ) -> Option<&'static str> {
        let says_it = written_restart(service).is_some() || self.is_job(service);
        let restart = self.restart(service);
        (says_it && restart != self.restart(owner)).then(|| restart.as_str())
    }

    /// Whether a service becomes a `Job`: it runs to completion, and others wait for that. It is
    /// retried on failure, because it doesn't wait for its own dependencies.
    fn is_job(&self, service: &Service) -> bool {
        let mode = service.node.at(&["deploy", "mode"]).and_then(Node::text);
        let restarts = written_restart(service) == Some(Restart::Always);
        mode.is_some_and(|mode| mode.ends_with("-job"))
            || (self.is_waited_for(service) && !restarts)
    }

    /// Whether another service waits for the end of a service. Those that no active profile has count,
    /// too: which profiles are active doesn't change what a service is.
    fn is_waited_for(&self, service: &Service) -> bool {
        let mut conditions = self.conditions(service);
        conditions.any(|condition| condition.as_deref() == Some(COMPLETED))
    }

    /// The conditions under which all services of the files depend on a service.
    fn conditions(&self, service: &Service) -> impl Iterator<Item = Option<String>> {
        let all = self.project.root.entries_of("services").iter();
        let entries = all.filter_map(|other| {
            let depends_on = other.value.get("depends_on")?;
            depends_on.get(&service.name)
        });
        entries.map(|entry| entry.set("condition").and_then(Node::text))
    }

    /// Adds notes for services that are restarted by default although they may be meant to complete.
    pub(super) fn note_restarts(&mut self, groups: &Groups) {
        let services = self.project.services.iter();
        let restarted: Vec<&Service> = services
            .filter(|service| {
                let owner = self.project.service(&groups.owner(&service.name));
                !groups.is_init(&service.name)
                    && owner.is_some_and(|owner| self.restart(owner) == Restart::Always)
                    && self.restart(service) == Restart::Always
                    && !is_restart_written(service)
                    && !self.is_long_running(service, groups)
            })
            .collect();
        let Some(first) = restarted.first() else {
            return;
        };
        let names: Vec<&str> = restarted.iter().map(|service| &*service.name).collect();
        let message = format!(
            "services without restart are restarted whenever they exit, while compose leaves them \
             stopped: {}",
            names.join(", ")
        );
        let note = Diagnostic::warning(Code::UnsupportedField, "", message)
            .help("write restart: \"no\" for those that end, and restart: always for the others");
        self.loader.notes.push(first.place.mark(note));
    }

    /// Whether a service serves others according to its keys, or is watched while it runs.
    fn is_long_running(&self, service: &Service, groups: &Groups) -> bool {
        let is_filled = |key: &str| !service.node.items_of(key).is_empty();
        let mode = service.node.at(&["deploy", "mode"]).and_then(Node::text);
        is_filled("ports")
            || is_filled("expose")
            || service.node.set("healthcheck").is_some()
            || mode.as_deref() == Some("global")
            || !groups.joined(&service.name).is_empty()
            || self
                .conditions(service)
                .any(|condition| condition.as_deref() != Some(COMPLETED))
    }

    /// Whether a service is a `Pod` document.
    pub(super) fn is_pod(&self, service: &Service) -> bool {
        self.restart(service) != Restart::Always && !self.is_job(service)
    }

    /// Adds the documents for a service with its own pod.
    pub(super) fn workload(&mut self, service: &Service, groups: &Groups, names: &Names<'_>) {
        self.check_restart(service);
        let mut pod = self.pod(service, groups);
        pod.labels = names.labels(service);
        if !self.is_job(service) {
            pod.restart_on_edits();
        }
        let restart = self.restart(service);
        let (replicas, file) = (replicas(service), service.id.as_str());
        if self.is_job(service) {
            return self.add_job(service, &pod, restart);
        }
        if restart != Restart::Always {
            return self.add_pods(service, pod, restart);
        }
        let mode = service.node.at(&["deploy", "mode"]).and_then(Node::text);
        // Compose starts as many containers as the service requests, whatever its mode is.
        let is_global = mode.as_deref() == Some("global") && replicas == 1;
        let template = Map::new()
            .with("metadata", pod_metadata(service, Map::new(), &pod))
            .with("spec", pod.spec());
        let selector = Map::new().with("matchLabels", Map::new().with("app", file));
        let mut spec = Map::new();
        if !is_global {
            spec.put("replicas", replicas);
        }
        self.update(service, is_global, &mut spec);
        let min_ready = match spec.get("minReadySeconds") {
            Some(Value::Int(seconds)) => *seconds,
            _ => 0,
        };
        let deadline = pod.healthy_within.saturating_add(min_ready);
        if !is_global && deadline > DEPLOYMENT_DEADLINE_SECONDS {
            spec.put("progressDeadlineSeconds", deadline);
        }
        let spec = spec.with("selector", selector).with("template", template);
        let metadata = self.workload_metadata(service);
        let kind = if is_global { "DaemonSet" } else { "Deployment" };
        self.add(
            file,
            "apps/v1",
            kind,
            metadata,
            Map::new().with("spec", spec),
        );
    }

    /// Adds the `Job` of a service. One of which compose starts no container is suspended.
    fn add_job(&mut self, service: &Service, pod: &super::Pod, restart: Restart) {
        self.check_workload(service, &Kind::Job);
        let (replicas, file) = (replicas(service), service.id.as_str());
        let template = Map::new()
            .with("metadata", pod_metadata(service, Map::new(), pod))
            .with("spec", pod.spec().with("restartPolicy", restart.as_str()));
        let many = (replicas > 1).then_some(replicas);
        let spec = Map::new()
            .with_some("suspend", (replicas == 0).then_some(true))
            .with_some("completions", many)
            .with_some("parallelism", many)
            .with("template", template);
        let metadata = self.workload_metadata(service);
        self.add(
            file,
            "batch/v1",
            "Job",
            metadata,
            Map::new().with("spec", spec),
        );
    }

    /// Adds the `Pod` documents of a service, one for each replica.
    fn add_pods(&mut self, service: &Service, mut pod: super::Pod, restart: Restart) {
        self.check_workload(service, &Kind::Pod);
        if pod.healthy_within > POD_DEADLINE_SECONDS {
            let deadline = pod.healthy_within.to_string();
            pod.annotations.put(PROGRESS_DEADLINE_SECONDS, deadline);
        }
        let (replicas, file) = (replicas(service), service.id.as_str());
        for number in 0..replicas {
            let name = match replicas {
                1 => service.id.clone(),
                _ => format!("{}-{number}", service.id),
            };
            let metadata = pod_metadata(service, self.metadata(&name), &pod);
            let spec = pod.spec().with("restartPolicy", restart.as_str());
            self.add(file, "v1", "Pod", metadata, Map::new().with("spec", spec));
        }
    }

    /// Reports the parts of a service's restart policy that aren't imported.
    pub(super) fn check_restart(&mut self, service: &Service) {
        let Some(entry) = service.node.entry("restart") else {
            return;
        };
        let text = entry.value.text().unwrap_or_default();
        let (place, path) = (entry.place.clone(), field(service, "restart"));
        if service.node.at(&RESTART_POLICY).is_some() {
            let own = restart_of(&text);
            if own.is_some() && own != written_restart(service) {
                let why = "deploy.restart_policy is used instead";
                self.lost(&place, path, why, "remove one of them");
            }
            return;
        }
        match text.split_once(':') {
            Some(("on-failure", _)) => {
                let why =
                    "the number of attempts: a container that fails is restarted with back-off";
                self.lost(&place, path, why, "");
            }
            _ if ["", "no", "false", "always", "unless-stopped", "on-failure"]
                .contains(&&*text) => {}
            _ => {
                let help = "write no, always, unless-stopped or on-failure";
                self.invalid(
                    &entry.value.clone(),
                    path,
                    "this is not a restart policy",
                    help,
                );
            }
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
                self.invalid(
                    &monitor.clone(),
                    path,
                    "this is not a duration",
                    WRITE_DURATION,
                );
            }
        }
    }

    /// Reports the services that a service doesn't wait for.
    pub(super) fn dependencies(&mut self, service: &Service, groups: &Groups) {
        let project = self.project;
        for name in dependencies(service) {
            // Only init containers of the own pod are waited for.
            let is_carried = groups.is_init(&name) && groups.owner(&name) == service.name;
            let other = project.service(&name);
            // Compose doesn't wait for a service of which it starts no container.
            if other.is_some_and(|other| replicas(other) == 0) {
                continue;
            }
            let entries = service
                .node
                .get("depends_on")
                .and_then(|all| all.entry(&name));
            let Some(entry) = entries.cloned() else {
                continue;
            };
            let path = field(service, &format!("depends_on.{name}"));
            let is_required = entry.value.get("required").and_then(Node::bool) != Some(false);
            if other.is_none() && is_required {
                self.lost(&entry.place, path, "this service isn't imported", "");
            } else if !is_carried && other.is_some() {
                let is_joined = groups.owner(&name) == groups.owner(&service.name);
                let (what, help) = if is_joined {
                    (
                        "containers of one pod start at the same time",
                        as_init(&name, &entry.value),
                    )
                } else {
                    (
                        "all pods start at the same time",
                        self.without(service).to_owned(),
                    )
                };
                let why = format!("{what}, so {} doesn't wait for {name}", service.name);
                self.lost(&entry.place, path, &why, &help);
            }
        }
    }

    /// The advice to a service that doesn't wait for one of another pod.
    fn without(&self, service: &Service) -> &'static str {
        match self.restart(service) {
            Restart::Always | Restart::OnFailure => {
                "a container that fails without it is restarted until it is available"
            }
            Restart::Never => {
                "with restart: on-failure a container that fails without it is started again"
            }
        }
    }
}

/// The advice to wait for another container of the pod, by the entry of `depends_on`.
fn as_init(name: &str, entry: &Node) -> String {
    let condition = entry.set("condition").and_then(Node::text);
    let how = match condition.as_deref() {
        Some(COMPLETED) => "",
        Some("service_healthy") => " with restartPolicy: Always and a startupProbe",
        _ => " with restartPolicy: Always",
    };
    format!("to have it wait, make {name} an init container{how}")
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::Int(i64::from(value))
    }
}

/// The restart policy that a service sets. `restart` is used only without `deploy.restart_policy`; a
/// policy without a condition means `any`.
pub(super) fn written_restart(service: &Service) -> Option<Restart> {
    let Some(policy) = service.node.at(&RESTART_POLICY) else {
        return restart_of(&service.node.set("restart").and_then(Node::text)?);
    };
    match policy.set("condition").and_then(Node::text) {
        Some(condition) => restart_of(&condition),
        None => Some(Restart::Always),
    }
}

/// A restart policy in the words of `restart` or of `deploy.restart_policy.condition`.
fn restart_of(text: &str) -> Option<Restart> {
    match text {
        "always" | "unless-stopped" | "any" => Some(Restart::Always),
        "no" | "none" | "false" => Some(Restart::Never),
        _ if text.starts_with("on-failure") => Some(Restart::OnFailure),
        _ => None,
    }
}

/// Whether a service says when it is restarted.
fn is_restart_written(service: &Service) -> bool {
    let restart = service.node.set("restart").and_then(Node::text);
    restart.is_some_and(|text| !text.is_empty()) || service.node.at(&RESTART_POLICY).is_some()
}

fn pod_metadata(service: &Service, metadata: Map, pod: &super::Pod) -> Map {
    let mut labels = Map::new().with("app", &*service.id);
    for (key, value) in &pod.labels.0 {
        labels.put(key, value.clone());
    }
    metadata
        .with("labels", labels)
        .with_some("annotations", Some(pod.annotations.clone()))
}
