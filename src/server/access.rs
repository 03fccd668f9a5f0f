//! Entering containers over the agent's socket: exec, attach, port-forward.
//!
//! `POST /v1/pods/{uid}/exec?command=…`, `…/attach` and `…/portforward?port=…` with
//! `Connection: Upgrade` and `Upgrade: mirrorlet`. Whatever can be refused is refused with an
//! ordinary error answer; after 101 the connection carries [frames](super::frame) of a process, or
//! the bare bytes of a forwarded connection. A client that goes away ends what it started. No more
//! than some 64 KiB wait in each direction, so that a slow side holds up the other.

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use mirrorlet_streaming::gather::gathered_output;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, copy};
use tokio::net::UnixStream;
use tokio::net::unix::ReadHalf;
use tokio::sync::Notify;

use super::admin::{ApiError, Shared};
use super::frame::{Frame, FrameReader, PROTOCOL, framed};
use super::remote::chunks;
use mirrorlet_core::api::PodUid;
use mirrorlet_runtime::{DuplexStream, ExecOptions, Session, TerminalSize};

/// Bytes read from a client at a time.
const READ_BYTES: usize = 64 << 10;

/// How often it is looked whether a client is still there that can't be read from, since nobody
/// takes what it sends. The system wakes nobody for that alone.
const HANGUP_LOOK: Duration = Duration::from_secs(1);

/// What the query of a request asks for. Repeated keys add up, which the extractors of axum don't
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
                    format!("{key}={value} can't be understood"),
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
                    let words = format!("there is no parameter {key}");
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
    let session = shared
        .view
        .exec(&uid, asked.container.as_deref(), &asked.exec)
        .await?;
    Ok(entry.carry(move |stream, early| run(session, stream, early)))
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
    let container = asked.container.as_deref();
    let session = shared.view.attach(&uid, container, streams).await?;
    if let Some(size) = asked.exec.size {
        session.control.resize(size).await;
    }
    Ok(entry.carry(move |stream, early| run(session, stream, early)))
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
    let target = shared.view.port_forward(&PodUid::from(uid), port).await?;
    Ok(entry.carry(move |stream, early| forward(target, stream, early)))
}

/// A request that may take over its connection.
struct Entry {
    shared: Shared,
    permit: tokio::sync::OwnedSemaphorePermit,
    upgrade: OnUpgrade,
}

impl Entry {
    fn of(shared: &Shared, mut request: Request) -> Result<Self, ApiError> {
        if !asks_for_upgrade(request.headers()) {
            return Err(ApiError::new(
                StatusCode::UPGRADE_REQUIRED,
                format!("this is for clients that send Upgrade: {PROTOCOL}"),
            ));
        }
        Ok(Self {
            permit: shared.admit()?,
            shared: shared.clone(),
            upgrade: hyper::upgrade::on(&mut request),
        })
    }

    /// Answers 101, and lets `work` have the connection and what came over it already. It is
    /// dropped when the agent stops.
    fn carry<F>(self, work: impl FnOnce(UnixStream, Bytes) -> F + Send + 'static) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self {
            shared,
            permit,
            upgrade,
        } = self;
        let cancel = shared.cancel.clone();
        shared.sessions.spawn(async move {
            let _held = permit;
            let carried = async {
                // A client that went away before its answer.
                let Ok(upgraded) = upgrade.await else { return };
                // The socket is the only listener that these routes are served on.
                let Ok(parts) = upgraded.downcast::<TokioIo<UnixStream>>() else {
                    return;
                };
                work(parts.io.into_inner(), parts.read_buf).await;
            };
            tokio::select! {
                () = cancel.cancelled() => {}
                () = carried => {}
            }
        });
        let headers = [
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (UPGRADE, HeaderValue::from_static(PROTOCOL)),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
    }
}

fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let is = |name, wanted: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.eq_ignore_ascii_case(wanted))
    };
    is(CONNECTION, "upgrade") && is(UPGRADE, PROTOCOL)
}

