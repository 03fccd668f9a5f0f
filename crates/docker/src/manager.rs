//! `DockerManager`: the `Runtime` of a Docker Engine.
//!
//! It holds no state that a restart would lose: the [index](super::index) is rebuilt from one list,
//! everything else is a cache of data that the Engine can provide again.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::containers::{Containers, INSPECT_ATTEMPTS, Turns};
use super::engine::SharedEngine;
use super::events;
use super::exec::{ExecSessions, Execs};
use super::facts::Facts;
use super::files::{ENV_ROOM_BYTES, FILES_BYTES_MAX, HostsFiles, PodFiles};
use super::hooks::Hooks;
use super::image::ImagePuller;
use super::index::pod_status;
use super::kill::Killer;
use super::log_links::{ContainerLogs, LogLinks};
use super::logs::container_logs;
use super::network::{HeldPorts, LedPorts, Networks};
use super::reconnects::Reconnects;
use super::remove::Remains;
use super::room::Room;
use super::start::{REQUEST_BYTES_MAX, Starter};
use super::translate::HostFacts;
use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid};
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::objects::claims::{ClaimName, EngineVolume};
use mirrorlet_core::observed::{PodStatus, Pods, RunningPod};
use mirrorlet_core::plan::Plan;
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::{Telemetry, calls, occurrences};
use mirrorlet_host::volume::{HostFiles, VolumeManager};
use mirrorlet_runtime::copy::{PathStat, TarInput, TarStream};
use mirrorlet_runtime::gc::{GcOutcome, PodStateProvider};
use mirrorlet_runtime::objects::PodObjects;
use mirrorlet_runtime::{
    CommandOutput, ContainerAccess, DuplexStream, ExecOptions, LogOptions, LogStream, PodCheck,
    PodEvent, PodSyncResult, PullWhen, Result, Runtime, RuntimeError, ServingPods, Session,
    StreamOptions, SyncError, Version,
};

/// Options of a `DockerManager`.
pub struct DockerManagerOptions {
    /// The value of our ownership label.
    pub owner: String,
    /// Root directory.
    pub root: PathBuf,
    /// The facts about the node.
    pub node: HostFacts,
    /// Image of the sandbox; our own when none.
    pub pod_infra_image: Option<String>,
    /// Calls that change something, at a time.
    pub engine_concurrency: usize,
    /// Where pods' config maps, secrets and tokens come from.
    pub objects: PodObjects,
    /// The view of the host's files.
    pub host_files: HostFiles,
    /// Directory for the kubelet's links to the logs of containers; none to create no links.
    pub pod_logs_dir: Option<PathBuf>,
}

/// Pods on a Docker Engine: its parts, each of which only knows its own dependencies.
pub struct DockerManager {
    containers: Arc<Containers>,
    facts: Arc<Facts>,
    files: Arc<PodFiles>,
    networks: Arc<Networks>,
    images: Arc<ImagePuller>,
    logs: Arc<ContainerLogs>,
    execs: Arc<Execs>,
    probe: Client,
    killer: Arc<Killer>,
    remains: Arc<Remains>,
    starter: Starter,
    telemetry: Telemetry,
}

/// Makes the [`ContainerLogs`] and [`PodFiles`] of the options, and the [`Networks`].
fn around(
    containers: &Arc<Containers>,
    telemetry: &Telemetry,
    options: DockerManagerOptions,
) -> (Arc<ContainerLogs>, Arc<PodFiles>, Arc<Networks>) {
    let (node, host) = (options.node, options.host_files);
    let network = node.network.clone();
    let links = options.pod_logs_dir;
    let logs = Arc::new(ContainerLogs {
        links: links.map(|dir| LogLinks::new(&dir, host.clone())),
        containers: Arc::clone(containers),
    });
    let [env_small, env_large] = ENV_ROOM_BYTES;
    let files = Arc::new(PodFiles {
        hosts: HostsFiles::default(),
        volumes: VolumeManager::new(&options.root).with_host_files(host),
        objects: options.objects,
        node,
        telemetry: telemetry.clone(),
        engine: Arc::clone(&containers.engine),
        owner: containers.owner.clone(),
        room: Room::new(FILES_BYTES_MAX),
        env_room: Room::of_parts(env_small, env_large),
    });
    let networks = Arc::new(Networks::new(containers, &files, network));
    (logs, files, networks)
}

