//! Authentication and authorization: client certificate or bearer token, then one query to the API
//! server whether that user may do that with our Node.
//!
//! Anonymous requests are refused. Answers are cached as long as in a kubelet. While the API server
//! can't be asked, new users are refused. Users with cached answers never wait for others: positive
//! answers are cached separately, so that no number of tokens or refusals displaces them, and few
//! requests may wait for the API server.
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
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use self::cache::Cache;
pub use self::certificates::{BadAuthorities, ClientAuthorities};
use self::turns::{Full, Limits, Turns};
use super::connections::{Claim, Source};
use mirrorlet_core::access::{AUTHENTICATED, User, needed};
use mirrorlet_host::telemetry::{Metrics, NodeApiRefusal, occurrences};

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
/// Turns at reviews of tokens. Anyone on the network can bring any number of them, so few wait:
/// the last waits for seven others, and one source leaves most places to others.
const TOKEN_REVIEWS: Limits = Limits {
    asking: 8,
    all: 64,
    of_source: 16,
};
/// Limits of access reviews. Only authenticated users cause one, and concurrent requests share an
/// answer. An API server may send [`STREAMS_MAX`](super::listen) requests at once after a start.
const ACCESS_REVIEWS: Limits = Limits {
    asking: 16,
    all: 512,
    of_source: 384,
};
/// When a client that was refused because of the limit may retry, in seconds: at most the duration of
/// the reviews that others wait for.
const RETRY_AFTER: &str = "1";

/// Asks the API server.
#[async_trait]
pub trait Reviewer: Send + Sync + 'static {
    /// Authenticates a token; `None` if it is invalid. (`TokenReview`)
    ///
    /// # Errors
    /// The API server did not answer, or refused the review.
    async fn review_token(&self, token: &str) -> Result<Option<User>, ReviewError>;

    /// Whether a user may access a subresource of our Node. (`SubjectAccessReview`)
    ///
    /// # Errors
    /// The API server did not answer, or refused the review.
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

/// The certificates of a connection's client. It has their key; they are not verified yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown(pub(super) Arc<[CertificateDer<'static>]>);

type TokenHash = [u8; 32];
/// The user, the verb, the subresource.
type Question = (User, &'static str, &'static str);

/// Cached answers. Positive ones only displace each other.
struct Kept<K, V> {
    let_in: Cache<K, V>,
    others: Cache<K, V>,
}

impl<K: std::hash::Hash + Eq + Clone, V: Clone> Kept<K, V> {
    fn new() -> Self {
        Self {
            let_in: Cache::new(ANSWERS_MAX),
            others: Cache::new(ANSWERS_MAX),
        }
    }

    fn get(&self, key: &K) -> Option<V> {
        let now = Instant::now();
        let let_in = self.let_in.get(key, now);
        let_in.or_else(|| self.others.get(key, now))
    }
}

/// Decides about access.
pub(in crate::server) struct Gate {
    reviewer: Arc<dyn Reviewer>,
    authorities: Arc<ClientAuthorities>,
    /// By the token's hash: the token itself is kept nowhere.
    tokens: Mutex<Kept<TokenHash, Option<User>>>,
    verdicts: Mutex<Kept<Question, bool>>,
    token_reviews: Turns,
    access_reviews: Turns,
    metrics: Metrics,
    /// Whether it was reported that the API server doesn't answer. Once is enough: strangers can ask as
    /// often as they like.
    reported: AtomicBool,
}

mirrorlet_core::partial_debug!(Gate);

/// Why a request was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// It has no credentials, or invalid ones.
    Unauthorized,
    /// They may not.
    Forbidden(String),
    /// It could not be found out.
    Unknown(String),
    /// Too many wait for it to be found out.
    Busy,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, words) = match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()),
            Self::Forbidden(words) => (StatusCode::FORBIDDEN, words),
            Self::Unknown(words) => (StatusCode::INTERNAL_SERVER_ERROR, words),
            Self::Busy => {
                let later = [(header::RETRY_AFTER, RETRY_AFTER)];
                let words =
                    "too many requests wait for the API server to authenticate or authorize them";
                return (StatusCode::TOO_MANY_REQUESTS, later, words).into_response();
            }
        };
        (status, words).into_response()
    }
}

impl Gate {
    pub(in crate::server) fn new(
        reviewer: Arc<dyn Reviewer>,
        authorities: Arc<ClientAuthorities>,
        metrics: Metrics,
    ) -> Self {
        Self {
            reviewer,
            authorities,
            tokens: Mutex::new(Kept::new()),
            verdicts: Mutex::new(Kept::new()),
            token_reviews: Turns::new(TOKEN_REVIEWS),
            access_reviews: Turns::new(ACCESS_REVIEWS),
            metrics,
            reported: AtomicBool::new(false),
        }
    }

