//! Access to containers over the agent's socket: exec, attach, port-forward.
//!
//! `GET /v1/pods/{uid}/exec?command=…`, `…/attach` and `…/portforward?port=…` become WebSockets of
//! [`PROTOCOL`], the node API's. A request that can't be served is refused with an ordinary error
//! answer; after 101 `mirrorlet_streaming` serves the connection. When a client disconnects, everything
//! that it started ends.
//!
//! Unlike the node API, an attach sends the exit code, idle connections are not closed, and the pod's
//! end of a forwarded connection closes its channel.

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mirrorlet_streaming::{
    Kind, Limits, Negotiated, PortForward, RemoteCommand, Version, is_websocket,
    serve_port_forward, serve_session,
};
use parking_lot::Mutex;

use super::admin::{ApiError, PROTOCOL, Shared};
use super::remote;
use super::room::Permit;
use mirrorlet_core::api::PodUid;
use mirrorlet_runtime::{ExecOptions, Session, StreamOptions, TerminalSize};

/// Without an idle timeout: a shell may stay open for days, and the socket is local.
fn limits() -> Limits {
    Limits {
        idle: None,
        ..remote::limits()
    }
}

/// The parameters of a request's query. Repeated keys add up, which the extractors of axum don't
/// know.
#[derive(Debug, Default)]
struct Asked {
    container: Option<String>,
    exec: ExecOptions,
    port: Option<u16>,
}

impl Asked {
    fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let mut asked = Self::default();
        let (mut width, mut height) = (0, 0);
        for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let wrong = || {
                ApiError::new(
                    StatusCode::BAD_REQUEST,
                    format!("invalid value {key}={value}"),
                )
            };
            let number = || value.parse::<u16>().map_err(|_| wrong());
            let on = || value.parse::<bool>().map_err(|_| wrong());
            let streams = &mut asked.exec.streams;
            match key.as_ref() {
                "container" => asked.container = Some(value.into_owned()),
                "command" => asked.exec.command.push(value.into_owned()),
                "stdin" => streams.stdin = on()?,
                "stdout" => streams.stdout = on()?,
                "stderr" => streams.stderr = on()?,
                "tty" => streams.tty = on()?,
                "width" => width = number()?,
                "height" => height = number()?,
                "port" => asked.port = Some(number()?),
                _ => {
                    let words = format!("unknown parameter {key}");
                    return Err(ApiError::new(StatusCode::BAD_REQUEST, words));
                }
            }
        }
        let size = TerminalSize { width, height };
        asked.exec.size = Some(size).filter(|size| size.is_usable());
        Ok(asked)
    }
}

/// Runs a command.
pub(super) async fn exec(
    State(shared): State<Shared>,
    Path(uid): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::parse(request.uri())?;
    if asked.exec.command.is_empty() {
        let words = "no command was given";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, words));
    }
    let entry = Entry::of(&shared, request)?;
    let uid = PodUid::from(uid);
    let (view, exec) = (&shared.view, &asked.exec);
    let id = view.instance(&uid, asked.container.as_deref(), true)?;
    let session = view.access().exec_in_container(&id, exec).await?;
    Ok(entry.run(Kind::Exec, session, exec.streams))
}

/// Attaches to a container's main process.
pub(super) async fn attach(
    State(shared): State<Shared>,
    Path(uid): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::parse(request.uri())?;
    let entry = Entry::of(&shared, request)?;
    let (uid, streams) = (PodUid::from(uid), asked.exec.streams);
    let view = &shared.view;
    let id = view.instance(&uid, asked.container.as_deref(), true)?;
    let session = view.access().attach_container(&id, streams).await?;
    if let Some(size) = asked.exec.size {
        session.control.resize(size).await;
    }
    Ok(entry.run(Kind::AttachWithExitCode, session, streams))
}

/// Connects to a port of a pod.
pub(super) async fn port_forward(
    State(shared): State<Shared>,
    Path(uid): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::parse(request.uri())?;
    let port = asked
        .port
        .filter(|port| *port > 0)
        .ok_or_else(|| ApiError::new(StatusCode::BAD_REQUEST, "no port was given"))?;
    let entry = Entry::of(&shared, request)?;
    let (uid, view) = (PodUid::from(uid), &shared.view);
    view.check_pod(&uid)?;
    let target = view.access().port_forward(&uid, port).await?;
    let asked = PortForward {
        negotiated: entry.negotiated.clone(),
        ports: vec![port],
    };
    Ok(entry.carry(async move |stream| {
        let target = Mutex::new(Some(target));
        let connect = |_| {
            let target = target.lock().take();
            async move { target.ok_or("there is one connection") }
        };
        serve_port_forward(stream, &asked, connect, limits()).await;
    }))
}

/// A request whose connection may be hijacked.
struct Entry {
    shared: Shared,
    permit: Permit,
    negotiated: Negotiated,
    upgrade: OnUpgrade,
}

impl Entry {
    fn of(shared: &Shared, mut request: Request) -> Result<Self, ApiError> {
        let wanted = || {
            let words = format!("expected a WebSocket of the protocol {PROTOCOL}");
            ApiError::new(StatusCode::UPGRADE_REQUIRED, words)
        };
        if !is_websocket(request.headers()) {
            return Err(wanted());
        }
        let negotiated = RemoteCommand::negotiate(request.headers())
            .map_err(|refusal| ApiError::new(refusal.status, refusal.message))?;
        if negotiated.version != Version::V5 {
            return Err(wanted());
        }
        Ok(Self {
            permit: shared.admit_stream()?,
            shared: shared.clone(),
            negotiated,
            upgrade: hyper::upgrade::on(&mut request),
        })
    }

    /// Answers 101, and carries the streams of a process until it has ended or the client is gone.
    fn run(self, kind: Kind, session: Session, streams: StreamOptions) -> Response {
        let negotiated = self.negotiated.clone();
        self.carry(async move |stream| {
            let start = || async { Ok::<_, String>(remote::session(session)) };
            serve_session(stream, &negotiated, streams, kind, start, limits()).await;
        })
    }

    /// Answers 101, and lets `work` have the connection. It is dropped when the agent stops.
    fn carry<F>(self, work: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (shared, headers) = (self.shared, self.negotiated.headers);
        let (sessions, cancel) = (&shared.sessions, shared.cancel);
        remote::carry(sessions, cancel, self.upgrade, self.permit, headers, work)
    }
}

#[cfg(test)]
mod tests;
