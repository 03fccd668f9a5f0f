//! Health checks and hooks.

use crate::project::Service;
use crate::tree::{Kind, Node};
use crate::value::Map;
use crate::words;

use super::container::literal;
use super::pod::Pod;
use super::{Build, WRITE_DURATION, field};

/// Seconds between two checks, as compose's default.
const INTERVAL_SECONDS: i64 = 30;
/// Failures in a row that make a container unhealthy, as compose's default.
const RETRIES: i64 = 3;
/// Seconds that a check may take, as compose's default.
const TIMEOUT_SECONDS: i64 = 30;

impl Build<'_, '_> {
    /// The readiness probe of a service. Compose shows a container that fails its health check as
    /// unhealthy and doesn't restart it, which is what a failed readiness probe does.
    pub(super) fn probe(&mut self, service: &Service) -> Map {
        let Some(check) = service.node.set("healthcheck").cloned() else {
            return Map::new();
        };
        if check.get("disable").and_then(Node::bool) == Some(true) {
            return Map::new();
        }
        let is_empty = |test: &Node| matches!(&test.kind, Kind::List(words) if words.is_empty());
        let Some(test) = check.set("test").filter(|test| !is_empty(test)) else {
            let why = "the health check of the image is not known here, so there is no probe";
            self.lost_key(service, "healthcheck", why, "write its command as test");
            return Map::new();
        };
        let Some(command) = self.test(service, test) else {
            return Map::new();
        };
        let exec = Map::new().with("command", command);
        let interval = self.seconds(service, &check, "interval", INTERVAL_SECONDS);
        let timeout = self.seconds(service, &check, "timeout", TIMEOUT_SECONDS);
        Map::new()
            .with("exec", exec)
            .with("periodSeconds", interval)
            .with("timeoutSeconds", timeout)
            .with("failureThreshold", retries(&check))
    }

    /// The seconds after which compose reports a container as unhealthy that has not been healthy yet;
    /// zero without a health check. Values that aren't durations are reported by the probe.
    pub(super) fn healthy_within(service: &Service) -> i64 {
        let Some(check) = service.node.set("healthcheck") else {
            return 0;
        };
        let is_disabled = check.get("disable").and_then(Node::bool) == Some(true);
        if is_disabled || check.set("test").is_none() {
            return 0;
        }
        let seconds = |key: &str| {
            check
                .set(key)
                .and_then(Node::text)
                .and_then(|t| words::seconds(&t))
        };
        let interval = seconds("interval").filter(|seconds| *seconds > 0);
        let interval = interval.unwrap_or(INTERVAL_SECONDS);
        let checks = interval.saturating_mul(retries(check));
        seconds("start_period")
            .unwrap_or_default()
            .saturating_add(checks)
    }

    fn seconds(&mut self, service: &Service, check: &Node, key: &str, default: i64) -> i64 {
        let Some(node) = check.set(key) else {
            return default;
        };
        let found = node.text().and_then(|text| words::seconds(&text));
        if found.is_none() {
            let path = field(service, &format!("healthcheck.{key}"));
            self.invalid(node, path, "this is not a duration", WRITE_DURATION);
        }
        // Compose takes zero for its default.
        found.filter(|seconds| *seconds > 0).unwrap_or(default)
    }

    fn test(&mut self, service: &Service, test: &Node) -> Option<Vec<String>> {
        let shell = |line: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), line.to_owned()];
        if !matches!(test.kind, Kind::List(_)) {
            return Some(shell(&literal(&test.text()?)));
        }
        let words: Vec<String> = test.texts().iter().map(|word| literal(word)).collect();
        match words.split_first() {
            Some((first, rest)) if first == "CMD" && !rest.is_empty() => Some(rest.to_vec()),
            // Words behind the line are the parameters of the shell.
            Some((first, [line, more @ ..])) if first == "CMD-SHELL" => {
                Some([shell(line), more.to_vec()].concat())
            }
            Some((first, _)) if first == "NONE" => None,
            None => None,
            Some(_) => {
                let path = field(service, "healthcheck.test");
                let message = "the list must begin with CMD, CMD-SHELL or NONE";
                let help = "write CMD before the words of a command";
                self.invalid(test, path, message, help);
                None
            }
        }
    }

    /// Hooks, and the signal that stops the container.
    pub(super) fn lifecycle(&mut self, service: &Service, pod: &mut Pod) -> Map {
        let mut lifecycle = Map::new();
        for (key, hook) in [("post_start", "postStart"), ("pre_stop", "preStop")] {
            let items = service.node.items_of(key);
            if let [item] = items {
                let path = field(service, &format!("{key}.command"));
                let command = item.get("command").and_then(|node| self.words(node, path));
                if let Some(command) = command {
                    let exec = Map::new().with("command", command);
                    lifecycle.put(hook, Map::new().with("exec", exec));
                }
            } else if !items.is_empty() {
                let why = "a container can have only one such hook";
                self.lost_key(service, key, why, "write one command that runs them all");
            }
        }
        if let Some(signal) = service.node.set("stop_signal").and_then(Node::text) {
            match signal_name(&signal) {
                Some(name) => {
                    lifecycle.put("stopSignal", name);
                    pod.has_stop_signal = true;
                }
                None => self.lost_key(
                    service,
                    "stop_signal",
                    "the signal is a number without a name",
                    "write SIGTERM, SIGINT, …",
                ),
            }
        }
        lifecycle
    }
}

/// The failures in a row that make a container unhealthy; the Engine takes zero for its default.
fn retries(check: &Node) -> i64 {
    let written = check.set("retries").and_then(Node::int);
    written.filter(|retries| *retries > 0).unwrap_or(RETRIES)
}

/// A signal's name as Kubernetes has it.
fn signal_name(signal: &str) -> Option<String> {
    let numbers = [
        ("1", "SIGHUP"),
        ("2", "SIGINT"),
        ("3", "SIGQUIT"),
        ("9", "SIGKILL"),
        ("10", "SIGUSR1"),
        ("12", "SIGUSR2"),
        ("15", "SIGTERM"),
        ("28", "SIGWINCH"),
    ];
    if signal.starts_with(|c: char| c.is_ascii_digit()) {
        let found = numbers.iter().find(|(number, _)| *number == signal);
        return found.map(|(_, name)| (*name).to_owned());
    }
    let upper = signal.to_ascii_uppercase();
    Some(if upper.starts_with("SIG") {
        upper
    } else {
        format!("SIG{upper}")
    })
}
