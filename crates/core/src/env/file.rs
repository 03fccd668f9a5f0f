//! Variables from files that another container of the pod has written.
//!
//! Upstream: `pkg/kubelet/util/env/env_util.go`.

use std::collections::BTreeMap;

use crate::api::core::{Container, FileKeySelector};
use crate::expand::TOTAL_MAX;

/// Maximum total size of the files for variables of one container, in bytes: the limit for its
/// environment and command. A file may have half of it, and a pod may refer to thousands.
pub const FILES_BYTES_MAX: usize = TOTAL_MAX;

/// Why a file provides no variable. Names lines, never their content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// There is no such file.
    #[error("the file doesn't exist")]
    Missing,
    /// It has no value of that name.
    #[error("the file has no value for {0:?}")]
    NoKey(String),
    /// It can't be read.
    #[error("{0}")]
    Unreadable(String),
    /// It is too large beside the files before it.
    #[error("the files of the container's variables exceed {FILES_BYTES_MAX} bytes in total")]
    TooMuch,
    /// A line can't be understood.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The problem.
        problem: &'static str,
    },
}

/// The contents of the files with variables of a container, by volume and path.
pub type EnvFiles = BTreeMap<(String, String), Result<String, FileError>>;

/// The files that the container's variables come from.
pub fn env_files(container: &Container) -> impl Iterator<Item = &FileKeySelector> {
    let sources = container
        .env
        .iter()
        .flatten()
        .filter_map(|env| env.value_from.as_ref());
    sources.filter_map(|from| from.file_key_ref.as_ref())
}

/// The value of a variable in a file of lines `NAME='value'`, with comments and blank lines. A value
/// may have several lines. An empty value counts as missing, as upstream.
pub(super) fn value_in(text: &str, key: &str) -> Result<String, FileError> {
    let none = || FileError::NoKey(key.to_owned());
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let fail = |problem| FileError::Line {
            line: index + 1,
            problem,
        };
        let line = blank(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| fail("'=' is missing"))?;
        if name.is_empty() {
            return Err(fail("the name of the variable is missing"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(fail("whitespace before '=' is not allowed"));
        }
        let is_wanted = name == key;
        if value.starts_with([' ', '\t']) {
            // As a shell reads it: nothing is assigned.
            if is_wanted {
                return Err(none());
            }
            continue;
        }
        let quoted = value.strip_prefix('\'');
        let mut rest = quoted.ok_or_else(|| fail("the value must be in single quotes"))?;
        let mut found = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                found.push_str(end);
                break after;
            }
            found.push_str(rest);
            found.push('\n');
            rest = lines
                .next()
                .ok_or_else(|| fail("the closing quote is missing"))?
                .1;
        };
        let after = blank(after);
        if !after.is_empty() && !after.starts_with('#') {
            return Err(fail("nothing but a comment may follow the closing quote"));
        }
        if is_wanted {
            return Some(found)
                .filter(|value| !value.is_empty())
                .ok_or_else(none);
        }
    }
    Err(none())
}

fn blank(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_upstream_reads_it() {
        let line = |line, problem| Err(FileError::Line { line, problem });
        let some = |value: &str| Ok(value.to_owned());
        let none = || Err(FileError::NoKey("K".to_owned()));
        for (text, expected) in [
            ("K='v'", some("v")),
            ("\n  # a\n \tK='v' # b\n", some("v")),
            ("A='1'\nK='a=b $X \\n #'\nK='2'", some("a=b $X \\n #")),
            ("K='a\n# b\n\n c'\nA='1'", some("a\n# b\n\n c")),
            ("A='\nK=1\n'\nK='2'\r\n", some("2")),
            ("", none()),
            ("KK='v'", none()),
            ("K=''", none()),
            ("K= 'v'", none()),
            ("A= x\nK='v'", some("v")),
            ("K", line(1, "'=' is missing")),
            ("\n='v'", line(2, "the name of the variable is missing")),
            ("K ='v'", line(1, "whitespace before '=' is not allowed")),
            ("K=v", line(1, "the value must be in single quotes")),
            ("K=", line(1, "the value must be in single quotes")),
            (
                "A=\"1\"\nK='v'",
                line(1, "the value must be in single quotes"),
            ),
            ("\nK='v\nw", line(2, "the closing quote is missing")),
            (
                "K='v'w",
                line(1, "nothing but a comment may follow the closing quote"),
            ),
            ("K='v'\nnonsense", some("v")),
        ] {
            // docker 4a
            assert_eq!(value_in(text, "K"), expected, "{text:?}");
        }
    }
}
