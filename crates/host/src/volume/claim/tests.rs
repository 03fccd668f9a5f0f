use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::Command;

use serde_json::{Value, json};

use super::super::tests::{Root, UID, mode};
use super::*;
use mirrorlet_core::expand::Variables;
use mirrorlet_core::objects::claims::{ClaimName, EngineVolume, LOCAL_DRIVER, Presence};

fn pod(name: &str, uid: &str, more: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "n", "uid": uid},
        "spec": {
            "containers": [{"name": "c"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        },
    });
    if let Value::Object(more) = more {
        pod["spec"].as_object_mut().unwrap().extend(more);
    }
    serde_json::from_value(pod).unwrap()
}

fn storage(place: Place) -> Storage {
    Storage {
        claim: ClaimName::new("n", "c"),
        place,
        one_pod: false,
        pod: None,
    }
}

fn engine() -> Storage {
    storage(Place::Engine(EngineVolume {
        name: "v".to_owned(),
        driver: LOCAL_DRIVER.to_owned(),
        options: BTreeMap::new(),
        named: false,
        must_exist: false,
        presence: Presence::Unknown,
    }))
}

fn host(path: &Path, kind: &str) -> Storage {
    storage(Place::Host {
        volume: "disk".to_owned(),
        path: path.to_str().unwrap().to_owned(),
        kind: kind.to_owned(),
    })
}

fn ensured(root: &Root, pod: &Pod, storage: Storage, dir: Option<PathBuf>) -> Result<VolumeMap> {
    let mut map = VolumeMap::default();
    let storage = Arc::new(storage);
    let claims = BTreeMap::from([("data".to_owned(), ClaimVolume { storage, dir })]);
    let made = root.manager.ensure_claims(pod, &claims, &mut map);
    made.map(|()| map)
}

/// A directory as the Engine creates it for a volume.
fn engine_dir(root: &Root) -> PathBuf {
    let dir = root.path("engine");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(ENGINE_MODE)).unwrap();
    dir
}

#[test]
fn a_new_volume_belongs_to_its_first_pod_and_keeps_its_owner() {
    let group = |group: u32| json!({"securityContext": {"fsGroup": group}});
    for (first, expected) in [(json!({}), (0o777, 0)), (group(2000), (0o2777, 2000))] {
        let root = Root::new();
        let dir = engine_dir(&root);
        let map = ensured(&root, &pod("p", UID, first), engine(), Some(dir.clone())).unwrap();
        assert_eq!(map.volumes["data"], dir);
        assert_eq!(map.engine_volumes["data"], "v");
        let owner = || (mode(&dir), fs::metadata(&dir).unwrap().gid());
        // box 7
        assert_eq!(owner(), expected);
        ensured(
            &root,
            &pod("p", UID, group(3000)),
            engine(),
            Some(dir.clone()),
        )
        .unwrap();
        assert_eq!(owner(), expected);
    }
    // One that holds data is somebody's.
    let root = Root::new();
    let dir = engine_dir(&root);
    fs::write(dir.join("file"), "").unwrap();
    ensured(
        &root,
        &pod("p", UID, group(2000)),
        engine(),
        Some(dir.clone()),
    )
    .unwrap();
    assert_eq!(mode(&dir), ENGINE_MODE);
}

#[test]
fn a_volume_of_the_host_is_of_its_type_and_keeps_its_owner() {
    let root = Root::new();
    let (there, missing) = (engine_dir(&root), root.path("missing"));
    let group = pod("p", UID, json!({"securityContext": {"fsGroup": 2000}}));
    for (path, kind, found) in [
        (&there, "Directory", true),
        (&missing, "Directory", false),
        (&missing, "DirectoryOrCreate", true),
    ] {
        let made = ensured(&root, &group, host(path, kind), None);
        assert_eq!(made.is_ok(), found, "{made:?}");
        if let Ok(map) = made {
            assert_eq!((&map.volumes["data"], mode(path)), (path, ENGINE_MODE));
            assert!(map.engine_volumes.is_empty());
        }
    }
}

fn device(path: &Path) -> Storage {
    storage(Place::Device {
        volume: "disk".to_owned(),
        path: path.to_str().unwrap().to_owned(),
    })
}

