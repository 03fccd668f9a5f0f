//! The agent's logs, metrics and journal.
//!
//! [`occurrences`] is the entry point: one function per occurrence writes its log line, updates its
//! series and records it in the [`journal`], so that they can't drift apart. A node where nothing
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
use journal::Kind;
pub use metrics::{
    CertificateDecision, EventOutcome, ImageGcCause, Metrics, NodeApiRefusal, PodSample,
    PodSamples, PodState,
};
pub use requests::ApiRequest;

use mirrorlet_core::api::{FullName, Pod, PodUid};

/// The metrics and the journal in which occurrences are recorded. Clones share both.
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

    /// Where occurrences of a pod are recorded.
    pub fn pod<'a>(&'a self, name: &'a FullName, uid: &'a PodUid) -> PodTelemetry<'a> {
        PodTelemetry {
            telemetry: self,
            name,
            uid,
        }
    }

    /// Records an occurrence of a pod, given its complete object.
    pub fn about(&self, pod: &Pod, record: impl FnOnce(PodTelemetry<'_>)) {
        record(self.pod(&FullName::of(pod), &PodUid::of(pod)));
    }

    /// Adds an event of the Node to the journal.
    fn node_event(&self, kind: Kind, reason: &str, message: impl AsRef<str>) {
        self.journal.node(kind, reason, message);
    }
}

/// The metrics and the journal, and the pod that occurrences are about.
#[derive(Debug, Clone, Copy)]
pub struct PodTelemetry<'a> {
    telemetry: &'a Telemetry,
    name: &'a FullName,
    uid: &'a PodUid,
}

impl PodTelemetry<'_> {
    /// Adds an event of the pod, or of one of its containers, to the journal.
    fn event(self, container: Option<&str>, kind: Kind, reason: &str, message: impl AsRef<str>) {
        let journal = &self.telemetry.journal;
        journal.pod(self.name, self.uid, container, kind, reason, message);
    }
}
