//! Flows that bypass the rules: the kernel decides once where a flow goes, and remembers that for as
//! long as packets arrive, and for a TCP connection some time after its end.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, Nla as _};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple,
    Protocol as Transport, Tuple,
};
use rustix::io::Errno;

use super::netlink;
use super::{Detour, Forward, Protocol};

/// Most flows that are forgotten at a time. Those beyond are forgotten by the kernel itself, once no
/// packets come.
const FLOWS_MAX: usize = 10_000;

/// States of a TCP connection that both sides have closed, or one has reset, and for which the kernel
/// does not decide again when its source port is reused: `LAST_ACK` and `CLOSE`.
///
/// Upstream: Linux, `enum tcp_conntrack` of `nf_conntrack_tcp.h`, and `nf_conntrack_proto_tcp.c`, where
/// a SYN makes a new flow of one in `TIME_WAIT`.
const CLOSED: [u8; 2] = [6, 8];

/// The attribute that distinguishes a flow from a later one with the same source and destination.
///
/// Upstream: Linux, `enum ctattr_type` of `nfnetlink_conntrack.h`.
const CTA_ID: u16 = 12;

/// Selects the flows to forget among those that bypass the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flows {
    /// Closed TCP connections: the pod behind them may still serve others.
    Closed,
    /// Those, and all of UDP.
    ClosedAndUdp,
    /// Closed connections, and all flows to pods that have ended, that is, to none of these.
    Ended(Running),
}

/// The pods that still run, in the form in which flows' reply addresses show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Running {
    /// Their addresses.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// The ports of the engine's proxies of theirs.
    pub proxies: BTreeSet<u16>,
}

impl Flows {
    fn contain(&self, flow: &Flow) -> bool {
        let by = flow.answered_by;
        flow.is_closed
            || match self {
                Self::Closed => false,
                Self::ClosedAndUdp => flow.transport == Transport::Udp,
                Self::Ended(running) => {
                    !running.addresses.contains(by.ip()) && !running.proxies.contains(&by.port())
                }
            }
    }
}

/// Where a flow leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flow {
    transport: Transport,
    /// The address that its packets are sent to.
    sent_to: SocketAddrV4,
    /// The address that the answers come from.
    answered_by: SocketAddrV4,
    /// Whether it is a TCP connection that is [`CLOSED`].
    is_closed: bool,
}

