use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// The agent's view of a host from inside a container: a directory with that host's files.
struct Host {
    dir: tempfile::TempDir,
    files: HostFiles,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("srv/data")).unwrap();
        fs::write(dir.path().join("srv/file"), "").unwrap();
        symlink("/srv", dir.path().join("link")).unwrap();
        let files = HostFiles::new(Some(dir.path().to_owned()));
        files.set_apart(true);
        Self { dir, files }
    }

    fn ensure(&self, path: &str, kind: &str) -> Result<bool> {
        ensure_in(&self.files, path, kind)
    }
}

/// Whether the Engine is to make the path.
fn ensure_in(files: &HostFiles, path: &str, kind: &str) -> Result<bool> {
    let source = HostPathVolumeSource {
        path: path.to_owned(),
        type_: Some(kind.to_owned()),
    };
    let found = ensure("v", &source, files)?;
    assert_eq!(
        found.path,
        Path::new(path),
        "the Engine binds the host's path"
    );
    Ok(found.made_by_engine)
}

#[test]
fn types_are_those_of_the_hosts_files() {
    let host = Host::new();
    for (path, kind) in [
        ("/srv/data", "Directory"),
        ("/link/data", "Directory"),
        ("/srv/data", "DirectoryOrCreate"),
        ("/srv/file", "File"),
        ("/link/file", "FileOrCreate"),
        ("/srv/file", ""),
    ] {
        assert!(!host.ensure(path, kind).unwrap(), "{path} {kind}");
    }
    for (path, kind, wanted) in [
        ("/srv/file", "Directory", "directory"),
        ("/srv/file", "DirectoryOrCreate", "directory"),
        ("/srv/data", "FileOrCreate", "file"),
        ("/srv/missing", "Directory", "directory"),
        ("/srv/file", "Socket", "socket file"),
        // The agent's own file system has it, the host hasn't.
        ("/dev/null", "CharDevice", "character device"),
    ] {
        let error = host.ensure(path, kind).unwrap_err().to_string();
        // installed 1
        assert_eq!(
            error,
            format!("hostPath type check failed: {path} is not a {wanted}")
        );
    }
}

#[test]
fn the_engine_makes_directories_that_the_agent_cannot() {
    let host = Host::new();
    for kind in ["", "DirectoryOrCreate"] {
        assert!(host.ensure("/srv/new/deep", kind).unwrap());
    }
    // installed 1
    assert!(!host.dir.path().join("srv/new").exists());
    assert!(!Path::new("/srv/new").exists());
    let error = host.ensure("/srv/a:b", "").unwrap_err().to_string();
    assert!(error.contains("create it on the host"), "{error}");
    let error = host.ensure("/srv/new", "FileOrCreate").unwrap_err();
    assert!(
        error.to_string().contains("is missing, and the agent"),
        "{error}"
    );
}

#[test]
fn what_is_not_seen_is_not_said_to_be_checked() {
    let files = HostFiles::new(None);
    files.set_apart(true);
    assert!(ensure_in(&files, "/srv", "").unwrap());
    for kind in [
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ] {
        let error = ensure_in(&files, "/", kind).unwrap_err().to_string();
        // installed 1
        assert!(error.contains("--host-root"), "{kind}: {error}");
    }
}
