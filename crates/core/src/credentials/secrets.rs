//! The pull secrets of a pod.
//!
//! Upstream: `getPullSecretsForPod` of `pkg/kubelet/kubelet_pods.go`,
//! `pkg/credentialprovider/secrets/secrets.go`.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::parse::{Auths, MalformedConfig, docker_config, dockercfg};
use super::{Keyring, RegistryAuth};
use crate::api::core::Secret;
use crate::api::{Pod, hex};
use crate::objects::ObjectSet;
use crate::spec;

/// Type and key of a secret that is a `config.json`.
const CONFIG_JSON: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
/// Type and key of a secret that is a `.dockercfg`.
const DOCKERCFG: (&str, &str) = ("kubernetes.io/dockercfg", ".dockercfg");

/// A pull secret that is malformed. The pod's images can't be pulled until it is corrected: a pull
/// without it might return a different image than the author expects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("pull secret {name:?}, key {key:?}: {cause}")]
pub struct MalformedSecret {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: &'static str,
    /// The problem.
    pub cause: MalformedConfig,
}

/// The result of reading a pod's pull secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PullSecrets {
    /// The credentials in them.
    pub keyring: Keyring,
    /// The credentials of each secret; their hashes are empty.
    pub sources: Vec<(SecretUse, Keyring)>,
    /// The first one that can't be used.
    pub malformed: Option<MalformedSecret>,
    /// Names of the unreadable secrets, in the spec's order.
    pub unreadable: Vec<String>,
}

/// A pull secret, and the hash of its credentials for an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretUse {
    /// Namespace of the secret.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Hash of the credentials.
    pub credential_hash: String,
}

impl SecretUse {
    /// Whether both are the same secret, whatever its content.
    pub(crate) fn is_same_secret(&self, other: &Self) -> bool {
        (&self.namespace, &self.name, &self.uid) == (&other.namespace, &other.name, &other.uid)
    }
}

/// The hash that represents credentials on disk.
pub fn credential_hash(auth: &RegistryAuth) -> String {
    let mut hash = Sha256::new();
    for part in [
        &auth.username,
        &auth.password,
        &auth.identity_token,
        &auth.registry_token,
        &auth.server,
    ] {
        // With its length, so that no two differ only in where one part ends.
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

impl PullSecrets {
    /// The secrets with credentials for a repository, with the hash of these credentials.
    pub fn uses(&self, repository: &str) -> Vec<SecretUse> {
        let all = self.sources.iter().flat_map(|(secret, keyring)| {
            let credentials = keyring.lookup(repository).into_iter();
            credentials.map(|auth| SecretUse {
                credential_hash: credential_hash(&auth),
                ..secret.clone()
            })
        });
        all.collect()
    }
}

/// Reads the pull secrets of a pod from the fetched objects.
pub fn pull_secrets(pod: &Pod, objects: &ObjectSet) -> PullSecrets {
    let mut found = PullSecrets::default();
    for name in spec::pull_secret_names(pod) {
        match objects.secret(name) {
            Err(_) => found.unreadable.push(name.to_owned()),
            Ok(secret) => match auths(name, secret) {
                Ok(auths) => {
                    found.keyring.add(auths.clone());
                    let metadata = &secret.metadata;
                    let secret = SecretUse {
                        namespace: metadata.namespace.clone().unwrap_or_default(),
                        name: name.to_owned(),
                        uid: metadata.uid.clone().unwrap_or_default(),
                        credential_hash: String::new(),
                    };
                    found.sources.push((secret, Keyring::of(auths)));
                }
                Err(error) => found.malformed = found.malformed.or(Some(error)),
            },
        }
    }
    found
}

/// The credentials in a secret; none if it has another type. Credential helpers in it are ignored: the
/// author of a secret must not run programs on the node.
fn auths(name: &str, secret: &Secret) -> Result<Auths, MalformedSecret> {
    let kind = secret.type_.as_deref().unwrap_or_default();
    let data = |key: &str| {
        let data = secret.data.as_ref().and_then(|data| data.get(key));
        data.map(|bytes| bytes.0.as_slice())
            .filter(|bytes| !bytes.is_empty())
    };
    let (key, parsed) = if kind == CONFIG_JSON.0 {
        let parsed = data(CONFIG_JSON.1).map(|text| docker_config(text).map(|c| c.auths));
        (CONFIG_JSON.1, parsed)
    } else if kind == DOCKERCFG.0 {
        (DOCKERCFG.1, data(DOCKERCFG.1).map(dockercfg))
    } else {
        return Ok(Auths::default());
    };
    parsed
        .unwrap_or_else(|| Ok(Auths::default()))
        .map_err(|cause| MalformedSecret {
            name: name.to_owned(),
            key,
            cause,
        })
}
