//! What can happen when somebody asks what pods use.

/// The machine could not be looked at. Who asked is told that it failed, not why.
pub fn stats_failed(error: &str) {
    tracing::warn!(error = error, "can't tell what pods and the machine use");
}

/// The cgroups of some containers that run are nowhere to be found.
pub fn cgroups_missing(count: usize) {
    tracing::debug!(
        count,
        "containers run whose cgroups are not below /sys/fs/cgroup; what they use can't be told"
    );
}
