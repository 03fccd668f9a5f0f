//! One request to the gRPC health service (`grpc.health.v1.Health/Check`).
//!
//! Its two messages have one field each, so they are written and read here; HTTP/2 is the `h2`
//! crate's.
//!
//! Upstream: `pkg/probe/grpc/grpc.go`.

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::Builder;
use http::{HeaderMap, HeaderValue, Request};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, join, split};

use super::{Client, ProbeError, drive, tls};
use mirrorlet_core::api::shortened;
use mirrorlet_core::handler::{GrpcCheck, Purpose, authority};

/// Most bytes of an answer: a whole one has seven.
const ANSWER_MAX: usize = 4096;
/// Largest headers of an answer, as HTTP/2 counts them. An HTTP probe takes as many bytes.
const HEAD_MAX: u32 = 64 * 1024;
/// Maximum number of bytes that are read from a server: its headers and trailers may have their maximum
/// size. Without this limit a server could send frames until the timeout, and most of them take more
/// memory than they have bytes.
const READ_BYTES_MAX: u64 = 128 * 1024;
/// Longest error that has words of the server in it: events and statuses repeat it.
const WORDS_BYTES_MAX: usize = 1024;
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// `OK` of gRPC's status codes.
const OK: &str = "0";
/// `UNIMPLEMENTED` of gRPC's status codes.
const UNIMPLEMENTED: &str = "12";

/// The response of a health service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It is unknown.
    Unknown,
    /// It is well.
    Serving,
    /// It isn't.
    NotServing,
    /// It does not know the service.
    ServiceUnknown,
    /// Something newer than this program.
    Other(u64),
}

impl Health {
    fn of(value: u64) -> Self {
        match value {
            0 => Self::Unknown,
            1 => Self::Serving,
            2 => Self::NotServing,
            3 => Self::ServiceUnknown,
            other => Self::Other(other),
        }
    }
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("UNKNOWN"),
            Self::Serving => f.write_str("SERVING"),
            Self::NotServing => f.write_str("NOT_SERVING"),
            Self::ServiceUnknown => f.write_str("SERVICE_UNKNOWN"),
            Self::Other(value) => write!(f, "{value}"),
        }
    }
}

impl Client {
    pub(super) async fn check(&self, check: &GrpcCheck) -> Result<Health, ProbeError> {
        let stream = self.connect(&check.host, check.port).await?;
        if check.tls {
            let stream = tls::begin(&self.tls_h2, &check.host, stream).await?;
            exchange(stream, check).await
        } else {
            exchange(stream, check).await
        }
    }
}

async fn exchange<S>(stream: S, check: &GrpcCheck) -> Result<Health, ProbeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = split(stream);
    let stream = join(reader.take(READ_BYTES_MAX), writer);
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .max_concurrent_streams(0)
        .max_header_list_size(HEAD_MAX)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(broken)?;
    let request = request(check)?;
    let message = message(&check.service)?;
    let asked = async move {
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, mut body) = sender.send_request(request, false).map_err(broken)?;
        body.send_data(message, true).map_err(broken)?;
        let response = response.await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(ProbeError::Broken(format!(
                "unexpected HTTP status code {}",
                response.status().as_u16()
            )));
        }
        // A refusal without a message has its status among the headers.
        if let Some(status) = response.headers().get("grpc-status") {
            check_status(status, response.headers())?;
        }
        let mut body = response.into_body();
        let answer = read(&mut body).await?;
        let trailers = body.trailers().await.map_err(broken)?.unwrap_or_default();
        if let Some(status) = trailers.get("grpc-status") {
            check_status(status, &trailers)?;
        }
        health(&answer)
    };
    drive(asked, connection).await
}

fn request(check: &GrpcCheck) -> Result<Request<()>, ProbeError> {
    let scheme = if check.tls { "https" } else { "http" };
    let uri = format!(
        "{scheme}://{}/grpc.health.v1.Health/Check",
        authority(&check.host, check.port)
    );
    Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", Purpose::Probe.user_agent())
        .body(())
        .map_err(|error| ProbeError::Request(error.to_string()))
}

