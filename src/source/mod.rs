//! Sources of pods: a manifest directory, URLs and the API server, each delivering whole sets.
//!
//! A source reads, calls the decisions of `pod`, and publishes; it never concludes anything from a
//! failed read. Its set and its health are two cells, so that a look without changes wakes no reader of
//! the set.

pub mod apiserver;
pub mod files;
pub mod http;
pub mod last_good;

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::warn;

use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::api::report::SourceReport;
use mirrorlet_core::api::{Code, Diagnostic, Timestamp};
use mirrorlet_core::desired::{SourceSet, SourceState};
use mirrorlet_core::merge::SourceName;
use mirrorlet_core::small::SmallCollect;

/// How a source fares.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceHealth {
    /// When it was last read with success.
    pub last_success: Option<Timestamp>,
    /// How often it was read with success.
    pub reads: u64,
    /// Why the newest attempt failed; none when it succeeded.
    pub last_error: Option<Diagnostic>,
    /// Attempts failed in a row.
    pub failures: u32,
}

/// Makes the two ends of a source.
pub fn source(name: SourceName) -> (SourceWriter, SourceReader) {
    let (state, state_reader) = cell(SourceState::NotSynced);
    let (health, health_reader) = cell(SourceHealth::default());
    let reader = SourceReader {
        name,
        state: state_reader,
        health: health_reader,
    };
    (SourceWriter { state, health }, reader)
}

/// The end a source writes to.
#[derive(Debug)]
pub struct SourceWriter {
    state: Writer<SourceState>,
    health: Writer<SourceHealth>,
}

impl SourceWriter {
    /// Publishes a whole set, and logs each new problem once.
    pub(crate) fn publish(&mut self, set: SourceSet) {
        let before = self.state.get();
        let known: BTreeSet<_> = before
            .set()
            .into_iter()
            .flat_map(|s| problems_of(s))
            .collect_set();
        // A failing URL is logged by its source, less and less loudly.
        let news = problems_of(&set).filter(|problem| problem.code != Code::FetchFailed);
        for problem in news.collect_set().difference(&known) {
            warn!(reason = %problem, "problem with a manifest");
        }
        self.state.publish(SourceState::Synced(Arc::new(set)));
    }

    /// Publishes an earlier agent's set, until the source itself delivers.
    pub(crate) fn publish_last_known(&mut self, set: SourceSet) {
        self.state.publish(SourceState::LastKnown(Arc::new(set)));
    }

    /// Notes a successful read.
    pub(crate) fn succeeded(&mut self, now: Timestamp) {
        let before = self.health.get();
        self.health.publish(SourceHealth {
            last_success: Some(now),
            reads: before.reads.saturating_add(1),
            last_error: None,
            failures: 0,
        });
    }

    /// Notes a failed attempt.
    pub(crate) fn failed(&mut self, error: Diagnostic) {
        let before = self.health.get();
        self.health.publish(SourceHealth {
            last_success: before.last_success,
            reads: before.reads,
            last_error: Some(error),
            failures: before.failures.saturating_add(1),
        });
    }
}

/// The problems of a source, those of its pods included.
pub(crate) fn problems_of(set: &SourceSet) -> impl Iterator<Item = &Diagnostic> {
    let of_pods = set.pods.iter().flat_map(|pod| &pod.problems);
    set.problems.iter().chain(of_pods)
}

/// The end everybody else reads from.
#[derive(Debug, Clone)]
pub struct SourceReader {
    /// The name of the source.
    pub name: SourceName,
    /// The desired pods.
    pub state: Reader<SourceState>,
    /// How it fares.
    pub health: Reader<SourceHealth>,
}

impl SourceReader {
    /// The report of the source in `mirrorlet status`.
    pub fn report(&self) -> SourceReport {
        let (state, health) = (self.state.get(), self.health.get());
        let set = state.set();
        let mut problems = set.map(|set| set.problems.clone()).unwrap_or_default();
        if let Some(error) = &health.last_error
            && !problems.contains(error)
        {
            problems.insert(0, error.clone());
        }
        SourceReport {
            kind: self.name.source.to_string(),
            location: self.name.location.to_string(),
            synced: state.is_synced(),
            last_success: health.last_success,
            pods: set.map_or(0, |set| set.pods.len() + set.finished.len()),
            objects: set.map_or(0, |set| set.objects.len()),
            problems,
            ignored: set.map(|set| set.ignored.clone()).unwrap_or_default(),
        }
    }
}
