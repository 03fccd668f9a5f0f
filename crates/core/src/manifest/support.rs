//! The fields that need special treatment, as data: refused, forbidden or without effect.
//!
//! To support a field, remove its row from [`RULES`]; nothing else refers to the list.

use serde_json::Value;

use crate::api::Pod;

use crate::path::Path;

/// The verdict of a row about a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can't be honoured; the text says why.
    Unsupported(&'static str),
    /// It refers to an API object of this resource, which no manifest can define.
    Forbidden(&'static str),
    /// The same, and for an API pod it isn't supported here either.
    ForbiddenAndUnsupported(&'static str),
    /// It can't be part of a manifest, and is not part of a spec; the text says why.
    NotInManifest(&'static str),
    /// It has no effect; the text says why.
    NoEffect(&'static str),
    /// The same, also for an API pod.
    NoEffectAnywhere(&'static str),
    /// It is supported, but its effect depends on the node; the text says how.
    OnNode(&'static str),
}

/// The values that a row applies to.
#[derive(Debug, Clone, Copy)]
enum When {
    /// Everything but an empty list.
    Written,
    /// Everything but `false`, an empty text, list or mapping.
    NonEmpty,
    /// `false`.
    IsFalse,
    /// A text that begins so.
    Begins(&'static str),
    /// A text, other than this and the empty one.
    IsNot(&'static str),
    /// `Strict`, for a pod with a container without `runAsGroup`.
    StrictWithoutGroup,
}

/// One row: a field, the affected values, the message.
///
/// In the field's path `[]` is any item, `C` is `containers[]` and `initContainers[]`, and a key may
/// end in `*`.
struct Rule(&'static str, When, Verdict);

use Verdict::{
    Forbidden, ForbiddenAndUnsupported, NoEffect, NoEffectAnywhere, NotInManifest, OnNode,
    Unsupported,
};
use When::{Begins, IsFalse, IsNot, NonEmpty, StrictWithoutGroup, Written};

const DELETION: Verdict = NotInManifest("a static pod is deleted by removing its manifest");
const RESOURCE_CLAIMS: Verdict = ForbiddenAndUnsupported("resourceclaims");
const HTTP_1: Verdict = Unsupported("only HTTP/1.1 is supported; remove this field");
const SCHEDULING: Verdict =
    NoEffect("a static pod isn't scheduled: it runs on the node that reads it");
const LABELS: Verdict = OnNode(
    "the node rejects the pod unless the node's labels match (NodeAffinity); the labels are not known here",
);
const SERVICE_ACCOUNT: Verdict =
    NoEffect("a static pod has no service account, and gets no token for the API server");
const VOLUME: Verdict = Unsupported("volumes of this type are not supported");
const WINDOWS: Verdict = Unsupported("Windows pods are not supported");
const HUGE_PAGES: Verdict = Unsupported("the Docker Engine can't limit huge pages");

/// Every special field.
const RULES: &[Rule] = &[
    // Metadata
    Rule("metadata.deletionTimestamp", Written, DELETION),
    Rule("metadata.deletionGracePeriodSeconds", Written, DELETION),
    // Pod
    Rule("spec.serviceAccountName", NonEmpty, SERVICE_ACCOUNT),
    Rule("spec.serviceAccount", NonEmpty, SERVICE_ACCOUNT),
    Rule("spec.resourceClaims", NonEmpty, RESOURCE_CLAIMS),
    Rule(
        "spec.ephemeralContainers",
        NonEmpty,
        NotInManifest("a manifest can't contain ephemeral containers"),
    ),
    Rule(
        "spec.schedulingGates",
        NonEmpty,
        NotInManifest("a pod that is bound to a node can't have scheduling gates"),
    ),
    Rule(
        "spec.schedulingGroup",
        Written,
        NotInManifest("a static pod isn't scheduled"),
    ),
    Rule(
        "spec.readinessGates",
        NonEmpty,
        NotInManifest("conditions of a static pod can't be set, so its gates would never open"),
    ),
    Rule(
        "spec.evictionResponders",
        NonEmpty,
        Unsupported("eviction responders are not supported"),
    ),
    Rule(
        "spec.runtimeClassName",
        NonEmpty,
        Unsupported("runtime classes are not supported yet"),
    ),
    Rule(
        "spec.hostUsers",
        IsFalse,
        Unsupported("the Docker Engine can't give a pod a user namespace of its own"),
    ),
    Rule(
        "spec.hostnameOverride",
        NonEmpty,
        Unsupported("overriding the host name is not supported; use hostname"),
    ),
    Rule("spec.resources.claims", NonEmpty, RESOURCE_CLAIMS),
    Rule("spec.resources.limits.hugepages-*", Written, HUGE_PAGES),
    Rule("spec.resources.requests.hugepages-*", Written, HUGE_PAGES),
    Rule("spec.os.name", Begins("windows"), WINDOWS),
    Rule("spec.nodeSelector", NonEmpty, LABELS),
    Rule("spec.affinity", NonEmpty, LABELS),
    Rule("spec.topologySpreadConstraints", NonEmpty, SCHEDULING),
    Rule(
        "spec.preemptionPolicy",
        IsNot("PreemptLowerPriority"),
        SCHEDULING,
    ),
    Rule(
        "spec.automountServiceAccountToken",
        NonEmpty,
        NoEffect("a static pod has no service account"),
    ),
    Rule("spec.securityContext.windowsOptions", Written, WINDOWS),
    Rule(
        "spec.securityContext.seLinuxChangePolicy",
        NonEmpty,
        NoEffect("SELinux labels of volumes are not changed"),
    ),
    Rule(
        "spec.securityContext.supplementalGroupsPolicy",
        StrictWithoutGroup,
        Unsupported(
            "the Docker Engine adds the groups of the image's /etc/group to a user without a group; set runAsGroup for the pod or each container",
        ),
    ),
    // Containers
    Rule("spec.C.livenessProbe.httpGet.protocol", NonEmpty, HTTP_1),
    Rule("spec.C.readinessProbe.httpGet.protocol", NonEmpty, HTTP_1),
    Rule("spec.C.startupProbe.httpGet.protocol", NonEmpty, HTTP_1),
    Rule(
        "spec.C.lifecycle.postStart.httpGet.protocol",
        NonEmpty,
        HTTP_1,
    ),
    Rule(
        "spec.C.lifecycle.preStop.httpGet.protocol",
        NonEmpty,
        HTTP_1,
    ),
    Rule(
        "spec.C.resizePolicy",
        NonEmpty,
        NoEffectAnywhere("running containers are not resized"),
    ),
    Rule(
        "spec.C.volumeMounts[].bindMountOptions",
        NonEmpty,
        Unsupported("options of bind mounts are not supported"),
    ),
    Rule("spec.C.securityContext.windowsOptions", Written, WINDOWS),
    Rule("spec.C.resources.claims", NonEmpty, RESOURCE_CLAIMS),
    Rule("spec.C.resources.limits.hugepages-*", Written, HUGE_PAGES),
    Rule("spec.C.resources.requests.hugepages-*", Written, HUGE_PAGES),
    // Volumes
    Rule(
        "spec.volumes[].emptyDir.medium",
        Begins("HugePages"),
        Unsupported("emptyDir volumes of huge pages are not supported"),
    ),
    Rule(
        "spec.volumes[].ephemeral",
        Written,
        NotInManifest(
            "a manifest can't have ephemeral claims; use emptyDir or persistentVolumeClaim",
        ),
    ),
    Rule(
        "spec.volumes[].csi",
        Written,
        ForbiddenAndUnsupported("csidrivers"),
    ),
    Rule(
        "spec.volumes[].glusterfs",
        Written,
        ForbiddenAndUnsupported("endpoints"),
    ),
    Rule(
        "spec.volumes[].projected.sources[].serviceAccountToken",
        Written,
        Forbidden("serviceaccounts"),
    ),
    Rule(
        "spec.volumes[].projected.sources[].clusterTrustBundle",
        Written,
        ForbiddenAndUnsupported("clustertrustbundles"),
    ),
    Rule(
        "spec.volumes[].projected.sources[].podCertificate",
        Written,
        ForbiddenAndUnsupported("podcertificates"),
    ),
    Rule("spec.volumes[].awsElasticBlockStore", Written, VOLUME),
    Rule("spec.volumes[].azureDisk", Written, VOLUME),
    Rule("spec.volumes[].azureFile", Written, VOLUME),
    Rule("spec.volumes[].cephfs", Written, VOLUME),
    Rule("spec.volumes[].cinder", Written, VOLUME),
    Rule("spec.volumes[].fc", Written, VOLUME),
    Rule("spec.volumes[].flexVolume", Written, VOLUME),
    Rule("spec.volumes[].flocker", Written, VOLUME),
    Rule("spec.volumes[].gcePersistentDisk", Written, VOLUME),
    Rule("spec.volumes[].gitRepo", Written, VOLUME),
    Rule("spec.volumes[].iscsi", Written, VOLUME),
    Rule("spec.volumes[].nfs", Written, VOLUME),
    Rule("spec.volumes[].photonPersistentDisk", Written, VOLUME),
    Rule("spec.volumes[].portworxVolume", Written, VOLUME),
    Rule("spec.volumes[].quobyte", Written, VOLUME),
    Rule("spec.volumes[].rbd", Written, VOLUME),
    Rule("spec.volumes[].scaleIO", Written, VOLUME),
    Rule("spec.volumes[].storageos", Written, VOLUME),
    Rule("spec.volumes[].vsphereVolume", Written, VOLUME),
];

/// Calls `found` for each special field of a pod in its original form.
pub(super) fn for_each_special(pod: &Value, found: &mut dyn FnMut(Path, Verdict)) {
    for Rule(pattern, when, verdict) in RULES {
        let parts: Vec<&str> = pattern.split('.').collect();
        walk(pod, &parts, &Path::default(), &mut |path, value| {
            if when.holds(value, pod) {
                found(path.clone(), *verdict);
            }
        });
    }
}

/// The fields of an API pod that are not supported here, each with the reason: its path, a colon, why.
/// Empty for a pod that can run as it is.
pub fn unsupported_fields(pod: &Pod) -> Vec<String> {
    let Ok(written) = serde_json::to_value(pod) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for_each_special(&written, &mut |path, verdict| match verdict {
        Unsupported(why) => found.push(format!("{path}: {why}")),
        ForbiddenAndUnsupported(resource) => {
            found.push(format!("{path}: {resource} are not supported"));
        }
        Forbidden(_) | NotInManifest(_) | NoEffect(_) | NoEffectAnywhere(_) | OnNode(_) => {}
    });
    found
}

impl When {
    fn holds(self, value: &Value, pod: &Value) -> bool {
        let is_empty = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) | Value::Number(_) => false,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
        };
        match self {
            Written => {
                !matches!(value, Value::Null) && value.as_array().is_none_or(|a| !a.is_empty())
            }
            NonEmpty => !is_empty,
            IsFalse => value.as_bool() == Some(false),
            Begins(start) => value.as_str().is_some_and(|text| text.starts_with(start)),
            IsNot(word) => !is_empty && value.as_str().is_some_and(|text| text != word),
            StrictWithoutGroup => value.as_str() == Some("Strict") && has_no_group(pod),
        }
    }
}

/// Whether neither the pod nor one of its containers sets a group for that container.
fn has_no_group(pod: &Value) -> bool {
    let group = |at: &Value| {
        let group = at.pointer("/securityContext/runAsGroup");
        group.is_some_and(|group| !group.is_null())
    };
    let spec = &pod["spec"];
    let lists = [&spec["initContainers"], &spec["containers"]];
    let mut containers = lists.into_iter().filter_map(Value::as_array).flatten();
    !group(spec) && containers.any(|container| !group(container))
}

fn walk(value: &Value, pattern: &[&str], path: &Path, found: &mut dyn FnMut(&Path, &Value)) {
    let Some((first, rest)) = pattern.split_first() else {
        found(path, value);
        return;
    };
    let Some(map) = value.as_object() else { return };
    if *first == "C" {
        for list in ["initContainers", "containers"] {
            walk_items(map.get(list), rest, &path.key(list), found);
        }
    } else if let Some(list) = first.strip_suffix("[]") {
        walk_items(map.get(list), rest, &path.key(list), found);
    } else if let Some(start) = first.strip_suffix('*') {
        for (key, inner) in map.iter().filter(|(key, _)| key.starts_with(start)) {
            walk(inner, rest, &path.key(key), found);
        }
    } else if let Some(inner) = map.get(*first) {
        walk(inner, rest, &path.key(first), found);
    }
}

fn walk_items(
    list: Option<&Value>,
    pattern: &[&str],
    path: &Path,
    found: &mut dyn FnMut(&Path, &Value),
) {
    let items = list.and_then(Value::as_array).map(Vec::as_slice);
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        walk(item, pattern, &path.index(index), found);
    }
}

#[cfg(test)]
mod tests;
