use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::volume::tests::{NODE_MEMORY, Root, UID, mode, pod};
use crate::volume::{atomic, mountinfo};
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::expand::Variables;
use mirrorlet_core::payload::{
    Payload, PayloadError, PayloadFile, Payloads, bytes_of_file, nested_mount_points,
};
use mirrorlet_core::volumes::VolumeMap;

fn volumes() -> Value {
    json!([
        {"name": "conf", "configMap": {"name": "c"}},
        {"name": "keys", "secret": {"secretName": "s"}},
        {"name": "about", "downwardAPI": {}},
        {"name": "all", "projected": {"sources": []}},
    ])
}

fn pod_with(more: &Value) -> Pod {
    let mut spec = json!({"containers": [{"name": "c"}], "volumes": volumes()});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    pod(&spec)
}

fn holding(content: &str) -> Payload {
    let mut payload = Payload::default();
    let file = PayloadFile {
        data: content.as_bytes().to_vec(),
        mode: 0o644,
        user: None,
    };
    payload.insert("file", file).unwrap();
    payload
}

fn payloads(content: &str) -> Payloads {
    ["conf", "keys", "about", "all"]
        .map(|name| (name.to_owned(), Ok(holding(content))))
        .into()
}

/// Why nothing can be told of a volume.
fn untold() -> PayloadError {
    Payload::default()
        .insert("", holding("").files()["file"].clone())
        .unwrap_err()
}

fn content(map: &VolumeMap, volume: &str) -> String {
    fs::read_to_string(map.volumes[volume].join("file")).unwrap()
}

#[test]
fn what_may_be_secret_is_in_memory_and_goes_with_its_pod() {
    let root = Root::new();
    let pod = pod_with(&json!({}));
    let ensure = |content: &str| root.manager.ensure(&pod, &payloads(content), NODE_MEMORY);
    let map = ensure("1").unwrap();
    for (name, plugin, in_memory, expected) in [
        ("conf", "kubernetes.io~configmap", false, 0o777),
        ("keys", "kubernetes.io~secret", true, 0o1777),
        ("about", "kubernetes.io~downward-api", true, 0o1777),
        ("all", "kubernetes.io~projected", true, 0o1777),
    ] {
        let dir = &map.volumes[name];
        assert_eq!(*dir, root.pod_paths().volume(plugin, name));
        // docker 44
        assert_eq!(mountinfo::is_mount_point(dir).unwrap(), in_memory, "{name}");
        assert_eq!(mode(dir), expected, "{name}");
        assert_eq!(content(&map, name), "1");
        assert!(map.read_only.contains(name));
    }
    // Again, and with other content: nothing is mounted twice.
    let map = ensure("2").unwrap();
    assert_eq!(content(&map, "keys"), "2");
    let real = root.path("root").canonicalize().unwrap();
    assert_eq!(mountinfo::below(&real).unwrap().len(), 3);
    root.manager.remove_pod(&PodUid::from(UID)).unwrap();
    assert!(mountinfo::below(&real).unwrap().is_empty());
    assert!(!root.pod_paths().pod_dir().exists());
}

#[test]
fn a_made_volume_keeps_what_it_holds_while_nothing_can_be_told() {
    let root = Root::new();
    let pod = pod_with(&json!({}));
    let mut failing = payloads("2");
    failing.insert("keys".to_owned(), Err(untold()));
    let words =
        "MountVolume.SetUp failed for volume \"keys\" : invalid path: must not be empty: \"\"";
    let check = |payloads: &Payloads| root.manager.check(&pod, payloads);
    assert_eq!(check(&failing).unwrap_err().to_string(), words);
    let mut more = failing.clone();
    more.insert("conf".to_owned(), Err(untold()));
    let error = check(&more).unwrap_err();
    let first = words.replace("keys", "conf");
    // All of them, in the order of the pod.
    assert_eq!(error.to_string(), format!("{first}; {words}"));
    assert_eq!(error.volume(), Some("conf"));
    let error = root.manager.ensure(&pod, &failing, NODE_MEMORY);
    assert_eq!(error.unwrap_err().to_string(), words);

    check(&payloads("1")).unwrap();
    root.manager
        .ensure(&pod, &payloads("1"), NODE_MEMORY)
        .unwrap();
    check(&failing).unwrap();
    let map = root.manager.ensure(&pod, &failing, NODE_MEMORY).unwrap();
    // docker 44
    assert_eq!(
        (content(&map, "keys"), content(&map, "conf")),
        ("1".into(), "2".into())
    );
    assert_eq!(map.kept.keys().collect::<Vec<_>>(), ["keys"]);

    failing.insert("conf".to_owned(), Ok(holding("3")));
    let error = root.manager.refresh(&pod, &failing, NODE_MEMORY);
    assert_eq!(error.unwrap_err().to_string(), words);
    assert_eq!(
        (content(&map, "keys"), content(&map, "conf")),
        ("1".into(), "3".into())
    );
}

