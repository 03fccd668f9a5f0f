//! Versions of a runtime, compared by number.

use std::cmp::Ordering;
use std::fmt;

/// A version such as `20.10.24+dfsg1`, `27.0.2-rc.1` or `1.41`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    text: String,
}

/// A text that starts with no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("could not parse the version {0:?}")]
pub struct InvalidVersion(pub String);

impl Version {
    /// Wraps the runtime's own words. Odd ones print as they are and compare as an error.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// Compares by the leading numbers; a pre-release is older than its release.
    ///
    /// # Errors
    /// Either text is not a version.
    pub fn compare(&self, other: &str) -> Result<Ordering, InvalidVersion> {
        let (mine, my_pre) = numbers(&self.text)?;
        let (theirs, their_pre) = numbers(other)?;
        let length = mine.len().max(theirs.len());
        let padded = |v: &[u64]| -> Vec<u64> {
            v.iter()
                .copied()
                .chain(std::iter::repeat(0))
                .take(length)
                .collect()
        };
        Ok(padded(&mine)
            .cmp(&padded(&theirs))
            .then(their_pre.cmp(&my_pre)))
    }
}

/// The dotted numbers a text starts with, and whether it is a pre-release.
fn numbers(text: &str) -> Result<(Vec<u64>, bool), InvalidVersion> {
    let invalid = || InvalidVersion(text.to_owned());
    let trimmed = text.strip_prefix('v').unwrap_or(text);
    let end = trimmed.find(['-', '+', '~', ' ']).unwrap_or(trimmed.len());
    let parts: Result<Vec<u64>, _> = trimmed[..end].split('.').map(str::parse).collect();
    Ok((
        parts.map_err(|_| invalid())?,
        trimmed[end..].starts_with('-'),
    ))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        for (a, b, expected) in [
            ("1.41", "1.9", Ordering::Greater),
            ("1.41", "1.41", Ordering::Equal),
            ("20.10.24+dfsg1", "20.10.24", Ordering::Equal),
            ("27.0.2-rc.1", "27.0.2", Ordering::Less),
            ("27", "27.0.0", Ordering::Equal),
        ] {
            assert_eq!(Version::new(a).compare(b), Ok(expected), "{a} {b}");
        }
        assert!(Version::new("library-import").compare("1.0").is_err());
        assert!(Version::new("1.0").compare("").is_err());
    }
}
