//! The one client of the API server, shared by all that call it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

use super::connection::{Shared, Transport, Wire};
use super::error::ApiError;
use super::limit::WriteLimit;
use super::reach::{ApiReach, ReachTracker};
use crate::store::cell::Reader;
use mirrorlet_host::telemetry::Metrics;

/// Deadline of a call that nobody has to wait for: upstream's API server answers in ms, and ends
/// a call that is stuck after 34 s or more; after ten seconds a caller can try again soon enough.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of a write that admission may hold up: it may ask webhooks, whose own deadline is at
/// most 30 s and 10 s by default; one that takes longer is as good as refused.
pub const ADMISSION_DEADLINE: Duration = Duration::from_secs(15);

/// The client of the API server. Cheap to clone: clones share connections, limit and reach.
///
/// Reads go through [`read`](Self::read), writes through [`write`](Self::write); the Node's
/// status and Lease through [`heartbeat`](Self::heartbeat), which waits for nobody. The
/// [`kube::Client`] stays the same for ever, whatever becomes of certificates: only watches end
/// once when they are replaced, and go on with the new ones.
#[derive(Clone)]
pub struct ClusterClient {
    client: kube::Client,
    limit: Arc<WriteLimit>,
    pub(super) shared: Arc<Shared>,
    reach: Reader<ApiReach>,
}

impl ClusterClient {
    /// The files of our identity were replaced just now.
    pub(super) fn credentials_changed(&self) {
        self.shared.doubts.notify_one();
    }

    /// A client over any HTTP service; tests inject faults there.
    pub fn over_service<S, B>(service: S, metrics: Metrics) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self::over(boxed(service), metrics)
    }

    pub(super) fn over(wire: Wire, metrics: Metrics) -> Self {
        let (tracker, reach) = ReachTracker::new(metrics.clone());
        let shared = Shared::new(wire, tracker, metrics);
        let transport = Transport {
            shared: Arc::clone(&shared),
        };
        Self {
            client: kube::Client::new(transport, "default"),
            limit: Arc::default(),
            shared,
            reach,
        }
    }

    /// Address of the API server that requests are sent to, for people; empty for one over a
    /// service.
    pub fn server(&self) -> Arc<str> {
        self.shared.server()
    }

    /// kube's client, for typed [`kube::Api`]s and watches.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Whether the API server answers.
    pub fn reach(&self) -> Reader<ApiReach> {
        self.reach.clone()
    }

    /// Makes a call that changes nothing. It ends within `deadline`.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub async fn read<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.bounded(deadline, call).await
    }

    /// Makes a call that changes something, when its turn has come: all writes but heartbeats
    /// share one limit, 50 a second after a burst of 100. The deadline counts from its turn.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub async fn write<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.write_within(&self.limit, deadline, call).await
    }

    /// As [`write`](Self::write), under a limit of its own.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub(super) async fn write_within<T>(
        &self,
        limit: &WriteLimit,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        limit.turn().await;
        self.bounded(deadline, call).await
    }

    /// Makes a heartbeat call. It bypasses the rate limit, so that no burst of other writes
    /// makes the Node look dead; its caller keeps it seldom.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub async fn heartbeat<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.bounded(deadline, call).await
    }

    async fn bounded<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        if let Ok(outcome) = tokio::time::timeout(deadline, call).await {
            return outcome.map_err(ApiError::from);
        }
        let error = ApiError::deadline(deadline);
        if let ApiError::Away { cause } = &error {
            self.shared.reach.silent(began, cause);
        }
        Err(error)
    }
}

mirrorlet_core::partial_debug!(ClusterClient);

/// A service as the way to the API server.
pub(super) fn boxed<S, B>(service: S) -> Wire
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let wire = service
        .map_response(|answer: Response<B>| {
            answer.map(|body| body.map_err(Into::into).boxed_unsync())
        })
        .map_err(Into::into);
    BoxCloneSyncService::new(wire)
}
