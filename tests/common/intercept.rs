//! An Engine between the agent and the real one, where a test decides what becomes of each call.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ImageInspect,
    SystemInfo, Volume, VolumeCreateRequest,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use mirrorlet_core::api::Timestamp;
use mirrorlet_docker::engine::{
    Engine, EngineError, EngineTar, EngineVersion, ExecState, HostSide, LogFrames, PullProgress,
    RegistryAuth, Result,
};
use mirrorlet_docker::{BollardEngine, CallMeter, Operation};
use mirrorlet_runtime::copy::{PathStat, TarInput};
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{ExecOptions, LogOptions, StreamOptions, TerminalSize};
use tokio::task::JoinHandle;

/// A call the agent makes.
#[derive(Debug, Clone)]
pub struct Call {
    pub operation: Operation,
    /// Id or name of what it is about; empty when it is about nothing in particular.
    pub target: String,
    /// Its number, from 1.
    pub number: usize,
}

impl Call {
    /// Whether it changes something in the Engine.
    pub fn changes(&self) -> bool {
        matches!(
            self.operation,
            Operation::CreateContainer
                | Operation::StartContainer
                | Operation::StopContainer
                | Operation::RemoveContainer
                | Operation::CreateExec
                | Operation::StartExec
                | Operation::Upload
                | Operation::PullImage
                | Operation::LoadImage
                | Operation::RemoveImage
                | Operation::CreateVolume
                | Operation::RemoveVolume
        )
    }
}

/// The fate of a call that is about to be made.
pub enum Before {
    /// It is made.
    Proceed,
    /// It is not made, and fails.
    Fail(EngineError),
    /// It is not made, and never answers.
    Hang,
    /// It never answers, yet is made, after that time, by nobody who waits for it.
    Orphan(Duration),
}

/// The fate of the answer of a call that was made.
pub enum After {
    /// It arrives.
    Pass,
    /// A failure arrives in its place.
    Fail(EngineError),
    /// It never arrives.
    Hang,
}

/// A test's say in every call. Both methods may take their time.
#[async_trait]
pub trait Script: Send + Sync + 'static {
    async fn before(&self, _call: &Call) -> Before {
        Before::Proceed
    }

    async fn after(&self, _call: &Call, _error: Option<&EngineError>) -> After {
        After::Pass
    }

    /// Changes an event stream.
    fn events(
        &self,
        stream: BoxStream<'static, Result<EventMessage>>,
    ) -> BoxStream<'static, Result<EventMessage>> {
        stream
    }
}

/// The real Engine with a test in between.
pub struct ScriptedEngine<S> {
    inner: Arc<BollardEngine>,
    pub script: S,
    count: std::sync::atomic::AtomicUsize,
    orphans: Mutex<Vec<JoinHandle<()>>>,
    meter: CallMeter,
}

impl<S: Script> ScriptedEngine<S> {
    pub fn new(docker: &str, script: S) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(BollardEngine::connect(docker).unwrap()),
            script,
            count: std::sync::atomic::AtomicUsize::new(0),
            orphans: Mutex::default(),
            meter: CallMeter::default(),
        })
    }

    /// Waits until every orphaned call has been made.
    pub async fn orphans_made(&self) {
        let orphans = std::mem::take(&mut *self.orphans.lock().unwrap());
        for orphan in orphans {
            orphan.await.unwrap();
        }
    }

    async fn pass<T: Send + 'static>(
        &self,
        operation: Operation,
        target: &str,
        real: BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let passed = self.scripted(operation, target, real);
        self.meter.call(operation, target, passed).await
    }

    async fn scripted<T: Send + 'static>(
        &self,
        operation: Operation,
        target: &str,
        real: BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let call = Call {
            operation,
            target: target.to_owned(),
            number: 1 + self.count.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
        };
        match self.script.before(&call).await {
            Before::Proceed => {}
            Before::Fail(error) => return Err(error),
            Before::Hang => return std::future::pending().await,
            Before::Orphan(delay) => {
                let orphan = tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = real.await;
                });
                self.orphans.lock().unwrap().push(orphan);
                return std::future::pending().await;
            }
        }
        let answer = real.await;
        match self.script.after(&call, answer.as_ref().err()).await {
            After::Pass => answer,
            After::Fail(error) => Err(error),
            After::Hang => std::future::pending().await,
        }
    }
}

