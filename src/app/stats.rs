//! The provider of resource usage, wired to the Engine's facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::config::Config;
use crate::server::NodeStats;
use crate::stats::{EngineDirs, EngineDisk, Kernel, StatsOptions, StatsProvider};
use crate::store::board::Board;
use crate::store::cell::Reader;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_docker::Reconnects;
use mirrorlet_docker::engine::SharedEngine;
use mirrorlet_docker::image::image_directory;
use mirrorlet_docker::sandbox_image::SANDBOX_IMAGE;
use mirrorlet_docker::translate::names::container_name;
use mirrorlet_host::telemetry::Metrics;
use mirrorlet_host::volume::HostFiles;

/// How long the Engine may take to say where its files are. It is asked once after each reconnect; while
/// it doesn't answer, what it said before counts, and all else is reported.
const ENGINE_DEADLINE: Duration = Duration::from_secs(2);

/// The Engine's disk, as far as it is this machine's.
struct LocalEngine {
    engine: SharedEngine,
    is_local: bool,
    /// How its files are seen from here.
    host: HostFiles,
    reconnects: Reconnects,
    /// The directories, with the reconnects before it was asked. Held while it is asked.
    dirs: Mutex<Option<(u64, EngineDirs)>>,
    /// `None` if there is no list of images.
    images: Option<Reader<Vec<ImageSeen>>>,
}

impl LocalEngine {
    /// The directories, as the Engine says them now.
    async fn asked(&self) -> Option<EngineDirs> {
        let asked = tokio::time::timeout(ENGINE_DEADLINE, self.engine.info()).await;
        let info = asked.ok()?.ok()?;
        let images = image_directory(&info)?;
        let root = PathBuf::from(info.docker_root_dir?);
        let here = |path: PathBuf| self.seen(&path).unwrap_or(path);
        Some(EngineDirs {
            root: here(root),
            images: here(images),
        })
    }
}

#[async_trait]
impl EngineDisk for LocalEngine {
    async fn dirs(&self) -> Option<EngineDirs> {
        if !self.is_local {
            return None;
        }
        let mut known = self.dirs.lock().await;
        let reconnects = self.reconnects.count();
        if known.as_ref().is_none_or(|(at, _)| *at != reconnects)
            && let Some(dirs) = self.asked().await
        {
            *known = Some((reconnects, dirs));
        }
        known.as_ref().map(|(_, dirs)| dirs.clone())
    }

    fn seen(&self, path: &Path) -> Option<PathBuf> {
        self.host.path(path).ok().flatten()
    }

    fn image_bytes(&self) -> Option<u64> {
        let images = self.images.as_ref()?.get();
        let sizes = images.iter().map(|image| image.size_bytes);
        Some(sizes.fold(0, u64::saturating_add))
    }
}

/// A provider over that Engine.
pub(super) fn provider(
    config: &Config,
    host: HostFiles,
    (engine, reconnects): (SharedEngine, Reconnects),
    images: Option<Reader<Vec<ImageSeen>>>,
    board: Board,
) -> Arc<StatsProvider> {
    let infra = config.pod_infra_image.clone();
    let options = StatsOptions {
        node_name: config.node_name.to_string(),
        root: config.root.clone(),
        cgroup_root: config.cgroup_root.clone(),
        sandbox_image: infra.unwrap_or_else(|| SANDBOX_IMAGE.to_owned()),
        engine_name: container_name,
        engine: Arc::new(LocalEngine {
            engine,
            is_local: is_local(&config.docker),
            host,
            reconnects,
            dirs: Mutex::default(),
            images,
        }),
        now: Timestamp::now,
        kernel: Kernel::default(),
    };
    Arc::new(StatsProvider::new(options, board))
}

/// Whether an Engine at that address has its files on this machine.
fn is_local(docker: &str) -> bool {
    docker
        .strip_prefix("unix://")
        .is_some_and(|path| Path::new(path).is_absolute())
}

/// The statistics for the servers.
pub(super) struct ServedStats {
    pub(super) provider: Arc<StatsProvider>,
    pub(super) metrics: Metrics,
}

#[async_trait]
impl NodeStats for ServedStats {
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, String> {
        let told = self.provider.summary(only_cpu_and_memory).await;
        told.map_err(|error| error.to_string())
    }

    async fn resource_metrics(&self) -> String {
        self.provider.resource_metrics().await
    }

    async fn cadvisor_metrics(&self) -> String {
        self.provider.cadvisor_metrics().await
    }

    fn probe_metrics(&self) -> String {
        self.metrics.encode_probes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_docker::Operation;
    use mirrorlet_testing::FakeEngine;

    #[tokio::test]
    async fn directories_are_asked_for_after_each_reconnect() {
        let engine = Arc::new(FakeEngine::new());
        let local = LocalEngine {
            engine: engine.clone(),
            is_local: true,
            host: HostFiles::default(),
            reconnects: Reconnects::default(),
            dirs: Mutex::default(),
            images: None,
        };
        let root = async || local.dirs().await.unwrap().root;
        assert_eq!(root().await, Path::new("/var/lib/docker"));
        engine.keep_files_in("/mnt/docker");
        assert_eq!(root().await, Path::new("/var/lib/docker"));
        assert_eq!(engine.count(Operation::Info), 1);
        local.reconnects.add();
        // One that doesn't answer has what it said before.
        engine.set_available(false);
        assert_eq!(root().await, Path::new("/var/lib/docker"));
        engine.set_available(true);
        // docker 51
        assert_eq!(root().await, Path::new("/mnt/docker"));
        assert_eq!(local.dirs().await.unwrap().images, Path::new("/mnt/docker"));
        assert_eq!(engine.count(Operation::Info), 3);
    }
}
