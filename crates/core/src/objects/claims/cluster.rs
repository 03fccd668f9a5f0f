//! Storage of the claims in an API server, which its controllers bind.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ClaimName, ONE_POD, PersistentVolume, Storage, claim_spec};
use crate::api::core::{Node, PersistentVolumeClaim};
use crate::api::requirement::selects_node;
use crate::api::{FullName, Pod, PodUid};

/// Returns the name of the `PersistentVolume` that a claim in the API server is bound to.
///
/// Upstream: `getPVCExtractPV` of
/// `pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go`.
///
/// # Errors
/// The claim is being deleted, or is not bound.
pub fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, String> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("it is being deleted".to_owned());
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    match claim_spec(claim).volume_name.as_deref() {
        Some(volume) if !volume.is_empty() && phase == Some("Bound") => Ok(volume),
        Some(_) | None => Err(format!("its phase is {}", phase.unwrap_or("Pending"))),
    }
}

/// Returns the storage of a claim in the API server that is bound to that volume. `node` is the Node of
/// this machine; none before it is known.
///
/// Upstream: `getPVSpec` of the same file, `checkNodeAffinity` of
/// `pkg/volume/util/operationexecutor/operation_generator.go`.
///
/// # Errors
/// The volume belongs to another claim or to other nodes, or has an unsupported type.
pub fn bound_storage(
    name: ClaimName,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    node: Option<&Arc<Node>>,
) -> Result<Storage, String> {
    let called = volume.metadata.name.clone().unwrap_or_default();
    let owner = volume.spec.claim_ref.as_ref().and_then(|c| c.uid.as_ref());
    if owner.is_none() || owner != claim.metadata.uid.as_ref() {
        return Err(format!("PersistentVolume {called} is not bound to it"));
    }
    let affinity = volume.spec.node_affinity.as_ref();
    if let Some(selector) = affinity.and_then(|affinity| affinity.required.as_ref()) {
        let node = node.ok_or("the labels of this Node are not known yet")?;
        let unlabelled = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&unlabelled);
        let node_name = node.metadata.name.as_deref().unwrap_or_default();
        if !selects_node(selector, node_name, labels) {
            return Err(format!(
                "the node affinity of PersistentVolume {called} excludes this Node"
            ));
        }
    }
    let modes = claim_spec(claim).access_modes.as_deref();
    let one_pod = modes.is_some_and(|modes| modes.iter().any(|mode| mode == ONE_POD));
    Ok(Storage {
        claim: name,
        place: volume.place(called)?,
        one_pod,
        pod: controlling_pod(claim),
    })
}

fn controlling_pod(claim: &PersistentVolumeClaim) -> Option<String> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let pod = owners.find(|owner| owner.controller == Some(true) && owner.kind == "Pod");
    pod.map(|owner| owner.uid.clone())
}

