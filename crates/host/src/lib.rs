//! The agent's work on its host besides the container runtime: small files ([`disk`]), what pods
//! mount ([`volume`]), requests to servers of pods ([`probe`]), random numbers ([`random`]), and
//! what it tells of itself ([`telemetry`]).

pub mod disk;
pub mod probe;
pub mod random;
pub mod telemetry;
pub mod volume;
