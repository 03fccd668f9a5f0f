//! Files that variables come from, on the Engine in memory.

use super::*;

#[tokio::test]
async fn files_of_variables_take_room_of_all_files() {
    let bed = Bed::warm().await;
    let from = |path: &str| {
        let key = json!({"volumeName": "v", "path": path, "key": "K", "optional": true});
        json!({"name": "K", "valueFrom": {"fileKeyRef": key}})
    };
    let container = |name: &str, env: Value| json!({"name": name, "image": "app:1", "env": env});
    let pod = pod(
        "a",
        &json!({
            "containers": [
                container("none", json!([])),
                container("small", json!([from("small")])),
                container("large", json!([from("small"), from("large")])),
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }),
    );
    let volume = "pods/a/volumes/kubernetes.io~empty-dir/v";
    let volume = bed.root.path().join(volume);
    std::fs::create_dir_all(&volume).unwrap();
    for (name, bytes) in [("small", 100), ("large", 1 << 20)] {
        std::fs::write(volume.join(name), vec![b'#'; bytes]).unwrap();
    }
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
