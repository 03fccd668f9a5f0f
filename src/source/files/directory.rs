//! The manifest directory over time: reads changed files, decides file by file, keeps the results.
//!
//! Blocking; the task in the parent module runs each look on a separate thread. A look at an unchanged
//! directory costs one `stat` per file.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};

use super::MISSING_CONFIRM;
use super::scan::{self, Elsewhere, Entry, Identity, Listing, ReadError};
use crate::source::last_good::LastGoodStore;
use mirrorlet_core::api::{Code, Diagnostic, NodeName};
use mirrorlet_core::desired::{PodSource, SourceObject, SourcePod, SourceSet, SourceWorkload};
use mirrorlet_core::hold::{LastGood, Present, decide_file};
use mirrorlet_core::manifest::{
    Document, ParseContext, Parsed, parse_manifest, secret_open_to_others,
};
use mirrorlet_core::sizes::Size;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_host::disk;

/// How long missing files stay held after the directory was away: a directory is replaced file by file.
/// The same time as for a half-written file.
pub(super) const RETURN_HOLD: Duration = mirrorlet_core::hold::HALF_WRITTEN_HOLD;

/// The last content of one file, and the decision about it.
#[derive(Debug)]
struct Known {
    /// Set when an equal identity means equal content.
    identity: Option<Identity>,
    digest: [u8; 32],
    /// When this content was first seen.
    since: Instant,
    pods: Vec<SourcePod>,
    objects: Vec<SourceObject>,
    workloads: Vec<SourceWorkload>,
    problems: Vec<Diagnostic>,
    /// When to decide again though the content stays.
    again: Option<Instant>,
    /// Whether it defines a Secret.
    is_secret: bool,
    /// The size of what is in force of it.
    size: Size,
}

/// The decision about one file.
struct Decided {
    known: Known,
    last_good: Option<LastGood>,
    /// Whether all that is in force of it was so before.
    is_former: bool,
}

/// How often a look is repeated for newly missing files. A writer may never stop replacing files, and
/// must not delay everything else.
const REPEATS_MAX: u32 = 3;

/// When a file is read again that was too much, as others may have become smaller.
const TOO_MUCH_PAUSE: Duration = Duration::from_mins(1);

/// The result of one look at the directory.
#[derive(Debug)]
pub(super) struct Look {
    /// The whole set.
    pub(super) set: SourceSet,
    /// Why the directory couldn't be read.
    pub(super) unavailable: Option<Diagnostic>,
    /// When to look again at the latest, if sooner than usual.
    pub(super) again: Option<Instant>,
}

/// Existing files are missing. They may be being replaced: look again soon.
#[derive(Debug)]
pub(super) struct FilesMissing;

/// The directory, as known.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    source: PodSource,
    node_name: NodeName,
    last_good: LastGoodStore,
    load_problems: Vec<Diagnostic>,
    save_problems: Vec<Diagnostic>,
    files: BTreeMap<PathBuf, Known>,
    ignored: Vec<String>,
    /// Whether it was ever read.
    known: bool,
    /// The file system that it was on when it was last read.
    device: Option<u64>,
    /// Why it couldn't be read last time.
    unavailable: Option<Diagnostic>,
    /// When it came back after having been away.
    returned: Option<Instant>,
    /// The files that the last look missed, if it is to be repeated.
    missed: BTreeSet<PathBuf>,
    /// How often the last look was a repetition, one after the other.
    repeats: u32,
}

impl Directory {
    pub(super) fn new(path: PathBuf, root: &Path, node_name: NodeName, source: PodSource) -> Self {
        let (last_good, load_problems) = LastGoodStore::load(root, source, None, &node_name);
        Self {
            path,
            source,
            node_name,
            last_good,
            load_problems,
            save_problems: Vec::new(),
            files: BTreeMap::new(),
            ignored: Vec::new(),
            known: false,
            device: None,
            unavailable: None,
            returned: None,
            missed: BTreeSet::new(),
            repeats: 0,
        }
    }

