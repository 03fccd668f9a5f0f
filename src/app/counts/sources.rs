//! How the sources of each kind fare.

use std::collections::BTreeMap;

use super::any_changed;
use crate::source::{SourceHealth, SourceReader};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::desired::PodSource;
use mirrorlet_host::telemetry::Metrics;

/// How the sources of one kind fare together.
#[derive(Debug, Clone, Copy)]
struct KindHealth {
    /// Whether the newest attempts to read them all succeeded.
    is_up: bool,
    /// Their successful reads.
    reads: u64,
    /// The oldest of the last successes of all sources; none while one was never read.
    last_success: Option<Timestamp>,
}

impl KindHealth {
    fn of(health: &SourceHealth) -> Self {
        Self {
            is_up: health.last_error.is_none(),
            reads: health.reads,
            last_success: health.last_success,
        }
    }

    fn and(self, other: Self) -> Self {
        let both = self.last_success.zip(other.last_success);
        Self {
            is_up: self.is_up && other.is_up,
            reads: self.reads + other.reads,
            last_success: both.map(|(a, b)| a.min(b)),
        }
    }
}

/// Updates whether all sources of each kind can be read, how often they were, and when last, until
/// cancelled.
pub(in crate::app) async fn watch_sources(sources: Vec<SourceReader>, metrics: Metrics) {
    let mut healths: Vec<_> = sources.iter().map(|source| source.health.clone()).collect();
    let mut counted: BTreeMap<PodSource, u64> = BTreeMap::new();
    loop {
        let mut kinds: BTreeMap<PodSource, KindHealth> = BTreeMap::new();
        for source in &sources {
            let health = KindHealth::of(&source.health.get());
            let kind = kinds.entry(source.name.source);
            kind.and_modify(|known| *known = known.and(health))
                .or_insert(health);
        }
        for (kind, health) in kinds {
            metrics.set_source_up(kind, health.is_up);
            let before = counted.insert(kind, health.reads).unwrap_or_default();
            metrics.source_read(kind, health.reads.saturating_sub(before));
            if let Some(at) = health.last_success {
                metrics.set_source_success(kind, at);
            }
        }
        if !any_changed(&mut healths).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{Parts, spawn_until};
    use crate::source::source;
    use mirrorlet_core::api::{Code, Diagnostic};
    use mirrorlet_core::merge::SourceName;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn a_kind_of_source_is_up_while_all_of_it_can_be_read() {
        let of = |kind, location: &str| source(SourceName::new(kind, location));
        let (_files, directory) = of(PodSource::File, "/manifests");
        let (mut first, first_reader) = of(PodSource::Http, "http://a");
        let (mut second, second_reader) = of(PodSource::Http, "http://b");
        let metrics = Metrics::new();
        let cancel = CancellationToken::new();
        let readers = vec![directory, first_reader, second_reader];
        let watching = watch_sources(readers, metrics.clone());
        let mut parts = Parts::new();
        spawn_until(&mut parts, &cancel, "source health", watching);
        let until_up = async |expected: u8| {
            let urls = format!("mirrorlet_source_up{{source=\"http\"}} {expected}\n");
            while !metrics.encode().contains(&urls) {
                tokio::task::yield_now().await;
            }
            let text = metrics.encode();
            assert!(
                text.contains("mirrorlet_source_up{source=\"file\"} 1\n"),
                "{text}"
            );
        };
        until_up(1).await;
        let error = Diagnostic::error(Code::FetchFailed, "http://b", "connection refused");
        second.failed(error);
        until_up(0).await;
        first.succeeded(Timestamp::UNIX_EPOCH);
        until_up(0).await;
        second.succeeded(Timestamp::UNIX_EPOCH);
        until_up(1).await;
        cancel.cancel();
        parts.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn each_read_of_a_source_is_counted_and_the_oldest_of_a_kind_is_told() {
        let of = |kind, location: &str| source(SourceName::new(kind, location));
        let (mut first, first_reader) = of(PodSource::Http, "http://a");
        let (mut second, second_reader) = of(PodSource::Http, "http://b");
        let metrics = Metrics::new();
        let cancel = CancellationToken::new();
        let watching = watch_sources(vec![first_reader, second_reader], metrics.clone());
        let mut parts = Parts::new();
        spawn_until(&mut parts, &cancel, "source health", watching);
        let until = async |reads: u64, at: Option<i64>| {
            let success = "mirrorlet_source_last_success_timestamp_seconds{source=\"http\"}";
            let reads = format!("mirrorlet_source_reads_total{{source=\"http\"}} {reads}\n");
            loop {
                let text = metrics.encode();
                let is_told = match at {
                    Some(at) => text.contains(&format!("{success} {at}\n")),
                    None => !text.contains(success),
                };
                if is_told && text.contains(&reads) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        until(0, None).await;
        first.succeeded(at(1));
        until(1, None).await;
        // Both before anybody looks.
        second.succeeded(at(2));
        second.succeeded(at(3));
        until(3, Some(1)).await;
        first.failed(Diagnostic::error(Code::FetchFailed, "http://a", "refused"));
        first.succeeded(at(4));
        until(4, Some(3)).await;
        cancel.cancel();
        parts.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_agent_without_sources_waits_for_its_end() {
        let cancel = CancellationToken::new();
        let watching = watch_sources(Vec::new(), Metrics::new());
        let mut watching = Box::pin(cancel.run_until_cancelled(watching));
        assert!(futures::poll!(&mut watching).is_pending());
        cancel.cancel();
        watching.await;
    }
}
