//! A whole agent with manifests on a real Engine: the life of pods, and the commands people use.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]
#![expect(clippy::too_many_lines, reason = "a test is one story")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod binary;
mod by_hand;
mod claims;
mod compose;
mod containers;
mod devices;
mod dns;
mod edits;
mod eviction;
mod failures;
mod hooks;
mod in_place;
mod jobs;
mod lifecycle;
mod lookups;
mod names;
mod objects;
mod open_files;
mod orders;
mod planned;
mod probes;
mod projects;
mod recorded;
mod rollouts;
mod start_first;
mod stateful;
mod stats;
mod upgrade;
mod watching;
mod workloads;
