//! mirrorlet turns a Docker Engine into a Kubernetes node for static pods.
//!
//! The map, in reading order. A pod's way is forward only: *file → source (whole set) → merge →
//! desired store → its worker → planner → Runtime → Docker → Engine event → Cache → status*.
//!
//! | Module | Holds |
//! |---|---|
//! | [`api`] | nouns: ids, full names, keys, diagnostics, reports |
//! | [`pod`] | PURE: every decision |
//! | `store` | one-writer cells, the status `Cache` |
//! | `runtime` | the `Runtime` trait; `docker` is the only place that says bollard |
//! | `disk` | small files, read and replaced |
//! | `source` | files and URLs: whole sets, last-good manifests |
//! | `probe` | asks servers whether they are well, over HTTP, TCP and gRPC |
//! | `prober` | one task per probe |
//! | `observe` | Engine events and a seldom list → observed pods |
//! | `worker` | one task per pod UID |
//! | `stats` | reads what pods and the machine use, when asked |
//! | `volume` | what pods mount, on disk |
//! | `certificate` | this node's certificates: made, requested from the cluster, kept |
//! | `cluster` | the API server: Node, Lease, mirror pods, status, events |
//! | `server` | the agent's socket, metrics and health |
//! | `cli` | validate, status, logs: text in, text out |
//! | [`config`] | arguments, environment and file → one resolved `Config` |
//! | `telemetry` | log fields, occurrences, metrics |
//! | `app` | wire, supervise, shut down |
//!
//! The protocols of exec, attach and port-forward are a crate of their own, `mirrorlet_streaming`
//! (`crates/streaming`).
//!
//! `docs/ARCHITECTURE.md` has the picture and the invariants; `tests/house/layering.rs` holds the arrows.

pub mod api;
pub mod config;
pub mod pod;

#[cfg(feature = "daemon")]
pub mod app;
#[cfg(feature = "daemon")]
pub mod certificate;
#[cfg(feature = "daemon")]
pub mod cli;
#[cfg(feature = "daemon")]
pub mod cluster;
#[cfg(feature = "daemon")]
pub mod disk;
#[cfg(feature = "daemon")]
pub mod observe;
#[cfg(feature = "daemon")]
pub mod probe;
#[cfg(feature = "daemon")]
pub mod prober;
#[cfg(feature = "daemon")]
pub mod runtime;
#[cfg(feature = "daemon")]
pub mod server;
#[cfg(feature = "daemon")]
pub mod source;
#[cfg(feature = "daemon")]
pub mod stats;
#[cfg(feature = "daemon")]
pub mod store;
#[cfg(feature = "daemon")]
pub mod telemetry;
#[cfg(feature = "daemon")]
pub mod volume;
#[cfg(feature = "daemon")]
pub mod worker;
