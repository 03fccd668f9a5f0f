//! Requirements of selectors, for labels and fields.

use std::collections::BTreeMap;

use super::core::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// Operator: the value is one of those listed.
pub const IN: &str = "In";
/// Operator: the value is not in the list, or the label is missing.
pub const NOT_IN: &str = "NotIn";
/// Operator: there is a value.
pub const EXISTS: &str = "Exists";
/// Operator: there is no value.
pub const DOES_NOT_EXIST: &str = "DoesNotExist";

/// Whether the value of a label meets a requirement; an unknown operator is never met.
///
/// Upstream: `Requirement.Matches` of `k8s.io/apimachinery/pkg/labels/selector.go`.
pub fn meets(operator: &str, values: &[String], value: Option<&str>) -> bool {
    let is_listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    match operator {
        IN => is_listed(),
        NOT_IN => !is_listed(),
        EXISTS => value.is_some(),
        DOES_NOT_EXIST => value.is_none(),
        _ => false,
    }
}

/// Whether a node selector matches a node with that name and labels.
///
/// Upstream: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go`.
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
