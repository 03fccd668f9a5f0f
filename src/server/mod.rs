//! The agent's servers: its own API on a Unix socket ([`admin`]) and metrics with health on a
//! loopback port ([`health`]).
//!
//! Both access the agent through [`view::AgentView`], which `app` implements; nothing here makes
//! decisions about pods. [`listen`] has the limits that both share; [`frame`] is the wire format of
//! logs, shared with the client in `cli`; [`access`] has the bidirectional streams, `files` the copied
//! files. `remote` connects the protocols of Kubernetes' clients, in the crate `mirrorlet_streaming`,
//! to the runtime's sessions.

pub mod access;
pub mod admin;
mod asked;
mod body;
mod cut;
pub mod embedded;
#[cfg(test)]
pub(crate) mod fake;
mod files;
pub mod frame;
pub mod health;
pub mod listen;
pub mod node;
mod orders;
mod remote;
mod rollouts;
mod room;
pub mod stats;
mod story;
mod usage;
pub mod view;
mod volumes;

pub use stats::NodeStats;
pub use view::{AgentView, Check, ViewError, ViewErrorKind};
