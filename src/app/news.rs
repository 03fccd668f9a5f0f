//! Changes of the status report, and its part about the Engine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::counts::any_changed;
use super::view::ClusterView;
use super::{Parts, spawn_until};
use crate::jobs::JobStates;
use crate::rollout::Histories;
use crate::store::cache::CacheReader;
use crate::store::cell::Reader;
use mirrorlet_core::api::Diagnostic;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{EngineReport, MissingAccessReport};
use mirrorlet_core::desired::SourceState;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_runtime::Runtime;

/// Shortest time between two reports that differ in the progress of pulls alone.
const PULL_NEWS_GAP: Duration = Duration::from_millis(500);

/// The inputs whose changes affect the status report, or the objects of the embedded API.
pub(super) struct News {
    pub(super) reach: watch::Receiver<RuntimeReach>,
    pub(super) pods: watch::Receiver<u64>,
    /// The sets of the sources: workloads and problems are not part of a merge. Reading a source again
    /// without a change doesn't count.
    pub(super) sources: Vec<Reader<SourceState>>,
    pub(super) merged: Reader<Merged>,
    pub(super) histories: Reader<Histories>,
    pub(super) jobs: Reader<JobStates>,
    pub(super) unkept: Reader<Option<Diagnostic>>,
    /// The node's shortages change with these, and before them.
    pub(super) pressures: Reader<Pressures>,
    pub(super) addresses: Reader<Vec<IpAddr>>,
    pub(super) missing_access: watch::Receiver<Vec<MissingAccessReport>>,
    /// The observed pods. It counts as a change when all are known for the first time.
    pub(super) cache: CacheReader,
    /// Changes when more is known about a pod than before, so that all may be known.
    pub(super) members: watch::Receiver<u64>,
    /// Whether that was reported.
    pub(super) is_listed: bool,
    pub(super) version: watch::Sender<u64>,
}

impl News {
    /// Waits until an input other than the Engine's line has changed. False once that can't be any
    /// more. Cancel-safe.
    async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.reach.changed() => changed.is_ok(),
            changed = self.pods.changed() => changed.is_ok(),
            lasts = any_changed(&mut self.sources) => lasts,
            changed = self.merged.changed() => changed.is_ok(),
            changed = self.histories.changed() => changed.is_ok(),
            changed = self.jobs.changed() => changed.is_ok(),
            changed = self.unkept.changed() => changed.is_ok(),
            // These may have no writer: nothing is measured, or all is configured.
            Ok(_) = self.pressures.changed() => true,
            Ok(_) = self.addresses.changed() => true,
            Ok(()) = self.missing_access.changed() => true,
            Ok(()) = self.members.changed() => true,
            () = self.cache.listed(), if !self.is_listed => {
                self.is_listed = true;
                true
            }
        }
    }
}

/// Starts the task that combines the changes of all parts to one version number, and the one that
/// updates the report's part about the Engine: an Engine that doesn't answer delays no other change.
pub(super) fn start_news(
    parts: &mut Parts,
    cancel: &CancellationToken,
    endpoint: &str,
    runtime: &Arc<dyn Runtime>,
    mut news: News,
) -> watch::Receiver<EngineReport> {
    let endpoint = endpoint.to_owned();
    let first = EngineReport {
        endpoint: endpoint.clone(),
        ..EngineReport::default()
    };
    let (engine, engine_reader) = watch::channel(first);
    let runtime = Arc::clone(runtime);
    let mut reach = news.reach.clone();
    spawn_until(parts, cancel, "Engine report", async move {
        while reach.changed().await.is_ok() {
            let now = reach.borrow_and_update().clone();
            let before = engine.borrow().clone();
            let report = engine_report(&endpoint, &now, &*runtime, &before).await;
            engine.send_replace(report);
        }
    });
    let mut of_engine = engine_reader.clone();
    spawn_until(parts, cancel, "news", async move {
        loop {
            let lasts = tokio::select! {
                changed = of_engine.changed() => changed.is_ok(),
                lasts = news.changed() => lasts,
            };
            if !lasts {
                return;
            }
            news.version.send_modify(|version| *version += 1);
        }
    });
    engine_reader
}

/// Changes the report's version while images are pulled, often enough to show their progress.
pub(super) async fn publish_pull_news(
    mut progress: watch::Receiver<u64>,
    version: watch::Sender<u64>,
) {
    loop {
        if progress.changed().await.is_err() {
            return;
        }
        version.send_modify(|version| *version += 1);
        tokio::time::sleep(PULL_NEWS_GAP).await;
    }
}

/// Changes the report's version with its part about the cluster.
pub(super) async fn publish_cluster_news(mut cluster: ClusterView, version: watch::Sender<u64>) {
    loop {
        cluster.changed().await;
        version.send_modify(|version| *version += 1);
    }
}

