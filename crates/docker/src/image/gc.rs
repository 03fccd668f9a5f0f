//! Image garbage collection: checks the disk every five minutes and, if it is nearly full or images
//! have a maximum age, lists images and containers and removes the images that the pure decision
//! ([`mirrorlet_core::image_gc`]) selects. A disk with space costs no Engine call, unlike upstream,
//! which lists all images every five minutes.
//!
//! Upstream: `pkg/kubelet/images/image_gc_manager.go`, `StartGarbageCollection` of
//! `pkg/kubelet/kubelet.go`.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::models::ImageSummary;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::pulled::named;
use super::remove::remove_image;
use super::{ImagePuller, SANDBOX_IMAGE, image_directory};
use crate::engine::{EngineError, SharedEngine};
use crate::reconnects::Reconnects;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::ImageGcReport;
use mirrorlet_core::clock::{elapsed, set_forward};
use mirrorlet_core::image_gc::{DiskUsage, Evictable, ImageGcPolicy, ImageRecords, SeenImage};
use mirrorlet_core::reference::{Reference, is_id_of};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::workload::images::NamedImages;
use mirrorlet_host::telemetry::{ImageGcCause, Telemetry, occurrences};
use mirrorlet_host::volume::HostFiles;

/// Time between two passes. Upstream: `ImageGCPeriod`.
const PERIOD: Duration = Duration::from_mins(5);
/// Deadline for reading the disk's usage. It is read on a thread that may block, but the next pass must
/// not wait forever.
const DISK_DEADLINE: Duration = Duration::from_secs(30);

/// Reads the usage of the disk with the images.
pub trait DiskReader: Send + Sync + 'static {
    /// How full the file system of that directory is; none where it is another machine's. Blocks.
    ///
    /// # Errors
    /// Returns the system's answer.
    fn read(&self, directory: &Path) -> io::Result<Option<DiskUsage>>;
}

/// The disk of this machine.
#[derive(Debug, Clone, Default)]
pub struct LocalDisk {
    /// Whether the Engine runs on this machine, so that its directories are ours.
    pub is_engine_local: bool,
    /// How its files are seen from here.
    pub host: HostFiles,
}

impl DiskReader for LocalDisk {
    fn read(&self, directory: &Path) -> io::Result<Option<DiskUsage>> {
        if !self.is_engine_local {
            return Ok(None);
        }
        let Some(directory) = self.host.path(directory)? else {
            return Ok(None);
        };
        let stat = match rustix::fs::statvfs(&directory) {
            Ok(stat) => stat,
            // The agent runs in a container that does not see it.
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(DiskUsage {
            capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        }))
    }
}

/// Returns the images that workloads refer to. Called by each pass that may remove something.
pub type WorkloadImages = Box<dyn Fn() -> NamedImages + Send + Sync>;

/// Options of an [`ImageGc`].
pub struct ImageGcOptions {
    /// When images are removed.
    pub policy: ImageGcPolicy,
    /// Whether images that this agent did not pull are removed too.
    pub all: bool,
    /// The sandbox image if it is not ours; never removed.
    pub pod_infra_image: Option<String>,
    /// Says how full the disk is.
    pub disk: Arc<dyn DiskReader>,
    /// Images that stay though no container uses them, by the names in pods.
    pub needed: watch::Receiver<BTreeSet<String>>,
    /// Images that stay though their workload has no pods now: a `CronJob` between two runs, a
    /// Deployment that is scaled to 0.
    pub workloads: WorkloadImages,
    /// The reconnects to the Engine, which may store images elsewhere after one.
    pub reconnects: Reconnects,
}

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
enum GcError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("failed to read the disk usage of {directory}: {cause}", directory = directory.display())]
    Disk { directory: PathBuf, cause: String },
    #[error("invalid capacity 0 on image filesystem")]
    InvalidCapacity,
    #[error("{0}")]
    Insufficient(String),
}

/// The observed state at the start of a pass.
struct Look {
    seen: Vec<SeenImage>,
    names: Vec<(String, String)>,
}

