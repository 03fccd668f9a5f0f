//! Tokens of service accounts, bound to pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{
    BoundObjectReference, TokenRequest, TokenRequestSpec, TokenRequestStatus,
};
use kube::Api;
use kube::api::PostParams;

use super::{away, object_error, patiently};
use crate::cluster::ClusterClient;
use crate::cluster::client::CALL_DEADLINE;
use mirrorlet_core::api::core::ServiceAccount;
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::objects::{ObjectError, Token, TokenKey, token_refresh_at};
use mirrorlet_host::random;

/// Tokens that were issued together are not renewed together.
///
/// Upstream: `maxJitter` of `pkg/kubelet/token/token_manager.go`.
const JITTER_MAX: Duration = Duration::from_secs(10);
/// Pause before the renewal of a token is retried: it is still valid for a fifth of its lifetime.
const RENEW_PAUSE: Duration = Duration::from_secs(30);

/// A token's slot: requested by one caller at a time.
type Slot = Arc<tokio::sync::Mutex<Option<Token>>>;

/// Tokens that are in use.
#[derive(Default)]
pub(super) struct Tokens {
    slots: Mutex<BTreeMap<TokenKey, Slot>>,
}

impl Tokens {
    /// The pod is gone, and its tokens with it.
    pub(super) fn forget(&self, pod: &PodUid) {
        self.slots.lock().retain(|key, _| key.pod_uid != *pod);
    }

    /// The current token, unless its renewal is due; otherwise a new one. If none can be had, the
    /// current one while it is valid.
    pub(super) async fn get(
        &self,
        client: &ClusterClient,
        key: &TokenKey,
    ) -> Result<Token, ObjectError> {
        let slot = Arc::clone(self.slots.lock().entry(key.clone()).or_default());
        let mut slot = slot.lock().await;
        let in_use = slot.as_ref().filter(|t| Timestamp::now() < t.expires_at);
        if let Some(token) = in_use.filter(|t| Timestamp::now() < t.refresh_at) {
            return Ok(token.clone());
        }
        match patiently(|| request(client, key)).await {
            Ok(token) => {
                *slot = Some(token.clone());
                Ok(token)
            }
            Err(error) => {
                let Some(mut kept) = in_use.cloned() else {
                    return Err(error);
                };
                let later = Timestamp::now().checked_add(RENEW_PAUSE);
                kept.refresh_at = later.unwrap_or(kept.expires_at);
                *slot = Some(kept.clone());
                Ok(kept)
            }
        }
    }
}

/// Requests a token.
async fn request(client: &ClusterClient, key: &TokenKey) -> Result<Token, ObjectError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.client(), &key.namespace);
    let wanted = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: key.audience.clone().map(|audience| vec![audience]),
            expiration_seconds: key.expiration_seconds,
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(key.pod_name.clone()),
                uid: Some(key.pod_uid.to_string()),
            }),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let call = accounts.create_token_request(&key.service_account, &params, &wanted);
    let issued = client.write(CALL_DEADLINE, call).await.map_err(|error| {
        let is_of_pod = error.answer().is_some_and(|a| a.kind == "pods");
        let (resource, name) = if is_of_pod {
            ("pod", &key.pod_name)
        } else {
            ("serviceaccount", &key.service_account)
        };
        object_error(&error, key, resource, name)
    })?;
    token(issued).ok_or_else(|| away(key, "the API server's response contains no token"))
}

fn token(issued: TokenRequest) -> Option<Token> {
    let TokenRequestStatus {
        expiration_timestamp,
        token: secret,
    } = issued.status?;
    let expires_at = expiration_timestamp?.0;
    let lifetime = issued.spec?.expiration_seconds?;
    let lifetime = Duration::from_secs(u64::try_from(lifetime).ok()?);
    let issued_at = expires_at.checked_sub(lifetime).ok()?;
    let jitter = JITTER_MAX.mul_f64(random::fraction());
    Some(Token {
        secret: secret?,
        expires_at,
        refresh_at: token_refresh_at(issued_at, expires_at, jitter),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_token_is_renewed_by_what_was_asked_for() {
        let issued: TokenRequest = serde_json::from_value(json!({
            "spec": {"audiences": ["a"], "expirationSeconds": 3600},
            "status": {"token": "t", "expirationTimestamp": "2026-01-01T01:00:00Z"},
        }))
        .unwrap();
        let token = token(issued).unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(token.expires_at, at("2026-01-01T01:00:00Z"));
        assert!(token.refresh_at <= at("2026-01-01T00:48:00Z"));
        assert!(token.refresh_at >= at("2026-01-01T00:47:50Z"));
    }
}
