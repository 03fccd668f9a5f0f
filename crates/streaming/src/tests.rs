//! Clients by hand, for what client-go never sends and for what it can't show; client-go itself is
//! at the other end in `tests/streaming/main.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{SinkExt, StreamExt, TryStreamExt};
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream as Pipe, duplex};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::io::ReaderStream;

use super::spdy::frames::{Decoder, Frame};
use super::*;

/// Bytes on their way between client and server.
const PIPE_BYTES: usize = 1 << 20;

const IN_AND_OUT: StreamOptions = StreamOptions {
    stdin: true,
    stdout: true,
    stderr: true,
    tty: false,
};

const OUT: StreamOptions = StreamOptions {
    stdin: false,
    stdout: true,
    stderr: false,
    tty: false,
};

fn negotiated(carrier: Carrier, version: Version) -> Negotiated {
    Negotiated {
        carrier,
        version,
        headers: HeaderMap::new(),
    }
}

fn ports(carrier: Carrier, ports: &[u16]) -> PortForward {
    PortForward {
        negotiated: negotiated(carrier, Version::V4),
        ports: ports.to_vec(),
    }
}

/// Most bytes on their way through an echo.
const ECHO_BYTES: usize = 16;

/// A process that ends with 7.
struct Seven;

impl Process for Seven {
    type Error = String;

    async fn resize(&self, _size: TerminalSize) {}

    async fn exit_code(&self) -> Result<Option<i32>, String> {
        Ok(Some(7))
    }
}

/// A process that writes `said`, then its standard input to standard error, and ends with 7.
fn said(streams: StreamOptions) -> Session<Seven> {
    let (input, echo) = duplex(ECHO_BYTES);
    let echo = ReaderStream::new(echo)
        .map_err(|error| error.to_string())
        .map_ok(Chunk::Stderr);
    let output = stream::iter([Ok(Chunk::Stdout("said".into()))]);
    Session {
        stdin: streams.stdin.then(|| Box::pin(input) as _),
        output: output.chain(echo).boxed(),
        process: Seven,
    }
}

/// Port 7 echoes, nobody listens on others.
async fn echo(port: u16) -> Result<Pipe, &'static str> {
    if port != 7 {
        return Err("connection refused");
    }
    let (ours, theirs) = duplex(ECHO_BYTES);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(ours);
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    });
    Ok(theirs)
}

/// Serves a command that does as [`said`].
fn serve_command(negotiated: Negotiated, streams: StreamOptions) -> (Pipe, JoinHandle<()>) {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let serving = tokio::spawn(async move {
        let start = || async { Ok::<_, String>(said(streams)) };
        let limits = Limits::default();
        serve_session(ours, &negotiated, streams, Kind::Exec, start, limits).await;
    });
    (theirs, serving)
}

/// Serves the ports of [`echo`].
fn serve_ports(asked: PortForward) -> (Pipe, JoinHandle<()>) {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let serving = tokio::spawn(async move {
        serve_port_forward(ours, &asked, echo, Limits::default()).await;
    });
    (theirs, serving)
}

/// A client that writes and reads frames.
struct Spdy {
    pipe: Pipe,
    decoder: Decoder,
    begun: bool,
}

impl Spdy {
    fn new(pipe: Pipe) -> Self {
        Self {
            pipe,
            decoder: Decoder::new(),
            begun: false,
        }
    }

    /// Bytes that open a stream. Its headers are stored, not deflated.
    fn syn(&mut self, id: u32, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = BytesMut::new();
        block.put_u32(u32::try_from(headers.len()).unwrap());
        for field in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.put_u32(u32::try_from(field.len()).unwrap());
            block.put_slice(field.as_bytes());
        }
        let mut payload = BytesMut::new();
        payload.put_u32(id);
        payload.put_slice(&[0; 6]);
        if !std::mem::replace(&mut self.begun, true) {
            payload.put_slice(&[0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
        }
        let length = u16::try_from(block.len()).unwrap();
        payload.put_u8(0);
        payload.put_u16_le(length);
        payload.put_u16_le(!length);
        payload.put_slice(&block);
        payload.put_slice(&[0, 0, 0, 0xff, 0xff]);
        control(1, &payload)
    }

    async fn open(&mut self, id: u32, headers: &[(&str, &str)]) {
        let bytes = self.syn(id, headers);
        self.pipe.write_all(&bytes).await.unwrap();
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.pipe.write_all(bytes).await.unwrap();
    }

    /// The next frame that is no ping of the server; none when the connection has ended.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            match self.decoder.next_frame().unwrap() {
                Some(Frame::Ping { id }) if id.is_multiple_of(2) => {}
                Some(frame) => return Some(frame),
                None => {
                    if self.pipe.read_buf(&mut self.decoder.buffer).await.ok()? == 0 {
                        return None;
                    }
                }
            }
        }
    }

    /// All frames until the server goes away.
    async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// Opens a command's streams; each is answered before the next.
    async fn command(&mut self, types: &[(u32, &str)]) {
        for (id, name) in types {
            self.open(*id, &[("streamtype", name)]).await;
            let (id, fin) = (*id, false);
            assert_eq!(self.next().await, Some(Frame::Headers { id, fin }));
        }
    }
}

