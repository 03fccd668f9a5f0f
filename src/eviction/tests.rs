//! The task, on a host made of values.

use std::sync::Mutex;

use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::store::board::board;
use crate::store::evictions::evictions;
use mirrorlet_core::admit::FailureCause;
use mirrorlet_core::api::{FullName, Pod};
use mirrorlet_core::eviction::{Amount, Observation};
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::stats::cgroup::Memory;
use mirrorlet_core::stats::{Disk, Usage, VolumeReading};

/// The rest of 1000 of a signal, the usage of each pod, the number of collections and of pods that
/// were read, how long each reading might have waited for disks, of how many pods at most the usage can
/// be read, and until when collections hang.
#[derive(Default)]
struct State {
    left: BTreeMap<Signal, u64>,
    freed: u64,
    used: BTreeMap<String, u64>,
    collected: usize,
    read: usize,
    patience: Vec<Duration>,
    readable: Option<usize>,
    hangs: Option<Arc<Notify>>,
}

/// The log of a test, as bytes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The number of lines with those words.
    fn lines(&self, words: &str) -> usize {
        let bytes = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter(|line| line.contains(words)).count()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Default)]
struct FakeHost(Arc<Mutex<State>>);

#[async_trait]
impl EvictionHost for FakeHost {
    async fn observe(&self) -> Seen {
        let state = self.0.lock().unwrap();
        let seen = |(signal, left): (&Signal, &u64)| {
            let (available, capacity) = (*left, 1000);
            (
                *signal,
                Observation {
                    available,
                    capacity,
                },
            )
        };
        Seen {
            observations: state.left.iter().map(seen).collect(),
            has_image_fs: false,
        }
    }

    async fn usage(
        &self,
        pods: Vec<PodView>,
        patience: Duration,
    ) -> Result<Vec<PodReading>, String> {
        let mut state = self.0.lock().unwrap();
        if state.readable.is_some_and(|most| pods.len() > most) {
            return Err("the kernel did not answer".to_owned());
        }
        state.read += pods.len();
        state.patience.push(patience);
        let reading = |view: PodView| {
            let used = *state.used.get(view.uid.as_str())?;
            let disk = Disk {
                used_bytes: Some(used),
                ..Disk::default()
            };
            let memory = Memory {
                working_set: used,
                ..Memory::default()
            };
            Some(PodReading {
                uid: view.uid,
                usage: Usage {
                    memory: Some(memory),
                    ..Usage::default()
                },
                volumes: vec![VolumeReading {
                    name: "v".to_owned(),
                    disk,
                    is_ephemeral: true,
                }],
                ..PodReading::default()
            })
        };
        Ok(pods.into_iter().filter_map(reading).collect())
    }

    async fn collect(&self) {
        let hangs = {
            let mut state = self.0.lock().unwrap();
            state.collected += 1;
            let freed = state.freed;
            for left in state.left.values_mut() {
                *left += freed;
            }
            state.hangs.clone()
        };
        if let Some(until) = hangs {
            until.notified().await;
        }
    }
}

struct Bed {
    host: FakeHost,
    writer: crate::store::board::BoardWriter,
    orders: mpsc::Receiver<Evict>,
    pressures: Reader<Pressures>,
    manager: EvictionManager,
}

impl Bed {
    fn new(thresholds: &[(Signal, u64, Duration)]) -> Self {
        let threshold = |(signal, least, grace): &(Signal, u64, Duration)| Threshold {
            signal: *signal,
            value: Amount::Units(*least),
            grace: *grace,
            min_reclaim: None,
        };
        let policy = EvictionPolicy {
            thresholds: thresholds.iter().map(threshold).collect(),
            max_pod_grace: Duration::from_secs(7),
            transition: Duration::ZERO,
        };
        let host = FakeHost::default();
        let (writer, board) = board();
        let (sender, orders) = evictions();
        let (pressures, reader) = cell(Pressures::new());
        let (manager, _) = EvictionManager::new(
            policy,
            Arc::new(host.clone()),
            board,
            sender,
            pressures,
            Telemetry::new(),
        );
        Self {
            host,
            writer,
            orders,
            pressures: reader,
            manager,
        }
    }

