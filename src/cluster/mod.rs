//! What the agent writes to the API server: its Node, its Lease, mirror pods, statuses, events.
//!
//! Everything goes through one [`ClusterClient`]: it counts, bounds and limits every call, knows
//! whether the API server answers ([`ApiReach`]), and takes up replaced certificates.
//! Here and in `source::apiserver` alone stands kube-rs.

pub mod client;
mod connection;
pub mod error;
#[cfg(test)]
mod fake;
mod identity;
mod limit;
pub mod mirror;
pub mod reach;
pub mod status;

pub use client::{ClusterClient, CredentialsTask};
pub use error::{Answer, ApiError};
pub use identity::ConnectError;
pub use mirror::{MirrorClient, MirrorInputs, MirrorTask};
pub use reach::ApiReach;
pub use status::{StatusInputs, StatusTask};
