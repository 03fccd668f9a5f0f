//! The invariants of every moment, and those of rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mirrorlet_core::api::{ContainerId, PodUid};
use mirrorlet_core::observed::{ContainerState, PodStatus};

use super::mirrors::WRITES;
use super::panics;
use super::versions::{Temper, Version};
use super::world::World;

/// Long enough for a sweep, the longest back-off, a judgement, and retries after all of them.
const PEACE: Duration = Duration::from_mins(30);
/// How long nothing may be done at rest.
const REST: Duration = Duration::from_mins(10);
/// Most tasks at rest: those of the agent's parts, and for each pod its worker and a prober.
const TASKS_MAX: usize = 8;
const TASKS_OF_CLUSTER_MAX: usize = 10;
const TASKS_OF_POD_MAX: usize = 3;
/// Calls that change something.
const CHANGING: [&str; 4] = ["sync_pod", "kill_pod", "delete_pod", "prepare_pod"];

impl World {
    /// Checks the invariants of every moment.
    pub(super) fn check_now(&mut self) {
        assert_eq!(panics::count(), 0, "a part of the agent panicked");
        self.fake.assert_no_violations();
        for (uid, container, id) in self.known.untouched() {
            let pod = self.fake.pod(uid);
            let mut running = pod.running_containers();
            assert!(
                running.any(|c| &*c.name == container && c.id == *id),
                "{container} of {uid} was stopped, and nothing had happened to it: {pod:#?}"
            );
        }
        self.check_calm_ordinary();
        if let Some(agent) = &mut self.agent {
            assert!(!agent.has_ended_part(), "a part of the agent has ended");
        }
        if let Some(api) = &self.api {
            let violations = api.violations();
            assert!(
                violations.is_empty(),
                "statuses broke promises: {violations:?}"
            );
        }
    }

    /// Peace: all faults end, and everything has the time it takes.
    pub(super) async fn peace(&mut self) {
        self.note("peace");
        self.check_now();
        self.known.can_be_prepared();
        self.fake.end_faults();
        self.end_api_faults();
        self.set_disk_full(false);
        for version in &self.ever {
            self.fake.set_preparation_fault(&version.uid(), None);
        }
        tokio::time::sleep(PEACE).await;
        self.check_now();
        let running = self.check_running();
        self.check_mirrors(&running);
        self.check_ordinary();
        self.check_rest(&running).await;
        self.check_kept(&running);
        let running = running.into_iter().map(|version| {
            let ids = self.fake.pod(&version.uid());
            let ids = ids.running_containers();
            let ids = ids.map(|c| (c.name.to_string(), c.id.clone())).collect();
            (version, ids)
        });
        let running: Vec<(Version, BTreeMap<String, ContainerId>)> = running.collect();
        self.known.settle(running.into_iter());
    }

    /// Asserts that every wanted pod runs, and nothing else is there. Returns the versions that run.
    fn check_running(&self) -> Vec<Version> {
        let mut running = Vec::new();
        for (name, number) in &self.manifests {
            let newest = &self.ever[*number];
            let runs: Vec<&Version> = self
                .ever
                .iter()
                .filter(|version| version.name == *name)
                .filter(|version| self.fake.pod(&version.uid()).anything_running())
                .collect();
            let [runs] = runs[..] else {
                panic!("{} versions of {name} run: {runs:?}", runs.len());
            };
            let expected = self
                .known
                .expected(newest, *number, self.ways.restore, self.jumps);
            if let Some(expected) = expected {
                assert_eq!(runs.uid(), expected, "another version of {name} should run");
            }
            let seen = self.fake.pod(&runs.uid());
            for container in runs.running_containers() {
                assert!(
                    self::runs(&seen, container),
                    "{container} of {} does not run: {seen:#?}",
                    seen.uid
                );
            }
            self.note(&format!("    {} runs", seen.uid));
            running.push(runs.clone());
        }
        let uids: BTreeSet<PodUid> = running.iter().map(Version::uid).collect();
        for version in &self.ever {
            let seen = self.fake.pod(&version.uid());
            assert!(
                uids.contains(&seen.uid) || seen.is_empty(),
                "{} is left: {seen:#?}",
                seen.uid
            );
        }
        running
    }

