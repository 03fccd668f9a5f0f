//! Byte limits per namespace and in total, so that one tenant leaves room for the others. Pure.

/// Bounds in bytes.
#[derive(Debug, Clone, Copy)]
pub struct ShareLimits {
    /// Of one namespace.
    pub namespace: usize,
    /// Of all.
    pub all: usize,
}

/// A bound that would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Whether it is the limit of the namespace; otherwise the total.
    pub of_namespace: bool,
    /// The bytes that there would be.
    pub bytes: usize,
    /// The bound.
    pub max: usize,
}

impl ShareLimits {
    /// Checks that so many bytes of a namespace fit beside others, which are given by namespace and
    /// size.
    ///
    /// # Errors
    /// The namespace, or all together, would exceed the limit.
    pub fn check<'a>(
        self,
        namespace: &str,
        bytes: usize,
        others: impl Iterator<Item = (&'a str, usize)>,
    ) -> Result<(), Excess> {
        let (mut of_namespace, mut all) = (bytes, bytes);
        for (other, bytes) in others {
            all += bytes;
            if other == namespace {
                of_namespace += bytes;
            }
        }
        for (is_namespace, bytes, max) in
            [(true, of_namespace, self.namespace), (false, all, self.all)]
        {
            if bytes > max {
                return Err(Excess {
                    of_namespace: is_namespace,
                    bytes,
                    max,
                });
            }
        }
        Ok(())
    }
}