    /// Reads changed files and decides. A file counts as removed once two consecutive looks have missed
    /// it; the first of them returns [`FilesMissing`].
    pub(super) fn look(&mut self) -> Result<Look, FilesMissing> {
        let now = Instant::now();
        // Asked before the files are: those of a file system that goes in between are missing from one
        // look only.
        let device = fs::metadata(&self.path).ok().map(|dir| dir.dev());
        let is_elsewhere = self.device.is_some() && device != self.device;
        match self.list(is_elsewhere) {
            Ok(listing) => {
                if self.unavailable.take().is_some() || is_elsewhere {
                    self.returned = Some(now);
                }
                self.ignored = listing.ignored;
                let mut seen = Vec::new();
                for entry in listing.manifests {
                    if self.take_in(&entry, now) {
                        seen.push(entry.path);
                    }
                }
                let (gone, has_others) = self.confirm(self.missing(&seen))?;
                self.known = true;
                self.device = device;
                self.settle_missing(gone, now);
                self.last_good.set_mounted(scan::is_mount(&self.path));
                let mut look = self.whole(None);
                if has_others {
                    look.again = Some(now + MISSING_CONFIRM);
                }
                Ok(look)
            }
            Err(error) => {
                self.missed.clear();
                self.repeats = 0;
                let problem = self.cannot_read(&error);
                if !self.known {
                    self.hold_stored(&problem, now);
                    self.known = true;
                }
                // Nothing of its files can be decided, however due it is. It is looked for soon anyway.
                Ok(Look {
                    again: None,
                    ..self.whole(Some(problem))
                })
            }
        }
    }

    /// The manifests: those of the directory itself, or of the embedded API's directories below it.
    ///
    /// # Errors
    /// The directory can't be read, or is on another file system than before and has none: if a
    /// directory was unmounted, even before this agent started, the empty one below its mount is
    /// visible.
    fn list(&self, is_elsewhere: bool) -> std::io::Result<Listing> {
        let listing = match self.source {
            PodSource::Embedded => scan::list_stored(&self.path),
            PodSource::File | PodSource::Http | PodSource::Api => scan::list(&self.path),
        }?;
        if listing.manifests.is_empty()
            && (is_elsewhere && !self.files.is_empty() || self.was_unmounted())
        {
            return Err(std::io::Error::other(Elsewhere));
        }
        Ok(listing)
    }

    /// Whether it was a mount point when an earlier agent last read it, and has not been one since this
    /// agent started.
    fn was_unmounted(&self) -> bool {
        let is_here = |location: &str| Path::new(location).starts_with(&self.path);
        self.device.is_none()
            && self.last_good.mounted().any(is_here)
            && !scan::is_mount(&self.path)
    }

    /// Writes new last good versions to disk. Returns whether that changed the problems.
    pub(super) fn flush(&mut self) -> bool {
        let problems = self.last_good.flush();
        let changed = problems != self.save_problems;
        self.save_problems = problems;
        changed
    }

    fn cannot_read(&self, error: &std::io::Error) -> Diagnostic {
        let message =
            format!("failed to read the manifest directory, its pods keep running: {error}");
        let path = self.path.display().to_string();
        let is_elsewhere = matches!(error.get_ref(), Some(error) if error.is::<Elsewhere>());
        let help = if is_elsewhere {
            "mount it again; to stop its pods instead, put another manifest there: they stop after 10 s"
        } else {
            "create, repair or mount the directory; to stop pods, remove their manifests one by one"
        };
        Diagnostic::error(Code::SourceUnavailable, path, message).help(help)
    }

