//! Bodies of the API server's answers, each with limits for its kind. A server, or a proxy in front of
//! it, can send the headers of an answer but never the rest: its reader would wait forever. And proxies
//! answer with pages of any length, with differing content.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::BoxError;

use mirrorlet_core::api::shortened;

/// How long a body that is not a watch may be silent. A server computes an answer before it sends its
/// headers, so the rest follows at once.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The end of a watch is known to its reader so long after its beginning at the earliest: kube's watcher
/// asks again at once after an end, which a server that ends each watch would make an endless loop.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// Maximum size of a refusal that may be a `Status`, whose message and reason are known only once it is
/// complete: the API server's own have some hundred bytes, a webhook's any number.
const STATUS_BYTES_MAX: usize = 1 << 20;
/// Most bytes that are read of any other refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes that are kept of the API server's messages.
pub(super) const WORDS_BYTES_MAX: usize = 4096;
/// Most bytes that are kept of others' words.
const OTHERS_WORDS_BYTES_MAX: usize = 256;

/// The cause of a failure: an answer that did not end.
pub(super) const UNFINISHED: &str = "its response was cut off";

/// Body of an answer, as it comes.
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// The next part of a body, or its end.
type Part = Option<Result<Frame<Bytes>, BoxError>>;

/// Body of an answer, as it is read.
pub(super) struct TransportBody {
    body: AnswerBody,
    bound: Bound,
}

/// The bound of a body in time.
enum Bound {
    Watch(Watch),
    Silence(Silence),
}

/// A watch: it may be silent for as long as its reader likes, and ends when the connection is replaced.
struct Watch {
    replaced: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Ends when its reader may know of its end.
    least: Pin<Box<Sleep>>,
    /// Its end, once it was received. An error is kept until its reader gets it.
    end: Option<Result<(), BoxError>>,
}

/// Called for an answer that fell silent, with the time and the reason for giving it up.
pub(super) type Lost = Box<dyn Fn(Instant, &str) + Send + Sync>;

/// Any other answer.
struct Silence {
    lost: Lost,
    /// When something came last.
    heard: Instant,
    until: Pin<Box<Sleep>>,
}

impl TransportBody {
    /// Body of a watch that was requested then.
    pub(super) fn watch(body: AnswerBody, began: Instant, replaced: CancellationToken) -> Self {
        let bound = Bound::Watch(Watch {
            replaced: Box::pin(replaced.cancelled_owned()),
            least: Box::pin(tokio::time::sleep_until(began + WATCH_MIN)),
            end: None,
        });
        Self { body, bound }
    }

    /// Body of any other answer, whose headers were just received.
    pub(super) fn bounded(body: AnswerBody, lost: Lost) -> Self {
        let heard = Instant::now();
        let bound = Bound::Silence(Silence {
            lost,
            heard,
            until: Box::pin(tokio::time::sleep_until(heard + SILENCE_MAX)),
        });
        Self { body, bound }
    }
}

impl Watch {
    fn poll(&mut self, body: &mut AnswerBody, context: &mut Context<'_>) -> Poll<Part> {
        if self.replaced.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if self.end.is_none() {
            match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => return Poll::Ready(Some(Ok(frame))),
                Some(Err(error)) => self.end = Some(Err(error)),
                None => self.end = Some(Ok(())),
            }
        }
        // Errors, too: kube takes some of them for an end.
        if !self.least.is_elapsed() {
            ready!(self.least.as_mut().poll(context));
        }
        let end = self.end.replace(Ok(()));
        Poll::Ready(end.and_then(Result::err).map(Err))
    }
}

impl Silence {
    fn poll(&mut self, body: &mut AnswerBody, context: &mut Context<'_>) -> Poll<Part> {
        if let Poll::Ready(part) = Pin::new(body).poll_frame(context) {
            self.heard = Instant::now();
            self.until.as_mut().reset(self.heard + SILENCE_MAX);
            return Poll::Ready(part);
        }
        ready!(self.until.as_mut().poll(context));
        (self.lost)(self.heard, UNFINISHED);
        Poll::Ready(Some(Err(UNFINISHED.into())))
    }
}

impl HttpBody for TransportBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Part> {
        let Self { body, bound } = self.get_mut();
        match bound {
            Bound::Watch(watch) => watch.poll(body, context),
            Bound::Silence(silence) => silence.poll(body, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.bound {
            // Its end may have to be waited for.
            Bound::Watch(_) => false,
            Bound::Silence(_) => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a refusal in a form that kube parses as the API server's, with limited length, and the
/// code that the refusal counts as.
///
/// # Errors
/// It can't be read.
pub(super) async fn refusal(
    status: StatusCode,
    body: AnswerBody,
) -> Result<(StatusCode, AnswerBody), BoxError> {
    let text = beginning(body).await?;
    let (counts, said) = said(status, &String::from_utf8_lossy(&text));
    let whole = Full::<Bytes>::from(said.to_string());
    Ok((counts, whole.map_err(BoxError::from).boxed_unsync()))
}

/// The beginning of a refusal's text: all that is read of it.
async fn beginning(mut body: AnswerBody) -> Result<Vec<u8>, BoxError> {
    let mut text = Vec::new();
    while text.len() < most_bytes(&text) {
        let Some(frame) = body.frame().await else {
            break;
        };
        if let Ok(data) = frame?.into_data() {
            text.extend_from_slice(&data);
            text.truncate(most_bytes(&text));
        }
    }
    Ok(text)
}

/// Most bytes of a refusal that begins so.
fn most_bytes(text: &[u8]) -> usize {
    if text.trim_ascii_start().starts_with(b"{") {
        STATUS_BYTES_MAX
    } else {
        REFUSAL_BYTES_MAX
    }
}

/// A refusal as a `Status`, with the code that it counts as. Texts of other servers are replaced, so
/// that varying parts, such as a request number in an HTML page, are not reported each time.
fn said(status: StatusCode, text: &str) -> (StatusCode, Value) {
    match serde_json::from_str::<Value>(text) {
        Ok(mut said) if said["kind"] == "Status" => {
            if let Some(Value::String(message)) = said.get_mut("message") {
                *message = shortened(std::mem::take(message), WORDS_BYTES_MAX);
            }
            (status, said)
        }
        Ok(_) | Err(_) => {
            let counts = counts_as(status, text);
            let said = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": counts.as_u16(), "message": of_another(status, text),
            });
            (counts, said)
        }
    }
}

/// The code of an answer that is not the API server's. Only the API server knows whether an object
/// exists: a proxy answers 404 while it has no route to it.
fn counts_as(status: StatusCode, text: &str) -> StatusCode {
    match status {
        StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::GONE if !is_cut(text) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        status => status,
    }
}

/// Whether this is the beginning of what may be a `Status`.
fn is_cut(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.len() >= STATUS_BYTES_MAX
}

/// The message of an answer that is not the API server's: its first line, unless that is markup.
fn of_another(status: StatusCode, text: &str) -> String {
    let first = text.trim().lines().next().unwrap_or_default();
    if is_cut(text) {
        return format!("HTTP {status}, with a body of more than 1 MiB");
    }
    if first.is_empty() || first.starts_with(['<', '{', '[']) {
        return format!("HTTP {status}, with a body that is not a Status of the API server");
    }
    let message = format!("HTTP {status}: {}", first.trim_end());
    shortened(message, OTHERS_WORDS_BYTES_MAX)
}
