//! A node's life, thrown by dice: the real merge task, workers, observer and cache over the
//! runtime in memory, on paused time.
//!
//! Every seed is one life: manifests come, change and go, containers exit, sandboxes die, events
//! get lost, calls are refused, the runtime goes away, the agent is restarted. After every turn
//! nothing may be there twice; whenever peace returns, what is wanted runs and nothing else does.
//!
//! `SIMULATION_SEEDS=1000` plays more lives; `SIMULATION_SEED=7` plays that one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::app::desired::{MergeOutputs, MergeTask};
use mirrorlet::observe::Observer;
use mirrorlet::rollout::{RolloutOptions, Rollouts};
use mirrorlet::source::{SourceHealth, SourceReader};
use mirrorlet::store::board::board;
use mirrorlet::store::cache::cache;
use mirrorlet::store::cell::{Writer, cell};
use mirrorlet::store::claims::ClaimStore;
use mirrorlet::store::looks::look_requests;
use mirrorlet::store::pods::pod_manager;
use mirrorlet::store::probes::probe_results;
use mirrorlet::worker::{Clock, Context, PodWorkers, Wanted};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::merge::{Merged, SourceName};
use mirrorlet_core::observed::PodStatus;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::{Runtime, RuntimeError, SyncError, SyncErrorReason};
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Lives played unless told otherwise.
const SEEDS: u64 = 40;
/// Turns of a life, and after how many there is peace.
const TURNS: u64 = 60;
const PEACE_EVERY: u64 = 15;
/// Full names in play: few, so that versions of one name meet.
const NAMES: u64 = 4;
const SWEEP: Duration = Duration::from_mins(5);
/// Longest crash-loop back-off.
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// Long enough for a sweep, the longest back-off, and retries after both.
const PEACE: Duration = Duration::from_mins(30);

/// Dice (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A running agent.
struct Agent {
    cancel: CancellationToken,
    parts: JoinSet<()>,
}

impl Agent {
    fn start(fake: &FakeRuntime, source: &SourceReader, root: &Path, restore: bool) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let telemetry = Telemetry::new();
        let (writer, reader) = cache();
        let (looks, requests) = look_requests();
        let (observer, _reach, listed) = Observer::new(
            Arc::clone(&runtime),
            writer,
            requests,
            SWEEP,
            telemetry.clone(),
        );
        let (merged, _) = cell(Merged::default());
        let (wanted, wanted_reader) = watch::channel(Arc::new(Wanted::default()));
        let (board_writer, board) = board();
        let node = cell(AdmitNode::default()).1;
        let clock = fake.clone();
        let (rollouts, _) = Rollouts::load(
            root,
            RolloutOptions {
                runtime: Arc::clone(&runtime),
                objects: Arc::default(),
                salt: String::new(),
                board,
                node: node.clone(),
                restore,
                needed_images: watch::Sender::default(),
                telemetry: telemetry.clone(),
                clock: Arc::new(move || clock.now()),
            },
        );
        let (merge, _) = MergeTask::new(
            vec![source.clone()],
            listed.clone(),
            MergeOutputs {
                pods: pod_manager().0,
                merged,
                wanted,
                objects: Arc::default(),
            },
            rollouts,
            ClaimStore::default(),
            telemetry.clone(),
        );
        let clock = fake.clone();
        let context = Arc::new(Context {
            runtime,
            cache: reader,
            looks,
            probes: probe_results().1,
            board: board_writer,
            telemetry,
            node_ips: Vec::new(),
            backoff_max: BACKOFF_MAX,
            gc: ContainerGcPolicy::default(),
            clock: Clock::new(move || clock.now()),
            node,
            unsupported: |_| Vec::new(),
        });
        let workers = PodWorkers::new(context, wanted_reader, listed);
        let cancel = CancellationToken::new();
        let mut parts = JoinSet::new();
        parts.spawn(observer.run(cancel.clone()));
        parts.spawn(merge.run(cancel.clone()));
        parts.spawn(workers.run(cancel.clone()));
        Self { cancel, parts }
    }

    async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.parts.join_next().await {
            ended.expect("a part panicked");
        }
    }
}

/// One life.
struct World {
    dice: Dice,
    root: tempfile::TempDir,
    /// Whether failed revisions are replaced by the last healthy one.
    restore: bool,
    fake: FakeRuntime,
    agent: Option<Agent>,
    source: SourceReader,
    set: Writer<SourceState>,
    /// The manifests, by name.
    manifests: BTreeMap<u64, Arc<Pod>>,
    /// Every pod there ever was.
    ever: Vec<Arc<Pod>>,
    trace: String,
}

