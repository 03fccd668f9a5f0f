use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use proptest::prelude::*;

use super::*;
use mirrorlet_core::payload::PayloadFile;

type Files = BTreeMap<String, String>;

fn payload(files: &Files) -> Payload {
    let mut payload = Payload::default();
    for (path, content) in files {
        let file = PayloadFile {
            data: content.clone().into_bytes(),
            mode: 0o640,
            user: None,
        };
        payload.insert(path, file).unwrap();
    }
    payload
}

fn files(all: &[(&str, &str)]) -> Files {
    all.iter()
        .map(|(path, content)| ((*path).to_owned(), (*content).to_owned()))
        .collect()
}

/// The view of a container: files by path, through the links, and nothing of ours.
fn seen(dir: &Path) -> Files {
    fn below(dir: &Path, prefix: &str, seen: &mut Files) {
        for (path, name) in entries(dir).unwrap() {
            let name = name.to_str().unwrap();
            if prefix.is_empty() && name.starts_with(OURS) {
                continue;
            }
            let name = format!("{prefix}{name}");
            if path.is_dir() {
                below(&path, &format!("{name}/"), seen);
            } else if let Ok(content) = fs::read_to_string(&path) {
                seen.insert(name, content);
            }
        }
    }
    let mut all = Files::new();
    below(dir, "", &mut all);
    all
}

fn names(dir: &Path) -> Vec<String> {
    let names = entries(dir).unwrap().into_iter();
    names.map(|(_, name)| name.into_string().unwrap()).collect()
}

/// Whether everything seen is of that one version.
fn is_of(seen: &Files, version: &Files) -> bool {
    seen.iter()
        .all(|(path, content)| version.get(path) == Some(content))
}

#[test]
fn files_lie_in_upstreams_layout() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let first = files(&[("a", "1"), ("sub/b", "2"), ("sub/deep/c", "3")]);
    assert!(write(dir, &payload(&first), None).unwrap());
    assert_eq!(seen(dir), first);
    let link = |name: &str| fs::read_link(dir.join(name)).unwrap();
    // docker 43
    assert_eq!(link("a"), Path::new("..data/a"));
    assert_eq!(link("sub"), Path::new("..data/sub"));
    let data = link("..data");
    let stamp = data.to_str().unwrap();
    let (time, random) = stamp.rsplit_once('.').unwrap();
    assert_eq!((time.len(), random.len()), (21, 8), "{stamp}");
    assert!(time.starts_with("..20"), "{stamp}");
    assert_eq!(names(dir).len(), 4);
    let mode = |path: &str| fs::metadata(dir.join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("..data"), 0o755);
    assert_eq!(mode("sub/deep"), 0o755);
    assert_eq!(mode("a"), 0o640);

    // The same again changes nothing; a missing link is mended.
    assert!(!write(dir, &payload(&first), None).unwrap());
    assert_eq!(link("..data"), data);
    fs::remove_file(dir.join("a")).unwrap();
    assert!(write(dir, &payload(&first), None).unwrap());
    assert_eq!((seen(dir), link("..data")), (first, data.clone()));

    // A file less is a change, and so is none at all.
    let second = files(&[("sub/b", "2")]);
    assert!(write(dir, &payload(&second), None).unwrap());
    assert_eq!(seen(dir), second);
    assert_ne!(link("..data"), data);
    assert_eq!(names(dir).len(), 3);
    assert!(write(dir, &Payload::default(), None).unwrap());
    assert_eq!(seen(dir), Files::new());
    assert!(is_written(dir));
}

#[test]
fn files_count_as_before_they_were_written() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(size(&root.path().join("gone")).unwrap(), 0);
    let all = [
        ("a", "1"),
        ("sub/b", "2"),
        ("sub/deep/c", ""),
        ("sub-d", ""),
    ];
    let payload = payload(&files(&all));
    write(root.path(), &payload, None).unwrap();
    assert_eq!(size(root.path()).unwrap(), payload.size());
    // Four files, two directories.
    assert_eq!(payload.size(), 6 * DIRECTORY_BYTES);
}

#[test]
fn what_is_no_link_of_ours_stays() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    fs::create_dir(dir.join("nested")).unwrap();
    fs::create_dir(dir.join("a")).unwrap();
    write(dir, &payload(&files(&[("a", "1"), ("b", "2")])), None).unwrap();
    write(dir, &Payload::default(), None).unwrap();
    // docker 43
    assert!(dir.join("nested").is_dir());
    assert!(dir.join("a").is_dir());
    assert!(!dir.join("b").exists());
}

#[test]
fn a_group_may_read_and_nobody_write() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    own_root(dir, 0o1777, Some(4242)).unwrap();
    let mut payload = Payload::default();
    let file = |mode, user| PayloadFile {
        data: b"x".to_vec(),
        mode,
        user,
    };
    payload.insert("token", file(0o600, Some(1000))).unwrap();
    payload.insert("d/closed", file(0o000, None)).unwrap();
    write(dir, &payload, Some(4242)).unwrap();
    for (path, mode, user) in [
        ("", 0o3777, 0),
        ("..data", 0o2755, 0),
        ("d", 0o2755, 0),
        ("token", 0o640, 1000),
        ("d/closed", 0o440, 0),
    ] {
        let found = fs::metadata(dir.join(path)).unwrap();
        assert_eq!(found.mode() & 0o7777, mode, "{path}");
        assert_eq!((found.uid(), found.gid()), (user, 4242), "{path}");
    }
    let link = fs::symlink_metadata(dir.join("token")).unwrap();
    assert_eq!(link.gid(), 4242);
}

fn any_files() -> impl Strategy<Value = Files> {
    let path = prop::sample::select(vec!["a", "b", "c/x", "c/y", "d/e/f", "g"]);
    let content = prop::sample::select(vec!["", "one", "two"]);
    prop::collection::btree_map(
        path.prop_map(str::to_owned),
        content.prop_map(str::to_owned),
        0..5,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Writes that are killed after any of their steps, one after the other: a reader never sees
    /// two versions mixed, and a write that ends leaves just its own.
    #[test]
    fn a_reader_sees_one_version_however_writes_are_killed(
        versions in prop::collection::vec((any_files(), prop::option::of(0_usize..14)), 1..8)
    ) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let mut in_force = Files::new();
        for (wanted, kill_after) in versions {
            let mut steps = 0;
            let mut mixed = None;
            let written = write_stepwise(dir, &payload(&wanted), None, &mut |step| {
                let seen = seen(dir);
                if !is_of(&seen, &in_force) && !is_of(&seen, &wanted) {
                    mixed = Some((step, seen));
                }
                if step == Step::Switched {
                    in_force.clone_from(&wanted);
                }
                steps += 1;
                if Some(steps) == kill_after {
                    return Err(VolumeError::InvalidName("killed".to_owned()));
                }
                Ok(())
            });
            prop_assert_eq!(mixed, None);
            if written.is_ok() {
                in_force.clone_from(&wanted);
                prop_assert_eq!(seen(dir), wanted.clone());
                let links = payload(&wanted).visible().len();
                prop_assert_eq!(names(dir).len(), links + 2, "{:?}", names(dir));
            } else {
                // docker 43
                prop_assert!(is_of(&seen(dir), &in_force));
            }
        }
    }
}
