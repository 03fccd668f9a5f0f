//! The sources that have delivered.

use std::collections::{BTreeMap, BTreeSet};

use super::SourceName;
use crate::desired::{Delivered, PodSource, SourceState};
use crate::finished::FinishedPods;
use crate::small::SmallCollect;

/// Whether the sources of a kind have all delivered.
pub(super) fn delivered(sources: &BTreeMap<SourceName, SourceState>) -> Delivered {
    let all = |api: bool| {
        sources
            .iter()
            .filter(|(name, _)| (name.source == PodSource::Api) == api)
            .all(|(_, state)| state.is_synced())
    };
    Delivered {
        manifests: all(false),
        api: all(true),
    }
}

/// The sources of manifests that have not delivered.
pub(super) fn awaited(sources: &BTreeMap<SourceName, SourceState>) -> BTreeSet<SourceName> {
    let silent = |(name, state): &(&SourceName, &SourceState)| {
        name.source != PodSource::Api && !state.is_synced()
    };
    let silent = sources.iter().filter(silent);
    silent.map(|(name, _)| name.clone()).collect_set()
}

/// The ended pods of the API server, which is one source.
pub(super) fn finished(sources: &BTreeMap<SourceName, SourceState>) -> FinishedPods {
    let mut sets = sources.values().filter_map(SourceState::set);
    let api = sets.find(|set| !set.finished.is_empty());
    api.map(|set| set.finished.clone()).unwrap_or_default()
}
