//! Our Node and its Lease, at a real API server, under both identities.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common;
use crate::common::cluster::audit::AuditEntry;
use crate::common::cluster::{Cluster, Options, unique};
use crate::common::eventually;
use crate::common::link::Link;
use crate::common::node::{NodeBed, until};
use mirrorlet::cluster::{
    ApiReach, ClusterClient, LeaseTask, NodeInputs, NodeRegistration, NodeTask,
};
use mirrorlet::config::ApiAccess;
use mirrorlet::store::cell::{Reader, Writer, cell};
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::api::core::{Node, Taint};
use mirrorlet_core::node::{NodeFacts, PodProblems, Readings, RuntimeReach};
use mirrorlet_host::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The parts that speak for one Node, fed by the test.
struct Agent {
    facts: Writer<NodeFacts>,
    readings: Writer<Readings>,
    // Held, so that its reader lives.
    _problems: Writer<PodProblems>,
    node: Reader<Option<Arc<Node>>>,
    standing: Reader<NodeRegistration>,
    reach: Reader<ApiReach>,
    telemetry: Telemetry,
    tasks: JoinSet<Option<()>>,
    cancel: CancellationToken,
}

fn facts(name: &str, owner: &str) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        owner: owner.to_owned(),
        hostname: "box".to_owned(),
        arch: "amd64".to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        taints: vec![Taint {
            key: "mirrorlet.dev/docker".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        }],
        capacity: Amounts {
            cpu_milli: 2000,
            memory_bytes: 4 << 30,
            ephemeral_storage_bytes: 100 << 30,
        },
        reserved: Amounts {
            cpu_milli: 500,
            memory_bytes: 1 << 30,
            ephemeral_storage_bytes: 1 << 30,
        },
        max_pods: 110,
        boot_id: "boot-1".to_owned(),
        machine_id: "machine".to_owned(),
        engine_version: Some("27.1.0".to_owned()),
        ..NodeFacts::default()
    }
}

fn up() -> Readings {
    Readings {
        engine: RuntimeReach::Up,
        ..Readings::default()
    }
}

fn down() -> Readings {
    Readings {
        engine: RuntimeReach::Down("connection refused".to_owned()),
        ..Readings::default()
    }
}

impl Agent {
    fn start(kubeconfig: &Path, facts: NodeFacts) -> Self {
        let telemetry = Telemetry::new();
        let access = ApiAccess::Kubeconfig(kubeconfig.to_owned());
        let (client, credentials) = ClusterClient::open(&access, telemetry.metrics.clone())
            .unwrap()
            .unwrap();
        let name = facts.name.clone();
        let (facts, facts_reader) = cell(facts);
        let (readings, readings_reader) = cell(up());
        let (problems, problems_reader) = cell(PodProblems::default());
        let inputs = NodeInputs {
            facts: facts_reader,
            readings: readings_reader,
            problems: problems_reader,
            engine_is_new: false,
        };
        let (task, node, standing) = NodeTask::new(client.clone(), inputs, telemetry.clone());
        let lease = LeaseTask::new(client.clone(), name, node.clone(), standing.clone());
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(cancel.clone().run_until_cancelled_owned(credentials.run()));
        tasks.spawn(cancel.clone().run_until_cancelled_owned(task.run()));
        tasks.spawn(cancel.clone().run_until_cancelled_owned(lease.run()));
        Self {
            facts,
            readings,
            _problems: problems,
            node,
            standing,
            reach: client.reach(),
            telemetry,
            tasks,
            cancel,
        }
    }

    async fn registered(&mut self) -> String {
        let node = self.node.wait_for(Option::is_some);
        let node = tokio::time::timeout(common::PATIENCE, node).await;
        uid(node
            .expect("registered")
            .unwrap()
            .as_ref()
            .as_deref()
            .unwrap())
    }

    async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

fn uid(node: &Node) -> String {
    node.metadata.uid.clone().unwrap()
}

fn node_of(cluster: &Cluster, name: &str) -> Option<Value> {
    cluster.object(&["node", name])
}

fn lease_of(cluster: &Cluster, name: &str) -> Option<Value> {
    cluster.object(&["lease", "-n", "kube-node-lease", name])
}

fn condition<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut all = node["status"]["conditions"].as_array()?.iter();
    all.find(|condition| condition["type"] == kind)
}

