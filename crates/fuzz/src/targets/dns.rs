//! The fuzz target for DNS queries.

use std::net::IpAddr;

use mirrorlet_dns::{Name, Port, Table, Transport, reply};

use super::choice;

/// Most bytes of a reply by UDP.
const UDP_MAX: usize = 1232;
/// The bit of the third byte that distinguishes a reply from a query.
const IS_REPLY: u8 = 0x80;
/// The mask of a reply's code in the fourth byte, and the code for a malformed query.
const CODE: u8 = 0x0f;
const MALFORMED: u8 = 1;

fn table() -> Table {
    let name = |name: &str, namespace: Option<&str>, count: u8| Name {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        addresses: (0..count)
            .map(|last| IpAddr::from([10, 9, 0, last]))
            .chain([IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 7])])
            .collect(),
    };
    Table {
        domain: "cluster.local".to_owned(),
        names: vec![
            name("web.default.svc.cluster.local", None, 2),
            name("web", Some("default"), 2),
            name("many", None, 200),
        ],
        ports: vec![Port {
            name: "_http._tcp.web.default.svc.cluster.local".to_owned(),
            target: "web.default.svc.cluster.local".to_owned(),
            port: 80,
        }],
        clients: [(IpAddr::from([10, 9, 0, 1]), "default".to_owned())].into(),
        servers: Vec::new(),
    }
}

/// A query. The first byte selects the client, and UDP or TCP.
pub(crate) fn dns(bytes: &[u8]) {
    let (form, query) = choice(bytes);
    let client = IpAddr::from([10, 9, 0, form >> 1]);
    let transport = if form & 1 == 0 {
        Transport::Udp
    } else {
        Transport::Tcp
    };
    let table = table();
    let Some(mut answer) = reply(&table, client, query, transport) else {
        return;
    };
    let max = match transport {
        Transport::Udp => UDP_MAX,
        Transport::Tcp => usize::from(u16::MAX),
    };
    assert!(answer.len() <= max, "{} bytes", answer.len());
    assert_eq!(answer[..2], query[..2], "the number of the query");
    assert_eq!(answer[2] & IS_REPLY, IS_REPLY);
    assert!(
        reply(&table, client, &answer, transport).is_none(),
        "a reply is answered"
    );
    if answer[3] & CODE != MALFORMED {
        // The parser of queries takes it, too.
        answer[2] &= !IS_REPLY;
        let again = reply(&table, client, &answer, transport);
        assert!(again.is_none_or(|again| again[3] & CODE != MALFORMED));
    }
}
