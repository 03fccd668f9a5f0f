//! Ordinary Pods, Nodes side by side, and their life in a real cluster, under whole agents.

use std::sync::Arc;

use crate::common::cluster::{Cluster, Options};
use crate::common::node::{Identity, NodeBed, QUIET, bound, condition, is_ready, uid, until};
use crate::common::{self, IMAGE, IMAGE_KUBECTL};
use serde_json::{Value, json};

/// Containers of an ordinary Pod that run.
fn runs(bed: &NodeBed, name: &str) -> bool {
    let prefix = format!("k8s_{name}_{name}_");
    bed.running().keys().any(|found| found.starts_with(&prefix))
}

async fn a_bound_pod_runs_and_ends(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    bed.cluster
        .apply(&bound(&bed, "plain", IMAGE, QUIET).to_string());
    let pod = bed.until_pod("plain", is_ready).await;
    assert!(runs(&bed, "plain"));
    assert_eq!(pod["status"]["hostIP"], pod["status"]["hostIPs"][0]["ip"]);

    bed.delete_pod("plain", false).await;
    bed.until_pod_gone("plain").await;
    // cluster 2
    assert!(
        !runs(&bed, "plain"),
        "the object went before its containers"
    );

    // By force the object goes at once, and the containers after it.
    bed.cluster
        .apply(&bound(&bed, "forced", IMAGE, QUIET).to_string());
    bed.until_pod("forced", is_ready).await;
    bed.delete_pod("forced", true).await;
    until("the containers to end", async || {
        if runs(&bed, "forced") {
            Err("they run")
        } else {
            Ok(())
        }
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_pod_runs_and_ends_by_a_nodes_certificate() {
    a_bound_pod_runs_and_ends(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_pod_runs_and_ends_by_a_service_account() {
    a_bound_pod_runs_and_ends(Identity::ServiceAccount).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_of_containers_have_resources_and_mounts() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    // The API server writes `500m`; what has no request has its limit as request.
    let resources =
        json!({"limits": {"cpu": "0.5", "memory": "65536Ki"}, "requests": {"cpu": ".1"}});
    let mounts = json!([
        {"name": "v", "mountPath": "/rw"},
        {"name": "v", "mountPath": "/ro", "readOnly": true},
    ]);
    let mut pod = bound(&bed, "bound", IMAGE, QUIET);
    pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 3000, "supplementalGroups": [4000]});
    pod["spec"]["containers"][0]["resources"] = resources;
    pod["spec"]["containers"][0]["volumeMounts"] = mounts;
    bed.cluster.apply(&pod.to_string());
    pod["metadata"]["name"] = json!("static");
    let spec = pod["spec"].as_object_mut().unwrap();
    spec.remove("nodeName");
    bed.write("static.json", &pod.to_string());
    let of_api = bed.until_pod("bound", is_ready).await;
    let of_mirror = bed.until_mirror("static", is_ready).await;
    for pod in [&of_api, &of_mirror] {
        let status = &pod["status"]["containerStatuses"][0];
        let requests = json!({"cpu": "100m", "memory": "64Mi"});
        let limits = json!({"cpu": "500m", "memory": "64Mi"});
        // pods 49a
        assert_eq!(
            status["resources"],
            json!({"limits": limits, "requests": requests})
        );
        assert_eq!(status["allocatedResources"], requests);
        assert_eq!(
            status["volumeMounts"],
            json!([
                {"name": "v", "mountPath": "/rw"},
                {"name": "v", "mountPath": "/ro", "readOnly": true, "recursiveReadOnly": "Disabled"},
            ])
        );
        let user = json!({"uid": 1000, "gid": 3000, "supplementalGroups": [3000, 4000]});
        // pods 49b
        assert_eq!(status["user"], json!({"linux": user}));
        let id = status["containerID"].as_str().unwrap();
        let id = id.trim_start_matches("docker://");
        let kernels = bed.docker(&["exec", id, "cat", "/proc/1/status"]);
        let of = |field: &str| {
            let line = kernels.lines().find_map(|line| line.strip_prefix(field));
            line.unwrap()
                .split_whitespace()
                .next_back()
                .unwrap_or_default()
                .to_owned()
        };
        // pods 49b
        assert_eq!(
            (of("Uid:"), of("Gid:"), of("Groups:")),
            ("1000".into(), "3000".into(), "4000".into())
        );
    }
    // Later changes are written, and these are not written again.
    bed.sleeper("later");
    bed.until_mirrored("later").await;
    let version = |pod: &Value| pod["metadata"]["resourceVersion"].clone();
    let now = [bed.api_pod("bound").await, bed.mirror("static").await];
    let now = now.map(|pod| version(&pod.unwrap()));
    // pods 49a
    assert_eq!(now, [version(&of_api), version(&of_mirror)]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_tolerates_the_taint_is_scheduled_here() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let mut pod = bound(&bed, "scheduled", IMAGE, QUIET);
    let spec = pod["spec"].as_object_mut().unwrap();
    spec.remove("nodeName");
    spec.insert(
        "nodeSelector".into(),
        json!({"kubernetes.io/hostname": bed.node}),
    );
    let without = pod.to_string().replace("scheduled", "kept-away");
    bed.cluster.apply(&without);
    let toleration = json!([{"key": "mirrorlet.dev/docker", "operator": "Exists"}]);
    pod["spec"]["tolerations"] = toleration;
    bed.cluster.apply(&pod.to_string());
    let found = bed.until_pod("scheduled", is_ready).await;
    assert_eq!(found["spec"]["nodeName"], bed.node.as_str());
    let kept_away = bed
        .until_pod("kept-away", |pod| {
            condition(pod, "PodScheduled") == Some("False")
        })
        .await;
    // cluster 3
    assert!(kept_away["spec"]["nodeName"].is_null());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_a_pod_talks_to_the_api_server_with_its_token() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let binding = format!("{}-view", bed.namespace);
    let account = format!("--serviceaccount={}:default", bed.namespace);
    bed.cluster.kubectl(&[
        "create",
        "rolebinding",
        &binding,
        "-n",
        &bed.namespace,
        "--clusterrole=view",
        &account,
    ]);
    // kubectl finds address, token and authority as any client in a pod does.
    // It may look before it is known that it may.
    let script = "until kubectl get pods -o name > /tmp/seen; do sleep 1; done; exec sleep 100000";
    let pod = bound(&bed, "client", IMAGE_KUBECTL, script);
    bed.cluster.apply(&pod.to_string());
    bed.until_pod("client", is_ready).await;
    // cluster 4
    until("the client's answer", async || {
        let seen = bed.file("client", "/tmp/seen").unwrap_or_default();
        if seen.contains("pod/client") {
            Ok(())
        } else {
            Err(seen)
        }
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_on_one_engine_do_not_disturb_each_other() {
    let cluster = Cluster::shared().await;
    let first = NodeBed::on(Arc::clone(&cluster), Identity::Node).await;
    let namespace = first.namespace.clone();
    let second = NodeBed::in_namespace(cluster, Identity::ServiceAccount, namespace).await;
    let (one, two) = (first.joined().await, second.joined().await);
    for bed in [&first, &second] {
        bed.sleeper("web");
    }
    let before = first.until_mirrored("web").await;
    second.until_mirrored("web").await;
    let running = first.running();
    // Everything happens to the second: an edit, a deleted mirror, a removal, its Node's end.
    second.delete_pod(&second.name("web"), true).await;
    second.until_mirrored("web").await;
    second.sleeper("more");
    second.until_mirrored("more").await;
    second.remove("web.yaml");
    second.until_no_mirror("web").await;
    second.cluster.kubectl(&["delete", "node", &second.node]);
    second.until_mirrored("more").await;
    two.kill();
    let two = second.agent().await;
    two.until_running("more").await;

    let after = first.mirror("web").await.unwrap();
    assert_eq!(uid(&after), uid(&before));
    assert_eq!(first.running(), running);
    let user = format!("system:node:{}", first.node);
    let refused = |entry: &&common::cluster::audit::AuditEntry| entry.code == 403;
    let record = first.cluster.audit_of_some(&user).await;
    let refused: Vec<_> = record.iter().filter(refused).collect();
    // It asked for nothing that isn't its own; namespaces it may not see at all.
    // cluster 5
    assert!(
        refused.iter().all(|entry| entry.resource == "namespaces"),
        "{refused:#?}"
    );
    one.stop().await;
    two.stop().await;
}

/// Keys of the taints of a Node.
fn taints(node: &Value) -> Vec<&str> {
    let taints = node["spec"]["taints"].as_array();
    let keys = taints
        .into_iter()
        .flatten()
        .map(|t| t["key"].as_str().unwrap());
    keys.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_falls_silent_is_unknown_and_clean_when_it_is_back() {
    let options = Options::default().without_scheduler();
    let cluster = options.fast_node_lifecycle().start().await;
    let bed = NodeBed::on(Arc::new(cluster), Identity::Node).await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    bed.cluster
        .apply(&bound(&bed, "plain", IMAGE, QUIET).to_string());
    let mirror = bed.until_mirrored("web").await;
    let plain = bed.until_pod("plain", is_ready).await;
    let running = bed.running();
    let own = bed.until_node("clean", |node| taints(node) == ["mirrorlet.dev/docker"]);
    own.await;

    agent.kill();
    let unreachable = "node.kubernetes.io/unreachable";
    bed.until_node("Unknown and tainted", |node| {
        condition(node, "Ready") == Some("Unknown") && taints(node).contains(&unreachable)
    })
    .await;
    bed.until_mirror("web", |pod| condition(pod, "Ready") == Some("False"))
        .await;
    assert_eq!(bed.running(), running);

    let agent = bed.agent().await;
    // cluster 6
    bed.until_node("Ready and clean", |node| {
        condition(node, "Ready") == Some("True") && taints(node) == ["mirrorlet.dev/docker"]
    })
    .await;
    let back = bed.until_mirrored("web").await;
    assert_eq!(uid(&back), uid(&mirror));
    let back = bed.until_pod("plain", is_ready).await;
    assert_eq!(uid(&back), uid(&plain));
    assert_eq!(bed.running(), running);
    agent.stop().await;
}
