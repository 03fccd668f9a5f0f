//! The path of every request: counted, limited, reported to [`ReachTracker`], sent on the current
//! connection.
//!
//! We use our own stack of layers instead of kube's because kube logs each failed request as an error
//! of its own, and keeps one identity forever. Here the identity can be replaced; requests in progress
//! end as they began, and watches are interrupted, so that they continue with the new identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use super::body::{self, AnswerBody, TransportBody};
use super::error::chain;
use super::plugin::{self, Credentials};
use super::reach::ReachTracker;
use mirrorlet_host::telemetry::{ApiRequest, Metrics};

/// Deadline for the headers of an answer, including watches: upstream's longest request takes 60 s on
/// the server, but all our callers give up sooner. It ends calls that hang in a TLS handshake or on a
/// stopped server if the caller has no deadline: watches. A refusal must be complete by then.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long opening a TCP connection may take: three lost SYN packets.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A connection that is silent that long is probed, then every
/// [`KEEPALIVE_INTERVAL`], and given up after [`KEEPALIVE_RETRIES`]: a watch over a dead route is
/// known as dead within a minute, as with upstream's HTTP/2 pings.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// See [`KEEPALIVE`].
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// See [`KEEPALIVE`].
const KEEPALIVE_RETRIES: u32 = 3;
/// Maximum number of idle connections: a burst of writes at the client's own limit, answered in some
/// hundred milliseconds, takes about as many; idle ones are closed after a while anyway.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// One identity's way to the API server.
pub(super) type Wire = BoxCloneSyncService<Request<Body>, Response<AnswerBody>, BoxError>;

/// Builds the connection to the API server for an identity, with the credentials of its plug-in, if it
/// has one. Blocks on the disk.
pub(super) fn wire(config: &kube::Config, made: Option<&Credentials>) -> Result<Wire, kube::Error> {
    let config = plugin::configured(config, made);
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_DEADLINE));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let client = HyperClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client)
        .map_response(|answer: Response<hyper::body::Incoming>| {
            answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
        });
    Ok(BoxCloneSyncService::new(service))
}

/// There is no identity for the API server, for this reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unidentified(String);

/// The connection without an identity: every call fails with the current problem.
pub(super) fn no_wire(problem: impl Fn() -> String + Clone + Send + Sync + 'static) -> Wire {
    BoxCloneSyncService::new(tower::service_fn(move |_: Request<Body>| {
        std::future::ready(Err(Unidentified(problem()).into()))
    }))
}

/// A connection that can be replaced.
struct Present {
    wire: Wire,
    /// The API server's address; empty for a way that has none.
    server: Arc<str>,
    replaced: CancellationToken,
}

/// The state shared by all clones of the [`Transport`].
pub(super) struct Shared {
    present: RwLock<Present>,
    pub reach: ReachTracker,
    metrics: Metrics,
    /// Notified when the credentials may be stale: they were rejected, or no connection was
    /// established.
    pub doubts: Notify,
    /// Whether the server has rejected the credentials since they were last checked.
    pub refused: AtomicBool,
    /// Woken when new credentials are in use.
    pub renewed: Notify,
    /// Whether the server answers again after an outage. A route can fail without notifying either
    /// side: a request on an earlier connection would wait for minutes.
    ///
    /// Upstream: `cmd/kubelet/app/server.go` (`closeAllConns`, on repeated heartbeat failures).
    stalled: AtomicBool,
}