    fn set(&self, signal: Signal, left: u64) {
        self.host.0.lock().unwrap().left.insert(signal, left);
    }

    /// A pod of the API server that uses that much of everything.
    fn pod(&self, name: &str, used: u64, size_limit: Option<&str>) {
        let volume = json!({"name": "v", "emptyDir": {"sizeLimit": size_limit}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": name,
                "annotations": {"kubernetes.io/config.source": "api"},
            },
            "spec": {"containers": [{"name": "c"}], "volumes": [volume]},
        }))
        .unwrap();
        self.host
            .0
            .lock()
            .unwrap()
            .used
            .insert(name.to_owned(), used);
        let uid = PodUid::from(name);
        self.writer.publish(PodView {
            full_name: FullName::new(name, "ns"),
            pod: Some(Arc::new(pod)),
            phase: Phase::Syncing,
            status: None,
            observed: Arc::new(PodStatus::empty(uid.clone())),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
            uid,
        });
    }

    /// Looks once; who is evicted, with which grace and for what.
    async fn look(&mut self) -> Option<(String, Duration, &'static str)> {
        let (writer, orders) = (&self.writer, &mut self.orders);
        let (looked, order) = tokio::join!(self.manager.look(), async {
            // An order may wait for a collection.
            let patience = COLLECTED_WITHIN + Duration::from_secs(1);
            let order = tokio::time::timeout(patience, orders.recv()).await;
            let order = order.ok().flatten()?;
            writer.remove(&order.uid);
            Some(order)
        });
        assert_eq!(
            looked.is_zero(),
            order.is_some(),
            "who evicts looks again at once"
        );
        let order = order?;
        let FailureCause::Evicted { grace, .. } = order.failure.cause else {
            panic!("{order:?}");
        };
        Some((order.uid.to_string(), grace, order.signal))
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_goes_at_a_time_and_each_is_waited_for() {
    let mut bed = Bed::new(&[(Signal::MemoryAvailable, 100, Duration::ZERO)]);
    bed.pod("small", 10, None);
    bed.pod("large", 20, None);
    bed.set(Signal::MemoryAvailable, 100);
    assert_eq!(bed.look().await, None);
    // eviction 11
    assert_eq!(
        bed.host.0.lock().unwrap().read,
        0,
        "nothing is short, nothing is read of pods"
    );
    bed.set(Signal::MemoryAvailable, 99);
    let gone = bed.look().await;
    // eviction 9
    assert_eq!(
        gone,
        Some(("large".to_owned(), IMMEDIATE_GRACE, "memory.available"))
    );
    assert!(
        bed.pressures
            .get()
            .contains(&mirrorlet_core::eviction::Pressure::Memory)
    );
    let (name, ..) = bed.look().await.unwrap();
    assert_eq!(name, "small");
    assert_eq!(bed.look().await, None, "nobody is left");
    assert_eq!(bed.host.0.lock().unwrap().collected, 0);
    bed.set(Signal::MemoryAvailable, 500);
    assert_eq!(bed.look().await, None);
    assert!(bed.pressures.get().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_uses_goes_before_pods_do() {
    let mut bed = Bed::new(&[(Signal::NodeFsAvailable, 100, Duration::ZERO)]);
    bed.pod("pod", 10, None);
    bed.set(Signal::NodeFsAvailable, 50);
    bed.host.0.lock().unwrap().freed = 50;
    assert_eq!(bed.look().await, None);
    // eviction 12
    assert_eq!(bed.host.0.lock().unwrap().collected, 1);
    bed.set(Signal::NodeFsAvailable, 10);
    // eviction 12
    assert_eq!(bed.look().await.unwrap().0, "pod", "collected a moment ago");
    bed.pod("pod", 10, None);
    tokio::time::advance(COLLECT_WAIT).await;
    bed.set(Signal::NodeFsAvailable, 10);
    assert_eq!(bed.look().await.unwrap().0, "pod", "it did not free enough");
    assert_eq!(bed.host.0.lock().unwrap().collected, 2);
}

/// As on an Engine that hangs.
#[tokio::test(start_paused = true)]
async fn a_collection_that_hangs_holds_up_no_eviction() {
    let mut bed = Bed::new(&[
        (Signal::NodeFsAvailable, 100, Duration::ZERO),
        (Signal::MemoryAvailable, 100, Duration::ZERO),
    ]);
    for name in ["a", "b", "c"] {
        bed.pod(name, 10, None);
    }
    let until = Arc::new(Notify::new());
    bed.host.0.lock().unwrap().hangs = Some(Arc::clone(&until));
    for (disk, memory, signal, waited) in [
        (50, 500, "nodefs.available", COLLECTED_WITHIN.as_secs()),
        (50, 50, "memory.available", 0),
        // It is due again, and goes on.
        (50, 500, "nodefs.available", 0),
    ] {
        bed.set(Signal::NodeFsAvailable, disk);
        bed.set(Signal::MemoryAvailable, memory);
        let began = Instant::now();
        let evicted = bed.look().await.map(|(_, _, signal)| signal);
        // eviction 12
        assert_eq!((evicted, began.elapsed().as_secs()), (Some(signal), waited));
        assert_eq!(bed.host.0.lock().unwrap().collected, 1);
        tokio::time::advance(COLLECT_WAIT).await;
    }
    until.notify_one();
    tokio::time::sleep(COLLECT_WAIT).await;
    // It ended long enough ago: another one comes before the next pod goes.
    bed.pod("d", 10, None);
    bed.host.0.lock().unwrap().freed = 50;
    until.notify_one();
    // eviction 12
    assert_eq!(bed.look().await, None);
    assert_eq!(bed.host.0.lock().unwrap().collected, 2);
}

/// As when thousands of images are removed.
#[tokio::test(start_paused = true)]
async fn a_long_collection_spares_pods_while_it_frees_something() {
    let mut bed = Bed::new(&[(Signal::NodeFsAvailable, 100, Duration::ZERO)]);
    for name in ["a", "b", "c"] {
        bed.pod(name, 10, None);
    }
    {
        let mut state = bed.host.0.lock().unwrap();
        state.hangs = Some(Arc::default());
        state.freed = 100;
    }
    bed.set(Signal::NodeFsAvailable, 50);
    // eviction 12
    assert_eq!(bed.look().await, None, "there is enough by now");
    for (left, spares) in [(60, false), (61, true), (61, false), (70, true)] {
        bed.set(Signal::NodeFsAvailable, left);
        let evicted = bed.look().await;
        // eviction 12
        assert_eq!(evicted.is_none(), spares, "{left}: {evicted:?}");
    }
    tokio::time::advance(SPARED_WITHIN).await;
    bed.set(Signal::NodeFsAvailable, 80);
    // eviction 12
    assert!(bed.look().await.is_some(), "it has had its time");
    assert_eq!(bed.host.0.lock().unwrap().collected, 1);
}

/// One that hasn't freed enough within the wait, and goes on.
#[tokio::test(start_paused = true)]
async fn a_collection_that_has_freed_too_little_so_far_goes_on_before_pods_do() {
    let mut bed = Bed::new(&[(Signal::NodeFsAvailable, 100, Duration::ZERO)]);
    bed.pod("pod", 10, None);
    {
        let mut state = bed.host.0.lock().unwrap();
        state.hangs = Some(Arc::default());
        state.freed = 10;
    }
    bed.set(Signal::NodeFsAvailable, 50);
    // eviction 12
    assert_eq!(bed.look().await, None, "there is more than before");
    // eviction 12
    assert_eq!(bed.look().await.unwrap().0, "pod", "nothing more came");
}

#[tokio::test(start_paused = true)]
async fn a_soft_threshold_leaves_pods_a_grace() {
    let mut bed = Bed::new(&[(Signal::PidAvailable, 100, Duration::from_nanos(1))]);
    bed.pod("pod", 10, None);
    bed.set(Signal::PidAvailable, 50);
    assert_eq!(bed.look().await, None);
    // eviction 2
    assert_eq!(
        bed.look().await,
        Some(("pod".to_owned(), Duration::from_secs(7), "pid.available"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_over_its_own_limit_goes_and_others_are_not_read() {
    let mut bed = Bed::new(&[]);
    bed.pod("limited", 2000, Some("1Ki"));
    bed.pod("unlimited", 9000, None);
    let gone = bed.look().await;
    // eviction 7
    assert_eq!(
        gone,
        Some(("limited".to_owned(), IMMEDIATE_GRACE, "emptydirfs.limit"))
    );
    // eviction 11
    assert_eq!(bed.host.0.lock().unwrap().read, 1);
    assert_eq!(bed.look().await, None);
}

/// A pod without a reading goes first; but that of none can be read says nothing of any.
#[tokio::test(start_paused = true)]
async fn nobody_is_evicted_while_usage_cannot_be_read() {
    let mut bed = Bed::new(&[(Signal::MemoryAvailable, 100, Duration::ZERO)]);
    bed.pod("honest", 10, None);
    bed.pod("hog", 900, None);
    bed.pod("over-its-limit", 2000, Some("1Ki"));
    bed.set(Signal::MemoryAvailable, 50);
    bed.host.0.lock().unwrap().readable = Some(0);
    for _ in 0..2 {
        // eviction 15
        assert_eq!(bed.look().await, None);
        let pressures = bed.pressures.get();
        // eviction 15
        assert!(pressures.contains(&Pressure::Memory), "{pressures:?}");
    }
    bed.host.0.lock().unwrap().readable = None;
    // eviction 15
    assert_eq!(bed.look().await.unwrap().2, "emptydirfs.limit");
    // eviction 15
    assert_eq!(bed.look().await.unwrap().0, "hog");
}

/// As on a machine that thrashes: few pods can be read, and all can't.
#[tokio::test(start_paused = true)]
async fn a_read_of_usage_that_fails_again_and_again_is_logged_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _logged = tracing::subscriber::set_default(subscriber.finish());
    let mut bed = Bed::new(&[(Signal::MemoryAvailable, 100, Duration::ZERO)]);
    bed.pod("limited", 10, Some("1Ki"));
    bed.pod("hog", 900, None);
    // Of how many pods the usage can be read, what is left, and the warnings after a look.
    for (readable, left, warnings) in [
        (1, 50, 1),
        (1, 50, 1),
        (0, 50, 1),
        (1, 50, 1),
        // It is short of memory anew.
        (1, 500, 1),
        (1, 50, 2),
    ] {
        bed.host.0.lock().unwrap().readable = Some(readable);
        bed.set(Signal::MemoryAvailable, left);
        assert_eq!(bed.look().await, None);
        // eviction 15
        assert_eq!(log.lines("no pod is evicted"), warnings);
    }
    // Of a pod that is gone nothing has to be read.
    bed.host.0.lock().unwrap().readable = Some(0);
    for (is_gone, left, warnings) in [(false, 50, 2), (true, 500, 2), (true, 50, 3)] {
        if is_gone {
            bed.writer.remove(&PodUid::from("limited"));
        }
        bed.set(Signal::MemoryAvailable, left);
        assert_eq!(bed.look().await, None);
        // eviction 15
        assert_eq!(log.lines("no pod is evicted"), warnings);
    }
}

/// While memory is short, each second counts, and the sizes of disks don't.
#[tokio::test(start_paused = true)]
async fn only_a_short_disk_waits_for_disks_to_be_measured() {
    for (signal, patience) in [
        (Signal::MemoryAvailable, Duration::ZERO),
        (Signal::PidAvailable, Duration::ZERO),
        (Signal::NodeFsAvailable, MEASURE_WAIT),
        (Signal::ImageFsInodesFree, MEASURE_WAIT),
    ] {
        let mut bed = Bed::new(&[(signal, 100, Duration::ZERO)]);
        bed.pod("pod", 10, None);
        bed.set(signal, 50);
        let (name, ..) = bed.look().await.unwrap();
        assert_eq!(name, "pod", "{signal:?}");
        // eviction 14
        assert_eq!(
            bed.host.0.lock().unwrap().patience,
            [patience],
            "{signal:?}"
        );
    }
}
