//! The rollouts of static pods, on the agent's socket.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};

use super::admin::{ApiError, Shared};
use super::asked::Asked;
use super::body;
use super::view::{CommandAnswer, PlanRequest};
use mirrorlet_core::api::report::HistoryReport;
use mirrorlet_core::rollout::Command;

#[derive(Debug, Deserialize)]
pub(super) struct HistoryQuery {
    pod: String,
    #[serde(default)]
    fresh: bool,
}

pub(super) async fn history(asked: Asked<HistoryQuery>) -> Result<Json<HistoryReport>, ApiError> {
    if asked.query.fresh {
        asked.shared.view.refresh().await;
    }
    Ok(Json(asked.shared.view.rollout_history(&asked.query.pod)?))
}

/// The name of a command, in a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandName {
    /// Run an older revision.
    Undo,
    /// Try the newest one again.
    Retry,
    /// Keep what runs.
    Pause,
    /// End that.
    Resume,
}

/// The query of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandQuery {
    /// The pod.
    pub pod: String,
    /// The command.
    pub command: CommandName,
    /// Number of the revision to run, for `undo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_revision: Option<u64>,
}

pub(super) async fn plan(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: PlanRequest = body::json(request).await?;
    let _permit = shared.admit()?;
    Ok(Json(shared.view.plan(&request).await).into_response())
}

pub(super) async fn command(asked: Asked<CommandQuery>) -> Result<Json<CommandAnswer>, ApiError> {
    let Asked { shared, query, .. } = &asked;
    let command = match (query.command, query.to_revision) {
        (CommandName::Undo, to_revision) => Command::Undo { to_revision },
        (_, Some(_)) => {
            let words = "only undo takes a revision";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, words));
        }
        (CommandName::Retry, None) => Command::Retry,
        (CommandName::Pause, None) => Command::Pause,
        (CommandName::Resume, None) => Command::Resume,
    };
    shared.view.refresh().await;
    Ok(Json(
        shared.view.command_rollout(&query.pod, command).await?,
    ))
}
