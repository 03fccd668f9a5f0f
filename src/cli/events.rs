//! `mirrorlet events`: what happened to pods and to the node, as `kubectl events` shows it.

use std::path::Path;

use anstyle::{AnsiColor, Style};

use super::explain::{fetch, is_within, newest};
use super::table::{Cell, render_aligned};
use super::{Failure, Outcome, client, print, print_document, print_one};
use crate::config::args::{DocumentOutput, EventKind, EventsArgs};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{EventReport, StoryReport};

#[cfg(test)]
mod tests;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const BAD: Style = AnsiColor::Red.on_default();

/// Prints Events once, or as they come.
pub async fn events(args: &EventsArgs, root: &Path) -> Outcome {
    let pod = match &args.pod {
        Some(pod) => {
            let report = fetch(pod, root).await?;
            Some((report.namespace, report.name))
        }
        None => None,
    };
    let filter = Filter { args, pod };
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

/// The next entry about a pod, also one that is no Event.
pub(super) async fn next_of_pod(
    events: &mut client::Lines<EventReport>,
    namespace: &str,
    name: &str,
) -> Result<EventReport, Failure> {
    loop {
        let event = events.next().await?;
        if event.namespace.as_deref() == Some(namespace) && event.name == name {
            return Ok(event);
        }
    }
}

/// The Events that are asked for.
struct Filter<'a> {
    args: &'a EventsArgs,
    /// Namespace and name of the only pod.
    pod: Option<(String, String)>,
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
        if takes_all && tail.is_none() && self.pod.is_none() {
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
        let is_pod = |(of, name): &(String, String)| namespace == Some(of) && event.name == *name;
        (self.args.types.is_empty() || self.args.types.contains(&kind))
            && self.pod.as_ref().is_none_or(is_pod)
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
        let titles = titles.iter().map(|title| Cell::styled(title, BOLD));
        let is_first = self.widths.is_empty();
        let head = is_first.then(|| titles.collect());
        let rows: Vec<_> = head.into_iter().chain(events.iter().map(row)).collect();
        render_aligned(&rows, &mut self.widths)
    }
}

fn row(event: &EventReport) -> Vec<Cell> {
    let object = match &event.namespace {
        Some(namespace) => format!("{namespace}/{}", event.name),
        None => format!("node/{}", event.name),
    };
    let [at, kind, reason, container, message] = cells(&event.entry);
    vec![at, kind, reason, object.into(), container, message]
}

/// Time, type, reason, container and message of an entry.
pub(super) fn cells(entry: &StoryReport) -> [Cell; 5] {
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
