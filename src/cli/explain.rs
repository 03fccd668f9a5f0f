//! `mirrorlet explain`: what happened to one pod, newest first, and why.

use std::io::Write;
use std::path::Path;

use anyhow::Context;

use super::logs::escape;
use super::{Outcome, client};
use crate::config::args::{ExplainArgs, ExplainOutput};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::ExplainReport;

mod render;
#[cfg(test)]
mod tests;

/// Prints the story of a pod.
pub async fn explain(args: &ExplainArgs, root: &Path) -> Outcome {
    let path = format!("/v1/explain?pod={}", escape(&args.pod));
    let body = client::get(root, &path).await?.whole().await?;
    let report = parse(&body)?;
    let text = match args.output {
        ExplainOutput::Text => render::render(&report, Timestamp::now()),
        ExplainOutput::Json => serde_json::to_string_pretty(&report)? + "\n",
        ExplainOutput::Yaml => serde_saphyr::to_string(&report)?,
    };
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

fn parse(json: &[u8]) -> anyhow::Result<ExplainReport> {
    serde_json::from_slice(json)
        .context("failed to understand the agent's answer; is it of another version?")
}
