use proptest::prelude::*;

use super::*;

const POD: &str = "10.9.0.5";
const OTHER_POD: &str = "10.9.0.6";
const HOST: &str = "192.0.2.1";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn entry(name: &str, namespace: Option<&str>, addresses: &[&str]) -> Name {
    Name {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        addresses: addresses.iter().map(|text| address(text)).collect(),
    }
}

fn port(target: &str, port: u16) -> Port {
    Port {
        name: "_redis._tcp.Cache.default.svc.cluster.local".to_owned(),
        target: target.to_owned(),
        port,
    }
}

fn table() -> Table {
    let cache = &["10.9.0.7", "fd00::7"];
    Table {
        domain: "cluster.local".to_owned(),
        names: vec![
            entry("cache", Some("default"), cache),
            entry("cache", Some("test"), &["10.9.0.8"]),
            entry("cache.default", None, cache),
            entry("cache.default.svc", None, cache),
            entry("cache.default.svc.cluster.local", None, cache),
            entry("Second.default.svc.Cluster.Local", None, &["10.9.0.7"]),
            entry("cache.default.svc.cluster.local", None, &["10.9.0.99"]),
            entry("waits.default.svc.cluster.local", None, &[]),
            entry("alone", None, &["10.9.0.20"]),
            entry("a.hidden.svc.cluster.local", Some("test"), &["10.9.0.30"]),
        ],
        ports: vec![
            port("a.cache.default.svc.cluster.local", 6379),
            port("b.cache.default.svc.cluster.local", 6380),
        ],
        clients: [(POD, "default"), (OTHER_POD, "test")]
            .map(|(pod, namespace)| (address(pod), namespace.to_owned()))
            .into(),
        servers: Vec::new(),
    }
}

fn addresses(texts: &[&str]) -> Answer {
    Answer::Addresses(texts.iter().map(|text| address(text)).collect())
}

/// A client, the name and type that it asks for, and the answer.
type Row<'a> = (&'a str, &'a str, Kind, Answer);

