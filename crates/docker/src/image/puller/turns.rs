//! Turns at pulling: one pull for all who wait for the same, and only so many at a time.
//!
//! A registry that sends a few bytes now and then keeps a pull for hours. So the pulls for the pods of
//! one namespace leave a turn for those of others, and a pull that takes long gives its turn back.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::{Credentials, Outcome, PullState};
use mirrorlet_host::telemetry::occurrences;

/// The pulls, or the turns at them, that pods wait for, by what they are of.
pub(super) type UnderWay<K, T> = Arc<Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>>;

/// The part of a pod in one of them.
pub(super) struct Part<K: Eq + Hash, T> {
    shared: Shared<BoxFuture<'static, T>>,
    /// Dropped after it.
    _forgets: Forgets<K, T>,
}

/// Forgets a key, of which credentials may be a part, once nobody has a part in what it is of.
struct Forgets<K: Eq + Hash, T> {
    under_way: UnderWay<K, T>,
    key: K,
}

impl<K: Eq + Hash, T> Drop for Forgets<K, T> {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock();
        let known = under_way.get(&self.key);
        if known.is_some_and(|known| known.upgrade().is_none()) {
            under_way.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash, T: Clone> Part<K, T> {
    /// Waits for it, as long as the part is there.
    pub(super) fn wait(&self) -> Shared<BoxFuture<'static, T>> {
        self.shared.clone()
    }
}

/// A turn of a namespace; none where its pulls have no bound of their own.
pub(super) type Permit = Arc<Option<OwnedSemaphorePermit>>;

/// A turn of a namespace at an image, for all of its pods that wait for the same. The turn is taken until
/// the last of them drops this.
pub(super) type NamespaceTurn = Part<(String, Wanted), Permit>;

/// One of all turns, for all who wait for the same image with the same credentials. It is taken until the
/// last of them drops it, unless the pull takes long.
pub(super) type Turn = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

/// An image, and the credentials to pull it with.
pub(super) type Wanted = (String, Credentials);

/// How long a pull counts among those that go on at a time. Most images arrive within this, and pods wait
/// no longer for those of several namespaces that don't.
const SLOW_AFTER: Duration = Duration::from_mins(10);

/// How many slow pulls may go on without a turn, for each turn that there is; what is slow beyond that
/// keeps its turn. With 4 turns, three of each namespace, the slow pulls of 11 namespaces leave a turn for
/// those of others.
const SLOW_PER_TURN: usize = 8;

/// Turns at pulling.
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// Bounds the slow pulls that have given their turn back.
    slow: Arc<Semaphore>,
    /// Most for the pods of one namespace; none where there is only one in all.
    of_namespace_max: Option<usize>,
    /// The turns of the namespaces that have pulls under way or waiting.
    of_namespaces: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Turns {
    /// So many at a time; at least one.
    pub(super) fn new(pulls: usize) -> Self {
        let pulls = pulls.max(1);
        let slow = pulls.saturating_mul(SLOW_PER_TURN);
        Self {
            all: Arc::new(Semaphore::new(pulls)),
            slow: Arc::new(Semaphore::new(slow.min(Semaphore::MAX_PERMITS))),
            of_namespace_max: Some(pulls - 1).filter(|most| *most > 0),
            of_namespaces: Mutex::default(),
        }
    }

    /// Waits for one of all turns.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed.
        Arc::clone(&self.all).acquire_owned().await.ok()
    }

    /// Awaits a pull to its end. The turn is given back early where that takes long, unless too many
    /// are slow already; the only one of all turns is kept.
    pub(super) async fn bound<F: Future>(&self, turn: &Turn, pull: F) -> F::Output {
        let mut pull = pin!(pull);
        if self.of_namespace_max.is_none() {
            return pull.await;
        }
        if let Ok(done) = timeout(SLOW_AFTER, pull.as_mut()).await {
            return done;
        }
        let permit = tokio::select! {
            biased;
            done = pull.as_mut() => return done,
            permit = Arc::clone(&self.slow).acquire_owned() => permit,
        };
        *turn.lock() = permit.ok();
        pull.await
    }

