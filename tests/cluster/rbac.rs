//! Each rule of the chart's roles: an agent that lacks it can't do what the rule is for, and an agent
//! that has all of them uses every verb and is refused nothing.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common;
use crate::common::TestAgent;
use crate::common::cluster::accounts::{rights_of_an_agent, until_may};
use crate::common::cluster::audit::AuditEntry;
use crate::common::cluster::{Cluster, unique};
use crate::common::eventually;
use crate::common::node::{NodeBed, condition, uid, until};
use mirrorlet_core::api::report::MirrorReport;
use serde_json::{Value, json};

/// Each resource that a rule is about, and the test that takes it away.
const RULES: &[(&str, &str)] = &[
    ("nodes", "without_nodes_there_is_no_node"),
    (
        "nodes/status",
        "without_node_status_conditions_stay_as_they_were",
    ),
    (
        "pods",
        "without_pods_there_are_no_mirrors_and_no_bound_pods",
    ),
    (
        "namespaces",
        "without_namespaces_a_missing_one_is_not_waited_for",
    ),
    ("pods/status", "without_pod_status_a_mirror_stays_pending"),
    ("configmaps", "without_config_maps_who_needs_one_waits"),
    ("secrets", "without_secrets_who_needs_one_waits"),
    (
        "serviceaccounts/token",
        "without_tokens_who_mounts_one_waits",
    ),
    (
        "persistentvolumeclaims",
        "without_claims_a_pod_that_has_one_waits",
    ),
    (
        "persistentvolumes",
        "without_volumes_a_pod_with_a_claim_waits",
    ),
    ("services", "without_services_no_bound_pod_starts"),
    ("events", "without_events_nothing_is_told"),
    ("tokenreviews", "without_token_reviews_no_token_is_known"),
    (
        "subjectaccessreviews",
        "without_access_reviews_nobody_may_anything",
    ),
    ("leases", "without_leases_there_is_no_heartbeat"),
];

/// The documents of the manifest.
fn documents() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/rbac.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    text.split("\n---\n")
        .filter(|document| document.contains("kind:"))
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

/// Resources and verbs of all rules: `pods/status patch`, say.
fn rights() -> BTreeSet<(String, String)> {
    let texts = |value: &Value| -> Vec<String> {
        let texts = value.as_array().unwrap().iter();
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let mut rights = BTreeSet::new();
    for rule in documents()
        .iter()
        .filter_map(|d| d["rules"].as_array())
        .flatten()
    {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                rights.insert((resource.clone(), verb));
            }
        }
    }
    rights
}

/// The manifest for another account, without that resource. Its roles are named like the account.
fn rbac(account: &str, without: Option<&str>) -> String {
    let mut all = Vec::new();
    for mut document in documents() {
        if document["kind"] == "ServiceAccount" {
            continue;
        }
        document["metadata"]["name"] = json!(account);
        let rules = document.get_mut("rules").and_then(Value::as_array_mut);
        if let Some(rules) = rules {
            for rule in rules.iter_mut() {
                let resources = rule["resources"].as_array_mut().unwrap();
                resources.retain(|resource| Some(resource.as_str().unwrap()) != without);
            }
            rules.retain(|rule| !rule["resources"].as_array().unwrap().is_empty());
        } else {
            document["roleRef"]["name"] = json!(account);
            document["subjects"][0]["name"] = json!(account);
        }
        all.push(document.to_string());
    }
    all.join("\n---\n")
}

/// An agent with these rights, a static pod `web`, and a pod `client` bound to its Node that needs a
/// config map, a secret, a claim and a token.
struct Run {
    bed: NodeBed,
    agent: TestAgent,
    user: String,
}

impl Run {
    async fn without(resource: &str) -> Self {
        Self::start(Some(resource)).await
    }

    async fn start(without: Option<&str>) -> Self {
        let cluster = Cluster::shared().await;
        let account = unique("rights");
        let kubeconfig = cluster.account_kubeconfig(&account, &rbac(&account, without));
        if without.is_none() {
            until_may(&kubeconfig, rights_of_an_agent());
        }
        let bed = NodeBed::as_whom(cluster, kubeconfig).await;
        bed.sleeper("web");
        let agent = bed.agent().await;
        let user = format!("system:serviceaccount:kube-system:{account}");
        Self { bed, agent, user }
    }

