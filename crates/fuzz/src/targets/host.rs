//! Fuzz targets for files: cgroup files, kubeconfigs, certificates, archives.

use std::fs;
use std::path::Path;

use mirrorlet::certificate::{Leaf, from_pem, split_pem, wanted};
use mirrorlet::cli::cp::unpack::unpack;
use mirrorlet::cluster::held;
use mirrorlet_core::stats::cgroup::{self, Controller, Files, Version};
use mirrorlet_core::stats::proc;
use tempfile::TempDir;

use super::{choice, parts, text};

/// Every file of a cgroup has a part of the text, by its name.
struct Parts<'a>(Vec<&'a str>);

impl Files for Parts<'_> {
    fn read(&mut self, _: Controller, file: &str) -> Option<&str> {
        self.0
            .iter()
            .find_map(|part| part.strip_prefix(file)?.strip_prefix('\n'))
    }
}

/// Files of a cgroup, each with its name in its first line, and files of `/proc`.
pub(crate) fn cgroups(bytes: &[u8]) {
    let text = text(bytes);
    let mut files = Parts(parts(text).collect());
    for version in [Version::V1, Version::V2] {
        let _ = cgroup::cpu(version, &mut files, true);
        if let Some(memory) = cgroup::memory(version, &mut files) {
            let _ = (
                memory.available(),
                memory.swap_available(),
                memory.plus(memory),
            );
        }
        let _ = cgroup::detail(version, &mut files, Some(1024));
    }
    let _ = (
        cgroup::processes(&mut files),
        cgroup::first_process(&mut files),
    );
    let parts = files.0;
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let _ = (cgroup::pressure(text), cgroup::number(text));
    let _ = (
        proc::interfaces(text),
        proc::stat(text),
        proc::devices(text),
    );
    let _ = (
        proc::upper_dir(text),
        proc::threads(part(0), part(1), part(2)),
    );
    let _ = proc::memory(&proc::meminfo(part(0)), part(1));
    for controller in [None, Some("memory")] {
        let _ = proc::cgroup_of(text, controller);
    }
}

/// A directory that only this input has. `hack/left.sh` removes it if this process is killed.
fn directory() -> TempDir {
    let parent = ["/dev/shm", "/tmp"]
        .into_iter()
        .find(|path| Path::new(path).is_dir());
    let prefix = format!("mt.{}.", std::process::id());
    let mut directory = tempfile::Builder::new();
    let directory = directory.prefix(&prefix);
    directory.tempdir_in(parent.unwrap_or("/tmp")).unwrap()
}

/// A kubeconfig. The files that it names don't exist.
pub(crate) fn kubeconfig(bytes: &[u8]) {
    // It may name any file; one that never ends would hold the fuzzer up.
    if text(bytes).contains("/dev") || text(bytes).contains("/proc") {
        return;
    }
    let dir = directory();
    let file = dir.path().join("kubeconfig");
    fs::write(&file, bytes).unwrap();
    let _ = held(&file, &dir.path().join("ours.pem"));
}

/// Certificates and requests for certificates: DER, or PEM.
pub(crate) fn certificates(bytes: &[u8]) {
    let (form, rest) = choice(bytes);
    match form % 3 {
        0 => {
            if let Some(leaf) = Leaf::read(rest) {
                let _ = leaf.validity();
            }
        }
        1 => {
            let _ = wanted(rest);
        }
        _ => {
            let (chain, key) = split_pem(text(rest));
            let _ = from_pem(chain.as_bytes(), key.as_bytes());
        }
    }
}

/// Largest file of an archive that is unpacked, in bytes: sparse ones are larger than their input.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// An archive from a container; nothing of it may be extracted outside its directory.
pub(crate) fn tars(bytes: &[u8]) {
    let mut archive = tar::Archive::new(bytes);
    let sizes = archive.entries().into_iter().flatten();
    let sizes: u64 = sizes
        .map_while(Result::ok)
        .fold(0, |sum, entry| sum.saturating_add(entry.size()));
    if sizes > FILE_BYTES_MAX {
        return;
    }
    let dir = directory();
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let _ = unpack(bytes, None, &target, 0o777);
    let beside: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(
        beside,
        ["target"],
        "nothing is written beside the destination"
    );
    // A directory without permissions can't be removed by others than root.
    let _ = fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o700));
}
