//! The series served on `/metrics`. Labels have few fixed values, never a name or an image; the
//! exceptions are the kubelet's own series of its probes, and the per-pod series, which are off by
//! default and bounded.

mod labels;
mod late;
mod mirrors;
mod names;
mod node_api;
mod pods;
mod probes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

pub use self::labels::{
    CertificateDecision, EventOutcome, ImageGcCause, NodeApiRefusal, PodState, PullOutcome,
    RolloutOutcome,
};
use self::late::LateGauge;
pub use self::pods::{PodSample, PodSamples};
use super::requests::ApiRequest;
use mirrorlet_core::api::{Code, Timestamp};
use mirrorlet_core::certificate::Validity;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::eviction::{LocalLimit, Signal};
use mirrorlet_core::gc::Cause;
use mirrorlet_core::workload::WorkloadKind;
use mirrorlet_runtime::SyncErrorReason;

/// One label with a value out of a closed set.
type Label = [(&'static str, &'static str); 1];
type Counters = Family<Label, Counter>;
type RequestCounters = Family<[(&'static str, &'static str); 3], Counter>;
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// Upper bounds in seconds for Engine calls: a list takes some ms, a stop its grace.
const ENGINE_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];
/// Upper bounds in seconds for rounds and pulls.
const LONG_BUCKETS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The agent's series. Cheap to clone: clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    engine_operations: Counters,
    engine_errors: Counters,
    engine_seconds: Histograms,
    pods: Family<Label, Gauge>,
    workloads: Family<Label, Gauge>,
    unready_pods: Family<Label, Gauge>,
    not_ready_pods: Gauge,
    failing_pods: Gauge,
    failed_jobs: Gauge,
    containers_in_backoff: Gauge,
    sync_seconds: Histogram,
    sync_errors: Counters,
    container_starts: Counter,
    container_restarts: Counter,
    pub(super) container_deaths: Counter,
    pub(super) container_kills: Counter,
    containers_collected: Counters,
    container_gc_errors: Counter,
    source_reads: Counters,
    source_success: Family<Label, Gauge>,
    source_up: Family<Label, Gauge>,
    problems: Family<Label, Gauge>,
    relists: Counter,
    pub(super) event_gaps: Counter,
    event_stream_up: Gauge,
    pub(super) engine_up: Gauge,
    pulls: Counters,
    pull_seconds: Histogram,
    images_collected: Counters,
    image_bytes_freed: Counter,
    pub(super) image_gc_errors: Counter,
    image_disk_used: LateGauge,
    mirror_writes: Counters,
    status_writes: Counters,
    events: Counters,
    api_requests: RequestCounters,
    api_up: LateGauge,
    certificate_ends: Family<Label, Gauge>,
    certificate_lifetime: Family<Label, Gauge>,
    certificate_requests: Counters,
    mirrors: Family<Label, Gauge>,
    mirror_problems: Family<Label, Gauge>,
    rollouts: Counters,
    evictions: Counters,
    probes: probes::ProbeSeries,
    node_api: node_api::NodeApiSeries,
    node_api_refusals: Counters,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Returns new series for an agent, registered with the prefix `mirrorlet_`.
    pub fn new() -> Self {
        let metrics = Self::made(|name| name != "certificate_requests");
        metrics.begin();
        metrics
    }

    /// Returns new series for an approver of certificates: its own and no others. An alert would take
    /// an Engine series at 0 for an Engine that is down.
    pub fn of_approver() -> Self {
        let metrics =
            Self::made(|name| matches!(name, "api_requests" | "api_up" | "certificate_requests"));
        for decision in CertificateDecision::ALL {
            let decision = decision.as_str();
            count(&metrics.certificate_requests, "decision", decision, 0);
        }
        metrics
    }

    /// Creates the counters that alerts watch, at 0: `increase()` doesn't see the first event of a
    /// series that begins with it.
    fn begin(&self) {
        for outcome in RolloutOutcome::ALL {
            count(&self.rollouts, "outcome", outcome.as_str(), 0);
        }
        let signals = Signal::ALL.map(Signal::as_str);
        let limits = LocalLimit::ALL.map(LocalLimit::as_str);
        for signal in signals.into_iter().chain(limits) {
            count(&self.evictions, "eviction_signal", signal, 0);
        }
    }

    /// The series as `OpenMetrics` text, without the per-pod series.
    pub fn encode(&self) -> String {
        self.encode_with(None)
    }

    /// The series as `OpenMetrics` text, with the per-pod series of these pods, if any are given.
    pub fn encode_with(&self, pods: Option<&PodSamples>) -> String {
        let mut text = String::new();
        let pods = pods.map(PodSamples::registry).unwrap_or_default();
        // Writing to a String can't fail; a series that can't be encoded ends the text early,
        // without the end mark, which scrapers report.
        let probes = encode_registry(&mut text, &self.probes.registry);
        if probes
            .and_then(|()| encode_registry(&mut text, &self.node_api.registry))
            .and_then(|()| encode_registry(&mut text, &pods))
            .and_then(|()| encode(&mut text, &self.registry))
            .is_err()
        {
            tracing::error!("failed to encode the metrics");
        }
        text
    }

    /// Counts one Engine call. `operation` is a name from the `Engine` trait's fixed list.
    pub fn engine_call(&self, operation: &'static str, took: Duration, ok: bool) {
        let label = [("operation", operation)];
        self.engine_operations.get_or_create(&label).inc();
        if !ok {
            self.engine_errors.get_or_create(&label).inc();
        }
        self.engine_seconds
            .get_or_create(&label)
            .observe(took.as_secs_f64());
    }

    /// Sets the number of pods in each state; missing states are set to 0.
    pub fn set_pods(&self, counts: &BTreeMap<PodState, usize>) {
        for state in PodState::ALL {
            let count = counts.get(&state).copied().unwrap_or(0);
            set(&self.pods, "state", state.as_str(), number(count));
        }
    }

    /// Sets the number of workloads of each kind; missing kinds are set to 0.
    pub fn set_workloads(&self, counts: &BTreeMap<WorkloadKind, usize>) {
        set_by_kind(&self.workloads, counts);
    }

    /// Sets the number of pods wanted by workloads of each kind that are not Ready; missing kinds are
    /// set to 0.
    pub fn set_unready_pods(&self, counts: &BTreeMap<WorkloadKind, usize>) {
        set_by_kind(&self.unready_pods, counts);
    }

    /// Sets the number of pods that should be Ready and are not.
    pub fn set_not_ready_pods(&self, count: usize) {
        self.not_ready_pods.set(number(count));
    }

    /// Sets how many Jobs have failed.
    pub fn set_failed_jobs(&self, count: usize) {
        self.failed_jobs.set(number(count));
    }

    /// Sets how many pods had their last sync fail.
    pub fn set_failing_pods(&self, count: usize) {
        self.failing_pods.set(number(count));
    }

    /// Sets how many containers are in `CrashLoopBackOff`.
    pub fn set_containers_in_backoff(&self, count: usize) {
        self.containers_in_backoff.set(number(count));
    }

    /// Sets the current problems of all manifests; missing codes are set to 0.
    pub fn set_problems(&self, counts: &BTreeMap<Code, usize>) {
        self.problems.clear();
        for (code, count) in counts {
            set(&self.problems, "code", code.as_str(), number(*count));
        }
    }

    /// Sets whether Engine events arrive.
    pub fn set_event_stream_up(&self, up: bool) {
        self.event_stream_up.set(i64::from(up));
    }

    /// Counts one request to the API server; without a code if there was no answer.
    pub fn api_request(&self, request: ApiRequest, code: Option<u16>) {
        self.api_requests.get_or_create(&request.labels(code)).inc();
    }

    /// Sets the expiry and the lifetime of our client certificate for the API server.
    pub fn set_client_certificate(&self, validity: &Validity) {
        self.set_certificate("client", validity);
    }

    /// Sets the expiry and the lifetime of the node API's serving certificate.
    pub fn set_serving_certificate(&self, validity: &Validity) {
        self.set_certificate("serving", validity);
    }

    fn set_certificate(&self, certificate: &'static str, validity: &Validity) {
        let ends = validity.not_after.as_second();
        let lifetime = ends - validity.not_before.as_second();
        set(&self.certificate_ends, "certificate", certificate, ends);
        set(
            &self.certificate_lifetime,
            "certificate",
            certificate,
            lifetime,
        );
    }

    /// Counts one certificate signing request that an approver processed.
    pub fn certificate_request(&self, decision: CertificateDecision) {
        count(&self.certificate_requests, "decision", decision.as_str(), 1);
    }

    /// Counts a connection or request that the node API refused. Not logged: anyone on the network
    /// can cause any number of them.
    pub fn node_api_refused(&self, why: NodeApiRefusal) {
        count(&self.node_api_refusals, "reason", why.as_str(), 1);
    }

    /// Sets whether the API server answers. Before the first call the series doesn't exist: without an
    /// API server it has no meaning.
    pub fn set_api_up(&self, up: bool) {
        self.api_up.set(i64::from(up));
    }

    /// Counts one list of all containers.
    pub fn relisted(&self) {
        self.relists.inc();
    }

    pub(super) fn synced(&self, took: Duration) {
        self.sync_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn sync_failed(&self, reason: SyncErrorReason) {
        count(&self.sync_errors, "reason", reason.as_str(), 1);
    }

    pub(super) fn container_started(&self, restart: bool) {
        self.container_starts.inc();
        if restart {
            self.container_restarts.inc();
        }
    }

    pub(super) fn mirror_written(&self, outcome: &'static str) {
        count(&self.mirror_writes, "outcome", outcome, 1);
    }

    pub(super) fn events(&self, outcome: EventOutcome, number: u64) {
        count(&self.events, "outcome", outcome.as_str(), number);
    }

    pub(super) fn status_written(&self, outcome: &'static str) {
        count(&self.status_writes, "outcome", outcome, 1);
    }

    pub(super) fn container_collected(&self, cause: Cause) {
        count(&self.containers_collected, "cause", cause.as_str(), 1);
    }

    pub(super) fn container_gc_failed(&self, number: usize) {
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        self.container_gc_errors.inc_by(number);
    }

    /// Counts successful reads of sources of a kind.
    pub fn source_read(&self, source: PodSource, number: u64) {
        count(&self.source_reads, "source", source.as_str(), number);
    }

    /// Sets the time since which every source of a kind is read successfully.
    pub fn set_source_success(&self, source: PodSource, at: Timestamp) {
        let source = source.as_str();
        set(&self.source_success, "source", source, at.as_second());
    }

    /// Sets whether the last reads of all sources of a kind succeeded.
    pub fn set_source_up(&self, source: PodSource, is_up: bool) {
        let (source, is_up) = (source.as_str(), i64::from(is_up));
        set(&self.source_up, "source", source, is_up);
    }

    /// Sets the share of the Engine's disk that is used, in percent.
    pub fn set_image_disk_used(&self, percent: u8) {
        self.image_disk_used.set(i64::from(percent));
    }

    pub(super) fn image_collected(&self, cause: ImageGcCause, bytes: u64) {
        count(&self.images_collected, "cause", cause.as_str(), 1);
        self.image_bytes_freed.inc_by(bytes);
    }

    pub(super) fn pod_evicted(&self, signal: &'static str) {
        count(&self.evictions, "eviction_signal", signal, 1);
    }

    pub(super) fn rollout(&self, outcome: RolloutOutcome) {
        count(&self.rollouts, "outcome", outcome.as_str(), 1);
    }

    pub(super) fn pulled(&self, outcome: PullOutcome, took: Duration) {
        count(&self.pulls, "outcome", outcome.as_str(), 1);
        if outcome == PullOutcome::Pulled {
            self.pull_seconds.observe(took.as_secs_f64());
        }
    }
}