impl Shared {
    pub(super) fn new(wire: Wire, reach: ReachTracker, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            present: RwLock::new(Present {
                wire,
                server: "".into(),
                replaced: CancellationToken::new(),
            }),
            reach,
            metrics,
            doubts: Notify::new(),
            refused: AtomicBool::new(false),
            renewed: Notify::new(),
            stalled: AtomicBool::new(false),
        })
    }

    /// Sends all further requests over this connection to the API server at that address, and
    /// interrupts watches on the old one.
    pub(super) fn replace(&self, wire: Wire, server: &str) {
        let mut present = self.present.write();
        present.replaced.cancel();
        *present = Present {
            wire,
            server: server.into(),
            replaced: CancellationToken::new(),
        };
    }

    /// Sends all further requests over this connection, with newer credentials for the same server.
    /// Watches on the old one continue.
    pub(super) fn renew(&self, wire: Wire) {
        self.present.write().wire = wire;
    }

    /// Records that the current connection leads to that address.
    pub(super) fn set_server(&self, server: &str) {
        let mut present = self.present.write();
        present.server = server.into();
    }

    /// The address that requests are sent to.
    pub(super) fn server(&self) -> Arc<str> {
        let present = self.present.read();
        Arc::clone(&present.server)
    }

    /// Whether the connections should be given up; true once.
    pub(super) fn take_stalled(&self) -> bool {
        self.stalled.swap(false, Ordering::Relaxed)
    }

    fn present(&self) -> (Wire, CancellationToken) {
        let present = self.present.read();
        (present.wire.clone(), present.replaced.clone())
    }

    /// Takes note of an answer with that code, and what it counts as.
    fn heard(&self, sent: StatusCode, counts: StatusCode, began: Instant) {
        match counts.as_u16() {
            // A proxy or a server in trouble answers, but it can't serve.
            502..=504 => self.reach.silent(began, &format!("HTTP {sent}")),
            401 => {
                self.refused.store(true, Ordering::Relaxed);
                self.doubts.notify_one();
                self.after_silence(self.reach.rejected(began));
            }
            _ => self.after_silence(self.reach.answered()),
        }
    }

    /// Records that there was no answer, or no complete one. Nothing was received since then.
    pub(super) fn lost(&self, since: Instant, cause: &str) {
        self.reach.silent(since, cause);
        self.doubts.notify_one();
    }

    fn after_silence(&self, has_ended: bool) {
        if has_ended {
            self.stalled.store(true, Ordering::Relaxed);
            self.doubts.notify_one();
        }
    }
}

/// The service below [`kube::Client`].
#[derive(Clone)]
pub(super) struct Transport {
    pub shared: Arc<Shared>,
}

impl Service<Request<Body>> for Transport {
    type Response = Response<TransportBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        const AGENT: &str = concat!("mirrorlet/", env!("CARGO_PKG_VERSION"));
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
        let what = ApiRequest::of(
            request.method().as_str(),
            request.uri().path(),
            request.uri().query().unwrap_or_default(),
        );
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (wire, replaced) = shared.present();
            let began = Instant::now();
            let mut counted = Counted {
                metrics: &shared.metrics,
                what,
                code: None,
            };
            let failed = |since: Instant, cause: String| -> BoxError {
                shared.lost(since, &cause);
                cause.into()
            };
            let deadline = began + HEAD_DEADLINE;
            let answer = match tokio::time::timeout_at(deadline, wire.oneshot(request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) if error.is::<Unidentified>() => {
                    shared.reach.unidentified(&error.to_string());
                    return Err(error);
                }
                Ok(Err(error)) => return Err(failed(began, chain(&*error))),
                Err(_) => {
                    let cause = format!("no answer within {} s", HEAD_DEADLINE.as_secs());
                    return Err(failed(began, cause));
                }
            };
            let (mut head, body) = answer.into_parts();
            let sent = head.status;
            counted.code = Some(sent.as_u16());
            let heard_at = Instant::now();
            let lost = Box::new({
                let shared = Arc::clone(&shared);
                move |since: Instant, cause: &str| shared.lost(since, cause)
            });
            let body = if sent.is_client_error() || sent.is_server_error() {
                let whole = body::refusal(sent, body);
                let (counts, whole) = match tokio::time::timeout_at(deadline, whole).await {
                    Ok(Ok(refusal)) => refusal,
                    Ok(Err(error)) => return Err(failed(heard_at, chain(&*error))),
                    Err(_) => return Err(failed(heard_at, body::UNFINISHED.to_owned())),
                };
                head.status = counts;
                TransportBody::bounded(whole, lost)
            } else if what.is_watch() {
                TransportBody::watch(body, began, replaced)
            } else {
                TransportBody::bounded(body, lost)
            };
            shared.heard(sent, head.status, began);
            Ok(Response::from_parts(head, body))
        })
    }
}

/// Counts a request once it has ended, even if its caller gave up.
struct Counted<'a> {
    metrics: &'a Metrics,
    what: ApiRequest,
    code: Option<u16>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.api_request(self.what, self.code);
    }
}
