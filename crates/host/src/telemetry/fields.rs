//! Keys of log fields: these and no others, so that a log can be searched by them.
//!
//! `tracing`'s macros take keys as literals; the test below holds every one used in
//! [`super::occurrences`] against this list.

/// A pod, as `namespace/name`.
pub const POD: &str = "pod";
/// UID of a pod.
pub const UID: &str = "uid";
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
pub const ALL: [&str; 10] = [
    POD,
    UID,
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
            include_str!("occurrences/pods.rs")
        );
        let mut seen = 0;
        for line in source.lines().map(str::trim) {
            let Some((key, value)) = line.split_once(" = ") else {
                continue;
            };
            let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if is_key && value.ends_with(',') {
                assert!(ALL.contains(&key), "log field {key:?} is not in the list");
                seen += 1;
            }
        }
        assert!(seen > 20, "the test no longer finds the fields: {seen}");
    }
}
