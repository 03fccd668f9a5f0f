//! A real control plane for tests: etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler, built by hack/kube-build.sh and started here on an address of their own.
//!
//! Clusters don't know of each other, and end with the process that started them. Tests of one
//! program share a cluster where they can ([`Cluster::shared`]), each with a namespace and node
//! names of its own. A test that wants the API server away from its agent has a link to it
//! ([`Link`](super::link::Link)); one that really stops it starts one for itself.

pub mod accounts;
mod address;
pub mod audit;
pub mod beside;
pub mod bootstrap;
pub mod objects;
mod pki;
pub mod process;
pub mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::process::Signal;
use tempfile::TempDir;

use self::address::Address;
use self::audit::AuditLog;
use self::beside::wait;
use self::pki::Authority;
use self::process::Program;
use super::PATIENCE;

/// Time between two looks at something that must come.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for one answer while the API server comes up.
const ANSWER: Duration = Duration::from_secs(5);

/// The options of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Options {
    no_scheduler: bool,
    no_controller_manager: bool,
    aggregates: bool,
    apiserver: Vec<String>,
    controller_manager: Vec<String>,
}

impl Options {
    /// Nothing binds a pod that has no node.
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        self.no_scheduler = true;
        self
    }

    /// No service accounts, no garbage collection, no node lifecycle: what an outage leaves.
    #[must_use]
    pub fn without_controller_manager(mut self) -> Self {
        self.no_controller_manager = true;
        self
    }

    /// Groups of the API may be served by other servers, at the addresses of their endpoints.
    #[must_use]
    pub fn aggregating(mut self) -> Self {
        self.aggregates = true;
        self
    }

    /// More arguments for kube-apiserver.
    #[must_use]
    pub fn apiserver(mut self, args: &[&str]) -> Self {
        self.apiserver.extend(args.iter().map(ToString::to_string));
        self
    }

    /// More arguments for kube-controller-manager.
    #[must_use]
    pub fn controller_manager(mut self, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string);
        self.controller_manager.extend(args);
        self
    }

    /// A Node that says nothing for six seconds is Unknown, not only after fifty.
    #[must_use]
    pub fn fast_node_lifecycle(self) -> Self {
        self.controller_manager(&[
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=6s",
            "--node-startup-grace-period=10s",
        ])
    }

    /// Starts it.
    pub async fn start(self) -> Cluster {
        Cluster::start_with(self).await
    }
}

/// A running cluster.
pub struct Cluster {
    // Ended first; fields are dropped in order.
    scheduler: Option<Program>,
    controller_manager: Option<Program>,
    apiserver: Mutex<Option<Program>>,
    etcd: Program,
    bin: PathBuf,
    authority: Authority,
    options: Options,
    address: Address,
    audit: AuditLog,
    /// A client of an administrator, whose connections are those of no test: see [`beside`].
    client: kube::Client,
    /// The kubeconfig of the `ServiceAccount`, once somebody has asked for it.
    service_account: OnceLock<PathBuf>,
    dir: TempDir,
}

impl Cluster {
    /// Starts a cluster of all parts.
    pub async fn start() -> Self {
        Options::default().start().await
    }

    /// The cluster of all tests of this program that run now.
    pub async fn shared() -> Arc<Self> {
        static SHARED: tokio::sync::Mutex<Weak<Cluster>> =
            tokio::sync::Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Self::start().await);
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    async fn start_with(options: Options) -> Self {
        let bin = programs::control_plane();
        let dir = tempfile::Builder::new()
            .prefix("mirrorlet-cluster-")
            .tempdir()
            .unwrap();
        super::reaper::remember("dir", &[&dir.path().display().to_string()]);
        let address = Address::claim();
        let authority = Authority::new(&dir.path().join("pki"), address.server());
        authority.client("admin", "admin", Some("system:masters"));
        authority.client("kubelet-client", "kube-apiserver", Some("system:masters"));
        for component in ["kube-controller-manager", "kube-scheduler"] {
            authority.client(component, &format!("system:{component}"), None);
            authority.certificate_kubeconfig(component);
        }
        let admin = authority.certificate_kubeconfig("admin");
        std::fs::write(dir.path().join("audit-policy.json"), audit::POLICY).unwrap();
        let etcd = start_etcd(&address, dir.path());
        let mut cluster = Self {
            scheduler: None,
            controller_manager: None,
            apiserver: Mutex::new(None),
            etcd,
            bin,
            authority,
            options,
            address,
            audit: AuditLog::new(dir.path().join("audit.log")),
            client: wait(async move { try_client(&admin).await })
                .unwrap_or_else(|error| panic!("{error}")),
            service_account: OnceLock::new(),
            dir,
        };
        cluster.start_apiserver().await;
        if !cluster.options.no_controller_manager {
            cluster.start_controller_manager();
        }
        if !cluster.options.no_scheduler {
            cluster.scheduler = Some(cluster.program(
                "kube-scheduler",
                &[
                    cluster.kubeconfig_arg("kube-scheduler"),
                    "--leader-elect=false".to_owned(),
                    "--secure-port=0".to_owned(),
                ],
            ));
        }
        cluster
    }

