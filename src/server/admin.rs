//! The agent's own API, on a Unix socket under the root that only root can open.
//!
//! `GET /v1/status[?watch=true][&fresh=true]`, `GET /v1/pods/{uid}/logs[/{container}]`, `GET
//! /v1/explain?pod=…`, `GET /v1/events[?watch=true]`, `GET` and `POST /v1/rollouts?pod=…`, `POST
//! /v1/plan`, `POST /v1/orders?pod=…&verb=…`, `GET /v1/images`, `GET /v1/top[?watch=true]`, `GET
//! /v1/volumes`, `POST /v1/volumes/remove?name=…`, `GET /v1/config`; bidirectional streams, in
//! [`access`](super::access): `GET /v1/pods/{uid}/exec`, `…/attach`, `…/portforward`; and files, in
//! [`files`](super::files): `GET` and `PUT /v1/pods/{uid}/files?path=…`, `GET
//! /v1/pods/{uid}/files/stat?path=…`. Errors are `{"error": …, "help": …}` with a fitting status.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use mirrorlet_streaming::gather::gathered;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::asked::Asked;
use super::cut::cut_off;
use super::frame::framed;
use super::listen::Answers;
pub use super::rollouts::{CommandName, CommandQuery};
pub use super::room::STREAMS_MAX;
use super::room::{Permit, Room};
use super::view::{AgentView, ViewError, ViewErrorKind};
pub use super::view::{CommandAnswer, Order, OrderAnswer, PlanFile, PlanRequest, Verb};
use super::{access, files, listen, orders, remote, rollouts, story, usage, volumes};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::logs::Instance;
use mirrorlet_runtime::{LogOptions, LogSource, RuntimeError};

/// Maximum length of a Unix socket's path, in bytes: `sun_path` without its NUL.
pub const SOCKET_PATH_MAX: usize = 107;

/// The WebSocket protocol of exec, attach and port-forward: the node API's.
pub const PROTOCOL: &str = "v5.channel.k8s.io";

/// Largest set of manifests that is planned, in bytes.
const PLAN_BYTES_MAX: usize = 64 << 20;

/// Why the socket can't be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path doesn't fit into a socket address.
    #[error(
        "the path of the agent's socket is {length} bytes long, the maximum is {SOCKET_PATH_MAX}: {}; choose a shorter --root", .path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The system refused.
    #[error("failed to {attempt} the agent's socket {}", .path.display())]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

/// Binds the agent's socket, mode 0600. An existing socket is a dead agent's, and is replaced: only the
/// holder of the root's lock may call this.
///
/// # Errors
/// The path is too long, another file is at the path, or the system refused.
pub fn bind(path: &FsPath) -> Result<UnixListener, SocketError> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        return Err(SocketError::TooLong {
            path: path.to_owned(),
            length,
        });
    }
    let fail = |attempt| {
        move |source| SocketError::Io {
            attempt,
            path: path.to_owned(),
            source,
        }
    };
    remove_stale(path).map_err(fail("replace"))?;
    let listener = UnixListener::bind(path).map_err(fail("bind"))?;
    // Connecting requires write permission, which neither a 0700 root nor a usual umask gives to
    // others, so no other user gets in between the two calls.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(fail("restrict access to"))?;
    Ok(listener)
}

fn remove_stale(path: &FsPath) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket has this path",
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Serves the API until `cancel`. Open watches end then, and open logs and files are aborted.
///
/// # Errors
/// The listener failed for good.
pub async fn serve(
    listener: UnixListener,
    view: Arc<dyn AgentView>,
    cancel: CancellationToken,
) -> io::Result<()> {
    let sessions = TaskTracker::new();
    let app = router(view, sessions.clone(), cancel.clone());
    listen::serve(listener, app, Answers::Streams, cancel).await?;
    // They end by the same token, and hold nothing that takes long to release.
    sessions.close();
    sessions.wait().await;
    Ok(())
}

