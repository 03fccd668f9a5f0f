//! Errors of calls to the API server, classified by the required reaction.

use std::time::Duration;

use kube::runtime::watcher;

use super::body::WORDS_BYTES_MAX;
use mirrorlet_core::api::shortened;

/// Maximum pause that an answer can request: meanwhile, pods' statuses are not updated.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);

/// The API server's error response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    /// Its reason word, for example `Forbidden`; may be empty.
    pub reason: String,
    /// Its words.
    pub message: String,
    /// Resource or kind of the object the answer is about, for example `namespaces`; may be empty.
    pub kind: String,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.message.is_empty() {
            write!(f, "HTTP {} {}", self.code, self.reason)
        } else {
            f.write_str(&self.message)
        }
    }
}

/// Why a call to the API server failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// No connection, no answer in time, or a server that can't serve now. Retry later.
    #[error("the API server is unreachable: {cause}")]
    Away {
        /// The whole chain of causes.
        cause: String,
    },
    /// The credentials were rejected. Retry when they were replaced.
    #[error("the API server rejected the credentials: {0}")]
    Unauthorized(Answer),
    /// Not allowed: RBAC, `NodeRestriction`, another admission plugin, or a quota. The message says which.
    #[error("refused: {0}")]
    Forbidden(Answer),
    /// The object, or its namespace, doesn't exist.
    #[error("not found: {0}")]
    NotFound(Answer),
    /// An object of that name exists.
    #[error("already exists: {0}")]
    AlreadyExists(Answer),
    /// The object is in an unexpected state: another UID, or a newer version. Read it again.
    #[error("conflict: {0}")]
    Conflict(Answer),
    /// The object isn't valid, or a webhook denied it.
    #[error("not valid: {0}")]
    Invalid(Answer),
    /// Too many requests.
    #[error("the API server throttles requests: {answer}")]
    TooManyRequests {
        /// When to try again, if it said so: five minutes at most.
        retry_after: Option<Duration>,
        /// Its words.
        answer: Answer,
    },
    /// The requested resource version has expired. List again.
    #[error("resource version too old: {0}")]
    Expired(Answer),
    /// The API server failed on this call, though it answers: for example, a webhook can't be reached.
    #[error("the API server failed: {0}")]
    Internal(Answer),
    /// Any other refusal.
    #[error("refused: {0}")]
    Refused(Answer),
    /// The answer can't be decoded, or the request couldn't be built.
    #[error("failed to decode the API server's response: {cause}")]
    Undecodable {
        /// The whole chain of causes.
        cause: String,
    },
}

impl ApiError {
    /// Whether there was no answer from the API server.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    /// Whether the object doesn't exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// The API server's response, if any.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Away { .. } | Self::Undecodable { .. } => None,
            Self::Unauthorized(answer)
            | Self::Forbidden(answer)
            | Self::NotFound(answer)
            | Self::AlreadyExists(answer)
            | Self::Conflict(answer)
            | Self::Invalid(answer)
            | Self::TooManyRequests { answer, .. }
            | Self::Expired(answer)
            | Self::Internal(answer)
            | Self::Refused(answer) => Some(answer),
        }
    }

    /// No answer within that time.
    pub fn deadline(limit: Duration) -> Self {
        Self::Away {
            cause: format!("no answer within {} s", limit.as_secs()),
        }
    }

    fn of_status(status: kube::core::Status) -> Self {
        let mut retry_after = None;
        let mut answer = Answer {
            code: status.code,
            reason: status.reason,
            message: shortened(status.message, WORDS_BYTES_MAX),
            ..Answer::default()
        };
        if let Some(details) = status.details {
            if details.retry_after_seconds > 0 {
                let wished = Duration::from_secs(details.retry_after_seconds.into());
                retry_after = Some(wished.min(RETRY_AFTER_MAX));
            }
            answer.kind = details.kind;
        }
        match (answer.code, answer.reason.as_str()) {
            (401, _) => Self::Unauthorized(answer),
            (403, _) => Self::Forbidden(answer),
            (404, _) => Self::NotFound(answer),
            (409, "AlreadyExists") => Self::AlreadyExists(answer),
            (409, _) => Self::Conflict(answer),
            (410, _) => Self::Expired(answer),
            (422, _) => Self::Invalid(answer),
            (429, _) => Self::TooManyRequests {
                retry_after,
                answer,
            },
            (500, _) => Self::Internal(answer),
            (502..=504, _) => Self::Away {
                cause: with_code(&answer),
            },
            (_, _) => Self::Refused(answer),
        }
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(*status),
            kube::Error::HyperError(_)
            | kube::Error::Service(_)
            | kube::Error::ReadEvents(_)
            | kube::Error::Auth(_) => Self::Away {
                cause: chain(&error),
            },
            other => Self::Undecodable {
                cause: chain(&other),
            },
        }
    }
}

