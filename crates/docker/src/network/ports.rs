//! Finds the holder of a host port: another pod, a foreign container, or a process.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use bollard::models::{ContainerSummary, PortSummaryTypeEnum};

use super::super::translate::parse_ours;
use mirrorlet_core::api::keys;

/// State of a listening TCP socket, and of a UDP one, in the kernel's tables.
const TCP_LISTEN: &str = "0A";
const UDP_OPEN: &str = "07";

/// A port of the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPort {
    pub(super) number: u16,
    /// `tcp`, `udp` or `sctp`; none if the Engine does not report it.
    pub(super) protocol: Option<&'static str>,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(protocol) => write!(f, "{}/{protocol}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

/// The occupied port that a start of a sandbox failed for, if that is the cause.
///
/// If a container holds it, the Engine reports `Bind for 0.0.0.0:80 failed: port is already allocated`.
/// If a process does, it reports `listen tcp4 0.0.0.0:80: bind: address already in use`, since Engine
/// 29 `failed to bind host port 0.0.0.0:80/tcp: address already in use`, and Engine 28 `failed to bind
/// host port for 0.0.0.0:80:172.17.0.2:80/tcp: address already in use`.
pub(super) fn conflict(words: &str) -> Option<HostPort> {
    let number = |address: &str| {
        let address = address.trim_end_matches([':', ',']);
        address.rsplit(':').next()?.parse::<u16>().ok()
    };
    if let Some((before, _)) = words.split_once(" failed: port is already allocated") {
        let address = before.rsplit(' ').next()?;
        return Some(HostPort {
            number: number(address)?,
            protocol: None,
        });
    }
    if !words.contains("address already in use") {
        return None;
    }
    let (network, address) = if let Some((_, listen)) = words.rsplit_once("listen ") {
        listen.split_once(' ')?
    } else {
        let (_, bind) = words.rsplit_once("failed to bind host port ")?;
        let (address, network) = bind.split_once(": ")?.0.rsplit_once('/')?;
        let host = address.strip_prefix("for ").map(host_of);
        (network, host.unwrap_or(address))
    };
    let protocol = ["tcp", "udp", "sctp"]
        .into_iter()
        .find(|protocol| network.starts_with(protocol))?;
    Some(HostPort {
        number: number(address.split_whitespace().next()?)?,
        protocol: Some(protocol),
    })
}

/// The host's address and port of a mapping, which are followed by the container's.
fn host_of(mapping: &str) -> &str {
    // An IPv6 address is in brackets.
    let address = mapping.find(']').unwrap_or(0);
    let colons = mapping.match_indices(':').map(|(at, _)| at);
    let end = colons.filter(|at| *at > address).nth(1);
    end.map_or(mapping, |end| mapping.split_at(end).0)
}

/// The container that publishes a port: a pod of ours by its name.
pub(super) fn publisher(
    listed: &[ContainerSummary],
    port: &HostPort,
    owner: &str,
) -> Option<String> {
    let holds = |container: &&ContainerSummary| {
        container.ports.iter().flatten().any(|published| {
            let protocol = match published.typ {
                Some(PortSummaryTypeEnum::TCP) => Some("tcp"),
                Some(PortSummaryTypeEnum::UDP) => Some("udp"),
                Some(PortSummaryTypeEnum::SCTP) => Some("sctp"),
                _ => None,
            };
            published.public_port == Some(port.number)
                && (port.protocol.is_none() || protocol == port.protocol)
        })
    };
    let container = listed.iter().find(holds)?;
    let names = || container.names.iter().flatten().map(String::as_str);
    let ours = container
        .labels
        .as_ref()
        .and_then(|labels| parse_ours(owner, names(), labels));
    Some(if let Some(ours) = ours {
        let name = &ours.full_name;
        format!("pod {}/{}", name.namespace, name.name)
    } else {
        let name = names().next().unwrap_or_default();
        let name = name.trim_start_matches('/');
        let labels = container.labels.as_ref();
        let other = labels
            .and_then(|labels| parse_ours(labels.get(keys::OWNER)?, names(), labels))
            .map(|ours| ours.full_name)
            .map(|pod| format!(" of another agent's pod {}/{}", pod.namespace, pod.name));
        format!("container {name:?}{}", other.unwrap_or_default())
    })
}

/// The process that listens on a port, from the kernel's tables of this network namespace.
pub(super) fn process(port: &HostPort) -> Option<String> {
    let tables = match port.protocol {
        Some("udp") => ["udp", "udp6"],
        _ => ["tcp", "tcp6"],
    };
    let inode = tables.into_iter().find_map(|table| {
        let table = File::open(Path::new("/proc/net").join(table)).ok()?;
        listener(BufReader::new(table), port.number)
    })?;
    let socket = format!("socket:[{inode}]");
    let holds = |process: &Path| {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten();
        descriptors.flatten().any(|descriptor| {
            std::fs::read_link(descriptor.path())
                .is_ok_and(|target| target.to_str() == Some(&socket))
        })
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut numbered = processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    });
    let (pid, path) = numbered.find(|(_, path)| holds(path))?;
    let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    Some(format!("process {:?} (pid {pid})", name.trim()))
}

/// The inode of the socket that listens on a port, in a table of `/proc/net`: read line by line,
/// because pods in the host's network can fill it.
pub(super) fn listener(table: impl BufRead, port: u16) -> Option<u64> {
    let lines = table.lines().map_while(Result::ok);
    lines.skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        let (_, number) = local.rsplit_once(':')?;
        let is_it = u16::from_str_radix(number, 16) == Ok(port);
        (is_it && (state == TCP_LISTEN || state == UDP_OPEN)).then_some(inode)
    })
}
