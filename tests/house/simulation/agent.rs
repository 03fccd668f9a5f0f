//! The agent of a life: its own merge task, workers, observer and cache, wired as in the program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::app::desired::{MergeOutputs, MergeTask};
use mirrorlet::observe::Observer;
use mirrorlet::rollout::{RolloutOptions, Rollouts};
use mirrorlet::source::SourceReader;
use mirrorlet::store::board::board;
use mirrorlet::store::cache::cache;
use mirrorlet::store::cell::cell;
use mirrorlet::store::claims::ClaimStore;
use mirrorlet::store::looks::look_requests;
use mirrorlet::store::pods::pod_manager;
use mirrorlet::store::probes::probe_results;
use mirrorlet::worker::{Clock, Context, PodWorkers, Wanted};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::merge::Merged;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::Runtime;
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const SWEEP: Duration = Duration::from_mins(5);
/// Longest crash-loop back-off.
const BACKOFF_MAX: Duration = Duration::from_mins(5);

/// A running agent.
pub(super) struct Agent {
    cancel: CancellationToken,
    parts: JoinSet<()>,
}

impl Agent {
    pub(super) fn start(
        fake: &FakeRuntime,
        source: &SourceReader,
        root: &Path,
        restore: bool,
    ) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let telemetry = Telemetry::new();
        let (writer, reader) = cache();
        let (looks, requests) = look_requests();
        let (observer, _reach, listed) = Observer::new(
            Arc::clone(&runtime),
            writer,
            requests,
            SWEEP,
            telemetry.clone(),
        );
        let (merged, _) = cell(Merged::default());
        let (wanted, wanted_reader) = watch::channel(Arc::new(Wanted::default()));
        let (board_writer, board) = board();
        let node = cell(AdmitNode::default()).1;
        let clock = fake.clone();
        let (rollouts, _) = Rollouts::load(
            root,
            RolloutOptions {
                runtime: Arc::clone(&runtime),
                objects: Arc::default(),
                salt: String::new(),
                board,
                node: node.clone(),
                restore,
                needed_images: watch::Sender::default(),
                telemetry: telemetry.clone(),
                clock: Arc::new(move || clock.now()),
            },
        );
        let (merge, _) = MergeTask::new(
            vec![source.clone()],
            listed.clone(),
            MergeOutputs {
                pods: pod_manager().0,
                merged,
                wanted,
                objects: Arc::default(),
            },
            rollouts,
            ClaimStore::default(),
            telemetry.clone(),
        );
        let clock = fake.clone();
        let context = Arc::new(Context {
            runtime,
            cache: reader,
            looks,
            probes: probe_results().1,
            board: board_writer,
            telemetry,
            node_ips: Vec::new(),
            backoff_max: BACKOFF_MAX,
            gc: ContainerGcPolicy::default(),
            clock: Clock::new(move || clock.now()),
            node,
            unsupported: |_| Vec::new(),
        });
        let workers = PodWorkers::new(context, wanted_reader, listed);
        let cancel = CancellationToken::new();
        let mut parts = JoinSet::new();
        parts.spawn(observer.run(cancel.clone()));
        parts.spawn(merge.run(cancel.clone()));
        parts.spawn(workers.run(cancel.clone()));
        Self { cancel, parts }
    }

    pub(super) async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.parts.join_next().await {
            ended.expect("a part panicked");
        }
    }
}
