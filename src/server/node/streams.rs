//! `exec`, `attach` and `portForward`, with or without a UID in the path: finds the target, and takes
//! over the connection. `mirrorlet_streaming` serves it then.
//!
//! Upstream: `getExec`, `getAttach`, `getPortForward` of `pkg/kubelet/server/server.go`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, Request, State};
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
use super::shares::{Counted, Resource, Shares, Taken};
use crate::server::remote;
use crate::server::view::{AgentView, ViewError, ViewErrorKind};
use mirrorlet_core::access::User;
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::spec::all_container_names;
use mirrorlet_runtime::ExecOptions;

/// The routes: WebSockets use `GET`, SPDY uses `POST`.
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
    Extension(user): Extension<User>,
    request: Request,
) -> Result<Response, Response> {
    command(&shared, &named, &user.name, request, Kind::Exec)
}

/// Attaches to a container's main process.
async fn attach(
    State(shared): State<Shared>,
    Path(named): Named,
    Extension(user): Extension<User>,
    request: Request,
) -> Result<Response, Response> {
    command(&shared, &named, &user.name, request, Kind::Attach)
}

#[expect(clippy::result_large_err, reason = "an answer, either way")]
fn command(
    shared: &Shared,
    named: &HashMap<String, String>,
    user: &str,
    request: Request,
    kind: Kind,
) -> Result<Response, Response> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    // As upstream, a wrong query is said before a wrong name.
    RemoteCommand::parse(&query).map_err(refused)?;
    let (pod, container) = container(shared, named)?;
    command_in(shared, &pod, container, user, &query, request, kind)
}

/// Runs a command in a pod's container, or attaches to it, with the options of a node API query.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
pub(in crate::server) fn command_in(
    shared: &Shared,
    pod: &Pod,
    container: String,
    user: &str,
    query: &str,
    request: Request,
    kind: Kind,
) -> Result<Response, Response> {
    let uid = PodUid::of(pod);
    let asked = RemoteCommand::parse(query).map_err(refused)?;
    let negotiated = RemoteCommand::negotiate(request.headers()).map_err(refused)?;
    let taken = take(shared, &uid, &FullName::of(pod), user)?;
    let (headers, limits) = (negotiated.headers.clone(), taken.limits());
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
        serve_session(stream, &negotiated, streams, kind, start, limits).await;
    };
    Ok(Entry::of(shared, request).carry(taken, headers, work))
}

/// Takes a session out of its shares.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
fn take(shared: &Shared, uid: &PodUid, name: &FullName, user: &str) -> Result<Taken, Response> {
    let taken = shared.shares.take(Resource::Session, uid, name, user);
    taken.map_err(IntoResponse::into_response)
}

/// Connects to ports of a pod.
async fn port_forward(
    State(shared): State<Shared>,
    Path(named): Named,
    Extension(user): Extension<User>,
    request: Request,
) -> Result<Response, Response> {
    let pod = pod(&shared, &named)?;
    forward_to(&shared, &pod, &user.name, request)
}

/// The pod whose ports a client connects to.
struct Ports {
    view: Arc<dyn AgentView>,
    shares: Shares,
    uid: PodUid,
    name: FullName,
    user: String,
}

impl Ports {
    async fn connect(&self, port: u16) -> Result<Counted, ViewError> {
        let Self {
            view,
            shares,
            uid,
            name,
            user,
        } = self;
        view.check_pod(uid)?;
        let taken = shares.take(Resource::Connection, uid, name, user);
        let taken = taken.map_err(|busy| ViewErrorKind::Unavailable.error(busy.to_string()))?;
        let stream = view.access().port_forward(uid, port).await?;
        Ok(Counted::new(stream, taken))
    }
}

/// Connects to ports of that pod.
#[expect(clippy::result_large_err, reason = "an answer, either way")]
pub(in crate::server) fn forward_to(
    shared: &Shared,
    pod: &Pod,
    user: &str,
    request: Request,
) -> Result<Response, Response> {
    let query = request.uri().query().unwrap_or_default();
    let asked = PortForward::negotiate(request.headers(), query).map_err(refused)?;
    let ports = Ports {
        view: Arc::clone(&shared.view),
        shares: shared.shares.clone(),
        uid: PodUid::of(pod),
        name: FullName::of(pod),
        user: user.to_owned(),
    };
    let taken = take(shared, &ports.uid, &ports.name, user)?;
    let (headers, limits) = (asked.negotiated.headers.clone(), taken.limits());
    let work = async move |stream| {
        let connect = |port| ports.connect(port);
        serve_port_forward(stream, &asked, connect, limits).await;
    };
    Ok(Entry::of(shared, request).carry(taken, headers, work))
}

