//! [`Runtime`] for [`FakeRuntime`].

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid};
use mirrorlet_core::gc::{ContainerGcPolicy, GcInput, compute_container_gc};
use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::observed::{PodStatus, Pods, RunningPod};
use mirrorlet_core::plan::{Plan, Step};
use mirrorlet_core::spec;
use mirrorlet_runtime::copy::{PathStat, TarInput, TarStream};
use mirrorlet_runtime::gc::{GcOutcome, PodStateProvider};
use mirrorlet_runtime::{
    CommandOutput, ContainerAccess, DuplexStream, ExecOptions, LogChunk, LogOptions, LogStream,
    PodCheck, PodEvent, PodEventKind, PodSyncResult, PullWhen, Result, Runtime, RuntimeError,
    ServingPods, Session, SessionControl, StreamOptions, SyncError, SyncErrorReason, TerminalSize,
    Version,
};

use super::FakeRuntime;
use super::steps::{is_independent, unavailable};

/// Version it claims to be by default.
const DEFAULT_VERSION: &str = "1.41";

#[async_trait]
impl ContainerAccess for FakeRuntime {
    async fn exec_in_container(&self, id: &ContainerId, options: &ExecOptions) -> Result<Session> {
        let command = options.command.clone();
        self.change(|s| s.commands.push((id.clone(), command.clone())));
        self.enter("exec_in_container", None).await?;
        let result = self
            .shared
            .state
            .lock()
            .command_results
            .get(&command)
            .cloned();
        let done = result.unwrap_or_else(|| Ok(CommandOutput::default()))?;
        Ok(canned_session(done, options.streams))
    }

    async fn attach_container(&self, id: &ContainerId, streams: StreamOptions) -> Result<Session> {
        self.enter("attach_container", None).await?;
        let text = self
            .shared
            .state
            .lock()
            .logs
            .get(id)
            .cloned()
            .unwrap_or_default();
        let done = CommandOutput {
            exit_code: 0,
            output: Bytes::from(text),
        };
        Ok(canned_session(done, streams))
    }

    /// An echo: what is written comes back.
    async fn port_forward(&self, uid: &PodUid, _port: u16) -> Result<DuplexStream> {
        self.enter("port_forward", Some(uid)).await?;
        let (ours, theirs) = tokio::io::duplex(ECHO_BYTES);
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(ours);
            // Ends with the other end.
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
        Ok(Box::new(theirs))
    }

    /// Containers of the fake have no files.
    async fn stat_in_container(&self, _id: &ContainerId, path: &str) -> Result<PathStat> {
        self.enter("stat_in_container", None).await?;
        Err(RuntimeError::NotFound(format!("there is no {path}")))
    }

    async fn copy_from_container(&self, _id: &ContainerId, path: &str) -> Result<TarStream> {
        self.enter("copy_from_container", None).await?;
        Err(RuntimeError::NotFound(format!("there is no {path}")))
    }

