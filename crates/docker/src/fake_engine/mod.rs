//! `FakeEngine`: a Docker Engine in memory, for tests of the code above the [`Engine`] trait.
//!
//! It has containers and images and answers as the real one does, in the same words. Faults are
//! scripted per call, before or after its effect; calls can be blocked; events can be dropped and their
//! streams cut. Its clock only moves when something happens.
//!
//! The calls are in one file because they are one `impl` of the trait; their effects are in `state`.

mod answers;
mod execs;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ImageInspect,
    ImageSummary, SystemInfo, Volume, VolumeCreateRequest,
};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::engine::{
    Engine, EngineError, EngineTar, EngineVersion, ExecState, LogFrames, OtherEvent, PullProgress,
    RegistryAuth, Result,
};
use super::meter::CallMeter;
use super::operation::Operation;
use mirrorlet_core::api::{Timestamp, keys};
use mirrorlet_runtime::copy::{PathStat, TarInput};
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{ExecOptions, LogChunk, LogOptions, StreamOptions, TerminalSize};
use state::{State, api_error};

pub use execs::ExecScript;
pub use state::{FakeImage, PullScript, StartScript};

/// Address in the fake's errors.
const ENDPOINT: &str = "fake://engine";

/// Whether a scripted failure replaces the call's effect or follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// The call has no effect.
    Before,
    /// The call has its effect, but its answer is lost.
    After,
}

/// A failure to come.
#[derive(Debug, Clone)]
struct Fault {
    operation: Operation,
    target: Option<String>,
    point: FaultPoint,
    error: EngineError,
}

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The container.
    pub operation: Operation,
    /// The name, id, image or owner in the call; empty if it has none.
    pub target: String,
}

/// A Docker Engine in memory.
#[derive(Debug)]
pub struct FakeEngine {
    state: Mutex<State>,
    faults: Mutex<Vec<Fault>>,
    calls: Mutex<Vec<Call>>,
    stops: Mutex<Vec<(String, Duration)>>,
    /// Operations held back, each with what is in the names of its targets.
    held: watch::Sender<BTreeSet<(Operation, String)>>,
    meter: CallMeter,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self::new()
    }
}

/// The error of a fake that is away.
fn away() -> EngineError {
    EngineError::Unavailable {
        endpoint: ENDPOINT.to_owned(),
        cause: "connection refused".to_owned(),
        is_shortage: false,
    }
}

