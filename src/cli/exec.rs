//! `mirrorlet exec` and `mirrorlet attach`: connect to a process in a container.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use mirrorlet_streaming::TerminalSize;
use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::channels::{self, Received, Receiver, Sender};
use super::client::LOOK_AND_REPEAT;
use super::stdio::{self, Output, Piece};
use super::terminal::{self, RawTerminal};
use super::{Failure, Outcome, client, logs::escape, status};
use crate::config::args::{AttachArgs, ExecArgs};
use mirrorlet_core::select::find_one_of;

/// The offset of exit codes of programs ended by a signal.
const SIGNALLED: u8 = 128;

/// Runs a command in a container; its exit code becomes ours.
pub async fn exec(args: &ExecArgs, root: &Path) -> Outcome {
    let talk = Talk::new(args.stdin, args.tty);
    let report = status::fetch(root, false).await?;
    let pod = find_one_of(&report.pods, &args.pod)?;
    let mut path = talk.path(pod.uid.as_str(), "exec", args.container.as_deref());
    for word in &args.command {
        path.push_str("&command=");
        path.push_str(&escape(word));
    }
    talk.over(client::upgrade(root, &path).await?).await
}

/// Attaches to the main process of a container.
pub async fn attach(args: &AttachArgs, root: &Path) -> Outcome {
    let talk = Talk::new(args.stdin, args.tty);
    let report = status::fetch(root, false).await?;
    let pod = find_one_of(&report.pods, &args.pod)?;
    let path = talk.path(pod.uid.as_str(), "attach", args.container.as_deref());
    talk.over(client::upgrade(root, &path).await?).await
}

/// How we talk with a process.
struct Talk {
    stdin: bool,
    tty: bool,
    size: Option<TerminalSize>,
}

impl Talk {
    /// The requested streams, as far as they are available. Upstream: `SetupTTY` of
    /// `k8s.io/kubectl/pkg/cmd/exec/exec.go`.
    fn new(stdin: bool, tty: bool) -> Self {
        let usable = !stdin || terminal::stdin_is_terminal();
        if tty && !usable {
            // If standard error is closed, the error is not read.
            let _ = writeln!(
                anstream::stderr(),
                "Unable to use a TTY - input is not a terminal or the right kind of file"
            );
        }
        let tty = tty && usable;
        Self {
            stdin,
            tty,
            size: tty.then(terminal::size).flatten(),
        }
    }

    /// The path and query of the request.
    fn path(&self, uid: &str, verb: &str, container: Option<&str>) -> String {
        let mut path = format!("/v1/pods/{uid}/{verb}?stdout=true&stderr={}", !self.tty);
        if self.stdin {
            path.push_str("&stdin=true");
        }
        if self.tty {
            path.push_str("&tty=true");
        }
        if let Some(size) = self.size {
            let (width, height) = (size.width, size.height);
            path = format!("{path}&width={width}&height={height}");
        }
        if let Some(container) = container {
            path.push_str("&container=");
            path.push_str(&escape(container));
        }
        path
    }

    /// Talks until the process has ended.
    async fn over(&self, (sender, receiver): (Sender, Receiver)) -> Outcome {
        let raw = (self.tty && self.stdin)
            .then(RawTerminal::enter)
            .transpose()
            .context("failed to switch the terminal to raw mode")?;
        let mut signals = SignalListener::new(raw.is_some())?;
        let mut output = Output::new().context("failed to write")?;
        let ended = tokio::select! {
            ended = receive(receiver, &mut output) => ended,
            () = self.send(sender) => Err(broken_off()),
            signal = signals.any() => Err(Failure::Exit(SIGNALLED.saturating_add(signal))),
        };
        if ended.is_ok() {
            output.finish().await?;
        }
        drop(raw);
        match ended? {
            None | Some(0) => Ok(()),
            // As wait(2) hands it out: the lowest eight bits.
            Some(code) => Err(Failure::Exit(code.to_le_bytes()[0])),
        }
    }

    /// Sends input and the terminal's sizes. Never returns, because the process may produce output
    /// after its input has ended.
    async fn send(&self, mut sender: Sender) {
        let mut input = self.stdin.then(stdio::input);
        let mut resized = self
            .tty
            .then(|| signal(SignalKind::window_change()).ok())
            .flatten();
        loop {
            let sent = tokio::select! {
                piece = next(&mut input) => if let Some(bytes) = piece {
                    sender.send(channels::STDIN, &bytes).await
                } else {
                    input = None;
                    sender.close(channels::STDIN).await
                },
                () = again(&mut resized) => match terminal::size() {
                    Some(TerminalSize { width, height }) => {
                        let size = json!({"Width": width, "Height": height}).to_string();
                        sender.send(channels::RESIZE, size.as_bytes()).await
                    }
                    None => continue,
                },
            };
            if sent.is_err() {
                // The exit status is read on the other half.
                return std::future::pending().await;
            }
        }
    }
}

