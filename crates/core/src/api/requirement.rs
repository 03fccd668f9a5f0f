//! Requirements of selectors, for labels and fields.

/// Operator: the value is one of those listed.
pub const IN: &str = "In";
/// Operator: the value is none of those listed, or there is none.
pub const NOT_IN: &str = "NotIn";
/// Operator: there is a value.
pub const EXISTS: &str = "Exists";
/// Operator: there is no value.
pub const DOES_NOT_EXIST: &str = "DoesNotExist";

/// Whether the value of a label meets a requirement of the API; an unknown operator is never met.
///
/// Upstream: `Requirement.Matches` of `k8s.io/apimachinery/pkg/labels/selector.go`.
#[must_use]
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
