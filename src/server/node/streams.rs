//! `exec`, `attach` and `portForward`: connections that become streams of a process or of ports.
//!
//! `GET` or `POST /exec/{namespace}/{pod}[/{uid}]/{container}`, `…/attach/…` likewise, and
//! `…/portForward/{namespace}/{pod}[/{uid}]`. Whatever can be refused is refused with an ordinary
//! answer; after 101 [`remote`] has the connection. It ends with the agent.
//!
//! Upstream: `getExec`, `getAttach` and `getPortForward` of `pkg/kubelet/server/server.go`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;

use super::Shared;
use super::listen::Claim;
use crate::api::{Pod, PodUid};
use crate::pod::spec::all_container_names;
use crate::runtime::ExecOptions;
use crate::server::remote::{
    Kind, Limits, PortForward, Refusal, RemoteCommand, serve_port_forward, serve_session,
};

/// Which pod and container a path names.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    namespace: String,
    pod: String,
    /// Its own UID, or its mirror's: that is the one that the API server shows.
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    container: String,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, self.headers, self.message + "\n").into_response()
    }
}

/// Runs a command.
pub(super) async fn exec(
    State(shared): State<Shared>,
    Path(named): Path<Named>,
    request: Request,
) -> Result<Response, Response> {
    command(&shared, named, request, Kind::Exec)
}

/// Attaches to a container's main process.
pub(super) async fn attach(
    State(shared): State<Shared>,
    Path(named): Path<Named>,
    request: Request,
) -> Result<Response, Response> {
    command(&shared, named, request, Kind::Attach)
}

fn command(
    shared: &Shared,
    named: Named,
    request: Request,
    kind: Kind,
) -> Result<Response, Response> {
    let query = request.uri().query().unwrap_or_default();
    let RemoteCommand { command, streams } =
        RemoteCommand::parse(query).map_err(IntoResponse::into_response)?;
    let pod = named.find(shared)?;
    let container = named.container;
    if !all_container_names(&pod).any(|known| known == container) {
        // Upstream's words and status.
        let words = format!("container not found ({container:?})");
        return Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, words));
    }
    let negotiated =
        RemoteCommand::negotiate(request.headers()).map_err(IntoResponse::into_response)?;
    let headers = negotiated.headers.clone();
    let (view, uid) = (Arc::clone(&shared.view), PodUid::of(&pod));
    let options = ExecOptions {
        command,
        streams,
        size: None,
    };
    let serve = async move |stream| {
        let start = || async {
            match kind {
                Kind::Exec => view.exec(&uid, Some(&container), &options).await,
                Kind::Attach => view.attach(&uid, Some(&container), streams).await,
            }
        };
        let limits = Limits::default();
        serve_session(stream, &negotiated, streams, kind, start, limits).await;
    };
    Ok(carry(shared, request, headers, serve))
}

/// Forwards ports.
pub(super) async fn port_forward(
    State(shared): State<Shared>,
    Path(named): Path<Named>,
    request: Request,
) -> Result<Response, Response> {
    let pod = named.find(&shared)?;
    let query = request.uri().query().unwrap_or_default();
    let asked =
        PortForward::negotiate(request.headers(), query).map_err(IntoResponse::into_response)?;
    let headers = asked.negotiated.headers.clone();
    let (view, uid) = (Arc::clone(&shared.view), PodUid::of(&pod));
    let serve = async move |stream| {
        let connect = |port| view.port_forward(&uid, port);
        serve_port_forward(stream, &asked, connect, Limits::default()).await;
    };
    Ok(carry(&shared, request, headers, serve))
}

impl Named {
    /// The pod, if the UID is one of its.
    fn find(&self, shared: &Shared) -> Result<Arc<Pod>, Response> {
        let gone = || refuse(StatusCode::NOT_FOUND, "pod does not exist".to_owned());
        let (namespace, name) = (&self.namespace, &self.pod);
        let pod = shared.view.pod_by_name(namespace, name).ok_or_else(gone)?;
        if let Some(uid) = &self.uid
            && PodUid::of(&pod).as_str() != uid
            && shared.view.mirror_uid(namespace, name).as_ref() != Some(uid)
        {
            return Err(gone());
        }
        Ok(pod)
    }
}

fn refuse(status: StatusCode, words: String) -> Response {
    (status, words + "\n").into_response()
}

/// Answers 101, and lets `serve` have the connection until the agent stops.
fn carry<F>(
    shared: &Shared,
    mut request: Request,
    headers: HeaderMap,
    serve: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send,
{
    let upgrade = hyper::upgrade::on(&mut request);
    // A connection that was taken over is still one of those that there may be.
    let claim = request.extensions().get::<Claim>().cloned();
    let cancel = shared.cancel.clone();
    shared.sessions.spawn(async move {
        let _held = claim;
        let carried = async {
            // None from a client that went away before its answer.
            if let Ok(upgraded) = upgrade.await {
                serve(TokioIo::new(upgraded)).await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = carried => {}
        }
    });
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}
