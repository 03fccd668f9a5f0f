//! `DockerManager`: pods on a Docker Engine. The only crate that depends on bollard.
//!
//! It consists of parts; each uses only those left of it.
//!
//! ```text
//!   Engine ── Containers ─┬─ Execs ── Hooks ──────┬─ Killer ───┐
//!      │                  ├─ ContainerLogs ───────┤            │
//!      │     PodFiles ────┴─ Networks ────────────┴─ Remains ──┤
//!      └──── ImagePuller ─── Facts ────────────────────────────┴─ Starter
//! ```

#![cfg_attr(
    test,
    expect(clippy::too_many_lines, reason = "a test is one story or one table")
)]

pub mod bollard_engine;
mod containers;
pub mod engine;
mod events;
mod exec;
mod facts;
#[cfg(any(test, feature = "testing"))]
pub mod fake_engine;
mod files;
mod gc;
mod hooks;
pub mod image;
mod index;
mod kill;
mod log_links;
pub mod logs;
mod manager;
mod meter;
mod network;
mod node_ips;
pub mod operation;
mod persist;
mod port_forward;
mod reconnects;
mod remove;
mod room;
pub mod sandbox_image;
pub mod sees;
mod start;
mod sync;
mod termination;
pub mod translate;
mod version_cache;

pub use bollard_engine::BollardEngine;
pub use exec::ExecSessions;
#[cfg(any(test, feature = "testing"))]
pub use fake_engine::FakeEngine;
pub use image::{ImagePuller, ListedImage, PullerOptions};
pub use log_links::remove_dead as remove_dead_log_links;
pub use manager::{DockerManager, DockerManagerOptions};
pub use meter::CallMeter;
pub use network::{HeldPorts, LedPorts, table_name as host_ports_table};
pub use node_ips::NodeIps;
pub use operation::Operation;
pub use reconnects::Reconnects;
pub use remove::remove_running;
