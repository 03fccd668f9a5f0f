//! Chooses the protocol of a connection from the headers of its request, and the headers of the
//! answer. Pure.
//!
//! Upstream: `httpstream.Handshake` and `spdy.UpgradeResponse` of `apimachinery/pkg/util`,
//! `wsstream.Conn.handshake` there, `remotecommand.NewOptions` and `portforward.NewV4Options` of
//! `kubelet/pkg/cri/streaming`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sha1::{Digest, Sha1};

use super::session::StreamOptions;

/// Lists the protocols that a SPDY client supports, and in the answer the chosen one.
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Lists the supported protocols, in a refusal.
const ACCEPTED_VERSIONS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");
const SPDY: &str = "SPDY/3.1";
/// Maximum number of offered protocols that are checked; clients send five.
const OFFERED_MAX: usize = 64;

/// The version of the remote command protocol: its streams, and the format of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The error stream is plain text. Also used for `channel.k8s.io`, `v2` and requests without a
    /// protocol.
    V1,
    /// As `V1`, with an additional stream of terminal sizes.
    V3,
    /// As `V3`, but the error stream is one `Status` as JSON.
    V4,
    /// As `V4`, but single channels of a WebSocket can be closed: by the client and, for forwarded
    /// ports, by the server. Kubernetes' clients don't offer it for ports.
    V5,
}

/// The encoding of a channel's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Raw bytes in binary messages.
    Binary,
    /// Base64 in text messages.
    Base64,
}

/// The transport of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Frames of SPDY/3.1.
    Spdy,
    /// One channel of WebSocket messages per stream.
    WebSocket(Codec),
    /// SPDY/3.1 frames as the bytes of binary WebSocket messages.
    Tunnel,
}

/// An accepted upgrade: answer 101 with these headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The transport of the streams.
    pub carrier: Carrier,
    /// The version of the remote command protocol; unused for forwarded ports.
    pub version: Version,
    /// Headers of the answer.
    pub headers: HeaderMap,
}

/// A refused upgrade: answer with these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// Its headers.
    pub headers: Box<HeaderMap>,
    /// Its body, plain text.
    pub message: String,
}

impl Refusal {
    fn bad_request(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            headers: Box::default(),
            message: message.into(),
        }
    }
}

/// The query of an exec or attach request.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteCommand {
    /// Program and arguments; empty for an attach.
    pub command: Vec<String>,
    /// The streams that the client requests.
    pub streams: StreamOptions,
}

impl RemoteCommand {
    /// Parses the query of a request: `command`, repeated, and `input`, `output`, `error` and `tty`,
    /// each `1` or off. With a TTY, standard error is off.
    ///
    /// # Errors
    /// The query selects no stream.
    pub fn parse(query: &str) -> Result<Self, Refusal> {
        let mut asked = Self {
            command: Vec::new(),
            streams: StreamOptions::default(),
        };
        let streams = &mut asked.streams;
        let mut seen = StreamOptions::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            // The first value counts, as with Go's FormValue.
            let (first, flag) = match key.as_ref() {
                "command" => {
                    asked.command.push(value.into_owned());
                    continue;
                }
                "input" => (&mut seen.stdin, &mut streams.stdin),
                "output" => (&mut seen.stdout, &mut streams.stdout),
                "error" => (&mut seen.stderr, &mut streams.stderr),
                "tty" => (&mut seen.tty, &mut streams.tty),
                _ => continue,
            };
            if !std::mem::replace(first, true) {
                *flag = value == "1";
            }
        }
        streams.stderr &= !streams.tty;
        if !streams.stdin && !streams.stdout && !streams.stderr {
            let words = "you must specify at least 1 of stdin, stdout, stderr";
            return Err(Refusal::bad_request(words));
        }
        Ok(asked)
    }

    /// Chooses the protocol of an exec or attach.
    ///
    /// # Errors
    /// The request asks for no upgrade, or only for unsupported ones.
    pub fn negotiate(headers: &HeaderMap) -> Result<Negotiated, Refusal> {
        if is_websocket(headers) {
            return websocket(headers, |name| {
                Some(match name {
                    "v5.channel.k8s.io" => (Carrier::WebSocket(Codec::Binary), Version::V5),
                    "v4.channel.k8s.io" => (Carrier::WebSocket(Codec::Binary), Version::V4),
                    "v4.base64.channel.k8s.io" => (Carrier::WebSocket(Codec::Base64), Version::V4),
                    // Resizing was supported from the beginning.
                    "channel.k8s.io" | "" => (Carrier::WebSocket(Codec::Binary), Version::V3),
                    "base64.channel.k8s.io" => (Carrier::WebSocket(Codec::Base64), Version::V3),
                    _ => return None,
                })
            });
        }
        let (name, answer) = spdy(
            headers,
            &[
                "v4.channel.k8s.io",
                "v3.channel.k8s.io",
                "v2.channel.k8s.io",
                "channel.k8s.io",
            ],
        )?;
        Ok(Negotiated {
            carrier: Carrier::Spdy,
            version: match name {
                "v4.channel.k8s.io" => Version::V4,
                "v3.channel.k8s.io" => Version::V3,
                _ => Version::V1,
            },
            headers: answer,
        })
    }
}

