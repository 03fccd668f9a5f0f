//! Real Kubernetes servers, and whole agents as Nodes of them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]
#![expect(clippy::too_many_lines, reason = "a test is one story")]

#[path = "../common/mod.rs"]
mod common;

mod api_forms;
mod api_pods;
mod approval;
mod attacks;
mod bed;
mod beside;
mod bootstrap;
mod embedded;
mod embedded_clients;
mod embedded_garbage;
mod embedded_kubectl;
mod embedded_load;
mod embedded_replay;
mod events;
mod eviction;
mod links;
mod mirrors;
mod node;
mod node_api;
mod node_stats;
mod node_streams;
mod ordinary;
mod partition;
mod pull_secrets;
mod rbac;
mod refusals;
mod volumes;
