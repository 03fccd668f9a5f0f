use std::ffi::CString;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use mirrorlet_core::expand::Variables;

pub(super) const NODE_MEMORY: u64 = 8 << 30;
pub(super) const UID: &str = "u-1";

/// A root directory of its own, unmounted and removed at the end whatever the test did.
pub(super) struct Root {
    dir: TempDir,
    pub(super) manager: VolumeManager,
}

impl Root {
    pub(super) fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "volume tests mount file systems: run them as root"
        );
        let dir = tempfile::tempdir().unwrap();
        let manager = VolumeManager::new(dir.path().join("root"));
        Self { dir, manager }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Volumes of a pod that are not written from values; an error is told without its volume.
    fn ensure(&self, pod: &Pod, memory: u64) -> Result<VolumeMap> {
        let made = self.manager.ensure(pod, &Payloads::new(), memory);
        made.map_err(|error| match error {
            VolumeError::SetUp { cause, .. } => *cause,
            error => error,
        })
    }

    pub(super) fn pod_paths(&self) -> PodPaths {
        PodPaths::new(&self.path("root"), &PodUid::from(UID))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let real = self.dir.path().canonicalize().unwrap();
        for point in mountinfo::below(&real).unwrap().iter().rev() {
            unmount(point, UnmountFlags::DETACH).unwrap();
        }
    }
}

pub(super) fn pod(spec: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": UID}, "spec": spec})).unwrap()
}

fn pod_with_volume(volume: &Value) -> Pod {
    pod(&json!({"containers": [{"name": "c"}], "volumes": [volume]}))
}

pub(super) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn ensure_host_path(root: &Root, path: &Path, kind: &str) -> Result<VolumeMap> {
    let volume = json!({"name": "v", "hostPath": {"path": path, "type": kind}});
    root.ensure(&pod_with_volume(&volume), NODE_MEMORY)
}

#[test]
fn host_path_types_accept_only_their_own() {
    let root = Root::new();
    let make = |name: &str| root.path(name);
    fs::create_dir(make("dir")).unwrap();
    fs::write(make("file"), b"").unwrap();
    let _socket = UnixListener::bind(make("socket")).unwrap();
    symlink(make("dir"), make("link")).unwrap();
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );
    let all = [
        "dir",
        "file",
        "socket",
        "missing",
        "file/below",
        "link",
        "/dev/null",
    ];
    for (kind, accepted, what) in [
        ("Directory", &["dir", "link"][..], "directory"),
        ("File", &["file"], "file"),
        ("Socket", &["socket"], "socket file"),
        ("CharDevice", &["/dev/null"], "character device"),
        ("BlockDevice", &[], "block device"),
    ] {
        for name in all {
            let path = make(name);
            let got = ensure_host_path(&root, &path, kind);
            if accepted.contains(&name) {
                assert_eq!(got.unwrap().volumes["v"], path, "{kind} {name}");
            } else {
                // docker 42
                assert_eq!(
                    got.unwrap_err().to_string(),
                    format!(
                        "hostPath type check failed: {} is not a {what}",
                        path.display()
                    ),
                );
            }
        }
    }
}

#[test]
fn host_paths_are_made_where_their_type_says_so() {
    let root = Root::new();
    let dir = root.path("a/b/c");
    ensure_host_path(&root, &dir, "DirectoryOrCreate").unwrap();
    assert!(dir.is_dir());
    assert_eq!(mode(&dir), 0o755);

    let file = root.path("a/f");
    ensure_host_path(&root, &file, "FileOrCreate").unwrap();
    assert!(file.is_file());
    // docker 42
    assert_eq!(mode(&file), 0o644);
    fs::write(&file, b"kept").unwrap();
    ensure_host_path(&root, &file, "FileOrCreate").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"kept");

    let orphan = root.path("no/such/parent");
    let error = ensure_host_path(&root, &orphan, "FileOrCreate").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "failed to create file {}: No such file or directory (os error 2)",
            orphan.display()
        )
    );
    assert!(!root.path("no").exists());

    for (path, kind) in [(&file, "DirectoryOrCreate"), (&dir, "FileOrCreate")] {
        let error = ensure_host_path(&root, path, kind).unwrap_err();
        assert!(matches!(error, VolumeError::HostPathType { .. }), "{error}");
    }
    let unchecked = root.path("made/by/default");
    ensure_host_path(&root, &unchecked, "").unwrap();
    assert!(unchecked.is_dir());
}

