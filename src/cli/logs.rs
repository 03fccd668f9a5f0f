//! `mirrorlet logs`: the output of a pod's containers, each stream to its own.

use std::io::{self, Write};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;

use super::{Failure, Outcome, client, status};
use crate::config::args::LogsArgs;
use crate::server::frame::{Frame, FrameReader};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::PodReport;
use mirrorlet_core::select::find_pod;

/// Longest line that is kept together where several logs are shown, in bytes.
const LINE_MAX: usize = 1 << 20;

/// Prints the logs asked for.
pub async fn logs(args: &LogsArgs, root: &Path) -> Outcome {
    let report = status::fetch(root).await?;
    let pod = find_pod(&report.pods, &args.pod)?;
    let since = since(args, Timestamp::now());
    if !args.all_containers {
        let prefix = args.prefix.then(|| chosen_name(args, pod));
        let path = path(args, pod.uid.as_str(), args.container.as_deref(), since);
        return log(root, &path, prefix.map(|name| Lines::of(pod, Some(&name)))).await;
    }
    let containers = pod.containers.iter().map(|container| {
        let name = container.name.as_str();
        let path = path(args, pod.uid.as_str(), Some(name), since);
        let lines = Lines::of(pod, args.prefix.then_some(name));
        async move { log(root, &path, Some(lines)).await }
    });
    let outcomes = if args.follow {
        join_all(containers).await
    } else {
        let mut outcomes = Vec::new();
        for container in containers {
            outcomes.push(container.await);
        }
        outcomes
    };
    // One that has not started is no reason not to show the others; it is told all the same.
    let mut failed: Vec<Failure> = outcomes.into_iter().filter_map(Result::err).collect();
    let last = failed.pop();
    for failure in failed {
        if let Some(error) = failure.error() {
            let _ = writeln!(anstream::stderr(), "mirrorlet: {error:#}");
        }
    }
    last.map_or(Ok(()), Err)
}

/// The container that is meant where none is named, for its prefix: the only one, or unknown.
fn chosen_name(args: &LogsArgs, pod: &PodReport) -> String {
    match (&args.container, pod.containers.as_slice()) {
        (Some(name), _) => name.clone(),
        (None, [only]) => only.name.clone(),
        (None, _) => String::new(),
    }
}

/// Prints one log: as it comes, or line by line.
async fn log(root: &Path, path: &str, mut lines: Option<Lines>) -> Outcome {
    let mut answer = client::get(root, path).await?;
    let mut reader = FrameReader::default();
    while let Some(bytes) = answer.next().await? {
        reader.push(&bytes);
        while let Some(frame) = reader.next_frame()? {
            print(frame, lines.as_mut())?;
        }
        io::stdout().flush()?;
    }
    if let Some(lines) = lines {
        lines.finish(&mut io::stdout(), &mut io::stderr())?;
    }
    if reader.is_empty() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("the agent closed the log").into())
    }
}

fn print(frame: Frame, lines: Option<&mut Lines>) -> Result<(), Failure> {
    let (bytes, is_error) = match frame {
        Frame::Stdout(bytes) => (bytes, false),
        Frame::Stderr(bytes) => (bytes, true),
        Frame::Failed(words) => {
            return Err(anyhow::anyhow!("lost the log: {words}").into());
        }
    };
    match (lines, is_error) {
        (None, false) => io::stdout().write_all(&bytes)?,
        (None, true) => io::stderr().write_all(&bytes)?,
        (Some(lines), false) => lines.out.write(&bytes, &lines.prefix, &mut io::stdout())?,
        (Some(lines), true) => lines.err.write(&bytes, &lines.prefix, &mut io::stderr())?,
    }
    Ok(())
}

/// The lines of one container among those of others: whole, and with its name where asked for.
#[derive(Debug, Default)]
struct Lines {
    prefix: Bytes,
    out: Line,
    err: Line,
}

impl Lines {
    fn of(pod: &PodReport, container: Option<&str>) -> Self {
        let prefix = container.map(|name| format!("[pod/{}/{name}] ", pod.name));
        Self {
            prefix: prefix.unwrap_or_default().into(),
            ..Self::default()
        }
    }

    /// Writes an incomplete last line.
    fn finish(self, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
        self.out.finish(&self.prefix, out)?;
        self.err.finish(&self.prefix, err)
    }
}

/// A line that is not whole yet.
#[derive(Debug, Default)]
struct Line {
    begun: BytesMut,
    /// Whether the beginning of this line, which was too long, is written already.
    within: bool,
}

