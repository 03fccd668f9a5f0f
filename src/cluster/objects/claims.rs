//! Storage of claims: two reads for each claim, kept while a pod holds it. A binding is permanent, and
//! a claim that a pod uses can't be deleted, so nothing is watched. Claims of ephemeral volumes are
//! read each time: they are deleted with their pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use kube::Api;
use kube::api::GetParams;
use kube::core::Request;

use super::{away, object_error, patiently};
use crate::cluster::ClusterClient;
use crate::cluster::client::CALL_DEADLINE;
use mirrorlet_core::api::Watched;
use mirrorlet_core::api::core::{Node, PersistentVolumeClaim};
use mirrorlet_core::objects::claims::{
    ClaimName, PersistentVolume, Storage, bound_storage, bound_volume,
};
use mirrorlet_core::objects::{ObjectError, ObjectKey, ObjectKind};

/// The resource of volumes. They have no namespace.
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// The storage of bound claims.
#[derive(Default)]
pub(super) struct Claims(Mutex<BTreeMap<ObjectKey, Arc<Storage>>>);

impl Claims {
    /// Forgets the claims that no pod holds.
    pub(super) fn retain(&self, held: &BTreeSet<ObjectKey>) {
        self.0.lock().retain(|key, _| held.contains(key));
    }

    /// The storage of a claim. `node` is this machine's Node, if it is known.
    pub(super) async fn get(
        &self,
        client: &ClusterClient,
        key: &ObjectKey,
        node: Option<Arc<Node>>,
    ) -> Result<Arc<Storage>, ObjectError> {
        if let Some(known) = self.0.lock().get(key) {
            return Ok(Arc::clone(known));
        }
        let unbound = |cause| ObjectError::Unbound {
            name: key.name.clone(),
            cause,
        };
        let claim = patiently(|| claim(client, key)).await?;
        let name = bound_volume(&claim).map_err(unbound)?;
        let volume = patiently(|| volume(client, name)).await?;
        let storage = bound_storage(ClaimName::of(key), &claim, &volume, node.as_ref());
        let storage = Arc::new(storage.map_err(unbound)?);
        // The next pod of that name has a claim of its own, of the same name.
        if storage.pod.is_none() {
            self.0.lock().insert(key.clone(), Arc::clone(&storage));
        }
        Ok(storage)
    }
}

async fn claim(
    client: &ClusterClient,
    key: &ObjectKey,
) -> Result<PersistentVolumeClaim, ObjectError> {
    let api: Api<Watched<PersistentVolumeClaim>> = Api::namespaced(client.client(), &key.namespace);
    let got = client.read(CALL_DEADLINE, api.get(&key.name)).await;
    got.map(|Watched(claim)| claim)
        .map_err(|error| object_error(&error, key, key.kind.resource(), &key.name))
}

async fn volume(client: &ClusterClient, name: &str) -> Result<PersistentVolume, ObjectError> {
    let key = ObjectKey {
        kind: ObjectKind::Volume,
        namespace: String::new(),
        name: name.to_owned(),
    };
    let request = Request::new(VOLUMES).get(name, &GetParams::default());
    let request = request.map_err(|error| away(&key, &error.to_string()))?;
    let kube = client.client();
    let got = client.read(CALL_DEADLINE, kube.request(request)).await;
    got.map_err(|error| object_error(&error, &key, key.kind.resource(), name))
}
