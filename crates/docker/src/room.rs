//! Memory limits for data that is built to be passed on at once, but may have to wait.
//!
//! A container may have 2 MiB of environment and command, a pod 16 MiB of files, and the data built
//! from them waits for some calls to the Engine, or for the disk, together with all others. Small data
//! has a share of its own, so that it never waits for large data, which may be held for as long as the
//! Engine or a disk hangs.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Anything lighter counts as small. An everyday request has some 10 KB.
const SMALL_BYTES: u32 = 128 << 10;

/// The share for small data in most limits: hundreds of usual size. It is limited, too: a pod may have
/// thousands of containers.
const SMALL_ROOM_BYTES: u32 = 16 << 20;

/// Maximum number of concurrent reads of unknown size.
const READS_MAX: usize = 4;

/// A limit in bytes. A holder of a reservation must not wait for another one.
pub(crate) struct Room {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    large_max: u32,
    /// Locked while something of unknown size is built.
    making: Mutex<()>,
    /// Held while something of unknown size is read.
    reading: Semaphore,
}

/// The room that something takes until this is dropped.
pub(crate) type Taken = Option<OwnedSemaphorePermit>;

impl Room {
    /// Returns a limit for so many bytes in total, which must exceed the share for small data.
    pub(crate) fn new(bytes_max: u32) -> Self {
        Self::of_parts(SMALL_ROOM_BYTES, bytes_max.saturating_sub(SMALL_ROOM_BYTES))
    }

    /// Returns a limit of `small_max` bytes for small data, and a separate one of `large_max` bytes for
    /// large data.
    pub(crate) fn of_parts(small_max: u32, large_max: u32) -> Self {
        Self {
            small: Arc::new(Semaphore::new(small_max as usize)),
            large: Arc::new(Semaphore::new(large_max as usize)),
            large_max,
            making: Mutex::default(),
            reading: Semaphore::new(READS_MAX),
        }
    }

    /// Builds a value once there is room for its bytes. A value that has to wait is dropped and built
    /// again. A value that exceeds the share for large data takes all of it.
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
        let taken = self.part(weight).acquire_many_owned(weight).await;
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
        let weight = self.weight(bytes(&item));
        match self.part(weight).try_acquire_many_owned(weight) {
            Ok(taken) => Ok((item, Some(taken))),
            Err(_) => Err(weight),
        }
    }

    /// Reads a value of at most `bytes_max` once there is room for its bytes. A value that has to wait
    /// is dropped, and read again when there is room for its size then.
    pub(crate) async fn read<T, E, F>(
        &self,
        bytes_max: usize,
        read: impl Fn() -> F,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<(T, Taken), E>
    where
        F: Future<Output = Result<T, E>>,
    {
        {
            // Few are held that may have no room.
            let _reading = self.reading.acquire().await;
            let item = read().await?;
            let weight = self.weight(bytes(&item).min(bytes_max));
            if let Ok(taken) = self.part(weight).try_acquire_many_owned(weight) {
                return Ok((item, Some(taken)));
            }
        }
        let weight = self.weight(bytes_max);
        // The semaphore is never closed.
        let taken = self.part(weight).acquire_many_owned(weight).await;
        Ok((read().await?, taken.ok()))
    }

    /// The room for so many bytes, which is at most all that there is for what is large.
    fn weight(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.large_max)
    }

    /// The part of the room for what weighs that much.
    fn part(&self, weight: u32) -> Arc<Semaphore> {
        Arc::clone(if weight < SMALL_BYTES {
            &self.small
        } else {
            &self.large
        })
    }

    /// Builds a short-lived value while nothing else is being built.
    pub(crate) fn alone<T>(&self, make: impl FnOnce() -> T) -> T {
        let _alone = self.making.lock();
        make()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

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

    /// Something that was read, and what is held of all.
    struct Read<'a> {
        bytes: usize,
        held: &'a Cell<usize>,
    }

    impl Drop for Read<'_> {
        fn drop(&mut self) {
            self.held.set(self.held.get() - self.bytes);
        }
    }

    #[tokio::test]
    async fn what_is_read_is_held_a_few_at_a_time() {
        const MOST: usize = 2 << 20;
        let room = Room::new(32 << 20);
        let (held, most, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let (room, held, most, done) = (&room, &held, &most, &done);
        let one = |bytes: usize| async move {
            let read = || async move {
                held.set(held.get() + bytes);
                most.set(most.get().max(held.get()));
                let read = Read { bytes, held };
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(read)
            };
            let read = room.read(MOST, read, |read: &Read<'_>| read.bytes).await;
            tokio::task::yield_now().await;
            drop(read);
            done.set(done.get() + 1);
        };
        join_all((0..100).map(|_| one(MOST))).await;
        // tenants H1
        assert!(
            most.get() <= (16 << 20) + READS_MAX * MOST,
            "{}",
            most.get()
        );
        assert_eq!((done.get(), held.get()), (100, 0));
    }

    #[tokio::test]
    async fn what_is_read_again_has_room_for_whatever_it_is_then() {
        const MOST: usize = 2 << 20;
        let room = Room::new(32 << 20);
        let of = |bytes: usize| {
            let read = move || std::future::ready(Ok::<_, Infallible>(bytes));
            room.read(MOST, read, |bytes: &usize| *bytes)
        };
        let weight = |taken: Taken| taken.map(|taken| taken.num_permits());
        let all = room.made(|| (), |()| usize::MAX).await;
        // Small ones wait for nothing large.
        let small = of(1000).now_or_never().unwrap().unwrap();
        // docker 60e
        assert_eq!(weight(small.1), Some(1000));
        let mut waits = Box::pin(of(MOST / 2));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(all);
        let read = waits.await.unwrap();
        // tenants H1
        assert_eq!(weight(read.1), Some(MOST));
        let fits = of(MOST / 2).await.unwrap();
        assert_eq!(weight(fits.1), Some(MOST / 2));
    }

    #[tokio::test]
    async fn what_is_small_waits_for_nothing_large() {
        let room = Room::new(32 << 20);
        let of = |bytes: usize| room.made(move || vec![0_u8; bytes], Vec::len);
        // All that there is for what is large, held by a call that hangs, and one that waits for all of it.
        let hangs = of(40 << 20).now_or_never().unwrap();
        let mut waits = Box::pin(of(40 << 20));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(of(SMALL_BYTES as usize).now_or_never().is_none());
        let mut all = Vec::new();
        for _ in 0..500 {
            let made = of(30 << 10).now_or_never();
            // docker 60e
            assert!(made.is_some(), "it waits");
            all.push(made);
        }
        drop(hangs);
        let (made, _taken) = waits.await;
        assert_eq!((made.len(), all.len()), (40 << 20, 500));
    }

    #[tokio::test]
    async fn what_is_small_has_a_bound_too() {
        let room = Room::new(32 << 20);
        let of = |bytes: usize| room.made(move || vec![0_u8; bytes], Vec::len);
        let mut held = 0;
        let mut all = Vec::new();
        while let Some(made) = of(100 << 10).now_or_never() {
            held += made.0.len();
            all.push(made);
            // tenants H1
            assert!(held <= 16 << 20, "{held}");
        }
        assert_eq!(all.len(), 163);
        // What is large has its own.
        assert!(of(16 << 20).now_or_never().is_some());
    }
}
