//! UDP flows that lead past the rules: the kernel decides once for a flow where it leads, and remembers
//! that for as long as packets come.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol as Transport, Tuple,
};
use rustix::io::Errno;

use super::netlink;
use super::{Detour, Forward, Protocol};

/// Most flows that are forgotten at a time. Those beyond are forgotten by the kernel itself, once no
/// packets come.
const FLOWS_MAX: usize = 10_000;

/// Where a flow leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flow {
    transport: Transport,
    /// The address that its packets are sent to.
    sent_to: SocketAddrV4,
    /// The address that the answers come from.
    answered_by: SocketAddrV4,
}

/// Has the kernel forget the UDP flows to the host ports of `forwards` that lead somewhere else, and
/// returns their number: their next packets follow the rules. Blocks, for seconds at most.
///
/// # Errors
/// As the kernel says: it keeps no table of flows for programs (`CONFIG_NF_CT_NETLINK`), or this
/// process lacks the right.
pub fn forget_flows(forwards: &BTreeSet<Forward>) -> io::Result<usize> {
    let is_udp = |forward: &&Forward| forward.protocol == Protocol::Udp;
    let forwards: Vec<&Forward> = forwards.iter().filter(is_udp).collect();
    if forwards.is_empty() {
        return Ok(0);
    }
    let socket = netlink::open()?;
    let mut stale: Vec<Vec<Tuple>> = Vec::new();
    let all = ConntrackMessage::Get(Vec::new());
    netlink::ask(&socket, all, NLM_F_DUMP, |message| {
        let ConntrackMessage::New(attributes) = message else {
            return;
        };
        if let Some((sent, flow)) = flow(attributes)
            && stale.len() < FLOWS_MAX
            && forwards.iter().any(|forward| strays(&flow, forward))
            && is_own(*flow.sent_to.ip())
        {
            stale.push(sent);
        }
    })?;
    let mut forgotten = 0;
    for sent in stale {
        let it = ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(sent)]);
        match netlink::ask(&socket, it, NLM_F_ACK, |_| ()) {
            Ok(()) => forgotten += 1,
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(forgotten)
}

/// Whether an address is one of this machine: others' ports of the same number are none of ours.
fn is_own(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether a flow is to a host port, and leads somewhere else than the port does.
fn strays(flow: &Flow, forward: &Forward) -> bool {
    let is_its = flow.transport == Transport::Udp
        && flow.sent_to.port() == forward.host_port
        && forward.host_ip.is_none_or(|ip| ip == *flow.sent_to.ip());
    let by = flow.answered_by;
    let by_proxy = match &forward.detour {
        Detour::Proxy { loopback, .. } if by.ip().is_loopback() => by.port() == *loopback,
        Detour::Proxy { port, .. } => by.port() == *port,
        Detour::None => false,
    };
    is_its && by != forward.pod && !by_proxy
}

/// A flow of the kernel's table, with what names it.
fn flow(attributes: Vec<ConntrackAttribute>) -> Option<(Vec<Tuple>, Flow)> {
    let (mut sent, mut answered) = (None, None);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => sent = Some(tuple),
            ConntrackAttribute::CtaTupleReply(tuple) => answered = Some(tuple),
            _ => {}
        }
    }
    let (sent, answered) = (sent?, answered?);
    let flow = Flow {
        transport: transport(&sent)?,
        sent_to: end(&sent, false)?,
        answered_by: end(&answered, true)?,
    };
    Some((sent, flow))
}

fn transport(tuple: &[Tuple]) -> Option<Transport> {
    let mut parts = tuple.iter().filter_map(|part| match part {
        Tuple::Proto(parts) => Some(parts.iter()),
        _ => None,
    });
    parts.next()?.find_map(|part| match part {
        ProtoTuple::Protocol(transport) => Some(*transport),
        _ => None,
    })
}

/// One end of a flow: the source, or the destination.
fn end(tuple: &[Tuple], source: bool) -> Option<SocketAddrV4> {
    let (mut ip, mut port) = (None, None);
    for part in tuple {
        match part {
            Tuple::Ip(parts) => {
                ip = parts.iter().find_map(|part| match part {
                    IPTuple::SourceAddress(IpAddr::V4(ip)) if source => Some(*ip),
                    IPTuple::DestinationAddress(IpAddr::V4(ip)) if !source => Some(*ip),
                    _ => None,
                });
            }
            Tuple::Proto(parts) => {
                port = parts.iter().find_map(|part| match part {
                    ProtoTuple::SourcePort(port) if source => Some(*port),
                    ProtoTuple::DestinationPort(port) if !source => Some(*port),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(SocketAddrV4::new(ip?, port?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_strays_that_a_port_no_longer_leads_to() {
        let at = |text: &str| text.parse::<SocketAddrV4>().unwrap();
        let proxy = Detour::Proxy {
            loopback: 32_768,
            bridge: "docker0".to_owned(),
            port: 32_769,
        };
        let forward = |host_ip: Option<Ipv4Addr>, detour: &Detour| Forward {
            protocol: Protocol::Udp,
            host_ip,
            host_port: 53,
            pod: at("172.17.0.3:5353"),
            detour: detour.clone(),
            comment: String::new(),
        };
        let forwards = [
            ("all", forward(None, &proxy)),
            ("one", forward(Some(Ipv4Addr::new(10, 0, 0, 1)), &proxy)),
            ("direct", forward(None, &Detour::None)),
        ];
        // A forward, where packets are sent to, who answers, and whether that is somebody else.
        let table = "
            all     10.0.0.1:53   172.17.0.2:5353   stray   the old pod
            all     10.0.0.1:53   172.17.0.3:5353   right   the pod
            all     10.0.0.1:53   172.17.0.3:53     stray   another port of it
            all     127.0.0.1:53  127.0.0.1:53      stray   the host itself
            all     127.0.0.1:53  127.0.0.1:32768   right   its proxy
            all     127.0.0.1:53  127.0.0.1:32700   stray   an old proxy
            all     10.0.0.1:53   172.17.0.1:32769  right   its proxy in the pods' network
            direct  127.0.0.1:53  127.0.0.1:32768   stray   no proxy
            all     10.0.0.1:54   172.17.0.2:5353   right   another host port
            one     10.0.0.1:53   172.17.0.2:5353   stray   its address
            one     10.0.0.2:53   172.17.0.2:5353   right   another address";
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let forward = forwards.iter().find(|(name, _)| *name == words[0]);
            let flow = |transport| Flow {
                transport,
                sent_to: at(words[1]),
                answered_by: at(words[2]),
            };
            let strays = |transport| strays(&flow(transport), &forward.unwrap().1);
            // rollouts S9
            assert_eq!(strays(Transport::Udp), words[3] == "stray", "{line}");
            assert!(!strays(Transport::Tcp), "{line}");
        }
    }
}