    async fn copy_to_container(&self, _id: &ContainerId, dir: &str, _tar: TarInput) -> Result<()> {
        self.enter("copy_to_container", None).await?;
        Err(RuntimeError::NotFound(format!("there is no {dir}")))
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<Version> {
        self.enter("version", None).await?;
        Ok(self.canned_version())
    }

    async fn api_version(&self) -> Result<Version> {
        self.enter("api_version", None).await?;
        Ok(self.canned_version())
    }

    async fn status(&self) -> Result<()> {
        self.enter("status", None).await
    }

    async fn get_pods(&self, all: bool) -> Result<Pods> {
        self.enter("get_pods", None).await?;
        let state = self.shared.state.lock();
        let canned = if all {
            &state.all_pod_list
        } else {
            &state.pod_list
        };
        Ok(canned.clone().unwrap_or_else(|| state.model.list(all)))
    }

    async fn get_pod_status(&self, uid: &PodUid, _full_name: &FullName) -> Result<PodStatus> {
        self.enter("get_pod_status", Some(uid)).await?;
        let canned = self.shared.state.lock().pod_statuses.get(uid).cloned();
        Ok(canned.unwrap_or_else(|| self.pod(uid)))
    }

    async fn prepare_pod(
        &self,
        pod: &Arc<Pod>,
        _stops: &[Arc<Pod>],
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        let uid = PodUid::of(pod);
        tokio::select! {
            entered = self.enter("prepare_pod", Some(&uid)) => entered.map_err(|e| unavailable(&e))?,
            () = cancel.cancelled() => {}
        }
        match self.shared.state.lock().preparation_faults.get(&uid) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    async fn pull_images(
        &self,
        pod: &Arc<Pod>,
        _containers: &[String],
        _when: PullWhen,
    ) -> Result<(), SyncError> {
        let uid = PodUid::of(pod);
        let entered = self.enter("pull_images", Some(&uid)).await;
        entered.map_err(|e| unavailable(&e))
    }

    async fn check_pod(
        &self,
        pod: &Arc<Pod>,
        _stops: &[Arc<Pod>],
        _objects: ObjectSet,
    ) -> Result<PodCheck, SyncError> {
        let uid = PodUid::of(pod);
        let entered = self.enter("check_pod", Some(&uid)).await;
        entered.map_err(|e| unavailable(&e))?;
        match self.shared.state.lock().preparation_faults.get(&uid) {
            Some(error) => Err(error.clone()),
            None => Ok(PodCheck::default()),
        }
    }

    async fn sync_pod(
        &self,
        pod: &Arc<Pod>,
        _status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        let uid = PodUid::of(pod);
        let mut round = PodSyncResult::default();
        if let Err(error) = self.enter("sync_pod", Some(&uid)).await {
            round.fail(unavailable(&error));
            return round;
        }
        if let Some(error) = self.change(|s| s.plan_faults.pop()) {
            round.fail(error);
            return round;
        }
        let starts = |step: &Step| {
            matches!(
                step,
                Step::CreateSandbox { .. } | Step::StartContainer { .. }
            )
        };
        if plan.steps.iter().any(starts) {
            self.change(|s| {
                s.started_as.insert(uid.clone(), Arc::clone(pod));
                s.started_pods.push(uid);
            });
        }
        for step in &plan.steps {
            if cancel.is_cancelled() {
                break;
            }
            if matches!(step, Step::RemoveContainer { .. }) && self.refuses_removal() {
                round.left_behind = true;
                continue;
            }
            let stops = matches!(step, Step::KillPod { .. } | Step::KillContainer { .. });
            let taking = self.step(pod, step);
            let results = if stops {
                let stopped = cancel.run_until_cancelled(taking).await;
                stopped.unwrap_or_default()
            } else {
                taking.await
            };
            let failed = results.iter().any(|r| r.error.is_some());
            round.add_sync_result(results);
            if failed && !is_independent(step) {
                break;
            }
        }
        round
    }

    async fn kill_pod(
        &self,
        pod: Option<&Arc<Pod>>,
        running: &RunningPod,
        grace_override: Option<Duration>,
    ) -> PodSyncResult {
        let mut round = PodSyncResult::default();
        if let Err(error) = self.enter("kill_pod", Some(&running.uid)).await {
            round.fail(unavailable(&error));
            return round;
        }
        self.change(|s| {
            s.killed_pods.push(running.uid.clone());
            let names = running.containers.iter().map(|c| c.name.to_string());
            s.killed_containers.extend(names);
        });
        let grace = grace_override
            .or_else(|| pod.map(|p| spec::termination_grace(p)))
            .unwrap_or(spec::DEFAULT_GRACE);
        let (fake, running) = (self.clone(), running.clone());
        let call = async move { fake.kill(&running, grace).await };
        round.add_sync_result(self.outliving(call).await);
        if let Some(error) = self.lost_answer("kill_pod") {
            round.fail(unavailable(&error));
        }
        round
    }

    async fn refresh_volumes(
        &self,
        pod: &Arc<Pod>,
        _cancel: &CancellationToken,
    ) -> Result<Option<Duration>, SyncError> {
        let entered = self.enter("refresh_volumes", Some(&PodUid::of(pod))).await;
        entered.map_err(|error| SyncError::new(SyncErrorReason::FailedMount, error.to_string()))?;
        Ok(self.change(|s| s.refresh_after))
    }

    fn references_changed(&self, _pod: &Pod) -> watch::Receiver<u64> {
        self.shared.references.subscribe()
    }

    fn images_changed(&self) -> watch::Receiver<u64> {
        self.shared.images.subscribe()
    }

    async fn release_volumes(&self, uid: &PodUid) -> Result<()> {
        self.enter("release_volumes", Some(uid)).await?;
        self.change(|s| {
            let running = s
                .model
                .pods
                .get(uid)
                .is_some_and(PodStatus::anything_running);
            if running {
                let violation = format!("released the volumes of {uid}, which runs");
                s.model.violations.push(violation);
            }
        });
        Ok(())
    }

    async fn list_orphans(&self, keep: &BTreeSet<PodUid>) -> Vec<PodUid> {
        let state = self.shared.state.lock();
        let mut orphans = state.orphans.clone();
        orphans.retain(|uid| !keep.contains(uid) && !state.model.pods.contains_key(uid));
        orphans.into_iter().collect()
    }

    async fn garbage_collect(
        &self,
        policy: ContainerGcPolicy,
        pods: &dyn PodStateProvider,
        evict_non_deleted: bool,
    ) -> GcOutcome {
        let mut outcome = GcOutcome::default();
        if self.enter("garbage_collect", None).await.is_err() {
            return outcome;
        }
        let now = self.now();
        self.change(|s| {
            let statuses: Vec<PodStatus> = s.model.pods.values().cloned().collect();
            let lives = statuses.iter().map(|p| (p.uid.clone(), pods.life(&p.uid)));
            let removals = compute_container_gc(&GcInput {
                policy,
                pods: &statuses,
                lives: &lives.collect(),
                all_sources_ready: pods.all_sources_ready(),
                evict_non_deleted,
                now,
            });
            for removal in removals {
                if let Ok(Some(event)) = s.model.remove(&removal.uid, &removal.id) {
                    *outcome.removed.entry(removal.cause).or_default() += 1;
                    s.emit(&removal.uid, event);
                }
            }
        });
        outcome
    }

    async fn delete_pod(&self, uid: &PodUid) -> Result<()> {
        self.enter("delete_pod", Some(uid)).await?;
        self.change(|s| {
            s.orphans.remove(uid);
            let Some(pod) = s.model.pods.get(uid) else {
                return Ok(());
            };
            if pod.anything_running() {
                return Err(RuntimeError::Conflict(format!("pod {uid} is running")));
            }
            s.witness(&format!("{uid}: deleted"));
            s.model.pods.remove(uid);
            s.model.beside.remove(uid);
            s.emit(uid, PodEventKind::ContainerRemoved);
            Ok(())
        })?;
        self.lost_answer("delete_pod").map_or(Ok(()), Err)
    }

    async fn serve_host_ports(&self, serving: ServingPods) -> Result<(), SyncError> {
        let served = self.refuse("serve_host_ports").await;
        served.map_err(|error| unavailable(&error))?;
        self.change(|s| s.serving = serving);
        Ok(())
    }

    async fn serve_names(&self, _names: Arc<Names>, pods: Vec<NamedPod>) -> Result<(), SyncError> {
        let served = self.refuse("serve_names").await;
        served.map_err(|error| unavailable(&error))?;
        let uids = pods.iter().map(|named| PodUid::of(&named.pod)).collect();
        self.change(|s| s.named_pods.push(uids));
        Ok(())
    }

    async fn run_in_container(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<CommandOutput> {
        self.change(|s| s.commands.push((id.clone(), command.clone())));
        let entered = tokio::time::timeout(timeout, self.enter("run_in_container", None)).await;
        entered.map_err(|_| RuntimeError::Timeout {
            operation: "exec",
            after: timeout,
        })??;
        let result = self
            .shared
            .state
            .lock()
            .command_results
            .get(&command)
            .cloned();
        result.unwrap_or_else(|| Ok(CommandOutput::default()))
    }

    async fn get_container_logs(
        &self,
        id: &ContainerId,
        _options: &LogOptions,
    ) -> Result<LogStream> {
        self.enter("get_container_logs", None).await?;
        let text = self.shared.state.lock().logs.get(id).cloned();
        let text = text.ok_or_else(|| {
            RuntimeError::NotFound(format!("no logs of container {}", id.short()))
        })?;
        let chunk = LogChunk::Stdout(Bytes::from(text));
        Ok(stream::once(async { Ok(chunk) }).boxed())
    }

    async fn watch(&self) -> Result<BoxStream<'static, PodEvent>> {
        self.enter("watch", None).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        self.change(|s| s.watchers.push(sender));
        let gap = PodEvent::Gap {
            cause: "the watch has started".to_owned(),
        };
        let events = stream::unfold(receiver, |mut receiver| async {
            let event = receiver.recv().await?;
            Some((event, receiver))
        });
        Ok(stream::once(async { gap }).chain(events).boxed())
    }

    async fn learn_facts(&self) -> Result<()> {
        self.enter("learn_facts", None).await
    }
}

impl FakeRuntime {
    fn canned_version(&self) -> Version {
        let canned = self.shared.state.lock().version.clone();
        canned.unwrap_or_else(|| Version::new(DEFAULT_VERSION))
    }
}

/// Most bytes on their way through an echo.
const ECHO_BYTES: usize = 64 << 10;

/// A process that has written all it writes, and takes any input.
fn canned_session(done: CommandOutput, streams: StreamOptions) -> Session {
    let output = Some(done.output).filter(|output| streams.stdout && !output.is_empty());
    Session {
        tty: streams.tty,
        stdin: streams
            .stdin
            .then(|| Box::pin(tokio::io::sink()) as Pin<Box<_>>),
        output: stream::iter(output.map(|output| Ok(LogChunk::Stdout(output)))).boxed(),
        control: Box::new(Canned(done.exit_code)),
    }
}

/// A process that has ended.
struct Canned(i32);

#[async_trait]
impl SessionControl for Canned {
    async fn resize(&self, _size: TerminalSize) {}

    async fn exit_code(&self) -> Result<Option<i32>> {
        Ok(Some(self.0))
    }
}
