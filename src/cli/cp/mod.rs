//! `mirrorlet cp`: copies files and directories from and to containers, by the rules of `docker cp`.
//!
//! The Engine's archive calls transfer them, so that the image needs no `tar` and the container need
//! not run. Permissions, times and links are kept; owners are not: files copied out belong to the
//! caller, files copied in to root. Whatever an archive contains, nothing is written outside of the
//! destination, and nothing through a link in it ([`unpack`]).

mod archive;
mod pack;
pub mod unpack;

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::{Failure, Outcome, client, logs::escape, status, terminal, warn};
use crate::config::args::CpArgs;
use mirrorlet_core::select::find_one_of;

/// Pieces of an archive on their way.
const PIECES_MAX: usize = 8;

/// Mode bits that are kept for files copied out: read, write and execute. The other bits are chosen by
/// root in the container, too.
const PERMISSIONS: u32 = 0o777;
/// The same with set-user-ID, set-group-ID and sticky bits.
const ALL_MODES: u32 = 0o7777;

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A path here.
    Here(PathBuf),
    /// A tar archive on a standard stream.
    Archive,
    /// A path in a pod.
    There { pod: String, path: String },
}

impl Place {
    /// `[NAMESPACE/]POD:PATH`, `-`, or a path here; one with a colon in it is written `./…`.
    fn parse(text: &Path) -> anyhow::Result<Self> {
        if text == Path::new("-") {
            return Ok(Self::Archive);
        }
        let here = || Ok(Self::Here(text.to_owned()));
        let Some(words) = text.to_str() else {
            return here();
        };
        match words.split_once(':') {
            Some((pod, path)) if !words.starts_with(['/', '.']) => {
                if pod.is_empty() || path.is_empty() {
                    bail!("{words:?} is not a file of a pod: expected [NAMESPACE/]POD:PATH");
                }
                let (pod, path) = (pod.to_owned(), path.to_owned());
                Ok(Self::There { pod, path })
            }
            Some(_) | None => here(),
        }
    }
}

/// Copies.
pub async fn cp(args: &CpArgs, root: &Path) -> Outcome {
    let place = |path| Place::parse(path).map_err(Failure::Usage);
    match (place(&args.source)?, place(&args.destination)?) {
        (Place::There { pod, path }, Place::Here(destination)) => {
            let container = Container::find(args, root, &pod).await?;
            let modes = if args.preserve {
                ALL_MODES
            } else {
                PERMISSIONS
            };
            container.copy_from(&path, &destination, modes).await
        }
        (Place::Here(source), Place::There { pod, path }) => {
            let container = Container::find(args, root, &pod).await?;
            container.copy_to(&source, &path).await
        }
        (Place::There { pod, path }, Place::Archive) => {
            archive::refuse_terminal(
                io::stdout().is_terminal(),
                "write",
                "standard output to a file or a program",
            )?;
            let container = Container::find(args, root, &pod).await?;
            container.archive_of(&path).await
        }
        (Place::Archive, Place::There { pod, path }) => {
            archive::refuse_terminal(
                terminal::stdin_is_terminal(),
                "read",
                "standard input from a file or a program",
            )?;
            let container = Container::find(args, root, &pod).await?;
            container.unpack_archive(&path).await
        }
        (Place::Here(_) | Place::Archive, Place::Here(_) | Place::Archive) => Err(Failure::Usage(
            anyhow!("neither path is in a pod; one must be [NAMESPACE/]POD:PATH"),
        )),
        (Place::There { .. }, Place::There { .. }) => Err(Failure::Usage(anyhow!(
            "both paths are in pods; copy to this machine first"
        ))),
    }
}

/// The agent's metadata of a path; `kind` is `dir`, `file`, `symlink` or `other`.
#[derive(Debug, Deserialize)]
struct Stat {
    kind: String,
    #[serde(default)]
    link_target: String,
}

impl Stat {
    fn is_dir(&self) -> bool {
        self.kind == "dir"
    }
}

/// The container of a copy.
struct Container<'a> {
    root: &'a Path,
    uid: String,
    name: Option<&'a str>,
}

impl<'a> Container<'a> {
    async fn find(args: &'a CpArgs, root: &'a Path, pod: &str) -> Result<Self, Failure> {
        let report = status::fetch(root, false).await?;
        let pod = find_one_of(&report.pods, pod)?;
        Ok(Self {
            root,
            uid: pod.uid.to_string(),
            name: args.container.as_deref(),
        })
    }

    fn query(&self, verb: &str, path: &str) -> String {
        let mut query = format!("/v1/pods/{}/{verb}?path={}", self.uid, escape(path));
        if let Some(name) = self.name {
            query.push_str("&container=");
            query.push_str(&escape(name));
        }
        query
    }

    async fn stat(&self, path: &str) -> Result<Stat, Failure> {
        let answer = client::get(self.root, &self.query("files/stat", path)).await?;
        Ok(serde_json::from_slice(&answer.whole().await?)?)
    }

