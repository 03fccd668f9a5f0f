//! Node affinity and tolerations of a pod.
//!
//! Upstream: `k8s.io/component-helpers/scheduling/corev1/helpers.go`.

use std::collections::BTreeMap;

use crate::api::Pod;
use crate::api::core::{Taint, Toleration};
use crate::api::requirement::selects_node;
use crate::spec;

/// Whether node selector and required node affinity allow this node.
pub(super) fn matches(pod: &Pod, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let spec = spec::spec(pod);
    let selector = spec.node_selector.iter().flatten();
    if !selector
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
    {
        return false;
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    required.is_none_or(|required| selects_node(required, name, labels))
}

/// Whether the node has a `NoExecute` taint that the pod doesn't tolerate.
pub(super) fn untolerated_no_execute(pod: &Pod, taints: &[Taint]) -> bool {
    taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .any(|taint| !tolerates_taint(pod, taint))
}

/// Whether the pod tolerates a taint.
pub(super) fn tolerates_taint(pod: &Pod, taint: &Taint) -> bool {
    let mut tolerations = spec::spec(pod).tolerations.iter().flatten();
    tolerations.any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match text(&toleration.operator).as_str() {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
        _ => false,
    }
}