/// Carries the streams of a process until it has ended, or the client is gone.
async fn run(session: Session, mut stream: UnixStream, early: Bytes) {
    let Session {
        stdin,
        output,
        control,
        ..
    } = session;
    let (read, mut write) = stream.split();
    let input = async {
        let mut client = Client {
            read,
            frames: FrameReader::default(),
        };
        client.frames.push(&early);
        // How it ends, by a client that is gone or sends nonsense, makes no difference.
        let _ = client.feed(stdin, &*control).await;
    };
    let sending = async {
        let mut output = pin!(gathered_output(chunks(output)));
        while let Some(pieces) = output.next().await {
            let failed = pieces.last().is_some_and(Result::is_err);
            write.write_all(&framed(pieces)).await?;
            if failed {
                return write.shutdown().await;
            }
        }
        let last = match control.exit_code().await {
            Ok(code) => Frame::Exit(code),
            Err(error) => Frame::Failed(error.to_string()),
        };
        write.write_all(&last.encode()).await?;
        write.shutdown().await
    };
    tokio::select! {
        () = input => {}
        // A client that is gone does not want to know.
        _ = sending => {}
    }
}

/// What a client sends.
struct Client<'a> {
    read: ReadHalf<'a>,
    frames: FrameReader,
}

impl Client<'_> {
    /// Feeds a process with what the client sends, until the client is gone.
    async fn feed(
        &mut self,
        mut stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
        control: &dyn mirrorlet_runtime::SessionControl,
    ) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            while let Some(frame) = self.frames.next_frame().map_err(io::Error::other)? {
                match frame {
                    Frame::Stdin(bytes) => {
                        let Some(open) = &mut stdin else { continue };
                        tokio::select! {
                            // A process that takes no more input: the rest is for nobody.
                            written = open.write_all(&bytes) => if written.is_err() { stdin = None },
                            () = hung_up(&self.read) => return Ok(()),
                        }
                    }
                    Frame::StdinEnd => {
                        if let Some(mut open) = stdin.take() {
                            // One that has ended already needs no end.
                            let _ = open.shutdown().await;
                        }
                    }
                    Frame::Resize(size) => control.resize(size).await,
                    Frame::Stdout(_) | Frame::Stderr(_) | Frame::Failed(_) | Frame::Exit(_) => {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
            }
            buffer.clear();
            if self.read.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            self.frames.push(&buffer);
        }
    }
}

/// Ends when the client has gone, though what it sent is not all read.
async fn hung_up(read: &ReadHalf<'_>) {
    loop {
        tokio::time::sleep(HANGUP_LOOK).await;
        // Ready at once, since there is something to read or to write; the news is in how.
        match read.ready(Interest::READABLE | Interest::WRITABLE).await {
            Ok(ready) if !ready.is_write_closed() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Carries bytes between a client and a port of a pod, until both have said their last or the
/// client is gone.
async fn forward(target: DuplexStream, mut stream: UnixStream, early: Bytes) {
    let (mut from_pod, to_pod) = tokio::io::split(target);
    let (read, mut write) = stream.split();
    let said_its_last = Notify::new();
    let up = async {
        if upwards(&read, early, to_pod).await.is_ok() {
            said_its_last.notify_one();
            hung_up(&read).await;
        }
    };
    let down = async {
        if copy(&mut from_pod, &mut write).await.is_ok() && write.shutdown().await.is_ok() {
            said_its_last.notified().await;
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Passes on what a client sends, and its end. A pod that takes no more may still have something
/// to say, so that is no error; a client that is gone is one.
async fn upwards(
    read: &ReadHalf<'_>,
    early: Bytes,
    mut to_pod: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut bytes = BytesMut::from(early);
    loop {
        tokio::select! {
            written = to_pod.write_all(&bytes) => if written.is_err() { return Ok(()) },
            () = hung_up(read) => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        bytes.clear();
        bytes.reserve(READ_BYTES);
        read.readable().await?;
        match read.try_read_buf(&mut bytes) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    // One that has ended already needs no end.
    let _ = to_pod.shutdown().await;
    Ok(())
}

#[cfg(test)]
mod tests;