/// `HealthCheckRequest { service }`, with its prefix.
fn message(service: &str) -> Result<Bytes, ProbeError> {
    let mut field = Vec::new();
    if !service.is_empty() {
        field.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            field.push(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
            length >>= 7;
        }
        field.push(u8::try_from(length).unwrap_or_default());
        field.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(field.len())
        .map_err(|_| ProbeError::Request("the service's name is too long".to_owned()))?;
    let mut message = vec![0];
    message.extend_from_slice(&length.to_be_bytes());
    message.append(&mut field);
    Ok(message.into())
}

async fn read(body: &mut RecvStream) -> Result<BytesMut, ProbeError> {
    let mut answer = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(broken)?;
        if answer.len() + chunk.len() > ANSWER_MAX {
            return Err(ProbeError::Broken("the response is too long".to_owned()));
        }
        answer.extend_from_slice(&chunk);
        body.flow_control()
            .release_capacity(chunk.len())
            .map_err(broken)?;
    }
    Ok(answer)
}

/// `HealthCheckResponse { status }`, with its prefix. A field that is left out has the value 0.
fn health(answer: &[u8]) -> Result<Health, ProbeError> {
    let senseless = || ProbeError::Broken("the response is not a health check response".to_owned());
    let message = answer.get(PREFIX..).ok_or_else(senseless)?;
    if answer.first() != Some(&0) {
        return Err(senseless());
    }
    let mut rest = message.iter().copied();
    let mut status = 0;
    while rest.len() > 0 {
        let tag = varint(&mut rest).ok_or_else(senseless)?;
        match (tag >> 3, tag & 7) {
            (1, 0) => status = varint(&mut rest).ok_or_else(senseless)?,
            (_, 0) => drop(varint(&mut rest).ok_or_else(senseless)?),
            (_, 2) => {
                let length = varint(&mut rest).ok_or_else(senseless)?;
                let length = usize::try_from(length).map_err(|_| senseless())?;
                if length > rest.len() {
                    return Err(senseless());
                }
                rest.by_ref().take(length).for_each(drop);
            }
            _ => return Err(senseless()),
        }
    }
    Ok(Health::of(status))
}

fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Fails unless the call itself succeeded.
fn check_status(status: &HeaderValue, headers: &HeaderMap) -> Result<(), ProbeError> {
    let status = status.to_str().unwrap_or_default();
    if status == OK {
        return Ok(());
    }
    let message = headers.get("grpc-message").and_then(|m| m.to_str().ok());
    let message = message.unwrap_or_default();
    Err(broken_by(if status == UNIMPLEMENTED {
        format!(
            "this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        )
    } else {
        format!("health rpc failed: rpc error: code = {status} desc = {message}")
    }))
}

/// An error with words of the server in it, which may be of any length.
fn broken_by(words: String) -> ProbeError {
    ProbeError::Broken(shortened(words, WORDS_BYTES_MAX))
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
fn broken(error: h2::Error) -> ProbeError {
    broken_by(format!("health rpc failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_written_and_read() {
        assert_eq!(&message("").unwrap()[..], [0, 0, 0, 0, 0]);
        assert_eq!(&message("db").unwrap()[..], *b"\0\0\0\0\x04\x0a\x02db");
        let long = message(&"x".repeat(300)).unwrap();
        assert_eq!(&long[..8], [0, 0, 0, 1, 0x2f, 0x0a, 0xac, 0x02]);
        let prefixed = |message: &[u8]| [&[0, 0, 0, 0, 9], message].concat();
        for (message, expected) in [
            (&[][..], Health::Unknown),
            (&[0x08, 1], Health::Serving),
            (&[0x08, 2], Health::NotServing),
            (&[0x08, 3], Health::ServiceUnknown),
            (&[0x08, 0x80, 1], Health::Other(128)),
            // Fields that nobody knows yet.
            (&[0x12, 2, 8, 2, 0x18, 7, 0x08, 1], Health::Serving),
        ] {
            assert_eq!(health(&prefixed(message)), Ok(expected), "{message:?}");
        }
        for broken in [
            &[][..],
            &[0, 0, 0],
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 0, 1, 0x08],
            &[0, 0, 0, 0, 1, 0x12, 0x7f],
            &[
                0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            ],
        ] {
            assert!(health(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn an_error_is_short_whatever_the_server_says() {
        let long = HeaderValue::from_str(&"x".repeat(1 << 15)).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("grpc-message", long.clone());
        for status in [&HeaderValue::from_static("5"), &long] {
            let refused = check_status(status, &headers).unwrap_err().to_string();
            // pods 56a
            assert_eq!(refused.len(), WORDS_BYTES_MAX);
            assert!(refused.starts_with("health rpc failed: rpc error: code = "));
        }
    }
}
