//! `mirrorlet status`: the pods of the running agent, and what is wrong.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use super::{Failure, Outcome, client};
use crate::config::args::{StatusArgs, StatusOutput};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::StatusReport;
use mirrorlet_core::select::find_pod;

pub mod render;

/// Longest line of a watch that is taken, in bytes: thousands of pods fit in it.
const LINE_MAX: usize = 64 << 20;

/// Moves a terminal's cursor home and clears it.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints the status once, or with every change.
pub async fn status(args: &StatusArgs, root: &Path) -> Outcome {
    if args.watch {
        return watch(args, root).await;
    }
    let report = fetch(root).await?;
    print(&text(args, report, false)?, false)
}

/// One look at the agent that runs on `root`.
pub async fn fetch(root: &Path) -> Result<StatusReport, Failure> {
    let body = client::get(root, "/v1/status").await?.whole().await?;
    Ok(client::parse(&body)?)
}

async fn watch(args: &StatusArgs, root: &Path) -> Outcome {
    let mut reports = Reports::watch(root).await?;
    let redraw = io::stdout().is_terminal()
        && matches!(args.output, StatusOutput::Table | StatusOutput::Wide);
    loop {
        print(&text(args, reports.next().await?, true)?, redraw)?;
    }
}

/// The report as it is, and after each change.
pub(super) struct Reports {
    root: PathBuf,
    answer: client::Answer,
    pending: Vec<u8>,
}

impl Reports {
    /// Begins to watch the agent that runs on `root`.
    pub(super) async fn watch(root: &Path) -> Result<Self, Failure> {
        Ok(Self {
            root: root.to_owned(),
            answer: client::get(root, "/v1/status?watch=true").await?,
            pending: Vec::new(),
        })
    }

    /// The next report. Fails when the agent has stopped.
    pub(super) async fn next(&mut self) -> Result<StatusReport, Failure> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(client::parse(&line)?);
            }
            if self.pending.len() > LINE_MAX {
                return Err(anyhow::anyhow!("the agent's answer has no end").into());
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

/// Renders a report. While watching, the requested pods may appear and disappear.
fn text(args: &StatusArgs, mut report: StatusReport, watching: bool) -> Result<String, Failure> {
    if !args.pods.is_empty() {
        report = only(report, &args.pods, watching)?;
    }
    Ok(match args.output {
        StatusOutput::Table => render::render(&report, Timestamp::now(), false),
        StatusOutput::Wide => render::render(&report, Timestamp::now(), true),
        StatusOutput::Json if watching => serde_json::to_string(&report)? + "\n",
        StatusOutput::Json => serde_json::to_string_pretty(&report)? + "\n",
        StatusOutput::Yaml if watching => {
            format!("---\n{}", serde_saphyr::to_string(&report)?)
        }
        StatusOutput::Yaml => serde_saphyr::to_string(&report)?,
    })
}

/// The report with the named pods alone, and the problems that are theirs.
fn only(
    mut report: StatusReport,
    wanted: &[String],
    watching: bool,
) -> Result<StatusReport, Failure> {
    let mut pods = Vec::new();
    for text in wanted {
        match find_pod(&report.pods, text) {
            Ok(pod) if pods.contains(pod) => {}
            Ok(pod) => pods.push(pod.clone()),
            Err(_) if watching => {}
            Err(error) => return Err(error.into()),
        }
    }
    report.pods = pods;
    report.problems.clear();
    for source in &mut report.sources {
        source.problems.clear();
        source.ignored.clear();
    }
    Ok(report)
}

fn print(text: &str, redraw: bool) -> Outcome {
    let clear = if redraw { CLEAR } else { "" };
    super::print(&format!("{clear}{text}"))
}

#[cfg(test)]
mod tests;
