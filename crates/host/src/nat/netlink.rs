//! Sends transactions and questions to the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::conntrack::ConntrackMessage;
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

/// Longest message that the kernel takes from any socket, whatever its defaults are.
const SEND_BYTES: usize = 64 << 10;
/// The multicast group for changes of rules, as a mask.
///
/// Upstream: Linux, `enum nfnetlink_groups` of `nfnetlink.h`.
const NFNLGRP_NFTABLES: u32 = 1 << (7 - 1);

/// Longest time for all answers to one question.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket to the kernel's netfilter.
pub(super) fn open() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::NETFILTER),
    )?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// Opens a non-blocking socket for the kernel's notifications about changes of rules.
pub(super) fn open_for_changes() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::NETFILTER),
    )?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, NFNLGRP_NFTABLES))?;
    Ok(socket)
}

/// Enlarges a socket's send buffer for a message of that length: the kernel refuses a message beyond
/// the buffer's size, which it sets to twice the requested value.
fn make_room(socket: &OwnedFd, bytes: usize) {
    // The other has a limit, of the machine's (`net.core.wmem_max`); this one needs CAP_NET_ADMIN, as
    // rules do. Where neither helps, the kernel refuses the message.
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
}

/// Sends a message of any length.
fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > SEND_BYTES {
        make_room(socket, bytes.len());
    }
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, bytes, SendFlags::empty(), &kernel)?;
    Ok(())
}

/// Sends a message about IPv4 flows, and passes on all of the kernel's answers. Unreadable answers are
/// skipped.
pub(super) fn ask(
    socket: &OwnedFd,
    message: ConntrackMessage,
    flags: u16,
    mut take: impl FnMut(ConntrackMessage),
) -> io::Result<()> {
    answers(socket, message.into(), flags, |answer| {
        let answer = NetlinkMessage::<NetfilterMessage>::deserialize(answer);
        if let Ok(NetlinkPayload::InnerMessage(NetfilterMessage {
            inner: NetfilterMessageInner::Conntrack(answer),
            ..
        })) = answer.map(|answer| answer.payload)
        {
            take(answer);
        }
    })
}

/// Sends a message about rules for IPv4, and passes on the contents of all of the kernel's answers,
/// without their headers.
pub(super) fn ask_of_rules(
    socket: &OwnedFd,
    message: NfTablesMessage,
    flags: u16,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    answers(socket, message.into(), flags, |answer| {
        if let Ok(answer) = NetlinkBuffer::new_checked(answer) {
            take(answer.payload());
        }
    })
}

/// Sends a message, and takes the kernel's answers to the last one.
fn answers(
    socket: &OwnedFd,
    message: NetfilterMessageInner,
    flags: u16,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut bytes = Vec::new();
    put(
        &mut bytes,
        (NetfilterProtoFamily::IPv4, 0),
        message,
        flags,
        0,
    );
    send(socket, &bytes)?;
    let began = Instant::now();
    let mut buffer = vec![0; ANSWER_BYTES];
    while began.elapsed() < ANSWERS_TIMEOUT {
        let (_, read) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let header = NetlinkBuffer::new_checked(rest).map_err(|error| invalid(&error))?;
            match header.message_type() {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => return answer(rest)?.2.map_or(Ok(()), Err),
                _ => take(rest),
            }
            rest = rest.get(length(rest)?..).unwrap_or_default();
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Commits all messages, about tables of that family, or none.
pub(super) fn transact(
    family: NetfilterProtoFamily,
    messages: &[NfTablesMessage],
) -> io::Result<()> {
    let socket = open()?;
    let (bytes, last) = batch(family, messages);
    send(&socket, &bytes)?;
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

fn invalid(error: &netlink_packet_core::DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// The length of the first answer in `bytes`, with what fills it up.
fn length(bytes: &[u8]) -> io::Result<usize> {
    let header = NetlinkBuffer::new_checked(bytes).map_err(|error| invalid(&error))?;
    let length = usize::try_from(header.length()).unwrap_or(bytes.len());
    Ok(length.next_multiple_of(4))
}

/// The length and number of the first answer in `bytes`, and its error, if it is one.
fn answer(bytes: &[u8]) -> io::Result<(usize, u32, Option<io::Error>)> {
    let length = length(bytes)?;
    let message =
        NetlinkMessage::<NetfilterMessage>::deserialize(bytes).map_err(|error| invalid(&error))?;
    let error = match message.payload {
        NetlinkPayload::Error(answer) if answer.code.is_some() => Some(answer.to_io()),
        _ => None,
    };
    Ok((length, message.header.sequence_number, error))
}

/// The bytes of a transaction, and the sequence number of the message that is answered last.
pub(super) fn batch(
    of_tables: NetfilterProtoFamily,
    messages: &[NfTablesMessage],
) -> (Vec<u8>, u32) {
    let mut bytes = Vec::new();
    let mut sequence = 0;
    let mut add = |inner: NetfilterMessageInner, flags: u16| {
        let about = match inner {
            NetfilterMessageInner::None(_) => (NetfilterProtoFamily::Unspec, NFNL_SUBSYS_NFTABLES),
            _ => (of_tables, 0),
        };
        put(&mut bytes, about, inner, flags, sequence);
        sequence += 1;
    };
    add(ControlMessage::BatchBegin.into(), 0);
    let last = messages.len().saturating_sub(1);
    for (index, message) in messages.iter().enumerate() {
        // The kernel answers failed messages, and the one that requests an answer.
        let ack = if index == last { NLM_F_ACK } else { 0 };
        add(message.clone().into(), NLM_F_CREATE | NLM_F_APPEND | ack);
    }
    add(ControlMessage::BatchEnd.into(), 0);
    (bytes, u32::try_from(messages.len()).unwrap_or(u32::MAX))
}

/// Appends a message, about a family and for a subsystem, to `bytes`.
fn put(
    bytes: &mut Vec<u8>,
    (family, subsystem): (NetfilterProtoFamily, u16),
    inner: impl Into<NetfilterMessageInner>,
    flags: u16,
    sequence: u32,
) {
    let header = NetfilterHeader::new(family, 0, subsystem);
    let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
    message.header.flags = NLM_F_REQUEST | flags;
    message.header.sequence_number = sequence;
    message.finalize();
    let start = bytes.len();
    bytes.resize(start + message.buffer_len(), 0);
    if let Some(place) = bytes.get_mut(start..) {
        message.serialize(place);
    }
}
