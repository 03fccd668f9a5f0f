//! Counts and times every Engine call, and logs it at debug.
//!
//! The counters are plain atomics: the metrics endpoint and the benches read them as a snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ImageInspect,
    SystemInfo,
};
use bytes::Bytes;
use futures::stream::BoxStream;

use super::engine::{Engine, EngineVersion, LogFrames, PullProgress, RegistryAuth, Result};
use super::operation::Operation;
use crate::api::Timestamp;
use crate::runtime::LogOptions;

/// Upper bounds of the latency buckets, in seconds: from an inspect of a millisecond to a stop
/// that waits for its grace.
pub const LATENCY_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

/// Counters of one operation.
#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    errors: AtomicU64,
    nanoseconds: AtomicU64,
    /// Calls per bucket, each counted once; the last one takes what is slower than all bounds.
    buckets: [AtomicU64; LATENCY_BUCKETS.len() + 1],
}

/// What was counted, per operation. Written by [`InstrumentedEngine`] alone.
#[derive(Debug, Default)]
pub struct EngineMetrics {
    operations: [Counters; Operation::ALL.len()],
}

/// What was counted of one operation at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationSnapshot {
    /// The operation.
    pub operation: Operation,
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Time they took together. For streams: until the stream was open.
    pub total: Duration,
    /// Calls that took at most the bound of the same place in [`LATENCY_BUCKETS`], cumulative.
    pub buckets: [u64; LATENCY_BUCKETS.len()],
}

impl EngineMetrics {
    /// All operations, those never called included.
    #[must_use]
    pub fn snapshot(&self) -> Vec<OperationSnapshot> {
        Operation::ALL.map(|o| self.operation(o)).to_vec()
    }

    /// One operation.
    #[must_use]
    pub fn operation(&self, operation: Operation) -> OperationSnapshot {
        let counters = &self.operations[operation.index()];
        let mut sum = 0;
        let buckets = std::array::from_fn(|i| {
            sum += counters.buckets[i].load(Ordering::Relaxed);
            sum
        });
        OperationSnapshot {
            operation,
            calls: counters.calls.load(Ordering::Relaxed),
            errors: counters.errors.load(Ordering::Relaxed),
            total: Duration::from_nanos(counters.nanoseconds.load(Ordering::Relaxed)),
            buckets,
        }
    }

    /// Calls of all operations together.
    #[must_use]
    pub fn total_calls(&self) -> u64 {
        let counts = self.operations.iter();
        counts.map(|c| c.calls.load(Ordering::Relaxed)).sum()
    }

    fn record(&self, operation: Operation, took: Duration, failed: bool) {
        let counters = &self.operations[operation.index()];
        let seconds = took.as_secs_f64();
        let bucket = LATENCY_BUCKETS.partition_point(|bound| *bound < seconds);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        counters.calls.fetch_add(1, Ordering::Relaxed);
        counters
            .errors
            .fetch_add(u64::from(failed), Ordering::Relaxed);
        counters
            .nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        counters.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }
}

/// An Engine whose calls are counted and timed.
#[derive(Debug)]
pub struct InstrumentedEngine<E> {
    inner: E,
    metrics: Arc<EngineMetrics>,
}

impl<E: Engine> InstrumentedEngine<E> {
    /// Counts the calls to `inner` from now on.
    pub fn new(inner: E) -> Self {
        Self {
            inner,
            metrics: Arc::default(),
        }
    }

    /// The counters, to keep.
    #[must_use]
    pub fn metrics(&self) -> Arc<EngineMetrics> {
        self.metrics.clone()
    }

    /// Counts one call. Its target is an id or a name, never a body.
    async fn observe<T>(
        &self,
        operation: Operation,
        target: &str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let began = Instant::now();
        let result = call.await;
        let took = began.elapsed();
        self.metrics.record(operation, took, result.is_err());
        let error = result.as_ref().err().map(tracing::field::display);
        let milliseconds = took.as_secs_f64() * 1e3;
        tracing::debug!(%operation, target_id = target, milliseconds, error, "engine call");
        result
    }
}

