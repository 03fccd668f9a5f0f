//! Mounts of a service, and the claims of a project's volumes.

use mirrorlet_core::api::keys::{VOLUME_DRIVER, VOLUME_MUST_EXIST, VOLUME_NAME, VOLUME_OPTIONS};

use crate::input::PathKind;
use crate::project::{Service, external_name};
use crate::tree::{Entry, Node};
use crate::value::{Map, Value};
use crate::words;

use super::pod::Pod;
use super::{Build, WRITE_SIZE, field};

/// Size in the spec of a claim; no driver of the Engine enforces it.
const CLAIM_SIZE: &str = "1Gi";

/// Why an option of the Engine's own driver isn't left out: without it, another volume is mounted, or
/// none can be.
const LOCAL_OPTION: &str = "an option of a claim's volume can't have spaces: create the volume with docker volume create, and write external: true instead of driver_opts";

/// Maximum depth of `volumes_from`: services that take their volumes from others.
const FROM_MAX: usize = 8;

impl Build<'_, '_> {
    /// The mounts of a service's container. Adds the volumes to the pod.
    pub(super) fn mounts(&mut self, service: &Service, pod: &mut Pod) -> Vec<Map> {
        let mut mounts = Vec::new();
        let own = service.node.items_of("volumes").len();
        for (index, (item, read_only)) in self.volume_items(service, 0).into_iter().enumerate() {
            let Some(mount) = self.mount(service, &item, pod) else {
                continue;
            };
            // A service's own volumes replace those that it takes from others.
            let is_own = |known: &Map| known.get("mountPath") == mount.get("mountPath");
            if index >= own && mounts.iter().any(is_own) {
                continue;
            }
            mounts.push(if read_only {
                mount.with("readOnly", true)
            } else {
                mount
            });
        }
        for item in service.node.items_of("tmpfs") {
            mounts.extend(self.tmpfs(service, item, pod));
        }
        if let Some(size) = service.node.set("shm_size") {
            match size.text().and_then(|text| words::bytes(&text)) {
                // Zero is the Engine's default.
                Some(0) => {}
                Some(bytes) => {
                    let memory = memory(Some(bytes), None);
                    let name = pod.volume("shm", ("emptyDir", memory), false);
                    mounts.push(mount_at(&name, "/dev/shm"));
                }
                None => self.invalid(
                    size,
                    field(service, "shm_size"),
                    "this is not a size",
                    WRITE_SIZE,
                ),
            }
        }
        mounts.extend(self.files(service, pod));
        self.duplicates(service, &mounts);
        mounts
    }

    /// Reports paths at which a service has two mounts, which the Engine refuses.
    fn duplicates(&mut self, service: &Service, mounts: &[Map]) {
        let mut seen: Vec<String> = Vec::new();
        for mount in mounts {
            let Some(Value::Text(path)) = mount.get("mountPath") else {
                continue;
            };
            let clean = path.trim_end_matches('/').to_owned();
            if seen.contains(&clean) {
                let field = format!("services.{}", service.name);
                let message = format!("duplicate mount point: {path}");
                self.loader.error(&service.place, &field, message);
            }
            seen.push(clean);
        }
    }

    /// The volumes of a service with those of the services in `volumes_from`, each with whether it
    /// is mounted read-only.
    fn volume_items(&mut self, service: &Service, depth: usize) -> Vec<(Node, bool)> {
        let own = service.node.items_of("volumes");
        let mut found: Vec<(Node, bool)> = own.iter().map(|item| (item.clone(), false)).collect();
        for from in service.node.items_of("volumes_from") {
            let text = from.text().unwrap_or_default();
            let (name, modes) = text.split_once(':').unwrap_or((&text, "rw"));
            match self.project.service(name).cloned() {
                Some(other) if depth < FROM_MAX => {
                    let is_read_only = self.is_from_read_only(service, from, modes);
                    let items = self.volume_items(&other, depth + 1);
                    let read_only = |(item, own): (Node, bool)| (item, own || is_read_only);
                    found.extend(items.into_iter().map(read_only));
                }
                _ => {
                    let why = "only the volumes of the project's own services can be mounted";
                    self.lost(&from.place, field(service, "volumes_from"), why, "");
                }
            }
        }
        found
    }

    /// Whether the modes of an item of `volumes_from` make its mounts read-only. Modes for `SELinux` are
    /// reported.
    fn is_from_read_only(&mut self, service: &Service, from: &Node, modes: &str) -> bool {
        let path = field(service, "volumes_from");
        let mut is_read_only = false;
        for mode in modes.split(',') {
            match mode {
                "ro" => is_read_only = true,
                "rw" => {}
                "z" | "Z" => {
                    let why = "SELinux labels of files are not changed";
                    self.lost(&from.place, path.clone(), why, "");
                }
                _ => {
                    let message = "this is not a mode of volumes_from";
                    self.invalid(from, path.clone(), message, "write ro or rw");
                }
            }
        }
        is_read_only
    }

