//! The agent's identity and the API server's address: a kubeconfig or the in-cluster account.
//!
//! kube re-reads some files by itself: a token file, and the CA of the in-cluster account, every
//! minute. It reads others only once, when a client is created: the kubeconfig, and its CA, certificate
//! and key files. The contents of those are watched here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use kube::config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::chain;
use crate::certificate::{Leaf, Order, Purpose, Requested, from_pem, split_pem};
use crate::config::ApiAccess;
use mirrorlet_core::api::{self, NodeName, Timestamp};
use mirrorlet_core::certificate::{Held, Verdict, judge, node_user};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;

/// Largest file that counts as a kubeconfig, certificate or key, in MiB; honest ones have a few
/// thousand bytes.
const FILE_MIB_MAX: u64 = 4;

/// The authorities of the API server, in a pod with a token.
const IN_CLUSTER_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// The API server can't be called because the configuration can't be used. Reported once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig, or a file it names, can't be used.
    #[error("the kubeconfig {} can't be used: {cause}", path.display())]
    Kubeconfig {
        /// The kubeconfig.
        path: PathBuf,
        /// The problem.
        cause: String,
    },
    /// The kubeconfig for the request of a first certificate can't be used.
    #[error("the bootstrap kubeconfig {} can't be used: {cause}", path.display())]
    Bootstrap {
        /// The kubeconfig.
        path: PathBuf,
        /// The problem.
        cause: String,
    },
    /// There is no in-cluster account.
    #[error("no in-cluster ServiceAccount for the API server: {0}")]
    InCluster(String),
}

/// The stored identity of a node, and its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The kubeconfig for all calls. Written when a first certificate was signed.
    pub kubeconfig: PathBuf,
    /// Access for the request of a first certificate; none if a certificate must exist.
    pub bootstrap: ApiAccess,
    /// Where certificates are kept.
    pub directory: PathBuf,
    /// The Node.
    pub node: NodeName,
}

impl NodeIdentity {
    pub(super) fn requested(&self) -> Requested {
        let order = Order {
            purpose: Purpose::Client,
            node: self.node.to_string(),
            hosts: Vec::new(),
            addresses: Vec::new(),
        };
        Requested::new(order, &self.directory)
    }

    /// Whether there is an identity. Blocks on the disk.
    pub(super) fn verdict(&self) -> Verdict {
        self.look(self.requested().file(), Timestamp::now()).1
    }

    pub(super) fn look(&self, ours: &Path, now: Timestamp) -> (Held, Verdict) {
        let held = held(&self.kubeconfig, ours);
        let verdict = judge(&held, &node_user(self.node.as_str()), now);
        (held, verdict)
    }
}

/// How we stand with our identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityState {
    /// It is provided and renewed by others; its expiry is unknown.
    Given,
    /// A certificate.
    Certificate {
        /// When it ends.
        ends: Timestamp,
        /// Why it can't be renewed, though it is time.
        problem: Option<String>,
    },
    /// There is none, or it is no longer valid.
    Needed {
        /// Why, and what is waited for.
        words: String,
        /// Since when.
        since: Timestamp,
    },
}

impl IdentityState {
    /// Returns the problem, if there is one.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Given => None,
            Self::Certificate { problem, .. } => problem.as_deref(),
            Self::Needed { words, .. } => Some(words),
        }
    }
}

/// Hashes of the files of an identity; none for an unreadable file.
pub(super) type Fingerprint = BTreeMap<PathBuf, Option<[u8; 32]>>;

/// An identity read from disk.
pub(super) struct Identity {
    /// The configuration of the connection.
    pub config: kube::Config,
    /// The files it was made of.
    pub fingerprint: Fingerprint,
    /// The token file, if it has one. kube reads it again every minute; it is only checked sooner after
    /// a rejection.
    pub token: Fingerprint,
    /// The API server, as a kubeconfig says it.
    pub cluster: Option<Cluster>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("server", &self.config.cluster_url)
            .finish_non_exhaustive()
    }
}

/// Reads the identity. Blocks on the disk.
pub(super) fn read(access: &ApiAccess) -> Result<Option<Identity>, ConnectError> {
    match access {
        ApiAccess::None => Ok(None),
        ApiAccess::InCluster => in_cluster().map(Some),
        ApiAccess::Kubeconfig(path) => {
            from_kubeconfig(path)
                .map(Some)
                .map_err(|cause| ConnectError::Kubeconfig {
                    path: path.clone(),
                    cause,
                })
        }
    }
}

