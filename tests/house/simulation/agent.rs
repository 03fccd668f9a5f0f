//! The agent of a life: its own merge task, workers, observer and cache, wired as in the program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::app::Parts;
use mirrorlet::app::cluster::ClusterLinks;
use mirrorlet::app::desired::{MergeOutputs, MergeTask};
use mirrorlet::jobs::{JobOptions, Jobs};
use mirrorlet::observe::Observer;
use mirrorlet::prober::{KEPT_FILE, ProbeManager};
use mirrorlet::rollout::{RolloutHandle, RolloutOptions, Rollouts};
use mirrorlet::source::SourceReader;
use mirrorlet::store::board::{Board, board};
use mirrorlet::store::cache::{CacheReader, cache};
use mirrorlet::store::cell::{Writer, cell};
use mirrorlet::store::claims::ClaimStore;
use mirrorlet::store::looks::look_requests;
use mirrorlet::store::pods::{PodManager, pod_manager};
use mirrorlet::store::probes::{ProbeReader, probe_results};
use mirrorlet::worker::{Clock, Context, PodWorkers, Wanted};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::merge::Merged;
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::Runtime;
use mirrorlet_testing::FakeApi;
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, Mirrors};

/// Time between two sweeps, and in lives without sweeps.
const SWEEP: Duration = Duration::from_mins(5);
const NO_SWEEP: Duration = Duration::from_hours(10_000);
/// Longest crash-loop back-off.
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// Most pods of the node: more than a life ever has.
const PODS_MAX: u32 = 1000;

/// The settings of the agents of a life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// Whether failed revisions are replaced by the last healthy one.
    pub(super) restore: bool,
    /// Whether everything is listed now and then. Where it isn't, no event is lost: all else has to be
    /// found without.
    pub(super) sweeps: bool,
}

fn spawn(parts: &mut Parts, part: impl Future<Output = ()> + Send + 'static) {
    parts.spawn(async move {
        part.await;
        "a part"
    });
}

/// A running agent.
pub(super) struct Agent {
    cancel: CancellationToken,
    parts: Parts,
    pub(super) cache: CacheReader,
    pub(super) board: Board,
    pub(super) manager: PodManager,
    pub(super) rollouts: RolloutHandle,
    pub(super) probes: ProbeReader,
    /// The telemetry of the probers.
    pub(super) probing: Telemetry,
    /// None without an API server.
    pub(super) mirrors: Option<Mirrors>,
    /// Alive as in the program, so that readers go on waiting for news of the node.
    _node: Writer<AdmitNode>,
}