#[async_trait]
impl<E: Engine> Engine for InstrumentedEngine<E> {
    fn endpoint(&self) -> &str {
        self.inner.endpoint()
    }

    async fn version(&self) -> Result<EngineVersion> {
        self.observe(Operation::Version, "", self.inner.version())
            .await
    }

    async fn info(&self) -> Result<SystemInfo> {
        self.observe(Operation::Info, "", self.inner.info()).await
    }

    async fn list_containers(&self, owner: &str) -> Result<Vec<ContainerSummary>> {
        let call = self.inner.list_containers(owner);
        self.observe(Operation::ListContainers, "", call).await
    }

    async fn inspect_container(&self, id: &str) -> Result<ContainerInspectResponse> {
        let call = self.inner.inspect_container(id);
        self.observe(Operation::InspectContainer, id, call).await
    }

    async fn create_container(&self, name: &str, body: ContainerCreateBody) -> Result<String> {
        let call = self.inner.create_container(name, body);
        self.observe(Operation::CreateContainer, name, call).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let call = self.inner.start_container(id);
        self.observe(Operation::StartContainer, id, call).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let call = self.inner.stop_container(id, grace);
        self.observe(Operation::StopContainer, id, call).await
    }

    async fn remove_container(&self, id: &str, force: bool) -> Result<()> {
        let call = self.inner.remove_container(id, force);
        self.observe(Operation::RemoveContainer, id, call).await
    }

    async fn inspect_image(&self, name: &str) -> Result<ImageInspect> {
        let call = self.inner.inspect_image(name);
        self.observe(Operation::InspectImage, name, call).await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<BoxStream<'static, Result<PullProgress>>> {
        let call = self.inner.pull_image(image, auth);
        self.observe(Operation::PullImage, image, call).await
    }

    async fn load_image(&self, tar: Bytes) -> Result<()> {
        let call = self.inner.load_image(tar);
        self.observe(Operation::LoadImage, "", call).await
    }

    async fn events(
        &self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, Result<EventMessage>>> {
        let call = self.inner.events(owner, since);
        self.observe(Operation::Events, "", call).await
    }

    async fn image_changes(&self) -> Result<BoxStream<'static, Result<()>>> {
        self.observe(Operation::Events, "", self.inner.image_changes())
            .await
    }

    async fn logs(&self, id: &str, options: &LogOptions, tty: bool) -> Result<LogFrames> {
        let call = self.inner.logs(id, options, tty);
        self.observe(Operation::Logs, id, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::docker::fake_engine::{FakeEngine, FakeImage};

    #[tokio::test]
    async fn calls_and_errors_are_counted_per_operation() {
        let fake = FakeEngine::new();
        fake.add_image("a:1", FakeImage::default());
        let engine = InstrumentedEngine::new(fake);
        let metrics = engine.metrics();
        engine.inspect_image("a:1").await.unwrap();
        engine.inspect_image("b:1").await.unwrap_err();
        engine.version().await.unwrap();
        let images = metrics.operation(Operation::InspectImage);
        assert_eq!((images.calls, images.errors), (2, 1));
        assert_eq!(metrics.operation(Operation::CreateContainer).calls, 0);
        assert_eq!(metrics.total_calls(), 3);
        assert_eq!(metrics.snapshot().len(), Operation::ALL.len());
    }

    #[test]
    fn buckets_are_cumulative_and_bounds_belong_to_them() {
        let metrics = EngineMetrics::default();
        for milliseconds in [1, 3, 700, 60_000] {
            metrics.record(Operation::Info, Duration::from_millis(milliseconds), false);
        }
        let info = metrics.operation(Operation::Info);
        assert_eq!(info.buckets, [1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3]);
        assert_eq!(info.calls, 4);
        assert_eq!(info.total, Duration::from_millis(60_704));
    }
}
