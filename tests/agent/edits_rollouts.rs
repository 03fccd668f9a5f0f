//! Edits of pods that run: what can't be started stops nothing, what fails is undone.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::history::History;
use crate::common::registry::Registry;
use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent, eventually};
use mirrorlet_core::api::report::{PodReport, RolloutReport, StatusReport};
use mirrorlet_core::api::{Code, PodUid};

const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

/// A pod whose container runs `script`, with more of its spec and of its container's, in YAML.
fn pod(name: &str, image: &str, script: &str, spec: &str, container: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations:
    mirrorlet.dev/min-ready-seconds: "1"
    mirrorlet.dev/max-restarts: "1"
    mirrorlet.dev/progress-deadline-seconds: "600"
spec:
  terminationGracePeriodSeconds: 1
{spec}
  containers:
  - name: {name}
    image: {image}
    command: ["sh", "-c", {script:?}]
{container}
"#
    )
}

fn good(name: &str) -> String {
    pod(name, IMAGE, QUIET, "", "")
}

fn told(pod: &PodReport) -> String {
    let problems = pod.problems.iter().map(ToString::to_string);
    problems.collect::<Vec<_>>().join("\n")
}

/// Ids of the pods' containers and sandboxes, by container name.
fn ids(bed: &Bed) -> BTreeMap<String, String> {
    bed.running().into_iter().collect()
}

