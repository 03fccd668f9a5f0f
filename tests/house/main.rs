//! Tests that need neither an Engine nor a cluster: rules about the tree, the manifests, the
//! command line, the sources, and a node's life in memory.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]
#![expect(clippy::too_many_lines, reason = "a test is one story")]

mod cli;
mod crates;
mod documented;
mod layering;
mod ledgers;
mod links;
mod looks;
mod manifests;
mod names;
mod orders;
mod plans;
mod scripts;
mod seeds;
mod simulation;
mod sorting;
mod sources;
mod testing_table;
mod unused;