/// Removes unused images.
pub struct ImageGc {
    engine: SharedEngine,
    images: Arc<ImagePuller>,
    telemetry: Telemetry,
    options: ImageGcOptions,
    records: ImageRecords,
    /// The last reading of the clock, and of a monotonic timer.
    clock: (Timestamp, Instant),
    /// The Engine's image directory, with the number of reconnects when it was read; none before that.
    directory: Option<(u64, PathBuf)>,
    /// Passes that failed one after the other.
    failures: u32,
    report: watch::Sender<ImageGcReport>,
    reclaims: (ImageReclaim, mpsc::Receiver<oneshot::Sender<()>>),
}

/// Requests the removal of all unused images, however full the disk is.
#[derive(Debug, Clone)]
pub struct ImageReclaim(mpsc::Sender<oneshot::Sender<()>>);

impl ImageReclaim {
    /// Asks, and waits until it is done.
    ///
    /// Upstream: `DeleteUnusedImages`.
    pub async fn delete_unused_images(&self) {
        let (done, answer) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            let _ = answer.await;
        }
    }
}

impl ImageGc {
    /// Returns a collector that records the use of images from now on.
    pub fn new(
        engine: SharedEngine,
        images: Arc<ImagePuller>,
        telemetry: Telemetry,
        options: ImageGcOptions,
        now: Timestamp,
    ) -> Self {
        let (asks, asked) = mpsc::channel(1);
        let report = ImageGcReport {
            high_threshold_percent: options.policy.high_threshold_percent,
            low_threshold_percent: options.policy.low_threshold_percent,
            ..ImageGcReport::default()
        };
        Self {
            engine,
            images,
            telemetry,
            options,
            records: ImageRecords::new(now),
            clock: (now, Instant::now()),
            directory: None,
            failures: 0,
            report: watch::Sender::new(report),
            reclaims: (ImageReclaim(asks), asked),
        }
    }

    /// Returns its part of the status report.
    pub fn report(&self) -> watch::Receiver<ImageGcReport> {
        self.report.subscribe()
    }

    /// Asks it for more than it does by itself.
    pub fn reclaim(&self) -> ImageReclaim {
        self.reclaims.0.clone()
    }

