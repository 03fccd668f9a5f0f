//! The size of the manifests of a directory together.

use super::{BYTES_TOTAL_MAX, VALUES_TOTAL_MAX};
use crate::api::{Code, Diagnostic};

/// The size of manifests: each value takes several hundred bytes in memory, each byte of text several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Values in lists and mappings, as often as there are pods of them.
    pub values: usize,
    /// Bytes of text.
    pub bytes: usize,
}

impl Size {
    /// The size of both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            values: self.values.saturating_add(other.values),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The problem of the file `location`, if it and all others of its directory have this size, which
    /// is too much.
    pub fn too_much(self, location: &str) -> Option<Diagnostic> {
        let message = if self.values > VALUES_TOTAL_MAX {
            format!(
                "the manifests of this directory would have {} values in lists and mappings, counted for each pod; at most {VALUES_TOTAL_MAX} are read",
                self.values
            )
        } else if self.bytes > BYTES_TOTAL_MAX {
            format!(
                "the manifests of this directory would have {} bytes; at most {BYTES_TOTAL_MAX} are read",
                self.bytes
            )
        } else {
            return None;
        };
        let problem = Diagnostic::error(Code::TooLarge, location, message);
        Some(problem.help("remove manifests that are not needed, or make large ones smaller"))
    }
}
