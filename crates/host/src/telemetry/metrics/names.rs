//! Names of the series, and what they say of themselves.

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;

impl Metrics {
    /// All series under the prefix `mirrorlet_`, but for those in the kubelet's words.
    pub(super) fn register(&self) -> Registry {
        let mut registry = begun();
        let r = &mut registry;
        self.register_engine(r);
        self.register_pods(r);
        self.register_containers(r);
        self.register_sources(r);
        self.register_images(r);
        self.register_requests(r);
        self.register_cluster(r);
        registry
    }

    /// The series of an approver.
    pub(super) fn register_approver(&self) -> Registry {
        let mut registry = begun();
        self.register_requests(&mut registry);
        registry.register(
            "certificate_requests",
            "Certificate signing requests decided by the approver, by decision",
            self.certificate_requests.clone(),
        );
        registry
    }

    fn register_pods(&self, r: &mut Registry) {
        r.register("pods", "Pods by state", self.pods.clone());
        r.register(
            "workloads",
            "Workloads of manifests by kind",
            self.workloads.clone(),
        );
        r.register(
            "workload_pods_unready",
            "Pods that workloads want and that are not Ready, by kind",
            self.unready_pods.clone(),
        );
        r.register(
            "pods_unready",
            "Pods that are pending or running and not Ready, without those of Jobs",
            self.not_ready_pods.clone(),
        );
        r.register(
            "jobs_failed",
            "Jobs of manifests that have failed; a run of a CronJob until a later one completes",
            self.failed_jobs.clone(),
        );
        r.register(
            "pods_failing",
            "Pods whose last sync failed",
            self.failing_pods.clone(),
        );
        r.register_with_unit(
            "pod_sync_duration",
            "Duration of pod syncs",
            Unit::Seconds,
            self.sync_seconds.clone(),
        );
        r.register(
            "pod_sync_errors",
            "Failed pod syncs by reason",
            self.sync_errors.clone(),
        );
        r.register(
            "rollouts",
            "New versions of static pods by outcome: started, held, failed, restored, succeeded",
            self.rollouts.clone(),
        );
        r.register(
            "evictions",
            "Pods evicted by cause: an eviction signal of the node, or a limit of the pod itself",
            self.evictions.clone(),
        );
    }

    fn register_containers(&self, r: &mut Registry) {
        r.register(
            "container_starts",
            "Containers started",
            self.container_starts.clone(),
        );
        r.register(
            "container_restarts",
            "Containers started that replace an older instance",
            self.container_restarts.clone(),
        );
        r.register(
            "containers_in_backoff",
            "Containers in CrashLoopBackOff",
            self.containers_in_backoff.clone(),
        );
        r.register(
            "container_deaths",
            "Containers that ended",
            self.container_deaths.clone(),
        );
        r.register(
            "container_kills",
            "Containers stopped by the agent",
            self.container_kills.clone(),
        );
        r.register(
            "containers_collected",
            "Dead containers and sandboxes removed by garbage collection, by reason",
            self.containers_collected.clone(),
        );
        r.register(
            "container_gc_errors",
            "Containers that garbage collection could not remove",
            self.container_gc_errors.clone(),
        );
    }

    fn register_sources(&self, r: &mut Registry) {
        r.register(
            "source_reads",
            "Complete reads of manifest sources, by source",
            self.source_reads.clone(),
        );
        r.register_with_unit(
            "source_last_success_timestamp",
            "When the source was last read with success",
            Unit::Seconds,
            self.source_success.clone(),
        );
        r.register(
            "source_up",
            "Whether the last reads of all sources of the kind succeeded",
            self.source_up.clone(),
        );
        r.register(
            "manifest_problems",
            "Present problems of manifests by code",
            self.problems.clone(),
        );
    }

    fn register_images(&self, r: &mut Registry) {
        r.register_with_unit(
            "image_pull_duration",
            "Time of image pulls that succeeded",
            Unit::Seconds,
            self.pull_seconds.clone(),
        );
        r.register("image_pulls", "Image pulls by outcome", self.pulls.clone());
        r.register(
            "image_garbage_collected",
            "Images removed, by cause",
            self.images_collected.clone(),
        );
        r.register_with_unit(
            "image_garbage_collected_size",
            "Sizes of the images removed",
            Unit::Bytes,
            self.image_bytes_freed.clone(),
        );
        r.register(
            "image_gc_errors",
            "Passes of image garbage collection that failed",
            self.image_gc_errors.clone(),
        );
        r.register(
            "image_disk_used_percent",
            "Share of the Engine's disk that is used",
            self.image_disk_used.clone(),
        );
    }

    fn register_requests(&self, r: &mut Registry) {
        r.register(
            "api_requests",
            "Requests to the API server by verb, resource and answer",
            self.api_requests.clone(),
        );
        r.register(
            "api_up",
            "Whether the API server answers",
            self.api_up.clone(),
        );
    }

    fn register_cluster(&self, r: &mut Registry) {
        r.register_with_unit(
            "certificate_expiration_timestamp",
            "When a certificate in use ends",
            Unit::Seconds,
            self.certificate_ends.clone(),
        );
        r.register(
            "node_api_refusals",
            "Connections closed and requests refused by the node API to protect itself, by reason",
            self.node_api_refusals.clone(),
        );
        r.register(
            "mirror_writes",
            "Mirror pods created, deleted and refused",
            self.mirror_writes.clone(),
        );
        r.register(
            "status_writes",
            "Pod statuses written to the API server, by outcome",
            self.status_writes.clone(),
        );
        r.register("events", "Events by outcome", self.events.clone());
        r.register(
            "mirror_pods",
            "Static pods by the state of their mirrors",
            self.mirrors.clone(),
        );
        r.register(
            "mirror_problems",
            "Mirror pods that can't be created, by kind of problem",
            self.mirror_problems.clone(),
        );
    }

    fn register_engine(&self, r: &mut Registry) {
        r.register(
            "engine_operations",
            "Engine calls",
            self.engine_operations.clone(),
        );
        r.register(
            "engine_operation_errors",
            "Engine calls that failed",
            self.engine_errors.clone(),
        );
        r.register_with_unit(
            "engine_operation_duration",
            "Time of Engine calls",
            Unit::Seconds,
            self.engine_seconds.clone(),
        );
        r.register(
            "engine_up",
            "Whether the Engine answers",
            self.engine_up.clone(),
        );
        r.register(
            "event_stream_up",
            "Whether Engine events arrive",
            self.event_stream_up.clone(),
        );
        r.register(
            "event_gaps",
            "Times when Engine events may have been missed",
            self.event_gaps.clone(),
        );
        r.register(
            "relists",
            "Times when all containers were listed",
            self.relists.clone(),
        );
    }
}

/// A registry with what every program of ours has.
fn begun() -> Registry {
    let mut registry = Registry::with_prefix("mirrorlet");
    registry.register(
        "build",
        "Build information",
        Info::new([("version", env!("CARGO_PKG_VERSION"))]),
    );
    registry
}