/// The call as a future that borrows nothing.
macro_rules! owned {
    ($self:ident, |$engine:ident| $call:expr) => {{
        let $engine = Arc::clone(&$self.inner);
        Box::pin(async move { $call.await })
    }};
}

#[async_trait]
impl<S: Script> Engine for ScriptedEngine<S> {
    fn endpoint(&self) -> &str {
        self.inner.endpoint()
    }

    fn meter(&self) -> &CallMeter {
        &self.meter
    }

    async fn version(&self) -> Result<EngineVersion> {
        let real = owned!(self, |engine| engine.version());
        self.pass(Operation::Version, "", real).await
    }

    async fn info(&self) -> Result<SystemInfo> {
        let real = owned!(self, |engine| engine.info());
        self.pass(Operation::Info, "", real).await
    }

    async fn list_containers(&self, owner: &str) -> Result<Vec<ContainerSummary>> {
        let owner = owner.to_owned();
        let real = owned!(self, |engine| engine.list_containers(&owner));
        self.pass(Operation::ListContainers, "", real).await
    }

    async fn list_publishers(&self, port: u16) -> Result<Vec<ContainerSummary>> {
        let real = owned!(self, |engine| engine.list_publishers(port));
        self.pass(Operation::ListContainers, "", real).await
    }

    async fn network_driver(&self, name: &str) -> Result<String> {
        let owned = name.to_owned();
        let real = owned!(self, |engine| engine.network_driver(&owned));
        self.pass(Operation::InspectNetwork, name, real).await
    }

    async fn network_host_side(&self, name: &str) -> Result<HostSide> {
        let owned = name.to_owned();
        let real = owned!(self, |engine| engine.network_host_side(&owned));
        self.pass(Operation::InspectNetwork, name, real).await
    }

    async fn inspect_container(&self, id: &str) -> Result<ContainerInspectResponse> {
        let owned = id.to_owned();
        let real = owned!(self, |engine| engine.inspect_container(&owned));
        self.pass(Operation::InspectContainer, id, real).await
    }

    async fn create_container(&self, name: &str, body: ContainerCreateBody) -> Result<String> {
        let owned = name.to_owned();
        let real = owned!(self, |engine| engine.create_container(&owned, body));
        self.pass(Operation::CreateContainer, name, real).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let owned = id.to_owned();
        let real = owned!(self, |engine| engine.start_container(&owned));
        self.pass(Operation::StartContainer, id, real).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let owned = id.to_owned();
        let real = owned!(self, |engine| engine.stop_container(&owned, grace));
        self.pass(Operation::StopContainer, id, real).await
    }

    async fn remove_container(&self, id: &str, force: bool) -> Result<()> {
        let owned = id.to_owned();
        let real = owned!(self, |engine| engine.remove_container(&owned, force));
        self.pass(Operation::RemoveContainer, id, real).await
    }

    async fn create_exec(&self, id: &str, options: &ExecOptions) -> Result<String> {
        let (owned, options) = (id.to_owned(), options.clone());
        let real = owned!(self, |engine| engine.create_exec(&owned, &options));
        self.pass(Operation::CreateExec, id, real).await
    }

    async fn start_exec(&self, exec: &str, tty: bool) -> Result<DuplexStream> {
        let owned = exec.to_owned();
        let real = owned!(self, |engine| engine.start_exec(&owned, tty));
        self.pass(Operation::StartExec, exec, real).await
    }

    async fn inspect_exec(&self, exec: &str) -> Result<ExecState> {
        let owned = exec.to_owned();
        let real = owned!(self, |engine| engine.inspect_exec(&owned));
        self.pass(Operation::InspectExec, exec, real).await
    }

