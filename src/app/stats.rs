//! The provider of resource usage, wired to the Engine's facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::config::Config;
use crate::server::NodeStats;
use crate::stats::{EngineDirs, EngineDisk, Kernel, StatsOptions, StatsProvider};
use crate::store::board::Board;
use crate::store::cell::Reader;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_docker::engine::SharedEngine;
use mirrorlet_docker::image::image_directory;
use mirrorlet_docker::sandbox_image::SANDBOX_IMAGE;
use mirrorlet_docker::translate::names::container_name;
use mirrorlet_host::telemetry::Metrics;
use mirrorlet_host::volume::HostFiles;

/// How long the Engine may take to say where its files are. It is asked once in its life; while it
/// doesn't answer, all else is reported.
const ENGINE_DEADLINE: Duration = Duration::from_secs(2);

/// The Engine's disk, as far as it is this machine's.
struct LocalEngine {
    engine: SharedEngine,
    is_local: bool,
    /// How its files are seen from here.
    host: HostFiles,
    dirs: OnceCell<EngineDirs>,
    /// `None` if there is no list of images.
    images: Option<Reader<Vec<ImageSeen>>>,
}

#[async_trait]
impl EngineDisk for LocalEngine {
    async fn dirs(&self) -> Option<EngineDirs> {
        if !self.is_local {
            return None;
        }
        let ask = || async {
            let asked = tokio::time::timeout(ENGINE_DEADLINE, self.engine.info()).await;
            let info = asked.ok().and_then(Result::ok).ok_or(())?;
            let images = image_directory(&info).ok_or(())?;
            let root = info.docker_root_dir.ok_or(())?.into();
            let here = |path: PathBuf| self.seen(&path).unwrap_or(path);
            Ok::<_, ()>(EngineDirs {
                root: here(root),
                images: here(images),
            })
        };
        let dirs = self.dirs.get_or_try_init(ask).await;
        dirs.ok().cloned()
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
    engine: SharedEngine,
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
            dirs: OnceCell::new(),
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
