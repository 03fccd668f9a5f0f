//! Probes of hosts whose names nobody answers for, under the program itself.

use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::binary::{Running, ask, mirrorlet, until_running};
use crate::common::{Bed, IMAGE, eventually, free_port, own_loopback, sleeper};

/// Most names of one namespace that are asked for at a time, each by a thread.
const LOOKUPS_MAX: usize = 16;
/// Threads that may be added for all else, and failed attempts to wait for: many more.
const OTHERS_MAX: usize = 64;
const ATTEMPTS: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_starts_while_probes_ask_for_names_that_nobody_answers_for() {
    // The server of names, which never answers.
    let server = own_loopback(153);
    let _silent = UdpSocket::bind((&*server, 53)).unwrap();
    let (bed, port) = (Bed::new(), free_port());
    let resolver = bed.path().join("resolv.conf");
    let text = format!("nameserver {server}\noptions timeout:30 attempts:5\n");
    fs::write(&resolver, text).unwrap();
    let agent = mirrorlet(
        &bed,
        &["run", "--node-name", "box", "--docker", &bed.docker],
    );
    // The agent alone has that file in place of the machine's.
    let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
    let mut apart = Command::new("unshare");
    apart
        .args(["--mount", "sh", "-c", script])
        .arg(&resolver)
        .arg(agent.get_program())
        .args(agent.get_args())
        .args(["--metrics-address", &format!("127.0.0.1:{port}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for (name, _) in agent.get_envs().filter(|(_, value)| value.is_none()) {
        apart.env_remove(name);
    }
    let running = Running(apart.spawn().unwrap());
    eventually("the agent", || {
        ask(&bed, &["status"]).status.success().then_some(())
    })
    .await;
    let threads = || -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", running.0.id())).unwrap();
        // One may have ended meanwhile.
        let names = tasks.map(|task| fs::read_to_string(task?.path().join("comm")));
        names.flatten().collect()
    };
    let before = threads().len();
    let probe = |kind: &str, n: usize| {
        let get = json!({"host": format!("{kind}-{n}.silent.test"), "port": 1});
        json!({"httpGet": get, "periodSeconds": 1, "failureThreshold": 100_000})
    };
    let container = |n: usize| {
        json!({
            "name": format!("c{n}"), "image": IMAGE, "command": ["sleep", "100000"],
            "livenessProbe": probe("live", n), "readinessProbe": probe("ready", n),
        })
    };
    let containers: Vec<Value> = (0..12).map(container).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asking"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": containers},
    });
    bed.write("asking.yaml", &pod.to_string());
    eventually("attempts that fail", || {
        let metrics = format!("http://127.0.0.1:{port}/metrics");
        let told = Command::new("curl").args(["-s", &metrics]).output().ok()?;
        let told = String::from_utf8(told.stdout).ok()?;
        let failed = told.lines().filter(|line| {
            line.starts_with("prober_probe_total{") && line.contains(r#"result="failed""#)
        });
        let counts = failed.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        (counts.sum::<usize>() >= ATTEMPTS).then_some(())
    })
    .await;
    bed.write("next.yaml", &sleeper("next"));
    until_running(&bed, "next").await;
    let now = threads();
    let lookups = now.iter().filter(|name| name.trim() == "resolve").count();
    // tenants M4
    assert!((1..=LOOKUPS_MAX).contains(&lookups), "{now:?}");
    // tenants M4
    assert!(now.len() <= before + LOOKUPS_MAX + OTHERS_MAX, "{now:?}");
}
