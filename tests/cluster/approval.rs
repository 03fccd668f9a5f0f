//! `mirrorlet approve-certificates` as a process, at real Kubernetes servers, whose API server says
//! which pod a token is bound to, and whose controller manager signs what is approved.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use mirrorlet::certificate::Leaf;
use mirrorlet::config::ApiAccess;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::IMAGE;
use crate::common::cluster::accounts::right;
use crate::common::cluster::process::Program;
use crate::common::cluster::{Cluster, client, unique};
use crate::common::node::{Identity, NodeBed, condition, until};

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// A request for a certificate.
struct Request {
    signer: &'static str,
    user: String,
    group: &'static str,
    names: Vec<String>,
    addresses: Vec<String>,
    usage: &'static str,
}

impl Request {
    /// A first certificate, or a renewal, of that Node.
    fn client(node: &str) -> Self {
        Self {
            signer: CLIENT,
            user: format!("system:node:{node}"),
            group: "system:nodes",
            names: Vec::new(),
            addresses: Vec::new(),
            usage: "client auth",
        }
    }

    /// A serving certificate of that Node.
    fn serving(node: &str, addresses: &[&str]) -> Self {
        Self {
            signer: SERVING,
            addresses: addresses.iter().map(ToString::to_string).collect(),
            usage: "server auth",
            ..Self::client(node)
        }
    }

    /// Key and request, in PEM.
    fn pem(&self) -> (String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, self.group);
        name.push(DnType::CommonName, self.user.as_str());
        let names = self.names.iter();
        let names = names.map(|name| SanType::DnsName(name.as_str().try_into().unwrap()));
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|ip| SanType::IpAddress(ip.parse().unwrap()));
        params.subject_alt_names = names.chain(addresses).collect();
        let key = KeyPair::generate().unwrap();
        let request = params.serialize_request(&key).unwrap();
        (key.serialize_pem(), request.pem().unwrap())
    }
}

/// A cluster with hosts, the `ServiceAccount` of agents on them, and an approver.
struct Site {
    cluster: Arc<Cluster>,
    namespace: String,
    dir: TempDir,
    approver: PathBuf,
}

/// A host: a kubelet's Node, and a pod of the agents' on it.
struct Host {
    name: String,
    address: String,
    /// A kubeconfig with the token that is bound to the pod.
    token: PathBuf,
}

impl Host {
    /// Name of its Node of ours.
    fn node(&self) -> String {
        format!("{}-docker", self.name)
    }
}

impl Site {
    async fn new() -> Self {
        let cluster = Cluster::shared().await;
        let namespace = cluster.namespace("approval").await;
        for account in ["agents", "approver", "others"] {
            cluster.account(&namespace, account);
        }
        cluster.apply(&rbac(&namespace));
        let token = cluster.token(&namespace, "approver", None);
        let approver = cluster.token_kubeconfig(&unique("approver"), &token);
        let site = Self {
            cluster,
            namespace,
            dir: TempDir::new().unwrap(),
            approver,
        };
        // The authorizer knows of each binding after a moment.
        let requests = "certificatesigningrequests.certificates.k8s.io";
        let lease = right("create", "leases.coordination.k8s.io", &site.namespace);
        let request = vec![right("create", requests, "")];
        for (account, rights) in [
            ("approver", vec![right("list", requests, ""), lease]),
            ("agents", request.clone()),
            ("others", request),
        ] {
            let user = format!("system:serviceaccount:{}:{account}", site.namespace);
            site.cluster.until_user_may(&user, &[], rights);
        }
        site
    }

    /// Starts an approver, with its log in that directory.
    fn approver(&self, dir: &Path) -> Program {
        let args = [
            format!("--service-account={}/agents", self.namespace),
            format!("--lease={}/mirrorlet-approver", self.namespace),
            format!("--kubeconfig={}", self.approver.display()),
        ];
        let args = ["approve-certificates".to_owned()].into_iter().chain(args);
        let binary = Path::new(env!("CARGO_BIN_EXE_mirrorlet"));
        Program::start(binary, &args.collect::<Vec<_>>(), dir)
    }

