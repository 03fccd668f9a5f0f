//! Holds connection attempts to a port: their first packets are dropped, so that clients send them
//! again after a second instead of being refused.
//!
//! A hold expires by itself. A process that dies leaves at most an empty table.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::nftables::{
    DataAttribute, Expressions, ListAttribute, NfTablesMessage, SetAttribute, SetElementAttribute,
    SetElementList, SetElementMessage, SetFlags, SetMessage,
};

use super::expressions::{destination_is_local, drop_it, is_in, is_ipv4, is_syn};
use super::netlink;
use super::ruleset::{Chain, emptying, new_chain, new_rule, removing};
use mirrorlet_core::small::SmallCollect;

/// Both of IP's versions: Docker publishes a port at all addresses of the host.
const FAMILY: NetfilterProtoFamily = NetfilterProtoFamily::Inet;
/// As `raw`: before connections are tracked and translated.
const PRIORITY: i32 = -300;
/// The set of the ports that are held.
const SET: &str = "held";
/// An address and a port, each in a register of four bytes.
const KEY_BYTES: u32 = 8;
/// How `nft` reads the keys: `ipv4_addr . inet_service`.
const KEY_TYPE: u32 = 7 * 64 + 13;
/// Most elements in one message: the length of what holds them has 16 bits.
const ELEMENTS_MAX: usize = 1000;
/// The set's number within a transaction.
const SET_ID: u32 = 1;

/// A TCP port of the host on which no new connection is accepted for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldPort {
    /// The address of the host; none for all.
    pub host_ip: Option<Ipv4Addr>,
    /// The port on the host.
    pub host_port: u16,
}

impl HeldPort {
    fn key(self) -> Vec<u8> {
        let ip = self.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let port = self.host_port.to_be_bytes();
        [&ip.octets()[..], &port, &[0; 2]].concat()
    }
}

/// Holds exactly these ports for `lease` from now on, in one transaction. Without ports, the table is
/// removed. Blocks for a moment.
///
/// # Errors
/// The kernel's error: it has no `nf_tables`, or this process has no permission. Nothing has changed
/// then.
pub fn hold(table: &str, ports: &BTreeSet<HeldPort>, lease: Duration) -> io::Result<()> {
    netlink::transact(FAMILY, &holding(table, ports, lease))
}

/// Tests whether the kernel can hold ports, with a temporary table. Blocks.
///
/// # Errors
/// It can't, or this process has no permission.
pub fn check_hold(table: &str) -> io::Result<()> {
    let port = HeldPort {
        // An address for documentation, which no host has.
        host_ip: Some(Ipv4Addr::new(192, 0, 2, 1)),
        host_port: 1,
    };
    let mut messages = holding(table, &[port].collect_set(), Duration::from_secs(1));
    messages.extend(removing(table));
    netlink::transact(FAMILY, &messages)
}

fn holding(table: &str, ports: &BTreeSet<HeldPort>, lease: Duration) -> Vec<NfTablesMessage> {
    if ports.is_empty() {
        return removing(table);
    }
    let mut messages = emptying(table);
    messages.push(new_set(table));
    for chain in Chain::ALL {
        messages.push(new_chain(table, chain, "filter", PRIORITY));
        for of_address in [false, true] {
            messages.push(new_rule(table, chain, rule(of_address), "held"));
        }
    }
    let ports: Vec<HeldPort> = ports.iter().copied().collect();
    for part in ports.chunks(ELEMENTS_MAX) {
        messages.push(elements(table, part, lease));
    }
    messages
}

fn rule(of_address: bool) -> Vec<Expressions> {
    let mut rule: Vec<Expressions> = is_syn().into();
    if of_address {
        rule.extend(is_ipv4());
    } else {
        rule.extend(destination_is_local());
    }
    rule.extend(is_in(SET, of_address));
    rule.extend(drop_it());
    rule
}

fn new_set(table: &str) -> NfTablesMessage {
    NfTablesMessage::NewSet(SetMessage {
        attributes: vec![
            SetAttribute::Table(table.to_owned()),
            SetAttribute::Name(SET.to_owned()),
            SetAttribute::Id(SET_ID),
            SetAttribute::Flags(SetFlags::Timeout),
            SetAttribute::KeyType(KEY_TYPE),
            SetAttribute::KeyLen(KEY_BYTES),
        ],
    })
}

fn elements(table: &str, ports: &[HeldPort], lease: Duration) -> NfTablesMessage {
    let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).max(1);
    let element = |port: &HeldPort| {
        ListAttribute::Element(vec![
            SetElementAttribute::Key(DataAttribute::Value(port.key())),
            SetElementAttribute::Timeout(lease),
        ])
    };
    NfTablesMessage::NewSetElement(SetElementMessage {
        attributes: vec![
            SetElementList::Table(table.to_owned()),
            SetElementList::Set(SET.to_owned()),
            SetElementList::SetId(SET_ID),
            SetElementList::Elements(ports.iter().map(element).collect()),
        ],
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Nla as _;

    use super::*;

    #[test]
    fn a_key_is_an_address_and_a_port_in_registers() {
        let port = HeldPort {
            host_ip: Some(Ipv4Addr::new(10, 0, 0, 1)),
            host_port: 0x1f90,
        };
        assert_eq!(port.key(), [10, 0, 0, 1, 0x1f, 0x90, 0, 0]);
        let all = HeldPort {
            host_ip: None,
            ..port
        };
        assert_eq!(all.key(), [0, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(KEY_BYTES as usize, all.key().len());
    }

    #[test]
    fn thousands_of_ports_are_elements_that_their_lengths_can_tell() {
        let port = |host_port| HeldPort {
            host_ip: None,
            host_port,
        };
        let ports: BTreeSet<HeldPort> = (1..=5000).map(port).collect();
        let mut held = 0;
        for message in holding("t", &ports, Duration::from_secs(1)) {
            let NfTablesMessage::NewSetElement(elements) = message else {
                continue;
            };
            for attribute in elements.attributes {
                assert!(attribute.value_len() < usize::from(u16::MAX));
                if let SetElementList::Elements(elements) = attribute {
                    held += elements.len();
                }
            }
        }
        // rollouts S13
        assert_eq!(held, ports.len());
    }

    #[test]
    fn nothing_to_hold_leaves_no_table() {
        let none = holding("t", &BTreeSet::new(), Duration::from_secs(1));
        assert_eq!(none, removing("t"));
    }
}