    fn mount(&mut self, service: &Service, item: &Node, pod: &mut Pod) -> Option<Map> {
        let path = field(service, "volumes");
        let text = |key: &str| item.set(key).and_then(Node::text);
        let Some(target) = text("target") else {
            let help = "add target: with a path in the container";
            self.invalid(item, path, "target is missing", help);
            return None;
        };
        if self.is_below_secrets(service, "volumes", item, &target) {
            return None;
        }
        let kind = text("type").unwrap_or_else(|| "volume".to_owned());
        let source = text("source");
        let name = match (kind.as_str(), source) {
            ("volume", Some(source)) => self.claim_volume(&source, item, path, pod)?,
            ("volume", None) => {
                let why = "an anonymous volume: it is empty at first, and an edit of the pod removes its files";
                self.lost(&item.place, path, why, "name the volume to keep them");
                pod.volume("anonymous", ("emptyDir", Map::new()), false)
            }
            ("bind", Some(source)) => self.host_path(&source, item, pod),
            ("tmpfs", _) => {
                let bytes = item.at(&["tmpfs", "size"]).and_then(Node::text);
                let bytes = bytes.and_then(|text| words::bytes(&text));
                let mode = item.at(&["tmpfs", "mode"]).and_then(Node::mode);
                pod.volume("tmpfs", ("emptyDir", memory(bytes, mode)), false)
            }
            ("image", Some(source)) => {
                let image = Map::new().with("reference", source);
                pod.volume("image", ("image", image), true)
            }
            (kind, _) => {
                let why = format!("a pod has no volumes of type {kind}");
                self.lost(&item.place, path, &why, "");
                return None;
            }
        };
        let mut mount = mount_at(&name, &target);
        if item.get("read_only").and_then(Node::bool) == Some(true) {
            mount.put("readOnly", true);
        }
        for kind in ["volume", "image"] {
            if let Some(below) = item.at(&[kind, "subpath"]).and_then(Node::text) {
                mount.put("subPath", below);
            }
        }
        self.propagation(service, item, &mut mount);
        Some(mount)
    }

    fn claim_volume(
        &mut self,
        source: &str,
        item: &Node,
        path: String,
        pod: &mut Pod,
    ) -> Option<String> {
        let is_known = self
            .project
            .root
            .get("volumes")
            .is_some_and(|volumes| volumes.entry(source).is_some());
        if !is_known {
            let message = format!("the volume {source} is not defined below volumes");
            let help = "define it below volumes, or write ./ before the path of a directory";
            self.invalid(item, path, &message, help);
            return None;
        }
        let name = self.project.object_name("volumes", source)?;
        let claim = Map::new().with("claimName", name);
        Some(pod.volume(source, ("persistentVolumeClaim", claim), true))
    }

    fn host_path(&mut self, source: &str, item: &Node, pod: &mut Pod) -> String {
        let creates = item.at(&["bind", "create_host_path"]).and_then(Node::bool) != Some(false);
        let kind = match self.loader.kind(source.as_ref()) {
            Some(PathKind::File) => Some("File"),
            Some(PathKind::Socket) => Some("Socket"),
            Some(PathKind::Missing) if creates => Some("DirectoryOrCreate"),
            // Without a type the Engine would make a missing one.
            Some(PathKind::Directory | PathKind::Missing) => Some("Directory"),
            Some(PathKind::Device) | None => None,
        };
        let path = Map::new().with("path", source).with_some("type", kind);
        let base = source
            .rsplit('/')
            .find(|part| !part.is_empty())
            .unwrap_or("root");
        pod.volume(base, ("hostPath", path), true)
    }

    fn propagation(&mut self, service: &Service, item: &Node, mount: &mut Map) {
        let Some(node) = item.at(&["bind", "propagation"]) else {
            return;
        };
        match node.text().as_deref() {
            Some("rprivate") => {}
            Some("rslave") => mount.put("mountPropagation", "HostToContainer"),
            Some("rshared")
                if service.node.get("privileged").and_then(Node::bool) == Some(true) =>
            {
                mount.put("mountPropagation", "Bidirectional");
            }
            _ => {
                let why = "a mount has the propagation rprivate, rslave or, in a privileged container, rshared";
                self.lost(
                    &node.place.clone(),
                    field(service, "volumes.bind.propagation"),
                    why,
                    "",
                );
            }
        }
    }

