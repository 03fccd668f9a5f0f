//! The volumes of claims, on the agent's socket.

use axum::extract::State;
use axum::response::Json;
use serde::Deserialize;

use super::admin::{ApiError, Shared};
use super::asked::Asked;
use mirrorlet_core::api::report::{VolumeReport, VolumesReport};

pub(super) async fn list(State(shared): State<Shared>) -> Result<Json<VolumesReport>, ApiError> {
    let _permit = shared.admit()?;
    let volumes = shared.view.volumes().await?;
    Ok(Json(VolumesReport { volumes }))
}

#[derive(Debug, Deserialize)]
pub(super) struct RemoveQuery {
    name: String,
}

pub(super) async fn remove(asked: Asked<RemoveQuery>) -> Result<Json<VolumeReport>, ApiError> {
    let removed = asked.shared.view.remove_volume(&asked.query.name);
    Ok(Json(removed.await?))
}