#[test]
fn host_paths_that_lead_elsewhere_are_refused() {
    let root = Root::new();
    for (path, kind, expected) in [
        (
            "/tmp/../etc",
            "",
            "volume \"v\": hostPath \"/tmp/../etc\" must not contain '..'",
        ),
        ("etc", "", "volume \"v\": hostPath \"etc\" must be absolute"),
        (
            "/",
            "Folder",
            "volume \"v\": Folder is an invalid volume type",
        ),
    ] {
        let error = ensure_host_path(&root, Path::new(path), kind).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn names_and_sources_we_cannot_have_are_refused() {
    let root = Root::new();
    for name in ["..", "a/b", ""] {
        let volume = json!({"name": name, "emptyDir": {}});
        let error = root
            .ensure(&pod_with_volume(&volume), NODE_MEMORY)
            .unwrap_err();
        assert_eq!(error, VolumeError::InvalidName(name.to_owned()));
    }
    for uid in ["", "..", "../x"] {
        assert!(
            root.manager.remove_pod(&PodUid::from(uid)).is_err(),
            "{uid:?}"
        );
    }
    let volume = json!({"name": "v", "configMap": {"name": "m"}});
    let error = root
        .ensure(&pod_with_volume(&volume), NODE_MEMORY)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "volume \"v\": volumes of this type are not supported"
    );
}

#[test]
fn empty_dir_on_disk_is_open_to_all_and_keeps_what_containers_make_of_it() {
    let root = Root::new();
    let pod = pod_with_volume(&json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}));
    let map = with_umask(0o077, || root.ensure(&pod, NODE_MEMORY));
    let dir = map.unwrap().volumes["v"].clone();
    assert_eq!(
        dir,
        root.path("root/pods/u-1/volumes/kubernetes.io~empty-dir/v")
    );
    // docker 45
    assert_eq!(mode(&dir), 0o777);
    assert_eq!(
        mode(&root.path("root/pods/u-1")),
        0o700,
        "0750 under umask 077"
    );

    fs::write(dir.join("data"), b"x").unwrap();
    set_mode(&dir, 0o700).unwrap();
    root.ensure(&pod, NODE_MEMORY).unwrap();
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(fs::read(dir.join("data")).unwrap(), b"x");
}

#[test]
fn an_empty_dir_has_the_mode_it_names() {
    let root = Root::new();
    for (name, wanted, fs_group, expected) in [
        ("a", json!(null), None, 0o777),
        ("b", json!(0o755), None, 0o755),
        ("c", json!(0o1777), None, 0o1777),
        ("d", json!(0), None, 0),
        ("e", json!(0o700), Some(2345), 0o2770),
    ] {
        for medium in ["", "Memory"] {
            let name = format!("{name}{}", medium.to_lowercase());
            let source = json!({"mode": wanted, "medium": medium});
            let pod = pod(&json!({
                "securityContext": {"fsGroup": fs_group},
                "containers": [{"name": "c"}],
                "volumes": [{"name": name, "emptyDir": source}],
            }));
            let map = with_umask(0o077, || root.ensure(&pod, NODE_MEMORY)).unwrap();
            // tenants A2
            assert_eq!(mode(&map.volumes[&name]), expected, "{name}");
        }
    }
}

#[test]
fn fs_group_owns_an_empty_dir() {
    let root = Root::new();
    for (name, source) in [("disk", json!({})), ("memory", json!({"medium": "Memory"}))] {
        let pod = pod(&json!({
            "securityContext": {"fsGroup": 2345},
            "containers": [{"name": "c"}],
            "volumes": [{"name": name, "emptyDir": source}],
        }));
        let map = root.ensure(&pod, NODE_MEMORY).unwrap();
        let dir = &map.volumes[name];
        // docker 44
        assert_eq!(fs::metadata(dir).unwrap().gid(), 2345, "{name}");
        assert_eq!(mode(dir), 0o2777, "{name}");
    }
}

