//! Files that variables come from, on the Engine in memory.

use futures::FutureExt as _;

use super::*;

fn from(path: &str) -> Value {
    let key = json!({"volumeName": "v", "path": path, "key": "K", "optional": true});
    json!({"name": "K", "valueFrom": {"fileKeyRef": key}})
}

fn container(name: &str, env: &Value) -> Value {
    json!({"name": name, "image": "app:1", "env": env})
}

/// Writes files of that many bytes into the volume `v` of the pod `a`.
fn write(bed: &Bed, files: &[(&str, usize)]) {
    let volume = "pods/a/volumes/kubernetes.io~empty-dir/v";
    let volume = bed.root.path().join(volume);
    std::fs::create_dir_all(&volume).unwrap();
    for (name, bytes) in files {
        std::fs::write(volume.join(name), vec![b'#'; *bytes]).unwrap();
    }
}

#[tokio::test]
async fn files_of_variables_take_room() {
    let bed = Bed::warm().await;
    let pod = pod(
        "a",
        &json!({
            "containers": [
                container("none", &json!([])),
                container("small", &json!([from("small")])),
                container("large", &json!([from("small"), from("large")])),
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }),
    );
    write(&bed, &[("small", 100), ("large", 1 << 20)]);
    let containers = &pod.spec.as_ref().unwrap().containers;
    let mut taken = Vec::new();
    for container in containers {
        let read = bed.manager.files.env_files(&pod, container).await;
        let (read, room) = read.unwrap();
        let read = read.values().flatten().map(String::len).sum::<usize>();
        taken.push((read, room.map_or(0, |room| room.num_permits())));
    }
    // About 150 bytes for each file beside its content.
    let expected = [(0, 0), (100, 250), (100 + (1 << 20), 400 + (1 << 20))];
    // tenants H1
    assert_eq!(taken, expected);
}

/// A request waits for an Engine that hangs, and its files with it.
#[tokio::test]
async fn files_of_variables_that_are_held_take_no_room_of_volumes() {
    let bed = Bed::warm().await;
    let pod = pod(
        "a",
        &json!({
            "containers": [container("large", &json!([from("one"), from("two")]))],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }),
    );
    write(&bed, &[("one", 1 << 20), ("two", 1 << 20)]);
    let large = &pod.spec.as_ref().unwrap().containers[0];
    let files = &bed.manager.files;
    let mut held = Vec::new();
    for _ in 0..4 {
        let (read, taken) = files.env_files(&pod, large).await.unwrap();
        assert_eq!(taken.as_ref().unwrap().num_permits(), 2 << 20);
        held.push((read, taken));
    }
    let all_of = |room: &Room| room.made(|| (), |()| usize::MAX).now_or_never().is_some();
    // docker 60e
    assert!(!all_of(&files.env_room));
    assert!(all_of(&files.room));
    drop(held);
    assert!(all_of(&files.env_room));
}