impl From<watcher::Error> for ApiError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => Self::of_status(*status),
            watcher::Error::NoResourceVersion => Self::Undecodable {
                cause: error.to_string(),
            },
        }
    }
}

/// An answer with its code. The message of another than the API server begins with the code that was sent.
fn with_code(answer: &Answer) -> String {
    let said = answer.to_string();
    if said.starts_with("HTTP ") {
        return said;
    }
    format!("HTTP {}: {said}", answer.code)
}

/// The chain of an error in one line, without kube's and hyper's own prefixes, and without repetitions.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let said = error.to_string();
        // Many errors repeat their source in their own words.
        if !words.iter().any(|earlier| earlier.contains(&said)) {
            words.push(said);
        }
        next = error.source();
    }
    for said in &mut words {
        for prefix in ["ServiceError: ", "HyperError: "] {
            if let Some(rest) = said.strip_prefix(prefix) {
                *said = rest.to_owned();
            }
        }
    }
    if words.len() > 1 {
        words.retain(|said| !said.starts_with("client error ("));
    }
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str) -> ApiError {
        let status = kube::core::Status::failure("words", reason).with_code(code);
        kube::Error::Api(status.boxed()).into()
    }

    #[test]
    fn answers_are_told_apart_by_what_to_do_about_them() {
        type Is = fn(&ApiError) -> bool;
        let table: [(u16, &str, Is); 12] = [
            (401, "Unauthorized", |e| {
                matches!(e, ApiError::Unauthorized(_))
            }),
            (403, "Forbidden", |e| matches!(e, ApiError::Forbidden(_))),
            (404, "NotFound", |e| matches!(e, ApiError::NotFound(_))),
            (409, "AlreadyExists", |e| {
                matches!(e, ApiError::AlreadyExists(_))
            }),
            (409, "Conflict", |e| matches!(e, ApiError::Conflict(_))),
            (410, "Expired", |e| matches!(e, ApiError::Expired(_))),
            (422, "Invalid", |e| matches!(e, ApiError::Invalid(_))),
            (429, "TooManyRequests", |e| {
                matches!(e, ApiError::TooManyRequests { .. })
            }),
            (500, "InternalError", |e| matches!(e, ApiError::Internal(_))),
            (503, "ServiceUnavailable", ApiError::is_away),
            (504, "Timeout", ApiError::is_away),
            (400, "BadRequest", |e| matches!(e, ApiError::Refused(_))),
        ];
        for (code, reason, is) in table {
            let error = refused(code, reason);
            assert!(is(&error), "{code} {reason}: {error:?}");
            assert!(error.to_string().contains("words"), "{error}");
        }
    }

    #[test]
    fn a_wish_for_a_pause_is_granted_for_minutes_at_most() {
        for (seconds, expected) in [(0, None), (20, Some(20)), (u32::MAX, Some(300))] {
            let status = serde_json::json!({
                "status": "Failure", "code": 429, "reason": "TooManyRequests",
                "details": {"retryAfterSeconds": seconds},
            });
            let status = serde_json::from_value(status).unwrap();
            let ApiError::TooManyRequests { retry_after, .. } = ApiError::of_status(status) else {
                panic!("{seconds}")
            };
            // node 6e
            assert_eq!(retry_after.map(|wished| wished.as_secs()), expected);
        }
    }

    #[test]
    fn long_words_of_a_watch_are_shortened() {
        let words = "x".repeat(100_000);
        let status = kube::core::Status::failure(&words, "Expired").with_code(410);
        let error = ApiError::from(watcher::Error::WatchError(status.boxed()));
        assert!(matches!(error, ApiError::Expired(_)), "{error:?}");
        // node 6e
        assert!(error.to_string().len() < WORDS_BYTES_MAX + 100);
    }

    #[test]
    fn a_cause_is_told_once() {
        let io = std::io::Error::other("connection refused");
        let error = kube::Error::Service(Box::new(io));
        assert_eq!(chain(&error), "connection refused");
    }
}
