//! The status document at the end of a command. Pure.
//!
//! Upstream: `ServeExec` and `ServeAttach` of `kubelet/pkg/cri/streaming/remotecommand`, and
//! `errors.NewInternalError` of `apimachinery/pkg/api`.

use bytes::Bytes;
use serde_json::json;

use super::Kind;
use super::negotiate::Version;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// By itself; its exit code where that is known.
    Ended(Option<i32>),
    /// It could not be started, or its streams broke, for this reason.
    Failed(String),
}

/// The text of the error stream; empty if a normal end is not reported.
pub(super) fn error_text(outcome: &Outcome, kind: Kind, version: Version) -> Option<Bytes> {
    let (status, message) = match outcome {
        Outcome::Ended(None | Some(0)) => {
            if version < Version::V4 {
                return None;
            }
            (json!({"metadata": {}, "status": "Success"}), String::new())
        }
        Outcome::Ended(Some(code)) => {
            let message = format!("command terminated with non-zero exit code: exit status {code}");
            let status = json!({
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            });
            (status, message)
        }
        Outcome::Failed(error) => {
            let what = match kind {
                Kind::Exec => "executing command in container",
                Kind::Attach | Kind::AttachWithExitCode => "attaching to container",
            };
            let cause = format!("error {what}: {error}");
            let message = format!("Internal error occurred: {cause}");
            let status = json!({
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "InternalError",
                "details": {"causes": [{"message": cause}]},
                "code": 500,
            });
            (status, message)
        }
    };
    Some(if version < Version::V4 {
        message.into()
    } else {
        status.to_string().into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_upstream_tells_them() {
        let said = |outcome: &Outcome, kind, version| {
            let text = error_text(outcome, kind, version)?;
            Some(String::from_utf8(text.to_vec()).unwrap())
        };
        let (exec, attach) = (Kind::Exec, Kind::Attach);
        let success = r#"{"metadata":{},"status":"Success"}"#;
        for code in [None, Some(0)] {
            let outcome = Outcome::Ended(code);
            assert_eq!(said(&outcome, exec, Version::V1), None);
            assert_eq!(said(&outcome, exec, Version::V3), None);
            assert_eq!(said(&outcome, exec, Version::V4).as_deref(), Some(success));
            assert_eq!(said(&outcome, exec, Version::V5).as_deref(), Some(success));
        }
        let seven = Outcome::Ended(Some(7));
        let text = "command terminated with non-zero exit code: exit status 7";
        assert_eq!(said(&seven, exec, Version::V1).as_deref(), Some(text));
        let status: serde_json::Value =
            serde_json::from_str(&said(&seven, exec, Version::V4).unwrap()).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0]["reason"], "ExitCode");
        assert_eq!(status["details"]["causes"][0]["message"], "7");
        let failed = Outcome::Failed("gone".to_owned());
        let text = "Internal error occurred: error attaching to container: gone";
        assert_eq!(said(&failed, attach, Version::V3).as_deref(), Some(text));
        let status: serde_json::Value =
            serde_json::from_str(&said(&failed, exec, Version::V5).unwrap()).unwrap();
        assert_eq!(status["code"], 500);
        assert_eq!(
            status["message"],
            "Internal error occurred: error executing command in container: gone"
        );
    }
}
