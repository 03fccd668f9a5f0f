//! Manifests as containers see them, under a whole agent: what a field asks for is looked up in
//! the Engine or inside of the container.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::Engine as _;

use crate::common::{Bed, IMAGE, TestAgent, eventually, free_port};

/// Start of the part of a hosts file that follows the pod's own.
const NAMES: &str = "\n\n# Pods and Services of manifests.\n";

/// A pod from the lines of its `spec`, which are indented by two.
fn pod(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: {name}}}\n  annotations: {{note: hello}}\nspec:\n  terminationGracePeriodSeconds: 0\n{spec}"
    )
}

/// Writes the pod and waits until it runs.
async fn run(
    bed: &Bed,
    agent: &TestAgent,
    name: &str,
    spec: &str,
) -> mirrorlet_core::api::report::PodReport {
    bed.write(&format!("{name}.yaml"), &pod(name, spec));
    agent.until_running(name).await
}

fn node_hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap()
        .trim()
        .to_owned()
}

fn link(path: &str) -> String {
    std::fs::read_link(path).unwrap().display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_reach_the_process_expanded() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let report = run(
        &bed,
        &agent,
        "env",
        r#"  containers:
  - name: env
    image: mirrorlet.test/busybox:1
    workingDir: /tmp
    command: ["sh", "-c", "echo \"$0\" \"$1\" \"$2\"; exec sleep 1000000"]
    args: ["$(GREETING)", "$$(GREETING)", "$(MISSING)"]
    resources: {limits: {cpu: 1500m, memory: 64Mi}}
    env:
    - {name: WHO, value: world}
    - {name: GREETING, value: "hello $(WHO) $(LATER)"}
    - {name: LATER, value: x}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: ID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
"#,
    )
    .await;
    let id = bed.running_id("env");
    let variables = bed.inspect(&id)["Config"]["Env"].clone();
    let has = |name: &str, value: &str| {
        let wanted = format!("{name}={value}");
        // agent 6
        assert!(
            variables
                .as_array()
                .unwrap()
                .iter()
                .any(|v| v == wanted.as_str()),
            "{wanted} is not in {variables:#}"
        );
    };
    has("GREETING", "hello world $(LATER)");
    has("POD", "env-box");
    has("NS", "default");
    has("ID", report.uid.as_str());
    has("NODE", "box");
    has("IP", &report.ips[0].to_string());
    has("APP", "env");
    has("NOTE", "hello");
    has("CPU", "2");
    has("MEM", "64");
    eventually("its output", || {
        (bed.output(&id) == "hello world $(LATER) $(GREETING) $(MISSING)").then_some(())
    })
    .await;
    assert_eq!(bed.inspect(&id)["Config"]["WorkingDir"], "/tmp");
    let in_pod = bed.exec("env", "ip -4 addr show dev eth0");
    // docker 22
    assert!(
        in_pod.contains(&format!("inet {}/", report.ips[0])),
        "{in_pod}"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_a_pod_share_network_ipc_and_processes_as_asked() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let free = free_port();
    let spec = format!(
        r#"  shareProcessNamespace: true
  hostname: front
  subdomain: shop
  hostAliases:
  - {{ip: 10.1.2.3, hostnames: [db, db.local]}}
  dnsPolicy: None
  dnsConfig:
    nameservers: [192.0.2.53]
    searches: [corp.example]
    options: [{{name: ndots, value: "3"}}, {{name: rotate}}]
  containers:
  - name: server
    image: mirrorlet.test/busybox:1
    command: ["httpd", "-f", "-p", "8080", "-h", "/var/www"]
    ports: [{{containerPort: 8080, hostPort: {free}, hostIP: 127.0.0.1}}]
  - name: beside
    image: mirrorlet.test/busybox:1
    stdin: true
    tty: true
    command: ["sleep", "1000000"]
"#
    );
    let report = run(&bed, &agent, "shared", &spec).await;
    // The port, from the host and from the container beside it.
    eventually("the server to answer", || {
        let mut stream = TcpStream::connect(("127.0.0.1", free)).ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        page.contains("hello from a static pod").then_some(())
    })
    .await;
    assert_eq!(
        bed.exec("beside", "wget -qO- http://127.0.0.1:8080/"),
        "hello from a static pod"
    );
    let processes = bed.exec("beside", "ps");
    assert!(
        processes.contains("/pause") && processes.contains("httpd"),
        "{processes}"
    );
    assert_eq!(bed.exec("beside", "hostname"), "front");
    let ip = report.ips[0];
    let hosts = bed.exec("beside", "cat /etc/hosts");
    let (hosts, _) = hosts.split_once(NAMES).unwrap_or((&hosts, ""));
    // docker 21
    assert_eq!(
        hosts,
        format!(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost \
             ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n{ip}\tfront.shop.default.svc.cluster.local\tfront\n\n\
             # Entries added by HostAliases.\n10.1.2.3\tdb\tdb.local"
        )
    );
    let resolver = bed.exec("server", "cat /etc/resolv.conf");
    for line in [
        "nameserver 192.0.2.53",
        "search corp.example",
        "options ndots:3 rotate",
    ] {
        // agent 7
        assert!(
            resolver.lines().any(|l| l == line),
            "{line} is not in {resolver}"
        );
    }
    let sandbox = bed.running_id("POD");
    let beside = bed.inspect(&bed.running_id("beside"));
    assert_eq!(beside["Config"]["Tty"], true);
    assert_eq!(beside["Config"]["OpenStdin"], true);
    for mode in ["NetworkMode", "IpcMode", "PidMode"] {
        // docker 17
        assert_eq!(
            beside["HostConfig"][mode],
            format!("container:{sandbox}"),
            "{mode}"
        );
    }
    let sandbox = bed.inspect(&sandbox);
    // docker 15
    assert_eq!(sandbox["HostConfig"]["IpcMode"], "shareable");
    assert_eq!(sandbox["Config"]["Hostname"], "front");
    assert_eq!(sandbox["HostConfig"]["RestartPolicy"]["Name"], "no");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn host_namespaces_are_the_hosts() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let spec = |modes: &str| {
        format!(
            "{modes}  hostAliases:\n  - {{ip: 10.9.8.7, hostnames: [alias]}}\n  containers:\n  - name: c\n    image: mirrorlet.test/busybox:1\n    command: [\"sleep\", \"1000000\"]\n"
        )
    };
    let report = run(
        &bed,
        &agent,
        "hosty",
        &spec("  hostNetwork: true\n  hostPID: true\n  hostIPC: true\n"),
    )
    .await;
    // Seen from the host the process is in its own namespaces or the host's.
    let namespace = |bed: &Bed, kind: &str| {
        let pid = bed.inspect(&bed.running_id("c"))["State"]["Pid"].to_string();
        link(&format!("/proc/{pid}/ns/{kind}"))
    };
    for kind in ["net", "pid", "ipc", "uts"] {
        // docker 16, docker 17
        assert_eq!(
            namespace(&bed, kind),
            link(&format!("/proc/self/ns/{kind}")),
            "{kind}"
        );
    }
    assert_eq!(bed.exec("c", "hostname"), node_hostname());
    assert!(
        !report.ips.is_empty(),
        "a pod in the host's network has the node's addresses"
    );
    let hosts = bed.exec("c", "cat /etc/hosts");
    assert!(
        hosts.starts_with("# Kubernetes-managed hosts file (host network).\n"),
        "{hosts}"
    );
    let (hosts, _) = hosts.split_once(NAMES).unwrap_or((&hosts, ""));
    assert!(hosts.ends_with("10.9.8.7\talias"), "{hosts}");
    bed.remove("hosty.yaml");
    agent.until_gone("hosty").await;

    run(&bed, &agent, "private", &spec("")).await;
    for kind in ["net", "pid", "ipc", "uts", "mnt"] {
        assert_ne!(
            namespace(&bed, kind),
            link(&format!("/proc/self/ns/{kind}")),
            "{kind}"
        );
    }
    assert_eq!(bed.exec("c", "hostname"), "private-box");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_and_security_reach_the_kernel() {
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    resolved.config.cgroup_root = "mirrorlet".into();
    let agent = bed.agent_as(resolved).await;
    let report = run(
        &bed,
        &agent,
        "tight",
        r#"  securityContext:
    runAsUser: 1500
    runAsGroup: 1600
    fsGroup: 1700
    supplementalGroups: [1800]
  containers:
  - name: tight
    image: mirrorlet.test/busybox:1
    command: ["sleep", "1000000"]
    resources:
      requests: {cpu: 250m, memory: 32Mi}
      limits: {cpu: 500m, memory: 64Mi}
    securityContext:
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
    volumeMounts: [{name: data, mountPath: /data}]
  - name: loose
    image: mirrorlet.test/busybox:1
    command: ["sleep", "1000000"]
    securityContext: {runAsUser: 0}
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}]
  volumes: [{name: data, emptyDir: {}}]
"#,
    )
    .await;
    let tight = bed.inspect(&bed.running_id("tight"));
    let host = &tight["HostConfig"];
    // docker 34
    assert_eq!(host["CpuShares"], 256);
    assert_eq!(
        (&host["CpuQuota"], &host["CpuPeriod"]),
        (&50_000.into(), &100_000.into())
    );
    // docker 35
    assert_eq!(host["Memory"], 64 << 20);
    assert_eq!(host["MemorySwap"], 64 << 20);
    let parent = host["CgroupParent"].as_str().unwrap();
    assert!(
        parent.contains("burstable") && parent.contains(report.uid.as_str()),
        "{parent}"
    );
    let pid = tight["State"]["Pid"].to_string();
    let score: i64 = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!((3..1000).contains(&score), "{score}");
    let ids = bed.exec("tight", "id -u; id -g; id -G");
    let mut lines = ids.lines();
    assert_eq!((lines.next(), lines.next()), (Some("1500"), Some("1600")));
    let groups: Vec<_> = lines.next().unwrap().split(' ').collect();
    assert!(
        groups.contains(&"1700") && groups.contains(&"1800"),
        "{ids}"
    );
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    // Both name no profile. 2 is a filter.
    // docker 36, tenants M7
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(
        field("CapBnd:"),
        format!("{:016x}", 1 << 10),
        "NET_BIND_SERVICE alone"
    );
    assert_eq!(
        bed.exec("tight", "touch /x 2>&1 || echo refused")
            .lines()
            .last(),
        Some("refused")
    );
    // A volume with fsGroup belongs to the group, and so does what is made in it.
    assert_eq!(
        bed.exec("tight", "touch /data/f && stat -c %g /data /data/f"),
        "1700\n1700"
    );
    assert_eq!(
        bed.exec("loose", "id -u; touch /data/g 2>/dev/null || echo refused"),
        "0\nrefused"
    );
    agent.stop().await;
}