/// Runs `act` in a thread whose umask is its own, so that other tests keep theirs.
fn with_umask<T: Send>(umask: u32, act: impl FnOnce() -> T + Send) -> T {
    #[expect(
        deprecated,
        reason = "sharing no umask is safe; only sharing no files is not"
    )]
    let unshare = || rustix::thread::unshare(rustix::thread::UnshareFlags::FS);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare().unwrap();
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
            act()
        });
        thread.join().unwrap()
    })
}

fn tmpfs_bytes(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_blocks * stat.f_frsize
}

#[test]
fn empty_dir_in_memory_is_bounded_and_survives() {
    let limited = json!([{"name": "c", "resources": {"limits": {"memory": "2Mi"}}}]);
    let unlimited = json!([{"name": "c"}]);
    for (containers, source, node, expected) in [
        (
            &unlimited,
            json!({"sizeLimit": "1Mi"}),
            NODE_MEMORY,
            1 << 20,
        ),
        (&limited, json!({"sizeLimit": "4Mi"}), NODE_MEMORY, 2 << 20),
        (&limited, json!({}), NODE_MEMORY, 2 << 20),
        (&unlimited, json!({"sizeLimit": "0"}), 8 << 20, 8 << 20),
    ] {
        let root = Root::new();
        let mut source = source;
        source["medium"] = json!("Memory");
        let pod = pod(&json!({
            "containers": containers, "volumes": [{"name": "v", "emptyDir": source}],
        }));
        let dir = root.ensure(&pod, node).unwrap().volumes["v"].clone();
        assert!(mountinfo::is_mount_point(&dir).unwrap());
        // docker 45
        assert_eq!(tmpfs_bytes(&dir), expected, "{source}");
        assert_eq!(mode(&dir), 0o777);

        fs::write(dir.join("data"), b"x").unwrap();
        root.ensure(&pod, node).unwrap();
        assert_eq!(fs::read(dir.join("data")).unwrap(), b"x");
        let real = dir.canonicalize().unwrap();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|l| l.contains(real.to_str().unwrap()));
        assert!(line.unwrap().contains(" shared:"), "{line:?}");
        let points = mountinfo::below(real.parent().unwrap()).unwrap();
        assert_eq!(points, [real], "mounted once");
    }
}

#[test]
fn termination_logs_are_fresh_files_open_to_all() {
    let root = Root::new();
    let uid = PodUid::from(UID);
    let first = root.manager.ensure_termination_log(&uid, "c").unwrap();
    let second = root.manager.ensure_termination_log(&uid, "c").unwrap();
    assert_ne!(first, second);
    for path in [&first, &second] {
        // docker 46
        assert_eq!(mode(path), 0o666);
        assert_eq!(
            path.parent().unwrap(),
            root.pod_paths().termination_dir("c")
        );
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            name.len() == 8 && name.bytes().all(|b| b.is_ascii_hexdigit()),
            "{name}"
        );
        assert_eq!(read_termination_message(path).unwrap(), "");
    }
    assert!(root.manager.ensure_termination_log(&uid, "../c").is_err());

    for _ in 0..2 {
        root.manager
            .remove_termination_log(&uid, "c", &first)
            .unwrap();
    }
    assert!(!first.exists() && second.exists());
    let elsewhere = root.path("precious");
    fs::write(&elsewhere, b"x").unwrap();
    assert!(
        root.manager
            .remove_termination_log(&uid, "c", &elsewhere)
            .is_err()
    );
    assert!(elsewhere.exists());
}

#[test]
fn termination_messages_are_read_from_their_end() {
    let root = Root::new();
    let path = root.path("message");
    for (content, expected) in [
        (b"done".to_vec(), "done".to_owned()),
        (
            [vec![b'a'; 10], vec![b'b'; 4096]].concat(),
            "b".repeat(4096),
        ),
        (b"bad \xff end".to_vec(), "bad \u{fffd} end".to_owned()),
    ] {
        fs::write(&path, content).unwrap();
        // docker 46, tenants H3
        assert_eq!(read_termination_message(&path).unwrap(), expected);
    }
    let link = root.path("link");
    symlink("/etc/passwd", &link).unwrap();
    for bad in [link, root.path("missing"), root.dir.path().to_owned()] {
        assert!(read_termination_message(&bad).is_err(), "{bad:?}");
    }
    let pipe = root.path("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(read_termination_message(&pipe).is_err());
}

/// Bytes that this thread has read so far.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.unwrap().parse().unwrap()
}