    /// Reads one file. Returns whether it exists.
    fn take_in(&mut self, entry: &Entry, now: Instant) -> bool {
        let identity = match &entry.file {
            Ok(identity) => *identity,
            Err(why) => return self.take_unreadable(entry, why, now),
        };
        let due = |known: &Known| known.again.is_some_and(|again| again <= now);
        if let Some(known) = self.files.get(&entry.path)
            && known.identity == Some(identity)
            && !due(known)
        {
            return true;
        }
        let (bytes, identity) = match scan::read(&entry.path) {
            Ok(read) => read,
            Err(ReadError::Gone) => return false,
            Err(ReadError::Unreadable(why)) => return self.take_unreadable(entry, &why, now),
        };
        let digest = Sha256::digest(&bytes).into();
        let settled = identity.is_settled(SystemTime::now()).then_some(identity);
        if let Some(known) = self.files.get_mut(&entry.path)
            && known.digest == digest
            && known.again.is_none()
        {
            known.identity = settled;
            return true;
        }
        let location = entry.path.to_string_lossy();
        let context = ParseContext {
            node_name: &self.node_name,
            source: self.source,
            location: &location,
        };
        let parsed = parse_manifest(&bytes, &context);
        let decided = self.decide(&entry.path, &bytes, &parsed, digest, now);
        let (size, since) = (decided.known.size, decided.known.since);
        let too_much = (!decided.is_former).then(|| self.too_much(&entry.path, size));
        if let Some(problem) = too_much.flatten() {
            self.take_problem(&entry.path, problem, now);
            if let Some(known) = self.files.get_mut(&entry.path) {
                known.again = Some(now + TOO_MUCH_PAUSE);
                // Its text stays the one that was seen all the while.
                (known.digest, known.since) = (digest, since);
            }
        } else {
            self.adopt(&entry.path, decided);
        }
        if let Some(known) = self.files.get_mut(&entry.path) {
            known.identity = settled;
        }
        true
    }

    /// The problem of a file that is too much together with all others.
    fn too_much(&self, path: &Path, size: Size) -> Option<Diagnostic> {
        let others = self.files.iter().filter(|(other, _)| *other != path);
        let others = others.map(|(_, known)| known.size);
        size.too_much_with(others, &path.to_string_lossy())
    }

    fn take_unreadable(&mut self, entry: &Entry, why: &str, now: Instant) -> bool {
        let location = entry.path.to_string_lossy();
        let message = format!("failed to read the file: {why}");
        let problem = Diagnostic::error(Code::Unreadable, location, message);
        self.take_problem(&entry.path, problem, now);
        true
    }

    /// Holds whatever a file described, because of a problem that isn't in its text.
    fn take_problem(&mut self, path: &Path, problem: Diagnostic, now: Instant) {
        let digest = Sha256::digest(problem.to_string()).into();
        let parsed = Parsed {
            documents: Vec::new(),
            problems: vec![problem],
        };
        let decided = self.decide(path, &[], &parsed, digest, now);
        self.adopt(path, decided);
    }

    fn decide(
        &self,
        path: &Path,
        raw: &[u8],
        parsed: &Parsed,
        digest: [u8; 32],
        now: Instant,
    ) -> Decided {
        let location = path.to_string_lossy();
        let before = self.files.get(path);
        let same = before.filter(|known| known.digest == digest);
        let since = same.map_or(now, |known| known.since);
        let good = self.last_good.get(&location);
        let present = Present {
            source: self.source,
            location: &location,
            raw,
            parsed,
            seen_for: now.saturating_duration_since(since),
        };
        let decision = decide_file(present, good);
        let former_bytes = before.map_or_else(
            || good.map_or(0, |good| good.raw.len()),
            |known| known.size.bytes,
        );
        let (size, is_former) = (decision.size(raw.len(), former_bytes), decision.is_former());
        let known = Known {
            identity: None,
            digest,
            since,
            pods: decision.pods,
            objects: decision.objects,
            workloads: decision.workloads,
            problems: decision.problems,
            again: decision.look_again.map(|wait| now + wait),
            is_secret: parsed.documents.iter().any(Document::is_secret),
            size,
        };
        Decided {
            known,
            last_good: decision.last_good,
            is_former,
        }
    }

    fn adopt(&mut self, path: &Path, decided: Decided) {
        if let Some(good) = decided.last_good {
            self.last_good.put(&path.to_string_lossy(), good);
        }
        self.files.insert(path.to_owned(), decided.known);
    }

    /// Files that were there, now or in an earlier life of the agent, and are not.
    fn missing(&self, seen: &[PathBuf]) -> Vec<PathBuf> {
        let stored = self.last_good.locations().map(PathBuf::from);
        let mut missing: Vec<_> = self.files.keys().cloned().chain(stored).collect();
        missing.small_sort();
        missing.dedup();
        let seen: HashSet<&PathBuf> = seen.iter().collect();
        missing.retain(|path| !seen.contains(path));
        missing
    }

