//! Log fields, occurrences and metrics: what the agent tells of itself.
//!
//! [`occurrences`] is the way in: one function per occurrence writes its log line *and* moves its
//! series, so that the two can't drift apart. A node where nothing changes logs nothing.

pub mod fields;
pub mod log;
pub mod metrics;
pub mod occurrences;
mod requests;

pub use metrics::{Metrics, PodState};
pub use requests::ApiRequest;
