//! The real control plane that other tests stand on does what they take for granted.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::common::cluster::audit::AuditLog;
use crate::common::cluster::beside::wait;
use crate::common::cluster::objects::{path, place};
use crate::common::cluster::programs::{kubectl_version, version};
use crate::common::cluster::{Cluster, Options, unique};
use crate::common::{IMAGE, IMAGE_KUBECTL, eventually, tempdir};
use serde_json::{Value, json};

/// A Node as an agent would register it.
fn node(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}).to_string()
}

/// A mirror pod of that Node.
fn mirror(namespace: &str, name: &str, node: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace,
            "annotations": {"kubernetes.io/config.mirror": "abc"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "controller": true,
                "name": node["metadata"]["name"], "uid": node["metadata"]["uid"],
            }],
        },
        "spec": {
            "nodeName": node["metadata"]["name"],
            "containers": [{"name": "main", "image": IMAGE}],
        },
    })
}

/// Creates an object as the holder of that kubeconfig.
fn create(cluster: &Cluster, kubeconfig: &Path, object: &str) -> Result<String, String> {
    let file = cluster.path().join(format!("{}.json", unique("create")));
    std::fs::write(&file, object).unwrap();
    cluster.try_kubectl_as(kubeconfig, &["create", "-f", file.to_str().unwrap()])
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_and_kubectl_are_of_the_versions_asked_for() {
    let cluster = Cluster::shared().await;
    let told = cluster.kubectl(&["version", "-o", "json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["serverVersion"]["gitVersion"], version());
    assert_eq!(told["clientVersion"]["gitVersion"], kubectl_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_certificate_speaks_for_one_node() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("restricted").await;
    let (own, other) = (unique("node-own"), unique("node-other"));
    let identity = cluster.node_kubeconfig(&own);
    create(&cluster, &identity, &node(&own)).unwrap();
    let refused = create(&cluster, &identity, &node(&other)).unwrap_err();
    // cluster 1
    assert!(
        refused.contains("is not allowed to modify node"),
        "{refused}"
    );

    // NodeRestriction: mirrors on its own Node, and nothing but mirrors.
    let own = cluster.object(&["node", &own]).unwrap();
    let good = mirror(&namespace, "good", &own);
    // Admission knows of the Node after a moment.
    eventually("the mirror to be allowed", || {
        create(&cluster, &identity, &good.to_string()).ok()
    })
    .await;
    let mut plain = mirror(&namespace, "plain", &own);
    plain["metadata"]["annotations"].take();
    let refused = create(&cluster, &identity, &plain.to_string()).unwrap_err();
    assert!(refused.contains("can only create mirror pods"), "{refused}");
    let mut foreign = mirror(&namespace, "foreign", &own);
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    let refused = create(&cluster, &identity, &foreign.to_string()).unwrap_err();
    assert!(refused.contains("UID mismatch"), "{refused}");

    // It lists its own pods, and no others.
    let name = own["metadata"]["name"].as_str().unwrap();
    let list = |node: &str| {
        let selector = format!("--field-selector=spec.nodeName={node}");
        cluster.try_kubectl_as(&identity, &["get", "pods", "-A", "-o", "name", &selector])
    };
    assert_eq!(list(name).unwrap(), "pod/good");
    list(&other).unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_account_has_the_rights_of_the_manifest_only() {
    let cluster = Cluster::shared().await;
    let identity = cluster.service_account_kubeconfig();
    let may = |verb: &str, what: &str, more: &[&str]| {
        let mut args = vec!["auth", "can-i", verb, what];
        args.extend(more);
        cluster.try_kubectl_as(&identity, &args).is_ok()
    };
    let lease = "leases.coordination.k8s.io";
    assert!(may("create", "nodes", &[]));
    assert!(may("patch", "nodes", &["--subresource=status"]));
    assert!(may("create", "pods", &["-A"]));
    assert!(may("update", lease, &["-n", "kube-node-lease"]));
    assert!(may(
        "create",
        "serviceaccounts",
        &["--subresource=token", "-A"]
    ));
    assert!(!may("update", lease, &["-n", "kube-system"]));
    assert!(!may("delete", "nodes", &[]));
    // cluster 1
    assert!(!may("list", "secrets", &["-A"]));
    assert!(!may("create", "pods", &["--subresource=exec", "-A"]));
    assert!(!may("update", "pods", &["-A"]));
    assert!(!may("create", "clusterrolebindings", &[]));
    let who = cluster
        .try_kubectl_as(&identity, &["auth", "whoami"])
        .unwrap();
    assert!(
        who.contains("system:serviceaccount:kube-system:mirrorlet"),
        "{who}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_on_record() {
    let cluster = Cluster::shared().await;
    let own = unique("node-audited");
    let identity = cluster.node_kubeconfig(&own);
    create(&cluster, &identity, &node(&own)).unwrap();
    create(&cluster, &identity, &node(&own)).unwrap_err();
    // A request is on record after its answer.
    let record = eventually("both to be on record", || {
        let record = cluster.audit_of(&format!("system:node:{own}"));
        let writes = record.iter().filter(|entry| entry.writes());
        (writes.count() >= 2).then_some(record)
    })
    .await;
    let writes: Vec<_> = record.iter().filter(|entry| entry.writes()).collect();
    let told: Vec<_> = writes
        .iter()
        .map(|e| (e.what(), e.name.as_str(), e.code))
        .collect();
    // cluster 1
    assert_eq!(
        told,
        [
            ("create nodes".to_owned(), own.as_str(), 201),
            ("create nodes".to_owned(), own.as_str(), 409),
        ],
        "{record:#?}"
    );
    assert!(writes[0].at <= writes[0].ended && writes[0].ended <= writes[1].ended);
    assert!(
        writes
            .iter()
            .all(|entry| entry.user_agent.starts_with("kubectl/"))
    );
    assert!(cluster.audit("kubectl/").len() >= 2);
    assert!(cluster.audit("nobody/").is_empty());
}

#[test]
fn objects_are_where_kubectl_looks_for_them() {
    let table: [(&[&str], Option<&str>); 8] = [
        (&["node", "a"], Some("/api/v1/nodes/a")),
        (&["pods", "-n", "b"], Some("/api/v1/namespaces/b/pods")),
        (
            &["pod", "-n", "b", "a"],
            Some("/api/v1/namespaces/b/pods/a"),
        ),
        (&["pod", "a"], Some("/api/v1/namespaces/default/pods/a")),
        (
            &["events", "-n", "b", "--field-selector=involvedObject.uid=c"],
            Some("/api/v1/namespaces/b/events?fieldSelector=involvedObject.uid%3Dc"),
        ),
        (
            &["csr"],
            Some("/apis/certificates.k8s.io/v1/certificatesigningrequests"),
        ),
        (&["pod", "a", "--subresource=status"], None),
        (&["widget", "a"], None),
    ];
    for (args, expected) in table {
        assert_eq!(path(args).as_deref(), expected, "{args:?}");
    }
}

#[test]
fn objects_are_applied_where_they_belong() {
    let object = |version: &str, kind: &str, namespace: Value| {
        json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": namespace},
        })
    };
    let (none, own) = (Value::Null, json!("b"));
    for (object, expected) in [
        (object("v1", "Node", none.clone()), "/api/v1/nodes/a"),
        (
            object("v1", "Pod", own.clone()),
            "/api/v1/namespaces/b/pods/a",
        ),
        (
            object("v1", "Endpoints", none),
            "/api/v1/namespaces/default/endpoints/a",
        ),
        (
            object("batch/v1", "Job", own.clone()),
            "/apis/batch/v1/namespaces/b/jobs/a",
        ),
        (
            object(
                "admissionregistration.k8s.io/v1",
                "ValidatingAdmissionPolicy",
                own,
            ),
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/a",
        ),
    ] {
        // cluster 1
        assert_eq!(place(&object).as_deref(), Some(expected));
    }
    let nameless = json!({"apiVersion": "v1", "kind": "Node", "metadata": {}});
    assert_eq!(place(&nameless), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_document_before_had_goes() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("applied").await;
    let metadata = json!({"name": "it", "namespace": namespace});
    for data in [json!({"a": "1", "b": "1"}), json!({"a": "2"})] {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        cluster.apply(&map.to_string());
        let found = cluster.object(&["configmap", "it", "-n", &namespace]);
        // cluster 1
        assert_eq!(found.unwrap()["data"], data);
    }
}

#[test]
fn a_cluster_answers_on_whatever_runtime_it_is_asked() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    // That runtime ends here, and with it the connections that it has made.
    let cluster = runtime().block_on(Cluster::shared());
    for _ in 0..2 {
        let service = ["service", "kubernetes", "-n", "default"];
        let found = runtime()
            .block_on(async { eventually("the Service", || cluster.object(&service)).await });
        // cluster 1
        assert_eq!(found["metadata"]["name"], "kubernetes");
    }
}

#[test]
fn what_fails_beside_fails_whoever_waits_for_it() {
    let failed = std::panic::catch_unwind(|| wait::<()>(async { panic!("the reason") }));
    let reason = failed.unwrap_err().downcast::<String>().unwrap();
    // cluster 1
    assert_eq!(*reason, "the reason");
}

#[test]
fn the_audit_log_is_read_as_it_grows() {
    let dir = tempdir();
    let path = dir.path().join("audit.log");
    let add = |text: &str| {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    let line = |name: &str| {
        let at = "2026-01-01T00:00:00.000000Z";
        let entry = json!({
            "verb": "get", "objectRef": {"name": name},
            "requestReceivedTimestamp": at, "stageTimestamp": at,
        });
        format!("{entry}\n")
    };
    let log = AuditLog::new(path.clone());
    let names = || {
        let gets = log.entries(|entry| entry.verb == "get").into_iter();
        gets.map(|entry| entry.name).collect::<Vec<_>>()
    };
    assert_eq!(names(), [""; 0]);
    let two = line("two");
    let (half, rest) = two.split_at(two.len() / 2);
    add(&line("one"));
    add(half);
    assert_eq!(names(), ["one"]);
    add(rest);
    assert_eq!(names(), ["one", "two"]);
    add(&line("three"));
    assert_eq!(names(), ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_and_controllers_are_at_work() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("work").await;
    let name = unique("node-work");
    let labels = json!({"test": name});
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels}})
        .to_string(),
    );
    let status = json!({"status": {
        "capacity": {"cpu": "4", "memory": "4Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }});
    let patch = ["patch", "node", &name, "--subresource=status", "-p"];
    cluster.kubectl(&[&patch[..], &[&status.to_string()]].concat());
    // A ReplicaSet's pod is made by the controller-manager and bound by the scheduler.
    cluster.apply(
        &json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"nodeSelector": labels, "containers": [{"name": "main", "image": IMAGE}]},
        }}})
        .to_string(),
    );
    let pod = eventually("a pod bound to the node", || {
        let list = cluster.object(&["pods", "-n", &namespace])?;
        let pod = list["items"].as_array()?.first()?.clone();
        (pod["spec"]["nodeName"] == json!(name)).then_some(pod)
    })
    .await;
    // Admission has added the token volume that clients in pods need.
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    // cluster 1
    assert!(
        volumes[0]["name"]
            .as_str()
            .unwrap()
            .starts_with("kube-api-access-")
    );
    // Garbage collection: a mirror goes with the Node that owns it.
    let owner = cluster.object(&["node", &name]).unwrap();
    let mirror = mirror(&namespace, "mirror", &owner);
    create(&cluster, &cluster.admin_kubeconfig(), &mirror.to_string()).unwrap();
    cluster.kubectl(&["delete", "node", &name]);
    // With grace: there is no agent here that would finish it.
    eventually("the mirror to be collected", || {
        let mirror = cluster.object(&["pod", "-n", &namespace, "mirror"]);
        mirror
            .is_none_or(|pod| pod["metadata"]["deletionTimestamp"].is_string())
            .then_some(())
    })
    .await;
}

/// An answer of the API server to a client in a container.
fn asked_from_a_container(cluster: &Cluster, namespace: &str) -> Result<String, String> {
    let token = cluster.kubectl(&["create", "token", "default", "-n", namespace]);
    let client = std::process::Command::new("docker")
        .args([
            "run",
            "--rm",
            IMAGE_KUBECTL,
            "kubectl",
            "get",
            "--raw=/version",
        ])
        .args([
            "--insecure-skip-tls-verify",
            "--server",
            &cluster.server(),
            "--token",
            &token,
        ])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if client.status.success() {
        Ok(text(&client.stdout))
    } else {
        Err(text(&client.stderr))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_reach_the_api_server_where_its_service_says() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("client").await;
    let service = eventually("the API server's Service", || {
        cluster.object(&["service", "kubernetes", "-n", "default"])
    })
    .await;
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    assert_eq!(cluster.server(), format!("https://{address}:443"));
    assert_eq!(service["spec"]["ports"][0]["port"], json!(443));
    let answer = asked_from_a_container(&cluster, &namespace).unwrap();
    // cluster 1
    assert!(answer.contains("\"gitVersion\": \"v1."), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_survives_its_api_server_and_ends_with_its_owner() {
    let cluster = Options::default()
        .without_scheduler()
        .without_controller_manager()
        .apiserver(&["--event-ttl=10m"])
        .start()
        .await;
    let namespace = unique("kept");
    cluster.bare_namespace(&namespace);
    let server = cluster.server();
    cluster.stop_apiserver();
    cluster.kubectl_fails(&["get", "namespaces", "--request-timeout=5s"]);
    cluster.start_apiserver().await;
    // cluster 1
    assert_eq!(cluster.server(), server);
    cluster.kubectl(&["get", "namespace", &namespace]);

    cluster.pause_apiserver();
    cluster.kubectl_fails(&["get", "namespaces", "--request-timeout=1s"]);
    cluster.resume_apiserver();
    cluster.kubectl(&["get", "namespace", &namespace]);

    let dir = cluster.path().to_owned();
    let address = cluster
        .server()
        .replace("https://", "")
        .replace(":443", "/32");
    let taken = || {
        let list = std::process::Command::new("ip")
            .args(["-o", "addr"])
            .output();
        String::from_utf8(list.unwrap().stdout)
            .unwrap()
            .contains(&address)
    };
    assert!(taken() && dir.join("audit.log").exists());
    drop(cluster);
    // cluster 1
    assert!(!taken() && !dir.exists());
}
