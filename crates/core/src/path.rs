//! A path in an object: `spec.containers[0].image`.

use std::fmt;

/// One step from a value into a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Segment {
    /// Value of this key.
    Key(String),
    /// Item of this number.
    Index(usize),
}

/// The path from a document's root to one of its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Path(pub(crate) Vec<Segment>);

impl Path {
    /// The path to `key` of the value at this path.
    pub(crate) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    /// The path to item `index` of the value at this path.
    pub(crate) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// The path of the keys in `dotted`, which must not contain indices or dotted keys.
    pub(crate) fn of(dotted: &str) -> Self {
        Self::default().dotted(dotted)
    }

    /// This path followed by the keys in `dotted`.
    pub(crate) fn dotted(&self, dotted: &str) -> Self {
        let mut segments = self.0.clone();
        segments.extend(dotted.split('.').map(|key| Segment::Key(key.to_owned())));
        Self(segments)
    }

    /// This path followed by `other`.
    pub(crate) fn join(&self, other: &Self) -> Self {
        Self([&self.0[..], &other.0].concat())
    }

    /// Whether `other` is the same path, or below it.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Whether one of its steps is this key.
    pub(crate) fn contains_key(&self, key: &str) -> bool {
        self.0
            .iter()
            .any(|segment| matches!(segment, Segment::Key(name) if name == key))
    }

    fn with(&self, segment: Segment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }
}

/// Keys that aren't plain words are written as `['key']`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if is_word(key) => {
                    if number > 0 {
                        f.write_str(".")?;
                    }
                    f.write_str(key)?;
                }
                Segment::Key(key) => write!(f, "['{}']", key.escape_debug())?,
            }
        }
        Ok(())
    }
}

fn is_word(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        let containers = Path::of("spec.containers");
        let image = containers.index(1).key("image");
        assert_eq!(image.to_string(), "spec.containers[1].image");
        assert_eq!(
            Path::of("metadata.labels").key("a.b/c").to_string(),
            "metadata.labels['a.b/c']"
        );
        assert_eq!(Path::default().to_string(), "");
        assert!(containers.contains(&image));
        assert!(!image.contains(&containers));
    }
}
