//! One write.

use std::sync::Arc;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::entry::Seen;
use super::seen_of;
use crate::cluster::client::{CALL_DEADLINE, ClusterClient};
use crate::cluster::error::ApiError;
use crate::cluster::mirror::{delete_now, read_pod, without_managed_fields};
use crate::store::board::Board;
use mirrorlet_core::api::{FullName, Pod, PodUid, Watched};
use mirrorlet_core::ending::remains;
use mirrorlet_core::status::merge::{StatusAction, may_delete};

/// A completed write.
pub(super) struct Done {
    pub uid: PodUid,
    pub full_name: FullName,
    /// The object as it was read, if the watch was behind.
    pub read: Option<Arc<Pod>>,
    pub outcome: Outcome,
    /// The outcome of the deletion that followed, if one did.
    pub deletion: Option<Outcome>,
}

pub(super) enum Outcome {
    /// There was nothing left to write when its turn came.
    Nothing,
    /// It was written; the object is now this.
    Written { patch: Value, object: Arc<Pod> },
    /// The object was deleted, or was gone.
    ObjectDeleted { by_us: bool },
    /// The mirror was deleted, or was gone.
    MirrorDeleted { by_us: bool },
    /// There is no such object.
    Missing,
    /// It failed.
    Failed(ApiError),
}

/// Executes the action for an object when its turn has come, with the board's state at that time.
pub(super) async fn write(
    cluster: ClusterClient,
    board: Board,
    api_uid: PodUid,
    seen: Seen,
) -> Done {
    let full_name = seen.full_name.clone();
    let uid = seen.uid.clone();
    let deed = seen.deed();
    let object_uid = api_uid.as_str();
    let (mut read, mut deletion) = (None, None);
    let outcome = match deed {
        StatusAction::Nothing | StatusAction::Illegal(_) => Outcome::Nothing,
        StatusAction::DeleteObject => delete_object(&cluster, &full_name, object_uid).await,
        StatusAction::DeleteMirror => match delete_now(&cluster, &full_name, object_uid).await {
            Ok(by_us) => Outcome::MirrorDeleted { by_us },
            Err(error) => Outcome::Failed(error),
        },
        StatusAction::Patch(_) => {
            let patched = patch(&cluster, &board, object_uid, seen).await;
            if patched.is_last {
                deletion = Some(delete_object(&cluster, &full_name, object_uid).await);
            }
            read = patched.read;
            patched.outcome
        }
    };
    Done {
        uid,
        full_name,
        read,
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

/// The outcome of a patch.
struct Patched {
    outcome: Outcome,
    /// The object as it was read, if it was.
    read: Option<Arc<Pod>>,
    /// Whether it was the last write: the object may be deleted then, even if the API server didn't
    /// accept all of it. If it did, the next check deletes the object, in its turn: the answers to both
    /// can be as large as an object may be.
    is_last: bool,
}

/// Writes the difference. Where the object isn't what the watch shows it is read, and the difference from
/// that is written.
async fn patch(cluster: &ClusterClient, board: &Board, uid: &str, mut seen: Seen) -> Patched {
    let (mut read, mut is_last) = (None, false);
    let mut sent = send(cluster, board, &seen).await;
    if let Err(ApiError::Conflict(answer) | ApiError::NotFound(answer)) = sent {
        sent = match read_pod(cluster, &seen.full_name, uid).await {
            Ok(Some(object)) => {
                let was = std::mem::replace(&mut seen.api, Arc::clone(&object));
                let is_same = was.metadata.resource_version == object.metadata.resource_version;
                read = Some(object);
                if is_same {
                    // It isn't about the version: a webhook chooses its code itself.
                    Err(ApiError::Refused(answer))
                } else {
                    send(cluster, board, &seen).await
                }
            }
            Ok(None) => {
                return Patched {
                    outcome: Outcome::Missing,
                    read,
                    is_last,
                };
            }
            Err(error) => Err(error),
        };
    }
    let outcome = match sent {
        Ok(None) => Outcome::Nothing,
        Ok(Some(Sent { patch, answered })) => {
            let is_left = matches!(answered.deed(), StatusAction::Patch(_));
            is_last = is_left && may_delete(&answered.api, answered.finished);
            let object = answered.api;
            Outcome::Written { patch, object }
        }
        Err(error) => Outcome::Failed(error),
    };
    Patched {
        outcome,
        read,
        is_last,
    }
}

/// A patch that was written.
struct Sent {
    patch: Value,
    /// Both sides after it.
    answered: Seen,
}

/// Sends the difference between an object and the board's current state, if there is one.
///
/// The patch is for exactly the version of the object from which it was computed: each object in the
/// API server has a `resourceVersion`. An abandoned call that takes effect after a later one then
/// changes nothing: an older status never replaces a newer one.
async fn send(
    cluster: &ClusterClient,
    board: &Board,
    seen: &Seen,
) -> Result<Option<Sent>, ApiError> {
    let api: Api<Watched<Pod>> = Api::namespaced(cluster.client(), &seen.full_name.namespace);
    let call = async {
        // Many may wait for their turn: what happened meanwhile goes with this write.
        let view = board.get(&seen.uid);
        let newest = view.and_then(|view| seen_of(&view, Arc::clone(&seen.api)));
        let same_pod = newest.filter(|newest| newest.pod.metadata.uid == seen.pod.metadata.uid);
        let newest = same_pod.unwrap_or_else(|| seen.clone());
        let StatusAction::Patch(patch) = newest.deed() else {
            return Ok(None);
        };
        let mut body = patch.clone();
        body["metadata"]["resourceVersion"] = json!(newest.api.metadata.resource_version);
        let body = Patch::Strategic(&body);
        let params = PatchParams::default();
        let answer = api.patch_status(&seen.full_name.name, &params, &body).await;
        answer.map(|Watched(object)| Some((patch, object, newest)))
    };
    let sent = cluster.write(CALL_DEADLINE, call).await?;
    Ok(sent.map(|(patch, object, newest)| {
        let api = Arc::new(remains(without_managed_fields(object)));
        let answered = Seen { api, ..newest };
        Sent { patch, answered }
    }))
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
