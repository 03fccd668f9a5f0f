//! A block device for tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// What the device holds at its beginning.
pub const CONTENT: &str = "from the host";
/// Its size, in bytes.
const SIZE: usize = 1 << 20;

/// A loop device over a file. The kernel detaches it from the file when nobody has it open any more,
/// so that nothing is left of it however the test ends.
pub struct Disk {
    pub directory: TempDir,
    /// Its path.
    pub device: PathBuf,
    _opened: File,
}

impl Disk {
    /// A new one. Fails where loop devices can't be had.
    pub fn new() -> Self {
        let directory = super::tempdir();
        let mut content = vec![0; SIZE];
        content[..CONTENT.len()].copy_from_slice(CONTENT.as_bytes());
        let file = directory.path().join("disk");
        fs::write(&file, content).unwrap();
        let device = PathBuf::from(losetup(&["--find".as_ref(), "--show".as_ref(), &file]));
        let opened = File::open(&device).unwrap();
        // Once nobody has it open, that is.
        losetup(&["--detach".as_ref(), &device]);
        Self {
            directory,
            device,
            _opened: opened,
        }
    }

    /// The bytes of its file from there on, as a text.
    pub fn text(&self, at: usize, len: usize) -> String {
        let content = fs::read(self.directory.path().join("disk")).unwrap();
        String::from_utf8_lossy(&content[at..at + len]).into_owned()
    }
}

fn losetup(args: &[&Path]) -> String {
    let ran = Command::new("losetup").args(args).output();
    let ran = ran.expect("the tests of block devices need losetup, of util-linux");
    assert!(ran.status.success(), "the tests need loop devices: {ran:?}");
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}
