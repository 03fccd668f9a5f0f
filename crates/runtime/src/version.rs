//! Versions of a runtime.

/// A version in the runtime's own words, such as `20.10.24+dfsg1`, `27.0.2-rc.1` or `1.41`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    text: String,
}

impl Version {
    /// Wraps a version string.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }
}

mirrorlet_core::display!(Version, "{}", text);
