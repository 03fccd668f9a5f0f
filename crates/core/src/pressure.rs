//! The pressures that a node can be under.

use std::collections::BTreeSet;

/// Reason of an evicted pod, and of one that is refused because of a pressure.
pub const EVICTED: &str = "Evicted";

crate::words! {
    /// A shortage on the node, in the form of a condition.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Pressure {
        /// Memory.
        Memory = "MemoryPressure",
        /// Space or inodes.
        Disk = "DiskPressure",
        /// Process numbers.
        Pid = "PIDPressure",
    }
    /// The type of the node's condition.
    pub fn as_str;
}

/// The pressures that a node is under.
pub type Pressures = BTreeSet<Pressure>;

/// The pressures as messages list them: `[MemoryPressure DiskPressure]`.
pub fn listed(pressures: &Pressures) -> String {
    let names: Vec<&str> = pressures.iter().map(|pressure| pressure.as_str()).collect();
    format!("[{}]", names.join(" "))
}
