//! Calls the agent of a root directory, through its socket.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::Failure;
use super::channels::{self, Handshake, Receiver, Sender};
use crate::config::socket_path;
use crate::server::admin::ErrorBody;

/// Deadline for the beginning of an answer. Status never waits for the Engine; a log may wait for one
/// Engine read.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Largest error answer that is read, in bytes.
const ERROR_MAX: usize = 64 << 10;

/// Longest line of a watch that is read, in bytes: thousands of pods fit in it.
const LINE_MAX: usize = 64 << 20;

/// Longest path with its query that is sent, in bytes: what the agent reads at most, less the
/// rest of a request's head.
const PATH_MAX: usize = 60 << 10;

/// The body of a request without one.
const NO_BODY: Empty<Bytes> = Empty::new();

/// The advice after an agent closed a stream before its end.
pub(super) const LOOK_AND_REPEAT: &str =
    "it probably stopped or restarted; check with mirrorlet status, and run the command again";

/// The connection's own work; it must be polled for any data to arrive.
type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer whose body is still being received. Dropping it closes the connection.
pub struct Answer {
    body: Incoming,
    /// None once it has ended.
    connection: Option<Connection>,
}

impl Answer {
    /// The next piece of the body; none at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = drive(&mut self.connection, self.body.frame()).await;
            let Some(frame) = frame else { return Ok(None) };
            let frame =
                frame.context("the agent closed the connection before its answer was complete")?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
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

/// Awaits `work` while the connection does its part. Cancel-safe if `work` is.
async fn drive<T>(connection: &mut Option<Connection>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Some(driver) = connection {
        tokio::select! {
            // Neither arm loses anything: both futures live on outside of it.
            done = &mut work => return done,
            () = driver => *connection = None,
        }
    }
    work.await
}

/// A path with a query, if that says anything.
pub(super) fn with_query(path: &str, query: &impl serde::Serialize) -> anyhow::Result<String> {
    let query = serde_urlencoded::to_string(query).context("failed to build the request")?;
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!("{path}{mark}{query}"))
}

/// Sends `GET path` to the agent of `root`.
///
/// # Errors
/// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
pub async fn get(root: &Path, path: &str) -> Result<Answer, Failure> {
    within(root, send(root, Request::get(path), NO_BODY)).await
}

/// Documents that the agent sends, one per line, until it stops.
pub struct Lines<T> {
    root: PathBuf,
    answer: Answer,
    pending: Vec<u8>,
    kind: PhantomData<T>,
}

impl<T: serde::de::DeserializeOwned> Lines<T> {
    /// Requests documents from the agent of `root`.
    ///
    /// # Errors
    /// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
    pub async fn watch(root: &Path, path: &str) -> Result<Self, Failure> {
        Ok(Self {
            root: root.to_owned(),
            answer: get(root, path).await?,
            pending: Vec::new(),
            kind: PhantomData,
        })
    }

    /// The next document.
    ///
    /// # Errors
    /// The agent has stopped.
    pub async fn next(&mut self) -> Result<T, Failure> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(parse(&line)?);
            }
            if self.pending.len() > LINE_MAX {
                return Err(anyhow::anyhow!("a line of the agent's response is too long").into());
            }
            let Some(piece) = self.answer.next().await? else {
                let root = self.root.display();
                return Err(Failure::NoAgent(anyhow::anyhow!(
                    "the agent on {root} has stopped"
                )));
            };
            self.pending.extend_from_slice(&piece);
        }
    }
}

/// Opens a WebSocket at `path` of the agent of `root`.
///
/// # Errors
/// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
pub(super) async fn upgrade(root: &Path, path: &str) -> Result<(Sender, Receiver), Failure> {
    if path.len() > PATH_MAX {
        return Err(Failure::Usage(anyhow::anyhow!(
            "the command is too long: {} bytes, the maximum is {PATH_MAX}; pass it on standard input, or copy it into the container",
            path.len()
        )));
    }
    let handshake = Handshake::new();
    let request = handshake.ask(Request::get(path));
    let (response, mut connection) = within(root, exchange(root, request, NO_BODY)).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response, connection).await);
    }
    if !handshake.accepts(response.headers()) {
        return Err(anyhow::anyhow!("the agent refused the connection").into());
    }
    let upgraded = drive(&mut connection, hyper::upgrade::on(response))
        .await
        .context("the agent closed the connection")?;
    let parts = upgraded
        .downcast::<TokioIo<UnixStream>>()
        .map_err(|_| anyhow::anyhow!("the connection to the agent was replaced"))?;
    Ok(channels::channels(parts.io.into_inner(), parts.read_buf).await)
}

