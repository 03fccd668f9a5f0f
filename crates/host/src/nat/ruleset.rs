//! Converts forwards to the messages that replace a table's rules.

use std::collections::BTreeSet;

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Expressions, Hook, HookNumber, InetHookNumber, NfTablesMessage,
    RuleAttribute, RuleMessage, TableAttribute, TableMessage,
};

use super::expressions::{
    comes_from, destination_is, destination_is_local, destination_is_loopback, port_is,
    to_own_port, to_pod,
};
use super::{Detour, Forward};

/// Before the engine's rules, which have -100.
const PRIORITY: i32 = -101;
/// Longest comment of a rule, in bytes; the kernel takes 255 bytes with its frame.
const COMMENT_MAX: usize = 100;

#[derive(Clone, Copy)]
pub(super) enum Chain {
    Prerouting,
    Output,
}

impl Chain {
    pub(super) const ALL: [Self; 2] = [Self::Prerouting, Self::Output];

    fn name(self) -> String {
        match self {
            Self::Prerouting => "prerouting",
            Self::Output => "output",
        }
        .to_owned()
    }

    fn hook(self) -> InetHookNumber {
        match self {
            Self::Prerouting => InetHookNumber::PreRouting,
            Self::Output => InetHookNumber::LocalOut,
        }
    }
}

/// The messages that replace a table by one with the rules for `forwards`, or remove it.
pub(super) fn replacing(table: &str, forwards: &BTreeSet<Forward>) -> Vec<NfTablesMessage> {
    if forwards.is_empty() {
        return removing(table);
    }
    let mut messages = emptying(table);
    messages.extend(Chain::ALL.map(|chain| new_chain(table, chain, "nat", PRIORITY)));
    for forward in forwards {
        let rules = rules(forward);
        messages.extend(
            rules
                .into_iter()
                .map(|(chain, expressions)| new_rule(table, chain, expressions, &forward.comment)),
        );
    }
    messages
}

/// The messages that remove a table, whether it exists or not.
pub(super) fn removing(table: &str) -> Vec<NfTablesMessage> {
    // Only a table that exists can be deleted.
    vec![
        NfTablesMessage::NewTable(named(table)),
        NfTablesMessage::DeleteTable(named(table)),
    ]
}

/// The messages that replace a table by an empty one, whether it exists or not.
pub(super) fn emptying(table: &str) -> Vec<NfTablesMessage> {
    let mut messages = removing(table);
    messages.push(NfTablesMessage::NewTable(named(table)));
    messages
}

fn named(table: &str) -> TableMessage {
    TableMessage {
        attributes: vec![TableAttribute::Name(table.to_owned())],
    }
}

/// The rules of one forward, those for detours first.
fn rules(forward: &Forward) -> Vec<(Chain, Vec<Expressions>)> {
    let port = || port_is(forward.protocol, forward.host_port);
    let to_host = || -> Vec<Expressions> {
        match forward.host_ip {
            Some(ip) => destination_is(ip).into(),
            None => destination_is_local().into(),
        }
    };
    let rule = |of: Vec<Expressions>, to: Vec<Expressions>| {
        of.into_iter().chain(port()).chain(to).collect()
    };
    let mut rules = Vec::new();
    if let Detour::Proxy {
        loopback,
        bridge,
        port,
    } = &forward.detour
    {
        let of_loopback: Option<Vec<Expressions>> = match forward.host_ip {
            None => Some(destination_is_loopback().into()),
            Some(ip) if ip.is_loopback() => Some(destination_is(ip).into()),
            Some(_) => None,
        };
        let redirect = |of| (Chain::Output, rule(of, to_own_port(*loopback).into()));
        rules.extend(of_loopback.map(redirect));
        let of_bridge = comes_from(bridge).into_iter().chain(to_host()).collect();
        rules.push((
            Chain::Prerouting,
            rule(of_bridge, to_own_port(*port).into()),
        ));
    }
    for chain in [Chain::Prerouting, Chain::Output] {
        rules.push((chain, rule(to_host(), to_pod(forward.pod).into())));
    }
    rules
}

pub(super) fn new_chain(table: &str, chain: Chain, kind: &str, priority: i32) -> NfTablesMessage {
    NfTablesMessage::NewChain(ChainMessage {
        attributes: vec![
            ChainAttribute::Table(table.to_owned()),
            ChainAttribute::Name(chain.name()),
            ChainAttribute::Hook(vec![
                Hook::Number(HookNumber::Inet(chain.hook())),
                Hook::Priority(priority.cast_unsigned()),
            ]),
            ChainAttribute::Type(kind.to_owned()),
        ],
    })
}

pub(super) fn new_rule(
    table: &str,
    chain: Chain,
    expressions: Vec<Expressions>,
    text: &str,
) -> NfTablesMessage {
    NfTablesMessage::NewRule(RuleMessage {
        attributes: vec![
            RuleAttribute::Table(table.to_owned()),
            RuleAttribute::Chain(chain.name()),
            RuleAttribute::Expressions(expressions.into_iter().map(Into::into).collect()),
            RuleAttribute::UserData(comment(text)),
        ],
    })
}

/// A comment as `nft` reads it: type, length, text with a zero at its end.
fn comment(text: &str) -> Vec<u8> {
    const NFTNL_UDATA_RULE_COMMENT: u8 = 0;
    let text = text
        .get(..text.floor_char_boundary(COMMENT_MAX))
        .unwrap_or_default();
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut bytes = vec![NFTNL_UDATA_RULE_COMMENT, length];
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}
