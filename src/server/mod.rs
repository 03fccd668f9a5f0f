//! What the agent serves: its own API on a Unix socket ([`admin`]) and metrics with health on a
//! loopback port ([`health`]).
//!
//! Both see the agent through [`view::AgentView`], which `app` implements; nothing here decides
//! anything about pods. [`listen`] holds the limits both share; [`frame`] is the wire form of logs
//! and processes, shared with the client in `cli`, and `gather` joins a log's pieces; [`access`] carries what goes both ways,
//! `files` what is copied. [`remote`] carries the same processes and ports as Kubernetes' clients
//! speak of them, for the [`node`] API.

pub mod access;
pub mod admin;
#[cfg(test)]
pub(crate) mod fake;
mod files;
pub mod frame;
mod gather;
pub mod health;
pub mod listen;
pub mod node;
pub mod remote;
pub mod stats;
pub mod view;

pub use stats::NodeStats;
pub use view::{AgentView, Check, ViewError};
