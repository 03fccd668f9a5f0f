//! The link between an agent and its API server does what the tests that pull it take for granted.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::Duration;

use crate::common::link::{Link, bound, end_listening};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long an answer is waited for that must not come. A link that holds nothing answers sooner, unless
/// the machine is busy.
const SILENCE: Duration = Duration::from_millis(100);

/// Whether a byte comes back over a connection.
async fn echoes(stream: &mut TcpStream) -> bool {
    let mut byte = [0_u8];
    let sent = stream.write_all(b"x").await;
    sent.is_ok() && stream.read_exact(&mut byte).await.is_ok()
}

/// Whether nothing comes over a connection, not even its end.
async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(SILENCE, stream.read_u8()).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_refuses_and_holds_as_a_server_does() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let link = Link::to(&format!("https://{}", server.local_addr().unwrap())).await;
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    for _ in 0..2 {
        let mut early = TcpStream::connect(link.address()).await.unwrap();
        assert!(echoes(&mut early).await);
        link.refuse().await;
        let refused = TcpStream::connect(link.address()).await.unwrap_err();
        // cluster 1
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(!echoes(&mut early).await);
        link.accept().await;
    }
    let mut held = TcpStream::connect(link.address()).await.unwrap();
    assert!(echoes(&mut held).await);
    link.hold();
    let mut new = TcpStream::connect(link.address()).await.unwrap();
    for (stream, byte) in [(&mut held, b"y"), (&mut new, b"z")] {
        stream.write_all(byte).await.unwrap();
        // cluster 1
        assert!(is_silent(stream).await, "nothing gets through");
    }
    link.release();
    for (stream, byte) in [(&mut held, b'y'), (&mut new, b'z')] {
        // cluster 1
        assert_eq!(stream.read_u8().await.unwrap(), byte, "nothing is lost");
        assert!(echoes(stream).await);
    }
    serving.abort();
}

#[tokio::test]
async fn a_listener_ends_whoever_holds_a_copy_of_it() {
    let keeper = bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let address = keeper.local_addr().unwrap();
    let mut copies = Vec::new();
    for _ in 0..2 {
        let listener = bound(address).listen(1).unwrap();
        copies.push(listener.as_fd().try_clone_to_owned().unwrap());
        TcpStream::connect(address).await.unwrap();
        end_listening(listener);
        let refused = TcpStream::connect(address).await.unwrap_err();
        // cluster 1
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    drop((keeper, copies));
}
