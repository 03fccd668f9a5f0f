//! Ports of a pod's containers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::core::ContainerPort;

/// One port of a container, displayed as by `docker ps`: `127.0.0.1:8080->80/tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReport {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The port in the pod.
    pub container_port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The host port that is forwarded to it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_port: Option<i32>,
    /// The only host address with that port; none for all addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<String>,
}

impl From<&ContainerPort> for PortReport {
    fn from(port: &ContainerPort) -> Self {
        let every = ["", "0.0.0.0", "::"];
        let host_ip = port.host_ip.clone();
        Self {
            name: port.name.clone(),
            container_port: port.container_port,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            host_port: port.host_port.filter(|port| *port > 0),
            host_ip: host_ip.filter(|ip| !every.contains(&ip.as_str())),
        }
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(port) = self.host_port {
            match &self.host_ip {
                Some(ip) if ip.contains(':') => write!(f, "[{ip}]:{port}->")?,
                Some(ip) => write!(f, "{ip}:{port}->")?,
                None => write!(f, "{port}->")?,
            }
        }
        let protocol = self.protocol.to_lowercase();
        write!(f, "{}/{protocol}", self.container_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_docker_writes_them() {
        for (host_ip, host_port, protocol, expected) in [
            (None, None, None, "80/tcp"),
            (None, Some(0), Some("UDP"), "80/udp"),
            (None, Some(8080), Some("TCP"), "8080->80/tcp"),
            (Some("0.0.0.0"), Some(8080), None, "8080->80/tcp"),
            (
                Some("127.0.0.1"),
                Some(8080),
                None,
                "127.0.0.1:8080->80/tcp",
            ),
            (Some("::1"), Some(8080), None, "[::1]:8080->80/tcp"),
        ] {
            let port = ContainerPort {
                container_port: 80,
                host_ip: host_ip.map(str::to_owned),
                host_port,
                protocol: protocol.map(str::to_owned),
                ..ContainerPort::default()
            };
            // agent 9
            assert_eq!(PortReport::from(&port).to_string(), expected);
        }
    }
}
