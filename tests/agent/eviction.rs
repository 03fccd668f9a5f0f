//! A machine that runs short, and pods that use more than they may, on a real Engine.

use std::path::Path;
use std::time::Duration;

use crate::common::{Bed, IMAGE, TestAgent, docker_client, eventually, sleeper};
use mirrorlet::config::Resolved;
use mirrorlet_core::eviction::{Amount, Signal};

const MIB: u64 = 1 << 20;

/// A pod with an emptyDir of that source, which a script fills the first time it runs here.
fn filler(bed: &Bed, name: &str, source: &str, mebibytes: u64) -> String {
    let fill = format!("dd if=/dev/zero of=/data/file bs=1M count={mebibytes}");
    once(bed, name, source, &fill)
}

/// A pod with an emptyDir of that source that runs a command the first time it runs here.
fn once(bed: &Bed, name: &str, source: &str, command: &str) -> String {
    let marks = bed.path().join("marks");
    std::fs::create_dir_all(&marks).unwrap();
    let marks = marks.display();
    format!(
        r"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: {name}
    image: {IMAGE}
    command:
    - sh
    - -c
    - |
      trap 'exit 0' TERM
      if ! [ -e /marks/{name} ]; then
        touch /marks/{name}
        {command}
      fi
      while :; do sleep 1 & wait $!; done
    volumeMounts:
    - {{name: data, mountPath: /data}}
    - {{name: marks, mountPath: /marks}}
  volumes:
  - name: data
    emptyDir: {source}
  - name: marks
    hostPath: {{path: {marks}}}
"
    )
}

/// That pod with a limit of local storage of its container.
fn limited(pod: &str, most: &str) -> String {
    let limit = format!("    resources: {{limits: {{ephemeral-storage: {most}}}}}\n");
    pod.replace(
        "    volumeMounts:\n",
        &format!("{limit}    volumeMounts:\n"),
    )
}

/// That pod with a container beside its own that may write that much, and writes nothing.
fn beside_idle(pod: &str, most: &str) -> String {
    let idle = format!(
        r#"  - name: idle
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    resources: {{limits: {{ephemeral-storage: {most}}}}}
"#
    );
    pod.replace("  volumes:\n", &format!("{idle}  volumes:\n"))
}

