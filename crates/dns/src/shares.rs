//! Limits each client's share of a resource, so that none can exhaust it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The size of a resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Units of all clients together.
    pub(crate) all: usize,
    /// Units of one client.
    pub(crate) each: usize,
    /// Units that one client may use at the same time; others wait.
    pub(crate) in_use: usize,
}

/// A resource that clients share.
#[derive(Debug)]
pub(crate) struct Shares {
    bounds: Bounds,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    /// Only clients that hold something.
    clients: HashMap<IpAddr, Client>,
}

#[derive(Debug)]
struct Client {
    count: usize,
    turns: Arc<Semaphore>,
}

/// A unit of the resource. It is released on drop.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    client: IpAddr,
    turns: Arc<Semaphore>,
}

impl Shares {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            held: Mutex::default(),
        })
    }

    /// Takes a unit for a client; none if it has its maximum, or if all are taken.
    pub(crate) fn take(self: &Arc<Self>, client: IpAddr) -> Option<Share> {
        let mut held = self.held();
        let count = held.clients.get(&client).map_or(0, |client| client.count);
        if held.all >= self.bounds.all || count >= self.bounds.each {
            return None;
        }
        held.all += 1;
        let entry = held.clients.entry(client).or_insert_with(|| Client {
            count: 0,
            turns: Arc::new(Semaphore::new(self.bounds.in_use)),
        });
        entry.count += 1;
        Some(Share {
            shares: Arc::clone(self),
            client,
            turns: Arc::clone(&entry.turns),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    pub(crate) fn client(&self) -> IpAddr {
        self.client
    }

    /// Waits until the unit may be used.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.held();
        held.all = held.all.saturating_sub(1);
        if let Some(client) = held.clients.get_mut(&self.client) {
            client.count = client.count.saturating_sub(1);
            if client.count == 0 {
                held.clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests;