#[derive(Clone)]
pub(super) struct Shared {
    pub(super) view: Arc<dyn AgentView>,
    pub(super) cancel: CancellationToken,
    /// The sessions on upgraded connections.
    pub(super) sessions: TaskTracker,
    room: Room,
}

/// The routes; can be called without a socket. The owner of `sessions` waits for them.
pub fn router(
    view: Arc<dyn AgentView>,
    sessions: TaskTracker,
    cancel: CancellationToken,
) -> Router {
    let shared = Shared {
        view,
        cancel,
        sessions,
        room: Room::new(),
    };
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/config", get(config))
        .route("/v1/explain", get(story::explain))
        .route("/v1/events", get(story::events))
        .route(
            "/v1/plan",
            post(rollouts::plan).layer(DefaultBodyLimit::max(PLAN_BYTES_MAX)),
        )
        .route("/v1/rollouts", get(rollouts::history).post(rollouts::command))
        .route("/v1/orders", post(orders::order))
        .route("/v1/images", get(usage::images))
        .route("/v1/top", get(usage::top))
        .route("/v1/volumes", get(volumes::list))
        .route("/v1/volumes/remove", post(volumes::remove))
        .route("/v1/pods/{uid}/logs", get(default_logs))
        .route("/v1/pods/{uid}/logs/{container}", get(container_logs))
        .route("/v1/pods/{uid}/exec", get(access::exec))
        .route("/v1/pods/{uid}/attach", get(access::attach))
        .route("/v1/pods/{uid}/portforward", get(access::port_forward))
        .route("/v1/pods/{uid}/files", get(files::download).put(files::upload))
        .route("/v1/pods/{uid}/files/stat", get(files::stat))
        .fallback(|| async {
            ApiError::new(StatusCode::NOT_FOUND, "no such path").help(
                "this command and the running agent may be of different versions; compare mirrorlet version with mirrorlet status -o json",
            )
        })
        // Bodies are passed on as they come, so none can fill memory.
        .with_state(shared)
}

/// The body of an error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The problem.
    pub error: String,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

