//! Published and exposed ports.

use crate::project::Service;
use crate::tree::Node;
use crate::value::{Map, Value};

use super::{Build, field, replicas};

/// Help for a port without a target.
const WRITE_TARGET: &str = "add target: with a port of the container";
/// Help for a port of the host that is no number.
const WRITE_NUMBER: &str = "write a number from 1 to 65535";

/// A port of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    number: i64,
    protocol: String,
    app_protocol: Option<String>,
}

impl Port {
    fn of(number: i64, protocol: Option<String>, app_protocol: Option<String>) -> Self {
        Self {
            number,
            protocol: protocol
                .unwrap_or_else(|| "tcp".to_owned())
                .to_ascii_uppercase(),
            app_protocol,
        }
    }

    fn protocol(&self) -> Option<String> {
        (self.protocol != "TCP").then(|| self.protocol.clone())
    }
}

fn port_of(item: &Node) -> Option<Port> {
    let text = |key: &str| item.set(key).and_then(Node::text);
    let number = item.set("target").and_then(Node::int)?;
    Some(Port::of(number, text("protocol"), text("app_protocol")))
}

/// Ports of a range of `expose` that are carried over.
const EXPOSED_MAX: usize = 1000;

/// The first and last port of an item of `expose`, and its protocol; none if it is no port.
fn exposed_range(text: &str) -> Option<(u16, u16, &str)> {
    let (numbers, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let first: u16 = first.trim().parse().ok()?;
    let last: u16 = last.trim().parse().ok()?;
    (first > 0 && first <= last).then_some((first, last, protocol))
}

/// The ports of an item of `expose`.
fn exposed_by(text: &str) -> Vec<Port> {
    let Some((first, last, protocol)) = exposed_range(text) else {
        return Vec::new();
    };
    let of = |number: u16| Port::of(number.into(), Some(protocol.to_owned()), None);
    (first..=last).take(EXPOSED_MAX).map(of).collect()
}

/// The ports that `expose` names.
fn exposed(service: &Service) -> Vec<Port> {
    let items = service.node.get("expose").map(Node::texts);
    let items = items.unwrap_or_default();
    items.iter().flat_map(|text| exposed_by(text)).collect()
}

impl Build<'_, '_> {
    /// The ports of a service's container; published ports have their host port.
    pub(super) fn container_ports(&mut self, service: &Service) -> Vec<Map> {
        let mut found: Vec<Map> = Vec::new();
        let many = replicas(service) > 1;
        for item in service.node.items_of("ports") {
            let path = field(service, "ports");
            let Some(port) = port_of(item) else {
                let message = "target, the port of the container, is missing";
                self.invalid(item, path, message, WRITE_TARGET);
                continue;
            };
            let published = item.set("published").and_then(Node::text);
            let mut host = None;
            match published.as_deref() {
                None | Some("" | "0") => {
                    let why = "a manifest can't ask for any free port of the host";
                    self.lost(&item.place, path, why, "write HOST:CONTAINER");
                }
                Some(_) if many => {
                    let why = "only one of several replicas can have the host port";
                    self.lost(
                        &item.place,
                        path,
                        why,
                        "put a proxy before them, or run one replica",
                    );
                }
                Some(text) => {
                    let (first, last) = text.split_once('-').unwrap_or((text, text));
                    if first != last {
                        let why =
                            format!("only the first host port of the range, {first}, is used");
                        self.lost(&item.place, path.clone(), &why, "");
                    }
                    host = first.trim().parse::<i64>().ok();
                    if host.is_none() {
                        self.invalid(item, path, "this is not a port of the host", WRITE_NUMBER);
                    }
                }
            }
            let address = item
                .set("host_ip")
                .and_then(Node::text)
                .filter(|_| host.is_some());
            let container = Map::new()
                .with("containerPort", port.number)
                .with_some("hostPort", host)
                .with_some("hostIP", address)
                .with_some("protocol", port.protocol());
            if !found.contains(&container) {
                found.push(container);
            }
        }
        self.check_exposed(service);
        for port in exposed(service) {
            let number = Value::Int(port.number);
            let protocol = port.protocol().map(Value::Text);
            let is_known = found.iter().any(|known| {
                known.get("containerPort") == Some(&number)
                    && known.get("protocol") == protocol.as_ref()
            });
            if !is_known {
                let port = Map::new()
                    .with("containerPort", port.number)
                    .with_some("protocol", port.protocol());
                found.push(port);
            }
        }
        found
    }

    fn check_exposed(&mut self, service: &Service) {
        for item in service.node.items_of("expose") {
            let Some(text) = item.text() else {
                continue;
            };
            let path = field(service, "expose");
            match exposed_range(&text) {
                Some((first, last, _)) if usize::from(last - first) >= EXPOSED_MAX => {
                    let why = format!(
                        "all but the first {EXPOSED_MAX} ports of the range; other pods can connect to the rest, too"
                    );
                    self.lost(&item.place, path, &why, "");
                }
                Some(_) => {}
                None => {
                    let message = "this is not a port of the container";
                    let help = "write a number, or a number/protocol, for example 53/udp";
                    self.invalid(item, path, message, help);
                }
            }
        }
    }
}

/// The ports of a `Service` with several services behind it.
pub(super) fn service_ports(services: &[&Service]) -> Vec<Map> {
    let mut ports: Vec<Port> = Vec::new();
    for service in services {
        let items = service.node.items_of("ports").iter().filter_map(port_of);
        for port in items.chain(exposed(service)) {
            let is_same =
                |known: &Port| known.number == port.number && known.protocol == port.protocol;
            if !ports.iter().any(is_same) {
                ports.push(port);
            }
        }
    }
    let many = ports.len() > 1;
    let map = |port: Port| {
        let name = format!("{}-{}", port.protocol.to_ascii_lowercase(), port.number);
        Map::new()
            .with_some("name", many.then_some(name))
            .with("port", port.number)
            .with_some("protocol", port.protocol())
            .with_some("appProtocol", port.app_protocol)
    };
    ports.into_iter().map(map).collect()
}
