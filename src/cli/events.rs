//! `mirrorlet events`: events of pods, workloads and the node, in the format of `kubectl events`.

use std::path::Path;

use anstyle::Style;

use super::explain::{fetch, is_within, newest};
use super::table::{self, BAD, Cell, DIM, render_aligned};
use super::{Failure, Outcome, client, print, print_document, print_one, status};
use crate::config::args::{DocumentOutput, EventKind, EventsArgs};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{EventReport, JournalReport};
use mirrorlet_core::select::workload_kind;
use mirrorlet_core::workload::WorkloadKind;

#[cfg(test)]
mod tests;

/// Prints Events once, or continuously.
pub async fn events(args: &EventsArgs, root: &Path) -> Outcome {
    let about = match args.pod.as_deref() {
        None => About::All,
        Some(text) => About::of(text, root).await?,
    };
    let filter = Filter { args, about };
    let body = client::get(root, "/v1/events").await?.whole().await?;
    let all = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let all: Vec<EventReport> = all.map(client::parse).collect::<Result<_, _>>()?;
    let from = all.last().map_or(0, |event| event.number + 1);
    let known = filter.known(all, Timestamp::now());
    let mut table = Table::default();
    if args.output != DocumentOutput::Text && !args.watch {
        return print_document(args.output, &known, |_| String::new());
    }
    if known.is_empty() && !args.watch {
        return print(filter.none());
    }
    if args.output == DocumentOutput::Text {
        print(&table.rows(&known))?;
    } else {
        for event in &known {
            print_one(args.output, event)?;
        }
    }
    if !args.watch {
        return Ok(());
    }
    let mut events =
        client::Lines::watch(root, &format!("/v1/events?watch=true&from={from}")).await?;
    loop {
        let event = events.next().await?;
        if !filter.takes(&event) {
            continue;
        }
        match args.output {
            DocumentOutput::Text => print(&table.rows(&[event]))?,
            output => print_one(output, &event)?,
        }
    }
}

/// The next entry about a pod, even if it is not an Event.
pub(super) async fn next_of_pod(
    events: &mut client::Lines<EventReport>,
    namespace: &str,
    name: &str,
) -> Result<EventReport, Failure> {
    loop {
        let event = events.next().await?;
        if is_pod(&event, namespace, name) {
            return Ok(event);
        }
    }
}

/// Whether an entry is about that pod.
fn is_pod(event: &EventReport, namespace: &str, name: &str) -> bool {
    let is_named = event.namespace.as_deref() == Some(namespace) && event.name == name;
    is_named && event.workload.is_none()
}

/// The subject of the requested Events.
enum About {
    All,
    /// A pod, by namespace and name.
    Pod(String, String),
    /// A workload, as `Deployment/web`, in that namespace or in any.
    Workload(Option<String>, String),
}

impl About {
    /// The pod that a text means, or the workload, also by its name alone.
    async fn of(text: &str, root: &Path) -> Result<Self, Failure> {
        if let Some((namespace, owner)) = WorkloadKind::named(text) {
            return Ok(Self::Workload(namespace.map(str::to_owned), owner));
        }
        let not_found = match fetch(text, root).await {
            Ok(report) => return Ok(Self::Pod(report.namespace, report.name)),
            Err(error) => error,
        };
        let Ok(report) = status::fetch(root, true).await else {
            return Err(not_found);
        };
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let kind = workload_kind(&report, namespace, name)?.ok_or(not_found)?;
        let owner = format!("{kind}/{name}");
        Ok(Self::Workload(namespace.map(str::to_owned), owner))
    }
}

/// The requested Events.
struct Filter<'a> {
    args: &'a EventsArgs,
    about: About,
}

impl Filter<'_> {
    fn known(&self, mut all: Vec<EventReport>, now: Timestamp) -> Vec<EventReport> {
        let is_new = |event: &EventReport| {
            let since = self.args.since;
            since.is_none_or(|since| is_within(event.entry.at, since, now))
        };
        all.retain(|event| self.takes(event) && is_new(event));
        newest(all, self.args.tail)
    }

    /// The words for no Events.
    fn none(&self) -> &'static str {
        let EventsArgs {
            namespace,
            types,
            since,
            tail,
            ..
        } = self.args;
        let takes_all = namespace.is_none() && types.is_empty() && since.is_none();
        if takes_all && tail.is_none() && matches!(self.about, About::All) {
            "No events since the agent started.\n"
        } else {
            "No events match.\n"
        }
    }

    fn takes(&self, event: &EventReport) -> bool {
        let kind = match event.entry.kind.as_str() {
            "Normal" => EventKind::Normal,
            "Warning" => EventKind::Warning,
            // Only `explain` shows the rest.
            _ => return false,
        };
        let namespace = event.namespace.as_deref();
        let is_about = match &self.about {
            About::All => true,
            About::Pod(namespace, name) => is_pod(event, namespace, name),
            About::Workload(of, owner) => {
                let workload = event.workload.as_ref();
                workload.is_some_and(|kind| format!("{kind}/{}", event.name) == *owner)
                    && of.as_deref().is_none_or(|of| namespace == Some(of))
            }
        };
        (self.args.types.is_empty() || self.args.types.contains(&kind))
            && is_about
            && (self.args.namespace.is_none() || namespace == self.args.namespace.as_deref())
    }
}

/// Rows of Events, aligned over several prints.
#[derive(Default)]
struct Table {
    widths: Vec<usize>,
}

impl Table {
    fn rows(&mut self, events: &[EventReport]) -> String {
        let titles = [
            "TIME (UTC)",
            "TYPE",
            "REASON",
            "OBJECT",
            "CONTAINER",
            "MESSAGE",
        ];
        let is_first = self.widths.is_empty();
        let head = is_first.then(|| table::titles(titles));
        let rows: Vec<_> = head.into_iter().chain(events.iter().map(row)).collect();
        render_aligned(&rows, &mut self.widths)
    }
}

fn row(event: &EventReport) -> Vec<Cell> {
    let name = &event.name;
    let object = match (&event.namespace, &event.workload) {
        (Some(namespace), Some(kind)) => {
            format!("{}/{namespace}/{name}", kind.to_ascii_lowercase())
        }
        (Some(namespace), None) => format!("{namespace}/{name}"),
        (None, _) => format!("node/{name}"),
    };
    let [at, kind, reason, container, message] = cells(&event.entry);
    vec![at, kind, reason, object.into(), container, message]
}

/// Time, type, reason, container and message of an entry.
pub(super) fn cells(entry: &JournalReport) -> [Cell; 5] {
    let (kind, style) = match entry.kind.as_str() {
        "Warning" => ("Warning", BAD),
        "Normal" => ("Normal", Style::new()),
        _ => ("", DIM),
    };
    [
        entry.at.strftime("%m-%d %H:%M:%S%.3f").to_string().into(),
        Cell::styled(kind, style),
        Cell::styled(&entry.reason, style),
        entry.container.clone().unwrap_or_default().into(),
        entry.message.as_str().into(),
    ]
}
