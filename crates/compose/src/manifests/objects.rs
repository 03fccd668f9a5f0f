//! `ConfigMap`s and `Secret`s: configs, secrets and files of variables.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::input::Content;
use crate::paths::absolute;
use crate::project::{Service, external_name};
use crate::tree::{Entry, Node};
use crate::value::{Map, Value};

use super::pod::Pod;
use super::volumes::mount_at;
use super::{Build, field};
use mirrorlet_core::small::SmallCollect;

/// Directory in which compose mounts secrets.
const SECRETS_DIR: &str = "/run/secrets";

/// The variables of a service that come from files.
#[derive(Default)]
pub(super) struct FromFiles {
    /// The `ConfigMap` with most of them.
    pub(super) object: Option<String>,
    /// Those that a `ConfigMap` can't have.
    pub(super) literals: Vec<Map>,
}

/// Whether a name can be a key of a `ConfigMap`.
fn is_key(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() < 254 && name.chars().all(is_part) && name != "." && name != ".."
}

/// The key of a config or secret in its object.
fn key_of(name: &str) -> String {
    let sign = |c: char| {
        if is_key(&c.to_string()) || c == '.' {
            c
        } else {
            '-'
        }
    };
    name.chars().map(sign).collect()
}

/// The path of a config or secret in a container, without `.` and `..`, as the Engine mounts it.
fn target_of(section: &str, item: &Node, source: &str) -> String {
    let written = item.set("target").and_then(Node::text);
    let written = written.filter(|written| !written.is_empty());
    let base = match section {
        "secrets" => SECRETS_DIR,
        _ => "/",
    };
    let written = written.as_deref().unwrap_or(source);
    absolute(written, Path::new(base), None)
        .display()
        .to_string()
}

/// The path of a file or directory in the directory of secrets, if it is in it.
fn in_secrets(target: &str) -> Option<&str> {
    target.strip_prefix(SECRETS_DIR)?.strip_prefix('/')
}

/// Whether a service has a config or secret directly in the directory of secrets, which then is a volume.
fn has_secrets_volume(service: &Service) -> bool {
    ["configs", "secrets"].into_iter().any(|section| {
        service.node.items_of(section).iter().any(|item| {
            let source = item.set("source").and_then(Node::text);
            source.is_some_and(|source| {
                let target = target_of(section, item, &source);
                in_secrets(&target).is_some_and(|path| !path.contains('/'))
            })
        })
    })
}

impl Build<'_, '_> {
    /// Whether nothing can be mounted at a path because it is in the read-only volume of a service's
    /// secrets, in which no mount point can be created. Reports that for the item of `key`.
    pub(super) fn is_below_secrets(
        &mut self,
        service: &Service,
        key: &str,
        item: &Node,
        target: &str,
    ) -> bool {
        let target = absolute(target, Path::new("/"), None);
        let is_below = in_secrets(&target.display().to_string()).is_some();
        if !is_below || !has_secrets_volume(service) {
            return false;
        }
        let why = format!(
            "{SECRETS_DIR} is a read-only volume of the service's secrets, in which nothing can be mounted"
        );
        let help = "mount it elsewhere, or give the secrets other targets";
        self.lost(&item.place, field(service, key), &why, help);
        true
    }

    /// Reads the `env_file`s of a service; later ones win.
    pub(super) fn env_files(&mut self, service: &Service) -> FromFiles {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        // The project's variables, then those of the service.
        let written = service.node.entries_of("environment").iter();
        let mut known: BTreeMap<String, String> = written
            .filter_map(|entry| Some((entry.key.clone(), entry.value.text()?)))
            .collect_map();
        known.extend(self.project.variables.clone());
        for item in service.node.items_of("env_file") {
            let Some(path) = item.get("path").and_then(Node::text) else {
                let help = "add path: with the name of a file";
                self.invalid(item, field(service, "env_file"), "path is missing", help);
                continue;
            };
            let path = Path::new(&path);
            let is_required = item.get("required").and_then(Node::bool) != Some(false);
            let place = item.place.clone();
            let is_raw = item.get("format").and_then(Node::text).as_deref() == Some("raw");
            let values = if is_raw {
                let text = self.loader.text(path, is_required, Some(&place));
                text.map(|text| raw_variables(&text))
            } else {
                self.loader
                    .env_file(path, &known, &all, is_required, Some(&place))
            };
            all.extend(values.unwrap_or_default());
        }
        let written = service.node.entries_of("environment");
        all.retain(|name, _| !written.iter().any(|entry| entry.key == *name));
        let (keys, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| is_key(name));
        let literals = others
            .into_iter()
            .map(|(name, value)| {
                let value = super::container::literal(&value);
                Map::new().with("name", name).with("value", value)
            })
            .collect();
        if keys.is_empty() {
            return FromFiles {
                object: None,
                literals,
            };
        }
        let name = self.project.env_name(service);
        let data = Map(keys
            .into_iter()
            .map(|(key, value)| (key, Value::Text(value)))
            .collect());
        let metadata = self.metadata(&name);
        self.add(
            &service.id,
            "v1",
            "ConfigMap",
            metadata,
            Map::new().with("data", data),
        );
        FromFiles {
            object: Some(name),
            literals,
        }
    }

