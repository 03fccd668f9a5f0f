//! Whether the container runtime answers.

/// Whether the runtime is within reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RuntimeReach {
    /// Not tried yet.
    #[default]
    Unknown,
    /// Subscribed and listed.
    Up,
    /// Away, and why.
    Down(String),
}
