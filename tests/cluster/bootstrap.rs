//! A node's own identity as a kubelet gets and keeps it: a whole agent, on a real Engine and real
//! Kubernetes servers, with the Node authorizer, `NodeRestriction` and bootstrap tokens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::cluster::Cluster;
use crate::common::cluster::accounts::ASKER;
use crate::common::cluster::audit::AuditEntry;
use crate::common::cluster::bootstrap::Approval;
use crate::common::node::{Identity, NodeBed, condition};
use crate::common::{TestAgent, eventually};
use base64::Engine as _;
use mirrorlet::config::{ApiAccess, Resolved};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A bed whose agent has no identity but a bootstrap token's.
struct Fresh {
    bed: NodeBed,
    bootstrap: PathBuf,
}

impl Fresh {
    async fn new(approval: Approval) -> Self {
        let bed = NodeBed::on(Cluster::shared().await, Identity::Node).await;
        let bootstrap = bed.cluster.bootstrap_kubeconfig(approval);
        Self { bed, bootstrap }
    }

    /// The kubeconfig that is to be written.
    fn kubeconfig(&self) -> PathBuf {
        self.bed.path().join("node.kubeconfig")
    }

    /// The certificate that is to be kept.
    fn certificate(&self) -> PathBuf {
        self.resolved().config.root.join("pki/client-current.pem")
    }

    fn resolved(&self) -> Resolved {
        let mut resolved = self.bed.resolved();
        resolved.config.kubeconfig = ApiAccess::Kubeconfig(self.kubeconfig());
        resolved.config.bootstrap_kubeconfig = ApiAccess::Kubeconfig(self.bootstrap.clone());
        resolved
    }

    async fn agent(&self) -> TestAgent {
        self.bed.bed.agent_as(self.resolved()).await
    }

    /// Names of the requests for a certificate of this Node.
    fn requests(&self) -> Vec<String> {
        let wanted = format!("system:node:{}", self.bed.node);
        let all = self.bed.cluster.object(&["csr"]);
        let all = all.map_or_else(Vec::new, |all| all["items"].as_array().unwrap().clone());
        let ours = all.iter().filter(|csr| {
            let request = csr["spec"]["request"].as_str().unwrap();
            let pem = base64::engine::general_purpose::STANDARD.decode(request);
            let der = der_of(&pem.unwrap());
            // Behind its length: another Node's name may begin like ours.
            let mut text = vec![u8::try_from(wanted.len()).unwrap()];
            text.extend_from_slice(wanted.as_bytes());
            let is_ours = der.windows(text.len()).any(|window| window == text);
            if is_ours {
                let signer = &csr["spec"]["signerName"];
                assert_eq!(signer, "kubernetes.io/kube-apiserver-client-kubelet");
            }
            is_ours
        });
        let name = |csr: &Value| csr["metadata"]["name"].as_str().unwrap().to_owned();
        ours.map(name).collect()
    }

    /// Waits until the agent waits for somebody to approve its request; the request's name.
    async fn until_asked(&self, agent: &TestAgent) -> String {
        let words = "waits for approval (kubectl certificate approve node-csr-";
        let report = agent
            .until("a request", |report| error(report).contains(words))
            .await;
        let words = error(&report);
        let (_, name) = words.rsplit_once(' ').unwrap();
        name.trim_end_matches(')').to_owned()
    }

    async fn until_ready(&self) {
        self.bed
            .until_node("Ready", |node| condition(node, "Ready") == Some("True"))
            .await;
    }

    fn approve(&self, request: &str) {
        self.bed
            .cluster
            .kubectl(&["certificate", "approve", request]);
    }
}

/// The bytes of a PEM block.
fn der_of(pem: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(pem).unwrap();
    let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    base64::engine::general_purpose::STANDARD
        .decode(body)
        .unwrap()
}

