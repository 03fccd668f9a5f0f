//! Wire, supervise, shut down.
//!
//! ```text
//!  sources ──► merge ──► wanted ──► PodWorkers ──► DockerManager ──► Engine
//!                 │                    ▲  │ looks                      │
//!                 │                    │  ▼                            │
//!                 │                  Cache ◄──────── Observer ◄── events
//!                 └──► View ◄── Board (workers)        │
//!                        │  └──────────── reach ◄──────┘
//!                        └──► socket, metrics, health
//! ```

mod cluster;
mod counts;
pub mod desired;
mod facts;
mod gc;
mod host;
mod images;
pub mod lock;
mod news;
mod node_api;
pub mod owner;
mod readings;
mod serve;
mod stats;
mod tell;
mod view;

use std::sync::Arc;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{ApiAccess, Config, ImageGcMode, Resolved};
use crate::observe::Observer;
use crate::prober::{KEPT_FILE, ProbeManager};
use crate::server::NodeStats;
use crate::server::health::Served;
use crate::server::view::AgentView;
use crate::source::files::FileSource;
use crate::source::http::{HttpOptions, HttpSource};
use crate::source::last_good::DIRECTORY as LAST_GOOD_DIR;
use crate::source::{SourceReader, source};
use crate::store::board::board;
use crate::store::cache::cache;
use crate::store::cell::cell;
use crate::store::looks::look_requests;
use crate::store::pods::PodManager;
use crate::store::probes::probe_results;
use crate::worker::{Clock, Context, PodWorkers, Wanted};
use cluster::{Cluster, Links};
use desired::MergeTask;
use host::HostLook;
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::ImageGcReport;
use mirrorlet_core::image_gc::ImageGcPolicy;
use mirrorlet_core::manifest::unsupported_fields;
use mirrorlet_core::merge::Merged;
use mirrorlet_docker::engine::SharedEngine;
use mirrorlet_docker::image::{ImageGc, ImageGcOptions, LocalDisk};
use mirrorlet_docker::{
    BollardEngine, DockerManager, DockerManagerOptions, ImagePuller, InstrumentedEngine,
    PullerOptions,
};
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_host::volume::HostFiles;
use mirrorlet_runtime::Runtime;
use mirrorlet_runtime::gc::ContainerGc;
use mirrorlet_runtime::objects::{NoObjects, Objects};
use news::{News, start_news, tell_cluster_news, tell_pull_news};
use stats::ServedStats;
use view::View;

/// How long the parts are given to end once the agent is told to stop. They only drop what they
/// hold: containers stay, and every call that is cut off is found again at the next start.
const DRAIN_MAX: std::time::Duration = std::time::Duration::from_millis(500);

/// File under the root that tells which images were pulled.
const PULLED_IMAGES: &str = "pulled-images.json";

/// A part of the agent that runs until the agent stops.
type Parts = JoinSet<&'static str>;

/// Runs the agent until it is told to stop.
///
/// # Errors
/// The agent can't start, or a part of it that it can't live without failed.
pub async fn run(resolved: Resolved) -> anyhow::Result<()> {
    let cancel = CancellationToken::new();
    let engine = BollardEngine::connect(&resolved.config.docker)?;
    let agent = Agent::start(resolved, Arc::new(engine), &cancel).await?;
    agent.run_until_told(cancel).await
}

/// A running agent.
pub struct Agent {
    parts: Parts,
    /// What it tells about itself.
    pub view: Arc<dyn AgentView>,
    /// What its pods and its machine use.
    pub stats: Arc<dyn NodeStats>,
    /// What it counts.
    pub telemetry: Telemetry,
    // Held as long as the agent runs.
    _lock: lock::RootLock,
}

