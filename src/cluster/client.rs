//! The only client of the API server, shared by all callers.

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

/// Deadline of a call: upstream's API server usually answers in milliseconds, and ends a stuck call
/// after 34 s or more; after ten seconds the caller retries instead.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of a write that admission may delay: it may call webhooks, whose own timeout is at most 30
/// s and 10 s by default; one that takes longer counts as a refusal.
pub const ADMISSION_DEADLINE: Duration = Duration::from_secs(15);

/// The client of the API server. Cheap to clone: clones share connections, rate limit and reach.
///
/// Reads use [`read`](Self::read), writes [`write`](Self::write); the Node's status and Lease use
/// [`heartbeat`](Self::heartbeat), which bypasses the rate limit. The [`kube::Client`] never changes,
/// even if certificates are replaced: only watches are interrupted then, and continue with the new
/// ones.
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

    /// Returns a client over any HTTP service; tests inject faults there.
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

    /// Address of the API server that requests are sent to, for users; empty for a client over a
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

    /// Makes a read call. It ends within `deadline`.
    ///
    /// # Errors
    /// The API server's error; [`ApiError::Away`] after the deadline.
    pub async fn read<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.bounded(deadline, call).await
    }

    /// Makes a write call, subject to the rate limit: all writes except heartbeats share one, 50 per
    /// second after a burst of 100. The deadline starts after the wait for the limit.
    ///
    /// # Errors
    /// The API server's error; [`ApiError::Away`] after the deadline.
    pub async fn write<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.write_within(&self.limit, deadline, call).await
    }

    /// As [`write`](Self::write), with a separate rate limit.
    ///
    /// # Errors
    /// The API server's error; [`ApiError::Away`] after the deadline.
    pub(super) async fn write_within<T>(
        &self,
        limit: &WriteLimit,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        limit.turn().await;
        self.bounded(deadline, call).await
    }

    /// Makes a heartbeat call. It bypasses the rate limit, so that no burst of other writes makes the
    /// Node look dead; callers must use it seldom.
    ///
    /// # Errors
    /// The API server's error; [`ApiError::Away`] after the deadline.
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
