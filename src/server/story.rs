//! The histories of pods and of the node, on the agent's socket.

use axum::response::{Json, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Deserialize;

use super::admin::{ApiError, json_line, json_lines, on_changes};
use super::asked::Asked;
use super::view::AgentView;
use mirrorlet_core::api::report::ExplainReport;

#[derive(Debug, Deserialize)]
pub(super) struct ExplainQuery {
    pod: String,
}

pub(super) async fn explain(asked: Asked<ExplainQuery>) -> Result<Json<ExplainReport>, ApiError> {
    Ok(Json(asked.shared.view.explain(&asked.query.pod)?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EventsQuery {
    /// Number of the first entry.
    from: u64,
    watch: bool,
}

/// The entries of the journal, one a line.
pub(super) async fn events(asked: Asked<EventsQuery>) -> Result<Response, ApiError> {
    let (shared, query, mut permit) = asked.into_parts();
    let mut from = query.from;
    let mut next = move |view: &dyn AgentView| lines(view, &mut from);
    let lines = if query.watch {
        shared.keep_open(&mut permit)?;
        let changes = shared.view.events_changed();
        on_changes(shared, changes, next).left_stream()
    } else {
        stream::iter(next(&*shared.view)).right_stream()
    };
    Ok(json_lines(lines.map(Ok), permit))
}

/// The entries from that number on; the number moves behind them.
fn lines(view: &dyn AgentView, from: &mut u64) -> Option<Bytes> {
    let mut lines = Vec::new();
    for event in view.events(*from) {
        *from = event.number + 1;
        lines.extend_from_slice(&json_line(&event).ok()?);
    }
    Some(lines.into())
}