/// A container fills what it can write to: its hosts file, its resolv.conf.
#[test]
fn what_a_container_has_filled_is_not_read() {
    let root = Root::new();
    let uid = PodUid::from(UID);
    let path = root.manager.write_hosts(&uid, "ours\n").unwrap();
    let fill = || {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(64 << 20).unwrap();
    };
    let before = bytes_read();
    fill();
    root.manager.write_hosts(&uid, "ours\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours\n");
    fill();
    overwrite(&path, "ours\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours\n");
    let read = bytes_read() - before;
    // tenants H3
    assert!(read < 1 << 20, "{read}");
}

#[test]
fn the_hosts_file_is_written_in_place() {
    let root = Root::new();
    let uid = PodUid::from(UID);
    let path = root.manager.write_hosts(&uid, "first, and long\n").unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    assert_eq!(root.manager.write_hosts(&uid, "second\n").unwrap(), path);
    // docker 21
    assert_eq!(fs::read_to_string(&path).unwrap(), "second\n");
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(mode(&path), 0o644);
}

#[test]
fn a_hosts_file_that_is_a_link_is_not_followed() {
    let root = Root::new();
    let uid = PodUid::from(UID);
    let path = root.manager.write_hosts(&uid, "ours\n").unwrap();
    let outside = root.path("precious");
    fs::write(&outside, b"theirs\n").unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&outside, &path).unwrap();
    let written = root.manager.write_hosts(&uid, "new\n").map(drop);
    for refused in [written, root.manager.rewrite_hosts(&uid, "new\n")] {
        // box 6
        assert!(refused.is_err(), "{refused:?}");
    }
    // box 6
    assert_eq!(fs::read_to_string(&outside).unwrap(), "theirs\n");
    // Once the link is gone, the file is there again.
    fs::remove_file(&path).unwrap();
    root.manager.write_hosts(&uid, "new\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
}

#[test]
fn pods_are_listed_and_removed_with_all_they_have() {
    let root = Root::new();
    assert_eq!(root.manager.list_pod_dirs().unwrap(), []);
    let uid = PodUid::from(UID);
    let pod = pod(&json!({
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "disk", "mountPath": "/d", "subPath": "sub"},
        ]}],
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }));
    let mut map = root.ensure(&pod, NODE_MEMORY).unwrap();
    root.manager
        .ensure_subpaths(&pod, "c", &Variables::new(), &mut map)
        .unwrap();
    root.manager.write_hosts(&uid, "x").unwrap();
    root.manager.ensure_termination_log(&uid, "c").unwrap();
    fs::write(map.volumes["memory"].join("f"), b"x").unwrap();
    let outside = root.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), b"x").unwrap();
    symlink(&outside, map.volumes["disk"].join("link")).unwrap();
    symlink(
        outside.join("precious"),
        map.volumes["disk"].join("file-link"),
    )
    .unwrap();

    assert_eq!(
        root.manager.list_pod_dirs().unwrap(),
        std::slice::from_ref(&uid)
    );
    root.manager.remove_pod(&uid).unwrap();
    // docker 44
    assert!(!root.pod_paths().pod_dir().exists());
    assert!(outside.join("precious").exists());
    assert_eq!(root.manager.list_pod_dirs().unwrap(), []);
    root.manager.remove_pod(&uid).unwrap();
}

