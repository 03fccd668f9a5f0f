//! Volumes and variables of pods from a real API server: what a node is told of config maps,
//! secrets, tokens and services, and what containers see of them.

use std::sync::Arc;
use std::time::Duration;

use crate::common::cluster::{Cluster, unique};
use crate::common::disk::{CONTENT, Disk};
use crate::common::node::{Identity, NodeBed, is_ready, uid, until};
use crate::common::{self, IMAGE, IMAGE_KUBECTL, eventually};
use mirrorlet::cluster::{ClusterClient, ClusterObjects};
use mirrorlet::config::node::ApiAccess;
use mirrorlet::store::cell::cell;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::objects::{ObjectError, ObjectKey, ObjectKind, References, TokenKey};
use mirrorlet_host::telemetry::Metrics;
use mirrorlet_runtime::objects::Objects;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Objects as one identity gets them.
struct Reading {
    objects: ClusterObjects,
    cancel: CancellationToken,
    task: JoinHandle<Option<()>>,
}

impl Reading {
    fn with(kubeconfig: std::path::PathBuf) -> Self {
        let access = ApiAccess::Kubeconfig(kubeconfig);
        let opened = ClusterClient::open(&access, Metrics::new()).unwrap();
        let (client, _) = opened.unwrap();
        let (objects, task) = ClusterObjects::new(client, cell(None).1);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(cancel.clone().run_until_cancelled_owned(task.run()));
        Self {
            objects,
            cancel,
            task,
        }
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

fn key(kind: ObjectKind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn holding(keys: &[&ObjectKey]) -> References {
    References {
        objects: keys.iter().map(|key| (*key).clone()).collect(),
        ..References::default()
    }
}

fn config_map(namespace: &str, name: &str, color: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace}, "data": {"color": color},
    })
    .to_string()
}

/// A Node without an agent: pods bound to none at all are soon collected.
fn idle_node(cluster: &Cluster) -> String {
    let name = unique("node");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    cluster.apply(&node.to_string());
    name
}

