//! Paths as strings: nothing here reads the disk.

use std::path::{Component, Path, PathBuf};

/// The absolute path of a path in a file: relative paths are resolved against `base`, `~` against
/// `home`.
pub(crate) fn absolute(written: &str, base: &Path, home: Option<&str>) -> PathBuf {
    let rest = written.strip_prefix('~');
    let joined = match (rest, home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            Path::new(home).join(rest.trim_start_matches('/'))
        }
        _ => base.join(written),
    };
    let mut clean = PathBuf::new();
    for part in joined.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// Whether the source of a short volume is a path rather than the name of a volume.
pub(crate) fn is_path(source: &str) -> bool {
    source.starts_with(['.', '/', '~'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_beside_the_file() {
        let base = Path::new("/srv/shop");
        for (written, expected) in [
            ("./data", "/srv/shop/data"),
            ("../x/./y/..", "/srv/x"),
            ("/abs", "/abs"),
            ("~/z", "/root/z"),
            ("~", "/root"),
            ("~x", "/srv/shop/~x"),
            (".", "/srv/shop"),
        ] {
            let found = absolute(written, base, Some("/root"));
            assert_eq!(found, Path::new(expected), "{written}");
        }
    }
}
