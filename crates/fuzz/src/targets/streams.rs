//! Fuzz targets for exec and port-forward: headers, SPDY frames, WebSocket messages.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::HeaderMap;
use mirrorlet_streaming::{
    Carrier, Chunk, Codec, Kind, Limits, Negotiated, PortForward, Process, RemoteCommand, Session,
    StreamOptions, TerminalSize, Version, serve_port_forward, serve_session,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, sink};
use tokio_util::io::ReaderStream;

use super::{choice, text};

/// Bytes on their way.
const PIPE_BYTES: usize = 64 << 10;

/// A process that ends with 0.
struct Done;

impl Process for Done {
    type Error = String;

    async fn resize(&self, _size: TerminalSize) {}

    async fn exit_code(&self) -> Result<Option<i32>, String> {
        Ok(Some(0))
    }
}

/// A process that writes its input to its output.
fn echo() -> Session<Done> {
    let (input, output) = duplex(16);
    let output = ReaderStream::new(output)
        .map_err(|error| error.to_string())
        .map_ok(Chunk::Stdout);
    let hello = stream::iter([Ok(Chunk::Stderr(Bytes::from_static(b"hello")))]);
    Session {
        stdin: Some(Box::pin(input)),
        output: hello.chain(output).boxed(),
        process: Done,
    }
}

async fn connect(port: u16) -> Result<DuplexStream, &'static str> {
    if port != 7 {
        return Err("connection refused");
    }
    let (near, far) = duplex(16);
    // Nothing is spawned: what is sent waits in the pipe, and an end is an end.
    drop(far);
    Ok(near)
}

/// The first byte selects the protocol, the second the size of the pieces in which the rest arrives.
pub(crate) fn streams(bytes: &[u8]) {
    let (form, bytes) = choice(bytes);
    let (piece, bytes) = choice(bytes);
    if form == 0xff {
        negotiate(text(bytes));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(serve(form, usize::from(piece).max(1), bytes));
}

async fn serve(form: u8, piece: usize, bytes: &[u8]) {
    let limits = Limits::default();
    let left = limits.budget.left();
    let (near, far) = duplex(PIPE_BYTES);
    let serving = async {
        let carrier = match form & 3 {
            0 => Carrier::Spdy,
            1 => Carrier::Tunnel,
            2 => Carrier::WebSocket(Codec::Binary),
            _ => Carrier::WebSocket(Codec::Base64),
        };
        let version = match form >> 2 & 3 {
            0 => Version::V1,
            1 => Version::V3,
            2 => Version::V4,
            _ => Version::V5,
        };
        let negotiated = Negotiated {
            carrier,
            version,
            headers: HeaderMap::new(),
        };
        if form & 16 == 0 && carrier != Carrier::Tunnel {
            let streams = StreamOptions {
                stdin: true,
                stdout: true,
                stderr: form & 32 == 0,
                tty: form & 32 != 0,
            };
            let start = || async { Ok::<_, Infallible>(echo()) };
            serve_session(
                near,
                &negotiated,
                streams,
                Kind::Exec,
                start,
                limits.clone(),
            )
            .await;
        } else {
            let ports = vec![7, 8];
            let asked = PortForward { negotiated, ports };
            serve_port_forward(near, &asked, connect, limits.clone()).await;
        }
    };
    let (mut read, mut write) = tokio::io::split(far);
    let sending = async move {
        for piece in bytes.chunks(piece) {
            if write.write_all(piece).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
    };
    let taking = async move {
        let _ = tokio::io::copy(&mut read, &mut sink()).await;
        let _ = read.read(&mut []).await;
    };
    tokio::join!(serving, sending, taking);
    assert_eq!(
        limits.budget.left(),
        left,
        "a connection that ended holds nothing"
    );
}

/// A query, and a header a line.
fn negotiate(text: &str) {
    let mut lines = text.lines();
    let query = lines.next().unwrap_or_default();
    let headers: HeaderMap = lines
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)))
        .collect::<HeaderMap>();
    let _ = RemoteCommand::parse(query);
    let _ = RemoteCommand::negotiate(&headers);
    let _ = PortForward::negotiate(&headers, query);
}
