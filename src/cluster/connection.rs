//! The way of every request: counted, bounded, reported to [`ReachTracker`], sent on the present
//! connection.
//!
//! Why our own stack of layers and not kube's: kube logs each failed request as an error of its
//! own, and holds one identity for ever. Here the identity below can be replaced; requests under
//! way end as they began, and watches end, so that they go on with the new identity.

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

/// How long the head of an answer may take, watches included: upstream's longest request takes
/// 60 s on the server, but every caller of ours gives up sooner. It ends what hangs in a TLS
/// handshake or on a server that is stopped, where no caller has a deadline: a watch. A refusal has to
/// be here whole by then.
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
/// Idle connections kept: a burst of writes at the client's own limit, answered in some hundred
/// ms, takes about as many; what is idle for long is closed anyway.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// One identity's way to the API server.
pub(super) type Wire = BoxCloneSyncService<Request<Body>, Response<AnswerBody>, BoxError>;

/// Makes the way to the API server for an identity, with what its credential plug-in made, if it has one.
/// Blocks on the disk.
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

/// The way while there is no identity: every call fails with what there is to say about it.
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
    /// Woken when the credentials may be stale: they were not accepted, or no connection came
    /// about.
    pub doubts: Notify,
    /// Whether the server refused the credentials since the last look at them.
    pub refused: AtomicBool,
    /// Woken when new credentials are in use.
    pub renewed: Notify,
    /// Whether the server answers again after a silence. A route can die without a word to either
    /// side: who waits on a connection from before would wait for minutes.
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

    /// Every request from now on takes this way to the API server of that address, and watches on
    /// the old one end.
    pub(super) fn replace(&self, wire: Wire, server: &str) {
        let mut present = self.present.write();
        present.replaced.cancel();
        *present = Present {
            wire,
            server: server.into(),
            replaced: CancellationToken::new(),
        };
    }

    /// Every request from now on takes this way, with newer credentials for the same server. Watches on
    /// the old one go on.
    pub(super) fn renew(&self, wire: Wire) {
        self.present.write().wire = wire;
    }

    /// The present way leads to that address.
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

    /// Takes note that no answer came, or no whole one. Nothing was heard since then.
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

/// Counts a request once it is over, also one that its caller gave up.
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