impl Agent {
    pub(super) fn start(
        fake: &FakeRuntime,
        api: Option<&FakeApi>,
        source: &SourceReader,
        root: &Path,
        Ways { restore, sweeps }: Ways,
    ) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let telemetry = Telemetry::new();
        let (writer, reader) = cache();
        let (looks, requests) = look_requests();
        let (observer, reach, listed) = Observer::new(
            Arc::clone(&runtime),
            writer,
            requests,
            if sweeps { SWEEP } else { NO_SWEEP },
            telemetry.clone(),
        );
        let cancel = CancellationToken::new();
        let mut parts = Parts::new();
        let (pods, api_pods, manager) = pod_manager();
        let cluster =
            api.map(|api| Cluster::start(api, root, api_pods, &telemetry, &mut parts, &cancel));
        let mut sources = vec![source.clone()];
        sources.extend(cluster.as_ref().map(Cluster::pods));
        let settled = cluster.as_ref().map(Cluster::settled).unwrap_or_default();
        let observer = observer.without(settled.clone());
        let (merged, merged_reader) = cell(Merged::default());
        let (wanted, wanted_reader) = watch::channel(Arc::new(Wanted::default()));
        let (board_writer, board) = board();
        let (probe_writer, probe_reader) = probe_results();
        let (mut node_writer, node) = cell(AdmitNode::default());
        let clock = fake.clone();
        let (rollouts, handle) = Rollouts::load(
            root,
            RolloutOptions {
                node_edits: mirrorlet::store::node_edits::NodeEditsHandle::none(),
                runtime: Arc::clone(&runtime),
                objects: Arc::default(),
                salt: String::new(),
                board: board.clone(),
                node: node.clone(),
                restore,
                needed_images: watch::Sender::default(),
                telemetry: telemetry.clone(),
                clock: Arc::new(move || clock.now()),
            },
        );
        let clock = fake.clone();
        let (jobs, _) = Jobs::load(
            root,
            JobOptions {
                board: board.clone(),
                cache: reader.clone(),
                telemetry: telemetry.clone(),
                clock: Arc::new(move || clock.now()),
            },
        );
        let (merge, _) = MergeTask::new(
            sources,
            listed.clone(),
            MergeOutputs {
                pods,
                merged,
                wanted,
                objects: Arc::default(),
                workloads: mirrorlet::store::workloads::WorkloadStore::load(root),
            },
            rollouts.following(reach),
            jobs,
            ClaimStore::default(),
            telemetry.clone(),
        );
        let (clock, versions) = (fake.clone(), handle.clone());
        let context = Arc::new(Context {
            runtime,
            cache: reader.clone(),
            looks,
            probes: probe_reader.clone(),
            board: board_writer,
            telemetry: telemetry.clone(),
            node_ips: cell(Vec::new()).1,
            backoff_max: BACKOFF_MAX,
            gc: ContainerGcPolicy::default(),
            clock: Clock::new(move || clock.now()),
            graces: mirrorlet::store::graces::Graces::default(),
            settled,
            node,
            unsupported: |_| Vec::new(),
            versions: Arc::new(move |name, uid| versions.version(name, uid)),
        });
        let (clock, probing) = (fake.clone(), Telemetry::new());
        let prober = ProbeManager::new(
            Arc::new(fake.clone()),
            Client::new(),
            board.clone(),
            probe_writer,
            probing.clone(),
            Arc::new(move || clock.now()),
            Some(root.join(KEPT_FILE)),
        )
        .following(listed.clone());
        let workers = PodWorkers::new(context, wanted_reader, listed.clone());
        let mirrors = cluster.map(|cluster| {
            let links = ClusterLinks {
                merged: merged_reader,
                board: board.clone(),
                listed,
                manager: manager.clone(),
            };
            cluster.link(links, &telemetry, &mut parts, &cancel)
        });
        let token = || cancel.clone();
        let observing = token().run_until_cancelled_owned(observer.run());
        spawn(&mut parts, async { observing.await.unwrap_or_default() });
        spawn(&mut parts, merge.run(token()));
        spawn(&mut parts, workers.run(token()));
        spawn(&mut parts, prober.run(token()));
        // The Node becomes known, as at its registration.
        node_writer.publish(AdmitNode {
            pods_max: Some(PODS_MAX),
            ..AdmitNode::default()
        });
        Self {
            cancel,
            parts,
            cache: reader,
            board,
            manager,
            rollouts: handle,
            probes: probe_reader,
            probing,
            mirrors,
            _node: node_writer,
        }
    }

    /// Whether a part has ended, which none does by itself.
    pub(super) fn has_ended_part(&mut self) -> bool {
        self.parts.try_join_next().is_some()
    }

    /// Kills it: each of its tasks ends at the await where it is. `dead` is called when the first have.
    pub(super) async fn kill(mut self, dead: impl FnOnce()) {
        self.parts.abort_all();
        dead();
        while self.parts.join_next().await.is_some() {}
        // The tasks of parts end with them, each when it is polled next.
        tokio::time::sleep(Duration::from_nanos(1)).await;
    }

    pub(super) async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.parts.join_next().await {
            ended.expect("a part panicked");
        }
    }
}