    /// Binds the pod `client`, once there is a Node to bind it to.
    async fn bind_client(&self) {
        self.bed.until_node("there", |_| true).await;
        let namespace = &self.bed.namespace;
        self.bed
            .cluster
            .bound_claim(namespace, "it", &json!({"hostPath": {"path": "/tmp"}}))
            .await;
        let value = |name: &str, kind: &str| json!({"name": name, "valueFrom": {kind: {"name": "it", "key": "k"}}});
        let data = json!({"k": "v"});
        for object in [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata": {"name": "it", "namespace": namespace}}),
            json!({"apiVersion": "v1", "kind": "Secret", "stringData": data, "metadata": {"name": "it", "namespace": namespace}}),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "client", "namespace": namespace},
                "spec": {
                    "nodeName": self.bed.node,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "client", "image": common::IMAGE,
                        "command": ["sh", "-c", common::node::QUIET],
                        "env": [value("CONFIG", "configMapKeyRef"), value("SECRET", "secretKeyRef")],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "it"}}],
                },
            }),
        ] {
            self.bed.cluster.apply(&object.to_string());
        }
    }

    /// Writes the manifest of a pod `late` in that namespace.
    fn write_late(&self, namespace: &str) {
        let manifest = self.bed.pod("late", common::IMAGE, 0, common::node::QUIET);
        let manifest = manifest.replace(&self.bed.namespace, namespace);
        self.bed.write("late.yaml", &manifest);
    }

    async fn until_mirror_state(&self, pod: &str, state: &str) {
        let is_so = |mirror: &MirrorReport| mirror.state == state;
        self.agent
            .until_pod(pod, |pod| pod.mirror.as_ref().is_some_and(is_so))
            .await;
    }

    /// Waits until `kubectl logs` of the pod `web` does what is expected of it.
    async fn until_logs(&self, works: bool) {
        let (namespace, name) = (&self.bed.namespace, self.bed.name("web"));
        until("kubectl logs", async || {
            let got = self
                .bed
                .cluster
                .try_kubectl(&["logs", "-n", namespace, &name]);
            if got.is_ok() == works {
                Ok(())
            } else {
                Err(got)
            }
        })
        .await;
    }

    /// Asks the node API with the token of an account that may nothing: the HTTP status.
    async fn ask_with_token(&self) -> String {
        let has_port = |node: &Value| port(node).is_some_and(|port| port > 0);
        let node = self.bed.until_node("with a node API", has_port).await;
        let cluster = &self.bed.cluster;
        let token = cluster.token(&self.bed.namespace, "default", None);
        let path = format!(
            "containerLogs/{}/{}/web",
            self.bed.namespace,
            self.bed.name("web")
        );
        let output = Command::new("curl")
            .args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "-H"])
            .arg(format!("Authorization: Bearer {token}"))
            .arg(format!("https://127.0.0.1:{}/{path}", port(&node).unwrap()))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn requests(&self) -> Vec<AuditEntry> {
        self.bed.cluster.audit_of(&self.user)
    }

    /// Waits until the API server has refused something about that resource.
    async fn until_refused(&self, resource: &str) {
        eventually(&format!("{resource} to be refused"), || {
            let is_it = |entry: &AuditEntry| entry.code == 403 && named(entry) == resource;
            self.requests().iter().any(is_it).then_some(())
        })
        .await;
    }

    /// Waits until the pod `client` says what it waits for, and has not started.
    async fn until_client_waits_for(&self, words: &str) {
        let report = self
            .agent
            .until_pod("client", |pod| pod.message.contains(words))
            .await;
        assert_eq!(report.ready, 0);
    }
}

/// Port of the node API.
fn port(node: &Value) -> Option<u64> {
    node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64()
}

/// Names the target of a request as a rule does.
fn named(entry: &AuditEntry) -> String {
    if entry.subresource.is_empty() {
        entry.resource.clone()
    } else {
        format!("{}/{}", entry.resource, entry.subresource)
    }
}

