//! Connections: ports, address families, and a machine that can make none.

use tokio::net::TcpSocket;

use super::*;

#[tokio::test]
async fn a_closed_port_is_told_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = Client::new();
    let host = address.ip().to_string();
    assert_eq!(client.tcp_socket(&host, address.port(), LONG).await, Ok(()));
    // Taken, so that no other test listens there.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = taken.local_addr().unwrap();
    let refused = ProbeError::Connect {
        address: address.to_string(),
        why: "connect: connection refused".to_owned(),
    };
    assert_eq!(
        client.tcp_socket(&host, address.port(), LONG).await,
        Err(refused.clone())
    );
    assert_eq!(ask(&get(address, "/")).await, Err(refused));
}

/// A machine on which no file can be opened any more: also the resolver needs one.
#[tokio::test]
async fn a_machine_with_nothing_left_has_asked_nobody() {
    for errno in [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::AGAIN,
    ] {
        let client = Client::resolving_by(move |_| Err(errno.into()));
        let exhausted = ProbeError::Exhausted {
            address: "db:1".to_owned(),
            why: io::Error::from(errno).to_string(),
        };
        let asked = client.tcp_socket("db", 1, LONG).await;
        // pods 56a
        assert_eq!(asked, Err(exhausted), "{errno:?}");
    }
    let client = Client::resolving_by(|_| Err(Errno::CONNREFUSED.into()));
    let asked = client.tcp_socket("db", 1, LONG).await;
    // pods 56a
    assert!(
        matches!(asked, Err(ProbeError::Connect { .. })),
        "{asked:?}"
    );
}

#[test]
fn what_a_machine_never_has_is_no_shortage() {
    for (errno, has_source, expected) in [
        (Errno::ADDRNOTAVAIL, true, true),
        // IPv6 is disabled, and a probe asks ::1.
        (Errno::ADDRNOTAVAIL, false, false),
        (Errno::MFILE, false, true),
        (Errno::NOSPC, false, true),
        (Errno::CONNREFUSED, true, false),
        (Errno::NETUNREACH, true, false),
    ] {
        let is_of_machine = is_of_machine(&errno.into(), || has_source);
        // pods 56a
        assert_eq!(is_of_machine, expected, "{errno:?}");
    }
    assert!(has_source("127.0.0.1:1".parse().unwrap()));
}

/// A name may have several addresses.
#[test]
fn an_address_that_was_not_asked_might_have_answered() {
    let (address, why) = ("db:1".to_owned(), String::new());
    let refused = ProbeError::Connect {
        address: address.clone(),
        why: why.clone(),
    };
    let late = ProbeError::Connect {
        address: address.clone(),
        why: "i/o timeout".to_owned(),
    };
    let short = ProbeError::Exhausted { address, why };
    for (before, error, expected) in [
        (None, &refused, &refused),
        (None, &short, &short),
        (Some(&refused), &late, &late),
        (Some(&refused), &short, &short),
        (Some(&short), &refused, &short),
    ] {
        // pods 56a
        assert_eq!(of_both(before.cloned(), error.clone()), *expected);
    }
}

#[tokio::test]
async fn ipv6_is_spoken_too() {
    let mut server = serve(
        "[::1]:0",
        None,
        Arc::new(|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
    )
    .await;
    // pods 56a
    assert_eq!(ask(&get(server.address, "/")).await, Ok(200));
    let head = server.heads.recv().await.unwrap();
    assert!(
        head.contains(&format!("Host: {}\r\n", server.address)),
        "{head}"
    );
    let port = server.address.port();
    assert_eq!(Client::new().tcp_socket("::1", port, LONG).await, Ok(()));
}
