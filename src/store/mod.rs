//! One-writer cells: what one task knows and others read.

pub mod board;
pub mod cache;
pub mod cell;
pub mod looks;
pub mod pods;
pub mod probes;
