//! Log fields, occurrences and metrics: the agent's reports about itself.
//!
//! [`occurrences`] is the way in: one function per occurrence writes its log line *and* moves its
//! series and notes it in the [`journal`], so that they can't drift apart. A node where nothing
//! changes logs nothing.

pub mod calls;
mod exposition;
pub mod fields;
pub mod journal;
pub mod metrics;
pub mod occurrences;
mod refs;
mod requests;

pub use exposition::prometheus_text;
pub use journal::Journal;
pub use metrics::{
    CertificateDecision, EventOutcome, ImageGcCause, Metrics, NodeApiRefusal, PodState,
};
pub use requests::ApiRequest;

/// Metrics and the journal, in which occurrences are recorded. Clones share both.
#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    /// The metrics.
    pub metrics: Metrics,
    /// The history of each pod.
    pub journal: Journal,
}

impl Telemetry {
    /// Fresh series and an empty journal.
    pub fn new() -> Self {
        Self::default()
    }
}
