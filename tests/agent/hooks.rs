//! Lifecycle hooks under a whole agent, on a real Engine.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{Bed, IMAGE, eventually};

/// Runs until it is told to stop.
const WAIT: &str = r#"["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]"#;

/// A directory of the host that outlives containers.
fn out(bed: &Bed) -> PathBuf {
    let dir = bed.path().join("out");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn read(bed: &Bed, file: &str) -> Option<String> {
    std::fs::read_to_string(out(bed).join(file)).ok()
}

/// A manifest whose containers share that directory at `/out`. Each is a name, a command and
/// further lines.
fn manifest(bed: &Bed, name: &str, grace: u32, inits: &[Part<'_>], apps: &[Part<'_>]) -> String {
    let list = |parts: &[Part<'_>]| {
        let one = |(name, command, lines): &Part<'_>| {
            format!(
                "
  - name: {name}
    image: {IMAGE}
    command: {command}
    volumeMounts: [{{name: out, mountPath: /out}}]
    {lines}"
            )
        };
        parts.iter().map(one).collect::<String>()
    };
    let inits = match list(inits) {
        none if none.is_empty() => none,
        some => format!("\n  initContainers:{some}"),
    };
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: {grace}
  volumes: [{{name: out, hostPath: {{path: {}}}}}]{inits}
  containers:{}
",
        out(bed).display(),
        list(apps)
    )
}