    fn tmpfs(&mut self, service: &Service, item: &Node, pod: &mut Pod) -> Option<Map> {
        let text = item.text()?;
        let (target, options) = text.split_once(':').unwrap_or((&text, ""));
        if self.is_below_secrets(service, "tmpfs", item, target) {
            return None;
        }
        let (mut size, mut mode) = (None, None);
        let octal = |text: &str| i64::from_str_radix(text, 8).ok();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("size", text)) if words::bytes(text).is_some() => size = words::bytes(text),
                Some(("mode", text)) if octal(text).is_some() => mode = octal(text),
                // It is the default.
                None if option == "rw" => {}
                _ => {
                    let why = format!(
                        "a volume in memory takes only size and mode, not the option {option}"
                    );
                    self.lost(&item.place, field(service, "tmpfs"), &why, "");
                }
            }
        }
        let name = pod.volume("tmpfs", ("emptyDir", memory(size, mode)), false);
        Some(mount_at(&name, target))
    }

    /// The claims of the volumes that services mount.
    pub(super) fn claims(&mut self) {
        let used: Vec<String> = self
            .documents
            .iter()
            .flat_map(|document| claims_in(&Value::Map(document.value.clone())))
            .collect();
        let volumes = self.project.root.get("volumes").cloned();
        let mut is_said = false;
        for entry in volumes.as_ref().map(Node::entries).unwrap_or_default() {
            let name = self.project.object_name("volumes", &entry.key);
            if let Some(name) = name.filter(|name| used.contains(name)) {
                self.claim(entry, &name);
                if !is_said && entry.value.set("external").is_none() {
                    is_said = true;
                    let why = "new volumes are empty: files that an image has at their paths are not copied into them";
                    let help =
                        "volumes that the compose project has made are used with their files";
                    self.lost(&entry.place, format!("volumes.{}", entry.key), why, help);
                }
            }
        }
    }

    fn claim(&mut self, entry: &Entry, object: &str) {
        let (key, node) = (&entry.key, &entry.value);
        let text = |key: &str| node.set(key).and_then(Node::text);
        let external = external_name(entry);
        let is_external = external.is_some();
        let name = external.or_else(|| text("name"));
        let name = name.unwrap_or_else(|| format!("{}_{key}", self.project.name));
        let mut annotations = Map::new().with(VOLUME_NAME, name);
        if is_external {
            annotations.put(VOLUME_MUST_EXIST, "true");
        }
        let driver = text("driver").filter(|driver| driver != "local");
        let is_local = driver.is_none();
        if let Some(driver) = driver {
            annotations.put(VOLUME_DRIVER, driver);
        }
        let mut options = Vec::new();
        for option in node.entries_of("driver_opts") {
            let value = option.value.text().unwrap_or_default();
            if value.contains(char::is_whitespace) {
                let path = format!("volumes.{key}.driver_opts.{}", option.key);
                if is_local {
                    self.loader.error(&option.place, &path, LOCAL_OPTION);
                } else {
                    self.lost(&option.place, path, "an option can't have spaces", "");
                }
            } else if !value.is_empty() {
                options.push(format!("{}={value}", option.key));
            }
        }
        if !options.is_empty() {
            annotations.put(VOLUME_OPTIONS, options.join(" "));
        }
        let storage = Map::new().with("storage", CLAIM_SIZE);
        let spec = Map::new()
            .with("accessModes", vec!["ReadWriteOnce"])
            .with("resources", Map::new().with("requests", storage));
        let metadata = self.metadata(object).with("annotations", annotations);
        let file = format!("{}.volumes", self.project.name);
        let rest = Map::new().with("spec", spec);
        self.add(&file, "v1", "PersistentVolumeClaim", metadata, rest);
    }
}

fn memory(bytes: Option<i64>, mode: Option<i64>) -> Map {
    Map::new()
        .with("medium", "Memory")
        .with_some("sizeLimit", bytes.filter(|b| *b > 0).map(words::quantity))
        .with_some("mode", mode)
}

pub(super) fn mount_at(name: &str, path: &str) -> Map {
    Map::new().with("name", name).with("mountPath", path)
}

/// The claims that a manifest names.
fn claims_in(value: &Value) -> Vec<String> {
    match value {
        Value::Map(map) => {
            let own = match map.get("claimName") {
                Some(Value::Text(name)) => Some(name.clone()),
                _ => None,
            };
            let below = map.0.iter().flat_map(|(_, value)| claims_in(value));
            own.into_iter().chain(below).collect()
        }
        Value::List(items) => items.iter().flat_map(claims_in).collect(),
        Value::Bool(_) | Value::Int(_) | Value::Text(_) => Vec::new(),
    }
}
