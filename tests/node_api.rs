//! The node API as kubectl, the API server and strangers find it: a whole agent, on a real Engine
//! and real Kubernetes servers.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail loudly, as tests do"
)]

mod common;

use common::IMAGE;
use common::cluster::Cluster;
use common::node::{Identity, NodeBed, is_ready, until};
use serde_json::json;

/// Writes ten numbered lines, half of them to standard error, and then nothing more.
const TEN_LINES: &str = "trap 'exit 0' TERM; for n in 0 2 4 6 8; do echo line $n; echo line $((n+1)) >&2; done; while :; do sleep 1 & wait $!; done";

/// A pod of the API server on the bed's Node: one container, named like the pod.
fn api_pod(bed: &NodeBed, name: &str, script: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": bed.namespace},
        "spec": {
            "nodeName": bed.node, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", script],
            }],
        },
    })
}

/// `kubectl logs` in the bed's namespace.
fn logs(bed: &NodeBed, args: &[&str]) -> Result<String, String> {
    let mut all = vec!["logs", "-n", &bed.namespace];
    all.extend(args);
    bed.cluster.try_kubectl(&all)
}

/// Waits until the log holds all of [`TEN_LINES`]; its lines, sorted: both outputs have their own
/// way into it.
async fn until_ten_lines(bed: &NodeBed, pod: &str) {
    until(&format!("ten lines of {pod}"), async || {
        let log = logs(bed, &[pod])?;
        let mut lines: Vec<_> = log.lines().collect();
        lines.sort_unstable();
        let whole = lines
            .iter()
            .enumerate()
            .all(|(n, line)| *line == format!("line {n}"));
        if whole && lines.len() == 10 {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
}

async fn logs_are_read(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    let node = bed.api_node().await.unwrap();
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    assert!(port.is_some_and(|port| port > 0), "{port:?}");

    bed.write(
        "web.yaml",
        &bed.pod("web", IMAGE, 1, &TEN_LINES.replace('"', "\\\"")),
    );
    bed.cluster
        .apply(&api_pod(&bed, "api", TEN_LINES).to_string());
    bed.until_mirrored("web").await;
    bed.until_pod("api", is_ready).await;
    for pod in [bed.name("web").as_str(), "api"] {
        until_ten_lines(&bed, pod).await;
        let count = |args: &[&str]| {
            let mut all = vec![pod];
            all.extend(args);
            logs(&bed, &all).unwrap().lines().count()
        };
        assert_eq!(count(&["--tail=3"]), 3);
        assert_eq!(count(&["--tail=0"]), 0);
        assert_eq!(count(&["--since=1h"]), 10);
        assert_eq!(count(&["--since-time=2020-01-02T03:04:05Z"]), 10);
        assert_eq!(logs(&bed, &[pod, "--limit-bytes=4"]).unwrap(), "line");
        let stamped = logs(&bed, &[pod, "--timestamps", "--tail=1"]).unwrap();
        let (time, line) = stamped.split_once(' ').unwrap();
        assert!(
            time.parse::<mirrorlet::api::Timestamp>().is_ok(),
            "{stamped}"
        );
        assert!(line.starts_with("line "), "{stamped}");
        let error = logs(&bed, &[pod, "--previous"]).unwrap_err();
        assert!(
            error.contains("previous terminated container") && error.contains("not found"),
            "{error}"
        );
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_logs_of_a_node_with_a_certificate() {
    logs_are_read(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_logs_of_a_node_with_a_service_account() {
    logs_are_read(Identity::ServiceAccount).await;
}
