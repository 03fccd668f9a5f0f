//! The series of probes, the same as a kubelet's: per container, so they are removed with their
//! workers.
//!
//! Upstream: `pkg/kubelet/prober/prober_manager.go` (`ProberResults`, `ProberDuration`).

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, Series};
use crate::telemetry::prometheus_text;
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::probe::{ProbeKind, ProbeResult};

type Labels<const N: usize> = [(&'static str, String); N];
type Durations = Family<Labels<4>, Histogram, fn() -> Histogram>;

/// Upper bounds in seconds: Prometheus' usual ones.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const RESULTS: [ProbeResult; 3] = [
    ProbeResult::Success,
    ProbeResult::Failure,
    ProbeResult::Unknown,
];

/// The series, in a separate registry: they don't have our prefix.
#[derive(Debug, Clone)]
pub(super) struct ProbeSeries {
    pub(super) registry: Arc<Registry>,
    attempts: Family<Labels<6>, Counter>,
    durations: Durations,
}

impl Default for ProbeSeries {
    #[rustfmt::skip] // One series a line.
    fn default() -> Self {
        let mut r = Series::of(Registry::default());
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            attempts: r.add("prober_probe", "Cumulative number of a liveness, readiness or startup probe for a container by result"),
            durations: r.add_with("prober_probe_duration_seconds", "Duration in seconds for a probe response", None, Durations::new_with_constructor(histogram)),
            registry: Arc::new(r.registry),
        }
    }
}

fn word(result: ProbeResult) -> &'static str {
    match result {
        ProbeResult::Success => "successful",
        ProbeResult::Failure => "failed",
        ProbeResult::Unknown => "unknown",
    }
}

fn attempt_labels(
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    kind: ProbeKind,
    result: ProbeResult,
) -> Labels<6> {
    [
        ("probe_type", kind.as_str().to_owned()),
        ("result", word(result).to_owned()),
        ("container", container.to_owned()),
        ("pod", pod.name.to_string()),
        ("namespace", pod.namespace.to_string()),
        ("pod_uid", uid.to_string()),
    ]
}

fn duration_labels(pod: &FullName, container: &str, kind: ProbeKind) -> Labels<4> {
    [
        ("probe_type", kind.as_str().to_owned()),
        ("container", container.to_owned()),
        ("pod", pod.name.to_string()),
        ("namespace", pod.namespace.to_string()),
    ]
}

impl Metrics {
    /// The probe series alone, in Prometheus' text format 0.0.4.
    pub fn encode_probes(&self) -> String {
        let mut text = String::new();
        if encode_registry(&mut text, &self.probes.registry).is_err() {
            tracing::error!("failed to encode the metrics of probes");
        }
        prometheus_text(&text)
    }

    /// Counts one attempt of a probe; the result is unknown if the attempt was impossible.
    pub(in crate::telemetry) fn probed(
        &self,
        pod: &FullName,
        uid: &PodUid,
        container: &str,
        kind: ProbeKind,
        result: ProbeResult,
        took: Duration,
    ) {
        let labels = attempt_labels(pod, uid, container, kind, result);
        self.probes.attempts.get_or_create(&labels).inc();
        let labels = duration_labels(pod, container, kind);
        let durations = self.probes.durations.get_or_create(&labels);
        durations.observe(took.as_secs_f64());
    }

    /// Removes the series of a probe whose worker has ended, as upstream does.
    pub fn probe_gone(&self, pod: &FullName, uid: &PodUid, container: &str, kind: ProbeKind) {
        for result in RESULTS {
            let labels = attempt_labels(pod, uid, container, kind, result);
            self.probes.attempts.remove(&labels);
        }
        let labels = duration_labels(pod, container, kind);
        self.probes.durations.remove(&labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_are_the_kubelets_and_go_with_their_pod() {
        let metrics = Metrics::new();
        let (pod, uid) = (FullName::new("web", "shop"), PodUid::from("u"));
        let took = Duration::from_millis(3);
        let (kind, failure) = (ProbeKind::Readiness, ProbeResult::Failure);
        metrics.probed(&pod, &uid, "app", kind, failure, took);
        let text = metrics.encode();
        for line in [
            r#"prober_probe_total{probe_type="Readiness",result="failed",container="app",pod="web",namespace="shop",pod_uid="u"} 1"#,
            r#"prober_probe_duration_seconds_count{probe_type="Readiness",container="app",pod="web",namespace="shop"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(text.matches("# EOF").count(), 1);
        let alone = metrics.encode_probes();
        assert!(
            alone.contains("# TYPE prober_probe_total counter\nprober_probe_total{"),
            "{alone}"
        );
        assert!(
            !alone.contains("# EOF") && !alone.contains("mirrorlet_"),
            "{alone}"
        );
        metrics.probe_gone(&pod, &uid, "app", kind);
        assert!(!metrics.encode().contains("namespace=\"shop\""));
    }
}
