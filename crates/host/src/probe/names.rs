//! Names of hosts that probes and hooks ask, resolved on threads of their own.
//!
//! The system's resolver blocks, for as long as its servers stay silent, and can't be given up. On
//! the threads that all blocking work shares, a few pods that ask a name which nobody answers for
//! would hold up everything else.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Most names resolved at a time, each by a thread that ends with it.
pub(super) const LOOKUPS_MAX: usize = 32;

/// Stack of such a thread, in bytes: the resolver of musl needs a few pages, that of glibc loads
/// modules.
const STACK_BYTES: usize = 256 << 10;

/// Resolves a name, and blocks meanwhile.
type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The addresses of a name, or why there are none.
type Answer = Result<Arc<[IpAddr]>, (io::ErrorKind, String)>;

/// Those who wait for a lookup that is under way.
type Waiting = watch::Receiver<Option<Answer>>;

/// Resolves names. Cheap to clone: all clones share the threads.
#[derive(Clone)]
pub(super) struct Names {
    look_up: Arc<LookUp>,
    room: Arc<Semaphore>,
    under_way: Arc<Mutex<HashMap<String, Waiting>>>,
}

impl Names {
    /// Asks the system.
    pub(super) fn of_system() -> Self {
        Self::new(|host| {
            let found = (host, 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    pub(super) fn new(
        look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            look_up: Arc::new(look_up),
            room: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            under_way: Arc::default(),
        }
    }

    /// The addresses of a host. Who asks for a name that is being resolved waits for the same
    /// answer.
    ///
    /// # Cancel safety
    /// A lookup that was begun goes on, and others may get its answer.
    pub(super) async fn resolve(&self, host: &str) -> io::Result<Arc<[IpAddr]>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok([address].into());
        }
        let known = self.under_way.lock().get(host).cloned();
        let mut waiting = if let Some(waiting) = known {
            waiting
        } else {
            // It closes never.
            let permit = Arc::clone(&self.room).acquire_owned().await;
            self.begin(host, permit.map_err(io::Error::other)?)?
        };
        let answered = waiting.wait_for(Option::is_some).await;
        let answer = answered.map_err(io::Error::other)?.clone();
        let ended = || Err((io::ErrorKind::Other, "the lookup ended".to_owned()));
        answer
            .unwrap_or_else(ended)
            .map_err(|(kind, words)| io::Error::new(kind, words))
    }

    /// Begins a lookup, unless somebody has meanwhile.
    fn begin(&self, host: &str, permit: OwnedSemaphorePermit) -> io::Result<Waiting> {
        let mut under_way = self.under_way.lock();
        if let Some(waiting) = under_way.get(host) {
            return Ok(waiting.clone());
        }
        let (tell, waiting) = watch::channel(None);
        let (names, name) = (self.clone(), host.to_owned());
        let thread = std::thread::Builder::new()
            .name("resolve".to_owned())
            .stack_size(STACK_BYTES);
        thread.spawn(move || {
            let found = (names.look_up)(&name);
            names.under_way.lock().remove(&name);
            let told = found.map(Arc::from);
            // Whoever has the answer finds room for the next name.
            drop(permit);
            tell.send_replace(Some(told.map_err(|e| (e.kind(), e.to_string()))));
        })?;
        under_way.insert(host.to_owned(), waiting.clone());
        Ok(waiting)
    }
}
