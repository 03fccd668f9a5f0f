//! The core of the agent: makes the running pods match the sources. It depends on a `Runtime`, sources
//! and a clock, but not on an Engine, an API server or the readers of its state.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::desired::{MergeHandles, MergeOutputs, MergeTask};
use super::{Parts, counts, embedded, gc, spawn, spawn_until};
use crate::config::Config;
use crate::jobs::{JobHandle, JobOptions, Jobs};
use crate::names::{DnsTable, PodNames};
use crate::observe::Observer;
use crate::prober::{KEPT_FILE, ProbeManager};
use crate::rollout::{RolloutHandle, RolloutOptions, Rollouts};
use crate::source::SourceReader;
use crate::source::files::embedded_directory;
use crate::store::board::{Board, board};
use crate::store::cache::{CacheReader, cache};
use crate::store::cell::{Reader, cell};
use crate::store::claims::ClaimStore;
use crate::store::evictions::Evict;
use crate::store::graces::Graces;
use crate::store::looks::{LookRequests, Request};
use crate::store::node_edits::NodeEditsHandle;
use crate::store::pods::PodWriter;
use crate::store::probes::{ProbeReader, probe_results};
use crate::store::settled::SettledPods;
use crate::store::workloads::WorkloadStore;
use crate::worker::{Clock, Context, KnownVersions, PodWorkers};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::manifest::unsupported_fields;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::observed::Pods;
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::Runtime;
use mirrorlet_runtime::gc::{ContainerGc, PodStateProvider};
use mirrorlet_runtime::objects::ManifestObjects;

/// The inputs of the core, besides its runtime and its sources.
pub struct CoreOptions {
    /// Asks the observer for looks.
    pub looks: LookRequests,
    /// The receiving end of these requests.
    pub look_queue: mpsc::Receiver<Request>,
    /// Sends the requests of probes.
    pub probe_client: Client,
    /// Addresses of the node, primary first.
    pub node_ips: Reader<Vec<IpAddr>>,
    /// The clock.
    pub clock: Clock,
    /// Orders to evict pods.
    pub evictions: mpsc::Receiver<Evict>,
    /// The pods that have settled.
    pub settled: SettledPods,
    /// The node as admission sees it.
    pub node: Reader<AdmitNode>,
    /// Publishes the wanted pods.
    pub pods: PodWriter,
    /// Publishes the images that image collection must keep.
    pub needed_images: watch::Sender<BTreeSet<String>>,
    /// A text that only this machine knows.
    pub salt: String,
    /// Receives the objects of manifests.
    pub objects: Arc<ManifestObjects>,
    /// Metrics and the journal.
    pub telemetry: Telemetry,
}

/// The ends by which others read the core.
pub struct Core {
    /// The observed pods.
    pub cache: CacheReader,
    /// Whether the runtime answers.
    pub reach: watch::Receiver<RuntimeReach>,
    /// The pods of the runtime's most recent list.
    pub listed: watch::Receiver<Option<Arc<Pods>>>,
    /// The desired pods.
    pub merged: Reader<Merged>,
    /// The workers' views of their pods.
    pub board: Board,
    /// The workers' states of pods, for collecting their remains.
    pub states: Arc<dyn PodStateProvider>,
    /// The results of probes.
    pub probes: ProbeReader,
    /// The rollouts of static pods.
    pub rollouts: RolloutHandle,
    /// The Jobs of manifests.
    pub jobs: JobHandle,
    /// The ways to reach the merge task.
    pub merge: MergeHandles,
    /// Graces that pods are given with their deletion.
    pub graces: Graces,
}

/// The inputs of the tasks that follow the core.
pub(super) struct Upkeep {
    /// All sources.
    pub(super) sources: Vec<SourceReader>,
    /// The pressures that the node is under.
    pub(super) pressures: Reader<Pressures>,
    /// The table of the DNS server, where there is one.
    pub(super) dns: Option<DnsTable>,
    /// Metrics and the journal.
    pub(super) telemetry: Telemetry,
}

