//! The invariants of rest in the API server: the Node, and the mirror of each pod with its status.

use std::collections::{BTreeMap, BTreeSet};

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{NODES, PODS};
use mirrorlet_core::api::keys;
use mirrorlet_core::mirror::MirrorState;
use mirrorlet_testing::fake_api::is_mirror;
use serde_json::Value;

use super::cluster::NODE;
use super::versions::{Temper, Version};
use super::world::World;

/// Calls that change pods.
pub(super) const WRITES: [&str; 3] = ["POST pods", "DELETE pods", "PATCH pods/status"];

impl World {
    /// How many calls there were that change pods of the API server.
    pub(super) fn writes_of_pods(&self) -> [usize; 3] {
        let api = self.api.as_ref();
        WRITES.map(|call| api.map_or(0, |api| api.call_count(call)))
    }

    /// Asserts that the API server shows what runs, and nothing else.
    pub(super) fn check_mirrors(&self, running: &[Version]) {
        let Some(api) = &self.api else {
            return;
        };
        let node = api.get(&NODES, "", NODE);
        let node = node.expect("the Node is registered");
        let pods = api.objects(&PODS);
        let mut mirrors = BTreeMap::new();
        for pod in pods.iter().filter(|pod| is_mirror(pod)) {
            mirrors.insert(meta::name(pod), pod);
        }
        let wanted: BTreeMap<String, &Version> = running
            .iter()
            .map(|version| (version.full_name().name.to_string(), version))
            .collect();
        let shown: Vec<&str> = mirrors.keys().copied().collect();
        let runs: Vec<&str> = wanted.keys().map(String::as_str).collect();
        assert_eq!(
            shown, runs,
            "the API server shows other mirrors than pods that run"
        );
        for (name, version) in &wanted {
            self.check_mirror(mirrors[name.as_str()], version, &node);
        }
        let states = self.agent.as_ref().and_then(|agent| agent.mirrors.as_ref());
        let states = states.expect("an agent with an API server").states.get();
        for (name, state) in &*states {
            assert!(
                matches!(state, MirrorState::Synced { .. }),
                "the mirror of {name} is {state:?}"
            );
        }
    }

    fn check_mirror(&self, mirror: &Value, version: &Version, node: &Value) {
        let (uid, metadata) = (version.uid(), &mirror["metadata"]);
        let hash = &metadata["annotations"][keys::CONFIG_MIRROR];
        assert_eq!(*hash, *uid.to_string(), "the mirror shows another version");
        let owner = &metadata["ownerReferences"][0]["uid"];
        assert_eq!(*owner, *meta::uid(node), "{uid}'s mirror has another owner");
        let deleted = &metadata["deletionTimestamp"];
        assert!(deleted.is_null(), "{uid}'s mirror is being deleted");
        if version.temper == Temper::Crashes {
            return;
        }
        let status = &mirror["status"];
        assert_eq!(status["phase"], "Running", "{uid}: {status:#}");
        let seen = self.fake.pod(&uid);
        let seen: BTreeSet<String> = seen
            .running_containers()
            .map(|container| container.id.to_string())
            .collect();
        let told = status["containerStatuses"].as_array();
        let told: BTreeSet<String> = told
            .into_iter()
            .flatten()
            .filter(|container| !container["state"]["running"].is_null())
            .filter_map(|container| Some(container["containerID"].as_str()?.to_owned()))
            .collect();
        assert_eq!(
            told, seen,
            "{uid}'s status shows other containers: {status:#}"
        );
    }
}