    /// The mounts for the configs and secrets of a service.
    pub(super) fn files(&mut self, service: &Service, pod: &mut Pod) -> Vec<Map> {
        let mut mounts = Vec::new();
        let mut projected: Vec<Map> = Vec::new();
        let has_volume = has_secrets_volume(service);
        for (section, kind) in [("configs", "configMap"), ("secrets", "secret")] {
            for item in service.node.items_of(section) {
                let path = field(service, section);
                let Some(source) = item.set("source").and_then(Node::text) else {
                    let help = format!("add source: with a name that is defined below {section}");
                    self.invalid(item, path, "source is missing", &help);
                    continue;
                };
                let Some(object) = self.project.object_name(section, &source) else {
                    let message = format!("{source} is not defined below {section}");
                    let help = format!("define it below {section}, or remove it here");
                    self.invalid(item, path, &message, &help);
                    continue;
                };
                if item
                    .set("gid")
                    .is_some_and(|gid| gid.text().as_deref() != Some("0"))
                {
                    let why = "only 0 is supported as the group of a file";
                    self.lost(&item.place, path, why, "");
                }
                let target = target_of(section, item, &source);
                let (_, file) = target.rsplit_once('/').unwrap_or(("", &target));
                // Nothing can be mounted in the volume. Without it, what the image has there stays.
                let below = in_secrets(&target).filter(|_| has_volume);
                let entry = Map::new()
                    .with("key", key_of(&source))
                    .with("path", below.unwrap_or(file))
                    .with_some("mode", item.set("mode").and_then(Node::mode))
                    .with_some(
                        "user",
                        item.set("uid").and_then(Node::int).filter(|uid| *uid > 0),
                    );
                if below.is_some() {
                    let source = Map::new().with("name", object).with("items", vec![entry]);
                    projected.push(Map::new().with(kind, source));
                    continue;
                }
                let name_key = if kind == "secret" {
                    "secretName"
                } else {
                    "name"
                };
                let volume = Map::new()
                    .with(name_key, &*object)
                    .with("items", vec![entry]);
                let name = pod.volume(&object, (kind, volume), true);
                let mount = mount_at(&name, &target)
                    .with("subPath", file)
                    .with("readOnly", true);
                pod.has_fixed_data = true;
                mounts.push(mount);
            }
        }
        if !projected.is_empty() {
            let volume = Map::new().with("sources", projected);
            let name = pod.volume("run-secrets", ("projected", volume), true);
            mounts.push(mount_at(&name, SECRETS_DIR).with("readOnly", true));
        }
        mounts
    }

    /// Adds the objects for the configs and secrets that services use.
    pub(super) fn configs(&mut self) {
        for (section, kind) in [("configs", "ConfigMap"), ("secrets", "Secret")] {
            let entries = self.project.root.get(section).cloned();
            for entry in entries.as_ref().map(Node::entries).unwrap_or_default() {
                let is_used = self.project.services.iter().any(|service| {
                    let items = service.node.items_of(section);
                    items.iter().any(|item| {
                        item.get("source").and_then(Node::text).as_ref() == Some(&entry.key)
                    })
                });
                if is_used {
                    self.object(section, kind, entry);
                }
            }
        }
    }

    fn object(&mut self, section: &str, kind: &str, entry: &Entry) {
        let (key, node) = (&entry.key, &entry.value);
        let path = format!("{section}.{key}");
        let text = |key: &str| node.set(key).and_then(Node::text);
        let name = self.project.object_name(section, key).unwrap_or_default();
        if external_name(entry).is_some() {
            let why = "it is external: its content isn't in the project";
            let help = format!("add a {kind} {name} with the key {}", key_of(key));
            self.lost(&entry.place, path, why, &help);
            return;
        }
        let bytes: Option<Vec<u8>> = if let Some(file) = text("file") {
            match self.loader.content(file.as_ref()) {
                Some(Content::Bytes(bytes)) => Some(bytes.clone()),
                Some(Content::Missing) => {
                    self.loader
                        .unreadable(file.as_ref(), "does not exist", Some(&entry.place));
                    return;
                }
                Some(Content::Failed(why)) => {
                    let why = format!("can't be read: {why}");
                    self.loader
                        .unreadable(file.as_ref(), &why, Some(&entry.place));
                    return;
                }
                None => return,
            }
        } else if let Some(variable) = text("environment") {
            let known = self.project.variables.get(&variable);
            let value = known.or_else(|| self.loader.given.get(&path)).cloned();
            if value.is_none() {
                let message = format!("the variable {variable} isn't set");
                self.invalid(node, path, &message, "set it, or write file: or content:");
                return;
            }
            value.map(String::into_bytes)
        } else {
            text("content").map(String::into_bytes)
        };
        let Some(bytes) = bytes else {
            let message = "has neither file, environment nor content";
            self.invalid(node, path, message, "add one of them");
            return;
        };
        let data_key = key_of(key);
        let rest = match (String::from_utf8(bytes), kind) {
            (Ok(text), "Secret") => Map::new().with("stringData", Map::new().with(&data_key, text)),
            (Ok(text), _) => Map::new().with("data", Map::new().with(&data_key, text)),
            (Err(bytes), _) => {
                let text = STANDARD.encode(bytes.as_bytes());
                let name = if kind == "Secret" {
                    "data"
                } else {
                    "binaryData"
                };
                Map::new().with(name, Map::new().with(&data_key, text))
            }
        };
        let metadata = self.metadata(&name);
        let file = format!("{}.{section}", self.project.name);
        self.add(&file, "v1", kind, metadata, rest);
    }
}

/// The variables of a file whose values are taken as they are.
fn raw_variables(text: &str) -> Vec<(String, String)> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.trim().to_owned(), value.to_owned()))
        .collect()
}
