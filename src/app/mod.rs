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

pub mod approve;
pub mod cleanup;
pub mod cluster;
pub mod core;
mod counts;
mod descriptors;
pub mod desired;
mod dns;
mod docker;
mod embedded;
mod eviction;
mod facts;
mod gc;
mod host;
mod images;
pub mod lock;
mod manifest_reporter;
mod news;
mod node_api;
pub mod owner;
mod parts;
mod readings;
mod serve;
mod sources;
mod stats;
mod systemd;
mod used_engine;
mod view;

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::core::{Core, CoreOptions, Upkeep};
use self::facts::Machine;
use crate::config::{ApiAccess, Config, Resolved};
use crate::server::NodeStats;
use crate::server::health::Served;
use crate::server::view::AgentView;
use crate::source::SourceReader;
use crate::store::cell::{Reader, cell};
use crate::store::looks::{LookRequests, look_requests};
use crate::store::pods::{PodManager, pod_manager};
use crate::store::settled::SettledPods;
use crate::worker::Clock;
use cluster::{Cluster, ClusterLinks, Links};
use docker::{Docker, DockerInputs};
use lock::{LockError, RootLock};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::node::{NodeFacts, initial_node};
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::SharedEngine;
use mirrorlet_host::app_armor_is_enabled;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::gc::ContainerGc;
use mirrorlet_runtime::objects::{ManifestObjects, PodObjects};
use news::{News, publish_cluster_news, publish_pull_news, start_news};
pub use parts::Parts;
use parts::{drain, spawn, spawn_until, until_stopped};
use sources::{Directories, make_default_manifests_dir, start_sources};
use stats::ServedStats;
use used_engine::UsedEngine;
use view::View;

/// Runs the agent until it is stopped.
///
/// # Errors
/// The agent can't start, or an essential part of it failed.
pub async fn run(resolved: Resolved) -> anyhow::Result<()> {
    descriptors::raise_limit();
    let cancel = CancellationToken::new();
    let engine = BollardEngine::connect(&resolved.config.docker)?;
    let mut agent = Agent::start(resolved, Arc::new(engine), &cancel).await?;
    // First, so that no notification of the watchdog comes before it.
    let readiness = systemd::ready();
    let keep_alive = systemd::keep_alive(readiness);
    spawn_until(&mut agent.parts, &cancel, "watchdog", keep_alive);
    agent.run_until_stopped(cancel).await
}

/// A running agent.
pub struct Agent {
    parts: Parts,
    /// Its view for the servers.
    pub view: Arc<dyn AgentView>,
    /// The resource usage of pods and the machine.
    pub stats: Arc<dyn NodeStats>,
    /// Its metrics.
    pub telemetry: Telemetry,
    // Held as long as the agent runs.
    _lock: RootLock,
}

