//! Mount points from `/proc/self/mountinfo`, parsed line by line: it has a line for each volume and
//! sub-path of all pods, and is read for each of them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
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
    with_table(|table| has_point(table, &real))
}

fn has_point(table: impl BufRead, path: &Path) -> io::Result<bool> {
    let mut found = false;
    each_line(table, |line| {
        found = point(line).is_some_and(|point| point == path);
        !found
    })?;
    Ok(found)
}

/// Mount points below a resolved directory, oldest first; a directory mounted twice is listed twice.
pub(super) fn below(dir: &Path) -> Result<Vec<PathBuf>> {
    with_table(|table| points_below(table, dir, |_| true))
}

/// Mount points below a directory that are private to this mount namespace, oldest first: changes to
/// them don't propagate.
pub(super) fn unshared_below(dir: &Path) -> Result<Vec<PathBuf>> {
    with_table(|table| points_below(table, dir, |line| !is_shared(line)))
}

/// The mount points below a directory whose lines satisfy the condition.
fn points_below(
    table: impl BufRead,
    dir: &Path,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<PathBuf>> {
    let mut points = Vec::new();
    each_line(table, |line| {
        let below = point(line).filter(|point| point != dir && point.starts_with(dir));
        points.extend(below.filter(|_| is_wanted(line)));
        true
    })?;
    Ok(points)
}

/// Whether mounts below an existing directory propagate to other mount namespaces: the mount that
/// contains the directory is shared.
pub(super) fn is_shared_at(dir: &Path) -> Result<bool> {
    let real = dir
        .canonicalize()
        .map_err(|e| VolumeError::io("resolve", dir, e))?;
    with_table(|table| has_shared(table, &real))
}

/// Whether the mount that a resolved path is on is shared. Of several on one directory the last counts.
fn has_shared(table: impl BufRead, path: &Path) -> io::Result<bool> {
    let mut found = (0, false);
    each_line(table, |line| {
        if let Some(point) = point(line).filter(|point| path.starts_with(point)) {
            let depth = point.components().count();
            if depth >= found.0 {
                found = (depth, is_shared(line));
            }
        }
        true
    })?;
    Ok(found.1)
}

/// Whether a line has the tag of a peer group among its optional fields, which end with a dash.
fn is_shared(line: &[u8]) -> bool {
    line.split(|b| *b == b' ')
        .skip(MOUNT_POINT_FIELD + 2)
        .take_while(|field| *field != b"-")
        .any(|field| field.starts_with(b"shared:"))
}

/// Answers a question from the table of mounts.
fn with_table<T>(ask: impl FnOnce(BufReader<File>) -> io::Result<T>) -> Result<T> {
    let answer = File::open(MOUNTINFO).map(BufReader::new).and_then(ask);
    answer.map_err(|e| VolumeError::io("read", Path::new(MOUNTINFO), e))
}

/// Shows one line after the other, until `see` wants no more.
fn each_line(mut table: impl BufRead, mut see: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut line = Vec::new();
    while table.read_until(b'\n', &mut line)? > 0 {
        let more = see(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
        if !more {
            break;
        }
    }
    Ok(())
}

/// The mount point of a line.
fn point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|b| *b == b' ').nth(MOUNT_POINT_FIELD)?;
    Some(PathBuf::from(OsString::from_vec(unescape(field))))
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
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_mount_that_has_a_path_says_whether_it_is_shared() {
        let table: &[u8] = b"22 1 0:20 / / rw - overlay overlay rw\n\
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
            assert_eq!(
                has_shared(table, Path::new(path)).unwrap(),
                shared,
                "{path}"
            );
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
        let table: &[u8] = b"22 1 0:20 / / rw - ext4 /dev/sda rw\n\
            23 22 0:21 / /a\\040b\\134c rw,nosuid shared:5 - tmpfs tmpfs rw\n\
            24 22 0:22 / /tail\\04 rw - tmpfs tmpfs rw";
        let below = |dir: &str| points_below(table, Path::new(dir), |_| true).unwrap();
        assert_eq!(
            below("/"),
            [PathBuf::from("/a b\\c"), PathBuf::from("/tail\\04")]
        );
        assert!(below("/a").is_empty());
        let alone = points_below(table, Path::new("/"), |line| !is_shared(line)).unwrap();
        assert_eq!(alone, [PathBuf::from("/tail\\04")]);
        for (path, is_point) in [
            ("/", true),
            ("/a b\\c", true),
            ("/tail\\04", true),
            ("/a", false),
        ] {
            assert_eq!(
                has_point(table, Path::new(path)).unwrap(),
                is_point,
                "{path}"
            );
        }
    }

    #[test]
    fn no_more_is_read_than_the_answer_takes() {
        let line = |n: usize| format!("23 22 0:21 / /v/{n} rw - tmpfs tmpfs rw\n");
        let text: String = (0..10_000).map(line).collect();
        let mut table = BufReader::with_capacity(64, text.as_bytes());
        assert!(has_point(&mut table, Path::new("/v/0")).unwrap());
        let mut rest = Vec::new();
        table.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), text.len() - line(0).len());
    }
}