impl FakeEngine {
    /// An Engine without containers or images.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State::new()),
            faults: Mutex::default(),
            calls: Mutex::default(),
            stops: Mutex::default(),
            held: watch::Sender::default(),
            meter: CallMeter::default(),
        }
    }

    /// Adds an image.
    pub fn add_image(&self, name: &str, image: FakeImage) {
        self.state.lock().images.insert(name.to_owned(), image);
    }

    /// Removes an image without an event, as `docker image prune` does.
    pub fn prune_image(&self, name: &str) {
        self.state.lock().images.remove(name);
    }

    /// Sets the behaviour of pulls of that image. Without a script the registry has no such image.
    pub fn script_pull(&self, image: &str, script: PullScript) {
        self.state.lock().pulls.insert(image.to_owned(), script);
    }

    /// Sets the behaviour of starts of containers of that image. Without a script they run.
    pub fn script_start(&self, image: &str, script: StartScript) {
        self.state.lock().starts.insert(image.to_owned(), script);
    }

    /// Sets the behaviour of commands of that program. Without a script they end at once, with exit
    /// code 0 and no output.
    pub fn script_exec(&self, program: &str, script: ExecScript) {
        let mut state = self.state.lock();
        state.execs.scripts.insert(program.to_owned(), script);
    }

    /// Makes the next call of that operation fail, for any target or for one whose name contains
    /// `target`. Several failures for the same call apply to consecutive calls.
    pub fn fail(
        &self,
        operation: Operation,
        target: Option<&str>,
        point: FaultPoint,
        error: EngineError,
    ) {
        self.faults.lock().push(Fault {
            operation,
            target: target.map(str::to_owned),
            point,
            error,
        });
    }

    /// Holds back all calls of that operation until [`release`](Self::release).
    pub fn hold(&self, operation: Operation) {
        self.hold_of(operation, "");
    }

    /// Blocks all calls of that operation for targets whose name, or whose container's name, contains
    /// `target`, until [`release`](Self::release).
    pub fn hold_of(&self, operation: Operation, target: &str) {
        self.held.send_modify(|held| {
            held.insert((operation, target.to_owned()));
        });
    }

    /// Releases blocked calls of that operation.
    pub fn release(&self, operation: Operation) {
        self.held.send_modify(|held| {
            held.retain(|(of, _)| *of != operation);
        });
    }

    /// Makes the Engine unavailable (every call fails, event streams break) or available.
    pub fn set_available(&self, available: bool) {
        let mut state = self.state.lock();
        state.available = available;
        if !available {
            state.cut_events(&away());
        }
    }

    /// Sets whether networks give an address to containers that start from now on.
    pub fn give_addresses(&self, given: bool) {
        self.state.lock().without_addresses = !given;
    }

    /// Sets its root directory.
    pub fn keep_files_in(&self, directory: &str) {
        directory.clone_into(&mut self.state.lock().root_dir);
    }

    /// Sets the address of the containerd that has the images.
    pub fn leave_images_to_containerd(&self, address: &str) {
        self.state.lock().containerd = Some(address.to_owned());
    }

    /// Makes a network of that driver.
    pub fn add_network(&self, name: &str, driver: &str) {
        let mut state = self.state.lock();
        state.networks.insert(name.to_owned(), driver.to_owned());
    }

    /// Breaks all event streams.
    pub fn cut_events(&self) {
        self.state.lock().cut_events(&away());
    }

    /// Breaks the streams of events of images and networks alone.
    pub fn cut_other_events(&self) {
        self.state.lock().cut_other_events(&away());
    }

    /// Loses the next `count` events.
    pub fn drop_events(&self, count: usize) {
        self.state.lock().drop_events = count;
    }

    /// Sends the last event once more.
    pub fn repeat_last_event(&self) {
        self.state.lock().repeat_last_event();
    }

    /// Lets a running container end by itself.
    pub fn exit(&self, container: &str, code: i64) {
        self.state.lock().end(container, code, false, true);
    }

    /// Lets a running container be killed for its memory.
    pub fn oom(&self, container: &str) {
        self.state.lock().end(container, 137, true, true);
    }

    /// Simulates a crash of the Engine without live-restore: running containers end with code 255 and
    /// without an event; event streams break.
    pub fn crash(&self) {
        let mut state = self.state.lock();
        state.lose_all_running();
        state.cut_events(&away());
    }

    /// Sets what the log of a container is.
    pub fn set_logs(&self, container: &str, frames: Vec<LogChunk>) {
        if let Some(container) = self.state.lock().find_mut(container) {
            container.logs = frames;
        }
    }

    /// Makes the log of a container stay open after its content.
    pub fn hang_logs(&self, container: &str) {
        if let Some(container) = self.state.lock().find_mut(container) {
            container.log_hangs = true;
        }
    }

    /// Returns the request body that created that container, by id or name.
    pub fn created(&self, container: &str) -> Option<ContainerCreateBody> {
        self.state.lock().find(container).map(|c| c.body.clone())
    }

    /// Names of all containers with their states, in order of creation.
    pub fn containers(&self) -> Vec<(String, String)> {
        let state = self.state.lock();
        let pairs = state.containers.iter();
        pairs
            .map(|c| (c.name.clone(), c.status().to_string()))
            .collect()
    }

    /// All calls so far, in the order in which they were made.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// How often an operation was called.
    pub fn count(&self, operation: Operation) -> usize {
        let calls = self.calls.lock();
        calls.iter().filter(|c| c.operation == operation).count()
    }

    /// Ids of the stopped containers so far, with their grace periods, in order.
    pub fn stops(&self) -> Vec<(String, Duration)> {
        self.stops.lock().clone()
    }

    /// Forgets the calls so far.
    pub fn clear_calls(&self) {
        self.calls.lock().clear();
        self.stops.lock().clear();
    }

    /// How many event streams are open.
    pub fn subscribers(&self) -> usize {
        let mut state = self.state.lock();
        state.subscribers.retain(|s| !s.sender.is_closed());
        state.subscribers.len()
    }

    /// Records a call, waits while it is held back, and fails or runs it as scripted.
    async fn call<T>(
        &self,
        operation: Operation,
        target: &str,
        effect: impl FnOnce(&mut State) -> Result<T> + Send,
    ) -> Result<T> {
        let call = self.scripted(operation, target, effect);
        self.meter.call(operation, target, call).await
    }

    async fn scripted<T>(
        &self,
        operation: Operation,
        target: &str,
        effect: impl FnOnce(&mut State) -> Result<T> + Send,
    ) -> Result<T> {
        self.calls.lock().push(Call {
            operation,
            target: target.to_owned(),
        });
        let container = self.state.lock().find(target).map(|c| c.name.clone());
        let names = [target, container.as_deref().unwrap_or_default()];
        let is_held = |(of, part): &(Operation, String)| {
            *of == operation && names.iter().any(|name| name.contains(part.as_str()))
        };
        let mut held = self.held.subscribe();
        // The sender lives in self, so waiting ends only when the call isn't held.
        let _ = held.wait_for(|held| !held.iter().any(is_held)).await;
        let fault = self.take_fault(operation, target);
        if let Some(fault) = &fault
            && fault.point == FaultPoint::Before
        {
            return Err(fault.error.clone());
        }
        let mut state = self.state.lock();
        if !state.available {
            return Err(away());
        }
        let result = effect(&mut state);
        match fault {
            Some(fault) => Err(fault.error),
            None => result,
        }
    }

    fn take_fault(&self, operation: Operation, target: &str) -> Option<Fault> {
        let mut faults = self.faults.lock();
        let index = faults.iter().position(|fault| {
            fault.operation == operation
                && fault.target.as_deref().is_none_or(|t| target.contains(t))
        })?;
        Some(faults.remove(index))
    }
}