/// Waits for the Event of the pod's eviction.
async fn until_evicted(agent: &TestAgent, pod: &str) -> String {
    eventually("the eviction", || {
        let events = agent.events(pod);
        events
            .into_iter()
            .find(|event| event.starts_with("Evicted "))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_over_its_size_limit_is_evicted_and_comes_back_with_an_empty_volume() {
    let bed = Bed::new();
    bed.write(
        "greedy.yaml",
        &filler(&bed, "greedy", "{sizeLimit: 1Mi}", 3),
    );
    bed.write(
        "modest.yaml",
        &filler(&bed, "modest", "{sizeLimit: 9Mi}", 3),
    );
    // One that writes to its own file system, and one of two containers that fills its log.
    let writer = once(
        &bed,
        "writer",
        "{}",
        "dd if=/dev/zero of=/file bs=1M count=3",
    );
    bed.write("writer.yaml", &limited(&writer, "1Mi"));
    let talker = r"head -c 3000000 /dev/zero | tr '\0' x";
    let talker = limited(&once(&bed, "talker", "{}", talker), "1Mi");
    bed.write("talker.yaml", &beside_idle(&talker, "90Mi"));
    let agent = bed.agent().await;
    agent.until_running("modest").await;
    let modest = bed.running_id("modest");
    let message = "Evicted Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ";
    // eviction 7
    agent.until_event("greedy-box", message).await;
    let message =
        "Evicted Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    // eviction 7
    agent.until_event("writer-box", message).await;
    let message = "Evicted Container talker exceeded its local ephemeral storage limit \"1Mi\". ";
    // eviction 7
    agent.until_event("talker-box", message).await;
    // The evicted instance runs on for a moment, with what it wrote.
    let is_empty = || {
        let mut running = bed.running().into_iter();
        let (_, id) = running.find(|(name, _)| name.starts_with("k8s_greedy_"))?;
        let mut listing = docker_client();
        listing.args(["-H", &bed.docker, "exec", &id, "ls", "/data"]);
        let listed = listing.output().unwrap();
        (listed.status.success() && listed.stdout.is_empty()).then_some(())
    };
    // eviction 8
    eventually("an instance with an empty volume", is_empty).await;
    assert_eq!(bed.running_id("modest"), modest);
    assert!(
        agent
            .events("modest-box")
            .iter()
            .all(|event| !event.starts_with("Evicted"))
    );
    let counted = "mirrorlet_evictions_total{eviction_signal=\"emptydirfs.limit\"} 1";
    assert!(agent.metrics().contains(counted), "{}", agent.metrics());
    agent.stop().await;
}

/// An agent on a disk of which half is to stay free.
fn keeps_half(bed: &Bed, signal: Signal) -> Resolved {
    let mut resolved = bed.resolved();
    let half = Amount::parse("50%").unwrap();
    resolved.config.eviction_hard = vec![(signal, half)];
    resolved.config.eviction_pressure_transition_period = Duration::from_secs(1);
    resolved
}

/// Waits until `large` was evicted for pressure on the disk, and the pressure has passed. Returns the
/// words of the node and those of the pod.
async fn until_relieved(agent: &TestAgent) -> (String, String) {
    let report = agent
        .until("pressure", |report| !report.pressures.is_empty())
        .await;
    let evicted = until_evicted(agent, "large-box").await;
    agent
        .until("no pressure", |report| report.pressures.is_empty())
        .await;
    (report.pressures["DiskPressure"].clone(), evicted)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fills_a_small_disk_is_evicted_and_comes_back_once_there_is_space() {
    let bed = Bed::with_disk("64m");
    bed.write("small.yaml", &sleeper("small"));
    let agent = bed
        .agent_as(keeps_half(&bed, Signal::NodeFsAvailable))
        .await;
    agent.until_running("small").await;
    let small = bed.running_id("small");
    bed.write("large.yaml", &filler(&bed, "large", "{}", 40));

    let (pressure, evicted) = until_relieved(&agent).await;
    // eviction 9
    assert!(pressure.starts_with("nodefs.available is "), "{pressure}");
    // eviction 9
    assert!(
        evicted.contains(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 32Mi, available: "
        ),
        "{evicted}"
    );
    // eviction 8
    agent.until_running("large").await;
    assert_eq!(bed.running_id("small"), small, "it holds next to nothing");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_all_inodes_is_evicted_and_comes_back_once_there_are_some() {
    let bed = Bed::with_inodes(2000);
    bed.write("small.yaml", &sleeper("small"));
    let agent = bed
        .agent_as(keeps_half(&bed, Signal::NodeFsInodesFree))
        .await;
    agent.until_running("small").await;
    let small = bed.running_id("small");
    let fill = "i=0; while [ $i -lt 1200 ]; do : > /data/$i; i=$((i + 1)); done";
    bed.write("large.yaml", &once(&bed, "large", "{}", fill));
    let (pressure, evicted) = until_relieved(&agent).await;
    // eviction 13
    assert!(pressure.starts_with("nodefs.inodesFree is "), "{pressure}");
    // eviction 13
    assert!(
        evicted.contains(
            "The node was low on resource: inodes. Threshold quantity: 1000, available: "
        ),
        "{evicted}"
    );
    // eviction 13
    agent.until_running("large").await;
    assert_eq!(bed.running_id("small"), small, "it holds next to nothing");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_process_numbers_is_evicted() {
    let of = |file: &str| -> u64 {
        let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(file)).unwrap();
        text.trim().parse().unwrap()
    };
    let capacity = of("pid_max").min(of("threads-max"));
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    // No machine has all of them left: the pod that has most processes goes.
    resolved.config.eviction_hard = vec![(Signal::PidAvailable, Amount::Units(capacity))];
    bed.write("small.yaml", &sleeper("small"));
    // A static pod goes only for a hundredth of what is short.
    let count = capacity / 100 + 20;
    let fork = format!("i=0; while [ $i -lt {count} ]; do sleep 100000 & i=$((i + 1)); done");
    bed.write("large.yaml", &once(&bed, "large", "{}", &fork));
    let agent = bed.agent_as(resolved).await;
    let evicted = until_evicted(&agent, "large-box").await;
    // eviction 13
    assert!(
        evicted.contains("The node was low on resource: pids. "),
        "{evicted}"
    );
    let pod = agent
        .until_pod("large", |pod| pod.status == "Evicted")
        .await;
    assert_eq!(pod.ready, 0);
    agent.until_running("small").await;
    // eviction 13
    assert!(agent.status().pressures.contains_key("PIDPressure"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fills_memory_is_evicted() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.unwrap().trim().trim_end_matches(" kB");
    let total: u64 = total.parse::<u64>().unwrap() * 1024;
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    // No machine has that much: the pod that uses most of it goes.
    resolved.config.eviction_hard = vec![(Signal::MemoryAvailable, Amount::Units(total))];
    bed.write("small.yaml", &sleeper("small"));
    let share = total / 100 / MIB + 20;
    bed.write(
        "large.yaml",
        &filler(&bed, "large", "{medium: Memory}", share),
    );
    let agent = bed.agent_as(resolved).await;
    let evicted = until_evicted(&agent, "large-box").await;
    // eviction 9
    assert!(
        evicted.contains("The node was low on resource: memory. "),
        "{evicted}"
    );
    assert!(evicted.contains("Container large was using "), "{evicted}");
    let pod = agent
        .until_pod("large", |pod| pod.status == "Evicted")
        .await;
    assert_eq!(pod.ready, 0);
    agent.until_running("small").await;
    // eviction 8
    assert!(agent.status().pressures.contains_key("MemoryPressure"));
    agent.stop().await;
}
