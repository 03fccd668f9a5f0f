//! Lives of pods under a whole agent: crashes of containers, of their sandbox and of the agent, and
//! neighbours on the same Engine.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use crate::common::{self, Bed, IMAGE, eventually, sleeper};
use mirrorlet_core::api::report::PodReport;

/// A pod of one container with that restart policy, which runs a shell script.
fn script(name: &str, policy: &str, script: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 1
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", {script:?}]
    volumeMounts:
    - name: data
      mountPath: /data
  volumes:
  - name: data
    emptyDir: {{}}
"#
    )
}

/// Name, id and time of the start of every container.
fn starts(bed: &Bed) -> HashMap<String, (String, String)> {
    bed.containers()
        .into_iter()
        .map(|(name, id)| {
            let started = bed.inspect(&id)["State"]["StartedAt"].to_string();
            (name, (id, started))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_container_is_restarted_and_its_last_instance_kept() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    let before = agent.until_running("web").await;
    let sandbox = bed.running_id("POD");
    let killed = bed.running_id("web");
    bed.docker(&["kill", &killed]);
    let after = agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    assert_eq!(after.uid, before.uid);
    assert_eq!(after.started_at, before.started_at);
    assert_eq!(bed.running_id("POD"), sandbox);
    let instances = bed.instances("web");
    assert_eq!(instances.keys().collect::<Vec<_>>(), [&0, &1]);
    assert_eq!(instances[&0], killed);
    assert_eq!(bed.inspect(&killed)["State"]["ExitCode"], 137);
    let new = bed.inspect(&instances[&1]);
    assert_eq!(new["State"]["Running"], true);
    let labels = &new["Config"]["Labels"];
    // docker 10
    assert_eq!(
        labels["annotation.io.kubernetes.container.restartCount"],
        "1"
    );
    assert_eq!(labels["io.kubernetes.sandbox.id"], sandbox);
    // The one before the last is not kept: only what `logs --previous` can ask for.
    bed.docker(&["kill", &instances[&1]]);
    let again = |pod: &PodReport| pod.restarts == 2 && pod.status == "Running";
    agent.until_pod("web", again).await;
    eventually("the first instance to be removed", || {
        (bed.instances("web").into_keys().collect::<Vec<_>>() == [1, 2]).then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_counts_outlive_all_instances() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    let removed = |count: u32| move |pod: &PodReport| pod.restarts == count && pod.ready == 1;
    bed.docker(&["rm", "-f", &bed.running_id("web")]);
    agent.until_pod("web", removed(1)).await;
    assert_eq!(bed.instances("web").into_keys().collect::<Vec<_>>(), [1]);
    agent.stop().await;
    bed.docker(&["rm", "-f", &bed.running_id("web"), &bed.running_id("POD")]);
    let agent = bed.agent().await;
    agent.until_pod("web", removed(2)).await;
    // docker 11
    assert_eq!(bed.instances("web").into_keys().collect::<Vec<_>>(), [2]);
    // The count is the pod's: it ends with it.
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    bed.write("web.yaml", &sleeper("web"));
    agent.until_pod("web", removed(0)).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_waits_longer_and_longer_and_says_so() {
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    resolved.config.max_container_backoff = Duration::from_secs(2);
    let agent = bed.agent_as(resolved).await;
    bed.write("loop.yaml", &script("loop", "Always", "echo why; exit 3"));
    let pod = agent
        .until_pod("loop", |pod| {
            pod.status == "CrashLoopBackOff" && pod.restarts >= 2
        })
        .await;
    assert_eq!(pod.phase, "Running");
    let container = &pod.containers[0];
    assert_eq!(container.state, "waiting");
    // pods 57
    assert_eq!(container.reason, "CrashLoopBackOff");
    assert!(
        container
            .message
            .starts_with("back-off 2s restarting failed container=loop pod=loop-box"),
        "{container:?}"
    );
    eventually("the first instance to be removed", || {
        (!bed.instances("loop").contains_key(&0)).then_some(())
    })
    .await;
    agent.stop().await;
    // The last instance is there to be looked into, or is about to end.
    let ended = |id: &String| {
        let state = &bed.look(id)?["State"];
        (state["Status"] == "exited" && state["ExitCode"] == 3).then_some(())
    };
    eventually("an instance that ended with 3", || {
        bed.instances("loop").values().find_map(ended)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_pods_stay_finished_across_agents() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("good.yaml", &script("good", "OnFailure", "exit 0"));
    bed.write("bad.yaml", &script("bad", "Never", "exit 4"));
    // pods 46
    let good = agent
        .until_pod("good", |pod| pod.phase == "Succeeded")
        .await;
    assert_eq!((good.status.as_str(), good.restarts), ("Completed", 0));
    let bad = agent.until_pod("bad", |pod| pod.phase == "Failed").await;
    assert_eq!((bad.status.as_str(), bad.restarts), ("Error", 0));
    assert_eq!(bad.containers[0].exit_code, Some(4));
    eventually("their sandboxes to stop", || {
        bed.running().is_empty().then_some(())
    })
    .await;
    let before = starts(&bed);
    assert_eq!(before.len(), 4, "{before:?}");
    agent.stop().await;

    let agent = bed.agent().await;
    let good = agent
        .until_pod("good", |pod| pod.phase == "Succeeded")
        .await;
    assert_eq!(good.status, "Completed");
    agent.until_pod("bad", |pod| pod.phase == "Failed").await;
    // A pod that is new to the agent has been through its rounds by then, and so have these.
    bed.write("mark.yaml", &sleeper("mark"));
    agent.until_running("mark").await;
    bed.remove("mark.yaml");
    agent.until_gone("mark").await;
    // docker 24
    assert_eq!(starts(&bed), before);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_retried_until_one_success() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let flaky = "test -e /data/tried && exit 0; touch /data/tried; exit 1";
    bed.write("flaky.yaml", &script("flaky", "OnFailure", flaky));
    let pod = agent
        .until_pod("flaky", |pod| pod.phase == "Succeeded")
        .await;
    // agent 4
    assert_eq!(pod.restarts, 1);
    let last = bed.inspect(&bed.instances("flaky")[&1]);
    assert_eq!(last["State"]["ExitCode"], 0);
    assert_eq!(bed.instances("POD").len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containers_own_rules_say_which_exit_brings_it_back() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let once = "test -e /data/tried && exit 3; touch /data/tried; exit 42";
    let rules = "restartPolicy: Never
    restartPolicyRules:
    - {action: Restart, exitCodes: {operator: In, values: [42]}}
    image:";
    // The pod's own policy would start it for ever.
    let manifest = script("once", "Always", once).replacen("image:", rules, 1);
    bed.write("once.yaml", &manifest);
    let pod = agent.until_pod("once", |pod| pod.phase == "Failed").await;
    // docker 5
    assert_eq!(pod.restarts, 1);
    assert_eq!(pod.containers[0].exit_code, Some(3));
    assert_eq!(bed.instances("POD").len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_outlive_the_agent_and_are_adopted() {
    let bed = Bed::new();
    let agent = bed
        .agent_running(&[("a", sleeper("a")), ("b", sleeper("b"))])
        .await;
    bed.docker(&["kill", &bed.running_id("b")]);
    let restarted = |pod: &PodReport| pod.restarts == 1 && pod.status == "Running";
    let first = agent.until_pod("b", restarted).await;
    let before = starts(&bed);
    agent.stop().await;
    // docker 12
    assert_eq!(starts(&bed), before);
    let agent = bed.agent().await;
    let second = agent.until_running("b").await;
    agent.until_running("a").await;
    assert_eq!(starts(&bed), before);
    // The pod's start is known from the sandbox again, which was created a little later. Who starts
    // a container has its time from the Engine's event, who adopts it from an inspect.
    let told = |mut pod: PodReport| {
        pod.started_at = None;
        for container in &mut pod.containers {
            container.started_at = None;
        }
        pod
    };
    assert_eq!(told(second.clone()), told(first));
    agent.kill();
    let agent = bed.agent().await;
    agent.until_running("a").await;
    let third = agent.until_running("b").await;
    assert_eq!(third, second);
    assert_eq!(starts(&bed), before);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_defaults_of_containers_restart_nothing() {
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    resolved.config.seccomp_default = false;
    resolved.config.container_log_max_size = None;
    let agent = bed.agent_as(resolved).await;
    bed.write("a.yaml", &sleeper("a"));
    agent.until_running("a").await;
    let host = bed.inspect(&bed.running_id("a"))["HostConfig"].clone();
    assert_eq!(host["SecurityOpt"], json!(["seccomp=unconfined"]));
    assert!(host["LogConfig"]["Config"].get("max-size").is_none());
    let before = starts(&bed);
    agent.stop().await;
    let agent = bed.agent().await;
    agent.until_running("a").await;
    // tenants M6, tenants M7
    assert_eq!(starts(&bed), before);
    bed.docker(&["kill", &bed.running_id("a")]);
    let restarted = |pod: &PodReport| pod.restarts == 1 && pod.status == "Running";
    agent.until_pod("a", restarted).await;
    let host = bed.inspect(&bed.running_id("a"))["HostConfig"].clone();
    assert_eq!(host["SecurityOpt"], json!([]));
    let limits = json!({"max-size": "10485760", "max-file": "5"});
    assert_eq!(host["LogConfig"]["Config"], limits);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_died_while_the_agent_was_away_is_restarted() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    agent.kill();
    let sandbox = bed.running_id("POD");
    bed.docker(&["kill", &bed.running_id("web")]);
    let agent = bed.agent().await;
    // docker 12
    let pod = agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    assert_eq!(pod.ready, 1);
    assert_eq!(bed.running_id("POD"), sandbox);
    assert_eq!(bed.instances("web").into_keys().collect::<Vec<_>>(), [0, 1]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_removed_while_the_agent_was_away_gets_its_own_grace() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // Says so on SIGTERM, and takes until somebody lets it go: longer than any default.
    let slow = "trap 'echo told; while ! test -e /data/go; do sleep 0.1; done; exit 7' TERM; \
                while :; do sleep 1 & wait $!; done";
    let manifest =
        script("slow", "Always", slow).replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 120");
    bed.write("slow.yaml", &manifest);
    let pod = agent.until_running("slow").await;
    bed.until_traps("slow").await;
    agent.stop().await;
    bed.remove("slow.yaml");
    let id = bed.running_id("slow");
    let agent = bed.agent().await;
    let events = bed.record();
    let stopping = agent
        .until("the pod to be stopped", |report| {
            report
                .pods
                .iter()
                .any(|p| p.uid == pod.uid && p.status == "Terminating")
        })
        .await;
    assert_eq!(stopping.pods.len(), 1);
    eventually("SIGTERM to arrive", || {
        bed.output(&id).contains("told").then_some(())
    })
    .await;
    let data = bed.path().join(format!(
        "pods/{}/volumes/kubernetes.io~empty-dir/data/go",
        pod.uid
    ));
    std::fs::write(data, "").unwrap();
    // docker 63
    let died = events.until("die", "k8s_slow_").await;
    // pods 47, docker 13
    assert_eq!(died.attributes["exitCode"], "7");
    assert!(
        events.events().iter().all(|event| {
            !event.container.starts_with("k8s_slow_")
                || event.action != "kill"
                || event.attributes["signal"] == "15"
        }),
        "{:#?}",
        events.events()
    );
    agent.until_gone("slow").await;
    assert!(bed.containers().is_empty());
    assert!(!bed.path().join("pods").join(pod.uid.as_str()).exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_ignores_sigterm_is_killed_after_the_grace() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let deaf = script("deaf", "Always", "trap '' TERM; while :; do sleep 1; done")
        .replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 3");
    bed.write("deaf.yaml", &deaf);
    agent.until_running("deaf").await;
    let events = bed.record();
    bed.remove("deaf.yaml");
    agent.until_gone("deaf").await;
    let died = events.until("die", "k8s_deaf_").await;
    assert_eq!(died.attributes["exitCode"], "137");
    // The Engine tells of a signal after it has sent it: of the last one perhaps after the end.
    let signals = eventually("both signals to be told", || {
        let told = events.events().into_iter();
        let signals: Vec<_> = told
            .filter(|event| event.container.starts_with("k8s_deaf_") && event.action == "kill")
            .map(|event| (event.attributes["signal"].clone(), event.at))
            .collect();
        (signals.len() >= 2).then_some(signals)
    })
    .await;
    let [(first, asked), (second, killed)] = &signals[..] else {
        panic!("{signals:?}")
    };
    // docker 32
    assert_eq!((first.as_str(), second.as_str()), ("15", "9"));
    assert!(Duration::from_nanos(killed - asked) >= Duration::from_millis(2900));
    agent.stop().await;
}

/// `two` waits for what `side`, which started before it, writes at last; told to stop, `app` waits
/// for `other` to be told as well.
const STAGED: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: staged
spec:
  terminationGracePeriodSeconds: 60
  initContainers:
  - name: one
    image: mirrorlet.test/busybox:1
    command: ["sh", "-c", "echo one >> /data/order"]
    volumeMounts: [{name: data, mountPath: /data}]
  - name: side
    image: mirrorlet.test/busybox:1
    restartPolicy: Always
    command: ["sh", "-c", "echo side >> /data/order; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  - name: two
    image: mirrorlet.test/busybox:1
    command: ["sh", "-c", "until test $(grep -c side /data/order) -gt $(grep -c two /data/order); do sleep 0.1; done; echo two >> /data/order"]
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: app
    image: mirrorlet.test/busybox:1
    command: ["sh", "-c", "echo app >> /data/order; trap 'until test -e /data/told; do sleep 0.1; done; exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  - name: other
    image: mirrorlet.test/busybox:1
    command: ["sh", "-c", "trap 'touch /data/told; exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    emptyDir: {}
"#;

/// Waits until all that the running containers of that pod write at their start is written.
async fn until_staged(bed: &Bed) {
    for name in ["app", "other", "side"] {
        bed.until_traps(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_and_sidecars_keep_their_order() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let events = bed.record();
    bed.write("staged.yaml", STAGED);
    let pod = agent.until_running("staged").await;
    assert_eq!((pod.ready, pod.containers_total, pod.restarts), (3, 3, 0));
    until_staged(&bed).await;
    assert_eq!(bed.exec("app", "cat /data/order"), "one\nside\ntwo\napp");
    for app in ["k8s_app_", "k8s_other_"] {
        let started = events.until("start", app).await.at;
        assert!(events.until("die", "k8s_two_").await.at < started);
    }
    let started = events.until("start", "k8s_side_").await.at;
    assert!(events.until("die", "k8s_one_").await.at < started);
    // docker 29
    assert!(started < events.until("start", "k8s_two_").await.at);

    bed.remove("staged.yaml");
    agent.until_gone("staged").await;
    let told_side = events.until("kill", "k8s_side_").await.at;
    for app in ["k8s_app_", "k8s_other_"] {
        // pods 59
        assert!(
            events.until("die", app).await.at <= told_side,
            "the sidecar went first"
        );
    }
    // Regular containers are told together: one waited for the other, and was not cut off.
    for name in ["k8s_app_", "k8s_other_", "k8s_side_"] {
        let died = events.until("die", name).await;
        assert_eq!(died.attributes["exitCode"], "0", "{name}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sandbox_is_replaced_with_everything_in_it() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("staged.yaml", STAGED);
    let before = agent.until_running("staged").await;
    until_staged(&bed).await;
    let events = bed.record();
    let first = bed.running_id("POD");
    bed.docker(&["kill", &first]);
    let after = agent
        .until_pod("staged", |pod| {
            let app = pod.containers.iter().find(|c| c.name == "app").unwrap();
            app.restarts == 1 && app.state == "running" && pod.ready == 3
        })
        .await;
    assert_eq!(after.uid, before.uid);
    let second = bed.running_id("POD");
    assert_eq!(bed.instances("POD").get(&1), Some(&second));
    assert_ne!(second, first);
    for name in ["app", "other", "side"] {
        let now = bed.inspect(&bed.running_id(name));
        assert_eq!(
            now["HostConfig"]["NetworkMode"],
            format!("container:{second}"),
            "{name}"
        );
    }
    for name in ["one", "side", "two", "app", "other"] {
        let report = after.containers.iter().find(|c| c.name == name).unwrap();
        // docker 11
        assert_eq!(report.restarts, 1, "{report:?}");
    }
    // The volumes are the pod's, and stay.
    until_staged(&bed).await;
    // docker 23
    assert_eq!(
        bed.exec("app", "cat /data/order"),
        "one\nside\ntwo\napp\none\nside\ntwo\napp"
    );
    // Nothing of the old sandbox ran on when the new one came up.
    let name = format!("k8s_POD_staged-box_default_{}_1", after.uid);
    let new_sandbox = events.until("start", &name).await;
    for old in ["k8s_app_", "k8s_other_", "k8s_side_"] {
        assert!(events.until("die", old).await.at < new_sandbox.at, "{old}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_init_ends_a_never_pod_and_is_retried_otherwise() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let with_init = |name: &str, policy: &str| {
        format!(
            r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: {name}-init
    image: {IMAGE}
    command: ["sh", "-c", "test -e /data/tried && exit 0; touch /data/tried; exit 5"]
    volumeMounts: [{{name: data, mountPath: /data}}]
  containers:
  - name: {name}-app
    image: {IMAGE}
    command: ["sleep", "1000000"]
  volumes: [{{name: data, emptyDir: {{}}}}]
"#
        )
    };
    bed.write("never.yaml", &with_init("never", "Never"));
    bed.write("always.yaml", &with_init("always", "Always"));
    // docker 28
    let never = agent.until_pod("never", |pod| pod.phase == "Failed").await;
    assert_eq!(never.status, "Init:Error");
    assert!(bed.instances("never-app").is_empty());
    agent.until_running("always").await;
    let init = agent
        .until_container("always", "always-init", |c| c.exit_code == Some(0))
        .await;
    assert_eq!(init.restarts, 1);
    assert_eq!(bed.instances("always-app").len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_ends_is_restarted_alone() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("staged.yaml", STAGED);
    agent.until_running("staged").await;
    until_staged(&bed).await;
    let (app, sandbox) = (bed.running_id("app"), bed.running_id("POD"));
    bed.docker(&["kill", &bed.running_id("side")]);
    let side = agent
        .until_container("staged", "side", |c| {
            c.restarts == 1 && c.state == "running"
        })
        .await;
    assert!(side.ready);
    // docker 29
    assert_eq!(agent.pod("staged").unwrap().restarts, 1);
    assert_eq!(
        (bed.running_id("app"), bed.running_id("POD")),
        (app, sandbox)
    );
    // Init containers don't run again.
    until_staged(&bed).await;
    assert_eq!(
        bed.exec("app", "cat /data/order"),
        "one\nside\ntwo\napp\nside"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_pod_for_good() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // The same pod: its manifest names its UID. Its deadline is far until it has been seen to run.
    let uid = bed.owner().unwrap();
    let manifest = |seconds: u32| {
        sleeper("late")
            .replace(
                "name: late\nspec",
                &format!("name: late\n  uid: {uid}\nspec"),
            )
            .replace(
                "spec:\n",
                &format!("spec:\n  activeDeadlineSeconds: {seconds}\n"),
            )
    };
    bed.write("late.yaml", &manifest(100_000));
    agent.until_running("late").await;
    bed.write("late.yaml", &manifest(1));
    let pod = agent.until_pod("late", |pod| pod.phase == "Failed").await;
    assert_eq!(pod.status, "DeadlineExceeded");
    eventually("it to be stopped", || {
        bed.running().is_empty().then_some(())
    })
    .await;
    assert_eq!(bed.instances("late").len(), 1);
    let before = starts(&bed);
    agent.stop().await;
    let agent = bed.agent().await;
    // agent 3
    agent.until_pod("late", |pod| pod.phase == "Failed").await;
    assert_eq!(starts(&bed), before);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_share_an_engine() {
    let (one, two) = (Bed::new(), Bed::new());
    let (first, second) = (one.agent().await, two.agent().await);
    one.write("web.yaml", &sleeper("web"));
    two.write(
        "web.yaml",
        &sleeper("web").replace("Seconds: 1", "Seconds: 2"),
    );
    first.until_running("web").await;
    second.until_running("web").await;
    let of_two = starts(&two);
    assert!(
        one.containers()
            .keys()
            .all(|name| !of_two.contains_key(name))
    );
    one.remove("web.yaml");
    first.until_gone("web").await;
    assert!(one.containers().is_empty());
    first.stop().await;
    let first = one.agent().await;
    one.write("other.yaml", &sleeper("other"));
    first.until_running("other").await;
    // docker 9
    assert_eq!(starts(&two), of_two);
    assert_eq!(second.status().pods.len(), 1);
    assert_eq!(first.status().pods.len(), 1);
    first.stop().await;
    second.stop().await;
}

/// Removes what a test made by hand.
struct UserActionRecord<'a> {
    bed: &'a Bed,
    containers: Vec<String>,
    images: Vec<String>,
}

impl Drop for UserActionRecord<'_> {
    fn drop(&mut self) {
        for (verb, names) in [("rm", &self.containers), ("rmi", &self.images)] {
            for name in names {
                let _ = std::process::Command::new("docker")
                    .args(["-H", &self.bed.docker, verb, "-f", name])
                    .output();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_others_are_never_touched() {
    let bed = Bed::new();
    bed.agent().await.stop().await;
    let owner = bed.owner().unwrap();
    let mut by_hand = UserActionRecord {
        bed: &bed,
        containers: Vec::new(),
        images: Vec::new(),
    };
    // An image whose labels are those of a container of this very agent.
    let hostile = format!("mirrorlet.test/hostile:{}", &owner[..12]);
    let seed = bed.docker(&["create", IMAGE]);
    by_hand.containers.push(seed.clone());
    let labels = [
        ("mirrorlet.dev/owner", owner.as_str()),
        ("mirrorlet.dev/kind", "container"),
        ("mirrorlet.dev/attempt", "0"),
        ("mirrorlet.dev/role", "app"),
        ("io.kubernetes.pod.name", "forged-box"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", "0123456789abcdef0123456789abcdef"),
        ("io.kubernetes.container.name", "forged"),
        ("annotation.io.kubernetes.container.restartCount", "0"),
    ];
    let changes: Vec<String> = labels
        .iter()
        .map(|(k, v)| format!("--change=LABEL {k}={v}"))
        .collect();
    let mut commit = vec!["commit"];
    commit.extend(changes.iter().map(String::as_str));
    commit.extend([seed.as_str(), &hostile]);
    bed.docker(&commit);
    by_hand.images.push(hostile.clone());
    let id = &owner[..8];
    let foreign = [
        (format!("mine-{id}"), hostile.as_str()),
        (format!("k8s_app_{id}_default_{owner}_0"), IMAGE),
        (format!("k8s_POD_{id}_default_{owner}_0"), hostile.as_str()),
        (format!("forged-{id}"), "mirrorlet.test/forged:1"),
    ];
    for (name, image) in &foreign {
        by_hand.containers.push(name.clone());
        bed.docker(&["run", "-d", "--name", name, image, "sleep", "1000000"]);
    }
    let look = || -> Vec<serde_json::Value> {
        foreign
            .iter()
            .map(|(name, _)| bed.inspect(name)["State"].clone())
            .collect()
    };
    let before = look();

    let agent = bed.agent().await;
    // A pod of that image is an ordinary one: what we set wins over what the image says.
    bed.write("web.yaml", &common::sleeper_of("web", &hostile));
    let pod = agent.until_running("web").await;
    assert_eq!(agent.status().pods.len(), 1, "{:#?}", agent.status().pods);
    let ours = bed.inspect(&bed.running_id("web"));
    assert_eq!(
        ours["Config"]["Labels"]["io.kubernetes.pod.uid"],
        pod.uid.as_str()
    );
    assert!(ours["Config"]["Labels"]["io.kubernetes.docker.type"].is_null());
    bed.docker(&["kill", &bed.running_id("web")]);
    agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    agent.stop().await;
    // docker 9
    assert_eq!(look(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_others_hold_are_avoided() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // The names of a pod's containers are known beforehand when its UID is.
    let uid = bed.owner().unwrap();
    let mut by_hand = UserActionRecord {
        bed: &bed,
        containers: Vec::new(),
        images: Vec::new(),
    };
    for container in ["POD", "web"] {
        let name = format!("k8s_{container}_web-box_default_{uid}_0");
        by_hand.containers.push(name.clone());
        bed.docker(&["run", "-d", "--name", &name, IMAGE, "sleep", "1000000"]);
    }
    let look = || -> Vec<serde_json::Value> {
        let names = by_hand.containers.iter();
        names
            .map(|name| bed.inspect(name)["State"].clone())
            .collect()
    };
    let before = look();
    let manifest = sleeper("web").replace(
        "  name: web\nspec",
        &format!("  name: web\n  uid: {uid}\nspec"),
    );
    bed.write("web.yaml", &manifest);
    let pod = agent.until_running("web").await;
    assert_eq!((pod.uid.as_str(), pod.restarts), (uid.as_str(), 0));
    let ours = bed.running();
    assert_eq!(ours.len(), 2);
    for name in ours.keys() {
        // The shim's way out: the same name with eight random digits behind it.
        assert_eq!(name.split('_').count(), 7, "{name}");
        // docker 57
        assert!(
            name.contains(&format!("_web-box_default_{uid}_0_")),
            "{name}"
        );
    }
    // They are found again under those names.
    agent.stop().await;
    let agent = bed.agent().await;
    agent.until_running("web").await;
    assert_eq!(bed.running(), ours);
    bed.docker(&["kill", &bed.running_id("web")]);
    agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    assert!(bed.containers().is_empty());
    assert_eq!(look(), before);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_pods_wait_until_every_source_has_answered() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    agent.stop().await;
    let before = starts(&bed);
    // The manifest goes, and one of the sources is a server that never answers.
    bed.remove("web.yaml");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut resolved = bed.resolved();
    resolved.config.manifest_urls = vec![format!("http://{}/", silent.local_addr().unwrap())];
    let agent = bed.agent_as(resolved).await;
    bed.write("mark.yaml", &sleeper("mark"));
    agent.until_running("mark").await;
    bed.remove("mark.yaml");
    agent.until_gone("mark").await;
    agent
        .until("all to be known", |report| !report.engine.unlisted)
        .await;
    let web = agent.pod("web").unwrap();
    let until_read = web.message.ends_with("until all sources have been read");
    // box 13
    assert!(until_read && web.status == "Unknown", "{web:?}");
    // pods 47, docker 14
    assert_eq!(starts(&bed), before);
    agent.stop().await;
    // Without that source the pod is nobody's.
    let agent = bed.agent().await;
    eventually("it to be removed", || {
        bed.containers().is_empty().then_some(())
    })
    .await;
    agent.stop().await;
}
