//! One attempt to execute a verdict, and its outcome as text.

use std::sync::Arc;
use std::time::Duration;

use super::client::{CreateError, MirrorClient, Mirrored, mirror_uid};
use crate::cluster::error::ApiError;
use mirrorlet_core::api::{FullName, MirrorPodUid, Pod};
use mirrorlet_core::mirror::{DeleteReason, ProblemKind, Refusal, Verdict, classify};

/// The outcome of an attempt.
pub(super) struct Attempt {
    /// The static pod whose mirror was to be created.
    pub pod: Option<Arc<Pod>>,
    /// Deleted mirrors, with the reasons; without a reason if they didn't exist.
    pub deleted: Vec<(MirrorPodUid, Option<DeleteReason>)>,
    pub outcome: Result<Option<Mirrored>, Failure>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    pub kind: ProblemKind,
    pub message: String,
    /// The API server's own wish.
    pub retry_after: Option<Duration>,
}

/// Deletes and creates mirrors according to the verdict, in one attempt.
pub(super) async fn carry_out(
    client: MirrorClient,
    full_name: FullName,
    verdict: Verdict,
) -> Attempt {
    let mut deleted = Vec::new();
    let pod = verdict.pod().cloned();
    let outcome = act(&client, &full_name, verdict, &mut deleted).await;
    Attempt {
        pod,
        deleted,
        outcome,
    }
}

async fn act(
    client: &MirrorClient,
    full_name: &FullName,
    verdict: Verdict,
    deleted: &mut Vec<(MirrorPodUid, Option<DeleteReason>)>,
) -> Result<Option<Mirrored>, Failure> {
    let pod = match verdict {
        Verdict::Synced { .. } | Verdict::Wait | Verdict::Blocked(_) => return Ok(None),
        Verdict::Create { pod } => pod,
        Verdict::Replace { uid, why, pod } => {
            delete(client, full_name, uid, why, deleted).await?;
            pod
        }
        Verdict::Delete { uid, why } => {
            delete(client, full_name, uid, why, deleted).await?;
            return Ok(None);
        }
    };
    match client.create_mirror_pod(&pod).await {
        Ok(mirrored) => Ok(Some(mirrored)),
        // The watch hasn't delivered it yet.
        Err(CreateError::OtherVersion(there)) => {
            let why = if there.metadata.deletion_timestamp.is_some() {
                DeleteReason::BeingDeleted
            } else {
                DeleteReason::OtherVersion
            };
            delete(client, full_name, mirror_uid(&there), why, deleted).await?;
            Ok(Some(client.create_mirror_pod(&pod).await?))
        }
        Err(error) => Err(error.into()),
    }
}

async fn delete(
    client: &MirrorClient,
    full_name: &FullName,
    uid: MirrorPodUid,
    why: DeleteReason,
    deleted: &mut Vec<(MirrorPodUid, Option<DeleteReason>)>,
) -> Result<(), Failure> {
    let by_us = client.delete_mirror_pod(full_name, &uid).await?;
    deleted.push((uid, by_us.then_some(why)));
    Ok(())
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Self {
        let of = |kind, message| Self {
            kind,
            message,
            retry_after: None,
        };
        match error {
            CreateError::NodeMissing => of(ProblemKind::NodeMissing, error.to_string()),
            CreateError::NameTaken { .. } => of(ProblemKind::NameTaken, error.to_string()),
            CreateError::OtherVersion(_) => of(ProblemKind::Other, error.to_string()),
            CreateError::Api(error) => error.into(),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let kind = match (&error, error.answer()) {
            (ApiError::Away { .. }, _) => ProblemKind::ApiAway,
            (_, None) => ProblemKind::Other,
            (_, Some(answer)) => classify(Refusal {
                code: answer.code,
                kind: &answer.kind,
                message: &answer.message,
            }),
        };
        let retry_after = match &error {
            ApiError::TooManyRequests { retry_after, .. } => *retry_after,
            _ => None,
        };
        // The API server's own message is reported as it is.
        let message = error
            .answer()
            .map_or_else(|| error.to_string(), ToString::to_string);
        Self {
            kind,
            message,
            retry_after,
        }
    }
}
