//! Whole passes on the Engine in memory; only the disk's reading is made up.

mod clock;
mod directory;

use bollard::models::ContainerCreateBody;
use parking_lot::Mutex;

use super::*;
use crate::engine::{Engine, PullProgress};
use crate::fake_engine::{FakeEngine, FakeImage, FaultPoint, PullScript};
use crate::image::PullerOptions;
use crate::operation::Operation;
use mirrorlet_core::credentials::PullSecrets;
use mirrorlet_host::telemetry::journal::Submissions;

/// A disk of 1000 bytes that says what it is told to say, and which directories it was asked for.
struct TestDisk(Mutex<io::Result<Option<u64>>>, Mutex<BTreeSet<PathBuf>>);

impl DiskReader for TestDisk {
    fn read(&self, directory: &Path) -> io::Result<Option<DiskUsage>> {
        self.1.lock().insert(directory.to_owned());
        match &*self.0.lock() {
            Ok(available) => Ok(available.map(|available_bytes| DiskUsage {
                capacity_bytes: 1000,
                available_bytes,
            })),
            Err(error) => Err(error.kind().into()),
        }
    }
}

struct Bed {
    engine: Arc<FakeEngine>,
    images: Arc<ImagePuller>,
    disk: Arc<TestDisk>,
    gc: ImageGc,
    telemetry: Telemetry,
    events: Submissions,
    began: Timestamp,
    needed: watch::Sender<BTreeSet<String>>,
    named: Arc<Mutex<NamedImages>>,
    reconnects: Reconnects,
}

fn bed(all: bool, policy: ImageGcPolicy) -> Bed {
    let engine = Arc::new(FakeEngine::new());
    let images = Arc::new(ImagePuller::new(engine.clone(), PullerOptions::default()));
    let disk = Arc::new(TestDisk(Mutex::new(Ok(Some(1000))), Mutex::default()));
    let telemetry = Telemetry::new();
    let events = telemetry.journal.subscribe();
    let began = Timestamp::now();
    let (needed, needed_reader) = watch::channel(BTreeSet::new());
    let named = Arc::new(Mutex::new(NamedImages {
        is_complete: true,
        ..NamedImages::default()
    }));
    let of_workloads = Arc::clone(&named);
    let reconnects = Reconnects::default();
    let options = ImageGcOptions {
        policy,
        all,
        pod_infra_image: Some("infra:1".into()),
        disk: disk.clone(),
        needed: needed_reader,
        workloads: Box::new(move || of_workloads.lock().clone()),
        reconnects: reconnects.clone(),
    };
    let gc = ImageGc::new(
        engine.clone(),
        images.clone(),
        telemetry.clone(),
        options,
        began,
    );
    Bed {
        engine,
        images,
        disk,
        gc,
        telemetry,
        events,
        began,
        needed,
        named,
        reconnects,
    }
}

/// A bed that removes images that nobody has used for an hour.
fn aging_bed() -> Bed {
    let policy = ImageGcPolicy {
        max_age: Some(Duration::from_hours(1)),
        ..ImageGcPolicy::default()
    };
    bed(false, policy)
}

fn sized(size: i64) -> FakeImage {
    FakeImage {
        size,
        ..FakeImage::default()
    }
}

impl Bed {
    /// Pulls an image of that size.
    async fn pull(&self, name: &str, size: i64) {
        let message = PullProgress {
            status: format!("Status: Downloaded newer image for {name}"),
            ..PullProgress::default()
        };
        let script = PullScript {
            messages: vec![Ok(message)],
            image: Some(sized(size)),
            ..PullScript::default()
        };
        self.engine.script_pull(name, script);
        let none = PullSecrets::default();
        self.images.pull(name, &none).await.unwrap();
    }

