//! Users' orders for static pods, on the agent's socket.

use axum::response::Json;

use super::admin::ApiError;
use super::asked::Asked;
use super::view::{Order, OrderAnswer};

pub(super) async fn order(asked: Asked<Order>) -> Result<Json<OrderAnswer>, ApiError> {
    asked.shared.view.refresh().await;
    Ok(Json(asked.shared.view.order(&asked.query).await?))
}
