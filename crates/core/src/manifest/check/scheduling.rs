//! Tolerations. Nothing here schedules, but the API server refuses a mirror with bad ones.

use crate::api::core::{PodSpec, Toleration};
use crate::manifest::problems::Problems;
use crate::path::Path;

use super::{names, one_of};

pub(super) fn check_tolerations(spec: &PodSpec, at: &Path, problems: &mut Problems<'_>) {
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &at.key("tolerations").index(index), problems);
    }
}

fn check_toleration(toleration: &Toleration, at: &Path, problems: &mut Problems<'_>) {
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    one_of(
        Some(operator),
        &["", "Equal", "Exists", "Lt", "Gt"],
        &at.key("operator"),
        problems,
    );
    one_of(
        Some(effect),
        &["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
        &at.key("effect"),
        problems,
    );
    if key.is_empty() && operator != "Exists" {
        problems.invalid(
            &at.key("operator"),
            "must be Exists in a toleration without a key",
        );
    } else if !key.is_empty() && !names::is_qualified(key) {
        problems.invalid(&at.key("key"), "this is not the key of a taint");
    }
    if operator == "Exists" && !value.is_empty() {
        problems.invalid(
            &at.key("value"),
            "must be left out when the operator is Exists",
        );
    } else if !names::is_label_value(value) {
        problems.invalid(&at.key("value"), "this can't be the value of a taint");
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        problems.invalid(
            &at.key("tolerationSeconds"),
            "is allowed only for the effect NoExecute",
        );
    }
}