    /// A pass that many minutes after the beginning, with that much of the disk free.
    async fn pass(&mut self, minutes: u64, available: u64) {
        *self.disk.0.lock() = Ok(Some(available));
        let now = self.began + Duration::from_mins(minutes);
        self.gc.collect(now, false).await;
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.engine.list_images(true).await.unwrap();
        listed
            .into_iter()
            .flat_map(|i| i.repo_tags)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    async fn container_of(&self, image: &str) {
        let body = ContainerCreateBody {
            image: Some(image.into()),
            ..ContainerCreateBody::default()
        };
        let name = format!("of-{}", image.replace(':', "-"));
        self.engine.create_container(&name, body).await.unwrap();
    }

    /// Reasons of the Node's events so far.
    fn told(&mut self) -> Vec<String> {
        let Some((entries, _)) = futures::FutureExt::now_or_never(self.events.next()) else {
            return Vec::new();
        };
        entries.iter().map(|e| e.reason.to_string()).collect()
    }
}

#[tokio::test]
async fn what_a_pod_may_be_started_with_stays() {
    let mut bed = bed(false, ImageGcPolicy::default());
    bed.pass(0, 1000).await;
    for name in ["by-id:1", "healthy:1", "old:1", "prepared:latest"] {
        bed.pull(name, 60).await;
    }
    let mut listed = bed.engine.list_images(true).await.unwrap().into_iter();
    let by_id = listed.find(|image| image.repo_tags == ["by-id:1"]).unwrap();
    let needed = [
        &by_id.id[..19],
        "healthy:1",
        "docker.io/library/prepared",
        "no name",
    ];
    bed.needed.send_replace(needed.map(str::to_owned).into());
    bed.pass(10, 10).await;
    let left = ["by-id:1", "healthy:1", "prepared:latest"];
    // rollouts M2
    assert_eq!(bed.names().await, left);
    bed.needed.send_replace(BTreeSet::new());
    bed.pass(20, 10).await;
    assert!(bed.names().await.is_empty());
}

#[tokio::test]
async fn an_image_that_a_workload_will_run_stays() {
    let policy = ImageGcPolicy {
        max_age: Some(Duration::from_hours(1)),
        ..ImageGcPolicy::default()
    };
    let mut bed = bed(true, policy);
    for name in ["dump:1", "init:1", "old:1"] {
        bed.engine.add_image(name, sized(60));
    }
    bed.pull("pulled:1", 60).await;
    let names = ["docker.io/library/dump:1", "init:1"];
    bed.named.lock().names = names.map(str::to_owned).into();
    bed.pass(0, 1000).await;
    bed.pass(120, 10).await;
    // docker 51
    assert_eq!(bed.names().await, ["dump:1", "init:1"]);
    // Its document is gone. It was used until the pass before.
    bed.named.lock().names.clear();
    bed.pass(150, 1000).await;
    // docker 51
    assert_eq!(bed.names().await, ["dump:1", "init:1"]);
    bed.pass(181, 1000).await;
    assert!(bed.names().await.is_empty());
}

#[tokio::test]
async fn before_every_source_has_delivered_only_what_can_be_pulled_again_goes() {
    let mut bed = bed(true, ImageGcPolicy::default());
    bed.engine.add_image("built:1", sized(60));
    bed.pull("pulled:1", 60).await;
    bed.named.lock().is_complete = false;
    bed.pass(5, 10).await;
    // docker 51
    assert_eq!(bed.names().await, ["built:1"]);
    bed.named.lock().is_complete = true;
    bed.pass(10, 10).await;
    assert!(bed.names().await.is_empty());
}

#[tokio::test]
async fn a_full_disk_is_freed_down_to_the_low_threshold() {
    let mut bed = bed(false, ImageGcPolicy::default());
    bed.pass(0, 1000).await;
    for name in ["a:1", "b:1", "c:1", "used:1"] {
        bed.pull(name, 60).await;
    }
    bed.engine.add_image("foreign:1", sized(500));
    bed.container_of("used:1").await;
    bed.pass(1, 100).await;
    assert_eq!(bed.names().await.len(), 5, "all are young");
    // 100 of 1000 are free and 200 are wanted: two images of 60.
    bed.pass(10, 100).await;
    let left = bed.names().await;
    assert_eq!(left.len(), 3, "{left:?}");
    // docker 51
    assert!(left.contains(&"used:1".to_owned()) && left.contains(&"foreign:1".to_owned()));
    let report = bed.gc.report().borrow().clone();
    assert_eq!((report.removed, report.freed_bytes), (2, 120));
    assert_eq!(report.disk_used_percent, Some(90));
    // Of the pass that found them too young.
    assert_eq!(bed.told(), ["FreeDiskSpaceFailed"]);
    let metrics = bed.telemetry.metrics.encode();
    for line in [
        "mirrorlet_image_garbage_collected_total{cause=\"space\"} 2",
        "mirrorlet_image_garbage_collected_size_bytes_total 120",
        "mirrorlet_image_disk_used_percent 90",
    ] {
        assert!(
            metrics.lines().any(|l| l == line),
            "{line} is not in\n{metrics}"
        );
    }
}

#[tokio::test]
async fn the_disk_of_the_images_is_read() {
    for (containerd, directory) in [
        (None, "/var/lib/docker"),
        (
            Some("/run/containerd/containerd.sock"),
            "/var/lib/containerd",
        ),
    ] {
        let mut bed = bed(false, ImageGcPolicy::default());
        if let Some(address) = containerd {
            bed.engine.leave_images_to_containerd(address);
        }
        bed.pass(0, 1000).await;
        // docker 51
        assert_eq!(*bed.disk.1.lock(), [directory.into()].into());
    }
}

#[tokio::test]
async fn nothing_is_removed_while_there_is_space() {
    let mut bed = bed(true, ImageGcPolicy::default());
    bed.pull("a:1", 60).await;
    bed.engine.add_image("foreign:1", sized(500));
    bed.pass(0, 160).await;
    bed.pass(10, 160).await;
    assert_eq!(bed.names().await.len(), 2);
    assert_eq!(bed.engine.count(Operation::RemoveImage), 0);
    // Nor is anybody asked, while the disk is not even near.
    bed.engine.clear_calls();
    bed.pass(15, 500).await;
    assert!(bed.engine.calls().is_empty(), "{:?}", bed.engine.calls());
    assert_eq!(bed.gc.report().borrow().error, None);
}

#[tokio::test]
async fn all_means_all_but_what_is_in_use_pinned_or_built_on() {
    let mut bed = bed(true, ImageGcPolicy::default());
    for name in [
        "base:1",
        "child:1",
        "dead:1",
        "infra:1",
        "mirrorlet/pause:0",
        "free:1",
    ] {
        bed.engine.add_image(name, sized(50));
    }
    let base = bed
        .engine
        .inspect_image("base:1")
        .await
        .unwrap()
        .id
        .unwrap();
    let child = FakeImage {
        parent: base,
        ..sized(50)
    };
    bed.engine.add_image("child:1", child);
    // Made and never started: dead, and in use.
    bed.container_of("dead:1").await;
    bed.container_of("child:1").await;
    bed.pass(0, 0).await;
    // docker 51
    assert_eq!(
        bed.names().await,
        [
            "base:1",
            "child:1",
            "dead:1",
            "infra:1",
            "mirrorlet/pause:0"
        ]
    );
    // Too little, twice: the second time it is news.
    assert_eq!(bed.told(), ["FreeDiskSpaceFailed"]);
    bed.pass(5, 0).await;
    assert_eq!(bed.told(), ["FreeDiskSpaceFailed", "ImageGCFailed"]);
    let error = bed.gc.report().borrow().error.clone().unwrap();
    assert!(
        error.starts_with(
            "Insufficient free disk space on the node's image filesystem (100% of 1000 B used)."
        ),
        "{error}"
    );
}

#[tokio::test]
async fn an_image_with_a_name_of_somebody_else_is_not_ours() {
    let mut bed = bed(false, ImageGcPolicy::default());
    bed.pull("a:1", 60).await;
    let id = bed.engine.inspect_image("a:1").await.unwrap().id.unwrap();
    let named = FakeImage { id, ..sized(60) };
    bed.engine.add_image("mine:1", named);
    bed.pass(5, 0).await;
    // docker 51
    assert_eq!(bed.names().await, ["a:1", "mine:1"]);
    bed.engine.prune_image("mine:1");
    bed.pass(10, 0).await;
    assert!(bed.names().await.is_empty());
}

#[tokio::test]
async fn what_nobody_used_for_long_goes_though_there_is_space() {
    let mut bed = aging_bed();
    bed.pull("a:1", 60).await;
    bed.pass(0, 1000).await;
    bed.pass(60, 1000).await;
    assert_eq!(bed.names().await, ["a:1"]);
    bed.pass(61, 1000).await;
    assert!(bed.names().await.is_empty());
    let metrics = bed.telemetry.metrics.encode();
    assert!(metrics.contains("mirrorlet_image_garbage_collected_total{cause=\"age\"} 1"));
}

#[tokio::test]
async fn what_comes_into_use_meanwhile_keeps_all_its_names() {
    let mut bed = bed(false, ImageGcPolicy::default());
    bed.pull("a:1", 60).await;
    bed.pull("b:1", 60).await;
    bed.engine.hold(Operation::InspectImage);
    let engine = Arc::clone(&bed.engine);
    let mut pass = Box::pin(bed.pass(5, 150));
    assert!(futures::poll!(&mut pass).is_pending());
    // Until the first of them is asked for: its fate is decided, and it comes into use.
    while engine.count(Operation::InspectImage) < 3 {
        assert!(futures::poll!(&mut pass).is_pending());
        tokio::task::yield_now().await;
    }
    let body = |image: &str| ContainerCreateBody {
        image: Some(image.into()),
        ..ContainerCreateBody::default()
    };
    engine.create_container("one", body("a:1")).await.unwrap();
    engine.create_container("two", body("b:1")).await.unwrap();
    engine.release(Operation::InspectImage);
    pass.await;
    // docker 51
    assert_eq!(bed.names().await, ["a:1", "b:1"]);
    assert_eq!(bed.engine.count(Operation::RemoveImage), 0);
}

#[tokio::test]
async fn a_disk_or_an_engine_that_says_nothing_removes_nothing() {
    let mut bed = bed(true, ImageGcPolicy::default());
    bed.engine.add_image("a:1", sized(60));
    *bed.disk.0.lock() = Ok(None);
    bed.gc.collect(bed.began, false).await;
    // docker 51
    assert_eq!(bed.gc.report().borrow().error, None);
    *bed.disk.0.lock() = Err(io::ErrorKind::PermissionDenied.into());
    bed.gc.collect(bed.began, false).await;
    let error = bed.gc.report().borrow().error.clone().unwrap();
    assert!(
        error.starts_with("failed to read the disk usage of /var/lib/docker: "),
        "{error}"
    );
    assert!(bed.told().is_empty(), "once is no news");
    let words = EngineError::Api {
        status: 500,
        message: "no".into(),
    };
    bed.engine
        .fail(Operation::ImagesInUse, None, FaultPoint::Before, words);
    bed.pass(5, 0).await;
    assert_eq!(bed.told(), ["ImageGCFailed"]);
    bed.engine.set_available(false);
    bed.pass(10, 0).await;
    assert!(bed.told().is_empty(), "the Node tells it");
    bed.engine.set_available(true);
    assert_eq!(bed.names().await, ["a:1"]);
}

#[tokio::test]
async fn removing_takes_every_name_and_then_the_image() {
    let engine = FakeEngine::new();
    let digest = "r.io/a@sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
    for name in ["a:1", "a:2", digest] {
        let image = FakeImage {
            id: "sha256:1".into(),
            ..FakeImage::default()
        };
        engine.add_image(name, image);
    }
    let refused = engine.remove_image("sha256:1").await.unwrap_err();
    assert!(refused.is_conflict(), "the Engine itself minds");
    remove_image(&engine, "a:2").await.unwrap();
    assert!(engine.list_images(true).await.unwrap().is_empty());
    remove_image(&engine, "a:2").await.unwrap();
}

#[test]
fn sizes_are_printed_as_upstream_does() {
    for (bytes, text) in [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10 << 30, "10.0 GiB"),
        (u64::MAX, "15.9 EiB"),
    ] {
        assert_eq!(binary_size(bytes), text);
    }
}

#[tokio::test]
async fn a_pass_writes_records_that_could_not_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let records = ["pulled.json", "access.json"].map(|name| root.join(name));
    let mut bed = bed(false, ImageGcPolicy::default());
    let options = PullerOptions {
        record: Some(records[0].clone()),
        access_record: Some(records[1].clone()),
        ..PullerOptions::default()
    };
    bed.images = Arc::new(ImagePuller::new(bed.engine.clone(), options));
    bed.gc.images = Arc::clone(&bed.images);
    bed.pull("web:1", 100).await;
    // A file has the directory's place, and the image is gone.
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::write(&root, "").unwrap();
    let later = bed.began + Duration::from_hours(1);
    assert!(bed.images.pulled(&[], later).await.is_empty());
    std::fs::remove_file(&root).unwrap();
    // Nothing is to be removed, so no image is looked at.
    bed.pass(65, 1000).await;
    for record in records {
        // docker 67
        assert!(record.exists(), "{}", record.display());
    }
}
