//! Workloads of manifests, under a whole agent.

use std::collections::BTreeMap;

use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent};
use crate::edits_rollouts::rollout;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::report::{PodReport, RolloutPhase};

/// A workload of one container, judged as soon as it is ready.
pub(crate) fn workload(kind: &str, image: &str, more: &str) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: {kind}
metadata: {{name: web}}
spec:
  minReadySeconds: 0
  {more}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        image: {image}
        command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"]
"#
    )
}

pub(crate) fn deployment(replicas: u32, image: &str, strategy: &str) -> String {
    let more = format!("replicas: {replicas}\n  strategy: {{type: {strategy}}}");
    workload("Deployment", image, &more)
}

/// Waits until these pods alone are there and run, and returns their UIDs.
pub(crate) async fn until_alone(agent: &TestAgent, names: &[&str]) -> Vec<PodUid> {
    let report = agent
        .until("the pods of the workload alone", |report| {
            let runs = report.pods.iter().filter(|pod| pod.is_ready());
            runs.map(|pod| pod.manifest_name.as_str())
                .eq(names.iter().copied())
                && report.pods.len() == names.len()
        })
        .await;
    report.pods.into_iter().map(|pod| pod.uid).collect()
}

/// The image edition of a pod.
fn edition(bed: &Bed, pod: &str) -> String {
    bed.exec(&format!("web_{pod}-box"), "echo $EDITION")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_its_pods() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &deployment(2, IMAGE, "RollingUpdate"));
    let both = ["web-0", "web-1"];
    let old = until_alone(&agent, &both).await;
    for name in both {
        let pod = agent.pod(name).unwrap();
        // workloads 1
        assert_eq!(pod.workload.as_deref(), Some("Deployment/web"));
        assert_eq!(pod.labels["app"], "web");
    }
    bed.until_healthy(2).await;
    // An edit of the image replaces both.
    bed.write("web.yaml", &deployment(2, IMAGE_2, "RollingUpdate"));
    for name in both {
        let is_new = |uid: &PodUid| !old.contains(uid);
        agent
            .until_pod(name, |pod| is_new(&pod.uid) && pod.is_ready())
            .await;
    }
    let new = until_alone(&agent, &both).await;
    for name in both {
        assert_eq!(edition(&bed, name), "2", "{name}");
    }
    bed.until_healthy(2).await;
    let running = bed.running();
    // A broken one harms none of them, nor does a restart of the agent with it.
    let broken = deployment(2, "mirrorlet.test/other:1", "RollingUpdate");
    bed.write(
        "web.yaml",
        &broken.replace("minReadySeconds: 0", "minReadySeconds: -1"),
    );
    for name in both {
        let held = agent.until_pod(name, |pod| pod.held).await;
        let problem = &held.problems[0];
        // workloads 6
        assert_eq!(problem.field.as_deref(), Some("spec.minReadySeconds"));
        assert_eq!(problem.position.unwrap().line, 5);
    }
    agent.stop().await;
    let agent = bed.agent().await;
    // workloads 6
    assert_eq!(until_alone(&agent, &both).await, new);
    assert!(agent.pod("web-1").unwrap().held);
    assert_eq!(bed.running(), running);
    // Scaled down, the last one ends, and the other one is not touched.
    bed.write("web.yaml", &deployment(1, IMAGE_2, "RollingUpdate"));
    // workloads 1
    assert_eq!(until_alone(&agent, &["web-0"]).await, new[..1]);
    let left = bed.running();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().all(|(name, id)| running.get(name) == Some(id)));
    // Scaled up, the second one is as it was.
    bed.write("web.yaml", &deployment(2, IMAGE_2, "RollingUpdate"));
    assert_eq!(until_alone(&agent, &both).await, new);
    bed.remove("web.yaml");
    agent.until_gone("web-0").await;
    agent.until_gone("web-1").await;
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_strategy_says_whether_two_versions_of_a_pod_run_at_a_time() {
    for (name, strategy, at_once) in [
        ("web-0", Some("RollingUpdate"), 2),
        ("web-0", Some("Recreate"), 1),
        ("web", None, 1),
    ] {
        let document = |image: &str| match strategy {
            Some(strategy) => deployment(1, image, strategy),
            None => workload("DaemonSet", image, ""),
        };
        let bed = Bed::new();
        let agent = bed.agent().await;
        let events = bed.record();
        bed.write("web.yaml", &document(IMAGE));
        let old = until_alone(&agent, &[name]).await;
        bed.until_traps("web").await;
        bed.until_healthy(1).await;
        bed.write("web.yaml", &document(IMAGE_2));
        agent
            .until_pod(name, |pod| !old.contains(&pod.uid) && pod.is_ready())
            .await;
        until_alone(&agent, &[name]).await;
        assert_eq!(edition(&bed, name), "2");
        events
            .until("die", &format!("k8s_web_{name}-box_default_{}", old[0]))
            .await;
        // workloads 3
        assert_eq!(events.most_at_once("k8s_web_"), at_once, "{name}");
        agent.stop().await;
    }
}

