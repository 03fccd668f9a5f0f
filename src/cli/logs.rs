//! `mirrorlet logs`: one container's output, each stream to its own.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use super::{Failure, Outcome, client, status};
use crate::config::args::LogsArgs;
use crate::pod::select::find_pod;
use crate::server::frame::{Frame, FrameReader};

/// Prints the log asked for.
pub async fn logs(args: &LogsArgs, root: &Path) -> Outcome {
    let report = status::fetch(root).await?;
    let pod = find_pod(&report.pods, &args.pod)?;
    let mut answer = client::get(root, &path(args, pod.uid.as_str())).await?;
    let mut reader = FrameReader::default();
    while let Some(bytes) = answer.next().await? {
        reader.push(&bytes);
        while let Some(frame) = reader.next_frame()? {
            print(&frame)?;
        }
        io::stdout().flush()?;
    }
    if reader.is_empty() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("the agent broke off the log").into())
    }
}

fn print(frame: &Frame) -> Result<(), Failure> {
    match frame {
        Frame::Stdout(bytes) => Ok(io::stdout().write_all(bytes)?),
        Frame::Stderr(bytes) => Ok(io::stderr().write_all(bytes)?),
        Frame::Failed(words) => Err(anyhow::anyhow!("the log broke off: {words}").into()),
        Frame::Stdin(_) | Frame::StdinEnd | Frame::Resize(_) | Frame::Exit(_) => {
            Err(anyhow::anyhow!("the agent sent something that is no log").into())
        }
    }
}

/// The path and query that ask for it.
fn path(args: &LogsArgs, uid: &str) -> String {
    let mut path = format!("/v1/pods/{uid}/logs");
    if let Some(container) = &args.container {
        path.push('/');
        path.push_str(&escape(container));
    }
    let numbers = [
        ("tail", args.tail),
        ("sinceSeconds", args.since.map(whole_seconds)),
        ("limitBytes", args.limit_bytes),
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
            numbers
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

/// Seconds, rounded up: rather a line too many than one too few.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
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

    #[test]
    fn flags_become_a_query() {
        for (flags, expected) in [
            (&["p"][..], "/v1/pods/u/logs"),
            (&["p", "-c", "a/b"], "/v1/pods/u/logs/a%2Fb"),
            (
                &["p", "-f", "--tail", "5", "--since", "1m1ms"],
                "/v1/pods/u/logs?follow=true&tail=5&sinceSeconds=61",
            ),
            (
                &["p", "-p", "--timestamps", "--limit-bytes", "9"],
                "/v1/pods/u/logs?previous=true&timestamps=true&limitBytes=9",
            ),
        ] {
            let cli = Cli::try_parse_from(["mirrorlet", "logs"].iter().chain(flags)).unwrap();
            let Cmd::Logs(args) = cli.command else {
                panic!()
            };
            assert_eq!(path(&args, "u"), expected);
        }
    }
}
