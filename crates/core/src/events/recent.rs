//! A bounded map that forgets what was not used for longest.

use std::collections::BTreeMap;

/// Values by key; of more than `max` the one that was put longest ago goes.
#[derive(Debug, Clone)]
pub(super) struct Recent<V> {
    max: usize,
    tick: u64,
    values: BTreeMap<String, (u64, V)>,
    by_age: BTreeMap<u64, String>,
}

impl<V> Recent<V> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            tick: 0,
            values: BTreeMap::new(),
            by_age: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<V> {
        let (tick, value) = self.values.remove(key)?;
        self.by_age.remove(&tick);
        Some(value)
    }

    pub(super) fn put(&mut self, key: String, value: V) {
        self.tick += 1;
        self.by_age.insert(self.tick, key.clone());
        if let Some((old, _)) = self.values.insert(key, (self.tick, value)) {
            self.by_age.remove(&old);
        }
        if self.values.len() > self.max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_not_used_for_longest_goes() {
        let mut recent = Recent::new(2);
        recent.put("a".to_owned(), 1);
        recent.put("b".to_owned(), 2);
        recent.put("a".to_owned(), 3);
        recent.put("c".to_owned(), 4);
        assert_eq!(recent.values.len(), recent.by_age.len());
        assert_eq!(recent.take("b"), None);
        assert_eq!((recent.take("a"), recent.take("c")), (Some(3), Some(4)));
        assert!(recent.by_age.is_empty());
    }
}