impl DockerManager {
    /// Returns a manager of the containers of `options.owner` on `engine`. Works while the Engine is
    /// down.
    pub fn new(
        engine: SharedEngine,
        images: Arc<ImagePuller>,
        telemetry: Telemetry,
        options: DockerManagerOptions,
    ) -> Self {
        let (root, infra_image) = (options.root.clone(), options.pod_infra_image.clone());
        let facts = Facts::new(Arc::clone(&engine), Arc::clone(&images), infra_image);
        let (facts, concurrency) = (Arc::new(facts), options.engine_concurrency.max(1));
        let containers = Containers::new(engine, options.owner.clone(), concurrency);
        let containers = Arc::new(containers.with_new_pods_in(options.node.network.as_deref()));
        let (logs, files, networks) = around(&containers, &telemetry, options);
        let (execs, probe) = (Arc::new(Execs::new(Arc::clone(&containers))), Client::new());
        let hooks = Arc::new(Hooks {
            containers: Arc::clone(&containers),
            execs: Arc::clone(&execs),
            probe: probe.clone(),
            files: Arc::clone(&files),
            telemetry: telemetry.clone(),
        });
        let remains = Arc::new(Remains {
            containers: Arc::clone(&containers),
            files: Arc::clone(&files),
            logs: Arc::clone(&logs),
        });
        let killer = Arc::new(Killer {
            containers: Arc::clone(&containers),
            networks: Arc::clone(&networks),
            hooks: Arc::clone(&hooks),
            telemetry: telemetry.clone(),
        });
        let starter = Starter {
            containers: Arc::clone(&containers),
            facts: Arc::clone(&facts),
            files: Arc::clone(&files),
            networks: Arc::clone(&networks),
            images: Arc::clone(&images),
            hooks,
            killer: Arc::clone(&killer),
            remains: Arc::clone(&remains),
            logs: Arc::clone(&logs),
            root,
            telemetry: telemetry.clone(),
            newcomers: Turns::new(concurrency),
            requests: Room::new(REQUEST_BYTES_MAX),
        };
        Self {
            containers,
            facts,
            files,
            networks,
            images,
            logs,
            execs,
            probe,
            killer,
            remains,
            starter,
            telemetry,
        }
    }

    /// Returns the count of its reconnects to the Engine.
    pub fn reconnects(&self) -> Reconnects {
        self.facts.reconnects.clone()
    }

    /// Returns the client that sends the requests of hooks; probes use the same one.
    pub fn probe_client(&self) -> Client {
        self.probe.clone()
    }

    /// Returns the task that waits for execs to end; run it beside this manager.
    pub fn exec_sessions(&self) -> ExecSessions {
        self.execs.sessions()
    }

    /// Returns the task that renews the holds of host ports; run it beside this manager.
    pub fn held_ports(&self) -> HeldPorts {
        HeldPorts::new(Arc::clone(&self.networks.host_ports.holds))
    }

    /// Returns the task that maintains the kernel's rules for host ports; run it beside this manager.
    pub fn led_ports(&self) -> LedPorts {
        LedPorts::new(Arc::clone(&self.networks), self.telemetry.clone())
    }
}

#[async_trait]
impl ContainerAccess for DockerManager {
    async fn exec_in_container(&self, id: &ContainerId, options: &ExecOptions) -> Result<Session> {
        self.execs.exec(id, options).await
    }

    async fn attach_container(&self, id: &ContainerId, streams: StreamOptions) -> Result<Session> {
        self.execs.attach(id, streams).await
    }

