//! Mirror pods under a whole agent, on a real Engine and real Kubernetes servers: upstream's cases
//! (`test/e2e_node/mirror_pod_test.go`, `mirror_pod_grace_period_test.go`) and our own.

use std::collections::BTreeMap;

use crate::common::cluster::Cluster;
use crate::common::node::{Identity, NodeBed, QUIET, STUBBORN, condition, is_ready, uid, until};
use crate::common::{self, IMAGE, IMAGE_2, eventually};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use serde_json::{Value, json};

/// A script that, told to stop, goes on until there is `/tmp/go`.
const WAITS_TO_BE_LET_GO: &str = "trap 'until test -e /tmp/go; do sleep 0.1; done; exit 0' TERM; \
    while :; do sleep 1 & wait $!; done";

/// Checks the properties that every mirror must have.
async fn a_manifest_has_a_mirror(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    let pod = agent.until_running("web").await;
    let mirror = bed.until_mirrored("web").await;
    let node = bed.api_node().await.unwrap();
    let meta = &mirror["metadata"];
    assert_eq!(meta["labels"], json!({"app": "web"}));
    let annotations = &meta["annotations"];
    assert_eq!(annotations["note"], "of the author");
    assert_eq!(annotations["kubernetes.io/config.mirror"], pod.uid.as_str());
    assert_eq!(annotations["kubernetes.io/config.hash"], pod.uid.as_str());
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert!(annotations["kubernetes.io/config.seen"].is_string());
    let owners = meta["ownerReferences"].as_array().unwrap();
    // pods 23
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(owners[0]["kind"], "Node");
    assert_eq!(owners[0]["name"], bed.node.as_str());
    assert_eq!(owners[0]["uid"], uid(&node));
    assert_eq!(owners[0]["controller"], true);
    assert_ne!(owners[0]["blockOwnerDeletion"], true);
    assert_eq!(mirror["spec"]["nodeName"], bed.node.as_str());
    let status = &mirror["status"];
    assert_eq!(status["podIP"], pod.ips[0].to_string());
    assert_eq!(status["qosClass"], "BestEffort");
    let container = &status["containerStatuses"][0];
    assert_eq!(container["restartCount"], 0);
    let id = format!("docker://{}", bed.running_id("web"));
    assert_eq!(container["containerID"], id);

    bed.remove("web.yaml");
    bed.until_no_mirror("web").await;
    assert!(
        bed.running().is_empty(),
        "the mirror outlives its containers"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_has_a_mirror_by_a_nodes_certificate() {
    Box::pin(a_manifest_has_a_mirror(Identity::Node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_has_a_mirror_by_a_service_account() {
    Box::pin(a_manifest_has_a_mirror(Identity::ServiceAccount)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_manifest_replaces_the_mirror() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    let before = bed.until_mirrored("web").await;
    bed.write("web.yaml", &bed.pod("web", IMAGE_2, 1, QUIET));
    let after = bed
        .until_mirror("web", |pod| is_ready(pod) && uid(pod) != uid(&before))
        .await;
    // pods 26
    assert_eq!(after["spec"]["containers"][0]["image"], IMAGE_2);
    // pods 36
    assert_eq!(after["metadata"]["generation"], 1);
    assert!(after["status"]["observedGeneration"].is_null());
    let mirror = &after["metadata"]["annotations"]["kubernetes.io/config.mirror"];
    assert_eq!(*mirror, agent.pod("web").unwrap().uid.as_str());
    agent.stop().await;
}

/// An edit that can't be started is told by the mirror and by the Node, until it is mended.
async fn a_held_edit_is_told(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    let before = bed.until_mirrored("web").await;
    let running = bed.running();
    let edit = bed.pod("web", "mirrorlet.test/nowhere:1", 1, QUIET);
    bed.write("web.yaml", &edit.replace("IfNotPresent", "Never"));
    let held =
        |pod: &Value| pod["metadata"]["annotations"]["mirrorlet.dev/held-reason"].is_string();
    let mirror = bed.until_mirror("web", held).await;
    let annotations = &mirror["metadata"]["annotations"];
    assert_eq!(
        annotations["mirrorlet.dev/held-reason"],
        "ErrImageNeverPull"
    );
    assert_ne!(
        annotations["mirrorlet.dev/held-revision"],
        annotations["kubernetes.io/config.hash"]
    );
    assert!(annotations["mirrorlet.dev/held-message"].is_string());
    // rollouts M1
    assert_eq!(
        (uid(&mirror), bed.running()),
        (uid(&before), running.clone())
    );
    let rollouts = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.into_iter().flatten();
        conditions.find(|condition| condition["type"] == "RolloutsHealthy")
    };
    let is = |status: &'static str| {
        move |node: &Value| rollouts(node).is_some_and(|condition| condition["status"] == status)
    };
    let node = bed.until_node("a held version", is("False")).await;
    let condition = rollouts(&node).unwrap();
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("held: ErrImageNeverPull"), "{message}");

    bed.sleeper("web");
    let mirror = bed.until_mirror("web", |pod| !held(pod)).await;
    assert_eq!((uid(&mirror), bed.running()), (uid(&before), running));
    bed.until_node("no held version", is("True")).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_edit_is_told_by_a_nodes_certificate() {
    a_held_edit_is_told(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_edit_is_told_by_a_service_account() {
    a_held_edit_is_told(Identity::ServiceAccount).await;
}

/// Deletes the mirror; it is back, and the containers didn't notice.
async fn a_deleted_mirror_is_back(force: bool) {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    let before = bed.until_mirrored("web").await;
    let running = bed.running();
    bed.delete_pod(&bed.name("web"), force).await;
    let after = bed
        .until_mirror("web", |pod| is_ready(pod) && uid(pod) != uid(&before))
        .await;
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    // pods 25
    assert_eq!(bed.running(), running);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_deleted_gracefully_is_back() {
    a_deleted_mirror_is_back(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_deleted_by_force_is_back() {
    a_deleted_mirror_is_back(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_stays_for_the_whole_grace_of_a_removed_pod() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.write("web.yaml", &bed.pod("web", IMAGE, 6, STUBBORN));
    let before = bed.until_mirrored("web").await;
    bed.remove("web.yaml");
    until("the pod to end", async || {
        let mirror = bed.mirror("web").await;
        let explained = agent.view().explain(uid(&before));
        // Looked at after the others: it may end between.
        let runs = bed.running().keys().any(|name| name.contains("_web_"));
        if !runs {
            return Ok(());
        }
        // The mirror's UID leads to the pod while that is being stopped, too.
        let explained = explained.unwrap().pod.map(|pod| pod.uid.to_string());
        let hash = &before["metadata"]["annotations"]["kubernetes.io/config.hash"];
        assert_eq!(explained.as_deref(), hash.as_str());
        let mirror = mirror.expect("a mirror while the container runs");
        // pods 30
        assert_eq!(uid(&mirror), uid(&before));
        assert_eq!(mirror["status"]["phase"], "Running");
        Err(runs)
    })
    .await;
    bed.until_no_mirror("web").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_many_edits_during_a_grace_has_the_mirror() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.write("web.yaml", &bed.pod("web", IMAGE, 600, WAITS_TO_BE_LET_GO));
    let before = bed.until_mirrored("web").await;
    bed.until_traps("web").await;
    let old = bed.running_id("web");
    let first = agent.until_running("web").await;
    for edit in 0..30 {
        let script = format!("echo {edit}; {QUIET}");
        bed.write("web.yaml", &bed.pod("web", IMAGE, 1, &script));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // Another pod's start says that the last edit has been read.
    bed.sleeper("other");
    bed.until_mirrored("other").await;
    let now = bed.mirror("web").await.expect("a mirror");
    assert_eq!(uid(&now), uid(&before));
    bed.docker(&["exec", &old, "touch", "/tmp/go"]);
    until("the old instance to end", async || {
        let mirror = bed.mirror("web").await;
        // Looked at after the mirror: it may end between.
        let runs = bed.running().values().any(|id| *id == old);
        if runs {
            // pods 31
            assert_eq!(uid(&mirror.expect("a mirror")), uid(&before));
            return Err(runs);
        }
        Ok(())
    })
    .await;
    // The agent says what it waits for, should it never come.
    agent
        .until_pod("web", |pod| pod.uid != first.uid && pod.status == "Running")
        .await;
    let after = bed
        .until_mirror("web", |pod| is_ready(pod) && uid(pod) != uid(&before))
        .await;
    let command = &after["spec"]["containers"][0]["command"][2];
    assert!(
        command.as_str().unwrap().starts_with("echo 29;"),
        "{command}"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_removed_and_put_back_is_the_same_pod_restarted() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let manifest = bed.pod("web", IMAGE, 600, WAITS_TO_BE_LET_GO);
    bed.write("web.yaml", &manifest);
    bed.until_mirrored("web").await;
    let before = agent.until_running("web").await;
    bed.until_traps("web").await;
    let old = bed.running_id("web");
    bed.remove("web.yaml");
    agent
        .until("the pod to end", |report| {
            let web = report.pods.iter().find(|pod| pod.manifest_name == "web");
            web.is_none_or(|pod| pod.status != "Running")
        })
        .await;
    bed.write("web.yaml", &manifest);
    // Another pod's start says that it is known to be wanted again, before it has ended.
    bed.sleeper("other");
    agent.until_running("other").await;
    bed.docker(&["exec", &old, "touch", "/tmp/go"]);
    let restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    bed.until_mirror("web", |pod| is_ready(pod) && restarted(pod))
        .await;
    let after = agent.until_running("web").await;
    // pods 32
    assert_eq!((after.uid, after.restarts), (before.uid, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_while_the_agent_was_away_shows_in_the_mirrors() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    for name in ["gone", "edited", "unmirrored", "same"] {
        bed.sleeper(name);
    }
    let mut before = BTreeMap::new();
    for name in ["gone", "edited", "unmirrored", "same"] {
        before.insert(name, bed.until_mirrored(name).await);
    }
    agent.stop().await;
    bed.remove("gone.yaml");
    bed.write("edited.yaml", &bed.pod("edited", IMAGE_2, 1, QUIET));
    bed.sleeper("new");
    bed.delete_pod(&bed.name("unmirrored"), true).await;
    let same = bed.running_id("same");
    let unmirrored = bed.running_id("unmirrored");

    let agent = bed.agent().await;
    // pods 29
    bed.until_no_mirror("gone").await;
    bed.until_mirrored("new").await;
    for name in ["edited", "unmirrored"] {
        bed.until_mirror(name, |pod| is_ready(pod) && uid(pod) != uid(&before[name]))
            .await;
    }
    assert_eq!(uid(&bed.until_mirrored("same").await), uid(&before["same"]));
    assert_eq!(bed.running_id("same"), same);
    assert_eq!(bed.running_id("unmirrored"), unmirrored);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_static_pods_at_once_all_have_their_mirrors() {
    const MANY: usize = 20;
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    for index in 0..MANY {
        bed.sleeper(&format!("pod{index}"));
    }
    let all = until("all mirrors to be ready", async || {
        let pods = bed.api_pods().await;
        if pods.len() == MANY && pods.values().all(is_ready) {
            Ok(pods)
        } else {
            let ready = pods.values().filter(|pod| is_ready(pod)).count();
            Err(format!("{ready} ready of {}", pods.len()))
        }
    })
    .await;
    let mut ips: Vec<_> = all
        .values()
        .map(|pod| pod["status"]["podIP"].to_string())
        .collect();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), MANY, "{ips:?}");
    // Mirror, and what became of it: a handful of writes a pod, no storm.
    let user = format!("system:node:{}", bed.node);
    // On record after their answers: of each pod, its creation and its status.
    let writes = eventually("two writes a pod on record", || {
        let mut record = bed.cluster.audit_of(&user);
        record.retain(|entry| entry.resource == "pods" && entry.writes());
        (record.len() >= 2 * MANY).then_some(record)
    })
    .await;
    let mut counts = BTreeMap::new();
    for entry in &writes {
        *counts.entry((entry.what(), entry.code)).or_insert(0) += 1;
    }
    let total: usize = counts.values().sum();
    common::tell(&format!("API writes of {MANY} pods: {total} {counts:?}"));
    // pods 36c
    assert!(total <= MANY * 5, "{counts:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_node_is_back_with_its_mirrors() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    bed.until_mirrored("web").await;
    let running = bed.running();
    let before = bed.api_node().await.unwrap();
    bed.cluster.kubectl(&["delete", "node", &bed.node]);
    let after = bed
        .until_node("back and Ready", |node| {
            uid(node) != uid(&before) && condition(node, "Ready") == Some("True")
        })
        .await;
    // pods 36b
    bed.until_mirror("web", |pod| {
        let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
        is_ready(pod) && *owner == uid(&after) && pod["metadata"]["deletionTimestamp"].is_null()
    })
    .await;
    assert_eq!(bed.running(), running);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_another_node_keeps_its_name() {
    let bed = NodeBed::new().await;
    // A Node that there is: pods of others are soon collected.
    let another = common::cluster::unique("another");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": another}});
    bed.cluster.apply(&node.to_string());
    let foreign = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": bed.name("web"), "namespace": bed.namespace},
        "spec": {"nodeName": another, "containers": [{"name": "main", "image": IMAGE}]}});
    bed.cluster.apply(&foreign.to_string());
    let before = bed.mirror("web").await.unwrap();
    let agent = bed.joined().await;
    bed.sleeper("web");
    agent.until_running("web").await;
    // Told on the Node, and by a condition of it.
    let told = bed
        .until_node("MirrorPodsHealthy=False", |node| {
            condition(node, "MirrorPodsHealthy") == Some("False")
        })
        .await;
    assert!(
        told["status"]["conditions"]
            .to_string()
            .contains(&bed.name("web"))
    );
    let now = bed.mirror("web").await.unwrap();
    assert_eq!(uid(&now), uid(&before));
    // pods 36a
    assert_eq!(now["spec"], before["spec"]);
    assert!(now["metadata"]["deletionTimestamp"].is_null());

    bed.delete_pod(&bed.name("web"), true).await;
    let mirror = bed.until_mirrored("web").await;
    assert_eq!(mirror["spec"]["nodeName"], bed.node.as_str());
    bed.until_node("MirrorPodsHealthy=True", |node| {
        condition(node, "MirrorPodsHealthy") == Some("True")
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_namespace_is_told_and_its_mirror_comes_with_it() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let namespace = common::cluster::unique("late");
    let manifest = bed.pod("web", IMAGE, 1, QUIET);
    bed.write("web.yaml", &manifest.replace(&bed.namespace, &namespace));
    agent.until_running("web").await;
    // pods 35
    bed.until_node("MirrorPodsHealthy=False", |node| {
        condition(node, "MirrorPodsHealthy") == Some("False")
    })
    .await;
    bed.cluster.bare_namespace(&namespace);
    eventually("the mirror in its namespace", || {
        let name = bed.name("web");
        let pod = bed.cluster.object(&["pod", "-n", &namespace, &name])?;
        is_ready(&pod).then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_pod_security_leaves_the_pod_running() {
    let bed = NodeBed::new().await;
    let label = "pod-security.kubernetes.io/enforce";
    let set = format!("{label}=restricted");
    bed.cluster
        .kubectl(&["label", "namespace", &bed.namespace, &set]);
    let agent = bed.joined().await;
    bed.sleeper("web");
    agent.until_running("web").await;
    let told = bed
        .until_node("MirrorPodsHealthy=False", |node| {
            condition(node, "MirrorPodsHealthy") == Some("False")
        })
        .await;
    let conditions = told["status"]["conditions"].as_array().unwrap().clone();
    let about = conditions.iter().find(|c| c["type"] == "MirrorPodsHealthy");
    let message = about.unwrap()["message"].as_str().unwrap();
    assert!(message.contains(&bed.name("web")), "{message}");
    assert!(bed.mirror("web").await.is_none());
    let running = bed.running();

    let unset = format!("{label}-");
    bed.cluster
        .kubectl(&["label", "namespace", &bed.namespace, &unset]);
    // pods 35
    bed.until_mirrored("web").await;
    assert_eq!(bed.running(), running);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mirror_tells_what_became_of_the_containers() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    // One that is killed, and one that ends by itself.
    bed.sleeper("killed");
    let once = bed.pod("once", IMAGE, 1, "exit 3");
    bed.write(
        "once.yaml",
        &once.replace("spec:\n", "spec:\n  restartPolicy: Never\n"),
    );
    bed.until_mirrored("killed").await;
    let first = bed.running_id("killed");
    bed.docker(&["kill", &first]);
    let killed = bed
        .until_mirror("killed", |pod| {
            is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    let last = &killed["status"]["containerStatuses"][0]["lastState"]["terminated"];
    // pods 49
    assert_eq!(last["exitCode"], 137);
    assert_eq!(last["containerID"], format!("docker://{first}"));

    let once = bed
        .until_mirror("once", |pod| pod["status"]["phase"] == "Failed")
        .await;
    let state = &once["status"]["containerStatuses"][0]["state"]["terminated"];
    // pods 36d
    assert_eq!(
        (&state["exitCode"], &state["reason"]),
        (&json!(3), &json!("Error"))
    );
    // Finished pods keep their mirror until the manifest goes.
    bed.remove("once.yaml");
    bed.until_no_mirror("once").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_static_pod_are_its_mirrors() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    bed.until_mirrored("web").await;
    let uid = agent.pod("web").unwrap().uid.to_string();
    let reasons = |events: &[(String, String)]| -> Vec<String> {
        events.iter().map(|(reason, _)| reason.clone()).collect()
    };
    let told = eventually("the pod's story", || {
        let told = reasons(&bed.events(&uid));
        told.contains(&"Started".to_owned()).then_some(told)
    })
    .await;
    assert!(told.contains(&"Created".to_owned()), "{told:?}");
    let described =
        bed.cluster
            .kubectl(&["describe", "pod", "-n", &bed.namespace, &bed.name("web")]);
    let (_, events) = described.split_once("Events:").unwrap();
    // cluster 7
    assert!(events.contains("Started"), "{described}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_follows_its_pods_readiness() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let probe = "readinessProbe: {exec: {command: [test, -e, /tmp/ok]}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 60}\n    command:";
    let manifest = bed.pod("web", IMAGE, 1, QUIET);
    let probed = manifest.replacen("command:", probe, 1);
    assert_ne!(probed, manifest);
    bed.write("web.yaml", &probed);
    let before = bed
        .until_mirror("web", |pod| pod["status"]["phase"] == "Running")
        .await;
    assert!(!is_ready(&before));
    for _ in 0..2 {
        bed.exec("web", "touch /tmp/ok");
        let ready = bed.until_mirror("web", is_ready).await;
        // pods 56b
        assert_eq!(uid(&ready), uid(&before), "nothing but its status changes");
        bed.exec("web", "rm /tmp/ok");
        let unready = bed.until_mirror("web", |pod| !is_ready(pod)).await;
        let conditions = unready["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|c| c["type"] == "ContainersReady");
        let condition = condition.unwrap();
        assert_eq!(condition["reason"], "ContainersNotReady");
        assert_eq!(
            condition["message"],
            "containers with unready status: [web]"
        );
        let container = &unready["status"]["containerStatuses"][0];
        assert_eq!(
            (&container["started"], &container["ready"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(container["restartCount"], 0);
    }
    let pod_uid = agent.pod("web").unwrap().uid.to_string();
    eventually("its events to be written", || {
        let told = bed.events(&pod_uid);
        told.iter()
            .any(|(reason, _)| reason == "Unhealthy")
            .then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_names_no_object_of_a_manifest_and_each_origin_keeps_its_own() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let namespace = &bed.namespace;
    let object = |kind: &str, name: &str, value: &str| {
        let key = if kind == "Secret" {
            "stringData"
        } else {
            "data"
        };
        json!({
            "apiVersion": "v1", "kind": kind, key: {"KEY": value},
            "metadata": {"name": name, "namespace": namespace},
        })
        .to_string()
    };
    let pod = |name: &str, node: bool, secret: &str| {
        let mut pod: Value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "imagePullSecrets": [{"name": secret}],
                "containers": [{
                    "name": name, "image": IMAGE, "command": ["sh", "-c", QUIET],
                    "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "KEY"}}}],
                    "envFrom": [{"prefix": "S_", "secretRef": {"name": secret}}],
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                }],
                "volumes": [{"name": "v", "projected": {"sources": [
                    {"secret": {"name": secret}},
                    {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                ]}}],
            },
        });
        if node {
            pod["spec"]["nodeName"] = bed.node.as_str().into();
            return pod.to_string();
        }
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
        let mount = json!({"name": "data", "mountPath": "/data"});
        let list = |value: &mut Value, item| value.as_array_mut().unwrap().push(item);
        list(&mut pod["spec"]["volumes"], claim);
        list(&mut pod["spec"]["containers"][0]["volumeMounts"], mount);
        pod.to_string()
    };
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    bed.write("data.json", &claim.to_string());
    bed.write(
        "settings.json",
        &object("ConfigMap", "settings", "of the machine"),
    );
    bed.write("login.json", &object("Secret", "login", "of the machine"));
    bed.cluster
        .apply(&object("ConfigMap", "settings", "of the cluster"));
    bed.cluster
        .apply(&object("Secret", "theirs", "of the cluster"));
    bed.write("web.json", &pod("web", false, "login"));
    agent.until_running("web").await;
    let mirror = bed.until_mirrored("web").await;
    // box 1
    assert_eq!(
        bed.exec("web", "echo $A, $S_KEY, $(cat /v/KEY)"),
        "of the machine, of the machine, of the machine"
    );
    // box 7
    assert_eq!(
        bed.exec("web", "echo kept >/data/file; cat /data/file"),
        "kept"
    );
    let left_out = &mirror["metadata"]["annotations"]["mirrorlet.dev/sanitized"];
    // box 1
    assert_eq!(
        left_out,
        "spec.imagePullSecrets,spec.containers[web].env[A].valueFrom,spec.containers[web].envFrom,\
         spec.volumes[v].projected.sources,spec.volumes[data].persistentVolumeClaim"
    );
    let spec = mirror["spec"].to_string();
    assert!(
        !spec.contains("settings") && !spec.contains("login"),
        "{spec}"
    );
    assert!(is_ready(&mirror), "{mirror}");

    // A manifest can't reach what is in the cluster, nor a pod of the cluster what is here.
    bed.write("thief.json", &pod("thief", false, "theirs"));
    bed.cluster.apply(&pod("foreign", true, "login"));
    let waits = |name: &str, words: String| {
        let name = name.to_owned();
        move |report: &StatusReport| {
            let mut pods = report.pods.iter().filter(|pod| pod.name.starts_with(&name));
            pods.any(|pod| pod.message.contains(&words))
        }
    };
    let words = format!("no manifest defines Secret {namespace}/theirs");
    agent
        .until("the thief to wait", waits("thief", words))
        .await;
    let words = "secret \"login\" not found".to_owned();
    let report = agent
        .until("the foreign pod to wait", waits("foreign", words))
        .await;
    let started = |pod: &&PodReport| pod.name.starts_with("thief") || pod.name == "foreign";
    let ready: Vec<usize> = report
        .pods
        .iter()
        .filter(started)
        .map(|p| p.ready)
        .collect();
    // box 1
    assert_eq!(ready, [0, 0]);
    bed.cluster.apply(&pod("native", true, "theirs"));
    bed.until_pod("native", is_ready).await;
    assert_eq!(
        bed.exec("native", "echo $A, $S_KEY, $(cat /v/KEY)"),
        "of the cluster, of the cluster, of the cluster"
    );
    agent.stop().await;
}