    /// Returns the missing files that the last look missed as well, and whether there are others, which
    /// stay known. Within the limit, the look is repeated for others.
    fn confirm(&mut self, missing: Vec<PathBuf>) -> Result<(Vec<PathBuf>, bool), FilesMissing> {
        let before = std::mem::take(&mut self.missed);
        let has_others = missing.iter().any(|path| !before.contains(path));
        if has_others && self.repeats < REPEATS_MAX {
            self.repeats += 1;
            self.missed = missing.into_iter().collect_set();
            return Err(FilesMissing);
        }
        self.repeats = 0;
        let mut gone = missing;
        gone.retain(|path| before.contains(path));
        Ok((gone, has_others))
    }

    /// Forgets missing files; holds them instead if the directory has only just come back.
    fn settle_missing(&mut self, missing: Vec<PathBuf>, now: Instant) {
        let until = self.returned.map(|returned| returned + RETURN_HOLD);
        match until.filter(|until| *until > now) {
            Some(until) if !missing.is_empty() => {
                for path in missing {
                    let message = format!(
                        "the file is missing from the replaced manifest directory; its pods stop {} s after the replacement unless the file is put back",
                        RETURN_HOLD.as_secs()
                    );
                    let location = path.to_string_lossy();
                    let problem = Diagnostic::error(Code::SourceUnavailable, location, message);
                    self.take_problem(&path, problem, now);
                    if let Some(known) = self.files.get_mut(&path) {
                        known.again = Some(until);
                    }
                }
            }
            Some(_) => {}
            None => {
                self.returned = None;
                for path in missing {
                    self.files.remove(&path);
                    self.last_good.forget(&path.to_string_lossy());
                }
            }
        }
    }

    /// Before the directory was ever read: everything an earlier life of the agent ran from it.
    fn hold_stored(&mut self, problem: &Diagnostic, now: Instant) {
        let here = |location: &&str| Path::new(location).starts_with(&self.path);
        let stored: Vec<_> = self
            .last_good
            .locations()
            .filter(here)
            .map(PathBuf::from)
            .collect();
        for path in stored {
            self.take_problem(&path, problem.clone(), now);
        }
    }

    fn whole(&mut self, unavailable: Option<Diagnostic>) -> Look {
        self.unavailable = unavailable;
        Look {
            set: self.set(),
            unavailable: self.unavailable.clone(),
            again: self.files.values().filter_map(|known| known.again).min(),
        }
    }

    /// The result of the newest look.
    pub(super) fn set(&self) -> SourceSet {
        let files = || self.files.values();
        let mut problems: Vec<_> = self.unavailable.iter().cloned().collect();
        problems.extend(self.open_to_others());
        let secrets = self.files.iter().filter(|(_, known)| known.is_secret);
        let open = secrets.filter(|(path, _)| disk::others_can_read(path));
        problems.extend(open.map(|(path, _)| secret_open_to_others(&path.to_string_lossy())));
        problems.extend(self.load_problems.iter().cloned());
        problems.extend(self.save_problems.iter().cloned());
        problems.extend(files().flat_map(|known| known.problems.iter().cloned()));
        SourceSet {
            pods: files()
                .flat_map(|known| known.pods.iter().cloned())
                .collect(),
            objects: files()
                .flat_map(|known| known.objects.iter().cloned())
                .collect(),
            workloads: files()
                .flat_map(|known| known.workloads.iter().cloned())
                .collect(),
            problems,
            ignored: self.ignored.clone(),
            sizes: self
                .files
                .iter()
                .map(|(path, known)| (path.to_string_lossy().into_owned(), known.size))
                .collect_map(),
            values: self.last_good.values(),
            ..SourceSet::default()
        }
    }

    /// The writer of a manifest is root on this machine.
    fn open_to_others(&self) -> Option<Diagnostic> {
        /// Bits of a mode: its group may write, all may.
        const GROUP: u32 = 0o020;
        const ALL: u32 = 0o002;
        let found = fs::metadata(&self.path).ok()?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let of_others = found.uid() != 0 && found.uid() != uid.as_raw();
        let by_group = found.mode() & GROUP != 0 && found.gid() != gid.as_raw();
        if !of_others && !by_group && found.mode() & ALL == 0 {
            return None;
        }
        let path = self.path.display().to_string();
        let message = "other users can write to the manifest directory, and so run any container";
        let problem = Diagnostic::warning(Code::InvalidValue, path, message);
        Some(problem.help("let only root own it and write to it: chown root and chmod go-w"))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests;