    async fn port_forward(&self, uid: &PodUid, port: u16) -> Result<DuplexStream> {
        self.containers.forward(uid, port).await
    }

    async fn stat_in_container(&self, id: &ContainerId, path: &str) -> Result<PathStat> {
        Ok(self.containers.engine.stat_path(&id.id, path).await?)
    }

    async fn copy_from_container(&self, id: &ContainerId, path: &str) -> Result<TarStream> {
        let tar = self.containers.engine.download(&id.id, path).await?;
        Ok(tar.map(|piece| piece.map_err(RuntimeError::from)).boxed())
    }

    async fn copy_to_container(&self, id: &ContainerId, dir: &str, tar: TarInput) -> Result<()> {
        Ok(self.containers.engine.upload(&id.id, dir, tar).await?)
    }
}

#[async_trait]
impl Runtime for DockerManager {
    async fn version(&self) -> Result<Version> {
        Ok(Version::new(self.facts.version.get().await?.version))
    }

    async fn api_version(&self) -> Result<Version> {
        let (major, minor) = self.facts.engine_facts().await?.api_version;
        Ok(Version::new(format!("{major}.{minor}")))
    }

    async fn status(&self) -> Result<()> {
        self.containers.engine.version().await?;
        Ok(())
    }

    async fn garbage_collect(
        &self,
        policy: ContainerGcPolicy,
        pods: &dyn PodStateProvider,
        evict_non_deleted: bool,
    ) -> GcOutcome {
        self.remains.collect(policy, pods, evict_non_deleted).await
    }

    async fn get_pods(&self, all: bool) -> Result<Pods> {
        self.containers.list(false).await?;
        Ok(Pods(self.containers.index.pods(all)))
    }

    async fn get_pod_status(&self, uid: &PodUid, full_name: &FullName) -> Result<PodStatus> {
        if !self.containers.index.is_complete() {
            self.containers.list(true).await?;
        }
        let mut records = self.containers.index.of_pod(uid);
        // A container may end while others are inspected. It is inspected too, a bounded number of
        // times: else a status without the reason would be reported, and corrected at once.
        for _ in 0..INSPECT_ATTEMPTS {
            let stale = records.iter().filter(|record| record.stale);
            let looks: Vec<_> = stale
                .map(|record| self.containers.freshen(&record.id))
                .collect();
            if looks.is_empty() {
                break;
            }
            for looked in join_all(looks).await {
                looked?;
            }
            records = self.containers.index.of_pod(uid);
        }
        let mut status = pod_status(uid, records);
        if status.is_empty() {
            status.full_name = full_name.clone();
        }
        Ok(status)
    }

    async fn prepare_pod(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        self.starter.prepare_start(pod, stops, cancel).await
    }

    async fn pull_images(
        &self,
        pod: &Arc<Pod>,
        containers: &[String],
        when: PullWhen,
    ) -> Result<(), SyncError> {
        self.starter.pull_images(pod, containers, when).await
    }

    async fn check_pod(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        objects: ObjectSet,
    ) -> Result<PodCheck, SyncError> {
        self.starter.check_start(pod, stops, &objects).await
    }

    async fn list_volumes(&self) -> Result<Vec<(ClaimName, EngineVolume)>> {
        self.files.list_volumes().await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        Ok(self.files.engine.remove_volume(name).await?)
    }

    async fn serve_names(&self, names: Arc<Names>, pods: Vec<NamedPod>) -> Result<(), SyncError> {
        self.files.serve_names(names, pods).await
    }

    async fn serve_host_ports(&self, serving: ServingPods) -> Result<(), SyncError> {
        self.networks.host_ports.serve(serving).await
    }

    async fn sync_pod(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        self.starter.walk(pod, status, plan, cancel).await
    }

