//! Limits and reservations.

use crate::project::Service;
use crate::tree::Node;
use crate::value::{Map, Value};
use crate::words;

use super::{Build, field};

/// Length of a CPU period, as Docker's default, in microseconds.
const PERIOD_MICROS: f64 = 100_000.0;

impl Build<'_, '_> {
    /// The resources of a service's container.
    ///
    /// A limit without a reservation reserves nothing in compose; in a manifest it would reserve
    /// as much, so that the request is written as zero.
    pub(super) fn resources(&mut self, service: &Service) -> Map {
        let cpu_limit = self.cpu_limit(service);
        let limits = ["deploy", "resources", "limits"];
        let reserved = ["deploy", "resources", "reservations"];
        let memory_limit = self.memory(service, &[&limits[..], &["memory"]].concat(), "mem_limit");
        let cpu = self.cpus(service, &[&reserved[..], &["cpus"]].concat());
        let memory = self.memory(
            service,
            &[&reserved[..], &["memory"]].concat(),
            "mem_reservation",
        );
        let request = |own: Option<String>, limit: &Option<String>| {
            own.or_else(|| limit.as_ref().map(|_| "0".to_owned()))
        };
        let requests = Map::new()
            .with_some("cpu", request(cpu, &cpu_limit))
            .with_some("memory", request(memory, &memory_limit));
        let limits = Map::new()
            .with_some("cpu", cpu_limit)
            .with_some("memory", memory_limit);
        Map::new()
            .with_some("requests", Some(Value::Map(requests)))
            .with_some("limits", Some(Value::Map(limits)))
    }

    fn cpu_limit(&mut self, service: &Service) -> Option<String> {
        let deploy = ["deploy", "resources", "limits", "cpus"];
        if let Some(limit) = self.cpus(service, &deploy) {
            return Some(limit);
        }
        if let Some(limit) = self.cpus(service, &["cpus"]) {
            return Some(limit);
        }
        let quota = service.node.set("cpu_quota").and_then(Node::number);
        let quota = quota.filter(|quota| *quota > 0.0)?;
        let period = service.node.set("cpu_period").and_then(Node::number);
        words::cpus(
            quota
                / period
                    .filter(|period| *period > 0.0)
                    .unwrap_or(PERIOD_MICROS),
        )
    }

    fn cpus(&mut self, service: &Service, keys: &[&str]) -> Option<String> {
        let node = service.node.at(keys)?;
        let found = node.number().and_then(words::cpus);
        if found.is_none() {
            self.invalid(
                node,
                field(service, &keys.join(".")),
                "this is not a number of CPUs",
            );
        }
        // Zero is no limit.
        found.filter(|cpus| cpus != "0")
    }

    fn memory(&mut self, service: &Service, keys: &[&str], other: &str) -> Option<String> {
        let (node, path) = match service.node.at(keys) {
            Some(node) => (node, keys.join(".")),
            None => (service.node.set(other)?, other.to_owned()),
        };
        let found = node.text().and_then(|text| words::bytes(&text));
        if found.is_none() {
            self.invalid(node, field(service, &path), "this is not a size");
        }
        found.filter(|bytes| *bytes > 0).map(words::quantity)
    }
}
