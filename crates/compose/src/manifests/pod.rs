//! The settings of a service that concern its whole pod.

use std::net::IpAddr;

use mirrorlet_core::manifest::is_qualified;

use crate::interpolate::Variables;
use crate::project::{Service, label};
use crate::tree::Node;
use crate::value::{Map, Value};
use crate::words;

use super::{Build, WRITE_DURATION, entry_at, field, place_of, replicas};

/// Help for an extra host that can't be read.
const WRITE_HOST: &str = "write for example db=10.0.0.5";

/// Why a label isn't carried over whose name can't be that of an annotation.
const NO_ANNOTATION: &str =
    "this can't be the name of an annotation: a name has at most 63 letters, digits, -, _ and .";

/// The seconds that compose gives a container to stop.
const GRACE_SECONDS: i64 = 10;

/// Annotations for the limits of a container's log.
const LOG_MAX_SIZE: &str = "mirrorlet.dev/container-log-max-size";
const LOG_MAX_FILES: &str = "mirrorlet.dev/container-log-max-files";

/// Annotation by which a version that fails is not undone.
const RESTORE: &str = "mirrorlet.dev/rollout-restore";

/// Annotation by which an edit of a `ConfigMap` or Secret is an edit of the pod.
const RESTART_ON: &str = "mirrorlet.dev/restart-on";

/// Why a setting of a service isn't carried over that another service of its pod has set.
const ONE_OF_A_POD: &str =
    "the containers of a pod share it, and it is already set to another value";

/// The key of a service that sets the action after a failed update.
pub(super) const FAILURE_ACTION: &[&str] = &["deploy", "update_config", "failure_action"];

/// A pod as it is put together.
#[derive(Debug, Default)]
pub(super) struct Pod {
    /// Labels besides `app`.
    pub(super) labels: Map,
    pub(super) annotations: Map,
    pub(super) init: Vec<Map>,
    pub(super) containers: Vec<Map>,
    pub(super) volumes: Vec<Map>,
    pub(super) has_stop_signal: bool,
    /// Whether a container uses data of a `ConfigMap` or Secret that doesn't change while it runs:
    /// variables, or a single file mounted by its path.
    pub(super) has_fixed_data: bool,
    /// The seconds that compose allows its containers to become healthy.
    pub(super) healthy_within: i64,
    /// Every other entry of the spec.
    settings: Map,
    /// Addresses and their names.
    hosts: Vec<(String, Vec<String>)>,
    /// Names of sysctls and their values.
    sysctls: Vec<(String, String)>,
    groups: Vec<i64>,
    /// The longest time in seconds that one of its services has to stop.
    grace: i64,
}

impl Pod {
    /// Annotates the pod so that edits of `ConfigMap`s replace it if they would not reach it otherwise,
    /// as with `docker compose up`.
    pub(super) fn restart_on_edits(&mut self) {
        if self.has_fixed_data && self.annotations.get(RESTART_ON).is_none() {
            self.annotations.put(RESTART_ON, "config");
        }
    }

    /// Its spec.
    pub(super) fn spec(&self) -> Map {
        let sysctl = |(name, value): &(String, String)| {
            Map::new()
                .with("name", name.as_str())
                .with("value", value.as_str())
        };
        let sysctls: Vec<Map> = self.sysctls.iter().map(sysctl).collect();
        let mut security = Map::new();
        security.put_filled("sysctls", sysctls);
        security.put_filled("supplementalGroups", self.groups.clone());
        let os = self
            .has_stop_signal
            .then(|| Map::new().with("name", "linux"));
        let mut spec = Map::new().with("terminationGracePeriodSeconds", self.grace);
        for (key, value) in &self.settings.0 {
            spec.put(key, value.clone());
        }
        spec.with_some("os", os)
            .with_some("securityContext", Some(security))
            .with_some("initContainers", Some(self.init.clone()))
            .with("containers", self.containers.clone())
            .with_some("volumes", Some(self.volumes.clone()))
    }

    /// Whether a setting has another value already.
    fn has_other(&self, key: &str, value: &Value) -> bool {
        self.settings.get(key).is_some_and(|known| known != value)
    }

    /// Whether it has the host's network.
    pub(super) fn has_host_network(&self) -> bool {
        self.settings.get("hostNetwork").is_some()
    }

