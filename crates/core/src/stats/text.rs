//! Prometheus' text format 0.0.4, in which all samples of a family are grouped.

use std::fmt::{Display, Write as _};

use super::Usage;
use crate::api::Timestamp;

/// A page of series.
#[derive(Debug, Default)]
pub(super) struct Page(String);

/// The type of a metric family.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A number that only grows.
    Counter,
    /// A number of the moment.
    Gauge,
}

impl Page {
    /// The page so far.
    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// Begins a family.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// A family with at most one sample per cgroup, each with its labels and usage.
    pub(super) fn usages<'a>(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        all: impl Iterator<Item = (&'a str, &'a Usage)>,
        value: impl Fn(&Usage) -> Option<String>,
    ) {
        self.family(name, kind, help);
        for (labels, usage) in all {
            if let Some(value) = value(usage) {
                self.sample(name, labels, "", value, Some(usage.time));
            }
        }
    }

    /// A sample. `labels` are from [`labels`], `more` are additional ones, both without braces.
    pub(super) fn sample(
        &mut self,
        name: &str,
        labels: &str,
        more: &str,
        value: impl Display,
        time: Option<Timestamp>,
    ) {
        let comma = if labels.is_empty() || more.is_empty() {
            ""
        } else {
            ","
        };
        let (open, close) = if labels.is_empty() && more.is_empty() {
            ("", "")
        } else {
            ("{", "}")
        };
        match time {
            Some(time) => self.line(format_args!(
                "{name}{open}{labels}{comma}{more}{close} {value} {}",
                time.as_millisecond()
            )),
            None => self.line(format_args!(
                "{name}{open}{labels}{comma}{more}{close} {value}"
            )),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let written = writeln!(self.0, "{line}");
        debug_assert!(written.is_ok(), "a String takes everything");
    }
}

/// Labels as they stand between braces.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text
}

/// Nanoseconds as seconds, without a rounding: `1500000000` is `1.5`.
pub(super) fn seconds(nanos: u64) -> String {
    let (whole, part) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:09}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

/// A time in seconds since 1970, to the millisecond.
pub(super) fn since_epoch(time: Timestamp) -> String {
    seconds(
        u64::try_from(time.as_millisecond())
            .unwrap_or_default()
            .saturating_mul(1_000_000),
    )
}
