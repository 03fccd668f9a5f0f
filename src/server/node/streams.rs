//! `exec`, `attach` and `portForward`, with a UID in the path or without: who is meant, and how
//! their connections are taken over. `mirrorlet_streaming` serves those then.
//!
//! Upstream: `getExec`, `getAttach`, `getPortForward` of `pkg/kubelet/server/server.go`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mirrorlet_streaming::{
    Kind, PortForward, Refusal, RemoteCommand, serve_port_forward, serve_session,
};

use super::Shared;
use super::connections::Claim;
use crate::server::remote;
use crate::server::view::ViewError;
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::spec::all_container_names;
use mirrorlet_runtime::ExecOptions;

/// The routes: `GET` is what WebSockets come with, `POST` SPDY.
pub(super) fn routes() -> Router<Shared> {
    let (exec, attach) = (get(exec).post(exec), get(attach).post(attach));
    let forward = get(port_forward).post(port_forward);
    Router::new()
        .route("/exec/{namespace}/{pod}/{container}", exec.clone())
        .route("/exec/{namespace}/{pod}/{uid}/{container}", exec)
        .route("/attach/{namespace}/{pod}/{container}", attach.clone())
        .route("/attach/{namespace}/{pod}/{uid}/{container}", attach)
        .route("/portForward/{namespace}/{pod}", forward.clone())
        .route("/portForward/{namespace}/{pod}/{uid}", forward)
}

/// The parameters of a path: `namespace`, `pod`, and optionally `uid` and `container`.
type Named = Path<HashMap<String, String>>;

/// Runs a command.
async fn exec(
    State(shared): State<Shared>,
    Path(named): Named,
    request: Request,
) -> Result<Response, Response> {
    command(&shared, &named, request, Kind::Exec)
}

/// Attaches to a container's main process.
async fn attach(
    State(shared): State<Shared>,
    Path(named): Named,
    request: Request,
) -> Result<Response, Response> {
    command(&shared, &named, request, Kind::Attach)
}

#[expect(clippy::result_large_err, reason = "an answer, either way")]
fn command(
    shared: &Shared,
    named: &HashMap<String, String>,
    request: Request,
    kind: Kind,
) -> Result<Response, Response> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    // As upstream, a wrong query is said before a wrong name.
    RemoteCommand::parse(&query).map_err(refused)?;
    let (pod, container) = container(shared, named)?;
    command_in(shared, &pod, container, &query, request, kind)
}

/// Runs a command in a container that the pod has, or attaches to it, as a node's query asks for it.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
pub(in crate::server) fn command_in(
    shared: &Shared,
    pod: &Pod,
    container: String,
    query: &str,
    request: Request,
    kind: Kind,
) -> Result<Response, Response> {
    let uid = PodUid::of(pod);
    let asked = RemoteCommand::parse(query).map_err(refused)?;
    let negotiated = RemoteCommand::negotiate(request.headers()).map_err(refused)?;
    let headers = negotiated.headers.clone();
    let view = Arc::clone(&shared.view);
    let RemoteCommand { command, streams } = asked;
    let options = ExecOptions {
        command,
        streams,
        size: None,
    };
    let work = async move |stream| {
        let start = || async {
            let (id, access) = (view.instance(&uid, Some(&container), true)?, view.access());
            let session = match kind {
                Kind::Exec => access.exec_in_container(&id, &options).await?,
                Kind::Attach | Kind::AttachWithExitCode => {
                    access.attach_container(&id, options.streams).await?
                }
            };
            Ok::<_, ViewError>(remote::session(session))
        };
        serve_session(stream, &negotiated, streams, kind, start, remote::limits()).await;
    };
    Ok(Entry::of(shared, request).carry(headers, work))
}

/// Connects to ports of a pod.
async fn port_forward(
    State(shared): State<Shared>,
    Path(named): Named,
    request: Request,
) -> Result<Response, Response> {
    let pod = pod(&shared, &named)?;
    forward_to(&shared, &pod, request)
}

/// Connects to ports of that pod.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
pub(in crate::server) fn forward_to(
    shared: &Shared,
    pod: &Pod,
    request: Request,
) -> Result<Response, Response> {
    let uid = PodUid::of(pod);
    let query = request.uri().query().unwrap_or_default();
    let asked = PortForward::negotiate(request.headers(), query).map_err(refused)?;
    let headers = asked.negotiated.headers.clone();
    let view = Arc::clone(&shared.view);
    let work = async move |stream| {
        let (view, uid) = (&view, &uid);
        let connect = |port| async move {
            view.check_pod(uid)?;
            Ok::<_, ViewError>(view.access().port_forward(uid, port).await?)
        };
        serve_port_forward(stream, &asked, connect, remote::limits()).await;
    };
    Ok(Entry::of(shared, request).carry(headers, work))
}

fn refused(refusal: Refusal) -> Response {
    (refusal.status, *refusal.headers, refusal.message).into_response()
}

/// The pod that a path names. Its UID may be its own or its mirror's: people read the mirror's
/// off the API server.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
pub(super) fn pod(shared: &Shared, named: &HashMap<String, String>) -> Result<Arc<Pod>, Response> {
    let word = |key: &str| named.get(key).map(String::as_str).unwrap_or_default();
    let pod = shared.view.pod_by_name(word("namespace"), word("pod"));
    let missing = |words: &'static str| (StatusCode::NOT_FOUND, words).into_response();
    let pod = pod.ok_or_else(|| missing("pod does not exist"))?;
    let asked = named.get("uid").map(|uid| PodUid::from(uid.as_str()));
    let asked = asked.map(|uid| shared.view.translate_pod_uid(&uid));
    match asked {
        Some(uid) if uid != PodUid::of(&pod).into() => Err(missing("pod not found")),
        Some(_) | None => Ok(pod),
    }
}

/// The container that a path names, and its pod.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
pub(super) fn container(
    shared: &Shared,
    named: &HashMap<String, String>,
) -> Result<(Arc<Pod>, String), Response> {
    let pod = pod(shared, named)?;
    let name = named
        .get("container")
        .map(String::as_str)
        .unwrap_or_default();
    if all_container_names(&pod).any(|known| known == name) {
        let name = name.to_owned();
        return Ok((pod, name));
    }
    let words = format!("container not found ({name:?})");
    Err((StatusCode::NOT_FOUND, words).into_response())
}

/// A request whose connection may be taken over.
pub(super) struct Entry {
    shared: Shared,
    claim: Option<Claim>,
    upgrade: OnUpgrade,
}

impl Entry {
    pub(super) fn of(shared: &Shared, mut request: Request) -> Self {
        Self {
            shared: shared.clone(),
            claim: request.extensions_mut().remove(),
            upgrade: hyper::upgrade::on(&mut request),
        }
    }

    /// Answers 101 with these headers, and lets `work` have the connection. It is dropped when
    /// the agent stops; until then it counts as a connection.
    pub(super) fn carry<F>(
        self,
        headers: HeaderMap,
        work: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sessions, cancel) = (&self.shared.sessions, self.shared.cancel);
        remote::carry(sessions, cancel, self.upgrade, self.claim, headers, work)
    }
}
