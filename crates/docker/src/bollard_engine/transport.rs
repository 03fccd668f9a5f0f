//! HTTP connections to the Engine, one per request, opened on demand.
//!
//! bollard's own transports can't be created while the socket is missing and send paths without an API
//! version, so that the Engine answers in its newest version. This one replaces them below bollard's
//! calls, and also serves the streams that bollard would decode wrongly.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bollard::errors::Error;
use bytes::Bytes;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use mirrorlet_host::socket::keep_alive;

/// How long opening a connection may take. A local socket answers at once or not at all; over
/// TCP this is three lost SYN packets.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A TCP connection that is silent this long is probed, then every [`KEEPALIVE_INTERVAL`], and closed
/// after [`KEEPALIVE_PROBES`], like one to an API server: a stream of events does not notice by itself
/// that the Engine's machine or route is gone.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// See [`KEEPALIVE`].
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// See [`KEEPALIVE`].
const KEEPALIVE_PROBES: u32 = 3;

/// Bytes of an answer that are read before they are consumed, and the maximum size of its headers.
/// hyper's default is 400 KiB, which a log would hold for each client that doesn't read it.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// The address of an Engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`, without encryption.
    Tcp(String),
}

impl Address {
    /// Parses `unix://PATH`, `tcp://HOST:PORT`, `http://HOST:PORT` or an absolute path.
    pub(super) fn parse(endpoint: &str) -> Result<Self, String> {
        if let Some(path) = endpoint
            .strip_prefix("unix://")
            .or(endpoint.starts_with('/').then_some(endpoint))
        {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err("the path of a unix:// address must be absolute".to_owned())
            };
        }
        let rest = endpoint
            .strip_prefix("tcp://")
            .or_else(|| endpoint.strip_prefix("http://"))
            .ok_or("expected unix://PATH, tcp://HOST:PORT or http://HOST:PORT")?;
        let authority: http::uri::Authority = rest
            .trim_end_matches('/')
            .parse()
            .map_err(|e| format!("{e}"))?;
        if authority.as_str().contains('@') {
            return Err("credentials in the address are not supported".to_owned());
        }
        let port = authority.port_u16().unwrap_or(DEFAULT_TCP_PORT);
        Ok(Self::Tcp(format!("{}:{port}", authority.host())))
    }
}

/// The Engine's registered port for unencrypted TCP.
const DEFAULT_TCP_PORT: u16 = 2375;

/// An API version as two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ApiVersion {
    pub(super) major: u16,
    pub(super) minor: u16,
}

impl ApiVersion {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }
}

mirrorlet_core::display!(ApiVersion, "{}.{}", major, minor);

/// Opens connections, and caches the negotiated API version.
#[derive(Debug)]
pub(super) struct Transport {
    address: Address,
    /// The agreed version as `major << 16 | minor`; 0 before the first agreement.
    version: AtomicU32,
    /// Whether the version must be negotiated (again) before the next call.
    stale: AtomicBool,
}

impl Transport {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            version: AtomicU32::new(0),
            stale: AtomicBool::new(true),
        }
    }

    /// The negotiated version; none if it must be negotiated first.
    pub(super) fn agreed(&self) -> Option<ApiVersion> {
        (!self.stale.load(Ordering::Acquire))
            .then(|| self.last_agreed())
            .flatten()
    }

    fn last_agreed(&self) -> Option<ApiVersion> {
        let [a, b, c, d] = self.version.load(Ordering::Acquire).to_be_bytes();
        let (major, minor) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        (major != 0).then_some(ApiVersion { major, minor })
    }

    pub(super) fn agree(&self, version: ApiVersion) {
        let packed = u32::from(version.major) << 16 | u32::from(version.minor);
        self.version.store(packed, Ordering::Release);
        self.stale.store(false, Ordering::Release);
    }

    /// Forgets the version, because the Engine went away: another one may answer next time.
    pub(super) fn disagree(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Sends a request on its own connection, which is closed after the response's body, or when that
    /// is dropped.
    pub(super) async fn send<B>(&self, mut request: Request<B>) -> Result<Response<Incoming>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        self.exchange(request).await
    }

    /// Sends a request that hijacks the connection. A 101 answer provides it (`hyper::upgrade::on`);
    /// any other answer is like that of [`send`](Self::send).
    pub(super) async fn hijack<B>(
        &self,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("tcp"));
        self.exchange(request).await
    }

    async fn exchange<B>(&self, mut request: Request<B>) -> Result<Response<Incoming>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        *request.uri_mut() = self.versioned(request.uri())?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("docker"));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
        match &self.address {
            Address::Unix(path) => {
                let stream = timeout(CONNECT_DEADLINE, UnixStream::connect(path));
                exchange(stream.await.map_err(late)??, request).await
            }
            Address::Tcp(authority) => {
                let stream = timeout(CONNECT_DEADLINE, connect(authority));
                exchange(stream.await.map_err(late)??, request).await
            }
        }
    }

    /// Path and query with the agreed version in front; `/version` itself goes without.
    fn versioned(&self, uri: &Uri) -> Result<Uri, Error> {
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        match self.last_agreed() {
            Some(version) if path != "/version" => Ok(format!("/v{version}{path}").parse()?),
            Some(_) | None => Ok(path.parse()?),
        }
    }
}

