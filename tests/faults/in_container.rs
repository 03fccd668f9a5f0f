//! The agent in a container, driving the Engine that runs it: each thing it needs of the host is
//! taken away, and it says so and does the rest.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::cluster::unique;
use crate::common::dockerd::{Dockerd, run};
use crate::common::{Bed, IMAGE, docker_client, eventually, free_port, sleeper, unmount_all};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use serde_json::json;

/// The grants of the container; all of them unless a test takes some away.
#[expect(clippy::struct_excessive_bools, reason = "one a grant")]
#[derive(Clone, Copy)]
struct Grants {
    socket: bool,
    root: bool,
    propagation: bool,
    network: bool,
    processes: bool,
    host_root: Option<&'static str>,
    may_mount: bool,
    port_rules: bool,
}

const ALL: Grants = Grants {
    socket: true,
    root: true,
    propagation: true,
    network: true,
    processes: true,
    host_root: Some("/host"),
    may_mount: true,
    port_rules: true,
};

/// The agent in a container, beside its bed.
struct Contained {
    bed: Bed,
    name: String,
    /// Where its socket is: a directory of its own, so that it can be taken away.
    engine_dir: PathBuf,
}

impl Contained {
    fn start(grants: Grants) -> Self {
        Self::start_on(Bed::new(), grants)
    }

    fn start_on(bed: Bed, grants: Grants) -> Self {
        let engine_dir = bed.path().join("engine");
        std::fs::create_dir(&engine_dir).unwrap();
        // As where systemd made the whole tree shared.
        let root = bed.path().to_str().unwrap().to_owned();
        for args in [&["--bind", &root, &root][..], &["--make-rshared", &root]] {
            assert!(Command::new("mount").args(args).status().unwrap().success());
        }
        let contained = Self {
            name: format!("in-container-{}-{}", std::process::id(), unique("a")),
            bed,
            engine_dir,
        };
        contained.run(grants);
        contained
    }

