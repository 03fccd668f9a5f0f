//! The expressions in our rules. Numbers are those of the kernel's
//! `include/uapi/linux/netfilter/nf_tables.h`.

use std::net::{Ipv4Addr, SocketAddrV4};

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, Expressions, Immediate, Lookup, Meta, MetaKey, Operator, Payload,
    Register, Verdict, VerdictAttribute,
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
    load_to(Register::Reg1, base, offset, bytes)
}

fn load_to(register: Register, base: u32, offset: u32, bytes: u32) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(register),
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

fn meta(key: MetaKey) -> Expressions {
    Expressions::Meta(vec![
        Meta::DestinationRegister(Register::Reg1),
        Meta::Key(key),
    ])
}

/// `meta l4proto PROTOCOL th dport PORT`
pub(super) fn port_is(protocol: Protocol, port: u16) -> [Expressions; 4] {
    [
        meta(MetaKey::L4Proto),
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
    [meta(MetaKey::Iifname), is(&name)]
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

/// `tcp flags & (fin|syn|rst|ack) == syn`: the first packet of a connection.
pub(super) fn is_syn() -> [Expressions; 5] {
    const FLAGS: u32 = 13;
    const SYN: u8 = 0x02;
    const FIN_SYN_RST_ACK: u8 = 0x17;
    [
        meta(MetaKey::L4Proto),
        is(&[Protocol::Tcp.number()]),
        load(NFT_PAYLOAD_TRANSPORT_HEADER, FLAGS, 1),
        Expressions::Bitwise(vec![
            Bitwise::SourceRegister(Register::Reg1),
            Bitwise::DestinationRegister(Register::Reg1),
            Bitwise::Length(1),
            Bitwise::Mask(DataAttribute::Value(vec![FIN_SYN_RST_ACK])),
            Bitwise::Xor(DataAttribute::Value(vec![0])),
        ]),
        is(&[SYN]),
    ]
}

/// `meta nfproto ipv4`
pub(super) fn is_ipv4() -> [Expressions; 2] {
    // The registers hold one byte of it.
    let number = u8::try_from(NFPROTO_IPV4).unwrap_or_default();
    [meta(MetaKey::Nfproto), is(&[number])]
}

/// `ip daddr . th dport @SET`, or `0.0.0.0 . th dport @SET`
pub(super) fn is_in(set: &str, of_address: bool) -> [Expressions; 3] {
    let (first, second) = (Register::Reg32_00, Register::Reg32_01);
    let address = if of_address {
        load_to(first, NFT_PAYLOAD_NETWORK_HEADER, DESTINATION, 4)
    } else {
        immediate(first, &Ipv4Addr::UNSPECIFIED.octets())
    };
    [
        address,
        load_to(second, NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT, 2),
        Expressions::Lookup(vec![
            Lookup::Set(set.to_owned()),
            Lookup::SourceRegister(first),
        ]),
    ]
}

/// `drop`
pub(super) fn drop_it() -> [Expressions; 1] {
    const NF_DROP: u32 = 0;
    [Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(vec![VerdictAttribute::Code(
            Verdict::Other(NF_DROP),
        )])),
    ])]
}