#[test]
fn released_volumes_are_gone_and_what_else_a_pod_has_stays() {
    let root = Root::new();
    let uid = PodUid::from(UID);
    root.manager.release(&uid).unwrap();
    let pod = pod(&json!({
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "disk", "mountPath": "/d", "subPath": "sub"},
        ]}],
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }));
    let mut map = root.ensure(&pod, NODE_MEMORY).unwrap();
    root.manager
        .ensure_subpaths(&pod, "c", &Variables::new(), &mut map)
        .unwrap();
    let hosts = root.manager.write_hosts(&uid, "x").unwrap();
    let words = root.manager.ensure_termination_log(&uid, "c").unwrap();
    root.manager.note_restarts(&uid, "c", 3).unwrap();
    fs::write(map.volumes["memory"].join("f"), b"x").unwrap();
    fs::write(map.volumes["disk"].join("f"), b"x").unwrap();

    root.manager.release(&uid).unwrap();
    let paths = root.pod_paths();
    for gone in [
        paths.volumes_dir(),
        paths.subpaths_dir(),
        paths.plugins_dir(),
    ] {
        // docker 44
        assert!(!gone.exists(), "{}", gone.display());
    }
    assert_eq!(
        mountinfo::below(paths.pod_dir()).unwrap(),
        Vec::<PathBuf>::new()
    );
    assert!(hosts.exists() && words.exists());
    assert_eq!(root.manager.noted_restarts(&pod).unwrap()["c"], 3);
    root.manager.release(&uid).unwrap();
    // A pod that runs again has them made anew, and empty.
    let map = root.ensure(&pod, NODE_MEMORY).unwrap();
    assert!(!map.volumes["disk"].join("f").exists());
    root.manager.remove_pod(&uid).unwrap();
}

#[test]
fn a_tree_deeper_than_any_path_is_removed() {
    const DEPTH: usize = 3000;
    let root = Root::new();
    let pod = pod_with_volume(&json!({"name": "v", "emptyDir": {}}));
    let map = root.ensure(&pod, NODE_MEMORY).unwrap();
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let none = rustix::fs::Mode::empty();
    let mut dir = rustix::fs::open(&map.volumes["v"], flags, none).unwrap();
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&dir, "d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        dir = rustix::fs::openat(&dir, "d", flags, none).unwrap();
    }
    drop(dir);
    root.manager.remove_pod(&PodUid::from(UID)).unwrap();
    // tenants H2
    assert!(!root.pod_paths().pod_dir().exists());
}

#[test]
fn what_others_mounted_is_left_alone() {
    let root = Root::new();
    let uid = PodUid::from(UID);
    let pod = pod_with_volume(&json!({"name": "v", "emptyDir": {}}));
    let volume = root.ensure(&pod, NODE_MEMORY).unwrap().volumes["v"].clone();
    let elsewhere = root.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("precious"), b"x").unwrap();
    let inner = volume.join("inner");
    fs::create_dir(&inner).unwrap();
    // On the same file system: only the mount itself tells it apart.
    mount(&elsewhere, &inner, "", MountFlags::BIND, None).unwrap();

    for refused in [root.manager.remove_pod(&uid), root.manager.release(&uid)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, VolumeError::Busy { .. }), "{error}");
    }
    // docker 44
    assert!(elsewhere.join("precious").exists());
    // The walk itself stops there too, should the mount come after the look at the table.
    let error = remove_tree_of(root.pod_paths().pod_dir()).unwrap_err();
    assert_eq!(error, rustix::io::Errno::XDEV);
    assert!(elsewhere.join("precious").exists());

    unmount(&inner, UnmountFlags::empty()).unwrap();
    root.manager.remove_pod(&uid).unwrap();
    assert!(elsewhere.join("precious").exists());
}

/// The walk alone, without the look at the mount table before it.
fn remove_tree_of(dir: &Path) -> std::result::Result<(), rustix::io::Errno> {
    let parent = fs::File::open(dir.parent().unwrap()).unwrap();
    let name = CString::new(dir.file_name().unwrap().as_bytes()).unwrap();
    remove::remove_tree(parent.as_fd(), &name)
}

