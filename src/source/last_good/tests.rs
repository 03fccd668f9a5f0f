use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;
use mirrorlet_core::manifest::{Parsed, parse_manifest};

const LOCATION: &str = "/m/web.yaml";

fn good(image: &str) -> LastGood {
    let raw = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  \
         - name: main\n    image: {image}\n"
    );
    let node = NodeName::from("node");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: LOCATION,
    };
    let parsed = parse_manifest(raw.as_bytes(), &context);
    last_good(&raw, &parsed)
}

fn last_good(raw: &str, parsed: &Parsed) -> LastGood {
    let documents = parsed.documents.iter().map(|document| LastGoodDocument {
        number: document.number,
        key: document.key.clone().unwrap(),
        values: document.values,
        content: document.accepted.clone().unwrap(),
    });
    LastGood {
        raw: raw.into(),
        may_hold_secret: parsed.may_hold_secret(),
        documents: documents.collect(),
    }
}

fn load(root: &Path) -> (LastGoodStore, Vec<Diagnostic>) {
    LastGoodStore::load(root, PodSource::File, None, &"node".into())
}

/// A store on disk that keeps one location.
fn stored(root: &Path) -> PathBuf {
    let (mut store, problems) = load(root);
    assert_eq!(problems, []);
    store.put(LOCATION, good("a:1"));
    assert_eq!(store.flush(), []);
    store.kept.dir.join(file_name(store.source, LOCATION))
}

#[test]
fn what_is_put_is_found_by_the_next_life() {
    let root = tempfile::tempdir().unwrap();
    let path = stored(root.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);

    let (mut store, problems) = load(root.path());
    assert_eq!(problems, []);
    assert_eq!(store.get(LOCATION), Some(&good("a:1")));
    assert_eq!(store.locations().collect::<Vec<_>>(), [LOCATION]);
    store.put(LOCATION, good("a:2"));
    assert_eq!(store.flush(), []);
    assert_eq!(load(root.path()).0.get(LOCATION), Some(&good("a:2")));
    store.forget(LOCATION);
    assert_eq!(store.flush(), []);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn sources_do_not_see_one_another() {
    let root = tempfile::tempdir().unwrap();
    stored(root.path());
    let of = |source, only| LastGoodStore::load(root.path(), source, only, &"node".into()).0;
    assert_eq!(of(PodSource::Http, None).locations().count(), 0);
    assert_eq!(
        of(PodSource::File, Some("/m/other.yaml"))
            .locations()
            .count(),
        0
    );
    assert_eq!(of(PodSource::File, Some(LOCATION)).locations().count(), 1);
    assert_ne!(
        file_name(PodSource::File, "a"),
        file_name(PodSource::Http, "a")
    );
}

type Damage = fn(&Path);

#[test]
fn what_is_damaged_is_reported_once_and_set_aside() {
    let damages: [(&str, Damage); 5] = [
        ("cut off", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("another version", |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(path, text.replace("\"version\":1", "\"version\":99")).unwrap();
        }),
        ("another location", |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(path, text.replace(LOCATION, "/m/other.yaml")).unwrap();
        }),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (why, damage) in damages {
        let root = tempfile::tempdir().unwrap();
        let path = stored(root.path());
        damage(&path);
        let (mut store, problems) = load(root.path());
        assert_eq!(store.locations().count(), 0, "{why}");
        assert_eq!(problems.len(), 1, "{why}");
        assert!(
            problems[0].message.ends_with("set aside"),
            "{why}: {}",
            problems[0]
        );
        assert!(!problems[0].is_error(), "{why}");
        // The place is free again, and the next life is quiet.
        store.put(LOCATION, good("a:1"));
        assert_eq!(store.flush(), [], "{why}");
        let (store, problems) = load(root.path());
        assert_eq!((store.locations().count(), problems.len()), (1, 0), "{why}");
    }
}

#[test]
fn foreign_files_are_set_aside_and_leftovers_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = stored(root.path());
    let dir = path.parent().unwrap();
    fs::write(dir.join("notes.txt"), "hello").unwrap();
    fs::write(dir.join("x.json.new"), "{").unwrap();
    let (store, problems) = load(root.path());
    assert_eq!((store.locations().count(), problems.len()), (1, 1));
    assert_eq!(fs::read(dir.join("notes.txt.set-aside")).unwrap(), b"hello");
    assert!(!dir.join("x.json.new").exists());
}

#[test]
fn a_stored_pod_that_is_no_longer_valid_is_told() {
    let root = tempfile::tempdir().unwrap();
    let path = stored(root.path());
    let text = fs::read_to_string(&path).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["documents"][0]["canonical"] = serde_json::json!({"kind": "Pod"});
    fs::write(&path, value.to_string()).unwrap();
    let (store, problems) = load(root.path());
    assert_eq!(store.get(LOCATION).unwrap().documents, []);
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].message.contains("web-node_default"),
        "{}",
        problems[0]
    );
}

#[test]
fn what_cannot_be_written_is_tried_again() {
    let root = tempfile::tempdir().unwrap();
    // A file in the directory's place stands for a full disk: writing fails even for root.
    let place = root.path().join(DIRECTORY);
    let (mut store, _) = load(root.path());
    fs::write(&place, "").unwrap();
    store.put(LOCATION, good("a:1"));
    let problems = store.flush();
    assert!(
        problems[0]
            .message
            .starts_with("failed to save the last good version to disk")
    );
    assert_eq!(
        store.flush(),
        problems,
        "the problem is told as long as it lasts"
    );
    assert_eq!(store.get(LOCATION), Some(&good("a:1")));
    fs::remove_file(&place).unwrap();
    assert_eq!(store.flush(), []);
    assert_eq!(load(root.path()).0.get(LOCATION), Some(&good("a:1")));
}

#[test]
fn a_secret_is_never_written() {
    let root = tempfile::tempdir().unwrap();
    let raw = "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {k: hunter2}}\n---\n\
               {apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {k: plain}}\n---\n\
               {apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: a, image: a}]}}\n";
    let node = NodeName::from("node");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: LOCATION,
    };
    let good = last_good(raw, &parse_manifest(raw.as_bytes(), &context));
    let (mut store, _) = load(root.path());
    store.put(LOCATION, good.clone());
    assert_eq!(store.flush(), []);
    assert_eq!(store.get(LOCATION), Some(&good), "in memory it is whole");
    let path = store.kept.dir.join(file_name(store.source, LOCATION));
    let written = fs::read_to_string(path).unwrap();
    // box 4
    assert!(
        !written.contains("hunter2") && !written.contains("aHVudGVyMg"),
        "{written}"
    );
    let (store, problems) = load(root.path());
    assert_eq!(problems, []);
    assert_eq!(store.get(LOCATION).unwrap().documents, good.documents[1..]);
}

#[test]
fn versions_that_cannot_be_listed_may_be_there() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join(DIRECTORY);
    assert!(!may_hold_any(root.path()));
    fs::create_dir(&dir).unwrap();
    assert!(!may_hold_any(root.path()));
    fs::write(dir.join("a.json"), "").unwrap();
    assert!(may_hold_any(root.path()));
    fs::remove_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(DIRECTORY, &dir).unwrap();
    assert!(may_hold_any(root.path()));
}