fn control(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, 3, 0, kind, 0];
    bytes.extend(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend(payload);
    bytes
}

fn data(id: u8, payload: &[u8], fin: bool) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, id, u8::from(fin)];
    bytes.extend(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend(payload);
    bytes
}

fn reset(id: u8) -> Vec<u8> {
    control(3, &[0, 0, 0, id, 0, 0, 0, 5])
}

fn ping(id: u8) -> Vec<u8> {
    control(6, &[0, 0, 0, id])
}

/// Returns the data of a stream, and whether it was ended.
fn on(id: u32, frames: &[Frame]) -> (String, bool) {
    let mut all = Vec::new();
    let mut ended = false;
    for frame in frames {
        if let Frame::Data { id: of, fin, bytes } = frame
            && *of == id
        {
            assert!(!ended, "something came after the end of {id}");
            all.extend_from_slice(bytes);
            ended = *fin;
        }
    }
    (String::from_utf8(all).unwrap(), ended)
}

const STREAMS: [(u32, &str); 4] = [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")];

#[tokio::test]
async fn a_command_over_spdy_has_all_its_streams() {
    let (pipe, serving) = serve_command(negotiated(Carrier::Spdy, Version::V4), IN_AND_OUT);
    let mut client = Spdy::new(pipe);
    client.command(&STREAMS).await;
    client.send(&data(3, b"typed", true)).await;
    let frames = client.rest().await;
    assert_eq!(on(5, &frames), ("said".to_owned(), true));
    assert_eq!(on(7, &frames), ("typed".to_owned(), true));
    let (status, ended) = on(1, &frames);
    assert!(status.contains("\"message\":\"7\"") && ended, "{status}");
    assert_eq!(on(3, &frames), (String::new(), true));
    assert_eq!(frames.last(), Some(&Frame::GoAway));
    drop(client);
    serving.await.unwrap();
}

#[tokio::test]
async fn pings_are_answered_while_a_command_is_silent() {
    let (pipe, _serving) = serve_command(negotiated(Carrier::Spdy, Version::V4), IN_AND_OUT);
    let mut client = Spdy::new(pipe);
    client.command(&STREAMS).await;
    let said = client.next().await;
    assert!(matches!(said, Some(Frame::Data { id: 5, .. })), "{said:?}");
    client.send(&[ping(1), ping(2), ping(3)].concat()).await;
    // streams 4
    assert_eq!(client.next().await, Some(Frame::Ping { id: 1 }));
    assert_eq!(client.next().await, Some(Frame::Ping { id: 3 }));
}

#[tokio::test]
async fn a_stream_that_is_reset_does_not_end_the_others() {
    let (pipe, serving) = serve_command(negotiated(Carrier::Spdy, Version::V4), IN_AND_OUT);
    let mut client = Spdy::new(pipe);
    client.command(&STREAMS).await;
    let going_away = control(7, &[0; 8]);
    client
        .send(&[reset(5), going_away, data(3, b"typed", true)].concat())
        .await;
    let frames = client.rest().await;
    // streams 3
    assert_eq!(on(7, &frames), ("typed".to_owned(), true));
    assert!(on(1, &frames).0.contains("\"message\":\"7\""));
    drop(client);
    serving.await.unwrap();
}

#[tokio::test]
async fn streams_of_no_use_are_refused() {
    let (pipe, _serving) = serve_command(negotiated(Carrier::Spdy, Version::V4), IN_AND_OUT);
    let mut client = Spdy::new(pipe);
    let (id, fin) = (1, false);
    client.open(id, &[("streamtype", "nonsense")]).await;
    assert_eq!(client.next().await, Some(Frame::Headers { id, fin }));
    assert_eq!(client.next().await, Some(Frame::RstStream { id }));
    // Even, and lower than one before.
    for id in [2, 1] {
        client.open(id, &[("streamtype", "error")]).await;
        assert_eq!(client.next().await, Some(Frame::RstStream { id }));
    }
    // Once a command has its streams it takes no more.
    client
        .command(&[(3, "error"), (5, "stdin"), (7, "stdout"), (9, "stderr")])
        .await;
    client.open(11, &[("streamtype", "stdin")]).await;
    let mut refused = false;
    while !refused {
        refused = client.next().await.unwrap() == Frame::RstStream { id: 11 };
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_opens_too_few_streams_is_let_go() {
    let (pipe, serving) = serve_command(negotiated(Carrier::Spdy, Version::V4), IN_AND_OUT);
    let began = Instant::now();
    let mut client = Spdy::new(pipe);
    client.command(&STREAMS[..3]).await;
    assert_eq!(client.rest().await, [Frame::GoAway]);
    // streams 4
    assert_eq!(began.elapsed(), Limits::default().stream_creation);
    drop(client);
    serving.await.unwrap();
}

/// A process that neither says nor takes anything, and never ends.
struct Silent;

impl Process for Silent {
    type Error = String;

    async fn resize(&self, _size: TerminalSize) {}

    async fn exit_code(&self) -> Result<Option<i32>, String> {
        Ok(None)
    }
}

fn silent(output: BoxStream<'static, Result<Chunk, String>>) -> Session<Silent> {
    Session {
        stdin: None,
        output,
        process: Silent,
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_happens_is_given_up() {
    let idle = Limits::default().idle.unwrap();
    for carrier in [Carrier::Spdy, Carrier::WebSocket(Codec::Binary)] {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let streams = StreamOptions {
            stdout: true,
            ..StreamOptions::default()
        };
        let serving = tokio::spawn(async move {
            let start = || async { Ok::<_, String>(silent(stream::pending().boxed())) };
            let how = negotiated(carrier, Version::V4);
            serve_session(ours, &how, streams, Kind::Exec, start, Limits::default()).await;
        });
        let began = Instant::now();
        // The client's pings count, ours and their echoes don't.
        let active = idle / 2;
        match carrier {
            Carrier::WebSocket(_) => {
                let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
                tokio::time::sleep(active).await;
                client.send(Message::Ping("hello".into())).await.unwrap();
                while client.next().await.is_some_and(|message| message.is_ok()) {}
            }
            Carrier::Spdy | Carrier::Tunnel => {
                let mut client = Spdy::new(theirs);
                client.command(&[(1, "error"), (3, "stdout")]).await;
                tokio::time::sleep(active).await;
                client.send(&ping(1)).await;
                assert_eq!(client.rest().await, [Frame::Ping { id: 1 }]);
            }
        }
        serving.await.unwrap();
        let lasted = began.elapsed();
        let wanted = active + idle;
        // To the accuracy of the stamps.
        // streams 4
        assert!(
            lasted >= wanted && lasted < wanted + Limits::default().ping,
            "{lasted:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_spdy_ends_the_connection() {
    for nonsense in [&b"\x80\x03\0\x01\0\xff\xff\xff"[..], &[0; 16]] {
        let (mut pipe, serving) = serve_command(negotiated(Carrier::Spdy, Version::V4), IN_AND_OUT);
        pipe.write_all(nonsense).await.unwrap();
        serving.await.unwrap();
    }
}

async fn websocket(pipe: Pipe) -> WebSocketStream<Pipe> {
    WebSocketStream::from_raw_socket(pipe, Role::Client, None).await
}

/// All messages until the server closes, and how it does.
async fn messages(client: &mut WebSocketStream<Pipe>) -> (Vec<Message>, Option<u16>) {
    let mut all = Vec::new();
    while let Some(message) = client.next().await {
        match message {
            Ok(Message::Close(frame)) => return (all, frame.map(|frame| frame.code.into())),
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            Ok(message) => all.push(message),
            Err(_) => break,
        }
    }
    (all, None)
}

/// Returns the data of a channel.
fn channel(at: u8, messages: &[Message]) -> String {
    let all: Vec<u8> = messages
        .iter()
        .map(|message| message.clone().into_data())
        .filter(|message| message.first() == Some(&at))
        .flat_map(|message| message[1..].to_vec())
        .collect();
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn a_command_over_a_websocket_has_all_its_channels() {
    let how = negotiated(Carrier::WebSocket(Codec::Binary), Version::V5);
    let (pipe, serving) = serve_command(how, IN_AND_OUT);
    let mut client = websocket(pipe).await;
    let hello = client.next().await.unwrap().unwrap();
    assert_eq!(hello, Message::Binary(vec![1].into()));
    // In two fragments, on a channel nobody asked for, empty, and then its end.
    for message in [&b"\0ty"[..], b"\0ped", b"\x02no", b"\x63no", b"", b"\xff\0"] {
        let message = message.to_vec();
        client.send(Message::Binary(message.into())).await.unwrap();
    }
    let (all, closed) = messages(&mut client).await;
    assert_eq!(channel(1, &all), "said");
    assert_eq!(channel(2, &all), "typed");
    assert!(channel(3, &all).contains("\"message\":\"7\""));
    assert_eq!(
        all.last().unwrap().clone().into_data()[0],
        3,
        "the status is the last"
    );
    // streams 6
    assert_eq!(closed, Some(1000));
    drop(client);
    serving.await.unwrap();
}

#[tokio::test]
async fn a_wrong_close_of_a_channel_ends_the_connection() {
    for wrong in [&b"\xff"[..], b"\xff\0\0", b"\xff\x05"] {
        let how = negotiated(Carrier::WebSocket(Codec::Binary), Version::V5);
        let (pipe, serving) = serve_command(how, IN_AND_OUT);
        let mut client = websocket(pipe).await;
        client
            .send(Message::Binary(wrong.to_vec().into()))
            .await
            .unwrap();
        // streams 6
        assert!(serving.await.is_ok(), "{wrong:?}");
    }
}

#[tokio::test]
async fn base64_goes_in_text_messages() {
    let how = negotiated(Carrier::WebSocket(Codec::Base64), Version::V4);
    let (pipe, _serving) = serve_command(how, IN_AND_OUT);
    let mut client = websocket(pipe).await;
    assert_eq!(
        client.next().await.unwrap().unwrap(),
        Message::Text("1".into())
    );
    // "said"
    assert_eq!(
        client.next().await.unwrap().unwrap(),
        Message::Text("1c2FpZA==".into())
    );
    // "typed"
    client
        .send(Message::Text("0dHlwZWQ=".into()))
        .await
        .unwrap();
    // streams 6
    assert_eq!(
        client.next().await.unwrap().unwrap(),
        Message::Text("2dHlwZWQ=".into())
    );
}

#[tokio::test]
async fn a_message_beyond_the_bound_ends_the_connection() {
    let how = negotiated(Carrier::WebSocket(Codec::Binary), Version::V4);
    let (mut pipe, serving) = serve_command(how, IN_AND_OUT);
    // A binary frame of 64 GB, masked.
    let mut head = vec![0x82, 0xff];
    head.extend((64_u64 << 30).to_be_bytes());
    head.extend([0; 4]);
    pipe.write_all(&head).await.unwrap();
    // streams 6
    assert!(serving.await.is_ok());
}

fn forwarded(kind: &str, port: &str, request: &str) -> [(&'static str, String); 3] {
    [
        ("streamtype", kind.to_owned()),
        ("port", port.to_owned()),
        ("requestid", request.to_owned()),
    ]
}

async fn open_forward(client: &mut Spdy, id: u32, headers: &[(&str, String)]) {
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    client.open(id, &headers).await;
    let fin = false;
    assert_eq!(client.next().await, Some(Frame::Headers { id, fin }));
}

#[tokio::test]
async fn a_connection_is_forwarded_over_two_streams() {
    let (pipe, serving) = serve_ports(ports(Carrier::Spdy, &[]));
    let mut client = Spdy::new(pipe);
    open_forward(&mut client, 1, &forwarded("error", "7", "0")).await;
    client.send(&data(1, b"", true)).await;
    open_forward(&mut client, 3, &forwarded("data", "7", "0")).await;
    // An old client that does not name its requests, and one that nobody listens for.
    open_forward(&mut client, 5, &forwarded("error", "7", "")[..2]).await;
    open_forward(&mut client, 7, &forwarded("data", "7", "")[..2]).await;
    open_forward(&mut client, 9, &forwarded("error", "8", "x")).await;
    open_forward(&mut client, 11, &forwarded("data", "8", "x")).await;
    client.send(&data(3, b"one", true)).await;
    client.send(&data(7, b"two", true)).await;
    client.send(&control(7, &[0; 8])).await;
    client.send(&reset(11)).await;
    let frames = client.rest().await;
    assert_eq!(on(3, &frames), ("one".to_owned(), true));
    assert_eq!(
        on(1, &frames),
        (String::new(), true),
        "nothing may come on an error stream"
    );
    assert_eq!(on(7, &frames), ("two".to_owned(), true));
    assert_eq!(on(5, &frames), (String::new(), true));
    let refused = "error forwarding port 8: connection refused".to_owned();
    // streams 8
    assert_eq!(on(9, &frames), (refused, true));
    assert_eq!(frames.last(), Some(&Frame::GoAway));
    drop(client);
    serving.await.unwrap();
}

/// The pod says nothing: it doesn't end with its client's last words, or doesn't even read them.
#[tokio::test(start_paused = true)]
async fn a_reset_ends_a_connection_whose_pod_is_silent() {
    for (words, is_last) in [(&b"last words"[..], true), (&[b'x'; 1000][..], false)] {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let (mut pod, target) = duplex(ECHO_BYTES);
        let target = Mutex::new(Some(target));
        let serving = tokio::spawn(async move {
            let connect = |_| {
                let target = target.lock().unwrap().take();
                async move { target.ok_or("connected already") }
            };
            let asked = ports(Carrier::Spdy, &[]);
            serve_port_forward(ours, &asked, connect, Limits::default()).await;
        });
        let mut client = Spdy::new(theirs);
        open_forward(&mut client, 1, &forwarded("error", "7", "0")).await;
        open_forward(&mut client, 3, &forwarded("data", "7", "0")).await;
        client.send(&data(3, words, is_last)).await;
        if is_last {
            let mut got = Vec::new();
            pod.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, words);
        }
        client.send(&reset(3)).await;
        let end = Frame::Data {
            id: 1,
            fin: true,
            bytes: Bytes::new(),
        };
        let next = timeout(Duration::from_mins(1), client.next()).await;
        // streams 3
        assert_eq!(next, Ok(Some(end)), "{is_last}");
        assert!(pod.write_all(b"x").await.is_err(), "the pod is let go");
        drop(client);
        serving.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn streams_without_their_other_half_are_not_kept() {
    let (pipe, _serving) = serve_ports(ports(Carrier::Spdy, &[]));
    let mut client = Spdy::new(pipe);
    for (id, kind, port) in [
        (1, "error", "0"),
        (3, "error", "70000"),
        (5, "nonsense", "7"),
    ] {
        open_forward(&mut client, id, &forwarded(kind, port, "0")).await;
        assert_eq!(
            client.next().await,
            Some(Frame::RstStream { id }),
            "{kind} {port}"
        );
    }
    open_forward(&mut client, 7, &forwarded("error", "7", "a")).await;
    open_forward(&mut client, 9, &forwarded("error", "7", "a")).await;
    assert_eq!(
        client.next().await,
        Some(Frame::RstStream { id: 9 }),
        "it was there"
    );
    open_forward(&mut client, 11, &forwarded("data", "7", "b")).await;
    let began = Instant::now();
    let mut frames = Vec::new();
    // Its words, its end and what is left of both.
    while frames.len() < 4 {
        frames.push(client.next().await.unwrap());
    }
    // streams 4
    assert_eq!(began.elapsed(), Limits::default().stream_creation);
    let told = "request a timed out waiting for streams".to_owned();
    assert_eq!(on(7, &frames).0, told);
    assert!(frames.contains(&Frame::RstStream { id: 11 }), "{frames:?}");
}

#[tokio::test]
async fn a_tunnel_carries_bytes_in_any_pieces() {
    let (pipe, serving) = serve_ports(ports(Carrier::Tunnel, &[]));
    let mut client = websocket(pipe).await;
    let (unused, _) = duplex(1);
    let mut frames = Spdy::new(unused);
    let error = [("streamtype", "error"), ("port", "7"), ("requestid", "0")];
    let stream = [("streamtype", "data"), ("port", "7"), ("requestid", "0")];
    let mut bytes = frames.syn(1, &error);
    bytes.extend(frames.syn(3, &stream));
    bytes.extend(data(3, b"hello", true));
    bytes.extend(data(1, b"", true));
    bytes.extend(control(7, &[0; 8]));
    for byte in bytes {
        client
            .feed(Message::Binary(vec![byte].into()))
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    let (all, closed) = messages(&mut client).await;
    let mut got = Vec::new();
    for message in all {
        frames
            .decoder
            .buffer
            .extend_from_slice(&message.into_data());
        while let Some(frame) = frames.decoder.next_frame().unwrap() {
            got.push(frame);
        }
    }
    // streams 8
    assert_eq!(on(3, &got), ("hello".to_owned(), true));
    assert_eq!(on(1, &got), (String::new(), true));
    assert_eq!(got.last(), Some(&Frame::GoAway));
    assert_eq!(closed, Some(1000));
    drop(client);
    serving.await.unwrap();
}

#[tokio::test]
async fn channels_begin_with_the_port_they_are_for() {
    let asked = ports(Carrier::WebSocket(Codec::Binary), &[7, 0x0102]);
    let (pipe, _serving) = serve_ports(asked);
    let mut client = websocket(pipe).await;
    for wanted in [[0, 7, 0], [1, 7, 0], [2, 2, 1], [3, 2, 1]] {
        let message = client.next().await.unwrap().unwrap();
        // streams 8
        assert_eq!(message, Message::Binary(wanted.to_vec().into()));
    }
    let refused = client.next().await.unwrap().unwrap().into_data();
    assert_eq!(refused[0], 3);
    assert_eq!(
        &refused[1..],
        b"error forwarding port 258: connection refused"
    );
    client
        .send(Message::Binary(b"\0hi".to_vec().into()))
        .await
        .unwrap();
    let echoed = client.next().await.unwrap().unwrap();
    assert_eq!(echoed, Message::Binary(b"\0hi".to_vec().into()));
}

/// The head of a binary frame of 30 MB, whose mask changes nothing.
const HEAD_OF_30_MB: [u8; 14] = [0x82, 0xff, 0, 0, 0, 0, 0x01, 0xc9, 0xc3, 0x80, 0, 0, 0, 0];

#[tokio::test(start_paused = true)]
async fn an_unfinished_message_is_handed_on_as_it_comes() {
    let how = negotiated(Carrier::WebSocket(Codec::Binary), Version::V4);
    let (pipe, _serving) = serve_command(how, IN_AND_OUT);
    let mut client = websocket(pipe).await;
    client.get_mut().write_all(&HEAD_OF_30_MB).await.unwrap();
    for typed in ["\0so ", "far"] {
        client.get_mut().write_all(typed.as_bytes()).await.unwrap();
    }
    let mut echoed = Vec::new();
    let echo = async {
        while echoed != b"so far" {
            let message = client.next().await.unwrap().unwrap().into_data();
            if let [2, bytes @ ..] = &message[..] {
                echoed.extend_from_slice(bytes);
            }
        }
    };
    let echo = timeout(Duration::from_mins(1), echo).await;
    // streams 7
    assert!(echo.is_ok(), "only {echoed:?} came");
}

/// Writes until nobody takes any more; how much that was.
async fn fill(mut pipe: impl AsyncWriteExt + Unpin, bytes: &[u8]) -> usize {
    let mut taken = 0;
    while taken < bytes.len() {
        let writing = pipe.write(&bytes[taken..]);
        match timeout(Duration::from_secs(1), writing).await {
            Ok(written) => taken += written.unwrap(),
            Err(_) => break,
        }
    }
    taken
}

/// Bytes that nine connections buffer of 30 MB each, for processes and ports that read nothing.
async fn taken_by_nine(carrier: Carrier, budget: &Budget) -> usize {
    let limits = Limits {
        budget: budget.clone(),
        ..Limits::default()
    };
    let flood = vec![0; 30 << 20];
    let mut serving = tokio::task::JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..9 {
        let (ours, theirs) = duplex(drive::READ_BYTES);
        clients.push(theirs);
        let limits = limits.clone();
        let (process, target) = duplex(drive::READ_BYTES);
        if let Carrier::WebSocket(_) = carrier {
            serving.spawn(async move {
                let _stuck = process;
                let start = || async {
                    let stdin = Some(Box::pin(target) as _);
                    let (output, process) = (stream::pending().boxed(), Silent);
                    Ok::<_, String>(Session {
                        stdin,
                        output,
                        process,
                    })
                };
                let how = negotiated(carrier, Version::V4);
                serve_session(ours, &how, IN_AND_OUT, Kind::Exec, start, limits).await;
            });
        } else {
            serving.spawn(async move {
                let asked = ports(carrier, &[]);
                serve_port_forward(ours, &asked, echo, limits).await;
            });
        }
    }
    let filling = clients.iter_mut().map(async |client| {
        if let Carrier::WebSocket(_) = carrier {
            client.write_all(&HEAD_OF_30_MB).await.unwrap();
            return fill(client, &flood).await;
        }
        // Streams that wait for their other half, each with less than is kept of one.
        let mut spdy = Spdy::new(duplex(1).0);
        let mut wire = Vec::new();
        for (at, piece) in (0_u8..100).zip(flood.chunks(60_000)) {
            let id = 2 * at + 1;
            let request = at.to_string();
            let headers = [
                ("streamtype", "data"),
                ("port", "7"),
                ("requestid", &request),
            ];
            wire.extend(spdy.syn(id.into(), &headers));
            wire.extend(data(id, piece, false));
        }
        // Responses are read.
        let (mut read, write) = tokio::io::split(client);
        let mut sink = tokio::io::sink();
        tokio::select! {
            taken = fill(write, &wire) => taken,
            _ = tokio::io::copy(&mut read, &mut sink) => 0,
        }
    });
    futures::future::join_all(filling).await.into_iter().sum()
}

#[tokio::test(start_paused = true)]
async fn all_connections_share_one_bound() {
    // Beside the budget a connection has its pipes, what it reads at once, twice, and its lean piece.
    const EACH: usize = 5 * drive::READ_BYTES;
    const BUDGET: usize = 256 << 10;
    for carrier in [Carrier::WebSocket(Codec::Binary), Carrier::Spdy] {
        let budget = Budget::new(BUDGET);
        let taken = taken_by_nine(carrier, &budget).await;
        // streams 7
        assert!(taken <= BUDGET + 9 * EACH, "{carrier:?}: {taken}");
        // Nobody is left out.
        assert!(taken > 9 * drive::READ_BYTES, "{carrier:?}: {taken}");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            budget.left(),
            BUDGET,
            "{carrier:?}: what ended gave all back"
        );
    }
}

/// Bytes that a process or a pod writes at a time.
const PAGE: usize = budget::LEAN_BYTES;

/// Serves a process that writes for ever, or a pod over a tunnel, and counts what is read of it. The
/// client has opened its streams, and reads nothing.
async fn serve_endless(carrier: Carrier, limits: Limits, read: Arc<AtomicUsize>) -> Pipe {
    let (ours, theirs) = duplex(drive::READ_BYTES);
    if carrier == Carrier::Tunnel {
        tokio::spawn(async move {
            let connect = |_| {
                let (near, mut far) = duplex(PAGE);
                let read = Arc::clone(&read);
                tokio::spawn(async move {
                    while far.write_all(&[b'x'; PAGE]).await.is_ok() {
                        read.fetch_add(PAGE, Ordering::Relaxed);
                    }
                });
                async move { Ok::<_, String>(near) }
            };
            serve_port_forward(ours, &ports(carrier, &[]), connect, limits).await;
        });
        let mut client = websocket(theirs).await;
        let (mut frames, mut wire) = (Spdy::new(duplex(1).0), Vec::new());
        for (id, kind) in [(1, "error"), (3, "data")] {
            let headers = [("streamtype", kind), ("port", "7"), ("requestid", "0")];
            wire.extend(frames.syn(id, &headers));
        }
        client.send(Message::Binary(wire.into())).await.unwrap();
        return client.into_inner();
    }
    tokio::spawn(async move {
        let output = stream::repeat_with(move || {
            read.fetch_add(PAGE, Ordering::Relaxed);
            Ok(Chunk::Stdout(vec![b'x'; PAGE].into()))
        });
        let start = || async { Ok::<_, String>(silent(output.boxed())) };
        let how = negotiated(carrier, Version::V4);
        serve_session(ours, &how, OUT, Kind::Exec, start, limits).await;
    });
    if carrier != Carrier::Spdy {
        return theirs;
    }
    let mut client = Spdy::new(theirs);
    client.command(&[(1, "error"), (3, "stdout")]).await;
    client.pipe
}

#[tokio::test(start_paused = true)]
async fn what_clients_do_not_read_has_the_same_bound() {
    // Beside the budget a connection has its pipe, its lean piece, and what was read for the next one.
    const EACH: usize = drive::READ_BYTES + 4 * PAGE;
    const BUDGET: usize = 256 << 10;
    for carrier in [
        Carrier::WebSocket(Codec::Binary),
        Carrier::Spdy,
        Carrier::Tunnel,
    ] {
        let limits = Limits {
            budget: Budget::new(BUDGET),
            ..Limits::default()
        };
        let read = Arc::new(AtomicUsize::new(0));
        let mut clients = Vec::new();
        for _ in 0..9 {
            clients.push(serve_endless(carrier, limits.clone(), Arc::clone(&read)).await);
        }
        // Until nothing moves any more.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taken = read.load(Ordering::Relaxed);
        // streams 7, tenants S1
        assert!(taken <= BUDGET + 9 * EACH, "{carrier:?}: {taken}");
        // Nobody is left out.
        assert!(
            taken > 9 * (drive::READ_BYTES - PAGE),
            "{carrier:?}: {taken}"
        );
        // One that reads goes on, whatever the others do.
        let mut client = clients.pop().unwrap();
        let mut bytes = vec![0; 1 << 20];
        let reading = timeout(Duration::from_mins(1), client.read_exact(&mut bytes));
        assert!(reading.await.is_ok_and(|read| read.is_ok()), "{carrier:?}");
        drop((client, clients));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            limits.budget.left(),
            BUDGET,
            "{carrier:?}: what ended gave all back"
        );
    }
}

#[tokio::test]
async fn without_a_budget_output_goes_out_in_small_pieces() {
    let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for carrier in [Carrier::Spdy, Carrier::WebSocket(Codec::Binary)] {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let limits = Limits {
            budget: Budget::new(0),
            ..Limits::default()
        };
        let written = sent.chunks(10_000).map(Bytes::copy_from_slice);
        let written: Vec<_> = written.map(|piece| Ok(Chunk::Stdout(piece))).collect();
        let serving = tokio::spawn(async move {
            let output = stream::iter(written).boxed();
            let start = || async {
                let (stdin, process) = (None, Seven);
                Ok::<_, String>(Session {
                    stdin,
                    output,
                    process,
                })
            };
            let how = negotiated(carrier, Version::V4);
            serve_session(ours, &how, OUT, Kind::Exec, start, limits).await;
        });
        let mut got = Vec::new();
        if carrier == Carrier::Spdy {
            let mut client = Spdy::new(theirs);
            client.command(&[(1, "error"), (3, "stdout")]).await;
            for frame in client.rest().await {
                if let Frame::Data { id: 3, bytes, .. } = frame {
                    got.extend_from_slice(&bytes);
                }
            }
        } else {
            let (all, _) = messages(&mut websocket(theirs).await).await;
            for message in all {
                if let [1, bytes @ ..] = &message.into_data()[..] {
                    // streams 7
                    assert!(bytes.len() <= budget::LEAN_BYTES, "{}", bytes.len());
                    got.extend_from_slice(bytes);
                }
            }
        }
        assert!(got == sent, "{carrier:?}: {} bytes", got.len());
        serving.abort();
    }
}

#[tokio::test]
async fn without_a_budget_all_goes_on_in_small_pieces() {
    let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for carrier in [
        Carrier::Spdy,
        Carrier::Tunnel,
        Carrier::WebSocket(Codec::Binary),
    ] {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let limits = Limits {
            budget: Budget::new(0),
            ..Limits::default()
        };
        let serving = tokio::spawn(async move {
            let asked = ports(carrier, &[7]);
            serve_port_forward(ours, &asked, echo, limits).await;
        });
        let mut got = Vec::new();
        if carrier == Carrier::Spdy {
            let mut client = Spdy::new(theirs);
            open_forward(&mut client, 1, &forwarded("error", "7", "0")).await;
            open_forward(&mut client, 3, &forwarded("data", "7", "0")).await;
            client.send(&data(3, &sent, true)).await;
            client.send(&control(7, &[0; 8])).await;
            for frame in client.rest().await {
                if let Frame::Data { id: 3, bytes, .. } = frame {
                    got.extend_from_slice(&bytes);
                }
            }
        } else {
            let mut client = websocket(theirs).await;
            let (mut frames, mut wire) = (Spdy::new(duplex(1).0), vec![0]);
            if carrier == Carrier::Tunnel {
                wire.clear();
                for (id, kind) in [(1, "error"), (3, "data")] {
                    let headers = [("streamtype", kind), ("port", "7"), ("requestid", "0")];
                    wire.extend(frames.syn(id, &headers));
                }
                wire.extend(data(3, &sent, true));
            } else {
                wire.extend(&sent);
            }
            client.send(Message::Binary(wire.into())).await.unwrap();
            while got.len() < sent.len() {
                let message = client.next().await.unwrap().unwrap();
                let Message::Binary(bytes) = message else {
                    continue;
                };
                if carrier == Carrier::Tunnel {
                    frames.decoder.buffer.extend_from_slice(&bytes);
                    while let Some(frame) = frames.decoder.next_frame().unwrap() {
                        if let Frame::Data { id: 3, bytes, .. } = frame {
                            got.extend_from_slice(&bytes);
                        }
                    }
                } else if bytes[0] == 0 && bytes[1..] != [7, 0] {
                    got.extend_from_slice(&bytes[1..]);
                }
            }
        }
        // streams 7
        assert!(got == sent, "{carrier:?}: {} bytes", got.len());
        drop(serving);
    }
}

#[tokio::test]
async fn pings_and_a_close_of_the_client_are_answered() {
    for asked in [
        ports(Carrier::WebSocket(Codec::Binary), &[7]),
        ports(Carrier::Tunnel, &[]),
    ] {
        let (pipe, serving) = serve_ports(asked);
        let mut client = websocket(pipe).await;
        client.send(Message::Ping("here?".into())).await.unwrap();
        let answer = loop {
            let message = client.next().await.unwrap().unwrap();
            if message.is_pong() {
                break message;
            }
        };
        // streams 6
        assert_eq!(answer, Message::Pong("here?".into()));
        client.close(None).await.unwrap();
        let mut closed = false;
        while let Some(message) = client.next().await {
            closed |= message.is_ok_and(|message| message.is_close());
        }
        assert!(closed);
        serving.await.unwrap();
    }
}

/// A client of `v5` closes the channel of a port, and so does the server.
#[tokio::test]
async fn a_channel_of_v5_is_closed_by_each_side_alone() {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let (pod, target) = duplex(PIPE_BYTES);
    let asked = PortForward {
        negotiated: negotiated(Carrier::WebSocket(Codec::Binary), Version::V5),
        ports: vec![7],
    };
    let target = Mutex::new(Some(target));
    let connect = |_| {
        let target = target.lock().unwrap().take();
        async move { target.ok_or("connected already") }
    };
    let serving = serve_port_forward(ours, &asked, connect, Limits::default());
    let client = async {
        let mut client = websocket(theirs).await;
        let mut next = async || client.next().await.unwrap().unwrap();
        for wanted in [[0, 7, 0], [1, 7, 0]] {
            assert_eq!(next().await, Message::Binary(wanted.to_vec().into()));
        }
        let (mut from_client, mut to_client) = tokio::io::split(pod);
        to_client.write_all(b"last words").await.unwrap();
        to_client.shutdown().await.unwrap();
        let words = Message::Binary(b"\0last words".to_vec().into());
        assert_eq!(next().await, words);
        let closed = Message::Binary(vec![255, 0].into());
        // streams 8
        assert_eq!(next().await, closed);
        // The pod has closed its side, and still reads.
        let answer = Message::Binary(b"\0answer".to_vec().into());
        for message in [answer, closed] {
            client.send(message).await.unwrap();
        }
        let mut got = String::new();
        from_client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "answer");
        assert_eq!(messages(&mut client).await, (vec![], Some(1000)));
    };
    tokio::join!(serving, client);
}

/// How a session ends that nobody could start.
#[tokio::test]
async fn why_a_command_did_not_start_is_told_on_the_error_stream() {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let started = Mutex::new(0);
    let start = || async {
        *started.lock().unwrap() += 1;
        Err::<Session<Seven>, _>("no such container")
    };
    let how = negotiated(Carrier::WebSocket(Codec::Binary), Version::V4);
    let limits = Limits::default();
    let client = async {
        let mut client = websocket(theirs).await;
        let (all, closed) = messages(&mut client).await;
        assert!(channel(3, &all).contains("no such container"), "{all:?}");
        assert_eq!(closed, Some(1000));
    };
    tokio::join!(
        serve_session(ours, &how, IN_AND_OUT, Kind::Attach, start, limits),
        client
    );
    assert_eq!(*started.lock().unwrap(), 1);
}