    /// Where the cluster keeps its files: logs, `audit.log`, `pki/`.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Address of the API server, for containers as well.
    pub fn server(&self) -> String {
        format!("https://{}:443", self.address.server())
    }

    /// The address that the API server listens on; other servers of this cluster may, too.
    pub fn host(&self) -> std::net::Ipv4Addr {
        self.address.server()
    }

    /// The certificate authority of the cluster.
    pub fn authority(&self) -> PathBuf {
        self.authority.file("ca.crt")
    }

    fn program(&self, name: &str, args: &[String]) -> Program {
        Program::start(&self.bin.join(name), args, self.dir.path())
    }

    fn kubeconfig_arg(&self, name: &str) -> String {
        format!(
            "--kubeconfig={}",
            self.authority.arg(&format!("{name}.kubeconfig"))
        )
    }

    /// Starts the API server, with the data it had, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        let pki = |name: &str| self.authority.arg(name);
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let address = self.address.server();
        let mut args = vec![
            format!("--etcd-servers=http://{}:2379", self.address.etcd()),
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
            "--secure-port=443".to_owned(),
            format!("--service-cluster-ip-range={}", self.address.services()),
            format!("--tls-cert-file={}", pki("apiserver.crt")),
            format!("--tls-private-key-file={}", pki("apiserver.key")),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--service-account-key-file={}", pki("sa.pub")),
            format!("--service-account-signing-key-file={}", pki("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--enable-bootstrap-token-auth=true".to_owned(),
            format!("--kubelet-client-certificate={}", pki("kubelet-client.crt")),
            format!("--kubelet-client-key={}", pki("kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--audit-policy-file={}", path("audit-policy.json")),
            format!("--audit-log-path={}", path("audit.log")),
            // In MB. What is read as it grows must not begin anew, as it does at 100 by default.
            "--audit-log-maxsize=100000".to_owned(),
        ];
        if self.options.aggregates {
            args.extend([
                format!("--proxy-client-cert-file={}", pki("kubelet-client.crt")),
                format!("--proxy-client-key-file={}", pki("kubelet-client.key")),
                format!("--requestheader-client-ca-file={}", pki("ca.crt")),
                "--requestheader-allowed-names=kube-apiserver".to_owned(),
                "--requestheader-username-headers=X-Remote-User".to_owned(),
                "--requestheader-group-headers=X-Remote-Group".to_owned(),
                "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
                "--enable-aggregator-routing=true".to_owned(),
            ]);
        }
        args.extend(self.options.apiserver.iter().cloned());
        let mut program = self.program("kube-apiserver", &args);
        let end = tokio::time::Instant::now() + PATIENCE;
        let client = self.admin().await;
        while !is_ready(&client).await {
            program.assert_alive();
            assert!(
                tokio::time::Instant::now() < end,
                "kube-apiserver is not ready:\n{}",
                program.last_words()
            );
            tokio::time::sleep(PAUSE).await;
        }
        *self.apiserver.lock().unwrap() = Some(program);
    }

    /// Ends the API server as `kill -9` does.
    pub fn stop_apiserver(&self) {
        let running = self.apiserver.lock().unwrap().take();
        drop(running.expect("the API server runs"));
    }

    /// Stops the API server in its tracks: connections stay open, nothing is answered.
    pub fn pause_apiserver(&self) {
        self.signal_apiserver(Signal::STOP);
    }

    /// Lets a paused API server go on.
    pub fn resume_apiserver(&self) {
        self.signal_apiserver(Signal::CONT);
    }

    fn signal_apiserver(&self, signal: Signal) {
        let apiserver = self.apiserver.lock().unwrap();
        apiserver
            .as_ref()
            .expect("the API server runs")
            .signal(signal);
    }

    fn start_controller_manager(&mut self) {
        let pki = |name: &str| self.authority.arg(name);
        let mut args = vec![
            self.kubeconfig_arg("kube-controller-manager"),
            format!("--service-account-private-key-file={}", pki("sa.key")),
            format!("--root-ca-file={}", pki("ca.crt")),
            "--use-service-account-credentials=true".to_owned(),
            format!("--cluster-signing-cert-file={}", pki("ca.crt")),
            format!("--cluster-signing-key-file={}", pki("ca.key")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // A claim whose volume was made a moment ago may be bound by the next look only: after 15 s by
            // default.
            "--pvclaimbinder-sync-period=1s".to_owned(),
        ];
        args.extend(self.options.controller_manager.iter().cloned());
        self.controller_manager = Some(self.program("kube-controller-manager", &args));
    }

    /// A client of an administrator, for the runtime it is asked for on.
    pub async fn admin(&self) -> kube::Client {
        client(&self.admin_kubeconfig()).await
    }

    /// The kubeconfig of an administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.authority.file("admin.kubeconfig")
    }

    /// A kubeconfig of `system:node:<name>`, in group `system:nodes`, with a certificate in files
    /// beside it. Asked again, it renews the certificate in place.
    pub fn node_kubeconfig(&self, node: &str) -> PathBuf {
        let name = format!("node-{node}");
        let user = format!("system:node:{node}");
        self.authority.client(&name, &user, Some("system:nodes"));
        self.authority.certificate_kubeconfig(&name)
    }

    /// Runs kubectl as an administrator; what it printed, trimmed. Fails when it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args)
            .unwrap_or_else(|error| panic!("kubectl {args:?} failed: {error}"))
    }

    /// Runs kubectl as an administrator, to be refused; what it complained.
    pub fn kubectl_fails(&self, args: &[&str]) -> String {
        match self.try_kubectl(args) {
            Ok(output) => panic!("kubectl {args:?} did not fail: {output}"),
            Err(error) => error,
        }
    }

    /// Runs kubectl as an administrator: what it printed, or what it complained.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.try_kubectl_as(&self.admin_kubeconfig(), args)
    }