/// A tenant links one file a million times by the longest names. Removed by a program of its own
/// with room for itself and little more: reading these names takes 17 MB.
#[test]
fn a_directory_with_more_names_than_memory_is_removed() {
    const LINKS: u32 = 60_000;
    const ROOM_KIB: u32 = 14_000;
    const TREE: &str = "TREE_TO_REMOVE";
    if let Some(tree) = std::env::var_os(TREE) {
        return remove_tree_of(Path::new(&tree)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("volume/below")).unwrap();
    let file = tree.join("file");
    fs::write(&file, "").unwrap();
    for link in 0..LINKS {
        fs::hard_link(&file, tree.join(format!("volume/{link:0>255}"))).unwrap();
    }
    let limited = format!("ulimit -d {ROOM_KIB}; exec \"$0\" \"$@\"");
    let name = "volume::tests::a_directory_with_more_names_than_memory_is_removed";
    let done = std::process::Command::new("sh")
        .args(["-c", &limited])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(TREE, &tree)
        .output()
        .unwrap();
    // tenants H2
    assert!(done.status.success() && !tree.exists(), "{done:?}");
}

/// Wide at every level, and deeper than is entered; names that the removal itself would take.
#[test]
fn a_wide_and_deep_tree_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let mut level = tree.clone();
    for depth in 0..150 {
        fs::create_dir_all(&level).unwrap();
        for name in 0..if depth % 50 == 0 { 600 } else { 1 } {
            fs::write(level.join(format!("f{name}")), "").unwrap();
            fs::create_dir(level.join(format!(".removed-{name}"))).unwrap();
        }
        level.push("d");
    }
    remove_tree_of(&tree).unwrap();
    // tenants H2
    assert!(!tree.exists());
}

/// Somebody who still has the tree open moves directories, puts symlinks in their places, and adds files.
#[test]
fn a_tree_that_changes_while_it_is_removed_is_removed() {
    use rustix::io::Errno;

    const TREES: usize = 40;
    const NAMES: usize = 64;
    const CHANGES: usize = 640;
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), b"x").unwrap();
    for number in 0..TREES {
        let tree = dir.path().join(format!("tree-{number}"));
        let volume = tree.join("volume");
        for name in 0..NAMES {
            fs::create_dir_all(volume.join(format!("old-{name}/below"))).unwrap();
        }
        let start = std::sync::Barrier::new(2);
        let change = || {
            start.wait();
            for name in (0..NAMES).cycle().take(CHANGES) {
                // What is gone already can't be changed.
                let [old, new] = ["old", "new"].map(|kind| volume.join(format!("{kind}-{name}")));
                let _ = fs::rename(&old, &new);
                let _ = symlink(&outside, &old);
                let _ = fs::write(new.join("below/file"), b"");
                let _ = fs::create_dir(&new);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(change);
            start.wait();
            let removed = loop {
                match remove_tree_of(&tree) {
                    // The next attempt finds what there is then.
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => {}
                    removed => break removed,
                }
            };
            // tenants H2
            assert_eq!((removed, tree.exists()), (Ok(()), false));
        });
    }
    // tenants H2
    assert!(outside.join("precious").exists());
}

#[test]
fn a_pod_directory_that_is_a_symlink_is_not_followed() {
    let root = Root::new();
    let outside = root.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), b"x").unwrap();
    fs::create_dir_all(root.path("root/pods")).unwrap();
    symlink(&outside, root.pod_paths().pod_dir()).unwrap();
    assert!(root.manager.remove_pod(&PodUid::from(UID)).is_err());
    assert!(outside.join("precious").exists());
}

fn subpath_pod(volume: &Path, mounts: &Value) -> Pod {
    pod(&json!({
        "containers": [{"name": "c", "volumeMounts": mounts}],
        "volumes": [{"name": "v", "hostPath": {"path": volume}}],
    }))
}

fn ensure_subpath(root: &Root, volume: &Path, subpath: &str) -> Result<PathBuf> {
    let mounts = json!([
        {"name": "v", "mountPath": "/whole"},
        {"name": "v", "mountPath": "/m", "subPath": subpath},
    ]);
    let pod = subpath_pod(volume, &mounts);
    let mut map = root.ensure(&pod, NODE_MEMORY)?;
    root.manager
        .ensure_subpaths(&pod, "c", &Variables::new(), &mut map)?;
    assert_eq!(map.subpaths.len(), 1);
    Ok(map.subpaths[&("c".to_owned(), 1)].clone())
}

