//! All containers of a pod restarted in place, on a real Engine.

use std::collections::BTreeMap;

use crate::common::{Bed, IMAGE, TestAgent, eventually};
use mirrorlet_core::api::report::PodReport;

/// A pod that is never restarted but when `asks` finds the file `/data/ask`. Its init container and its
/// regular ones write a line when they start; the second time the init container waits for `/data/go`.
fn manifest() -> String {
    let lasts = "while :; do sleep 1 & wait $!; done";
    let init = "echo init >> /data/log; \
                test $(grep -c init /data/log) != 2 || until test -e /data/go; do sleep 0.1; done";
    let asks = "echo asks >> /data/log; \
                until test -e /data/ask; do sleep 0.1; done; rm /data/ask; exit 42";
    let other = format!("trap 'exit 0' TERM; echo other >> /data/log; {lasts}");
    let side = format!("trap 'exit 0' TERM; {lasts}");
    let mounts = "volumeMounts: [{name: data, mountPath: /data}]";
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 600
  initContainers:
  - name: init
    image: {IMAGE}
    command: ["sh", "-c", {init:?}]
    {mounts}
  - name: side
    image: {IMAGE}
    restartPolicy: Always
    command: ["sh", "-c", {side:?}]
  containers:
  - name: asks
    image: {IMAGE}
    restartPolicy: Never
    restartPolicyRules:
    - {{action: RestartAllContainers, exitCodes: {{operator: In, values: [42]}}}}
    command: ["sh", "-c", {asks:?}]
    {mounts}
  - name: other
    image: {IMAGE}
    command: ["sh", "-c", {other:?}]
    {mounts}
  volumes:
  - name: data
    emptyDir: {{}}
"#
    )
}

/// Has `asks` exit, once the command that does it has ended.
fn ask(bed: &Bed) {
    let later = "(sleep 0.2; touch /data/ask) >/dev/null 2>&1 &";
    bed.exec("asks", later);
}

/// How often each container was restarted.
fn restarts(pod: &PodReport) -> BTreeMap<&str, u32> {
    let all = pod.containers.iter();
    all.map(|c| (c.name.as_str(), c.restarts)).collect()
}

/// Waits until both regular containers run, each container restarted that often.
async fn until_restarted(agent: &TestAgent, times: u32) -> PodReport {
    agent
        .until_pod("web", |pod| {
            let counts = restarts(pod);
            pod.ready == 3 && counts.len() == 4 && counts.values().all(|count| *count == times)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_containers_are_restarted_in_place_once_though_the_agent_is_killed() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &manifest());
    let first = until_restarted(&agent, 0).await;
    let sandbox = bed.running_id("POD");
    ask(&bed);
    // The others have been stopped, without the long grace of the pod: the init container runs again.
    eventually("the init container to run again", || {
        let id = bed.instances("init").get(&1)?.clone();
        (bed.look(&id)?["State"]["Running"] == true).then_some(())
    })
    .await;
    let running = bed.running();
    assert_eq!(running.len(), 2, "{running:?}");
    let midst = agent.until_pod("web", |pod| pod.phase == "Pending").await;
    let other = midst.containers.iter().find(|c| c.name == "other").unwrap();
    assert_eq!(other.reason, "RestartingAllContainers");
    agent.kill();
    bed.exec("init", "touch /data/go");
    let agent = bed.agent().await;
    let second = until_restarted(&agent, 1).await;
    // docker 5b
    assert_eq!(bed.running_id("POD"), sandbox);
    assert_eq!((&second.uid, &second.ips), (&first.uid, &first.ips));
    // What is in the volume stays. The regular containers start at the same time.
    let mut log = eventually("the log to have both starts", || {
        let text = bed.file("other", "/data/log")?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() >= 6).then_some(lines)
    })
    .await;
    log[1..3].sort();
    log[4..].sort();
    assert_eq!(log, ["init", "asks", "other", "init", "asks", "other"]);

    // The exit that no agent sees restarts them as well, and the next agent finds nothing to do.
    agent.kill();
    let asks = bed.running_id("asks");
    ask(&bed);
    eventually("the container to exit", || {
        (bed.inspect(&asks)["State"]["ExitCode"] == 42).then_some(())
    })
    .await;
    let agent = bed.agent().await;
    until_restarted(&agent, 2).await;
    agent.kill();
    let running = bed.running();
    let agent = bed.agent().await;
    until_restarted(&agent, 2).await;
    // A file that is new to the agent has been through its rounds by then, and so has the pod.
    bed.write("mark.yaml", &crate::common::sleeper("mark"));
    agent.until_running("mark").await;
    bed.remove("mark.yaml");
    agent.until_gone("mark").await;
    // docker 5b
    assert_eq!(bed.running(), running);
    assert_eq!(bed.running_id("POD"), sandbox);
    agent.stop().await;
}
