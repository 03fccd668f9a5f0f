//! The series of the node API's requests, the same as a kubelet's.
//!
//! Upstream: `pkg/kubelet/server/metrics/metrics.go`.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, Series};

/// Method, path, server and whether it is long-running: each from a closed set.
type Labels = [(&'static str, &'static str); 4];
type Durations = Family<Labels, Histogram, fn() -> Histogram>;

/// Upper bounds in seconds: Prometheus' usual ones.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Methods counted by name; any other counts as `other`.
const METHODS: [&str; 8] = [
    "OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT",
];
/// First parts of paths counted by name; any other counts as `other`.
const PATHS: [&str; 11] = [
    "attach",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "healthz",
    "logs",
    "pods",
    "portForward",
    "runningpods",
    "stats",
];
/// Paths of metrics, each counted by name.
const METRICS_PATHS: [&str; 4] = [
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
];

/// The series, in a separate registry: they don't have our prefix.
#[derive(Debug, Clone)]
pub(super) struct NodeApiSeries {
    pub(super) registry: Arc<Registry>,
    requests: Family<Labels, Counter>,
    durations: Durations,
    in_flight: Family<Labels, Gauge>,
}

impl Default for NodeApiSeries {
    #[rustfmt::skip] // One series a line.
    fn default() -> Self {
        let mut r = Series::of(Registry::with_prefix("kubelet_http"));
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            requests: r.add("requests", "Number of the http requests received since the server started"),
            durations: r.add_with("requests_duration_seconds", "Duration in seconds to serve http requests", None, Durations::new_with_constructor(histogram)),
            in_flight: r.add("inflight_requests", "Number of the inflight http requests"),
            registry: Arc::new(r.registry),
        }
    }
}

fn labels(method: &str, path: &str) -> Labels {
    let known = |names: &[&'static str], name: &str| names.iter().find(|n| **n == name).copied();
    let path = path.strip_prefix('/').unwrap_or(path);
    let first = path.split('/').next().unwrap_or(path);
    let bucket = if first == "metrics" {
        let two = path
            .match_indices('/')
            .nth(1)
            .map_or(path, |(at, _)| &path[..at]);
        known(&METRICS_PATHS, two)
    } else {
        known(&PATHS, first)
    };
    let bucket = bucket.unwrap_or("other");
    // Upstream's list says `portforward`, which no path is.
    let is_long = matches!(bucket, "exec" | "attach" | "debug");
    [
        ("method", known(&METHODS, method).unwrap_or("other")),
        ("path", bucket),
        ("server_type", "readwrite"),
        ("long_running", if is_long { "true" } else { "false" }),
    ]
}

/// A request in progress; it counts as done when this is dropped.
#[derive(Debug)]
pub struct RequestUnderWay {
    series: NodeApiSeries,
    labels: Labels,
    began: std::time::Instant,
}

impl Metrics {
    /// Counts a request to the node API.
    pub fn node_api_asked(&self, method: &str, path: &str) -> RequestUnderWay {
        let (series, labels) = (self.node_api.clone(), labels(method, path));
        series.requests.get_or_create(&labels).inc();
        series.in_flight.get_or_create(&labels).inc();
        RequestUnderWay {
            series,
            labels,
            began: std::time::Instant::now(),
        }
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        let took: Duration = self.began.elapsed();
        self.series.in_flight.get_or_create(&self.labels).dec();
        let durations = self.series.durations.get_or_create(&self.labels);
        durations.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_as_a_kubelet_counts_them() {
        for (method, path, expected) in [
            (
                "GET",
                "/containerLogs/ns/pod/c",
                ["GET", "containerLogs", "false"],
            ),
            ("POST", "/exec/ns/pod/c", ["POST", "exec", "true"]),
            (
                "GET",
                "/portForward/ns/pod",
                ["GET", "portForward", "false"],
            ),
            ("GET", "/metrics", ["GET", "metrics", "false"]),
            (
                "GET",
                "/metrics/resource",
                ["GET", "metrics/resource", "false"],
            ),
            (
                "GET",
                "/metrics/cadvisor/",
                ["GET", "metrics/cadvisor", "false"],
            ),
            ("GET", "/metrics/my-own", ["GET", "other", "false"]),
            ("BREW", "/coffee", ["other", "other", "false"]),
            ("GET", "", ["GET", "other", "false"]),
        ] {
            let [method_label, path_label, _, long] = labels(method, path).map(|(_, value)| value);
            // node-api 12
            assert_eq!(
                [method_label, path_label, long],
                expected,
                "{method} {path}"
            );
        }
        let metrics = Metrics::new();
        let under_way = metrics.node_api_asked("GET", "/pods");
        let set = r#"{method="GET",path="pods",server_type="readwrite",long_running="false"}"#;
        let text = metrics.encode();
        assert!(
            text.contains(&format!("kubelet_http_requests_total{set} 1")),
            "{text}"
        );
        assert!(
            text.contains(&format!("kubelet_http_inflight_requests{set} 1")),
            "{text}"
        );
        drop(under_way);
        let text = metrics.encode();
        assert!(
            text.contains(&format!("kubelet_http_inflight_requests{set} 0")),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "kubelet_http_requests_duration_seconds_count{set} 1"
            )),
            "{text}"
        );
    }
}