    /// At rest the agent does nothing, has few tasks, and knows what runs.
    async fn check_rest(&self, running: &[Version]) {
        let uids: BTreeSet<PodUid> = running.iter().map(Version::uid).collect();
        let agent = self.agent.as_ref().unwrap();
        let shown: BTreeSet<PodUid> = agent.board.all().into_iter().map(|v| v.uid).collect();
        // Of a pod that is over nothing but its short form is kept.
        let works = |uid: &PodUid| {
            let seen = self.fake.pod(uid);
            seen.is_empty() || seen.anything_running()
        };
        let ordinary = self.ordinary_uids().filter(works);
        let there: BTreeSet<PodUid> = uids.iter().cloned().chain(ordinary).collect();
        assert_eq!(shown, there, "the board shows other pods than there are");
        // An empty entry stays until the next sweep.
        let sweeps = self.ways.sweeps;
        let cached = agent.cache.all().into_iter();
        let cached = cached
            .filter(|entry| sweeps || !entry.status.is_empty())
            .map(|entry| entry.status.uid.clone());
        let cached: BTreeSet<PodUid> = cached.collect();
        let over = there
            .difference(&uids)
            .filter(|uid| self.fake.pod(uid).is_empty());
        let kept: BTreeSet<PodUid> = over.cloned().collect();
        let cached: BTreeSet<PodUid> = cached.difference(&kept).cloned().collect();
        let there: BTreeSet<PodUid> = there.difference(&kept).cloned().collect();
        assert_eq!(cached, there, "the cache has other pods than there are");
        assert_eq!(self.fake.watch_count(), 1, "watch streams");
        let tasks = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        let cluster = if self.api.is_some() {
            TASKS_OF_CLUSTER_MAX
        } else {
            0
        };
        let pods = running.len() + self.ordinary_uids().count();
        let tasks_max = TASKS_MAX + cluster + TASKS_OF_POD_MAX * pods;
        assert!(tasks <= tasks_max, "{tasks} tasks are left");
        let serving = self.fake.serving();
        for version in running {
            let serves = serving
                .serving
                .get(&version.full_name())
                .map(|pod| PodUid::of(pod));
            assert_eq!(serves, Some(version.uid()), "host ports lead elsewhere");
        }
        assert!(serving.beside.is_empty(), "something is still beside");
        for view in agent.board.all() {
            let version = running.iter().find(|version| version.uid() == view.uid);
            if version.is_none_or(|version| version.temper == Temper::Crashes) {
                continue;
            }
            let ids = |pod: &PodStatus| -> BTreeSet<ContainerId> {
                pod.running_containers().map(|c| c.id.clone()).collect()
            };
            let seen = self.fake.pod(&view.uid);
            assert_eq!(ids(&view.observed), ids(&seen), "the board is behind");
        }
        if running
            .iter()
            .any(|version| version.temper == Temper::Crashes)
        {
            return;
        }
        let calls = || CHANGING.map(|call| self.fake.call_count(call));
        let before = (calls(), self.writes_of_pods());
        tokio::time::sleep(REST).await;
        let after = (calls(), self.writes_of_pods());
        assert_eq!(
            after, before,
            "calls of {CHANGING:?} and {WRITES:?} at rest"
        );
    }
}

/// Whether a container of a pod runs.
pub(super) fn runs(pod: &PodStatus, container: &str) -> bool {
    pod.running_containers().any(|c| &*c.name == container)
}

/// Whether a sandbox of a pod runs.
pub(super) fn has_sandbox(pod: &PodStatus) -> bool {
    let mut sandboxes = pod.sandboxes.iter();
    sandboxes.any(|s| s.state == ContainerState::Running)
}
