//! The provider of resource usage, wired to the Engine's facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

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

/// How long the Engine may take to report where its files are. It is asked once after each reconnect;
/// while it doesn't answer, its last answer applies, and everything else is reported.
const ENGINE_DEADLINE: Duration = Duration::from_secs(2);

/// How long it isn't asked again after it didn't answer, while something is known: the caller waits for
/// each question.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The Engine's answers about its directories.
#[derive(Clone, Default)]
struct Said {
    /// The last one, with the reconnects before it was asked.
    dirs: Option<(u64, EngineDirs)>,
    /// When it last didn't answer.
    failed: Option<Instant>,
}

impl Said {
    /// The directories, as far as they are known.
    fn dirs(&self) -> Option<EngineDirs> {
        self.dirs.as_ref().map(|(_, dirs)| dirs.clone())
    }

    /// Whether the Engine must be asked, after so many reconnects, by a caller who waits since `began`.
    fn is_due(&self, reconnects: u64, began: Instant) -> bool {
        match (&self.dirs, self.failed) {
            (Some((at, _)), _) if *at == reconnects => false,
            (Some(_), Some(failed)) => failed.elapsed() >= ASK_AGAIN,
            // A caller that waited during another one's failed request fails, too.
            (None, Some(failed)) => failed < began,
            (Some(_) | None, None) => true,
        }
    }
}

/// The Engine's disk, as far as it is this machine's.
struct LocalEngine {
    engine: SharedEngine,
    is_local: bool,
    /// How its files are seen from here.
    host: HostFiles,
    reconnects: Reconnects,
    said: parking_lot::Mutex<Said>,
    /// Held while it is asked.
    asking: Mutex<()>,
    /// `None` if there is no list of images.
    images: Option<Reader<Vec<ImageSeen>>>,
}

impl LocalEngine {
    /// The directories, as the Engine says them now.
    async fn asked(&self) -> Option<EngineDirs> {
        let asked = timeout(ENGINE_DEADLINE, self.engine.info()).await;
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
        let began = Instant::now();
        let known = self.said.lock().clone();
        if !known.is_due(self.reconnects.count(), began) {
            return known.dirs();
        }
        let _one_at_a_time = if known.dirs.is_none() {
            self.asking.lock().await
        } else if let Ok(asking) = self.asking.try_lock() {
            asking
        } else {
            return known.dirs();
        };
        let known = self.said.lock().clone();
        let reconnects = self.reconnects.count();
        if !known.is_due(reconnects, began) {
            return known.dirs();
        }
        let asked = self.asked().await;
        let mut said = self.said.lock();
        match asked {
            Some(dirs) => {
                *said = Said {
                    dirs: Some((reconnects, dirs)),
                    failed: None,
                }
            }
            None => said.failed = Some(Instant::now()),
        }
        said.dirs()
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
            said: parking_lot::Mutex::default(),
            asking: Mutex::default(),
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
        let summary = self.provider.summary(only_cpu_and_memory).await;
        summary.map_err(|error| error.to_string())
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
    use futures::future::join_all;

    use super::*;
    use mirrorlet_docker::Operation;
    use mirrorlet_testing::FakeEngine;

    fn local(engine: &Arc<FakeEngine>) -> LocalEngine {
        LocalEngine {
            engine: engine.clone(),
            is_local: true,
            host: HostFiles::default(),
            reconnects: Reconnects::default(),
            said: parking_lot::Mutex::default(),
            asking: Mutex::default(),
            images: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn directories_are_asked_for_after_each_reconnect() {
        let engine = Arc::new(FakeEngine::new());
        let local = local(&engine);
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
        tokio::time::advance(ASK_AGAIN).await;
        // docker 51
        assert_eq!(root().await, Path::new("/mnt/docker"));
        assert_eq!(local.dirs().await.unwrap().images, Path::new("/mnt/docker"));
        assert_eq!(engine.count(Operation::Info), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_does_not_say_its_directories_holds_up_each_caller_once() {
        for is_known in [true, false] {
            let engine = Arc::new(FakeEngine::new());
            let local = local(&engine);
            if is_known {
                assert!(local.dirs().await.is_some());
                local.reconnects.add();
            }
            engine.hold(Operation::Info);
            let before = engine.count(Operation::Info);
            let ask = async || {
                let began = Instant::now();
                let all = join_all((0..10).map(|_| local.dirs())).await;
                assert!(all.iter().all(|dirs| dirs.is_some() == is_known));
                (
                    began.elapsed().as_secs(),
                    engine.count(Operation::Info) - before,
                )
            };
            // docker 51
            assert_eq!(ask().await, (2, 1), "known: {is_known}");
            if is_known {
                // docker 51
                assert_eq!(ask().await, (0, 1));
                tokio::time::advance(ASK_AGAIN).await;
                // docker 51
                assert_eq!(ask().await, (2, 2));
            }
        }
    }
}
