//! What the agent does on its host beside the container runtime: small files ([`disk`]), what pods
//! mount ([`volume`]), requests to servers of pods ([`probe`]), and what it tells of itself
//! ([`telemetry`]).

pub mod disk;
pub mod probe;
pub mod telemetry;
pub mod volume;
