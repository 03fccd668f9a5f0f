//! The API server, as the agent reports it.

use serde::{Deserialize, Serialize};

use crate::api::Timestamp;

/// The API server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiReport {
    /// Its address.
    pub server: String,
    /// Whether it answered the last call.
    pub reachable: bool,
    /// Why it isn't reachable; none before the first call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_since: Option<Timestamp>,
    /// The expiry of our client certificate for it; none if the agent doesn't manage one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<Timestamp>,
    /// Why the certificate can't be renewed, though it is time, or why there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_error: Option<String>,
    /// Since when it rejects the credentials (401), though it is reachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_since: Option<Timestamp>,
    /// Why the credentials on disk can't be used, or the credential plug-in failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_error: Option<String>,
    /// The kind of that error; none without an error. Agents that don't report it only have
    /// [`CredentialsFault::Replaced`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_fault: Option<CredentialsFault>,
}

/// The kind of a problem with credentials for the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialsFault {
    /// The files on disk can't be used, and there are no earlier credentials.
    Missing,
    /// The files were replaced by invalid ones. The earlier credentials are used until the agent
    /// restarts.
    Replaced,
    /// The credential plug-in returned no new ones. It is run again.
    Plugin,
}