impl Agent {
    /// Wires all parts over that Engine and starts them. Tests start it over an Engine that
    /// injects faults.
    ///
    /// # Errors
    /// The root is in use or can't be written, or an address can't be bound.
    pub async fn start(
        resolved: Resolved,
        engine: SharedEngine,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let config = resolved.config.clone();
        let lock = lock::RootLock::acquire(&config.root)?;
        let owner = owner::owner_id(&config.root)
            .with_context(|| format!("can't keep the owner id in {}", config.root.display()))?;
        make_default_manifests_dir(&config)?;
        let telemetry = Telemetry::new();
        let (looks, look_queue) = look_requests();
        let doubtful = looks.clone();
        let doubt = Arc::new(move || doubtful.doubt());
        let engine = InstrumentedEngine::doubting(engine, telemetry.metrics.clone(), doubt);
        let mut parts = Parts::new();
        occurrences::agent_started(&config.root, config.node_name.as_str(), &config.docker);

        let mut sources = start_sources(&config, &mut parts, cancel)?;
        let node_listener = match config.kubeconfig {
            ApiAccess::None => None,
            ApiAccess::Kubeconfig(_) | ApiAccess::InCluster => node_api::listen(&config).await?,
        };
        let mut node = facts::node_facts(&config);
        let mut machine = readings::node_facts(&config, &owner, &node);
        node.allocatable = machine.capacity.less(&machine.reserved);
        machine.node_api_port = match &node_listener {
            Some(listener) => Some(listener.local_addr()?.port()),
            None => None,
        };
        let cluster = Cluster::start(&config, machine.clone(), &telemetry, &mut parts, cancel)?;
        let client = cluster.as_ref().map(|cluster| cluster.client.clone());
        sources.extend(cluster.as_ref().map(|cluster| cluster.pods.clone()));
        let node_ips = node.node_ips.clone();
        let objects: Arc<dyn Objects> = match &cluster {
            Some(cluster) => Arc::clone(&cluster.objects) as Arc<dyn Objects>,
            None => Arc::new(NoObjects::default()),
        };
        let images = Arc::new(ImagePuller::new(
            Arc::clone(&engine),
            PullerOptions {
                pulls: config.pulls(),
                docker_config: config.docker_config.clone(),
                record: Some(config.root.join(PULLED_IMAGES)),
            },
        ));
        let host_files = HostFiles::new(config.host_root.clone());
        if let Err(error) = host_files.forget_own_volumes(&config.root) {
            occurrences::host_files_not_forgotten(&error.to_string());
        }
        let disk = LocalDisk {
            is_engine_local: config.docker.starts_with("unix://"),
            host: host_files.clone(),
        };
        let (host_look, lacks) = HostLook::new(
            &config,
            Arc::clone(&engine) as SharedEngine,
            host_files.clone(),
            telemetry.clone(),
        )
        .await;
        let image_gc = start_image_gc(
            &config, &engine, &images, disk, &telemetry, &mut parts, cancel,
        );
        let runtime = DockerManager::new(
            Arc::clone(&engine),
            Arc::clone(&images),
            telemetry.clone(),
            DockerManagerOptions {
                owner: owner.clone(),
                root: config.root.clone(),
                node,
                pod_infra_image: config.pod_infra_image.clone(),
                engine_concurrency: config.engine_concurrency,
                objects,
            },
        );
        let runtime = runtime
            .with_host_files(host_files)
            .with_pod_logs_dir(config.pod_logs_dir.as_deref());
        let runtime = Arc::new(runtime);
        let probe_client = runtime.probe_client();
        let sessions = runtime.exec_sessions();
        spawn(&mut parts, "exec sessions", sessions.run(cancel.clone()));
        let runtime: Arc<dyn Runtime> = runtime;

        let (cache_writer, cache_reader) = cache();
        let (observer, reach, listed) = Observer::new(
            Arc::clone(&runtime),
            cache_writer,
            look_queue,
            config.sweep_period,
            telemetry.clone(),
        );
        spawn(&mut parts, "observer", observer.run(cancel.clone()));
        let looking = host_look.run(reach.clone(), cancel.clone());
        spawn(&mut parts, "host access", looking);

        let (merged_writer, merged) = cell(Merged::default());
        let (wanted_writer, wanted) = watch::channel(Arc::new(Wanted::default()));
        let merge = MergeTask::new(
            sources.clone(),
            listed.clone(),
            merged_writer,
            wanted_writer,
            telemetry.clone(),
        );
        spawn(&mut parts, "merge", merge.run(cancel.clone()));

        let (board_writer, board) = board();
        let (probe_writer, probes) = probe_results();
        let probing = ProbeManager::new(
            Arc::clone(&runtime),
            probe_client,
            board.clone(),
            probe_writer,
            telemetry.clone(),
            Arc::new(Timestamp::now),
            Some(config.root.join(KEPT_FILE)),
        );
        spawn(&mut parts, "prober", probing.run(cancel.clone()));
        // Without an API server nothing but host ports and the operating system is looked at.
        let admit_node = match &cluster {
            Some(cluster) => cluster.admit.clone(),
            None => cell(AdmitNode::default()).1,
        };
        let policy = gc::policy(&config);
        let context = Arc::new(Context {
            runtime: Arc::clone(&runtime),
            cache: cache_reader.clone(),
            looks,
            probes,
            board: board_writer,
            telemetry: telemetry.clone(),
            node_ips,
            backoff_max: config.max_container_backoff,
            gc: policy,
            clock: Clock::default(),
            node: admit_node,
            unsupported: unsupported_fields,
        });
        let manager = Arc::new(PodManager::default());
        let workers = PodWorkers::new(context, Arc::clone(&manager), wanted, listed.clone());
        let pod_states = workers.pod_states();
        let gc = ContainerGc::new(Arc::clone(&runtime), policy, pod_states);
        let collecting = gc::collect(gc, config.root.clone(), telemetry.clone(), cancel.clone());
        spawn(&mut parts, "container gc", collecting);
        spawn(&mut parts, "workers", workers.run(cancel.clone()));

        let counting = counts::count_pods(board.clone(), telemetry.metrics.clone(), cancel.clone());
        spawn(&mut parts, "counts", counting);
        let (version, changes) = watch::channel(0_u64);
        let news = News {
            reach: reach.clone(),
            pods: board.changed(),
            merged: merged.clone(),
            version: version.clone(),
        };
        let telling = tell_pull_news(images.progressed(), version.clone(), cancel.clone());
        spawn(&mut parts, "pull news", telling);
        let engine_reader = start_news(&mut parts, cancel, &config, &runtime, news);
        let cluster = cluster.map(|cluster| {
            let links = Links {
                reach: reach.clone(),
                engine: engine_reader.clone(),
                images: Arc::clone(&images),
                merged: merged.clone(),
                board: board.clone(),
                listed,
                manager,
            };
            cluster.link(&config, links, &telemetry, &mut parts, cancel)
        });
        if let Some(cluster) = cluster.clone() {
            let telling = tell_cluster_news(cluster, version, cancel.clone());
            spawn(&mut parts, "cluster news", telling);
        }
        let seen = cluster.as_ref().map(|cluster| cluster.images.clone());
        let provider = Arc::new(stats::provider(&config, engine, seen, board.clone()));
        let (measuring, told) = (Arc::clone(&provider), cancel.clone());
        spawn(&mut parts, "disk usage", async move {
            measuring.run(told).await;
        });
        let stats: Arc<dyn NodeStats> = Arc::new(ServedStats {
            provider,
            metrics: telemetry.metrics.clone(),
        });
        let view: Arc<dyn AgentView> = Arc::new(View {
            resolved,
            owner,
            started_at: Timestamp::now(),
            sources,
            merged,
            board,
            cache: cache_reader,
            reach,
            engine: engine_reader,
            lacks,
            images,
            image_gc,
            runtime,
            changes,
            journal: telemetry.journal.clone(),
            cluster,
        });
        let served = Served {
            view: Arc::clone(&view),
            stats: Arc::clone(&stats),
            metrics: telemetry.metrics.clone(),
        };
        if let (Some(listener), Some(client)) = (node_listener, &client) {
            let parts = &mut parts;
            node_api::start(&config, listener, &machine, client, &served, parts, cancel)?;
        }
        serve::start(&config, served, &mut parts, cancel).await?;
        Ok(Self {
            parts,
            view,
            stats,
            telemetry,
            _lock: lock,
        })
    }

