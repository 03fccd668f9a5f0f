//! Settings that benches share, from the environment.

use std::path::PathBuf;

use anyhow::Context as _;

/// The number that a variable says, or `default`.
pub fn number(name: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

/// The program to measure.
pub fn binary() -> PathBuf {
    std::env::var_os("BENCH_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_mirrorlet").into(), PathBuf::from)
}
