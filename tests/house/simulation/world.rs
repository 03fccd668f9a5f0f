//! One life: a runtime in memory, manifests, an agent, and what happens to them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::source::{SourceHealth, SourceReader};
use mirrorlet::store::cell::{Writer, cell};
use mirrorlet_core::api::PodUid;
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::merge::SourceName;
use mirrorlet_testing::FakeApi;
use mirrorlet_testing::fake_runtime::FakeRuntime;

use super::agent::{Agent, Ways};
use super::dice::Dice;
use super::disk;
use super::known::Known;
use super::ordinary::Ordinary;
use super::story::Story;
use super::versions::{NAMESPACE, Temper, Version};

/// Full names in play: few, so that versions of one name meet.
pub(super) const NAMES: u64 = 4;
/// Time of every call of the runtime, and of every step of a plan.
const LATENCY: Duration = Duration::from_millis(1);
const STEP_TAKES: Duration = Duration::from_millis(2);
/// Namespaces of the API server: that of the pods, and those that every cluster has.
const NAMESPACES: [&str; 4] = [NAMESPACE, "default", "kube-system", "kube-node-lease"];

/// The events that may happen between two quiet periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// Everything.
    Storm,
    /// Nothing that may change the judgement of a version.
    Fair,
    /// No edits.
    Still,
}

/// One life.
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    /// Whether the clock may jump, and whether the disk may be full.
    pub(super) jumps: bool,
    pub(super) fills: bool,
    pub(super) ways: Ways,
    pub(super) fake: FakeRuntime,
    /// The API server, in half of the lives.
    pub(super) api: Option<FakeApi>,
    /// Whether the API server has controllers, which delete the pods of a Node that is no more.
    pub(super) collects: bool,
    /// The pods that others have made at the API server.
    pub(super) ordinary: Vec<Ordinary>,
    pub(super) agent: Option<Agent>,
    /// The pods that the runtime held something of when the agent started.
    pub(super) held: BTreeSet<PodUid>,
    pub(super) known: Known,
    /// Every version there ever was, and those that the manifests have, by name.
    pub(super) ever: Vec<Version>,
    pub(super) manifests: BTreeMap<u64, usize>,
    /// One directory for each agent that was not killed: a dead one writes nothing any more.
    roots: tempfile::TempDir,
    root: PathBuf,
    source: SourceReader,
    set: Writer<SourceState>,
    story: Story,
}

impl World {
    pub(super) fn new(seed: u64, story: Story) -> Self {
        let fake = FakeRuntime::new();
        fake.set_latency(LATENCY);
        fake.set_step_takes(STEP_TAKES);
        fake.let_calls_outlive_callers();
        let witness = story.clone();
        fake.set_witness(move |line| witness.note(&format!("    {line}")));
        let mut dice = Dice::new(seed);
        if dice.roll(2) == 0 {
            fake.set_stop_takes(Duration::from_secs(3));
        }
        let (set, state) = cell(SourceState::NotSynced);
        let (_, health) = cell(SourceHealth::default());
        let source = SourceReader {
            name: SourceName::new(PodSource::File, "manifests"),
            state,
            health,
        };
        let roots = disk::in_memory();
        let root = roots.path().join("0");
        let ways = Ways {
            restore: seed % 2 == 1,
            sweeps: dice.roll(3) > 0,
        };
        let clock = fake.clone();
        let api = (seed / 2 % 2 == 1).then(|| FakeApi::new(&NAMESPACES, move || clock.now()));
        let agent = Agent::start(&fake, api.as_ref(), &source, &root, ways);
        let mut world = Self {
            jumps: dice.roll(4) == 0,
            fills: dice.roll(4) == 0,
            collects: dice.roll(2) == 0,
            dice,
            weather: Weather::Storm,
            ways,
            fake,
            api,
            ordinary: Vec::new(),
            agent: Some(agent),
            held: BTreeSet::new(),
            known: Known::default(),
            ever: Vec::new(),
            manifests: BTreeMap::new(),
            roots,
            root,
            source,
            set,
            story,
        };
        // There are no manifests, which is not the same as not knowing.
        world.publish();
        world
    }

    pub(super) fn note(&self, line: &str) {
        self.story.note(line);
    }

    /// The weather until the next peace.
    pub(super) fn forecast(&mut self) {
        let kinds = [Weather::Storm, Weather::Fair, Weather::Fair, Weather::Still];
        self.weather = self.dice.one_of(&kinds);
        self.note(&format!("weather: {:?}", self.weather));
    }

    /// A new version of a pod.
    pub(super) fn throw(&mut self, name: u64, temper: Temper) -> usize {
        let number = self.ever.len();
        let version = Version::throw(&mut self.dice, &self.fake, name, number, temper);
        self.ever.push(version);
        number
    }

    /// Writes a manifest.
    pub(super) fn write(&mut self, number: usize) {
        let version = &self.ever[number];
        self.known.wants(version, number);
        self.manifests.insert(version.name, number);
        self.publish();
    }

    /// Writes a manifest of a version that can't be prepared.
    pub(super) fn write_unprepared(&mut self, number: usize) {
        let version = &self.ever[number];
        self.known.wants_unprepared(version, number);
        self.manifests.insert(version.name, number);
        self.publish();
    }

    /// Removes a manifest.
    pub(super) fn remove(&mut self, name: u64) {
        self.known.removes(name);
        self.manifests.remove(&name);
        self.publish();
    }

    fn publish(&mut self) {
        let pods = self.manifests.iter().map(|(name, number)| {
            let location = format!("manifests/{name}.yaml");
            let origin = Origin::whole(PodSource::File, location);
            SourcePod::new(Arc::clone(&self.ever[*number].pod), origin)
        });
        let set = SourceSet {
            pods: pods.collect(),
            ..SourceSet::default()
        };
        self.set.publish(SourceState::Synced(Arc::new(set)));
    }

    /// Stops the agent as `systemctl stop` does.
    pub(super) async fn stop_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
    }

    /// Kills the agent: every task ends at the await where it is. What the disk has at that moment is
    /// all that the next agent finds.
    pub(super) async fn kill_agent(&mut self) {
        let Some(agent) = self.agent.take() else {
            return;
        };
        self.known.agents += 1;
        let next = self.roots.path().join(self.known.agents.to_string());
        agent.kill(|| disk::copy(&self.root, &next)).await;
        self.root = next;
    }

    /// Starts an agent where the last one was. Strictly one after the other: the root's lock sees to
    /// that in life.
    pub(super) fn start_agent(&mut self) {
        let versions = self.ever.iter().map(Version::uid);
        let pods = versions.chain(self.ordinary.iter().map(|pod| pod.uid.clone()));
        self.held = pods.filter(|uid| !self.fake.pod(uid).is_empty()).collect();
        let api = self.api.as_ref();
        let agent = Agent::start(&self.fake, api, &self.source, &self.root, self.ways);
        self.agent = Some(agent);
    }

    pub(super) fn set_disk_full(&mut self, full: bool) {
        let names = self.ever.iter().map(Version::full_name);
        disk::set_full(&self.root, names, full);
        self.known.disk_was_full |= full;
    }

    /// Ends the life.
    pub(super) async fn end(mut self) {
        self.stop_agent().await;
    }
}
