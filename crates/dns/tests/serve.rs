//! The server on real sockets of the loopback interface.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as the tests do")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, RecordType};
use mirrorlet_dns::{Options, ServeError, Table, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

mod common;
mod spoofed;

use common::{Running, Upstream, free_address, name, table};

const A: RecordType = RecordType::A;

fn addresses(reply: &Message) -> Vec<IpAddr> {
    let addresses = reply
        .answers
        .iter()
        .filter_map(|record| match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
            _ => None,
        });
    addresses.collect()
}

fn code(reply: &Message) -> ResponseCode {
    reply.metadata.response_code
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn names_of_the_table_are_answered_over_udp_and_tcp() {
    let running = Running::start(&table());
    let client = running.client().await;
    for is_tcp in [false, true] {
        let full = "Cache.default.svc.cluster.local";
        let reply = client.ask(full, A, is_tcp).await;
        assert_eq!(addresses(&reply), [ip("10.9.0.7"), ip("10.9.0.3")]);
        assert!(reply.metadata.authoritative && reply.metadata.recursion_available);
        assert!(reply.answers.iter().all(|record| record.ttl == 5));
        assert!(reply.answers[0].name.eq_case(&name(full)));

        let reply = client.ask(full, RecordType::AAAA, is_tcp).await;
        assert_eq!(addresses(&reply), [ip("fd00::7")]);

        // Only clients of its namespace know the short name.
        let reply = client.ask("cache", A, is_tcp).await;
        assert_eq!(addresses(&reply).len(), 2);

        let none = client
            .ask("none.default.svc.cluster.local", A, is_tcp)
            .await;
        assert_eq!(code(&none), ResponseCode::NXDomain);
        assert!(matches!(&none.authorities[0].data, RData::SOA(soa) if soa.minimum == 5));

        let reply = client
            .ask("7.0.9.10.in-addr.arpa", RecordType::PTR, is_tcp)
            .await;
        let RData::PTR(pointer) = &reply.answers[0].data else {
            panic!("{reply}");
        };
        assert_eq!(pointer.0, name("cache.default.svc.cluster.local"));

        let service = "_redis._tcp.cache.default.svc.cluster.local";
        let reply = client.ask(service, RecordType::SRV, is_tcp).await;
        let [record] = &reply.answers[..] else {
            panic!("{reply}");
        };
        let RData::SRV(found) = &record.data else {
            panic!("{reply}");
        };
        assert_eq!((found.priority, found.weight, found.port), (0, 100, 6379));
        assert_eq!(found.target, name("cache.default.svc.cluster.local"));
    }
    running.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_for_udp_is_whole_over_tcp() {
    let mut table = table();
    let many: Vec<IpAddr> = (0..=255).map(|i| IpAddr::from([10, 9, 1, i])).collect();
    table.names[0].addresses.clone_from(&many);
    let running = Running::start(&table);
    let client = running.client().await;
    let full = "cache.default.svc.cluster.local";
    let cut = client.ask(full, A, false).await;
    assert!(cut.metadata.truncation);
    assert_eq!(addresses(&cut), many[..cut.answers.len()]);
    let whole = client.ask(full, A, true).await;
    assert!(!whole.metadata.truncation);
    assert_eq!(addresses(&whole), many);
}

#[tokio::test]
async fn other_names_are_forwarded_with_their_types_and_codes() {
    let upstream = Upstream::start("192.0.2.7").await;
    let running = Running::start(&Table {
        servers: vec![upstream.address],
        ..table()
    });
    let client = running.client().await;
    for is_tcp in [false, true] {
        let reply = client.ask("a.example", A, is_tcp).await;
        assert_eq!(addresses(&reply), [ip("192.0.2.7")]);
        assert!(!reply.metadata.authoritative);

        let reply = client.ask("alias.example", A, is_tcp).await;
        assert_eq!(reply.answers[0].record_type(), RecordType::CNAME);
        assert_eq!(addresses(&reply), [ip("192.0.2.7")]);

        let reply = client.ask("a.example", RecordType::TXT, is_tcp).await;
        assert_eq!(reply.answers[0].record_type(), RecordType::TXT);
        let reply = client.ask("_a._tcp.example", RecordType::SRV, is_tcp).await;
        assert_eq!(reply.answers[0].record_type(), RecordType::SRV);

        // A name of one label that the table does not have for this client.
        let reply = client.ask("single", A, is_tcp).await;
        assert_eq!(addresses(&reply), [ip("192.0.2.7")]);

        for (asked, expected, authorities) in [
            ("none.example", ResponseCode::NXDomain, 1),
            ("gone.example", ResponseCode::NXDomain, 1),
            ("bare.example", ResponseCode::NoError, 1),
            ("empty.example", ResponseCode::NoError, 1),
            ("fails.example", ResponseCode::ServFail, 0),
            ("refused.example", ResponseCode::Refused, 0),
        ] {
            let reply = client.ask(asked, A, is_tcp).await;
            assert_eq!(code(&reply), expected, "{asked}");
            assert!(reply.answers.is_empty());
            assert_eq!(reply.authorities.len(), authorities, "{asked}");
        }
    }
    let asked = upstream.asked.load(Ordering::Relaxed);
    client.ask("a.example", A, false).await;
    assert_eq!(asked, upstream.asked.load(Ordering::Relaxed), "not cached");
}

#[tokio::test]
async fn an_answer_that_another_server_cuts_is_fetched_by_tcp() {
    let upstream = Upstream::start("192.0.2.7").await;
    let running = Running::start(&Table {
        servers: vec![upstream.address],
        ..table()
    });
    let client = running.client().await;
    let reply = client.ask("large.example", A, true).await;
    assert_eq!(reply.answers.len(), 100);
    let asked = upstream.asked.load(Ordering::Relaxed);
    let reply = client.ask("large.example", A, false).await;
    assert!(reply.metadata.truncation);
    // By UDP and by TCP again: a cache of large answers would be large itself.
    assert_eq!(upstream.asked.load(Ordering::Relaxed), asked + 2);
}

#[tokio::test]
async fn servers_are_asked_in_order_until_one_answers() {
    let first = Upstream::start("192.0.2.1").await;
    let second = Upstream::start("192.0.2.2").await;
    let running = Running::start(&Table {
        // The fourth shortens the wait for the first, which is no server.
        servers: vec![
            free_address(),
            first.address,
            second.address,
            free_address(),
        ],
        ..table()
    });
    let client = running.client().await;
    let reply = client.ask("a.example", A, false).await;
    assert_eq!(addresses(&reply), [ip("192.0.2.1")]);
    assert_eq!(second.asked.load(Ordering::Relaxed), 0);
    let reply = client.ask("fails.at.192.0.2.1", A, false).await;
    assert_eq!(addresses(&reply), [ip("192.0.2.2")]);
}

#[tokio::test]
async fn without_another_server_the_query_fails() {
    let own = free_address();
    for servers in [vec![], vec![own]] {
        let running = Running::start_at(own, &Table { servers, ..table() });
        let client = running.client().await;
        let reply = client.ask("a.example", A, false).await;
        assert_eq!(code(&reply), ResponseCode::ServFail);
        running.stop().await;
    }
}

#[tokio::test]
async fn forwarded_queries_of_a_client_are_bounded() {
    let upstream = Upstream::start("192.0.2.7").await;
    let running = Running::start(&Table {
        servers: vec![upstream.address],
        ..table()
    });
    let mut client = running.client().await;
    let failures = client.ask_all("silent.example", 300).await;
    assert_eq!(failures, 300 - 64);
    let reply = client.ask("a.example", A, false).await;
    assert_eq!(code(&reply), ResponseCode::ServFail);
    // The table is answered all the same, and so are other clients.
    let full = "cache.default.svc.cluster.local";
    assert_eq!(addresses(&client.ask(full, A, false).await).len(), 2);
    client.ip = Ipv4Addr::new(127, 0, 0, 2);
    let reply = client.ask("a.example", A, false).await;
    assert_eq!(addresses(&reply), [ip("192.0.2.7")]);
}

#[tokio::test]
async fn many_queries_at_once_are_all_answered() {
    let upstream = Upstream::start("192.0.2.7").await;
    let running = Running::start(&Table {
        servers: vec![upstream.address],
        ..table()
    });
    let client = Arc::new(running.client().await);
    let asked: JoinSet<Message> = (0..60)
        .map(|i| {
            let client = Arc::clone(&client);
            async move { client.ask(&format!("slow.{i}.example"), A, false).await }
        })
        .collect();
    for reply in asked.join_all().await {
        assert_eq!(addresses(&reply), [ip("192.0.2.7")]);
    }
}

#[tokio::test]
async fn connections_of_a_client_are_bounded() {
    let running = Running::start(&table());
    let client = running.client().await;
    let full = "cache.default.svc.cluster.local";
    client.ask(full, A, true).await;
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(TcpStream::connect(client.address).await.unwrap());
    }
    // Connections are accepted in their order, so that this one is beyond the bound.
    let mut next = TcpStream::connect(client.address).await.unwrap();
    assert!(matches!(next.read(&mut [0]).await, Ok(0) | Err(_)));
    drop(held);
    client.ask(full, A, true).await;
}

#[tokio::test]
async fn a_connection_ends_with_a_query_that_is_too_long() {
    let running = Running::start(&table());
    let client = running.client().await;
    let mut connection = TcpStream::connect(client.address).await.unwrap();
    connection.write_u16(4097).await.unwrap();
    // It is not waited for.
    let ended = timeout(Duration::from_secs(5), connection.read(&mut [0])).await;
    assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
}

#[tokio::test]
async fn the_table_is_followed() {
    let upstream = Upstream::start("192.0.2.1").await;
    let other = Upstream::start("192.0.2.2").await;
    let mut table = Table {
        servers: vec![upstream.address],
        ..table()
    };
    let running = Running::start(&table);
    let client = running.client().await;
    let full = "cache.default.svc.cluster.local";
    client.ask("a.example", A, false).await;
    let asked = upstream.asked.load(Ordering::Relaxed);

    for addresses in [vec![ip("10.9.0.50")], vec![ip("10.9.0.51")]] {
        table.names[0].addresses.clone_from(&addresses);
        running.write(&serde_json::to_vec(&table).unwrap());
        client.wait_for(full, &addresses).await;
    }
    client.ask("a.example", A, false).await;
    assert_eq!(
        asked,
        upstream.asked.load(Ordering::Relaxed),
        "the cache is kept"
    );

    // What is no table changes nothing, and neither does a table that is away.
    running.write(b"{ \"domain\": ");
    fs::remove_file(&running.table).unwrap();
    client.wait_for(full, &[ip("10.9.0.51")]).await;

    table.servers = vec![other.address];
    table.names[0].addresses = vec![ip("10.9.0.52")];
    running.write(&serde_json::to_vec(&table).unwrap());
    client.wait_for(full, &[ip("10.9.0.52")]).await;
    client.wait_for("a.example", &[ip("192.0.2.2")]).await;
}

#[tokio::test]
async fn clients_from_elsewhere_are_refused() {
    let running = Running::start_from(free_address(), "10.0.0.0/8", &table());
    let client = running.client().await;
    for asked in ["cache.default.svc.cluster.local", "a.example"] {
        let reply = client.ask(asked, A, false).await;
        assert_eq!(code(&reply), ResponseCode::Refused);
        assert_eq!(reply.queries.len(), 1);
    }
    // They hold no connection while they send nothing.
    let mut connection = TcpStream::connect(client.address).await.unwrap();
    let ended = timeout(Duration::from_secs(5), connection.read(&mut [0])).await;
    assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
}

#[tokio::test]
async fn the_next_server_starts_before_the_last_one_stops() {
    let address = free_address();
    let first = Running::start_at(address, &table());
    first.client().await;
    let mut next = table();
    next.names[0].addresses = vec![ip("10.9.0.50")];
    let second = Running::start_at(address, &next);
    let client = second.client().await;
    let full = "cache.default.svc.cluster.local";
    // The kernel distributes clients between the two.
    client.wait_for(full, &[ip("10.9.0.50")]).await;
    first.stop().await;
    for is_tcp in [false, true] {
        let reply = client.ask(full, A, is_tcp).await;
        assert_eq!(addresses(&reply), [ip("10.9.0.50")]);
    }
}

#[tokio::test]
async fn a_stop_waits_for_queries_and_frees_the_address() {
    let upstream = Upstream::start("192.0.2.7").await;
    for is_tcp in [false, true] {
        let running = Running::start(&Table {
            servers: vec![upstream.address],
            ..table()
        });
        let client = running.client().await;
        let address = client.address;
        let asked = upstream.asked.load(Ordering::Relaxed);
        let reply = tokio::spawn(async move { client.ask("slow.example", A, is_tcp).await });
        while upstream.asked.load(Ordering::Relaxed) == asked {
            sleep(Duration::from_millis(5)).await;
        }
        running.stop().await;
        assert_eq!(addresses(&reply.await.unwrap()), [ip("192.0.2.7")]);
        UdpSocket::bind(address).await.unwrap();
        TcpListener::bind(address).await.unwrap();
    }
}

#[tokio::test]
async fn a_stop_gives_up_on_a_query_without_an_answer() {
    let upstream = Upstream::start("192.0.2.7").await;
    let running = Running::start(&Table {
        servers: vec![upstream.address],
        ..table()
    });
    let client = running.client().await;
    let reply = tokio::spawn(async move { client.ask("silent.example", A, true).await });
    while upstream.asked.load(Ordering::Relaxed) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    running.stop().await;
    reply.abort();
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_helps() {
    let address = free_address();
    let _udp = UdpSocket::bind(address).await.unwrap();
    let error = Running::start_at(address, &table())
        .ended()
        .await
        .unwrap_err();
    let ServeError::Bind { address: named, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*named, address);
    let text = error.to_string();
    for part in [&address.to_string(), "UDP", "in use", "stop it"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn the_first_table_is_waited_for_and_must_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        table: dir.path().join("table.json"),
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        from: Vec::new(),
    };
    // Stopped while it waits.
    serve(options.clone(), sleep(Duration::from_millis(50)))
        .await
        .unwrap();
    let running = tokio::spawn(serve(options, std::future::pending()));
    fs::write(dir.path().join("new"), "{}").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("table.json")).unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, ServeError::Table { .. }), "{error}");
    assert!(error.to_string().contains("table.json"), "{error}");
}
