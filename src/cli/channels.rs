//! The client's end of WebSockets on the agent's socket: messages of one channel each, as in
//! `v5.channel.k8s.io`.

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::HeaderMap;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::Failure;
use crate::server::admin::PROTOCOL;

/// Standard input of a process, or the data of a forwarded connection.
pub(super) const STDIN: u8 = 0;
/// Standard output.
pub(super) const STDOUT: u8 = 1;
/// Standard error.
pub(super) const STDERR: u8 = 2;
/// How a process ended, as a `Status`.
pub(super) const STATUS: u8 = 3;
/// Sizes of a terminal.
pub(super) const RESIZE: u8 = 4;
/// A message of this channel closes the one that it names.
const CLOSE: u8 = 255;

/// A request to become a WebSocket.
pub(super) struct Handshake {
    key: String,
}

impl Handshake {
    pub(super) fn new() -> Self {
        let key = generate_key();
        Self { key }
    }

    /// Adds the headers of the request.
    pub(super) fn ask(&self, request: http::request::Builder) -> http::request::Builder {
        request
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &self.key)
            .header(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
    }

    /// Whether the headers of an answer accept a WebSocket with our protocol.
    pub(super) fn accepts(&self, answer: &HeaderMap) -> bool {
        let accept = derive_accept_key(self.key.as_bytes());
        let has = |name, wanted: &str| answer.get(name).is_some_and(|value| value == wanted);
        has(SEC_WEBSOCKET_ACCEPT, &accept) && has(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
    }
}

/// Both directions of a connection; `early` are bytes that were already received.
pub(super) async fn channels(stream: UnixStream, early: Bytes) -> (Sender, Receiver) {
    let socket =
        WebSocketStream::from_partially_read(stream, early.into(), Role::Client, None).await;
    let (sink, stream) = socket.split();
    (Sender(sink), Receiver(stream))
}

/// The sending half of a connection to the agent.
pub(super) struct Sender(SplitSink<WebSocketStream<UnixStream>, Message>);

impl Sender {
    /// Sends bytes on a channel.
    pub(super) async fn send(&mut self, channel: u8, bytes: &[u8]) -> Result<(), Error> {
        let mut message = BytesMut::with_capacity(1 + bytes.len());
        message.put_u8(channel);
        message.put_slice(bytes);
        self.0.send(Message::Binary(message.freeze())).await
    }

    /// Closes a channel.
    pub(super) async fn close(&mut self, channel: u8) -> Result<(), Error> {
        self.send(CLOSE, &[channel]).await
    }
}

/// The receiving half of a connection to the agent.
pub(super) struct Receiver(SplitStream<WebSocketStream<UnixStream>>);

/// A message of the agent's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes of a channel.
    Data(u8, Bytes),
    /// A channel has ended.
    Closed(u8),
}

impl Receiver {
    /// The next message; none once the agent has closed the connection.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Option<Received>, Failure> {
        loop {
            let message = match self.0.next().await {
                Some(Ok(Message::Binary(message))) => message,
                // An agent that ends closes without a word.
                Some(Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::Protocol(_)))
                | None => return Ok(None),
                // Pings are answered when the next message is read.
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    let error = anyhow::Error::from(error);
                    return Err(error.context("failed to read from the agent").into());
                }
            };
            match message[..] {
                [CLOSE, channel] => return Ok(Some(Received::Closed(channel))),
                // The agent greets with an empty message.
                [] | [_] => {}
                [channel, ..] => return Ok(Some(Received::Data(channel, message.slice(1..)))),
            }
        }
    }
}
