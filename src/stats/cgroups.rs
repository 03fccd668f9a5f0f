//! The cgroups of this machine: their paths, and their files.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use mirrorlet_core::stats::cgroup::{Controller, Files, Version};
use mirrorlet_core::stats::place;
use mirrorlet_host::cgroups::Hierarchies;

/// Longest text of a file, in bytes: a list of some hundred thousand processes. What is behind
/// that is not read.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The initial size of a buffer in bytes: most texts are smaller than a page.
const TEXT_BYTES: usize = 16 << 10;

/// Maximum number of directories in a search, and its depth: far more than a machine full of pods has.
const SEARCH_DIRECTORIES_MAX: usize = 50_000;
const SEARCH_DEPTH_MAX: usize = 16;

/// All cgroups.
#[derive(Debug, Clone)]
pub(super) struct Cgroups(Hierarchies);

impl Cgroups {
    pub(super) fn new(root: &Path) -> Self {
        Self(Hierarchies::at(root))
    }

    pub(super) fn version(&self) -> Version {
        self.0.version()
    }

    /// Whether there is a cgroup at that path.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.0.of(Controller::Memory).join(path).is_dir()
    }

    /// Opens the files of the cgroup at that path, which are read into that buffer.
    pub(super) fn open<'a>(&self, path: &str, buffer: &'a mut Buffer) -> Directory<'a> {
        buffer.paths = Controller::ALL.map(|controller| {
            let mut path = self.0.of(controller).join(path).into_os_string();
            path.push("/");
            path.into_string().unwrap_or_default()
        });
        Directory { buffer }
    }

    /// Paths of the cgroups of these containers, wherever they are: an Engine may have a parent of its
    /// own configured, or run rootless.
    pub(super) fn search(&self, wanted: &HashSet<&str>) -> HashMap<String, String> {
        let root = self.0.of(Controller::Memory);
        let mut found = HashMap::new();
        let mut left = SEARCH_DIRECTORIES_MAX;
        let mut open = vec![(root.clone(), 0)];
        while let Some((directory, depth)) = open.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if left == 0 || found.len() == wanted.len() {
                    return found;
                }
                left -= 1;
                let path = entry.path();
                let name = entry.file_name();
                let id = name.to_str().and_then(place::container_of);
                match id.filter(|id| wanted.contains(id)) {
                    Some(id) => {
                        let below = path.strip_prefix(&root).ok().and_then(Path::to_str);
                        if let Some(below) = below {
                            found.insert(id.to_owned(), below.to_owned());
                        }
                    }
                    None if depth < SEARCH_DEPTH_MAX => open.push((path, depth + 1)),
                    None => {}
                }
            }
        }
        found
    }
}

/// Room for one text at a time.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    paths: [String; Controller::ALL.len()],
    text: Vec<u8>,
}

impl Buffer {
    /// The text of a file; none if it can't be read, or isn't text.
    pub(super) fn read(&mut self, path: impl AsRef<Path>) -> Option<&str> {
        let len = fill(&mut self.text, path.as_ref())?;
        std::str::from_utf8(&self.text[..len]).ok()
    }
}

/// Reads a file into `text`, which grows as needed. Not `read_to_string`: that requests the length of
/// each file first, which the kernel reports as 0, and reads its end separately. The kernel fills the
/// given buffer (`fs/seq_file.c`), so a text that doesn't fill it is complete.
fn fill(text: &mut Vec<u8>, path: &Path) -> Option<usize> {
    let mut file = File::open(path).ok()?;
    if text.is_empty() {
        text.resize(TEXT_BYTES, 0);
    }
    let mut len = 0;
    while len < TEXT_BYTES_MAX {
        if len == text.len() {
            text.resize(2 * len, 0);
        }
        match file.read(&mut text[len..]) {
            Ok(read) => {
                len += read;
                if len < text.len() {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(len)
}

/// The files of one cgroup.
pub(super) struct Directory<'a> {
    buffer: &'a mut Buffer,
}

impl Files for Directory<'_> {
    fn read(&mut self, controller: Controller, file: &str) -> Option<&str> {
        let at = Controller::ALL
            .iter()
            .position(|each| *each == controller)?;
        let Buffer { paths, text } = &mut *self.buffer;
        let path = &mut paths[at];
        let len = path.len();
        path.push_str(file);
        let read = fill(text, Path::new(path.as_str()));
        path.truncate(len);
        std::str::from_utf8(&text[..read?]).ok()
    }
}
