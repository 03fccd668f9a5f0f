//! One-writer cells: state that one task writes and others read; and directories of small files that
//! the agent stores for its next start ([`kept`]).

pub mod board;
pub mod cache;
pub mod cell;
pub mod claims;
pub mod evictions;
pub mod graces;
pub mod kept;
pub mod looks;
pub mod node_edits;
pub mod pods;
pub mod probes;
pub mod refresh;
pub mod settled;
pub mod workloads;
