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
    /// When the client certificate ends that it is called with; none where that is kept by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<Timestamp>,
    /// Why that can't be renewed, though it is time; without one, why there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_error: Option<String>,
    /// Since when it rejects the credentials (401), though it is reachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_since: Option<Timestamp>,
    /// Why replaced credentials can't be used, or a plug-in makes none; those from before, if there were
    /// any, are in use until the agent restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_error: Option<String>,
}
