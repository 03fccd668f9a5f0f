//! Room in memory for what is made to be handed on at once, and has to wait.
//!
//! A container may have 2 MiB of environment and command, a pod 16 MiB of files, and what is made of them
//! waits for few calls to the Engine, or for the disk, with all others.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for so many bytes. Who has room must not wait for more of the same.
pub(crate) struct Room {
    bytes: Arc<Semaphore>,
    bytes_max: u32,
    /// Held while something is made, whose size is not known before.
    making: Mutex<()>,
}

/// The room that something takes until this is dropped.
pub(crate) type Taken = Option<OwnedSemaphorePermit>;

impl Room {
    pub(crate) fn new(bytes_max: u32) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes_max as usize)),
            bytes_max,
            making: Mutex::default(),
        }
    }

    /// Makes something once there is room for the bytes that it takes. What has to wait isn't kept: it is
    /// made again. What is larger than the room takes all of it.
    pub(crate) async fn made<T>(
        &self,
        make: impl Fn() -> T,
        bytes: impl Fn(&T) -> usize,
    ) -> (T, Taken) {
        let weight = match self.made_at_once(&make, &bytes) {
            Ok(fits) => return fits,
            Err(weight) => weight,
        };
        // The semaphore is never closed.
        let taken = Arc::clone(&self.bytes).acquire_many_owned(weight).await;
        (self.alone(make), taken.ok())
    }

    /// Makes something for which there is room now; else the room that it takes.
    fn made_at_once<T>(
        &self,
        make: impl Fn() -> T,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<(T, Taken), u32> {
        let _alone = self.making.lock();
        let item = make();
        let weight = u32::try_from(bytes(&item)).unwrap_or(self.bytes_max);
        let weight = weight.min(self.bytes_max);
        match Arc::clone(&self.bytes).try_acquire_many_owned(weight) {
            Ok(taken) => Ok((item, Some(taken))),
            Err(_) => Err(weight),
        }
    }

    /// Makes something for a moment, while nothing else is made.
    pub(crate) fn alone<T>(&self, make: impl FnOnce() -> T) -> T {
        let _alone = self.making.lock();
        make()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn what_is_large_is_held_a_few_at_a_time() {
        let room = Room::new(32 << 20);
        let (held, most, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let (room, held, most, done) = (&room, &held, &most, &done);
        let one = |bytes: usize| async move {
            let (made, taken) = room.made(|| vec![0_u8; bytes], Vec::len).await;
            held.set(held.get() + made.len());
            most.set(most.get().max(held.get()));
            tokio::task::yield_now().await;
            held.set(held.get() - made.len());
            drop((made, taken));
            done.set(done.get() + 1);
        };
        // One has no room at all, and is made all the same, once nothing else is held.
        let sizes = (0..100).map(|n| if n == 50 { 40 << 20 } else { 6 << 20 });
        join_all(sizes.map(one)).await;
        // tenants H1, tenants M9
        assert!(most.get() <= 40 << 20, "{}", most.get());
        assert_eq!(done.get(), 100);
    }

    #[tokio::test]
    async fn what_is_small_waits_for_nobody() {
        let room = Room::new(32 << 20);
        let mut all = Vec::new();
        for _ in 0..500 {
            let made = room.made(|| "x".repeat(30 << 10), String::len);
            all.push(made.now_or_never().unwrap());
        }
        assert_eq!(all.len(), 500);
    }
}
