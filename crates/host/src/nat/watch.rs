//! Checks whether the rules of a table are unchanged: another program may remove or change them, as
//! `nft flush ruleset` does.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NetlinkBuffer, NlasIterator};
use netlink_packet_netfilter::nftables::{
    NfTablesMessage, RuleAttribute, RuleMessage, TableAttribute, TableMessage,
};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{FAMILY, netlink};

/// How long changes of a table are waited for that come with others: a restart of `nftables` removes all
/// rules twice.
const SETTLE: Duration = Duration::from_millis(200);
/// Room for one datagram of changes, more than the kernel sends at a time.
const CHANGES_BYTES: usize = 8 << 10;
/// Most datagrams that are skipped at a time, more than the kernel keeps for a socket.
const SKIPPED_MAX: usize = 1000;
/// Length of the header before the attributes of a message.
const HEADER_BYTES: usize = 4;

/// The name of the table, an attribute of all that is in one. Upstream: Linux, `nf_tables.h`.
const NFTA_TABLE: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_HANDLE: u16 = 4;
const NFTA_RULE_HANDLE: u16 = 3;

/// The identity of a table's rules, which distinguishes them from equal rules: the kernel numbers each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// The number of the table and its flags. No other table gets this number.
    table: Vec<Vec<u8>>,
    /// The numbers of the rules within the table.
    rules: Vec<Vec<u8>>,
}

impl Rules {
    /// How many they are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// Reads the rules of a table; none if it does not exist. Blocks for a moment.
///
/// # Errors
/// The kernel's error.
pub fn rules(table: &str) -> io::Result<Rules> {
    let socket = netlink::open()?;
    let mut found = Rules::default();
    let of_table = NfTablesMessage::GetTable(TableMessage {
        attributes: vec![TableAttribute::Name(table.to_owned())],
    });
    let read = netlink::ask_of_rules(&socket, of_table, NLM_F_ACK, |payload| {
        found.table = values(payload, &[NFTA_TABLE_FLAGS, NFTA_TABLE_HANDLE]);
    });
    match read {
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
            return Ok(found);
        }
        read => read?,
    }
    let of_rules = NfTablesMessage::GetRule(RuleMessage {
        attributes: vec![RuleAttribute::Table(table.to_owned())],
    });
    netlink::ask_of_rules(&socket, of_rules, NLM_F_DUMP, |payload| {
        found.rules.extend(values(payload, &[NFTA_RULE_HANDLE]));
    })?;
    Ok(found)
}

/// The values of these attributes, in the order of the message.
fn values(payload: &[u8], kinds: &[u16]) -> Vec<Vec<u8>> {
    let attributes = payload.get(HEADER_BYTES..).unwrap_or_default();
    let attributes = NlasIterator::new(attributes).map_while(Result::ok);
    attributes
        .filter(|attribute| kinds.contains(&attribute.kind()))
        .map(|attribute| attribute.value().to_vec())
        .collect()
}

/// The kernel's notifications about changes of a table, including those by this process.
#[derive(Debug)]
pub struct Changes {
    socket: AsyncFd<OwnedFd>,
    table: String,
    buffer: Vec<u8>,
}

impl Changes {
    /// Subscribes to the changes of that table. Must be called within a runtime.
    ///
    /// # Errors
    /// The kernel's error: it has no `nf_tables`, or this process has no permission.
    pub fn of(table: &str) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "what owns a descriptor keeps it open, and the same, as the new form asks for"
        )]
        let registered = AsyncFd::with_interest;
        Ok(Self {
            socket: registered(netlink::open_for_changes()?, Interest::READABLE)?,
            table: table.to_owned(),
            buffer: vec![0; CHANGES_BYTES],
        })
    }

    /// Waits until the table may have changed, and no further change follows for a moment.
    ///
    /// # Errors
    /// The kernel sends no more notifications.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            match receive(self.socket.get_ref(), &mut self.buffer) {
                Ok(Some(read)) => {
                    let read = self.buffer.get(..read).unwrap_or_default();
                    if !concerns(read, &self.table) {
                        continue;
                    }
                }
                Ok(None) => {
                    ready.clear_ready();
                    continue;
                }
                // Notifications were lost: anything may have changed.
                Err(Errno::NOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(SETTLE).await;
            // The check that follows covers all notifications so far.
            for _ in 0..SKIPPED_MAX {
                let skipped = receive(self.socket.get_ref(), &mut self.buffer);
                if !matches!(skipped, Ok(Some(_)) | Err(Errno::NOBUFS)) {
                    break;
                }
            }
            return Ok(());
        }
    }
}

/// The length of the next datagram; none if there is none now.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    loop {
        match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, read)) => return Ok(Some(read)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether one of the messages concerns that table. An unreadable message counts.
fn concerns(mut messages: &[u8], table: &str) -> bool {
    while !messages.is_empty() {
        let Ok(message) = NetlinkBuffer::new_checked(messages) else {
            return true;
        };
        let payload = message.payload();
        let is_of_family = payload.first() == Some(&u8::from(FAMILY));
        let named = |name: &Vec<u8>| name.strip_suffix(&[0]) == Some(table.as_bytes());
        if is_of_family && values(payload, &[NFTA_TABLE]).first().is_some_and(named) {
            return true;
        }
        let length = usize::try_from(message.length()).unwrap_or(messages.len());
        messages = messages
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use netlink_packet_netfilter::NetfilterProtoFamily;

    use super::super::ruleset;
    use super::*;

    #[test]
    fn changes_of_a_table_are_told_from_those_of_others() {
        let bytes = |family, messages: &[NfTablesMessage]| netlink::batch(family, messages).0;
        let emptied = |table: &str| ruleset::replacing(table, &BTreeSet::new());
        let inet = NetfilterProtoFamily::Inet;
        // A batch begins and ends with messages that are about no table.
        for (what, messages, is_ours) in [
            ("ours", bytes(FAMILY, &emptied("ours")), true),
            ("another's", bytes(FAMILY, &emptied("another")), false),
            ("a longer name", bytes(FAMILY, &emptied("ours2")), false),
            ("of another family", bytes(inet, &emptied("ours")), false),
            ("nothing", Vec::new(), false),
            ("half a message", vec![20, 0, 0, 0, 0], true),
        ] {
            // rollouts S12
            assert_eq!(concerns(&messages, "ours"), is_ours, "{what}");
        }
        let both = [emptied("another"), emptied("ours")].concat();
        assert!(concerns(&bytes(FAMILY, &both), "ours"));
    }
}
