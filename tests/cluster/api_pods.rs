//! Pods of the API server under a whole agent, on a real Engine and real Kubernetes servers.

use std::sync::Arc;

use crate::common::cluster::Cluster;
use crate::common::node::{Identity, NodeBed, QUIET, STUBBORN, is_ready, uid, until};
use crate::common::{IMAGE, IMAGE_2, eventually, free_port};
use serde_json::{Value, json};

/// The taint that every Node of ours has, tolerated.
fn tolerations() -> Value {
    json!([{"key": "mirrorlet.dev/docker", "operator": "Exists"}])
}

/// A pod of one container, named like the pod, that runs `script`, with `over` in its spec.
fn pod(bed: &NodeBed, name: &str, script: &str, over: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": bed.namespace},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", script],
            }],
        },
    });
    for (key, value) in over.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// The same, bound to the bed's Node by its author.
fn bound(bed: &NodeBed, name: &str, script: &str, over: &Value) -> Value {
    let mut pod = pod(bed, name, script, over);
    pod["spec"]["nodeName"] = bed.node.as_str().into();
    pod
}

fn apply(bed: &NodeBed, pod: &Value) {
    bed.cluster.apply(&pod.to_string());
}

async fn until_phase(bed: &NodeBed, name: &str, phase: &str) -> Value {
    bed.until_pod(name, |pod| pod["status"]["phase"] == phase)
        .await
}

async fn until_no_containers(bed: &NodeBed) {
    eventually("all containers to be gone", || {
        bed.containers().is_empty().then_some(())
    })
    .await;
}

