//! Connects the generic streaming protocols to the runtime's sessions.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mirrorlet_streaming as streaming;
use streaming::Process;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use mirrorlet_runtime::{Result, RuntimeError, Session, SessionControl, TerminalSize};

/// Limits with one budget shared by the streams of all listeners.
static LIMITS: LazyLock<streaming::Limits> = LazyLock::new(streaming::Limits::default);

/// The limits of every streaming connection.
pub(super) fn limits() -> streaming::Limits {
    LIMITS.clone()
}

/// A session as it is served to a client.
pub(super) fn session(session: Session) -> streaming::Session<Control> {
    streaming::Session {
        stdin: session.stdin,
        output: session.output,
        process: Control(session.control),
    }
}

/// Answers 101 with these headers, and passes the connection to `work`, in a task of `sessions`. The
/// connection is dropped on `cancel`; `held` is kept until then, or until the work has ended.
pub(super) fn carry<F>(
    sessions: &TaskTracker,
    cancel: CancellationToken,
    upgrade: OnUpgrade,
    held: impl Send + 'static,
    headers: HeaderMap,
    work: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    sessions.spawn(async move {
        let _held = held;
        let carried = async {
            // A client that went away before its answer.
            let Ok(upgraded) = upgrade.await else { return };
            work(TokioIo::new(upgraded)).await;
        };
        cancel.run_until_cancelled(carried).await;
    });
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}

/// The process of a session.
pub(super) struct Control(Box<dyn SessionControl>);

impl Process for Control {
    type Error = RuntimeError;

    async fn resize(&self, size: TerminalSize) {
        self.0.resize(size).await;
    }

    async fn exit_code(&self) -> Result<Option<i32>> {
        self.0.exit_code().await
    }
}