#[test]
fn every_rule_has_its_test() {
    let ruled: BTreeSet<String> = rights().into_iter().map(|(resource, _)| resource).collect();
    let tested: BTreeSet<String> = RULES.iter().map(|(rule, _)| (*rule).to_owned()).collect();
    // installed 4
    assert_eq!(ruled, tested);
    let here = include_str!("rbac.rs");
    for (_, test) in RULES {
        assert!(here.contains(&format!("async fn {test}(")), "{test}");
    }
}

/// With all rules everything works, each verb of each rule is used, and nothing is refused: none is
/// missing, and none is too much.
#[tokio::test(flavor = "multi_thread")]
async fn every_verb_is_used_and_none_is_missing() {
    let mut run = Run::start(None).await;
    run.bed.until_mirrored("web").await;
    run.bind_client().await;
    run.bed.until_pod("client", common::node::is_ready).await;
    run.until_logs(true).await;
    assert_eq!(
        run.ask_with_token().await,
        "403",
        "nobody lets that account"
    );
    // A mirror of a namespace that comes later.
    let later = unique("later");
    run.write_late(&later);
    run.until_mirror_state("late", "NamespaceMissing").await;
    run.bed.cluster.bare_namespace(&later);
    run.until_mirror_state("late", "Synced").await;
    run.bed.remove("late.yaml");
    run.bed.delete_pod("client", false).await;
    run.bed.until_pod_gone("client").await;
    // A name that is taken is looked at; what happens again and again is counted.
    let broken = run.bed.pod("broken", common::IMAGE, 0, "exit 1");
    let taken = run.bed.name("taken");
    let foreign = run.bed.pod(&taken, common::IMAGE, 0, "exit 0");
    run.bed
        .cluster
        .apply(&foreign.replace("spec:\n", "spec:\n  nodeName: elsewhere\n"));
    run.bed.sleeper("taken");
    run.bed.write("broken.yaml", &broken);
    run.until_mirror_state("taken", "NameTaken").await;
    // An agent that stops may break its deletion off, which the API server carries out all the same, and
    // has on record as a failure. The pod `client` has no grace, and is deleted by kubectl alone.
    until("the mirror of late to be gone", async || {
        let pods = ["get", "pods", "-n", &later, "-o", "name"];
        let left = run.bed.cluster.kubectl(&pods);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    // The next agent finds its Node, with a label too few, and its Lease.
    run.agent.stop().await;
    let mut resolved = run.bed.resolved();
    resolved.config.node_labels = [("one".to_owned(), "more".to_owned())].into();
    run.agent = run.bed.agent_as(resolved).await;

    let mut unused = rights();
    // installed 4
    until("every verb to be used", async || {
        for entry in run.requests() {
            if entry.code < 300 {
                unused.remove(&(named(&entry), entry.verb.clone()));
            }
        }
        if unused.is_empty() {
            Ok(())
        } else {
            Err(unused.clone())
        }
    })
    .await;
    let refused: Vec<String> = run
        .requests()
        .iter()
        .filter(|entry| entry.code == 403 && entry.namespace != later)
        .map(AuditEntry::what)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nodes_there_is_no_node() {
    let run = Run::without("nodes").await;
    run.until_refused("nodes").await;
    run.agent
        .until("the Node to be refused", |report| {
            let node = report.node.as_ref().unwrap();
            !node.registered && node.error.as_ref().is_some_and(|e| e.contains("forbidden"))
        })
        .await;
    // installed 5
    assert!(run.bed.api_node().await.is_none());
    run.agent.until_running("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_node_status_conditions_stay_as_they_were() {
    let run = Run::without("nodes/status").await;
    // The identity that made the Node may write its whole status then. A mirror that can't be made is a
    // condition that changes.
    run.bed.until_node("there", |_| true).await;
    run.write_late(&unique("later"));
    // installed 5
    run.until_refused("nodes/status").await;
    let node = run.bed.api_node().await.unwrap();
    assert_ne!(condition(&node, "MirrorPodsHealthy"), Some("False"));
    run.agent.until_running("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_pods_there_are_no_mirrors_and_no_bound_pods() {
    let run = Run::without("pods").await;
    run.until_refused("pods").await;
    run.agent.until_running("web").await;
    run.bind_client().await;
    let mirror = run.agent.pod("web").unwrap().mirror.unwrap();
    assert_ne!(mirror.state, "Synced");
    // installed 5
    assert!(run.bed.mirror("web").await.is_none());
    assert!(run.agent.pod("client").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_namespaces_a_missing_one_is_not_waited_for() {
    let run = Run::without("namespaces").await;
    run.bed.until_mirrored("web").await;
    let later = unique("later");
    run.write_late(&later);
    // installed 5
    run.until_refused("namespaces").await;
    // It is asked for again and again instead.
    eventually("the mirror to be tried twice", || {
        let tries = run.requests();
        let tries = tries
            .iter()
            .filter(|e| e.verb == "create" && e.namespace == later);
        (tries.filter(|e| e.resource == "pods").count() >= 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_pod_status_a_mirror_stays_pending() {
    let run = Run::without("pods/status").await;
    run.agent.until_running("web").await;
    run.until_refused("pods/status").await;
    let mirror = run.bed.until_mirror("web", |_| true).await;
    // installed 5
    assert_eq!(mirror["status"]["phase"], "Pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_config_maps_who_needs_one_waits() {
    let run = Run::without("configmaps").await;
    run.bind_client().await;
    run.until_refused("configmaps").await;
    // installed 5
    run.until_client_waits_for("configmap").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_secrets_who_needs_one_waits() {
    let run = Run::without("secrets").await;
    run.bind_client().await;
    run.until_refused("secrets").await;
    // installed 5
    run.until_client_waits_for("secret").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_who_mounts_one_waits() {
    let run = Run::without("serviceaccounts/token").await;
    run.bind_client().await;
    run.until_refused("serviceaccounts/token").await;
    // installed 5
    run.until_client_waits_for("token").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_claims_a_pod_that_has_one_waits() {
    let run = Run::without("persistentvolumeclaims").await;
    run.bind_client().await;
    run.until_refused("persistentvolumeclaims").await;
    // installed 5
    run.until_client_waits_for("persistentvolumeclaim").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_volumes_a_pod_with_a_claim_waits() {
    let run = Run::without("persistentvolumes").await;
    run.bind_client().await;
    run.until_refused("persistentvolumes").await;
    // installed 5
    run.until_client_waits_for("persistentvolume").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_services_no_bound_pod_starts() {
    let run = Run::without("services").await;
    run.bind_client().await;
    run.until_refused("services").await;
    // installed 5
    run.until_client_waits_for("service").await;
    run.agent.until_running("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_events_nothing_is_told() {
    let run = Run::without("events").await;
    run.bed.until_mirrored("web").await;
    run.until_refused("events").await;
    let web = run.agent.pod("web").unwrap();
    // installed 5
    assert!(run.bed.events(web.uid.as_str()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_token_reviews_no_token_is_known() {
    let run = Run::without("tokenreviews").await;
    run.bed.until_mirrored("web").await;
    assert_ne!(run.ask_with_token().await, "403");
    run.until_refused("tokenreviews").await;
    // A client with a certificate is identified by it.
    // installed 5
    run.until_logs(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_access_reviews_nobody_may_anything() {
    let run = Run::without("subjectaccessreviews").await;
    run.bed.until_mirrored("web").await;
    // installed 5
    run.until_logs(false).await;
    run.until_refused("subjectaccessreviews").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leases_there_is_no_heartbeat() {
    let run = Run::without("leases").await;
    run.until_refused("leases").await;
    let node = run.bed.until_node("there", |_| true).await;
    assert!(!uid(&node).is_empty());
    let lease = ["leases", "-n", "kube-node-lease", &run.bed.node];
    assert!(run.bed.cluster.object(&lease).is_none());
    let report = run.agent.status();
    // installed 5
    assert!(report.node.unwrap().lease_renewed.is_none());
}
