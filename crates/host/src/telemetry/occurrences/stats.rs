//! Occurrences of resource usage requests.

/// The machine could not be looked at. The caller learns that it failed, not why.
pub fn stats_failed(error: &str) {
    tracing::warn!(
        error,
        "failed to read the resource usage of pods and the node"
    );
}

/// No pod is evicted, because it isn't known what pods use.
pub fn eviction_waits(error: &str) {
    tracing::warn!(
        error,
        "failed to read the resource usage of pods; no pod is evicted until it can be read"
    );
}

/// The cgroups of some containers that run are nowhere to be found.
pub fn cgroups_missing(count: usize) {
    tracing::debug!(
        count,
        "cgroups of running containers are not below /sys/fs/cgroup; their resource usage is unknown"
    );
}
