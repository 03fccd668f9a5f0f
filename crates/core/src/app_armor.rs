//! The `AppArmor` profiles of pods, from fields or from the older annotation.
//!
//! Upstream: `pkg/security/apparmor` (`validate.go`, `helpers.go`).

use std::borrow::Cow;

use crate::api::Pod;
use crate::api::core::{AppArmorProfile, Container};
use crate::spec;

/// Prefix of the annotations; the name of a container follows.
pub const ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

const UNCONFINED: &str = "Unconfined";

/// The profile in an annotation's value; none for one that upstream doesn't know.
pub fn of_annotation(value: &str) -> Option<AppArmorProfile> {
    let (type_, localhost_profile) = match value {
        "runtime/default" => ("RuntimeDefault", None),
        "unconfined" => (UNCONFINED, None),
        _ => (
            "Localhost",
            Some(value.strip_prefix("localhost/")?.to_owned()),
        ),
    };
    Some(AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile,
    })
}

/// The profile of a container: its own field, then its annotation, then its pod's field.
pub fn profile<'a>(pod: &'a Pod, container: &'a Container) -> Option<Cow<'a, AppArmorProfile>> {
    let own = container.security_context.as_ref();
    if let Some(own) = own.and_then(|s| s.app_armor_profile.as_ref()) {
        return Some(Cow::Borrowed(own));
    }
    let key = format!("{ANNOTATION_PREFIX}{}", container.name);
    if let Some(noted) = spec::annotation(&pod.metadata, &key).and_then(of_annotation) {
        return Some(Cow::Owned(noted));
    }
    let of_pod = spec::spec(pod).security_context.as_ref();
    Some(Cow::Borrowed(of_pod?.app_armor_profile.as_ref()?))
}

/// Whether a profile needs a host with `AppArmor`.
pub fn needs_host(profile: &AppArmorProfile) -> bool {
    profile.type_ != UNCONFINED
}

/// Whether the pod needs a host with `AppArmor`: it has a profile other than unconfined.
pub fn is_required(pod: &Pod) -> bool {
    let of_pod = spec::spec(pod).security_context.as_ref();
    let of_pod = of_pod.and_then(|s| s.app_armor_profile.as_ref());
    let mut own = spec::containers(pod).filter_map(|(_, container)| {
        let context = container.security_context.as_ref()?;
        context.app_armor_profile.as_ref()
    });
    let mut noted = pod.metadata.annotations.iter().flatten();
    of_pod.is_some_and(needs_host)
        || own.any(needs_host)
        || noted.any(|(key, value)| key.starts_with(ANNOTATION_PREFIX) && value != "unconfined")
}

/// Why the pod can't run here; `is_enabled` says whether the host enforces profiles.
pub fn refusal(pod: &Pod, is_enabled: bool) -> Option<&'static str> {
    if !is_required(pod) {
        return None;
    }
    if !is_enabled {
        return Some("AppArmor is not enabled on the host");
    }
    let mut profiles = spec::containers(pod).filter_map(|(_, container)| profile(pod, container));
    let is_nameless = |profile: Cow<'_, AppArmorProfile>| {
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        profile.type_ == "Localhost" && name.trim().is_empty()
    };
    if profiles.any(is_nameless) {
        return Some("invalid empty AppArmor profile name");
    }
    // The API server and upstream's kubelet refuse these before; ours are warned of, since a manifest
    // that ran so far isn't to end by an upgrade.
    let mut noted = pod.metadata.annotations.iter().flatten();
    noted
        .any(|(key, value)| {
            key.starts_with(ANNOTATION_PREFIX)
                && !value.is_empty()
                && of_annotation(value).is_none()
        })
        .then_some("invalid AppArmor profile name")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(of_pod: &Value, own: &Value, noted: &Value) -> Pod {
        let mut annotations = json!({});
        if let Some(noted) = noted.as_str() {
            annotations[format!("{ANNOTATION_PREFIX}c")] = json!(noted);
        }
        serde_json::from_value(json!({
            "metadata": {"annotations": annotations},
            "spec": {
                "securityContext": {"appArmorProfile": of_pod},
                "containers": [{"name": "c", "securityContext": {"appArmorProfile": own}}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn profiles_come_from_the_field_the_annotation_or_the_pod() {
        let disabled = Some("AppArmor is not enabled on the host");
        let default = json!({"type": "RuntimeDefault"});
        let open = json!({"type": "Unconfined"});
        let local = json!({"type": "Localhost", "localhostProfile": "web"});
        let null = Value::Null;
        for (of_pod, own, noted, expected, without) in [
            (&null, &null, null.clone(), "none", None),
            (&open, &null, null.clone(), "Unconfined ", None),
            (&default, &null, null.clone(), "RuntimeDefault ", disabled),
            (&default, &local, null.clone(), "Localhost web", disabled),
            (&null, &open, json!("unconfined"), "Unconfined ", None),
            (&null, &null, json!("unconfined"), "Unconfined ", None),
            (
                &null,
                &null,
                json!("runtime/default"),
                "RuntimeDefault ",
                disabled,
            ),
            (
                &null,
                &null,
                json!("localhost/web"),
                "Localhost web",
                disabled,
            ),
            (
                &open,
                &null,
                json!("localhost/web"),
                "Localhost web",
                disabled,
            ),
            (
                &null,
                &default,
                json!("localhost/web"),
                "RuntimeDefault ",
                disabled,
            ),
            (&null, &null, json!("web"), "none", disabled),
        ] {
            let pod = pod(of_pod, own, &noted);
            let found = profile(&pod, &spec::spec(&pod).containers[0]);
            let found = found.map_or_else(
                || "none".to_owned(),
                |p| {
                    format!(
                        "{} {}",
                        p.type_,
                        p.localhost_profile.as_deref().unwrap_or_default()
                    )
                },
            );
            // tenants A1
            assert_eq!(found, expected, "{of_pod} {own} {noted}");
            assert_eq!(refusal(&pod, false), without, "{of_pod} {own} {noted}");
        }
    }

    #[test]
    fn profiles_without_a_name_are_refused_where_profiles_are_enforced() {
        for (noted, expected) in [
            ("localhost/web", None),
            ("", None),
            ("localhost/", Some("invalid empty AppArmor profile name")),
            ("web", Some("invalid AppArmor profile name")),
        ] {
            let pod = pod(&Value::Null, &Value::Null, &json!(noted));
            // tenants A1
            assert_eq!(refusal(&pod, true), expected, "{noted}");
        }
    }
}