fn check(rows: &[Row<'_>]) {
    let table = table();
    for (client, name, kind, expected) in rows {
        let answer = table.answer(address(client), name, *kind);
        assert_eq!(answer, *expected, "{client} asks for {name:?}, {kind:?}");
    }
}

#[test]
fn known_names_are_answered_by_type() {
    let v4 = || addresses(&["10.9.0.7"]);
    let full = "cache.default.svc.cluster.local";
    let second = "second.default.svc.cluster.local";
    let waits = "waits.default.svc.cluster.local";
    check(&[
        (HOST, full, Kind::A, v4()),
        (HOST, full, Kind::Aaaa, addresses(&["fd00::7"])),
        (HOST, full, Kind::Any, addresses(&["10.9.0.7", "fd00::7"])),
        (HOST, full, Kind::Other, Answer::Empty),
        (HOST, full, Kind::Pointer, Answer::Empty),
        (HOST, "cache.default.svc.cluster.local.", Kind::A, v4()),
        (HOST, "CACHE.Default.SVC.cluster.LOCAL", Kind::A, v4()),
        (HOST, second, Kind::A, v4()),
        (HOST, second, Kind::Aaaa, Answer::Empty),
        (HOST, "cache.default", Kind::A, v4()),
        (HOST, "cache.default.svc", Kind::A, v4()),
        (HOST, "alone", Kind::A, addresses(&["10.9.0.20"])),
        (HOST, waits, Kind::A, Answer::Empty),
    ]);
}

#[test]
fn short_names_are_those_of_the_clients_namespace() {
    let v4 = || addresses(&["10.9.0.7"]);
    check(&[
        (POD, "cache", Kind::A, v4()),
        ("::ffff:10.9.0.5", "cache", Kind::A, v4()),
        (OTHER_POD, "Cache", Kind::A, addresses(&["10.9.0.8"])),
        (OTHER_POD, "cache", Kind::Aaaa, Answer::Empty),
        (HOST, "cache", Kind::A, Answer::NotOurs),
    ]);
}

#[test]
fn ports_of_a_service_are_answered_by_their_name() {
    let ports = || {
        Answer::Ports(vec![
            port("a.cache.default.svc.cluster.local", 6379),
            port("b.cache.default.svc.cluster.local", 6380),
        ])
    };
    let full = "_redis._TCP.cache.default.svc.cluster.local";
    let other = "_http._tcp.cache.default.svc.cluster.local";
    let kind = Kind::Service;
    check(&[
        (HOST, full, kind, ports()),
        (OTHER_POD, full, Kind::Any, ports()),
        (HOST, full, Kind::A, Answer::Empty),
        (HOST, full, Kind::Other, Answer::Empty),
        (HOST, &full["_redis.".len()..], kind, Answer::Empty),
        (HOST, other, kind, Answer::NoSuchName),
        (HOST, "cache.default.svc.cluster.local", kind, Answer::Empty),
        (HOST, "_redis._tcp.example.com", kind, Answer::NotOurs),
    ]);
}

#[test]
fn other_names_exist_only_above_known_ones_or_outside_the_domain() {
    let hidden = "hidden.svc.cluster.local";
    let none = Answer::NoSuchName;
    check(&[
        (
            HOST,
            "none.default.svc.cluster.local",
            Kind::A,
            none.clone(),
        ),
        (
            HOST,
            "x.cache.default.svc.cluster.local",
            Kind::A,
            none.clone(),
        ),
        (HOST, "example.com.svc.cluster.local", Kind::A, none.clone()),
        (HOST, "fault.svc.cluster.local", Kind::A, none.clone()),
        // Names above others.
        (HOST, "default.svc.cluster.local", Kind::A, Answer::Empty),
        (HOST, "SVC.cluster.local", Kind::Other, Answer::Empty),
        (HOST, "cluster.local", Kind::Other, Answer::Empty),
        // Names of another namespace don't exist, and neither does the name above them.
        (HOST, "a.hidden.svc.cluster.local", Kind::A, none.clone()),
        (HOST, hidden, Kind::A, none),
        (OTHER_POD, hidden, Kind::A, Answer::Empty),
        // Everything else is forwarded.
        (HOST, "example.com", Kind::A, Answer::NotOurs),
        (HOST, "x.cache.default", Kind::A, Answer::NotOurs),
        (HOST, "default.svc", Kind::A, Answer::NotOurs),
        (HOST, "notcluster.local", Kind::A, Answer::NotOurs),
        (HOST, ".cluster.local", Kind::A, Answer::NotOurs),
        (HOST, "local", Kind::A, Answer::NotOurs),
        (HOST, "", Kind::A, Answer::NotOurs),
    ]);
}

#[test]
fn addresses_have_the_first_name_below_the_domain() {
    let pointer = || Answer::Pointer("cache.default.svc.cluster.local".to_owned());
    let hidden = || Answer::Pointer("a.hidden.svc.cluster.local".to_owned());
    let v6 = format!("7.{}d.f.ip6.arpa", "0.".repeat(29));
    let kind = Kind::Pointer;
    check(&[
        (HOST, "7.0.9.10.in-addr.arpa", kind, pointer()),
        (HOST, "7.0.9.10.IN-ADDR.arpa.", Kind::Any, pointer()),
        (HOST, "7.0.9.10.in-addr.arpa", Kind::A, Answer::Empty),
        (HOST, &v6, kind, pointer()),
        (HOST, "20.0.9.10.in-addr.arpa", kind, Answer::NotOurs),
        (HOST, "30.0.9.10.in-addr.arpa", kind, Answer::NotOurs),
        (OTHER_POD, "30.0.9.10.in-addr.arpa", kind, hidden()),
        (HOST, "1.7.0.9.10.in-addr.arpa", kind, Answer::NotOurs),
        (HOST, "0.9.10.in-addr.arpa", kind, Answer::NotOurs),
        (HOST, "+7.0.9.10.in-addr.arpa", kind, Answer::NotOurs),
        (HOST, "in-addr.arpa", kind, Answer::NotOurs),
        (HOST, "0.ip6.arpa", kind, Answer::NotOurs),
    ]);
}

#[test]
fn without_a_domain_all_unknown_names_are_forwarded() {
    let table = Table {
        domain: String::new(),
        ..table()
    };
    for name in ["none.default.svc.cluster.local", "example.com", ""] {
        assert_eq!(
            table.answer(address(HOST), name, Kind::A),
            Answer::NotOurs,
            "{name}"
        );
    }
}

#[test]
fn the_table_is_written_in_camel_case_and_may_be_short() {
    let table: Table = serde_json::from_str(r#"{"domain": "", "names": []}"#).unwrap();
    assert_eq!(table, Table::default());
    let name = serde_json::to_string(&entry("alone", None, &["10.9.0.20"])).unwrap();
    assert_eq!(name, r#"{"name":"alone","addresses":["10.9.0.20"]}"#);
    let whole = serde_json::to_string(&self::table()).unwrap();
    assert_eq!(
        serde_json::from_str::<Table>(&whole).unwrap(),
        self::table()
    );
    serde_json::from_str::<Table>("{}").unwrap_err();
    // One of a later version may have more.
    let later = r#"{"domain": "", "names": [], "later": [{"name": "a"}]}"#;
    let later: Table = serde_json::from_str(later).unwrap();
    assert_eq!(later, Table::default());
    let without = serde_json::to_string(&later).unwrap();
    assert!(!without.contains("ports"), "{without}");
}

proptest! {
    #[test]
    fn no_name_panics(name in any::<String>(), parent in any::<String>()) {
        let mut table = table();
        for domain in ["cluster.local", parent.as_str()] {
            table.domain = domain.to_owned();
            for suffix in ["", ".cluster.local", ".in-addr.arpa", ".ip6.arpa", "."] {
                for kind in [Kind::A, Kind::Pointer, Kind::Service, Kind::Any, Kind::Other] {
                    table.answer(address(POD), &format!("{name}{suffix}"), kind);
                }
            }
        }
    }

    #[test]
    fn an_address_is_found_by_its_reverse_name(bits in any::<u128>(), is_v4 in any::<bool>()) {
        let (address, name) = if is_v4 {
            let [a, b, c, d] = bits.to_be_bytes()[..4].try_into().unwrap();
            (IpAddr::from([a, b, c, d]), format!("{d}.{c}.{b}.{a}.in-addr.arpa"))
        } else {
            let digits: Vec<String> = format!("{bits:032x}").chars().rev().map(String::from).collect();
            (IpAddr::from(Ipv6Addr::from(bits)), format!("{}.ip6.arpa", digits.join(".")))
        };
        prop_assert_eq!(reverse(&name), Some(address.to_canonical()));
    }
}