    fn run(&self, grants: Grants) {
        let root = self.bed.path().display().to_string();
        let binary = env!("CARGO_BIN_EXE_mirrorlet");
        let mut args: Vec<String> = ["run", "-d", "--name", &self.name, "--cap-add", "SYS_PTRACE"]
            .map(str::to_owned)
            .into();
        let mut mount = |what: String| args.extend(["-v".to_owned(), what]);
        // The program of the tests isn't static.
        for dir in ["/lib", "/lib64"] {
            mount(format!("{dir}:{dir}:ro"));
        }
        mount(format!("{binary}:/mirrorlet:ro"));
        if grants.root {
            let propagation = if grants.propagation {
                "rshared"
            } else {
                "rprivate"
            };
            mount(format!("{root}:{root}:{propagation}"));
        } else {
            mount(format!("{root}/manifests:{root}/manifests:ro"));
        }
        if grants.socket {
            let socket = self.bed.docker.strip_prefix("unix://").unwrap();
            let dir = Path::new(socket).parent().unwrap().display().to_string();
            mount(format!("{dir}:/engine:ro"));
        } else {
            mount(format!("{}:/engine:ro", self.engine_dir.display()));
        }
        if grants.host_root == Some("/host") {
            mount("/:/host:ro".to_owned());
        }
        let socket = Path::new(&self.bed.docker)
            .file_name()
            .unwrap()
            .to_str()
            .unwrap();
        if grants.may_mount {
            args.extend(["--cap-add", "SYS_ADMIN"].map(str::to_owned));
            for option in ["seccomp=unconfined", "apparmor=unconfined"] {
                args.extend(["--security-opt", option].map(str::to_owned));
            }
        }
        if grants.port_rules {
            args.extend(["--cap-add", "NET_ADMIN"].map(str::to_owned));
        }
        if grants.network {
            args.extend(["--network", "host"].map(str::to_owned));
        }
        if grants.processes {
            args.extend(["--pid", "host"].map(str::to_owned));
        }
        args.extend([IMAGE, "/mirrorlet", "run", "--root"].map(str::to_owned));
        args.extend([
            root,
            "--docker".to_owned(),
            format!("unix:///engine/{socket}"),
        ]);
        args.extend(["--node-name", "box", "--metrics-address", "none"].map(str::to_owned));
        args.extend(["--eviction-hard", "none"].map(str::to_owned));
        if let Some(host_root) = grants.host_root {
            args.extend(["--host-root".to_owned(), host_root.to_owned()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.bed.docker(&args);
    }

    /// Asks at its socket, which is here, too, if its root is; or in the container, at a greater cost.
    fn status(&self) -> Option<StatusReport> {
        let root = self.bed.path();
        let mut command = if root.join("mirrorlet.sock").exists() {
            Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
        } else {
            let mut docker = docker_client();
            docker.args(["-H", &self.bed.docker, "exec", &self.name, "/mirrorlet"]);
            docker
        };
        command.args(["status", "-o", "json", "--root"]).arg(root);
        let output = command.output().unwrap();
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    async fn until(&self, what: &str, wanted: impl Fn(&StatusReport) -> bool) -> StatusReport {
        eventually(what, || self.status().filter(&wanted)).await
    }

    async fn until_running(&self, name: &str) {
        let runs = |pod: &PodReport| pod.manifest_name == name && pod.status == "Running";
        self.until(&format!("{name} to run"), |report| {
            report.pods.iter().any(runs)
        })
        .await;
    }

    /// Waits until the agent has looked, lacks that, and has said so.
    async fn until_lacks(&self, needs: &[&str]) -> StatusReport {
        let named = |report: &StatusReport| -> Vec<String> {
            let missing = report.missing_access.iter();
            missing.map(|missing| missing.need.clone()).collect()
        };
        let report = self
            .until(&format!("the agent to lack {needs:?}"), |report| {
                named(report) == needs
            })
            .await;
        assert_eq!(
            report.missing_access, report.missing_access_alias,
            "by both its names"
        );
        eventually(&format!("the log to name {needs:?}, with help"), || {
            let output = docker_client()
                .args(["-H", &self.bed.docker, "logs", &self.name])
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            let log = [output.stdout, output.stderr].concat();
            let log = String::from_utf8_lossy(&log);
            let mut missing_access = report.missing_access.iter();
            missing_access
                .all(|missing| log.contains(&missing.help))
                .then_some(())
        })
        .await;
        report
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let owner = self.status().map(|report| report.agent.owner);
        if std::thread::panicking() {
            let log = docker_client()
                .args(["-H", &self.bed.docker, "logs", "--tail", "30", &self.name])
                .output();
            eprintln!("{}", String::from_utf8_lossy(&log.unwrap().stderr));
        }
        let mut docker = docker_client();
        let _ = docker
            .args(["-H", &self.bed.docker, "rm", "-f", &self.name])
            .output();
        // The bed doesn't know the containers and mounts of an agent without its root.
        if self.bed.owner().is_some() {
            return;
        }
        if let Some(owner) = owner {
            let filter = format!("label=mirrorlet.dev/owner={owner}");
            let ids = self.bed.docker(&["ps", "-aq", "--filter", &filter]);
            for id in ids.split_whitespace() {
                self.bed.docker(&["rm", "-fv", id]);
            }
        }
        unmount_all(self.bed.path());
    }
}

/// A pod that only sleeps, with one volume at `/v`.
fn with_volume(name: &str, volume: &serde_json::Value, mount: &serde_json::Value) -> String {
    let mut volume = volume.clone();
    volume["name"] = json!("v");
    let mut mount = mount.clone();
    mount["name"] = json!("v");
    mount["mountPath"] = json!("/v");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "volumes": [volume],
            "containers": [{
                "name": name, "image": IMAGE, "volumeMounts": [mount],
                "command": ["sh", "-c", "while :; do sleep 1; done"],
            }],
        },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_it_needs_it_does_in_a_container_what_it_does_outside() {
    let contained = Contained::start(ALL);
    let bed = &contained.bed;
    // None of the agent's own, which is mounted for it to write to.
    let files = crate::common::tempdir();
    let host = files.path();
    std::fs::create_dir_all(host.join("there/sub")).unwrap();
    let at = |name: &str| host.join(name).display().to_string();
    let host_path = |name: &str, kind: &str| json!({"hostPath": {"path": at(name), "type": kind}});
    bed.write(
        "memory.json",
        &with_volume(
            "memory",
            &json!({"emptyDir": {"medium": "Memory"}}),
            &json!({}),
        ),
    );
    bed.write(
        "checked.json",
        &with_volume("checked", &host_path("there", "Directory"), &json!({})),
    );
    bed.write(
        "made.json",
        &with_volume(
            "made",
            &host_path("new/deep", "DirectoryOrCreate"),
            &json!({}),
        ),
    );
    bed.write(
        "sub.json",
        &with_volume(
            "sub",
            &host_path("there", "Directory"),
            &json!({"subPath": "sub"}),
        ),
    );
    bed.write(
        "absent.json",
        &with_volume("absent", &host_path("absent", "Directory"), &json!({})),
    );
    for name in ["memory", "checked", "made", "sub"] {
        contained.until_running(name).await;
    }
    contained.until_lacks(&[]).await;

    assert!(bed.exec("memory", "mount | grep ' /v '").contains("tmpfs"));
    for (name, path) in [
        ("checked", "there"),
        ("made", "new/deep"),
        ("sub", "there/sub"),
    ] {
        bed.exec(name, "echo written > /v/file");
        let read = std::fs::read_to_string(host.join(path).join("file")).unwrap();
        // installed 1
        assert_eq!(read, "written\n", "{name}");
    }
    let report = contained
        .until("absent to be refused", |report| {
            report
                .pods
                .iter()
                .any(|pod| pod.message.contains("is not a directory"))
        })
        .await;
    assert!(
        report
            .pods
            .iter()
            .any(|pod| pod.manifest_name == "absent" && pod.status != "Running")
    );

    // The next agent has what is mounted now among the host's files, too.
    let uid = report
        .pods
        .iter()
        .find(|pod| pod.manifest_name == "memory")
        .unwrap()
        .uid
        .clone();
    let dir = bed.path().join("pods").join(uid.as_str());
    assert!(dir.exists());
    bed.docker(&["restart", "--time", "5", &contained.name]);
    contained.until_running("memory").await;
    bed.remove("memory.json");
    eventually("the directory of the pod to go", || {
        (!dir.exists()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_hosts_network_it_says_so_and_runs_pods() {
    let contained = Contained::start(Grants {
        network: false,
        ..ALL
    });
    contained.bed.write("web.yaml", &sleeper("web"));
    contained.until_running("web").await;
    // installed 2
    contained.until_lacks(&["Network"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_hosts_processes_it_says_so_and_runs_pods() {
    let contained = Contained::start(Grants {
        processes: false,
        ..ALL
    });
    contained.bed.write("web.yaml", &sleeper("web"));
    contained.until_running("web").await;
    // installed 2
    contained.until_lacks(&["Processes"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rules_for_host_ports_it_says_so_and_replaces_pods() {
    let contained = Contained::start(Grants {
        port_rules: false,
        ..ALL
    });
    let port = free_port();
    let ports = format!("ports: [{{containerPort: 80, hostPort: {port}}}]");
    let web = sleeper("web").replace("command:", &format!("{ports}\n    command:"));
    assert!(web.contains("hostPort"), "{web}");
    contained.bed.write("web.yaml", &web);
    contained.until_running("web").await;
    // installed 2
    contained.until_lacks(&["PortRules"]).await;
    let before = contained.bed.running_id("web");
    let edited = web.replace("hostPort", "name: edited, hostPort");
    contained.bed.write("web.yaml", &edited);
    eventually("another container", || {
        let all = contained.bed.running();
        all.values().all(|id| *id != before).then_some(())
    })
    .await;
    contained.until_running("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_either_it_finds_both_out() {
    let contained = Contained::start(Grants {
        processes: false,
        network: false,
        ..ALL
    });
    // installed 2
    contained.until_lacks(&["Network", "Processes"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_network_is_known_where_the_engine_names_no_gateway() {
    let dockerd = Dockerd::first_start();
    let docker = |args: &[&str]| run("docker", &[&["-H", &dockerd.host()][..], args].concat());
    let gateways = "{{range .IPAM.Config}}{{.Gateway}}{{end}}";
    let named = docker(&["network", "inspect", "bridge", "--format", gateways]);
    assert_eq!(named, "", "it is the first start");
    for (network, lacks) in [
        (true, &["Processes"][..]),
        (false, &["Network", "Processes"]),
    ] {
        let grants = Grants {
            processes: false,
            network,
            ..ALL
        };
        let contained = Contained::start_on(Bed::on(&dockerd.host()), grants);
        // installed 2
        contained.until_lacks(lacks).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_propagation_only_volumes_that_are_mounted_wait() {
    for (grants, why, waits_for) in [
        (
            Grants {
                propagation: false,
                ..ALL
            },
            "can't see mounts below",
            "requires a mount, which the Engine would not see",
        ),
        (
            Grants {
                may_mount: false,
                ..ALL
            },
            "can't mount",
            "requires a mount, which the agent is not allowed to make",
        ),
    ] {
        let contained = Contained::start(grants);
        contained.bed.write("web.yaml", &sleeper("web"));
        let plain = with_volume("plain", &json!({"emptyDir": {}}), &json!({}));
        contained.bed.write("plain.json", &plain);
        let in_memory = json!({"emptyDir": {"medium": "Memory"}});
        let part = json!({"subPath": "part"});
        let mounted = [
            ("memory", with_volume("memory", &in_memory, &json!({}))),
            ("part", with_volume("part", &json!({"emptyDir": {}}), &part)),
        ];
        for (name, manifest) in &mounted {
            contained.bed.write(&format!("{name}.json"), manifest);
        }
        contained.until_running("web").await;
        contained.until_running("plain").await;
        for (name, _) in &mounted {
            // installed 2
            contained
                .until(&format!("{name} to wait"), |report| {
                    let waits = |pod: &PodReport| {
                        pod.manifest_name == *name
                            && pod.status != "Running"
                            && pod.message.contains(waits_for)
                    };
                    report.pods.iter().any(waits)
                })
                .await;
            // installed 2
            assert!(contained.bed.instances(name).is_empty(), "{name}");
        }
        let report = contained.until_lacks(&["Propagation"]).await;
        // installed 2
        assert!(
            report.missing_access[0].message.contains(why),
            "{:?}",
            report.missing_access
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_hosts_files_no_host_path_is_said_to_be_checked() {
    let contained = Contained::start(Grants {
        host_root: None,
        ..ALL
    });
    let typed = |kind: &str| json!({"hostPath": {"path": "/var", "type": kind}});
    contained.bed.write(
        "typed.json",
        &with_volume("typed", &typed("Directory"), &json!({})),
    );
    contained
        .bed
        .write("any.json", &with_volume("any", &typed(""), &json!({})));
    contained.until_running("any").await;
    contained.until_lacks(&["HostRoot"]).await;
    // installed 2
    contained
        .until("the typed one to be refused", |report| {
            let typed = |pod: &&PodReport| pod.manifest_name == "typed";
            report
                .pods
                .iter()
                .find(typed)
                .is_some_and(|pod| pod.message.contains("--host-root"))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_directory_is_not_taken_for_the_hosts_files() {
    let contained = Contained::start(Grants {
        host_root: Some("/var"),
        ..ALL
    });
    let report = contained.until_lacks(&["HostRoot"]).await;
    // installed 2
    assert!(
        report.missing_access[0]
            .message
            .contains("/var is not the host's"),
        "{:?}",
        report.missing_access
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_root_in_common_it_says_why_no_pod_starts() {
    let contained = Contained::start(Grants { root: false, ..ALL });
    contained.bed.write("web.yaml", &sleeper("web"));
    let report = contained.until_lacks(&["Root"]).await;
    // installed 2
    assert!(
        report.missing_access[0]
            .message
            .contains("pods don't start")
    );
    contained
        .until("the pod to be known", |report| !report.pods.is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_socket_it_says_so_and_reads_manifests() {
    let contained = Contained::start(Grants {
        socket: false,
        ..ALL
    });
    contained.bed.write("web.yaml", &sleeper("web"));
    // installed 2
    let report = contained.until_lacks(&["Socket"]).await;
    assert!(!report.engine.reachable);
    contained
        .until("the pod to be known", |report| !report.pods.is_empty())
        .await;
}
