//! Renders a pod's history as text. Pure: the time is an argument.

use anstyle::Style;

use crate::cli::events::cells;
use crate::cli::status::render::beside;
use crate::cli::table::{self, BAD, BOLD, Cell, DIM, one_line};
use mirrorlet_core::api::report::{ExplainReport, JournalReport, PodReport};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::clock::age;

/// The report as text with ANSI styles, for an output that strips them unless it is a terminal.
pub(super) fn render(report: &ExplainReport, story: &mut Story, now: Timestamp) -> String {
    let name = one_line(&format!("{}/{}", report.namespace, report.name));
    let mut out = format!("{BOLD}{name}{BOLD:#}: {}\n", state(report, now));
    let rejected = report.rejected.as_ref();
    if let Some(help) = rejected.and_then(|problem| problem.help.as_deref()) {
        out.push_str("  help: ");
        out.push_str(&one_line(help));
        out.push('\n');
    }
    if let Some(pod) = &report.pod {
        out.push_str(&table::render(&facts(report, pod, now)));
    }
    out.push('\n');
    if report.story.is_empty() {
        out.push_str("Nothing has happened to it since the agent started.\n");
        return out;
    }
    if report.truncated {
        out.push_str("Older entries were dropped.\n");
    }
    out.push_str(&story.rows(&report.story));
    out
}

fn state(report: &ExplainReport, now: Timestamp) -> String {
    let Some(pod) = &report.pod else {
        return report.rejected.as_ref().map_or_else(
            || "gone".to_owned(),
            |problem| {
                let why = problem.to_string();
                format!("not running, its manifest is rejected: {}", one_line(&why))
            },
        );
    };
    let held = beside(pod, now);
    let mut text = format!("{}{held}", one_line(&pod.status));
    if !pod.message.is_empty() {
        text = format!("{text}: {}", one_line(&pod.message));
    }
    text
}

fn facts(report: &ExplainReport, pod: &PodReport, now: Timestamp) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    let mut row = |title: &str, words: String, style: Style| {
        let title = Cell::styled(&format!("  {title}"), DIM);
        rows.push(vec![title, Cell::styled(&words, style)]);
    };
    let containers = format!(
        "{}/{} ready, {} restarts",
        pod.ready, pod.containers_total, pod.restarts
    );
    row("Containers", containers, Style::new());
    row("UID", pod.uid.to_string(), Style::new());
    if !pod.source.is_empty() {
        let read = report.source_read.map(|at| age(at, now));
        let read = read.map_or_else(String::new, |age| format!(", last read {age} ago"));
        row("Source", format!("{}{read}", pod.source), Style::new());
    }
    if let Some(mirror) = &pod.mirror {
        let uid = mirror.uid.as_ref().map(|uid| format!(", UID {uid}"));
        let mut words = format!("{}{}", mirror.state, uid.unwrap_or_default());
        if let Some(since) = mirror.since {
            words = format!("{words} for {}", age(since, now));
        }
        if !mirror.message.is_empty() {
            words = format!("{words}: {}", mirror.message);
        }
        let fine = matches!(mirror.state.as_str(), "Synced" | "Pending");
        row("Mirror", words, if fine { Style::new() } else { BAD });
    }
    for problem in &pod.problems {
        row("Problem", problem.to_string(), BAD);
    }
    rows
}

/// Rows of a history, aligned over several prints.
#[derive(Default)]
pub(super) struct Story {
    widths: Vec<usize>,
    /// The pod of the last row.
    uid: Option<PodUid>,
}

impl Story {
    fn rows(&mut self, story: &[JournalReport]) -> String {
        let titles = ["TIME (UTC)", "TYPE", "REASON", "CONTAINER", "MESSAGE"];
        let titles = titles.iter().map(|title| Cell::styled(title, BOLD));
        let rows = story.iter().map(|entry| self.cells(entry));
        let rows: Vec<_> = std::iter::once(titles.collect()).chain(rows).collect();
        table::render_aligned(&rows, &mut self.widths)
    }

    /// One more row.
    pub(super) fn row(&mut self, entry: &JournalReport) -> String {
        let cells = self.cells(entry);
        table::render_aligned(&[cells], &mut self.widths)
    }

    fn cells(&mut self, entry: &JournalReport) -> Vec<Cell> {
        // The row after an edit, from which on another pod has the name, marks that.
        let is_other = self.uid.as_ref().is_some_and(|uid| *uid != entry.uid);
        self.uid = Some(entry.uid.clone());
        let mut cells = cells(entry);
        if is_other {
            cells[4] = format!("{} [pod UID from here on: {}]", entry.message, entry.uid).into();
        }
        cells.into()
    }
}
