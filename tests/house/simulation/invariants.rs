//! The invariants of every moment, and those of rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::observed::{ContainerState, PodStatus};

use super::world::World;

/// Long enough for a sweep, the longest back-off, and retries after both.
const PEACE: Duration = Duration::from_mins(30);

impl World {
    /// Checks the invariants of every moment.
    pub(super) fn check_now(&self) {
        self.fake.assert_no_violations();
        let mut running: BTreeMap<FullName, Vec<PodUid>> = BTreeMap::new();
        for pod in &self.ever {
            let seen = self.fake.pod(&PodUid::of(pod));
            if seen.anything_running() {
                running.entry(FullName::of(pod)).or_default().push(seen.uid);
            }
        }
        for (name, uids) in running {
            assert!(uids.len() == 1, "{name} runs more than once: {uids:?}");
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
    pub(super) async fn peace(&mut self) {
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
                        "{} of {} does not run: {seen:#?}",
                        container.name,
                        seen.uid
                    );
                }
                self.note(&format!("{} runs", seen.uid));
            } else {
                assert!(seen.is_empty(), "{} is left: {seen:#?}", seen.uid);
            }
        }
    }
}

pub(super) fn runs(pod: &PodStatus, container: &str) -> bool {
    pod.running_containers().any(|c| &*c.name == container)
}

pub(super) fn has_sandbox(pod: &PodStatus) -> bool {
    let mut sandboxes = pod.sandboxes.iter();
    sandboxes.any(|s| s.state == ContainerState::Running)
}
