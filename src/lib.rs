//! mirrorlet turns a Docker Engine into a Kubernetes node for static pods.
//!
//! The map, in reading order. A pod's way is forward only: *file → source (whole set) → merge →
//! desired store → its worker → planner → Runtime → Docker → Engine event → Cache → status*.
//!
//! Deciding is in `mirrorlet-core`, the `Runtime` trait in `mirrorlet-runtime`, `DockerManager` in
//! `mirrorlet-docker`, what is done on the host (files, volumes, probes, telemetry) in
//! `mirrorlet-host`, and the protocols of exec, attach and port-forward in `mirrorlet-streaming`.
//! Here is what drives them:
//!
//! | Module | Holds |
//! |---|---|
//! | [`store`] | one-writer cells, the status `Cache` |
//! | [`source`] | files, URLs, the API server: whole sets, last-good manifests |
//! | [`observe`] | Engine events and a seldom list → observed pods |
//! | [`worker`] | one task per pod UID |
//! | [`prober`] | one task per probe |
//! | [`stats`] | reads what pods and the machine use, when asked |
//! | [`certificate`] | this node's certificates: made, requested from the cluster, kept |
//! | [`cluster`] | the API server: Node, Lease, mirror pods, status, events |
//! | [`server`] | the node API, the agent's socket, metrics and health |
//! | [`cli`] | validate, status, logs: text in, text out |
//! | [`config`] | arguments, environment and file → one resolved `Config` |
//! | [`logging`] | where log lines go, and in which format |
//! | [`app`] | wire, supervise, shut down |
//!
//! `docs/ARCHITECTURE.md` has the picture and the invariants; `tests/house/layering.rs` holds the arrows.

#![cfg_attr(
    test,
    expect(clippy::too_many_lines, reason = "a test is one story or one table")
)]

pub mod config;
pub mod logging;

pub mod app;
pub mod certificate;
pub mod cli;
pub mod cluster;
pub mod observe;
pub mod prober;
pub mod server;
pub mod source;
pub mod stats;
pub mod store;
pub mod worker;
