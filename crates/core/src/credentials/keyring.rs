//! Finds the credentials for an image.
//!
//! Upstream: `pkg/credentialprovider/keyring.go` (`BasicDockerKeyring`).

use std::collections::BTreeMap;

use super::parse::Auths;
use super::{HUB, RegistryAuth};

/// The key of Docker Hub's credentials, used when no other key matches.
const HUB_KEY: &str = "index.docker.io";

/// Credentials, in order of insertion, by their key: a host, perhaps with wildcards for labels, and a
/// path prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keyring {
    by_key: BTreeMap<String, Vec<RegistryAuth>>,
}

impl Keyring {
    /// A keyring of just these.
    pub fn of(auths: Auths) -> Self {
        let mut keyring = Self::default();
        keyring.add(auths);
        keyring
    }

    /// Adds credentials. Those without a host match nothing.
    pub fn add(&mut self, auths: Auths) {
        for (registry, auth) in auths {
            if let Some(key) = normalised(&registry) {
                self.by_key.entry(key).or_default().push(auth);
            }
        }
    }

    /// The credentials for an image, those with the longest path first. `repository` is its registry
    /// and repository, for example `docker.io/library/nginx`.
    pub fn lookup(&self, repository: &str) -> Vec<RegistryAuth> {
        let matching = self.by_key.iter().rev();
        let found: Vec<RegistryAuth> = matching
            .filter(|(key, _)| is_for(key, repository))
            .flat_map(|(_, auths)| auths.iter().cloned())
            .collect();
        let host = repository.split('/').next().unwrap_or_default();
        if found.is_empty() && host == HUB {
            return self.by_key.get(HUB_KEY).cloned().unwrap_or_default();
        }
        found
    }
}

/// A registry as a configuration names it, without scheme, user and the version of its protocol:
/// `https://r.example/v2/` is `r.example`.
fn normalised(registry: &str) -> Option<String> {
    let bare = registry
        .strip_prefix("https://")
        .or_else(|| registry.strip_prefix("http://"))
        .unwrap_or(registry);
    let bare = bare.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = bare.split_at(bare.find('/').unwrap_or(bare.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    if host.is_empty() {
        return None;
    }
    let versioned = path.starts_with("/v1/") || path.starts_with("/v2/");
    let path = if versioned { &path[3..] } else { path };
    let path = if path == "/" { "" } else { path };
    Some(format!("{host}{path}"))
}

/// Whether a key matches an image: the same port, the same host labels, and a prefix of the image's
/// path.
///
/// Upstream: `URLsMatch`.
fn is_for(key: &str, repository: &str) -> bool {
    let ((key_host, key_path), (host, path)) = (split_path(key), split_path(repository));
    let ((key_host, key_port), (host, port)) = (split_port(key_host), split_port(host));
    if key_port != port || !path.starts_with(key_path) {
        return false;
    }
    // An address in brackets has no labels.
    if key_host.starts_with('[') {
        return key_host == host;
    }
    let (keys, labels) = (key_host.split('.'), host.split('.'));
    keys.clone().count() == labels.clone().count()
        && keys.zip(labels).all(|(key, label)| glob(key, label))
}

fn split_path(text: &str) -> (&str, &str) {
    text.split_at(text.find('/').unwrap_or(text.len()))
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        Some(_) | None => (authority, None),
    }
}

/// Whether a text matches the pattern, in which `*` matches any text.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pattern.contains('*').then(|| parts.next_back()).flatten() else {
        return rest.is_empty();
    };
    // Each part in between as early as possible: what is left for the last one is the most there is.
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.len() >= last.len() && rest.ends_with(last)
}
