//! Converts the bytes of a query to the bytes of a reply.

use std::net::IpAddr;

use hickory_proto::ProtoError;
use hickory_proto::op::{
    Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode,
};
use hickory_proto::rr::rdata::{PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable, BinEncoder};

use crate::forward::Forwarded;
use crate::{Answer, Kind, Port, Table, Transport};

/// Time for which clients may cache an answer of the table, in seconds; also for names that don't
/// exist.
const TTL: u32 = 5;
/// Maximum size of a UDP reply: it fits into a packet on any network.
pub(crate) const UDP_MAX: u16 = 1232;
/// Most bytes of a UDP reply to a client that reports no size.
const UDP_DEFAULT: u16 = 512;
/// Bytes of the record that reports our size to the client.
const EDNS_BYTES: u16 = 11;
/// Priority and weight of the ports of a service: clients choose any of them.
const PRIORITY_AND_WEIGHT: (u16, u16) = (0, 100);
/// Times of a zone transfer in the SOA record, in seconds. There is none, so that they don't matter.
const SOA_TIMES: [i32; 3] = [7200, 1800, 86400];

/// Most bytes of the reply to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The maximum size that the client can read over UDP.
    Packet,
    /// As many as a message can have.
    Message,
}

/// Returns the reply of the table to the bytes of a query, without I/O. There is none to bytes that are
/// not a query, and none to a query that [`serve`](crate::serve) would forward. A UDP reply has at most
/// 1,232 bytes.
pub fn reply(table: &Table, client: IpAddr, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let asked = match parse(query, true) {
        Parsed::Ignored => return None,
        Parsed::Reply(reply) => return Some(reply),
        Parsed::Query(asked) => asked,
    };
    let limit = match transport {
        Transport::Udp => Limit::Packet,
        Transport::Tcp => Limit::Message,
    };
    let reply = asked.by_table(table, client)?;
    Some(asked.encode(reply, limit))
}

/// A query that is understood, without its answer.
#[derive(Debug)]
pub(crate) struct Asked {
    metadata: Metadata,
    pub(crate) query: Query,
    edns: Option<Edns>,
}

/// The way on with the bytes of a query.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// Not a query: nothing is answered, or two servers could answer each other forever.
    Ignored,
    /// A query to be answered.
    Query(Asked),
    /// A query with an error, and its answer.
    Reply(Vec<u8>),
}

/// Parses a query. One from a client that `is_allowed` denies is refused.
pub(crate) fn parse(bytes: &[u8], is_allowed: bool) -> Parsed {
    let mut decoder = BinDecoder::new(bytes);
    let Ok(header) = Header::read(&mut decoder) else {
        return Parsed::Ignored;
    };
    if header.metadata.message_type == MessageType::Response {
        return Parsed::Ignored;
    }
    let is_one = header.counts.queries == 1;
    let query = is_one.then(|| Query::read(&mut decoder).ok()).flatten();
    let failure = |code| {
        let mut reply = response(&header.metadata);
        // Clients believe an error only with their question.
        reply.queries.extend(query.clone());
        reply.metadata.response_code = code;
        reply.to_vec().map_or(Parsed::Ignored, Parsed::Reply)
    };
    if !is_allowed {
        return failure(ResponseCode::Refused);
    }
    if header.metadata.op_code != OpCode::Query {
        return failure(ResponseCode::NotImp);
    }
    // Checked first: the parser reserves memory for as many as the header says.
    if !is_one {
        return failure(ResponseCode::FormErr);
    }
    let Ok(mut message) = Message::from_vec(bytes) else {
        return failure(ResponseCode::FormErr);
    };
    let Some(query) = message.queries.pop() else {
        return failure(ResponseCode::FormErr);
    };
    let asked = Asked {
        metadata: header.metadata,
        query,
        edns: message.edns,
    };
    let is_transfer = matches!(
        asked.query.query_type(),
        RecordType::AXFR | RecordType::IXFR
    );
    let code = if asked.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        ResponseCode::BADVERS
    } else if asked.query.query_class() != DNSClass::IN || is_transfer {
        ResponseCode::Refused
    } else {
        return Parsed::Query(asked);
    };
    Parsed::Reply(asked.failure(code))
}

