//! Credentials for registries, as values: the contents of configurations and secrets, and the
//! credentials to try for a pull, in order.
//!
//! [`parse`] reads the three formats, [`Keyring`] matches them with images, and [`candidates`] puts
//! those of a pod before those of the node. Passwords and tokens never appear in a message or `Debug`
//! text.
//!
//! Upstream: `pkg/credentialprovider/{config,keyring}.go`, `pkg/credentialprovider/secrets`.

mod keyring;
mod parse;
mod secrets;
#[cfg(test)]
mod tests;

pub use keyring::Keyring;
pub use parse::{Auths, DockerConfig, MalformedConfig, docker_config, dockercfg};
pub use secrets::{MalformedSecret, PullSecrets, SecretUse, credential_hash, pull_secrets};

/// Registry of images that name none.
const HUB: &str = "docker.io";
/// Under which name clients keep credentials for [`HUB`].
pub const HUB_SERVER: &str = "https://index.docker.io/v1/";

/// Credentials for a registry. Its `Debug` text contains only the registry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RegistryAuth {
    /// User.
    pub username: String,
    /// Password.
    pub password: String,
    /// Identity token, which replaces a password; empty for none.
    pub identity_token: String,
    /// Registry token, which is sent to the registry as it is; empty for none.
    pub registry_token: String,
    /// Registry host, optionally with a path, that they are for.
    pub server: String,
}

impl RegistryAuth {
    /// Whether it contains nothing that identifies a user.
    pub fn is_anonymous(&self) -> bool {
        self.username.is_empty()
            && self.password.is_empty()
            && self.identity_token.is_empty()
            && self.registry_token.is_empty()
    }
}

crate::partial_debug!(RegistryAuth, server);

/// Something that a pull can be tried with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Credential {
    /// Credentials that are available.
    Known(RegistryAuth),
    /// Credentials that `docker-credential-<helper>` knows.
    Helper {
        /// Its name, without what all have in front.
        helper: String,
        /// The registry that it is asked about.
        server: String,
    },
}

/// Returns the credentials to try for an image, in order, without duplicates: the pod's own secrets,
/// then those of the node's configuration, then its credential helper. An empty list means that the
/// image is pulled without credentials.
///
/// `repository` is registry and repository, for example `docker.io/library/nginx`.
pub fn candidates(pod: &Keyring, node: &DockerConfig, repository: &str) -> Vec<Credential> {
    let mut found: Vec<Credential> = Vec::new();
    let of_node = Keyring::of(node.auths.clone());
    let known = pod
        .lookup(repository)
        .into_iter()
        .chain(of_node.lookup(repository));
    for credential in known.map(Credential::Known).chain(node.helper(repository)) {
        if !found.contains(&credential) {
            found.push(credential);
        }
    }
    found
}
