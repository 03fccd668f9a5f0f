//! `DockerManager`: the `Runtime` of a Docker Engine.
//!
//! It holds no state that a restart would lose: the [index](super::index) is rebuilt from one
//! list, everything else is a cache of what the Engine can be asked for again.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerInspectResponse;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{self, BoxStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::engine::SharedEngine;
use super::exec::ExecSessions;
use super::facts::Facts;
use super::image::ImagePuller;
use super::index::{Index, Record, pod_status};
use super::log_links::LogLinks;
use super::logs::container_logs;
use super::network::{EngineNetwork, NetworkPlugin};
use super::translate::{Kind, NodeFacts, parse_ours};
use super::version_cache::VersionCache;
use super::{events, termination};
use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid};
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::observed::{PodStatus, Pods, RunningPod};
use mirrorlet_core::plan::Plan;
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::{Telemetry, calls, occurrences};
use mirrorlet_host::volume::{HostFiles, VolumeManager};
use mirrorlet_runtime::copy::{PathStat, TarInput, TarStream};
use mirrorlet_runtime::gc::{GcOutcome, PodStateProvider};
use mirrorlet_runtime::objects::Objects;
use mirrorlet_runtime::{
    CommandOutput, DuplexStream, ExecOptions, LogOptions, LogStream, NETWORK_READY, PodCheck,
    PodEvent, PodSyncResult, RUNTIME_READY, Result, Runtime, RuntimeCondition, RuntimeError,
    RuntimeStatus, Session, StreamOptions, SyncError, Version,
};

/// Attempts to get an inspect that is not older than the newest event.
const INSPECT_ATTEMPTS: usize = 3;
/// Oldest API this program speaks (Engine 20.10).
pub const API_VERSION_MIN: (u32, u32) = (1, 41);

/// What a `DockerManager` is made with.
pub struct DockerManagerOptions {
    /// The value of our ownership label.
    pub owner: String,
    /// Root directory.
    pub root: PathBuf,
    /// The facts about the node.
    pub node: NodeFacts,
    /// Image of the sandbox; our own when none.
    pub pod_infra_image: Option<String>,
    /// Calls that change something, at a time.
    pub engine_concurrency: usize,
    /// Where pods' config maps, secrets and tokens come from.
    pub objects: Arc<dyn Objects>,
}

/// Pods on a Docker Engine.
pub struct DockerManager {
    pub(super) engine: SharedEngine,
    pub(super) owner: String,
    pub(super) root: PathBuf,
    pub(super) node: NodeFacts,
    pub(super) index: Index,
    pub(super) images: Arc<ImagePuller>,
    pub(super) volumes: VolumeManager,
    pub(super) network: Box<dyn NetworkPlugin>,
    pub(super) objects: Arc<dyn Objects>,
    pub(super) telemetry: Telemetry,
    /// Sends the requests of hooks.
    pub(super) probe: Client,
    /// Bounds the calls that change something. Fair: permits are given in the order asked.
    pub(super) changes: Semaphore,
    /// Bounds the sandboxes being made, so that of many new pods the first ones run before the
    /// last ones begin.
    pub(super) newcomers: Semaphore,
    pub(super) sessions: ExecSessions,
    host_files: HostFiles,
    /// Where kubelet's links to logs are made; nowhere when none.
    pub(super) log_links: Option<LogLinks>,
    pub(super) pod_infra_image: Option<String>,
    pub(super) facts: Mutex<Facts>,
    pub(super) version: VersionCache,
    listing: tokio::sync::Mutex<()>,
}

impl DockerManager {
    /// A manager of the containers that `options.owner` owns on `engine`. Works while the Engine
    /// is down.
    #[must_use]
    pub fn new(
        engine: SharedEngine,
        images: Arc<ImagePuller>,
        telemetry: Telemetry,
        options: DockerManagerOptions,
    ) -> Self {
        Self {
            volumes: VolumeManager::new(&options.root),
            host_files: HostFiles::default(),
            version: VersionCache::new(Arc::clone(&engine)),
            network: Box::new(EngineNetwork::new(
                Arc::clone(&engine),
                options.node.network.clone(),
            )),
            engine,
            owner: options.owner,
            objects: options.objects,
            root: options.root,
            node: options.node,
            index: Index::default(),
            images,
            telemetry,
            probe: Client::new(),
            changes: Semaphore::new(options.engine_concurrency.max(1)),
            newcomers: Semaphore::new(options.engine_concurrency.max(1)),
            sessions: ExecSessions::default(),
            log_links: None,
            pod_infra_image: options.pod_infra_image,
            facts: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        }
    }

    /// What sends the requests of hooks; probes' go the same way.
    #[must_use]
    pub fn probe_client(&self) -> Client {
        self.probe.clone()
    }

    /// The same, with that view of the host's files, also for links to logs that are told of later.
    #[must_use]
    pub fn with_host_files(mut self, host: HostFiles) -> Self {
        self.volumes = self.volumes.with_host_files(host.clone());
        self.host_files = host;
        self
    }