    /// Adds a volume, or finds the one with the same source; returns its name.
    pub(super) fn volume(&mut self, name: &str, source: (&str, Map), is_shared: bool) -> String {
        let (kind, content) = source;
        let wanted = Value::Map(content);
        let same = self
            .volumes
            .iter()
            .find(|known| known.get(kind) == Some(&wanted));
        if let (Some(Value::Text(known)), true) =
            (same.and_then(|known| known.get("name")), is_shared)
        {
            return known.clone();
        }
        let base = label(name);
        let is_taken = |name: &str| {
            let wanted = Value::from(name);
            self.volumes
                .iter()
                .any(|known| known.get("name") == Some(&wanted))
        };
        let mut free = base.clone();
        let mut number = 2;
        while is_taken(&free) {
            free = format!("{base}-{number}");
            number += 1;
        }
        self.volumes
            .push(Map::new().with("name", &*free).with(kind, wanted));
        free
    }
}

impl Build<'_, '_> {
    /// Applies the settings of a service to its pod. For a setting that a pod has only once, the value
    /// of its first service is used, and a different one is reported.
    pub(super) fn pod_settings(&mut self, service: &Service, pod: &mut Pod) {
        self.namespaces(service, pod);
        self.hosts(service, pod);
        self.dns(service, pod);
        self.hostname(service, pod);
        self.sysctls(service, pod);
        self.groups(service, pod);
        for key in ["annotations", "labels"] {
            if let Some(node) = service.node.set(key).cloned() {
                if key == "labels" && !node.entries().is_empty() {
                    let why = "labels are annotations of the pod, which programs that read labels of containers don't see";
                    self.lost_key(service, key, why, "");
                }
                for (name, value) in self.annotations(service, &node, key).0 {
                    self.annotate(service, key, &name, value, pod);
                }
            }
        }
        if keeps_failed(service) {
            pod.annotations.put(RESTORE, "false");
        }
        self.label_files(service, pod);
        self.logging(service, pod);
        pod.grace = pod.grace.max(self.grace(service));
    }

    /// The seconds that a service has to stop.
    fn grace(&mut self, service: &Service) -> i64 {
        let Some(written) = service.node.set("stop_grace_period") else {
            return GRACE_SECONDS;
        };
        let seconds = written.text().and_then(|text| words::seconds(&text));
        if seconds.is_none() {
            let path = field(service, "stop_grace_period");
            self.invalid(written, path, "this is not a duration", WRITE_DURATION);
        }
        seconds.unwrap_or(GRACE_SECONDS)
    }

    /// Shares the process namespace, so that the sandbox reaps processes, if one of the pod's services
    /// sets `init`. A pod in the host's PID namespace shares none of its own.
    pub(super) fn init(&mut self, services: &[&Service], pod: &mut Pod) {
        let has_init =
            |service: &Service| service.node.get("init").and_then(Node::bool) == Some(true);
        let has_host_pid = pod.settings.get("hostPID").is_some();
        for service in services.iter().filter(|service| has_init(service)) {
            if has_host_pid {
                let why = "with pid: host the host's init reaps processes";
                self.lost_key(service, "init", why, "");
            } else {
                pod.settings.put("shareProcessNamespace", true);
            }
        }
    }

    fn namespaces(&mut self, service: &Service, pod: &mut Pod) {
        let text = |key: &str| service.node.set(key).and_then(Node::text);
        match text("network_mode").as_deref() {
            None | Some("bridge" | "default") => {}
            Some("host") => pod.settings.put("hostNetwork", true),
            Some(mode) if mode.starts_with("service:") => {
                let name = &mode["service:".len()..];
                if self.project.service(name).is_none() {
                    self.lost_key(service, "network_mode", "that service isn't imported", "");
                } else if replicas(service) == 0 {
                    let why = format!("with a scale of 0 the service is left out of {name}'s pod");
                    let help = "to run it there, give it a scale of 1 and import the project again";
                    self.lost_key(service, "network_mode", &why, help);
                }
            }
            Some(_) => {
                let why = "a pod has a network of its own, or the host's";
                self.lost_key(service, "network_mode", why, "");
            }
        }
        for (key, entry) in [("pid", "hostPID"), ("ipc", "hostIPC")] {
            match text(key).as_deref() {
                None | Some("" | "private" | "shareable") => {}
                Some("host") => pod.settings.put(entry, true),
                Some(_) => {
                    let why = "a pod has namespaces of its own, or the host's";
                    self.lost_key(service, key, why, "");
                }
            }
        }
    }