/// Registers series as they are made.
struct Series {
    registry: Registry,
    is_wanted: fn(&str) -> bool,
}

impl Series {
    /// For a registry that gets all of them.
    fn of(registry: Registry) -> Self {
        Self {
            registry,
            is_wanted: |_| true,
        }
    }

    fn add<M: Metric + Clone + Default>(&mut self, name: &'static str, help: &'static str) -> M {
        self.add_with(name, help, None, M::default())
    }

    fn add_with<M: Metric + Clone>(
        &mut self,
        name: &'static str,
        help: &'static str,
        unit: Option<Unit>,
        metric: M,
    ) -> M {
        if (self.is_wanted)(name) {
            let clone = metric.clone();
            match unit {
                Some(unit) => self.registry.register_with_unit(name, help, unit, clone),
                None => self.registry.register(name, help, clone),
            }
        }
        metric
    }
}

/// Sets a gauge of each kind of workload; kinds not named have none.
fn set_by_kind(gauges: &Family<Label, Gauge>, counts: &BTreeMap<WorkloadKind, usize>) {
    for kind in WorkloadKind::ALL {
        let count = counts.get(&kind).copied().unwrap_or(0);
        set(gauges, "kind", kind.as_str(), number(count));
    }
}

/// Adds to the counter of that label value.
fn count(counters: &Counters, key: &'static str, value: &'static str, number: u64) {
    counters.get_or_create(&[(key, value)]).inc_by(number);
}

/// Sets the gauge of that label value.
fn set(gauges: &Family<Label, Gauge>, key: &'static str, value: &'static str, number: i64) {
    gauges.get_or_create(&[(key, value)]).set(number);
}

/// A count as a gauge's value.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
