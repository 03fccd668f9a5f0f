//! Images pulled from a real registry through a real Engine, and removed when the disk is said to
//! be full. Only that reading is made up, and only images that the test itself made can go: the
//! rule under test is that nothing goes that its own puller did not pull.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::registry::Registry;
use crate::common::{Bed, IMAGE, docker_host};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::credentials::PullSecrets;
use mirrorlet_core::image_gc::{DiskUsage, ImageGcPolicy};
use mirrorlet_core::workload::images::NamedImages;
use mirrorlet_docker::engine::Engine as _;
use mirrorlet_docker::image::{DiskReader, ImageGc, ImageGcOptions, LocalDisk};
use mirrorlet_docker::{BollardEngine, ImagePuller, PullerOptions, Reconnects};
use mirrorlet_host::telemetry::Telemetry;

/// A disk with as many percent free as it is told to have.
struct TestDisk(AtomicU64);

impl DiskReader for TestDisk {
    fn read(&self, directory: &Path) -> io::Result<Option<DiskUsage>> {
        assert!(directory.is_absolute());
        // Far larger than all images together: a full one is never freed enough.
        let percent = 1 << 40;
        Ok(Some(DiskUsage {
            capacity_bytes: 100 * percent,
            available_bytes: self.0.load(Ordering::Relaxed) * percent,
        }))
    }
}

struct GcBed {
    bed: Bed,
    engine: Arc<BollardEngine>,
    puller: Arc<ImagePuller>,
    gc: ImageGc,
    began: Timestamp,
}

impl GcBed {
    /// On a root of its own; a second one on the same root is the next agent.
    fn new(bed: Bed, free_percent: u64) -> Self {
        let engine = Arc::new(BollardEngine::connect(&docker_host()).unwrap());
        let puller = Arc::new(ImagePuller::new(
            engine.clone(),
            PullerOptions {
                record: Some(bed.path().join("pulled-images.json")),
                ..PullerOptions::default()
            },
        ));
        let began = Timestamp::now();
        let options = ImageGcOptions {
            policy: ImageGcPolicy::default(),
            all: false,
            pod_infra_image: None,
            disk: Arc::new(TestDisk(free_percent.into())),
            needed: tokio::sync::watch::channel(BTreeSet::new()).1,
            workloads: Box::new(NamedImages::default),
            reconnects: Reconnects::default(),
        };
        let telemetry = Telemetry::new();
        let gc = ImageGc::new(engine.clone(), puller.clone(), telemetry, options, began);
        Self {
            bed,
            engine,
            puller,
            gc,
            began,
        }
    }

    async fn pull(&self, image: &str) {
        let none = PullSecrets::default();
        self.puller.pull(image, &none).await.unwrap();
    }

    /// A pass, as if it were that many minutes later.
    async fn pass(&mut self, minutes: u64) {
        let now = self.began + Duration::from_mins(minutes);
        self.gc.collect(now, false).await;
    }

    async fn has(&self, image: &str) -> bool {
        match self.engine.inspect_image(image).await {
            Ok(_) => true,
            Err(error) if error.is_not_found() => false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_it_pulled_and_nobody_uses_is_removed_from_a_full_disk() {
    let registry = Registry::open().await;
    let [free, dead, shared] = ["a/free:1", "a/dead:1", "a/shared:1"].map(|n| registry.push(n));
    let foreign = registry.push("a/foreign:1");
    let mut bed = GcBed::new(Bed::new(), 5);
    bed.pass(0).await;
    for image in [&free, &dead, &shared] {
        bed.pull(image).await;
    }
    // An image that somebody else pulled, and one that somebody else tagged.
    bed.bed.docker(&["pull", "--quiet", &foreign]);
    let renamed = registry.image("mine/shared:1");
    bed.bed.docker(&["tag", &shared, &renamed]);
    // Pulled by us again, it is not ours for that.
    bed.pull(&foreign).await;
    let container = bed.bed.docker(&["create", &dead]);
    bed.pass(1).await;
    assert!(bed.has(&free).await, "it is young");

    // The next agent on the same root knows what this one pulled.
    let mut bed = GcBed::new(bed.bed, 5);
    bed.pass(10).await;
    assert!(!bed.has(&free).await);
    assert!(bed.has(IMAGE).await);
    for image in [&dead, &shared, &renamed, &foreign] {
        assert!(bed.has(image).await, "{image}");
    }
    let report = bed.gc.report().borrow().clone();
    assert_eq!((report.removed, report.disk_used_percent), (1, Some(95)));
    let error = report.error.unwrap();
    assert!(error.starts_with("Insufficient free disk space"), "{error}");

    bed.bed.docker(&["rm", &container]);
    bed.bed.docker(&["rmi", &renamed]);
    bed.pass(20).await;
    // docker 51
    assert!(!bed.has(&dead).await && !bed.has(&shared).await);
    assert!(bed.has(&foreign).await && bed.has(IMAGE).await);
    bed.bed.docker(&["rmi", &foreign]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_with_space_keeps_everything() {
    let registry = Registry::open().await;
    let image = registry.push("a/app:1");
    let mut bed = GcBed::new(Bed::new(), 50);
    bed.pull(&image).await;
    bed.pass(0).await;
    bed.pass(100).await;
    assert!(bed.has(&image).await);
    assert_eq!(bed.gc.report().borrow().removed, 0);
    // The puller's own way to remove: every name, and no error for one that is gone.
    bed.puller.remove(&image).await.unwrap();
    assert!(!bed.has(&image).await);
    bed.puller.remove(&image).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_disk_can_be_read() {
    let engine = BollardEngine::connect(&docker_host()).unwrap();
    let root = engine.info().await.unwrap().docker_root_dir.unwrap();
    let read = |is_engine_local, directory: &str| {
        LocalDisk {
            is_engine_local,
            ..LocalDisk::default()
        }
        .read(Path::new(directory))
        .unwrap()
    };
    let usage = read(true, &root).unwrap();
    assert!(usage.capacity_bytes >= usage.available_bytes && usage.capacity_bytes > 0);
    assert_eq!(read(false, &root), None);
    assert_eq!(read(true, "/no/such/directory"), None);
}