    /// Runs a pass every five minutes until cancelled; none at the start, before pods that need images
    /// have started.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                _ = ticks.tick() => None,
                // It holds a sender itself, so there is always one.
                asked = self.reclaims.1.recv() => asked,
            };
            let now = Timestamp::now();
            self.look_at_clock(now, Instant::now());
            self.collect(now, asked.is_some()).await;
            if let Some(asked) = asked {
                let _ = asked.send(());
            }
        }
    }

    /// Has a clock that was set forward since the last look make no image old.
    fn look_at_clock(&mut self, now: Timestamp, timer: Instant) {
        let (clock, before) = std::mem::replace(&mut self.clock, (now, timer));
        let passed = timer.saturating_duration_since(before);
        if let Some(step) = set_forward(clock, now, passed) {
            self.records.set_forward(clock, step);
        }
    }

    /// Runs one pass, which removes `all` unused images or only as many as necessary. Failures are
    /// logged, and retried by the next pass.
    pub async fn collect(&mut self, now: Timestamp, all: bool) {
        // The disk may be writable by now, and no image may be pulled for days.
        self.images.write_due().await;
        let collected = self.pass(now, all).await;
        self.report.send_modify(|report| {
            report.last_pass = Some(now);
            report.error = collected.as_ref().err().map(ToString::to_string);
        });
        let error = match collected {
            Ok(()) => {
                self.failures = 0;
                return;
            }
            // Reported for the Node as a whole.
            Err(GcError::Engine(EngineError::Unavailable { .. })) => return,
            Err(error) => error,
        };
        self.failures = self.failures.saturating_add(1);
        match &error {
            GcError::InvalidCapacity => {
                occurrences::invalid_disk_capacity(&self.telemetry, &error.to_string());
            }
            GcError::Insufficient(words) => {
                occurrences::free_disk_space_failed(&self.telemetry, words);
            }
            GcError::Engine(_) | GcError::Disk { .. } => {}
        }
        occurrences::image_gc_failed(&self.telemetry, &error.to_string(), self.failures > 1);
    }

    async fn pass(&mut self, now: Timestamp, all: bool) -> Result<(), GcError> {
        let policy = self.options.policy;
        // Once a pass: an Engine that doesn't answer is waited for once.
        let directory = self.directory().await?;
        let directory = directory.as_deref();
        let used = self.used_percent(directory).await?;
        let is_near = used.is_some_and(|used| used >= policy.low_threshold_percent);
        if !all && !is_near && policy.max_age.is_none() {
            return Ok(());
        }
        let look = self.look(now).await?;
        self.records.detect(&look.seen, now);
        let mut order = self.records.eviction_order(&look.seen);
        let old = self.records.too_old(&order, &policy, now);
        for image in &old {
            self.remove(&look, image, ImageGcCause::Age).await;
        }
        order.retain(|image| !old.contains(image));
        // Read again: removing old ones may have freed enough.
        let used = self.used_percent(directory).await?;
        let (Some(used), Some(disk)) = (used, self.disk(directory).await?) else {
            return Ok(());
        };
        let to_free = disk
            .bytes_to_free(&policy)
            .map_err(|_| GcError::InvalidCapacity)?;
        let mut freed: u64 = 0;
        for image in ImageRecords::old_enough(&order, &policy, now) {
            if !all && freed >= to_free {
                break;
            }
            if self.remove(&look, &image, ImageGcCause::Space).await {
                freed = freed.saturating_add(image.size_bytes);
            }
        }
        if freed >= to_free {
            return Ok(());
        }
        Err(GcError::Insufficient(format!(
            "Insufficient free disk space on the node's image filesystem ({used}% of {} used). \
             Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other \
             data.",
            binary_size(disk.capacity_bytes)
        )))
    }

    /// The share of the disk that is used, reported and counted; none where it can't be known.
    async fn used_percent(&self, directory: Option<&Path>) -> Result<Option<u8>, GcError> {
        let Some(disk) = self.disk(directory).await? else {
            return Ok(None);
        };
        let used = disk.used_percent().map_err(|_| GcError::InvalidCapacity)?;
        self.telemetry.metrics.set_image_disk_used(used);
        self.report
            .send_modify(|report| report.disk_used_percent = Some(used));
        Ok(Some(used))
    }

    /// All images, and which of them may not go.
    async fn look(&mut self, now: Timestamp) -> Result<Look, GcError> {
        let listed = self.engine.list_images(true).await?;
        // After the list: what was begun to be used meanwhile is in use.
        let in_use = self.engine.images_in_use().await?;
        let ours = self.images.pulled(&listed, now).await;
        let parents: BTreeSet<&str> = listed
            .iter()
            .map(|image| image.parent_id.as_str())
            .filter(|parent| !parent.is_empty())
            .collect_set();
        let of_workloads = (self.options.workloads)();
        let mut needed: BTreeSet<String> = self.options.needed.borrow().clone();
        needed.extend(of_workloads.names);
        // While workloads may be unknown, only what can be pulled again goes.
        let all = self.options.all && of_workloads.is_complete;
        let parse = |name: &String| Reference::parse(name).ok();
        let needed_names: Vec<Reference> = needed.iter().filter_map(parse).collect();
        let is_needed = |image: &ImageSummary| {
            let names = named(&image.repo_tags).chain(named(&image.repo_digests));
            let mut names = names.filter_map(parse);
            needed.iter().any(|name| is_id_of(name, &image.id))
                || names.any(|name| needed_names.iter().any(|needed| is_same(needed, &name)))
        };
        let is_kept = |image: &ImageSummary| {
            parents.contains(image.id.as_str())
                || self.is_pinned(image)
                || (!all && !ours.contains_key(&image.id))
        };
        let seen = listed.iter().map(|image| SeenImage {
            id: image.id.clone(),
            size_bytes: image.size.try_into().unwrap_or(0),
            since: ours.get(&image.id).map(|noted| came(*noted, now)),
            is_in_use: in_use.contains(&image.id) || is_needed(image),
            is_kept: is_kept(image),
        });
        let names = listed.iter().map(|image| {
            let first = named(&image.repo_tags)
                .chain(named(&image.repo_digests))
                .next();
            (image.id.clone(), first.unwrap_or(&image.id).clone())
        });
        Ok(Look {
            seen: seen.collect(),
            names: names.collect(),
        })
    }

    /// Whether an image is that of sandboxes: ours in any version, or the one that was named.
    fn is_pinned(&self, image: &ImageSummary) -> bool {
        is_pinned(image, self.options.pod_infra_image.as_deref())
    }

    /// The Engine's image directory, cached until the next reconnect; none if the Engine doesn't report
    /// it. For an Engine that came back and can't report it yet, the last one is used: space may be
    /// needed now, and the next pass reads it again.
    async fn directory(&mut self) -> Result<Option<PathBuf>, EngineError> {
        let reconnects = self.options.reconnects.count();
        if let Some((asked_at, directory)) = &self.directory
            && *asked_at == reconnects
        {
            return Ok(Some(directory.clone()));
        }
        let info = match (self.engine.info().await, &self.directory) {
            (Ok(info), _) => info,
            (Err(_), Some((_, known))) => return Ok(Some(known.clone())),
            (Err(error), None) => return Err(error),
        };
        let directory = image_directory(&info);
        self.directory = directory.clone().map(|found| (reconnects, found));
        Ok(directory)
    }

    /// How full the disk of the Engine's images is; none where it can't be known.
    async fn disk(&self, directory: Option<&Path>) -> Result<Option<DiskUsage>, GcError> {
        let Some(directory) = directory.map(Path::to_owned) else {
            return Ok(None);
        };
        let (reader, path) = (Arc::clone(&self.options.disk), directory.clone());
        let reading = tokio::task::spawn_blocking(move || reader.read(&path));
        let failed = |cause: String| GcError::Disk { directory, cause };
        match tokio::time::timeout(DISK_DEADLINE, reading).await {
            Ok(Ok(Ok(usage))) => Ok(usage),
            Ok(Ok(Err(error))) => Err(failed(error.to_string())),
            Ok(Err(_)) => Ok(None),
            Err(_) => Err(failed(format!(
                "no answer within {} s",
                DISK_DEADLINE.as_secs()
            ))),
        }
    }

    /// Removes an image; returns whether it is gone. An image that came into use meanwhile stays.
    async fn remove(&mut self, look: &Look, image: &Evictable, cause: ImageGcCause) -> bool {
        let name = look.names.iter().find(|(id, _)| *id == image.id);
        let name = name.map_or(image.id.as_str(), |(_, name)| name);
        let began = Timestamp::now();
        let removed = remove_image(&*self.engine, &image.id).await;
        let took = elapsed(began, Timestamp::now());
        match removed {
            Ok(()) => {
                self.images.forget_all();
                self.report.send_modify(|report| {
                    report.removed += 1;
                    report.freed_bytes = report.freed_bytes.saturating_add(image.size_bytes);
                });
                let telemetry = &self.telemetry;
                occurrences::image_collected(telemetry, name, cause, image.size_bytes, took);
                true
            }
            Err(error) => {
                occurrences::image_not_collected(name, &error.to_string());
                false
            }
        }
    }
}