/// A pod bound to a Node, with one container `c` of those fields.
fn bound_pod(namespace: &str, name: &str, node: &str, container: &Value, more: &Value) -> Value {
    let mut c = json!({
        "name": "c", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"],
    });
    for (key, value) in container.as_object().unwrap() {
        c[key] = value.clone();
    }
    let mut spec = json!({
        "nodeName": node, "containers": [c], "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": spec,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_followed_by_its_name_while_it_is_held() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("objects").await;
    let reading = Reading::with(cluster.service_account_kubeconfig());
    let objects = &reading.objects;
    let conf = key(ObjectKind::ConfigMap, &namespace, "conf");
    let secret = key(ObjectKind::Secret, &namespace, "keys");
    let (one, two) = (PodUid::from("one"), PodUid::from("two"));
    let not_held = objects.config_map(&conf).await.unwrap_err();
    assert!(matches!(not_held, ObjectError::Away { .. }), "{not_held}");

    let mut news = objects.subscribe(&one);
    objects.hold(&one, &holding(&[&conf, &secret]));
    objects.hold(&two, &holding(&[&conf]));
    let missing = objects.config_map(&conf).await.unwrap_err();
    // docker 44a
    assert_eq!(missing.to_string(), "configmap \"conf\" not found");
    let missing = objects.secret(&secret).await.unwrap_err();
    assert_eq!(missing.to_string(), "secret \"keys\" not found");

    // It comes, changes, goes and comes again; each is told.
    let color = async || {
        let found = objects.config_map(&conf).await.ok()?;
        found.data.as_ref()?.get("color").cloned()
    };
    for wanted in [Some("blue"), Some("red"), None, Some("green")] {
        match wanted {
            Some(color) => cluster.apply(&config_map(&namespace, "conf", color)),
            None => drop(cluster.kubectl(&["delete", "configmap", "conf", "-n", &namespace])),
        }
        let told = async {
            while color().await.as_deref() != wanted {
                news.changed().await.unwrap();
            }
        };
        let told = tokio::time::timeout(common::PATIENCE, told).await;
        told.unwrap_or_else(|_| panic!("{wanted:?} was not told"));
    }

    // One watch for both holders, and none for who holds nothing.
    objects.release(&one);
    assert_eq!(color().await.as_deref(), Some("green"));
    let not_held = objects.secret(&secret).await.unwrap_err();
    assert!(matches!(not_held, ObjectError::Away { .. }), "{not_held}");
    objects.release(&two);
    let not_held = objects.config_map(&conf).await.unwrap_err();
    assert!(matches!(not_held, ObjectError::Away { .. }), "{not_held}");
    let user = "system:serviceaccount:kube-system:mirrorlet";
    let verbs = |name: &str| {
        let mut requests = cluster.audit_of(user);
        requests.retain(|entry| entry.uri.contains(&namespace) && entry.uri.contains(name));
        let mut verbs: Vec<_> = requests.into_iter().map(|entry| entry.verb).collect();
        verbs.sort_unstable();
        verbs.dedup();
        verbs
    };
    for name in ["conf", "keys"] {
        let what = format!("the requests for {name} in the audit log");
        let verbs = eventually(&what, || Some(verbs(name)).filter(|verbs| verbs.len() >= 2)).await;
        assert_eq!(verbs, ["get", "watch"], "{name}");
    }
    reading.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_what_its_pods_refer_to_and_nothing_else() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("forbidden").await;
    let node = idle_node(&cluster);
    cluster.apply(&config_map(&namespace, "conf", "blue"));
    let reading = Reading::with(cluster.node_kubeconfig(&node));
    let objects = &reading.objects;
    let conf = key(ObjectKind::ConfigMap, &namespace, "conf");
    let pod = PodUid::from("pod");
    let mut news = objects.subscribe(&pod);
    objects.hold(&pod, &holding(&[&conf]));
    let refused = objects.config_map(&conf).await.unwrap_err();
    // docker 44a
    assert!(
        matches!(refused, ObjectError::Forbidden { .. }),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .starts_with("this node is not allowed to read configmap"),
        "{refused}"
    );

    // The pod arrives: now it may, and is told so.
    let env = json!({"envFrom": [{"configMapRef": {"name": "conf"}}]});
    cluster.apply(&bound_pod(&namespace, "p", &node, &env, &json!({})).to_string());
    let may = async {
        while objects.config_map(&conf).await.is_err() {
            news.changed().await.unwrap();
        }
    };
    tokio::time::timeout(common::PATIENCE, may).await.unwrap();

    let mut wanted = holding(&[&conf]);
    wanted.services = true;
    objects.hold(&pod, &wanted);
    let services = objects.services().await.unwrap();
    let api = services.iter().find(|s| s.name == "kubernetes").unwrap();
    assert_eq!(
        (api.namespace.as_str(), api.ports[0].port),
        ("default", 443)
    );
    reading.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_bound_to_its_pod_and_kept_until_it_is_due() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("tokens").await;
    let node = idle_node(&cluster);
    let reading = Reading::with(cluster.node_kubeconfig(&node));
    // A node may ask for the audiences that the pod's volumes name, and no other.
    let vault = json!({"serviceAccountToken": {"path": "vault", "audience": "vault"}});
    let volumes = json!([{"name": "vault", "projected": {"sources": [vault]}}]);
    let pod = bound_pod(
        &namespace,
        "p",
        &node,
        &json!({}),
        &json!({"volumes": volumes}),
    );
    cluster.apply(&pod.to_string());
    let pod = cluster.object(&["pod", "p", "-n", &namespace]).unwrap();
    let wanted = TokenKey {
        namespace: namespace.clone(),
        service_account: "default".to_owned(),
        pod_name: "p".to_owned(),
        pod_uid: PodUid::from(uid(&pod)),
        audience: None,
        expiration_seconds: Some(600),
    };
    let token = until("a token", async || reading.objects.token(&wanted).await).await;
    let now = mirrorlet_core::api::Timestamp::now();
    let left = |at: mirrorlet_core::api::Timestamp| at.duration_since(now).as_secs();
    assert!((560..=600).contains(&left(token.expires_at)), "{token:?}");
    assert!((430..=480).contains(&left(token.refresh_at)), "{token:?}");
    assert_eq!(reading.objects.token(&wanted).await.unwrap(), token);
    let other = TokenKey {
        audience: Some("vault".to_owned()),
        ..wanted.clone()
    };
    assert_ne!(
        reading.objects.token(&other).await.unwrap().secret,
        token.secret
    );
    let whoami = cluster
        .kubectl_command(std::path::Path::new("/dev/null"))
        .args(["auth", "whoami", "-o", "json", "--token", &token.secret])
        .args(["--server", &cluster.server(), "--insecure-skip-tls-verify"])
        .output()
        .unwrap();
    let whoami = String::from_utf8(whoami.stdout).unwrap();
    assert!(
        whoami.contains(&format!("system:serviceaccount:{namespace}:default")),
        "{whoami}"
    );
    // docker 44a
    assert!(whoami.contains(uid(&pod)), "{whoami}");

    let nobody = TokenKey {
        service_account: "nobody".to_owned(),
        ..wanted
    };
    let refused = reading.objects.token(&nobody).await.unwrap_err();
    assert!(
        matches!(
            refused,
            ObjectError::NotFound { .. } | ObjectError::Forbidden { .. }
        ),
        "{refused}"
    );
    reading.stop().await;
}

/// A client inside a pod has what it needs: address, certificate, token, namespace; and the pod's
/// other variables, followed while it runs.
async fn a_client_in_a_pod_talks_to_the_api_server(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    let (cluster, namespace) = (Arc::clone(&bed.cluster), bed.namespace.clone());
    let container = json!({
        "image": IMAGE_KUBECTL,
        "env": [{"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "color"}}}],
        "volumeMounts": [{"name": "conf", "mountPath": "/conf"}, {"name": "keys", "mountPath": "/keys"}],
    });
    let volumes = json!({"volumes": [
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "keys", "secret": {"secretName": "keys", "optional": true}},
    ]});
    cluster.apply(&bound_pod(&namespace, "client", &bed.node, &container, &volumes).to_string());
    // It waits for what is missing, and says so.
    let pod = until("the pod", async || bed.api_pod("client").await.ok_or(())).await;
    let missing = "MountVolume.SetUp failed for volume \"conf\" : configmap \"conf\" not found";
    eventually("an event that tells what is missing", || {
        let events = bed.events(uid(&pod));
        let told =
            |(reason, message): &(String, String)| reason == "FailedMount" && message == missing;
        events.iter().any(told).then_some(())
    })
    .await;
    cluster.apply(&config_map(&namespace, "conf", "blue"));
    bed.until_pod("client", is_ready).await;
    assert_eq!(
        bed.exec("c", "echo $COLOR; cat /conf/color; ls /keys"),
        "blue\nblue"
    );

    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(
        bed.exec("c", &format!("cat {account}/namespace")),
        namespace
    );
    let ask = format!(
        "kubectl auth whoami -o jsonpath='{{.status.userInfo.username}}' \
         --server=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT \
         --certificate-authority={account}/ca.crt --token=$(cat {account}/token)"
    );
    let user = format!("system:serviceaccount:{namespace}:default");
    // docker 44a
    assert_eq!(bed.exec("c", &ask), user);

    cluster.apply(&config_map(&namespace, "conf", "red"));
    let keys = [
        "create",
        "secret",
        "generic",
        "keys",
        "--from-literal=pass=geheim",
        "-n",
        &namespace,
    ];
    cluster.kubectl(&keys);
    eventually("the pod to see what changed", || {
        let [color, pass] = ["/conf/color", "/keys/pass"].map(|path| bed.file("c", path));
        (color? == "red" && pass? == "geheim").then_some(())
    })
    .await;
    assert_eq!(bed.exec("c", "echo $COLOR"), "blue");

    bed.delete_pod("client", false).await;
    bed.until_pod_gone("client").await;
    eventually("nothing to be left", || {
        let pods = std::fs::read_dir(bed.path().join("pods")).unwrap();
        (pods.count() == 0 && bed.containers().is_empty()).then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_a_pod_talks_to_the_api_server_by_a_nodes_certificate() {
    a_client_in_a_pod_talks_to_the_api_server(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_a_pod_talks_to_the_api_server_by_a_service_account() {
    a_client_in_a_pod_talks_to_the_api_server(Identity::ServiceAccount).await;
}

/// A pod that mounts the claim `claim` at `/data`.
fn claiming_pod(bed: &NodeBed, name: &str, claim: &str) -> String {
    let container = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let source = json!({"claimName": claim});
    let volumes = json!({"volumes": [{"name": "data", "persistentVolumeClaim": source}]});
    bound_pod(&bed.namespace, name, &bed.node, &container, &volumes).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_the_api_server_is_a_directory_of_the_node() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let (cluster, namespace) = (Arc::clone(&bed.cluster), bed.namespace.clone());
    let disk = common::tempdir();
    let local = |node: &str| {
        json!({
            "local": {"path": disk.path()},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
            ]}]}},
        })
    };
    let told = |pod: &Value, words: &str| {
        let (uid, words) = (uid(pod).to_owned(), words.to_owned());
        let bed = &bed;
        async move {
            eventually(&words, || {
                let events = bed.events(&uid);
                let is_it = |(reason, message): &(String, String)| {
                    reason == "FailedMount" && message.contains(&words)
                };
                events.iter().any(is_it).then_some(())
            })
            .await;
        }
    };
    cluster.apply(&claiming_pod(&bed, "db", "data"));
    let pod = until("the pod", async || bed.api_pod("db").await.ok_or(())).await;
    told(&pod, "persistentvolumeclaim \"data\" not found").await;
    cluster
        .bound_claim(&namespace, "data", &local(&bed.node))
        .await;
    bed.until_pod("db", is_ready).await;
    bed.exec("c", "echo precious >/data/file");
    // box 16
    assert_eq!(
        std::fs::read_to_string(disk.path().join("file")).unwrap(),
        "precious\n"
    );

    // It outlives its pod, whose claim the next one uses.
    bed.delete_pod("db", false).await;
    bed.until_pod_gone("db").await;
    cluster.apply(&claiming_pod(&bed, "db", "data"));
    bed.until_pod("db", is_ready).await;
    // box 16
    assert_eq!(bed.exec("c", "cat /data/file"), "precious");

    // A pod that was bound to this Node by hand waits for a volume of another one.
    cluster
        .bound_claim(&namespace, "far", &local("elsewhere"))
        .await;
    cluster.apply(&claiming_pod(&bed, "far", "far"));
    let far = until("the pod", async || bed.api_pod("far").await.ok_or(())).await;
    // box 16
    told(&far, "excludes this Node").await;
    for name in ["far", "db"] {
        bed.delete_pod(name, false).await;
        bed.until_pod_gone(name).await;
    }

    // The claim of an ephemeral volume is made with its pod, and goes with it.
    let scratch = common::tempdir();
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
        "storageClassName": "by-hand", "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": "job-data"},
        "hostPath": {"path": scratch.path(), "type": "Directory"},
    });
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("{namespace}-job")}, "spec": spec});
    cluster.apply(&volume.to_string());
    let container = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let template = json!({"spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
        "resources": {"requests": {"storage": "1Mi"}},
    }});
    let source = json!({"volumeClaimTemplate": template});
    let volumes = json!({"volumes": [{"name": "data", "ephemeral": source}]});
    let pod = bound_pod(&namespace, "job", &bed.node, &container, &volumes);
    cluster.apply(&pod.to_string());
    bed.until_pod("job", is_ready).await;
    bed.exec("c", "echo draft >/data/file");
    // box 17
    assert_eq!(
        std::fs::read_to_string(scratch.path().join("file")).unwrap(),
        "draft\n"
    );
    bed.delete_pod("job", false).await;
    bed.until_pod_gone("job").await;
    let claim = ["pvc", "job-data", "-n", &namespace];
    // box 17
    eventually("no claim", || {
        cluster.object(&claim).is_none().then_some(())
    })
    .await;
    // One that somebody else made is not its own.
    cluster
        .bound_claim(&namespace, "forged-data", &local(&bed.node))
        .await;
    let pod = bound_pod(&namespace, "forged", &bed.node, &container, &volumes);
    cluster.apply(&pod.to_string());
    let forged = until("the pod", async || bed.api_pod("forged").await.ok_or(())).await;
    // box 17
    told(&forged, "was not created for pod").await;
    bed.delete_pod("forged", false).await;
    bed.until_pod_gone("forged").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_keeps_its_files_while_the_api_server_is_away() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = bed.joined().await;
    let cluster = Arc::clone(&bed.cluster);
    let namespace = bed.namespace.clone();
    cluster.apply(&config_map(&namespace, "conf", "blue"));
    let container = json!({
        "volumeMounts": [{"name": "conf", "mountPath": "/conf"}],
        "envFrom": [{"configMapRef": {"name": "conf"}}],
    });
    let volumes = json!({"volumes": [{"name": "conf", "configMap": {"name": "conf"}}]});
    cluster.apply(&bound_pod(&namespace, "web", &bed.node, &container, &volumes).to_string());
    bed.until_pod("web", is_ready).await;
    let first = bed.running_id("c");
    link.refuse().await;
    // A container that ends is started again, from what is known.
    bed.docker(&["kill", &first]);
    eventually("another instance", || {
        let running = bed.running();
        let another = running
            .iter()
            .any(|(name, id)| name.starts_with("k8s_c_") && *id != first);
        another.then_some(())
    })
    .await;
    // docker 44a
    assert_eq!(bed.exec("c", "cat /conf/color; echo $color"), "blueblue");
    let second = bed.running_id("c");
    link.accept().await;
    cluster.apply(&config_map(&namespace, "conf", "red"));
    eventually("the pod to see what changed", || {
        (bed.file("c", "/conf/color")? == "red").then_some(())
    })
    .await;
    assert_eq!(bed.running_id("c"), second);
    tokio::time::timeout(Duration::from_mins(1), agent.stop())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_the_api_server_is_a_block_device_of_the_node() {
    let (bed, disk) = (NodeBed::new().await, Disk::new());
    let agent = bed.joined().await;
    let (cluster, namespace) = (Arc::clone(&bed.cluster), bed.namespace.clone());
    let device = |path: &std::path::Path| {
        json!({
            "volumeMode": "Block",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [bed.node]},
            ]}]}},
        })
    };
    let uses = |name: &str, claim: &str| {
        let container = json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/raw"}]});
        let source = json!({"claimName": claim, "readOnly": true});
        let volumes = json!({"volumes": [{"name": "data", "persistentVolumeClaim": source}]});
        bound_pod(&namespace, name, &bed.node, &container, &volumes)
    };
    cluster
        .bound_claim(&namespace, "raw", &device(&disk.device))
        .await;
    cluster.apply(&uses("db", "raw").to_string());
    bed.until_pod("db", is_ready).await;
    let read = format!("head -c {} /dev/raw", CONTENT.len());
    // box 18
    assert_eq!(bed.exec("c", &read), CONTENT);

    // One that is missing is told as a kubelet tells it.
    let missing = disk.directory.path().join("missing");
    cluster
        .bound_claim(&namespace, "gone", &device(&missing))
        .await;
    cluster.apply(&uses("gone", "gone").to_string());
    let gone = until("the pod", async || bed.api_pod("gone").await.ok_or(())).await;
    eventually("an event that tells what is missing", || {
        let events = bed.events(uid(&gone));
        let is_it = |(reason, message): &(String, String)| {
            reason == "FailedMapVolume" && message.contains("missing doesn't exist")
        };
        events.iter().any(is_it).then_some(())
    })
    .await;
    for name in ["db", "gone"] {
        bed.delete_pod(name, false).await;
        bed.until_pod_gone(name).await;
    }

    // The API server takes the mirror of a static pod that has a device.
    let metadata = json!({"name": "raw", "namespace": namespace});
    let common = json!({
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "volumeName": "raw",
        "resources": {"requests": {"storage": "1Mi"}},
    });
    let volume = json!({
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "capacity": {"storage": "1Mi"},
        "local": {"path": disk.device},
    });
    for (file, object) in [
        (
            "pvc.json",
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": common}),
        ),
        (
            "pv.json",
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "raw"}, "spec": volume}),
        ),
        ("pod.json", {
            let mut pod = uses("own", "raw");
            pod["spec"].as_object_mut().unwrap().remove("nodeName");
            pod
        }),
    ] {
        bed.write(file, &object.to_string());
    }
    let mirror = bed.until_mirrored("own").await;
    let left_out = mirror["metadata"]["annotations"]["mirrorlet.dev/sanitized"].as_str();
    // box 18
    assert_eq!(
        left_out,
        Some("spec.containers[c].volumeDevices,spec.volumes[data].persistentVolumeClaim")
    );
    agent.until_running("own").await;
    assert_eq!(bed.exec("c", &read), CONTENT);
    agent.stop().await;
}