/// Makes the kernel forget flows to the host ports of `forwards` that go to a different destination,
/// and returns their number: the next packets of their sources follow the rules. Blocks, for seconds at
/// most.
///
/// # Errors
/// The kernel's error: it has no flow table for programs (`CONFIG_NF_CT_NETLINK`), or this process has
/// no permission.
pub fn forget_flows(forwards: &BTreeSet<Forward>, which: &Flows) -> io::Result<usize> {
    if forwards.is_empty() {
        return Ok(0);
    }
    let socket = netlink::open()?;
    let mut stale: Vec<Vec<ConntrackAttribute>> = Vec::new();
    let all = ConntrackMessage::Get(Vec::new());
    netlink::ask(&socket, all, NLM_F_DUMP, |message| {
        let ConntrackMessage::New(attributes) = message else {
            return;
        };
        if let Some((name, flow)) = flow(attributes)
            && stale.len() < FLOWS_MAX
            && which.contain(&flow)
            && forwards.iter().any(|forward| strays(&flow, forward))
            && is_own(*flow.sent_to.ip())
        {
            stale.push(name);
        }
    })?;
    let mut forgotten = 0;
    for name in stale {
        match netlink::ask(&socket, ConntrackMessage::Delete(name), NLM_F_ACK, |_| ()) {
            Ok(()) => forgotten += 1,
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(forgotten)
}

/// Whether an address belongs to this machine: the same port of another machine is unrelated.
fn is_own(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether a flow is to a host port, and goes to a different destination than the port's. A TCP
/// connection to the host itself is with another program, and continues.
fn strays(flow: &Flow, forward: &Forward) -> bool {
    let is_its = match forward.protocol {
        Protocol::Tcp => flow.transport == Transport::Tcp && flow.answered_by != flow.sent_to,
        Protocol::Udp => flow.transport == Transport::Udp,
    } && flow.sent_to.port() == forward.host_port
        && forward.host_ip.is_none_or(|ip| ip == *flow.sent_to.ip());
    let by = flow.answered_by;
    let by_proxy = match &forward.detour {
        Detour::Proxy { loopback, .. } if by.ip().is_loopback() => by.port() == *loopback,
        Detour::Proxy { port, .. } => by.port() == *port,
        Detour::None => false,
    };
    is_its && by != forward.pod && !by_proxy
}

/// A flow of the kernel's table, with the attributes that name it: it, and not the one that a client
/// which uses its source port again makes meanwhile.
fn flow(attributes: Vec<ConntrackAttribute>) -> Option<(Vec<ConntrackAttribute>, Flow)> {
    let (mut sent, mut answered, mut id, mut is_closed) = (None, None, None, false);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => sent = Some(tuple),
            ConntrackAttribute::CtaTupleReply(tuple) => answered = Some(tuple),
            ConntrackAttribute::CtaProtoInfo(parts) => is_closed = parts.iter().any(is_tcp_closed),
            other if other.kind() == CTA_ID => id = Some(other),
            _ => {}
        }
    }
    let (sent, answered) = (sent?, answered?);
    let flow = Flow {
        transport: transport(&sent)?,
        sent_to: end(&sent, false)?,
        answered_by: end(&answered, true)?,
        is_closed,
    };
    let sent = ConntrackAttribute::CtaTupleOrig(sent);
    Some(([sent].into_iter().chain(id).collect(), flow))
}

fn is_tcp_closed(part: &ProtoInfo) -> bool {
    let is_closed =
        |part: &ProtoInfoTCP| matches!(part, ProtoInfoTCP::State(state) if CLOSED.contains(state));
    matches!(part, ProtoInfo::TCP(parts) if parts.iter().any(is_closed))
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
    use netlink_packet_core::DefaultNla;

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
                is_closed: false,
            };
            let udp = &forward.unwrap().1;
            let tcp = Forward {
                protocol: Protocol::Tcp,
                ..udp.clone()
            };
            let is_stray = words[3] == "stray";
            // rollouts S9
            assert_eq!(strays(&flow(Transport::Udp), udp), is_stray, "{line}");
            let by_other = is_stray && words[1] != words[2];
            assert_eq!(strays(&flow(Transport::Tcp), &tcp), by_other, "{line}");
            assert!(!strays(&flow(Transport::Tcp), udp), "{line}");
            assert!(!strays(&flow(Transport::Udp), &tcp), "{line}");
        }
    }

    #[test]
    fn connections_to_pods_that_run_are_not_forgotten() {
        let at = |text: &str| text.parse::<SocketAddrV4>().unwrap();
        let running = Running {
            addresses: [Ipv4Addr::new(172, 17, 0, 2)].into(),
            proxies: [32_768].into(),
        };
        let ended = Flows::Ended(running);
        // Of an open flow: whether it is forgotten with those of TCP and UDP that have ended, and of UDP
        // when an agent starts.
        let table = [
            ("172.17.0.2:80", false, "the pod before, which is stopping"),
            (
                "172.17.0.4:80",
                true,
                "the one before that, which has ended",
            ),
            ("127.0.0.1:32768", false, "the proxy of the pod before"),
            ("172.17.0.1:32700", true, "a proxy that has ended"),
        ];
        for (answered_by, has_ended, what) in table {
            for transport in [Transport::Tcp, Transport::Udp] {
                let open = Flow {
                    transport,
                    sent_to: at("10.0.0.1:80"),
                    answered_by: at(answered_by),
                    is_closed: false,
                };
                let is_udp = transport == Transport::Udp;
                // rollouts S1
                assert_eq!(ended.contain(&open), has_ended, "{what}");
                assert!(!Flows::Closed.contain(&open), "{what}");
                assert_eq!(Flows::ClosedAndUdp.contain(&open), is_udp, "{what}");
                let closed = Flow {
                    is_closed: true,
                    ..open
                };
                for flows in [&Flows::Closed, &Flows::ClosedAndUdp, &ended] {
                    assert!(flows.contain(&closed), "{what}");
                }
            }
        }
    }

    #[test]
    fn a_flow_is_forgotten_by_its_id() {
        let end = |port: u16| -> Vec<Tuple> {
            let ip = |number| IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
            vec![
                Tuple::Ip(vec![
                    IPTuple::SourceAddress(ip(1)),
                    IPTuple::DestinationAddress(ip(2)),
                ]),
                Tuple::Proto(vec![
                    ProtoTuple::Protocol(Transport::Tcp),
                    ProtoTuple::SourcePort(port),
                    ProtoTuple::DestinationPort(port),
                ]),
            ]
        };
        let id = ConntrackAttribute::Other(DefaultNla::new(CTA_ID, vec![1, 2, 3, 4]));
        let sent = ConntrackAttribute::CtaTupleOrig(end(80));
        let attributes = [
            sent.clone(),
            ConntrackAttribute::CtaTupleReply(end(81)),
            ConntrackAttribute::CtaMark(5),
            id.clone(),
        ];
        assert_eq!(flow(attributes.into()).unwrap().0, [sent, id]);
    }

    #[test]
    fn a_connection_is_closed_when_its_state_says_so() {
        for state in 0..10 {
            let parts = ProtoInfo::TCP(vec![ProtoInfoTCP::State(state)]);
            // SYN_SENT to CLOSE_WAIT may still carry data, and TIME_WAIT is looked up anew.
            assert_eq!(is_tcp_closed(&parts), [6, 8].contains(&state), "{state}");
        }
    }
}