/// Waits for the beginning of an answer, for a while.
async fn within<T>(
    root: &Path,
    asking: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::time::timeout(ANSWER_DEADLINE, asking)
        .await
        .with_context(|| {
            format!(
                "the agent at {} did not answer within {} s",
                root.display(),
                ANSWER_DEADLINE.as_secs()
            )
        })?
}

/// Parses the JSON document of an answer.
///
/// # Errors
/// The answer is not such a document.
pub fn parse<T: serde::de::DeserializeOwned>(answer: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(answer)
        .context("failed to decode the agent's response; the agent may be of another version")
}

/// Sends `POST path` to the agent of `root`, and returns the whole answer.
///
/// # Errors
/// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
pub async fn post(root: &Path, path: &str) -> Result<Vec<u8>, Failure> {
    let answer = within(root, send(root, Request::post(path), NO_BODY)).await?;
    answer.whole().await
}

/// Sends `POST path` to the agent of `root`, waits for its end without a deadline, and returns the
/// whole answer.
///
/// # Errors
/// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
pub async fn post_patiently(root: &Path, path: &str) -> Result<Vec<u8>, Failure> {
    let answer = send(root, Request::post(path), NO_BODY).await?;
    answer.whole().await
}

/// Sends `POST path` with a JSON document to the agent of `root`, and returns the whole answer.
///
/// # Errors
/// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
pub async fn post_json(
    root: &Path,
    path: &str,
    document: &impl serde::Serialize,
) -> Result<Vec<u8>, Failure> {
    let body = Full::new(Bytes::from(serde_json::to_vec(document)?));
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    within(root, send(root, request, body)).await?.whole().await
}

/// Sends `PUT path` with a body to the agent of `root`, and waits for its end without a deadline.
///
/// # Errors
/// [`Failure::NoAgent`] if none answers; otherwise the agent's error.
pub async fn put<B>(root: &Path, path: &str, body: B) -> Result<(), Failure>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    send(root, Request::put(path), body).await.map(drop)
}

/// Sends a request; its answer, unless that is an error.
async fn send<B>(root: &Path, request: http::request::Builder, body: B) -> Result<Answer, Failure>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (response, connection) = exchange(root, request, body).await?;
    if !response.status().is_success() {
        return Err(refusal(response, connection).await);
    }
    let body = response.into_body();
    Ok(Answer { body, connection })
}

async fn exchange<B>(
    root: &Path,
    request: http::request::Builder,
    body: B,
) -> Result<(Response<Incoming>, Option<Connection>), Failure>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let socket = socket_path(root);
    let stream = UnixStream::connect(&socket)
        .await
        .map_err(|e| no_connection(root, &socket, &e))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .context("failed to communicate with the agent")?;
    // Its errors surface in the answer as well.
    let mut connection: Option<Connection> = Some(Box::pin(async move {
        let _ = connection.with_upgrades().await;
    }));
    let request = request
        .header(HOST, "mirrorlet")
        .body(body)
        .context("failed to build the request")?;
    let response = drive(&mut connection, sender.send_request(request))
        .await
        .context("the agent did not answer")?;
    Ok((response, connection))
}

fn no_connection(root: &Path, socket: &Path, error: &std::io::Error) -> Failure {
    let root_shown = root.display();
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Failure::Failed(anyhow::anyhow!(
            "not allowed to open {}: only root can connect to the agent; try sudo",
            socket.display()
        )),
        _ => Failure::NoAgent(anyhow::anyhow!(
            "no mirrorlet agent is running with root directory {root_shown} (no answer on {}); if it uses another root directory, specify it with --root DIR; is the service running? see: systemctl status mirrorlet; or start one with: mirrorlet run --root {root_shown}",
            socket.display()
        )),
    }
}

/// An error answer in the agent's words.
async fn refusal(response: Response<Incoming>, connection: Option<Connection>) -> Failure {
    let (status, body) = (response.status(), response.into_body());
    let (mut answer, mut body) = (Answer { body, connection }, Vec::new());
    while let Ok(Some(piece)) = answer.next().await {
        body.extend_from_slice(&piece);
        if body.len() > ERROR_MAX {
            break;
        }
    }
    let parsed = serde_json::from_slice::<ErrorBody>(&body).ok();
    Failure::Failed(match parsed {
        Some(ErrorBody {
            error,
            help: Some(help),
        }) => anyhow::anyhow!("{error}; {help}"),
        Some(ErrorBody { error, help: None }) => anyhow::anyhow!("{error}"),
        None => anyhow::anyhow!("the agent answered {status}"),
    })
}