fn in_cluster() -> Result<Identity, ConnectError> {
    let config =
        kube::Config::incluster().map_err(|error| ConnectError::InCluster(chain(&error)))?;
    let cluster = Cluster {
        server: Some(config.cluster_url.to_string()),
        // By its file, which the kubelet keeps current.
        certificate_authority: Some(IN_CLUSTER_CA.to_owned()),
        ..Cluster::default()
    };
    Ok(Identity {
        token: token_of(&config),
        config: tuned(config),
        fingerprint: Fingerprint::new(),
        cluster: Some(cluster),
    })
}

fn from_kubeconfig(path: &Path) -> Result<Identity, String> {
    // Hashed before it is read: a file replaced in between is then seen as changed later.
    let mut fingerprint = fingerprint([path.to_owned()]);
    let mut kubeconfig = kubeconfig_of(&read_file(path)?)?;
    if let Some(directory) = path.parent() {
        make_absolute(&mut kubeconfig, directory);
    }
    fingerprint.extend(self::fingerprint(files_of(&kubeconfig)));
    if cluster_of(&kubeconfig).is_some_and(|cluster| cluster.proxy_url.is_some()) {
        return Err("its proxy-url is not supported".to_owned());
    }
    let cluster = cluster_of(&kubeconfig).cloned();
    if let Some(user) = user_of(&mut kubeconfig) {
        take_joint_file(user);
    }
    let options = KubeConfigOptions::default();
    // The loader is async in name only: it waits for nothing.
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .now_or_never()
        .ok_or("it waits for something")?
        .map_err(|error| chain(&error))?;
    if !matches!(config.cluster_url.scheme_str(), Some("http" | "https")) {
        return Err(format!(
            "its server {} is not an http or https URL",
            config.cluster_url
        ));
    }
    Ok(Identity {
        token: token_of(&config),
        config: tuned(config),
        fingerprint,
        cluster,
    })
}

/// Parses a kubeconfig's text. An error contains no part of it, because it may contain secrets.
fn kubeconfig_of(bytes: &[u8]) -> Result<Kubeconfig, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text")?;
    let read: Result<Value, _> = serde_saphyr::from_str(text);
    match read {
        Ok(Value::Null) => Ok(Kubeconfig::default()),
        Ok(value) => api::read(&value),
        Err(error) => Err(match error.location() {
            Some(at) => format!("line {} column {}: it is not YAML", at.line(), at.column()),
            None => "it is not YAML".to_owned(),
        }),
    }
}

/// Makes the files that a kubeconfig names relative to its directory absolute, and its plug-ins
/// that are named by more than a file name.
///
/// Upstream: `ResolveLocalPaths` of `k8s.io/client-go/tools/clientcmd/loader.go`.
fn make_absolute(kubeconfig: &mut Kubeconfig, directory: &Path) {
    let clusters = kubeconfig.clusters.iter_mut();
    let clusters = clusters.filter_map(|named| named.cluster.as_mut());
    let authorities = clusters.map(|cluster| &mut cluster.certificate_authority);
    let users = kubeconfig.auth_infos.iter_mut();
    let users = users.filter_map(|named| named.auth_info.as_mut());
    let of_users = users.flat_map(|user| {
        let command = user.exec.as_mut().map(|exec| &mut exec.command);
        let is_path = |command: &&mut Option<String>| {
            let command = command.as_deref().unwrap_or_default();
            command.contains(std::path::MAIN_SEPARATOR)
        };
        let files = [
            &mut user.client_certificate,
            &mut user.client_key,
            &mut user.token_file,
        ];
        files.into_iter().chain(command.filter(is_path))
    });
    for file in authorities.chain(of_users).flatten() {
        if let Some(absolute) = directory.join(&*file).to_str() {
            absolute.clone_into(file);
        }
    }
}

/// Reads the identity for the request of a first certificate. Blocks as [`read`] does.
pub(super) fn read_bootstrap(access: &ApiAccess) -> Result<Option<Identity>, ConnectError> {
    read(access).map_err(|error| match error {
        ConnectError::Kubeconfig { path, cause } => ConnectError::Bootstrap { path, cause },
        other => other,
    })
}

/// Reads the identity in a kubeconfig; `ours` is the file of the certificate that we store.
/// Blocks on the disk.
pub fn held(path: &Path, ours: &Path) -> Held {
    if let Err(error) = std::fs::metadata(path)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        return Held::Missing;
    }
    let user = match from_kubeconfig(path) {
        Ok(identity) => identity.config.auth_info,
        Err(cause) => return Held::Unusable(cause),
    };
    match certificate_of(&user) {
        Ok(None) => Held::Other,
        Ok(Some(leaf)) => Held::Certificate {
            validity: leaf.validity(),
            user: leaf.common_name,
            is_ours: user.client_certificate.as_deref().map(Path::new) == Some(ours),
        },
        Err(cause) => Held::Unusable(format!("its client certificate: {cause}")),
    }
}

