//! A service's container: image, command, variables.

use mirrorlet_core::api::{Code, Diagnostic};

use crate::project::Service;
use crate::tree::{Kind, Node};
use crate::value::Map;
use crate::words;

use super::pod::Pod;
use super::{Build, field};

/// Escapes a value, so that Kubernetes expands nothing in it: `$(A)` stays `$(A)`, `$$` stays `$$`.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '$' && matches!(chars.peek(), Some('$' | '(')) {
            out.push('$');
        }
    }
    out
}

impl Build<'_, '_> {
    /// The container of a service. Its volumes are added to the pod.
    pub(super) fn container(&mut self, service: &Service, pod: &mut Pod, is_init: bool) -> Map {
        let mut container = Map::new().with("name", &*service.id);
        self.image(service, &mut container);
        self.command(service, &mut container);
        if let Some(dir) = service.node.set("working_dir").and_then(Node::text) {
            container.put("workingDir", dir);
        }
        self.variables(service, &mut container);
        pod.has_fixed_data |= container.get("envFrom").is_some();
        if !pod.has_host_network() {
            let ports = self.container_ports(service);
            container.put_filled("ports", ports);
        }
        let resources = self.resources(service);
        container.put_filled("resources", resources);
        let mounts = self.mounts(service, pod);
        container.put_filled("volumeMounts", mounts);
        if is_init {
            for key in ["healthcheck", "post_start", "pre_stop"] {
                if service.node.set(key).is_some() {
                    let why = "the service runs as an init container, which can't have it";
                    self.lost_key(service, key, why, "");
                }
            }
        } else {
            pod.healthy_within = pod.healthy_within.max(Self::healthy_within(service));
            let probe = self.probe(service);
            container.put_filled("readinessProbe", probe);
            let lifecycle = self.lifecycle(service, pod);
            container.put_filled("lifecycle", lifecycle);
        }
        let security = self.security(service);
        container.put_filled("securityContext", security);
        for (key, entry) in [("stdin_open", "stdin"), ("tty", "tty")] {
            if service.node.get(key).and_then(Node::bool) == Some(true) {
                container.put(entry, true);
            }
        }
        container
    }

    fn image(&mut self, service: &Service, container: &mut Map) {
        let written = service.node.set("image").and_then(Node::text);
        let is_built = service.node.set("build").is_some();
        let image = match (&written, is_built) {
            (Some(image), _) => image.clone(),
            // The name that compose gives to what it builds.
            (None, true) => format!("{}-{}", self.project.name, service.name),
            (None, false) => {
                let place = service.place.clone();
                let path = format!("services.{}", service.name);
                let message = "a service needs an image";
                let problem = Diagnostic::error(Code::Required, "", message).field(path);
                self.loader.problems.push(place.mark(problem));
                return;
            }
        };
        if is_built {
            let why = "no image is built";
            let help = format!(
                "build the image {image} first, for example with: docker compose build {}",
                service.name
            );
            self.lost_key(service, "build", why, &help);
        }
        let is_latest = {
            let name = image.rsplit('/').next().unwrap_or_default();
            !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
        };
        let policy = service.node.set("pull_policy").and_then(Node::text);
        let policy = match policy.as_deref() {
            Some("always") => Some("Always"),
            Some("never") => Some("Never"),
            // An image that is built here can't be pulled.
            None | Some("build") if is_built && written.is_none() => Some("Never"),
            None | Some("missing" | "if_not_present" | "build") => {
                is_latest.then_some("IfNotPresent")
            }
            Some(_) => {
                let why = "an image is pulled always, never or if it is missing";
                let help = "mirrorlet pull POD and mirrorlet restart POD --pull fetch it again";
                self.lost_key(service, "pull_policy", why, help);
                is_latest.then_some("IfNotPresent")
            }
        };
        container.put("image", image);
        if let Some(policy) = policy {
            container.put("imagePullPolicy", policy);
        }
    }

    /// The arguments of a command; none if it isn't set.
    pub(super) fn words(&mut self, node: &Node, path: String) -> Option<Vec<String>> {
        if let Kind::List(items) = &node.kind {
            return Some(items.iter().filter_map(Node::text).collect());
        }
        let found = match words::split(&node.text()?) {
            Ok(found) => found,
            Err(unsplit) => {
                let help = "write the command as a list: [\"word\", \"another\"]";
                self.invalid(node, path, unsplit.as_str(), help);
                return None;
            }
        };
        if let Some(operator) = found.operator {
            let why = format!(
                "the command from {operator} on, which isn't in quotes: no shell runs the command, and Compose leaves this part out, too"
            );
            let help = "put it in quotes, or have a shell run the command: sh -c '…'";
            self.lost(&node.place, path, &why, help);
        }
        Some(found.words)
    }

    fn command(&mut self, service: &Service, container: &mut Map) {
        let mut words = |key: &str| {
            let node = service.node.get(key).cloned()?;
            self.words(&node, field(service, key))
        };
        let (entrypoint, command) = (words("entrypoint"), words("command"));
        let literals =
            |words: Vec<String>| -> Vec<String> { words.iter().map(|w| literal(w)).collect() };
        let is_cleared = entrypoint
            .as_ref()
            .is_some_and(|words| words.iter().all(String::is_empty));
        match (entrypoint, command) {
            // Without an entrypoint, the command is what is run.
            (Some(_), Some(command)) if is_cleared && !command.is_empty() => {
                container.put("command", literals(command));
            }
            (Some(_), _) if is_cleared => {
                let why = "a manifest can't remove the entrypoint of an image";
                self.lost_key(service, "entrypoint", why, "write the whole command");
            }
            (entrypoint, command) => {
                if let Some(entrypoint) = entrypoint {
                    container.put_filled("command", literals(entrypoint));
                }
                if let Some(command) = command {
                    if command.is_empty() {
                        let why = "a manifest can't remove the command of an image";
                        self.lost_key(service, "command", why, "");
                    }
                    container.put_filled("args", literals(command));
                }
            }
        }
    }

    fn variables(&mut self, service: &Service, container: &mut Map) {
        let from = self.env_files(service);
        let mut env: Vec<Map> = from.literals;
        for entry in service.node.entries_of("environment") {
            let known = self.project.variables.get(&entry.key).cloned();
            let value = match &entry.value.kind {
                // Without a value it is that of the environment.
                Kind::Null => known,
                _ => entry.value.text(),
            };
            if let Some(value) = value {
                let variable = Map::new().with("name", &*entry.key);
                env.push(variable.with("value", literal(&value)));
            } else {
                let path = field(service, &format!("environment.{}", entry.key));
                let message = "the variable isn't set here and is left out";
                let problem = Diagnostic::warning(Code::MissingObject, "", message).field(path);
                self.loader.problems.push(entry.place.mark(problem));
            }
        }
        let refs = from.object.map(|name| {
            let name = Map::new().with("name", name);
            vec![Map::new().with("configMapRef", name)]
        });
        container.put_filled("env", env);
        if let Some(refs) = refs {
            container.put("envFrom", refs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_expanded_in_a_literal() {
        for (text, written) in [
            ("$HOME", "$HOME"),
            ("$(HOME)", "$$(HOME)"),
            ("a$$b", "a$$$b"),
            ("$$(x)$", "$$$$(x)$"),
        ] {
            assert_eq!(literal(text), written);
        }
    }
}
