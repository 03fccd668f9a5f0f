//! Occurrences of resource usage requests.

/// The machine's statistics could not be read. The caller learns that it failed, not why.
pub fn stats_failed(error: &str) {
    tracing::warn!(
        error,
        "failed to read the resource usage of pods and the node"
    );
}

/// No pod is evicted, because the pods' usage is unknown.
pub fn eviction_waits(error: &str) {
    tracing::warn!(
        error,
        "failed to read the resource usage of pods; no pod is evicted until it can be read"
    );
}

/// The cgroups of some running containers can't be found.
pub fn cgroups_missing(count: usize) {
    tracing::debug!(
        count,
        "cgroups of running containers are not below /sys/fs/cgroup; their resource usage is unknown"
    );
}