/// The next piece of input; never completes without any.
async fn next(
    input: &mut Option<tokio::sync::mpsc::Receiver<bytes::Bytes>>,
) -> Option<bytes::Bytes> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

/// The next time of a signal; never comes where it is not listened for.
async fn again(signal: &mut Option<Signal>) {
    let heard = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Shows what the process writes until it has ended; its exit code.
async fn receive(mut receiver: Receiver, output: &mut Output) -> Result<Option<i32>, Failure> {
    let mut status = Vec::new();
    loop {
        let message = match receiver.next().await {
            Ok(Some(message)) => message,
            // The agent has said all: it may be gone before we could answer its close.
            Err(_) if !status.is_empty() => break,
            Ok(None) => break,
            Err(error) => return Err(error),
        };
        match message {
            Received::Data(channels::STDOUT, bytes) => output.write(Piece::Out(bytes)).await?,
            Received::Data(channels::STDERR, bytes) => output.write(Piece::Err(bytes)).await?,
            Received::Data(channels::STATUS, bytes) => status.extend_from_slice(&bytes),
            Received::Data(..) | Received::Closed(_) => return Err(broken_off()),
        }
    }
    if status.is_empty() {
        return Err(broken_off());
    }
    exit_code(&status)
}

/// How a process ended, as the agent says it.
///
/// Upstream: `errorDecoderV4` of `client-go/tools/remotecommand`.
fn exit_code(status: &[u8]) -> Result<Option<i32>, Failure> {
    let status: Ended = serde_json::from_slice(status).map_err(|_| broken_off())?;
    if status.status == "Success" {
        return Ok(None);
    }
    let cause = status.details.causes.into_iter().next();
    let message = cause.map_or(status.message, |cause| cause.message);
    if status.reason == "NonZeroExitCode" {
        return message.parse().map(Some).map_err(|_| broken_off());
    }
    Err(anyhow::anyhow!("{message}").into())
}

/// A `Status`, as far as it is read here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Ended {
    status: String,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    message: String,
}

fn broken_off() -> Failure {
    anyhow::anyhow!("the agent closed the session; {LOOK_AND_REPEAT}").into()
}

/// Signals that end the process, handled because the terminal must be restored first.
struct SignalListener {
    signals: Vec<(u8, Signal)>,
}

impl SignalListener {
    fn new(listen: bool) -> Result<Self, Failure> {
        let mut signals = Vec::new();
        if listen {
            for (number, kind) in [
                (1, SignalKind::hangup()),
                (2, SignalKind::interrupt()),
                (3, SignalKind::quit()),
                (15, SignalKind::terminate()),
            ] {
                signals.push((
                    number,
                    signal(kind).context("failed to listen for signals")?,
                ));
            }
        }
        Ok(Self { signals })
    }

    /// The number of the first one that comes.
    async fn any(&mut self) -> u8 {
        std::future::poll_fn(|cx| {
            for (number, signal) in &mut self.signals {
                if signal.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_how_a_process_ended() {
        let read = |status: &str| exit_code(status.as_bytes());
        assert_eq!(read(r#"{"metadata":{},"status":"Success"}"#).unwrap(), None);
        let seven = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7",
            "reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(read(seven).unwrap(), Some(7));
        let failed = r#"{"status":"Failure","message":"Internal error occurred: gone","reason":"InternalError",
            "details":{"causes":[{"message":"gone"}]},"code":500}"#;
        for (status, words) in [
            (failed, "gone"),
            (r#"{"status":"Failure","message":"no causes"}"#, "no causes"),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
                "the agent closed",
            ),
            (
                "nonsense",
                "the agent closed the session; it probably stopped or restarted; check with mirrorlet status",
            ),
        ] {
            let failure = read(status).unwrap_err();
            let said = failure.error().unwrap().to_string();
            // streams 12
            assert!(said.starts_with(words), "{status}: {said}");
        }
    }

    #[test]
    fn what_is_asked_for_becomes_a_query() {
        let talk = |stdin, tty, size| Talk { stdin, tty, size };
        let size = Some(TerminalSize {
            width: 80,
            height: 24,
        });
        assert_eq!(
            talk(false, false, None).path("u", "exec", None),
            "/v1/pods/u/exec?stdout=true&stderr=true"
        );
        assert_eq!(
            talk(true, true, size).path("u", "attach", Some("a&b")),
            "/v1/pods/u/attach?stdout=true&stderr=false&stdin=true&tty=true&width=80&height=24&container=a%26b"
        );
    }
}
