//! CDI (Container Device Interface) devices, which pods of manifests request in annotations.
//!
//! Container runtimes read such annotations of a container; upstream, device plugins write them. There
//! are no device plugins here, and the author of a manifest controls the machine: annotations of a pod
//! apply to its containers. A kubelet passes none of a pod's annotations to a runtime, so those of an
//! API pod have no effect here either: otherwise everybody who may create Pods would have the devices
//! of the machine.
//!
//! Upstream: `pkg/cdi/annotations.go` (`ParseAnnotations`) and `pkg/parser/parser.go` of
//! `tags.cncf.io/container-device-interface`.

use crate::api::Pod;
use crate::objects::is_static;

/// Beginning of the annotations; any name follows.
pub const ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// The annotations about devices: key and value.
fn annotations(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let all = pod.metadata.annotations.iter().flatten();
    let all = all.map(|(key, value)| (key.as_str(), value.as_str()));
    all.filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX))
}

/// The device names in the value of an annotation.
///
/// # Errors
/// A name is invalid; the message describes a valid value.
pub fn parse(value: &str) -> Result<Vec<&str>, &'static str> {
    let names: Vec<&str> = value.split(',').collect();
    if names.iter().all(|name| is_device(name)) {
        Ok(names)
    } else {
        Err(
            "must be names of CDI devices, such as nvidia.com/gpu=0, with commas and no spaces between them",
        )
    }
}

/// The devices of each container of a pod, without duplicates. None for an API pod.
///
/// # Errors
/// The value of an annotation is not a list of devices.
pub fn devices(pod: &Pod) -> Result<Vec<&str>, String> {
    let mut devices = Vec::new();
    if !is_static(pod) {
        return Ok(devices);
    }
    for (key, value) in annotations(pod) {
        let listed = parse(value).map_err(|rule| format!("annotation {key}: {rule}"))?;
        for device in listed {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
    }
    Ok(devices)
}

/// The annotation that has no effect because the pod is an API pod.
pub fn ignored(pod: &Pod) -> Option<&str> {
    let (key, _) = annotations(pod).next()?;
    (!is_static(pod)).then_some(key)
}

/// Whether a text is the qualified name of a device: `vendor/class=name`.
fn is_device(text: &str) -> bool {
    let parts = text.split_once('=').and_then(|(kind, name)| {
        let (vendor, class) = kind.split_once('/')?;
        Some((vendor, class, name))
    });
    let begins = |text: &str| text.starts_with(|c: char| c.is_ascii_alphabetic());
    parts.is_some_and(|(vendor, class, name)| {
        begins(vendor)
            && is_name(vendor, "_-.")
            && begins(class)
            && is_name(class, "_-")
            && is_name(name, "_-.:")
    })
}

/// Whether a text has letters, digits and these characters, with a letter or digit at both ends.
fn is_name(text: &str, inside: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(is_plain)
        && text.ends_with(is_plain)
        && text.chars().all(|c| is_plain(c) || inside.contains(c))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RULE: &str = "must be names of CDI devices, such as nvidia.com/gpu=0, with commas and no spaces between them";

    #[test]
    fn a_device_has_a_qualified_name() {
        for value in [
            "nvidia.com/gpu=0",
            "v/c=n",
            "vendor.com/net_card-2=a:0.1_b-c,vendor.com/class=all",
        ] {
            // box 19
            assert_eq!(parse(value), Ok(value.split(',').collect()), "{value}");
        }
        for value in [
            "",
            "/dev/sdb",
            "gpu",
            "nvidia.com/gpu",
            "gpu=0",
            "nvidia.com/gpu=",
            "/gpu=0",
            "nvidia.com/=0",
            "1vendor.com/gpu=0",
            "vendor.com/1gpu=0",
            "vendor.com/g.pu=0",
            "vendor.com/gpu/a=0",
            "vendor.com-/gpu=0",
            "vendor.com/gpu=:0",
            "vendor.com/gpu=0=1",
            "vendor.com/gpu=ö",
            "vendor.com/gpu=0, vendor.com/gpu=1",
            "vendor.com/gpu=0,",
        ] {
            // box 19
            assert_eq!(parse(value), Err(RULE), "{value}");
        }
    }

    #[test]
    fn annotations_of_a_manifest_are_devices_of_each_container() {
        let pod = |source: &str, annotations: Value| -> Pod {
            let mut annotations = annotations;
            annotations["kubernetes.io/config.source"] = json!(source);
            serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}}))
                .unwrap()
        };
        let both = json!({
            "cdi.k8s.io/a": "v.com/c=1,v.com/c=2",
            "cdi.k8s.io/b": "v.com/c=2,v.com/d=1",
            "cdi.k8s": "x",
        });
        let wrong = json!({"cdi.k8s.io/a": "v.com/c=1,disk"});
        for (source, annotations, expected, ignored_key) in [
            (
                "file",
                &both,
                Ok(vec!["v.com/c=1", "v.com/c=2", "v.com/d=1"]),
                None,
            ),
            ("http", &json!({}), Ok(vec![]), None),
            (
                "file",
                &wrong,
                Err(format!("annotation cdi.k8s.io/a: {RULE}")),
                None,
            ),
            ("api", &both, Ok(vec![]), Some("cdi.k8s.io/a")),
            ("api", &wrong, Ok(vec![]), Some("cdi.k8s.io/a")),
            ("api", &json!({}), Ok(vec![]), None),
        ] {
            let pod = pod(source, annotations.clone());
            // box 19
            assert_eq!(
                (devices(&pod), ignored(&pod)),
                (expected, ignored_key),
                "{source}"
            );
        }
    }
}
