//! The kubelet's layout of logs for log collectors: links to the files of the Engine.
//!
//! `<dir>/<namespace>_<pod>_<uid>/<container>/<restart>.log` links to the Engine's file, and
//! `<dir>/../containers/<pod>_<namespace>_<container>-<id>.log` to the former. The Engine deletes its
//! file with the container, and the links are removed too. Directories may be shared with a kubelet:
//! only dead links, and directories that contained one, are ever removed.
//!
//! Upstream: `pkg/kubelet/kuberuntime` (`BuildContainerLogsDirectory`, `legacyLogSymlink`,
//! `evictPodLogsDirectories`) and cri-dockerd's `core/container.go`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::containers::Containers;
use super::translate::{Kind, OurContainer};
use mirrorlet_core::api::ContainerId;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_host::volume::HostFiles;

/// Longest file name, in bytes, of the usual file systems.
const NAME_MAX: usize = 255;

/// How many links are followed to a log: ours are two.
const LINKS_MAX: usize = 4;

/// End of every log's name.
const SUFFIX: &str = ".log";

/// Manages the links.
#[derive(Debug, Clone)]
pub(super) struct LogLinks {
    pods: PathBuf,
    containers: PathBuf,
    /// Access to the Engine's files.
    host: HostFiles,
}

impl LogLinks {
    /// Links under that directory and in `containers` beside it.
    pub(super) fn new(pod_logs_dir: &Path, host: HostFiles) -> Self {
        Self {
            pods: pod_logs_dir.to_owned(),
            containers: pod_logs_dir.with_file_name("containers"),
            host,
        }
    }

    /// The two links of a container, the one to the Engine's file first; none of a sandbox.
    fn of(&self, ours: &OurContainer, id: &str) -> Option<(PathBuf, PathBuf)> {
        let Kind::Container {
            name,
            restart_count,
            ..
        } = &ours.kind
        else {
            return None;
        };
        let (pod, namespace) = (&ours.full_name.name, &ours.full_name.namespace);
        let log = self
            .pods
            .join(format!("{namespace}_{pod}_{}", ours.uid))
            .join(&**name)
            .join(format!("{restart_count}{SUFFIX}"));
        let mut flat = format!("{pod}_{namespace}_{name}-{id}");
        flat.truncate(NAME_MAX - SUFFIX.len());
        flat.push_str(SUFFIX);
        Some((log, self.containers.join(flat)))
    }

    /// Makes the links of a container; what is in their place goes.
    fn make(&self, ours: &OurContainer, id: &str, real: &Path) -> io::Result<()> {
        let Some((log, flat)) = self.of(ours, id) else {
            return Ok(());
        };
        for (link, target) in [(&log, real), (&flat, log.as_path())] {
            if let Some(dir) = link.parent() {
                fs::create_dir_all(dir)?;
            }
            remove_link(link)?;
            std::os::unix::fs::symlink(target, link)?;
        }
        Ok(())
    }

    /// Removes the links of a container, and the directories that hold no other.
    fn remove(&self, ours: &OurContainer, id: &str) -> io::Result<()> {
        let Some((log, flat)) = self.of(ours, id) else {
            return Ok(());
        };
        remove_link(&flat)?;
        remove_link(&log)?;
        self.remove_emptied(&log);
        Ok(())
    }

    /// Removes dead links, and the directories that contained nothing else: remains of containers that
    /// were removed by others.
    fn clean(&self) -> io::Result<()> {
        for pod in children(&self.pods)? {
            for container in children(&pod)? {
                for log in children(&container)? {
                    if self.is_dead(&log) {
                        remove_link(&log)?;
                        self.remove_emptied(&log);
                    }
                }
            }
        }
        for flat in children(&self.containers)? {
            let ours = fs::read_link(&flat).is_ok_and(|target| target.starts_with(&self.pods));
            if ours && self.is_dead(&flat) {
                remove_link(&flat)?;
            }
        }
        Ok(())
    }

    /// Whether a link is dead. Links refer to the host's files, and never count as dead if those aren't
    /// visible.
    fn is_dead(&self, path: &Path) -> bool {
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        is_link && self.leads(path, LINKS_MAX).is_ok_and(|leads| !leads)
    }

