//! The API server's defaults, and the defaults of static pods.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::core::{
    Container, DownwardAPIVolumeFile, EmptyDirVolumeSource, HTTPGetAction, PodSecurityContext,
    PodSpec, PodStatus, Probe, Secret, Toleration, Volume,
};
use crate::api::meta::ObjectMeta;
use crate::api::quantity::{Quantity, binary_text, milli_text};
use crate::api::{ByteString, NodeName, Pod, PodUid, keys};
use crate::desired::PodSource;
use crate::reference::Reference;
use crate::resources::{self, CPU, MEMORY, container_requests};

/// `spec.terminationGracePeriodSeconds` of a pod that sets none.
const GRACE_SECONDS: i64 = 30;

/// Mode of files in volumes that set none.
const FILE_MODE: i32 = 0o644;

/// Fills in the API's defaults.
///
/// Upstream: `pkg/apis/core/v1/defaults.go`.
pub(super) fn apply_defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    default_text(&mut spec.restart_policy, "Always");
    default_text(&mut spec.dns_policy, "ClusterFirst");
    default_text(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds
        .get_or_insert(GRACE_SECONDS);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context
        .get_or_insert_with(PodSecurityContext::default);
    let host_network = spec.host_network == Some(true);
    for container in all_containers(spec) {
        default_container(container, host_network);
    }
    for volume in spec.volumes.iter_mut().flatten() {
        default_volume(volume);
    }
    default_pod_requests(pod);
}

/// Sets defaults for pod-level requests: a missing one is the sum of the containers' requests, or the
/// pod's limit if these request nothing.
///
/// Upstream: `defaultPodRequests` of `pkg/apis/core/v1/defaults.go`.
fn default_pod_requests(pod: &mut Pod) {
    if resources::of_pod(pod).is_none() {
        return;
    }
    let of_containers = [CPU, MEMORY].map(|name| (name, container_requests(pod, name)));
    let own = pod.spec.as_mut().and_then(|spec| spec.resources.as_mut());
    let Some(own) = own else {
        return;
    };
    for (name, requested) in of_containers {
        let limit = own.limits.as_ref().and_then(|limits| limits.get(name));
        let default = if requested.is_zero() {
            limit.cloned()
        } else {
            Some(api_quantity(name, requested))
        };
        let requests = own.requests.as_ref();
        if let Some(default) = default
            && requests.is_none_or(|requests| !requests.contains_key(name))
        {
            let requests = own.requests.get_or_insert_default();
            requests.insert(name.to_owned(), default);
        }
    }
}

/// An amount as the API writes it.
fn api_quantity(resource: &str, amount: Quantity) -> ApiQuantity {
    let number = |number| u64::try_from(number).unwrap_or_default();
    ApiQuantity(if resource == MEMORY {
        binary_text(number(amount.ceil()))
    } else {
        milli_text(number(amount.milli_ceil()))
    })
}

fn all_containers(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    let init = spec.init_containers.iter_mut().flatten();
    init.chain(spec.containers.iter_mut())
}

fn default_text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}

fn default_pull_policy(policy: &mut Option<String>, image: Option<&str>) {
    let default = match Reference::parse(image.unwrap_or_default()) {
        Ok(image) if image.is_latest() => "Always",
        Ok(_) | Err(_) => "IfNotPresent",
    };
    default_text(policy, default);
}

fn default_container(container: &mut Container, host_network: bool) {
    let image = container.image.as_deref();
    default_pull_policy(&mut container.image_pull_policy, image);
    default_text(
        &mut container.termination_message_path,
        "/dev/termination-log",
    );
    default_text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        default_text(&mut port.protocol, "TCP");
        if host_network && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    for probe in [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ]
    .into_iter()
    .flatten()
    {
        default_probe(probe);
    }
    let hooks = container.lifecycle.as_mut().map(|lifecycle| {
        let hooks = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        hooks.into_iter().flatten()
    });
    for hook in hooks.into_iter().flatten() {
        default_http_get(hook.http_get.as_mut());
    }
    let resources = container.resources.get_or_insert_default();
    if let Some(limits) = &resources.limits {
        let requests = resources.requests.get_or_insert_default();
        for (name, quantity) in limits {
            if !requests.contains_key(name) {
                requests.insert(name.clone(), quantity.clone());
            }
        }
    }
    for env in container.env.iter_mut().flatten() {
        let field = env
            .value_from
            .as_mut()
            .and_then(|from| from.field_ref.as_mut());
        if let Some(field) = field {
            default_text(&mut field.api_version, "v1");
        }
    }
}

