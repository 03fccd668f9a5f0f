//! Counts and times every Engine call in the agent's metrics, and logs it at debug.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ImageInspect,
    ImageSummary, SystemInfo,
};
use bytes::Bytes;
use futures::stream::BoxStream;

use super::engine::{
    Engine, EngineTar, EngineVersion, ExecState, HostSide, LogFrames, PullProgress, RegistryAuth,
    Result, SharedEngine,
};
use super::operation::Operation;
use mirrorlet_core::api::Timestamp;
use mirrorlet_host::telemetry::{Metrics, calls};
use mirrorlet_runtime::copy::{PathStat, TarInput};
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{ExecOptions, LogOptions, StreamOptions, TerminalSize};

/// Called when an answer is late: makes somebody ask whether the Engine answers at all. Must not
/// wait.
pub type Doubt = Arc<dyn Fn() + Send + Sync>;

/// An Engine whose calls are counted and timed. For streams the time is that until it was open.
pub struct InstrumentedEngine {
    inner: SharedEngine,
    metrics: Metrics,
    doubt: Option<Doubt>,
}

/// How long a call may take before it is asked whether the Engine answers at all. Honest calls
/// that take longer (pulls, stops) cost a question each time.
const DOUBT_AFTER: Duration = Duration::from_secs(5);

impl InstrumentedEngine {
    /// Counts the calls to `inner` from now on.
    #[must_use]
    pub fn new(inner: SharedEngine, metrics: Metrics) -> Self {
        Self {
            inner,
            metrics,
            doubt: None,
        }
    }

    /// The same, to hand around.
    #[must_use]
    pub fn shared(inner: SharedEngine, metrics: Metrics) -> SharedEngine {
        Arc::new(Self::new(inner, metrics))
    }

    /// As [`shared`](Self::shared); a call that waits long for its answer calls `doubt`, again and
    /// again until it has one.
    #[must_use]
    pub fn doubting(inner: SharedEngine, metrics: Metrics, doubt: Doubt) -> SharedEngine {
        Arc::new(Self {
            inner,
            metrics,
            doubt: Some(doubt),
        })
    }

    /// Waits for the answer to a call, with doubts.
    async fn answer<T>(&self, operation: Operation, call: impl Future<Output = T> + Send) -> T {
        let Some(doubt) = self
            .doubt
            .as_ref()
            .filter(|_| operation != Operation::Version)
        else {
            return call.await;
        };
        let mut call = std::pin::pin!(call);
        loop {
            match tokio::time::timeout(DOUBT_AFTER, &mut call).await {
                Ok(answer) => return answer,
                Err(_) => doubt(),
            }
        }
    }

    /// Counts one call. Its target is an id or a name, never a body.
    async fn observe<T>(
        &self,
        operation: Operation,
        target: &str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let began = Instant::now();
        let result = self.answer(operation, call).await;
        let took = began.elapsed();
        self.metrics
            .engine_call(operation.as_str(), took, result.is_ok());
        calls::note(operation.as_str(), took, result.is_ok());
        let error = result.as_ref().err().map(tracing::field::display);
        let milliseconds = took.as_secs_f64() * 1e3;
        tracing::debug!(%operation, target_id = target, milliseconds, error, "engine call");
        result
    }
}

#[async_trait]
impl Engine for InstrumentedEngine {
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

    async fn list_publishers(&self, port: u16) -> Result<Vec<ContainerSummary>> {
        let call = self.inner.list_publishers(port);
        self.observe(Operation::ListContainers, "", call).await
    }

    async fn network_driver(&self, name: &str) -> Result<String> {
        let call = self.inner.network_driver(name);
        self.observe(Operation::InspectNetwork, name, call).await
    }

    async fn network_host_side(&self, name: &str) -> Result<HostSide> {
        let call = self.inner.network_host_side(name);
        self.observe(Operation::InspectNetwork, name, call).await
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

    async fn create_exec(&self, id: &str, options: &ExecOptions) -> Result<String> {
        let call = self.inner.create_exec(id, options);
        self.observe(Operation::CreateExec, id, call).await
    }

    async fn start_exec(&self, exec: &str, tty: bool) -> Result<DuplexStream> {
        let call = self.inner.start_exec(exec, tty);
        self.observe(Operation::StartExec, exec, call).await
    }

    async fn inspect_exec(&self, exec: &str) -> Result<ExecState> {
        let call = self.inner.inspect_exec(exec);
        self.observe(Operation::InspectExec, exec, call).await
    }

    async fn resize_exec(&self, exec: &str, size: TerminalSize) -> Result<()> {
        let call = self.inner.resize_exec(exec, size);
        self.observe(Operation::ResizeExec, exec, call).await
    }

    async fn attach_container(&self, id: &str, streams: StreamOptions) -> Result<DuplexStream> {
        let call = self.inner.attach_container(id, streams);
        self.observe(Operation::AttachContainer, id, call).await
    }

    async fn resize_container(&self, id: &str, size: TerminalSize) -> Result<()> {
        let call = self.inner.resize_container(id, size);
        self.observe(Operation::ResizeContainer, id, call).await
    }

    async fn stat_path(&self, id: &str, path: &str) -> Result<PathStat> {
        let call = self.inner.stat_path(id, path);
        self.observe(Operation::StatPath, id, call).await
    }

    async fn download(&self, id: &str, path: &str) -> Result<EngineTar> {
        let call = self.inner.download(id, path);
        self.observe(Operation::Download, id, call).await
    }

    async fn upload(&self, id: &str, dir: &str, tar: TarInput) -> Result<()> {
        let call = self.inner.upload(id, dir, tar);
        self.observe(Operation::Upload, id, call).await
    }

    async fn inspect_image(&self, name: &str) -> Result<ImageInspect> {
        let call = self.inner.inspect_image(name);
        self.observe(Operation::InspectImage, name, call).await
    }

    async fn list_images(&self, all: bool) -> Result<Vec<ImageSummary>> {
        let call = self.inner.list_images(all);
        self.observe(Operation::ListImages, "", call).await
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>> {
        self.observe(Operation::ImagesInUse, "", self.inner.images_in_use())
            .await
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        let call = self.inner.remove_image(name);
        self.observe(Operation::RemoveImage, name, call).await
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
    use crate::fake_engine::{FakeEngine, FakeImage};

    #[tokio::test]
    async fn calls_and_errors_are_counted_per_operation() {
        let fake = FakeEngine::new();
        fake.add_image("a:1", FakeImage::default());
        let metrics = Metrics::new();
        let engine = InstrumentedEngine::shared(Arc::new(fake), metrics.clone());
        engine.inspect_image("a:1").await.unwrap();
        engine.inspect_image("b:1").await.unwrap_err();
        engine.version().await.unwrap();
        let calls = |operation: Operation| metrics.engine_calls(operation.as_str());
        assert_eq!(calls(Operation::InspectImage), 2);
        assert_eq!(calls(Operation::Version), 1);
        assert_eq!(calls(Operation::CreateContainer), 0);
        assert!(
            metrics
                .encode()
                .contains("mirrorlet_engine_operation_errors_total{operation=\"inspect_image\"} 1")
        );
    }
}