impl Core {
    /// Starts observer, merge, probers and workers over that runtime.
    pub fn start(
        config: &Config,
        runtime: &Arc<dyn Runtime>,
        sources: Vec<SourceReader>,
        options: CoreOptions,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Self {
        let telemetry = options.telemetry.clone();
        let (board_writer, board) = board();
        let (rollouts, rollout_handle) = rollouts(config, runtime, &board, &options, &telemetry);
        let (cache_writer, cache) = cache();
        let (jobs, job_handle) = jobs(config, &board, &cache, &options.clock, &telemetry);
        let (observer, reach, listed) = Observer::new(
            Arc::clone(runtime),
            cache_writer,
            options.look_queue,
            config.sweep_period,
            telemetry.clone(),
        );
        let observer = observer.at(config).without(options.settled.clone());
        spawn_until(parts, cancel, "observer", observer.run());
        let (merged_writer, merged) = cell(Merged::default());
        let (wanted_writer, wanted) = watch::channel(Arc::default());
        let (merging, merge) = MergeTask::new(
            sources,
            listed.clone(),
            MergeOutputs {
                pods: options.pods,
                merged: merged_writer,
                wanted: wanted_writer,
                objects: options.objects,
                workloads: WorkloadStore::load(&config.root),
            },
            rollouts.following(reach.clone()),
            jobs,
            ClaimStore::load(&config.root),
            telemetry.clone(),
        );
        spawn(parts, "merge", merging.run(cancel.clone()));
        let (client, pods) = (options.probe_client, (&board, &listed));
        let client = (client, options.clock.clone());
        let probes = start_probers(config, runtime, client, pods, &telemetry, parts, cancel);
        let graces = Graces::default();
        let context = Arc::new(Context {
            runtime: Arc::clone(runtime),
            cache: cache.clone(),
            looks: options.looks,
            probes: probes.clone(),
            board: board_writer,
            telemetry,
            node_ips: options.node_ips,
            backoff_max: config.max_container_backoff,
            gc: gc::policy(config),
            clock: options.clock,
            graces: graces.clone(),
            settled: options.settled,
            node: options.node,
            unsupported: unsupported_fields,
            versions: known_versions(&rollout_handle),
        });
        let workers = PodWorkers::new(context, wanted, listed.clone()).evicting(options.evictions);
        let states = workers.pod_states();
        spawn(parts, "workers", workers.run(cancel.clone()));
        Self {
            cache,
            reach,
            listed,
            merged,
            board,
            states,
            probes,
            rollouts: rollout_handle,
            jobs: job_handle,
            merge,
            graces,
        }
    }

    /// Starts container collection, which is returned, pod names and gauges.
    pub(super) fn tend(
        &self,
        config: &Config,
        runtime: &Arc<dyn Runtime>,
        upkeep: Upkeep,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Arc<ContainerGc> {
        let (policy, states) = (gc::policy(config), Arc::clone(&self.states));
        let gc = ContainerGc::new(Arc::clone(runtime), policy, states);
        let collector = start_collecting(gc, upkeep.pressures, &upkeep.telemetry, parts, cancel);
        let names = PodNames {
            runtime: Arc::clone(runtime),
            merged: self.merged.clone(),
            board: self.board.clone(),
            listed: self.listed.clone(),
            cluster_domain: config.cluster_domain.clone(),
            in_hosts_files: config.pod_names,
            dns: upkeep.dns,
        };
        spawn_until(parts, cancel, "pod names", names.run());
        let (pods, telemetry) = ((&self.merged, &self.board), &upkeep.telemetry);
        start_counts(upkeep.sources, pods, &self.jobs, telemetry, parts, cancel);
        collector
    }
}

/// Starts the collection of dead containers.
fn start_collecting(
    collector: ContainerGc,
    pressures: Reader<Pressures>,
    telemetry: &Telemetry,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> Arc<ContainerGc> {
    let collector = Arc::new(collector);
    let collecting = gc::collect(Arc::clone(&collector), pressures, telemetry.clone());
    spawn_until(parts, cancel, "container gc", collecting);
    collector
}

/// Starts the tasks that set the gauges of pods, workloads, Jobs and sources.
fn start_counts(
    sources: Vec<SourceReader>,
    (merged, board): (&Reader<Merged>, &Board),
    jobs: &JobHandle,
    telemetry: &Telemetry,
    parts: &mut Parts,
    cancel: &CancellationToken,
) {
    let metrics = telemetry.metrics.clone();
    let counting = counts::count_pods(merged.clone(), board.clone(), metrics.clone());
    spawn_until(parts, cancel, "counts", counting);
    let workloads = counts::count_workloads(sources.clone(), metrics.clone());
    spawn_until(parts, cancel, "workload counts", workloads);
    let (merged, board) = (merged.clone(), board.clone());
    let unready = counts::count_unready(sources.clone(), merged, board, metrics.clone());
    spawn_until(parts, cancel, "counts of unready pods", unready);
    let failed = counts::count_failed_jobs(jobs.reader(), metrics.clone());
    spawn_until(parts, cancel, "counts of failed Jobs", failed);
    let watching = counts::watch_sources(sources, metrics);
    spawn_until(parts, cancel, "source health", watching);
}

/// The rollouts of static pods, as the last agent on this root left them.
fn rollouts(
    config: &Config,
    runtime: &Arc<dyn Runtime>,
    board: &Board,
    options: &CoreOptions,
    telemetry: &Telemetry,
) -> (Rollouts, RolloutHandle) {
    let clock = options.clock.clone();
    let options = RolloutOptions {
        node_edits: node_edits(config),
        runtime: Arc::clone(runtime),
        objects: Arc::clone(&options.objects),
        salt: options.salt.clone(),
        board: board.clone(),
        node: options.node.clone(),
        restore: config.rollout_restore,
        needed_images: options.needed_images.clone(),
        telemetry: telemetry.clone(),
        clock: Arc::new(move || clock.now()),
    };
    Rollouts::load(&config.root, options)
}

/// The versions of static pods, by which those that run unwanted are stopped.
fn known_versions(rollouts: &RolloutHandle) -> KnownVersions {
    let rollouts = rollouts.clone();
    Arc::new(move |name, uid| rollouts.version(name, uid))
}

/// Changes that a user made to the Node through the embedded API, where that is served.
fn node_edits(config: &Config) -> NodeEditsHandle {
    if !embedded::is_wanted(config) {
        return NodeEditsHandle::none();
    }
    let directory = embedded_directory(&config.root);
    let (edits, read) = NodeEditsHandle::load(&directory);
    if let Err(error) = read {
        let words = format!(
            "failed to read the saved changes of the Node in {}: {error}; they are not applied",
            directory.display()
        );
        occurrences::server_failed("the embedded API", &words);
    }
    edits
}

/// The Jobs of manifests, as the last agent on this root left them.
fn jobs(
    config: &Config,
    board: &Board,
    cache: &CacheReader,
    clock: &Clock,
    telemetry: &Telemetry,
) -> (Jobs, JobHandle) {
    let clock = clock.clone();
    let options = JobOptions {
        board: board.clone(),
        cache: cache.clone(),
        telemetry: telemetry.clone(),
        clock: Arc::new(move || clock.now()),
    };
    Jobs::load(&config.root, options)
}

/// Starts the probers; returns the reader of their results.
fn start_probers(
    config: &Config,
    runtime: &Arc<dyn Runtime>,
    (client, clock): (Client, Clock),
    (board, listed): (&Board, &watch::Receiver<Option<Arc<Pods>>>),
    telemetry: &Telemetry,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> ProbeReader {
    let (writer, results) = probe_results();
    let probing = ProbeManager::new(
        Arc::clone(runtime),
        client,
        board.clone(),
        writer,
        telemetry.clone(),
        Arc::new(move || clock.now()),
        Some(config.root.join(KEPT_FILE)),
    )
    .following(listed.clone());
    spawn(parts, "prober", probing.run(cancel.clone()));
    results
}
