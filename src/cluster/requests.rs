//! Certificates of ours, signed by the cluster.

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::client::{CALL_DEADLINE, ClusterClient};
use super::error::ApiError;
use crate::certificate::{CertificateRequest, Purpose, SignError, Signer};
use mirrorlet_core::api::meta::ObjectMeta;
use mirrorlet_core::certificate::Outcome;
use mirrorlet_core::certificate::approval::{CLIENT_SIGNER, SERVING_SIGNER};

/// The signer and usages of a certificate with an ECDSA key.
///
/// Upstream: `DefaultKubeletServingGetUsages` and `DefaultKubeletClientGetUsages` of
/// `k8s.io/client-go/util/certificate`.
fn signer(purpose: Purpose) -> (&'static str, [&'static str; 2]) {
    match purpose {
        // It is not approved by default.
        Purpose::Serving => (SERVING_SIGNER, ["digital signature", "server auth"]),
        // The controller manager approves it if RBAC allows that.
        Purpose::Client => (CLIENT_SIGNER, ["digital signature", "client auth"]),
    }
}

/// Certificate signing requests, with the identity of the client.
#[derive(Debug, Clone)]
pub struct CertificateRequests {
    client: ClusterClient,
}

impl CertificateRequests {
    /// Requests made through that client.
    pub fn new(client: ClusterClient) -> Self {
        Self { client }
    }

    fn api(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.client.client())
    }
}

fn unsigned(error: &ApiError) -> SignError {
    SignError {
        cause: error.to_string(),
        is_away: error.is_away(),
    }
}

#[async_trait]
impl Signer for CertificateRequests {
    async fn request(&self, request: &CertificateRequest) -> Result<(), SignError> {
        let (signer, usages) = signer(request.purpose);
        let request = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(request.name.clone()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.pem.as_bytes().to_vec()),
                signer_name: signer.to_owned(),
                usages: Some(usages.map(str::to_owned).to_vec()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let (api, params) = (self.api(), PostParams::default());
        let call = api.create(&params, &request);
        match self.client.write(CALL_DEADLINE, call).await {
            // An answer that was lost, or an agent that ended since: it is our own, since its name
            // is a hash of our key. What is signed for another key is refused later.
            Ok(_) | Err(ApiError::AlreadyExists(_)) => Ok(()),
            Err(error) => Err(unsigned(&error)),
        }
    }

    async fn outcome(&self, name: &str) -> Result<Outcome, SignError> {
        let api = self.api();
        match self.client.read(CALL_DEADLINE, api.get(name)).await {
            Ok(found) => Ok(outcome(&found)),
            Err(ApiError::NotFound(_)) => Ok(Outcome::Gone),
            Err(error) => Err(unsigned(&error)),
        }
    }
}

fn outcome(request: &CertificateSigningRequest) -> Outcome {
    let Some(status) = &request.status else {
        return Outcome::Pending;
    };
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.find(|one| matches!(one.type_.as_str(), "Denied" | "Failed"));
    if let Some(refused) = refused {
        let words = refused.message.as_deref().unwrap_or_default();
        let reason = refused.reason.as_deref().unwrap_or_default();
        return Outcome::Refused(format!("{} ({reason}): {words}", refused.type_));
    }
    match &status.certificate {
        Some(chain) if !chain.0.is_empty() => {
            Outcome::Issued(String::from_utf8_lossy(&chain.0).into_owned())
        }
        Some(_) | None => Outcome::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_pending_until_it_is_decided_and_signed() {
        for (status, expected) in [
            (serde_json::json!(null), Outcome::Pending),
            (serde_json::json!({}), Outcome::Pending),
            (
                serde_json::json!({"conditions": [{"type": "Approved", "status": "True"}]}),
                Outcome::Pending,
            ),
            (
                serde_json::json!({
                    "conditions": [{"type": "Approved", "status": "True"}], "certificate": "UEVN",
                }),
                Outcome::Issued("PEM".to_owned()),
            ),
            (
                serde_json::json!({"conditions": [
                    {"type": "Denied", "status": "True", "reason": "ByHand", "message": "no"},
                ]}),
                Outcome::Refused("Denied (ByHand): no".to_owned()),
            ),
        ] {
            let request = serde_json::json!({
                "spec": {"request": "", "signerName": "s"}, "status": status,
            });
            let request = serde_json::from_value(request).unwrap();
            assert_eq!(outcome(&request), expected, "{status}");
        }
    }
}