    async fn resize_exec(&self, exec: &str, size: TerminalSize) -> Result<()> {
        let owned = exec.to_owned();
        let real = owned!(self, |engine| engine.resize_exec(&owned, size));
        self.pass(Operation::ResizeExec, exec, real).await
    }

    async fn attach_container(&self, id: &str, streams: StreamOptions) -> Result<DuplexStream> {
        let owned = id.to_owned();
        let real = owned!(self, |engine| engine.attach_container(&owned, streams));
        self.pass(Operation::AttachContainer, id, real).await
    }

    async fn resize_container(&self, id: &str, size: TerminalSize) -> Result<()> {
        let owned = id.to_owned();
        let real = owned!(self, |engine| engine.resize_container(&owned, size));
        self.pass(Operation::ResizeContainer, id, real).await
    }

    async fn stat_path(&self, id: &str, path: &str) -> Result<PathStat> {
        let (owned, path) = (id.to_owned(), path.to_owned());
        let real = owned!(self, |engine| engine.stat_path(&owned, &path));
        self.pass(Operation::StatPath, id, real).await
    }

    async fn download(&self, id: &str, path: &str) -> Result<EngineTar> {
        let (owned, path) = (id.to_owned(), path.to_owned());
        let real = owned!(self, |engine| engine.download(&owned, &path));
        self.pass(Operation::Download, id, real).await
    }

    async fn upload(&self, id: &str, dir: &str, tar: TarInput) -> Result<()> {
        let (owned, dir) = (id.to_owned(), dir.to_owned());
        let real = owned!(self, |engine| engine.upload(&owned, &dir, tar));
        self.pass(Operation::Upload, id, real).await
    }

    async fn inspect_image(&self, name: &str) -> Result<ImageInspect> {
        let owned = name.to_owned();
        let real = owned!(self, |engine| engine.inspect_image(&owned));
        self.pass(Operation::InspectImage, name, real).await
    }

    async fn create_volume(&self, request: VolumeCreateRequest) -> Result<Volume> {
        let name = request.name.clone().unwrap_or_default();
        let real = owned!(self, |engine| engine.create_volume(request));
        self.pass(Operation::CreateVolume, &name, real).await
    }

    async fn inspect_volume(&self, name: &str) -> Result<Volume> {
        let owned = name.to_owned();
        let real = owned!(self, |engine| engine.inspect_volume(&owned));
        self.pass(Operation::InspectVolume, name, real).await
    }

    async fn list_volumes(&self, owner: &str) -> Result<Vec<Volume>> {
        let owner = owner.to_owned();
        let real = owned!(self, |engine| engine.list_volumes(&owner));
        self.pass(Operation::ListVolumes, "", real).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let owned = name.to_owned();
        let real = owned!(self, |engine| engine.remove_volume(&owned));
        self.pass(Operation::RemoveVolume, name, real).await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<BoxStream<'static, Result<PullProgress>>> {
        let (owned, auth) = (image.to_owned(), auth.cloned());
        let real = owned!(self, |engine| engine.pull_image(&owned, auth.as_ref()));
        self.pass(Operation::PullImage, image, real).await
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>> {
        let real = owned!(self, |engine| engine.images_in_use());
        self.pass(Operation::ImagesInUse, "", real).await
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        let target = name.to_owned();
        let real = owned!(self, |engine| engine.remove_image(&target));
        self.pass(Operation::RemoveImage, name, real).await
    }

    async fn load_image(&self, tar: Bytes) -> Result<()> {
        let real = owned!(self, |engine| engine.load_image(tar));
        self.pass(Operation::LoadImage, "", real).await
    }

    async fn events(
        &self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, Result<EventMessage>>> {
        let owner = owner.to_owned();
        let real = owned!(self, |engine| engine.events(&owner, since));
        let stream = self.pass(Operation::Events, "", real).await?;
        Ok(self.script.events(stream))
    }

    async fn logs(&self, id: &str, options: &LogOptions, tty: bool) -> Result<LogFrames> {
        let (owned, options) = (id.to_owned(), options.clone());
        let real = owned!(self, |engine| engine.logs(&owned, &options, tty));
        self.pass(Operation::Logs, id, real).await
    }
}
