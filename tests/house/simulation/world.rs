//! One life: a runtime in memory, manifests, an agent, and what happens to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::source::{SourceHealth, SourceReader};
use mirrorlet::store::cell::{Writer, cell};
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::merge::SourceName;
use mirrorlet_runtime::{RuntimeError, SyncError, SyncErrorReason};
use mirrorlet_testing::fake_runtime::FakeRuntime;

use super::agent::Agent;
use super::dice::Dice;
use super::invariants::{has_sandbox, runs};
use super::story::Story;

/// Full names in play: few, so that versions of one name meet.
const NAMES: u64 = 4;

/// One life.
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) root: tempfile::TempDir,
    /// Whether failed revisions are replaced by the last healthy one.
    pub(super) restore: bool,
    pub(super) fake: FakeRuntime,
    pub(super) agent: Option<Agent>,
    pub(super) source: SourceReader,
    pub(super) set: Writer<SourceState>,
    /// The manifests, by name.
    pub(super) manifests: BTreeMap<u64, Arc<Pod>>,
    /// Every pod there ever was.
    pub(super) ever: Vec<Arc<Pod>>,
    story: Story,
}

/// A directory in memory, where there is one: agents of lives write often.
fn root() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
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
    pub(super) fn new(seed: u64, story: Story) -> Self {
        let fake = FakeRuntime::new();
        fake.set_latency(Duration::from_millis(1));
        let (set, state) = cell(SourceState::NotSynced);
        let (_, health) = cell(SourceHealth::default());
        let source = SourceReader {
            name: SourceName::new(PodSource::File, "manifests"),
            state,
            health,
        };
        let root = root();
        let restore = seed % 2 == 1;
        let agent = Agent::start(&fake, &source, root.path(), restore);
        Self {
            dice: Dice::new(seed),
            root,
            restore,
            fake,
            agent: Some(agent),
            source,
            set,
            manifests: BTreeMap::new(),
            ever: Vec::new(),
            story,
        }
    }

    pub(super) fn note(&self, line: &str) {
        self.story.note(line);
    }

    pub(super) fn publish(&mut self) {
        let pods = self.manifests.iter().map(|(name, pod)| {
            let location = format!("manifests/{name}.yaml");
            let origin = Origin::whole(PodSource::File, location);
            SourcePod::new(Arc::clone(pod), origin)
        });
        let set = SourceSet {
            pods: pods.collect(),
            ..SourceSet::default()
        };
        self.set.publish(SourceState::Synced(Arc::new(set)));
    }

    /// One thing happens. The dice never look at the state, so that a seed is one story.
    pub(super) async fn turn(&mut self) {
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

    pub(super) async fn end(mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
    }
}