    /// Whether a link's target exists. Links of ours refer to links of ours, which have the same path
    /// for the agent; the Engine's file may have another path for it.
    fn leads(&self, link: &Path, left: usize) -> io::Result<bool> {
        let target = match fs::read_link(link) {
            Ok(target) => link.parent().unwrap_or(link).join(target),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if left > 0 && fs::symlink_metadata(&target).is_ok_and(|found| found.is_symlink()) {
            return self.leads(&target, left - 1);
        }
        match self.host.path(&target)? {
            Some(seen) => seen.try_exists(),
            None => Ok(true),
        }
    }

    /// Removes the directories of a container and of its pod if they are empty. The system refuses to
    /// remove others.
    fn remove_emptied(&self, log: &Path) {
        for dir in log.ancestors().skip(1).take(2) {
            if dir == self.pods || fs::remove_dir(dir).is_err() {
                return;
            }
        }
    }
}

/// Removes dead links under that directory, and in `containers` beside it: their containers are gone.
///
/// # Errors
/// An error of the system.
pub fn remove_dead(pod_logs_dir: &Path, host: HostFiles) -> io::Result<()> {
    LogLinks::new(pod_logs_dir, host).clean()
}

/// The entries of a directory; none if it does not exist.
fn children(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Removes a link. Any other file in its place is not ours.
fn remove_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} is not a link", path.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The links to the logs of our containers, if enabled.
pub(super) struct ContainerLogs {
    pub(super) links: Option<LogLinks>,
    pub(super) containers: Arc<Containers>,
}

impl ContainerLogs {
    /// Creates the links to the log of a container that was started, or failed to. Costs an inspect if
    /// links are enabled. A failure is logged, and doesn't fail the start.
    pub(super) async fn link_log(&self, id: &str) {
        let Some(links) = self.links.clone() else {
            return;
        };
        let Some(record) = self.containers.index.get(id) else {
            return;
        };
        let made = match self.containers.engine.inspect_container(id).await {
            Ok(found) => {
                // A log driver without files has no path.
                let Some(path) = found.log_path.filter(|path| !path.is_empty()) else {
                    return;
                };
                let id = id.to_owned();
                on_disk(move || links.make(&record.ours, &id, Path::new(&path))).await
            }
            Err(error) => Err(io::Error::other(error)),
        };
        report_failure(Some(id), made);
    }

    /// Removes the links to the log of a container that is gone.
    pub(super) async fn unlink_log(&self, id: &str, ours: &OurContainer) {
        if let Some(links) = self.links.clone() {
            let (owned, ours) = (id.to_owned(), ours.clone());
            report_failure(Some(id), on_disk(move || links.remove(&ours, &owned)).await);
        }
    }