    fn hosts(&mut self, service: &Service, pod: &mut Pod) {
        for item in service.node.items_of("extra_hosts") {
            let text = item.text().unwrap_or_default();
            let split = text.split_once('=').or_else(|| text.split_once(':'));
            let path = field(service, "extra_hosts");
            let Some((name, address)) = split else {
                self.invalid(item, path, "this is not NAME=ADDRESS", WRITE_HOST);
                continue;
            };
            let address = address.trim_matches(['[', ']']);
            if address == "host-gateway" {
                let why = "a manifest has no placeholder for the host's address";
                self.lost(
                    &item.place,
                    path,
                    why,
                    "add hostAliases with the host's address",
                );
            } else if address.parse::<IpAddr>().is_err() {
                self.invalid(item, path, "this is not an IP address", WRITE_HOST);
            } else {
                match pod.hosts.iter_mut().find(|(known, _)| known == address) {
                    Some((_, names)) if names.iter().any(|known| known == name) => {}
                    Some((_, names)) => names.push(name.to_owned()),
                    None => pod.hosts.push((address.to_owned(), vec![name.to_owned()])),
                }
            }
        }
        let alias = |(address, names): &(String, Vec<String>)| {
            Map::new()
                .with("ip", address.as_str())
                .with("hostnames", names.clone())
        };
        let aliases: Vec<Map> = pod.hosts.iter().map(alias).collect();
        pod.settings.put_filled("hostAliases", aliases);
    }

    fn hostname(&mut self, service: &Service, pod: &mut Pod) {
        let Some(name) = service.node.set("hostname").and_then(Node::text) else {
            return;
        };
        let first = name.split('.').next().unwrap_or_default().to_owned();
        if label(&first) != first {
            self.lost_key(service, "hostname", "the name isn't a DNS label", "");
            return;
        }
        if first != name {
            self.lost_key(
                service,
                "hostname",
                "the domain: only the part before the first dot is used",
                "",
            );
        }
        let first = Value::from(first);
        if pod.has_other("hostname", &first) {
            self.lost_key(service, "hostname", ONE_OF_A_POD, "");
        } else {
            pod.settings.put("hostname", first);
        }
    }

    fn groups(&mut self, service: &Service, pod: &mut Pod) {
        for item in service.node.items_of("group_add") {
            match item.int() {
                Some(group) if !pod.groups.contains(&group) => pod.groups.push(group),
                Some(_) => {}
                None => {
                    let why = "a group's name: a manifest takes only numbers";
                    self.lost(
                        &item.place,
                        field(service, "group_add"),
                        why,
                        "write the group's number",
                    );
                }
            }
        }
    }

    /// Converts labels to annotations; `key` is the service's key that contains them.
    pub(super) fn annotations(&mut self, service: &Service, labels: &Node, key: &str) -> Map {
        let mut found = Map::new();
        for entry in labels.entries() {
            if is_qualified(&entry.key) {
                found.put(&entry.key, entry.value.text().unwrap_or_default());
            } else {
                let path = field(service, &format!("{key}.{}", entry.key));
                self.lost(&entry.place, path, NO_ANNOTATION, "");
            }
        }
        found
    }

    /// Labels of files as annotations. Those of later files count, and before them the service's own.
    fn label_files(&mut self, service: &Service, pod: &mut Pod) {
        let (mut labels, none) = (Variables::new(), Variables::new());
        for item in service.node.items_of("label_file") {
            let Some(path) = item.get("path").and_then(Node::text) else {
                continue;
            };
            let place = item.place.clone();
            // A file can refer to labels of the files before it, and to no variable of the project.
            let found = self
                .loader
                .env_file(path.as_ref(), &labels, &none, true, Some(&place));
            for (key, value) in found.unwrap_or_default() {
                if !is_qualified(&key) {
                    let path = field(service, &format!("label_file.{key}"));
                    self.lost(&place, path, NO_ANNOTATION, "");
                }
                labels.insert(key, value);
            }
        }
        let own = service.node.get("labels");
        labels
            .retain(|name, _| is_qualified(name) && own.is_none_or(|own| own.get(name).is_none()));
        for (name, value) in labels {
            self.annotate(service, "label_file", &name, value.into(), pod);
        }
    }

