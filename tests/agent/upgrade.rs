//! Pods of an older mirrorlet go on under a newer one.
//!
//! `upgrade/recorded.json` is what the release build of an older commit (f69460f8, the last one before
//! the crates) sent to the Engine for five pods, and the files that it left in its root directory. Ids
//! of sandboxes stand in it as `SANDBOX-` and the UID of the pod. A static pod's UID depends on the path
//! of its manifest and on the name of the node, so both are as they were when it was recorded.

use std::collections::HashMap;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::{Bed, engine, eventually, sleeper};

/// The name of the node that the pods were recorded on.
const NODE: &str = "upgraded";
/// The owner that the pods were recorded with. Each run has another: the reaper of the one before may
/// still be at work.
const OWNER: &str = "367017f22cea9483b895ebdbe9e1a920";
/// The name of the root directory that they were recorded in.
const ROOT: &str = "mirrorlet-test-upgrade";
/// Volumes in memory, below the root directory.
const IN_MEMORY: [&str; 2] = [
    "pods/ece22a8ab7732ed6970a90f32ecab2d8/volumes/kubernetes.io~empty-dir/fast",
    "pods/7ad28fc9acd4d9770138d5118292c3b6/volumes/kubernetes.io~downward-api/about",
];

#[derive(Deserialize)]
struct Recorded {
    /// In the order in which they were created and started.
    containers: Vec<Container>,
    root: Vec<File>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    /// The body of the request that creates it.
    body: Value,
}

/// A link, a file with its content, or else a directory.
#[derive(Deserialize)]
struct File {
    path: String,
    mode: Option<String>,
    content: Option<String>,
    link: Option<String>,
    gid: Option<u32>,
}

impl File {
    fn write(&self, root: &Path) {
        let path = root.join(&self.path);
        if let Some(target) = &self.link {
            symlink(target, path).unwrap();
            return;
        }
        match &self.content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::create_dir_all(&path).unwrap(),
        }
        if IN_MEMORY.contains(&self.path.as_str()) {
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=1024k", "tmpfs"]);
            assert!(mount.arg(&path).status().unwrap().success());
        }
        if self.gid.is_some() {
            chown(&path, None, self.gid).unwrap();
        }
        let mode = u32::from_str_radix(self.mode.as_deref().unwrap(), 8).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Creates the containers and starts them, each init container and the sandbox of the pod that is done
/// to its end.
fn start(bed: &Bed, containers: &[Container]) {
    let mut sandboxes: HashMap<String, String> = HashMap::new();
    for Container { name, body } in containers {
        let mut text = body.to_string();
        for (uid, id) in &sandboxes {
            text = text.replace(&format!("SANDBOX-{uid}"), id);
        }
        let body: Value = serde_json::from_str(&text).unwrap();
        let path = format!("/containers/create?name={name}");
        let created = engine::post(&bed.docker, &path, Some(&body), engine::PATIENCE).unwrap();
        let id = created["Id"].as_str().unwrap().to_owned();
        bed.docker(&["start", &id]);
        let labels = &body["Labels"];
        let pod = labels["io.kubernetes.pod.uid"].as_str().unwrap().to_owned();
        let task = labels["io.kubernetes.pod.name"] == format!("task-{NODE}");
        if labels["mirrorlet.dev/kind"] == "sandbox" {
            sandboxes.insert(pod, id);
        } else if task || labels["mirrorlet.dev/role"] == "init" {
            bed.docker(&["wait", &id]);
            if task {
                bed.docker(&["kill", "--signal", "TERM", &sandboxes[&pod]]);
                bed.docker(&["wait", &sandboxes[&pod]]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_an_older_version_are_adopted_and_none_is_restarted() {
    // The image of sandboxes comes with the first pod of an agent.
    let other = Bed::new();
    other
        .agent_running(&[("any", sleeper("any"))])
        .await
        .stop()
        .await;
    let owner = format!("{:032x}", std::process::id());
    let recorded = include_str!("upgrade/recorded.json").replace(OWNER, &owner);
    let recorded: Recorded = serde_json::from_str(&recorded).unwrap();
    let bed = Bed::at_fixed_path(ROOT).await;
    for file in &recorded.root {
        file.write(bed.path());
    }
    start(&bed, &recorded.containers);
    // Results of probes are kept by the ids of containers.
    let kept = bed.path().join("probes.json");
    let text = std::fs::read_to_string(&kept).unwrap();
    std::fs::write(&kept, text.replace("HTTPD", &bed.running_id("httpd"))).unwrap();
    let inspected = || -> HashMap<String, Value> {
        let states = bed.containers().into_iter().map(|(name, id)| {
            let seen = bed.inspect(&id);
            let state = &seen["State"];
            (
                name,
                json!([
                    id,
                    state["StartedAt"],
                    state["Status"],
                    seen["RestartCount"]
                ]),
            )
        });
        states.collect()
    };
    let before = inspected();
    assert_eq!(before.len(), recorded.containers.len());

    let record = bed.record();
    let mut resolved = bed.resolved();
    resolved.config.node_name = NODE.into();
    let agent = bed.agent_as(resolved).await;
    for (pod, containers) in [("web", 2), ("plain", 1), ("host", 1), ("shared", 1)] {
        let running = agent.until_running(pod).await;
        // docker 12
        assert_eq!(
            (running.ready, running.restarts),
            (containers, 0),
            "{running:?}"
        );
    }
    let done = agent
        .until_pod("task", |pod| pod.status == "Completed")
        .await;
    assert_eq!((done.restarts, done.containers[0].exit_code), (0, Some(0)));
    assert_eq!(inspected(), before);

    // An edit is a rollout of its own pod: the agent has taken over all that it needs to know.
    let edited = std::fs::read_to_string(bed.manifest("plain.yaml")).unwrap();
    let edited = edited.replace("[sleep, infinity]", r#"[sleep, "86400"]"#);
    bed.write("plain.yaml", &edited);
    let old = &before[&format!("k8s_main_plain-{NODE}_tools_db5624b386221fa525d5040bced941bf_0")];
    eventually("the edited version of plain", || {
        let running = bed.running().into_iter();
        let mut of_plain = running.filter(|(name, _)| name.starts_with("k8s_main_plain-"));
        of_plain.any(|(_, id)| old[0] != id.as_str()).then_some(())
    })
    .await;
    agent.until_running("plain").await;
    // Events come in order: with this one, all before it have come.
    record.until("start", "k8s_main_plain-").await;
    agent.stop().await;
    let changed = record.events().into_iter().filter(|event| {
        ["create", "start", "kill", "stop", "die", "destroy"].contains(&event.action.as_str())
            && !event.container.contains("_plain-")
    });
    assert_eq!(changed.count(), 0, "{:#?}", record.events());
}