async fn until_ready_is(cluster: &Cluster, name: &str, status: &str) -> Value {
    eventually(&format!("{name} has Ready {status}"), || {
        let node = node_of(cluster, name)?;
        let is_so = condition(&node, "Ready")?["status"] == status;
        is_so.then_some(node)
    })
    .await
}

async fn lives_as(cluster: &Cluster, kubeconfig: PathBuf, name: &str) {
    let mut agent = Agent::start(&kubeconfig, facts(name, "me"));
    let uid = agent.registered().await;
    let node = until_ready_is(cluster, name, "True").await;
    assert_eq!(node["metadata"]["labels"]["mirrorlet.dev/node"], "true");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], name);
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(
        taints.iter().any(|t| t["key"] == "mirrorlet.dev/docker"),
        "{taints:?}"
    );
    assert_eq!(node["status"]["capacity"]["cpu"], "2");
    assert_eq!(node["status"]["allocatable"]["cpu"], "1500m");
    assert_eq!(node["status"]["addresses"].as_array().unwrap().len(), 3);
    let conditions = node["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.last().unwrap()["type"], "Ready");
    let lease = eventually("a Lease", || lease_of(cluster, name)).await;
    assert_eq!(lease["spec"]["holderIdentity"], name);
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], uid.as_str());

    agent.readings.publish(down());
    let lost = until_ready_is(cluster, name, "False").await;
    let ready = condition(&lost, "Ready").unwrap();
    assert_eq!(ready["reason"], "KubeletNotReady");
    assert!(
        ready["message"]
            .as_str()
            .unwrap()
            .contains("connection refused")
    );
    agent.readings.publish(up());
    until_ready_is(cluster, name, "True").await;

    // One family of addresses goes, and comes back: the list is replaced, not merged.
    let mut one = facts(name, "me");
    one.addresses.pop();
    agent.facts.publish(one);
    let addresses = |count: usize| {
        move || {
            let node = node_of(cluster, name)?;
            let all = node["status"]["addresses"].as_array()?.clone();
            (all.len() == count).then_some(all)
        }
    };
    let left = eventually("one address less", addresses(2)).await;
    assert_eq!(left[0]["address"], "10.0.0.1");
    agent.facts.publish(facts(name, "me"));
    let all = eventually("all addresses", addresses(3)).await;
    assert_eq!(
        (&all[1]["address"], &all[2]["type"]),
        (&"fd00::1".into(), &"Hostname".into())
    );
    let counted = agent.telemetry.metrics.encode();
    for series in [
        "verb=\"create\",resource=\"nodes\",code=\"201\"",
        "resource=\"leases\"",
    ] {
        assert!(counted.contains(series), "{series} is not in\n{counted}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_lives_with_a_nodes_certificate() {
    let cluster = Cluster::shared().await;
    let name = unique("cert");
    lives_as(&cluster, cluster.node_kubeconfig(&name), &name).await;
    let user = format!("system:node:{name}");
    // node 3, node 6, node 6a
    assert!(refused(&cluster.audit_of_some(&user).await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_lives_with_a_service_account() {
    let cluster = Cluster::shared().await;
    let name = unique("account");
    lives_as(&cluster, cluster.service_account_kubeconfig(), &name).await;
    let user = "system:serviceaccount:kube-system:mirrorlet";
    let asked = cluster.audit_of_some(user).await;
    // node 6a
    assert!(refused(&asked).is_empty());
}

/// Requests that were not allowed.
fn refused(asked: &[AuditEntry]) -> Vec<String> {
    let no = asked.iter().filter(|entry| matches!(entry.code, 401 | 403));
    no.map(AuditEntry::what).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn registering_again_reconciles_and_keeps_the_node() {
    let cluster = Cluster::shared().await;
    let name = unique("again");
    let kubeconfig = cluster.node_kubeconfig(&name);
    let mut first = Agent::start(&kubeconfig, facts(&name, "me"));
    let uid = first.registered().await;
    first.stop().await;
    cluster.kubectl(&[
        "label",
        "node",
        &name,
        "kubernetes.io/arch=s390x",
        "--overwrite",
    ]);
    cluster.kubectl(&["label", "node", &name, "mine=1"]);
    let mut second = Agent::start(&kubeconfig, facts(&name, "me"));
    // node 1
    assert_eq!(second.registered().await, uid);
    let node = eventually("its label", || {
        let node = node_of(&cluster, &name)?;
        (node["metadata"]["labels"]["kubernetes.io/arch"] == "amd64").then_some(node)
    })
    .await;
    assert_eq!(node["metadata"]["labels"]["mine"], "1");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_status_costs_leases_only() {
    let cluster = Cluster::shared().await;
    let name = unique("idle");
    let mut agent = Agent::start(&cluster.node_kubeconfig(&name), facts(&name, "me"));
    agent.registered().await;
    until_ready_is(&cluster, &name, "True").await;
    let asked = || {
        let mut asked = cluster.audit_of(&format!("system:node:{name}"));
        asked.retain(|entry| entry.stage == "ResponseComplete");
        asked
    };
    // The node-lifecycle controller adds taints and labels of its own at the start; once that is
    // over, nothing comes between renewals.
    // node 2
    until("three renewals in a row", async || {
        let asked: Vec<String> = asked().iter().map(AuditEntry::what).collect();
        let last = asked.iter().rev().take(3);
        if asked.len() >= 3 && last.clone().all(|what| what == "update leases") {
            Ok(())
        } else {
            Err(asked)
        }
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_node_comes_back() {
    let cluster = Cluster::shared().await;
    let name = unique("gone");
    let mut agent = Agent::start(&cluster.node_kubeconfig(&name), facts(&name, "me"));
    let uid = agent.registered().await;
    eventually("a Lease", || lease_of(&cluster, &name)).await;
    cluster.kubectl(&["delete", "node", &name]);
    let new = eventually("another Node", || {
        let node = node_of(&cluster, &name)?;
        let new = node["metadata"]["uid"].as_str()?.to_owned();
        (new != uid).then_some(new)
    })
    .await;
    eventually("a Lease of the new Node", || {
        let lease = lease_of(&cluster, &name)?;
        (lease["metadata"]["ownerReferences"][0]["uid"] == new.as_str()).then_some(())
    })
    .await;
    let seen = agent.node.get();
    // node 5
    assert_eq!(seen.as_ref().as_deref().map(self::uid), Some(new));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_others_wrote_or_deleted_is_renewed() {
    let cluster = Cluster::shared().await;
    let name = unique("lease");
    let mut agent = Agent::start(&cluster.node_kubeconfig(&name), facts(&name, "me"));
    let uid = agent.registered().await;
    eventually("a Lease", || lease_of(&cluster, &name)).await;
    let kubectl = |words: &[&str]| {
        let mut all = vec!["-n", "kube-node-lease"];
        all.extend(words);
        cluster.kubectl(&all)
    };
    kubectl(&["annotate", "lease", &name, "mine=1"]);
    // As it is now: it may have been renewed before others wrote it.
    let renewed = lease_of(&cluster, &name).unwrap()["spec"]["renewTime"].clone();
    let lease = eventually("a renewal", || {
        let lease = lease_of(&cluster, &name)?;
        (lease["spec"]["renewTime"] != renewed).then_some(lease)
    })
    .await;
    assert_eq!(lease["metadata"]["annotations"]["mine"], "1");
    let user = format!("system:node:{name}");
    // A conflict, and the two requests after it: on record after their answers.
    let about = eventually("a conflict and what came after it", || {
        let asked = cluster.audit_of(&user);
        let asked = asked.into_iter().filter(|entry| entry.resource == "leases");
        let asked = asked.map(|entry| (entry.verb, entry.code));
        let from: Vec<(String, u64)> = asked
            .skip_while(|(verb, code)| (verb.as_str(), *code) != ("update", 409))
            .collect();
        (from.len() >= 3).then_some(from)
    })
    .await;
    let about: Vec<_> = about[..3].iter().map(|(v, c)| (v.as_str(), *c)).collect();
    // node 4
    assert_eq!(about, [("update", 409), ("get", 200), ("update", 200)]);
    kubectl(&["delete", "lease", &name]);
    let lease = eventually("another Lease", || lease_of(&cluster, &name)).await;
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], uid.as_str());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_certificates_are_used() {
    let cluster = Cluster::shared().await;
    let (name, other) = (unique("renewed"), unique("successor"));
    let kubeconfig = cluster.node_kubeconfig(&name);
    let mut agent = Agent::start(&kubeconfig, facts(&name, "me"));
    agent.registered().await;
    // The certificate of somebody else, so that the server tells which one was used.
    let successor = cluster.node_kubeconfig(&other);
    let replace = |kind: &str| {
        std::fs::copy(
            successor.with_extension(kind),
            kubeconfig.with_extension(kind),
        )
        .unwrap();
    };
    // A key that doesn't fit its certificate yet changes nothing.
    replace("key");
    replace("crt");
    let user = format!("system:node:{other}");
    eventually("a request with the new certificate", || {
        (!cluster.audit_of(&user).is_empty()).then_some(())
    })
    .await;
    // And again back: the Node is still ours.
    cluster.node_kubeconfig(&name);
    agent.readings.publish(down());
    // node 6c
    until_ready_is(&cluster, &name, "False").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_read_again() {
    let cluster = Cluster::shared().await;
    let account = cluster.service_account_kubeconfig();
    let dir = crate::common::tempdir();
    let (kubeconfig, token) = (dir.path().join("kubeconfig"), dir.path().join("token"));
    let mut config: Value = serde_json::from_slice(&std::fs::read(account).unwrap()).unwrap();
    let user = &mut config["users"][0]["user"];
    let good = std::fs::read(user["tokenFile"].as_str().unwrap()).unwrap();
    user["tokenFile"] = token.to_str().unwrap().into();
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    std::fs::write(&token, "worn out").unwrap();
    let mut agent = Agent::start(&kubeconfig, facts(&unique("token"), "me"));
    let refused = agent.standing.wait_for(|standing| match standing {
        NodeRegistration::Refused { cause, .. } => cause.contains("credentials"),
        NodeRegistration::Waiting | NodeRegistration::Registered { .. } => false,
    });
    tokio::time::timeout(common::PATIENCE, refused)
        .await
        .unwrap()
        .unwrap();
    std::fs::write(&token, good).unwrap();
    // node 6c
    agent.registered().await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_kubelet_is_left_alone() {
    let cluster = Cluster::shared().await;
    let name = unique("kubelets");
    let theirs = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    cluster.apply(&theirs.to_string());
    let info = json!({
        "kubeletVersion": "v1.35.4", "machineID": "", "systemUUID": "", "bootID": "",
        "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "containerd://1.6",
        "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
    });
    cluster.node_status(&name, &json!({"nodeInfo": info}));
    let mut agent = Agent::start(&cluster.node_kubeconfig(&name), facts(&name, "me"));
    let standing = agent
        .standing
        .wait_for(|standing| matches!(standing, NodeRegistration::Refused { .. }));
    let standing = tokio::time::timeout(common::PATIENCE, standing)
        .await
        .unwrap();
    let NodeRegistration::Refused { cause, .. } = &*standing.unwrap() else {
        panic!()
    };
    assert!(cause.contains("--node-name"), "{cause}");
    let wrote: Vec<String> = cluster
        .audit_of_some(&format!("system:node:{name}"))
        .await
        .iter()
        .filter(|entry| entry.writes() && entry.code < 300)
        .map(AuditEntry::what)
        .collect();
    // node 6b
    assert!(wrote.is_empty(), "{wrote:?}");
    assert_eq!(lease_of(&cluster, &name), None);
    // It goes for good: now the name is free.
    cluster.kubectl(&["delete", "node", &name]);
    agent.registered().await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_another_living_mirrorlet_is_left_alone() {
    let cluster = Cluster::shared().await;
    let name = unique("twins");
    let kubeconfig = cluster.node_kubeconfig(&name);
    let mut first = Agent::start(&kubeconfig, facts(&name, "first"));
    let uid = first.registered().await;
    eventually("a Lease", || lease_of(&cluster, &name)).await;
    let mut second = Agent::start(&kubeconfig, facts(&name, "second"));
    let refused = second
        .standing
        .wait_for(|standing| matches!(standing, NodeRegistration::Refused { .. }));
    tokio::time::timeout(common::PATIENCE, refused)
        .await
        .unwrap()
        .unwrap();
    let starts = || {
        let entries = second.telemetry.journal.entries(0);
        entries
            .iter()
            .filter(|entry| &*entry.reason == "Starting")
            .count()
    };
    // node 6b
    assert_eq!(starts(), 0, "the Node is not its own");
    // The first ends, its Lease goes, and the second takes over the same Node.
    first.stop().await;
    cluster.kubectl(&["delete", "lease", "-n", "kube-node-lease", &name]);
    // node 6b
    assert_eq!(second.registered().await, uid);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_is_told_and_caught_up_with() {
    let cluster = Cluster::shared().await;
    let link = Link::to(&cluster.server()).await;
    let name = unique("away");
    let kubeconfig = link.kubeconfig(&cluster.node_kubeconfig(&name));
    let mut agent = Agent::start(&kubeconfig, facts(&name, "me"));
    let uid = agent.registered().await;
    until_ready_is(&cluster, &name, "True").await;
    let mut reach = agent.reach.clone();
    let mut until = async |up: bool| {
        let wanted = reach.wait_for(|reach| match reach {
            ApiReach::Up => up,
            ApiReach::Down { .. } => !up,
            ApiReach::Unknown | ApiReach::Rejected { .. } => false,
        });
        tokio::time::timeout(common::PATIENCE, wanted)
            .await
            .unwrap()
            .unwrap();
    };
    link.refuse().await;
    until(false).await;
    agent.readings.publish(down());
    link.accept().await;
    until(true).await;
    // node 6e
    let node = until_ready_is(&cluster, &name, "False").await;
    assert_eq!(node["metadata"]["uid"], uid.as_str());
    // It hangs, with all connections open.
    link.hold();
    until(false).await;
    agent.readings.publish(up());
    link.release();
    until(true).await;
    until_ready_is(&cluster, &name, "True").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_silent_is_clean_again() {
    // Upstream's fifty seconds, shortened; a living agent speaks every ten.
    let options = Options::default().without_scheduler().controller_manager(&[
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=15s",
    ]);
    let cluster = options.start().await;
    let name = unique("silent");
    let kubeconfig = cluster.node_kubeconfig(&name);
    let mut agent = Agent::start(&kubeconfig, facts(&name, "me"));
    agent.registered().await;
    until_ready_is(&cluster, &name, "True").await;
    let tainted = || {
        let node = node_of(&cluster, &name).unwrap();
        let taints = node["spec"]["taints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        taints
            .iter()
            .any(|taint| taint["key"] == "node.kubernetes.io/unreachable")
    };
    agent.stop().await;
    // node 6f
    until_ready_is(&cluster, &name, "Unknown").await;
    eventually("the taint", || tainted().then_some(())).await;
    let mut agent = Agent::start(&kubeconfig, facts(&name, "me"));
    agent.registered().await;
    until_ready_is(&cluster, &name, "True").await;
    eventually("no taint", || (!tainted()).then_some(())).await;
    agent.stop().await;
}

#[test]
fn a_kubeconfig_that_is_wrong_ends_the_program_with_2() {
    let root = crate::common::tempdir();
    let missing = root.path().join("kubeconfig");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
        .args([
            "run",
            "--metrics-address",
            "none",
            "--node-api-port",
            "0",
            "--root",
        ])
        .arg(root.path())
        .arg("--kubeconfig")
        .arg(&missing)
        .output()
        .unwrap();
    // node 6d
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    let said = told.lines().last().unwrap();
    assert!(said.contains(missing.to_str().unwrap()), "{told}");
    assert!(said.contains("No such file"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_agent_tells_what_its_engine_has() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let tells = |name: &str| {
        let name = name.to_owned();
        move |node: &Value| {
            let images = node["status"]["images"].as_array();
            let mut names = images.into_iter().flatten().map(|image| &image["names"]);
            names.any(|names| names.as_array().unwrap().contains(&name.as_str().into()))
        }
    };
    let node = bed.until_node("an image", tells(common::IMAGE)).await;
    assert_eq!(condition(&node, "Ready").unwrap()["status"], "True");
    assert_eq!(
        condition(&node, "DiskPressure").unwrap()["reason"],
        "KubeletHasNoDiskPressure"
    );
    let info = &node["status"]["nodeInfo"];
    let engine = bed.docker(&["version", "--format", "{{.Server.Version}}"]);
    assert_eq!(
        info["containerRuntimeVersion"],
        format!("docker://{engine}")
    );
    assert!(!info["bootID"].as_str().unwrap().is_empty());
    let image = format!("mirrorlet.test/{}:1", unique("imported"));
    let archive = bed.path().join("image.tar");
    let tar = [
        "-cf",
        archive.to_str().unwrap(),
        "-C",
        bed.path().to_str().unwrap(),
        "manifests",
    ];
    assert!(
        std::process::Command::new("tar")
            .args(tar)
            .status()
            .unwrap()
            .success()
    );
    bed.docker(&["import", archive.to_str().unwrap(), &image]);
    // node 6g
    bed.until_node("a new image", tells(&image)).await;
    bed.docker(&["rmi", &image]);
    bed.until_node("no such image", |node| !tells(&image)(node))
        .await;
    agent.stop().await;
}
