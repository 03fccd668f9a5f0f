//! The images on the Engine and the usage of pods, on the agent's socket.

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;

use super::admin::{ApiError, Shared, json_line, json_lines};
use super::asked::Asked;
use mirrorlet_core::api::report::ImagesReport;

pub(super) async fn images(State(shared): State<Shared>) -> Result<Json<ImagesReport>, ApiError> {
    let _permit = shared.admit()?;
    Ok(Json(shared.view.images().await?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TopQuery {
    watch: bool,
}

pub(super) async fn top(asked: Asked<TopQuery>) -> Result<Response, ApiError> {
    let (shared, query, mut permit) = asked.into_parts();
    let mut samples = shared.view.top();
    if !query.watch {
        let first = samples.next().await.transpose()?;
        return Ok(Json(first.unwrap_or_default()).into_response());
    }
    shared.keep_open(&mut permit)?;
    let lines = samples
        .map_err(|error| std::io::Error::other(error.to_string()))
        .and_then(async |report| Ok(json_line(&report)?))
        .take_until(shared.cancel.cancelled_owned());
    Ok(json_lines(lines, permit))
}
