use super::*;

const LIMITS: CgroupLimits = CgroupLimits {
    cpu_shares: 256,
    cpu_quota: Some(12_500),
    memory: Some(64 << 20),
};
const ID: &str = "0123456789abcdef";

/// Cgroups of that version in a directory of their own, and the pod's cgroup with the files that
/// the kernel would make.
fn made(version: Version) -> (tempfile::TempDir, Cgroups, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (hierarchies, units) = (dir.path().join("cgroup"), dir.path().join("units"));
    let parts = vec!["root".into(), "podu1".into()];
    let files: &[(&str, &[&str])] = match version {
        Version::V1 => &[
            (
                "cpu/root/podu1",
                &["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"],
            ),
            ("memory/root/podu1", &["memory.limit_in_bytes"]),
        ],
        Version::V2 => &[
            ("", &["cgroup.controllers", "cgroup.subtree_control"]),
            ("root", &["cgroup.subtree_control"]),
            ("root/podu1", &["cpu.weight", "cpu.max", "memory.max"]),
        ],
    };
    for (directory, names) in files {
        let directory = hierarchies.join(directory);
        fs::create_dir_all(&directory).unwrap();
        for name in *names {
            fs::write(directory.join(name), "").unwrap();
        }
    }
    (dir, Cgroups::at(&hierarchies, &units), parts)
}

fn text(cgroups: &Cgroups, file: &str) -> String {
    fs::read_to_string(cgroups.hierarchies.root().join(file)).unwrap()
}

#[test]
fn a_pods_cgroup_is_limited_by_the_files_of_either_version() {
    for (version, files) in [
        (
            Version::V1,
            vec![
                ("cpu/root/podu1/cpu.shares", "256"),
                ("cpu/root/podu1/cpu.cfs_period_us", "100000"),
                ("cpu/root/podu1/cpu.cfs_quota_us", "12500"),
                ("memory/root/podu1/memory.limit_in_bytes", "67108864"),
            ],
        ),
        (
            Version::V2,
            vec![
                ("cgroup.subtree_control", "+cpu +memory"),
                ("root/cgroup.subtree_control", "+cpu +memory"),
                ("root/podu1/cpu.weight", "10"),
                ("root/podu1/cpu.max", "12500 100000"),
                ("root/podu1/memory.max", "67108864"),
            ],
        ),
    ] {
        let (_dir, cgroups, parts) = made(version);
        cgroups.limit(&parts, LIMITS).unwrap();
        for (file, expected) in files {
            // docker 68
            assert_eq!(text(&cgroups, file), expected, "{file}");
        }
    }
}

#[test]
fn limits_that_hold_nothing_are_an_error() {
    for (version, children, file) in [
        (
            Version::V1,
            vec!["cpu/root/podu1", "memory/root/podu1"],
            "memory/root/podu1/memory.limit_in_bytes",
        ),
        (Version::V2, vec!["root/podu1"], "root/podu1/memory.max"),
    ] {
        let (_dir, cgroups, parts) = made(version);
        cgroups.limit(&parts, LIMITS).unwrap();
        let error = cgroups.check(&parts, LIMITS, ID).unwrap_err();
        // docker 68
        assert!(matches!(error, VolumeError::NotInCgroup { .. }), "{error}");
        for directory in children {
            fs::create_dir(cgroups.hierarchies.root().join(directory).join(ID)).unwrap();
        }
        cgroups.check(&parts, LIMITS, ID).unwrap();
        // The kernel counts whole pages.
        let file = cgroups.hierarchies.root().join(file);
        let odd = CgroupLimits {
            memory: Some((64 << 20) + 100),
            ..LIMITS
        };
        cgroups.check(&parts, odd, ID).unwrap();
        for other in ["max", "9223372036854771712", "67108865", "4096"] {
            fs::write(&file, other).unwrap();
            let error = cgroups.check(&parts, LIMITS, ID).unwrap_err();
            assert!(
                matches!(error, VolumeError::NotLimited { .. }),
                "{other} {error}"
            );
        }
    }
}

#[test]
fn systemd_is_told_by_a_unit_of_the_slice() {
    let (_dir, cgroups, parts) = made(Version::V2);
    let error = cgroups.limit_slice(&parts, LIMITS).unwrap_err();
    assert!(matches!(error, VolumeError::Io { .. }), "{error}");
    fs::create_dir(&cgroups.units).unwrap();
    cgroups.limit_slice(&parts, LIMITS).unwrap();
    let unit = cgroups.units.join("root-podu1.slice");
    // docker 68
    assert_eq!(
        fs::read_to_string(&unit).unwrap(),
        "# Written by mirrorlet, for the resources of a pod.\n\
         [Slice]\nCPUWeight=10\nCPUQuota=12.50%\nMemoryMax=67108864\n"
    );
    cgroups.limit(&parts, LIMITS).unwrap();
    // Where systemd puts the slice and the container.
    let slice = cgroups
        .hierarchies
        .root()
        .join("root.slice/root-podu1.slice");
    fs::create_dir_all(slice.join(format!("docker-{ID}.scope"))).unwrap();
    let error = cgroups.check(&parts, LIMITS, ID).unwrap_err();
    assert!(matches!(error, VolumeError::NotLimited { .. }), "{error}");
    for (file, value) in [
        ("cpu.weight", "11"),
        ("cpu.max", "12500 100000"),
        ("memory.max", "67108864"),
    ] {
        fs::write(slice.join(file), value).unwrap();
    }
    cgroups.check(&parts, LIMITS, ID).unwrap();

    fs::remove_dir_all(cgroups.hierarchies.root()).unwrap();
    cgroups.remove("root", &PodUid::from("u1")).unwrap();
    assert!(!unit.exists());
}

#[test]
fn a_pods_cgroups_are_removed_in_every_hierarchy_unless_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let uid = PodUid::from("u1");
    let cgroups = Cgroups::at(dir.path(), &dir.path().join("units"));
    let mine = [
        "root/burstable/podu1",
        "cpu/root/podu1",
        "memory/root/podu1",
    ];
    let others = ["root/burstable/podu2", "cpu/root", "other/podu1"];
    let by_default = "memory/mirrorlet/podu1";
    for path in mine.iter().chain(&others).chain([&by_default]) {
        fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    fs::write(dir.path().join("file"), b"").unwrap();
    for _ in 0..2 {
        cgroups.remove("root", &uid).unwrap();
    }
    assert!(mine.iter().all(|path| !dir.path().join(path).exists()));
    assert!(others.iter().all(|path| dir.path().join(path).exists()));

    fs::create_dir_all(dir.path().join("cpu/root/podu1/container")).unwrap();
    let error = cgroups.remove("root", &uid).unwrap_err();
    assert!(matches!(error, VolumeError::Busy { .. }), "{error}");
    assert!(dir.path().join(by_default).exists());
    cgroups.remove("", &uid).unwrap();
    // docker 68
    assert!(!dir.path().join(by_default).exists());
    let missing = Cgroups::at(&dir.path().join("missing"), dir.path());
    missing.remove("root", &uid).unwrap();
}
