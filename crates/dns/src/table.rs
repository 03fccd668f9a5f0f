//! The table of names, and the answers derived from it. Nothing here does I/O.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// All data of the server. The owner writes it as JSON to a file and replaces that file by renaming a
/// new one over it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// The cluster's domain, without a dot at its end. A name below it that is not in the table
    /// does not exist. If it is empty, there is no such domain.
    pub domain: String,
    /// All names in order of precedence: of several entries with the same name, the first one that
    /// the client may use applies.
    pub names: Vec<Name>,
    /// The ports of services, which have SRV records, in the order in which they are returned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Namespaces of pods by their addresses.
    #[serde(default)]
    pub clients: BTreeMap<IpAddr, String>,
    /// Servers to which queries for all other names are forwarded, in this order.
    #[serde(default)]
    pub servers: Vec<SocketAddr>,
}

/// A name and its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Name {
    /// The name without a dot at its end, in upper or lower case.
    pub name: String,
    /// The only namespace whose clients may use the name. Without it, all clients may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Addresses in the order in which they are returned. If it is empty, the name exists but has
    /// no address.
    pub addresses: Vec<IpAddr>,
}

/// A port of a service. Several with the same name are places of the same service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The name, such as `_http._tcp.api.default.svc.cluster.local`, without a dot at its end. All
    /// clients may use it.
    pub name: String,
    /// The name whose addresses have the port, without a dot at its end.
    pub target: String,
    /// The number of the port.
    pub port: u16,
}

/// The type of record that a query asks for, as far as the table tells types apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// The name of an address.
    Pointer,
    /// The ports of a service.
    Service,
    /// Records of any type.
    Any,
    /// A type that the table has no records of.
    Other,
}

/// The table's answer to a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The name has these addresses; at least one.
    Addresses(Vec<IpAddr>),
    /// The address that the query is about has this name.
    Pointer(String),
    /// The service has these ports; at least one.
    Ports(Vec<Port>),
    /// The name exists but has no record of this type.
    Empty,
    /// The name would be below the cluster's domain, and does not exist.
    NoSuchName,
    /// The table is not responsible for the name; the query is forwarded.
    NotOurs,
}

impl Table {
    /// Returns the answer to a query for `name`, with or without a dot at its end, from a client
    /// with this address.
    pub fn answer(&self, client: IpAddr, name: &str, kind: Kind) -> Answer {
        let name = name.strip_suffix('.').unwrap_or(name);
        let namespace = self.clients.get(&client.to_canonical());
        let usable = self
            .names
            .iter()
            .filter(|entry| entry.namespace.is_none() || entry.namespace.as_ref() == namespace);
        if let Some(address) = reverse(name) {
            return self.pointer(usable, address, kind);
        }
        if let Some(found) = usable
            .clone()
            .find(|entry| entry.name.eq_ignore_ascii_case(name))
        {
            return found.answer(kind);
        }
        let ports = self.ports.iter();
        let mut ports = ports.filter(|port| port.name.eq_ignore_ascii_case(name));
        if let Some(first) = ports.next() {
            return match kind {
                Kind::Service | Kind::Any => {
                    Answer::Ports(std::iter::once(first).chain(ports).cloned().collect())
                }
                Kind::A | Kind::Aaaa | Kind::Pointer | Kind::Other => Answer::Empty,
            };
        }
        if !self.is_in_domain(name) {
            Answer::NotOurs
        } else if name.eq_ignore_ascii_case(&self.domain)
            || usable.into_iter().any(|entry| is_below(&entry.name, name))
            || self.ports.iter().any(|port| is_below(&port.name, name))
        {
            Answer::Empty
        } else {
            Answer::NoSuchName
        }
    }

    /// Whether the name is the cluster's domain or below it.
    pub(crate) fn is_in_domain(&self, name: &str) -> bool {
        !self.domain.is_empty()
            && (name.eq_ignore_ascii_case(&self.domain) || is_below(name, &self.domain))
    }

    /// The answer to a query about the name of an address: the first name below the domain.
    fn pointer<'a>(
        &self,
        mut usable: impl Iterator<Item = &'a Name>,
        address: IpAddr,
        kind: Kind,
    ) -> Answer {
        let found = usable.find(|entry| {
            self.is_in_domain(&entry.name)
                && entry
                    .addresses
                    .iter()
                    .any(|known| known.to_canonical() == address)
        });
        match (found, kind) {
            (None, _) => Answer::NotOurs,
            (Some(found), Kind::Pointer | Kind::Any) => Answer::Pointer(found.name.clone()),
            (Some(_), Kind::A | Kind::Aaaa | Kind::Service | Kind::Other) => Answer::Empty,
        }
    }
}

impl Name {
    fn answer(&self, kind: Kind) -> Answer {
        let is_asked = |address: &&IpAddr| match kind {
            Kind::A => address.is_ipv4(),
            Kind::Aaaa => address.is_ipv6(),
            Kind::Any => true,
            Kind::Pointer | Kind::Service | Kind::Other => false,
        };
        let addresses: Vec<IpAddr> = self.addresses.iter().filter(is_asked).copied().collect();
        if addresses.is_empty() {
            Answer::Empty
        } else {
            Answer::Addresses(addresses)
        }
    }
}

/// The part of `name` before `.parent`, if it is below `parent`.
fn before<'a>(name: &'a str, parent: &str) -> Option<&'a str> {
    let at = name.len().checked_sub(parent.len() + 1)?;
    let (first, rest) = name.split_at_checked(at)?;
    let is_parent = rest
        .strip_prefix('.')
        .is_some_and(|rest| rest.eq_ignore_ascii_case(parent));
    (is_parent && !first.is_empty()).then_some(first)
}

fn is_below(name: &str, parent: &str) -> bool {
    before(name, parent).is_some()
}

/// The address of a name below `in-addr.arpa` or `ip6.arpa`, if it is a complete one.
fn reverse(name: &str) -> Option<IpAddr> {
    if let Some(labels) = before(name, "in-addr.arpa") {
        let mut octets = [0; 4];
        let mut labels = labels.rsplit('.');
        for octet in &mut octets {
            let label = labels.next()?;
            let is_number = label.bytes().all(|byte| byte.is_ascii_digit());
            *octet = is_number.then(|| label.parse().ok()).flatten()?;
        }
        let is_whole = labels.next().is_none();
        return is_whole.then(|| Ipv4Addr::from(octets).into());
    }
    let mut bits: u128 = 0;
    let mut labels = before(name, "ip6.arpa")?.rsplit('.');
    for _ in 0..32 {
        let label = labels.next()?;
        let digit = label.chars().next().filter(|_| label.len() == 1)?;
        bits = bits << 4 | u128::from(digit.to_digit(16)?);
    }
    let is_whole = labels.next().is_none();
    is_whole.then(|| IpAddr::from(Ipv6Addr::from(bits)).to_canonical())
}

#[cfg(test)]
mod tests;