/// Opens a connection over TCP, which ends when the other side is gone.
async fn connect(authority: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(authority).await?;
    keep_alive(&stream, KEEPALIVE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES)?;
    Ok(stream)
}

async fn exchange<S, B>(stream: S, request: Request<B>) -> Result<Response<Incoming>, Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(AHEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    // The task lives exactly as long as the connection, whose end the response's body reports.
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use http_body_util::{BodyExt, Empty};
    use rustix::net::sockopt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for (text, expected) in [
            (
                "unix:///run/d.sock",
                Ok(Address::Unix("/run/d.sock".into())),
            ),
            ("/run/d.sock", Ok(Address::Unix("/run/d.sock".into()))),
            (
                "tcp://10.0.0.1:2376",
                Ok(Address::Tcp("10.0.0.1:2376".into())),
            ),
            ("tcp://10.0.0.1", Ok(Address::Tcp("10.0.0.1:2375".into()))),
            ("http://[::1]:99/", Ok(Address::Tcp("[::1]:99".into()))),
            ("unix://d.sock", Err(())),
            ("https://x", Err(())),
            ("tcp://u:p@x", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(Address::parse(text).map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn paths_carry_the_agreed_version_and_nothing_before_it() {
        let transport = Transport::new(Address::Unix("/x".into()));
        let uri: Uri = "http://docker/containers/json?all=true".parse().unwrap();
        assert_eq!(
            transport.versioned(&uri).unwrap(),
            "/containers/json?all=true"
        );
        transport.agree(ApiVersion {
            major: 1,
            minor: 41,
        });
        assert_eq!(
            transport.versioned(&uri).unwrap(),
            "/v1.41/containers/json?all=true"
        );
        assert_eq!(
            transport
                .versioned(&"http://docker/version".parse().unwrap())
                .unwrap(),
            "/version"
        );
        assert_eq!(transport.agreed(), ApiVersion::parse("1.41"));
        transport.disagree();
        assert_eq!(transport.agreed(), None);
        assert_eq!(
            transport.versioned(&uri).unwrap(),
            "/v1.41/containers/json?all=true"
        );
    }

    #[tokio::test]
    async fn a_connection_over_tcp_is_probed_while_it_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let stream = connect(&authority).await.unwrap();
        // docker 61
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_PROBES);
    }

    /// A client that reads a log slowly.
    #[tokio::test(start_paused = true)]
    async fn little_is_read_ahead_of_whoever_takes_an_answer() {
        const PIPE_BYTES: usize = 1 << 20;
        const CHUNK_BYTES: usize = 16 << 10;
        let (near, mut far) = tokio::io::duplex(PIPE_BYTES);
        let written = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&written);
        tokio::spawn(async move {
            let asked = far.read(&mut [0; 1024]).await.unwrap();
            assert!(asked > 0);
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            far.write_all(head).await.unwrap();
            let length = format!("{CHUNK_BYTES:x}\r\n");
            let chunk = [length.as_bytes(), &[b'x'; CHUNK_BYTES], b"\r\n"].concat();
            while far.write_all(&chunk).await.is_ok() {
                counted.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            }
        });
        let request = Request::get("/logs").body(Empty::<Bytes>::new()).unwrap();
        let mut body = exchange(near, request).await.unwrap().into_body();
        let (mut taken, mut ahead) = (0, 0);
        while taken < 4 * PIPE_BYTES {
            let frame = body.frame().await.unwrap().unwrap();
            taken += frame.into_data().unwrap().len();
            // Until nothing moves any more.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let read = written.load(Ordering::Relaxed).saturating_sub(PIPE_BYTES);
            ahead = ahead.max(read.saturating_sub(taken));
        }
        // tenants S1
        assert!(ahead <= 3 * AHEAD_BYTES_MAX, "{ahead}");
    }
}