    /// The same, with links to the logs of containers in kubelet's layout under `dir`.
    #[must_use]
    pub fn with_pod_logs_dir(mut self, dir: Option<&Path>) -> Self {
        self.log_links = dir.map(|dir| LogLinks::new(dir, self.host_files.clone()));
        self
    }

    /// Lists our containers into the index; only where the index is incomplete, when
    /// `only_if_incomplete`.
    async fn list(&self, only_if_incomplete: bool) -> Result<()> {
        let _one_at_a_time = self.listing.lock().await;
        if only_if_incomplete && self.index.is_complete() {
            return Ok(());
        }
        let began = self.index.begin_list();
        let listed = self.engine.list_containers(&self.owner).await?;
        let ours = listed
            .into_iter()
            .filter_map(|summary| {
                let names = summary.names.iter().flatten().map(String::as_str);
                let ours = parse_ours(&self.owner, names, summary.labels.as_ref()?)?;
                Some((summary, ours))
            })
            .collect();
        self.index.apply_list(began, ours);
        Ok(())
    }

    /// Inspects a container if, and for as long as, that would tell something new.
    pub(super) async fn freshen(&self, id: &str) -> Result<()> {
        let Some(record) = self.index.get(id) else {
            return Ok(());
        };
        let _asked_once = record.inspecting.lock().await;
        for _ in 0..INSPECT_ATTEMPTS {
            let Some(record) = self.index.get(id).filter(|record| record.stale) else {
                return Ok(());
            };
            match self.engine.inspect_container(id).await {
                Ok(found) => {
                    let message = self.termination_message(&record, &found).await;
                    self.index.inspected(id, record.touched, &found, &message);
                }
                Err(error) if error.is_not_found() => self.index.removed(id),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What a container left at its termination message path, or the tail of its log.
    async fn termination_message(
        &self,
        record: &Record,
        found: &ContainerInspectResponse,
    ) -> String {
        let Kind::Container {
            termination_path,
            fallback_to_logs,
            ..
        } = &record.ours.kind
        else {
            return String::new();
        };
        termination::message(
            &*self.engine,
            &record.id,
            found,
            termination_path,
            *fallback_to_logs,
        )
        .await
    }
}

#[async_trait]
impl Runtime for DockerManager {
    async fn version(&self) -> Result<Version> {
        Ok(Version::new(self.version.get().await?.version))
    }

    async fn api_version(&self) -> Result<Version> {
        let facts = self.engine_facts().await?;
        Ok(Version::new(format!(
            "{}.{}",
            facts.api_version.0, facts.api_version.1
        )))
    }

    async fn status(&self) -> RuntimeStatus {
        let condition = |kind, failure: Option<(&'static str, String)>| match failure {
            None => RuntimeCondition {
                kind,
                status: true,
                reason: "",
                message: String::new(),
            },
            Some((reason, message)) => RuntimeCondition {
                kind,
                status: false,
                reason,
                message,
            },
        };
        let failure = self
            .engine
            .version()
            .await
            .err()
            .map(|error| ("DockerDaemonNotReady", error.to_string()));
        let no_network = self
            .network
            .status()
            .await
            .err()
            .map(|error| ("NetworkPluginNotReady", error.to_string()));
        RuntimeStatus {
            conditions: vec![
                condition(RUNTIME_READY, failure),
                condition(NETWORK_READY, no_network),
            ],
        }
    }

    async fn garbage_collect(
        &self,
        policy: ContainerGcPolicy,
        pods: &dyn PodStateProvider,
        evict_non_deleted: bool,
    ) -> GcOutcome {
        self.collect(policy, pods, evict_non_deleted).await
    }

    async fn get_pods(&self, all: bool) -> Result<Pods> {
        self.list(false).await?;
        Ok(Pods(self.index.pods(all)))
    }

    async fn get_pod_status(&self, uid: &PodUid, full_name: &FullName) -> Result<PodStatus> {
        if !self.index.is_complete() {
            self.list(true).await?;
        }
        let mut records = self.index.of_pod(uid);
        // What ends while others are being looked at is looked at too, within reason: a status
        // without the reason why would be told, and taken back at once.
        for _ in 0..INSPECT_ATTEMPTS {
            let stale = records.iter().filter(|record| record.stale);
            let looks: Vec<_> = stale.map(|record| self.freshen(&record.id)).collect();
            if looks.is_empty() {
                break;
            }
            for looked in join_all(looks).await {
                looked?;
            }
            records = self.index.of_pod(uid);
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
        replaces: &Pod,
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        self.prepare_start(pod, replaces, cancel).await
    }

    async fn check_pod(
        &self,
        pod: &Arc<Pod>,
        replaces: Option<&Pod>,
    ) -> Result<PodCheck, SyncError> {
        self.check_start(pod, replaces).await
    }

    async fn sync_pod(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        self.walk(pod, status, plan, cancel).await
    }

    async fn kill_pod(
        &self,
        pod: Option<&Arc<Pod>>,
        running: &RunningPod,
        grace_override: Option<Duration>,
    ) -> PodSyncResult {
        let stop = self.stop_pod(pod, running, grace_override);
        let (result, made) = calls::noted(stop).await;
        occurrences::engine_called(&self.telemetry, &running.full_name, &running.uid, &made);
        result
    }

    async fn release_volumes(&self, uid: &PodUid) -> Result<()> {
        self.stopped_records(uid)?;
        let for_disk = uid.clone();
        self.on_disk(move |volumes| volumes.release(&for_disk))
            .await?;
        self.objects.release(uid);
        Ok(())
    }

    async fn delete_pod(&self, uid: &PodUid) -> Result<()> {
        let records = self.stopped_records(uid)?;
        for removed in join_all(records.iter().map(|record| self.remove(&record.id))).await {
            removed?;
        }
        let for_disk = uid.clone();
        self.on_disk(move |volumes| volumes.remove_pod(&for_disk))
            .await?;
        self.remove_cgroups(uid).await;
        self.objects.release(uid);
        Ok(())
    }

    async fn refresh_volumes(
        &self,
        pod: &Arc<Pod>,
        cancel: &CancellationToken,
    ) -> Result<Option<Duration>, SyncError> {
        self.refresh(pod, cancel).await
    }

    fn references_changed(&self, uid: &PodUid) -> watch::Receiver<u64> {
        self.objects.subscribe(uid)
    }

    async fn list_orphans(&self, keep: &BTreeSet<PodUid>) -> Vec<PodUid> {
        self.clean_log_links().await;
        // A directory that can't be read holds nothing that could be removed.
        let on_disk = self.on_disk(VolumeManager::list_pod_dirs).await;
        let mut orphans = on_disk.unwrap_or_default();
        orphans.retain(|uid| !keep.contains(uid) && self.index.of_pod(uid).is_empty());
        orphans
    }

    async fn run_in_container(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<CommandOutput> {
        self.run_command(id, command, timeout).await
    }

    async fn exec_in_container(&self, id: &ContainerId, options: &ExecOptions) -> Result<Session> {
        self.exec(id, options).await
    }

    async fn attach_container(&self, id: &ContainerId, streams: StreamOptions) -> Result<Session> {
        self.attach(id, streams).await
    }

    async fn port_forward(&self, uid: &PodUid, port: u16) -> Result<DuplexStream> {
        self.forward(uid, port).await
    }

    async fn stat_in_container(&self, id: &ContainerId, path: &str) -> Result<PathStat> {
        Ok(self.engine.stat_path(&id.id, path).await?)
    }

    async fn copy_from_container(&self, id: &ContainerId, path: &str) -> Result<TarStream> {
        let tar = self.engine.download(&id.id, path).await?;
        Ok(tar.map(|piece| piece.map_err(RuntimeError::from)).boxed())
    }

    async fn copy_to_container(&self, id: &ContainerId, dir: &str, tar: TarInput) -> Result<()> {
        Ok(self.engine.upload(&id.id, dir, tar).await?)
    }

    async fn get_container_logs(
        &self,
        id: &ContainerId,
        options: &LogOptions,
    ) -> Result<LogStream> {
        let found = self.engine.inspect_container(&id.id).await?;
        let tty = found.config.and_then(|config| config.tty).unwrap_or(false);
        container_logs(&*self.engine, &id.id, options, tty).await
    }

    async fn watch(&self) -> Result<BoxStream<'static, PodEvent>> {
        let messages = self.engine.events(&self.owner, None).await?;
        let image_changes = self.engine.image_changes().await?;
        self.images.forget_all();
        // What happened before the subscription only a list can tell; so that a call that needs
        // the whole picture lists first, the gap is marked before anybody hears of it.
        self.index.begin_gap();
        self.with_facts(|facts| {
            facts.engine = None;
            facts.sandbox_image = None;
        });
        self.network.forget();
        self.version.forget();
        self.engine_facts().await?;
        if let Err(error) = self.network.status().await {
            occurrences::network_not_ready(&self.telemetry, &error.to_string());
        }
        let gap = PodEvent::Gap {
            cause: "subscribed to the Engine's events".to_owned(),
        };
        let index = self.index.clone();
        let owner = self.owner.clone();
        let changes = messages
            .take_while(|message| futures::future::ready(message.is_ok()))
            .filter_map(move |message| {
                let change = message
                    .ok()
                    .and_then(|message| events::apply(&index, &owner, &message));
                futures::future::ready(change)
            });
        // A name may stand for another image now: what is known of images is asked for anew.
        let images = Arc::clone(&self.images);
        let image_changes = image_changes
            .take_while(|change| futures::future::ready(change.is_ok()))
            .filter_map(move |_| {
                images.forget_all();
                futures::future::ready(None)
            });
        // The end of the containers' events is the end of both.
        let end = stream::once(futures::future::ready(None));
        let news = stream::select(changes.map(Some).chain(end), image_changes)
            .take_while(|change| futures::future::ready(change.is_some()))
            .filter_map(futures::future::ready);
        Ok(stream::once(futures::future::ready(gap))
            .chain(news)
            .boxed())
    }
}