    /// Removes links of containers that went without us.
    pub(super) async fn clean_log_links(&self) {
        if let Some(links) = self.links.clone() {
            report_failure(None, on_disk(move || links.clean()).await);
        }
    }
}

async fn on_disk(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn report_failure(id: Option<&str>, done: io::Result<()>) {
    if let Err(error) = done {
        occurrences::log_link_failed(id.map(ContainerId::docker).as_ref(), &error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::translate::Kind;
    use crate::translate::labels::HookLabels;
    use mirrorlet_core::api::FullName;
    use mirrorlet_core::observed::ContainerHash;
    use mirrorlet_core::observed::Role;

    fn ours(pod: &str, restart_count: u32) -> OurContainer {
        OurContainer {
            uid: "u1".into(),
            full_name: FullName::new(pod, "ns"),
            grace: std::time::Duration::ZERO,
            kind: Kind::Container {
                name: "c".into(),
                role: Role::App,
                restart_count,
                pod_restarts: 0,
                hash: ContainerHash(0),
                sandbox_id: String::new(),
                image_id: "".into(),
                termination_path: String::new(),
                fallback_to_logs: false,
                hooks: HookLabels::default(),
            },
        }
    }

    struct Bed {
        dir: tempfile::TempDir,
        links: LogLinks,
    }

    impl Bed {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let links = LogLinks::new(&dir.path().join("pods"), HostFiles::default());
            Self { dir, links }
        }

        fn real(&self, id: &str) -> PathBuf {
            let path = self.dir.path().join(id);
            fs::write(&path, id).unwrap();
            path
        }

        /// Every link there is, with what is read through it.
        fn all(&self) -> HashMap<String, Option<String>> {
            let mut found = HashMap::new();
            let mut left = vec![self.links.pods.clone(), self.links.containers.clone()];
            while let Some(dir) = left.pop() {
                for path in children(&dir).unwrap() {
                    if fs::symlink_metadata(&path).unwrap().is_dir() {
                        left.push(path);
                        continue;
                    }
                    let name = path.strip_prefix(self.dir.path()).unwrap();
                    found.insert(name.display().to_string(), fs::read_to_string(&path).ok());
                }
            }
            found
        }
    }

    #[test]
    fn links_come_and_go_with_their_container() {
        let bed = Bed::new();
        bed.links
            .make(&ours("p", 0), "id0", &bed.real("id0"))
            .unwrap();
        bed.links
            .make(&ours("p", 1), "id1", &bed.real("id1"))
            .unwrap();
        // Made again, they lead where they lead now.
        bed.links
            .make(&ours("p", 1), "id1", &bed.real("new"))
            .unwrap();
        let shown = |text: &str| Some(text.to_owned());
        let expected = HashMap::from([
            ("pods/ns_p_u1/c/0.log".to_owned(), shown("id0")),
            ("pods/ns_p_u1/c/1.log".to_owned(), shown("new")),
            ("containers/p_ns_c-id0.log".to_owned(), shown("id0")),
            ("containers/p_ns_c-id1.log".to_owned(), shown("new")),
        ]);
        assert_eq!(bed.all(), expected);
        bed.links.remove(&ours("p", 0), "id0").unwrap();
        assert_eq!(bed.all().len(), 2);
        bed.links.remove(&ours("p", 1), "id1").unwrap();
        assert!(bed.all().is_empty());
        assert!(
            children(&bed.links.pods).unwrap().is_empty(),
            "directories go too"
        );
        bed.links.remove(&ours("p", 1), "id1").unwrap();
    }

    #[test]
    fn only_dead_links_are_cleaned_up() {
        let bed = Bed::new();
        let real = bed.real("id0");
        bed.links.make(&ours("dead", 0), "id0", &real).unwrap();
        bed.links
            .make(&ours("alive", 0), "id1", &bed.real("id1"))
            .unwrap();
        // A kubelet's own: a file, an empty directory, a dead link to somewhere else.
        let kubelets = bed.links.pods.join("ns_other_u2/c");
        fs::create_dir_all(&kubelets).unwrap();
        fs::write(kubelets.join("0.log"), "kubelet").unwrap();
        fs::create_dir_all(bed.links.pods.join("ns_starting_u3")).unwrap();
        let foreign = bed.links.containers.join("foreign.log");
        std::os::unix::fs::symlink("/no/such/log", &foreign).unwrap();
        fs::remove_file(real).unwrap();
        // Where the Engine's files aren't seen, no link is known to be dead.
        bed.links.host.set_apart(true);
        bed.links.clean().unwrap();
        // docker 52
        assert_eq!(bed.all().len(), 6);
        bed.links.host.set_apart(false);
        bed.links.clean().unwrap();
        let left = bed.all();
        // docker 52
        assert!(!left.keys().any(|path| path.contains("dead")), "{left:?}");
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(bed.links.pods.join("ns_starting_u3").is_dir());
        assert!(!bed.links.pods.join("ns_dead_u1").exists());
        bed.links.clean().unwrap();
    }

    #[test]
    fn a_file_in_a_links_place_stays() {
        let bed = Bed::new();
        let theirs = bed.links.pods.join("ns_p_u1/c");
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join("0.log"), "theirs").unwrap();
        let error = bed
            .links
            .make(&ours("p", 0), "id0", &bed.real("id0"))
            .unwrap_err();
        assert!(error.to_string().contains("is not a link"), "{error}");
        bed.links.remove(&ours("p", 0), "id0").unwrap_err();
        assert_eq!(fs::read(theirs.join("0.log")).unwrap(), b"theirs");
    }

    #[test]
    fn long_names_are_cut_as_upstream_cuts_them() {
        let links = LogLinks::new(Path::new("/var/log/pods"), HostFiles::default());
        let (_, flat) = links
            .of(&ours(&"p".repeat(250), 0), &"f".repeat(64))
            .unwrap();
        let name = flat.file_name().unwrap().to_str().unwrap();
        assert_eq!(name.len(), NAME_MAX);
        assert_eq!(name.strip_suffix(SUFFIX).map(str::len), Some(251));
        assert_eq!(flat.parent().unwrap(), Path::new("/var/log/containers"));
    }

    #[test]
    fn nothing_there_is_nothing_to_clean() {
        Bed::new().links.clean().unwrap();
    }
}