impl std::fmt::Debug for RemoteCommand {
    /// Without the arguments, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteCommand")
            .field("program", &self.command.first())
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

/// A port-forward request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortForward {
    /// The accepted upgrade.
    pub negotiated: Negotiated,
    /// The ports of the query, each with its pair of channels; empty if the client names a port for
    /// each connection that it opens.
    pub ports: Vec<u16>,
}

/// Most ports of one WebSocket: two channels each, and a channel is one byte.
const PORTS_MAX: usize = 128;

impl PortForward {
    /// Chooses the protocol of a port-forward.
    ///
    /// # Errors
    /// The request asks for no upgrade, only for unsupported ones, or lacks a required port.
    pub fn negotiate(headers: &HeaderMap, query: &str) -> Result<Self, Refusal> {
        if !is_websocket(headers) {
            let (_, answer) = spdy(headers, &["portforward.k8s.io"])?;
            return Ok(Self {
                negotiated: Negotiated {
                    carrier: Carrier::Spdy,
                    version: Version::V1,
                    headers: answer,
                },
                ports: Vec::new(),
            });
        }
        let negotiated = websocket(headers, |name| {
            Some(match name {
                "SPDY/3.1+portforward.k8s.io" => (Carrier::Tunnel, Version::V1),
                "v4.channel.k8s.io" | "" => (Carrier::WebSocket(Codec::Binary), Version::V4),
                "v4.base64.channel.k8s.io" => (Carrier::WebSocket(Codec::Base64), Version::V4),
                _ => return None,
            })
        })?;
        let ports = match negotiated.carrier {
            Carrier::Tunnel | Carrier::Spdy => Vec::new(),
            Carrier::WebSocket(_) => ports(query)?,
        };
        Ok(Self { negotiated, ports })
    }
}

/// Ports in a query: `port`, repeated or with commas.
fn ports(query: &str) -> Result<Vec<u16>, Refusal> {
    let mut found = Vec::new();
    let mut named = false;
    for (_, value) in form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "port") {
        named = true;
        if value.is_empty() {
            let words = "query parameter \"port\" cannot be empty";
            return Err(Refusal::bad_request(words));
        }
        for port in value.split(',') {
            let wrong = || Refusal::bad_request(format!("unable to parse {value:?} as a port"));
            let port: u16 = port.parse().map_err(|_| wrong())?;
            if port == 0 {
                let words = format!("port {value:?} must be > 0");
                return Err(Refusal::bad_request(words));
            }
            found.push(port);
        }
    }
    if !named {
        let words = "query parameter \"port\" is required";
        return Err(Refusal::bad_request(words));
    }
    if found.len() > PORTS_MAX {
        let words = format!("at most {PORTS_MAX} ports can be forwarded at once");
        return Err(Refusal::bad_request(words));
    }
    Ok(found)
}

