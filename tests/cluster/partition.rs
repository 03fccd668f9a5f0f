//! The API server goes away in each way it can; meanwhile each thing that can change does. What
//! runs is right at once, and the API server agrees once it is back, with nothing restarted and no
//! burst of requests.
//!
//! It really goes where the agent is killed, too, and there once more under the agent that lives. In the
//! other stories the agent's link to it does as the connections to such a server do, while the server
//! itself goes on.

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::cluster::{Cluster, Options};
use crate::common::link::Link;
use crate::common::node::{Identity, NodeBed, QUIET, bound, condition, is_ready, uid, until};
use crate::common::{IMAGE, IMAGE_2, TestAgent, eventually};
use serde_json::{Value, json};

/// How the API server is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Partition {
    /// Connections are refused.
    Killed,
    /// Connections stay, nothing is answered.
    Hung,
}

impl Partition {
    /// Of the link of an agent, or of the API server itself where there is none.
    async fn begin(self, cluster: &Cluster, link: Option<&Link>) {
        match (self, link) {
            (Self::Killed, None) => cluster.stop_apiserver(),
            (Self::Killed, Some(link)) => link.refuse().await,
            (Self::Hung, None) => cluster.pause_apiserver(),
            (Self::Hung, Some(link)) => link.hold(),
        }
    }

    async fn end(self, cluster: &Cluster, link: Option<&Link>) {
        match (self, link) {
            (Self::Killed, None) => cluster.start_apiserver().await,
            (Self::Killed, Some(link)) => link.accept().await,
            (Self::Hung, None) => cluster.resume_apiserver(),
            (Self::Hung, Some(link)) => link.release(),
        }
    }
}

/// Ids of the running containers, by the name of the container in the spec; sandboxes left out.
fn containers(bed: &NodeBed) -> HashMap<String, String> {
    let named = bed.running().into_iter().filter_map(|(name, id)| {
        let container = name.strip_prefix("k8s_")?.split('_').next()?.to_owned();
        (container != "POD").then_some((container, id))
    });
    named.collect()
}

/// Waits until the containers are as wanted, by what Docker says.
async fn until_containers(
    bed: &NodeBed,
    what: &str,
    wanted: impl Fn(&HashMap<String, String>) -> bool,
) -> HashMap<String, String> {
    until(what, async || {
        let found = containers(bed);
        if wanted(&found) {
            Ok(found)
        } else {
            Err(found)
        }
    })
    .await
}

/// An ordinary Pod of that Node.
fn ordinary(bed: &NodeBed, name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name, "namespace": bed.namespace},
    "spec": {
        "nodeName": bed.node, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", QUIET]}],
    }})
    .to_string()
}

/// Every change while the API server of a cluster of its own is away, with the agent killed between.
async fn every_change_converges_over_two_ends(partition: Partition) {
    let cluster = Options::default().without_scheduler().start().await;
    let bed = NodeBed::on(Arc::new(cluster), Identity::Node).await;
    let agent = Box::pin(every_change_converges(partition, &bed, None)).await;
    if partition == Partition::Killed {
        Box::pin(the_next_api_server_is_followed(&bed)).await;
    }
    agent.stop().await;
}

/// Every change while the link of one agent is away.
async fn every_change_converges_over_a_link(partition: Partition) {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = Box::pin(every_change_converges(partition, &bed, Some(&link))).await;
    agent.stop().await;
}

