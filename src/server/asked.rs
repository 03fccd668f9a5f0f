//! A request on the agent's socket, in the form for most handlers.

use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::admin::{ApiError, Shared};
use super::room::Permit;

/// A request with the query `Q` that was admitted. It counts as open until the permit is dropped.
pub(super) struct Asked<Q> {
    pub(super) shared: Shared,
    pub(super) query: Q,
    permit: Permit,
}

impl<Q> Asked<Q> {
    /// The state, the query, and the permit, which the handler keeps until the answer has ended.
    pub(super) fn into_parts(self) -> (Shared, Q, Permit) {
        (self.shared, self.query, self.permit)
    }
}

impl<Q: DeserializeOwned> FromRequestParts<Shared> for Asked<Q> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, ApiError> {
        let query = Query::try_from_uri(&parts.uri);
        let Query(query) =
            query.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.body_text()))?;
        Ok(Self {
            permit: shared.admit()?,
            shared: shared.clone(),
            query,
        })
    }
}
