//! Finalizers and owners at the embedded API: what holds a deletion back, and what goes with what.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::watcher::Config;
use serde_json::{Value, json};

use crate::common::cluster::client;
use crate::common::{Bed, IMAGE, eventually};
use crate::embedded::{Box, STDIN, deployment};

const KEEP: &str = "example.com/keep";

fn config_map(name: &str, metadata: &Value) -> String {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}});
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    object.to_string()
}

fn pod(name: &str, metadata: &Value) -> String {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": "web",
                "image": IMAGE,
                "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"],
            }],
        },
    });
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    object.to_string()
}

impl Box {
    fn uid(&self, what: &str) -> String {
        let uid = self.kubectl(&["get", what, "-o", "jsonpath={.metadata.uid}"]);
        assert!(!uid.is_empty(), "{what}");
        uid
    }

    fn owned_by(&self, kind: &str, name: &str) -> Value {
        let (version, resource) = match kind {
            "Deployment" => ("apps/v1", "deployment"),
            _ => ("v1", "configmap"),
        };
        let uid = self.uid(&format!("{resource}/{name}"));
        json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true}])
    }

    fn release(&self, what: &str) {
        let none = r#"{"metadata":{"finalizers":null}}"#;
        self.kubectl(&["patch", what, "--type=merge", "-p", none]);
    }

    fn is_gone(&self, what: &str) -> bool {
        let output = self.output(&["get", what], "");
        String::from_utf8_lossy(&output.stderr).contains("NotFound")
    }

    async fn until_gone(&self, what: &str) {
        eventually(what, || self.is_gone(what).then_some(())).await;
    }
}