#[async_trait]
impl Engine for FakeEngine {
    fn endpoint(&self) -> &str {
        ENDPOINT
    }

    fn meter(&self) -> &CallMeter {
        &self.meter
    }

    async fn version(&self) -> Result<EngineVersion> {
        self.call(Operation::Version, "", |_| Ok(answers::version()))
            .await
    }

    async fn info(&self) -> Result<SystemInfo> {
        self.call(Operation::Info, "", |state| Ok(answers::info(state)))
            .await
    }

    async fn list_containers(&self, owner: &str) -> Result<Vec<ContainerSummary>> {
        self.call(Operation::ListContainers, owner, |state| {
            Ok(answers::list(state, owner))
        })
        .await
    }

    async fn list_publishers(&self, port: u16) -> Result<Vec<ContainerSummary>> {
        self.call(Operation::ListContainers, "", |state| {
            Ok(answers::publishers(state, port))
        })
        .await
    }

    async fn network_driver(&self, name: &str) -> Result<String> {
        self.call(Operation::InspectNetwork, name, |state| {
            let driver = state.networks.get(name).cloned();
            driver.ok_or_else(|| api_error(404, format!("network {name} not found")))
        })
        .await
    }

    async fn inspect_container(&self, id: &str) -> Result<ContainerInspectResponse> {
        self.call(Operation::InspectContainer, id, |state| {
            let container = state.known(id)?;
            Ok(answers::inspect(state, container))
        })
        .await
    }

    async fn create_container(&self, name: &str, body: ContainerCreateBody) -> Result<String> {
        // The request is large, and all it passes through would be, too.
        Box::pin(self.call(Operation::CreateContainer, name, |state| {
            state.create(name, body)
        }))
        .await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.call(Operation::StartContainer, id, |state| state.start(id))
            .await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.stops.lock().push((id.to_owned(), grace));
        self.call(Operation::StopContainer, id, |state| state.stop(id))
            .await
    }

    async fn remove_container(&self, id: &str, force: bool) -> Result<()> {
        self.call(Operation::RemoveContainer, id, |state| {
            state.remove(id, force)
        })
        .await
    }

    async fn create_exec(&self, id: &str, options: &ExecOptions) -> Result<String> {
        self.call(Operation::CreateExec, id, |state| {
            state.create_exec(id, options)
        })
        .await
    }

    async fn start_exec(&self, exec: &str, _tty: bool) -> Result<DuplexStream> {
        let (wire, mut pipe, theirs) = self
            .call(Operation::StartExec, exec, |state| state.start_exec(exec))
            .await?;
        execs::write(&mut pipe, &wire).await;
        self.state.lock().written(exec, pipe);
        Ok(theirs)
    }

    async fn inspect_exec(&self, exec: &str) -> Result<ExecState> {
        self.call(Operation::InspectExec, exec, |state| state.exec_state(exec))
            .await
    }

    async fn resize_exec(&self, exec: &str, _size: TerminalSize) -> Result<()> {
        self.call(Operation::ResizeExec, exec, |state| {
            state.exec_state(exec).map(drop)
        })
        .await
    }

    async fn attach_container(&self, id: &str, _streams: StreamOptions) -> Result<DuplexStream> {
        let (wire, mut pipe, theirs) = self
            .call(Operation::AttachContainer, id, |state| state.attach(id))
            .await?;
        execs::write(&mut pipe, &wire).await;
        Ok(theirs)
    }