    /// The same with the links followed that it leads through.
    async fn stat_followed(&self, path: &str) -> Result<(String, Stat), Failure> {
        let found = self.stat(path).await?;
        if found.link_target.is_empty() {
            return Ok((path.to_owned(), found));
        }
        let target = self.stat(&found.link_target).await?;
        Ok((found.link_target, target))
    }

    async fn copy_from(&self, source: &str, destination: &Path, modes: u32) -> Outcome {
        let (wanted, contents_only) = without_dot(source);
        let found = self.stat(wanted).await?;
        if contents_only && !found.is_dir() {
            return Err(anyhow!("{wanted} is not a directory").into());
        }
        let name = Path::new(wanted).file_name().map(OsStr::to_owned);
        let target = target_here(destination, name.as_deref(), found.is_dir(), contents_only)?;
        let mut answer = client::get(self.root, &self.query("files", wanted)).await?;
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        let (result_sender, done) = oneshot::channel();
        std::thread::spawn(move || {
            let unpacked = unpack::unpack(Pieces::new(receiver), name.as_deref(), &target, modes);
            // The receiver may be gone.
            let _ = result_sender.send(unpacked);
        });
        let mut broken = None;
        loop {
            match answer.next().await {
                Ok(Some(piece)) => {
                    if sender.send(piece).await.is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(failure) => {
                    broken = Some(failure);
                    break;
                }
            }
        }
        drop(sender);
        let unpacked = done.await.context("unpacking failed")?;
        if let Some(failure) = broken {
            return Err(failure);
        }
        for skipped in unpacked.context("failed to unpack")? {
            warn(&skipped);
        }
        Ok(())
    }

    async fn copy_to(&self, source: &Path, destination: &str) -> Outcome {
        let text = source.to_string_lossy();
        let contents_only = text.ends_with("/.") || text == ".";
        let found = std::fs::symlink_metadata(source)
            .with_context(|| format!("failed to read {}", source.display()))?;
        let is_dir = if contents_only {
            source.is_dir()
        } else {
            found.is_dir()
        };
        let (dir, name) = self
            .target_there(source, destination, is_dir, contents_only)
            .await?;
        let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_MAX);
        let (result_sender, done) = oneshot::channel();
        let source = source.to_owned();
        std::thread::spawn(move || {
            // The receiver may be gone.
            let _ = result_sender.send(pack::pack(&source, name.as_deref(), &sender));
        });
        let frames = futures::stream::unfold(receiver, |mut receiver| async move {
            let piece = receiver.recv().await?;
            Some((piece.map(Frame::data), receiver))
        });
        let path = self.query("files", &dir);
        let sent = client::put(self.root, &path, StreamBody::new(Box::pin(frames))).await;
        let packed = done.await.context("packing failed")?;
        // A local failure explains the remote one, unless the remote end had closed its input.
        let skipped = match (packed, sent) {
            (Ok(skipped), sent) => {
                sent?;
                skipped
            }
            (Err(error), Err(failure)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(failure);
            }
            (Err(error), _) => return Err(anyhow::Error::from(error).into()),
        };
        for skipped in skipped {
            warn(&skipped);
        }
        Ok(())
    }

