//! Tar archives on standard streams, as in `docker cp` with `-`.

use std::io;

use anyhow::{Context as _, anyhow};
use http_body_util::StreamBody;
use hyper::body::Frame;

use super::super::stdio::{self, Output, Piece};
use super::super::{Failure, Outcome, client};
use super::{Container, without_dot};

/// Refuses an archive on a terminal.
pub(super) fn refuse_terminal(is_terminal: bool, verb: &str, what: &str) -> Outcome {
    if !is_terminal {
        return Ok(());
    }
    Err(Failure::Usage(anyhow!(
        "mirrorlet doesn't {verb} a tar archive on a terminal; redirect {what}"
    )))
}

impl Container<'_> {
    /// Writes the files at a path to standard output, as an archive. Owners, modes and links are as in
    /// the container.
    pub(super) async fn archive_of(&self, path: &str) -> Outcome {
        let (wanted, _) = without_dot(path);
        let mut answer = client::get(self.root, &self.query("files", wanted)).await?;
        let mut output = Output::new().context("failed to write")?;
        while let Some(piece) = answer.next().await? {
            output.write(Piece::Out(piece)).await?;
        }
        Ok(output.finish().await?)
    }

    /// Unpacks the archive on standard input into a directory. The Engine unpacks it: owners, modes
    /// and links are the archive's.
    pub(super) async fn unpack_archive(&self, destination: &str) -> Outcome {
        let (path, found) = self.stat_followed(without_dot(destination).0).await?;
        if !found.is_dir() {
            return Err(
                anyhow!("{path} is not a directory; an archive is unpacked into one").into(),
            );
        }
        let frames = futures::stream::unfold(stdio::input(), |mut input| async move {
            let piece = input.recv().await?;
            Some((Ok::<_, io::Error>(Frame::data(piece)), input))
        });
        let body = StreamBody::new(Box::pin(frames));
        client::put(self.root, &self.query("files", &path), body).await?;
        Ok(())
    }
}
