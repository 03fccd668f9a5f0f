//! The formats of credentials: Docker's `config.json`, which secrets of type
//! `kubernetes.io/dockerconfigjson` also use, and its predecessor `.dockercfg`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use super::{Credential, HUB, HUB_SERVER, RegistryAuth};

/// Base64 with padding or without: both are written.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Credentials by the registry they were written for.
pub type Auths = BTreeMap<String, RegistryAuth>;

/// Why a configuration can't be read. Contains the position, never the content.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MalformedConfig {
    /// It is not JSON.
    #[error("not valid JSON (line {line}, column {column})")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// It is JSON of another form.
    #[error("a value has the wrong type (line {line}, column {column})")]
    Form {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// `auth` of a registry can't be decoded.
    #[error("the auth of registry {registry:?} is not base64 of username:password")]
    Auth {
        /// The registry as written.
        registry: String,
    },
}

impl From<serde_json::Error> for MalformedConfig {
    /// Without the error's own words, which may quote a value.
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Data => Self::Form { line, column },
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => Self::Syntax { line, column },
        }
    }
}

/// The credentials in a Docker client's `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DockerConfig {
    /// Credentials in the file.
    pub auths: Auths,
    /// Helpers by registry host.
    pub cred_helpers: BTreeMap<String, String>,
    /// Helper for all other registries.
    pub creds_store: Option<String>,
}

impl DockerConfig {
    /// The credential helper for an image's registry, and the key to ask it for.
    ///
    /// As in Docker's own client: the helper configured for the host, otherwise the general one.
    pub(super) fn helper(&self, repository: &str) -> Option<Credential> {
        let host = repository.split_once('/').map_or(repository, |(h, _)| h);
        let (keys, server): (&[&str], &str) = if host == HUB {
            (&[HUB_SERVER, "index.docker.io", HUB], HUB_SERVER)
        } else {
            (&[host], host)
        };
        let of_host = keys.iter().find_map(|key| self.cred_helpers.get(*key));
        let helper = of_host.or(self.creds_store.as_ref())?;
        (!helper.is_empty()).then(|| Credential::Helper {
            helper: helper.clone(),
            server: server.to_owned(),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireConfig {
    auths: Option<BTreeMap<String, WireEntry>>,
    cred_helpers: Option<BTreeMap<String, String>>,
    creds_store: Option<String>,
}

#[derive(Deserialize)]
struct WireEntry {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Reads a `config.json` or `.dockerconfigjson`.
pub fn docker_config(text: &[u8]) -> Result<DockerConfig, MalformedConfig> {
    let wire: WireConfig = serde_json::from_slice(text)?;
    Ok(DockerConfig {
        auths: auths(wire.auths.unwrap_or_default())?,
        cred_helpers: wire.cred_helpers.unwrap_or_default(),
        creds_store: wire.creds_store,
    })
}

/// Reads a `.dockercfg`: the credentials alone.
pub fn dockercfg(text: &[u8]) -> Result<Auths, MalformedConfig> {
    auths(serde_json::from_slice(text)?)
}

/// An empty entry marks a registry whose credentials a helper stores.
fn auths(wire: BTreeMap<String, WireEntry>) -> Result<Auths, MalformedConfig> {
    let mut auths = Auths::new();
    for (registry, entry) in wire {
        let auth = entry.decode(&registry)?;
        if !auth.is_anonymous() {
            auths.insert(registry, auth);
        }
    }
    Ok(auths)
}

impl WireEntry {
    /// `auth` takes precedence over the fields that it replaces.
    fn decode(self, registry: &str) -> Result<RegistryAuth, MalformedConfig> {
        let (username, password) = match self.auth.as_deref().map(str::trim) {
            None | Some("") => (
                self.username.unwrap_or_default(),
                self.password.unwrap_or_default(),
            ),
            Some(auth) => decode_auth(auth).ok_or_else(|| MalformedConfig::Auth {
                registry: registry.to_owned(),
            })?,
        };
        Ok(RegistryAuth {
            username,
            password,
            identity_token: self.identitytoken.unwrap_or_default(),
            registry_token: self.registrytoken.unwrap_or_default(),
            server: registry.to_owned(),
        })
    }
}

/// Upstream: `decodeDockerConfigFieldAuth` of `pkg/credentialprovider/config.go`.
fn decode_auth(auth: &str) -> Option<(String, String)> {
    // Line breaks inside are ignored, as Go's decoder does.
    let auth: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let text = String::from_utf8(LENIENT.decode(auth).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}
