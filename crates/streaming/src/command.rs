//! Serves a command or an attach over any transport of its streams.

use std::fmt::Display;
use std::pin::{Pin, pin};

use bytes::Bytes;
use futures::StreamExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::Kind;
use super::budget::{Budget, Held};
use super::drive::Piece;
use super::gather::{Batch, gathered_output, joined};
use super::negotiate::Version;
use super::resize::Sizes;
use super::session::{Chunk, Process, Session};
use super::status::{Outcome, error_text};

/// A stream to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Stdout,
    Stderr,
    /// How it ended.
    Error,
}

/// The streams to a client.
pub(super) trait Client: Sync {
    /// Sends bytes with their reservation in the budget, if they have one. Bytes for a stream that the
    /// client did not request, or has closed, are discarded.
    fn send(&self, to: Output, bytes: Bytes, held: Option<Held>)
    -> impl Future<Output = ()> + Send;

    /// Ends all streams and the connection.
    fn finish(&self) -> impl Future<Output = ()> + Send;
}

/// The streams from a client.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) stdin: Option<mpsc::Receiver<Piece>>,
    pub(super) resize: Option<mpsc::Receiver<Piece>>,
}

/// Starts a command and serves its streams until it has ended and its client has the result.
pub(super) async fn run<F, P, E>(
    client: impl Client,
    inputs: Inputs,
    version: Version,
    kind: Kind,
    start: impl FnOnce() -> F + Send,
    budget: &Budget,
) where
    P: Process,
    F: Future<Output = Result<Session<P>, E>> + Send,
    E: Display + Send,
{
    let outcome = match start().await {
        Ok(session) => carry(session, &client, inputs, kind, budget).await,
        Err(error) => Outcome::Failed(error.to_string()),
    };
    if let Some(text) = error_text(&outcome, kind, version) {
        client.send(Output::Error, text, None).await;
    }
    client.finish().await;
}

async fn carry<P: Process>(
    session: Session<P>,
    client: &impl Client,
    inputs: Inputs,
    kind: Kind,
    budget: &Budget,
) -> Outcome {
    let Session {
        stdin,
        output,
        process,
    } = session;
    let sending = async {
        let mut output = pin!(gathered_output(output, budget.clone()));
        while let Some(Batch { pieces, mut held }) = output.next().await {
            for piece in joined(pieces) {
                let (to, bytes) = match piece {
                    Ok(Chunk::Stdout(bytes)) => (Output::Stdout, bytes),
                    Ok(Chunk::Stderr(bytes)) => (Output::Stderr, bytes),
                    Err(error) => return Outcome::Failed(error.to_string()),
                };
                let part = held.as_mut().and_then(|held| held.part(bytes.len()));
                client.send(to, bytes, part).await;
            }
        }
        // A kubelet sends no client of an attach how the container ended.
        if kind == Kind::Attach {
            return Outcome::Ended(None);
        }
        match process.exit_code().await {
            Ok(code) => Outcome::Ended(code),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    };
    let input = async {
        tokio::join!(feed(inputs.stdin, stdin), resize(inputs.resize, &process));
        // A client that is gone ends the connection, and this with it.
        std::future::pending::<Outcome>().await
    };
    // Input that is dropped would be useless to a process that has ended.
    tokio::select! {
        outcome = sending => outcome,
        outcome = input => outcome,
    }
}

/// Feeds a process with what a client sends, and ends that if the client does.
async fn feed(
    pieces: Option<mpsc::Receiver<Piece>>,
    stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
) {
    let (Some(mut pieces), Some(mut stdin)) = (pieces, stdin) else {
        return;
    };
    loop {
        match pieces.recv().await {
            Some(Piece::Data(bytes)) => {
                // The process reads no more: the rest is discarded.
                if stdin.write_all(&bytes).await.is_err() || stdin.flush().await.is_err() {
                    return;
                }
            }
            // A stream that was reset has no more either.
            Some(Piece::End) | None => {
                let _ = stdin.shutdown().await;
                return;
            }
        }
    }
}

/// Gives a terminal the sizes that a client sends.
async fn resize(pieces: Option<mpsc::Receiver<Piece>>, process: &impl Process) {
    let Some(mut pieces) = pieces else { return };
    let mut sizes = Sizes::default();
    while let Some(Piece::Data(bytes)) = pieces.recv().await {
        match sizes.push(&bytes) {
            // Those in between were never seen.
            Ok(Some(size)) if size.is_usable() => process.resize(size).await,
            Ok(_) => {}
            // Upstream stops to listen, too.
            Err(_) => return,
        }
    }
}