    fn host(&self, address: &str) -> Host {
        let name = unique("host");
        self.host_named(&name, address)
    }

    fn host_named(&self, name: &str, address: &str) -> Host {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        self.cluster.apply(&node.to_string());
        let addresses = json!([
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ]);
        self.cluster
            .node_status(name, &json!({"addresses": addresses}));
        let pod = format!("agent-{name}");
        self.pod(&pod, name);
        Host {
            name: name.to_owned(),
            address: address.to_owned(),
            token: self.token(Some(&pod)),
        }
    }

    /// A pod of the agents' on that host.
    fn pod(&self, name: &str, host: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeName": host, "serviceAccountName": "agents",
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": IMAGE}],
            },
        });
        self.cluster.apply(&pod.to_string());
    }

    /// A kubeconfig with a token of the agents', bound to a pod if one is named.
    fn token(&self, pod: Option<&str>) -> PathBuf {
        let token = self.cluster.token(&self.namespace, "agents", pod);
        self.cluster.token_kubeconfig(&unique("agents"), &token)
    }

    /// Makes a request as whoever has that kubeconfig. Its name, and its key.
    fn try_request(&self, who: &Path, request: &Request) -> Result<(String, String), String> {
        let (key, pem) = request.pem();
        let name = unique(&format!("csr-{}", self.namespace));
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": STANDARD.encode(pem), "signerName": request.signer,
                "usages": ["digital signature", request.usage],
            },
        });
        let file = self.dir.path().join(format!("{name}.json"));
        std::fs::write(&file, object.to_string()).unwrap();
        let create = ["create", "-f", file.to_str().unwrap()];
        self.cluster.try_kubectl_as(who, &create)?;
        Ok((name, key))
    }

    fn request(&self, who: &Path, request: &Request) -> (String, String) {
        self.try_request(who, request).unwrap()
    }

    fn conditions(&self, name: &str) -> Vec<(String, String)> {
        let request = self.cluster.object(&["csr", name]).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = request["status"]["conditions"].as_array().cloned();
        let all = all.unwrap_or_default();
        all.iter()
            .map(|one| (text(&one["type"]), text(&one["reason"])))
            .collect()
    }

    /// Waits until the request is denied, for that reason; nothing is signed.
    async fn until_denied(&self, name: &str, reason: &str) {
        let expected = vec![("Denied".to_owned(), reason.to_owned())];
        until(&format!("{name} to be decided"), async || {
            let conditions = self.conditions(name);
            if conditions.is_empty() {
                Err(conditions)
            } else {
                assert_eq!(conditions, expected);
                Ok(())
            }
        })
        .await;
        let request = self.cluster.object(&["csr", name]).unwrap();
        assert!(request["status"]["certificate"].is_null());
    }

    /// Waits until the request is signed: the chain, in PEM.
    async fn until_signed(&self, name: &str) -> String {
        until(&format!("{name} to be signed"), async || {
            let request = self.cluster.object(&["csr", name]).unwrap();
            let chain = request["status"]["certificate"].as_str();
            let chain = chain.map(|chain| STANDARD.decode(chain).unwrap());
            chain
                .map(|chain| String::from_utf8(chain).unwrap())
                .ok_or(request)
        })
        .await
    }

    /// Has the host's Node get its certificate with its token: a kubeconfig of that Node, which
    /// registers it.
    async fn joined(&self, host: &Host) -> PathBuf {
        let (name, key) = self.request(&host.token, &Request::client(&host.node()));
        let chain = self.until_signed(&name).await;
        assert_eq!(user(&chain), format!("system:node:{}", host.node()));
        let file = self.dir.path().join(format!("{}.pem", host.node()));
        std::fs::write(&file, format!("{chain}\n{key}")).unwrap();
        let kubeconfig = self.cluster.joint_kubeconfig(&host.node(), &file);
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": host.node(), "labels": {"mirrorlet.dev/node": "true"}},
            "status": {"addresses": [
                {"type": "InternalIP", "address": host.address},
                {"type": "Hostname", "address": host.name},
            ]},
        });
        let file = self.dir.path().join(format!("{}.json", host.node()));
        std::fs::write(&file, node.to_string()).unwrap();
        let create = ["create", "-f", file.to_str().unwrap()];
        self.cluster.try_kubectl_as(&kubeconfig, &create).unwrap();
        kubeconfig
    }
}

