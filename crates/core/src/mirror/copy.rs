//! The copy of a static pod that is posted as its mirror.

use crate::api::core::{Container, EmptyDirVolumeSource, EnvVar, PodSpec, Volume};
use crate::api::{NodeName, Pod, keys, meta};

/// The Node that mirrors belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRef {
    /// Its name.
    pub name: NodeName,
    /// The UID that the API server gave it.
    pub uid: String,
}

/// The mirror of a static pod, in the form that is posted: its name, namespace, labels, annotations and
/// spec, the mirror annotation with its hash, and our Node as only owner.
///
/// A mirror may not refer to a service account, a secret or another object of the API. Remaining
/// references are dropped, and [`keys::SANITIZED`] lists them: an incomplete mirror is better than
/// none.
///
/// Upstream: `pkg/kubelet/pod/mirror_client.go` (`CreateMirrorPod`).
pub fn mirror_copy(pod: &Pod, node: &NodeRef) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    // They come and go, and a mirror is made once; its status says what follows from them.
    annotations.retain(|key, _| ![keys::STOPPED, keys::RESTART].contains(&key.as_str()));
    let hash = annotations.get(keys::CONFIG_HASH).cloned();
    annotations.insert(keys::CONFIG_MIRROR.to_owned(), hash.unwrap_or_default());
    let mut spec = pod.spec.clone();
    let mut fields = Fields::default();
    if let Some(spec) = &mut spec {
        sanitize(spec, &mut fields);
    }
    if !fields.0.is_empty() {
        annotations.insert(keys::SANITIZED.to_owned(), fields.0.join(","));
    }
    Pod {
        metadata: meta::ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![meta::OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.name.to_string(),
                uid: node.uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..meta::ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// Paths of the fields that were left out, in the spec's order.
#[derive(Default)]
struct Fields(Vec<String>);

impl Fields {
    fn drop<T>(&mut self, field: &mut Option<T>, path: impl Into<String>) {
        self.drop_if(field, path, |_| true);
    }

    fn drop_if<T>(
        &mut self,
        field: &mut Option<T>,
        path: impl Into<String>,
        refers: impl FnOnce(&mut T) -> bool,
    ) {
        if field.take_if(refers).is_some() {
            self.0.push(path.into());
        }
    }

    fn drop_text(&mut self, field: &mut Option<String>, path: &str) {
        if field.take().is_some_and(|text| !text.is_empty()) {
            self.0.push(path.to_owned());
        }
    }

    fn drop_list<T>(&mut self, field: &mut Option<Vec<T>>, path: impl Into<String>) {
        if field.take().is_some_and(|list| !list.is_empty()) {
            self.0.push(path.into());
        }
    }
}

/// Leaves out what API admission refuses in a mirror, under either identity.
///
/// Upstream: `plugin/pkg/admission/noderestriction` and `pkg/api/pod/util.go`
/// (`HasAPIObjectReference`), `plugin/pkg/admission/serviceaccount`.
fn sanitize(spec: &mut PodSpec, fields: &mut Fields) {
    fields.drop_text(&mut spec.service_account_name, "spec.serviceAccountName");
    fields.drop_text(&mut spec.service_account, "spec.serviceAccount");
    fields.drop_list(&mut spec.image_pull_secrets, "spec.imagePullSecrets");
    fields.drop_list(&mut spec.resource_claims, "spec.resourceClaims");
    fields.drop_list(&mut spec.ephemeral_containers, "spec.ephemeralContainers");
    for container in spec.init_containers.iter_mut().flatten() {
        sanitize_container(container, "initContainers", fields);
    }
    for container in &mut spec.containers {
        sanitize_container(container, "containers", fields);
    }
    for volume in spec.volumes.iter_mut().flatten() {
        sanitize_volume(volume, fields);
    }
}

fn sanitize_container(container: &mut Container, list: &str, fields: &mut Fields) {
    let path = format!("spec.{list}[{}]", container.name);
    for EnvVar {
        name, value_from, ..
    } in container.env.iter_mut().flatten()
    {
        let refers = value_from
            .as_ref()
            .is_some_and(|from| from.secret_key_ref.is_some() || from.config_map_key_ref.is_some());
        if refers {
            fields.drop(value_from, format!("{path}.env[{name}].valueFrom"));
        }
    }
    if let Some(env_from) = &mut container.env_from {
        let before = env_from.len();
        env_from.retain(|from| from.secret_ref.is_none() && from.config_map_ref.is_none());
        if env_from.len() < before {
            fields.0.push(format!("{path}.envFrom"));
        }
    }
    // Only a claim can be a device, and no mirror has one.
    let devices = &mut container.volume_devices;
    fields.drop_list(devices, format!("{path}.volumeDevices"));
    if let Some(resources) = &mut container.resources {
        fields.drop_list(&mut resources.claims, format!("{path}.resources.claims"));
    }
}

/// A volume that refers to an object of the API becomes an empty one: its mounts stay valid.
fn sanitize_volume(volume: &mut Volume, fields: &mut Fields) {
    let path = format!("spec.volumes[{}]", volume.name);
    let count = fields.0.len();
    fields.drop(&mut volume.config_map, format!("{path}.configMap"));
    fields.drop(&mut volume.secret, format!("{path}.secret"));
    fields.drop(
        &mut volume.persistent_volume_claim,
        format!("{path}.persistentVolumeClaim"),
    );
    fields.drop(&mut volume.ephemeral, format!("{path}.ephemeral"));
    fields.drop(&mut volume.csi, format!("{path}.csi"));
    fields.drop(&mut volume.azure_file, format!("{path}.azureFile"));
    fields.drop(&mut volume.glusterfs, format!("{path}.glusterfs"));
    fields.drop_if(&mut volume.cephfs, format!("{path}.cephfs"), |v| {
        v.secret_ref.is_some()
    });
    fields.drop_if(&mut volume.cinder, format!("{path}.cinder"), |v| {
        v.secret_ref.is_some()
    });
    fields.drop_if(&mut volume.flex_volume, format!("{path}.flexVolume"), |v| {
        v.secret_ref.is_some()
    });
    fields.drop_if(&mut volume.iscsi, format!("{path}.iscsi"), |v| {
        v.secret_ref.is_some()
    });
    fields.drop_if(&mut volume.rbd, format!("{path}.rbd"), |v| {
        v.secret_ref.is_some()
    });
    fields.drop(&mut volume.scale_io, format!("{path}.scaleIO"));
    fields.drop_if(&mut volume.storageos, format!("{path}.storageos"), |v| {
        v.secret_ref.is_some()
    });
    if let Some(sources) = volume.projected.as_mut().and_then(|p| p.sources.as_mut()) {
        let before = sources.len();
        sources.retain(|source| source.downward_api.is_some());
        if sources.len() < before {
            fields.0.push(format!("{path}.projected.sources"));
        }
        if sources.is_empty() {
            volume.projected = None;
        }
    }
    if fields.0.len() > count && volume.projected.is_none() {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
}