type Part<'a> = (&'a str, &'a str, &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn a_post_start_hook_is_done_before_the_next_container_starts() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let hook = "lifecycle: {postStart: {exec: {command: [sh, -c, 'sleep 1; touch /out/hooked']}}}";
    let check = r#"["sh", "-c", "ls /out > /out/seen; while :; do sleep 1; done"]"#;
    let apps = [("a", WAIT, hook), ("b", check, "")];
    bed.write("ab.yaml", &manifest(&bed, "ab", 1, &[], &apps));
    agent.until_running("ab").await;
    // It is running before its shell has looked.
    let seen = eventually("what b saw when it began", || {
        read(&bed, "seen").filter(|seen| seen.contains("seen"))
    });
    // pods 60
    assert!(seen.await.contains("hooked"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_post_start_hook_fails_is_stopped() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let hook = "lifecycle: {postStart: {exec: {command: [sh, -c, 'echo secret; exit 3']}}}";
    let apps = [("bad", WAIT, hook), ("good", WAIT, "")];
    bed.write("two.yaml", &manifest(&bed, "two", 1, &[], &apps));
    // pods 60
    let bad = agent
        .until_container("two", "bad", |c| c.reason == "PostStartHookError")
        .await;
    // docker 33
    assert_eq!(
        bad.message,
        "the postStart hook failed: its command exited with 3"
    );
    agent
        .until_container("two", "good", |c| c.state == "running")
        .await;
    agent
        .until_container("two", "bad", |c| c.restarts >= 1)
        .await;
    let events = agent.events("two-box");
    for told in [
        "FailedPostStartHook PostStartHook failed",
        "Killing FailedPostStartHook",
    ] {
        assert!(events.iter().any(|event| event == told), "{events:?}");
    }
    assert!(!events.iter().any(|event| event.contains("secret")));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_stop_hook_comes_before_the_stop() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let command = r#"["sh", "-c", "trap 'echo stopped >> /out/story; exit 0' TERM; while :; do sleep 1 & wait $!; done"]"#;
    let hook =
        "lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 1; echo hooked >> /out/story']}}}";
    let manifest = manifest(&bed, "web", 120, &[], &[("web", command, hook)]);
    bed.write("web.yaml", &manifest);
    agent.until_running("web").await;
    bed.until_traps("web").await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    // pods 60
    assert_eq!(read(&bed, "story").unwrap(), "hooked\nstopped\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_stop_hook_that_outlives_the_grace_ends_with_its_container() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // At SIGTERM it looks whether the hook runs. It runs on itself, until SIGKILL.
    let command = r#"["sh", "-c", "trap 'kill -0 $(cat /out/hook) && touch /out/together' TERM; while :; do sleep 1 & wait $!; done"]"#;
    // Longer than any test waits.
    let hook = "lifecycle: {preStop: {exec: {command: [sh, -c, 'echo $$ > /out/hook; while :; do sleep 1; done']}}}";
    // Time enough for a loaded machine to begin with the hook.
    let manifest = manifest(&bed, "deaf", 15, &[], &[("deaf", command, hook)]);
    bed.write("deaf.yaml", &manifest);
    agent.until_running("deaf").await;
    bed.until_traps("deaf").await;
    let recorder = bed.record();
    bed.remove("deaf.yaml");
    agent.until_gone("deaf").await;
    // pods 60
    assert!(read(&bed, "together").is_some());
    let killed = recorder.until("die", "k8s_deaf_").await;
    assert_eq!(killed.attributes["exitCode"], "137");
    let failed = "FailedPreStopHook PreStopHook failed";
    let events = agent.events("deaf-box");
    assert!(events.iter().any(|event| event == failed), "{events:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_stop_hook_that_fails_changes_nothing() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let hook = "lifecycle: {preStop: {exec: {command: [sh, -c, 'echo secret; exit 1']}}}";
    let manifest = manifest(&bed, "web", 120, &[], &[("web", WAIT, hook)]);
    bed.write("web.yaml", &manifest);
    agent.until_running("web").await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    let events = agent.events("web-box");
    let failed = "FailedPreStopHook PreStopHook failed";
    // pods 60
    assert!(events.iter().any(|event| event == failed), "{events:?}");
    assert!(!events.iter().any(|event| event.contains("secret")));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_are_rebuilt_from_labels_when_the_manifest_is_gone() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let exec = "lifecycle: {preStop: {exec: {command: [touch, /out/exec]}}}";
    let serve = r#"["sh", "-c", "mkdir -p /w/cgi-bin; printf '#!/bin/sh\ntouch /out/http\necho\n' > /w/cgi-bin/bye; chmod +x /w/cgi-bin/bye; trap 'exit 0' TERM; httpd -f -p 8080 -h /w & wait $!"]"#;
    let get = "ports: [{name: web, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1}
    lifecycle: {preStop: {httpGet: {port: web, path: /cgi-bin/bye}}}";
    let apps = [("a", WAIT, exec), ("b", serve, get)];
    bed.write("ab.yaml", &manifest(&bed, "ab", 60, &[], &apps));
    agent.until_running("ab").await;
    agent.kill();
    bed.remove("ab.yaml");
    let agent = bed.agent().await;
    eventually("its containers to go", || {
        bed.containers().is_empty().then_some(())
    })
    .await;
    // pods 60
    assert!(read(&bed, "exec").is_some(), "the exec hook did not run");
    assert!(read(&bed, "http").is_some(), "the httpGet hook did not run");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pre_stop_hooks_run_at_once_and_sidecars_stop_last_in_reverse() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // Each waits for all others.
    let hook = |name: &str| {
        format!(
            "lifecycle: {{preStop: {{exec: {{command: [sh, -c, 'touch /out/{name}; until test -e /out/one -a -e /out/two -a -e /out/app; do sleep 1; done; touch /out/{name}-done']}}}}}}"
        )
    };
    let sidecar = |name: &str| format!("restartPolicy: Always\n    {}", hook(name));
    let (one, two, app) = (sidecar("one"), sidecar("two"), hook("app"));
    let inits = [("one", WAIT, one.as_str()), ("two", WAIT, two.as_str())];
    let apps = [("app", WAIT, app.as_str())];
    bed.write("pod.yaml", &manifest(&bed, "pod", 120, &inits, &apps));
    agent
        .until_container("pod", "app", |c| c.state == "running" && c.ready)
        .await;
    for name in ["one", "two", "app"] {
        bed.until_traps(name).await;
    }
    let recorder = bed.record();
    bed.remove("pod.yaml");
    agent.until_gone("pod").await;
    for name in ["one", "two", "app"] {
        let file = format!("{name}-done");
        assert!(
            read(&bed, &file).is_some(),
            "the hook of {name} was cut off"
        );
    }
    let died = |name: &str| {
        let prefix = format!("k8s_{name}_");
        let events = recorder.events();
        let of = events
            .iter()
            .find(|e| e.action == "die" && e.container.starts_with(&prefix));
        of.map(|event| event.at)
    };
    let (app, two, one) = eventually("all to be told of", || {
        Some((died("app")?, died("two")?, died("one")?))
    })
    .await;
    // docker 32
    assert!(app < two && two < one, "{app} {two} {one}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_hook_waits_within_the_grace() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let hook = "lifecycle: {postStart: {sleep: {seconds: 1}}, preStop: {sleep: {seconds: 2}}}";
    let manifest = manifest(&bed, "web", 60, &[], &[("web", WAIT, hook)]);
    bed.write("web.yaml", &manifest);
    agent.until_running("web").await;
    bed.until_traps("web").await;
    let recorder = bed.record();
    let removed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    let stop = recorder.until("kill", "k8s_web_").await;
    assert_eq!(stop.attributes["signal"], "15");
    // It was left alone as long as its hook slept.
    let waited = Duration::from_nanos(stop.at).saturating_sub(removed);
    // pods 60
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    agent.stop().await;
}
