//! Reads the usage of pods and the machine, on request.
//!
//! It only reads files of cgroups and of `/proc`, and makes no calls to the Engine, whose own
//! statistics take a second for each container. Nothing is read without requests; a recent reading is
//! served again, so that many requests cost as much as one. Disks are measured in the background, at
//! most once a minute, and only requested ones.
//!
//! [`mirrorlet_core::stats`] parses the texts and computes the results. Reads `store`'s board;
//! `app` hands it to the servers.
//!
//! Upstream: `pkg/kubelet/stats/cadvisor_stats_provider.go` and cAdvisor, which reads all the time.

mod cgroups;
mod disks;
mod look;
mod machine;
mod usages;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{Stream, stream};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::disks::Disks;
use self::look::UsageReader;
use crate::store::board::{Board, PodView};
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::stats::{PodReading, Reading, Scope, cadvisor, resource, summary};
use mirrorlet_host::telemetry::occurrences;

/// Maximum wait for an answer. A reading takes milliseconds; one that takes this long is stuck in the
/// kernel, and scrapers give up after ten seconds themselves.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);

/// Interval of checks while a caller waits for disks to be measured.
const MEASURE_POLL: Duration = Duration::from_millis(250);

/// How long a reading is served again, and the minimum window of a rate. Scrapers request every 15 to
/// 60 seconds; cAdvisor's numbers are up to 15 seconds old.
const FRESH: Duration = Duration::from_secs(5);

/// The same for watches.
const SAMPLE_FRESH: Duration = Duration::from_millis(500);

/// Window of the rates of the first sample.
const FIRST_SAMPLE: Duration = Duration::from_secs(1);

/// Time between two samples.
const SAMPLE_GAP: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatsError {
    /// The kernel did not answer in time.
    #[error("reading kernel statistics timed out after {} s", LOOK_DEADLINE.as_secs())]
    Deadline,
    /// The machine's own numbers can't be read.
    #[error("{0} can't be read")]
    Machine(&'static str),
    /// Looking or writing failed in an unforeseen way.
    #[error("{0}")]
    Failed(String),
}

/// Directories of the Engine, as the agent sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineDirs {
    /// Its root directory, which has the logs of containers.
    pub root: PathBuf,
    /// A directory on the file system of images and containers' files.
    pub images: PathBuf,
}

/// Facts of the Engine that need a call: the directories of its files, which change only with the Engine.
#[async_trait]
pub trait EngineDisk: Send + Sync + 'static {
    /// Its directories; none where they are another machine's, or as long as it doesn't answer.
    async fn dirs(&self) -> Option<EngineDirs>;

    /// The agent's path for a path on the Engine's machine; none if it doesn't see that machine's
    /// files. Blocks.
    fn seen(&self, path: &Path) -> Option<PathBuf>;

    /// Bytes that its images take, as far as that is known.
    fn image_bytes(&self) -> Option<u64>;
}

/// Options of a [`StatsProvider`].
pub struct StatsOptions {
    /// Name of the Node.
    pub node_name: String,
    /// The agent's root directory.
    pub root: PathBuf,
    /// cgroup under which pods live, or empty.
    pub cgroup_root: String,
    /// Image of the sandboxes.
    pub sandbox_image: String,
    /// Returns a container's name on the Engine, from its name in the pod, the pod, and the attempt.
    pub engine_name: fn(&str, &FullName, &PodUid, u32) -> String,
    /// The Engine's disk.
    pub engine: Arc<dyn EngineDisk>,
    /// The present time.
    pub now: fn() -> Timestamp,
    /// Where the kernel's files are.
    pub kernel: Kernel,
}

/// Where the kernel's files are.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Processes.
    pub proc: PathBuf,
    /// cgroups: one hierarchy, or a directory for each.
    pub cgroup: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            cgroup: "/sys/fs/cgroup".into(),
        }
    }
}

/// Provides the usage of pods and the machine.
pub struct StatsProvider {
    options: Arc<StatsOptions>,
    board: Board,
    disks: Arc<Disks>,
    /// The reader of all pods; one reading at a time, so that concurrent requests share one.
    looker: Arc<Mutex<UsageReader>>,
    /// The reader of some pods only: it keeps others in memory.
    pod_looker: Arc<Mutex<UsageReader>>,
}

impl StatsProvider {
    /// Creates one for the pods on that board.
    pub fn new(options: StatsOptions, board: Board) -> Self {
        let options = Arc::new(options);
        Self {
            board,
            disks: Arc::new(Disks::new(options.now)),
            looker: Arc::new(Mutex::new(UsageReader::new(&options, FRESH))),
            pod_looker: Arc::new(Mutex::new(UsageReader::new(&options, FRESH))),
            options,
        }
    }

    /// The Engine's image directory, if the Engine is on this machine.
    pub async fn image_dir(&self) -> Option<PathBuf> {
        self.options.engine.dirs().await.map(|dirs| dirs.images)
    }

