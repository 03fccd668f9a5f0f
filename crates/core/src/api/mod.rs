//! Nouns: identifiers, full names, label and annotation keys, diagnostics, reports.
//!
//! Everything here is a plain value that is parsed once and then trusted. Nothing here makes decisions,
//! waits, reads a clock or does I/O; every other module may import it.

mod causes;
pub mod diagnostic;
mod hex;
pub mod ids;
pub mod keys;
pub mod quantity;
pub mod report;
pub mod requirement;
mod shortened;
mod watched;
mod words;

pub use causes::with_causes;
pub use diagnostic::{Code, Diagnostic, Severity};
pub use hex::hex;
pub use ids::{ContainerId, FullName, MirrorPodUid, NodeName, PodUid, ResolvedPodUid, split_name};
pub use shortened::shortened;
pub use watched::{VALUES_MAX, Watched, is_too_large, read, read_stored, shared};

pub use k8s_openapi::ByteString;
/// Kubernetes' core types, in the one version that this crate uses.
pub use k8s_openapi::api::core::v1 as core;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
pub use k8s_openapi::jiff::Timestamp;

/// The API object a pod is described by.
pub use k8s_openapi::api::core::v1::Pod;
