//! Limits of a container's log: the size at which it is rotated, and the number of files.

use crate::api::Pod;
use crate::api::quantity::Quantity;
use crate::objects::is_static;

const MAX_SIZE: &str = "mirrorlet.dev/container-log-max-size";
const MAX_FILES: &str = "mirrorlet.dev/container-log-max-files";
/// All annotations about logs.
pub(crate) const ALL: [&str; 2] = [MAX_SIZE, MAX_FILES];

/// Minimum size of a file, in bytes: the longest line that an Engine writes at once fits into it.
pub const SIZE_MIN: u64 = 32 << 10;
/// Minimum number of files, as in the kubelet: with one, a rotation would lose everything.
pub const FILES_MIN: u32 = 2;
/// Maximum number of files: each rotation tries the name of each file.
pub const FILES_MAX: u32 = 1000;

/// Limits of each container's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Size of a file at which it is rotated, in bytes.
    pub max_size: u64,
    /// Maximum number of files, including the current one.
    pub max_files: u32,
}

impl Default for LogLimits {
    /// The kubelet's.
    fn default() -> Self {
        Self {
            max_size: 10 << 20,
            max_files: 5,
        }
    }
}

/// A pod's own limits, in annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnLimits {
    max_size: Option<u64>,
    max_files: Option<u32>,
}

impl OwnLimits {
    /// Applies one annotation.
    ///
    /// # Errors
    /// Its value is invalid; the message describes a valid one.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            MAX_SIZE => {
                let size: Option<Quantity> = value.parse().ok();
                let size = size.and_then(|size| u64::try_from(size.ceil()).ok());
                self.max_size = Some(
                    size.filter(|size| *size >= SIZE_MIN)
                        .ok_or("must be a quantity of at least 32Ki")?,
                );
            }
            MAX_FILES => {
                let files = value.parse().ok();
                self.max_files = Some(
                    files
                        .filter(|files| (FILES_MIN..=FILES_MAX).contains(files))
                        .ok_or("must be a whole number from 2 to 1000")?,
                );
            }
            _ => {}
        }
        Ok(())
    }
}

/// The limits of a pod's containers; `node` are those of the node, none if it leaves them to the
/// Engine. Annotations of a static pod replace the node's; those of an API pod, whose author isn't
/// trusted with the node's disk, can only be lower.
///
/// # Errors
/// An annotation has an invalid value.
pub fn log_limits(pod: &Pod, node: Option<LogLimits>) -> Result<Option<LogLimits>, String> {
    let mut own = OwnLimits::default();
    for (key, value) in pod.metadata.annotations.iter().flatten() {
        own.set(key, value)
            .map_err(|rule| format!("annotation {key}: {rule}"))?;
    }
    if own == OwnLimits::default() {
        return Ok(node);
    }
    let base = node.unwrap_or_default();
    let wanted = LogLimits {
        max_size: own.max_size.unwrap_or(base.max_size),
        max_files: own.max_files.unwrap_or(base.max_files),
    };
    Ok(Some(match node {
        Some(node) if !is_static(pod) => LogLimits {
            max_size: wanted.max_size.min(node.max_size),
            max_files: wanted.max_files.min(node.max_files),
        },
        _ => wanted,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits(max_size: u64, max_files: u32) -> LogLimits {
        LogLimits {
            max_size,
            max_files,
        }
    }

    #[test]
    fn a_pod_may_have_limits_of_its_own_and_a_tenants_only_lower_ones() {
        const MIB: u64 = 1 << 20;
        let node = Some(limits(10 * MIB, 5));
        for (source, size, files, node, expected) in [
            ("file", None, None, node, node),
            ("file", None, None, None, None),
            ("file", Some("64Ki"), None, node, Some(limits(64 << 10, 5))),
            (
                "file",
                Some("1Gi"),
                Some("100"),
                node,
                Some(limits(1024 * MIB, 100)),
            ),
            ("http", Some("1Gi"), None, node, Some(limits(1024 * MIB, 5))),
            ("file", None, Some("2"), None, Some(limits(10 * MIB, 2))),
            ("api", None, None, node, node),
            (
                "api",
                Some("64Ki"),
                Some("3"),
                node,
                Some(limits(64 << 10, 3)),
            ),
            ("api", Some("1Gi"), Some("100"), node, node),
            (
                "api",
                Some("1Gi"),
                Some("2"),
                node,
                Some(limits(10 * MIB, 2)),
            ),
            ("api", Some("1Gi"), None, None, Some(limits(1024 * MIB, 5))),
        ] {
            let mut annotations = json!({"kubernetes.io/config.source": source});
            if let Some(size) = size {
                annotations[MAX_SIZE] = json!(size);
            }
            if let Some(files) = files {
                annotations[MAX_FILES] = json!(files);
            }
            let pod = serde_json::from_value(json!({"metadata": {"annotations": annotations}}));
            let found = log_limits(&pod.unwrap(), node);
            // tenants M6
            assert_eq!(found, Ok(expected), "{source} {size:?} {files:?}");
        }
    }

    #[test]
    fn annotations_that_are_no_limits_are_refused_by_name() {
        for (key, value) in [
            (MAX_SIZE, ""),
            (MAX_SIZE, "ten"),
            (MAX_SIZE, "-1"),
            (MAX_SIZE, "1Ki"),
            (MAX_FILES, "1"),
            (MAX_FILES, "1001"),
            (MAX_FILES, "2.5"),
        ] {
            let pod = json!({"metadata": {"annotations": {key: value}}});
            let refused = log_limits(&serde_json::from_value(pod).unwrap(), None).unwrap_err();
            // tenants M6
            assert!(
                refused.starts_with(&format!("annotation {key}: must be ")),
                "{refused}"
            );
        }
    }
}