    /// Whether that request may be answered, and its user.
    pub(super) async fn admit(
        &self,
        method: &str,
        path: &str,
        headers: &HeaderMap,
        shown: &Shown,
        source: Source,
    ) -> Result<User, Refused> {
        let (user, token) = self.identify(headers, shown, source).await?;
        let needed = needed(method, path);
        for subresource in needed.subresources {
            if self.may(&user, needed.verb, subresource, source).await? {
                if let Some(token) = token {
                    let mut tokens = self.tokens.lock();
                    if let Some((until, user)) = tokens.others.take(&token) {
                        let now = Instant::now();
                        let left = until.saturating_duration_since(now);
                        tokens.let_in.put(token, user, left, now);
                    }
                }
                return Ok(user);
            }
        }
        Err(Refused::Forbidden(needed.refusal(&user.name)))
    }

    /// Whether a client with these certificates is known to have a permission.
    pub(super) fn knows(&self, shown: &Shown) -> bool {
        self.certified(shown).is_some_and(|user| {
            let verdicts = self.verdicts.lock();
            let is_theirs = |(of, ..): &Question| *of == user;
            verdicts.let_in.any(Instant::now(), is_theirs)
        })
    }

    /// Returns the user of a request, and the hash of the token that proves it. A certificate that
    /// proves nothing leaves the token, as upstream's union does.
    async fn identify(
        &self,
        headers: &HeaderMap,
        shown: &Shown,
        source: Source,
    ) -> Result<(User, Option<TokenHash>), Refused> {
        if let Some(user) = self.certified(shown) {
            return Ok((user, None));
        }
        let token = token::token(headers).ok_or(Refused::Unauthorized)?;
        let hash: TokenHash = Sha256::digest(&*token).into();
        let user = self.token_user(&token, hash, source).await?;
        Ok((authenticated(user), Some(hash)))
    }

    /// Returns the user of these certificates.
    fn certified(&self, shown: &Shown) -> Option<User> {
        self.authorities.user(&shown.0).map(authenticated)
    }

    async fn token_user(
        &self,
        token: &str,
        hash: TokenHash,
        source: Source,
    ) -> Result<User, Refused> {
        let kept = || self.tokens.lock().get(&hash);
        if let Some(kept) = kept() {
            return kept.ok_or(Refused::Unauthorized);
        }
        let turn = self.token_reviews.turn(source).await;
        let _turn = turn.map_err(|Full| self.busy(NodeApiRefusal::TokenReviews))?;
        // An earlier request may have had the same question.
        if let Some(kept) = kept() {
            return kept.ok_or(Refused::Unauthorized);
        }
        let reviewed = self.reviewer.review_token(token).await;
        // A review that failed is made again for the next request.
        let user = reviewed.map_err(|error| {
            self.report(&error);
            Refused::Unauthorized
        })?;
        let mut tokens = self.tokens.lock();
        tokens
            .others
            .put(hash, user.clone(), TOKEN_TTL, Instant::now());
        user.ok_or(Refused::Unauthorized)
    }

    async fn may(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
        source: Source,
    ) -> Result<bool, Refused> {
        let key = (user.clone(), verb, subresource);
        let kept = || self.verdicts.lock().get(&key);
        if let Some(kept) = kept() {
            return Ok(kept);
        }
        let turn = self.access_reviews.turn(source).await;
        let _turn = turn.map_err(|Full| self.busy(NodeApiRefusal::AccessReviews))?;
        // An earlier request may have had the same question.
        if let Some(kept) = kept() {
            return Ok(kept);
        }
        let reviewed = self.reviewer.review_access(user, verb, subresource).await;
        let may = reviewed.map_err(|error| {
            self.report(&error);
            let name = &user.name;
            Refused::Unknown(format!(
                "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
            ))
        })?;
        self.reported.store(false, Ordering::Relaxed);
        let mut verdicts = self.verdicts.lock();
        if may {
            verdicts.let_in.put(key, may, ALLOWED_TTL, Instant::now());
        } else {
            verdicts.others.put(key, may, DENIED_TTL, Instant::now());
        }
        Ok(may)
    }

    fn busy(&self, why: NodeApiRefusal) -> Refused {
        self.metrics.node_api_refused(why);
        Refused::Busy
    }

    /// Reports that the API server gives no answer, when that begins.
    fn report(&self, error: &ReviewError) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            occurrences::access_unknown(&error.0);
        }
    }
}

/// Adds the group of all authenticated users.
fn authenticated(mut user: User) -> User {
    if !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// Middleware that rejects unauthorized requests.
pub(in crate::server) async fn guard(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let shown = request
        .extensions()
        .get::<Shown>()
        .cloned()
        .unwrap_or_default();
    let claim = request.extensions().get::<Claim>().cloned();
    let source = claim.as_ref().map_or(Source::NONE, Claim::source);
    let (method, path) = (request.method().as_str(), request.uri().path());
    let admitted = gate.admit(method, path, request.headers(), &shown, source);
    match admitted.await {
        Ok(user) => {
            if let Some(claim) = claim {
                claim.prove();
            }
            request.extensions_mut().insert(user);
            token::strip(request.headers_mut());
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}
