//! Mirrors that a real API server refuses: each refusal is told apart by its real words, and mended
//! as soon as its cause goes away. No Engine is needed: workers are played.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common;
use crate::common::cluster::{Cluster, unique};
use crate::common::eventually;
use crate::common::node::until;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use mirrorlet::cluster::{
    ClusterClient, MirrorInputs, MirrorTask, NodeRegistration, StatusInputs, StatusTask,
};
use mirrorlet::config::node::ApiAccess;
use mirrorlet::store::board::{BoardWriter, Phase, PodView, board};
use mirrorlet::store::cell::{Reader, Writer, cell};
use mirrorlet::store::pods::{ApiPodsWriter, PodWriter, pod_manager};
use mirrorlet_core::api::{FullName, NodeName, PodUid, Timestamp};
use mirrorlet_core::desired::{ApiPods, Delivered, Origin, PodSource, SourcePod};
use mirrorlet_core::manifest::{ParseContext, parse_manifest};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::mirror::{MirrorProblem, MirrorState, ProblemKind};
use mirrorlet_core::observed::{PodStatus, Pods};
use mirrorlet_host::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time between two looks at the API server, in place of a watch.
const PAUSE: Duration = Duration::from_millis(20);

/// The mirror and status tasks of one Node.
struct Bed {
    cluster: Arc<Cluster>,
    node: String,
    namespace: String,
    wanted: PodWriter,
    merged: Writer<Merged>,
    board: BoardWriter,
    states: Reader<BTreeMap<FullName, MirrorState>>,
    telemetry: Telemetry,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    /// Readers end with their writers.
    _writers: (Writer<Option<Arc<Node>>>, Writer<NodeRegistration>, Listed),
}

/// Writes what the runtime has listed: nothing.
type Listed = tokio::sync::watch::Sender<Option<Arc<Pods>>>;

/// A pod that a `LimitRange` can find too large.
fn manifest(namespace: &str, more: &str) -> String {
    format!(
        r"apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: {namespace}}}
spec:
  {more}
  containers:
  - name: web
    image: {image}
    imagePullPolicy: IfNotPresent
    resources: {{limits: {{memory: 64Mi, cpu: 100m}}}}
",
        image = common::IMAGE
    )
}

impl Bed {
    /// A node whose agent is a `ServiceAccount`.
    async fn new() -> Self {
        let cluster = Cluster::shared().await;
        let namespace = unique("refused");
        let identity = cluster.service_account_kubeconfig();
        cluster.bare_namespace(&namespace);
        Self::with(cluster, unique("node"), namespace, &identity).await
    }

