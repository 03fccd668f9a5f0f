//! `MirrorClient`: creates and deletes mirror pods.
//!
//! Upstream: `pkg/kubelet/pod/mirror_client.go`.

use std::sync::Arc;

use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use crate::cluster::client::{ADMISSION_DEADLINE, CALL_DEADLINE, ClusterClient};
use crate::cluster::error::ApiError;
use crate::store::cell::Reader;
use mirrorlet_core::api::{FullName, MirrorPodUid, NodeName, Pod, PodUid, Watched, core};
use mirrorlet_core::ending::remains;
use mirrorlet_core::mirror::{self, NodeRef, mirror_copy};
use mirrorlet_core::spec;

/// Why a mirror was not created.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CreateError {
    /// Our Node is not registered, or is being deleted.
    #[error("the Node is not registered")]
    NodeMissing,
    /// Another pod has the name: it is not a mirror, or not bound to our Node.
    #[error("{}", taken(by_node.as_deref(), *ours))]
    NameTaken {
        /// The node it is bound to, as far as we may see it.
        by_node: Option<String>,
        /// Whether it is our own mirror, which its finalizers keep.
        ours: bool,
    },
    /// A mirror of ours with another version has the name.
    #[error("a mirror pod of another version of the manifest exists")]
    OtherVersion(Arc<Pod>),
    /// The API server refused, or is away.
    #[error(transparent)]
    Api(#[from] ApiError),
}

fn taken(by_node: Option<&str>, ours: bool) -> String {
    match by_node {
        _ if ours => "the mirror pod is being deleted and has finalizers".to_owned(),
        Some("") => "the name is in use by a pod that is not scheduled yet".to_owned(),
        Some(node) => format!("the name is in use by a pod on node {node}"),
        None => "the name is in use by a pod that the agent is not allowed to read".to_owned(),
    }
}

/// A mirror that is in place.
#[derive(Debug, Clone, PartialEq)]
pub enum Mirrored {
    /// It was created.
    Created(Arc<Pod>),
    /// It existed already.
    Found(Arc<Pod>),
}

impl Mirrored {
    /// The mirror in the API server, reduced to the fields that are kept.
    pub fn mirror(&self) -> &Arc<Pod> {
        match self {
            Self::Created(mirror) | Self::Found(mirror) => mirror,
        }
    }
}

/// Creates and deletes mirror pods. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MirrorClient {
    cluster: ClusterClient,
    node_name: NodeName,
    node: Reader<Option<Arc<core::Node>>>,
}

impl MirrorClient {
    /// Returns a client that binds mirrors to the Node with that name, as observed in `node`.
    pub fn new(
        cluster: ClusterClient,
        node_name: NodeName,
        node: Reader<Option<Arc<core::Node>>>,
    ) -> Self {
        Self {
            cluster,
            node_name,
            node,
        }
    }

    fn pods(&self, namespace: &str) -> Api<Watched<Pod>> {
        Api::namespaced(self.cluster.client(), namespace)
    }

    /// The Node, if mirrors can belong to it.
    fn node_ref(&self) -> Option<NodeRef> {
        let node = self.node.get();
        let meta = &node.as_ref().as_ref()?.metadata;
        let uid = meta.uid.clone().filter(|uid| !uid.is_empty())?;
        meta.deletion_timestamp.is_none().then(|| NodeRef {
            name: self.node_name.clone(),
            uid,
        })
    }

