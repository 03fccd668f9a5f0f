//! `StatefulSet`s of manifests, under a whole agent.

use std::sync::atomic::{AtomicU32, Ordering};

use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::report::JournalReport;

use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent, eventually};

/// A row of pods, each with a claim that has a name of its own on the Engine.
struct Row {
    bed: Bed,
    template: String,
}

impl Row {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            bed: Bed::new(),
            template: format!("data{}x{number}", std::process::id()),
        }
    }

    /// Pods that are Ready once there is a file `ready` in their claim, with more of the spec.
    fn write(&self, replicas: u32, image: &str, more: &str) {
        let template = &self.template;
        self.bed.write(
            "web.yaml",
            &format!(
                r#"apiVersion: v1
kind: Service
metadata: {{name: row}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: web}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: web}}
spec:
  replicas: {replicas}
  serviceName: row
  {more}
  selector: {{matchLabels: {{app: web}}}}
  volumeClaimTemplates:
  - metadata: {{name: {template}}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        image: {image}
        command: ["sh", "-c", "trap 'sleep 1; exit 0' TERM; while :; do sleep 1 & wait $!; done"]
        readinessProbe: {{exec: {{command: [test, -e, /data/ready]}}, periodSeconds: 1, timeoutSeconds: 60}}
        volumeMounts: [{{name: {template}, mountPath: /data}}]
"#
            ),
        );
    }

    fn exec(&self, ordinal: u32, command: &str) -> String {
        self.bed.exec(&format!("web_web-{ordinal}-box"), command)
    }

    /// Makes a pod Ready.
    fn ready(&self, ordinal: u32) {
        self.exec(ordinal, &format!("echo web-{ordinal} >/data/ready"));
    }

    /// The pods of which there are containers.
    fn started(&self) -> Vec<u32> {
        let containers = self.bed.containers();
        let of = |ordinal: &u32| {
            let name = format!("_web-{ordinal}-box_");
            containers.keys().any(|container| container.contains(&name))
        };
        (0..5).filter(of).collect()
    }
}

/// Waits until the container of a pod runs, Ready or not.
async fn until_up(agent: &TestAgent, pod: &str) {
    agent.until_pod(pod, |pod| pod.status == "Running").await;
}

/// Waits until a pod says that it waits.
async fn until_waits(agent: &TestAgent, pod: &str, message: &str) {
    agent
        .until_pod(pod, |pod| pod.status == "Pending" && pod.message == message)
        .await;
}

/// Waits until the status report has the set with so many pods that are Ready, and that progress.
async fn until_set(agent: &TestAgent, ready: u32, progress: &str, message: &str) {
    agent
        .until("the progress of the set", |report| {
            let [set] = report.workloads.as_slice() else {
                return false;
            };
            set.owner == "StatefulSet/web"
                && (set.wanted, set.ready) == (3, ready)
                && (&*set.progress, &*set.message) == (progress, message)
        })
        .await;
}

