//! Other clients than kubectl of the embedded API: kube-rs, client-go, Helm.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};

use crate::common::cluster::{client, programs};
use crate::common::said::Said;
use crate::common::{Bed, IMAGE, eventually, free_port};
use crate::embedded::Box;

fn address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// Stops the agent, and starts another one that serves at the same address.
async fn restarted(alone: Box, address: SocketAddr) -> Box {
    let Box { bed, agent } = alone;
    agent.stop().await;
    Box::start_at(bed, address).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_informer_of_client_go_follows_over_a_restart() {
    let address = address();
    let alone = Box::start_at(Bed::new(), address).await;
    alone.kubectl(&["create", "configmap", "one", "--from-literal=a=b"]);
    let mut command = Command::new(programs::informer());
    let mut informer = Said::start(command.arg("-kubeconfig").arg(alone.kubeconfig()));
    informer.until("synced").await;
    informer.until("add one ").await;
    alone.kubectl(&["create", "configmap", "two", "--from-literal=a=b"]);
    informer.until("add two ").await;
    alone.kubectl(&["label", "configmap", "two", "a=b"]);
    informer.until("update two ").await;
    alone.kubectl(&["create", "configmap", "three", "--from-literal=a=b"]);
    alone.kubectl(&["delete", "configmap", "three"]);
    informer.until("delete three ").await;
    // The changes that it missed are no longer known to the next agent: it lists once more.
    let alone = restarted(alone, address).await;
    alone.kubectl(&["delete", "configmap", "one"]);
    informer.until("delete one ").await;
    let lists = informer.count("request list 200") + informer.count("request watchlist 200");
    // embedded 36
    assert_eq!((lists, informer.count("delete ")), (2, 2));
    informer.close();
    informer.until("knows two ").await;
    assert_eq!(informer.count("knows "), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_of_kube_rs_resumes_and_lists_anew_after_a_restart() {
    let address = address();
    let alone = Box::start_at(Bed::new(), address).await;
    let api: Api<ConfigMap> = Api::namespaced(client(&alone.kubeconfig()).await, "default");
    let known = Arc::new(Mutex::new((0, BTreeMap::new())));
    let following = Arc::clone(&known);
    let task = tokio::spawn(async move {
        // Each watch is over after a second, and the next one resumes.
        let mut events =
            std::pin::pin!(watcher(api, Config::default().timeout(1)).default_backoff());
        while let Some(event) = events.next().await {
            // What fails is tried again.
            let Ok(event) = event else { continue };
            let mut known = following.lock().unwrap();
            let name = |object: &ConfigMap| object.metadata.name.clone().unwrap();
            match event {
                Event::Init => {
                    known.0 += 1;
                    known.1.clear();
                }
                Event::InitApply(object) | Event::Apply(object) => {
                    known
                        .1
                        .insert(name(&object), object.data.unwrap_or_default());
                }
                Event::Delete(object) => drop(known.1.remove(&name(&object))),
                Event::InitDone => {}
            }
        }
    });
    let follows = |what: &'static str, wanted: BTreeMap<&'static str, &'static str>| {
        let known = Arc::clone(&known);
        async move {
            eventually(what, || {
                let known = known.lock().unwrap();
                let has: BTreeMap<_, _> = known
                    .1
                    .iter()
                    .map(|(name, data)| (name.as_str(), data["a"].as_str()))
                    .collect();
                (has == wanted).then_some(known.0)
            })
            .await
        }
    };
    alone.kubectl(&["create", "configmap", "one", "--from-literal=a=0"]);
    for value in ["1", "2", "3", "4"] {
        let patch = format!(r#"{{"data": {{"a": "{value}"}}}}"#);
        alone.kubectl(&["patch", "configmap", "one", "-p", &patch]);
        let lists = follows("the change", [("one", value)].into()).await;
        // embedded 36
        assert_eq!(lists, 1);
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    }
    let alone = restarted(alone, address).await;
    alone.kubectl(&["create", "configmap", "two", "--from-literal=a=5"]);
    let lists = follows("the other", [("one", "4"), ("two", "5")].into()).await;
    assert_eq!(lists, 2);
    task.abort();
}

/// A chart of our kinds, in that directory.
fn write_chart(chart: &Path) {
    std::fs::create_dir_all(chart.join("templates")).unwrap();
    std::fs::write(
        chart.join("Chart.yaml"),
        "apiVersion: v2\nname: small\nversion: 0.1.0\n",
    )
    .unwrap();
    std::fs::write(chart.join("values.yaml"), "replicas: 1\nmessage: one\n").unwrap();
    let template = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-config}
data: {message: {{ .Values.message | quote }}}
---
apiVersion: v1
kind: Secret
metadata: {name: {{ .Release.Name }}-secret}
stringData: {password: hidden}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}}
spec: {clusterIP: None, selector: {app: {{ .Release.Name }}}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  minReadySeconds: 0
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: IMAGE
        command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
        env: [{name: MESSAGE, valueFrom: {configMapKeyRef: {name: {{ .Release.Name }}-config, key: message}}}]
"#;
    let template = template.replace("IMAGE", IMAGE);
    std::fs::write(chart.join("templates/all.yaml"), template).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_upgrades_rolls_back_and_uninstalls() {
    let alone = Box::start().await;
    let home = alone.bed.path().join("helm");
    let chart = home.join("chart");
    write_chart(&chart);
    let helm = |args: &[&str]| {
        let mut command = Command::new(programs::helm());
        for home_of in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(home_of, home.join(home_of));
        }
        let command = command.env("KUBECONFIG", alone.kubeconfig()).args(args);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {said}{stderr}");
        said
    };
    let chart = chart.to_str().unwrap();
    let wait = ["--wait", "--timeout", "240s"];
    helm(&[&["install", "web", chart], &wait[..]].concat());
    let state = || {
        let config = alone.object(&["configmap", "web-config"]);
        let workload = alone.object(&["deployment", "web"]);
        let message = config["data"]["message"].as_str().unwrap().to_owned();
        (message, workload["status"]["readyReplicas"].as_u64())
    };
    // embedded 37
    assert_eq!(state(), ("one".to_owned(), Some(1)));
    let set = ["--set", "replicas=2,message=two"];
    helm(&[&["upgrade", "web", chart], &set[..], &wait].concat());
    assert_eq!(state(), ("two".to_owned(), Some(2)));
    helm(&[&["rollback", "web", "1"], &wait[..]].concat());
    assert_eq!(state().0, "one");
    let history = helm(&["history", "web"]);
    assert_eq!(history.lines().count(), 4, "{history}");
    assert!(helm(&["list"]).contains("deployed"));
    helm(&[&["uninstall", "web"], &wait[..]].concat());
    // embedded 37. Helm waits for what the chart names; the pods of the Deployment stop after it.
    eventually("nothing to be left", || {
        let left = alone.kubectl(&["get", "all,configmaps,secrets", "-o", "name"]);
        left.is_empty().then_some(())
    })
    .await;
}
