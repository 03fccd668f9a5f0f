//! Asks the agent that runs on a root directory, through its socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::Failure;
use crate::config::socket_path;
use crate::server::admin::ErrorBody;

/// How long the beginning of an answer may take. Status never waits for the Engine; a log may,
/// for as long as one Engine read.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Largest error answer that is read, in bytes.
const ERROR_MAX: usize = 64 << 10;

/// An answer whose body is still coming. Dropping it closes the connection.
pub struct Answer {
    /// The body.
    pub body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Answer {
    /// The next piece of the body; none at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.context("the agent broke off its answer")?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The whole body.
    pub async fn whole(mut self) -> Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }
}

/// Sends `GET path` to the agent that runs on `root`.
///
/// # Errors
/// [`Failure::NoAgent`] when none answers; else the agent's own words.
pub async fn get(root: &Path, path: &str) -> Result<Answer, Failure> {
    let asking = ask(root, path);
    let (response, connection) = tokio::time::timeout(ANSWER_DEADLINE, asking)
        .await
        .with_context(|| {
            format!(
                "the agent on {} gave no answer within {} s",
                root.display(),
                ANSWER_DEADLINE.as_secs()
            )
        })??;
    let status = response.status();
    let answer = Answer {
        body: response.into_body(),
        connection,
    };
    if status.is_success() {
        return Ok(answer);
    }
    Err(refusal(status, answer).await)
}

async fn ask(root: &Path, path: &str) -> Result<(Response<Incoming>, JoinHandle<()>), Failure> {
    let socket = socket_path(root);
    let stream = UnixStream::connect(&socket)
        .await
        .map_err(|e| no_connection(root, &socket, &e))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .context("failed to talk to the agent")?;
    // Owned by the answer, which ends it; its errors surface in the body.
    let connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    let request = Request::get(path)
        .header("host", "mirrorlet")
        .body(Empty::<Bytes>::new())
        .context("failed to form the request")?;
    let response = sender
        .send_request(request)
        .await
        .context("the agent did not answer")?;
    Ok((response, connection))
}

fn no_connection(root: &Path, socket: &PathBuf, error: &std::io::Error) -> Failure {
    let root_shown = root.display();
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Failure::Failed(anyhow::anyhow!(
            "not allowed to open {}: only root may talk to the agent; try sudo",
            socket.display()
        )),
        _ => Failure::NoAgent(anyhow::anyhow!(
            "no mirrorlet agent is running on root {root_shown} (no answer on {}); start one with: mirrorlet run --root {root_shown}",
            socket.display()
        )),
    }
}

/// An error answer in the agent's words.
async fn refusal(status: hyper::StatusCode, mut answer: Answer) -> Failure {
    let body = Limited::new(&mut answer.body, ERROR_MAX).collect().await;
    let parsed = body
        .ok()
        .and_then(|body| serde_json::from_slice::<ErrorBody>(&body.to_bytes()).ok());
    Failure::Failed(match parsed {
        Some(ErrorBody {
            error,
            help: Some(help),
        }) => anyhow::anyhow!("{error}; {help}"),
        Some(ErrorBody { error, help: None }) => anyhow::anyhow!("{error}"),
        None => anyhow::anyhow!("the agent answered {status}"),
    })
}