/// When an image came that was noted then. One that was noted while the pass ran came with the pass: a step
/// of the clock moves no moment that is later than the pass.
fn came(noted: Timestamp, now: Timestamp) -> Timestamp {
    if elapsed(now, noted) > PERIOD {
        // Of a clock that was set back.
        noted
    } else {
        noted.min(now)
    }
}

/// Whether an image is the sandbox image: ours in any version, or the configured one.
pub(crate) fn is_pinned(image: &ImageSummary, infra: Option<&str>) -> bool {
    let parse = |text: &str| Reference::parse(text).ok();
    let ours = parse(SANDBOX_IMAGE).map(|ours| ours.repository());
    let infra = infra.and_then(parse);
    let mut names = named(&image.repo_tags)
        .chain(named(&image.repo_digests))
        .filter_map(|name| parse(name));
    names.any(|name| {
        Some(name.repository()) == ours || infra.as_ref().is_some_and(|infra| is_same(infra, &name))
    })
}

/// Whether two names mean the same image, however they are written.
fn is_same(one: &Reference, other: &Reference) -> bool {
    one.repository() == other.repository()
        && one.tag() == other.tag()
        && one.digest() == other.digest()
}

/// A size as upstream prints it: `9.5 GiB`.
///
/// Upstream: `formatSize` of `pkg/kubelet/images/image_gc_manager.go`.
fn binary_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    let mut base: u64 = 1024;
    while unit + 1 < UNITS.len() && bytes / base >= 1024 {
        base *= 1024;
        unit += 1;
    }
    let (whole, tenths) = (bytes / base, bytes % base * 10 / base);
    format!("{whole}.{tenths} {}", UNITS[unit])
}
