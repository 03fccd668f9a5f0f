//! The volumes of claims, for users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::View;
use super::pods::wanted;
use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::report::{VolumeReport, VolumeState};
use mirrorlet_core::api::{FullName, Pod};
use mirrorlet_core::desired::{SourceState, SourceWorkload};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::objects::claims::{ClaimName, ClaimUsers};
use mirrorlet_core::objects::{ObjectKind, is_static, references};
use mirrorlet_core::workload::WorkloadKey;
use mirrorlet_core::workload::claims::template_claims;
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
        let states = self.sources.iter().map(|source| source.state.get());
        let states: Vec<Arc<SourceState>> = states.collect();
        let sets = states.iter().filter_map(|state| state.set());
        let users = claim_users(&merged, stopping, sets.flat_map(|set| &set.workloads));
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
        if let Some(used) = in_use(&volume).filter(|_| !is_lost) {
            return Err(used);
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

/// The error for a volume in use.
fn in_use(volume: &VolumeReport) -> Option<ViewError> {
    let name = &volume.name;
    let (user, help) = match (volume.pods.first(), volume.workloads.first()) {
        (Some(pod), _) => (format!("pod {pod}"), "remove the manifest of the pod first"),
        (None, Some(workload)) => (
            workload.clone(),
            "its next pods need the data; remove its manifest first",
        ),
        (None, None) => return None,
    };
    let message = format!("volume {name} is used by {user}");
    Some(ViewErrorKind::Conflict.error(message).help(help))
}

/// The users of each claim: wanted pods, even if they have yet to start, pods that are being stopped,
/// and workloads without such a pod: a suspended or ended Job, a `CronJob` between two runs, a
/// Deployment that is scaled to 0.
fn claim_users<'a>(
    merged: &Merged,
    stopping: impl Iterator<Item = Arc<Pod>>,
    workloads: impl Iterator<Item = &'a SourceWorkload>,
) -> BTreeMap<ClaimName, ClaimUsers> {
    let wanted = wanted(merged).map(|wanted| Arc::clone(&wanted.pod));
    let mut users = BTreeMap::<_, ClaimUsers>::new();
    let mut by_pods = BTreeSet::new();
    for pod in wanted.chain(stopping).filter(|pod| is_static(pod)) {
        let FullName { namespace, name } = FullName::of(&pod);
        let keys = references(&pod).objects.into_iter();
        for key in keys.filter(|key| key.kind == ObjectKind::Claim) {
            let claim = ClaimName::of(&key);
            by_pods.insert((claim.clone(), WorkloadKey::of(&pod)));
            let of_claim = users.entry(claim).or_default();
            of_claim.pods.insert(format!("{namespace}/{name}"));
        }
    }
    for workload in workloads {
        let Some(key) = workload.key() else {
            continue;
        };
        for claim in template_claims(workload) {
            if !by_pods.contains(&(claim.clone(), Some(key.clone()))) {
                let of_claim = users.entry(claim).or_default();
                of_claim.workloads.insert(key.typed());
            }
        }
    }
    users
}

#[cfg(test)]
pub(super) mod tests {
    use mirrorlet_core::desired::{Origin, PodSource, SourcePod};
    use mirrorlet_core::merge::Waiting;
    use mirrorlet_core::small::SmallCollect;
    use serde_json::{Value, json};

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
        let users = claim_users(&merged, stopping, std::iter::empty());
        let expected = ["db-0", "db-1", "db-2", "web"].map(|name| {
            let claim = ClaimName::new("default", format!("data-{name}"));
            let users = ClaimUsers {
                pods: [format!("default/{name}")].into(),
                ..ClaimUsers::default()
            };
            (claim, users)
        });
        // box 7
        assert_eq!(users, BTreeMap::from(expected));
    }

    /// A workload whose pods use that claim.
    fn workload(owner: &str, claim: &str) -> SourceWorkload {
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        workload_of(owner, &json!({"volumes": [volume]}))
    }

    /// A workload whose pods have that spec.
    pub(in crate::app::view) fn workload_of(owner: &str, pod: &Value) -> SourceWorkload {
        let template = json!({"spec": pod});
        let spec = match owner.split_once('/') {
            Some(("CronJob", _)) => json!({"jobTemplate": {"spec": {"template": template}}}),
            _ => json!({"template": template}),
        };
        SourceWorkload {
            namespace: "default".to_owned(),
            owner: owner.to_owned(),
            document: Arc::new(json!({"spec": spec})),
            pods: BTreeSet::new(),
            set: None,
            template_hash: String::new(),
            origin: Origin::whole(PodSource::File, "/m/w.yaml"),
            held: false,
        }
    }

    #[test]
    fn a_workload_without_pods_uses_its_claims() {
        // One of its pods is there.
        let mut web = pod("web-0");
        let annotations = &mut Arc::make_mut(&mut web.pod).metadata.annotations;
        let owner = ("mirrorlet.dev/workload", "Deployment/web");
        annotations
            .get_or_insert_default()
            .extend([(owner.0.to_owned(), owner.1.to_owned())]);
        let merged = Merged {
            pods: [(web.uid(), web)].into(),
            ..Merged::default()
        };
        let workloads = [
            workload("Deployment/web", "data-web-0"),
            workload("Deployment/off", "data-off"),
            workload("CronJob/dump", "data-web-0"),
            workload("CronJob/dump", "dumps"),
            workload("Job/import", "dumps"),
        ];
        let users = claim_users(&merged, std::iter::empty(), workloads.iter());
        let expected = [
            ("data-off", "", "deployment/default/off"),
            ("data-web-0", "default/web-0", "cronjob/default/dump"),
            ("dumps", "", "cronjob/default/dump job/default/import"),
        ];
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect_set();
        let expected = expected.map(|(claim, pods, workloads)| {
            let (pods, workloads) = (names(pods), names(workloads));
            let users = ClaimUsers { pods, workloads };
            (ClaimName::new("default", claim), users)
        });
        // box 7
        assert_eq!(users, BTreeMap::from(expected));
    }

    #[test]
    fn a_volume_of_a_workload_without_pods_is_not_removed() {
        let names = |names: &[&str]| names.iter().copied().map(str::to_owned).collect();
        for (pods, workloads, expected) in [
            (
                &["default/db"][..],
                &["job/default/dump"][..],
                Some("pod default/db"),
            ),
            (&[], &["cronjob/default/dump"], Some("cronjob/default/dump")),
            (&[], &[], None),
        ] {
            let volume = VolumeReport {
                name: "v".to_owned(),
                namespace: "default".to_owned(),
                claim: "c".to_owned(),
                state: VolumeState::Released,
                driver: None,
                path: None,
                created: true,
                pods: names(pods),
                workloads: names(workloads),
            };
            let words = in_use(&volume).map(|error| error.message);
            let expected = expected.map(|user| format!("volume v is used by {user}"));
            // box 7
            assert_eq!(words, expected);
        }
    }
}
