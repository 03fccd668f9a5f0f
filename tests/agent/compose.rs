//! Compose projects, imported by the program and run by a whole agent.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Bed, TestAgent, eventually, free_port};
use mirrorlet_core::api::report::PodReport;

/// A project of `crates/compose/tests/projects`.
fn project(name: &str) -> PathBuf {
    let projects = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/compose/tests/projects");
    projects.join(name)
}

/// Imports a project into the manifest directory, and returns what was said about it. The project's
/// name, and so its volumes, are the bed's own.
fn import(bed: &Bed, project: &Path, variables: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
        .args(["import", "compose", "--project-name", &name(bed)])
        .arg(project)
        .arg("-o")
        .arg(bed.path().join("manifests"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(output.stdout.is_empty());
    said
}

/// A name of a project that no other bed has.
fn name(bed: &Bed) -> String {
    bed.uid("compose").to_ascii_lowercase()
}

/// The answer to a request on a port of this machine.
pub(super) fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.trim().to_owned())
}

async fn until_answer(port: u16, path: &str) -> String {
    eventually("the web server to answer", || get(port, path)).await
}

async fn until_ready(agent: &TestAgent, pods: &[&str]) {
    for pod in pods {
        agent.until_pod(pod, PodReport::is_ready).await;
    }
}

/// The answer of a server to a container that calls it by a name. The wget of a static busybox can't
/// be used: it crashes on names.
async fn until_named(bed: &Bed, from: &str, name: &str) -> String {
    let call = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {name} 80 | tail -n 1");
    eventually("the name to lead to the server", || {
        let answer = bed.exec(from, &call);
        (!answer.is_empty()).then_some(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_reached_by_its_port_and_its_names() {
    let bed = Bed::new();
    // The volume that compose has made, with what is in it.
    let volume = format!("{}_data", name(&bed));
    bed.docker(&["volume", "create", &volume]);
    let port = free_port();
    let said = import(
        &bed,
        &project("box-shop"),
        &[("PORT", &port.to_string()), ("SHOP", "box")],
    );
    assert!(
        said.contains("volumes.data: not carried over: new volumes are empty"),
        "{said}"
    );
    assert!(!said.contains("correct horse"), "{said}");
    let agent = bed.agent().await;
    until_ready(&agent, &["web-0", "worker-0", "worker-1"]).await;
    // box 14
    assert_eq!(until_answer(port, "/").await, "welcome to box");
    // The init container's file in the volume, and the secret.
    assert_eq!(until_answer(port, "/schema").await, "schema 7");
    assert_eq!(until_answer(port, "/login").await, "correct horse");
    for name in ["web", "shop-front", "storefront"] {
        // box 14
        assert_eq!(
            until_named(&bed, "worker_worker-1-box", name).await,
            "welcome to box",
            "{name}"
        );
    }
    // An edit of a config that is mounted as a file replaces the pod, as `docker compose up` does.
    for entry in std::fs::read_dir(bed.path().join("manifests")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("welcome to box") {
            std::fs::write(&path, text.replace("welcome to box", "welcome back")).unwrap();
        }
    }
    eventually("the edited config to be served", || {
        // box 14
        (get(port, "/")? == "welcome back").then_some(())
    })
    .await;
    assert_eq!(
        bed.exec("web_web-0-box", "echo $COLOUR $QUOTED"),
        "green two words"
    );
    let mode = "mode=755";
    let mounts = bed.exec("web_web-0-box", "grep ' /run/web ' /proc/mounts");
    assert!(
        mounts.contains("size=1024k") && mounts.contains(mode),
        "{mounts}"
    );
    let inspected = bed.docker(&["volume", "inspect", &volume]);
    assert!(inspected.contains(&volume), "{inspected}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_one_network_are_containers_of_one_pod() {
    let bed = Bed::new();
    let port = free_port();
    import(&bed, &project("box-vpn"), &[("PORT", &port.to_string())]);
    let agent = bed.agent().await;
    until_ready(&agent, &["tunnel-0"]).await;
    // box 14
    assert_eq!(until_answer(port, "/").await, "app");
    let tunnel = "tunnel_tunnel-0-box";
    assert_eq!(
        bed.exec(tunnel, "wget -q -O - http://localhost:8080/"),
        "app"
    );
    assert_eq!(bed.exec(tunnel, "hostname"), "tunnel-host");
    assert!(bed.exec(tunnel, "cat /etc/hosts").contains("192.0.2.7"));
    let app = "app_tunnel-0-box";
    assert_eq!(bed.exec(app, "id -u; id -g"), "1000\n1000");
    let status = bed.exec(
        app,
        "grep -e CapBnd -e NoNewPrivs /proc/1/status /proc/self/status",
    );
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(
        bed.exec(app, "touch /file 2>&1 || true")
            .contains("Read-only")
    );
    assert!(bed.exec(app, "df /dev/shm | tail -n 1").contains("2048"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_restarted_runs_once_and_what_fails_is_tried_again() {
    let bed = Bed::new();
    let out = bed.path().join("out");
    let copy = bed.path().join("jobs");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(
        project("box-jobs").join("compose.yaml"),
        copy.join("compose.yaml"),
    )
    .unwrap();
    let said = import(&bed, &copy, &[("OUT", "../out")]);
    assert!(said.contains("services.later: left out"), "{said}");
    let agent = bed.agent().await;
    let lines = |file: &str| {
        let text = std::fs::read_to_string(out.join(file)).unwrap_or_default();
        text.lines().count()
    };
    eventually("the second try", || (lines("retry") >= 2).then_some(())).await;
    agent
        .until_pod("retry", |pod| pod.status == "Completed")
        .await;
    agent.until_pod("once", |pod| pod.status == "Error").await;
    // Two services wait for one to complete: it is a Job.
    eventually("the job", || (lines("seed") > 0).then_some(())).await;
    until_ready(&agent, &["one-0", "two-0"]).await;
    // box 14
    assert_eq!((lines("once"), lines("retry"), lines("seed")), (1, 2, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_of_several_files_is_one() {
    let bed = Bed::new();
    let port = free_port();
    let said = import(&bed, &project("box-parts"), &[("PORT", &port.to_string())]);
    assert!(said.contains("0 warnings"), "{said}");
    let agent = bed.agent().await;
    until_ready(&agent, &["web-0", "cache-0"]).await;
    // box 14
    assert_eq!(until_answer(port, "/").await, "web blue shared");
    assert_eq!(
        until_named(&bed, "cache_cache-0-box", "web").await,
        "web blue shared"
    );
    assert_eq!(bed.exec("cache_cache-0-box", "echo $GREETING"), "hello");
    agent.stop().await;
}
