//! The CAs that the API server publishes for extension servers.

use kube::Api;

use super::client::{CALL_DEADLINE, ClusterClient};
use super::error::{Answer, ApiError};
use mirrorlet_core::api::core::ConfigMap;

/// `ConfigMap` of `kube-system` with what the API server believes.
///
/// Upstream: `pkg/controlplane/controller/clusterauthenticationtrust`.
const AUTHENTICATION: &str = "extension-apiserver-authentication";
/// Its key with the authorities of client certificates, in PEM.
const CLIENT_CA: &str = "client-ca-file";

impl ClusterClient {
    /// The authorities whose client certificates the API server trusts, in PEM. Reading them requires
    /// the Role `extension-apiserver-authentication-reader`.
    ///
    /// # Errors
    /// The API server's error; it publishes none.
    pub async fn published_client_authorities(&self) -> Result<String, ApiError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client(), "kube-system");
        let map = self.read(CALL_DEADLINE, maps.get(AUTHENTICATION)).await?;
        let published = map.data.and_then(|mut data| data.remove(CLIENT_CA));
        published.ok_or_else(|| {
            ApiError::NotFound(Answer {
                message: format!("ConfigMap kube-system/{AUTHENTICATION} has no {CLIENT_CA}"),
                ..Answer::default()
            })
        })
    }
}
