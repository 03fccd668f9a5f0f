//! One write.

use std::sync::Arc;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::Value;

use super::entry::Seen;
use super::seen_of;
use crate::cluster::client::{CALL_DEADLINE, ClusterClient};
use crate::cluster::error::ApiError;
use crate::cluster::mirror::{delete_now, without_managed_fields};
use crate::store::board::Board;
use mirrorlet_core::api::{FullName, Pod, PodUid, Watched};
use mirrorlet_core::ending::remains;
use mirrorlet_core::status::merge::{StatusAction, may_delete};

/// A write that is over.
pub(super) struct Done {
    pub uid: PodUid,
    pub full_name: FullName,
    pub outcome: Outcome,
    /// The outcome of the deletion that followed, if one did.
    pub deletion: Option<Outcome>,
}

pub(super) enum Outcome {
    /// There was nothing to write when its turn came.
    Nothing,
    /// It was written; the object is now this.
    Written { patch: Value, object: Arc<Pod> },
    /// The object was deleted, or was gone.
    ObjectDeleted { by_us: bool },
    /// The mirror was deleted, or was gone.
    MirrorDeleted { by_us: bool },
    /// It was not.
    Failed(ApiError),
}

/// Does what is to be done about an object when its turn has come, by what the board says then. Where
/// `is_conditional`, a patch is for the version of the object that it was made from, and no other.
pub(super) async fn write(
    cluster: ClusterClient,
    board: Board,
    api_uid: PodUid,
    seen: Seen,
    is_conditional: bool,
) -> Done {
    let full_name = seen.full_name.clone();
    let uid = seen.uid.clone();
    let deed = seen.deed();
    let object_uid = api_uid.as_str();
    let mut deletion = None;
    let outcome = match deed {
        StatusAction::Nothing | StatusAction::Illegal(_) => Outcome::Nothing,
        StatusAction::DeleteObject => delete_object(&cluster, &full_name, object_uid).await,
        StatusAction::DeleteMirror => match delete_now(&cluster, &full_name, object_uid).await {
            Ok(by_us) => Outcome::MirrorDeleted { by_us },
            Err(error) => Outcome::Failed(error),
        },
        StatusAction::Patch(_) => {
            let (outcome, is_last) = patch(&cluster, &board, seen, is_conditional).await;
            if is_last {
                deletion = Some(delete_object(&cluster, &full_name, object_uid).await);
            }
            outcome
        }
    };
    Done {
        uid,
        full_name,
        outcome,
        deletion,
    }
}

async fn delete_object(cluster: &ClusterClient, full_name: &FullName, uid: &str) -> Outcome {
    match delete_now(cluster, full_name, uid).await {
        Ok(by_us) => Outcome::ObjectDeleted { by_us },
        Err(error) => Outcome::Failed(error),
    }
}

/// Writes the difference. Returns also whether it is the last write: the object may be deleted then,
/// though the API server didn't take all of it. Where it did, the next look deletes the object, in its
/// turn: the answers to both can be as large as an object may be.
async fn patch(
    cluster: &ClusterClient,
    board: &Board,
    seen: Seen,
    is_conditional: bool,
) -> (Outcome, bool) {
    let api: Api<Watched<Pod>> = Api::namespaced(cluster.client(), &seen.full_name.namespace);
    let call = async {
        // Many may wait for their turn: what happened meanwhile goes with this write.
        let view = board.get(&seen.uid);
        let newest = view.and_then(|view| seen_of(&view, Arc::clone(&seen.api)));
        let same_pod = newest.filter(|newest| newest.pod.metadata.uid == seen.pod.metadata.uid);
        let newest = same_pod.unwrap_or(seen.clone());
        let StatusAction::Patch(patch) = newest.deed() else {
            return Ok(None);
        };
        let mut body = patch.clone();
        let version = newest.api.metadata.resource_version.as_ref();
        if let Some(version) = version.filter(|_| is_conditional) {
            body["metadata"]["resourceVersion"] = version.as_str().into();
        }
        let body = Patch::Strategic(&body);
        let params = PatchParams::default();
        let answer = api.patch_status(&seen.full_name.name, &params, &body).await;
        answer.map(|Watched(object)| Some((patch, object, newest)))
    };
    match cluster.write(CALL_DEADLINE, call).await {
        Ok(None) => (Outcome::Nothing, false),
        Ok(Some((patch, object, newest))) => {
            let object = Arc::new(remains(without_managed_fields(object)));
            let answered = Seen {
                api: Arc::clone(&object),
                ..newest
            };
            let is_left = matches!(answered.deed(), StatusAction::Patch(_));
            let is_last = is_left && may_delete(&object, answered.finished);
            (Outcome::Written { patch, object }, is_last)
        }
        Err(error) => (Outcome::Failed(error), false),
    }
}

/// The changes of a patch, for the pod's history: names of conditions and fields, no values.
pub(super) fn changed(patch: &Value) -> String {
    let status = patch.get("status").and_then(Value::as_object);
    let mut words: Vec<&str> = Vec::new();
    for (key, value) in status.into_iter().flatten() {
        match key.as_str() {
            "phase" => {}
            "conditions" => {
                let types = value.as_array().into_iter().flatten();
                words.extend(types.filter_map(|c| c.get("type").and_then(Value::as_str)));
            }
            key => words.push(key),
        }
    }
    words.join(", ")
}
