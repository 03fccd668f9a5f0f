//! Usage of pods, as the kernel counts it, on a real Engine.

use std::fs;
use std::path::PathBuf;

use crate::common::{Bed, IMAGE, PATIENCE, TestAgent};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

async fn summary(agent: &TestAgent) -> Value {
    let told = agent.stats().summary(false).await.unwrap();
    serde_json::from_str(&told).unwrap()
}

/// Asks until the summary's pod of that name is as wanted, and returns it. `wanted` is a JSON
/// pointer that has to lead somewhere, for each.
async fn until_told(agent: &TestAgent, pod: &str, wanted: &[&str]) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let told = summary(agent).await;
        let pods = told["pods"].as_array().unwrap();
        let found = pods.iter().find(|each| each["podRef"]["name"] == pod);
        if let Some(found) = found
            && wanted
                .iter()
                .all(|pointer| found.pointer(pointer).is_some())
        {
            return found.clone();
        }
        assert!(
            Instant::now() < end,
            "waited in vain for {wanted:?} of {pod} in {told:#}"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Asks until that page is as wanted.
async fn until_page(agent: &TestAgent, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let page = agent.stats().resource_metrics().await;
        if wanted(&page) {
            return page;
        }
        assert!(Instant::now() < end, "waited in vain for {what} in {page}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// The directory of a running container's cgroup, as the kernel tells its first process.
fn cgroup_dir(bed: &Bed, container: &str, controller: &str) -> PathBuf {
    let pid = bed.inspect(&bed.running_id(container))["State"]["Pid"].to_string();
    let told = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let root = PathBuf::from("/sys/fs/cgroup");
    let unified = root.join("cgroup.controllers").exists();
    let line = told.lines().find(|line| {
        let controllers = line.split(':').nth(1).unwrap();
        if unified {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|each| each == controller)
        }
    });
    let path = line.unwrap().splitn(3, ':').nth(2).unwrap();
    let root = if unified { root } else { root.join(controller) };
    root.join(path.trim_start_matches('/'))
}

/// Nanoseconds that a container has used so far, read here.
fn used_nanos(bed: &Bed, container: &str) -> u64 {
    let dir = cgroup_dir(bed, container, "cpuacct");
    if let Ok(text) = fs::read_to_string(dir.join("cpuacct.usage")) {
        return text.trim().parse().unwrap();
    }
    let text = fs::read_to_string(dir.join("cpu.stat")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "));
    line.unwrap().parse::<u64>().unwrap() * 1000
}

fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer);
    found
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{pointer} in {value:#}"))
}

/// Calls the Engine was asked for, but for lists and those that follow what happens to containers.
fn engine_calls(agent: &TestAgent) -> Vec<String> {
    let text = agent.metrics();
    let calls = text
        .lines()
        .filter(|line| line.starts_with("mirrorlet_engine_operations_total"))
        .filter(|line| !line.contains("list") && !line.contains("\"info\""));
    calls.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pod_uses_is_what_the_kernel_counts() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write(
        "web.yaml",
        &format!(
            r#"apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{{name: data, emptyDir: {{}}}}]
  containers:
  - name: busy
    image: {IMAGE}
    command:
    - sh
    - -c
    - |
      dd if=/dev/zero of=/data/file bs=1024 count=1024 2>/dev/null
      dd if=/dev/zero of=/own bs=1024 count=2048 2>/dev/null
      echo written
      touch /ready
      sleep 1000 &
      while :; do :; done
    volumeMounts: [{{name: data, mountPath: /data}}]
    readinessProbe: {{exec: {{command: [test, -e, /ready]}}, periodSeconds: 1, timeoutSeconds: 60}}
    resources: {{limits: {{cpu: 50m, memory: 64Mi}}}}
  - name: calm
    image: {IMAGE}
    command: ["sleep", "1000"]
"#
        ),
    );
    agent.until_running("web").await;
    let calls = engine_calls(&agent);
    let before = used_nanos(&bed, "busy");
    let wanted = [
        "/cpu/usageNanoCores",
        "/containers/0/cpu/usageNanoCores",
        "/containers/0/rootfs/usedBytes",
        "/containers/0/logs/usedBytes",
        "/volume/0/usedBytes",
        "/network/rxBytes",
    ];
    let pod = until_told(&agent, "web-box", &wanted).await;
    let after = used_nanos(&bed, "busy");
    let names: Vec<_> = pod["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["name"])
        .collect();
    assert_eq!(names, ["busy", "calm"], "{pod:#}");
    let busy = &pod["containers"][0];
    let used = number(busy, "/cpu/usageCoreNanoSeconds");
    assert!((before..=after).contains(&used), "{before} {used} {after}");
    let rate = number(busy, "/cpu/usageNanoCores");
    // Its quota is a twentieth of a core, given out by the tenth of a second.
    assert!((1..200_000_000).contains(&rate), "{rate}");
    let working_set = number(busy, "/memory/workingSetBytes");
    assert!(
        working_set > 0 && working_set <= number(busy, "/memory/usageBytes"),
        "{busy:#}"
    );
    assert_eq!(
        number(busy, "/memory/availableBytes"),
        (64 << 20) - working_set
    );
    assert!(
        pod["containers"][1]["memory"]
            .get("availableBytes")
            .is_none()
    );
    assert!(number(busy, "/rootfs/usedBytes") >= 2 << 20, "{busy:#}");
    assert!(number(busy, "/rootfs/capacityBytes") > 0);
    assert!(number(busy, "/logs/usedBytes") > 0);
    assert_eq!(pod["volume"][0]["name"], "data");
    assert!(number(&pod, "/volume/0/usedBytes") >= 1 << 20, "{pod:#}");
    let sum = number(&pod, "/ephemeral-storage/usedBytes");
    assert!(sum >= 3 << 20, "{pod:#}");
    assert_eq!(pod["network"]["name"], "eth0");
    // The shell and its child, the other's, and the sandbox's.
    assert!(number(&pod, "/process_stats/process_count") >= 4, "{pod:#}");
    let report = agent.pod("web").unwrap();
    assert_eq!(pod["podRef"]["uid"], report.uid.to_string());
    assert_eq!(pod["podRef"]["namespace"], "default");

    let node = &summary(&agent).await["node"];
    assert_eq!(node["nodeName"], "box");
    for pointer in [
        "/cpu/usageCoreNanoSeconds",
        "/memory/availableBytes",
        "/fs/capacityBytes",
        "/runtime/imageFs/capacityBytes",
        "/rlimit/maxpid",
        "/network/interfaces/0/rxBytes",
    ] {
        assert!(
            number(node, pointer) > 0 || pointer.contains("rxBytes"),
            "{pointer}: {node:#}"
        );
    }

    // Dashboards find it by its names, and by the path of its cgroup.
    let page = agent.stats().cadvisor_metrics().await;
    let id = bed.running_id("busy");
    let name = format!("k8s_busy_web-box_default_{}_0", report.uid);
    let line = page
        .lines()
        .find(|line| line.starts_with("container_memory_rss{container=\"busy\""))
        .unwrap();
    for label in [
        format!("image=\"{IMAGE}\""),
        format!("name=\"{name}\""),
        "namespace=\"default\"".to_owned(),
        "pod=\"web-box\"".to_owned(),
    ] {
        assert!(line.contains(&label), "{label} is not in {line}");
    }
    let path = cgroup_dir(&bed, "busy", "memory");
    let told = line
        .split("id=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    assert!(
        path.ends_with(told.trim_start_matches('/')) && told.contains(&id),
        "{line}"
    );
    for family in [
        "container_cpu_cfs_throttled_seconds_total{container=\"busy\"",
        "container_network_receive_bytes_total{container=\"POD\"",
        "container_fs_usage_bytes{container=\"busy\"",
        "container_spec_memory_limit_bytes{container=\"busy\"",
        "machine_memory_bytes ",
    ] {
        assert!(page.contains(family), "{family} is not in\n{page}");
    }
    assert!(page.contains("\ncontainer_scrape_error 0\n"));

    // Nobody but the kernel was asked.
    let asked = engine_calls(&agent);
    let other = |call: &&String| !calls.contains(call) && !call.contains("exec");
    let others: Vec<_> = asked.iter().filter(other).collect();
    // usage 38b
    assert!(others.is_empty(), "{others:?}");

    // One that ended has no series, and its pod goes on.
    let of_busy = "container_cpu_usage_seconds_total{container=\"busy\",pod=\"web-box\"";
    let of_calm = "container_memory_working_set_bytes{container=\"calm\",pod=\"web-box\"";
    until_page(&agent, "both", |p| {
        p.contains(of_busy) && p.contains(of_calm)
    })
    .await;
    bed.docker(&["kill", &bed.running_id("busy")]);
    until_page(&agent, "one", |p| {
        !p.contains(of_busy) && p.contains(of_calm)
    })
    .await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    until_page(&agent, "none", |p| !p.contains("web-box")).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_with_cgroups_of_their_own_are_told_by_them() {
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    resolved.config.cgroup_root = "mirrorlet".into();
    let agent = bed.agent_as(resolved).await;
    for (name, network) in [("own", "false"), ("hosts", "true")] {
        bed.write(
            &format!("{name}.yaml"),
            &format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  hostNetwork: {network}\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: {name}\n    image: {IMAGE}\n    command: [sleep, '1000']\n    resources: {{requests: {{cpu: 1m}}}}\n"
            ),
        );
    }
    agent.until_running("own").await;
    agent.until_running("hosts").await;
    let own = until_told(
        &agent,
        "own-box",
        &["/network/rxBytes", "/memory/usageBytes"],
    )
    .await;
    // The sandbox is in it, too.
    let of_container = number(&own, "/containers/0/cpu/usageCoreNanoSeconds");
    // usage 38b
    assert!(
        number(&own, "/cpu/usageCoreNanoSeconds") > of_container,
        "{own:#}"
    );
    let hosts = until_told(&agent, "hosts-box", &["/memory/usageBytes"]).await;
    assert!(hosts.get("network").is_none(), "{hosts:#}");
    let page = agent.stats().cadvisor_metrics().await;
    let uid = agent.pod("own").unwrap().uid;
    let line = page.lines().find(|line| {
        line.starts_with("container_memory_usage_bytes{container=\"\"")
            && line.contains("pod=\"own-box\"")
    });
    assert!(line.unwrap().contains(uid.as_str()), "{line:?}");
    agent.stop().await;
}