/// The Engine's line of the report.
async fn engine_report(
    endpoint: &str,
    reach: &RuntimeReach,
    runtime: &dyn Runtime,
    before: &EngineReport,
) -> EngineReport {
    match reach {
        RuntimeReach::Unknown => before.clone(),
        RuntimeReach::Up => EngineReport {
            endpoint: endpoint.to_owned(),
            reachable: true,
            unlisted: false,
            version: runtime
                .version()
                .await
                .ok()
                .map(|version| version.to_string()),
            api_version: runtime
                .api_version()
                .await
                .ok()
                .map(|version| version.to_string()),
            error: None,
            unreachable_since: None,
        },
        RuntimeReach::Down(cause) => EngineReport {
            reachable: false,
            error: Some(cause.clone()),
            unreachable_since: before.unreachable_since.or_else(|| Some(Timestamp::now())),
            ..before.clone()
        },
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::collections::BTreeSet;

    use mirrorlet_core::api::Code;
    use mirrorlet_core::api::report::JobReport;
    use mirrorlet_core::desired::{Origin, PodSource, SourceSet, SourceWorkload};
    use mirrorlet_core::merge::SourceName;
    use mirrorlet_core::observed::PodStatus;
    use mirrorlet_runtime::RuntimeError;
    use mirrorlet_testing::fake_runtime::FakeRuntime;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::source::{SourceWriter, source};
    use crate::store::board::board;
    use crate::store::cache::{CacheWriter, cache};
    use crate::store::cell::{Writer, cell};

    /// On a paused clock it is over once nothing else is left to do.
    const LONG: Duration = Duration::from_hours(1);

    fn nightly() -> SourceWorkload {
        SourceWorkload {
            namespace: "default".to_owned(),
            owner: "CronJob/nightly".to_owned(),
            document: Arc::new(json!({"kind": "CronJob"})),
            pods: BTreeSet::new(),
            set: None,
            template_hash: String::new(),
            origin: Origin::whole(PodSource::File, "/m/nightly.yaml"),
            held: false,
        }
    }

    /// An agent whose state the test alone changes.
    struct Bed {
        writer: SourceWriter,
        jobs: Writer<JobStates>,
        cache: CacheWriter,
        changes: watch::Receiver<u64>,
        parts: Parts,
        cancel: CancellationToken,
        /// The ends that the test doesn't use, kept so that the others stay open.
        _rest: Box<dyn Any>,
    }

    impl Bed {
        fn new() -> Self {
            let (writer, reader) = source(SourceName::new(PodSource::File, "/m"));
            let (reach_sender, reach) = watch::channel(RuntimeReach::Unknown);
            let (board_writer, board) = board();
            let (merged_writer, merged) = cell(Merged::default());
            let (histories_writer, histories) = cell(Histories::default());
            let (job_states, jobs) = cell(JobStates::default());
            let (unkept_writer, unkept) = cell(None);
            let (pressures_writer, pressures) = cell(Pressures::new());
            // As where they are configured.
            let (_, addresses) = cell(Vec::new());
            let (missing_access_sender, missing_access) = watch::channel(Vec::new());
            let (cache_writer, cache) = cache();
            let (version, changes) = watch::channel(0);
            let news = News {
                reach,
                pods: board.changed(),
                sources: vec![reader.state],
                merged,
                histories,
                jobs,
                unkept,
                pressures,
                addresses,
                missing_access,
                members: cache.members(),
                cache,
                is_listed: false,
                version,
            };
            let runtime: Arc<dyn Runtime> = Arc::new(FakeRuntime::new());
            let (mut parts, cancel) = (Parts::new(), CancellationToken::new());
            let engine = start_news(&mut parts, &cancel, "unix:///none", &runtime, news);
            let cells = (merged_writer, histories_writer, unkept_writer);
            let others = (
                board_writer,
                pressures_writer,
                reach_sender,
                missing_access_sender,
            );
            Self {
                writer,
                jobs: job_states,
                cache: cache_writer,
                changes,
                parts,
                cancel,
                _rest: Box::new((cells, others, engine)),
            }
        }

        /// Whether there is news, now or ever.
        async fn has_news(&mut self) -> bool {
            let told = tokio::time::timeout(LONG, self.changes.changed()).await;
            matches!(told, Ok(Ok(())))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_merge_has_is_news_too() {
        let mut bed = Bed::new();
        let with_workload = SourceSet {
            workloads: vec![nightly()],
            ..SourceSet::default()
        };
        let broken = Diagnostic::error(Code::Empty, "/m/new.yaml", "the file is empty");
        let with_problem = SourceSet {
            problems: vec![broken],
            ..with_workload.clone()
        };
        for set in [with_workload, with_problem.clone()] {
            bed.writer.publish(set);
            // embedded 35
            assert!(bed.has_news().await);
        }
        let job = json!({
            "namespace": "default", "name": "once", "source": "/m/once.yaml", "active": 0,
            "succeeded": 0, "failed": 1, "condition": "Failed", "reason": "DeadlineExceeded",
        });
        bed.jobs.publish(JobStates {
            jobs: vec![serde_json::from_value::<JobReport>(job).unwrap()],
            ..JobStates::default()
        });
        // embedded 27
        assert!(bed.has_news().await);
        // That the same was read again is none.
        bed.writer.succeeded(Timestamp::now());
        bed.writer.publish(with_problem);
        assert!(!bed.has_news().await);
        // All that runs is known, for the first time and again.
        bed.cache.update_time(Instant::now());
        // box 13, embedded 67
        assert!(bed.has_news().await);
        bed.cache.update_time(Instant::now() + LONG);
        assert!(!bed.has_news().await);
        // A look at a pod fails, and the next one finds nothing.
        let failed = RuntimeError::Unavailable("x".into());
        for found in [Err(failed), Ok(PodStatus::empty("u".into()))] {
            bed.cache.set(&"u".into(), found, Instant::now());
            // box 13
            assert!(bed.has_news().await);
        }
        assert!(!bed.has_news().await);
        bed.cancel.cancel();
        while let Some(ended) = bed.parts.join_next().await {
            ended.unwrap();
        }
    }
}
