//! When the status report changes, and the Engine's line of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::view::ClusterView;
use super::{Parts, spawn_until};
use crate::config::Config;
use crate::store::cell::Reader;
use mirrorlet_core::api::Diagnostic;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::EngineReport;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_runtime::Runtime;

/// Shortest time between two reports that differ in the progress of pulls alone.
const PULL_NEWS_GAP: Duration = Duration::from_millis(500);

/// The inputs whose changes change the status report.
pub(super) struct News {
    pub(super) reach: watch::Receiver<RuntimeReach>,
    pub(super) pods: watch::Receiver<u64>,
    pub(super) merged: Reader<Merged>,
    pub(super) unkept: Reader<Option<Diagnostic>>,
    pub(super) version: watch::Sender<u64>,
}

/// Starts the task that turns the news of all parts into one version number, and the one that keeps
/// the Engine's line of the report: an Engine that doesn't answer delays no other news.
pub(super) fn start_news(
    parts: &mut Parts,
    cancel: &CancellationToken,
    config: &Config,
    runtime: &Arc<dyn Runtime>,
    mut news: News,
) -> watch::Receiver<EngineReport> {
    let endpoint = config.docker.clone();
    let first = EngineReport {
        endpoint: endpoint.clone(),
        ..EngineReport::default()
    };
    let (engine, engine_reader) = watch::channel(first);
    let runtime = Arc::clone(runtime);
    let mut reach = news.reach;
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
            let changed = tokio::select! {
                changed = of_engine.changed() => changed.is_ok(),
                changed = news.pods.changed() => changed.is_ok(),
                changed = news.merged.changed() => changed.is_ok(),
                changed = news.unkept.changed() => changed.is_ok(),
            };
            if !changed {
                return;
            }
            news.version.send_modify(|version| *version += 1);
        }
    });
    engine_reader
}

/// Has the report's version change while images are pulled: often enough to watch them come.
pub(super) async fn tell_pull_news(
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

/// Has the report's version change with the cluster's part of it.
pub(super) async fn tell_cluster_news(mut cluster: ClusterView, version: watch::Sender<u64>) {
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