    /// Waits for a signal, or for a part that ended though nobody told it to.
    async fn run_until_told(mut self, cancel: CancellationToken) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let failed = tokio::select! {
            _ = terminate.recv() => { occurrences::agent_stopping("SIGTERM"); None }
            _ = interrupt.recv() => { occurrences::agent_stopping("SIGINT"); None }
            Some(ended) = self.parts.join_next() => Some(ended),
        };
        cancel.cancel();
        self.drain().await;
        match failed {
            None => Ok(()),
            Some(Ok(part)) => anyhow::bail!("the agent's {part} ended unexpectedly"),
            Some(Err(error)) => Err(error).context("a part of the agent failed"),
        }
    }

    /// Waits, within a bound, for all parts to end after they were cancelled.
    pub async fn drain(&mut self) {
        let all = async { while self.parts.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_MAX, all).await.is_err() {
            self.parts.shutdown().await;
        }
    }
}

fn spawn(parts: &mut Parts, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
    parts.spawn(async move {
        part.await;
        name
    });
}

/// The default manifest directory is made with its root; one that was named must be there already.
/// One that has gone since is not made again: an empty directory would say that every pod of it
/// is to be stopped, its absence only that something is wrong.
fn make_default_manifests_dir(config: &Config) -> anyhow::Result<()> {
    let last_good = config.root.join(LAST_GOOD_DIR);
    let had_manifests = std::fs::read_dir(last_good).is_ok_and(|mut dir| dir.next().is_some());
    if config.manifests.parent() == Some(config.root.as_path()) && !had_manifests {
        std::fs::create_dir_all(&config.manifests)
            .with_context(|| format!("can't make {}", config.manifests.display()))?;
    }
    Ok(())
}

