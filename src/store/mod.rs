//! Shared state: every piece has one writer and any number of readers.

pub mod cell;
pub mod pods;
