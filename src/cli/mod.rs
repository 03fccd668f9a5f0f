//! cli

pub mod validate;
