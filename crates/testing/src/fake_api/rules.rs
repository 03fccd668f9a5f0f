//! Rules for pods: those that an API server enforces, and those that a node must follow.

use std::sync::Arc;

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::PODS;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::api::keys;
use serde_json::Value;

/// Grace of a pod that has none of its own, in seconds.
const GRACE: i64 = 30;

/// Whether a pod is a mirror.
pub fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"][keys::CONFIG_MIRROR].is_string()
}

fn is_terminal(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// Whether the Node that owns a pod, if any, exists.
pub(super) fn has_owner(pod: &Value, nodes: &[Arc<Value>]) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.all(|owner| {
        owner["kind"] != "Node"
            || nodes
                .iter()
                .any(|node| meta::name(node) == owner["name"] && meta::uid(node) == owner["uid"])
    })
}

/// Admits a new pod. A node may only create mirror pods, which it must own.
///
/// Upstream: `plugin/pkg/admission/noderestriction/admission.go` (`admitPodCreate`),
/// `pkg/registry/core/pod/strategy.go` (`PrepareForCreate`).
pub(super) fn admit(pod: &Value, nodes: &[Arc<Value>]) -> Result<(), Status> {
    let refused = |why: &str| Err(Status::forbidden(&PODS, meta::name(pod), why));
    if is_mirror(pod) {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        if owners.map(Vec::len) != Some(1) {
            return refused("node can only create pods with an owner reference set to itself");
        }
        if !has_owner(pod, nodes) {
            return refused("node can only create pods with the UID of its own Node");
        }
    }
    Ok(())
}

/// The grace period of a deletion in seconds: the requested one, or the pod's own; 0 if none of its
/// containers may run any more.
///
/// Upstream: `pkg/registry/core/pod/strategy.go` (`CheckGracefulDelete`).
pub(super) fn grace(pod: &Value, options: &Value) -> i64 {
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64();
    let asked = options["gracePeriodSeconds"].as_i64();
    let is_bound = pod["spec"]["nodeName"].as_str().unwrap_or_default() != "";
    if !is_bound || is_terminal(pod) {
        return 0;
    }
    asked.or(own).unwrap_or(GRACE)
}

fn restarts(pod: &Value) -> impl Iterator<Item = (&str, i64)> {
    let all = pod["status"]["containerStatuses"].as_array();
    all.into_iter().flatten().filter_map(|container| {
        let name = container["name"].as_str()?;
        Some((name, container["restartCount"].as_i64()?))
    })
}

/// Returns the rule that a node breaks by deleting this pod: an ordinary pod is deleted by others, and
/// its node only completes the deletion.
pub(super) fn broken_by_deletion(pod: &Value) -> Option<String> {
    let is_ours = is_mirror(pod) || !pod["metadata"]["deletionTimestamp"].is_null();
    (!is_ours).then(|| format!("{} was deleted by its node", meta::name(pod)))
}

/// The ids of the containers that a status shows, with whether each has ended.
fn instances(pod: &Value) -> impl Iterator<Item = (&str, &str, bool)> {
    let all = pod["status"]["containerStatuses"].as_array();
    all.into_iter().flatten().filter_map(|container| {
        let name = container["name"].as_str()?;
        let ended = container["state"]["terminated"].is_object();
        Some((
            name,
            container["containerID"].as_str().unwrap_or_default(),
            ended,
        ))
    })
}

/// The container that a new status reports as ended without its exit state, though it was reported as
/// running.
pub(super) fn lost_end(before: &Value, after: &Value) -> Option<String> {
    let mut ran = instances(before).filter(|(_, id, ended)| !ended && !id.is_empty());
    let (container, _, _) = ran.find(|(container, _, _)| {
        let mut now = instances(after);
        now.any(|(other, id, ended)| other == *container && ended && id.is_empty())
    })?;
    let name = meta::name(after);
    Some(format!("nobody knows how {container} of {name} ended"))
}

/// Returns the rule that a new status of a pod breaks, if any: a pod that has ended stays so, and
/// restart counts only grow. A static pod that was started afresh counts from zero, and has another
/// address.
pub(super) fn broken_promise(before: &Value, after: &Value) -> Option<String> {
    let name = meta::name(after);
    if is_terminal(before) && before["status"]["phase"] != after["status"]["phase"] {
        return Some(format!(
            "{name} was {} and is {}",
            before["status"]["phase"], after["status"]["phase"]
        ));
    }
    if before["status"]["podIP"] != after["status"]["podIP"] {
        return None;
    }
    let fewer = restarts(before).find_map(|(container, count)| {
        let mut after = restarts(after);
        let (_, now) = after.find(|(other, _)| *other == container)?;
        (now < count).then_some((container, count, now))
    });
    let (container, count, now) = fewer?;
    Some(format!(
        "{container} of {name} had {count} restarts and has {now}: {}, then {}",
        before["status"]["containerStatuses"], after["status"]["containerStatuses"]
    ))
}
