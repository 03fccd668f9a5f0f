//! Attempts side by side, one of a key at a time.

use std::collections::HashMap;
use std::future::Future;

use tokio::task::{Id, JoinSet};

/// Attempts that are under way. Dropping it gives them up.
pub(super) struct Attempts<K, T> {
    tasks: JoinSet<T>,
    keys: HashMap<Id, K>,
    max: usize,
}

impl<K: PartialEq, T: Send + 'static> Attempts<K, T> {
    /// None yet, and at most `max` at a time.
    pub(super) fn new(max: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            keys: HashMap::new(),
            max,
        }
    }

    /// Whether one more may begin.
    pub(super) fn has_room(&self) -> bool {
        self.keys.len() < self.max
    }

    /// Whether one of that key is under way.
    pub(super) fn is_busy(&self, key: &K) -> bool {
        self.keys.values().any(|busy| busy == key)
    }

    /// Begins one, unless one of its key is under way.
    pub(super) fn begin(&mut self, key: K, attempt: impl Future<Output = T> + Send + 'static) {
        if !self.is_busy(&key) {
            let task = self.tasks.spawn(attempt);
            self.keys.insert(task.id(), key);
        }
    }

    /// The next one that is over: its key, and what came of it; nothing when it panicked. Waits
    /// for ever while none is under way.
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
