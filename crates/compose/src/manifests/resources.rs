//! Limits and reservations.

use crate::project::Service;
use crate::tree::Node;
use crate::value::{Map, Value};
use crate::words;

use super::{Build, WRITE_SIZE, field};

/// Length of a CPU period, as Docker's default, in microseconds.
const PERIOD_MICROS: f64 = 100_000.0;

impl Build<'_, '_> {
    /// The resources of a service's container.
    ///
    /// In compose, a limit without a reservation reserves nothing; in a manifest the request defaults
    /// to the limit, so the request is set to zero.
    pub(super) fn resources(&mut self, service: &Service) -> Map {
        let limits = ["deploy", "resources", "limits"];
        let reserved = ["deploy", "resources", "reservations"];
        let below = |keys: [&'static str; 3], key: &'static str| [&keys[..], &[key]].concat();
        let cpu_limit = self.cpu_limit(service);
        let cpu = self.cpus(service, &below(reserved, "cpus"));
        let cpu = self.request(service, "CPUs", cpu, cpu_limit);
        let memory_limit = self.memory(service, &below(limits, "memory"), "mem_limit");
        let memory = self.memory(service, &below(reserved, "memory"), "mem_reservation");
        let memory = self.request(service, "memory", memory, memory_limit);
        let requests = Map::new()
            .with_some("cpu", cpu.map(words::cpus))
            .with_some("memory", memory.map(words::quantity));
        let limits = Map::new()
            .with_some("cpu", cpu_limit.map(words::cpus))
            .with_some("memory", memory_limit.map(words::quantity));
        Map::new()
            .with_some("requests", Some(Value::Map(requests)))
            .with_some("limits", Some(Value::Map(limits)))
    }

    /// The request that a reservation and a limit make.
    fn request(
        &mut self,
        service: &Service,
        what: &str,
        own: Option<i64>,
        limit: Option<i64>,
    ) -> Option<i64> {
        match (own, limit) {
            (Some(own), Some(limit)) if own > limit => {
                let why = format!("the reservation of {what} is larger than the limit");
                let path = format!("services.{}", service.name);
                self.lost(&service.place.clone(), path, &why, "");
                Some(limit)
            }
            (own, limit) => own.or(limit.map(|_| 0)),
        }
    }

    /// In thousandths of a CPU.
    fn cpu_limit(&mut self, service: &Service) -> Option<i64> {
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
        words::milli(
            quota
                / period
                    .filter(|period| *period > 0.0)
                    .unwrap_or(PERIOD_MICROS),
        )
    }

    /// In thousandths of a CPU.
    fn cpus(&mut self, service: &Service, keys: &[&str]) -> Option<i64> {
        let node = service.node.at(keys)?;
        let found = node.number().and_then(words::milli);
        if found.is_none() {
            self.invalid(
                node,
                field(service, &keys.join(".")),
                "this is not a number of CPUs",
                "write a number, for example 0.5",
            );
        }
        // Zero is no limit.
        found.filter(|milli| *milli > 0)
    }

    /// In bytes.
    fn memory(&mut self, service: &Service, keys: &[&str], other: &str) -> Option<i64> {
        let (node, path) = match service.node.at(keys) {
            Some(node) => (node, keys.join(".")),
            None => (service.node.set(other)?, other.to_owned()),
        };
        let found = node.text().and_then(|text| words::bytes(&text));
        if found.is_none() {
            self.invalid(
                node,
                field(service, &path),
                "this is not a size",
                WRITE_SIZE,
            );
        }
        found.filter(|bytes| *bytes > 0)
    }
}