fn refused(refusal: Refusal) -> Response {
    (refusal.status, *refusal.headers, refusal.message).into_response()
}

/// The pod in a path. Its UID may be its own or its mirror's: users read the mirror's from the API
/// server.
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

    /// Answers 101 with these headers, and passes the connection to `work`. It is dropped when the
    /// agent stops; until then it counts as a connection, and in the shares of `taken`.
    pub(super) fn carry<F>(
        self,
        taken: Taken,
        headers: HeaderMap,
        work: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sessions, cancel) = (&self.shared.sessions, self.shared.cancel);
        let held = (self.claim, taken);
        remote::carry(sessions, cancel, self.upgrade, held, headers, work)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use mirrorlet_host::telemetry::Metrics;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::server::fake::FakeView;

    fn shared(metrics: &Metrics) -> Shared {
        let view = Arc::new(FakeView::new());
        Shared::new(view, metrics.clone(), CancellationToken::new())
    }

    /// A request for a WebSocket.
    fn request() -> Request {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/?port=7".parse().unwrap();
        for (name, value) in [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ] {
            let value = value.parse().unwrap();
            request.headers_mut().insert(name, value);
        }
        request
    }

    #[tokio::test]
    async fn a_session_beyond_a_share_is_refused_with_what_to_do() {
        let metrics = Metrics::new();
        let shared = shared(&metrics);
        let pod = |name| shared.view.pod_by_name("ns", name).unwrap();
        let command = |name, kind| {
            let (container, query) = ("c".to_owned(), "command=true&output=1");
            let pod = pod(name);
            match command_in(&shared, &pod, container, "api", query, request(), kind) {
                Ok(answer) | Err(answer) => answer,
            }
        };
        let forward = |name| match forward_to(&shared, &pod(name), "api", request()) {
            Ok(answer) | Err(answer) => answer,
        };
        let (uid, name) = (PodUid::of(&pod("web")), FullName::new("web", "ns"));
        let held: Vec<_> = (0..64)
            .map(|_| take(&shared, &uid, &name, "somebody").unwrap())
            .collect();
        for refused in [
            command("web", Kind::Exec),
            command("web", Kind::Attach),
            forward("web"),
        ] {
            assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
            let words = to_bytes(refused.into_body(), 4096).await.unwrap();
            // tenants S2
            assert_eq!(
                words,
                "too many exec, attach and port-forward sessions of this pod: at most 64 may be open at a time; close some, or try again later"
            );
        }
        let counted = "mirrorlet_node_api_refusals_total{reason=\"sessions\"} 3\n";
        assert!(metrics.encode().contains(counted), "{}", metrics.encode());
        // Others have their own share, and this one has it again.
        let upgraded = StatusCode::SWITCHING_PROTOCOLS;
        assert_eq!(command("other", Kind::Exec).status(), upgraded);
        drop(held);
        assert_eq!(command("web", Kind::Attach).status(), upgraded);
        assert_eq!(forward("web").status(), upgraded);
        // Those clients are gone, and hold nothing.
        shared.ended().await;
        let held = (0..64).filter_map(|_| take(&shared, &uid, &name, "somebody").ok());
        assert_eq!(held.collect::<Vec<_>>().len(), 64);
    }

    #[tokio::test]
    async fn a_forwarded_connection_beyond_a_share_is_refused_with_what_to_do() {
        let metrics = Metrics::new();
        let Shared { view, shares, .. } = shared(&metrics);
        let ports = Ports {
            view,
            shares,
            uid: PodUid::from("web"),
            name: FullName::new("web", "ns"),
            user: "api".to_owned(),
        };
        let mut open = Vec::new();
        for _ in 0..256 {
            open.push(ports.connect(7).await.unwrap());
        }
        let refused = ports.connect(7).await.err().unwrap();
        // tenants S2
        assert_eq!(
            refused.to_string(),
            "too many forwarded connections of this pod: at most 256 may be open at a time; close some, or try again later"
        );
        open.pop();
        // A port that nobody listens on takes none.
        assert!(ports.connect(9).await.is_err());
        let mut again = ports.connect(7).await.unwrap();
        again.write_all(b"hi").await.unwrap();
        again.shutdown().await.unwrap();
        let mut echoed = String::new();
        again.read_to_string(&mut echoed).await.unwrap();
        assert_eq!(echoed, "hi");
    }
}
