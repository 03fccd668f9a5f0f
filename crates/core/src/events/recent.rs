//! A bounded map that evicts the least recently put entry.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

/// A stored key: half of its SHA-256. Keys contain whole messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// That of a key in parts.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let mut half = [0; 16];
        half.copy_from_slice(&hash.finalize()[..16]);
        Self(half)
    }
}

/// Values by key; beyond `max`, the one that was put longest ago is removed.
#[derive(Debug, Clone)]
pub(super) struct Recent<V> {
    max: usize,
    tick: u64,
    values: BTreeMap<Fingerprint, (u64, V)>,
}

impl<V> Recent<V> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            tick: 0,
            values: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, key: Fingerprint) -> Option<V> {
        self.values.remove(&key).map(|(_, value)| value)
    }

    /// Stores a value, and removes outdated ones. It scans all: there are at most a thousand, and an
    /// index would take half as much memory again.
    pub(super) fn put(&mut self, key: Fingerprint, value: V, is_over: impl Fn(&V) -> bool) {
        self.tick += 1;
        self.values.insert(key, (self.tick, value));
        self.values.retain(|_, (_, value)| !is_over(value));
        if self.values.len() > self.max {
            let oldest = self.values.iter().min_by_key(|(_, (tick, _))| *tick);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.values.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Fingerprint {
        Fingerprint::of([text])
    }

    #[test]
    fn the_one_not_used_for_longest_goes() {
        let mut recent = Recent::new(2);
        let never = |_: &i32| false;
        recent.put(key("a"), 1, never);
        recent.put(key("b"), 2, never);
        recent.put(key("a"), 3, never);
        recent.put(key("c"), 4, never);
        assert_eq!(recent.values.len(), 2);
        assert_eq!(recent.take(key("b")), None);
        assert_eq!(
            (recent.take(key("a")), recent.take(key("c"))),
            (Some(3), Some(4))
        );
    }

    #[test]
    fn what_is_over_goes_with_the_next_one() {
        let mut recent = Recent::new(9);
        for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
            recent.put(key(name), value, |_| false);
        }
        recent.put(key("d"), 4, |value| *value < 3);
        let left = ["a", "b", "c", "d"].map(|name| recent.take(key(name)));
        assert_eq!(left, [None, None, Some(3), Some(4)]);
    }

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["a", "bc"]));
        assert_ne!(Fingerprint::of(["ab"]), Fingerprint::of(["ab", ""]));
    }
}
