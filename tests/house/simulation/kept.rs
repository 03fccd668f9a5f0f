//! The invariant of rest that memory is bounded: whatever came and went, the agent keeps entries of
//! those pods and names alone that are there.

use std::collections::BTreeSet;
use std::fmt::Debug;

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::PODS;
use mirrorlet_core::api::{FullName, PodUid};

use super::versions::Version;
use super::world::World;

/// The label of a probe's series that names its pod.
const LABEL: &str = "pod_uid=\"";

impl World {
    /// Asserts that everything that the agent keeps by pod or name is about one that is there. The board
    /// and the cache were compared with the runtime before.
    pub(super) fn check_kept(&self, running: &[Version]) {
        let agent = self.agent.as_ref().unwrap();
        let names: BTreeSet<FullName> = running.iter().map(Version::full_name).collect();
        let there = running.iter().map(Version::uid);
        let there: BTreeSet<PodUid> = there.chain(self.ordinary_uids()).collect();
        let wanted = agent.manager.get().get_pods();
        let wanted = wanted.iter().map(|pod| PodUid::of(pod));
        assert_only("wanted pods", wanted, &there);
        // A pod whose end the newest list doesn't show keeps its versions, and here lists are never new.
        if self.ways.sweeps {
            let histories = agent.rollouts.histories();
            assert_only("versions", histories.keys().cloned(), &names);
        }
        if let Some(mirrors) = &agent.mirrors {
            let states = mirrors.states.get();
            assert_only("states of mirrors", states.keys().cloned(), &names);
        }
        // Results that an agent before this one has left stay for a pod that it finds, also if that goes
        // before it has a worker.
        let probed = there.union(&self.held).cloned().collect();
        assert_only("probe results", agent.probes.all().into_keys(), &probed);
        let series = agent.telemetry.metrics.encode_probes();
        let series = series.split(LABEL).skip(1);
        let series = series.filter_map(|text| Some(PodUid::from(text.split_once('"')?.0)));
        assert_only("series of probes", series, &there);
        self.check_kept_of_api();
    }

    /// Asserts that the agent knows no pod of the API server that is not there.
    fn check_kept_of_api(&self) {
        let (Some(api), Some(agent)) = (&self.api, &self.agent) else {
            return;
        };
        let objects = api.objects(&PODS);
        let objects = objects.iter().map(|pod| PodUid::from(meta::uid(pod)));
        let objects: BTreeSet<PodUid> = objects.collect();
        let told = agent.manager.api_pods().get();
        let known = (*told).as_ref().expect("the API server's pods are known");
        assert_only("objects", known.pods.keys().cloned(), &objects);
        assert_only("settled pods", known.settled.keys().cloned(), &objects);
        let finished = known.finished.iter().map(|(uid, _)| uid.clone());
        assert_only("finished pods", finished, &objects);
    }
}

/// Asserts that nothing is kept of what is gone.
fn assert_only<T: Ord + Debug>(what: &str, kept: impl Iterator<Item = T>, there: &BTreeSet<T>) {
    let gone: BTreeSet<T> = kept.filter(|one| !there.contains(one)).collect();
    assert!(gone.is_empty(), "{what} are kept of what is gone: {gone:?}");
}
