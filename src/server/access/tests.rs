//! A socket, a view that says what it is told, and clients of all manners.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::server::admin;
use crate::server::fake::FakeView;

/// Longest wait for something that must come: reached only by a defect.
const PATIENCE: Duration = Duration::from_mins(1);

/// The headers of a request that is served.
const ASKING: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n";

type Client = WebSocketStream<UnixStream>;

struct Bed {
    view: Arc<FakeView>,
    cancel: CancellationToken,
    tasks: JoinSet<std::io::Result<()>>,
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = admin::bind(&dir.path().join("s")).unwrap();
        let view = Arc::new(FakeView::new());
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(admin::serve(listener, view.clone(), cancel.clone()));
        Self {
            view,
            cancel,
            tasks,
            dir,
        }
    }

    /// Sends a request and reads the head of its answer.
    async fn ask(&self, path: &str, more: &str) -> (String, UnixStream) {
        let mut stream = UnixStream::connect(self.dir.path().join("s"))
            .await
            .unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        (String::from_utf8(answer).unwrap(), stream)
    }

    async fn upgraded(&self, path: &str) -> Client {
        let (head, stream) = self.ask(path, ASKING).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("sec-websocket-protocol: v5.channel.k8s.io\r\n"));
        WebSocketStream::from_raw_socket(stream, Role::Client, None).await
    }

    /// Waits until that many sessions were dropped.
    async fn until_dropped(&self, count: u64) {
        let mut dropped = self.view.dropped.subscribe();
        let waiting = dropped.wait_for(|have| *have == count);
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap()
            .unwrap();
    }
}

async fn send(client: &mut Client, channel: u8, bytes: &[u8]) {
    let message = [&[channel], bytes].concat();
    client.send(Message::Binary(message.into())).await.unwrap();
}

/// Returns the data of each channel until the end.
async fn channels(client: &mut Client) -> [Vec<u8>; 4] {
    let mut all: [Vec<u8>; 4] = Default::default();
    while let Some(Ok(message)) = client.next().await {
        if let Message::Binary(message) = message {
            all[usize::from(message[0])].extend_from_slice(&message[1..]);
        }
    }
    all
}