/// A pod's life, from its object's creation to its end.
async fn a_pod_runs_and_is_deleted(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    let pod = bed.until_pod("web", is_ready).await;
    let status = &pod["status"];
    assert_eq!(status["qosClass"], "BestEffort");
    assert!(status["podIP"].is_string());
    let container = &status["containerStatuses"][0];
    assert_eq!(container["restartCount"], 0);
    assert_eq!(
        container["containerID"],
        format!("docker://{}", bed.running_id("web"))
    );
    bed.delete_pod("web", false).await;
    bed.until_pod_gone("web").await;
    until_no_containers(&bed).await;
    agent.until_gone("web").await;
    let ours = eventually("the removal of the object to be on record", || {
        let mut deletes = bed.cluster.audit("mirrorlet/");
        deletes.retain(|entry| {
            entry.what() == "delete pods" && entry.namespace == bed.namespace && entry.code == 200
        });
        (!deletes.is_empty()).then_some(deletes.len())
    })
    .await;
    // api 1
    assert_eq!(ours, 1, "the agent removes the object");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_and_is_deleted_by_a_nodes_certificate() {
    a_pod_runs_and_is_deleted(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_and_is_deleted_by_a_service_account() {
    a_pod_runs_and_is_deleted(Identity::ServiceAccount).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_sends_a_pod_that_tolerates_our_taint() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let over = json!({
        "nodeSelector": {"kubernetes.io/hostname": bed.node},
        "tolerations": tolerations(),
    });
    apply(&bed, &pod(&bed, "web", QUIET, &over));
    let found = bed.until_pod("web", is_ready).await;
    // api 1
    assert_eq!(found["spec"]["nodeName"], bed.node.as_str());
    // One that doesn't tolerate it stays where it is.
    let over = json!({"nodeSelector": {"kubernetes.io/hostname": bed.node}});
    apply(&bed, &pod(&bed, "other", QUIET, &over));
    bed.until_pod("other", |pod| {
        let condition = &pod["status"]["conditions"][0];
        condition["type"] == "PodScheduled" && condition["reason"] == "Unschedulable"
    })
    .await;
    assert_eq!(bed.api_pods().await.len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_stays_until_its_containers_have_ended() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let over = json!({"terminationGracePeriodSeconds": 5});
    apply(&bed, &bound(&bed, "web", STUBBORN, &over));
    let before = bed.until_pod("web", is_ready).await;
    bed.delete_pod("web", false).await;
    until("the object to go", async || {
        let Some(pod) = bed.api_pod("web").await else {
            return Ok(());
        };
        // pods 51
        assert_eq!(uid(&pod), uid(&before));
        assert!(pod["metadata"]["deletionTimestamp"].is_string());
        Err(pod["status"]["phase"].clone())
    })
    .await;
    // api 2
    assert!(bed.running().is_empty(), "{:?}", bed.running());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_grace_ends_a_pod_sooner() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    // Longer than this test may wait for anything.
    let over = json!({"terminationGracePeriodSeconds": 3600});
    apply(&bed, &bound(&bed, "web", STUBBORN, &over));
    bed.until_pod("web", is_ready).await;
    bed.delete_pod("web", false).await;
    bed.until_pod("web", |pod| {
        pod["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    agent
        .until("it is stopping", |status| {
            status.pods.iter().any(|pod| pod.name.starts_with("web"))
        })
        .await;
    bed.cluster.kubectl(&[
        "delete",
        "pod",
        "web",
        "-n",
        &bed.namespace,
        "--grace-period=2",
        "--wait=false",
    ]);
    // pods 44
    bed.until_pod_gone("web").await;
    until_no_containers(&bed).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_force_deleted_pod_is_stopped() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    bed.until_pod("web", is_ready).await;
    bed.delete_pod("web", true).await;
    assert!(bed.api_pod("web").await.is_none());
    // api 2
    until_no_containers(&bed).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_has_its_pods_evicted() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("static");
    bed.until_mirrored("static").await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    bed.until_pod("web", is_ready).await;
    let (cluster, node) = (Arc::clone(&bed.cluster), bed.node.clone());
    let drained = tokio::task::spawn_blocking(move || {
        cluster.kubectl(&["drain", &node, "--force", "--timeout=240s"])
    });
    drained.await.unwrap();
    // api 3
    assert!(bed.api_pod("web").await.is_none());
    assert!(
        bed.mirror("static").await.is_some(),
        "mirrors are left alone"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_outlives_its_deadline_fails() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    bed.until_pod("web", is_ready).await;
    // Once it has been seen to run.
    let deadline = json!({"spec": {"activeDeadlineSeconds": 1}}).to_string();
    let patch = ["patch", "pod", "web", "-n", &bed.namespace, "-p", &deadline];
    bed.cluster.kubectl(&patch);
    let pod = until_phase(&bed, "web", "Failed").await;
    // api 4
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    eventually("it to be stopped", || {
        bed.running().is_empty().then_some(())
    })
    .await;
    assert!(!bed.containers().is_empty(), "kept for their logs");
    bed.delete_pod("web", false).await;
    bed.until_pod_gone("web").await;
    until_no_containers(&bed).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_tried_again_until_it_succeeds() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let mut spec = pod(
        &bed,
        "work",
        "[ -e /data/tried ] && exit 0; touch /data/tried; exit 1",
        &json!({
            "restartPolicy": "OnFailure",
            "nodeSelector": {"kubernetes.io/hostname": bed.node},
            "tolerations": tolerations(),
            "volumes": [{"name": "data", "emptyDir": {}}],
        }),
    )["spec"]
        .take();
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "work", "namespace": bed.namespace},
        "spec": {"template": {"spec": spec}},
    });
    bed.cluster.apply(&job.to_string());
    eventually("the job to be complete", || {
        let job = bed.cluster.object(&["job", "work", "-n", &bed.namespace])?;
        (job["status"]["succeeded"] == 1).then_some(())
    })
    .await;
    let pods = bed.api_pods().await;
    let (name, pod) = pods.first_key_value().unwrap();
    assert_eq!(pod["status"]["phase"], "Succeeded");
    let container = &pod["status"]["containerStatuses"][0];
    // pods 46
    assert_eq!(container["restartCount"], 1);
    assert_eq!(container["state"]["terminated"]["reason"], "Completed");
    // Another agent doesn't start it again.
    agent.stop().await;
    let agent = bed.agent().await;
    agent
        .until("it is known as over", |status| {
            status
                .pods
                .iter()
                .any(|pod| pod.name == *name && pod.phase == "Succeeded")
        })
        .await;
    eventually("its sandbox to be stopped", || {
        bed.running().is_empty().then_some(())
    })
    .await;
    let container = &bed.api_pod(name).await.unwrap()["status"]["containerStatuses"][0];
    assert_eq!(container["restartCount"], 1);
    bed.cluster
        .kubectl(&["delete", "job", "work", "-n", &bed.namespace]);
    bed.until_pod_gone(name).await;
    until_no_containers(&bed).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_node_does_not_take_fails_with_the_reason() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let port = free_port();
    let ports = |mut pod: Value| {
        pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 80, "hostPort": port, "hostIP": "127.0.0.1"}]);
        pod
    };
    apply(&bed, &ports(bound(&bed, "first", QUIET, &json!({}))));
    bed.until_pod("first", is_ready).await;
    let resources = |mut pod: Value, requests: Value| {
        pod["spec"]["containers"][0]["resources"] = json!({"requests": requests});
        pod
    };
    let plain = |name: &str| bound(&bed, name, QUIET, &json!({}));
    let selector = json!({"nodeSelector": {"disk": "floppy"}});
    for (pod, reason) in [
        (bound(&bed, "picky", QUIET, &selector), "NodeAffinity"),
        (ports(plain("second")), "NodePorts"),
        (resources(plain("cpu"), json!({"cpu": "1000"})), "OutOfcpu"),
        (
            resources(plain("memory"), json!({"memory": "100Ti"})),
            "OutOfmemory",
        ),
        (
            bound(&bed, "windows", QUIET, &json!({"os": {"name": "windows"}})),
            "PodOSNotSupported",
        ),
    ] {
        apply(&bed, &pod);
        let name = pod["metadata"]["name"].as_str().unwrap();
        let found = until_phase(&bed, name, "Failed").await;
        // pods 61
        assert_eq!(found["status"]["reason"], reason);
        let message = found["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("Pod was rejected: "), "{message}");
        until(&format!("an event of {name}"), async || {
            let events = bed.events(uid(&found));
            let told = events.iter().any(|(told, _)| told == reason);
            if told { Ok(()) } else { Err(events) }
        })
        .await;
        assert!(
            !bed.containers()
                .keys()
                .any(|c| c.contains(&format!("_{name}_")))
        );
        bed.delete_pod(name, false).await;
        bed.until_pod_gone(name).await;
    }
    // The one that runs was disturbed by none of them.
    let first = bed.api_pod("first").await.unwrap();
    assert_eq!(first["status"]["containerStatuses"][0]["restartCount"], 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_changed_in_place() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    let before = bed.until_pod("web", is_ready).await;
    let image = format!("web={IMAGE_2}");
    bed.cluster
        .kubectl(&["set", "image", "pod/web", &image, "-n", &bed.namespace]);
    let after = bed
        .until_pod("web", |pod| {
            is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    // api 9
    assert_eq!(uid(&after), uid(&before));
    assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_server_pods_run_on_as_last_known() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = bed.joined().await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    apply(&bed, &bound(&bed, "gone", QUIET, &json!({})));
    bed.until_pod("web", is_ready).await;
    bed.until_pod("gone", is_ready).await;
    bed.sleeper("static");
    bed.until_mirrored("static").await;
    let web = bed.running_id("web");
    agent.stop().await;

    // One goes while no agent is there, and no agent can know.
    bed.delete_pod("gone", true).await;
    let gone = bed.running_id("gone");
    link.refuse().await;
    let agent = bed.agent().await;
    agent.until_running("static").await;
    // api 14
    assert_eq!(
        (bed.running_id("web"), bed.running_id("gone")),
        (web.clone(), gone)
    );
    // Manifests come, change and go as always.
    bed.sleeper("second");
    agent.until_running("second").await;
    bed.remove("static.yaml");
    agent.until_gone("static").await;
    // A container that ended is started again as soon as its objects can be read.
    bed.docker(&["kill", &web]);
    agent
        .until("web has ended", |status| {
            let web = status.pods.iter().find(|pod| pod.name == "web");
            web.is_some_and(|pod| pod.ready == 0)
        })
        .await;

    link.accept().await;
    // The list says that it is gone, and so it goes.
    eventually("what was deleted to end", || {
        let running = bed.running();
        let runs = running.keys().any(|name| name.contains("k8s_gone_"));
        (!runs).then_some(())
    })
    .await;
    bed.until_mirrored("second").await;
    bed.until_no_mirror("static").await;
    let pod = bed
        .until_pod("web", |pod| {
            is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    assert_eq!(
        pod["status"]["containerStatuses"][0]["containerID"],
        format!("docker://{}", bed.running_id("web"))
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_disturbs_nobody_and_ends_without_a_trace() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = bed.joined().await;
    apply(&bed, &bound(&bed, "web", QUIET, &json!({})));
    apply(&bed, &bound(&bed, "calm", QUIET, &json!({})));
    bed.until_pod("web", is_ready).await;
    let before = bed.until_pod("calm", is_ready).await;
    bed.sleeper("static");
    bed.until_mirrored("static").await;

    link.refuse().await;
    let (web, calm) = (bed.running_id("web"), bed.running_id("calm"));
    bed.docker(&["kill", &web]);
    bed.sleeper("second");
    agent.until_running("second").await;
    bed.remove("static.yaml");
    agent.until_gone("static").await;
    agent
        .until("web runs again", |_| {
            let running = bed.running();
            let web_runs = |(name, id): (&String, &String)| name.contains("k8s_web_") && *id != web;
            running.iter().any(web_runs)
        })
        .await;

    link.accept().await;
    bed.until_pod("web", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    })
    .await;
    bed.until_mirrored("second").await;
    bed.until_no_mirror("static").await;
    let after = bed.api_pod("calm").await.unwrap();
    assert_eq!(uid(&after), uid(&before));
    // api 14
    assert_eq!(bed.running_id("calm"), calm);
    // The API server is listened to again.
    bed.delete_pod("calm", false).await;
    bed.until_pod_gone("calm").await;
    agent.stop().await;
}