/// The client certificate of a user, if it has one that goes with its key.
fn certificate_of(user: &AuthInfo) -> Result<Option<Leaf>, String> {
    if user.client_certificate.is_none() && user.client_certificate_data.is_none() {
        return Ok(None);
    }
    // kube hands the key out only as it is written.
    let written = serde_json::to_value(user).map_err(|error| error.to_string())?;
    let part = |name: &str| {
        if let Some(data) = written[format!("{name}-data")].as_str() {
            return STANDARD.decode(data).map_err(|error| error.to_string());
        }
        let file = written[name].as_str().ok_or("its key is missing")?;
        read_file(Path::new(file)).map_err(|cause| format!("{file}: {cause}"))
    };
    let certified = from_pem(&part("client-certificate")?, &part("client-key")?)?;
    let leaf = certified.cert.first().and_then(|der| Leaf::read(der));
    leaf.map(Some).ok_or_else(|| "it can't be read".to_owned())
}

/// Reads a certificate and its key from one file at once, because it may be replaced between two reads.
/// An unreadable file is left to its user, who reports it.
fn take_joint_file(user: &mut AuthInfo) {
    let Some(file) = &user.client_certificate else {
        return;
    };
    if user.client_key.as_ref() != Some(file)
        || user.client_certificate_data.is_some()
        || user.client_key_data.is_some()
    {
        return;
    }
    let text = read_file(Path::new(file)).ok();
    if let Some(text) = text.and_then(|bytes| String::from_utf8(bytes).ok()) {
        let (chain, key) = split_pem(&text);
        user.client_certificate_data = Some(STANDARD.encode(chain));
        user.client_key_data = Some(STANDARD.encode(key).into());
    }
}

fn token_of(config: &kube::Config) -> Fingerprint {
    fingerprint(config.auth_info.token_file.iter().map(PathBuf::from))
}

fn context_of(kubeconfig: &Kubeconfig) -> Option<&Context> {
    let name = kubeconfig.current_context.as_ref()?;
    let mut contexts = kubeconfig.contexts.iter();
    contexts.find(|named| named.name == *name)?.context.as_ref()
}

fn cluster_of(kubeconfig: &Kubeconfig) -> Option<&Cluster> {
    let name = &context_of(kubeconfig)?.cluster;
    let mut clusters = kubeconfig.clusters.iter();
    clusters.find(|named| named.name == *name)?.cluster.as_ref()
}

fn user_of(kubeconfig: &mut Kubeconfig) -> Option<&mut AuthInfo> {
    let name = context_of(kubeconfig)?.user.clone()?;
    let mut users = kubeconfig.auth_infos.iter_mut();
    users.find(|named| named.name == name)?.auth_info.as_mut()
}

/// The files that the present context of a kubeconfig names, without the token file.
fn files_of(kubeconfig: &Kubeconfig) -> Vec<PathBuf> {
    let name = context_of(kubeconfig).and_then(|context| context.user.as_ref());
    let user = kubeconfig
        .auth_infos
        .iter()
        .find(|named| Some(&named.name) == name)
        .and_then(|named| named.auth_info.as_ref());
    [
        cluster_of(kubeconfig).and_then(|cluster| cluster.certificate_authority.as_ref()),
        user.and_then(|user| user.client_certificate.as_ref()),
        user.and_then(|user| user.client_key.as_ref()),
    ]
    .into_iter()
    .flatten()
    .map(PathBuf::from)
    .collect()
}

/// The contents of these files now.
pub(super) fn fingerprint(files: impl IntoIterator<Item = PathBuf>) -> Fingerprint {
    files
        .into_iter()
        .map(|path| {
            let bytes = read_file(&path).ok();
            (path, bytes.map(|bytes| Sha256::digest(bytes).into()))
        })
        .collect_map()
}

/// One of them. Blocks on the disk.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    disk::read_small(path, FILE_MIB_MAX).map_err(|error| error.to_string())
}

/// Our own settings: kube's retries would block a heartbeat for minutes, and every call has its own
/// deadline.
fn tuned(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config.read_timeout = None;
    if config.cluster_url.scheme_str() == Some("http") && config.root_cert.is_none() {
        // Else the system's CAs are loaded, which an image from scratch doesn't have.
        config.root_cert = Some(Vec::new());
    }
    config
}
