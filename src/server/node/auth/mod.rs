//! Authentication and authorization: client certificate or bearer token, then one query to the
//! API server whether somebody of that name may do that with our Node.
//!
//! Nobody is anybody without proof: anonymous requests are refused. Answers are kept as long as
//! a kubelet keeps them. Where the API server can't be asked, nobody new gets in.
//!
//! Upstream: `pkg/kubelet/server/auth.go`, `cmd/kubelet/app/auth.go`,
//! `apiserver/pkg/authentication/authenticatorfactory/delegating.go`.

mod cache;
mod certificates;
#[cfg(test)]
pub(in crate::server::node) mod fake;
#[cfg(test)]
pub(in crate::server::node) mod tests;
mod token;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::cache::Cache;
pub use self::certificates::{BadAuthorities, ClientAuthorities};
use mirrorlet_core::access::{AUTHENTICATED, User, needed};
use mirrorlet_host::telemetry::occurrences;

/// How long a token is believed, or not, before the API server is asked about it again.
///
/// Upstream: `authentication.webhook.cacheTTL`.
const TOKEN_TTL: Duration = Duration::from_mins(2);
/// How long an allowed authorization is cached.
///
/// Upstream: `authorization.webhook.cacheAuthorizedTTL`.
const ALLOWED_TTL: Duration = Duration::from_mins(5);
/// How long a denied authorization is cached: short, so that a newly granted right takes effect.
///
/// Upstream: `authorization.webhook.cacheUnauthorizedTTL`.
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Most answers kept of either kind. A handful of components ask a node; only an attacker brings
/// thousands of tokens, and they shall not fill memory.
const ANSWERS_MAX: usize = 1024;
/// Most questions to the API server at a time: who tries tokens waits for those who tried before.
const QUESTIONS_MAX: usize = 16;
/// Asks the API server.
#[async_trait]
pub trait Reviewer: Send + Sync + 'static {
    /// Authenticates a token; `None` if it is invalid. (`TokenReview`)
    ///
    /// # Errors
    /// The API server did not answer, or may not be asked by us.
    async fn review_token(&self, token: &str) -> Result<Option<User>, ReviewError>;

    /// Whether a user may access a subresource of our Node. (`SubjectAccessReview`)
    ///
    /// # Errors
    /// The API server did not answer, or may not be asked by us.
    async fn review_access(
        &self,
        user: &User,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, ReviewError>;
}

/// The API server did not say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReviewError(pub String);

/// The certificates that a connection's client showed. It has their key; whether they are worth
/// anything has not been looked at.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown(pub(super) Arc<[CertificateDer<'static>]>);

/// Decides who may.
pub(super) struct Gate {
    reviewer: Arc<dyn Reviewer>,
    authorities: Arc<ClientAuthorities>,
    /// By the token's hash: the token itself is kept nowhere.
    tokens: Mutex<Cache<[u8; 32], Option<User>>>,
    verdicts: Mutex<Cache<(User, &'static str, &'static str), bool>>,
    questions: Semaphore,
    /// Whether it was told that the API server doesn't say. Once is enough: strangers can ask as
    /// often as they like.
    told: AtomicBool,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// Why a request was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// It doesn't say who asks, or doesn't prove it.
    Unauthorized,
    /// They may not.
    Forbidden(String),
    /// It could not be found out.
    Unknown(String),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, words) = match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()),
            Self::Forbidden(words) => (StatusCode::FORBIDDEN, words),
            Self::Unknown(words) => (StatusCode::INTERNAL_SERVER_ERROR, words),
        };
        (status, words).into_response()
    }
}

impl Gate {
    pub(super) fn new(reviewer: Arc<dyn Reviewer>, authorities: Arc<ClientAuthorities>) -> Self {
        Self {
            reviewer,
            authorities,
            tokens: Mutex::new(Cache::new(ANSWERS_MAX)),
            verdicts: Mutex::new(Cache::new(ANSWERS_MAX)),
            questions: Semaphore::new(QUESTIONS_MAX),
            told: AtomicBool::new(false),
        }
    }

    /// Whether that request may be answered, and who asks.
    pub(super) async fn admit(
        &self,
        method: &str,
        path: &str,
        headers: &HeaderMap,
        shown: &Shown,
    ) -> Result<User, Refused> {
        let user = self.identify(headers, shown).await?;
        let needed = needed(method, path);
        for subresource in needed.subresources {
            match self.may(&user, needed.verb, subresource).await {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    self.tell(&error);
                    let (name, verb) = (&user.name, needed.verb);
                    return Err(Refused::Unknown(format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                    )));
                }
            }
        }
        Err(Refused::Forbidden(needed.refusal(&user.name)))
    }

    /// Who asks. A certificate that proves nothing leaves the token, as upstream's union does.
    async fn identify(&self, headers: &HeaderMap, shown: &Shown) -> Result<User, Refused> {
        let mut user = match self.authorities.user(&shown.0) {
            Some(user) => user,
            None => match token::token(headers) {
                Some(token) => self.token_user(&token).await?,
                None => return Err(Refused::Unauthorized),
            },
        };
        if !user.groups.iter().any(|group| group == AUTHENTICATED) {
            user.groups.push(AUTHENTICATED.to_owned());
        }
        Ok(user)
    }

    async fn token_user(&self, token: &str) -> Result<User, Refused> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let kept = locked(&self.tokens).get(&hash, Instant::now());
        let user = if let Some(kept) = kept {
            kept
        } else {
            let _turn = self.questions.acquire().await;
            let reviewed = self.reviewer.review_token(token).await;
            // What could not be found out is asked again the next time.
            let user = reviewed.map_err(|error| {
                self.tell(&error);
                Refused::Unauthorized
            })?;
            locked(&self.tokens).put(hash, user.clone(), TOKEN_TTL, Instant::now());
            user
        };
        user.ok_or(Refused::Unauthorized)
    }

    async fn may(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, ReviewError> {
        let key = (user.clone(), verb, subresource);
        if let Some(kept) = locked(&self.verdicts).get(&key, Instant::now()) {
            return Ok(kept);
        }
        let _turn = self.questions.acquire().await;
        let may = self.reviewer.review_access(user, verb, subresource).await?;
        let good_for = if may { ALLOWED_TTL } else { DENIED_TTL };
        locked(&self.verdicts).put(key, may, good_for, Instant::now());
        self.told.store(false, Ordering::Relaxed);
        Ok(may)
    }

    /// Tells that the API server doesn't say, when that begins.
    fn tell(&self, error: &ReviewError) {
        if !self.told.swap(true, Ordering::Relaxed) {
            occurrences::access_unknown(&error.0);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A cache is whole after every statement, so one that a panic left is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Middleware that rejects unauthorized requests.
pub(super) async fn guard(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let shown = request
        .extensions()
        .get::<Shown>()
        .cloned()
        .unwrap_or_default();
    let (method, path) = (request.method().as_str(), request.uri().path());
    match gate.admit(method, path, request.headers(), &shown).await {
        Ok(user) => {
            request.extensions_mut().insert(user);
            token::strip(request.headers_mut());
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}
