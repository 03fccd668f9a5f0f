//! One bound for the bytes that all connections hold.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a piece beyond the budget. Every connection may hold one such piece, so that an exhausted
/// budget slows a connection down and never stops it.
pub(super) const LEAN_BYTES: usize = 4 << 10;

/// Bytes that all connections together may hold of what was read and is not taken yet: a process does
/// not read its input, or a client not its forwarded data. When they are used up, connections go on
/// in pieces of 4 KiB, one at a time each.
///
/// Clones share the same bytes.
#[derive(Clone)]
pub struct Budget(Arc<Semaphore>);

impl Budget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.available_permits()
    }

    /// Takes bytes if they are left.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Held> {
        let taken = Arc::clone(&self.0).try_acquire_many_owned(permits(bytes));
        Some(Held {
            _permit: taken.ok()?,
        })
    }
}

impl Default for Budget {
    /// 16 MiB: what a hundred connections hold whose processes read slowly.
    fn default() -> Self {
        Self::new(16 << 20)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("left", &self.left())
            .finish()
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A part of the budget; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Held {
    _permit: OwnedSemaphorePermit,
}

/// Bytes with their part of the budget.
#[derive(Debug)]
pub(super) struct Charged {
    bytes: Bytes,
    _held: Option<Held>,
}

impl Deref for Charged {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A connection's access to the budget.
pub(super) struct ConnectionBudget {
    budget: Budget,
    lean: Arc<Semaphore>,
}

impl ConnectionBudget {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            budget,
            lean: Arc::new(Semaphore::new(1)),
        }
    }

    /// Takes bytes off the front: all of them within the budget, else a lean piece once the one
    /// before it is gone.
    ///
    /// # Cancel safety
    /// Dropped, it has taken none.
    pub(super) async fn charge(&self, bytes: &mut Bytes) -> Charged {
        if let Some(held) = self.budget.try_take(bytes.len()) {
            return Charged {
                bytes: std::mem::take(bytes),
                _held: Some(held),
            };
        }
        let within = Arc::clone(&self.budget.0).acquire_many_owned(permits(bytes.len()));
        let lean = Arc::clone(&self.lean).acquire_owned();
        // Neither is ever closed, and both arms are cancel-safe.
        let (bytes, permit) = tokio::select! {
            biased;
            permit = within => (std::mem::take(bytes), permit),
            permit = lean => {
                let piece = bytes.split_to(bytes.len().min(LEAN_BYTES));
                // A copy, so that it does not hold all that came with it.
                (Bytes::copy_from_slice(&piece), permit)
            }
        };
        Charged {
            bytes,
            _held: permit.ok().map(|permit| Held { _permit: permit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn charge(purse: &ConnectionBudget, length: usize) -> Vec<Charged> {
        let mut bytes = Bytes::from(vec![0; length]);
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            pieces.push(purse.charge(&mut bytes).await);
        }
        pieces
    }

    #[tokio::test]
    async fn what_is_dropped_is_given_back() {
        let budget = Budget::new(100);
        let purse = ConnectionBudget::new(budget.clone());
        let pieces = charge(&purse, 60).await;
        assert_eq!((pieces.len(), budget.left()), (1, 40));
        drop(pieces);
        assert_eq!(budget.left(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_budget_there_is_one_lean_piece_for_each() {
        let budget = Budget::new(100);
        let (one, other) = (
            ConnectionBudget::new(budget.clone()),
            ConnectionBudget::new(budget.clone()),
        );
        let all = charge(&one, 100).await;
        let mut bytes = Bytes::from(vec![0; 2 * LEAN_BYTES]);
        let lean = one.charge(&mut bytes).await;
        // streams 7
        assert_eq!((lean.len(), bytes.len()), (LEAN_BYTES, LEAN_BYTES));
        // The next one waits for it, another connection does not.
        let waiting = tokio::time::timeout(std::time::Duration::from_hours(1), async {
            one.charge(&mut bytes).await
        });
        assert!(waiting.await.is_err());
        assert_eq!(bytes.len(), LEAN_BYTES);
        assert_eq!(charge(&other, 7).await[0].len(), 7);
        drop(lean);
        assert_eq!(one.charge(&mut bytes).await.len(), LEAN_BYTES);
        drop(all);
        assert_eq!(budget.left(), 100);
    }
}
