//! Sends one transaction to the kernel.

use std::io;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_netfilter::nftables::NfTablesMessage;
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// Longest wait for the kernel's answer, which it writes before a send returns.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Room for one datagram of answers, more than the kernel sends at a time.
const ANSWER_BYTES: usize = 64 << 10;
/// The subsystem that a batch is for, in the header of its first and last message.
const NFNL_SUBSYS_NFTABLES: u16 = 10;

/// Commits all messages, about tables of that family, or none.
pub(super) fn transact(
    family: NetfilterProtoFamily,
    messages: &[NfTablesMessage],
) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::NETFILTER),
    )?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let (bytes, last) = batch(family, messages);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &bytes, SendFlags::empty(), &kernel)?;
    let mut buffer = vec![0; ANSWER_BYTES];
    loop {
        let (_, read) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let (length, sequence, error) = answer(rest)?;
            if let Some(error) = error {
                return Err(error);
            }
            if sequence == last {
                return Ok(());
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

/// The length and number of the first answer in `bytes`, and its error, if it is one.
fn answer(bytes: &[u8]) -> io::Result<(usize, u32, Option<io::Error>)> {
    let invalid = |error: netlink_packet_core::DecodeError| {
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    };
    let header = NetlinkBuffer::new_checked(bytes).map_err(invalid)?;
    let length = usize::try_from(header.length())
        .unwrap_or(bytes.len())
        .next_multiple_of(4);
    let message = NetlinkMessage::<NetfilterMessage>::deserialize(bytes).map_err(invalid)?;
    let error = match message.payload {
        NetlinkPayload::Error(answer) if answer.code.is_some() => Some(answer.to_io()),
        _ => None,
    };
    Ok((length, message.header.sequence_number, error))
}

/// The bytes of a transaction, and the number of the message that is answered last.
fn batch(of_tables: NetfilterProtoFamily, messages: &[NfTablesMessage]) -> (Vec<u8>, u32) {
    let mut bytes = Vec::new();
    let mut sequence = 0;
    let mut put = |inner: NetfilterMessageInner, flags: u16| {
        let (family, subsystem) = match inner {
            NetfilterMessageInner::None(_) => (NetfilterProtoFamily::Unspec, NFNL_SUBSYS_NFTABLES),
            _ => (of_tables, 0),
        };
        let header = NetfilterHeader::new(family, 0, subsystem);
        let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = sequence;
        sequence += 1;
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len(), 0);
        if let Some(place) = bytes.get_mut(start..) {
            message.serialize(place);
        }
    };
    put(ControlMessage::BatchBegin.into(), 0);
    let last = messages.len().saturating_sub(1);
    for (index, message) in messages.iter().enumerate() {
        // The kernel answers those that fail, and the one that asks for it.
        let ack = if index == last { NLM_F_ACK } else { 0 };
        put(message.clone().into(), NLM_F_CREATE | NLM_F_APPEND | ack);
    }
    put(ControlMessage::BatchEnd.into(), 0);
    (bytes, u32::try_from(messages.len()).unwrap_or(u32::MAX))
}
