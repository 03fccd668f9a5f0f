//! Tolerations. They are unused here, but the API server refuses a mirror with invalid ones.

use crate::api::core::{PodSpec, Toleration};
use crate::manifest::problems::At;

use super::names;

pub(super) fn check_tolerations(spec: &PodSpec, at: &At<'_>) {
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &at.key("tolerations").index(index));
    }
}

fn check_toleration(toleration: &Toleration, at: &At<'_>) {
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    at.key("operator")
        .one_of(Some(operator), &["", "Equal", "Exists", "Lt", "Gt"]);
    at.key("effect").one_of(
        Some(effect),
        &["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
    );
    if key.is_empty() && operator != "Exists" {
        at.key("operator")
            .invalid("must be Exists in a toleration without a key");
    } else if !key.is_empty() && !names::is_qualified(key) {
        at.key("key").invalid("this is not the key of a taint");
    }
    if operator == "Exists" && !value.is_empty() {
        at.key("value")
            .invalid("must be left out when the operator is Exists");
    } else if !names::is_label_value(value) {
        at.key("value")
            .invalid("this can't be the value of a taint");
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        at.key("tolerationSeconds")
            .invalid("is allowed only for the effect NoExecute");
    }
}
