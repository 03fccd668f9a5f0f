//! The sizes of values as JSON, and of a directory's manifests together.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::api::{Code, Diagnostic};

/// Maximum number of values in lists and mappings of all pods of a file, or of the files of a
/// directory, counted for each pod. Each takes several hundred bytes in memory.
pub const VALUES_TOTAL_MAX: usize = 100_000;

/// Maximum total size of a directory's manifests, in bytes: far above what a node runs.
pub const BYTES_TOTAL_MAX: usize = 32 << 20;

/// The sizes of a directory's files, by path: of their content in force. A refused file counts with its
/// last good version, so that no other file takes its room.
pub type Sizes = BTreeMap<String, Size>;

/// The number of values of each document in force of a file, multiplied by the number of its pods, by
/// kind and name.
pub type DocumentValues = BTreeMap<String, usize>;

/// The size of manifests or JSON: each value takes several hundred bytes in memory, each byte of text
/// several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Values in lists and mappings, multiplied by the number of pods.
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

    /// The problem of the file `location` of this size, if it exceeds the limit together with the
    /// `others` of its directory.
    pub fn too_much_with(
        self,
        others: impl Iterator<Item = Self>,
        location: &str,
    ) -> Option<Diagnostic> {
        others.fold(self, Self::plus).too_much(location)
    }

    /// The problem of the file `location`, if this size, of it and all others of its directory, exceeds
    /// the limit.
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

/// Counts what is written to it.
#[derive(Default)]
struct Count(Size);

impl io::Write for Count {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let begins = |sign: &&u8| matches!(sign, b',' | b'[' | b'{');
        self.0.bytes += text.len();
        self.0.values += text.iter().filter(begins).count();
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The size of a value as JSON, which is not kept. Values are counted by the characters that begin one,
/// including those in strings.
pub fn json_size<T: Serialize + ?Sized>(value: &T) -> Size {
    let mut count = Count::default();
    // Counting doesn't fail, nor does a value of ours.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// The number of values in the lists and mappings of a JSON value.
pub fn json_values(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(|item| 1 + json_values(item)).sum(),
        Value::Object(entries) => entries.values().map(|value| 1 + json_values(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Puts `files`, in the order of their paths, into a directory whose files have these `sizes`. Returns
/// the problems of the refused ones.
///
/// The result is the same as the agent's: each file is measured beside the existing ones, then removed
/// files no longer count, and refused ones are tried again.
pub fn put_files(
    sizes: &mut Sizes,
    files: &[(&str, Size)],
    stays: impl Fn(&str) -> bool,
) -> BTreeMap<String, Diagnostic> {
    let mut refused = BTreeMap::new();
    for file in files {
        put_one(sizes, *file, &mut refused);
    }
    sizes.retain(|location, _| stays(location));
    // Each that is put makes the room smaller, so that a third round would put none.
    for file in files {
        if refused.contains_key(file.0) {
            put_one(sizes, *file, &mut refused);
        }
    }
    refused
}

fn put_one(
    sizes: &mut Sizes,
    (location, size): (&str, Size),
    refused: &mut BTreeMap<String, Diagnostic>,
) {
    let former = sizes.remove(location);
    if let Some(problem) = size.too_much_with(sizes.values().copied(), location) {
        refused.insert(location.to_owned(), problem);
        sizes.extend(former.map(|former| (location.to_owned(), former)));
    } else {
        refused.remove(location);
        sizes.insert(location.to_owned(), size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small::SmallCollect;

    #[test]
    fn json_is_measured_without_being_kept() {
        for value in [
            serde_json::json!(null),
            serde_json::json!({"a": [1, {"b": "\"\u{e4}\n"}], "c": {}}),
        ] {
            let bytes = serde_json::to_vec(&value).unwrap().len();
            assert_eq!(json_size(&value).bytes, bytes, "{value}");
        }
        // A comma of a string counts.
        let value = serde_json::json!({"a": [1, "2,"]});
        assert_eq!(json_size(&value).values, 4);
        assert_eq!(json_values(&value), 3);
    }

    #[test]
    fn files_are_refused_that_are_too_much_beside_the_others() {
        // Files, each with its share of what a directory may have, in tenths.
        type Files<'a> = &'a [(&'a str, usize)];
        let size = |share: usize| Size {
            values: VALUES_TOTAL_MAX / 10 * share,
            bytes: share,
        };
        let sizes = |files: &[(&str, usize)]| -> Sizes {
            let sizes = files.iter();
            let sizes = sizes.map(|(name, share)| ((*name).to_owned(), size(*share)));
            sizes.collect_map()
        };
        // Those before, the new ones, whether the others go, those in the end, and the refused ones.
        let cases: [(Files<'_>, Files<'_>, bool, Files<'_>, &[&str]); 8] = [
            (&[], &[("a", 10)], false, &[("a", 10)], &[]),
            (&[], &[("a", 11)], false, &[], &["a"]),
            (&[("b", 9)], &[("a", 2)], false, &[("b", 9)], &["a"]),
            // A file takes its own place.
            (&[("a", 9)], &[("a", 10)], false, &[("a", 10)], &[]),
            // One that becomes smaller makes room for one before it.
            (
                &[("a", 1), ("b", 9)],
                &[("a", 9), ("b", 1)],
                false,
                &[("a", 9), ("b", 1)],
                &[],
            ),
            // So does one that is gone.
            (&[("z", 9)], &[("a", 9)], true, &[("a", 9)], &[]),
            // One that is refused stays as it was, and keeps its room.
            (
                &[("a", 5), ("c", 3)],
                &[("a", 8), ("b", 7)],
                false,
                &[("a", 5), ("c", 3)],
                &["a", "b"],
            ),
            (
                &[("a", 5), ("c", 3)],
                &[("a", 8), ("b", 2)],
                false,
                &[("a", 5), ("b", 2), ("c", 3)],
                &["a"],
            ),
        ];
        for (before, new, whole, expected, refused) in cases {
            let mut known = sizes(before);
            let files: Vec<(&str, Size)> = new
                .iter()
                .map(|(name, share)| (*name, size(*share)))
                .collect();
            let stays = |location: &str| !whole || new.iter().any(|(name, _)| *name == location);
            let problems = put_files(&mut known, &files, stays);
            assert_eq!(known, sizes(expected), "{before:?} {new:?}");
            let names: Vec<&str> = problems.keys().map(String::as_str).collect();
            assert_eq!(names, refused, "{before:?} {new:?}");
        }
    }
}
