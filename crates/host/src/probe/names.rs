//! Resolves host names for probes and hooks, on dedicated threads.
//!
//! The system's resolver blocks for as long as its servers stay silent, and can't be cancelled. On the
//! threads that all blocking work shares, a few pods with a name that no server answers would delay
//! everything else. The lookups of one namespace leave threads for those of others.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Maximum number of concurrent lookups; each has a thread that ends with it.
pub(super) const LOOKUPS_MAX: usize = 32;

/// Maximum number of concurrent lookups for the pods of one namespace.
pub(super) const LOOKUPS_OF_NAMESPACE_MAX: usize = LOOKUPS_MAX / 2;

/// The addresses of `localhost`, in the order of attempts: hosts files with only one name that of IPv4.
const LOCALHOST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Stack of such a thread, in bytes: the resolver of musl needs a few pages, that of glibc loads
/// modules.
const STACK_BYTES: usize = 256 << 10;

/// Resolves a name, and blocks meanwhile.
type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The addresses of a name, or why there are none.
type Answer = Result<Arc<[IpAddr]>, Arc<io::Error>>;

/// The callers that wait for a lookup in progress.
type Waiting = watch::Receiver<Option<Answer>>;

/// The permits of the namespaces with lookups in progress or waiting.
type Rooms = HashMap<Arc<str>, Weak<Semaphore>>;

/// Resolves names. Cheap to clone: all clones share the threads.
#[derive(Clone)]
pub(super) struct Names {
    look_up: Arc<LookUp>,
    /// The namespace of the pods; empty if there is none.
    namespace: Arc<str>,
    rooms: Arc<Mutex<Rooms>>,
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
            namespace: "".into(),
            rooms: Arc::default(),
            room: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            under_way: Arc::default(),
        }
    }

    /// The same names, for the pods of that namespace.
    pub(super) fn of_namespace(&self, namespace: &Arc<str>) -> Self {
        Self {
            namespace: Arc::clone(namespace),
            ..self.clone()
        }
    }

    /// Resolves the addresses of a host. Concurrent callers with the same name share one lookup.
    ///
    /// # Cancel safety
    /// A lookup that was started continues, and others may get its answer.
    pub(super) async fn resolve(&self, host: &str) -> io::Result<Arc<[IpAddr]>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok([address].into());
        }
        if is_localhost(host) {
            return Ok(LOCALHOST.into());
        }
        let known = self.under_way.lock().get(host).cloned();
        let mut waiting = if let Some(waiting) = known {
            waiting
        } else {
            // Both stay open. A task that waits for the room of its namespace holds none of the others'.
            let own = self.room_of_namespace().acquire_owned().await;
            let own = own.map_err(io::Error::other)?;
            let permit = Arc::clone(&self.room).acquire_owned().await;
            self.begin(host, [own, permit.map_err(io::Error::other)?])?
        };
        let answered = waiting.wait_for(Option::is_some).await;
        let answer = answered.map_err(io::Error::other)?.clone();
        let ended = || Err(Arc::new(io::Error::other("the lookup ended")));
        answer.unwrap_or_else(ended).map_err(|error| same(&error))
    }

    /// The permits of the namespace, which exist while they are used or waited for.
    fn room_of_namespace(&self) -> Arc<Semaphore> {
        let mut rooms = self.rooms.lock();
        if let Some(room) = rooms.get(&self.namespace).and_then(Weak::upgrade) {
            return room;
        }
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Semaphore::new(LOOKUPS_OF_NAMESPACE_MAX));
        rooms.insert(Arc::clone(&self.namespace), Arc::downgrade(&room));
        room
    }

    /// Begins a lookup, unless another caller has meanwhile.
    fn begin(&self, host: &str, permits: [OwnedSemaphorePermit; 2]) -> io::Result<Waiting> {
        let mut under_way = self.under_way.lock();
        if let Some(waiting) = under_way.get(host) {
            return Ok(waiting.clone());
        }
        let (sender, waiting) = watch::channel(None);
        let (names, name) = (self.clone(), host.to_owned());
        let thread = std::thread::Builder::new()
            .name("resolve".to_owned())
            .stack_size(STACK_BYTES);
        thread.spawn(move || {
            let found = (names.look_up)(&name);
            names.under_way.lock().remove(&name);
            let answer = found.map(Arc::from);
            // Released before the answer is delivered, so that its receiver can look up the next name.
            drop(permits);
            sender.send_replace(Some(answer.map_err(Arc::new)));
        })?;
        under_way.insert(host.to_owned(), waiting.clone());
        Ok(waiting)
    }
}

/// Copies an error for each caller that waited, with the system's error code if it has one.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Whether that name is the machine's own, which needs no server.
fn is_localhost(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost")
}