/// The memory limit of the pod's own cgroup, in bytes, if it has one.
pub(super) fn memory_limit_of_pod(uid: &str) -> Option<u64> {
    let files = [
        format!("memory/mirrorlet/burstable/pod{uid}/memory.limit_in_bytes"),
        format!("mirrorlet/burstable/pod{uid}/memory.max"),
    ];
    let read = |file: &String| std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok();
    files.iter().find_map(read)?.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_resources_of_a_pod_hold_for_its_containers_together() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let report = run(
        &bed,
        &agent,
        "whole",
        r#"  resources: {limits: {cpu: 500m, memory: 64Mi}}
  containers:
  - name: first
    image: mirrorlet.test/busybox:1
    command: ["sleep", "1000000"]
    env: [{name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]
  - name: second
    image: mirrorlet.test/busybox:1
    command: ["sleep", "1000000"]
    resources: {limits: {memory: 48Mi}}
"#,
    )
    .await;
    // It requests what its containers do, which is less than its limit.
    let limits = ["first", "second"].map(|name| {
        let host = bed.inspect(&bed.running_id(name))["HostConfig"].clone();
        let parent = format!("/mirrorlet/burstable/pod{}", report.uid);
        assert_eq!(host["CgroupParent"], parent.as_str());
        host["Memory"].as_u64()
    });
    assert_eq!(limits, [Some(64 << 20), Some(48 << 20)]);
    assert_eq!(bed.exec("first", "echo $LIMIT"), (64 << 20).to_string());
    // docker 68
    assert_eq!(memory_limit_of_pod(report.uid.as_str()), Some(64 << 20));

    // Each may hold 40 MiB, but not both.
    let hold =
        "(dd if=/dev/zero of=/dev/null bs=40M count=100000000; echo $? > /ended) >/dev/null 2>&1 &";
    bed.exec("first", hold);
    eventually("the first to hold it", || {
        let resident = bed.exec("first", "grep VmRSS /proc/$(pidof dd)/status || true");
        let kib = resident.split_whitespace().nth(1)?;
        (kib.parse::<u64>().ok()? >= 40 << 10).then_some(())
    })
    .await;
    assert_eq!(bed.exec("first", "ls /ended 2>/dev/null || true"), "");
    bed.exec("second", hold);
    let ended = |name: &str| bed.exec(name, "cat /ended 2>/dev/null || true");
    let codes = eventually("one of both to be killed", || {
        let codes = [ended("first"), ended("second")];
        codes.iter().any(|code| !code.is_empty()).then_some(codes)
    })
    .await;
    // The kernel may have killed the other, too, before the memory of the first was free.
    let were_killed = codes.iter().all(|code| code.is_empty() || code == "137");
    // docker 68
    assert!(were_killed, "{codes:?}");

    bed.remove("whole.yaml");
    agent.until_gone("whole").await;
    eventually("its cgroup to be gone", || {
        memory_limit_of_pod(report.uid.as_str())
            .is_none()
            .then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_groups_leave_out_those_of_the_image() {
    let bed = Bed::new();
    let grow = "echo 'extra:x:5000:app' >> /etc/group";
    let seed = bed.docker(&["create", IMAGE, "sh", "-c", grow]);
    bed.docker(&["start", "-a", &seed]);
    let image = format!("mirrorlet.test/groups:{}", &seed[..12]);
    bed.docker(&["commit", &seed, &image]);
    bed.docker(&["rm", &seed]);
    let agent = bed.agent().await;
    let spec = |context: &str| {
        format!(
            "  securityContext: {{runAsUser: 1234, supplementalGroups: [6000], {context}}}\n  containers:\n  - name: c\n    image: {image}\n    command: [\"sleep\", \"1000000\"]\n"
        )
    };
    for (name, context, groups) in [
        ("merge", "supplementalGroupsPolicy: Merge", "1234 5000 6000"),
        (
            "strict",
            "supplementalGroupsPolicy: Strict, runAsGroup: 1234",
            "1234 6000",
        ),
    ] {
        let manifest = spec(context).replace("name: c", &format!("name: {name}"));
        run(&bed, &agent, name, &manifest).await;
        let found = bed.exec(name, "sed -n 's/^Groups:[[:space:]]*//p' /proc/1/status");
        // tenants A6
        assert_eq!(found.trim(), groups, "{name}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_as_non_root_is_kept_or_the_container_refused() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let spec = |image: &str, user: &str| {
        format!(
            "  containers:\n  - name: strict\n    image: mirrorlet.test/{image}:1\n    command: [\"sleep\", \"1000000\"]\n    securityContext: {{runAsNonRoot: true{user}}}\n  - name: free\n    image: mirrorlet.test/busybox:1\n    command: [\"sleep\", \"1000000\"]\n"
        )
    };
    for (name, image, user, words) in [
        ("root", "busybox", "", "image will run as root"),
        ("zero", "user-root", "", "image will run as root"),
        ("named", "user-named", "", "non-numeric user (app)"),
        ("asked", "busybox", ", runAsUser: 0", ""),
    ] {
        bed.write(&format!("{name}.yaml"), &pod(name, &spec(image, user)));
        if words.is_empty() {
            // A contradiction in the manifest itself; either way it never runs.
            continue;
        }
        let refused = agent
            .until_container(name, "strict", |c| c.reason == "CreateContainerConfigError")
            .await;
        // docker 37
        assert!(refused.message.contains(words), "{name}: {refused:?}");
        let sibling = agent
            .until_container(name, "free", |c| c.state == "running")
            .await;
        assert!(sibling.ready);
        assert_eq!(
            agent.pod(name).unwrap().status,
            "CreateContainerConfigError"
        );
    }
    let asked = agent
        .until_container("asked", "strict", |c| {
            c.reason == "CreateContainerConfigError"
        })
        .await;
    assert!(asked.message.contains("root"), "{asked:?}");
    assert!(bed.instances("strict").is_empty());
    for name in ["root", "zero", "named", "asked"] {
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    run(&bed, &agent, "numeric", &spec("user-numeric", "")).await;
    assert_eq!(bed.exec("strict", "id -u"), "1000");
    bed.remove("numeric.yaml");
    agent.until_gone("numeric").await;
    run(&bed, &agent, "given", &spec("busybox", ", runAsUser: 7")).await;
    assert_eq!(bed.exec("strict", "id -u"), "7");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_shared_and_outlive_containers() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let report = run(
        &bed,
        &agent,
        "vols",
        r#"  containers:
  - name: one
    image: mirrorlet.test/busybox:1
    command: ["sleep", "1000000"]
    volumeMounts: &mounts
    - {name: disk, mountPath: /disk}
    - {name: mem, mountPath: /mem}
  - name: two
    image: mirrorlet.test/busybox:1
    command: ["sleep", "1000000"]
    volumeMounts: *mounts
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: mem, emptyDir: {medium: Memory, sizeLimit: 4Mi}}
"#,
    )
    .await;
    assert_eq!(bed.exec("one", "stat -c %a /disk /mem"), "777\n777");
    bed.exec("one", "echo disk > /disk/f; echo mem > /mem/f");
    assert_eq!(bed.exec("two", "cat /disk/f /mem/f"), "disk\nmem");
    assert_eq!(bed.exec("two", "grep -c ' /mem tmpfs ' /proc/mounts"), "1");
    assert_eq!(
        bed.exec("two", "df -k /mem | tail -1 | awk '{print $2}'"),
        "4096"
    );
    let full = bed.exec(
        "one",
        "dd if=/dev/zero of=/mem/big bs=1M count=8 2>&1; rm /mem/big",
    );
    assert!(full.contains("No space left"), "{full}");
    // Both containers die, and the agent goes and comes: the data is the pod's.
    bed.docker(&["kill", &bed.running_id("one"), &bed.running_id("two")]);
    agent
        .until_pod("vols", |pod| pod.restarts == 2 && pod.ready == 2)
        .await;
    // docker 45
    assert_eq!(bed.exec("one", "cat /disk/f /mem/f"), "disk\nmem");
    agent.stop().await;
    let agent = bed.agent().await;
    agent.until_running("vols").await;
    bed.docker(&["kill", &bed.running_id("two")]);
    agent
        .until_pod("vols", |pod| pod.restarts == 3 && pod.ready == 2)
        .await;
    assert_eq!(bed.exec("two", "cat /disk/f /mem/f"), "disk\nmem");
    let dir = bed.path().join("pods").join(report.uid.as_str());
    assert!(dir.exists());
    bed.remove("vols.yaml");
    agent.until_gone("vols").await;
    assert!(!dir.exists());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(report.uid.as_str()), "{mounts}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn host_paths_are_of_the_type_asked_for() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let at = |name: &str| bed.path().join("host").join(name).display().to_string();
    std::fs::create_dir_all(at("dir")).unwrap();
    std::fs::write(at("file"), "here").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let volume = |name: &str, path: &str, kind: &str| {
        format!("  - name: {name}\n    hostPath: {{path: {path}, type: {kind}}}\n")
    };
    let spec = |volumes: &[(&str, String, &str)]| {
        let mounts: Vec<String> = volumes
            .iter()
            .map(|(n, _, _)| format!("    - {{name: {n}, mountPath: /m/{n}}}\n"))
            .collect();
        let mounts = mounts.concat();
        let volumes: String = volumes.iter().map(|(n, p, k)| volume(n, p, k)).collect();
        format!(
            "  containers:\n  - name: c\n    image: mirrorlet.test/busybox:1\n    command: [\"sleep\", \"1000000\"]\n    volumeMounts:\n{mounts}  volumes:\n{volumes}"
        )
    };
    run(
        &bed,
        &agent,
        "good",
        &spec(&[
            ("dir", at("dir"), "Directory"),
            ("file", at("file"), "File"),
            ("socket", at("socket"), "Socket"),
            ("device", "/dev/null".into(), "CharDevice"),
            ("newdir", at("new/dir"), "DirectoryOrCreate"),
            ("newfile", at("dir/made"), "FileOrCreate"),
            ("any", at("any"), "\"\""),
        ]),
    )
    .await;
    assert_eq!(
        bed.exec(
            "c",
            "cat /m/file; test -S /m/socket && test -c /m/device && test -d /m/any && echo ok"
        ),
        "hereok"
    );
    bed.exec(
        "c",
        "echo out > /m/newdir/f; echo made > /m/newfile; echo d > /m/dir/d",
    );
    assert_eq!(std::fs::read_to_string(at("new/dir/f")).unwrap(), "out\n");
    assert_eq!(std::fs::read_to_string(at("dir/made")).unwrap(), "made\n");
    assert_eq!(std::fs::read_to_string(at("dir/d")).unwrap(), "d\n");
    bed.remove("good.yaml");
    agent.until_gone("good").await;
    assert!(Path::new(&at("dir/d")).exists(), "what is the host's stays");

    for (name, path, kind, words) in [
        ("nodir", at("none"), "Directory", "is not a directory"),
        ("notfile", at("dir"), "File", "is not a file"),
        ("noparent", at("nowhere/f"), "FileOrCreate", "nowhere/f"),
    ] {
        bed.write(
            &format!("{name}.yaml"),
            &pod(name, &spec(&[("v", path.clone(), kind)])),
        );
        let refused = agent
            .until_pod(name, |pod| {
                pod.message.contains(words) || pod.containers[0].message.contains(words)
            })
            .await;
        // docker 42
        assert_eq!(refused.ready, 0);
        assert!(bed.instances("c").is_empty());
        if name == "nodir" {
            // Nothing is wrong with the manifest: as soon as the directory is there, it runs.
            std::fs::create_dir(&path).unwrap();
            agent.until_running(name).await;
        }
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_words_are_told() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write(
        "words.yaml",
        &pod(
            "words",
            r#"  restartPolicy: Never
  containers:
  - name: file
    image: mirrorlet.test/busybox:1
    command: ["sh", "-c", "echo -n into the file > /dev/termination-log; echo log; exit 3"]
  - name: elsewhere
    image: mirrorlet.test/busybox:1
    terminationMessagePath: /tmp/last
    command: ["sh", "-c", "echo -n elsewhere > /tmp/last"]
  - name: fallback
    image: mirrorlet.test/busybox:1
    terminationMessagePolicy: FallbackToLogsOnError
    command: ["sh", "-c", "echo the last line; exit 1"]
  - name: lines
    image: mirrorlet.test/busybox:1
    terminationMessagePolicy: FallbackToLogsOnError
    command: ["sh", "-c", "seq 100; exit 1"]
  - name: bytes
    image: mirrorlet.test/busybox:1
    terminationMessagePolicy: FallbackToLogsOnError
    command: ["sh", "-c", "head -c 1000 /dev/zero | tr '\\0' a; head -c 2048 /dev/zero | tr '\\0' b; exit 1"]
  - name: absent
    image: mirrorlet.test/busybox:1
    terminationMessagePolicy: FallbackToLogsOnError
    command: ["/no/such/program"]
  - name: fine
    image: mirrorlet.test/busybox:1
    terminationMessagePolicy: FallbackToLogsOnError
    command: ["sh", "-c", "echo nothing to tell"]
  - name: silent
    image: mirrorlet.test/busybox:1
    command: ["sh", "-c", "echo why; exit 9"]
"#,
        ),
    );
    // While others are inspected a container may end: its status comes without a reason, and is
    // corrected at once.
    let is_whole = |pod: &mirrorlet_core::api::report::PodReport| {
        pod.phase == "Failed" && pod.containers.iter().all(|c| !c.reason.is_empty())
    };
    let pod = agent.until_pod("words", is_whole).await;
    let (absent, others): (Vec<_>, Vec<_>) =
        pod.containers.iter().partition(|c| c.name == "absent");
    assert_eq!(absent[0].reason, "ContainerCannotRun");
    assert!(absent[0].message.contains("/no/such/program"));
    let told: Vec<_> = others
        .iter()
        .map(|c| (c.name.as_str(), c.exit_code, c.message.trim()))
        .collect();
    let lines: Vec<_> = (21..=100).map(|line| line.to_string()).collect();
    // docker 46
    assert_eq!(
        told,
        [
            ("file", Some(3), "into the file"),
            ("elsewhere", Some(0), "elsewhere"),
            ("fallback", Some(1), "the last line"),
            ("lines", Some(1), &*lines.join("\n")),
            ("bytes", Some(1), &*"b".repeat(2048)),
            ("fine", Some(0), ""),
            ("silent", Some(9), ""),
        ]
    );
    // A new agent reads the same from the disk and the Engine.
    agent.stop().await;
    let agent = bed.agent().await;
    let again = agent.until_pod("words", |pod| pod.phase == "Failed").await;
    assert_eq!(again.containers, pod.containers);
    agent.stop().await;
}

/// First API of the Engine that mounts images, that of Docker Engine 28.
const API_IMAGE_MOUNTS: (u32, u32) = (1, 48);

/// The version of the Engine's API.
fn engine_api(bed: &Bed) -> (u32, u32) {
    let version = bed.docker(&["version", "--format", "{{.Server.APIVersion}}"]);
    let (major, minor) = version.trim().split_once('.').unwrap();
    (major.parse().unwrap(), minor.parse().unwrap())
}

/// A pod with the root of an image at `/site` and a directory of it at `/www`.
fn with_image_volume(image: &str) -> String {
    format!(
        r#"  volumes: [{{name: site, image: {{reference: "{image}"}}}}]
  containers:
  - name: web
    image: {IMAGE}
    command: ["sleep", "1000000"]
    volumeMounts:
    - {{name: site, mountPath: /site}}
    - {{name: site, mountPath: /www, subPath: var/www}}
"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_of_an_image_where_the_engine_can_and_an_edit_is_held_where_not() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let plain = format!(
        "  containers: [{{name: web, image: {IMAGE}, command: [sh, -c, echo new >/var/www/new; exec sleep 1000000]}}]\n"
    );
    let before = run(&bed, &agent, "web", &plain).await;
    // Of another id than every image that a container runs.
    let image = format!("mirrorlet.test/site:{}", std::process::id());
    let committed = bed.docker(&["commit", &bed.running_id("web"), &image]);
    let remove_image = || bed.docker(&["image", "rm", &image]);
    bed.write("web.yaml", &pod("web", &with_image_volume(&image)));
    if engine_api(&bed) < API_IMAGE_MOUNTS {
        let held = agent.until_pod("web", |pod| pod.held).await;
        assert_eq!((held.uid, held.ready), (before.uid, 1));
        let problem = &held.problems[0];
        let why =
            "volume \"site\" is an image volume, which needs Docker Engine 28 or newer (API 1.48)";
        assert!(problem.message.contains(why), "{problem}");
        assert_eq!(problem.field.as_deref(), Some("spec.volumes[0]"));
        remove_image();
        return;
    }
    let edited = agent
        .until_pod("web", |pod| pod.uid != before.uid && pod.ready == 1)
        .await;
    let look = "cat /site/var/www/new /www/new; touch /site/x 2>&1 | grep -o Read-only";
    assert_eq!(bed.exec("web", look), "new\nnew\nRead-only");
    // Nobody runs it, and it is in use.
    let engine = BollardEngine::connect(&bed.docker).unwrap();
    let in_use = engine.images_in_use().await.unwrap();
    assert!(in_use.contains(committed.trim()), "{in_use:?}");
    // A container that restarts has it again.
    bed.docker(&["kill", &bed.running_id("web")]);
    agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    assert_eq!(bed.exec("web", "cat /www/new"), "new");
    // An image that can't be had holds the edit.
    let nowhere = with_image_volume("mirrorlet.test/nowhere:1");
    bed.write("web.yaml", &pod("web", &nowhere));
    let held = agent.until_pod("web", |pod| pod.held).await;
    assert_eq!((held.uid, held.ready), (edited.uid, 1));
    let problem = &held.problems[0];
    assert!(problem.message.contains("ErrImagePull"), "{problem}");
    assert_eq!(problem.field.as_deref(), Some("spec.volumes[0]"));
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    remove_image();
}