/// The subject of a certificate.
fn user(chain: &str) -> String {
    let end = chain.find("-----END").unwrap();
    let body: String = chain[..end].lines().skip(1).collect();
    let leaf = Leaf::read(&STANDARD.decode(body).unwrap()).unwrap();
    assert_eq!(leaf.organizations, ["system:nodes"]);
    leaf.common_name
}

/// The documents of a manifest that the chart makes.
fn documents(manifest: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let text = std::fs::read_to_string(path.join(manifest)).unwrap();
    let documents = text.split("\n---\n").filter(|one| one.contains("kind:"));
    documents
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

/// The rights that the chart gives the approver and the agents, for accounts of that namespace;
/// `others` have those of the agents.
fn rbac(namespace: &str) -> String {
    let roles = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    let mut all = Vec::new();
    for mut document in documents("mirrorlet.yaml") {
        let account = match document["metadata"]["name"].as_str().unwrap() {
            "mirrorlet" => "agents",
            "mirrorlet-approver" => "approver",
            _ => continue,
        };
        if !roles.contains(&document["kind"].as_str().unwrap()) {
            continue;
        }
        let name = json!(format!("{namespace}-{account}"));
        document["metadata"]["name"] = name.clone();
        if document["metadata"]["namespace"].is_string() {
            document["metadata"]["namespace"] = json!(namespace);
        }
        if document["subjects"].is_array() {
            document["roleRef"]["name"] = name;
            let subject = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
            document["subjects"] = match account {
                "agents" => json!([subject("agents"), subject("others")]),
                _ => json!([subject(account)]),
            };
        }
        all.push(document.to_string());
    }
    all.join("\n---\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_gets_the_certificate_of_its_own_host_and_no_other() {
    let site = Site::new().await;
    let (a, b) = (site.host("10.9.0.1"), site.host("10.9.0.2"));
    // Made before there is an approver: it is found.
    let (early, _) = site.request(&a.token, &Request::client(&a.node()));
    let _approver = site.approver(site.dir.path());
    // identity 8
    assert_eq!(
        user(&site.until_signed(&early).await),
        format!("system:node:{}", a.node())
    );
    let masters = Request {
        group: "system:masters",
        ..Request::client(&a.node())
    };
    let unbound = site.token(None);
    let foreign = site.cluster.token(&site.namespace, "default", None);
    let foreign = site.cluster.token_kubeconfig(&unique("foreign"), &foreign);
    for (who, request, reason) in [
        (&a.token, Request::client(&b.node()), "WrongNode"),
        (&a.token, Request::client(&a.name), "WrongNode"),
        (&a.token, masters, "WrongGroup"),
        (
            &a.token,
            Request::serving(&a.node(), &[&a.address]),
            "NotANode",
        ),
        (&unbound, Request::client(&a.node()), "TokenNotBound"),
    ] {
        let (name, _) = site.request(who, &request);
        site.until_denied(&name, reason).await;
    }
    // Another account may not even ask.
    let refused = site.try_request(&foreign, &Request::client(&a.node()));
    assert!(refused.unwrap_err().contains("cannot create resource"));
    // A request that is not an agent's is left to other approvers.
    let other = site.cluster.token(&site.namespace, "others", None);
    let other = site.cluster.token_kubeconfig(&unique("others"), &other);
    let (left, _) = site.request(&other, &Request::client(&b.node()));
    let (fence, _) = site.request(&b.token, &Request::client(&b.node()));
    site.until_signed(&fence).await;
    assert_eq!(site.conditions(&left), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_its_own_certificates_and_no_other() {
    let site = Site::new().await;
    let _approver = site.approver(site.dir.path());
    let (a, b) = (site.host("10.9.1.1"), site.host("10.9.1.2"));
    let node = site.joined(&a).await;
    let (renewed, _) = site.request(&node, &Request::client(&a.node()));
    site.until_signed(&renewed).await;
    let own = [a.address.as_str()];
    let (serving, _) = site.request(&node, &Request::serving(&a.node(), &own));
    // identity 8
    site.until_signed(&serving).await;
    for address in [b.address.as_str(), "10.96.0.1"] {
        let request = Request::serving(&a.node(), &[a.address.as_str(), address]);
        let (name, _) = site.request(&node, &request);
        site.until_denied(&name, "ForeignAddress").await;
    }
    let mut named = Request::serving(&a.node(), &own);
    named.names = vec!["kubernetes.default.svc".to_owned()];
    let (name, _) = site.request(&node, &named);
    site.until_denied(&name, "ForeignAddress").await;
    // Another Node's: NodeRestriction or the approver, whoever is first.
    match site.try_request(&node, &Request::client(&b.node())) {
        Ok((name, _)) => site.until_denied(&name, "WrongNode").await,
        Err(refused) => assert!(refused.contains("orbidden"), "{refused}"),
    }
    // Its own status says what it likes: an address of another host proves nothing.
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": b.address}]}});
    let nodes: Api<Node> = Api::all(client(&node).await);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
    let written = nodes.patch_status(&a.node(), &params, &patch).await;
    assert!(written.is_ok(), "{written:?}");
    let stolen = Request::serving(&a.node(), &[&b.address]);
    let (name, _) = site.request(&node, &stolen);
    site.until_denied(&name, "ForeignAddress").await;
}

/// A user who may request can make many requests, and each may be as large as etcd takes. Some are
/// enough here: each costs everybody who uses the API server of these tests.
#[tokio::test(flavor = "multi_thread")]
async fn large_requests_are_denied_within_the_memory_of_the_chart() {
    let site = Site::new().await;
    let a = site.host("10.9.6.1");
    let bulky = Request {
        names: (0..10_000).map(|n| format!("{n:060}.example")).collect(),
        ..Request::client(&a.node())
    };
    let mut names: Vec<String> = Vec::new();
    for _ in 0..12 {
        names.push(site.request(&a.token, &bulky).0);
    }
    let approver = site.approver(site.dir.path());
    // Others come while it is at work.
    for _ in 0..4 {
        names.push(site.request(&a.token, &bulky).0);
    }
    for name in &names {
        site.until_denied(name, "Unreadable").await;
    }
    let peak = approver.peak_mib();
    // identity 12
    assert!(peak < 200, "{peak} MiB; its limit is 256");
    let (name, _) = site.request(&a.token, &Request::client(&a.node()));
    site.until_signed(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_approvers_one_decides_and_the_other_takes_over() {
    let site = Site::new().await;
    let a = site.host("10.9.2.1");
    let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let leads = |dir: &TempDir| {
        let log = std::fs::read_to_string(dir.path().join("mirrorlet.log"));
        log.unwrap_or_default().contains("holder of Lease")
    };
    let first = site.approver(dirs[0].path());
    until("the first to lead", async || {
        leads(&dirs[0]).then_some(()).ok_or(())
    })
    .await;
    let _second = site.approver(dirs[1].path());
    let (name, _) = site.request(&a.token, &Request::client(&a.node()));
    site.until_signed(&name).await;
    assert!(!leads(&dirs[1]));
    first.signal(Signal::TERM);
    until("the second to lead", async || {
        leads(&dirs[1]).then_some(()).ok_or(())
    })
    .await;
    let (name, _) = site.request(&a.token, &Request::client(&a.node()));
    // identity 9
    site.until_signed(&name).await;
}

/// A whole agent with nothing but the token of its pod: it joins as the Node of its host.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_joins_with_the_token_of_its_pod() {
    let site = Site::new().await;
    let _approver = site.approver(site.dir.path());
    let mut bed = NodeBed::on(Arc::clone(&site.cluster), Identity::Node).await;
    let host = site.host("10.9.3.1");
    bed.node = host.node();
    bed.sleeper("web");
    let mut resolved = bed.resolved();
    let kubeconfig = bed.path().join("node.kubeconfig");
    resolved.config.kubeconfig = ApiAccess::Kubeconfig(kubeconfig);
    resolved.config.bootstrap_kubeconfig = ApiAccess::Kubeconfig(host.token.clone());
    let agent = bed.bed.agent_as(resolved).await;
    bed.until_node("Ready", |node| condition(node, "Ready") == Some("True"))
        .await;
    bed.until_mirrored("web").await;
    let user = format!("system:node:{}", host.node());
    let entries = bed.cluster.audit_of(&user);
    // identity 8
    assert!(entries.iter().any(|entry| entry.resource == "nodes"));
    agent.stop().await;
}

/// A call of a thief's, and the HTTP status of its answer.
async fn attempt(thief: &kube::Client, method: &str, path: &str, body: &Value) -> u16 {
    let request = http::Request::builder().method(method).uri(path);
    let kind = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = request.header("Content-Type", kind);
    let request = request.body(body.to_string().into_bytes()).unwrap();
    match thief.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// A thief of all credentials on a host has what belongs to that host, and nothing of another:
/// tried with the token of the agent's pod, the agent's certificate, and the kubelet's.
#[tokio::test(flavor = "multi_thread")]
async fn the_credentials_of_a_host_are_good_for_nothing_of_another() {
    let site = Site::new().await;
    let _approver = site.approver(site.dir.path());
    let (a, b) = (site.host("10.9.4.1"), site.host("10.9.4.2"));
    let agent = site.joined(&a).await;
    site.joined(&b).await;
    let (namespace, node) = (site.namespace.as_str(), b.node());
    for kind in ["configmap", "secret"] {
        let object = ["-n", namespace, "it", "--from-literal=k=v"];
        let kind: &[&str] = match kind {
            "secret" => &["create", "secret", "generic"],
            _ => &["create", "configmap"],
        };
        site.cluster.kubectl(&[kind, &object[..]].concat());
    }
    // Bound to the Node of host `b`: a pod with everything that a Node may read for it.
    let victim = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim", "namespace": namespace},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": IMAGE, "envFrom": [
                {"secretRef": {"name": "it"}}, {"configMapRef": {"name": "it"}},
            ]}],
        },
    });
    site.cluster.apply(&victim.to_string());
    let uid = |kind: &str, name: &str| {
        let object = site.cluster.object(&[kind, "-n", namespace, name]).unwrap();
        object["metadata"]["uid"].clone()
    };
    let token = |pod: &str| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "audiences": [],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid("pod", pod)},
        }})
    };
    let unbound = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let mirror = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "planted", "namespace": namespace,
            "annotations": {"kubernetes.io/config.mirror": "abc"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "controller": true, "name": node, "uid": uid("node", &node),
            }],
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": IMAGE}]},
    });
    let mut plain = victim.clone();
    plain["metadata"]["name"] = json!("planted");
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim", "namespace": namespace},
    });
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "victim"}, "target": {"kind": "Node", "name": a.node()},
    });
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "thief"},
    });
    let new = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique("planted")}});
    let review = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": unique("planted")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "agents", "namespace": namespace}],
    });
    let (nothing, status) = (json!({}), json!({"status": {"phase": "Failed"}}));
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let of = format!("/api/v1/namespaces/{namespace}");
    let agent_of_b = format!("agent-{}", b.name);
    let tries: Vec<(&str, String, Value)> = vec![
        // Pods of other Nodes.
        ("DELETE", format!("{of}/pods/victim"), nothing.clone()),
        ("DELETE", format!("{of}/pods/{agent_of_b}"), nothing.clone()),
        ("PATCH", format!("{of}/pods/victim/status"), status),
        ("POST", format!("{of}/pods/victim/eviction"), eviction),
        ("POST", format!("{of}/pods/victim/binding"), binding),
        (
            "POST",
            format!("{of}/pods/victim/exec?command=sh"),
            nothing.clone(),
        ),
        ("POST", format!("{of}/pods"), mirror),
        ("POST", format!("{of}/pods"), plain),
        ("GET", "/api/v1/pods".to_owned(), nothing.clone()),
        (
            "GET",
            format!("/api/v1/pods?fieldSelector=spec.nodeName={node}"),
            nothing.clone(),
        ),
        // Secrets, and tokens of other pods' accounts: with the agents' on host `b` comes its Node.
        ("GET", format!("{of}/secrets/it"), nothing.clone()),
        ("GET", format!("{of}/configmaps/it"), nothing.clone()),
        ("GET", "/api/v1/secrets".to_owned(), nothing.clone()),
        (
            "POST",
            format!("{of}/serviceaccounts/default/token"),
            token("victim"),
        ),
        (
            "POST",
            format!("{of}/serviceaccounts/agents/token"),
            token(&agent_of_b),
        ),
        (
            "POST",
            format!("{of}/serviceaccounts/agents/token"),
            unbound.clone(),
        ),
        (
            "POST",
            format!("{of}/serviceaccounts/approver/token"),
            unbound,
        ),
        // Nodes.
        (
            "PATCH",
            format!("/api/v1/nodes/{node}/status"),
            conditions.clone(),
        ),
        (
            "PATCH",
            format!("/api/v1/nodes/{}/status", b.name),
            conditions,
        ),
        (
            "PATCH",
            format!("/api/v1/nodes/{node}"),
            json!({"metadata": {"labels": {"a": "b"}}}),
        ),
        ("DELETE", format!("/api/v1/nodes/{node}"), nothing.clone()),
        (
            "GET",
            format!("/api/v1/nodes/{node}/proxy/pods"),
            nothing.clone(),
        ),
        ("POST", "/api/v1/nodes".to_owned(), new),
        (
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".to_owned(),
            lease,
        ),
        // Rights.
        (
            "POST",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(),
            review,
        ),
    ];
    let kubelet = site.cluster.node_kubeconfig(&a.name);
    // The credentials work for their own purpose: the refusals have another cause.
    let mut requests = Vec::new();
    for (whose, kubeconfig) in [
        ("token", &a.token),
        ("agent", &agent),
        ("kubelet", &kubelet),
    ] {
        let who = site.cluster.try_kubectl_as(kubeconfig, &["auth", "whoami"]);
        assert!(who.is_ok(), "{whose}: {who:?}");
        let thief = client(kubeconfig).await;
        for (method, path, body) in &tries {
            let code = attempt(&thief, method, path, body).await;
            // identity 10
            assert_eq!(code, 403, "{whose}: {method} {path}");
        }
        for request in [
            Request::client(&node),
            Request::client(&b.name),
            Request::serving(&node, &[&b.address]),
            Request::serving(&a.node(), &[&b.address]),
        ] {
            if let Ok((name, _)) = site.try_request(kubeconfig, &request) {
                let approve = ["certificate", "approve", &name];
                let approved = site.cluster.try_kubectl_as(kubeconfig, &approve);
                assert!(approved.is_err(), "{whose}: {approved:?}");
                requests.push((whose, name));
            }
        }
    }
    // All of them were decided, or left, before this one.
    let (fence, _) = site.request(&b.token, &Request::client(&b.node()));
    site.until_signed(&fence).await;
    for (whose, name) in requests {
        let conditions = site.conditions(&name);
        let is_approved = conditions.iter().any(|(kind, _)| kind == "Approved");
        assert!(!is_approved, "{whose}: {name}: {conditions:?}");
    }
    assert!(
        site.cluster
            .object(&["pod", "-n", namespace, "victim"])
            .is_some()
    );
}