/// Checks that the claim of an ephemeral volume was created for its pod: a user who may create claims
/// could create one with that name for another purpose.
///
/// Upstream: `VolumeIsForPod` of
/// `staging/src/k8s.io/component-helpers/storage/ephemeral/ephemeral.go`.
///
/// # Errors
/// It was not.
pub fn check_made_for(pod: &Pod, storage: &Storage) -> Result<(), String> {
    if storage.pod.as_deref() == Some(PodUid::of(pod).as_str()) {
        return Ok(());
    }
    let name = FullName::of(pod);
    Err(format!(
        "it was not created for pod {}/{} (pod is not owner)",
        name.namespace, name.name
    ))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::objects::claims::Place;
    use crate::spec;
    use serde_json::{Value, json};

    fn claim(change: impl Fn(&mut Value)) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "a", "uid": "u1"},
            "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Bound"},
        });
        change(&mut claim);
        serde_json::from_value(claim).unwrap()
    }

    fn volume(change: impl Fn(&mut Value)) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {"name": "disk"},
            "spec": {"claimRef": {"uid": "u1"}, "local": {"path": "/disks/1"}},
        });
        change(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn a_pod_waits_for_its_claim_to_be_bound() {
        let bound = |change: fn(&mut Value)| bound_volume(&claim(change)).map(str::to_owned);
        // box 16
        assert_eq!(bound(|_| {}), Ok("disk".to_owned()));
        for (change, cause) in [
            (
                (|c| c["status"] = json!({"phase": "Pending"})) as fn(&mut Value),
                "its phase is Pending",
            ),
            (|c| c["status"] = Value::Null, "its phase is Pending"),
            (
                |c| c["status"] = json!({"phase": "Lost"}),
                "its phase is Lost",
            ),
            (
                |c| c["spec"]["volumeName"] = Value::Null,
                "its phase is Bound",
            ),
            (
                |c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                "it is being deleted",
            ),
        ] {
            assert_eq!(bound(change), Err(cause.to_owned()));
        }
    }

    #[test]
    fn a_claim_of_the_api_server_may_be_for_a_device() {
        let name = ClaimName {
            namespace: "a".to_owned(),
            name: "data".to_owned(),
        };
        let device = |path: &str| {
            Ok(Place::Device {
                volume: "disk".to_owned(),
                path: path.to_owned(),
            })
        };
        let host_path = |kind: &str| json!({"path": "/dev/sdb", "type": kind});
        for (mode, local, host_path, expected) in [
            ("Block", json!({"path": "/dev/sdb"}), Value::Null, device("/dev/sdb")),
            ("Block", Value::Null, host_path(""), device("/dev/sdb")),
            ("Block", Value::Null, host_path("BlockDevice"), device("/dev/sdb")),
            (
                "Block",
                Value::Null,
                host_path("Directory"),
                Err("PersistentVolume disk has volumeMode Block, but its hostPath is of type Directory".to_owned()),
            ),
            // The volume's mode counts, as upstream.
            (
                "Filesystem",
                json!({"path": "/disks/1"}),
                Value::Null,
                Ok(Place::Host {
                    volume: "disk".to_owned(),
                    path: "/disks/1".to_owned(),
                    kind: "Directory".to_owned(),
                }),
            ),
        ] {
            let claim = claim(|c| c["spec"]["volumeMode"] = json!("Block"));
            assert_eq!(bound_volume(&claim), Ok("disk"));
            let volume = volume(|v| {
                v["spec"]["volumeMode"] = json!(mode);
                v["spec"]["local"] = local.clone();
                v["spec"]["hostPath"] = host_path.clone();
            });
            let storage = bound_storage(name.clone(), &claim, &volume, None);
            // box 18
            assert_eq!(storage.map(|storage| storage.place), expected, "{host_path}");
        }
    }

    #[test]
    fn the_claim_of_an_ephemeral_volume_belongs_to_its_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "a", "uid": "p1"},
            "spec": {"containers": [], "volumes": [
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "tmp", "emptyDir": {}},
            ]},
        }))
        .unwrap();
        let volumes = spec::spec(&pod).volumes.as_deref().unwrap_or_default();
        let names = volumes.iter().map(|volume| spec::claim_name(&pod, volume));
        let names: Vec<_> = names.map(|name| name.map(Cow::into_owned)).collect();
        // box 17
        assert_eq!(
            names,
            [
                Some("web-scratch".to_owned()),
                Some("data".to_owned()),
                None
            ]
        );
        let owned_by = |kind: &str, uid: &str, controller: bool| {
            let owner = json!([{"apiVersion": "v1", "kind": kind, "name": "web", "uid": uid, "controller": controller}]);
            let claim = claim(|c| c["metadata"]["ownerReferences"] = owner.clone());
            let name = ClaimName::new("a", "web-scratch");
            let storage = bound_storage(name, &claim, &volume(|_| {}), None).unwrap();
            check_made_for(&pod, &storage).is_ok()
        };
        for (kind, uid, controller, expected) in [
            ("Pod", "p1", true, true),
            ("Pod", "p2", true, false),
            ("Pod", "p1", false, false),
            ("ConfigMap", "p1", true, false),
        ] {
            // box 17
            assert_eq!(owned_by(kind, uid, controller), expected, "{kind} {uid}");
        }
    }

    #[test]
    fn the_volume_of_a_claim_is_its_own_and_is_on_this_node() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
        }))
        .unwrap();
        let node = Arc::new(node);
        let name = ClaimName::new("a", "data");
        let only_on = |host: &str| {
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}})
        };
        let on = |volume: &PersistentVolume, node| {
            bound_storage(name.clone(), &claim(|_| {}), volume, node).map(|storage| storage.place)
        };
        let local = Place::Host {
            volume: "disk".to_owned(),
            path: "/disks/1".to_owned(),
            kind: "Directory".to_owned(),
        };
        let here = volume(|v| v["spec"]["nodeAffinity"] = only_on("n1"));
        let there = volume(|v| v["spec"]["nodeAffinity"] = only_on("n2"));
        // box 16
        assert_eq!(on(&volume(|_| {}), None), Ok(local.clone()));
        assert_eq!(on(&here, Some(&node)), Ok(local));
        assert_eq!(
            on(&there, Some(&node)).unwrap_err(),
            "the node affinity of PersistentVolume disk excludes this Node"
        );
        assert_eq!(
            on(&here, None).unwrap_err(),
            "the labels of this Node are not known yet"
        );
        for other in [json!({"uid": "u2"}), Value::Null] {
            let volume = volume(|v| v["spec"]["claimRef"] = other.clone());
            assert_eq!(
                on(&volume, Some(&node)).unwrap_err(),
                "PersistentVolume disk is not bound to it"
            );
        }
        let remote = volume(|v| {
            v["spec"]["local"] = Value::Null;
            v["spec"]["nfs"] = json!({"server": "a", "path": "/"});
        });
        assert_eq!(
            on(&remote, Some(&node)).unwrap_err(),
            "PersistentVolume disk is of a type that is not supported"
        );
    }
}