    /// Creates the mirror of a static pod. An existing mirror with this version counts as created.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub async fn create_mirror_pod(&self, pod: &Pod) -> Result<Mirrored, CreateError> {
        let node = self.node_ref().ok_or(CreateError::NodeMissing)?;
        let copy = Watched(mirror_copy(pod, &node));
        let full_name = FullName::of(pod);
        let api = self.pods(&full_name.namespace);
        let params = PostParams::default();
        let created = self
            .cluster
            .write(ADMISSION_DEADLINE, api.create(&params, &copy))
            .await;
        match created {
            Ok(Watched(mirror)) => Ok(Mirrored::Created(Arc::new(remains(mirror)))),
            Err(ApiError::AlreadyExists(_)) => self.compare(&api, &full_name, pod).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Whether what has the name is the pod's mirror.
    async fn compare(
        &self,
        api: &Api<Watched<Pod>>,
        full_name: &FullName,
        pod: &Pod,
    ) -> Result<Mirrored, CreateError> {
        let got = self.cluster.read(CALL_DEADLINE, api.get(&full_name.name));
        let there = match got.await {
            Ok(Watched(there)) => there,
            // A node identity may only see pods of its own node.
            Err(ApiError::Forbidden(_)) => {
                return Err(CreateError::NameTaken {
                    by_node: None,
                    ours: false,
                });
            }
            Err(error) => return Err(error.into()),
        };
        if !mirror::is_ours(&there, &self.node_name) {
            let by_node = spec::spec(&there).node_name.clone().unwrap_or_default();
            return Err(CreateError::NameTaken {
                by_node: Some(by_node),
                ours: false,
            });
        }
        let goes = there.metadata.deletion_timestamp.is_some();
        let finalizers = there.metadata.finalizers.as_ref();
        if goes && finalizers.is_some_and(|list| !list.is_empty()) {
            return Err(CreateError::NameTaken {
                by_node: Some(self.node_name.to_string()),
                ours: true,
            });
        }
        let there = Arc::new(remains(there));
        if goes || mirror::hash(&there) != mirror::hash(pod) {
            return Err(CreateError::OtherVersion(there));
        }
        Ok(Mirrored::Found(there))
    }

    /// Deletes the mirror with that full name immediately, if it has that UID. Returns whether it did:
    /// a missing one, or one with another UID, is not an error.
    ///
    /// # Errors
    /// The API server refused, or is away. Upstream only logs this; here nothing is silent.
    pub async fn delete_mirror_pod(
        &self,
        full_name: &FullName,
        uid: &MirrorPodUid,
    ) -> Result<bool, ApiError> {
        delete_now(&self.cluster, full_name, uid.as_str()).await
    }
}

/// Deletes a pod with grace period 0, if it still has that UID. Returns whether it did: a missing one
/// is not an error. A webhook's denial may have the codes of a missing pod, so the pod is read then.
pub(in crate::cluster) async fn delete_now(
    cluster: &ClusterClient,
    name: &FullName,
    uid: &str,
) -> Result<bool, ApiError> {
    let api: Api<Watched<Pod>> = Api::namespaced(cluster.client(), &name.namespace);
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let deleted = cluster
        .write(CALL_DEADLINE, api.delete(&name.name, &params))
        .await;
    match deleted {
        Ok(_) => Ok(true),
        Err(ApiError::NotFound(answer) | ApiError::Conflict(answer)) => {
            match read_pod(cluster, name, uid).await? {
                Some(_) => Err(ApiError::Refused(answer)),
                None => Ok(false),
            }
        }
        Err(error) => Err(error),
    }
}

/// Reads the pod with that name and UID. None if it no longer exists: a node may not read pods that are
/// not bound to it.
pub(in crate::cluster) async fn read_pod(
    cluster: &ClusterClient,
    name: &FullName,
    uid: &str,
) -> Result<Option<Arc<Pod>>, ApiError> {
    let api: Api<Watched<Pod>> = Api::namespaced(cluster.client(), &name.namespace);
    match cluster.read(CALL_DEADLINE, api.get(&name.name)).await {
        Ok(Watched(pod)) if pod.metadata.uid.as_deref() == Some(uid) => {
            Ok(Some(Arc::new(remains(without_managed_fields(pod)))))
        }
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::Forbidden(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Drops the managed fields, which are not needed here, as
/// [`ApiPods`](mirrorlet_core::desired::ApiPods) stores pods.
pub(in crate::cluster) fn without_managed_fields(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod
}

/// The UID of a mirror, as a mirror's.
pub(super) fn mirror_uid(mirror: &Pod) -> MirrorPodUid {
    PodUid::of(mirror).into()
}
