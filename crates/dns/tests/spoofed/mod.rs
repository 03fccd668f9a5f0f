//! Queries with addresses that nobody has, in a network of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::RecordType;
use mirrorlet_dns::Table;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{Client, Running, name, table};

/// Set in the process that has its own network.
const INSIDE: &str = "MIRRORLET_DNS_INSIDE";
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const NETWORK: &str = "set -e
ip link set lo up
ip link add name pods type veth peer name far
ip link set pods up
ip link set far up
ip addr add 10.9.0.1/24 dev pods
exec \"$0\" --exact \"$1\" --nocapture";

/// Runs this test again in a network of its own.
fn again(test: &str) {
    let apart = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", program]);
        command
    };
    let status = apart("sh")
        .args(["-c", NETWORK])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .status();
    assert!(
        status.unwrap().success(),
        "unshare --user --net, ip and the test"
    );
}

/// A packet with a query of this address.
fn packet(from: Ipv4Addr, to: SocketAddr) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(name("cluster.local"), RecordType::A));
    let query = message.to_vec().unwrap();
    let udp = u16::try_from(8 + query.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(SERVER.octets());
    packet.extend(5300_u16.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(query);
    packet
}

#[tokio::test]
async fn answers_to_addresses_that_nobody_has_hold_up_no_pod() {
    let test = "spoofed::answers_to_addresses_that_nobody_has_hold_up_no_pod";
    if std::env::var_os(INSIDE).is_none() {
        again(test);
        return;
    }
    let address = SocketAddr::from((SERVER, 5353));
    let running = Running::start_from(
        address,
        "10.9.0.0/24",
        &Table {
            clients: [(SERVER.into(), "default".to_owned())].into(),
            ..table()
        },
    );
    let client = Client {
        ip: SERVER,
        address,
    };
    client.ask("cluster.local", RecordType::A, false).await;

    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let mut spoofing = JoinSet::new();
    spoofing.spawn(async move {
        loop {
            // So few at a time that the server, which shares this thread, reads them all.
            for last in 90..100 {
                let packet = packet(Ipv4Addr::new(10, 9, 0, last), address);
                raw.send_to(&packet, &address.into()).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(10)).await;
        }
    });
    // A socket takes about 256 answers.
    while sent.load(Ordering::Relaxed) < 1000 {
        sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..20 {
        client.ask("cache", RecordType::A, false).await;
    }
    spoofing.shutdown().await;
    running.stop().await;
}