/// The `ServiceAccount` form with its policy: an agent in a pod writes its own host's Node and pods, and
/// nothing of another. What is read, and tokens, no policy can bind.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_holds_an_account_to_the_host_of_its_token() {
    let site = Site::new().await;
    let (a, b) = (site.host("10.9.5.1"), site.host("10.9.5.2"));
    let name = format!("{}-policy", site.namespace);
    let account = format!("system:serviceaccount:{}:agents", site.namespace);
    for mut document in documents("policy.yaml")
        .into_iter()
        .chain(documents("rbac.yaml"))
    {
        if document["kind"] == "ServiceAccount" {
            continue;
        }
        document["metadata"]["name"] = json!(name);
        match document["kind"].as_str().unwrap() {
            "ValidatingAdmissionPolicy" => {
                let condition = &mut document["spec"]["matchConditions"][0]["expression"];
                let text = condition.as_str().unwrap();
                let ours = text.replace("system:serviceaccount:kube-system:mirrorlet", &account);
                *condition = json!(ours);
            }
            "ValidatingAdmissionPolicyBinding" => document["spec"]["policyName"] = json!(name),
            "ClusterRole" | "Role" => {}
            _ => {
                document["roleRef"]["name"] = json!(name);
                let subject = json!({"kind": "ServiceAccount", "name": "agents", "namespace": site.namespace});
                document["subjects"] = json!([subject]);
            }
        }
        site.cluster.apply(&document.to_string());
    }
    // A whole agent is held up by nothing.
    let mut bed = NodeBed::as_whom(Arc::clone(&site.cluster), a.token.clone()).await;
    bed.node = a.node();
    bed.sleeper("web");
    let agent = bed.agent().await;
    bed.until_node("Ready", |node| condition(node, "Ready") == Some("True"))
        .await;
    bed.until_mirrored("web").await;

    let new = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": b.node()}});
    site.cluster.apply(&new.to_string());
    site.pod("victim", &b.node());
    let mut pod = site
        .cluster
        .object(&["pod", "-n", &site.namespace, "victim"])
        .unwrap();
    pod["metadata"] = json!({"name": "planted", "namespace": site.namespace});
    pod.as_object_mut().unwrap().remove("status");
    let mut homeless = pod.clone();
    homeless["spec"].as_object_mut().unwrap().remove("nodeName");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": b.node(), "namespace": "kube-node-lease"}, "spec": {},
    });
    let planted =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique("planted")}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let failed = json!({"status": {"phase": "Failed"}});
    let of = format!("/api/v1/namespaces/{}", site.namespace);
    let tries: Vec<(&str, String, Value)> = vec![
        ("POST", format!("{of}/pods"), pod),
        ("POST", format!("{of}/pods"), homeless),
        ("DELETE", format!("{of}/pods/victim"), json!({})),
        ("PATCH", format!("{of}/pods/victim/status"), failed),
        ("POST", "/api/v1/nodes".to_owned(), planted),
        (
            "PATCH",
            format!("/api/v1/nodes/{}/status", b.node()),
            ready.clone(),
        ),
        ("PATCH", format!("/api/v1/nodes/{}/status", b.name), ready),
        (
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".to_owned(),
            lease,
        ),
    ];
    // A token that isn't bound to a pod writes nothing at all.
    for token in [&a.token, &site.token(None)] {
        let thief = client(token).await;
        for (method, path, body) in &tries {
            let code = attempt(&thief, method, path, body).await;
            // identity 11
            assert_eq!(code, 403, "{method} {path}");
        }
    }
    let token = ["create", "serviceaccounts", "--subresource=token", "-A"];
    for right in [&["get", "secrets", "-A"][..], &token] {
        let asked = [&["auth", "can-i"][..], right].concat();
        let may = site.cluster.try_kubectl_as(&a.token, &asked);
        assert!(may.is_ok(), "the documents say that it may {right:?}");
    }
    agent.stop().await;
}
