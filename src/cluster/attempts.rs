//! Concurrent attempts, one per key at a time.

use std::collections::HashMap;
use std::future::Future;

use tokio::task::{Id, JoinSet};

/// Attempts in progress. Dropping it abandons them.
pub(super) struct Attempts<K, T> {
    tasks: JoinSet<T>,
    keys: HashMap<Id, K>,
    max: usize,
}

impl<K: PartialEq, T: Send + 'static> Attempts<K, T> {
    /// Returns an empty set with at most `max` attempts at a time.
    pub(super) fn new(max: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            keys: HashMap::new(),
            max,
        }
    }

    /// Whether another one may begin.
    pub(super) fn has_room(&self) -> bool {
        self.keys.len() < self.max
    }

    /// Whether an attempt with that key is in progress.
    pub(super) fn is_busy(&self, key: &K) -> bool {
        self.keys.values().any(|busy| busy == key)
    }

    /// Begins one, unless one with its key is in progress.
    pub(super) fn begin(&mut self, key: K, attempt: impl Future<Output = T> + Send + 'static) {
        if !self.is_busy(&key) {
            let task = self.tasks.spawn(attempt);
            self.keys.insert(task.id(), key);
        }
    }

    /// The next completed one: its key, and its result; none if it panicked. Waits forever while none
    /// is in progress.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> (K, Option<T>) {
        loop {
            let (id, outcome) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, outcome))) => (id, Some(outcome)),
                Some(Err(error)) => (error.id(), None),
                None => std::future::pending().await,
            };
            if let Some(key) = self.keys.remove(&id) {
                return (key, outcome);
            }
        }
    }

    /// Gives all up, and waits for their end.
    pub(super) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn one_of_a_key_at_a_time_and_what_panics_frees_its_key() {
        let mut attempts: Attempts<&str, u32> = Attempts::new(2);
        let (go, gate) = oneshot::channel();
        attempts.begin("a", async move { gate.await.unwrap() });
        attempts.begin("a", async { unreachable!("its key is busy") });
        assert!(attempts.is_busy(&"a") && !attempts.is_busy(&"b") && attempts.has_room());
        attempts.begin("b", async { panic!("on purpose") });
        assert!(!attempts.has_room());
        assert_eq!(attempts.next().await, ("b", None));
        assert!(attempts.is_busy(&"a") && !attempts.is_busy(&"b"));
        go.send(7).unwrap();
        assert_eq!(attempts.next().await, ("a", Some(7)));
        assert!(!attempts.is_busy(&"a") && attempts.has_room());
    }

    #[tokio::test]
    async fn none_is_left_after_a_shutdown() {
        let mut attempts: Attempts<u8, ()> = Attempts::new(1);
        attempts.begin(1, std::future::pending());
        attempts.shutdown().await;
        assert!(!attempts.is_busy(&1) && attempts.has_room());
    }
}
