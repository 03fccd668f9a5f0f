//! A bed whose agent is a Node of a real cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, WatchParams};
use mirrorlet::config::Resolved;
use mirrorlet::config::node::ApiAccess;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::{Cluster, unique};
use super::link::Link;
use super::{Bed, IMAGE, PATIENCE, TestAgent, pause_after};

/// Shortest time between two looks at the API server.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest time between two looks at an object that is followed: part of what is wanted may be elsewhere.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// As whom the agent speaks to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// `system:node:<name>`: under Node authorizer and `NodeRestriction`.
    Node,
    /// A `ServiceAccount` with the rights of `manifests/rbac.yaml`.
    ServiceAccount,
}

/// A root directory, and a Node and a namespace of its own in a cluster.
pub struct NodeBed {
    pub bed: Bed,
    pub cluster: Arc<Cluster>,
    /// Name of the agent's Node.
    pub node: String,
    /// Where the pods of this test are.
    pub namespace: String,
    kubeconfig: PathBuf,
    client: kube::Client,
}

impl Deref for NodeBed {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        &self.bed
    }
}

impl NodeBed {
    /// A fresh one in the cluster of this test program, with a node's identity.
    pub async fn new() -> Self {
        Self::on(Cluster::shared().await, Identity::Node).await
    }

    /// A fresh one in that cluster.
    pub async fn on(cluster: Arc<Cluster>, identity: Identity) -> Self {
        let namespace = cluster.namespace("test").await;
        Self::in_namespace(cluster, identity, namespace).await
    }

    /// A fresh one that shares a namespace with others.
    pub async fn in_namespace(
        cluster: Arc<Cluster>,
        identity: Identity,
        namespace: String,
    ) -> Self {
        let node = unique("node");
        let kubeconfig = match identity {
            Identity::Node => cluster.node_kubeconfig(&node),
            Identity::ServiceAccount => cluster.service_account_kubeconfig(),
        };
        let client = cluster.admin().await;
        Self {
            bed: Bed::with_disk("50%"),
            cluster,
            node,
            namespace,
            kubeconfig,
            client,
        }
    }

    /// A fresh one whose agent is who that kubeconfig says.
    pub async fn as_whom(cluster: Arc<Cluster>, kubeconfig: PathBuf) -> Self {
        let namespace = cluster.namespace("test").await;
        let client = cluster.admin().await;
        Self {
            bed: Bed::with_disk("50%"),
            cluster,
            node: unique("node"),
            namespace,
            kubeconfig,
            client,
        }
    }

    /// Has all agents of this bed that start from now on reach the API server over a link.
    pub async fn link(&mut self) -> Link {
        let link = Link::to(&self.cluster.server()).await;
        self.kubeconfig = link.kubeconfig(&self.kubeconfig);
        link
    }

    /// The configuration of an agent on this bed.
    pub fn resolved(&self) -> Resolved {
        let mut resolved = self.bed.resolved();
        resolved.config.node_name = self.node.as_str().into();
        resolved.config.kubeconfig = ApiAccess::Kubeconfig(self.kubeconfig.clone());
        // Any that is free: many agents run on this machine.
        resolved.config.node_api_port = Some(0);
        resolved.config.client_ca_file = Some(self.cluster.authority());
        resolved
    }

    /// Starts an agent.
    pub async fn agent(&self) -> TestAgent {
        self.bed.agent_as(self.resolved()).await
    }

    /// Starts an agent, and waits until its Node is Ready and names the agent's port: that of an
    /// agent before is Ready for a while, with a port that nobody listens on any more.
    pub async fn joined(&self) -> TestAgent {
        let agent = self.agent().await;
        self.until_node("Ready, with the agent's port", |node| {
            let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
            let port = port.as_u64().and_then(|port| u16::try_from(port).ok());
            let listens = |port: u16| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
            condition(node, "Ready") == Some("True") && port.is_some_and(listens)
        })
        .await;
        agent
    }

    /// Writes the manifest of a pod that runs until it is told to stop.
    pub fn sleeper(&self, name: &str) {
        self.write(&format!("{name}.yaml"), &self.pod(name, IMAGE, 1, QUIET));
    }

