//! Pods with the objects that are part of their version.

use std::collections::BTreeMap;

use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::{Incumbent, Merged};
use mirrorlet_core::objects::ObjectKey;
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout::History;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::version::with_config;

use super::{RolloutOptions, Rollouts};

impl RolloutOptions {
    /// A pod with the objects that are part of its version; none if there are none.
    pub(super) fn with_config(
        &self,
        pod: &SourcePod,
        history: Option<&History>,
        newest: &Merged,
    ) -> Option<SourcePod> {
        let find = |key: &ObjectKey| newest.objects.get(key).map(|known| known.object.clone());
        let known = |manifest: &PodUid| history?.of_manifest(manifest);
        with_config(pod, &self.salt, find, newest.delivered.manifests, known)
    }
}

impl Rollouts {
    /// Gives pods whose objects are part of their version the UID of that version, and provides the
    /// objects to every version that may be prepared or started.
    pub fn add_configs(&self, merged: &mut Merged) {
        // A pod of a Job has the UID of its record, and is never replaced.
        let is_static = |pod: &SourcePod| !pod.is_api() && pod.runs.is_none();
        let statics = merged.pods.iter().filter(|(_, pod)| is_static(pod));
        let versions: Vec<(PodUid, SourcePod)> = statics
            .filter_map(|(uid, pod)| {
                let history = self.histories.get(&pod.full_name());
                let version = self.options.with_config(pod, history, merged)?;
                Some((uid.clone(), version))
            })
            .collect();
        for (uid, version) in versions {
            merged.pods.remove(&uid);
            merged.pods.insert(version.uid(), version);
        }
        let known = self
            .histories
            .values()
            .flat_map(|history| &history.revisions);
        let known = known.filter_map(|known| Some((known.uid(), known.config.clone()?)));
        let wanted = merged.pods.iter();
        let wanted = wanted.filter_map(|(uid, pod)| Some((uid.clone(), pod.config.clone()?)));
        self.options
            .objects
            .publish_configs(known.chain(wanted).collect_map());
    }

    /// The last wanted pods, as far as they were stored, and those in the runtime.
    pub fn incumbents(&self, listed: &Pods) -> BTreeMap<FullName, Incumbent> {
        let wanted = self.histories.iter().filter_map(|(name, history)| {
            let newest = history.newest_revision()?;
            let known = Incumbent {
                uid: newest.manifest_uid(),
                origin: Some(newest.origin.clone()),
            };
            Some((name.clone(), known))
        });
        let mut incumbents: BTreeMap<FullName, Incumbent> = wanted.collect_map();
        for pod in &listed.0 {
            let uid = self.manifest_uid(&pod.full_name, &pod.uid);
            let origin = incumbents
                .remove(&pod.full_name)
                .and_then(|known| known.origin);
            incumbents.insert(pod.full_name.clone(), Incumbent { uid, origin });
        }
        incumbents
    }

    /// The UID of the manifest of a version, without its objects.
    fn manifest_uid(&self, name: &FullName, uid: &PodUid) -> PodUid {
        let known = self
            .histories
            .get(name)
            .and_then(|history| history.get(uid));
        let config = known.and_then(|known| known.config.as_ref());
        config.map_or_else(|| uid.clone(), |config| config.manifest.clone())
    }
}
