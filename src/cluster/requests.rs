//! Certificates of our node API, signed by the cluster.

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::client::{CALL_DEADLINE, ClusterClient};
use super::error::ApiError;
use crate::api::meta::ObjectMeta;

/// Who signs what a node shows to those who call it. Nobody approves by default.
const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// What a certificate with an ECDSA key is for.
///
/// Upstream: `DefaultKubeletServingGetUsages` of `k8s.io/client-go/util/certificate`.
const USAGES: [&str; 2] = ["digital signature", "server auth"];

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Nobody has decided yet, or it isn't signed yet.
    Pending,
    /// It was signed: the chain, in PEM.
    Issued(String),
    /// It was denied, or could not be signed, in these words.
    Refused(String),
}

/// Requests for a serving certificate.
#[derive(Debug, Clone)]
pub struct CertificateRequests {
    client: ClusterClient,
}

impl CertificateRequests {
    /// Requests made through that client.
    #[must_use]
    pub fn new(client: ClusterClient) -> Self {
        Self { client }
    }

    fn api(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.client.client())
    }

    /// Makes a request (PEM), and says its name.
    ///
    /// # Errors
    /// As the API server says.
    pub async fn request(&self, request: &str) -> Result<String, ApiError> {
        let request = CertificateSigningRequest {
            metadata: ObjectMeta {
                generate_name: Some("csr-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.as_bytes().to_vec()),
                signer_name: SIGNER.to_owned(),
                usages: Some(USAGES.map(str::to_owned).to_vec()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let (api, params) = (self.api(), PostParams::default());
        let call = api.create(&params, &request);
        let made = self.client.write(CALL_DEADLINE, call).await?;
        made.metadata.name.ok_or_else(|| ApiError::Undecodable {
            cause: "a request without a name".to_owned(),
        })
    }

    /// What became of the request of that name.
    ///
    /// # Errors
    /// As the API server says: there is no such request any more, say.
    pub async fn outcome(&self, name: &str) -> Result<RequestOutcome, ApiError> {
        let api = self.api();
        let found = self.client.read(CALL_DEADLINE, api.get(name)).await?;
        Ok(outcome(&found))
    }
}

fn outcome(request: &CertificateSigningRequest) -> RequestOutcome {
    let Some(status) = &request.status else {
        return RequestOutcome::Pending;
    };
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.find(|one| matches!(one.type_.as_str(), "Denied" | "Failed"));
    if let Some(refused) = refused {
        let words = refused.message.as_deref().unwrap_or_default();
        let reason = refused.reason.as_deref().unwrap_or_default();
        return RequestOutcome::Refused(format!("{} ({reason}): {words}", refused.type_));
    }
    match &status.certificate {
        Some(chain) if !chain.0.is_empty() => {
            RequestOutcome::Issued(String::from_utf8_lossy(&chain.0).into_owned())
        }
        Some(_) | None => RequestOutcome::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_pending_until_it_is_decided_and_signed() {
        for (status, expected) in [
            (serde_json::json!(null), RequestOutcome::Pending),
            (serde_json::json!({}), RequestOutcome::Pending),
            (
                serde_json::json!({"conditions": [{"type": "Approved", "status": "True"}]}),
                RequestOutcome::Pending,
            ),
            (
                serde_json::json!({
                    "conditions": [{"type": "Approved", "status": "True"}], "certificate": "UEVN",
                }),
                RequestOutcome::Issued("PEM".to_owned()),
            ),
            (
                serde_json::json!({"conditions": [
                    {"type": "Denied", "status": "True", "reason": "ByHand", "message": "no"},
                ]}),
                RequestOutcome::Refused("Denied (ByHand): no".to_owned()),
            ),
        ] {
            let request = serde_json::json!({
                "spec": {"request": "", "signerName": SIGNER}, "status": status,
            });
            let request = serde_json::from_value(request).unwrap();
            assert_eq!(outcome(&request), expected, "{status}");
        }
    }
}
