//! Reviews by the API server: authentication of tokens, and authorization of users.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::client::{CALL_DEADLINE, ClusterClient};
use super::error::ApiError;
use mirrorlet_core::access::User;
use mirrorlet_core::api::NodeName;

/// Reviews callers of our node API. Answers aren't cached here.
#[derive(Debug, Clone)]
pub struct Reviews {
    client: ClusterClient,
    node: NodeName,
}

impl Reviews {
    /// Questions about our Node of that name.
    pub fn new(client: ClusterClient, node: NodeName) -> Self {
        Self { client, node }
    }

    /// Authenticates a token as the API server would; `None` if it is invalid.
    ///
    /// # Errors
    /// The API server's error.
    pub async fn token(&self, token: &str) -> Result<Option<User>, ApiError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.client());
        let params = PostParams::default();
        // The API server stores nothing, so it counts as a read: clients that try to get in must not
        // delay our own writes.
        let call = reviews.create(&params, &review);
        let answer = self.client.read(CALL_DEADLINE, call).await?;
        let status = answer.status.unwrap_or_default();
        let is_somebody = status.authenticated == Some(true);
        Ok(status.user.filter(|_| is_somebody).and_then(user))
    }

    /// Whether a user may access a subresource of our Node.
    ///
    /// # Errors
    /// The API server's error.
    pub async fn access(
        &self,
        user: &User,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, ApiError> {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: some(&user.name),
                uid: some(&user.uid),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: some(verb),
                    version: some("v1"),
                    resource: some("nodes"),
                    subresource: some(subresource),
                    name: some(self.node.as_str()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.client());
        let params = PostParams::default();
        let call = reviews.create(&params, &review);
        let answer = self.client.read(CALL_DEADLINE, call).await?;
        let status = answer.status.unwrap_or_default();
        Ok(status.allowed && status.denied != Some(true))
    }
}

/// A user without a name is invalid.
fn user(info: UserInfo) -> Option<User> {
    Some(User {
        name: info.username.filter(|name| !name.is_empty())?,
        uid: info.uid.unwrap_or_default(),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    })
}