/// Every change, with the agent killed between where it has no link. Returns the agent that lives.
async fn every_change_converges(
    partition: Partition,
    bed: &NodeBed,
    link: Option<&Link>,
) -> TestAgent {
    let mut agent = Box::pin(bed.joined()).await;
    for name in ["same", "edited", "removed", "killed"] {
        bed.sleeper(name);
    }
    bed.cluster.apply(&ordinary(bed, "api"));
    let mut before: HashMap<&str, Value> = HashMap::new();
    for name in ["same", "edited", "removed", "killed"] {
        before.insert(name, bed.until_mirrored(name).await);
    }
    let api = bed.until_pod("api", is_ready).await;
    let ids = containers(bed);

    partition.begin(&bed.cluster, link).await;
    if link.is_none() {
        agent = Box::pin(restarted(bed, agent)).await;
    }
    bed.sleeper("added");
    bed.write("edited.yaml", &bed.pod("edited", IMAGE_2, 1, QUIET));
    bed.remove("removed.yaml");
    bed.docker(&["kill", &ids["killed"]]);
    let away = until_containers(bed, "the changes without an API server", |now| {
        now.contains_key("added")
            && !now.contains_key("removed")
            && ["edited", "killed"]
                .iter()
                .all(|name| now.get(*name).is_some_and(|id| *id != ids[*name]))
    })
    .await;
    assert_eq!(away["same"], ids["same"]);
    assert_eq!(away["api"], ids["api"], "an API pod runs on as last known");

    let back = jiff::Timestamp::now();
    partition.end(&bed.cluster, link).await;
    bed.until_mirrored("added").await;
    bed.until_no_mirror("removed").await;
    bed.until_mirror("edited", |pod| {
        is_ready(pod)
            && uid(pod) != uid(&before["edited"])
            && pod["spec"]["containers"][0]["image"] == IMAGE_2
    })
    .await;
    let killed = bed
        .until_mirror("killed", |pod| {
            is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    assert_eq!(uid(&killed), uid(&before["killed"]));
    assert_eq!(uid(&bed.until_mirrored("same").await), uid(&before["same"]));
    assert_eq!(uid(&bed.until_pod("api", is_ready).await), uid(&api));
    bed.until_node("Ready", |node| condition(node, "Ready") == Some("True"))
        .await;
    // away 1, away 2
    assert_eq!(
        containers(bed),
        away,
        "nothing is restarted when it is back"
    );
    // Five changes cost a handful of writes each: it doesn't come back with a burst. On record after
    // their answers: of each mirror that changes, one at least.
    let user = format!("system:node:{}", bed.node);
    let record = eventually("a write of each changed mirror on record", || {
        let mut record = bed.cluster.audit_of(&user);
        record.retain(|entry| entry.at > back && entry.resource == "pods" && entry.writes());
        let has = |name: &str| record.iter().any(|entry| entry.name.starts_with(name));
        let changed = ["added", "edited", "removed", "killed"];
        changed.into_iter().all(has).then_some(record)
    })
    .await;
    let written: Vec<_> = record.iter().map(|e| (e.what(), &e.name, e.code)).collect();
    assert!(written.len() <= 25, "{written:#?}");
    agent
}

/// The API server is killed and started again while an agent watches: the next one knows nothing of
/// those watches, and what they saw last may be older than all it remembers. What changes afterwards is
/// followed, and nothing is restarted because of it.
async fn the_next_api_server_is_followed(bed: &NodeBed) {
    let config_map = |color: &str| {
        let metadata = json!({"name": "conf", "namespace": bed.namespace});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"color": color}})
            .to_string()
    };
    bed.cluster.apply(&config_map("blue"));
    let mut reader = bound(bed, "reader", IMAGE, QUIET);
    reader["spec"]["volumes"] = json!([{"name": "conf", "configMap": {"name": "conf"}}]);
    reader["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "conf", "mountPath": "/conf"}]);
    bed.cluster.apply(&reader.to_string());
    let reader = bed.until_pod("reader", is_ready).await;
    let added = bed.until_mirrored("added").await;
    let before = containers(bed);

    bed.cluster.stop_apiserver();
    bed.cluster.start_apiserver().await;
    bed.write("added.yaml", &bed.pod("added", IMAGE_2, 1, QUIET));
    bed.cluster.apply(&config_map("red"));
    bed.delete_pod("api", false).await;
    bed.cluster.apply(&ordinary(bed, "new"));
    bed.until_mirror("added", |pod| {
        is_ready(pod) && uid(pod) != uid(&added) && pod["spec"]["containers"][0]["image"] == IMAGE_2
    })
    .await;
    bed.until_pod_gone("api").await;
    bed.until_pod("new", is_ready).await;
    // away 1
    eventually("the pod to see its ConfigMap as it is now", || {
        (bed.file("reader", "/conf/color")? == "red").then_some(())
    })
    .await;
    let after = until_containers(bed, "the changes after it", |now| {
        !now.contains_key("api")
            && now.contains_key("new")
            && now.get("added").is_some_and(|id| *id != before["added"])
    })
    .await;
    for name in ["same", "edited", "killed", "reader"] {
        // away 1
        assert_eq!(after[name], before[name], "{name} is not restarted");
    }
    assert_eq!(uid(&bed.until_pod("reader", is_ready).await), uid(&reader));
}