fn start_sources(
    config: &Config,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<Vec<SourceReader>> {
    let mut readers = Vec::new();
    let files = FileSource::new(config);
    let (writer, reader) = source(files.name());
    readers.push(reader);
    spawn(parts, "file source", files.run(writer, cancel.clone()));
    for url in &config.manifest_urls {
        let http = HttpSource::new(HttpOptions::new(config, url))?;
        let (writer, reader) = source(http.name());
        readers.push(reader);
        spawn(parts, "URL source", http.run(writer, cancel.clone()));
    }
    Ok(readers)
}

/// Starts image garbage collection, unless it is off; hands out what the report tells of it.
fn start_image_gc(
    config: &Config,
    engine: &SharedEngine,
    images: &Arc<ImagePuller>,
    disk: LocalDisk,
    telemetry: &Telemetry,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> Option<watch::Receiver<ImageGcReport>> {
    let max_age = config.maximum_image_gc_age;
    let policy = ImageGcPolicy {
        high_threshold_percent: config.image_gc_high_threshold,
        low_threshold_percent: config.image_gc_low_threshold,
        min_age: config.minimum_image_ttl,
        max_age: (!max_age.is_zero()).then_some(max_age),
    };
    // As upstream's kubelet: nothing would ever be removed.
    let never = policy.high_threshold_percent == 100 && policy.max_age.is_none();
    if config.image_gc == ImageGcMode::Off || never {
        return None;
    }
    let options = ImageGcOptions {
        policy,
        all: config.image_gc == ImageGcMode::All,
        pod_infra_image: config.pod_infra_image.clone(),
        disk: Arc::new(disk),
    };
    let (engine, images) = (Arc::clone(engine), Arc::clone(images));
    let gc = ImageGc::new(engine, images, telemetry.clone(), options, Timestamp::now());
    let report = gc.report();
    spawn(parts, "image garbage collection", gc.run(cancel.clone()));
    Some(report)
}
