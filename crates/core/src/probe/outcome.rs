//! The outcome of one attempt.

use super::ProbeResult;

/// Maximum length of a probed command's output (both of its streams), and of an answer's body, in
/// messages.
///
/// Upstream: `maxReadLength` of `pkg/probe/exec/exec.go`.
const OUTPUT_MAX: usize = 10 * 1024;

/// The outcome of one probe attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Success,
    /// Success with a warning.
    Warning(String),
    /// It isn't, for that reason.
    Failure(String),
}

impl Outcome {
    /// The result of the attempt for the container.
    pub fn result(&self) -> ProbeResult {
        match self {
            Self::Success | Self::Warning(_) => ProbeResult::Success,
            Self::Failure(_) => ProbeResult::Failure,
        }
    }
}

/// Interprets an HTTP response: the last one after redirects. The message only contains the body of a
/// redirect to another host.
///
/// Upstream: `DoHTTPProbe` of `pkg/probe/http/http.go`.
pub fn of_http(status: u16, body: &[u8]) -> Outcome {
    match status {
        200..300 => Outcome::Success,
        300..400 => {
            let body = String::from_utf8_lossy(body.get(..OUTPUT_MAX).unwrap_or(body));
            Outcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                body.trim_end()
            ))
        }
        _ => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// Interprets the exit of a command. Its output is the message of a failure.
///
/// Upstream: `Probe` of `pkg/probe/exec/exec.go`.
pub fn of_exec(exit_code: i32, output: &[u8]) -> Outcome {
    if exit_code == 0 {
        return Outcome::Success;
    }
    let text = String::from_utf8_lossy(output.get(..OUTPUT_MAX).unwrap_or(output));
    let text = text.trim();
    Outcome::Failure(if text.is_empty() {
        format!("command exited with {exit_code}")
    } else {
        text.to_owned()
    })
}
