//! `mirrorlet explain`: what happened to one pod, newest first, and why.

use std::path::Path;

use super::logs::escape;
use super::{Outcome, client, print_document};
use crate::config::args::ExplainArgs;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::ExplainReport;

mod render;
#[cfg(test)]
mod tests;

/// Prints the story of a pod.
pub async fn explain(args: &ExplainArgs, root: &Path) -> Outcome {
    let path = format!("/v1/explain?pod={}", escape(&args.pod));
    let body = client::get(root, &path).await?.whole().await?;
    let report: ExplainReport = client::parse(&body)?;
    print_document(args.output, &report, |report| {
        render::render(report, Timestamp::now())
    })
}