/// The fields that the problems of edits are about, with a word of their lines.
const FIELDS: [(&str, &str, &str); 5] = [
    (
        "tag",
        "spec.containers[0].image",
        "image: mirrorlet.test/nowhere:1",
    ),
    ("port", "spec.containers[0].ports[0].hostPort", "hostPort"),
    ("path", "spec.volumes[0]", "- name: v"),
    ("root", "spec.containers[0]", "- name: root"),
    (
        "second",
        "spec.containers[1].image",
        "image: mirrorlet.test/nowhere:1",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_can_not_be_started_stops_nothing() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let nowhere = "mirrorlet.test/nowhere:1";
    let second = format!("  - name: other\n    image: {nowhere}\n    imagePullPolicy: Never");
    let host_path = "  volumes:\n  - name: v\n    hostPath: {path: /etc/hostname, type: Directory}";
    let registry = Registry::private().await;
    let private = registry.push("web:1");
    let edits = [
        (
            "login",
            pod("login", &private, QUIET, "", ""),
            "no basic auth credentials",
        ),
        (
            "tag",
            pod("tag", nowhere, QUIET, "", "    imagePullPolicy: Never"),
            "ErrImageNeverPull",
        ),
        (
            "pull",
            pod("pull", "127.0.0.1:9/nowhere:1", QUIET, "", ""),
            "ErrImagePull",
        ),
        (
            "port",
            pod(
                "port",
                IMAGE,
                QUIET,
                "",
                &format!("    ports: [{{containerPort: 80, hostPort: {port}}}]"),
            ),
            "/tcp is in use by process ",
        ),
        (
            "path",
            pod(
                "path",
                IMAGE,
                QUIET,
                host_path,
                "    volumeMounts: [{name: v, mountPath: /v}]",
            ),
            "hostPath type check failed",
        ),
        (
            "root",
            pod(
                "root",
                IMAGE,
                QUIET,
                "  securityContext: {runAsNonRoot: true}",
                "",
            ),
            "runAsNonRoot",
        ),
        (
            "second",
            pod("second", IMAGE_2, QUIET, "", &second),
            "ErrImageNeverPull",
        ),
        (
            "config",
            pod(
                "config",
                IMAGE,
                QUIET,
                "",
                "    envFrom: [{configMapRef: {name: settings}}]",
            ),
            "no manifest defines ConfigMap default/settings",
        ),
    ];
    let bed = Bed::new();
    let mut agent = bed.agent().await;
    for (name, _, _) in &edits {
        bed.write(&format!("{name}.yaml"), &good(name));
    }
    let mut uids = BTreeMap::new();
    for (name, _, _) in &edits {
        uids.insert(*name, agent.until_running(name).await.uid);
    }
    let before = ids(&bed);
    for (name, edit, _) in &edits {
        bed.write(&format!("{name}.yaml"), edit);
    }
    for life in ["the agent that saw the edit", "the one after it"] {
        for (name, edit, cause) in &edits {
            let held = |pod: &PodReport| pod.held && told(pod).contains(cause);
            let pod = agent.until_pod(name, held).await;
            // rollouts 1, rollouts 2, rollouts 8, rollouts 9, rollouts 10, rollouts 11, rollouts 12
            assert_eq!(pod.uid, uids[name], "{life}");
            assert_eq!((pod.status.as_str(), pod.ready), ("Running", 1), "{name}");
            let problem = &pod.problems[0];
            let file = bed.manifest(&format!("{name}.yaml"));
            assert_eq!(problem.file, file.display().to_string());
            assert!(
                problem
                    .message
                    .contains("the previous version keeps running"),
                "{problem}"
            );
            if let Some((field, word)) = FIELDS
                .iter()
                .find(|(of, ..)| of == name)
                .map(|f| (f.1, f.2))
            {
                assert_eq!(problem.field.as_deref(), Some(field), "{problem}");
                let line = usize::try_from(problem.position.unwrap().line).unwrap();
                let line = edit.lines().nth(line - 1).unwrap();
                assert!(line.contains(word), "{problem}: {line}");
            }
        }
        assert_eq!(ids(&bed), before, "{life}");
        agent.stop().await;
        agent = bed.agent().await;
    }
    // What it lacked is there: it goes on by itself.
    drop(taken);
    let goes_on = |pod: &PodReport| pod.uid != uids["port"] && pod.ready == 1;
    agent
        .until_pod("port", |pod| goes_on(pod) && told(pod).is_empty())
        .await;
    bed.write(
        "settings.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {A: b}}\n",
    );
    agent
        .until_pod("config", |pod| pod.uid != uids["config"] && pod.ready == 1)
        .await;
    // box 3
    assert_eq!(bed.exec("config", "echo $A"), "b");
    // The author's own text again: nothing happens.
    bed.write("root.yaml", &good("root"));
    let pod = agent.until_pod("root", |pod| !pod.held).await;
    assert_eq!(pod.uid, uids["root"]);
    // A better edit.
    bed.write("tag.yaml", &pod_of_second_image("tag"));
    agent
        .until_pod("tag", |pod| {
            !pod.held && pod.ready == 1 && pod.uid != uids["tag"]
        })
        .await;
    let after = ids(&bed);
    for name in ["path", "root", "second"] {
        let same = |ids: &BTreeMap<String, String>| {
            let of = ids
                .iter()
                .filter(|(of, _)| of.contains(uids[name].as_str()));
            of.map(|(_, id)| id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(same(&after), same(&before), "{name}");
    }
    // Held, its manifest goes.
    bed.remove("path.yaml");
    // rollouts 15
    assert_gone(&bed, &agent, "path").await;
    agent.stop().await;
}

fn pod_of_second_image(name: &str) -> String {
    pod(name, IMAGE_2, QUIET, "", "")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_fails_is_undone() {
    let never_ready = "    readinessProbe: {exec: {command: [\"false\"]}, periodSeconds: 1}";
    let init = format!(
        "  restartPolicy: OnFailure\n  initContainers:\n  - name: first\n    image: {IMAGE}\n    command: [\"false\"]"
    );
    // A busy Engine tells of an end late: not within the time after which a pod is healthy.
    let pod = |name: &str, image: &str, script: &str, spec: &str, container: &str| {
        pod(name, image, script, spec, container)
            .replace("min-ready-seconds: \"1\"", "min-ready-seconds: \"5\"")
    };
    let edits = [
        (
            "crash",
            pod("crash", IMAGE, "exit 3", "", ""),
            "was restarted once",
        ),
        (
            "unready",
            pod("unready", IMAGE, QUIET, "", never_ready)
                .replace("deadline-seconds: \"600\"", "deadline-seconds: \"5\""),
            "not ready within 5 s",
        ),
        (
            "dead",
            pod(
                "dead",
                IMAGE,
                QUIET,
                "",
                "    livenessProbe: {exec: {command: [\"false\"]}, periodSeconds: 1, failureThreshold: 1}",
            )
            .replace("max-restarts: \"1\"", "max-restarts: \"9\""),
            "Unhealthy: container dead failed liveness probe",
        ),
        (
            "init",
            pod("init", IMAGE, QUIET, &init, ""),
            "first was restarted once",
        ),
        (
            "later",
            pod("later", IMAGE, "sleep 2; exit 3", "", ""),
            "was restarted once, last with exit code 3",
        ),
        (
            "greedy",
            pod(
                "greedy",
                IMAGE,
                "exec tail /dev/zero",
                "",
                "    resources: {limits: {memory: 16Mi}}",
            ),
            "(OOMKilled)",
        ),
        (
            "entrypoint",
            pod("entrypoint", IMAGE, QUIET, "", "").replace("\"sh\"", "\"/nowhere\""),
            "container entrypoint",
        ),
    ];
    let bed = Bed::new();
    let agent = bed.agent().await;
    for (name, _, _) in &edits {
        bed.write(&format!("{name}.yaml"), &good(name));
    }
    let mut uids = BTreeMap::new();
    for (name, _, _) in &edits {
        uids.insert(*name, agent.until_running(name).await.uid);
    }
    bed.until_healthy(edits.len()).await;
    for (name, edit, _) in &edits {
        bed.write(&format!("{name}.yaml"), edit);
    }
    for (name, _, cause) in &edits {
        let restored = |pod: &PodReport| pod.held && pod.ready == 1 && told(pod).contains(cause);
        let pod = agent.until_pod(name, restored).await;
        // rollouts 3, rollouts 4, rollouts 5, rollouts 6, rollouts 7, rollouts M3
        assert_eq!(pod.uid, uids[name], "{name}");
        assert!(
            told(&pod).contains("failed, the previous version runs"),
            "{pod:?}"
        );
    }
    agent.stop().await;
    // The next agent knows what failed, and doesn't try it again.
    let before = ids(&bed);
    let agent = bed.agent().await;
    for (name, _, cause) in &edits {
        let restored = |pod: &PodReport| pod.held && pod.ready == 1 && told(pod).contains(cause);
        agent.until_pod(name, restored).await;
    }
    assert_eq!(ids(&bed), before);
    // The healthy text again restarts nothing; another edit is another attempt.
    bed.write("crash.yaml", &good("crash"));
    agent
        .until_pod("crash", |pod| !pod.held && pod.ready == 1)
        .await;
    // rollouts 14
    assert_eq!(ids(&bed), before);
    bed.write("unready.yaml", &pod_of_second_image("unready"));
    let edited = |pod: &PodReport| !pod.held && pod.ready == 1 && pod.uid != uids["unready"];
    agent.until_pod("unready", edited).await;
    // Restored, its manifest goes; so does one that is being judged.
    bed.remove("init.yaml");
    let judged = pod("greedy", IMAGE, QUIET, "", never_ready);
    bed.write("greedy.yaml", &judged);
    let judging = |pod: &PodReport| pod.uid != uids["greedy"] && !pod.containers.is_empty();
    agent.until_pod("greedy", judging).await;
    bed.remove("greedy.yaml");
    // rollouts 15
    assert_gone(&bed, &agent, "init").await;
    // rollouts 15
    assert_gone(&bed, &agent, "greedy").await;
    agent.stop().await;
}

/// A version has its whole time to become ready once the one before it has stopped, however long that
/// takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_stop_takes_no_time_from_the_next_version() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    // The stop takes the whole grace, longer than the deadline of the next version.
    let slow =
        pod("slow", IMAGE, deaf, "", "").replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 25");
    bed.write("slow.yaml", &slow);
    let uid = agent.until_running("slow").await.uid;
    bed.until_healthy(1).await;
    let next = pod("slow", IMAGE_2, QUIET, "", "")
        .replace("deadline-seconds: \"600\"", "deadline-seconds: \"15\"");
    bed.write("slow.yaml", &next);
    let updated = |pod: &PodReport| !pod.held && pod.ready == 1 && pod.uid != uid;
    let pod = agent.until_pod("slow", updated).await;
    // rollouts S15
    assert_eq!(told(&pod), "");
    bed.until_healthy(1).await;
    agent.stop().await;
}

/// Waits until nothing is left of a pod whose manifest has gone, and no version of it comes back.
async fn assert_gone(bed: &Bed, agent: &TestAgent, name: &str) {
    agent.until_gone(name).await;
    let of_pod = format!("_{name}-");
    let left = bed.running();
    assert!(
        !left.keys().any(|container| container.contains(&of_pod)),
        "{left:?}"
    );
}

pub(crate) async fn rollout(bed: &Bed, args: &[&str]) -> (Option<i32>, String) {
    mirrorlet(bed, &[&["rollout"], args].concat()).await
}

/// Runs a command for the agent of that bed: its exit code, and all that it prints.
pub(crate) async fn mirrorlet(bed: &Bed, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
    command.args(args);
    command.args(["--root", bed.path().to_str().unwrap()]);
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = run.await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_are_followed_undone_paused_and_tried_again() {
    let bed = Bed::new();
    let mut agent = bed.agent().await;
    bed.write("web.yaml", &good("web"));
    let first = agent.until_running("web").await.uid;
    let (code, text) = rollout(&bed, &["status", "web"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("successfully rolled out\n"), "{text}");
    let (code, text) = rollout(&bed, &["undo", "web"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("no revision older than revision 1 is stored"),
        "{text}"
    );

    bed.write("web.yaml", &pod_of_second_image("web"));
    // The file that was just saved is read before the answer.
    let (_, text) = rollout(&bed, &["history", "web"]).await;
    assert!(text.lines().any(|line| line.starts_with("2 ")), "{text}");
    let runs = |uid: &PodUid| {
        let uid = uid.clone();
        move |pod: &PodReport| pod.uid == uid && pod.ready == 1
    };
    let second = agent.until_pod("web", |pod| pod.uid != first && pod.ready == 1);
    let second = second.await.uid;
    let (code, text) = rollout(&bed, &["status", "web", "--timeout", "2m"]).await;
    assert_eq!(code, Some(0), "{text}");
    let (_, text) = rollout(&bed, &["history", "web"]).await;
    assert!(
        text.contains("healthy, running, in the manifest  spec.containers[web].image"),
        "{text}"
    );

    // It differs from the file until that changes, over a restart of the agent.
    let (code, text) = rollout(&bed, &["undo", "web"]).await;
    assert_eq!(code, Some(0), "{text}");
    agent.until_pod("web", runs(&first)).await;
    agent.stop().await;
    agent = bed.agent().await;
    let undone = agent.until_pod("web", runs(&first)).await;
    assert!(
        told(&undone).contains("revision 1 runs instead of revision 2 of the manifest"),
        "{undone:?}"
    );
    let (code, text) = rollout(&bed, &["status", "web"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("revision 1 runs, undone from revision 2"),
        "{text}"
    );
    // rollouts 22
    assert_eq!(rollout(&bed, &["undo", "web"]).await.0, Some(0));
    agent.until_pod("web", runs(&second)).await;

    assert_eq!(rollout(&bed, &["pause", "web"]).await.0, Some(0));
    // The pause is shown before anything waits for its end.
    let paused = |pod: &PodReport| {
        let rollout = pod.rollout.as_ref();
        rollout.is_some_and(RolloutReport::is_paused_when_done)
    };
    agent.until_pod("web", paused).await;
    let (code, text) = rollout(&bed, &["status", "web"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("its rollouts are paused"), "{text}");
    let crash = pod("web", IMAGE, "exit 3", "", "");
    bed.write(
        "web.yaml",
        &crash.replace("min-ready-seconds: \"1\"", "min-ready-seconds: \"5\""),
    );
    let paused = agent.until_pod("web", |pod| pod.held).await;
    assert_eq!(paused.uid, second);
    assert!(told(&paused).contains("rollouts of pod"), "{paused:?}");
    let (code, text) = rollout(&bed, &["undo", "web"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("are paused; resume the rollouts first"),
        "{text}"
    );

    assert_eq!(rollout(&bed, &["resume", "web"]).await.0, Some(0));
    let (code, text) = rollout(&bed, &["status", "web", "--timeout", "2m"]).await;
    assert_eq!(code, Some(1), "a version that was undone: {text}");
    assert!(
        text.contains("failed, revision 2 runs: CrashLoopBackOff"),
        "{text}"
    );
    let (code, text) = rollout(&bed, &["retry", "web"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("revision 3 will be retried"), "{text}");
    agent.until_pod("web", |pod| pod.uid != second).await;
    let (code, text) = rollout(&bed, &["status", "web", "--timeout", "2m"]).await;
    assert_eq!(code, Some(1), "{text}");
    agent.until_pod("web", runs(&second)).await;
    let (code, text) = rollout(&bed, &["history", "gone"]).await;
    assert_eq!(code, Some(1), "{text}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_changes_nothing_and_comes_true() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    for name in ["edited", "held", "gone", "same"] {
        bed.write(&format!("{name}.yaml"), &good(name));
    }
    let mut uids = BTreeMap::new();
    for name in ["edited", "held", "gone", "same"] {
        uids.insert(name, agent.until_running(name).await.uid);
    }
    let before = ids(&bed);
    let (code, text) = mirrorlet(&bed, &["plan"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("0 to remove, 4 unchanged\n"), "{text}");

    // The directory as it might be.
    let next = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(next.path().join(format!("{name}.yaml")), text).unwrap();
    };
    write("edited", &pod_of_second_image("edited"));
    let nowhere = "    imagePullPolicy: Never";
    write(
        "held",
        &pod("held", "mirrorlet.test/nowhere:1", QUIET, "", nowhere),
    );
    write("same", &good("same"));
    write("new", &good("new"));
    let path = next.path().to_str().unwrap();
    let engine_history = History::of(&bed).await;
    let (code, text) = mirrorlet(&bed, &["plan", path]).await;
    assert_eq!(code, Some(2), "{text}");
    for words in [
        "replace  default/edited-",
        "gap       spec.containers[edited].image",
        "held     default/held-",
        "the current version keeps running: ErrImageNeverPull",
        "remove   default/gone-",
        "create   default/new-",
        "1 to create, 1 to replace, 1 held, 1 to remove, 1 unchanged",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let edited = next.path().join("edited.yaml");
    let (code, text) = mirrorlet(&bed, &["diff", edited.to_str().unwrap()]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(&format!("-    image: {IMAGE}\n+    image: {IMAGE_2}\n")),
        "{text}"
    );
    assert_eq!(mirrorlet(&bed, &["diff"]).await, (Some(0), String::new()));
    write("edited", "kind: [");
    let (code, text) = mirrorlet(&bed, &["plan", edited.to_str().unwrap()]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("held    default/edited-"), "{text}");
    assert_eq!(ids(&bed), before);
    // rollouts 21
    assert!(engine_history.all().is_empty());

    write("edited", &pod_of_second_image("edited"));
    for file in std::fs::read_dir(next.path()).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        bed.write(&name, &std::fs::read_to_string(file.path()).unwrap());
    }
    bed.remove("gone.yaml");
    agent
        .until_pod("edited", |pod| pod.uid != uids["edited"] && pod.ready == 1)
        .await;
    agent.until_running("new").await;
    agent.until_gone("gone").await;
    let held = agent.until_pod("held", |pod| pod.held).await;
    assert_eq!(held.uid, uids["held"]);
    let same = agent.until_running("same").await;
    assert_eq!(same.uid, uids["same"]);
    agent.stop().await;
}

/// A `ConfigMap` and a Secret in one file.
fn config(exit: u8, password: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{EXIT: \"{exit}\"}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: login}}\nstringData: {{password: {password}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_an_object_is_a_rollout_of_the_pods_that_ask_for_it() {
    let pod = |name: &str| {
        pod(
            name,
            IMAGE,
            &format!("[ $EXIT = 0 ] || exit $EXIT; {QUIET}"),
            "  volumes: [{name: v, projected: {sources: [{configMap: {name: settings}}, {secret: {name: login}}]}}]",
            "    envFrom: [{configMapRef: {name: settings}}]\n    volumeMounts: [{name: v, mountPath: /v}]",
        )
        .replace("min-ready-seconds: \"1\"", "min-ready-seconds: \"3\"")
    };
    let asks = pod("asks").replace(
        "annotations:",
        "annotations:\n    mirrorlet.dev/restart-on: config",
    );
    let values = "cat /v/EXIT; echo $EXIT; cat /v/password";
    let bed = Bed::new();
    let mut agent = bed.agent().await;
    bed.write("asks.yaml", &asks);
    bed.write("plain.yaml", &pod("plain"));
    bed.write("config.yaml", &config(0, "one-7c1e"));
    let plain = agent.until_running("plain").await.uid;
    let running = |pod: &PodReport| pod.ready == 1;
    agent.until_pod("asks", running).await;
    bed.until_healthy(2).await;
    let first = agent.until_pod("asks", running).await.uid;

    // What would happen is told without a Secret's value.
    let next = tempfile::tempdir().unwrap();
    let file = next.path().join("config.yaml");
    std::fs::write(&file, config(0, "two-9d4f")).unwrap();
    let file = file.to_str().unwrap();
    let (code, planned) = mirrorlet(&bed, &["plan", file]).await;
    assert_eq!(code, Some(2), "{planned}");
    // rollouts 25
    assert!(planned.contains("secrets.login.password"), "{planned}");
    assert!(
        planned.contains("1 to replace, 0 held, 0 to remove, 1 unchanged"),
        "{planned}"
    );
    let (code, diff) = mirrorlet(&bed, &["diff", file]).await;
    assert_eq!(code, Some(1), "{diff}");
    // rollouts 27
    assert!(
        diff.contains("-    password: \"*** (before)\"\n+    password: \"*** (after)\"\n"),
        "{diff}"
    );

    bed.write("config.yaml", &config(0, "two-9d4f"));
    let second = agent.until_pod("asks", |pod| pod.uid != first && running(pod));
    let second = second.await.uid;
    assert_eq!(bed.exec("asks", values), "00\ntwo-9d4f");
    let (code, text) = rollout(&bed, &["status", "asks", "--timeout", "2m"]).await;
    assert_eq!(code, Some(0), "{text}");

    // An edit that fails is undone, with the old data, also for instances that start later.
    bed.write("config.yaml", &config(3, "three-5a2b"));
    let restored = |pod: &PodReport| pod.held && running(pod) && pod.uid == second;
    agent.until_pod("asks", restored).await;
    agent.stop().await;
    agent = bed.agent().await;
    let failed = agent.until_pod("asks", restored).await;
    assert!(
        told(&failed).contains("last with exit code 3"),
        "{failed:?}"
    );
    let id = bed.running_id("asks");
    bed.docker(&["kill", &id]);
    eventually("another instance", || {
        let mut running = bed.running().into_iter();
        running.find(|(name, known)| name.starts_with("k8s_asks_") && *known != id)
    })
    .await;
    agent.until_pod("asks", restored).await;
    // rollouts 25
    assert_eq!(bed.exec("asks", values), "00\ntwo-9d4f");
    // The pod that doesn't ask has the files of now.
    assert_eq!(bed.exec("plain", values), "30\nthree-5a2b");
    let (_, history) = rollout(&bed, &["history", "asks"]).await;
    assert!(
        history.contains("configMaps.settings.EXIT and 1 more"),
        "{history}"
    );

    // What goes missing changes nothing, and what comes back as it was neither.
    let before = ids(&bed);
    bed.remove("config.yaml");
    let missing = |report: &StatusReport| {
        report
            .problems
            .iter()
            .any(|p| p.code == Code::MissingObject)
    };
    agent.until("the missing objects to be told", missing).await;
    assert!(restored(&agent.until_pod("asks", running).await));
    bed.write("config.yaml", &config(0, "two-9d4f"));
    let as_wanted = |pod: &PodReport| !pod.held && running(pod);
    agent.until_pod("asks", as_wanted).await;
    // rollouts 26
    assert_eq!(ids(&bed), before);
    let uid_of = |name: &str| agent.pod(name).map(|pod| pod.uid);
    assert_eq!(
        (uid_of("asks"), uid_of("plain")),
        (Some(second), Some(plain))
    );
    // rollouts 27
    for text in [planned, diff, history, format!("{:?}", agent.status())] {
        assert!(
            !["one-7c1e", "two-9d4f", "three-5a2b"]
                .iter()
                .any(|value| text.contains(value)),
            "{text}"
        );
    }
    for file in std::fs::read_dir(bed.path().join("rollouts")).unwrap() {
        let mode = file.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    agent.stop().await;
}

/// kubeadm's way: the file is moved to a backup and another one into its place; the backup is moved
/// back where the mirror's hash doesn't change in time. Upstream:
/// `cmd/kubeadm/app/phases/upgrade/staticpods.go`.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_moved_away_and_back_is_an_edit() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &good("web"));
    let first = agent.until_running("web").await.uid;
    bed.until_healthy(1).await;
    let before = ids(&bed);
    let (backup, next) = (bed.path().join("backup.yaml"), bed.path().join("next.yaml"));
    let edit = |text: &str| {
        std::fs::write(&next, text).unwrap();
        std::fs::rename(bed.manifest("web.yaml"), &backup).unwrap();
        std::fs::rename(&next, bed.manifest("web.yaml")).unwrap();
    };
    let nowhere = pod(
        "web",
        "mirrorlet.test/nowhere:1",
        QUIET,
        "",
        "    imagePullPolicy: Never",
    );
    for _ in 0..10 {
        edit(&nowhere);
        let held = agent.until_pod("web", |pod| pod.held).await;
        assert_eq!((held.uid.as_str(), held.ready), (first.as_str(), 1));
        std::fs::rename(&backup, bed.manifest("web.yaml")).unwrap();
        agent.until_pod("web", |pod| !pod.held).await;
    }
    // rollouts M4
    assert_eq!(ids(&bed), before);
    edit(&pod_of_second_image("web"));
    let edited = |pod: &PodReport| !pod.held && pod.ready == 1 && pod.uid != first;
    agent.until_pod("web", edited).await;
    agent.stop().await;
}

/// Serves the text over HTTP until the test ends.
fn serve(text: Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let text = text.lock().unwrap().clone();
            let length = text.len();
            // The agent may have gone.
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}"
            );
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_a_url_is_a_rollout() {
    let bed = Bed::new();
    let text = Arc::new(Mutex::new(good("web")));
    let mut resolved = bed.resolved();
    resolved.config.manifest_urls = vec![serve(Arc::clone(&text))];
    resolved.config.url_period = std::time::Duration::from_secs(1);
    let agent = bed.agent_as(resolved.clone()).await;
    let first = agent.until_running("web").await.uid;
    bed.until_healthy(1).await;
    let before = ids(&bed);
    let says = |manifest: String| *text.lock().unwrap() = manifest;
    says(pod(
        "web",
        "mirrorlet.test/nowhere:1",
        QUIET,
        "",
        "    imagePullPolicy: Never",
    ));
    let held = |pod: &PodReport| pod.held && told(pod).contains("ErrImageNeverPull");
    let pod_held = agent.until_pod("web", held).await;
    assert_eq!(ids(&bed), before);
    assert!(
        pod_held.problems[0].file.starts_with("http://"),
        "{pod_held:?}"
    );
    let crashing = pod("web", IMAGE, "exit 3", "", "");
    // A busy Engine tells of an end late.
    says(crashing.replace("min-ready-seconds: \"1\"", "min-ready-seconds: \"5\""));
    let restored = |pod: &PodReport| {
        pod.held && pod.ready == 1 && told(pod).contains("failed, the previous version runs")
    };
    // rollouts M5
    assert_eq!(agent.until_pod("web", restored).await.uid, first);
    agent.stop().await;
    let agent = bed.agent_as(resolved).await;
    agent.until_pod("web", restored).await;
    says(pod_of_second_image("web"));
    let edited = |pod: &PodReport| !pod.held && pod.ready == 1 && pod.uid != first;
    agent.until_pod("web", edited).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_version_whose_image_was_removed_runs_again_once_it_is_there() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let image = format!("mirrorlet.test/removed:{}", std::process::id());
    bed.docker(&["tag", IMAGE, &image]);
    let never = "    imagePullPolicy: Never";
    bed.write("web.yaml", &pod("web", &image, QUIET, "", never));
    let first = agent.until_running("web").await.uid;
    bed.until_healthy(1).await;
    // It crashes when it is told to, and isn't ready until then.
    let gate = bed.path().join("gate");
    std::fs::create_dir(&gate).unwrap();
    let volume = format!(
        "  volumes: [{{name: gate, hostPath: {{path: {}}}}}]",
        gate.display()
    );
    let mounted = "    readinessProbe: {exec: {command: [\"false\"]}, periodSeconds: 1}\n    volumeMounts: [{name: gate, mountPath: /gate}]";
    let script = "while [ ! -e /gate/open ]; do sleep 0.1; done; exit 3";
    bed.write("web.yaml", &pod("web", IMAGE_2, script, &volume, mounted));
    let judged = |pod: &PodReport| pod.uid != first && !pod.containers.is_empty();
    agent.until_pod("web", judged).await;
    bed.docker(&["rmi", &image]);
    std::fs::write(gate.join("open"), "").unwrap();
    // It runs what did well, and nothing takes the place of that, though it can't be started.
    let waits = |pod: &PodReport| {
        pod.uid == first
            && pod.held
            && pod
                .containers
                .iter()
                .any(|c| c.reason == "ErrImageNeverPull")
    };
    agent.until_pod("web", waits).await;
    bed.docker(&["tag", IMAGE, &image]);
    // rollouts 17
    agent
        .until_pod("web", |pod| pod.uid == first && pod.held && pod.ready == 1)
        .await;
    agent.stop().await;
    bed.docker(&["rmi", &image]);
}
