//! The API objects that a pod refers to, and the results of reading them, as values. API pods refer to
//! objects in the API server, pods of manifests only to those of manifests.
//!
//! [`references`] returns the objects that a pod needs; a provider fills an [`ObjectSet`]; environment
//! and volumes are computed from that alone. Values of objects never appear in a message or a `Debug`
//! text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::core::{ConfigMap, Secret, Service};
use crate::api::{FullName, Pod, PodUid, Timestamp, keys};
use crate::objects::claims::Storage;
use crate::small::SmallCollect;
use crate::spec::{self, annotation};

/// Longest that a token is used, whatever its lifetime.
///
/// Upstream: `pkg/kubelet/token/token_manager.go` (`maxTTL`).
const TOKEN_AGE_MAX: Duration = Duration::from_hours(24);
/// Share of its lifetime, in percent, after which a token is renewed.
const TOKEN_USE_PERCENT: i64 = 80;

crate::words! {
    /// Kind of an object that pods refer to by name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ObjectKind {
        /// A `ConfigMap`.
        ConfigMap = "ConfigMap",
        /// A `Secret`.
        Secret = "Secret",
        /// A `Service`. No pod refers to one; its name resolves to the pods that it selects.
        Service = "Service",
        /// A `PersistentVolumeClaim`.
        Claim = "PersistentVolumeClaim",
        /// A `PersistentVolume`. It has no namespace.
        Volume = "PersistentVolume",
    }
    /// The kind as manifests write it.
    pub fn as_str;
}

impl ObjectKind {
    /// The resource as API errors name it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::Service => "service",
            Self::Claim => "persistentvolumeclaim",
            Self::Volume => "persistentvolume",
        }
    }
}

/// Identifies an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace, the pod's own.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// Kind and name for messages: `ConfigMap default/web`.
    pub fn words(&self) -> String {
        format!("{} {}", self.kind.as_str(), self.path())
    }

    fn path(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.kind.resource(), self.path())
    }
}

/// Identifies a token of a service account, bound to a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// Namespace of pod and service account.
    pub namespace: String,
    /// Name of the service account.
    pub service_account: String,
    /// Name of the pod.
    pub pod_name: String,
    /// UID of the pod: the token ends with it.
    pub pod_uid: PodUid,
    /// The audience of the token; `None` is the API server.
    pub audience: Option<String>,
    /// Requested lifetime, in seconds.
    pub expiration_seconds: Option<i64>,
}

impl fmt::Display for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a token of serviceaccount \"{}/{}\"",
            self.namespace, self.service_account
        )
    }
}

/// Why an object is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is none with that name.
    #[error("{resource} {name:?} not found")]
    NotFound {
        /// Its resource, in the singular.
        resource: &'static str,
        /// Its name.
        name: String,
    },
    /// No manifest defines it.
    #[error("{} {:?} not found: no manifest defines {}", .0.kind.resource(), .0.name, .0.words())]
    NoDocument(ObjectKey),
    /// A claim has no volume.
    #[error("persistentvolumeclaim {name:?} is not bound: {cause}")]
    Unbound {
        /// Its name.
        name: String,
        /// Why.
        cause: String,
    },
    /// This node may not read it.
    #[error("this node is not allowed to read {what}: {cause}")]
    Forbidden {
        /// The requested object.
        what: String,
        /// The API server's words.
        cause: String,
    },
    /// It exceeds the memory limit of this node.
    #[error("{what} is not loaded: {cause}")]
    TooMuch {
        /// The requested object.
        what: String,
        /// Why.
        cause: String,
    },
    /// It is unknown: the API server doesn't answer, or answered with an internal error.
    #[error("failed to get {what}: {cause}")]
    Away {
        /// The requested object.
        what: String,
        /// Why.
        cause: String,
    },
}

impl ObjectError {
    /// That no object of that key exists.
    pub fn not_found(key: &ObjectKey) -> Self {
        Self::NotFound {
            resource: key.kind.resource(),
            name: key.name.clone(),
        }
    }

    /// Whether the object is known not to exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::NoDocument(_))
    }
}

/// A token of a service account. Its `Debug` text doesn't contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The token itself.
    pub secret: String,
    /// From when on it is worthless.
    pub expires_at: Timestamp,
    /// When to request a new one.
    pub refresh_at: Timestamp,
}

crate::partial_debug!(Token, expires_at, refresh_at);

/// When to renew a token: after four fifths of its lifetime, and at most after a day. `jitter` is
/// subtracted, so that tokens issued together are not renewed together.
///
/// Upstream: `requiresRefresh` of `pkg/kubelet/token/token_manager.go`.
pub fn token_refresh_at(
    issued_at: Timestamp,
    expires_at: Timestamp,
    jitter: Duration,
) -> Timestamp {
    let lifetime = expires_at.duration_since(issued_at).as_secs().max(0);
    let used = u64::try_from(lifetime.saturating_mul(TOKEN_USE_PERCENT) / 100).unwrap_or(0);
    let after = Duration::from_secs(used)
        .min(TOKEN_AGE_MAX)
        .saturating_sub(jitter);
    issued_at.checked_add(after).unwrap_or(expires_at)
}

/// The data of a service that its environment variables contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its address inside the cluster.
    pub cluster_ip: String,
    /// Its ports, in its spec's order.
    pub ports: Vec<ServicePortFacts>,
}

/// The data of a service's port that its environment variables contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePortFacts {
    /// Its name; empty for none.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Its number.
    pub port: i32,
}

