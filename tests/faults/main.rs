//! A whole agent while something goes wrong around it: killed between two calls, with an Engine
//! that lies, restarts or hangs, with broken manifests, without what it needs of its host.

#![expect(
    clippy::unwrap_used,
    clippy::format_push_string,
    reason = "helpers of tests fail loudly, as tests do"
)]
#![expect(clippy::too_many_lines, reason = "a test is one story")]

#[path = "../common/mod.rs"]
mod common;

mod corruption;
mod crash;
mod daemon;
mod engine;
mod in_container;