    async fn with(cluster: Arc<Cluster>, node: String, namespace: String, identity: &Path) -> Self {
        cluster.apply(
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}).to_string(),
        );
        let admin = cluster.admin().await;
        let nodes: Api<Node> = Api::all(admin.clone());
        let (node_writer, node_reader) = cell(Some(Arc::new(nodes.get(&node).await.unwrap())));
        let access = ApiAccess::Kubeconfig(identity.to_owned());
        let telemetry = Telemetry::new();
        let (client, credentials) = ClusterClient::open(&access, telemetry.metrics.clone())
            .unwrap()
            .unwrap();
        let (merged, merged_reader) = cell(Merged {
            delivered: Delivered::ALL,
            ..Merged::default()
        });
        let (board, board_reader) = board();
        let (listed_writer, listed) = tokio::sync::watch::channel(Some(Arc::default()));
        let (wanted, told, manager) = pod_manager();
        let node_name = NodeName::from(node.as_str());
        let (standing_writer, standing) = cell(NodeRegistration::Registered {
            uid: String::new(),
            is_certain: true,
        });
        let inputs = MirrorInputs {
            node_name,
            node: node_reader,
            standing: standing.clone(),
            merged: merged_reader,
            board: board_reader.clone(),
            manager: manager.clone(),
            listed,
        };
        let (mirrors, states) = MirrorTask::new(client.clone(), inputs, telemetry.clone());
        let inputs = StatusInputs {
            board: board_reader,
            manager,
            standing,
        };
        let statuses = StatusTask::new(client, inputs, telemetry.clone());
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let keeping = cancel.clone().run_until_cancelled_owned(credentials.run());
        tasks.spawn(async move { keeping.await.unwrap_or_default() });
        tasks.spawn(mirrors.run(cancel.clone()));
        tasks.spawn(statuses.run(cancel.clone()));
        tasks.spawn(feed(admin, node.clone(), told, cancel.clone()));
        Self {
            cluster,
            node,
            namespace,
            wanted,
            merged,
            board,
            states,
            telemetry,
            cancel,
            tasks,
            _writers: (node_writer, standing_writer, listed_writer),
        }
    }

    /// A static pod, made as a manifest's.
    fn want(&mut self, manifest: &str) -> Arc<Pod> {
        let node_name = NodeName::from(self.node.as_str());
        let context = ParseContext {
            source: PodSource::File,
            location: "web.yaml",
            node_name: &node_name,
        };
        let parsed = parse_manifest(manifest.as_bytes(), &context);
        let pod = Arc::clone(&parsed.documents[0].pods()[0]);
        let source = SourcePod::new(Arc::clone(&pod), Origin::whole(PodSource::File, "web.yaml"));
        self.wanted.set_pods([Arc::clone(&pod)]);
        self.merged.publish(Merged {
            pods: BTreeMap::from([(PodUid::of(&pod), source)]),
            delivered: Delivered::ALL,
            ..Merged::default()
        });
        pod
    }

    /// Publishes the state of its worker.
    fn tell(&self, pod: &Arc<Pod>, phase: Phase, status: Value) {
        self.board.publish(PodView {
            uid: PodUid::of(pod),
            full_name: FullName::of(pod),
            pod: Some(Arc::clone(pod)),
            phase,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            observed: Arc::new(PodStatus::empty(PodUid::of(pod))),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        });
    }

    async fn problem(&self, kind: ProblemKind) -> MirrorProblem {
        until("a problem", async || {
            let states = self.states.get();
            match states.values().next() {
                Some(MirrorState::Problem(problem)) if problem.kind == kind => Ok(problem.clone()),
                _ => Err(states),
            }
        })
        .await
    }

    async fn synced(&self) {
        until("the mirror", async || {
            let states = self.states.get();
            match states.values().next() {
                Some(MirrorState::Synced { .. }) => Ok(()),
                _ => Err(states),
            }
        })
        .await;
    }

    /// The mirror, or whatever has its name.
    fn there(&self) -> Option<Value> {
        let name = format!("web-{}", self.node);
        self.cluster.object(&["pod", "-n", &self.namespace, &name])
    }

    /// Waits for the refusal, mends it, and waits for the mirror.
    async fn refused_until(mut self, kind: ProblemKind, words: &str, mend: impl FnOnce(&Self)) {
        self.want(&manifest(&self.namespace, ""));
        let problem = self.problem(kind).await;
        common::tell(&format!("{kind}: {}", problem.message));
        assert!(problem.message.contains(words), "{problem:?}");
        mend(&self);
        self.synced().await;
        until("the mirror to be counted", async || {
            let metrics = self.telemetry.metrics.encode();
            let counted = metrics.contains("mirrorlet_mirror_pods{state=\"synced\"} 1");
            if counted { Ok(()) } else { Err(metrics) }
        })
        .await;
        let mirror = self.there().unwrap();
        assert_eq!(mirror["spec"]["nodeName"], self.node.as_str());
        self.stop().await;
    }

    async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// Tells what the API server has of the Node's pods, as the API source does.
