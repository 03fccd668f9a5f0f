//! Answers that are valid for a while. No clock: `now` is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Answers by question, each with its expiry, up to a maximum number.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    entries: HashMap<K, (Instant, V)>,
    entries_max: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            entries_max,
        }
    }

    /// The answer, while it is good.
    pub(super) fn get<Q>(&self, key: &Q, now: Instant) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (until, value) = self.entries.get(key)?;
        (now < *until).then(|| value.clone())
    }

    /// Stores an answer. At the limit, expired answers are removed, otherwise the one that expires
    /// first.
    pub(super) fn put(&mut self, key: K, value: V, good_for: Duration, now: Instant) {
        if self.entries.len() >= self.entries_max && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (until, _)| now < *until);
        }
        if self.entries.len() >= self.entries_max && !self.entries.contains_key(&key) {
            let first = self.entries.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.entries.remove(&first);
            }
        }
        self.entries.insert(key, (now + good_for, value));
    }

    /// Takes an answer out, with its end.
    pub(super) fn take(&mut self, key: &K) -> Option<(Instant, V)> {
        self.entries.remove(key)
    }

    /// Whether there is a valid answer to a question that satisfies `is_such`.
    pub(super) fn any(&self, now: Instant, is_such: impl Fn(&K) -> bool) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|(key, (until, _))| now < *until && is_such(key))
    }

    /// How many are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_good_until_its_end_and_room_is_made_for_the_newest() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut cache = Cache::new(2);
        cache.put("long", 1, 10 * second, start);
        cache.put("short", 2, second, start);
        assert_eq!(cache.get("short", start), Some(2));
        assert_eq!(cache.get("short", start + second), None);
        // Expired entries go first …
        cache.put("third", 3, 5 * second, start + 2 * second);
        assert_eq!(cache.get("long", start + 2 * second), Some(1));
        // … then what ends first.
        cache.put("fourth", 4, 5 * second, start + 3 * second);
        assert_eq!(cache.get("third", start + 3 * second), None);
        assert_eq!(cache.get("long", start + 3 * second), Some(1));
        // One that is known takes no more room.
        cache.put("long", 5, second, start + 3 * second);
        assert_eq!(
            (cache.len(), cache.get("fourth", start + 3 * second)),
            (2, Some(4))
        );
    }

    #[test]
    fn it_never_holds_more_than_it_may() {
        let mut cache = Cache::new(16);
        let start = Instant::now();
        for key in 0..1000_u32 {
            cache.put(key, key, Duration::from_secs(u64::from(key % 7)), start);
            assert!(cache.len() <= 16);
        }
    }
}
