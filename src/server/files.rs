//! Files of containers over the agent's socket, as tar archives that are streamed.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::admin::ApiError;
use super::asked::Asked;
use super::body::{archive, late};
use super::cut::cut_off;
use mirrorlet_core::api::PodUid;

/// The container and the path of a file request.
#[derive(Debug, Deserialize)]
pub(super) struct FileQuery {
    path: String,
    #[serde(default)]
    container: Option<String>,
}

/// Returns the metadata of a path.
pub(super) async fn stat(
    Path(uid): Path<String>,
    asked: Asked<FileQuery>,
) -> Result<Response, ApiError> {
    let Asked { shared, query, .. } = &asked;
    let (uid, container) = (PodUid::from(uid), query.container.as_deref());
    let id = shared.view.instance(&uid, container, false)?;
    let found = shared.view.access().stat_in_container(&id, &query.path);
    Ok(Json(found.await?).into_response())
}

/// A file or directory. If it fails, the connection is aborted.
pub(super) async fn download(
    Path(uid): Path<String>,
    asked: Asked<FileQuery>,
) -> Result<Response, ApiError> {
    let (shared, query, permit) = asked.into_parts();
    let (uid, container) = (PodUid::from(uid), query.container.as_deref());
    let id = shared.view.instance(&uid, container, false)?;
    let tar = shared.view.access().copy_from_container(&id, &query.path);
    let tar = tar.await?;
    let pieces = tar.map_err(std::io::Error::other).inspect(move |_| {
        let _held = &permit;
    });
    Ok((
        [(header::CONTENT_TYPE, "application/x-tar")],
        Body::from_stream(cut_off(pieces, shared.cancel)),
    )
        .into_response())
}

/// Unpacks the body into a directory.
pub(super) async fn upload(
    Path(uid): Path<String>,
    asked: Asked<FileQuery>,
    body: Body,
) -> Result<Response, ApiError> {
    let Asked { shared, query, .. } = &asked;
    let (uid, container) = (PodUid::from(uid), query.container.as_deref());
    let silent = CancellationToken::new();
    let (view, tar) = (&shared.view, archive(body, silent.clone()).boxed());
    let id = view.instance(&uid, container, false)?;
    let unpacked = view.access().copy_to_container(&id, &query.path, tar);
    tokio::select! {
        unpacked = unpacked => unpacked?,
        () = silent.cancelled() => return Err(late()),
        () = shared.cancel.cancelled() => {
            let words = "the agent stops";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, words));
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
