//! Log levels of a failing URL: a machine whose URL is away for a week must not fill its log.
//!
//! Upstream: `pkg/kubelet/config/http.go` (`run`).

/// Failures in a row that are logged in full.
const LOUD_FAILURES: u32 = 3;

/// How to log one failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureLogLevel {
    /// As a warning.
    Loud,
    /// As a warning, with a note that the next ones are logged at debug level.
    LoudForTheLastTime,
    /// At the debug level.
    Quiet,
}

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(super) struct FailureLevels {
    failures: u32,
}

impl FailureLevels {
    /// Takes note of a failure.
    pub(super) fn failed(&mut self) -> FailureLogLevel {
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            0..=LOUD_FAILURES => FailureLogLevel::Loud,
            4 => FailureLogLevel::LoudForTheLastTime,
            5.. => FailureLogLevel::Quiet,
        }
    }

    /// Records a success. Returns the number of preceding failures, if there were any.
    pub(super) fn succeeded(&mut self) -> Option<u32> {
        let failures = std::mem::take(&mut self.failures);
        (failures > 0).then_some(failures)
    }
}

#[cfg(test)]
mod tests {
    use super::FailureLogLevel::{Loud, LoudForTheLastTime, Quiet};
    use super::*;

    #[test]
    fn five_failures_then_success() {
        let mut levels = FailureLevels::default();
        assert_eq!(levels.succeeded(), None);
        let told: Vec<_> = (0..6).map(|_| levels.failed()).collect();
        // pods 12
        assert_eq!(told, [Loud, Loud, Loud, LoudForTheLastTime, Quiet, Quiet]);
        assert_eq!(levels.succeeded(), Some(6));
        assert_eq!(levels.succeeded(), None);
        assert_eq!(levels.failed(), Loud);
    }
}