/// The exit code of a status.
fn code(status: &[u8]) -> String {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap();
    let code = &status["details"]["causes"][0]["message"];
    code.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn sessions_and_forwarded_connections_are_streams() {
    let bed = Bed::new();
    let mut open = Vec::new();
    for _ in 0..admin::STREAMS_MAX {
        let (head, stream) = bed.ask("/v1/status?watch=true", "").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        open.push(stream);
    }
    for path in ["exec?command=a", "attach", "portforward?port=80"] {
        let (head, _) = bed.ask(&format!("/v1/pods/u/{path}"), ASKING).await;
        // agent 14
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    }
    let (head, _) = bed.ask("/v1/status", "").await;
    // agent 14
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[tokio::test]
async fn a_command_is_carried_with_its_arguments_and_its_code() {
    let bed = Bed::new();
    let mut client = bed
        .upgraded("/v1/pods/u/exec?command=a+b&command=%2Fc&stdout=true")
        .await;
    let [stdin, stdout, stderr, status] = channels(&mut client).await;
    assert_eq!((&stdin[..], &stderr[..]), (&b""[..], &b""[..]));
    assert_eq!(stdout, b"a b /c");
    // streams 12
    assert_eq!(code(&status), "7");
    bed.until_dropped(1).await;
}

#[tokio::test]
async fn an_attach_has_the_code_too() {
    let bed = Bed::new();
    let mut client = bed.upgraded("/v1/pods/u/attach?stdout=true").await;
    let [_, stdout, _, status] = channels(&mut client).await;
    // streams 12
    assert_eq!((&stdout[..], &*code(&status)), (&b"attached"[..], "7"));
}

#[tokio::test]
async fn input_is_carried_to_its_end_and_sizes_between() {
    let bed = Bed::new();
    let mut client = bed
        .upgraded("/v1/pods/u/exec?command=cat&stdin=true&stderr=true&tty=true")
        .await;
    let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    send(&mut client, 0, &sent).await;
    send(&mut client, 4, br#"{"Width":80,"Height":24}"#).await;
    send(&mut client, 0, b"end").await;
    send(&mut client, 255, &[0]).await;
    let [_, _, echoed, status] = channels(&mut client).await;
    assert_eq!(echoed, [&sent[..], b"end"].concat());
    assert_eq!(code(&status), "7");
    let size = TerminalSize {
        width: 80,
        height: 24,
    };
    // streams 12
    assert_eq!(*bed.view.sizes.lock().unwrap(), [size]);
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_session() {
    let bed = Bed::new();
    let path = "/v1/pods/u/exec?command=cat&stdin=true&stderr=true";
    // One that waits, one that is not read from, and one that talks nonsense.
    let waits = bed.upgraded(path).await;
    let mut blocked = bed.upgraded(path).await;
    // More than all buffers hold: the echo comes back to somebody who does not read.
    let flood = vec![0; 1 << 20];
    let flooding = async {
        loop {
            send(&mut blocked, 0, &flood).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(200), flooding).await;
    let mut nonsense = bed.upgraded(path).await;
    let stream = nonsense.get_mut();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    bed.until_dropped(1).await;
    drop(waits);
    bed.until_dropped(2).await;
    drop(blocked);
    // streams 12
    bed.until_dropped(3).await;
}

#[tokio::test]
async fn the_agent_that_stops_ends_all_sessions() {
    let mut bed = Bed::new();
    let mut client = bed.upgraded("/v1/pods/u/exec?command=cat&stdin=true").await;
    bed.cancel.cancel();
    let served = tokio::time::timeout(PATIENCE, bed.tasks.join_next()).await;
    served.unwrap().unwrap().unwrap().unwrap();
    bed.until_dropped(1).await;
    // What was under way came, and no exit code after it.
    let [.., status] = channels(&mut client).await;
    // streams 12
    assert_eq!(status, b"");
}

#[tokio::test]
async fn ports_are_carried_with_half_closes() {
    let bed = Bed::new();
    let client = bed.upgraded("/v1/pods/u/portforward?port=7").await;
    let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let (mut write, mut read) = client.split();
    let writing = async {
        for piece in sent.chunks(30_000) {
            let message = [&[0], piece].concat();
            write.send(Message::Binary(message.into())).await.unwrap();
        }
        let closed = Message::Binary(vec![255, 0].into());
        write.send(closed).await.unwrap();
    };
    let mut got = Vec::new();
    let reading = async {
        while let Some(Ok(message)) = read.next().await {
            if let Message::Binary(message) = message
                && message[0] == 0
            {
                got.extend_from_slice(&message[1..]);
            }
        }
    };
    tokio::join!(writing, reading);
    // The port comes first.
    assert_eq!(got[..2], [7, 0]);
    // streams 12
    assert!(got[2..] == sent, "{} bytes of {}", got.len(), sent.len());
}

#[tokio::test]
async fn what_can_be_refused_is_refused_before_the_connection_changes_hands() {
    let bed = Bed::new();
    let other = ASKING.replace("v5.", "v4.");
    let unknown = ASKING.replace("v5.channel.k8s.io", "chat");
    for (path, more, status) in [
        ("/v1/pods/u/exec?command=x", "", "426"),
        ("/v1/pods/u/exec?command=x", &other, "426"),
        ("/v1/pods/u/exec?command=x", &unknown, "403"),
        ("/v1/pods/u/exec", ASKING, "400"),
        ("/v1/pods/u/exec?command=x&tty=maybe", ASKING, "400"),
        ("/v1/pods/u/exec?command=x&user=root", ASKING, "400"),
        ("/v1/pods/gone/exec?command=x", ASKING, "404"),
        ("/v1/pods/gone/attach", ASKING, "404"),
        ("/v1/pods/u/portforward", ASKING, "400"),
        ("/v1/pods/u/portforward?port=0", ASKING, "400"),
        ("/v1/pods/u/portforward?port=65536", ASKING, "400"),
        ("/v1/pods/u/portforward?port=8", ASKING, "500"),
    ] {
        let (head, _stream) = bed.ask(path, more).await;
        let expected = format!("HTTP/1.1 {status} ");
        // streams 12
        assert!(head.starts_with(&expected), "{path}: {head}");
    }
}