impl Agent {
    /// Wires all parts over that Engine and starts them. Tests start it over an Engine that
    /// injects faults.
    ///
    /// # Errors
    /// The root is in use or can't be written, or an address can't be bound.
    #[expect(
        clippy::too_many_lines,
        reason = "one statement for each part that is wired"
    )]
    pub async fn start(
        resolved: Resolved,
        engine: SharedEngine,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let config = resolved.config.clone();
        let lock = RootLock::acquire(&config.root).map_err(LockError::of_start)?;
        let orphans = owner::orphans(&config.root);
        let engine_before = UsedEngine::other_address(&config.root, &config.docker);
        let engine_is_new = UsedEngine::is_unknown(&config.root);
        let owner = owner_of(&config)?;
        make_default_manifests_dir(&config)?;
        let telemetry = Telemetry::new();
        let (looks, look_queue) = look_requests();
        count_calls(&engine, &telemetry, looks.clone());
        let (listeners, node_listener) = listen(&config).await?;
        let mut parts = Parts::new();
        occurrences::agent_started(&config.root, config.node_name.as_str(), &config.docker);

        let (mut sources, directories) = start_sources(&config, &mut parts, cancel)?;
        let dns = dns::start(&config, (&engine, &owner), &mut parts, cancel).await?;
        sources.extend(dns.as_ref().map(|(_, reader, _)| reader.clone()));
        let machine = Machine::read(&config);
        let (addresses, ips) = cell(machine.ips.clone());
        if config.node_ips.is_empty() {
            let keeping = facts::keep_addresses(addresses, facts::own_ips);
            spawn_until(&mut parts, cancel, "addresses", keeping);
        }
        let (pods, api, manager) = pod_manager();
        let port = node_listener.as_ref().map(|bound| bound.address.port());
        let node = readings::node_facts(&config, &owner, &machine, port);
        let mut cluster = Cluster::start(
            &config,
            engine_is_new,
            node.clone(),
            api,
            &telemetry,
            &mut parts,
            cancel,
        )?;
        if let Some(cluster) = &mut cluster {
            cluster.node_api = node_listener.as_ref().map(node_api::Listening::problem);
        }
        let client = cluster.as_ref().map(|cluster| cluster.tasks.client.clone());
        sources.extend(cluster.as_ref().map(|cluster| cluster.tasks.pods.clone()));
        let objects = pod_objects(cluster.as_ref());
        let inputs = DockerInputs {
            engine: Arc::clone(&engine),
            owner: owner.clone(),
            orphans,
            node: facts::for_containers(&config, &machine, node.allocatable(), ips.clone()),
            objects: objects.clone(),
            workload_images: images::of_workloads(sources.clone()),
            telemetry: telemetry.clone(),
        };
        let docker = Docker::start(&config, inputs, &mut parts, cancel).await;
        let (eviction, pressed, evictions) = eviction::ends();
        let admit = admit_node(&node, cluster.as_ref(), pressed.clone(), &mut parts, cancel);
        let options = CoreOptions {
            looks,
            look_queue,
            node_ips: ips.clone(),
            probe_client: docker.probe_client.clone(),
            evictions,
            settled: settled_pods(cluster.as_ref()),
            node: admit,
            clock: Clock::default(),
            pods,
            needed_images: docker.needed_images.clone(),
            objects: objects.manifests,
            salt: owner::salt(&config.root).context("failed to use the salt file")?,
            telemetry: telemetry.clone(),
        };
        let (runtime, readers) = (&docker.runtime, sources.clone());
        let core = Core::start(&config, runtime, readers, options, &mut parts, cancel);
        let upkeep = Upkeep {
            sources: sources.clone(),
            pressures: pressed.clone(),
            dns: dns.as_ref().map(|(_, _, table)| table.clone()),
            telemetry: telemetry.clone(),
        };
        let collector = core.tend(&config, runtime, upkeep, &mut parts, cancel);
        if let Some((dns, ..)) = dns {
            let running = dns.run(core.reach.clone());
            spawn_until(&mut parts, cancel, "DNS server", running);
        }
        let served = Wired {
            resolved,
            owner,
            engine,
            engine_before,
            engine_is_new,
            sources,
            directories,
            docker,
            core,
            collector,
            manager,
            cluster,
            eviction,
            facts: node.clone(),
            addresses: ips.clone(),
            pressures: pressed,
            telemetry: telemetry.clone(),
        }
        .start(&mut parts, cancel);
        let (view, stats) = (Arc::clone(&served.view), Arc::clone(&served.stats));
        if let (Some(listener), Some(client)) = (node_listener, &client) {
            node_api::start(
                &config,
                listener,
                (&node, ips),
                client,
                &served,
                &mut parts,
                cancel,
            )?;
        }
        embedded::start(&config, &served, &mut parts, cancel)?;
        serve::start(listeners, served, &mut parts, cancel);
        Ok(Self {
            parts,
            view,
            stats,
            telemetry,
            _lock: lock,
        })
    }

    /// Waits for a signal, or for a component that ended unexpectedly.
    async fn run_until_stopped(mut self, cancel: CancellationToken) -> anyhow::Result<()> {
        let outcome = until_stopped(&mut self.parts).await;
        systemd::stopping();
        cancel.cancel();
        self.drain().await;
        outcome
    }

    /// Waits, with a time limit, for all parts to end after they were cancelled.
    pub async fn drain(&mut self) {
        drain(&mut self.parts).await;
    }
}