fn pod(name: u64, version: usize, containers: u64) -> Arc<Pod> {
    let containers: Vec<_> = (0..containers)
        .map(|n| serde_json::json!({"name": format!("c{n}"), "image": format!("app:{version}")}))
        .collect();
    let pod = serde_json::json!({
        "metadata": {
            "name": format!("pod-{name}"),
            "namespace": "ns",
            "uid": format!("pod-{name}-v{version}"),
        },
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 20},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

impl World {
    fn new(seed: u64) -> Self {
        let fake = FakeRuntime::new();
        fake.set_latency(Duration::from_millis(1));
        let (set, state) = cell(SourceState::NotSynced);
        let (_, health) = cell(SourceHealth::default());
        let source = SourceReader {
            name: SourceName::new(PodSource::File, "manifests"),
            state,
            health,
        };
        let root = tempfile::tempdir().unwrap();
        let restore = seed % 2 == 1;
        let agent = Agent::start(&fake, &source, root.path(), restore);
        Self {
            dice: Dice(seed),
            root,
            restore,
            fake,
            agent: Some(agent),
            source,
            set,
            manifests: BTreeMap::new(),
            ever: Vec::new(),
            trace: String::new(),
        }
    }

    fn note(&mut self, what: &str) {
        writeln!(self.trace, "{what}").unwrap();
    }

    fn publish(&mut self) {
        let pods = self.manifests.iter().map(|(name, pod)| SourcePod {
            pod: Arc::clone(pod),
            origin: Origin {
                source: PodSource::File,
                location: format!("manifests/{name}.yaml"),
                document: 0,
                position: None,
            },
            held: false,
            problems: Vec::new(),
            rollout: None,
            config: None,
            places: Arc::default(),
        });
        let set = SourceSet {
            pods: pods.collect(),
            ..SourceSet::default()
        };
        self.set.publish(SourceState::Synced(Arc::new(set)));
    }

    /// One thing happens. The dice never look at the state, so that a seed is one story.
    async fn turn(&mut self) {
        let (what, name, n) = (self.dice.roll(17), self.dice.roll(NAMES), self.dice.roll(3));
        let container = format!("c{n}");
        let uid = self.manifests.get(&name).map(|pod| PodUid::of(pod));
        match what {
            0..=3 => {
                self.note(&format!("write {name} with {} containers", n + 1));
                let pod = pod(name, self.ever.len(), n + 1);
                self.ever.push(Arc::clone(&pod));
                self.manifests.insert(name, pod);
                self.publish();
            }
            4 | 5 => {
                self.note(&format!("remove {name}"));
                self.manifests.remove(&name);
                self.publish();
            }
            6..=8 => {
                self.note(&format!("{container} of {name} exits"));
                let code = i32::try_from(n).unwrap();
                if let Some(uid) = uid.filter(|uid| runs(&self.fake.pod(uid), &container)) {
                    self.fake.exit_container(&uid, &container, code);
                }
            }
            9 => {
                self.note(&format!("the sandbox of {name} dies"));
                if let Some(uid) = uid.filter(|uid| has_sandbox(&self.fake.pod(uid))) {
                    self.fake.lose_sandbox(&uid);
                }
            }
            10 => {
                self.note("events get lost");
                self.fake.lose_events(usize::try_from(n).unwrap() + 1);
            }
            11 => {
                let calls = [
                    "sync_pod",
                    "kill_pod",
                    "delete_pod",
                    "get_pod_status",
                    "get_pods",
                ];
                let call = calls[usize::try_from(self.dice.roll(5)).unwrap()];
                self.note(&format!("{call} is refused"));
                let error = RuntimeError::Refused {
                    status: 500,
                    message: "dice".to_owned(),
                };
                self.fake
                    .refuse_next(call, usize::try_from(n).unwrap() + 1, error);
            }
            12 => {
                self.note(&format!("{container} does not start"));
                let reasons = [
                    SyncErrorReason::RunContainerError,
                    SyncErrorReason::ErrImagePull,
                    SyncErrorReason::RuntimeUnavailable,
                ];
                let reason = reasons[usize::try_from(self.dice.roll(3)).unwrap()];
                self.fake
                    .fail_next_starts(&container, 1, SyncError::new(reason, "dice"));
            }
            13 => {
                self.note("the runtime goes away");
                let gone = RuntimeError::Unavailable("dice".to_owned());
                self.fake.set_err(Some(gone));
                self.fake.break_watches();
            }
            14 => {
                self.note("the runtime is back");
                self.fake.set_err(None);
            }
            15 => {
                self.note("the newest version can't be prepared");
                if let Some(pod) = self.ever.last() {
                    let error = SyncError::new(SyncErrorReason::ErrImagePull, "dice");
                    self.fake
                        .set_preparation_fault(&PodUid::of(pod), Some(error));
                }
            }
            _ => {
                self.note("the agent is restarted");
                // Strictly one after the other: the root's lock sees to that in life.
                if let Some(agent) = self.agent.take() {
                    agent.stop().await;
                }
                let root = self.root.path();
                self.agent = Some(Agent::start(&self.fake, &self.source, root, self.restore));
            }
        }
        let pauses = [0, 10, 300, 3_000, 20_000, 90_000];
        let pause = pauses[usize::try_from(self.dice.roll(6)).unwrap()];
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.check_now();
    }

    /// Checks the invariants of every moment.
    fn check_now(&self) {
        self.fake.assert_no_violations();
        let mut running: BTreeMap<FullName, Vec<PodUid>> = BTreeMap::new();
        for pod in &self.ever {
            let seen = self.fake.pod(&PodUid::of(pod));
            if seen.anything_running() {
                running.entry(FullName::of(pod)).or_default().push(seen.uid);
            }
        }
        for (name, uids) in running {
            // rollouts 19
            assert!(
                uids.len() == 1,
                "{name} runs more than once: {uids:?}\n{}",
                self.trace
            );
        }
    }

    /// The version of a pod that shall run: the newest; after a restore, one before it, and then it
    /// is the one that runs.
    fn to_run(&self, newest: &Pod) -> PodUid {
        let name = FullName::of(newest);
        let versions = self.ever.iter().filter(|pod| FullName::of(pod) == name);
        let mut running = versions
            .map(|pod| self.fake.pod(&PodUid::of(pod)))
            .filter(PodStatus::anything_running);
        match running.next() {
            Some(older) if self.restore => older.uid,
            _ => PodUid::of(newest),
        }
    }

    /// Peace: all faults end, and everything has the time it takes.
    async fn peace(&mut self) {
        self.note("peace");
        self.fake.set_err(None);
        self.fake.lose_events(0);
        for pod in &self.ever {
            self.fake.set_preparation_fault(&PodUid::of(pod), None);
        }
        tokio::time::sleep(PEACE).await;
        self.check_now();
        let manifests: Vec<Arc<Pod>> = self.manifests.values().cloned().collect();
        let to_run: Vec<PodUid> = manifests.iter().map(|pod| self.to_run(pod)).collect();
        for pod in self.ever.clone() {
            let seen = self.fake.pod(&PodUid::of(&pod));
            let wanted = to_run.contains(&seen.uid);
            if wanted {
                for container in &pod.spec.as_ref().unwrap().containers {
                    assert!(
                        runs(&seen, &container.name),
                        "{} of {} does not run: {seen:#?}\n{}",
                        container.name,
                        seen.uid,
                        self.trace
                    );
                }
                self.note(&format!("{} runs", seen.uid));
            } else {
                assert!(
                    seen.is_empty(),
                    "{} is left: {seen:#?}\n{}",
                    seen.uid,
                    self.trace
                );
            }
        }
    }
}

fn runs(pod: &PodStatus, container: &str) -> bool {
    pod.running_containers().any(|c| &*c.name == container)
}

fn has_sandbox(pod: &PodStatus) -> bool {
    use mirrorlet_core::observed::ContainerState;
    let mut sandboxes = pod.sandboxes.iter();
    sandboxes.any(|s| s.state == ContainerState::Running)
}

/// Plays one life to its end and tells its story.
fn play(seed: u64) -> String {
    println!("seed {seed}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(seed);
        for turn in 1..=TURNS {
            world.turn().await;
            if turn % PEACE_EVERY == 0 {
                world.peace().await;
            }
        }
        if let Some(agent) = world.agent.take() {
            agent.stop().await;
        }
        world.trace
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn whatever_the_dice_say_peace_finds_everything_in_order() {
    if let Some(seed) = number("SIMULATION_SEED") {
        println!("{}", play(seed));
        return;
    }
    for seed in 0..number("SIMULATION_SEEDS").unwrap_or(SEEDS) {
        play(seed);
    }
}

#[test]
fn a_seed_is_one_story() {
    assert_eq!(play(4711), play(4711));
}
