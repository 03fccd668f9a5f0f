//! The volumes of claims, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::View;
use super::pods::wanted;
use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::report::{VolumeReport, VolumeState};
use mirrorlet_core::api::{FullName, Pod};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::objects::claims::ClaimName;
use mirrorlet_core::objects::{ObjectKind, is_static, references};
use mirrorlet_runtime::RuntimeError;

impl View {
    /// See [`AgentView::volumes`](crate::server::view::AgentView::volumes).
    pub(super) async fn list_volumes(&self) -> Result<Vec<VolumeReport>, ViewError> {
        let merged = self.merged.get();
        if !merged.delivered.manifests {
            // A claim without a document would count as released.
            let message = "not every source of manifests has been read yet";
            return Err(ViewErrorKind::Unavailable.error(message));
        }
        let created = self.runtime.list_volumes().await?;
        let known = merged.known_objects();
        let stopping = self.board.all().into_iter().filter_map(|view| view.pod);
        let users = claim_users(&merged, stopping);
        Ok(known.claims().volumes_report(&users, &created))
    }

    /// See [`AgentView::remove_volume`](crate::server::view::AgentView::remove_volume).
    pub(super) async fn release_volume(&self, name: &str) -> Result<VolumeReport, ViewError> {
        let volumes = self.list_volumes().await?.into_iter();
        let mut named: Vec<_> = volumes.filter(|volume| volume.name == name).collect();
        let Some(volume) = named.pop() else {
            return Err(ViewErrorKind::NotFound
                .error(format!("no claim has a volume {name}"))
                .help("list the volumes with: mirrorlet volumes"));
        };
        // The pods of a volume that is lost wait, and there is no data to keep for them.
        let is_lost = volume.state == VolumeState::Lost;
        if let Some(pod) = volume.pods.first().filter(|_| !is_lost) {
            return Err(ViewErrorKind::Conflict
                .error(format!("volume {name} is used by pod {pod}"))
                .help("remove the manifest of the pod first"));
        }
        if let Some(other) = named.first() {
            let (namespace, claim) = (&other.namespace, &other.claim);
            return Err(ViewErrorKind::Conflict.error(format!(
                "claim {namespace}/{claim} has a volume of the same name"
            )));
        }
        if volume.created {
            match self.runtime.remove_volume(name).await {
                Ok(()) | Err(RuntimeError::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let claim = ClaimName::new(&volume.namespace, &volume.claim);
        let bound = self.merged.get().bindings.get(&claim).cloned();
        let is_bound = bound.is_some_and(|bound| bound.name() == name);
        if is_bound && !self.claims.release(claim).await {
            let message = "its binding can't be removed from the disk; see the agent's log";
            return Err(ViewErrorKind::Failed.error(format!("volume {name}: {message}")));
        }
        Ok(volume)
    }
}

/// The pods that use each claim: those that are wanted, also where they have yet to start, and those
/// that are being stopped.
fn claim_users(
    merged: &Merged,
    stopping: impl Iterator<Item = Arc<Pod>>,
) -> BTreeMap<ClaimName, BTreeSet<String>> {
    let wanted = wanted(merged).map(|wanted| Arc::clone(&wanted.pod));
    let mut users = BTreeMap::<_, BTreeSet<String>>::new();
    for pod in wanted.chain(stopping).filter(|pod| is_static(pod)) {
        let FullName { namespace, name } = FullName::of(&pod);
        let keys = references(&pod).objects.into_iter();
        for key in keys.filter(|key| key.kind == ObjectKind::Claim) {
            let of_claim = users.entry(ClaimName::of(&key)).or_default();
            of_claim.insert(format!("{namespace}/{name}"));
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use mirrorlet_core::desired::{Origin, PodSource, SourcePod};
    use mirrorlet_core::merge::Waiting;
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> SourcePod {
        let claim = json!({"claimName": format!("data-{name}")});
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name,
                "annotations": {"kubernetes.io/config.source": "file"},
            },
            "spec": {
                "containers": [{"name": "c"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": claim}],
            },
        });
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        SourcePod::new(pod, Origin::whole(PodSource::File, "/m/db.yaml"))
    }

    #[test]
    fn a_pod_that_waits_for_its_turn_uses_its_claim() {
        let waits = |pod: SourcePod| {
            let message = "starts once db-0 is Running and Ready".to_owned();
            let waiting = Waiting {
                pod: Some(pod),
                message,
            };
            (FullName::new("db-1", "default"), waiting)
        };
        let one = |pod: SourcePod| (pod.uid(), pod);
        let merged = Merged {
            pods: [one(pod("db-0"))].into(),
            beside: [one(pod("web"))].into(),
            waits: [waits(pod("db-1"))].into(),
            ..Merged::default()
        };
        let stopping = [pod("db-2").pod].into_iter();
        let users = claim_users(&merged, stopping);
        let expected = ["db-0", "db-1", "db-2", "web"].map(|name| {
            let claim = ClaimName::new("default", format!("data-{name}"));
            (claim, BTreeSet::from([format!("default/{name}")]))
        });
        // box 7
        assert_eq!(users, BTreeMap::from(expected));
    }
}
