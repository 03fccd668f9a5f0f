//! Bodies of requests on the agent's socket. A client that stops sending one gets an answer after a
//! while, so that it doesn't keep its connection forever.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Json, Request};
use axum::http::StatusCode;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::admin::ApiError;

/// How long a client may take to send a body of JSON, as at the embedded API.
const JSON_DEADLINE: Duration = Duration::from_mins(1);

/// How long a client may send nothing of an archive, which may be the output of a slow program.
pub(super) const SILENCE_MAX: Duration = Duration::from_mins(10);

/// Reads a body of JSON whole.
pub(super) async fn json<T: DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    let read = timeout(JSON_DEADLINE, Json::<T>::from_request(request, &())).await;
    let read = read.map_err(|_| late())?;
    let Json(value) = read.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    Ok(value)
}

/// Returns the pieces of an archive as they arrive. If the client sends nothing for too long, `silent`
/// is cancelled, and neither a piece nor the end follows.
pub(super) fn archive(
    body: Body,
    silent: CancellationToken,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let pieces = body.into_data_stream().map_err(io::Error::other);
    stream::unfold((pieces, silent), |(mut pieces, silent)| async move {
        let Ok(piece) = timeout(SILENCE_MAX, pieces.next()).await else {
            silent.cancel();
            return std::future::pending().await;
        };
        Some((piece?, (pieces, silent)))
    })
}

/// The answer to a client that stopped sending a body.
pub(super) fn late() -> ApiError {
    let words = "the body of the request was not sent in time";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, words)
}
