//! The seam to a real Docker Engine, piece by piece: containers, commands, networks, images, volumes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]
#![expect(clippy::too_many_lines, reason = "a test is one story")]

#[path = "../common/mod.rs"]
mod common;

mod exec;
mod gc;
mod image_gc;
mod network;
mod pull;
mod registry_faults;
mod seam;
mod volumes;