    async fn resize_container(&self, id: &str, _size: TerminalSize) -> Result<()> {
        self.call(Operation::ResizeContainer, id, |state| {
            state.known(id).map(drop)
        })
        .await
    }

    async fn stat_path(&self, id: &str, path: &str) -> Result<PathStat> {
        self.call(Operation::StatPath, id, |state| state.no_file(id, path))
            .await
    }

    async fn download(&self, id: &str, path: &str) -> Result<EngineTar> {
        self.call(Operation::Download, id, |state| state.no_file(id, path))
            .await
    }

    async fn upload(&self, id: &str, dir: &str, _tar: TarInput) -> Result<()> {
        self.call(Operation::Upload, id, |state| state.no_file(id, dir))
            .await
    }

    async fn inspect_image(&self, name: &str) -> Result<ImageInspect> {
        self.call(Operation::InspectImage, name, |state| {
            match state.image(name) {
                Some((name, image)) => Ok(answers::image(state, name, image)),
                None => Err(api_error(404, format!("No such image: {name}"))),
            }
        })
        .await
    }

    async fn list_images(&self, _all: bool) -> Result<Vec<ImageSummary>> {
        self.call(Operation::ListImages, "", |state| {
            Ok(answers::images(state))
        })
        .await
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>> {
        self.call(
            Operation::ImagesInUse,
            "",
            |state| Ok(state.images_in_use()),
        )
        .await
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        self.call(Operation::RemoveImage, name, |state| {
            state.remove_image(name)
        })
        .await
    }

    async fn create_volume(&self, request: VolumeCreateRequest) -> Result<Volume> {
        let name = request.name.clone().unwrap_or_default();
        self.call(Operation::CreateVolume, &name, |state| {
            Ok(state.create_volume(request))
        })
        .await
    }

    async fn inspect_volume(&self, name: &str) -> Result<Volume> {
        self.call(Operation::InspectVolume, name, |state| {
            let gone = || api_error(404, format!("get {name}: no such volume"));
            state.volumes.get(name).cloned().ok_or_else(gone)
        })
        .await
    }

    async fn list_volumes(&self, owner: &str) -> Result<Vec<Volume>> {
        self.call(Operation::ListVolumes, owner, |state| {
            let is_ours = |volume: &&Volume| {
                volume.labels.get(keys::OWNER).map(String::as_str) == Some(owner)
            };
            Ok(state.volumes.values().filter(is_ours).cloned().collect())
        })
        .await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        self.call(Operation::RemoveVolume, name, |state| {
            let gone = || api_error(404, format!("get {name}: no such volume"));
            state.volumes.remove(name).map(|_| ()).ok_or_else(gone)
        })
        .await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<BoxStream<'static, Result<PullProgress>>> {
        let mut script = self
            .call(Operation::PullImage, image, |state| state.pull(image, auth))
            .await?;
        let silence = script.silence;
        let last = stream::iter(script.messages.pop()).then(move |message| async move {
            if !silence.is_zero() {
                tokio::time::sleep(silence).await;
            }
            message
        });
        let messages = stream::iter(script.messages).chain(last);
        Ok(if script.stalls {
            messages.chain(stream::pending()).boxed()
        } else {
            messages.boxed()
        })
    }

    async fn load_image(&self, tar: Bytes) -> Result<()> {
        self.call(Operation::LoadImage, "", |state| state.load(&tar))
            .await
    }

    async fn events(
        &self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, Result<EventMessage>>> {
        let receiver = self
            .call(Operation::Events, owner, |state| {
                Ok(state.subscribe(owner, since))
            })
            .await?;
        Ok(events_of(receiver).boxed())
    }

    /// A stream without items, until it is cut.
    async fn other_events(&self) -> Result<BoxStream<'static, Result<OtherEvent>>> {
        let receiver = self
            .call(Operation::Events, "", |state| Ok(state.subscribe_others()))
            .await?;
        Ok(events_of(receiver).boxed())
    }

    async fn logs(&self, id: &str, _options: &LogOptions, _tty: bool) -> Result<LogFrames> {
        self.call(Operation::Logs, id, |state| {
            let container = state.known(id)?;
            let frames = container.logs.clone().into_iter().map(Ok::<_, EngineError>);
            let frames = stream::iter(frames);
            Ok(if container.log_hangs {
                frames.chain(stream::pending()).boxed()
            } else {
                frames.boxed()
            })
        })
        .await
    }
}

fn events_of<T: Send>(
    receiver: mpsc::UnboundedReceiver<Result<T>>,
) -> impl stream::Stream<Item = Result<T>> + Send {
    stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|item| (item, receiver))
    })
}
