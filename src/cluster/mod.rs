//! The API server side of the agent: its Node, its Lease, mirror pods, statuses, events.
//!
//! Everything goes through one [`ClusterClient`]: it counts, limits and bounds every call, knows
//! whether the API server answers ([`ApiReach`]), and switches to replaced certificates. Only this
//! module and `source::apiserver` use kube-rs.

mod approver;
mod attempts;
mod body;
mod certificate;
pub mod client;
mod connection;
mod credentials;
mod election;
pub mod error;
pub mod events;
#[cfg(test)]
mod fake;
mod identity;
pub mod lease;
mod limit;
pub mod mirror;
pub mod node;
pub mod objects;
mod plugin;
mod published;
pub mod reach;
mod requests;
mod reviews;
pub mod status;
#[cfg(test)]
mod tests;

pub use approver::ApproverTask;
pub use certificate::ClientCertificateTask;
pub use client::ClusterClient;
pub use credentials::{CredentialsProblem, CredentialsTask};
pub use election::Election;
pub use error::{Answer, ApiError};
pub use events::EventTask;
pub use identity::{ConnectError, IdentityState, NodeIdentity, held};
pub use lease::LeaseTask;
pub use mirror::{MirrorClient, MirrorInputs, MirrorTask};
pub use node::{NodeInputs, NodeRegistration, NodeTask};
pub use objects::{ClusterObjects, ObjectsTask};
pub use reach::ApiReach;
pub use requests::CertificateRequests;
pub use reviews::Reviews;
pub use status::{StatusInputs, StatusTask};