    /// The directory of the container to unpack into, and the name in it; none where the contents
    /// of the source go right into it.
    async fn target_there(
        &self,
        source: &Path,
        destination: &str,
        source_is_dir: bool,
        contents_only: bool,
    ) -> Result<(String, Option<PathBuf>), Failure> {
        let base = || -> anyhow::Result<PathBuf> {
            let whole = std::fs::canonicalize(source)?;
            let named = source.file_name().or(whole.file_name());
            Ok(named.context("the source has no name")?.into())
        };
        match self.stat_followed(destination).await {
            Ok((path, found)) if found.is_dir() => {
                let name = if contents_only { None } else { Some(base()?) };
                Ok((path, name))
            }
            Ok((path, _)) => {
                if source_is_dir {
                    let words = format!(
                        "can't overwrite {path}, which is not a directory, with a directory"
                    );
                    return Err(anyhow!(words).into());
                }
                split(&path)
            }
            // Missing: it is created with that name, if its directory exists.
            Err(Failure::Failed(missing)) => {
                if destination.ends_with('/') && !source_is_dir {
                    return Err(missing.into());
                }
                let (dir, name) = split(destination.trim_end_matches('/'))?;
                match self.stat_followed(&dir).await {
                    Ok((dir, found)) if found.is_dir() => Ok((dir, name)),
                    Ok((dir, _)) => Err(anyhow!("{dir} is not a directory").into()),
                    Err(failure) => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }
}

/// A path without a `/.` at its end, and whether there was one: the contents of a directory are
/// meant, rather than the directory.
fn without_dot(path: &str) -> (&str, bool) {
    match path.strip_suffix("/.") {
        Some("") => ("/", true),
        Some(dir) => (dir, true),
        None => (
            path.strip_suffix('/')
                .filter(|p| !p.is_empty())
                .unwrap_or(path),
            false,
        ),
    }
}

/// A path of a container as its directory and its name.
fn split(path: &str) -> Result<(String, Option<PathBuf>), Failure> {
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    let dir = if dir.is_empty() { "/" } else { dir };
    if name.is_empty() || name == "." || name == ".." {
        return Err(anyhow!("{path:?} has no name to copy to").into());
    }
    Ok((dir.to_owned(), Some(name.into())))
}

/// The local destination of a copy, by the rules of `cp -r`.
fn target_here(
    destination: &Path,
    name: Option<&OsStr>,
    is_dir: bool,
    contents_only: bool,
) -> anyhow::Result<PathBuf> {
    let shown = destination.display();
    match std::fs::metadata(destination) {
        Ok(found) if found.is_dir() => match name {
            Some(name) if !contents_only => Ok(destination.join(name)),
            Some(_) | None => Ok(destination.to_owned()),
        },
        Ok(_) if is_dir => {
            bail!("can't overwrite {shown}, which is not a directory, with a directory")
        }
        // A file in place of a device would be visible to all programs that write to the device.
        Ok(found) => match unpack::special(found.file_type()) {
            Some(kind) => bail!(
                "invalid output path: {shown} must be a directory or a regular file: got a {kind}"
            ),
            // A link is kept, and its target is replaced.
            None => std::fs::canonicalize(destination)
                .with_context(|| format!("failed to read {shown}")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !is_dir && destination.as_os_str().as_encoded_bytes().ends_with(b"/") {
                bail!("directory {shown} does not exist");
            }
            let parent = destination.parent().filter(|p| !p.as_os_str().is_empty());
            if !parent.unwrap_or(Path::new(".")).is_dir() {
                bail!("the directory of {shown} does not exist");
            }
            Ok(destination.to_owned())
        }
        Err(error) => Err(error).with_context(|| format!("failed to read {shown}")),
    }
}

/// Whether a path says where it leads: names only, no way up and no root.
fn is_plain(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}

/// Chunks of a stream, readable by a thread.
struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Pieces {
    fn new(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self {
            receiver,
            piece: Bytes::new(),
        }
    }
}

impl io::Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        buffer[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_a_pod_unless_a_path_begins() {
        let there = |pod: &str, path: &str| Place::There {
            pod: pod.to_owned(),
            path: path.to_owned(),
        };
        for (text, place) in [
            ("web:/etc", there("web", "/etc")),
            ("ns/web:a:b", there("ns/web", "a:b")),
            ("a/b", Place::Here("a/b".into())),
            ("./a:b", Place::Here("./a:b".into())),
            ("-", Place::Archive),
            ("./-", Place::Here("./-".into())),
            ("/a:b", Place::Here("/a:b".into())),
        ] {
            assert_eq!(Place::parse(Path::new(text)).unwrap(), place, "{text}");
        }
        for bad in [":/etc", "web:"] {
            assert!(Place::parse(Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_and_directories_are_told_apart() {
        for (path, wanted) in [
            ("/a/b", ("/a", Some("b"))),
            ("/b", ("/", Some("b"))),
            ("b", (".", Some("b"))),
            ("/a/..", ("", None)),
            ("", ("", None)),
        ] {
            match (split(path), wanted) {
                (Ok((dir, name)), (wanted_dir, Some(wanted_name))) => {
                    assert_eq!((dir.as_str(), name), (wanted_dir, Some(wanted_name.into())));
                }
                (Err(_), (_, None)) => {}
                (other, _) => panic!("{path}: {other:?}"),
            }
        }
        assert_eq!(without_dot("/a/."), ("/a", true));
        assert_eq!(without_dot("/."), ("/", true));
        assert_eq!(without_dot("/a/"), ("/a", false));
        assert_eq!(without_dot("/"), ("/", false));
    }

    #[test]
    fn what_is_copied_out_lands_where_cp_would_put_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::write(at("file"), "").unwrap();
        let file = std::fs::canonicalize(at("file")).unwrap();
        let name = Some(OsStr::new("x"));
        let target = |path: &str, is_dir, contents| target_here(&at(path), name, is_dir, contents);
        assert_eq!(target("", false, false).unwrap(), at("x"));
        assert_eq!(target("", true, true).unwrap(), at(""));
        assert_eq!(target("file", false, false).unwrap(), file);
        assert_eq!(target("new", true, false).unwrap(), at("new"));
        assert_eq!(target("new/", true, false).unwrap(), at("new/"));
        let link = |name: &str, to: &Path| std::os::unix::fs::symlink(to, at(name)).unwrap();
        link("link", &at("file"));
        link("null", Path::new("/dev/null"));
        link("gone", Path::new("/nowhere"));
        assert_eq!(target("link", false, false).unwrap(), file);
        assert_eq!(target("gone", false, false).unwrap(), at("gone"));
        for (path, is_dir, words) in [
            (
                "/dev/null",
                false,
                "must be a directory or a regular file: got a device",
            ),
            (
                "null",
                false,
                "must be a directory or a regular file: got a device",
            ),
            ("file", true, "can't overwrite"),
            ("new/", false, "does not exist"),
            ("no/new", false, "the directory of"),
        ] {
            let error = target(path, is_dir, false).unwrap_err().to_string();
            assert!(error.contains(words), "{path}: {error}");
        }
    }
}