/// The agent is stopped, and another one serves the same objects.
async fn restarted(alone: Box) -> Box {
    let Box { bed, agent } = alone;
    agent.stop().await;
    Box::start_on(bed).await
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_hold_what_is_deleted_over_a_restart() {
    let alone = Box::start().await;
    let keep = json!({"finalizers": [KEEP]});
    alone.kubectl_with(&STDIN, &config_map("cfg", &keep));
    alone.kubectl_with(&STDIN, &pod("web", &keep));
    let mut workload: Value = serde_saphyr::from_str(&deployment(1, IMAGE)).unwrap();
    workload["metadata"]["finalizers"] = json!([KEEP]);
    alone.kubectl_with(&STDIN, &workload.to_string());
    alone.kubectl(&["create", "namespace", "shop"]);
    alone.kubectl_with(
        &["apply", "-n", "shop", "-f", "-"],
        &config_map("cfg", &keep),
    );
    alone.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=240s"]);
    alone.kubectl(&["rollout", "status", "deployment/d", "--timeout=240s"]);
    for what in ["configmap/cfg", "pod/web", "namespace/shop", "deployment/d"] {
        alone.kubectl(&["delete", what, "--wait=false"]);
    }
    // The pod has stopped, and is not gone; what isn't a pod serves on.
    let only_d = || {
        let running = alone.bed.running();
        running
            .keys()
            .all(|name| name.contains("d-0"))
            .then_some(())
    };
    eventually("the pod to stop", only_d).await;
    let alone = restarted(alone).await;
    assert!(!alone.bed.running().is_empty());
    for what in ["configmap/cfg", "pod/web", "deployment/d"] {
        let held = alone.object(&[what]);
        // embedded 46
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
        assert_eq!(held["metadata"]["finalizers"], json!([KEEP]), "{held}");
    }
    let shop = alone.object(&["namespace/shop"]);
    // embedded 42
    assert_eq!(shop["status"]["phase"], "Terminating", "{shop}");
    let held = alone.object(&["pod/web"]);
    // embedded 47
    assert_eq!(
        held["status"]["containerStatuses"][0]["ready"], false,
        "{held}"
    );
    assert!(
        ["Succeeded", "Failed"].contains(&held["status"]["phase"].as_str().unwrap()),
        "{held}"
    );
    // What uses it still can.
    assert_eq!(alone.object(&["configmap/cfg"])["data"]["a"], "b");
    let again = alone.output(&["create", "-f", "-"], &config_map("cfg", &json!({})));
    let again = String::from_utf8_lossy(&again.stderr).into_owned();
    // embedded 46
    assert!(again.contains("object is being deleted"), "{again}");
    let more = r#"{"metadata":{"finalizers":["example.com/more"]}}"#;
    let refused = alone.kubectl_fails(&["patch", "cm/cfg", "--type=merge", "-p", more]);
    // embedded 46
    assert!(
        refused.contains("no new finalizers can be added"),
        "{refused}"
    );
    // A finalizer has a name of somebody.
    let odd = alone.output(&STDIN, &config_map("odd", &json!({"finalizers": ["keep"]})));
    let odd = String::from_utf8_lossy(&odd.stderr).into_owned();
    assert!(odd.contains("metadata.finalizers[0]"), "{odd}");

    for what in ["configmap/cfg", "pod/web", "deployment/d"] {
        alone.release(what);
        // embedded 46
        assert!(alone.is_gone(what), "{what}");
    }
    let none = r#"{"metadata":{"finalizers":null}}"#;
    alone.kubectl(&["patch", "-n", "shop", "cm/cfg", "--type=merge", "-p", none]);
    alone.until_gone("namespace/shop").await;
    let none = || alone.bed.running().is_empty().then_some(());
    eventually("no container", none).await;
    // Nothing of it comes back.
    let alone = restarted(alone).await;
    assert!(alone.is_gone("pod/web") && alone.is_gone("configmap/cfg"));
    assert!(alone.is_gone("namespace/shop") && alone.bed.running().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_owned_goes_with_its_owner() {
    let alone = Box::start().await;
    let owned = |kind: &str, name: &str| json!({"ownerReferences": alone.owned_by(kind, name)});
    alone.kubectl_with(&STDIN, &deployment(2, IMAGE));
    alone.kubectl_with(&STDIN, &config_map("of-d", &owned("Deployment", "d")));
    alone.kubectl_with(&STDIN, &pod("of-map", &owned("ConfigMap", "of-d")));
    for name in ["a", "b"] {
        alone.kubectl_with(&STDIN, &config_map(name, &json!({})));
        let child = config_map(&format!("of-{name}"), &owned("ConfigMap", name));
        alone.kubectl_with(&STDIN, &child);
    }
    alone.kubectl(&["rollout", "status", "deployment/d", "--timeout=240s"]);
    alone.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/of-map",
        "--timeout=240s",
    ]);

    alone.kubectl(&["delete", "configmap/a"]);
    // embedded 44
    alone.until_gone("configmap/of-a").await;
    alone.kubectl(&["delete", "configmap/b", "--cascade=orphan"]);
    let left = alone.object(&["configmap/of-b"]);
    // embedded 45
    assert_eq!(left["metadata"]["ownerReferences"], Value::Null);
    // Pods of a workload can't stay without it.
    let refused = alone.kubectl_fails(&["delete", "deployment/d", "--cascade=orphan"]);
    // embedded 45
    assert!(refused.contains("can't exist without it"), "{refused}");
    assert!(!alone.is_gone("deployment/d"));
    // Its dependents go first: of itself its pods, of its ConfigMap a pod.
    alone.kubectl(&[
        "delete",
        "deployment/d",
        "--cascade=foreground",
        "--timeout=240s",
    ]);
    // embedded 45
    assert!(alone.bed.running().is_empty());
    for what in ["configmap/of-d", "pod/of-map", "pod/d-0"] {
        assert!(alone.is_gone(what), "{what}");
    }

    // One that never had its owner.
    let none = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}]);
    let lost = config_map("lost", &json!({"ownerReferences": none}));
    alone.kubectl_with(&STDIN, &lost);
    // embedded 44
    alone.until_gone("configmap/lost").await;

    // An owner that went while no agent was there.
    alone.kubectl_with(&STDIN, &config_map("c", &json!({})));
    let child = config_map("of-c", &owned("ConfigMap", "c"));
    alone.kubectl_with(&STDIN, &child);
    let Box { bed, agent } = alone;
    agent.stop().await;
    std::fs::remove_file(bed.path().join("api/default/configmaps/c.yaml")).unwrap();
    let alone = Box::start_on(bed).await;
    // embedded 44
    alone.until_gone("configmap/of-c").await;
    assert!(!alone.is_gone("configmap/of-b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_of_kube_rs_cleans_up_before_an_object_goes() {
    let alone = Box::start_on(Bed::new()).await;
    let client = client(&alone.kubeconfig()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let (cleaned, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let of = maps.clone();
    let reconcile = move |map: Arc<ConfigMap>, _: Arc<()>| {
        let (of, cleaned) = (of.clone(), cleaned.clone());
        async move {
            let decide = |event: Event<ConfigMap>| async move {
                if let Event::Cleanup(map) = event {
                    let _ = cleaned.send(map.metadata.name.clone().unwrap_or_default());
                }
                Ok::<_, Infallible>(Action::await_change())
            };
            finalizer(&of, KEEP, map, decide).await
        }
    };
    let retry = |_: Arc<ConfigMap>, _: &finalizer::Error<Infallible>, _: Arc<()>| {
        Action::requeue(Duration::from_millis(100))
    };
    let controller = Controller::new(maps.clone(), Config::default());
    let running = tokio::spawn(
        controller
            .run(reconcile, retry, Arc::new(()))
            .for_each(|_| std::future::ready(())),
    );
    alone.kubectl(&["create", "configmap", "cfg", "--from-literal=a=b"]);
    let has_it = || {
        let map = alone.object(&["configmap/cfg"]);
        (map["metadata"]["finalizers"] == json!([KEEP])).then_some(())
    };
    eventually("a finalizer of the controller", has_it).await;
    // kubectl waits until the controller has cleaned up.
    alone.kubectl(&["delete", "configmap/cfg", "--timeout=240s"]);
    // embedded 48
    assert_eq!(seen.try_recv().unwrap(), "cfg");
    assert!(alone.is_gone("configmap/cfg"));
    running.abort();
}