/// The id that marks containers as ours. A Node that has another name than before is logged.
fn owner_of(config: &Config) -> anyhow::Result<String> {
    let (root, name) = (&config.root, config.node_name.as_str());
    if config.kubeconfig != ApiAccess::None
        && let Some(before) = owner::keep_node_name(root, name)?
    {
        occurrences::node_renamed(&before, name);
    }
    let owner = owner::owner_id(root);
    owner.with_context(|| format!("failed to write the owner id to {}", config.root.display()))
}

/// The objects that pods refer to; none of an API server without one.
fn pod_objects(cluster: Option<&Cluster>) -> PodObjects {
    PodObjects::new(match cluster {
        Some(cluster) => Arc::clone(&cluster.tasks.objects) as _,
        None => Arc::new(ManifestObjects::none()),
    })
}

/// The node for admission: as the cluster has it, or from its facts without a cluster.
fn admit_node(
    facts: &NodeFacts,
    cluster: Option<&Cluster>,
    pressures: Reader<Pressures>,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> Reader<AdmitNode> {
    let known = match cluster {
        Some(_) => AdmitNode::default(),
        None => AdmitNode::of(&initial_node(facts)),
    };
    let known = known.on_host(app_armor_is_enabled());
    let (writer, reader) = cell(known.clone());
    let tasks = cluster.map(|cluster| &cluster.tasks);
    let node = tasks.map(|tasks| tasks.node.clone());
    let standing = tasks.map(|tasks| tasks.standing.clone());
    let keeping = cluster::keep_admit_node(known, node, standing, pressures, writer);
    spawn_until(parts, cancel, "admission facts", keeping);
    reader
}

/// Binds all addresses that are served, but for the embedded API's, which is tried again: before
/// anything is started, so that one that is in use keeps the agent from starting.
async fn listen(
    config: &Config,
) -> anyhow::Result<(serve::Listeners, Option<node_api::Listening>)> {
    let node_api = match config.kubeconfig {
        ApiAccess::None => None,
        ApiAccess::Kubeconfig(_) | ApiAccess::InCluster => node_api::listen(config).await?,
    };
    Ok((serve::bind(config).await?, node_api))
}

/// Receives reports of settled pods; without an API server there is no receiver.
fn settled_pods(cluster: Option<&Cluster>) -> SettledPods {
    cluster.map_or_else(SettledPods::default, |cluster| {
        cluster.tasks.settled.clone()
    })
}

/// Counts the Engine's calls. One that waits long for its answer wakes the observer.
fn count_calls(engine: &SharedEngine, telemetry: &Telemetry, looks: LookRequests) {
    let doubt = Arc::new(move || looks.doubt());
    let meter = engine.meter();
    meter.count_in(telemetry.metrics.clone(), Some(doubt));
}

/// The running parts; the remaining ones to start depend on them.
struct Wired {
    resolved: Resolved,
    owner: String,
    engine: SharedEngine,
    engine_before: Option<String>,
    engine_is_new: bool,
    sources: Vec<SourceReader>,
    directories: Directories,
    docker: Docker,
    core: Core,
    collector: Arc<ContainerGc>,
    manager: PodManager,
    cluster: Option<Cluster>,
    eviction: eviction::Ends,
    facts: NodeFacts,
    addresses: Reader<Vec<IpAddr>>,
    pressures: Reader<Pressures>,
    telemetry: Telemetry,
}

impl Wired {
    /// Starts the tasks for change notifications, the API server and metrics; returns the parts for the
    /// servers.
    #[expect(
        clippy::too_many_lines,
        reason = "one statement for each part that is wired"
    )]
    fn start(self, parts: &mut Parts, cancel: &CancellationToken) -> Served {
        let config = &self.resolved.config;
        let (docker, core) = (self.docker, self.core);
        let looking = docker.host_look.run(core.reach.clone());
        spawn_until(parts, cancel, "host access", looking);
        let (version, changes) = watch::channel(0_u64);
        let news = News {
            reach: core.reach.clone(),
            pods: core.board.changed(),
            sources: self.sources.iter().map(|s| s.state.clone()).collect(),
            merged: core.merged.clone(),
            histories: core.rollouts.reader(),
            jobs: core.jobs.reader(),
            unkept: core.rollouts.unkept(),
            pressures: self.pressures.clone(),
            addresses: self.addresses.clone(),
            missing_access: docker.missing_access.clone(),
            members: core.cache.members(),
            cache: core.cache.clone(),
            is_listed: false,
            version: version.clone(),
        };
        let publishing = publish_pull_news(docker.images.progressed(), version.clone());
        spawn_until(parts, cancel, "pull news", publishing);
        let engine_reader = start_news(parts, cancel, &config.docker, &docker.runtime, news);
        let cluster = self.cluster.map(|cluster| {
            let links = Links {
                reach: core.reach.clone(),
                engine: engine_reader.clone(),
                images: Arc::clone(&docker.images),
                pressures: self.eviction.pressures.reader(),
                addresses: self.addresses.clone(),
                tasks: ClusterLinks {
                    merged: core.merged.clone(),
                    board: core.board.clone(),
                    listed: core.listed,
                    manager: self.manager.clone(),
                },
            };
            cluster.link(links, &self.telemetry, parts, cancel)
        });
        if let Some(cluster) = cluster.clone() {
            let publishing = publish_cluster_news(cluster, version);
            spawn_until(parts, cancel, "cluster news", publishing);
        }
        let seen = cluster.as_ref().map(|cluster| cluster.images.clone());
        let board = core.board.clone();
        let engine = (self.engine, docker.reconnects);
        let provider = stats::provider(config, docker.files, engine, seen, board);
        let (measuring, stop) = (Arc::clone(&provider), cancel.clone());
        spawn(parts, "disk usage", async move {
            measuring.run(stop).await;
        });
        let host = eviction::Host {
            root: config.root.clone(),
            stats: Arc::clone(&provider),
            containers: self.collector,
            images: docker.image_reclaim,
            telemetry: self.telemetry.clone(),
        };
        let board = core.board.clone();
        let shortages = self.eviction.start(config, host, board, parts, cancel);
        let metrics = self.telemetry.metrics.clone();
        Served {
            stats: Arc::new(ServedStats {
                provider: Arc::clone(&provider),
                metrics: metrics.clone(),
            }),
            metrics,
            view: Arc::new(View {
                resolved: self.resolved,
                owner: self.owner,
                started_at: Timestamp::now(),
                sources: self.sources,
                merged: core.merged,
                manager: self.manager,
                board: core.board,
                rollouts: core.rollouts,
                jobs: core.jobs,
                claims: core.merge.claims,
                directories: self.directories,
                merge: core.merge.refresh,
                facts: self.facts,
                addresses: self.addresses,
                graces: core.graces,
                pressures: self.pressures,
                cache: core.cache,
                reach: core.reach,
                engine: engine_reader,
                engine_before: self.engine_before,
                engine_is_new: self.engine_is_new,
                missing_access: docker.missing_access,
                images: docker.images,
                image_gc: docker.image_gc,
                shortages,
                runtime: docker.runtime,
                changes,
                stats: provider,
                journal: self.telemetry.journal,
                cluster,
            }),
        }
    }
}