fn default_probe(probe: &mut Probe) {
    default_http_get(probe.http_get.as_mut());
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
    for (field, value) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or(0) == 0 {
            *field = Some(value);
        }
    }
}

fn default_http_get(get: Option<&mut HTTPGetAction>) {
    if let Some(get) = get {
        default_text(&mut get.path, "/");
        default_text(&mut get.scheme, "HTTP");
    }
}

fn default_volume(volume: &mut Volume) {
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(FILE_MODE);
        for item in downward.items.iter_mut().flatten() {
            default_file(item);
        }
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            let items = source.downward_api.as_mut().and_then(|d| d.items.as_mut());
            for item in items.into_iter().flatten() {
                default_file(item);
            }
        }
    }
    if let Some(image) = &mut volume.image {
        default_pull_policy(&mut image.pull_policy, image.reference.as_deref());
    }
    let bare = Volume {
        name: volume.name.clone(),
        ..Volume::default()
    };
    if *volume == bare {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
}

fn default_file(file: &mut DownwardAPIVolumeFile) {
    if let Some(field) = &mut file.field_ref {
        default_text(&mut field.api_version, "v1");
    }
}

/// Name under which a pod of a manifest runs on a node: with the node's name as suffix, because several
/// nodes may have pods from the same manifest. A pod that the embedded API stores keeps its own name.
pub(super) fn static_name(name: &str, node_name: &NodeName, source: PodSource) -> String {
    match source {
        PodSource::File | PodSource::Http | PodSource::Api => {
            format!("{name}-{}", node_name.as_str().to_lowercase())
        }
        PodSource::Embedded => name.to_owned(),
    }
}

/// Fills in the namespace of an object.
pub(super) fn default_namespace(meta: &mut ObjectMeta) {
    default_text(&mut meta.namespace, keys::DEFAULT_NAMESPACE);
}

/// Moves `stringData` to `data`, as the API server does. Its values take precedence.
pub(super) fn merge_string_data(secret: &mut Secret) {
    let texts = secret.string_data.take().unwrap_or_default();
    let texts = texts
        .into_iter()
        .map(|(key, text)| (key, ByteString(text.into_bytes())));
    secret.data.get_or_insert_default().extend(texts);
}

/// Converts a defaulted pod to a static one.
///
/// Upstream: `pkg/kubelet/config/common.go` (`applyDefaults`).
pub(super) fn make_static(pod: &mut Pod, uid: &PodUid, node_name: &NodeName, source: PodSource) {
    let meta = &mut pod.metadata;
    let name = meta.name.take().unwrap_or_default();
    meta.name = Some(static_name(&name, node_name, source));
    default_text(&mut meta.namespace, keys::DEFAULT_NAMESPACE);
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_HASH.to_owned(), uid.to_string());
    annotations.insert(keys::CONFIG_SOURCE.to_owned(), source.to_string());
    meta.uid = Some(uid.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_string());
    if source == PodSource::File {
        let tolerations = spec.tolerations.get_or_insert_default();
        let no_execute = Toleration {
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&no_execute) {
            tolerations.push(no_execute);
        }
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        ..PodStatus::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_a_pod_default_to_its_containers_or_its_limit() {
        for (own, requests, expected) in [
            (
                json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
                json!({"cpu": "250m", "memory": "64Mi"}),
                json!({"cpu": "500m", "memory": "128Mi"}),
            ),
            (
                json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
                json!({"cpu": "500m"}),
                json!({"cpu": "1", "memory": "1Gi"}),
            ),
            (
                json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1500m"}}),
                json!({"cpu": "250m"}),
                json!({"cpu": "1500m"}),
            ),
            // These name neither CPU nor memory: there is nothing to default.
            (json!({}), json!({"cpu": "250m"}), json!(null)),
        ] {
            let containers = ["a", "b"].map(
                |name| json!({"name": name, "image": "web:1", "resources": {"requests": requests}}),
            );
            let spec = json!({"resources": own, "containers": containers});
            let mut pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
            apply_defaults(&mut pod);
            let own = serde_json::to_value(pod.spec.unwrap().resources).unwrap();
            // docker 68
            assert_eq!(own["requests"], expected, "{spec}");
        }
    }
}
