//! The agent of a life: the core, wired as in the program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use mirrorlet::app::Parts;
use mirrorlet::app::cluster::ClusterLinks;
use mirrorlet::app::core::{Core, CoreOptions};
use mirrorlet::config::{Ambient, Config, resolve};
use mirrorlet::rollout::RolloutHandle;
use mirrorlet::source::SourceReader;
use mirrorlet::store::board::Board;
use mirrorlet::store::cache::CacheReader;
use mirrorlet::store::cell::{Writer, cell};
use mirrorlet::store::evictions::evictions;
use mirrorlet::store::looks::look_requests;
use mirrorlet::store::pods::{PodManager, pod_manager};
use mirrorlet::store::probes::ProbeReader;
use mirrorlet::worker::Clock;
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::Runtime;
use mirrorlet_testing::FakeApi;
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, Mirrors};

/// Time between two sweeps in lives without sweeps; otherwise it is the default.
const NO_SWEEP: Duration = Duration::from_hours(10_000);
/// Most pods of the node: more than a life ever has.
const PODS_MAX: u32 = 1000;

/// The configuration where nothing is set.
static DEFAULTS: LazyLock<Config> = LazyLock::new(|| {
    let resolved = resolve(&BTreeMap::new(), None, &Ambient::default());
    resolved.expect("the defaults are valid").config
});

/// The settings of the agents of a life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// Whether failed revisions are replaced by the last healthy one.
    pub(super) restore: bool,
    /// Whether everything is listed now and then. Where it isn't, no event is lost: all else has to be
    /// found without.
    pub(super) sweeps: bool,
}

impl Ways {
    /// The configuration of an agent with that root.
    fn config(self, root: &Path) -> Config {
        let defaults = DEFAULTS.clone();
        Config {
            root: root.to_owned(),
            rollout_restore: self.restore,
            sweep_period: if self.sweeps {
                defaults.sweep_period
            } else {
                NO_SWEEP
            },
            // Nobody edits the Node.
            api_address: None,
            ..defaults
        }
    }
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
    pub(super) telemetry: Telemetry,
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
        ways: Ways,
    ) -> Self {
        let config = ways.config(root);
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let telemetry = Telemetry::new();
        let cancel = CancellationToken::new();
        let mut parts = Parts::new();
        let (pods, api_pods, manager) = pod_manager();
        let cluster =
            api.map(|api| Cluster::start(api, root, api_pods, &telemetry, &mut parts, &cancel));
        let mut sources = vec![source.clone()];
        sources.extend(cluster.as_ref().map(Cluster::pods));
        let (looks, look_queue) = look_requests();
        let (mut node_writer, node) = cell(AdmitNode::default());
        let clock = fake.clone();
        let options = CoreOptions {
            looks,
            look_queue,
            probe_client: Client::new(),
            node_ips: cell(Vec::new()).1,
            clock: Clock::new(move || clock.now()),
            evictions: evictions().1,
            settled: cluster.as_ref().map(Cluster::settled).unwrap_or_default(),
            node,
            pods,
            needed_images: watch::Sender::default(),
            salt: String::new(),
            objects: Arc::default(),
            telemetry: telemetry.clone(),
        };
        let core = Core::start(&config, &runtime, sources, options, &mut parts, &cancel);
        let mirrors = cluster.map(|cluster| {
            let links = ClusterLinks {
                merged: core.merged.clone(),
                board: core.board.clone(),
                listed: core.listed.clone(),
                manager: manager.clone(),
            };
            cluster.link(links, &telemetry, &mut parts, &cancel)
        });
        // The Node becomes known, as at its registration.
        node_writer.publish(AdmitNode {
            pods_max: Some(PODS_MAX),
            ..AdmitNode::default()
        });
        Self {
            cancel,
            parts,
            cache: core.cache,
            board: core.board,
            manager,
            rollouts: core.rollouts,
            probes: core.probes,
            telemetry,
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