#[test]
fn sub_paths_are_made_with_the_volumes_mode_and_bound() {
    let root = Root::new();
    let volume = root.path("volume");
    fs::create_dir(&volume).unwrap();
    set_mode(&volume, 0o2770).unwrap();
    let bound = ensure_subpath(&root, &volume, "a/b").unwrap();
    assert_eq!(bound, root.pod_paths().subpath("v", "c", 1));
    for made in ["a", "a/b"] {
        // docker 41
        assert_eq!(mode(&volume.join(made)), 0o2770, "{made}");
    }
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&bound), inode(&volume.join("a/b")));

    // Again: the same. After a swap: the new one.
    ensure_subpath(&root, &volume, "a/b").unwrap();
    fs::rename(volume.join("a/b"), volume.join("a/old")).unwrap();
    ensure_subpath(&root, &volume, "a/b").unwrap();
    assert_eq!(inode(&bound), inode(&volume.join("a/b")));
    assert_ne!(inode(&bound), inode(&volume.join("a/old")));

    fs::remove_dir(volume.join("a/b")).unwrap();
    fs::write(volume.join("a/b"), b"file").unwrap();
    ensure_subpath(&root, &volume, "a/b").unwrap();
    assert_eq!(fs::read(&bound).unwrap(), b"file");
    root.manager.remove_pod(&PodUid::from(UID)).unwrap();
    assert_eq!(fs::read(volume.join("a/b")).unwrap(), b"file");
}

#[test]
fn sub_paths_that_leave_their_volume_are_refused_without_naming_it() {
    let root = Root::new();
    let volume = root.path("volume");
    fs::create_dir_all(volume.join("inside")).unwrap();
    symlink("/etc", volume.join("absolute")).unwrap();
    symlink("../..", volume.join("up")).unwrap();
    symlink("inside", volume.join("within")).unwrap();
    for bad in ["..", "a/../b", "/etc", "absolute", "absolute/x", "up/x"] {
        let error = ensure_subpath(&root, &volume, bad).unwrap_err();
        // docker 41
        assert!(
            matches!(error, VolumeError::SubPath { .. }),
            "{bad}: {error}"
        );
        let text = error.to_string();
        let host_path = root.dir.path().to_str().unwrap();
        assert!(!text.contains(host_path), "{text}");
        let follows = !bad.contains("..") && bad != "/etc";
        let words = "a symlink in its path points outside the volume";
        // tenants A7
        assert_eq!(text.contains(words), follows, "{text}");
    }
    ensure_subpath(&root, &volume, "within/x").unwrap();
    fs::write(volume.join("file"), "").unwrap();
    let error = ensure_subpath(&root, &volume, "file/x").unwrap_err();
    let words = "a part of its path is not a directory";
    assert!(error.to_string().ends_with(words), "{error}");
    assert!(volume.join("inside/x").is_dir());
}

/// A link that a container puts in the place of a directory that was just made is not followed.
#[test]
fn a_link_in_place_of_a_new_sub_path_is_not_followed() {
    let root = Root::new();
    let (volume, other) = (root.path("volume"), root.path("other"));
    fs::create_dir_all(volume.join("made")).unwrap();
    fs::create_dir(&other).unwrap();
    set_mode(&other, 0o700).unwrap();
    symlink("../other", volume.join("link")).unwrap();
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let parent = rustix::fs::open(&volume, flags, rustix::fs::Mode::empty()).unwrap();
    let open = |name: &str| {
        let all = rustix::fs::Mode::from_raw_mode(0o777);
        subpath::opened_with_mode(&parent, name.as_ref(), all)
    };
    open("made").unwrap();
    assert_eq!(mode(&volume.join("made")), 0o777);
    open("link").unwrap_err();
    // tenants L4
    assert_eq!(mode(&other), 0o700);
}

#[test]
fn sub_path_expressions_need_all_their_variables() {
    let root = Root::new();
    let volume = root.path("volume");
    fs::create_dir(&volume).unwrap();
    let mounts = json!([{"name": "v", "mountPath": "/m", "subPathExpr": "$(POD)/$(X)"}]);
    let pod = subpath_pod(&volume, &mounts);
    let mut map = root.ensure(&pod, NODE_MEMORY).unwrap();
    let mut env = Variables::from([("POD".to_owned(), "p".to_owned())]);
    let error = root
        .manager
        .ensure_subpaths(&pod, "c", &env, &mut map)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to prepare subPath for volumeMount \"v\" of container \"c\": missing value for X"
    );
    env.insert("X".to_owned(), "x".to_owned());
    root.manager
        .ensure_subpaths(&pod, "c", &env, &mut map)
        .unwrap();
    assert!(volume.join("p/x").is_dir());
}
