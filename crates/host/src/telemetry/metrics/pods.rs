//! The per-pod series, which are served if enabled. They are built for each scrape, so that none
//! outlives its pod.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{PodState, number};
use mirrorlet_core::api::{FullName, Timestamp};

type Labels<const N: usize> = [(&'static str, String); N];

/// The values of one pod's series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSample {
    /// Its namespace and name.
    pub name: FullName,
    /// Its state.
    pub state: PodState,
    /// Whether it runs and is Ready.
    pub is_ready: bool,
    /// When it was started, if that is known.
    pub started_at: Option<Timestamp>,
    /// The restarts of its containers, by container name.
    pub restarts: Vec<(String, u64)>,
}

/// The pods that have series of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSamples {
    /// The pods. No two of them have the same name.
    pub pods: Vec<PodSample>,
    /// How many more pods there are.
    pub left_out: usize,
}

impl PodSamples {
    /// The series, in a registry of their own.
    pub(super) fn registry(&self) -> Registry {
        let (series, registry) = PodSeries::made();
        for pod in &self.pods {
            series.add(pod);
        }
        series.left_out.set(number(self.left_out));
        registry
    }
}

/// The series, registered under their names.
pub(super) struct PodSeries {
    pub(super) ready: Family<Labels<2>, Gauge>,
    pub(super) state: Family<Labels<3>, Gauge>,
    pub(super) start_time: Family<Labels<2>, Gauge>,
    pub(super) restarts: Family<Labels<3>, Counter>,
    pub(super) left_out: Gauge,
}

impl PodSeries {
    fn add(&self, pod: &PodSample) {
        let name = [
            ("namespace", pod.name.namespace.to_string()),
            ("pod", pod.name.name.to_string()),
        ];
        let with = |key: &'static str, value: &str| {
            let [namespace, name] = name.clone();
            [namespace, name, (key, value.to_owned())]
        };
        let ready = self.ready.get_or_create(&name);
        ready.set(i64::from(pod.is_ready));
        let state = with("state", pod.state.as_str());
        self.state.get_or_create(&state).set(1);
        for (container, restarts) in &pod.restarts {
            let container = with("container", container);
            let counter = self.restarts.get_or_create(&container);
            counter.inc_by(*restarts);
        }
        if let Some(at) = pod.started_at {
            self.start_time.get_or_create(&name).set(at.as_second());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    /// The samples of the per-pod series, sorted.
    fn samples_of(text: &str) -> Vec<&str> {
        let of_pods = text.lines().filter(|line| {
            // `pod_sync` counts the syncs of all pods together.
            line.starts_with("mirrorlet_pod_") && !line.starts_with("mirrorlet_pod_sync_")
        });
        let mut lines: Vec<&str> = of_pods.collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn a_pod_has_its_names_as_labels_and_no_series_unless_asked_for() {
        let metrics = Metrics::new();
        // agent 15
        assert_eq!(samples_of(&metrics.encode()), [""; 0]);
        assert_eq!(samples_of(&metrics.encode_with(None)), [""; 0]);
        let samples = PodSamples {
            pods: vec![
                PodSample {
                    name: FullName::new("web", "shop"),
                    state: PodState::Running,
                    is_ready: true,
                    started_at: Some(Timestamp::from_second(7).unwrap()),
                    restarts: vec![("app".to_owned(), 3), ("log".to_owned(), 0)],
                },
                PodSample {
                    name: FullName::new("job", "shop"),
                    state: PodState::Failed,
                    is_ready: false,
                    started_at: None,
                    restarts: Vec::new(),
                },
            ],
            left_out: 2,
        };
        let text = metrics.encode_with(Some(&samples));
        // agent 15
        assert_eq!(
            samples_of(&text),
            [
                r#"mirrorlet_pod_container_restarts_total{namespace="shop",pod="web",container="app"} 3"#,
                r#"mirrorlet_pod_container_restarts_total{namespace="shop",pod="web",container="log"} 0"#,
                "mirrorlet_pod_metrics_left_out 2",
                r#"mirrorlet_pod_ready{namespace="shop",pod="job"} 0"#,
                r#"mirrorlet_pod_ready{namespace="shop",pod="web"} 1"#,
                r#"mirrorlet_pod_start_time_seconds{namespace="shop",pod="web"} 7"#,
                r#"mirrorlet_pod_state{namespace="shop",pod="job",state="failed"} 1"#,
                r#"mirrorlet_pod_state{namespace="shop",pod="web",state="running"} 1"#,
            ]
        );
        assert_eq!(text.matches("# EOF").count(), 1);
        // Pods that are gone leave nothing behind.
        let none = metrics.encode_with(Some(&PodSamples::default()));
        assert_eq!(samples_of(&none), ["mirrorlet_pod_metrics_left_out 0"]);
    }
}