    /// Waits for one of the turns that the namespace may have, and without which it takes none of all.
    async fn turn_of(&self, namespace: &str) -> Option<OwnedSemaphorePermit> {
        let most = self.of_namespace_max?;
        let turns = self.turns_of(namespace, most);
        // Never closed.
        turns.acquire_owned().await.ok()
    }

    /// The turns of a namespace, which are there for as long as somebody has or wants one.
    fn turns_of(&self, namespace: &str, most: usize) -> Arc<Semaphore> {
        let mut of_namespaces = self.of_namespaces.lock();
        if let Some(turns) = of_namespaces.get(namespace).and_then(Weak::upgrade) {
            return turns;
        }
        of_namespaces.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(most));
        of_namespaces.insert(namespace.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

impl PullState {
    /// Pulls an image with those credentials for the pods of that namespace, once it has a turn.
    pub(super) async fn pull(
        self: Arc<Self>,
        namespace: &str,
        reference: &str,
        credentials: &Credentials,
    ) -> Outcome {
        let asked = Instant::now();
        let wanted = (reference.to_owned(), Arc::clone(credentials));
        let turn = self.namespace_turn(namespace, &wanted);
        turn.wait().await;
        let pull = self.pull_for_all(wanted, asked);
        pull.wait().await
    }

    /// Joins the wait for a turn of a namespace at an image, or begins one: however many of its pods want
    /// the same, they take one turn.
    pub(super) fn namespace_turn(
        self: &Arc<Self>,
        namespace: &str,
        wanted: &Wanted,
    ) -> NamespaceTurn {
        let shop = Arc::clone(self);
        let key = (namespace.to_owned(), wanted.clone());
        join(&self.for_namespaces, key.clone(), move || {
            let turn = async move {
                let (namespace, (image, _)) = &key;
                let waiting = shop.progress.begin(image);
                let turn = shop.turns.turn_of(namespace).await;
                drop(waiting);
                Arc::new(turn)
            };
            turn.boxed()
        })
    }

    /// Joins the wait for one of all turns at an image with those credentials, or begins one. The turn is
    /// there at once while the image is pulled with them.
    pub(super) fn turn_at(self: &Arc<Self>, wanted: &Wanted) -> Part<Wanted, Turn> {
        let (shop, image) = (Arc::clone(self), wanted.0.clone());
        join(&self.for_all, wanted.clone(), move || {
            let turn = async move {
                let waiting = shop.progress.begin(&image);
                let turn = shop.turns.turn().await;
                drop(waiting);
                Arc::new(Mutex::new(turn))
            };
            turn.boxed()
        })
    }

    /// Joins the pull of an image with those credentials, or begins one for a pod that has waited since
    /// `asked`. It goes on as long as anybody waits for it.
    pub(super) fn pull_for_all(
        self: &Arc<Self>,
        wanted: Wanted,
        asked: Instant,
    ) -> Part<Wanted, Outcome> {
        let shop = Arc::clone(self);
        join(&self.under_way, wanted.clone(), move || {
            occurrences::image_pulling(&wanted.0);
            let pull = async move {
                // The same turn as that of pods that wait for this pull: they keep theirs until it ends.
                let part = shop.turn_at(&wanted);
                let turn = part.wait().await;
                let (image, credentials) = &wanted;
                shop.download(image, credentials, asked, &turn).await
            };
            pull.boxed()
        })
    }
}

/// Joins what is under way for that key, or begins it.
fn join<K: Clone + Eq + Hash, T: Clone>(
    under_way: &UnderWay<K, T>,
    key: K,
    begin: impl FnOnce() -> BoxFuture<'static, T>,
) -> Part<K, T> {
    let mut all = under_way.lock();
    let known = all.get(&key).and_then(WeakShared::upgrade);
    let shared = known.unwrap_or_else(|| {
        let new = begin().shared();
        if let Some(weak) = new.downgrade() {
            all.insert(key.clone(), weak);
        }
        new
    });
    drop(all);
    let under_way = Arc::clone(under_way);
    Part {
        shared,
        _forgets: Forgets { under_way, key },
    }
}