#[test]
fn a_device_is_a_block_device_that_is_there() {
    let root = Root::new();
    let (node, link) = (root.path("device"), root.path("link"));
    // Of a loop device that need not be set up: nothing opens it.
    let made = Command::new("mknod")
        .arg(&node)
        .args(["b", "7", "0"])
        .status();
    assert!(
        made.unwrap().success(),
        "making a device node needs CAP_MKNOD"
    );
    symlink(&node, &link).unwrap();
    let devices = json!({
        "containers": [{"name": "c", "volumeDevices": [{"name": "data", "devicePath": "/dev/d"}]}],
        "securityContext": {"fsGroup": 2000},
    });
    let pod = pod("p", UID, devices);
    let owner = || (mode(&node), fs::metadata(&node).unwrap().gid());
    let before = owner();
    let no = "is not a block device";
    for (path, problem) in [
        (node.clone(), None),
        (link, None),
        (root.path("missing"), Some("doesn't exist")),
        (engine_dir(&root), Some(no)),
        (PathBuf::from("/dev/null"), Some(no)),
    ] {
        let objects = ObjectSet {
            claims: [("c".to_owned(), Ok(Arc::new(device(&path))))].into(),
            ..ObjectSet::default()
        };
        let looked = root.manager.claims(&pod, &objects).map(|_| ());
        let made = ensured(&root, &pod, device(&path), None);
        let Some(problem) = problem else {
            let map = made.unwrap();
            // box 18
            assert_eq!((looked, &map.devices["data"]), (Ok(()), &path));
            assert!(map.volumes.is_empty(), "{map:?}");
            root.manager.release(&PodUid::of(&pod)).unwrap();
            continue;
        };
        let expected = format!(
            "MapVolume.SetUpDevice failed for volume \"data\" : {} {problem}",
            path.display()
        );
        for error in [looked.unwrap_err(), made.unwrap_err()] {
            assert!(error.is_of_device(), "{error:?}");
            // box 18
            assert_eq!(
                (error.volume(), error.to_string()),
                (Some("data"), expected.clone())
            );
        }
        root.manager.release(&PodUid::of(&pod)).unwrap();
    }
    // box 18
    assert_eq!(owner(), before, "the pod's fsGroup is for files");
}

#[test]
fn a_claim_that_is_used_as_what_it_is_not_is_refused() {
    let root = Root::new();
    let devices = json!([{"name": "data", "devicePath": "/dev/d"}]);
    let pod = pod(
        "p",
        UID,
        json!({"containers": [{"name": "c", "volumeDevices": devices}]}),
    );
    let objects = ObjectSet {
        claims: [("c".to_owned(), Ok(Arc::new(engine())))].into(),
        ..ObjectSet::default()
    };
    let error = root.manager.claims(&pod, &objects).unwrap_err();
    assert!(!error.is_of_device());
    // box 18
    assert_eq!(
        error.to_string(),
        "MountVolume.SetUp failed for volume \"data\" : volume data has volumeMode Filesystem, but is specified in volumeDevices"
    );
}

#[test]
fn read_only_claims_are_mounted_read_only() {
    let root = Root::new();
    let volumes =
        |source: Value| json!({"volumes": [{"name": "data", "persistentVolumeClaim": source}]});
    for (source, read_only) in [
        (json!({"claimName": "c"}), false),
        (json!({"claimName": "c", "readOnly": true}), true),
    ] {
        let map = ensured(&root, &pod("p", UID, volumes(source)), engine(), None).unwrap();
        assert_eq!(map.read_only.contains("data"), read_only);
    }
}

#[test]
fn a_volume_without_a_directory_has_no_sub_paths() {
    let root = Root::new();
    let mount = json!({"name": "data", "mountPath": "/data", "subPath": "a"});
    let containers = json!({"containers": [{"name": "c", "volumeMounts": [mount]}]});
    let pod = pod("p", UID, containers);
    let mut map = ensured(&root, &pod, engine(), None).unwrap();
    let variables = Variables::default();
    let made = root
        .manager
        .ensure_subpaths(&pod, "c", &variables, &mut map);
    let error = made.unwrap_err().to_string();
    let why = "volume v of the Engine has a driver other than local";
    assert!(error.contains(why), "{error}");
}

