//! Capacity, reservations and allocatable resources of a node.

/// Amounts of what pods use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// CPU, in thousandths.
    pub cpu_milli: u64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Disk, in bytes.
    pub ephemeral_storage_bytes: u64,
}

impl Amounts {
    /// Subtracts `reserved`, down to zero at most.
    #[must_use]
    pub fn less(&self, reserved: &Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(reserved.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(reserved.memory_bytes),
            ephemeral_storage_bytes: self
                .ephemeral_storage_bytes
                .saturating_sub(reserved.ephemeral_storage_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_not_for_pods() {
        let machine = Amounts {
            cpu_milli: 2000,
            memory_bytes: 1000,
            ephemeral_storage_bytes: 10,
        };
        let reserved = Amounts {
            cpu_milli: 500,
            memory_bytes: 1,
            ephemeral_storage_bytes: 11,
        };
        let left = Amounts {
            cpu_milli: 1500,
            memory_bytes: 999,
            ephemeral_storage_bytes: 0,
        };
        assert_eq!(machine.less(&reserved), left);
    }
}
