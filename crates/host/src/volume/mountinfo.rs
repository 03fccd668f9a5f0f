//! Mount points, from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::{Result, VolumeError};

const MOUNTINFO: &str = "/proc/self/mountinfo";
/// Position of the mount point in a line (see `proc_pid_mountinfo(5)`).
const MOUNT_POINT_FIELD: usize = 4;

/// Whether something is mounted on that directory.
pub(super) fn is_mount_point(dir: &Path) -> Result<bool> {
    let real = dir
        .canonicalize()
        .map_err(|e| VolumeError::io("resolve", dir, e))?;
    Ok(read()?.contains(&real))
}

/// Mount points below a resolved directory, oldest first; one mounted over twice comes twice.
pub(super) fn below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut points = read()?;
    points.retain(|point| point != dir && point.starts_with(dir));
    Ok(points)
}

/// Mount points below a directory that are this name space's alone, oldest first: what is done to
/// them nobody else sees.
pub(super) fn unshared_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let bytes = bytes()?;
    let alone = bytes
        .split(|b| *b == b'\n')
        .filter(|line| !is_shared(line))
        .collect::<Vec<_>>()
        .join(&b'\n');
    let mut points = parse(&alone);
    points.retain(|point| point != dir && point.starts_with(dir));
    Ok(points)
}

/// Whether other mount namespaces see what is mounted below an existing directory: the mount that
/// contains the directory is shared.
pub(super) fn is_shared_at(dir: &Path) -> Result<bool> {
    let real = dir
        .canonicalize()
        .map_err(|e| VolumeError::io("resolve", dir, e))?;
    Ok(has_shared(&bytes()?, &real))
}

/// Whether the mount that a resolved path is on is shared. Of several on one directory the last counts.
fn has_shared(bytes: &[u8], path: &Path) -> bool {
    let mut found = (0, false);
    for line in bytes.split(|b| *b == b'\n') {
        for point in parse(line).iter().filter(|point| path.starts_with(point)) {
            let depth = point.components().count();
            if depth >= found.0 {
                found = (depth, is_shared(line));
            }
        }
    }
    found.1
}

/// Whether a line has the tag of a peer group among its optional fields, which end with a dash.
fn is_shared(line: &[u8]) -> bool {
    line.split(|b| *b == b' ')
        .skip(MOUNT_POINT_FIELD + 2)
        .take_while(|field| *field != b"-")
        .any(|field| field.starts_with(b"shared:"))
}

fn read() -> Result<Vec<PathBuf>> {
    Ok(parse(&bytes()?))
}

fn bytes() -> Result<Vec<u8>> {
    let path = Path::new(MOUNTINFO);
    std::fs::read(path).map_err(|e| VolumeError::io("read", path, e))
}

fn parse(bytes: &[u8]) -> Vec<PathBuf> {
    bytes
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(MOUNT_POINT_FIELD))
        .map(|field| PathBuf::from(OsString::from_vec(unescape(field))))
        .collect()
}

/// Undoes the kernel's octal escapes of white space and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            out.push(byte);
            rest = &tail[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_that_has_a_path_says_whether_it_is_shared() {
        let table = b"22 1 0:20 / / rw - overlay overlay rw\n\
            23 22 0:21 / /root rw,nosuid shared:5 - ext4 /dev/a rw\n\
            24 22 0:22 / /rootless rw - ext4 /dev/b rw\n\
            25 22 0:23 / /slave rw master:3 - ext4 /dev/c rw\n\
            26 22 0:24 / /twice rw - ext4 /dev/d rw\n\
            27 22 0:25 / /twice rw shared:6 - ext4 /dev/e rw\n";
        for (path, shared) in [
            ("/root/pods/a", true),
            ("/root", true),
            ("/rootless/pods", false),
            ("/slave/pods", false),
            ("/twice/pods", true),
            ("/elsewhere", false),
        ] {
            assert_eq!(has_shared(table, Path::new(path)), shared, "{path}");
        }
    }

    #[test]
    fn who_shares_a_mount_is_read_before_the_dash() {
        for (line, shared) in [
            ("23 22 0:21 / /a rw,nosuid shared:5 - tmpfs tmpfs rw", true),
            (
                "23 22 0:21 / /a rw master:3 shared:5 - tmpfs tmpfs rw",
                true,
            ),
            ("23 22 0:21 / /a rw master:3 - tmpfs tmpfs rw", false),
            ("23 22 0:21 / /a rw - tmpfs shared:5 rw", false),
            ("", false),
        ] {
            assert_eq!(is_shared(line.as_bytes()), shared, "{line}");
        }
    }

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let text = b"22 1 0:20 / / rw - ext4 /dev/sda rw\n\
            23 22 0:21 / /a\\040b\\134c rw,nosuid shared:5 - tmpfs tmpfs rw\n\
            24 22 0:22 / /tail\\04 rw - tmpfs tmpfs rw\n";
        assert_eq!(
            parse(text),
            [
                PathBuf::from("/"),
                PathBuf::from("/a b\\c"),
                PathBuf::from("/tail\\04"),
            ]
        );
    }
}