    /// A manifest in this bed's namespace: one container, named like the pod, that runs `script`.
    pub fn pod(&self, name: &str, image: &str, grace_seconds: u32, script: &str) -> String {
        let namespace = &self.namespace;
        format!(
            r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  labels: {{app: {name}}}
  annotations: {{note: of the author}}
spec:
  terminationGracePeriodSeconds: {grace_seconds}
  containers:
  - name: {name}
    image: {image}
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "{script}"]
"#
        )
    }

    /// Name of a static pod and its mirror in the API server.
    pub fn name(&self, pod: &str) -> String {
        format!("{pod}-{}", self.node)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The mirror of a static pod, as the API server has it.
    pub async fn mirror(&self, pod: &str) -> Option<Value> {
        self.api_pod(&self.name(pod)).await
    }

    /// A pod of this namespace.
    pub async fn api_pod(&self, name: &str) -> Option<Value> {
        let pod = self.pods().get_opt(name).await.unwrap();
        pod.map(|pod| serde_json::to_value(pod).unwrap())
    }

    /// All pods of this namespace that are bound to this bed's Node, by name.
    pub async fn api_pods(&self) -> BTreeMap<String, Value> {
        let list = self.pods().list(&kube::api::ListParams::default()).await;
        let mut pods = BTreeMap::new();
        for pod in list.unwrap() {
            let name = pod.metadata.name.clone().unwrap();
            let pod = serde_json::to_value(pod).unwrap();
            if pod["spec"]["nodeName"] == self.node.as_str() {
                pods.insert(name, pod);
            }
        }
        pods
    }

    /// Waits until the mirror of a static pod is as wanted.
    pub async fn until_mirror(&self, pod: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until_pod(&self.name(pod), wanted).await
    }

    /// Waits until a pod of this namespace is as wanted.
    pub async fn until_pod(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let look = |pod: Option<&Value>| pod.filter(|pod| wanted(pod)).cloned();
        let what = format!("pod {name}");
        Box::pin(follow(&self.pods(), name, &what, look)).await
    }

    /// Waits until the mirror of a static pod shows it running and ready.
    pub async fn until_mirrored(&self, pod: &str) -> Value {
        self.until_mirror(pod, is_ready).await
    }

    /// Waits until a pod of this namespace is gone.
    pub async fn until_pod_gone(&self, name: &str) {
        let look = |pod: Option<&Value>| pod.is_none().then_some(());
        let what = format!("{name} to be gone");
        Box::pin(follow(&self.pods(), name, &what, look)).await;
    }

    /// Waits until a static pod has no mirror.
    pub async fn until_no_mirror(&self, pod: &str) {
        self.until_pod_gone(&self.name(pod)).await;
    }

    /// Deletes a pod of this namespace: gracefully, or by force.
    pub async fn delete_pod(&self, name: &str, force: bool) {
        let params = DeleteParams {
            grace_period_seconds: force.then_some(0),
            ..DeleteParams::default()
        };
        drop(self.pods().delete(name, &params).await.unwrap());
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// This bed's Node.
    pub async fn api_node(&self) -> Option<Value> {
        let node = self.nodes().get_opt(&self.node).await.unwrap();
        node.map(|node| serde_json::to_value(node).unwrap())
    }

    /// Waits until this bed's Node is as wanted.
    pub async fn until_node(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let look = |node: Option<&Value>| node.filter(|node| wanted(node)).cloned();
        let what = format!("Node {}: {what}", self.node);
        Box::pin(follow(&self.nodes(), &self.node, &what, look)).await
    }

    /// Events of this namespace about an object of that UID, oldest first: reason and message.
    pub fn events(&self, uid: &str) -> Vec<(String, String)> {
        let selector = format!("--field-selector=involvedObject.uid={uid}");
        let list = self
            .cluster
            .object(&["events", "-n", &self.namespace, &selector]);
        // An empty list is told by no words at all.
        let mut events =
            list.map_or_else(Vec::new, |list| list["items"].as_array().unwrap().clone());
        events.sort_by_key(|event| event["firstTimestamp"].to_string());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events
            .iter()
            .map(|event| (text(&event["reason"]), text(&event["message"])))
            .collect()
    }
}

/// A script that ends at once when it is told to.
pub const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
/// A script that hears no SIGTERM: it runs as long as its grace.
pub const STUBBORN: &str = "trap '' TERM; while :; do sleep 1; done";

/// The UID of an object.
pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

/// The status of a condition.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == kind)?;
    found["status"].as_str()
}

/// An object in few words, for a test that failed.
fn brief(object: &Value) -> String {
    let mut object = object.clone();
    object["metadata"]["managedFields"].take();
    object["status"]["images"].take();
    let annotations = &mut object["metadata"]["annotations"];
    annotations["kubectl.kubernetes.io/last-applied-configuration"].take();
    json!({"metadata": object["metadata"], "status": object["status"]}).to_string()
}

/// Whether a pod runs and is ready.
pub fn is_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && condition(pod, "Ready") == Some("True")
}

/// Looks at an object until `look` finds what is wanted: at once, and then whenever the API server tells of a
/// change. Many tests wait at a time, and looks that find nothing new would keep the processors busy.
async fn follow<K, T>(
    objects: &Api<K>,
    name: &str,
    what: &str,
    look: impl Fn(Option<&Value>) -> Option<T>,
) -> T
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let end = Instant::now() + PATIENCE;
    let mut changes = None;
    loop {
        let object = objects.get_opt(name).await.unwrap();
        let object = object.map(|object| serde_json::to_value(object).unwrap());
        if let Some(found) = look(object.as_ref()) {
            return found;
        }
        assert!(
            Instant::now() < end,
            "waited in vain for {what}; there is {:?}",
            object.as_ref().map(brief)
        );
        if let Some(object) = object.filter(|_| changes.is_none()) {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap();
            let watch = objects.watch_metadata(&params, version).await;
            changes = watch.ok().map(Box::pin);
        }
        let told = match &mut changes {
            Some(changes) => tokio::time::timeout(LOOK_AGAIN, changes.next()).await,
            None => Ok(None),
        };
        // Without a watch, or at the end of one.
        if matches!(told, Ok(None | Some(Err(_)))) {
            changes = None;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Looks until there is what is wanted; what was seen instead is told when it never comes.
pub async fn until<T, S: Debug>(what: &str, mut look: impl AsyncFnMut() -> Result<T, S>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        match look().await {
            Ok(found) => return found,
            Err(seen) if Instant::now() >= end => {
                panic!("waited in vain for {what}; there is {seen:?}")
            }
            Err(_) => tokio::time::sleep(pause_after(began.elapsed()).max(PAUSE)).await,
        }
    }
}

/// An ordinary Pod bound to the Node of that bed; its container has its name.
pub fn bound(bed: &NodeBed, name: &str, image: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name, "namespace": bed.namespace},
    "spec": {
        "nodeName": bed.node, "terminationGracePeriodSeconds": 5,
        "containers": [{"name": name, "image": image, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script]}],
    }})
}