#[test]
fn volumes_that_hold_files_of_a_deleted_secret_leave_others_less_room() {
    let root = Root::new();
    let one = pod_with(&json!({}));
    let mut other = one.clone();
    other.metadata.uid = Some("other".to_owned());
    let large = |volume: &str| {
        let mut payloads = payloads("1");
        payloads.insert(volume.to_owned(), Ok(holding(&"x".repeat(16 << 20))));
        payloads
    };
    let mut gone = payloads("1");
    gone.insert("keys".to_owned(), Err(untold()));
    let ensure = |pod: &Pod, payloads: &Payloads| {
        let made = root.manager.ensure(pod, payloads, NODE_MEMORY);
        made.map(drop).map_err(|error| error.to_string())
    };
    ensure(&one, &large("keys")).unwrap();
    root.manager.refresh(&one, &gone, NODE_MEMORY).unwrap_err();
    // tenants M9
    assert!(ensure(&other, &large("keys")).is_err());
    // Nor have other volumes of the pod; those that don't grow are refreshed all the same.
    let mut next = large("all");
    next.insert("keys".to_owned(), Err(untold()));
    next.insert("about".to_owned(), Ok(holding("2")));
    assert!(ensure(&one, &next).is_err());
    root.manager.refresh(&one, &next, NODE_MEMORY).unwrap_err();
    let map = root.manager.ensure(&one, &gone, NODE_MEMORY).unwrap();
    assert_eq!(content(&map, "all"), "1");
    root.manager.remove_pod(&PodUid::from(UID)).unwrap();
    assert_eq!(ensure(&other, &large("keys")), Ok(()));
    root.manager.remove_pod(&PodUid::from("other")).unwrap();
}

#[test]
fn only_volumes_that_are_made_are_refreshed() {
    let root = Root::new();
    let pod = pod_with(&json!({}));
    let refresh = |content: &str| root.manager.refresh(&pod, &payloads(content), NODE_MEMORY);
    assert_eq!(refresh("1").unwrap(), Vec::<String>::new());
    assert!(!root.pod_paths().pod_dir().exists());
    let map = root
        .manager
        .ensure(&pod, &payloads("1"), NODE_MEMORY)
        .unwrap();
    assert_eq!(refresh("1").unwrap(), Vec::<String>::new());
    assert_eq!(refresh("2").unwrap(), ["conf", "keys", "about", "all"]);
    assert_eq!(content(&map, "all"), "2");
    // Values that are gone from memory, after a restart of the machine say, are not written to disk.
    let dir = &map.volumes["keys"];
    rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(refresh("3").unwrap(), ["conf", "about", "all"]);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    let map = root
        .manager
        .ensure(&pod, &payloads("3"), NODE_MEMORY)
        .unwrap();
    assert_eq!(content(&map, "keys"), "3");
}

#[test]
fn volumes_belong_to_the_pods_group() {
    let root = Root::new();
    let pod = pod_with(&json!({"securityContext": {"fsGroup": 4242}}));
    let map = root
        .manager
        .ensure(&pod, &payloads("1"), NODE_MEMORY)
        .unwrap();
    for (name, expected) in [("conf", 0o2777), ("keys", 0o3777), ("all", 0o3777)] {
        let dir = &map.volumes[name];
        assert_eq!(mode(dir), expected, "{name}");
        assert_eq!(fs::metadata(dir).unwrap().gid(), 4242, "{name}");
        let file = fs::metadata(dir.join("file")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.gid()), (0o644, 4242), "{name}");
    }
}

#[test]
fn mount_points_inside_a_volume_are_there_beforehand() {
    let root = Root::new();
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let pod = pod_with(&json!({"containers": [{"name": "c", "volumeMounts": [
        mount("keys", "/etc/x"), mount("conf", "/etc/x/inside/here"), mount("all", "/etc/x/file"),
    ]}]}));
    let map = root
        .manager
        .ensure(&pod, &payloads("1"), NODE_MEMORY)
        .unwrap();
    // docker 43
    assert!(map.volumes["keys"].join("inside/here").is_dir());
    let files = payloads("1")["keys"].clone().unwrap();
    let points = files.mount_point_bytes(&nested_mount_points(&pod, "keys"));
    assert_eq!(points, 2 * bytes_of_file(0));
    let held = atomic::size(&map.volumes["keys"]).unwrap();
    assert_eq!(held, files.size() + points);
    assert_eq!(content(&map, "keys"), "1");
    root.manager
        .ensure(&pod, &payloads("2"), NODE_MEMORY)
        .unwrap();
    assert!(map.volumes["keys"].join("inside/here").is_dir());
}

#[test]
fn a_sub_path_holds_the_file_it_was_made_with() {
    let root = Root::new();
    let mounts = json!([{"name": "keys", "mountPath": "/m", "subPath": "file"}]);
    let pod = pod_with(&json!({"containers": [{"name": "c", "volumeMounts": mounts}]}));
    let bound = |content: &str| {
        let made = root.manager.ensure(&pod, &payloads(content), NODE_MEMORY);
        let mut map = made.unwrap();
        let none: &Variables = &BTreeMap::new();
        root.manager
            .ensure_subpaths(&pod, "c", none, &mut map)
            .unwrap();
        map.subpaths[&("c".to_owned(), 0)].clone()
    };
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let path = bound("1");
    assert_eq!(read(&path), "1");
    root.manager
        .refresh(&pod, &payloads("2"), NODE_MEMORY)
        .unwrap();
    // docker 43
    assert_eq!(read(&path), "1");
    assert_eq!(read(&bound("2")), "2");
    root.manager.remove_pod(&PodUid::from(UID)).unwrap();
    assert!(!root.pod_paths().pod_dir().exists());
}