    /// Measures the requested disks, until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        self.disks.run(cancel).await;
    }

    /// Returns the answer of `/stats/summary`, as JSON.
    ///
    /// # Errors
    /// The machine can't be read.
    pub async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, StatsError> {
        let scope = if only_cpu_and_memory {
            Scope::CpuAndMemory
        } else {
            Scope::Everything
        };
        self.look(&self.looker, scope, move |reading| {
            serde_json::to_string(&summary::summary(reading, scope))
                .map_err(|error| StatsError::Failed(error.to_string()))
        })
        .await
        .and_then(|made| made)
    }

    /// Returns the answer of `/metrics/resource`. It reports a machine that can't be read.
    pub async fn resource_metrics(&self) -> String {
        self.page(Scope::CpuAndMemory, resource::render).await
    }

    /// Returns the answer of `/metrics/cadvisor`. It reports a machine that can't be read.
    pub async fn cadvisor_metrics(&self) -> String {
        self.page(Scope::Detailed, cadvisor::render).await
    }

    async fn page(&self, scope: Scope, render: fn(Option<&Reading>) -> String) -> String {
        let made = self.look(&self.looker, scope, move |reading| render(Some(reading)));
        made.await.unwrap_or_else(|error| {
            occurrences::stats_failed(&error.to_string());
            render(None)
        })
    }

    /// Returns CPU and memory usage, after one second and then every two; rates are for the time in
    /// between. Reads as long as the stream is polled.
    pub fn samples(self: Arc<Self>) -> impl Stream<Item = Result<Reading, StatsError>> {
        let looker = UsageReader::new(&self.options, SAMPLE_FRESH);
        let state = (self, Arc::new(Mutex::new(looker)), None);
        stream::unfold(state, |(provider, looker, gap)| async move {
            let look = || provider.look(&looker, Scope::CpuAndMemory, Reading::clone);
            if gap.is_none()
                && let Err(error) = look().await
            {
                return Some((Err(error), (provider, looker, Some(SAMPLE_GAP))));
            }
            tokio::time::sleep(gap.unwrap_or(FIRST_SAMPLE)).await;
            let sample = look().await;
            Some((sample, (provider, looker, Some(SAMPLE_GAP))))
        })
    }

    /// Returns the usage of these pods. Waits up to `patience` for disks that are not measured yet.
    ///
    /// # Errors
    /// The kernel doesn't answer in time.
    pub async fn pods(
        &self,
        views: Vec<PodView>,
        patience: Duration,
    ) -> Result<Vec<PodReading>, StatsError> {
        let end = Instant::now() + patience;
        let views = Arc::new(views);
        loop {
            let engine_dirs = self.options.engine.dirs().await;
            // A reader that is waiting for the kernel holds the lock.
            let free = Arc::clone(&self.pod_looker).lock_owned();
            let Ok(mut looker) = tokio::time::timeout(LOOK_DEADLINE, free).await else {
                return Err(StatsError::Deadline);
            };
            let (options, disks) = (Arc::clone(&self.options), Arc::clone(&self.disks));
            let views = Arc::clone(&views);
            let looking = tokio::task::spawn_blocking(move || {
                let asked = look::Asked {
                    options: &options,
                    disks: &disks,
                    scope: Scope::Everything,
                    engine_dirs: engine_dirs.as_ref(),
                    now: (options.now)(),
                };
                let pods = looker.look_at_pods(&asked, &views);
                (pods, looker.is_measured)
            });
            let Ok(done) = tokio::time::timeout(LOOK_DEADLINE, looking).await else {
                return Err(StatsError::Deadline);
            };
            let (pods, is_measured) =
                done.map_err(|error| StatsError::Failed(error.to_string()))?;
            if is_measured || Instant::now() + MEASURE_POLL > end {
                return Ok(pods);
            }
            tokio::time::sleep(MEASURE_POLL).await;
        }
    }

    /// Looks, and makes something of what is seen where blocking is allowed.
    async fn look<T: Send + 'static>(
        &self,
        looker: &Arc<Mutex<UsageReader>>,
        scope: Scope,
        make: impl FnOnce(&Reading) -> T + Send + 'static,
    ) -> Result<T, StatsError> {
        let reading = async {
            let engine_dirs = match scope {
                Scope::CpuAndMemory => None,
                Scope::Everything | Scope::Detailed => self.options.engine.dirs().await,
            };
            let mut looker = Arc::clone(looker).lock_owned().await;
            let (options, disks) = (Arc::clone(&self.options), Arc::clone(&self.disks));
            let views = self.board.all();
            let looking = tokio::task::spawn_blocking(move || {
                let asked = look::Asked {
                    options: &options,
                    disks: &disks,
                    scope,
                    engine_dirs: engine_dirs.as_ref(),
                    now: (options.now)(),
                };
                let reading = looker.look(&asked, &views)?;
                // The next one need not wait for what is made of it.
                drop(looker);
                Ok(make(&reading))
            });
            looking
                .await
                .map_err(|error| StatsError::Failed(error.to_string()))?
        };
        match tokio::time::timeout(LOOK_DEADLINE, reading).await {
            Ok(done) => done,
            Err(_) => Err(StatsError::Deadline),
        }
    }
}