/// The report's error about the API server.
fn error(report: &mirrorlet_core::api::report::StatusReport) -> String {
    let api = report.api.as_ref().unwrap();
    api.error.clone().unwrap_or_default()
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// How the audit log tells a certificate of others of its user.
fn credential(certificate: &Path) -> String {
    let text = std::fs::read_to_string(certificate).unwrap();
    let end = text.find("-----END CERTIFICATE").unwrap();
    let sum = Sha256::digest(der_of(&text.as_bytes()[..end]));
    format!("X509SHA256={}", mirrorlet_core::api::hex(&sum))
}

/// Waits until the API server was called with that certificate.
async fn until_called_with(bed: &NodeBed, credential: &str) {
    eventually(&format!("a call with {credential}"), || {
        let calls = |entry: &AuditEntry| entry.credential == credential;
        (!bed.cluster.audit_where(calls).is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_once_its_certificate_is_approved_and_needs_no_token_after_that() {
    let fresh = Fresh::new(Approval::UserActionRecord).await;
    let bed = &fresh.bed;
    bed.sleeper("web");
    let agent = fresh.agent().await;
    let request = fresh.until_asked(&agent).await;
    assert_eq!(fresh.requests(), [request.as_str()]);
    // Nothing of this holds a static pod up.
    agent.until_running("web").await;
    let container = bed.running_id("web");
    assert!(bed.api_node().await.is_none());
    assert!(!fresh.kubeconfig().exists());

    fresh.approve(&request);
    fresh.until_ready().await;
    bed.until_mirrored("web").await;
    assert_eq!(bed.running_id("web"), container);
    for file in [fresh.kubeconfig(), fresh.certificate()] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    let report = agent
        .until("its end", |report| {
            report.api.as_ref().unwrap().certificate_ends.is_some()
        })
        .await;
    assert_eq!(error(&report), "");
    let series = "mirrorlet_certificate_expiration_timestamp_seconds{certificate=\"client\"} ";
    let metrics = agent.metrics();
    let ends = metrics.lines().find_map(|line| line.strip_prefix(series));
    let told = report.api.unwrap().certificate_ends.unwrap().as_second();
    assert_eq!(ends, Some(told.to_string().as_str()), "{metrics}");
    // The token's user did nothing but ask.
    let token = std::fs::read_to_string(fresh.bootstrap.with_extension("token")).unwrap();
    let user = format!("system:bootstrap:{}", token.split_once('.').unwrap().0);
    for entry in bed.cluster.audit_of_some(&user).await {
        let is_check = entry.user_agent == ASKER;
        let is_ours = entry.resource == "certificatesigningrequests";
        assert!(is_check || is_ours, "{entry:?}");
    }
    agent.stop().await;

    // The next agent has what it takes, whatever became of the token.
    std::fs::write(&fresh.bootstrap, "nonsense").unwrap();
    // What the agent before had asked for, its watches above all, may come on record later.
    let stopped = jiff::Timestamp::now();
    let agent = fresh.agent().await;
    agent
        .until("the API server", |report| {
            report.api.as_ref().unwrap().reachable
        })
        .await;
    let user = format!("system:node:{}", bed.node);
    eventually("a call of the next agent", || {
        let asked = bed.cluster.audit_of(&user);
        asked.iter().any(|entry| entry.at > stopped).then_some(())
    })
    .await;
    // identity 4
    assert_eq!(fresh.requests(), [request.as_str()]);
    assert_eq!(bed.running_id("web"), container);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_died_meanwhile_asks_with_the_same_key() {
    let fresh = Fresh::new(Approval::UserActionRecord).await;
    let agent = fresh.agent().await;
    let request = fresh.until_asked(&agent).await;
    agent.kill();
    let key = fresh.certificate().with_file_name("client-next.key");
    assert_eq!(mode(&key), 0o600);
    let before = std::fs::read(&key).unwrap();

    // Approved while nobody is there.
    fresh.approve(&request);
    let agent = fresh.agent().await;
    fresh.until_ready().await;
    // identity 4
    assert_eq!(fresh.requests(), [request.as_str()]);
    let kept = std::fs::read_to_string(fresh.certificate()).unwrap();
    assert!(kept.contains(std::str::from_utf8(&before).unwrap().trim()));
    eventually("the key to be forgotten", || (!key.exists()).then_some(())).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_is_told_and_static_pods_go_on() {
    let fresh = Fresh::new(Approval::UserActionRecord).await;
    let bed = &fresh.bed;
    bed.sleeper("web");
    let agent = fresh.agent().await;
    agent.until_running("web").await;
    let container = bed.running_id("web");
    let request = fresh.until_asked(&agent).await;
    bed.cluster.kubectl(&["certificate", "deny", &request]);
    let told = format!("request {request}: Denied (KubectlDeny)");
    // identity 4
    agent
        .until("the denial", |report| error(report).contains(&told))
        .await;
    // Manifests are followed as ever.
    bed.sleeper("second");
    agent.until_running("second").await;
    assert_eq!(bed.running_id("web"), container);
    agent.stop().await;

    // Somebody mended it and has no patience. What was denied stays denied: another is asked for.
    let agent = fresh.agent().await;
    let second = fresh.until_asked(&agent).await;
    assert_ne!(second, request);
    fresh.approve(&second);
    fresh.until_ready().await;
    bed.until_mirrored("second").await;
    assert_eq!(bed.running_id("web"), container);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_bootstrap_kubeconfig_is_told_and_taken_up_once_it_is_mended() {
    let mut fresh = Fresh::new(Approval::Automatic).await;
    let good = std::fs::read(&fresh.bootstrap).unwrap();
    fresh.bootstrap = fresh.bed.path().join("bootstrap.kubeconfig");
    fresh.bed.sleeper("web");
    let agent = fresh.agent().await;
    let file = fresh.bootstrap.display().to_string();
    agent
        .until("what is missing", |report| {
            let words = error(report);
            words.contains(&file) && words.contains("No such file")
        })
        .await;
    std::fs::write(&fresh.bootstrap, "current-context: nowhere").unwrap();
    // identity 4
    agent
        .until("what is wrong", |report| {
            let words = error(report);
            words.contains(&file) && words.contains("nowhere")
        })
        .await;
    agent.until_running("web").await;
    let container = fresh.bed.running_id("web");
    std::fs::write(&fresh.bootstrap, good).unwrap();
    fresh.until_ready().await;
    fresh.bed.until_mirrored("web").await;
    assert_eq!(fresh.bed.running_id("web"), container);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_with_itself_and_taken_up_without_a_restart() {
    let fresh = Fresh::new(Approval::UserActionRecord).await;
    let bed = &fresh.bed;
    bed.cluster.approve_renewals();
    // More than nine tenths of its time are over.
    let file = fresh.certificate();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let left = Duration::from_mins(30);
    std::fs::write(&file, bed.cluster.node_certificate(&bed.node, Ok(left))).unwrap();
    let mut resolved = fresh.resolved();
    let kubeconfig = bed.cluster.joint_kubeconfig(&bed.node, &file);
    let written = std::fs::read(&kubeconfig).unwrap();
    resolved.config.kubeconfig = ApiAccess::Kubeconfig(kubeconfig.clone());
    // A renewal takes no token.
    resolved.config.bootstrap_kubeconfig = ApiAccess::None;
    let old = credential(&file);
    bed.sleeper("web");
    let agent = bed.bed.agent_as(resolved).await;
    let new = eventually("a new certificate", || {
        let now = credential(&file);
        (now != old).then_some(now)
    })
    .await;
    until_called_with(bed, &new).await;
    fresh.until_ready().await;
    bed.until_mirrored("web").await;
    bed.sleeper("second");
    bed.until_mirrored("second").await;
    assert_eq!(std::fs::read(&kubeconfig).unwrap(), written);
    let [request] = fresh.requests().try_into().unwrap();
    let request = bed.cluster.object(&["csr", &request]).unwrap();
    let user = format!("system:node:{}", bed.node);
    // identity 5
    assert_eq!(request["spec"]["username"], user.as_str());
    agent
        .until("the new end", |report| {
            let ends = report.api.as_ref().unwrap().certificate_ends;
            let soon = jiff::Timestamp::now() + left;
            ends.is_some_and(|ends| ends > soon)
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_ended_is_bootstrapped_anew() {
    let fresh = Fresh::new(Approval::Automatic).await;
    let bed = &fresh.bed;
    let file = fresh.certificate();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let ended = Err(Duration::from_mins(1));
    std::fs::write(&file, bed.cluster.node_certificate(&bed.node, ended)).unwrap();
    let kubeconfig = bed.cluster.joint_kubeconfig(&bed.node, &file);
    let written = std::fs::read(&kubeconfig).unwrap();
    let mut resolved = fresh.resolved();
    resolved.config.kubeconfig = ApiAccess::Kubeconfig(kubeconfig.clone());
    let old = credential(&file);
    let agent = bed.bed.agent_as(resolved).await;
    fresh.until_ready().await;
    // identity 5
    assert_ne!(credential(&file), old);
    assert_eq!(
        std::fs::read(&kubeconfig).unwrap(),
        written,
        "it is named already"
    );
    agent.stop().await;
}
