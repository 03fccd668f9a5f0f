//! Usage of pods, as the API server, metrics-server and `kubectl top` find it: a whole agent, on a
//! real Engine and real Kubernetes servers.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::IMAGE;
use crate::common::cluster::process::Program;
use crate::common::cluster::{Cluster, Options};
use crate::common::node::{Identity, NodeBed, QUIET, bound, is_ready, until};
use serde_json::{Value, json};

/// Returns the answer of the bed's Node to the API server.
fn raw(bed: &NodeBed, path: &str) -> Result<String, String> {
    let path = format!("/api/v1/nodes/{}/proxy/{path}", bed.node);
    bed.cluster.try_kubectl(&["get", "--raw", &path])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_is_told_what_pods_use() {
    let bed = NodeBed::on(Cluster::shared().await, Identity::Node).await;
    let agent = bed.joined().await;
    bed.write("web.yaml", &bed.pod("web", IMAGE, 1, QUIET));
    bed.cluster
        .apply(&bound(&bed, "api", IMAGE, QUIET).to_string());
    let mirror = bed.until_mirrored("web").await;
    let api = bed.until_pod("api", is_ready).await;
    let own_uid = &mirror["metadata"]["annotations"]["kubernetes.io/config.hash"];
    for (path, whole) in [
        ("stats/summary", true),
        ("stats/summary?only_cpu_and_memory=true", false),
    ] {
        let summary = until(path, async || {
            let text = raw(&bed, path)?;
            let summary: Value = serde_json::from_str(&text).unwrap();
            let pods = summary["pods"].as_array().unwrap();
            let told = pods.iter().filter(|pod| pod["memory"].is_object()).count();
            (told == 2).then_some(summary).ok_or(text)
        })
        .await;
        assert_eq!(summary["node"]["nodeName"], bed.node.as_str());
        assert_eq!(summary["node"]["fs"].is_object(), whole);
        let pods = summary["pods"].as_array().unwrap();
        let pod = |name: &str| {
            pods.iter()
                .find(|pod| pod["podRef"]["name"] == name)
                .unwrap()
        };
        let uid = |name: &str| &pod(name)["podRef"]["uid"];
        // As a kubelet's: a static pod's own UID, not its mirror's.
        // usage 38c
        assert_eq!(uid(&bed.name("web")), own_uid);
        assert_eq!(uid("api"), &api["metadata"]["uid"]);
        assert_eq!(pod("api")["startTime"], api["status"]["startTime"]);
        assert_eq!(pod("api")["network"].is_object(), whole);
    }
    for (path, expected) in [
        ("metrics/resource", "\nresource_scrape_error 0\n"),
        ("metrics/cadvisor", "\ncontainer_scrape_error 0\n"),
        ("metrics", "mirrorlet_engine_up 1\n"),
    ] {
        let page = raw(&bed, path).unwrap() + "\n";
        assert!(page.contains(expected), "{path}: {page}");
    }
    assert!(raw(&bed, "metrics/probes").is_ok());
    agent.stop().await;
}

/// Where hack/metrics-server-build.sh puts the version that hack/metrics-server/go.mod pins.
fn metrics_server() -> PathBuf {
    let pinned = include_str!("../../hack/metrics-server/go.mod");
    let version = pinned
        .lines()
        .find_map(|line| line.split("sigs.k8s.io/metrics-server ").nth(1))
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap();
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache"),
        PathBuf::from,
    );
    let file = cache.join(format!(
        "mirrorlet-dev/metrics-server/{version}/metrics-server"
    ));
    assert!(file.exists(), "no {}: run `make kube`", file.display());
    file
}

/// A port of the cluster's own address that nobody else has.
const METRICS_PORT: u16 = 4443;

/// Starts metrics-server, and has the API server pass its group on to it.
fn start_metrics_server(cluster: &Cluster) -> Program {
    let kubeconfig = cluster.admin_kubeconfig().display().to_string();
    let host = cluster.host().to_string();
    let args = [
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--bind-address={host}"),
        format!("--secure-port={METRICS_PORT}"),
        format!(
            "--cert-dir={}",
            cluster.path().join("metrics-server").display()
        ),
        "--kubelet-insecure-tls".to_owned(),
        "--kubelet-use-node-status-port".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        // The shortest it takes.
        "--metric-resolution=10s".to_owned(),
        "--kubelet-request-timeout=9s".to_owned(),
    ];
    let program = Program::start(&metrics_server(), &args, cluster.path());
    let metadata = json!({"name": "metrics-server", "namespace": "kube-system"});
    for object in [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": METRICS_PORT}]},
        }),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
            "subsets": [{
                "addresses": [{"ip": host}],
                "ports": [{"name": "https", "port": METRICS_PORT}],
            }],
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1",
                "service": metadata, "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 100, "versionPriority": 100,
            },
        }),
    ] {
        cluster.apply(&object.to_string());
    }
    program
}

/// Lines of `kubectl top` in columns.
fn top(bed: &NodeBed, args: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let mut all = vec!["top"];
    all.extend(args);
    all.push("--no-headers");
    let text = bed.cluster.try_kubectl(&all)?;
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    Ok(text.lines().map(columns).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_top_shows_pods_and_the_node() {
    let options = Options::default().without_scheduler().aggregating();
    let cluster = Arc::new(options.start().await);
    let bed = NodeBed::on(Arc::clone(&cluster), Identity::Node).await;
    let agent = bed.joined().await;
    bed.write("web.yaml", &bed.pod("web", IMAGE, 1, QUIET));
    bed.cluster
        .apply(&bound(&bed, "api", IMAGE, QUIET).to_string());
    bed.until_mirrored("web").await;
    bed.until_pod("api", is_ready).await;
    let mut program = start_metrics_server(&cluster);
    let web = bed.name("web");
    let expected = [["api", "api"], [web.as_str(), "web"]];
    let lines = until("kubectl top pod", async || {
        program.assert_alive();
        let lines = top(&bed, &["pod", "--containers", "-n", &bed.namespace])?;
        let mut names: Vec<_> = lines.iter().map(|line| &line[..2]).collect();
        names.sort_unstable();
        if names == expected {
            Ok(lines)
        } else {
            Err(format!("{lines:?}\n{}", program.last_words()))
        }
    })
    .await;
    for line in &lines {
        // A shell that sleeps takes less than a MiB, which is told as 0Mi.
        let [_, _, cpu, memory] = &line[..] else {
            panic!("{line:?}")
        };
        assert!(cpu.ends_with('m') && memory.ends_with("Mi"), "{line:?}");
    }
    let nodes = until("kubectl top node", async || top(&bed, &["node", &bed.node])).await;
    let [line] = &nodes[..] else {
        panic!("{nodes:?}")
    };
    assert_eq!(line[0], bed.node);
    let used: u64 = line[3].strip_suffix("Mi").unwrap().parse().unwrap();
    // usage 37
    assert!(used > 0, "{line:?}");
    agent.stop().await;
}