    async fn kill_pod(
        &self,
        pod: Option<&Arc<Pod>>,
        running: &RunningPod,
        grace_override: Option<Duration>,
    ) -> PodSyncResult {
        let stop = self.killer.stop_pod(pod, running, grace_override);
        let (result, made) = calls::noted(stop).await;
        occurrences::engine_called(self.telemetry.pod(&running.full_name, &running.uid), &made);
        result
    }

    async fn release_volumes(&self, uid: &PodUid) -> Result<()> {
        self.containers.stopped_records(uid)?;
        let for_disk = uid.clone();
        self.files
            .on_disk(move |volumes| volumes.release(&for_disk))
            .await?;
        self.files.objects.release(uid);
        Ok(())
    }

    async fn delete_pod(&self, uid: &PodUid) -> Result<()> {
        let records = self.containers.stopped_records(uid)?;
        for removed in join_all(records.iter().map(|record| self.remains.remove(&record.id))).await
        {
            removed?;
        }
        let for_disk = uid.clone();
        self.files
            .on_disk(move |volumes| volumes.remove_pod(&for_disk))
            .await?;
        self.remains.remove_cgroups(uid).await;
        self.files.objects.release(uid);
        self.containers.unanswered.forget(uid);
        Ok(())
    }

    async fn refresh_volumes(
        &self,
        pod: &Arc<Pod>,
        cancel: &CancellationToken,
    ) -> Result<Option<Duration>, SyncError> {
        self.files.refresh(pod, cancel).await
    }

    fn references_changed(&self, pod: &Pod) -> watch::Receiver<u64> {
        self.files.objects.of(pod).subscribe(&PodUid::of(pod))
    }

    fn images_changed(&self) -> watch::Receiver<u64> {
        self.images.changed()
    }

    async fn list_orphans(&self, keep: &BTreeSet<PodUid>) -> Vec<PodUid> {
        self.logs.clean_log_links().await;
        // A directory that can't be read holds nothing that could be removed.
        let on_disk = self.files.on_disk(VolumeManager::list_pod_dirs).await;
        let mut orphans = on_disk.unwrap_or_default();
        orphans.retain(|uid| !keep.contains(uid) && self.containers.index.of_pod(uid).is_empty());
        orphans
    }

    async fn run_in_container(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<CommandOutput> {
        let once = Duration::ZERO;
        self.execs.run_command(id, command, timeout, once).await
    }

    async fn get_container_logs(
        &self,
        id: &ContainerId,
        options: &LogOptions,
    ) -> Result<LogStream> {
        let found = self.containers.engine.inspect_container(&id.id).await?;
        let tty = found.config.and_then(|config| config.tty).unwrap_or(false);
        container_logs(&*self.containers.engine, &id.id, options, tty).await
    }

    async fn watch(&self) -> Result<BoxStream<'static, PodEvent>> {
        let (engine, owner) = (&self.containers.engine, &self.containers.owner);
        let messages = engine.events(owner, None).await?;
        let other_events = engine.other_events().await?;
        self.images.forget_all();
        // Only a list has the events from before the subscription. The gap is marked before anybody
        // hears of the new stream, so that a call that needs the whole picture lists first.
        self.containers.index.begin_gap();
        self.facts.forget();
        self.networks.forget();
        let gap = PodEvent::Gap {
            cause: "subscribed to the Engine's events".to_owned(),
        };
        let (index, images) = (self.containers.index.clone(), Arc::clone(&self.images));
        let changes = events::container_changes(messages, index.clone(), &self.containers.owner);
        let others = events::other_changes(other_events, index.clone(), images);
        let news = events::until_either_ends(changes, others, &index);
        Ok(stream::once(futures::future::ready(gap))
            .chain(news)
            .boxed())
    }

    async fn learn_facts(&self) -> Result<()> {
        self.facts.engine_facts().await?;
        if let Err(error) = self.networks.network.status().await {
            occurrences::network_not_ready(&self.telemetry, &error.to_string());
        }
        Ok(())
    }
}
