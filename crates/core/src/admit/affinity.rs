//! Node affinity and tolerations of a pod.
//!
//! Upstream: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go`,
//! `k8s.io/component-helpers/scheduling/corev1/helpers.go`.

use std::collections::BTreeMap;

use crate::api::Pod;
use crate::api::core::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};
use crate::api::requirement::meets;
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

/// Whether a node selector allows the node of that name and with those labels.
#[must_use]
pub fn selects_node(
    selector: &NodeSelector,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| term_matches(term, name, labels))
}

/// A term without any requirement matches no node.
fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |requirement: &NodeSelectorRequirement| {
        let value = (requirement.key == "metadata.name").then_some(name);
        requirement_matches(requirement, value)
    };
    (!expressions.is_empty() || !fields.is_empty())
        && expressions
            .iter()
            .all(|r| requirement_matches(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(field)
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = number(values.first().map(String::as_str));
    match requirement.operator.as_str() {
        "Gt" => number(value).zip(bound).is_some_and(|(v, b)| v > b),
        "Lt" => number(value).zip(bound).is_some_and(|(v, b)| v < b),
        operator => meets(operator, values, value),
    }
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