impl Line {
    fn write(&mut self, bytes: &[u8], prefix: &[u8], to: &mut impl Write) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            let ended = piece.ends_with(b"\n");
            if ended || self.begun.len() >= LINE_MAX {
                self.put(prefix, to)?;
                self.within = !ended;
            }
        }
        Ok(())
    }

    fn put(&mut self, prefix: &[u8], to: &mut impl Write) -> io::Result<()> {
        if !self.within {
            to.write_all(prefix)?;
        }
        to.write_all(&self.begun.split())
    }

    fn finish(mut self, prefix: &[u8], to: &mut impl Write) -> io::Result<()> {
        if !self.begun.is_empty() {
            self.put(prefix, to)?;
        }
        to.flush()
    }
}

/// The time from which on lines are wanted.
fn since(args: &LogsArgs, now: Timestamp) -> Option<Timestamp> {
    let ago = args.since.map(|ago| {
        now.checked_sub(ago)
            .unwrap_or(Timestamp::UNIX_EPOCH)
            .max(Timestamp::UNIX_EPOCH)
    });
    ago.or(args.since_time)
}

/// The path and query that ask for a log.
fn path(args: &LogsArgs, uid: &str, container: Option<&str>, since: Option<Timestamp>) -> String {
    let mut path = format!("/v1/pods/{uid}/logs");
    if let Some(container) = container {
        path.push('/');
        path.push_str(&escape(container));
    }
    let values = [
        (
            "tail",
            args.tail
                .filter(|tail| *tail >= 0)
                .map(|tail| tail.to_string()),
        ),
        ("sinceTime", since.map(|since| escape(&since.to_string()))),
        (
            "limitBytes",
            args.limit_bytes.map(|limit| limit.to_string()),
        ),
    ];
    let switches = [
        ("follow", args.follow),
        ("previous", args.previous),
        ("timestamps", args.timestamps),
    ];
    let query: Vec<String> = switches
        .into_iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| format!("{name}=true"))
        .chain(
            values
                .into_iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", value?))),
        )
        .collect();
    if !query.is_empty() {
        path.push('?');
        path.push_str(&query.join("&"));
    }
    path
}

/// A text as one segment of a path, or one value of a query.
pub(super) fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::args::{Cli, Cmd};

    fn parsed(flags: &[&str]) -> LogsArgs {
        let cli = Cli::try_parse_from(["mirrorlet", "logs"].iter().chain(flags)).unwrap();
        let Cmd::Logs(args) = cli.command else {
            panic!()
        };
        args
    }

    #[test]
    fn flags_become_a_query() {
        let now: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        for (flags, expected) in [
            (&["p"][..], "/v1/pods/u/logs"),
            (&["p", "-c", "a/b"], "/v1/pods/u/logs/a%2Fb"),
            (
                &["p", "-f", "--tail", "5", "--since", "1m1ms"],
                "/v1/pods/u/logs?follow=true&tail=5&sinceTime=2026-01-02T03%3A03%3A05.499Z",
            ),
            (
                &["p", "-p", "--timestamps", "--limit-bytes", "9", "--tail=-1"],
                "/v1/pods/u/logs?previous=true&timestamps=true&limitBytes=9",
            ),
            (
                &["p", "--since-time", "2026-01-01T00:00:00.25Z"],
                "/v1/pods/u/logs?sinceTime=2026-01-01T00%3A00%3A00.25Z",
            ),
            // Before the beginning of time is its beginning.
            (
                &["p", "--since", "1000000h"],
                "/v1/pods/u/logs?sinceTime=1970-01-01T00%3A00%3A00Z",
            ),
        ] {
            let args = parsed(flags);
            let since = since(&args, now);
            assert_eq!(path(&args, "u", args.container.as_deref(), since), expected);
        }
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for flags in [
            &["p", "-c", "x", "--all-containers"][..],
            &["p", "--since", "1s", "--since-time", "2026-01-01T00:00:00Z"],
            &["p", "--tail=-2"],
        ] {
            let all = ["mirrorlet", "logs"];
            let parsed = Cli::try_parse_from(all.iter().chain(flags));
            assert!(parsed.is_err(), "{flags:?}");
        }
    }

    #[test]
    fn lines_stay_whole_and_each_has_its_prefix_once() {
        let mut line = Line::default();
        let mut shown = Vec::new();
        for piece in ["one\ntw", "o", "\n\nthr"] {
            line.write(piece.as_bytes(), b"[p] ", &mut shown).unwrap();
        }
        assert_eq!(text(&shown), "[p] one\n[p] two\n[p] \n");
        line.finish(b"[p] ", &mut shown).unwrap();
        assert_eq!(text(&shown), "[p] one\n[p] two\n[p] \n[p] thr");
        let mut line = Line::default();
        let mut shown = Vec::new();
        for _ in 0..3 {
            line.write(&vec![b'x'; LINE_MAX], b"[p] ", &mut shown)
                .unwrap();
        }
        line.write(b"end\nnext\n", b"[p] ", &mut shown).unwrap();
        assert_eq!(shown.len(), 3 * LINE_MAX + 17);
        assert!(text(&shown).ends_with("xend\n[p] next\n"));
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }
}
