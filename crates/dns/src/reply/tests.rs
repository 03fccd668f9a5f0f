use hickory_proto::op::HeaderCounts;
use proptest::prelude::*;

use super::*;

fn table() -> Table {
    let many = (0..200).map(|i| IpAddr::from([10, 9, 1, i])).collect();
    let name = |name: &str, addresses| crate::Name {
        name: name.to_owned(),
        namespace: None,
        addresses,
    };
    Table {
        domain: "cluster.local".to_owned(),
        names: vec![
            name("many.default.svc.cluster.local", many),
            name("one.default", vec![IpAddr::from([10, 9, 0, 7])]),
        ],
        ..Table::default()
    }
}

fn message(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 7;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(host(name).unwrap(), kind));
    message
}

/// The reply to a query with an error.
fn refusal(message: &Message) -> Message {
    match parse(&message.to_vec().unwrap(), true) {
        Parsed::Reply(reply) => Message::from_vec(&reply).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn reply(message: &Message, limit: Limit) -> (Message, usize) {
    let Parsed::Query(asked) = parse(&message.to_vec().unwrap(), true) else {
        panic!("not understood: {message}");
    };
    let reply = asked.by_table(&table(), IpAddr::from([10, 0, 0, 1]));
    let bytes = asked.encode(reply.unwrap(), limit);
    (Message::from_vec(&bytes).unwrap(), bytes.len())
}

#[test]
fn large_replies_are_cut_to_the_size_of_the_client() {
    let mut query = message("many.default.svc.cluster.local", RecordType::A);
    let (whole, _) = reply(&query, Limit::Message);
    assert_eq!(whole.answers.len(), 200);
    assert!(!whole.metadata.truncation);
    let mut counts = Vec::new();
    for (size, max) in [
        (None, 512),
        (Some(100), 512),
        (Some(1000), 1000),
        (Some(9000), 1232),
    ] {
        query.edns = size.map(|size| {
            let mut edns = Edns::new();
            edns.set_max_payload(size);
            edns
        });
        let (cut, bytes) = reply(&query, Limit::Packet);
        assert!(cut.metadata.truncation);
        assert!(bytes <= max && bytes + 64 > max, "{bytes} of {max}");
        assert_eq!(cut.answers, whole.answers[..cut.answers.len()]);
        assert_eq!(cut.edns.is_some(), size.is_some());
        counts.push(cut.answers.len());
    }
    assert!(counts.is_sorted(), "{counts:?}");
}

#[test]
fn negative_replies_name_a_zone_that_holds_the_name() {
    let rows = [
        (
            "none.cluster.local",
            ResponseCode::NXDomain,
            "cluster.local",
        ),
        (
            "default.svc.cluster.local",
            ResponseCode::NoError,
            "cluster.local",
        ),
        ("one.default", ResponseCode::NoError, "one.default"),
    ];
    for (name, code, zone) in rows {
        let (reply, _) = reply(&message(name, RecordType::AAAA), Limit::Packet);
        assert_eq!(reply.metadata.response_code, code, "{name}");
        let [soa] = &reply.authorities[..] else {
            panic!("{reply}");
        };
        assert_eq!((&soa.name, soa.ttl), (&host(zone).unwrap(), 5), "{name}");
        let RData::SOA(data) = &soa.data else {
            panic!("{reply}");
        };
        assert_eq!(data.minimum, 5);
    }
}

#[test]
fn a_zone_has_the_record_that_its_negative_replies_name() {
    for (name, is_answer) in [
        ("Cluster.local", true),
        ("one.default", true),
        ("default.svc.cluster.local", false),
        ("none.cluster.local", false),
    ] {
        let (reply, _) = reply(&message(name, RecordType::SOA), Limit::Packet);
        assert_eq!(reply.answers.len(), usize::from(is_answer), "{name}");
        assert_eq!(reply.authorities.len(), usize::from(!is_answer), "{name}");
    }
}

#[test]
fn errors_are_reported_by_code() {
    let query = || message("one.default", RecordType::A);
    let mut update = query();
    update.metadata.op_code = OpCode::Update;
    assert_eq!(
        refusal(&update).metadata.response_code,
        ResponseCode::NotImp
    );
    let mut two = query();
    two.add_query(two.queries[0].clone());
    assert_eq!(refusal(&two).metadata.response_code, ResponseCode::FormErr);
    let mut chaos = query();
    chaos.queries[0].query_class = DNSClass::CH;
    assert_eq!(
        refusal(&chaos).metadata.response_code,
        ResponseCode::Refused
    );
    let transfer = refusal(&message("cluster.local", RecordType::AXFR));
    assert_eq!(transfer.metadata.response_code, ResponseCode::Refused);
    let mut newer = query();
    let mut edns = Edns::new();
    edns.set_version(1);
    newer.edns = Some(edns);
    let newer = refusal(&newer);
    assert_eq!(u16::from(newer.metadata.response_code), 16, "BADVERS");
    assert_eq!(newer.metadata.id, 7);

    let mut half = query().to_vec().unwrap();
    half.truncate(20);
    let Parsed::Reply(reply) = parse(&half, true) else {
        panic!("half a query is understood");
    };
    let reply = Message::from_vec(&reply).unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
}

#[test]
fn only_queries_are_answered() {
    let mut answer = message("one.default", RecordType::A);
    answer.metadata.message_type = MessageType::Response;
    for is_allowed in [true, false] {
        let parsed = parse(&answer.to_vec().unwrap(), is_allowed);
        assert!(matches!(parsed, Parsed::Ignored));
        assert!(matches!(parse(&[0; 11], is_allowed), Parsed::Ignored));
    }
}

fn answer_to(bytes: &[u8]) {
    if let Parsed::Query(asked) = parse(bytes, true)
        && let Some(reply) = asked.by_table(&table(), IpAddr::from([10, 0, 0, 1]))
    {
        for limit in [Limit::Packet, Limit::Message] {
            let bytes = asked.encode(reply.clone(), limit);
            Message::from_vec(&bytes).unwrap();
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        answer_to(&bytes);
    }

    #[test]
    fn no_name_panics(
        labels in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..64), 0..3),
        domain in any::<bool>(),
        kind in any::<u16>(),
        rest in proptest::collection::vec(any::<u8>(), 0..40),
        additionals in 0_u16..3,
    ) {
        let counts = HeaderCounts { queries: 1, additionals, ..HeaderCounts::default() };
        let header = Header { metadata: message("a", RecordType::A).metadata, counts };
        let mut bytes = header.to_bytes().unwrap();
        let domain: &[&[u8]] = if domain { &[b"cluster", b"local"] } else { &[] };
        for label in labels.iter().map(Vec::as_slice).chain(domain.iter().copied()) {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend(label);
        }
        bytes.push(0);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(rest);
        answer_to(&bytes);
    }
}
