//! The expressions that our rules are made of. Numbers are those of the kernel's
//! `include/uapi/linux/netfilter/nf_tables.h`.

use std::net::{Ipv4Addr, SocketAddrV4};

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{
    Cmp, DataAttribute, Expressions, Immediate, Meta, MetaKey, Operator, Payload, Register,
};

use super::Protocol;

/// Offset of the destination in an IPv4 header.
const DESTINATION: u32 = 16;
/// Offset of the destination port in a TCP or UDP header.
const DESTINATION_PORT: u32 = 2;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFPROTO_IPV4: u32 = 2;
/// Longest name of a network interface, with a zero at its end.
const IFNAMSIZ: usize = 16;
/// Type of an address that is the host's own.
const RTN_LOCAL: u32 = 2;

fn load(base: u32, offset: u32, bytes: u32) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(bytes),
    ])
}

fn is(value: &[u8]) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(Operator::Equal),
        Cmp::Data(DataAttribute::Value(value.to_vec())),
    ])
}

/// An expression that the library has no type for: its attributes are big-endian numbers.
fn other(name: &str, attributes: &[(u16, u32)]) -> Expressions {
    let attribute =
        |(kind, value): &(u16, u32)| DefaultNla::new(*kind, value.to_be_bytes().to_vec());
    Expressions::Other {
        expression_type: name.to_owned(),
        attributes: attributes.iter().map(attribute).collect(),
    }
}

fn immediate(register: Register, value: &[u8]) -> Expressions {
    Expressions::Immediate(vec![
        Immediate::DestinationRegister(register),
        Immediate::Data(DataAttribute::Value(value.to_vec())),
    ])
}

/// `meta l4proto PROTOCOL th dport PORT`
pub(super) fn port_is(protocol: Protocol, port: u16) -> [Expressions; 4] {
    [
        Expressions::Meta(vec![
            Meta::DestinationRegister(Register::Reg1),
            Meta::Key(MetaKey::L4Proto),
        ]),
        is(&[protocol.number()]),
        load(NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT, 2),
        is(&port.to_be_bytes()),
    ]
}

/// `ip daddr ADDRESS`
pub(super) fn destination_is(address: Ipv4Addr) -> [Expressions; 2] {
    [
        load(NFT_PAYLOAD_NETWORK_HEADER, DESTINATION, 4),
        is(&address.octets()),
    ]
}

/// `ip daddr 127.0.0.0/8`
pub(super) fn destination_is_loopback() -> [Expressions; 2] {
    [load(NFT_PAYLOAD_NETWORK_HEADER, DESTINATION, 1), is(&[127])]
}

/// `iifname INTERFACE`
pub(super) fn comes_from(interface: &str) -> [Expressions; 2] {
    let mut name = [0; IFNAMSIZ];
    for (place, byte) in name.iter_mut().zip(interface.bytes()) {
        *place = byte;
    }
    [
        Expressions::Meta(vec![
            Meta::DestinationRegister(Register::Reg1),
            Meta::Key(MetaKey::Iifname),
        ]),
        is(&name),
    ]
}

/// `fib daddr type local`
pub(super) fn destination_is_local() -> [Expressions; 2] {
    const DREG: u16 = 1;
    const RESULT: u16 = 2;
    const FLAGS: u16 = 3;
    const RESULT_ADDRTYPE: u32 = 3;
    const F_DADDR: u32 = 1 << 1;
    [
        other(
            "fib",
            &[(DREG, 1), (RESULT, RESULT_ADDRTYPE), (FLAGS, F_DADDR)],
        ),
        // In the machine's own order, as the kernel writes it.
        is(&RTN_LOCAL.to_ne_bytes()),
    ]
}

/// `dnat to ADDRESS:PORT`
pub(super) fn to_pod(pod: SocketAddrV4) -> [Expressions; 3] {
    const TYPE: u16 = 1;
    const FAMILY: u16 = 2;
    const REG_ADDR_MIN: u16 = 3;
    const REG_PROTO_MIN: u16 = 5;
    const DNAT: u32 = 1;
    [
        immediate(Register::Reg1, &pod.ip().octets()),
        immediate(Register::Reg2, &pod.port().to_be_bytes()),
        other(
            "nat",
            &[
                (TYPE, DNAT),
                (FAMILY, NFPROTO_IPV4),
                (REG_ADDR_MIN, 1),
                (REG_PROTO_MIN, 2),
            ],
        ),
    ]
}

/// `redirect to :PORT`
pub(super) fn to_own_port(port: u16) -> [Expressions; 2] {
    const REG_PROTO_MIN: u16 = 1;
    [
        immediate(Register::Reg1, &port.to_be_bytes()),
        other("redir", &[(REG_PROTO_MIN, 1)]),
    ]
}