    /// Runs kubectl as the holder of that kubeconfig.
    pub fn try_kubectl_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<String, String> {
        printed(
            &self
                .kubectl_command(kubeconfig)
                .args(args)
                .output()
                .unwrap(),
        )
    }

    /// kubectl, of the version that these tests are for, for the holder of that kubeconfig, without
    /// arguments.
    pub fn kubectl_command(&self, kubeconfig: &Path) -> Command {
        let mut command = Command::new(programs::kubectl());
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.dir.path().join("kubectl-cache"))
            .env("GOGC", "400")
            .env_remove("KUBECONFIG");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // A failed test keeps the words of the servers.
        let kept =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.dir.path().file_name().unwrap());
        std::fs::create_dir_all(&kept).unwrap();
        for file in std::fs::read_dir(self.dir.path()).unwrap().flatten() {
            if file.path().extension().is_some_and(|kind| kind == "log") {
                let _ = std::fs::copy(file.path(), kept.join(file.file_name()));
            }
        }
        let kept = kept.display();
        super::tell(&format!("logs of the cluster are kept in {kept}"));
    }
}

/// A name no other test has.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether the API server of that client is ready.
async fn is_ready(client: &kube::Client) -> bool {
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    let answer = tokio::time::timeout(ANSWER, client.request_text(request)).await;
    matches!(answer, Ok(Ok(text)) if text == "ok")
}

/// A client by a kubeconfig.
pub async fn client(kubeconfig: &Path) -> kube::Client {
    let client = try_client(kubeconfig).await;
    client.unwrap_or_else(|error| panic!("{error}"))
}

/// A client by a kubeconfig, or why there can be none.
async fn try_client(kubeconfig: &Path) -> Result<kube::Client, String> {
    let path = kubeconfig.display();
    let read = Kubeconfig::read_from(kubeconfig).map_err(|error| format!("{path}: {error}"))?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| format!("{path}: {error}"))?;
    kube::Client::try_from(config).map_err(|error| format!("{path}: {error}"))
}

fn start_etcd(address: &Address, dir: &Path) -> Program {
    let host = address.etcd();
    let args = [
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls=http://{host}:2379"),
        format!("--advertise-client-urls=http://{host}:2379"),
        format!("--listen-peer-urls=http://{host}:2380"),
        format!("--initial-advertise-peer-urls=http://{host}:2380"),
        format!("--initial-cluster=default=http://{host}:2380"),
        // Nothing of it outlives this machine.
        "--unsafe-no-fsync".to_owned(),
    ];
    // Debian's; not every PATH of a user has it.
    Program::start(Path::new("/usr/bin/etcd"), &args, dir)
}

fn printed(output: &Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}