/// Waits until these pods alone are there, all Ready.
async fn until_alone(agent: &TestAgent, names: &[&str]) {
    agent
        .until("the pods of the set alone", |report| {
            let ready = report.pods.iter().filter(|pod| pod.is_ready());
            let ready = ready.map(|pod| pod.manifest_name.as_str());
            ready.eq(names.iter().copied()) && report.pods.len() == names.len()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_start_and_stop_in_their_turn_and_keep_their_data() {
    let row = Row::new();
    let bed = &row.bed;
    let agent = bed.agent().await;
    row.write(3, IMAGE, "minReadySeconds: 0");
    until_up(&agent, "web-0").await;
    let first = "starts once web-0 is Running and Ready";
    until_waits(&agent, "web-1", first).await;
    until_waits(&agent, "web-2", first).await;
    // workloads 20
    assert_eq!(row.started(), [0]);
    until_set(&agent, 0, "Scaling", &format!("pod web-1-box {first}")).await;
    let story = agent.view().explain("web-1").unwrap().story;
    let told = |entry: &JournalReport| entry.reason == "WaitsForTurn" && entry.message == first;
    assert!(story.iter().any(told), "{story:?}");
    // Another agent has them wait, too.
    agent.kill();
    let agent = bed.agent().await;
    until_waits(&agent, "web-1", first).await;
    // workloads 20
    assert_eq!(row.started(), [0]);
    row.ready(0);
    until_up(&agent, "web-1").await;
    until_waits(&agent, "web-2", "starts once web-1 is Running and Ready").await;
    // workloads 20
    assert_eq!(row.started(), [0, 1]);
    // Each has its name, and finds the others.
    assert_eq!(row.exec(1, "hostname"), "web-1");
    let address = row.exec(1, "hostname -i");
    eventually("the name of web-1", || {
        let hosts = row.bed.file("web_web-0-box", "/etc/hosts")?;
        let has = |name: &&str| {
            let lines = hosts.lines().map(str::split_whitespace);
            let mut lines = lines.map(Iterator::collect::<Vec<_>>);
            lines.any(|line| line.first() == Some(&&*address) && line.contains(name))
        };
        let wanted = ["web-1.row", "web-1.row.default.svc.cluster.local", "web-1"];
        // workloads 21
        wanted.iter().all(has).then_some(())
    })
    .await;
    row.ready(1);
    until_up(&agent, "web-2").await;
    row.ready(2);
    let all = ["web-0", "web-1", "web-2"];
    until_alone(&agent, &all).await;
    bed.until_healthy(3).await;
    until_set(&agent, 3, "Complete", "").await;
    // workloads 16
    assert_eq!(agent.status().workloads[0].wanted, 3);
    // An edit replaces the last one first, and keeps the data of each.
    let updates = bed.record();
    let report = agent.status();
    let old: Vec<PodUid> = report.pods.into_iter().map(|pod| pod.uid).collect();
    row.write(3, IMAGE_2, "minReadySeconds: 0");
    for (ordinal, name) in [(0, "web-0"), (1, "web-1"), (2, "web-2")] {
        agent
            .until_pod(name, |pod| !old.contains(&pod.uid) && pod.is_ready())
            .await;
        assert_eq!(row.exec(ordinal, "echo $EDITION"), "2");
        // workloads 22
        assert_eq!(row.exec(ordinal, "cat /data/ready"), name);
    }
    until_alone(&agent, &all).await;
    bed.until_healthy(3).await;
    until_set(&agent, 3, "Complete", "").await;
    let started = |ordinal: u32| {
        let name = format!("k8s_web_web-{ordinal}-box_");
        updates.find("start", &name).unwrap().at
    };
    // workloads 22
    assert!(started(2) < started(1) && started(1) < started(0));
    // The last one stops first; what stays is not touched.
    let before = bed.running();
    let events = bed.record();
    row.write(1, IMAGE_2, "minReadySeconds: 0");
    agent
        .until_pod("web-1", |pod| pod.message == "stops once web-2 has stopped")
        .await;
    until_alone(&agent, &["web-0"]).await;
    let container = |name: &str| format!("k8s_web_{name}-box_");
    events.until("die", &container("web-1")).await;
    let last_died = events.until("die", &container("web-2")).await.at;
    // workloads 20
    assert!(last_died < events.until("kill", &container("web-1")).await.at);
    // workloads 20
    assert_eq!(row.started(), [0]);
    let left = bed.running();
    assert!(left.iter().all(|(name, id)| before.get(name) == Some(id)));
    // Scaled up, they have their data.
    row.write(3, IMAGE_2, "podManagementPolicy: Parallel");
    until_alone(&agent, &all).await;
    // workloads 22
    assert_eq!(row.exec(2, "cat /data/ready"), "web-2");
    // Without the document all stop, and the data stays.
    bed.remove("web.yaml");
    for name in all {
        agent.until_gone(name).await;
    }
    for name in all {
        let volume = format!("mirrorlet_default_{}-{name}", row.template);
        // workloads 22
        bed.docker(&["volume", "inspect", &volume]);
    }
    agent.stop().await;
}

/// The container of each pod that runs, by the pod's ordinal.
fn instances(bed: &Bed) -> Vec<String> {
    let of = |ordinal: u32| bed.running_id(&format!("web_web-{ordinal}-box"));
    (0..3).map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_below_the_partition_keeps_its_version_until_it_is_lowered() {
    let from = |ordinal: u32| {
        format!(
            "podManagementPolicy: Parallel\n  minReadySeconds: 0\n  updateStrategy: {{rollingUpdate: {{partition: {ordinal}}}}}"
        )
    };
    let row = Row::new();
    let bed = &row.bed;
    let agent = bed.agent().await;
    row.write(3, IMAGE, &from(1));
    let all = ["web-0", "web-1", "web-2"];
    for (ordinal, name) in (0..).zip(all) {
        until_up(&agent, name).await;
        row.ready(ordinal);
    }
    until_alone(&agent, &all).await;
    until_set(&agent, 3, "Complete", "").await;
    let old: Vec<PodUid> = agent.status().pods.into_iter().map(|p| p.uid).collect();
    let before = instances(bed);
    // The agent is killed after the first of two updates.
    row.write(3, IMAGE_2, &from(1));
    agent
        .until_pod("web-2", |pod| !old.contains(&pod.uid))
        .await;
    agent.kill();
    let agent = bed.agent().await;
    let partitioned = "pods with an ordinal below 1 keep their version";
    until_set(&agent, 3, "Partitioned", partitioned).await;
    let editions = || [0, 1, 2].map(|ordinal| row.exec(ordinal, "echo $EDITION"));
    // workloads 26
    assert_eq!(editions(), ["1", "2", "2"]);
    let edited = instances(bed);
    assert_eq!(edited[0], before[0]);
    assert_eq!(agent.pod("web-0").unwrap().uid, old[0]);
    assert!(edited[1] != before[1] && edited[2] != before[2]);
    // Another agent touches none of them.
    agent.stop().await;
    let agent = bed.agent().await;
    until_set(&agent, 3, "Partitioned", partitioned).await;
    // workloads 26
    assert_eq!(instances(bed), edited);
    // Nor is the old version lost with its container.
    bed.docker(&["rm", "-f", &edited[0]]);
    agent
        .until_pod("web-0", |pod| pod.restarts == 1 && pod.is_ready())
        .await;
    until_set(&agent, 3, "Partitioned", partitioned).await;
    // workloads 26
    assert_eq!(editions(), ["1", "2", "2"]);
    assert_eq!(agent.pod("web-0").unwrap().uid, old[0]);
    // Lowered, the partition has the first one updated, and that one alone.
    row.write(3, IMAGE_2, &from(0));
    agent
        .until_pod("web-0", |pod| pod.uid != old[0] && pod.is_ready())
        .await;
    until_set(&agent, 3, "Complete", "").await;
    // workloads 26
    assert_eq!(editions(), ["2", "2", "2"]);
    assert_eq!(instances(bed)[1..], edited[1..]);
    agent.stop().await;
}