fn has(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    let mut values = headers.get_all(name).iter();
    values.any(|value| {
        value
            .to_str()
            .is_ok_and(|value| value.to_ascii_lowercase().contains(&wanted))
    })
}

/// Whether a request asks to become a WebSocket.
#[must_use]
pub fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
        && has(headers, &CONNECTION, "upgrade")
}

/// The protocols that a WebSocket client offers, in its order, at most 64.
#[must_use]
pub fn websocket_protocols(headers: &HeaderMap) -> Vec<&str> {
    listed(headers, &SEC_WEBSOCKET_PROTOCOL)
}

/// The names in all headers of this name, which may hold several with commas between.
fn listed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let values = headers.get_all(name).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .take(OFFERED_MAX)
        .collect()
}

fn spdy(
    headers: &HeaderMap,
    supported: &'static [&'static str],
) -> Result<(&'static str, HeaderMap), Refusal> {
    if !has(headers, &CONNECTION, "upgrade") {
        return Err(Refusal::bad_request("Upgrade request required"));
    }
    if !headers.contains_key(PROTOCOL_VERSION) {
        return Err(Refusal::bad_request(format!(
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
            headers.keys_len()
        )));
    }
    let offered = listed(headers, &PROTOCOL_VERSION);
    if offered.is_empty() {
        let words =
            "unable to upgrade: header X-Stream-Protocol-Version contains no valid protocols";
        return Err(Refusal::bad_request(words));
    }
    let chosen = offered
        .iter()
        .find_map(|name| supported.iter().find(|ours| *ours == name));
    let Some(chosen) = chosen else {
        let mut accepted = HeaderMap::new();
        for name in supported {
            accepted.append(ACCEPTED_VERSIONS, HeaderValue::from_static(name));
        }
        return Err(Refusal {
            status: StatusCode::FORBIDDEN,
            headers: Box::new(accepted),
            message: format!(
                "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
                offered.join(" "),
                supported.join(" ")
            ),
        });
    };
    // Upstream looks here after it has chosen.
    if !has(headers, &UPGRADE, SPDY) {
        let words = "unable to upgrade: missing upgrade headers in request";
        return Err(Refusal::bad_request(words));
    }
    let mut answer = HeaderMap::new();
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(UPGRADE, HeaderValue::from_static(SPDY));
    answer.insert(PROTOCOL_VERSION, HeaderValue::from_static(chosen));
    Ok((chosen, answer))
}

/// Computes the accept key of a WebSocket handshake: RFC 6455, section 4.2.2.
fn accept_key(key: &[u8]) -> String {
    let hash = Sha1::new()
        .chain_update(key)
        .chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    BASE64_STANDARD.encode(hash.finalize())
}

fn websocket(
    headers: &HeaderMap,
    supported: impl Fn(&str) -> Option<(Carrier, Version)>,
) -> Result<Negotiated, Refusal> {
    if !has(headers, &SEC_WEBSOCKET_VERSION, "13") {
        let mut refusal = Refusal::bad_request("missing or bad WebSocket Version");
        let ours = HeaderValue::from_static("13");
        refusal.headers.insert(SEC_WEBSOCKET_VERSION, ours);
        return Err(refusal);
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Refusal::bad_request("missing Sec-WebSocket-Key"));
    };
    let mut answer = HeaderMap::new();
    let offered = websocket_protocols(headers);
    let chosen = if offered.is_empty() {
        supported("")
    } else {
        offered.iter().find_map(|name| {
            let chosen = supported(name)?;
            answer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(name).ok()?);
            Some(chosen)
        })
    };
    let Some((carrier, version)) = chosen else {
        return Err(Refusal {
            status: StatusCode::FORBIDDEN,
            headers: Box::default(),
            message: format!(
                "requested protocol(s) are not supported: [{}]",
                offered.join(" ")
            ),
        });
    };
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(key.as_bytes())) {
        answer.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok(Negotiated {
        carrier,
        version,
        headers: answer,
    })
}

#[cfg(test)]
mod tests;
