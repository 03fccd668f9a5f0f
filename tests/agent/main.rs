//! A whole agent with manifests on a real Engine: the life of pods, and the commands people use.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]
#![expect(clippy::too_many_lines, reason = "a test is one story")]

#[path = "../common/mod.rs"]
mod common;

// Tests begin in the order of these names: those that take long, not at the end.
mod access;
mod apps_stateful;
mod apps_workloads;
mod binary;
mod by_hand;
mod claims;
mod compose;
mod compose_projects;
mod containers;
mod devices;
mod dns;
mod edits;
mod edits_rollouts;
mod edits_start_first;
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
mod recorded;
mod stats;
mod upgrade;
mod watching;
