//! The program itself on the real Engine: started, asked, stopped and killed as people do it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::registry::{PASSWORD, Registry, USER};
use crate::common::{self, Bed, PATIENCE, eventually, sleeper};
use crate::objects::{CANARY, everything};
use mirrorlet::config::resolve::ShownSetting;
use mirrorlet_core::api::report::{PodReport, RolloutPhase, StatusReport};

/// A running `mirrorlet run`; killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn mirrorlet(bed: &Bed, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MIRRORLET_") || name == "DOCKER_HOST" {
            command.env_remove(name);
        }
    }
    command.args(args).arg("--root").arg(bed.path());
    if args.first() == Some(&"run") {
        // However full the machine is that tests run on.
        command.args(["--eviction-hard", "none"]);
    }
    command
}

pub(crate) fn run(bed: &Bed) -> Running {
    let child = mirrorlet(bed, &["run", "--node-name", "box", "--docker", &bed.docker])
        .args(["--metrics-address", "none"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Running(child)
}

pub(crate) fn ask(bed: &Bed, args: &[&str]) -> Output {
    mirrorlet(bed, args).output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn status(bed: &Bed) -> Option<StatusReport> {
    let output = ask(bed, &["status", "-o", "json"]);
    output
        .status
        .success()
        .then(|| serde_json::from_slice(&output.stdout).unwrap())
}

pub(crate) async fn until_running(bed: &Bed, name: &str) -> StatusReport {
    eventually(&format!("{name} to run"), || {
        let report = status(bed)?;
        let runs = report
            .pods
            .iter()
            .any(|pod| pod.manifest_name == name && pod.status == "Running" && pod.ready == 1);
        runs.then_some(report)
    })
    .await
}

fn signal(running: &Running, name: &str) {
    let pid = running.0.id().to_string();
    let sent = Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(sent.success());
}

/// Waits for the program's end; its exit code and what it wrote.
fn end(mut running: Running) -> (Option<i32>, String) {
    let began = Instant::now();
    let code = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status.code();
        }
        assert!(began.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    running
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    (code, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_runs_pods_answers_and_leaves_them_running() {
    let bed = Bed::new();
    let manifest =
        sleeper("web").replace("trap", "echo hello from $(hostname); echo oops >&2; trap");
    bed.write("web.yaml", &manifest);
    let first = run(&bed);
    let report = until_running(&bed, "web").await;
    let shown = said(&ask(&bed, &["config", "show", "--running", "-o", "json"]));
    let shown: Vec<ShownSetting> = serde_json::from_str(&shown).unwrap();
    let docker = shown.iter().find(|setting| setting.key == "docker");
    let expected = (vec![bed.docker.clone()], "flag".to_owned());
    assert_eq!(
        docker.map(|setting| (setting.values.clone(), setting.origin.clone())),
        Some(expected)
    );
    let flags = ["config", "show", "--running", "--settle", "1ms"];
    let refused = ask(&bed, &flags);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--settle can't be used with --running")
    );
    assert_eq!(report.agent.pid, first.0.id());
    let table = said(&ask(&bed, &["status"]));
    assert!(
        table.contains("web") && table.contains("Running"),
        "{table}"
    );
    for pod in ["web", "web-box", "default/web", report.pods[0].uid.as_str()] {
        let shown = said(&ask(&bed, &["status", pod, "-o", "wide"]));
        assert!(shown.contains(report.pods[0].uid.as_str()), "{shown}");
    }
    eventually("the log", || {
        let output = ask(&bed, &["logs", "web"]);
        (output.stdout == b"hello from web-box\n" && output.stderr == b"oops\n").then_some(())
    })
    .await;
    assert_eq!(ask(&bed, &["status", "nobody"]).status.code(), Some(1));
    // A second one on the same root is turned away and does no harm.
    let (code, words) = end(run(&bed));
    assert_eq!(code, Some(1));
    assert!(
        words.contains(&format!("another mirrorlet (pid {})", first.0.id())),
        "{words}"
    );

    let containers = bed.running();
    signal(&first, "-TERM");
    let (code, _) = end(first);
    assert_eq!(code, Some(0));
    // agent 8
    assert_eq!(bed.running(), containers);
    assert_eq!(ask(&bed, &["status"]).status.code(), Some(3));

    let second = run(&bed);
    until_running(&bed, "web").await;
    assert_eq!(bed.running(), containers);
    signal(&second, "-KILL");
    drop(second);
    let third = run(&bed);
    until_running(&bed, "web").await;
    assert_eq!(bed.running(), containers);
    bed.docker(&["kill", &bed.running_id("web")]);
    eventually("the restart", || {
        (status(&bed)?.pods[0].restarts == 1 && bed.running().len() == 2).then_some(())
    })
    .await;
    eventually("the log of the one before", || {
        // Two lines: which of the two streams the Engine read last is not told.
        let output = ask(&bed, &["logs", "web", "--previous", "--tail", "2"]);
        (output.stdout == b"hello from web-box\n").then_some(())
    })
    .await;
    bed.remove("web.yaml");
    eventually("the pod to go", || {
        status(&bed)?.pods.is_empty().then_some(())
    })
    .await;
    assert!(bed.containers().is_empty());
    signal(&third, "-INT");
    assert_eq!(end(third).0, Some(0));
}

/// The only test that takes the sandbox image away: test programs run one after another, and an
/// agent that finds the image missing makes it anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_image_that_was_removed_is_made_anew() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("before.yaml", &sleeper("before"));
    agent.until_running("before").await;
    bed.remove("before.yaml");
    agent.until_gone("before").await;
    // Under a second name the image outlives the loss of its first, whoever else uses it.
    let keeper = format!("mirrorlet.test/keeper:{}", bed.owner().unwrap());
    bed.docker(&["tag", "mirrorlet/pause:1", &keeper]);
    bed.docker(&["rmi", "mirrorlet/pause:1"]);
    bed.write("after.yaml", &sleeper("after"));
    let pod = agent.until_running("after").await;
    assert_eq!(pod.restarts, 0);
    // agent 5
    assert_eq!(
        bed.inspect(&bed.running_id("POD"))["Config"]["Image"],
        "mirrorlet/pause:1"
    );
    bed.docker(&["rmi", &keeper]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_helper_of_the_node_is_asked() {
    let registry = Registry::private().await;
    let image = registry.push("a/app:1");
    let bed = Bed::new();
    let home = crate::common::tempdir();
    let helper = home.path().join("docker-credential-mirrorlet-test");
    // It answers for this registry alone, which it is asked for on its standard input.
    let answer = format!(r#"{{"Username":"{USER}","Secret":"{PASSWORD}"}}"#);
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = get ] && [ \"$(cat)\" = {} ] && echo '{answer}'\n",
        registry.host
    );
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = serde_json::json!({"credHelpers": {&registry.host: "mirrorlet-test"}});
    std::fs::write(home.path().join("config.json"), config.to_string()).unwrap();
    let path = std::env::var("PATH").unwrap();
    let child = mirrorlet(
        &bed,
        &["run", "--node-name", "box", "--docker", &bed.docker],
    )
    .args(["--metrics-address", "none", "--docker-config"])
    .arg(home.path())
    .env("PATH", format!("{}:{path}", home.path().display()))
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let running = Running(child);
    bed.write("web.yaml", &common::sleeper_of("web", &image));
    until_running(&bed, "web").await;
    signal(&running, "-TERM");
    let (code, log) = end(running);
    // docker 50
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains(PASSWORD));
}

/// Every file on the root's own file system but its manifests: what is not in memory.
fn files_on_disk(bed: &Bed) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let device = fs::metadata(bed.path()).unwrap().dev();
    let mut directories = vec![bed.path().to_owned()];
    while let Some(directory) = directories.pop() {
        // Volumes and files come and go meanwhile.
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, Ok(seen)) = (entry.path(), entry.metadata()) else {
                continue;
            };
            if seen.is_dir() && seen.dev() == device && path != bed.path().join("manifests") {
                directories.push(path);
            } else if seen.is_file() && seen.dev() == device {
                found.push((path.clone(), fs::read(path).unwrap_or_default()));
            }
        }
    }
    found
}

/// A Secret's values, searched in everything that a user can get from the agent, and on its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_secrets_value_is_in_no_output() {
    let bed = Bed::new();
    let port = common::free_port();
    let start = || {
        let child = mirrorlet(
            &bed,
            &["run", "--node-name", "box", "--docker", &bed.docker],
        )
        .args(["--metrics-address", &format!("127.0.0.1:{port}")])
        .args(["--log-level", "trace"])
        .stdout(Stdio::null())
        .stderr(fs::File::create(bed.path().join("agent.log")).unwrap())
        .spawn()
        .unwrap();
        Running(child)
    };
    let manifest = everything();
    bed.write("all.yaml", &manifest);
    let file = bed.manifest("all.yaml");
    let directory = file.parent().unwrap().to_owned();
    let running = start();
    until_running(&bed, "web").await;
    // It is there, or nothing below would show anything.
    assert_eq!(
        bed.exec("web", "echo $PASSWORD; cat /login/PASSWORD"),
        format!("{CANARY}\n{CANARY}")
    );
    let mut outputs: Vec<(String, Vec<u8>)> = Vec::new();
    let told = |what: &str, output: &Output, outputs: &mut Vec<(String, Vec<u8>)>| {
        let both = [output.stdout.as_slice(), &output.stderr].concat();
        outputs.push((what.to_owned(), both));
    };
    // Edits: another value, several broken ones, the Secret gone and back, another kind for it.
    let edited = manifest.replace(CANARY, &format!("other-{CANARY}"));
    let broken = [
        edited.clone(),
        manifest.replace("stringData: {", "stringData: {PASSWORD: 1, "),
        manifest.replace("b3ZlcndyaXR0ZW4=", CANARY),
        manifest.replace("stringData:", "strngData:"),
        manifest.replace("kind: Secret", "kind: Secrets"),
        manifest.replace("name: login}\n  data", "name: Login}\n  data"),
        manifest.split_once("  data: {user").unwrap().0.to_owned(),
        format!("{manifest}]"),
        manifest.replace("immutable", "mutable"),
    ];
    let planned = bed.path().join("planned.yaml");
    for (number, text) in broken.iter().enumerate() {
        bed.write("all.yaml", text);
        fs::write(&planned, text).unwrap();
        for args in [&["validate"][..], &["validate", "-o", "json"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
                .args(args)
                .arg(&directory)
                .output()
                .unwrap();
            told(&format!("{number} {args:?}"), &output, &mut outputs);
        }
        let path = planned.to_str().unwrap();
        for args in [
            &["status"][..],
            &["status", "-o", "wide"],
            &["status", "-o", "json"],
            &["status", "-o", "yaml"],
            &["status", "web"],
            &["explain", "web"],
            &["explain", "web", "-o", "json"],
            &["events"],
            &["events", "-o", "json"],
            &["images", "-o", "json"],
            &["volumes", "-o", "json"],
            &["plan", path],
            &["plan", path, "-o", "json"],
            &["diff", path],
            &["rollout", "history", "web"],
            &["config", "show", "--running"],
            &["logs", "web"],
        ] {
            told(
                &format!("{number} {args:?}"),
                &ask(&bed, args),
                &mut outputs,
            );
        }
        let socket = bed.path().join("mirrorlet.sock");
        for path in [
            "/v1/status",
            "/v1/config",
            "/v1/explain?pod=web",
            "/v1/rollouts?pod=web",
            "/v1/events",
            "/v1/images",
            "/v1/volumes",
        ] {
            let asked = Command::new("curl")
                .args(["-s", "--unix-socket", socket.to_str().unwrap()])
                .arg(format!("http://box{path}"))
                .output()
                .unwrap();
            told(&format!("{number} {path}"), &asked, &mut outputs);
        }
        for path in ["metrics", "stats/summary", "readyz"] {
            let asked = Command::new("curl")
                .args(["-s", &format!("http://127.0.0.1:{port}/{path}")])
                .output()
                .unwrap();
            told(&format!("{number} {path}"), &asked, &mut outputs);
        }
    }
    let said_something = outputs
        .iter()
        .filter(|(_, output)| !output.is_empty())
        .count();
    assert!(said_something > outputs.len() / 2, "{said_something}");
    fs::remove_file(&planned).unwrap();
    // An agent that begins with a broken file doesn't know its Secret, and starts no container anew.
    eventually("the last edit to be settled", || {
        let shown = ask(&bed, &["status", "-o", "json"]);
        let report: StatusReport = serde_json::from_slice(&shown.stdout).ok()?;
        let settled = |pod: &PodReport| {
            let phase = pod.rollout.as_ref().map(|rollout| rollout.phase);
            let moves = [RolloutPhase::Preparing, RolloutPhase::Judging].map(Some);
            pod.ready == 1 && !moves.contains(&phase)
        };
        (report.pods.len() == 1 && report.pods.iter().all(settled)).then_some(())
    })
    .await;
    for args in [
        &["top", "--containers"][..],
        &["top", "-o", "json"],
        &["wait", "web"],
        &["rollout", "status", "web", "--timeout", "10s"],
    ] {
        told(&format!("{args:?}"), &ask(&bed, args), &mut outputs);
    }
    drop(running);
    // The next agent finds a broken file.
    let log = fs::read(bed.path().join("agent.log")).unwrap();
    assert!(String::from_utf8_lossy(&log).contains(r#""level":"DEBUG""#));
    outputs.push(("log".to_owned(), log));
    bed.write("all.yaml", &broken[7]);
    let running = start();
    eventually("the next agent to hold the pod", || {
        let shown = ask(&bed, &["status", "-o", "json"]);
        let report: StatusReport = serde_json::from_slice(&shown.stdout).ok()?;
        let is_held = report.pods.iter().any(|pod| pod.held && pod.ready == 1);
        is_held.then(|| told("status of the next", &shown, &mut outputs))
    })
    .await;
    for (path, content) in files_on_disk(&bed) {
        outputs.push((path.display().to_string(), content));
    }
    drop(running);
    let base64 = "Y2FuYXJ5LTNmOWQxY";
    for (what, output) in outputs {
        let text = String::from_utf8_lossy(&output);
        for canary in [CANARY, base64] {
            let at = text.find(canary);
            let near = at.map(|at| {
                let from = text.floor_char_boundary(at.saturating_sub(300));
                &text[from..at]
            });
            // box 4
            assert_eq!(near, None, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_notified_of_ready_alive_and_stopping() {
    let bed = Bed::new();
    let path = bed.path().join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut bytes = [0; 64];
        let length = systemd.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let log = fs::File::create(bed.path().join("log")).unwrap();
    let of_log = log.metadata().unwrap();
    let child = mirrorlet(
        &bed,
        &["run", "--node-name", "box", "--docker", &bed.docker],
    )
    .args(["--metrics-address", "none", "--log-format", "json"])
    .env("NOTIFY_SOCKET", &path)
    .env("WATCHDOG_USEC", "200000")
    .env(
        "JOURNAL_STREAM",
        format!("{}:{}", of_log.dev(), of_log.ino()),
    )
    .stderr(log)
    .spawn()
    .unwrap();
    let mut running = Running(child);
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        // installed 6
        assert!(next().starts_with(expected), "{expected}");
    }
    assert!(status(&bed).is_some());
    signal(&running, "-TERM");
    // Notifications of the watchdog may come before it.
    while !next().starts_with("STOPPING=1") {}
    assert!(running.0.wait().unwrap().success());
    let log = fs::read_to_string(bed.path().join("log")).unwrap();
    // installed 6
    assert!(
        !log.is_empty() && log.lines().all(|line| line.starts_with('<')),
        "{log}"
    );
    // installed 6
    assert!(log.lines().any(|line| line.starts_with("<6>{")), "{log}");
}
