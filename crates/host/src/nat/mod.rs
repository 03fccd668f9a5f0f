//! Forwards host ports to pods by `nf_tables` rules of the kernel.
//!
//! A container engine binds a host port when it starts a container and can't move it to another one.
//! Our rules, which come before the engine's, can: they are replaced in one transaction, so that every
//! new connection goes either to the old pod or to the new one, while existing connections stay with
//! their pod. Rules outlive the agent.
//!
//! Each agent has one table of rules, with a name of its own. Other tables are never touched.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use mirrorlet_core::small::SmallCollect;
use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::nftables::NfTablesMessage;
use rustix::io::Errno;

mod expressions;
mod flows;
mod hold;
mod netlink;
mod ruleset;
mod watch;

pub use flows::{Flows, Running, forget_flows};
pub use hold::{HeldPort, check_hold, hold};
pub use watch::{Changes, Rules, rules};

/// The family of the tables that forward ports to pods, whose addresses are IPv4.
const FAMILY: NetfilterProtoFamily = NetfilterProtoFamily::IPv4;

mirrorlet_core::words! {
    /// A protocol whose ports can be led to a pod.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Protocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
    }
    /// Its name.
    pub fn as_str;
    impl Display;
}

impl Protocol {
    /// Its number in an IP header.
    const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// How connections reach the pod that can't be routed to it: those from the host itself to
/// 127.0.0.0/8, and those from the pod's own network, which it would answer past the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detour {
    /// Through a proxy of the engine's.
    Proxy {
        /// The port of 127.0.0.1 that it listens on.
        loopback: u16,
        /// The host's interface in the pod's network.
        bridge: String,
        /// The port of that interface's address that it listens on.
        port: u16,
    },
    /// No detour: the engine has configured the network for them.
    None,
}

/// A host port that is forwarded to a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forward {
    /// Its protocol.
    pub protocol: Protocol,
    /// The host address that it is bound to; none for all addresses.
    pub host_ip: Option<Ipv4Addr>,
    /// The port on the host.
    pub host_port: u16,
    /// Address and port of the pod.
    pub pod: SocketAddrV4,
    /// How it is reached from sources whose packets can't be routed to it.
    pub detour: Detour,
    /// Describes the pod in listings of the rules. At most 100 bytes are used.
    pub comment: String,
}

/// Replaces the rules of a table by those for `forwards`, in one transaction, and returns them; none if
/// they can't be read, or another program has changed them since. Without forwards, the table is
/// removed. Existing connections stay with their destination. Blocks for a moment.
///
/// # Errors
/// The kernel's error: it has no `nf_tables`, or this process has no permission. Nothing has changed
/// then.
pub fn replace(table: &str, forwards: &BTreeSet<Forward>) -> io::Result<Option<Rules>> {
    let messages = ruleset::replacing(table, forwards);
    netlink::transact(FAMILY, &messages)?;
    let is_rule = |message: &&NfTablesMessage| matches!(message, NfTablesMessage::NewRule(_));
    let made = messages.iter().filter(is_rule).count();
    Ok(rules(table).ok().filter(|rules| rules.len() == made))
}

/// Removes a table, if it exists. Blocks for a moment.
///
/// # Errors
/// As [`replace`], except where this process could never have created one.
pub fn remove(table: &str) -> io::Result<()> {
    unless_beyond_us(replace(table, &BTreeSet::new()).map(drop))
}

/// Ends all holds of a table ([`hold`]), if it exists. Blocks for a moment.
///
/// # Errors
/// As [`remove`].
pub fn release(table: &str) -> io::Result<()> {
    unless_beyond_us(hold(table, &BTreeSet::new(), Duration::ZERO))
}

fn unless_beyond_us(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if is_beyond_us(&error) => Ok(()),
        removed => removed,
    }
}

/// Whether no rule of ours can be in the kernel: it has none, or not for us.
fn is_beyond_us(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [
        Errno::PERM,
        Errno::ACCESS,
        Errno::OPNOTSUPP,
        Errno::PROTONOSUPPORT,
        Errno::AFNOSUPPORT,
        Errno::INVAL,
    ]
    .iter()
    .any(|errno| code == Some(errno.raw_os_error()))
}

/// Tests whether the kernel would accept such rules, with a temporary table. Blocks.
///
/// # Errors
/// It would not, or this process has no permission.
pub fn check(table: &str) -> io::Result<()> {
    let forward = Forward {
        protocol: Protocol::Tcp,
        // An address for documentation, which no host has.
        host_ip: Some(Ipv4Addr::new(192, 0, 2, 1)),
        host_port: 1,
        pod: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 2), 1),
        detour: Detour::Proxy {
            loopback: 1,
            bridge: "none".to_owned(),
            port: 1,
        },
        comment: "check".to_owned(),
    };
    let mut messages = ruleset::replacing(table, &[forward].collect_set());
    messages.extend(ruleset::replacing(table, &BTreeSet::new()));
    netlink::transact(FAMILY, &messages)
}