async fn restarted(bed: &NodeBed, agent: TestAgent) -> TestAgent {
    agent.kill();
    let agent = bed.agent().await;
    agent.until_running("same").await;
    agent
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_converges_over_a_killed_api_server() {
    every_change_converges_over_a_link(Partition::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_converges_over_a_hung_api_server() {
    every_change_converges_over_a_link(Partition::Hung).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_converges_over_a_killed_api_server_and_a_killed_agent() {
    every_change_converges_over_two_ends(Partition::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_converges_over_a_hung_api_server_and_a_killed_agent() {
    every_change_converges_over_two_ends(Partition::Hung).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_saw_the_api_server_runs_its_manifests() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    link.refuse().await;
    bed.sleeper("web");
    let agent = bed.agent().await;
    // away 5
    agent.until_running("web").await;
    let ids = containers(&bed);
    link.accept().await;
    // pods 34
    bed.until_mirrored("web").await;
    assert_eq!(containers(&bed), ids);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_pod_deleted_behind_our_back_stops_only_by_the_servers_word() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = bed.joined().await;
    for name in ["kept", "deleted"] {
        bed.cluster.apply(&ordinary(&bed, name));
        bed.until_pod(name, is_ready).await;
    }
    let ids = containers(&bed);
    // The object goes while no agent listens; the next one finds no API server at first.
    agent.kill();
    bed.delete_pod("deleted", true).await;
    link.refuse().await;
    bed.sleeper("file");
    let agent = bed.agent().await;
    let away = until_containers(&bed, "the file pod", |now| now.contains_key("file")).await;
    // away 5
    assert_eq!(
        away["deleted"], ids["deleted"],
        "nobody has said that it is gone"
    );
    assert_eq!(away["kept"], ids["kept"]);

    link.accept().await;
    until_containers(&bed, "the deleted pod to end", |now| {
        !now.contains_key("deleted")
    })
    .await;
    assert_eq!(containers(&bed)["kept"], ids["kept"]);
    bed.until_pod("kept", is_ready).await;
    agent.stop().await;
}

/// The server is up and others change what is there; only this agent is cut off.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cut_off_alone_goes_on_and_catches_up() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = bed.joined().await;
    for name in ["same", "edited", "removed"] {
        bed.sleeper(name);
    }
    for name in ["kept", "deleted"] {
        bed.cluster.apply(&ordinary(&bed, name));
        bed.until_pod(name, is_ready).await;
    }
    let mut mirrors: HashMap<&str, Value> = HashMap::new();
    for name in ["same", "edited", "removed"] {
        mirrors.insert(name, bed.until_mirrored(name).await);
    }
    let ids = containers(&bed);

    link.cut();
    bed.sleeper("added");
    bed.write("edited.yaml", &bed.pod("edited", IMAGE_2, 1, QUIET));
    bed.remove("removed.yaml");
    bed.delete_pod(&bed.name("same"), true).await;
    bed.delete_pod("deleted", true).await;
    bed.cluster.apply(&ordinary(&bed, "new"));
    let away = until_containers(&bed, "the changes of files", |now| {
        now.contains_key("added")
            && !now.contains_key("removed")
            && now.get("edited").is_some_and(|id| *id != ids["edited"])
    })
    .await;
    for name in ["same", "kept", "deleted"] {
        assert_eq!(away[name], ids[name], "{name}: nobody has told otherwise");
    }
    assert!(!away.contains_key("new"), "nobody has told of it");
    agent
        .until("the API server to be missed", |report| {
            report.api.as_ref().is_some_and(|api| !api.reachable)
        })
        .await;

    // Connections from before stay dead: only new ones get through.
    link.mend();
    let same = bed.until_mirrored("same").await;
    assert_ne!(uid(&same), uid(&mirrors["same"]), "it was deleted");
    bed.until_mirrored("added").await;
    bed.until_no_mirror("removed").await;
    bed.until_mirror("edited", |pod| {
        is_ready(pod) && uid(pod) != uid(&mirrors["edited"])
    })
    .await;
    bed.until_pod("new", is_ready).await;
    let back = until_containers(&bed, "what was deleted to end", |now| {
        !now.contains_key("deleted") && now.contains_key("new")
    })
    .await;
    for name in ["same", "kept", "edited", "added"] {
        // away 3
        assert_eq!(back[name], away[name], "{name} is not restarted");
    }
    agent.stop().await;
}
