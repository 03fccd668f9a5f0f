//! Forms of a pod's spec that only an API server can ask for, and what becomes of them later: a
//! whole agent, on a real Engine and real Kubernetes servers.

use crate::common::node::{NodeBed, QUIET, condition, is_ready};
use crate::common::{IMAGE, eventually};
use serde_json::{Value, json};

/// A pod on the bed's Node: one container, named like the pod, with `spec` laid over it.
fn pod(bed: &NodeBed, name: &str, spec: &Value) -> String {
    let mut all = json!({
        "nodeName": bed.node, "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", QUIET],
        }],
    });
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": bed.namespace,
            "labels": {"app": name}, "annotations": {"note": "first"},
        },
        "spec": all,
    })
    .to_string()
}

fn patch(bed: &NodeBed, name: &str, args: &[&str], patch: &Value) {
    let text = patch.to_string();
    let mut all = vec!["patch", "pod", name, "-n", &bed.namespace, "-p", &text];
    all.extend(args);
    bed.cluster.kubectl(&all);
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_gates_are_opened_and_closed_by_others() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let gates = json!({"readinessGates": [
        {"conditionType": "example.com/a"}, {"conditionType": "example.com/b"},
    ]});
    bed.cluster.apply(&pod(&bed, "gated", &gates));
    let shut = |pod: &Value| {
        condition(pod, "ContainersReady") == Some("True")
            && condition(pod, "Ready") == Some("False")
    };
    let told = bed.until_pod("gated", shut).await;
    let ready = told["status"]["conditions"].as_array().unwrap();
    let ready = ready.iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["reason"], "ReadinessGatesNotReady");
    let set = |gate: &str, status: &str| {
        let conditions = json!([{"type": gate, "status": status}]);
        let status = json!({"status": {"conditions": conditions}});
        patch(&bed, "gated", &["--subresource=status"], &status);
    };
    set("example.com/a", "True");
    bed.until_pod("gated", |pod| {
        condition(pod, "example.com/a") == Some("True") && shut(pod)
    })
    .await;
    set("example.com/b", "True");
    // api 5
    let open = bed.until_pod("gated", is_ready).await;
    // They are still whose they were.
    for gate in ["example.com/a", "example.com/b"] {
        assert_eq!(condition(&open, gate), Some("True"));
    }
    set("example.com/a", "False");
    bed.until_pod("gated", shut).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn safe_sysctls_are_set_and_others_refused() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let sysctls = |list: &[(&str, &str)]| {
        let list: Vec<_> = list
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        json!({"securityContext": {"sysctls": list}})
    };
    let safe = sysctls(&[
        ("kernel/shm_rmid_forced", "1"),
        ("net.ipv4.ip_unprivileged_port_start", "77"),
    ]);
    bed.cluster.apply(&pod(&bed, "safe", &safe));
    let unsafe_one = sysctls(&[("kernel.shm_rmid_forced", "1"), ("kernel.msgmax", "8192")]);
    bed.cluster.apply(&pod(&bed, "unsafe", &unsafe_one));
    let refused = bed
        .until_pod("unsafe", |pod| pod["status"]["phase"] == "Failed")
        .await;
    // api 6
    assert_eq!(refused["status"]["reason"], "SysctlForbidden");
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("\"kernel.msgmax\" not allowlisted"),
        "{message}"
    );
    bed.until_pod("safe", is_ready).await;
    let read = bed.exec(
        "safe",
        "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start",
    );
    assert_eq!(read, "1\n77");
    assert!(bed.instances("unsafe").is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_set_later_ends_a_running_pod() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.cluster.apply(&pod(&bed, "web", &json!({})));
    bed.until_pod("web", is_ready).await;
    patch(
        &bed,
        "web",
        &[],
        &json!({"spec": {"activeDeadlineSeconds": 1}}),
    );
    let failed = bed
        .until_pod("web", |pod| pod["status"]["phase"] == "Failed")
        .await;
    // api 4
    assert_eq!(failed["status"]["reason"], "DeadlineExceeded");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_annotations_change_in_a_running_pod() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let field =
        |path: &str| json!({"path": path, "fieldRef": {"fieldPath": format!("metadata.{path}")}});
    let items = json!([field("labels"), field("annotations")]);
    let spec = json!({
        "volumes": [
            {"name": "own", "downwardAPI": {"items": items}},
            {"name": "projected", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
        ],
        "containers": [{
            "name": "web", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", QUIET],
            "volumeMounts": [
                {"name": "own", "mountPath": "/own"},
                {"name": "projected", "mountPath": "/projected"},
            ],
        }],
    });
    bed.cluster.apply(&pod(&bed, "web", &spec));
    bed.until_pod("web", is_ready).await;
    let id = bed.running_id("web");
    for (file, word) in [("labels", "app=\"web\""), ("annotations", "note=\"first\"")] {
        for volume in ["own", "projected"] {
            let text = bed.exec("web", &format!("cat /{volume}/{file}"));
            // api 7
            assert!(text.contains(word), "{volume}/{file}: {text}");
        }
    }
    let changes = json!({"metadata": {
        "labels": {"more": "yes"}, "annotations": {"note": "second"},
    }});
    patch(&bed, "web", &[], &changes);
    for (file, word) in [
        ("labels", "more=\"yes\""),
        ("annotations", "note=\"second\""),
    ] {
        for volume in ["own", "projected"] {
            eventually(&format!("{word} in {volume}/{file}"), || {
                let text = bed.file("web", &format!("/{volume}/{file}"))?;
                text.contains(word).then_some(())
            })
            .await;
        }
    }
    assert_eq!(bed.running_id("web"), id);
    agent.stop().await;
}