pub(super) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            body: ErrorBody {
                error: error.into(),
                help: None,
            },
        }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.body.help = Some(help.into());
        self
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> Self {
        let status = match error.kind {
            ViewErrorKind::NotFound => StatusCode::NOT_FOUND,
            ViewErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ViewErrorKind::Conflict => StatusCode::CONFLICT,
            ViewErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ViewErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut answer = Self::new(status, error.message);
        answer.body.help = error.help;
        answer
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> Self {
        ViewError::from(error).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

impl Shared {
    /// Admits a request. It counts as open until the permit is dropped.
    pub(super) fn admit(&self) -> Result<Permit, ApiError> {
        self.room.admit()
    }

    /// Lets an admitted request run for as long as its client wants.
    pub(super) fn keep_open(&self, permit: &mut Permit) -> Result<(), ApiError> {
        self.room.keep_open(permit)
    }

    /// Admits a request that runs for as long as its client wants.
    pub(super) fn admit_stream(&self) -> Result<Permit, ApiError> {
        let mut permit = self.admit()?;
        self.keep_open(&mut permit)?;
        Ok(permit)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StatusQuery {
    watch: bool,
    fresh: bool,
}

async fn status(asked: Asked<StatusQuery>) -> Result<Response, ApiError> {
    let (shared, query, mut permit) = asked.into_parts();
    if query.fresh {
        shared.view.refresh().await;
    }
    if !query.watch {
        return Ok(Json(shared.view.status()).into_response());
    }
    shared.keep_open(&mut permit)?;
    Ok(json_lines(watch_lines(shared).map(Ok), permit))
}

/// An answer of lines of JSON, which holds `permit` until its end.
pub(super) fn json_lines(
    lines: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    permit: Permit,
) -> Response {
    let lines = lines.inspect(move |_| {
        let _held = &permit;
    });
    let head = [(header::CONTENT_TYPE, "application/jsonl")];
    (head, Body::from_stream(lines)).into_response()
}

/// A value as a line of JSON.
pub(super) fn json_line(value: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line.into())
}

/// One line now and one after each change, without repeated ones, until the agent stops.
fn watch_lines(shared: Shared) -> impl Stream<Item = Bytes> + Send + 'static {
    let changes = shared.view.changed();
    let mut last = Bytes::new();
    on_changes(shared, changes, move |view| {
        let line = json_line(&view.status()).ok()?;
        let is_new = line != last;
        last.clone_from(&line);
        Some(if is_new { line } else { Bytes::new() })
    })
}

/// The text that `next` returns now and after each change, while it returns one; until the agent stops.
pub(super) fn on_changes<F>(
    shared: Shared,
    changes: watch::Receiver<u64>,
    next: F,
) -> impl Stream<Item = Bytes> + Send + 'static
where
    F: FnMut(&dyn AgentView) -> Option<Bytes> + Send + 'static,
{
    let cancel = shared.cancel.clone();
    stream::unfold(
        (shared.view, changes, next, true),
        |(view, mut changes, mut next, first)| async move {
            let mut wait = !first;
            loop {
                if wait && changes.changed().await.is_err() {
                    return None;
                }
                changes.mark_unchanged();
                let text = next(&*view)?;
                if !text.is_empty() {
                    return Some((text, (view, changes, next, false)));
                }
                wait = true;
            }
        },
    )
    .take_until(cancel.cancelled_owned())
}

async fn config(State(shared): State<Shared>) -> Json<serde_json::Value> {
    Json(shared.view.config())
}

/// The query of a logs request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LogsQuery {
    /// Continue with new lines until the container ends.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// The instance before the newest.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub previous: bool,
    /// Begin every line with its time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub timestamps: bool,
    /// Only that many of the last lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u64>,
    /// Only lines of the last so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<u64>,
    /// Only lines written at or after that time; with both, the later time counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_time: Option<Timestamp>,
    /// End after that many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// The instance with that id, `docker://…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

async fn default_logs(
    Path(uid): Path<String>,
    asked: Asked<LogsQuery>,
) -> Result<Response, ApiError> {
    logs(asked, uid, None).await
}

async fn container_logs(
    Path((uid, container)): Path<(String, String)>,
    asked: Asked<LogsQuery>,
) -> Result<Response, ApiError> {
    logs(asked, uid, Some(container)).await
}

async fn logs(
    asked: Asked<LogsQuery>,
    uid: String,
    container: Option<String>,
) -> Result<Response, ApiError> {
    let (shared, query, mut permit) = asked.into_parts();
    if query.follow {
        shared.keep_open(&mut permit)?;
    }
    let options = LogOptions {
        follow: query.follow,
        tail: query.tail,
        since: query.since_seconds.map(seconds_ago).max(query.since_time),
        timestamps: query.timestamps,
        limit_bytes: query.limit_bytes,
        source: LogSource::All,
    };
    let instance = match &query.instance {
        Some(id) => Instance::WithId(id),
        None if query.previous => Instance::Previous,
        None => Instance::Newest,
    };
    let log = shared
        .view
        .logs(&PodUid::from(uid), container.as_deref(), &options, instance)
        .await?;
    let frames = gathered(log, remote::limits().budget, framed).map(move |bytes| {
        let _held = &permit;
        Ok(bytes)
    });
    Ok((
        [(header::CONTENT_TYPE, "application/octet-stream")],
        Body::from_stream(cut_off(frames, shared.cancel)),
    )
        .into_response())
}

/// The time so many seconds ago; the epoch when that lies before it.
fn seconds_ago(seconds: u64) -> Timestamp {
    let now = Timestamp::now().as_second();
    let then = i64::try_from(seconds).map_or(0, |seconds| now.saturating_sub(seconds).max(0));
    Timestamp::from_second(then).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
