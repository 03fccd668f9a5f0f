//! Host ports that rules of ours forward to a pod, in the form of its sandbox's label.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use mirrorlet_core::api::Pod;
use mirrorlet_core::small::SmallSort;
use mirrorlet_host::nat::Protocol;

use super::sandbox::with_host_ports;

/// A host port that a rule of ours forwards to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardedPort {
    /// Its protocol.
    pub protocol: Protocol,
    /// The host address that it is bound to; none for all.
    pub host_ip: Option<Ipv4Addr>,
    /// The port on the host.
    pub host_port: u16,
    /// The port of the pod.
    pub container_port: u16,
}

impl ForwardedPort {
    /// The port as the Engine names it.
    pub fn exposed(&self) -> String {
        format!("{}/{}", self.container_port, engine_name(self.protocol))
    }
}

fn engine_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

impl fmt::Display for ForwardedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ip) = self.host_ip {
            write!(f, "{ip}:")?;
        }
        let protocol = engine_name(self.protocol);
        write!(f, "{}/{protocol}={}", self.host_port, self.container_port)
    }
}

impl FromStr for ForwardedPort {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, container_port) = text.split_once('=').ok_or(())?;
        let (host, protocol) = host.split_once('/').ok_or(())?;
        let (ip, port) = match host.split_once(':') {
            Some((ip, port)) => (Some(ip.parse().map_err(|_| ())?), port),
            None => (None, host),
        };
        Ok(Self {
            protocol: match protocol {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => return Err(()),
            },
            host_ip: ip,
            host_port: port.parse().map_err(|_| ())?,
            container_port: container_port.parse().map_err(|_| ())?,
        })
    }
}

/// The host ports of a pod that rules can forward to it: TCP and UDP at IPv4 addresses.
pub(crate) fn forwarded_ports(pod: &Pod) -> Vec<ForwardedPort> {
    led_ports_of(pod, |_| true)
}

/// Those of its containers of some names.
pub(crate) fn led_ports_of(pod: &Pod, is_meant: impl Fn(&str) -> bool) -> Vec<ForwardedPort> {
    let containers = with_host_ports(pod).filter(|container| is_meant(&container.name));
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let mut led: Vec<ForwardedPort> = ports
        .filter_map(|port| {
            let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
            let host_ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty());
            let host_ip: Option<Ipv4Addr> = host_ip.map(str::parse).transpose().ok()?;
            Some(ForwardedPort {
                protocol: match port.protocol.as_deref() {
                    None | Some("TCP") => Protocol::Tcp,
                    Some("UDP") => Protocol::Udp,
                    Some(_) => return None,
                },
                host_ip: host_ip.filter(|ip| !ip.is_unspecified()),
                host_port: number(port.host_port?)?,
                container_port: number(port.container_port)?,
            })
        })
        .collect();
    led.small_sort();
    led.dedup();
    led
}

/// Returns the value of the label for these ports.
pub(crate) fn to_label(ports: &[ForwardedPort]) -> String {
    let texts: Vec<String> = ports.iter().map(ToString::to_string).collect();
    texts.join(",")
}

/// The ports in a label. Invalid ones are skipped: the sandbox may be from another version.
pub(crate) fn from_label(label: &str) -> Vec<ForwardedPort> {
    label
        .split(',')
        .filter_map(|text| text.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_keeps_the_ports() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "initContainers": [{"name": "i", "ports": [{"containerPort": 1, "hostPort": 1}]}],
            "containers": [{"name": "c", "ports": [
                {"containerPort": 80, "hostPort": 8080},
                {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"},
                {"containerPort": 81, "hostPort": 81, "hostIP": "0.0.0.0"},
                {"containerPort": 82},
                {"containerPort": 83, "hostPort": 83, "protocol": "SCTP"},
                {"containerPort": 84, "hostPort": 84, "hostIP": "::1"},
            ]}],
        }}))
        .unwrap();
        let label = to_label(&forwarded_ports(&pod));
        assert_eq!(label, "81/tcp=81,8080/tcp=80,10.0.0.1:53/udp=53");
        assert_eq!(from_label(&label), forwarded_ports(&pod));
        assert_eq!(from_label(""), []);
        assert_eq!(from_label("x,1/icmp=2,1/tcp=99999,2/tcp=3").len(), 1);
    }
}