impl Asked {
    /// The answer of the table to a client, as a message; none if the query must be forwarded.
    pub(crate) fn by_table(&self, table: &Table, client: IpAddr) -> Option<Message> {
        // A dot within a label is escaped here, and so is everything that is no letter of a name.
        let name = self.query.name().to_ascii();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let kind = match self.query.query_type() {
            RecordType::A => Kind::A,
            RecordType::AAAA => Kind::Aaaa,
            RecordType::PTR => Kind::Pointer,
            RecordType::SRV => Kind::Service,
            RecordType::ANY => Kind::Any,
            _ => Kind::Other,
        };
        let mut reply = self.response();
        reply.metadata.authoritative = true;
        let answers = match table.answer(client, name, kind) {
            Answer::NotOurs => return None,
            Answer::Addresses(addresses) => addresses.into_iter().map(RData::from).collect(),
            // An invalid name can't be sent.
            Answer::Pointer(name) => host(&name)
                .map(|name| RData::PTR(PTR(name)))
                .into_iter()
                .collect(),
            Answer::Ports(ports) => ports.iter().filter_map(service).collect(),
            Answer::Empty => Vec::new(),
            Answer::NoSuchName => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                Vec::new()
            }
        };
        let soa = self.soa(table, name).filter(|_| answers.is_empty());
        let name = self.query.name();
        reply.answers = answers
            .into_iter()
            .map(|data| Record::from_rdata(name.clone(), TTL, data))
            .collect();
        let asks_for_soa = matches!(self.query.query_type(), RecordType::SOA | RecordType::ANY);
        match soa {
            Some(soa) if asks_for_soa && soa.name == *name => reply.answers.push(soa),
            soa => reply.authorities.extend(soa),
        }
        Some(reply)
    }

    /// The answer of another server, as a message.
    pub(crate) fn by_server(&self, forwarded: Forwarded) -> Message {
        let mut reply = self.response();
        reply.metadata.response_code = forwarded.code;
        reply.answers = forwarded.answers;
        reply.authorities = forwarded.authorities;
        reply.additionals = forwarded.additionals;
        reply
    }

    /// Encodes a reply. A reply that is too large is marked as truncated and has the answers that fit,
    /// for clients without TCP.
    pub(crate) fn encode(&self, mut reply: Message, limit: Limit) -> Vec<u8> {
        let max = match (limit, &self.edns) {
            (Limit::Message, _) => u16::MAX,
            (Limit::Packet, None) => UDP_DEFAULT,
            (Limit::Packet, Some(edns)) => edns.max_payload().clamp(UDP_DEFAULT, UDP_MAX),
        };
        match reply.to_vec() {
            Ok(bytes) if bytes.len() <= usize::from(max) => return bytes,
            Ok(_) | Err(_) => {}
        }
        reply.metadata.truncation = true;
        reply.authorities.clear();
        reply.additionals.clear();
        let fitting = answers_within(&reply, max - EDNS_BYTES).unwrap_or(0);
        reply.answers.truncate(fitting);
        reply
            .to_vec()
            .unwrap_or_else(|_| self.failure(ResponseCode::ServFail))
    }

    /// The encoded reply with an error code alone.
    pub(crate) fn failure(&self, code: ResponseCode) -> Vec<u8> {
        let mut reply = self.response();
        reply.metadata.response_code = code;
        // It has no record that could make it too large.
        reply.to_vec().unwrap_or_default()
    }

    fn response(&self) -> Message {
        let mut reply = response(&self.metadata);
        reply.queries.push(self.query.clone());
        if self.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_MAX);
            reply.edns = Some(edns);
        }
        reply
    }

    /// The SOA record, which limits how long a negative answer may be cached. A name outside the domain
    /// is a zone of its own.
    fn soa(&self, table: &Table, name: &str) -> Option<Record> {
        let zone = if table.is_in_domain(name) {
            host(&table.domain)?
        } else {
            self.query.name().clone()
        };
        let [refresh, retry, expire] = SOA_TIMES;
        let server = zone
            .clone()
            .prepend_label("ns")
            .ok()
            .unwrap_or_else(|| zone.clone());
        let mailbox = zone
            .prepend_label("hostmaster")
            .ok()
            .unwrap_or_else(|| zone.clone());
        let soa = SOA::new(server, mailbox, 1, refresh, retry, expire, TTL);
        Some(Record::from_rdata(zone, TTL, RData::SOA(soa)))
    }
}

fn response(query: &Metadata) -> Message {
    let mut reply = Message::response(query.id, query.op_code);
    reply.metadata = Metadata::response_from_request(query);
    reply.metadata.recursion_available = true;
    reply
}

/// A name with a dot at its end.
fn host(name: &str) -> Option<Name> {
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// The record of a service's port; none where the target is no name.
fn service(port: &Port) -> Option<RData> {
    let (priority, weight) = PRIORITY_AND_WEIGHT;
    let target = host(&port.target)?;
    Some(RData::SRV(SRV::new(priority, weight, port.port, target)))
}

/// The number of answers that fit into a message of `max` bytes.
fn answers_within(reply: &Message, max: u16) -> Result<usize, ProtoError> {
    let mut bytes = Vec::new();
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(max);
    let mut reply = reply.clone();
    reply.edns = None;
    reply.emit(&mut encoder)?;
    let header = Header::read(&mut BinDecoder::new(&bytes))?;
    Ok(usize::from(header.counts.answers))
}

#[cfg(test)]
mod tests;
