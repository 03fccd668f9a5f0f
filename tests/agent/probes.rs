//! Probes under a whole agent, on a real Engine: what they do to containers and their status.

use crate::common::{Bed, IMAGE, TestAgent, eventually};
use mirrorlet_core::api::report::PodReport;

/// A manifest of one container that serves `/tmp/www`, with these lines in it.
fn server(name: &str, files: &str, lines: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "mkdir -p /tmp/www; cd /tmp/www; {files}; exec httpd -f -v -p 8080"]
    ports: [{{name: http, containerPort: 8080}}]
    {lines}
"#
    )
}

/// A manifest of one container that runs until it is told to stop, with these lines in it.
fn worker(name: &str, spec: &str, lines: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  {spec}
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    {lines}
"#
    )
}

fn is_ready(pod: &PodReport) -> bool {
    pod.ready == pod.containers_total
}

/// How often a probe was attempted, by what came of it.
fn attempts(agent: &TestAgent, kind: &str, result: &str) -> u64 {
    let start = format!("prober_probe_total{{probe_type=\"{kind}\",result=\"{result}\"");
    let text = agent.metrics();
    let lines = text.lines().filter(|line| line.starts_with(&start));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// How many calls the Engine was asked for.
fn engine_calls(agent: &TestAgent) -> u64 {
    let text = agent.metrics();
    let calls = |line: &&str| line.starts_with("mirrorlet_engine_operations_total");
    text.lines()
        .filter(calls)
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

async fn until_attempts(agent: &TestAgent, kind: &str, result: &str, times: u64) {
    let wanted = attempts(agent, kind, result) + times;
    eventually(&format!("{times} more {kind} probes, {result}"), || {
        (attempts(agent, kind, result) >= wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_fails_its_liveness_probe_is_restarted_in_its_sandbox() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // A loaded machine takes its time to start the server, and to answer.
    let probes = "startupProbe: {tcpSocket: {port: http}, periodSeconds: 1, failureThreshold: 1000}
    livenessProbe: {httpGet: {path: /ok, port: http}, periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 60}";
    bed.write("web.yaml", &server("web", "touch ok", probes));
    agent.until_running("web").await;
    until_attempts(&agent, "Liveness", "successful", 2).await;
    let (sandbox, first) = (bed.running_id("POD"), bed.running_id("web"));
    bed.exec("web", "rm /tmp/www/ok");
    let pod = agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    assert_eq!(pod.restarts, 1);
    // pods 56b
    assert_eq!(bed.running_id("POD"), sandbox);
    assert_ne!(bed.running_id("web"), first);
    let unhealthy = "Unhealthy Liveness probe failed: HTTP probe failed with statuscode: 404";
    let killing = "Killing Container web failed liveness probe, will be restarted";
    let events = agent.events("web-box");
    let count = |event: &str| events.iter().filter(|told| *told == event).count();
    assert!(count(unhealthy) >= 1, "{events:?}");
    assert_eq!(count(killing), 1, "{events:?}");
    // The new one is well, and stays.
    until_attempts(&agent, "Liveness", "successful", 3).await;
    assert_eq!(agent.pod("web").unwrap().restarts, 1);
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    eventually("its series to go", || {
        (!agent.metrics().contains("prober_probe_total{")).then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_comes_and_goes_and_restarts_nothing() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let probe =
        "readinessProbe: {httpGet: {path: /ok, port: 8080}, periodSeconds: 1, failureThreshold: 1}";
    bed.write("web.yaml", &server("web", "true", probe));
    agent
        .until_pod("web", |pod| pod.status == "Running" && !is_ready(pod))
        .await;
    until_attempts(&agent, "Readiness", "failed", 2).await;
    let id = bed.running_id("web");
    for _ in 0..2 {
        bed.exec("web", "touch /tmp/www/ok");
        agent.until_running("web").await;
        bed.exec("web", "rm /tmp/www/ok");
        agent.until_pod("web", |pod| !is_ready(pod)).await;
    }
    // pods 56b
    assert_eq!(bed.running_id("web"), id);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_startup_probe_holds_the_liveness_probe() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let probes = "startupProbe: {exec: {command: [test, -e, /tmp/started]}, periodSeconds: 1, failureThreshold: 1000, timeoutSeconds: 60}
    livenessProbe: {exec: {command: [test, -e, /tmp/alive]}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 60}";
    let manifest = worker("slow", "terminationGracePeriodSeconds: 1", probes);
    bed.write("slow.yaml", &manifest);
    agent.until_pod("slow", |pod| pod.status == "Running").await;
    until_attempts(&agent, "Startup", "failed", 3).await;
    let pod = agent.pod("slow").unwrap();
    assert_eq!((pod.restarts, pod.ready), (0, 0));
    // pods 56b
    assert_eq!(attempts(&agent, "Liveness", "failed"), 0);
    bed.exec("slow", "touch /tmp/started");
    agent.until_pod("slow", |pod| pod.restarts == 1).await;
    assert!(attempts(&agent, "Liveness", "failed") >= 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_startup_probe_restarts_within_the_probes_own_grace() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // It ignores SIGTERM, and its pod's grace is longer than any test waits.
    let manifest = worker(
        "deaf",
        "terminationGracePeriodSeconds: 600",
        "startupProbe: {tcpSocket: {port: 1}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: 1}",
    )
    .replace("exit 0", "true");
    bed.write("deaf.yaml", &manifest);
    agent.until_pod("deaf", |pod| pod.restarts >= 1).await;
    let killing = "Killing Container deaf failed startup probe, will be restarted";
    let events = agent.events("deaf-box");
    // pods 56b
    assert!(events.iter().any(|told| told == killing), "{events:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_never_restarted_ends_with_its_liveness() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let probe =
        "livenessProbe: {exec: {command: [\"false\"]}, periodSeconds: 1, failureThreshold: 1}";
    let spec = "restartPolicy: Never\n  terminationGracePeriodSeconds: 1";
    let manifest = worker("once", spec, probe).replace("exit 0", "exit 9");
    bed.write("once.yaml", &manifest);
    // pods 56b
    let pod = agent.until_pod("once", |pod| pod.phase == "Failed").await;
    assert_eq!(pod.restarts, 0);
    eventually("its sandbox to stop", || {
        bed.running().is_empty().then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_probe_that_outlives_its_time_is_ended() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let probe = "readinessProbe: {exec: {command: [sleep, \"1234\"]}, periodSeconds: 1, failureThreshold: 1}";
    let manifest = worker("web", "terminationGracePeriodSeconds: 1", probe);
    bed.write("web.yaml", &manifest);
    agent.until_pod("web", |pod| pod.status == "Running").await;
    let timed_out = "Unhealthy Readiness probe failed: command timed out after 1 s";
    // pods 56b
    agent.until_event("web-box", timed_out).await;
    until_attempts(&agent, "Readiness", "failed", 3).await;
    let left = || bed.exec("web", "ps | grep -c '[s]leep 1234' || true");
    // One may be under way, and another being ended: never as many as were begun.
    eventually("all but one to be ended", || {
        (left().parse::<u32>().unwrap() <= 1).then_some(())
    })
    .await;
    agent.stop().await;
    eventually("the last one to be ended", || (left() == "0").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_sidecar_waits_for_its_startup_probe() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let wait = r#"["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]"#;
    bed.write(
        "app.yaml",
        &format!(
            r"apiVersion: v1
kind: Pod
metadata: {{name: app}}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: helper
    image: {IMAGE}
    restartPolicy: Always
    command: {wait}
    startupProbe: {{exec: {{command: [test, -e, /tmp/started]}}, periodSeconds: 1, failureThreshold: 1000, timeoutSeconds: 60}}
  - name: setup
    image: {IMAGE}
    command: ['true']
  containers:
  - name: app
    image: {IMAGE}
    command: {wait}
"
        ),
    );
    agent
        .until_container("app", "helper", |c| c.state == "running")
        .await;
    until_attempts(&agent, "Startup", "failed", 3).await;
    assert!(bed.instances("setup").is_empty());
    // pods 56b
    assert!(bed.instances("app").is_empty());
    assert_eq!(agent.pod("app").unwrap().status, "Init:0/2");
    bed.exec("helper", "touch /tmp/started");
    agent
        .until_container("app", "app", |c| c.state == "running" && c.ready)
        .await;
    assert_eq!(bed.instances("setup").len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_pods_probes_cost_the_engine_nothing() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let probes = "startupProbe: {tcpSocket: {port: http}, periodSeconds: 1, failureThreshold: 1000}
    livenessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1, timeoutSeconds: 60}
    readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1, timeoutSeconds: 60}";
    bed.write("web.yaml", &server("web", "touch index.html", probes));
    agent.until_running("web").await;
    until_attempts(&agent, "Liveness", "successful", 1).await;
    // The agent looks after other things now and then: not in each of these spans.
    let mut cost = Vec::new();
    while cost.len() < 5 && cost.last() != Some(&0) {
        let before = engine_calls(&agent);
        until_attempts(&agent, "Liveness", "successful", 5).await;
        until_attempts(&agent, "Readiness", "successful", 5).await;
        cost.push(engine_calls(&agent) - before);
    }
    // pods 56b, docker 64
    assert_eq!(cost.last(), Some(&0), "{cost:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_ready_stays_so_over_a_restart_of_the_agent() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // The next agent's own result does not count for a quarter of an hour.
    let probe = "readinessProbe: {httpGet: {path: /ok, port: http}, periodSeconds: 1, failureThreshold: 1000}";
    bed.write("web.yaml", &server("web", "touch ok", probe));
    agent.until_running("web").await;
    let kept = bed.path().join("probes.json");
    eventually("it to be kept", || {
        std::fs::read_to_string(&kept)
            .ok()
            .filter(|text| text.contains("readiness"))
    })
    .await;
    let id = bed.running_id("web");
    agent.kill();
    bed.exec("web", "rm /tmp/www/ok");
    let agent = bed.agent().await;
    agent.until_running("web").await;
    until_attempts(&agent, "Readiness", "failed", 2).await;
    // pods 56c
    assert!(is_ready(&agent.pod("web").unwrap()));
    // Another instance has nothing from before, and its page again.
    bed.docker(&["kill", &id]);
    agent
        .until_pod("web", |pod| pod.restarts == 1 && is_ready(pod))
        .await;
    agent.stop().await;
}