/// Versions of a Deployment of three: `fails_at` is the pod in which this one crashes.
fn three(version: &str, fails_at: Option<&str>, min_ready: u32) -> String {
    let crash = fails_at.map(|pod| format!("case $(hostname) in {pod}-*) exit 3;; esac; "));
    let start = format!("echo {version}; {}trap", crash.unwrap_or_default());
    let document = deployment(3, IMAGE, "RollingUpdate");
    let document = document.replace("\"trap", &format!("\"{start}"));
    let annotations = "annotations: {mirrorlet.dev/max-restarts: \"1\"}, labels: {app: web}}";
    document
        .replace(
            "labels: {app: web}}\n    spec",
            &format!("{annotations}\n    spec"),
        )
        .replace(
            "minReadySeconds: 0",
            &format!("minReadySeconds: {min_ready}"),
        )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_fails_at_the_second_of_three_pods_is_run_by_none() {
    let bed = Bed::new();
    let mut agent = bed.agent().await;
    let all = ["web-0", "web-1", "web-2"];
    bed.write("web.yaml", &three("first", None, 1));
    let old = until_alone(&agent, &all).await;
    bed.until_healthy(3).await;
    let running: BTreeMap<String, String> = bed.running().into_iter().collect();
    let events = bed.record();
    // A good edit goes from pod to pod.
    bed.write("web.yaml", &three("second", None, 3));
    // workloads 12
    agent
        .until(
            "the first pod updated, and the last one waiting",
            |report| {
                let named = |name: &str| report.pods.iter().find(|pod| pod.manifest_name == name);
                let first = named("web-0").is_some_and(|pod| !old.contains(&pod.uid));
                let last = named("web-2").and_then(|pod| pod.rollout.as_ref());
                first && last.is_some_and(|rollout| rollout.phase == RolloutPhase::Waiting)
            },
        )
        .await;
    agent.kill();
    agent = bed.agent().await;
    let (code, text) = rollout(&bed, &["status", "deployment/web", "--timeout", "3m"]).await;
    assert_eq!(code, Some(0), "{text}");
    let good = agent
        .until("all pods at the new version", |report| {
            let is_new = |pod: &PodReport| pod.is_ready() && !old.contains(&pod.uid);
            report.pods.len() == 3 && report.pods.iter().all(is_new)
        })
        .await;
    let good: Vec<PodUid> = good.pods.into_iter().map(|pod| pod.uid).collect();
    // One that was told to stop makes room for the next.
    // workloads 12
    assert_eq!(events.most_kept_at_once("k8s_web_"), 4);
    bed.until_healthy(3).await;
    // One that fails at the second pod leaves the third alone, and the first one goes back.
    let before: BTreeMap<String, String> = bed.running().into_iter().collect();
    assert!(
        before
            .values()
            .all(|id| !running.values().any(|old| old == id))
    );
    bed.write("web.yaml", &three("third", Some("web-1"), 5));
    let (code, text) = rollout(&bed, &["status", "deployment/web", "--timeout", "3m"]).await;
    // workloads 13
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("CrashLoopBackOff: container web was restarted once"),
        "{text}"
    );
    let back = agent
        .until("all pods at the version before", |report| {
            let restored = |phase| phase == RolloutPhase::Restored;
            let mut pods = report.pods.iter();
            report.pods.len() == 3
                && pods.all(|pod| pod.rollout.as_ref().is_some_and(|r| restored(r.phase)))
        })
        .await;
    let back: Vec<PodUid> = back.pods.into_iter().map(|pod| pod.uid).collect();
    // workloads 13
    assert_eq!(back, good);
    let after: BTreeMap<String, String> = bed.running().into_iter().collect();
    for (name, id) in &before {
        let same = after.get(name) == Some(id);
        let replaced = name.contains("_web-0-");
        assert_eq!(same, !replaced, "{name}: {before:?}, {after:?}");
    }
    let (_, text) = rollout(&bed, &["history", "deploy/web"]).await;
    let failed = text.lines().find(|line| line.starts_with("3 ")).unwrap();
    assert!(failed.contains("failed, in the manifest"), "{text}");
    assert!(failed.contains("CrashLoopBackOff"), "{text}");
    // The workload as a whole is undone, and paused.
    let (code, text) = rollout(&bed, &["undo", "deployment/web", "--to-revision", "1"]).await;
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = rollout(&bed, &["status", "deployment/web", "--timeout", "3m"]).await;
    assert_eq!(code, Some(0), "{text}");
    // workloads 14
    assert_eq!(until_alone(&agent, &all).await, old);
    // Its name alone is enough.
    let (code, text) = rollout(&bed, &["pause", "web"]).await;
    assert_eq!(code, Some(0), "{text}");
    // workloads 27
    assert!(
        text.contains("Deployment default/web: its pods keep their revisions"),
        "{text}"
    );
    bed.write("web.yaml", &three("fourth", None, 1));
    agent
        .until("three pods that are paused", |report| {
            let paused = |phase| phase == RolloutPhase::Paused;
            let mut pods = report.pods.iter();
            pods.all(|pod| pod.rollout.as_ref().is_some_and(|r| paused(r.phase)))
        })
        .await;
    // workloads 14
    assert_eq!(until_alone(&agent, &all).await, old);
    let (code, text) = rollout(&bed, &["resume", "deployment/web"]).await;
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = rollout(&bed, &["status", "web", "--timeout", "3m"]).await;
    assert_eq!(code, Some(0), "{text}");
    let new = until_alone(&agent, &all).await;
    assert!(
        new.iter()
            .all(|uid| !old.contains(uid) && !good.contains(uid))
    );
    agent.stop().await;
}
