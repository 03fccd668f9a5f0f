//! `mirrorlet explain`: the history of one pod, oldest first, with reasons; for a workload its problems
//! and the state of its pods.

use std::path::Path;
use std::time::Duration;

use super::events::next_of_pod;
use super::logs::escape;
use super::{Failure, Outcome, client, pager, print, print_document, print_one, status};
use crate::config::args::{DocumentOutput, ExplainArgs};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{ExplainReport, JournalReport};
use mirrorlet_core::workload::WorkloadKind;
use render::Story;
use workload::Workloads;

pub(super) mod render;
#[cfg(test)]
mod tests;
mod workload;

/// Reason of the entries that list the Engine calls of a sync.
const ENGINE_CALLS: &str = "EngineCalls";

/// Prints the history of a pod, and with `--follow` its new entries; or the state of a workload.
pub async fn explain(args: &ExplainArgs, root: &Path) -> Outcome {
    let has_kind = WorkloadKind::named(&args.pod).is_some();
    // The history of a workload's only pod can be followed.
    if has_kind
        && !args.follow
        && let Some(found) = workloads(args, root).await?
    {
        return show(&found, args);
    }
    let mut report = match fetch(&args.pod, root).await {
        Ok(report) => report,
        Err(error) if has_kind || args.follow => return Err(error),
        // A workload with several pods, or none, by its name alone.
        Err(error) => match workloads(args, root).await {
            Ok(Some(found)) => return show(&found, args),
            Ok(None) | Err(_) => return Err(error),
        },
    };
    let from = report.next;
    report.story = selected(report.story, args, Timestamp::now());
    let mut story = Story::default();
    match args.output {
        DocumentOutput::Text => {
            let text = render::render(&report, &mut story, Timestamp::now());
            pager::page(&text, !args.follow && !args.no_pager)?;
        }
        output if args.follow => {
            for entry in &report.story {
                print_one(output, entry)?;
            }
        }
        output => print_document(output, &report, |_| String::new())?,
    }
    if !args.follow {
        return Ok(());
    }
    let mut events =
        client::Lines::watch(root, &format!("/v1/events?watch=true&from={from}")).await?;
    loop {
        let event = next_of_pod(&mut events, &report.namespace, &report.name).await?;
        if args.verbose || event.entry.reason != ENGINE_CALLS {
            match args.output {
                DocumentOutput::Text => print(&story.row(&event.entry))?,
                output => print_one(output, &event.entry)?,
            }
        }
    }
}

/// The requested workloads; none if the argument is a pod, or unknown.
async fn workloads(args: &ExplainArgs, root: &Path) -> Result<Option<Workloads>, Failure> {
    let report = status::fetch(root, true).await?;
    Ok(Workloads::named(&report, &args.pod, Timestamp::now()))
}

fn show(found: &Workloads, args: &ExplainArgs) -> Outcome {
    match args.output {
        DocumentOutput::Text => pager::page(&found.render(), !args.no_pager),
        output => print_document(output, found, |_| String::new()),
    }
}

/// The history of a pod.
pub(super) async fn fetch(pod: &str, root: &Path) -> Result<ExplainReport, Failure> {
    let path = format!("/v1/explain?pod={}", escape(pod));
    let body = client::get(root, &path).await?.whole().await?;
    Ok(client::parse(&body)?)
}

/// The requested entries.
fn selected(
    mut story: Vec<JournalReport>,
    args: &ExplainArgs,
    now: Timestamp,
) -> Vec<JournalReport> {
    story.retain(|entry| {
        let is_new = |since| is_within(entry.at, since, now);
        (args.verbose || entry.reason != ENGINE_CALLS) && args.since.is_none_or(is_new)
    });
    newest(story, args.tail)
}

/// Whether a time is at most so long ago.
pub(super) fn is_within(at: Timestamp, since: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(at)).is_ok_and(|ago| ago <= since) || at > now
}

/// The last so many entries.
pub(super) fn newest<T>(mut entries: Vec<T>, tail: Option<usize>) -> Vec<T> {
    let surplus = tail.map_or(0, |tail| entries.len().saturating_sub(tail));
    entries.split_off(surplus)
}
