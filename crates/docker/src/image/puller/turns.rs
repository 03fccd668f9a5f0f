//! Turns for pulling: one pull for all pods that need the same, and a limited number at a time.
//!
//! A registry that sends a few bytes now and then can prolong a pull for hours. So the pulls for the
//! pods of one namespace leave a turn for other namespaces, and a slow pull releases its turn.

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

/// The pulls or turns that pods wait for, by key.
pub(super) type UnderWay<K, T> = Arc<Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>>;

/// A pod's share in one of them.
pub(super) struct Part<K: Eq + Hash, T> {
    shared: Shared<BoxFuture<'static, T>>,
    /// Dropped after it.
    _forgets: Forgets<K, T>,
}

/// Removes a key, which may contain credentials, once no pod has a share in its value.
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
    /// Waits for the value while the share exists.
    pub(super) fn wait(&self) -> Shared<BoxFuture<'static, T>> {
        self.shared.clone()
    }
}

/// A turn of a namespace; none if there is no limit per namespace.
pub(super) type Permit = Arc<Option<OwnedSemaphorePermit>>;

/// A turn of a namespace for an image, shared by all its pods that wait for the same. Held until the
/// last of them drops it.
pub(super) type NamespaceTurn = Part<(String, Wanted), Permit>;

/// One of all turns, shared by all pods that wait for the same image with the same credentials. Held
/// until the last of them drops it, unless the pull is slow.
pub(super) type Turn = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

/// An image, and the credentials to pull it with.
pub(super) type Wanted = (String, Credentials);

/// How long a pull counts towards the limit. Most images arrive within this time, and pods don't wait
/// longer for slow pulls of several namespaces.
const SLOW_AFTER: Duration = Duration::from_mins(10);

/// How many slow pulls may continue without a turn, per turn; further slow ones keep their turn. With 4
/// turns, three of each namespace, the slow pulls of 11 namespaces leave a turn for other namespaces.
const SLOW_PER_TURN: usize = 8;

/// Turns at pulling.
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// Bounds the slow pulls that have given their turn back.
    slow: Arc<Semaphore>,
    /// Maximum for the pods of one namespace; none if there is only one turn in total.
    of_namespace_max: Option<usize>,
    /// The turns of the namespaces with pulls in progress or waiting.
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

    /// Awaits a pull to its end. The turn is released early if that takes long, unless too many are
    /// slow already; the only turn is never released early.
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

    /// Waits for one of the turns of a namespace, which it needs before one of all turns.
    async fn turn_of(&self, namespace: &str) -> Option<OwnedSemaphorePermit> {
        let most = self.of_namespace_max?;
        let turns = self.turns_of(namespace, most);
        // Never closed.
        turns.acquire_owned().await.ok()
    }

    /// The turns of a namespace, which exist while they are used or waited for.
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
    /// Pulls an image with those credentials for the pods of that namespace, once there is a turn.
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

    /// Joins the wait for a turn of a namespace for an image, or begins one: all its pods that need the
    /// same share one turn.
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

    /// Joins the wait for one of all turns for an image with those credentials, or begins one. If that
    /// pull is in progress already, there is no wait.
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
    /// `asked`. It continues while any pod waits for it.
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

/// Joins the operation in progress for that key, or begins it.
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
