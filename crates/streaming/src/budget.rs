//! A limit on the bytes that all connections buffer together.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Size of a piece that is read beyond the budget, in bytes. Every connection may hold one such piece,
/// so an exhausted budget slows a connection down but never stops it.
pub(super) const LEAN_BYTES: usize = 4 << 10;

/// Bytes that all connections together may hold between a read and a write, while a process does not
/// read its input, or a client its output, log or forwarded data. When they are used up, connections
/// continue in pieces of 4 KiB, one at a time in each direction.
///
/// Clones share one budget.
#[derive(Clone)]
pub struct Budget(Arc<[Arc<Semaphore>]>);

impl Budget {
    /// The size of a default budget in bytes: about fifty connections with slow processes or clients
    /// use it up.
    pub const BYTES: usize = 16 << 20;

    /// A budget of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = Semaphore::new(bytes.min(Semaphore::MAX_PERMITS));
        Self(Arc::new([Arc::new(bytes)]))
    }

    /// Returns a view of this budget for a group of connections: their bytes also count in each of
    /// `shares`, so that the group leaves the rest to others.
    #[must_use]
    pub fn within(&self, shares: &[Self]) -> Self {
        // Shares first: a connection that waits for a share must not take bytes that others could use
        // meanwhile.
        let budgets = shares.iter().chain([self]);
        let bytes = budgets.flat_map(|budget| budget.0.iter().cloned());
        Self(bytes.collect())
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        let left = self.0.iter().map(|bytes| bytes.available_permits());
        left.min().unwrap_or_default()
    }

    /// Takes bytes if they are left.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Held> {
        let budgets = self.0.iter().cloned();
        let taken = budgets.map(|budget| budget.try_acquire_many_owned(permits(bytes)));
        taken.collect::<Result<Vec<_>, _>>().ok().map(Held::within)
    }

    /// Takes bytes once they are left.
    ///
    /// # Cancel safety
    /// Dropped, it has taken none.
    async fn take(&self, bytes: usize) -> Option<Held> {
        let mut taken = Vec::with_capacity(self.0.len());
        for budget in &*self.0 {
            let permit = Arc::clone(budget).acquire_many_owned(permits(bytes));
            // It is never closed.
            taken.push(permit.await.ok()?);
        }
        Some(Held::within(taken))
    }
}

