//! The series, with their names and help texts.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::node_api::NodeApiSeries;
use super::pods::PodSeries;
use super::probes::ProbeSeries;
use super::{ENGINE_BUCKETS, LONG_BUCKETS, Metrics, Series};

impl Metrics {
    /// Creates all series with the prefix `mirrorlet_`, except for those with the kubelet's names.
    /// Unwanted ones are not registered.
    #[rustfmt::skip] // One series a line.
    pub(super) fn made(is_wanted: fn(&str) -> bool) -> Self {
        let mut registry = Registry::with_prefix("mirrorlet");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Build information", build);
        let mut r = Series {
            registry,
            is_wanted,
        };
        let engine: fn() -> Histogram = || Histogram::new(ENGINE_BUCKETS);
        Self {
            engine_operations: r.add("engine_operations", "Engine calls"),
            engine_errors: r.add("engine_operation_errors", "Engine calls that failed"),
            engine_seconds: r.add_with("engine_operation_duration", "Time of Engine calls", Some(Unit::Seconds), Family::new_with_constructor(engine)),
            engine_up: r.add("engine_up", "Whether the Engine answers"),
            event_stream_up: r.add("event_stream_up", "Whether Engine events arrive"),
            event_gaps: r.add("event_gaps", "Times when Engine events may have been missed"),
            relists: r.add("relists", "Times when all containers were listed"),
            pods: r.add("pods", "Pods by state"),
            workloads: r.add("workloads", "Workloads of manifests by kind"),
            unready_pods: r.add("workload_pods_unready", "Pods that workloads want, that nobody stopped and that are not Ready, by kind"),
            not_ready_pods: r.add("pods_unready", "Pods that are pending or running and not Ready, without those of Jobs and those that a user stopped"),
            failed_jobs: r.add("jobs_failed", "Jobs of manifests that have failed; a run of a CronJob until a later one completes"),
            failing_pods: r.add("pods_failing", "Pods whose last sync failed"),
            sync_seconds: r.add_with("pod_sync_duration", "Duration of pod syncs", Some(Unit::Seconds), Histogram::new(LONG_BUCKETS)),
            sync_errors: r.add("pod_sync_errors", "Failed pod syncs by reason"),
            rollouts: r.add("rollouts", "New versions of static pods by outcome: started, held, failed, restored, succeeded"),
            evictions: r.add("evictions", "Pods evicted by cause: an eviction signal of the node, or a limit of the pod itself"),
            container_starts: r.add("container_starts", "Containers started"),
            container_restarts: r.add("container_restarts", "Containers started that replace an older instance"),
            containers_in_backoff: r.add("containers_in_backoff", "Containers in CrashLoopBackOff"),
            container_deaths: r.add("container_deaths", "Containers that ended"),
            container_kills: r.add("container_kills", "Containers stopped by the agent"),
            containers_collected: r.add("containers_collected", "Dead containers and sandboxes removed by garbage collection, by reason"),
            container_gc_errors: r.add("container_gc_errors", "Containers that garbage collection could not remove"),
            source_reads: r.add("source_reads", "Times that a source of pods was read with success, by kind of source"),
            source_success: r.add_with("source_last_success_timestamp", "When the source of that kind that was read longest ago was last read with success", Some(Unit::Seconds), Family::default()),
            source_up: r.add("source_up", "Whether the last reads of all sources of the kind succeeded"),
            problems: r.add("manifest_problems", "Present problems of manifests by code"),
            pull_seconds: r.add_with("image_pull_duration", "Time of image pulls that succeeded", Some(Unit::Seconds), Histogram::new(LONG_BUCKETS)),
            pulls: r.add("image_pulls", "Image pulls by outcome"),
            images_collected: r.add("image_garbage_collected", "Images removed, by cause"),
            image_bytes_freed: r.add_with("image_garbage_collected_size", "Sizes of the images removed", Some(Unit::Bytes), Counter::default()),
            image_gc_errors: r.add("image_gc_errors", "Passes of image garbage collection that failed"),
            image_disk_used: r.add("image_disk_used_percent", "Share of the Engine's disk that is used"),
            api_requests: r.add("api_requests", "Requests to the API server by verb, resource and answer"),
            api_up: r.add("api_up", "Whether the API server answers"),
            certificate_ends: r.add_with("certificate_expiration_timestamp", "When a certificate in use ends", Some(Unit::Seconds), Family::default()),
            certificate_lifetime: r.add_with("certificate_lifetime", "For how long a certificate in use is valid, from its start to its end", Some(Unit::Seconds), Family::default()),
            node_api_refusals: r.add("node_api_refusals", "Connections closed and requests refused by the node API to protect itself, by reason"),
            mirror_writes: r.add("mirror_writes", "Mirror pods created, deleted and refused"),
            status_writes: r.add("status_writes", "Pod statuses written to the API server, by outcome"),
            events: r.add("events", "Events by outcome"),
            mirrors: r.add("mirror_pods", "Static pods by the state of their mirrors"),
            mirror_problems: r.add("mirror_problems", "Mirror pods that can't be created, by kind of problem"),
            certificate_requests: r.add("certificate_requests", "Certificate signing requests decided by the approver, by decision"),
            probes: ProbeSeries::default(),
            node_api: NodeApiSeries::default(),
            registry: Arc::new(r.registry),
        }
    }
}

impl PodSeries {
    /// Fresh per-pod series, and the registry that has them.
    #[rustfmt::skip] // One series a line.
    pub(super) fn made() -> (Self, Registry) {
        let mut r = Series::of(Registry::with_prefix("mirrorlet"));
        let series = Self {
            ready: r.add("pod_ready", "Whether the pod runs and is Ready"),
            state: r.add("pod_state", "Always 1; the pod's present state is in the label state"),
            start_time: r.add_with("pod_start_time", "When the pod was started", Some(Unit::Seconds), Family::default()),
            restarts: r.add("pod_container_restarts", "Restarts of the container in this pod"),
            left_out: r.add("pod_metrics_left_out", "Pods without series of their own, because there are more than --pod-metrics-max"),
        };
        (series, r.registry)
    }
}
