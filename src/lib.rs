//! mirrorlet runs Kubernetes pods on a Docker Engine.
//!
//! Modules in reading order. Data flows in one direction: *file → source (whole set) → merge →
//! desired store → its worker → planner → Runtime → Docker → Engine event → Cache → status*.
//!
//! Decisions are in `mirrorlet-core`, the `Runtime` trait is in `mirrorlet-runtime`,
//! `DockerManager` in `mirrorlet-docker`; files, volumes, probes and telemetry are in
//! `mirrorlet-host`, and the protocols of exec, attach and port-forward in `mirrorlet-streaming`.
//! This crate drives them:
//!
//! | Module | Holds |
//! |---|---|
//! | [`store`] | one-writer cells, the status `Cache` |
//! | [`source`] | files, URLs, the API server: whole sets, last-good manifests |
//! | [`observe`] | Engine events and an infrequent list → observed pods |
//! | [`worker`] | one task per pod UID |
//! | [`prober`] | one task per probe |
//! | [`stats`] | resource usage of pods and the machine, read on request |
//! | [`eviction`] | evicts pods from a node that runs short, and pods over their own limits |
//! | [`certificate`] | this node's certificates: created, requested from the cluster, stored |
//! | [`cluster`] | the API server: Node, Lease, mirror pods, status, events |
//! | [`jobs`] | which pods of Jobs exist now, by records on disk |
//! | [`names`] | keeps the names of pods and Services right in hosts files |
//! | [`server`] | the node API, the agent's socket, metrics and health |
//! | [`cli`] | validate, status, logs: text in, text out |
//! | [`config`] | arguments, environment and file → one resolved `Config` |
//! | [`logging`] | destination and format of log lines |
//! | [`app`] | wiring, supervision, shutdown |
//!
//! `docs/ARCHITECTURE.md` describes the data flow and the invariants; `tests/house/layering.rs`
//! checks which module may import which.

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
pub mod eviction;
pub mod jobs;
pub mod names;
pub mod observe;
pub mod prober;
pub mod rollout;
pub mod server;
pub mod source;
pub mod stats;
pub mod store;
pub mod worker;