#[test]
fn a_claim_for_one_pod_waits_while_the_users_of_storage_cannot_be_read() {
    let root = Root::new();
    let one_pod = Storage {
        one_pod: true,
        ..engine()
    };
    ensured(&root, &pod("p", UID, json!({})), one_pod.clone(), None).unwrap();
    let objects = ObjectSet {
        claims: [("c".to_owned(), Ok(Arc::new(one_pod.clone())))].into(),
        ..ObjectSet::default()
    };
    let notes = root.manager.paths(&PodUid::from(UID)).unwrap();
    let notes = notes.claim_notes_dir();
    fs::remove_dir_all(&notes).unwrap();
    std::os::unix::fs::symlink(&notes, &notes).unwrap();
    let other = pod("q", "u-2", json!({}));
    let error = root.manager.claims(&other, &objects).unwrap_err();
    assert!(error.to_string().contains("read directory"), "{error}");
    ensured(&root, &other, one_pod.clone(), None).unwrap_err();
    fs::remove_file(&notes).unwrap();
    ensured(&root, &other, one_pod, None).unwrap();
}

#[test]
fn a_claim_for_one_pod_is_used_by_one_pod() {
    let one_pod = || Storage {
        one_pod: true,
        ..engine()
    };
    let beside = |mut pod: Pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(mirrorlet_core::api::keys::BESIDE.to_owned(), String::new());
        pod
    };
    let of = |name, uid| pod(name, uid, json!({}));
    let elsewhere = host(Path::new("/"), "Directory");
    for (pod, wanted, is_free) in [
        (of("p", UID), one_pod(), true),
        // The next version of the same pod, once the first has ended; side by side they are two.
        (of("p", "u-2"), one_pod(), true),
        (beside(of("p", "u-2")), one_pod(), false),
        (of("q", "u-2"), one_pod(), false),
        // Its mode may have been ReadWriteOnce before.
        (of("q", "u-2"), engine(), false),
        (of("q", "u-2"), elsewhere, true),
    ] {
        let root = Root::new();
        ensured(&root, &of("p", UID), one_pod(), None).unwrap();
        let objects = ObjectSet {
            claims: [("c".to_owned(), Ok(Arc::new(wanted.clone())))].into(),
            ..ObjectSet::default()
        };
        let looked = root.manager.claims(&pod, &objects).map(|_| ());
        let taken = ensured(&root, &pod, wanted, None).map(|_| ());
        // box 7
        assert_eq!(
            (looked.is_ok(), taken.is_ok()),
            (is_free, is_free),
            "{taken:?}"
        );
        if let Err(error) = taken {
            let error = error.to_string();
            assert!(error.ends_with("is already in use by pod n/p"), "{error}");
        }
        for uid in [UID, "u-2"] {
            root.manager.release(&PodUid::from(uid)).unwrap();
        }
        // Once its pods have ended, any pod may use it.
        root.manager.claims(&of("r", "u-3"), &objects).unwrap();
    }
}

#[test]
fn all_claims_of_a_pod_that_have_no_storage_are_named() {
    let root = Root::new();
    let claim = |name: &str| json!({"name": format!("v-{name}"), "persistentVolumeClaim": {"claimName": name}});
    let volumes = json!({"volumes": [claim("one"), claim("c"), claim("two")]});
    let pod = pod("p", UID, volumes);
    let objects = ObjectSet {
        claims: [("c".to_owned(), Ok(Arc::new(engine())))].into(),
        ..ObjectSet::default()
    };
    let error = root.manager.claims(&pod, &objects).unwrap_err();
    assert_eq!(error.volume(), Some("v-one"));
    let error = error.to_string();
    let [one, two] = ["v-one", "v-two"].map(|name| error.contains(&format!("{name:?}")));
    assert!(one && two && !error.contains("\"v-c\""), "{error}");
}

#[test]
fn a_pod_keeps_its_storage_without_the_document() {
    let root = Root::new();
    let pod = pod("p", UID, json!({}));
    let missing = ObjectSet::default();
    assert!(root.manager.claims(&pod, &missing).is_err());
    ensured(&root, &pod, engine(), None).unwrap();
    let claims = root.manager.claims(&pod, &missing).unwrap();
    // box 7
    assert_eq!(*claims["data"], engine());
}
