//! Turns at pulling: one pull for all who wait for the same, and only so many at a time.
//!
//! A registry that sends a few bytes now and then keeps a pull for hours. So the pulls for the pods of
//! one namespace leave a turn for those of others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::{Credentials, Outcome, PullState};
use mirrorlet_host::telemetry::occurrences;

/// A pull, for all who wait for it.
type Pull = Shared<BoxFuture<'static, Outcome>>;

/// The pulls under way, by what they are of.
pub(super) type UnderWay<K> = Mutex<HashMap<K, WeakShared<BoxFuture<'static, Outcome>>>>;

/// An image, and the credentials to pull it with.
pub(super) type Wanted = (String, Credentials);

/// Turns at pulling.
pub(super) struct Turns {
    all: Semaphore,
    /// Most for the pods of one namespace; none where there is only one in all.
    of_namespace_max: Option<usize>,
    /// The turns of the namespaces that have pulls under way or waiting.
    of_namespaces: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Turns {
    /// So many at a time; at least one.
    pub(super) fn new(pulls: usize) -> Self {
        let pulls = pulls.max(1);
        Self {
            all: Semaphore::new(pulls),
            of_namespace_max: Some(pulls - 1).filter(|most| *most > 0),
            of_namespaces: Mutex::default(),
        }
    }

    /// Waits for one of all turns.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed.
        self.all.acquire().await.ok()
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
    /// Joins the pull of that image with those credentials, or begins one for the pods of that
    /// namespace. It goes on as long as anybody waits for it.
    pub(super) async fn pull(
        self: Arc<Self>,
        namespace: &str,
        reference: &str,
        credentials: &Credentials,
    ) -> Outcome {
        let wanted = (reference.to_owned(), Arc::clone(credentials));
        let pull = self.pull_for_namespace((namespace.to_owned(), wanted));
        pull.await
    }

    /// The part that the pods of one namespace have in a pull: however many wait for it, they take one
    /// turn of their namespace.
    fn pull_for_namespace(self: Arc<Self>, key: (String, Wanted)) -> Pull {
        let shop = Arc::clone(&self);
        join(&self.for_namespaces, key.clone(), move || {
            let part = async move {
                let asked = Instant::now();
                let (namespace, wanted) = &key;
                let waiting = shop.progress.begin(&wanted.0);
                let turn = shop.turns.turn_of(namespace).await;
                drop(waiting);
                let pull = Arc::clone(&shop).pull_for_all(wanted.clone(), asked);
                let outcome = pull.await;
                drop(turn);
                shop.for_namespaces.lock().remove(&key);
                outcome
            };
            part.boxed()
        })
    }

    /// The pull for all namespaces. The first of them has waited since `asked`.
    fn pull_for_all(self: Arc<Self>, wanted: Wanted, asked: Instant) -> Pull {
        let shop = Arc::clone(&self);
        join(&self.under_way, wanted.clone(), move || {
            let (image, credentials) = wanted;
            occurrences::image_pulling(&image);
            let pull = async move { shop.download(&image, &credentials, asked).await };
            pull.boxed()
        })
    }
}

/// Joins the pull of that key, or begins one.
fn join<K: Eq + Hash>(
    under_way: &UnderWay<K>,
    key: K,
    begin: impl FnOnce() -> BoxFuture<'static, Outcome>,
) -> Pull {
    let mut under_way = under_way.lock();
    if let Some(pull) = under_way.get(&key).and_then(WeakShared::upgrade) {
        return pull;
    }
    under_way.retain(|_, pull| pull.upgrade().is_some());
    let pull = begin().shared();
    if let Some(weak) = pull.downgrade() {
        under_way.insert(key, weak);
    }
    pull
}
