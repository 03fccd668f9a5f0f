//! Our standard streams, each on a thread of its own: reads and writes may block for any time, and
//! nothing else may wait for them. The threads are not joined at the end, because a blocked read can't
//! be interrupted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Bytes read at a time: with a frame's head no more than the agent reads at a time, which then passes
/// on whole pieces.
const READ_BYTES: usize = (64 << 10) - 16;

/// Pieces on their way in each direction; with [`READ_BYTES`] the bound of what is buffered.
const PIECES_MAX: usize = 4;

/// Standard input in chunks; ends with it.
pub(super) fn input() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    let piece = Bytes::copy_from_slice(&buffer[..read]);
                    if sender.blocking_send(piece).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A read error counts as the end of input.
                Err(_) => return,
            }
        }
    });
    receiver
}

/// A piece of output.
pub(super) enum Piece {
    /// For standard output.
    Out(Bytes),
    /// For standard error.
    Err(Bytes),
}

/// Writes pieces of output in their order.
pub(super) struct Output {
    sender: Option<mpsc::Sender<Piece>>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Output {
    /// Begins.
    ///
    /// # Errors
    /// A standard stream is closed.
    pub(super) fn new() -> io::Result<Self> {
        // Unbuffered: what comes is shown as it comes.
        let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let mut err = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let (sender, mut receiver) = mpsc::channel(PIECES_MAX);
        let (result_sender, done) = oneshot::channel();
        std::thread::spawn(move || {
            let mut written = Ok(());
            while let Some(piece) = receiver.blocking_recv() {
                written = match piece {
                    Piece::Out(bytes) => out.write_all(&bytes),
                    Piece::Err(bytes) => err.write_all(&bytes),
                };
                if written.is_err() {
                    break;
                }
            }
            // The receiver may be gone.
            let _ = result_sender.send(written);
        });
        Ok(Self {
            sender: Some(sender),
            done,
        })
    }

    /// Writes a piece after all before it.
    ///
    /// # Errors
    /// The reader has closed the stream.
    pub(super) async fn write(&mut self, piece: Piece) -> io::Result<()> {
        if let Some(sender) = &self.sender
            && sender.send(piece).await.is_ok()
        {
            return Ok(());
        }
        self.finish().await?;
        Err(io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// A write failed.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.sender = None;
        match (&mut self.done).await {
            Ok(written) => written,
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}