    /// Adds an annotation to a pod. If the pod has it with another value, of a service before or of
    /// another key of the same service, it is reported.
    fn annotate(&mut self, service: &Service, key: &str, name: &str, value: Value, pod: &mut Pod) {
        match pod.annotations.get(name) {
            None => pod.annotations.put(name, value),
            Some(known) if *known == value => {}
            Some(_) => {
                let entry = entry_at(service, &[key, name]);
                let place = entry.map_or_else(|| place_of(service, key), |own| own.place.clone());
                let path = field(service, &format!("{key}.{name}"));
                self.lost(&place, path, ONE_OF_A_POD, "");
            }
        }
    }

    /// Limits of the log; the driver is the Engine's.
    fn logging(&mut self, service: &Service, pod: &mut Pod) {
        let Some(logging) = service.node.set("logging").cloned() else {
            return;
        };
        let driver = logging.set("driver").and_then(Node::text);
        if !matches!(driver.as_deref(), None | Some("json-file" | "local")) {
            let why = "the Engine's own log driver is used";
            self.lost_key(
                service,
                "logging",
                why,
                "set the driver in the Engine's daemon.json",
            );
            return;
        }
        for entry in logging.entries_of("options") {
            let text = entry.value.text().unwrap_or_default();
            let size = words::bytes(&text).filter(|size| *size >= 32 << 10);
            let path = field(service, &format!("logging.options.{}", entry.key));
            let (name, value) = match entry.key.as_str() {
                "max-size" if size.is_some() => {
                    (LOG_MAX_SIZE, words::quantity(size.unwrap_or_default()))
                }
                "max-file"
                    if entry
                        .value
                        .int()
                        .is_some_and(|files| (2..=1000).contains(&files)) =>
                {
                    (LOG_MAX_FILES, text)
                }
                _ => {
                    let why = "the supported options are max-size, at least 32k, and max-file, from 2 to 1000";
                    self.lost(&entry.place, path, why, "");
                    continue;
                }
            };
            let value = Value::from(value);
            let known = pod.annotations.get(name);
            if known.is_some_and(|known| *known != value) {
                self.lost(&entry.place, path, ONE_OF_A_POD, "");
            } else {
                pod.annotations.put(name, value);
            }
        }
    }

    fn dns(&mut self, service: &Service, pod: &mut Pod) {
        let list = |key: &str| service.node.set(key).map(Node::texts).unwrap_or_default();
        let servers = list("dns");
        let options = list("dns_opt").into_iter().map(|option| {
            let (name, value) = match option.split_once(':') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (&*option, None),
            };
            Map::new().with("name", name).with_some("value", value)
        });
        let config = Map::new()
            .with_some("nameservers", Some(servers.clone()))
            .with_some("searches", Some(list("dns_search")))
            .with_some("options", Some(options.collect::<Vec<_>>()));
        if config.is_empty() {
            return;
        }
        let config = Value::Map(config);
        if pod.has_other("dnsConfig", &config) {
            let keys = ["dns", "dns_search", "dns_opt"].into_iter();
            for key in keys.filter(|key| !list(key).is_empty()) {
                self.lost_key(service, key, ONE_OF_A_POD, "");
            }
            return;
        }
        // Servers that are named replace those of the node.
        let policy = if servers.is_empty() {
            "Default"
        } else {
            "None"
        };
        pod.settings.put("dnsPolicy", policy);
        pod.settings.put("dnsConfig", config);
    }

    fn sysctls(&mut self, service: &Service, pod: &mut Pod) {
        for entry in service.node.entries_of("sysctls") {
            let Some(value) = entry.value.text() else {
                continue;
            };
            match pod.sysctls.iter().find(|(name, _)| *name == entry.key) {
                None => pod.sysctls.push((entry.key.clone(), value)),
                Some((_, known)) if *known == value => {}
                Some(_) => {
                    let path = field(service, &format!("sysctls.{}", entry.key));
                    let help = "give both services the same value";
                    self.lost(&entry.place, path, ONE_OF_A_POD, help);
                }
            }
        }
    }
}

/// Whether a service sets that a failed version is not rolled back.
pub(super) fn keeps_failed(service: &Service) -> bool {
    let action = service.node.at(FAILURE_ACTION).and_then(Node::text);
    matches!(action.as_deref(), Some("pause" | "continue"))
}
