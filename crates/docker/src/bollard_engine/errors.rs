//! bollard's errors in the seam's four kinds.

use std::time::Duration;

use bollard::errors::Error;

use crate::engine::EngineError;
use mirrorlet_core::api::with_causes;
use mirrorlet_host::shortage::{WORDS, is_shortage};

/// HTTP status of an error without a code that the Engine reported inside a stream after answering 200.
pub(super) const STREAM_ERROR_STATUS: u16 = 500;

/// Translates the error of `operation`, whose deadline is `after`.
pub(super) fn translate(
    endpoint: &str,
    operation: &'static str,
    after: Duration,
    error: Error,
) -> EngineError {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => EngineError::api(status_code, message.trim().to_owned()),
        Error::DockerStreamError { error } => EngineError::api(STREAM_ERROR_STATUS, error),
        Error::JsonDataError { message, .. } => EngineError::Decode {
            operation,
            cause: message,
        },
        Error::JsonSerdeError { err } => EngineError::Decode {
            operation,
            cause: err.to_string(),
        },
        Error::RequestTimeoutError => EngineError::Timeout { operation, after },
        // The system's own number is that of a connection which did not come about.
        Error::IOError { err } if is_shortage(&err) => EngineError::Unavailable {
            endpoint: endpoint.to_owned(),
            cause: format!("{WORDS}: {err}"),
            is_shortage: true,
        },
        other => unavailable(endpoint, &other),
    }
}

/// The transport failed; the message has the whole chain of causes.
pub(super) fn unavailable(endpoint: &str, error: &dyn std::error::Error) -> EngineError {
    EngineError::Unavailable {
        endpoint: endpoint.to_owned(),
        cause: with_causes(error),
        is_shortage: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_place() {
        let after = Duration::from_secs(20);
        let of = |error| translate("unix:///x", "list", after, error);
        // docker 58
        assert_eq!(
            of(Error::DockerResponseServerError {
                status_code: 404,
                message: "No such container: x\n".into()
            }),
            EngineError::Api {
                status: 404,
                message: "No such container: x".into()
            }
        );
        assert_eq!(
            of(Error::RequestTimeoutError),
            EngineError::Timeout {
                operation: "list",
                after
            }
        );
        assert!(matches!(
            of(Error::JsonDataError {
                message: "unknown variant".into(),
                column: 1
            }),
            EngineError::Decode { .. }
        ));
        for kind in [
            std::io::ErrorKind::NotFound,
            std::io::ErrorKind::ConnectionRefused,
            std::io::ErrorKind::ConnectionReset,
        ] {
            let error = of(Error::IOError { err: kind.into() });
            assert!(
                matches!(error, EngineError::Unavailable { .. }),
                "{error:?}"
            );
            // docker 58
            assert!(!error.is_shortage(), "{error:?}");
        }
        let err = std::io::Error::from(rustix::io::Errno::MFILE);
        let words = format!("the Docker Engine at unix:///x is not reachable: {WORDS}: {err}");
        let error = of(Error::IOError { err });
        // docker 58
        assert!(error.is_shortage(), "{error:?}");
        assert_eq!(error.to_string(), words);
    }
}