impl ServiceFacts {
    /// The facts of a service; none for one without an address or port.
    pub fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let cluster_ip = spec.cluster_ip.clone()?;
        if cluster_ip.is_empty() || cluster_ip == "None" {
            return None;
        }
        let ports: Vec<ServicePortFacts> = spec
            .ports
            .iter()
            .flatten()
            .map(|port| ServicePortFacts {
                name: port.name.clone().unwrap_or_default(),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port: port.port,
            })
            .collect();
        (!ports.is_empty()).then(|| Self {
            namespace: service.metadata.namespace.clone().unwrap_or_default(),
            name: service.metadata.name.clone().unwrap_or_default(),
            cluster_ip,
            ports,
        })
    }
}

/// All API objects from which a pod's containers and volumes are built.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct References {
    /// Objects by name.
    pub objects: BTreeSet<ObjectKey>,
    /// Tokens.
    pub tokens: BTreeSet<TokenKey>,
    /// Whether its environment has variables for services.
    pub services: bool,
}

impl References {
    /// Whether nothing is referred to.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.tokens.is_empty() && !self.services
    }
}

/// The results of reading a pod's [`References`].
#[derive(Clone, Default)]
pub struct ObjectSet {
    /// By name, in the pod's namespace.
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, ObjectError>>,
    /// By name, in the pod's namespace.
    pub secrets: BTreeMap<String, Result<Arc<Secret>, ObjectError>>,
    /// The storage of claims, by their names in the pod's namespace.
    pub claims: BTreeMap<String, Result<Arc<Storage>, ObjectError>>,
    /// Tokens.
    pub tokens: BTreeMap<TokenKey, Result<Token, ObjectError>>,
    /// Services of all namespaces; none if the pod gets no variables for services.
    pub services: Option<Result<Arc<[ServiceFacts]>, ObjectError>>,
}

impl fmt::Debug for ObjectSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectSet")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .field("claims", &self.claims)
            .field("tokens", &self.tokens.keys())
            .finish_non_exhaustive()
    }
}

impl ObjectSet {
    /// The config map with that name; missing if it was not requested.
    pub fn config_map(&self, name: &str) -> Result<&ConfigMap, ObjectError> {
        let none = || missing(ObjectKind::ConfigMap, name);
        got(self.config_maps.get(name), none).map(Arc::as_ref)
    }

    /// The secret with that name; missing if it was not requested.
    pub fn secret(&self, name: &str) -> Result<&Secret, ObjectError> {
        let none = || missing(ObjectKind::Secret, name);
        got(self.secrets.get(name), none).map(Arc::as_ref)
    }

    /// The storage of the claim with that name; missing if it was not requested.
    pub fn claim(&self, name: &str) -> Result<Arc<Storage>, ObjectError> {
        let found = self.claims.get(name).cloned();
        found.unwrap_or_else(|| Err(missing(ObjectKind::Claim, name)))
    }

    /// The token with that key; missing if it was not requested.
    pub fn token(&self, key: &TokenKey) -> Result<&Token, ObjectError> {
        got(self.tokens.get(key), || ObjectError::NotFound {
            resource: "serviceaccount",
            name: key.service_account.clone(),
        })
    }

    /// When the first of the tokens must be renewed.
    pub fn refresh_at(&self) -> Option<Timestamp> {
        self.tokens
            .values()
            .filter_map(|token| token.as_ref().ok())
            .map(|token| token.refresh_at)
            .min()
    }
}

fn got<T>(
    found: Option<&Result<T, ObjectError>>,
    none: impl FnOnce() -> ObjectError,
) -> Result<&T, ObjectError> {
    found.map_or_else(|| Err(none()), |found| found.as_ref().map_err(Clone::clone))
}

fn missing(kind: ObjectKind, name: &str) -> ObjectError {
    ObjectError::NotFound {
        resource: kind.resource(),
        name: name.to_owned(),
    }
}

/// Whether a pod comes from a manifest rather than from the API server.
///
/// Upstream: `IsStaticPod` of `pkg/kubelet/types/pod_update.go`.
pub fn is_static(pod: &Pod) -> bool {
    annotation(&pod.metadata, keys::CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// Returns the objects that a pod refers to. A static pod has no tokens and no variables for services:
/// it must run without an API server.
pub fn references(pod: &Pod) -> References {
    let mut found = References {
        objects: uses(pod).into_iter().map(|used| used.key).collect_set(),
        ..References::default()
    };
    if is_static(pod) {
        return found;
    }
    found.services = true;
    for volume in spec::spec(pod).volumes.iter().flatten() {
        let projected = volume.projected.as_ref();
        for source in projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(token) = &source.service_account_token {
                let (audience, expiry) = (token.audience.as_deref(), token.expiration_seconds);
                found.tokens.insert(token_key(pod, audience, expiry));
            }
        }
    }
    found
}

/// The key of a token in a volume of the pod.
pub fn token_key(pod: &Pod, audience: Option<&str>, expiration_seconds: Option<i64>) -> TokenKey {
    let account = spec::spec(pod).service_account_name.as_deref();
    TokenKey {
        namespace: FullName::of(pod).namespace.to_string(),
        service_account: account
            .filter(|name| !name.is_empty())
            .unwrap_or("default")
            .to_owned(),
        pod_name: pod.metadata.name.clone().unwrap_or_default(),
        pod_uid: PodUid::of(pod),
        audience: audience.filter(|a| !a.is_empty()).map(str::to_owned),
        expiration_seconds,
    }
}

pub mod claims;
mod config;
mod known;
#[cfg(test)]
mod tests;
mod uses;

pub use config::{Config, check_restart_on, has_config, restarts_on_config};
pub use known::{KnownObjects, Object};
pub use uses::{ObjectUse, Unmet, unmet, uses};