async fn feed(
    client: kube::Client,
    node: String,
    mut told: ApiPodsWriter,
    cancel: CancellationToken,
) {
    let pods: Api<Pod> = Api::all(client);
    let ours = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut known = Arc::<ApiPods>::default();
    while !cancel.is_cancelled() {
        if let Ok(list) = pods.list(&ours).await {
            let pods = list.items.into_iter().map(|mut pod| {
                pod.metadata.managed_fields = None;
                let uid = PodUid::of(&pod);
                let same = known
                    .pods
                    .get(&uid)
                    .filter(|known| ***known == pod)
                    .cloned();
                (uid, same.unwrap_or_else(|| Arc::new(pod)))
            });
            let pods = pods.collect();
            known = Arc::new(ApiPods {
                pods,
                ..ApiPods::default()
            });
            told.publish(Arc::clone(&known));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_namespace() {
    let cluster = Cluster::shared().await;
    let identity = cluster.service_account_kubeconfig();
    let (node, namespace) = (unique("node"), unique("late"));
    let bed = Bed::with(cluster, node, namespace, &identity).await;
    let words = "not found";
    // pods 35
    bed.refused_until(ProblemKind::NamespaceMissing, words, |bed| {
        bed.cluster.bare_namespace(&bed.namespace);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_security_level() {
    let bed = Bed::new().await;
    let level = "pod-security.kubernetes.io/enforce";
    let label = |bed: &Bed, value: &str| {
        let args = ["label", "namespace", &bed.namespace, value];
        bed.cluster.kubectl(&args);
    };
    label(&bed, &format!("{level}=restricted"));
    let words = "violates PodSecurity \"restricted:latest\"";
    until_refused(&bed, words).await;
    // pods 35
    bed.refused_until(ProblemKind::PodSecurity, words, |bed| {
        label(bed, &format!("{level}-"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota() {
    let bed = Bed::new().await;
    let namespace = bed.namespace.clone();
    bed.cluster
        .kubectl(&["create", "quota", "-n", &namespace, "none", "--hard=pods=0"]);
    until("the quota to count", async || {
        let quota = bed.cluster.object(&["quota", "-n", &namespace, "none"]);
        match quota {
            Some(quota) if quota["status"]["used"]["pods"] == "0" => Ok(()),
            quota => Err(quota),
        }
    })
    .await;
    until_refused(&bed, "exceeded quota: none").await;
    // pods 35
    bed.refused_until(ProblemKind::Quota, "exceeded quota: none", |bed| {
        bed.cluster
            .kubectl(&["delete", "quota", "-n", &bed.namespace, "none"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_range() {
    let bed = Bed::new().await;
    let limits = json!({"apiVersion": "v1", "kind": "LimitRange",
        "metadata": {"name": "small", "namespace": bed.namespace},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "32Mi"}}]}});
    bed.cluster.apply(&limits.to_string());
    let words = "maximum memory usage per Container is 32Mi";
    // pods 35
    bed.refused_until(ProblemKind::LimitRange, words, |bed| {
        bed.cluster
            .kubectl(&["delete", "limitrange", "-n", &bed.namespace, "small"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_does_not_answer() {
    let bed = Bed::new().await;
    let name = unique("webhook");
    let hook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [{
            "name": "deny.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"]}],
        }],
    });
    bed.cluster.apply(&hook.to_string());
    until_refused(&bed, "deny.example.com").await;
    let words = "failed calling webhook \"deny.example.com\"";
    // pods 35
    bed.refused_until(ProblemKind::Webhook, words, |bed| {
        let kind = "validatingwebhookconfiguration";
        bed.cluster.kubectl(&["delete", kind, &name]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admission_policy() {
    let bed = Bed::new().await;
    let name = unique("policy");
    let matches = json!({"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"namespaceSelector": matches, "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                 "resources": ["pods"]}]},
            "validations": [{"expression": "false", "message": "not here"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    bed.cluster.apply(&policy.to_string());
    bed.cluster.apply(&binding.to_string());
    until_refused(&bed, "not here").await;
    // pods 35
    bed.refused_until(ProblemKind::Webhook, "denied request: not here", |bed| {
        let kind = "validatingadmissionpolicybinding";
        bed.cluster.kubectl(&["delete", kind, &name]);
    })
    .await;
}

/// Waits until admission has taken up a new rule: pods are refused in those words.
async fn until_refused(bed: &Bed, words: &str) {
    until("admission to refuse", async || {
        let args = [
            "run",
            "probe",
            "-n",
            &bed.namespace,
            "--image=probe",
            "--dry-run=server",
        ];
        match bed.cluster.try_kubectl(&args) {
            Err(error) if error.contains(words) => Ok(()),
            answer => Err(answer),
        }
    })
    .await;
}

/// Another Node than the bed's own, and than those of other tests.
fn another_node(bed: &Bed) -> String {
    format!("beside-{}", bed.node)
}

fn foreign(bed: &Bed) -> String {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("web-{}", bed.node), "namespace": bed.namespace},
        "spec": {"nodeName": another_node(bed), "containers": [{"name": "main", "image": common::IMAGE}]}})
    .to_string()
}

async fn a_foreign_pod(bed: Bed, words: &str) {
    let account = ["serviceaccount", "default", "-n", &bed.namespace];
    until("the account of foreign pods", async || {
        bed.cluster.object(&account).ok_or(())
    })
    .await;
    // A Node that there is: pods of others are soon collected.
    let another =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": another_node(&bed)}});
    bed.cluster.apply(&another.to_string());
    bed.cluster.apply(&foreign(&bed));
    let before = bed.there().unwrap();
    bed.refused_until(ProblemKind::NameTaken, words, |bed| {
        let now = bed.there().unwrap();
        // pods 35
        assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
        assert!(now["metadata"]["deletionTimestamp"].is_null());
        let name = format!("web-{}", bed.node);
        bed.cluster
            .kubectl(&["delete", "pod", "-n", &bed.namespace, &name, "--force"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_taken_on_another_node() {
    let bed = Bed::new().await;
    let words = format!("the name is in use by a pod on node {}", another_node(&bed));
    a_foreign_pod(bed, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_taken_where_a_node_identity_may_not_look() {
    let cluster = Cluster::shared().await;
    let (node, namespace) = (unique("node"), unique("refused"));
    let identity = cluster.node_kubeconfig(&node);
    cluster.bare_namespace(&namespace);
    let bed = Bed::with(cluster, node, namespace, &identity).await;
    a_foreign_pod(
        bed,
        "the name is in use by a pod that the agent is not allowed to read",
    )
    .await;
}

/// A kubeconfig of a new `ServiceAccount` that may do nothing.
fn nobody(cluster: &Cluster, namespace: &str) -> PathBuf {
    cluster.account(namespace, "nobody");
    let token = cluster.token(namespace, "nobody", None);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": cluster.server(), "certificate-authority": cluster.authority(),
        }}],
        "users": [{"name": "c", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    let path = cluster.path().join(format!("{namespace}.kubeconfig"));
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions() {
    let cluster = Cluster::shared().await;
    let namespace = unique("refused");
    cluster.bare_namespace(&namespace);
    let identity = nobody(&cluster, &namespace);
    let bed = Bed::with(cluster, unique("node"), namespace, &identity).await;
    // pods 35
    bed.refused_until(
        ProblemKind::Forbidden,
        "cannot create resource \"pods\"",
        |bed| {
            let binding = unique("nobody");
            let account = format!("--serviceaccount={}:nobody", bed.namespace);
            let args = [
                "create",
                "clusterrolebinding",
                &binding,
                "--clusterrole=admin",
            ];
            bed.cluster
                .kubectl(&[&args[..], &[account.as_str()]].concat());
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_ours() {
    let cluster = Cluster::shared().await;
    let namespace = unique("refused");
    cluster.bare_namespace(&namespace);
    let identity = cluster.node_kubeconfig(&unique("node"));
    let mut bed = Bed::with(cluster, unique("node"), namespace, &identity).await;
    bed.want(&manifest(&bed.namespace, ""));
    let problem = bed.problem(ProblemKind::NodeRestriction).await;
    common::tell(&problem.message);
    // pods 35
    assert!(bed.there().is_none());
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_priority_class() {
    let mut bed = Bed::new().await;
    bed.want(&manifest(&bed.namespace, "priorityClassName: nope"));
    let problem = bed.problem(ProblemKind::PriorityClassMissing).await;
    let words = "no PriorityClass with name nope was found";
    // pods 35
    assert!(problem.message.contains(words), "{problem:?}");
    assert!(
        problem
            .next_try
            .is_some_and(|at| at > Timestamp::UNIX_EPOCH)
    );
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_are_patched_as_the_api_server_takes_them() {
    let mut bed = Bed::new().await;
    let pod = bed.want(&manifest(&bed.namespace, ""));
    bed.synced().await;
    let container = |state: Value, ready: bool, restarts: u32| {
        json!([{"name": "web", "image": "i", "imageID": "", "ready": ready, "started": ready,
            "restartCount": restarts, "state": state}])
    };
    let condition = |kind: &str, value: &str, second: u32| {
        json!({"type": kind, "status": value,
            "lastTransitionTime": format!("2026-01-01T00:00:0{second}Z")})
    };
    let status = |phase: &str, ip: &str, ready: &str, second: u32, statuses: Value| {
        json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z", "podIP": ip,
            "podIPs": [{"ip": ip}], "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}],
            "conditions": [condition("Ready", ready, second), condition("Initialized", "True", 1)],
            "containerStatuses": statuses})
    };
    let runs = container(
        json!({"running": {"startedAt": "2026-01-01T00:00:02Z"}}),
        true,
        0,
    );
    let waits = container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false, 1);
    for (second, status) in [
        status("Running", "10.1.0.2", "True", 2, runs),
        status("Running", "10.1.0.3", "False", 3, waits),
    ]
    .into_iter()
    .enumerate()
    {
        bed.tell(&pod, Phase::Syncing, status.clone());
        // pods 49
        let there = until("the status", async || {
            let there = bed.there().unwrap();
            if there["status"]["podIP"] == status["podIP"] {
                Ok(there)
            } else {
                Err(there)
            }
        })
        .await;
        let there = &there["status"];
        assert_eq!(there["podIPs"], status["podIPs"], "{second}");
        assert_eq!(there["hostIPs"], status["hostIPs"]);
        assert_eq!(there["startTime"], status["startTime"]);
        let conditions = there["conditions"].as_array().unwrap();
        for wanted in status["conditions"].as_array().unwrap() {
            let mut found = conditions.iter().filter(|c| c["type"] == wanted["type"]);
            let found = (found.next().unwrap(), found.next());
            assert_eq!(found.0["status"], wanted["status"]);
            assert_eq!(found.0["lastTransitionTime"], wanted["lastTransitionTime"]);
            assert!(found.1.is_none());
        }
        let state = &there["containerStatuses"][0]["state"];
        assert_eq!(*state, status["containerStatuses"][0]["state"]);
        assert_eq!(there["qosClass"], "Guaranteed");
        assert!(there["observedGeneration"].is_null());
    }
    // Written, and then left alone.
    let writes = |bed: &Bed| {
        let user = "system:serviceaccount:kube-system:mirrorlet";
        let mut record = bed.cluster.audit_of(user);
        record.retain(|entry| entry.namespace == bed.namespace && entry.writes());
        let writes = record.iter().map(|e| (e.what(), e.code));
        // A busy server may answer a creation too late: it is sent again, and was carried out.
        let is_again = |(what, code): &(String, u64)| what == "create pods" && *code == 409;
        writes.filter(|write| !is_again(write)).collect::<Vec<_>>()
    };
    eventually("the writes to be on record", || {
        (writes(&bed).len() >= 3).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let patched = ("patch pods/status".to_owned(), 200);
    let expected = [("create pods".to_owned(), 201), patched.clone(), patched];
    assert_eq!(writes(&bed), expected);
    bed.stop().await;
}