impl Default for Budget {
    /// [16 MiB](Self::BYTES).
    fn default() -> Self {
        Self::new(Self::BYTES)
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

/// A reservation of bytes in the budget, or the permit of a lean piece. Released on drop.
#[derive(Debug)]
pub(super) struct Held {
    /// As many bytes of each share as of the whole.
    permits: Vec<OwnedSemaphorePermit>,
    is_lean: bool,
}

impl Held {
    fn within(permits: Vec<OwnedSemaphorePermit>) -> Self {
        let is_lean = false;
        Self { permits, is_lean }
    }

    fn lean(permit: OwnedSemaphorePermit) -> Self {
        Self {
            permits: vec![permit],
            is_lean: true,
        }
    }

    /// Whether it is that of a lean piece.
    pub(super) fn is_lean(&self) -> bool {
        self.is_lean
    }

    /// Splits off a reservation of `bytes`; none if this one is smaller.
    pub(super) fn part(&mut self, bytes: usize) -> Option<Self> {
        let parts = self.permits.iter_mut().map(|permit| permit.split(bytes));
        parts.collect::<Option<Vec<_>>>().map(Self::within)
    }

    /// Resizes the reservation: releases the excess, or reserves more from `budget`, which it must
    /// belong to, if there is room.
    pub(super) fn fit(&mut self, bytes: usize, budget: &Budget) {
        let has = self.permits.first();
        let has = has.map_or(0, OwnedSemaphorePermit::num_permits);
        if bytes < has {
            drop(self.part(has - bytes));
        } else if let Some(more) = budget.try_take(bytes - has) {
            for (permit, more) in self.permits.iter_mut().zip(more.permits) {
                permit.merge(more);
            }
        }
    }
}

/// Bytes with their part of the budget.
#[derive(Debug)]
pub(super) struct Charged {
    bytes: Bytes,
    held: Option<Held>,
}

impl Charged {
    /// The bytes, and their part of the budget.
    pub(super) fn into_parts(self) -> (Bytes, Option<Held>) {
        (self.bytes, self.held)
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for Charged {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A connection's access to the budget, for one direction: input that a process does not read must not
/// block its output.
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

    /// Takes bytes off the front: all of them if the budget has room, otherwise a lean piece once the
    /// previous one is released.
    ///
    /// # Cancel safety
    /// If the future is dropped, no bytes are taken.
    pub(super) async fn charge(&self, bytes: &mut Bytes) -> Charged {
        if let Some(held) = self.budget.try_take(bytes.len()) {
            return Charged {
                bytes: std::mem::take(bytes),
                held: Some(held),
            };
        }
        let within = self.budget.take(bytes.len());
        let lean = Arc::clone(&self.lean).acquire_owned();
        // Neither is ever closed, and both arms are cancel-safe.
        let (bytes, held) = tokio::select! {
            biased;
            held = within => (std::mem::take(bytes), held),
            permit = lean => {
                let piece = bytes.split_to(bytes.len().min(LEAN_BYTES));
                // A copy, so that it does not hold all that came with it.
                (Bytes::copy_from_slice(&piece), permit.ok().map(Held::lean))
            }
        };
        Charged { bytes, held }
    }

    /// Takes at most `max` bytes off the front, with their part of `held`, the reservation for all of
    /// them; without one, as [`charge`](Self::charge) does.
    ///
    /// # Cancel safety
    /// If the future is dropped, no bytes are taken.
    pub(super) async fn piece(
        &self,
        bytes: &mut Bytes,
        held: &mut Option<Held>,
        max: usize,
    ) -> Charged {
        if bytes.len() <= max && held.is_some() {
            return Charged {
                bytes: std::mem::take(bytes),
                held: held.take(),
            };
        }
        if let Some(part) = held.as_mut().and_then(|held| held.part(max)) {
            return Charged {
                bytes: bytes.split_to(max),
                held: Some(part),
            };
        }
        // Too small a part of more than was expected, if there is one at all.
        *held = None;
        let mut front = bytes.slice(..bytes.len().min(max));
        let piece = self.charge(&mut front).await;
        bytes.advance(piece.len());
        piece
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

    #[tokio::test]
    async fn a_share_leaves_others_the_rest() {
        let all = Budget::new(100);
        let shares = [60, 50].map(Budget::new);
        let (one, other) = (all.within(&shares), all.within(&[]));
        let purse = ConnectionBudget::new(one.clone());
        let held = charge(&purse, 40).await;
        // streams 7
        assert_eq!((one.left(), other.left()), (10, 60));
        // Beyond its share, and within what is left of all.
        let is_lean = |piece: Charged| piece.into_parts().1.is_some_and(|held| held.is_lean());
        let mut bytes = Bytes::from(vec![0; 20]);
        assert!(is_lean(purse.charge(&mut bytes).await));
        assert!(one.try_take(20).is_none());
        assert_eq!((one.left(), other.left()), (10, 60));
        let purse = ConnectionBudget::new(other.clone());
        let mut bytes = Bytes::from(vec![0; 60]);
        // streams 7
        assert!(!is_lean(purse.charge(&mut bytes).await));
        drop(held);
        assert_eq!((one.left(), other.left()), (50, 100));
    }

    #[tokio::test]
    async fn who_waits_for_its_share_takes_nothing_of_others() {
        let all = Budget::new(100);
        let one = all.within(&[Budget::new(50)]);
        let purse = ConnectionBudget::new(one.clone());
        let held = charge(&purse, 50).await;
        let mut bytes = Bytes::from(vec![0; 40]);
        let lean = purse.charge(&mut bytes).await;
        let mut bytes = Bytes::from(vec![0; 40]);
        let mut waiting = Box::pin(purse.charge(&mut bytes));
        assert!(futures::poll!(&mut waiting).is_pending());
        // streams 7
        assert_eq!(all.left(), 50);
        drop(held);
        let (bytes, held) = waiting.await.into_parts();
        assert_eq!(
            (bytes.len(), held.is_some_and(|held| held.is_lean())),
            (40, false)
        );
        drop(lean);
    }

    #[test]
    fn a_part_of_a_share_is_one_of_all() {
        let all = Budget::new(100);
        let one = all.within(&[Budget::new(50)]);
        let mut held = one.try_take(40).unwrap();
        let part = held.part(30).unwrap();
        drop(held);
        // streams 7
        assert_eq!((one.left(), all.left()), (20, 70));
        drop(part);
        let mut held = one.try_take(40).unwrap();
        for (bytes, left) in [(10, 40), (30, 20), (51, 20), (50, 0)] {
            held.fit(bytes, &one);
            // streams 7
            assert_eq!((one.left(), all.left()), (left, 50 + left), "{bytes}");
        }
        drop(held);
        assert_eq!((one.left(), all.left()), (50, 100));
    }

    #[tokio::test]
    async fn a_piece_has_its_part_of_what_was_taken_for_all() {
        let budget = Budget::new(100);
        let purse = ConnectionBudget::new(budget.clone());
        let mut bytes = Bytes::from(vec![0; 70]);
        let mut held = budget.try_take(70);
        let first = purse.piece(&mut bytes, &mut held, 40).await;
        let last = purse.piece(&mut bytes, &mut held, 40).await;
        assert_eq!((first.len(), last.len(), bytes.len()), (40, 30, 0));
        assert!(held.is_none());
        assert_eq!(budget.left(), 30);
        drop(first);
        // streams 7
        assert_eq!(budget.left(), 70);
        drop(last);
        assert_eq!(budget.left(), 100);
        // Nothing was taken for these.
        let mut bytes = Bytes::from(vec![0; 70]);
        let piece = purse.piece(&mut bytes, &mut None, 40).await;
        assert_eq!((piece.len(), bytes.len(), budget.left()), (40, 30, 60));
    }

    #[test]
    fn a_part_is_made_as_large_as_what_it_is_for() {
        let budget = Budget::new(100);
        let mut held = budget.try_take(64).unwrap();
        for (bytes, left) in [(10, 90), (10, 90), (80, 20), (0, 100)] {
            held.fit(bytes, &budget);
            // streams 7
            assert_eq!(budget.left(), left, "{bytes}");
        }
        // More than there is: what it has stays.
        held.fit(60, &budget);
        held.fit(101, &budget);
        assert_eq!(budget.left(), 40);
    }
}
