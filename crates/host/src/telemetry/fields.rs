//! Keys of log fields. No others are used, so that logs can be searched by them.
//!
//! `tracing`'s macros take keys as literals; the test below checks every key in [`super::occurrences`]
//! against this list.

/// A pod, as `namespace/name`.
pub const POD: &str = "pod";
/// UID of a pod.
pub const UID: &str = "uid";
/// UID of the version of a pod that is being prepared.
pub const NEWEST: &str = "newest";
/// A Job, as `namespace/name`.
pub const JOB: &str = "job";
/// A source of pods: kind, directory, file or URL.
pub const SOURCE: &str = "source";
/// Name of a container in its pod's spec.
pub const CONTAINER: &str = "container";
/// Identity of a container instance.
pub const CONTAINER_ID: &str = "container_id";
/// The operation concerned.
pub const OP: &str = "op";
/// How many tries came before, or how many instances.
pub const ATTEMPT: &str = "attempt";
/// How long it took, in whole milliseconds.
pub const ELAPSED_MS: &str = "elapsed_ms";
/// Why.
pub const REASON: &str = "reason";
/// An error with its whole chain.
pub const ERROR: &str = "error";

/// All keys.
pub const ALL: [&str; 12] = [
    POD,
    UID,
    NEWEST,
    JOB,
    SOURCE,
    CONTAINER,
    CONTAINER_ID,
    OP,
    ATTEMPT,
    ELAPSED_MS,
    REASON,
    ERROR,
];

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn occurrences_use_these_keys_only() {
        let source = concat!(
            include_str!("occurrences.rs"),
            include_str!("occurrences/cluster.rs"),
            include_str!("occurrences/containers.rs"),
            include_str!("occurrences/gc.rs"),
            include_str!("occurrences/pods.rs"),
            include_str!("occurrences/probes.rs")
        );
        let mut seen = 0;
        let starts = [
            "log!(",
            "tracing::info!(",
            "tracing::warn!(",
            "tracing::error!(",
        ];
        for text in starts
            .into_iter()
            .flat_map(|start| source.split(start).skip(1))
        {
            let (fields, _) = text.split_once('"').unwrap();
            for field in fields.split(',').map(str::trim) {
                let key = field.split_once(" = ").map_or(field, |(key, _)| key);
                if !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                    assert!(ALL.contains(&key), "log field {key:?} is not in the list");
                    seen += 1;
                }
            }
        }
        assert!(seen > 20, "the test no longer finds the fields: {seen}");
    }
}
