//! Sorting and sorted collections with less generated code.
//!
//! The standard library compiles a sort for every item type, of 4 to 5 KiB each; `collect` into a
//! sorted map or set sorts too, and so does building one from an array: so arrays have `collect_map`
//! and `collect_set` as well. Two hundred of them were 4 % of the program. The lists here have tens of
//! items, seldom thousands.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Stable sorting of slices, like their methods without `small_`.
pub trait SmallSort {
    /// The items.
    type Item;

    /// Sorts by a comparison.
    fn small_sort_by(&mut self, compare: impl Fn(&Self::Item, &Self::Item) -> Ordering);

    /// Sorts by a key, which is computed for each comparison.
    fn small_sort_by_key<K: Ord>(&mut self, key: impl Fn(&Self::Item) -> K) {
        self.small_sort_by(|a, b| key(a).cmp(&key(b)));
    }

    /// Sorts by a key, which is computed once for each item.
    fn small_sort_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&Self::Item) -> K);

    /// Sorts by the items' own order.
    fn small_sort(&mut self)
    where
        Self::Item: Ord,
    {
        self.small_sort_by(Self::Item::cmp);
    }
}

impl<T> SmallSort for [T] {
    type Item = T;

    fn small_sort_by(&mut self, compare: impl Fn(&T, &T) -> Ordering) {
        let order = order(self.len(), &|a, b| compare(&self[a], &self[b]));
        arrange(self, order);
    }

    fn small_sort_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        let keys: Vec<K> = self.iter().map(key).collect();
        let order = order(self.len(), &|a, b| keys[a].cmp(&keys[b]));
        arrange(self, order);
    }
}

/// Puts items into the order of their numbers.
fn arrange<T>(items: &mut [T], mut order: Vec<usize>) {
    for start in 0..order.len() {
        // Follows a cycle of places, and moves each item on it to its place.
        let mut at = start;
        loop {
            let from = std::mem::replace(&mut order[at], at);
            if from == start {
                break;
            }
            items.swap(at, from);
            at = from;
        }
    }
}

/// The numbers of that many items in their order.
fn order(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|a, b| compare(*a, *b));
    order
}

/// Collects into sorted maps and sets, one item after the other.
pub trait SmallCollect: IntoIterator + Sized {
    /// Collects into a map. Of several values of a key the last one stays.
    fn collect_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: IntoIterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        map.extend(self);
        map
    }

    /// Collects into a set.
    fn collect_set(self) -> BTreeSet<Self::Item>
    where
        Self::Item: Ord,
    {
        let mut set = BTreeSet::new();
        set.extend(self);
        set
    }

    /// Collects into the map of a JSON object. Of several values of a key the last one stays.
    fn collect_object(self) -> Map<String, Value>
    where
        Self: IntoIterator<Item = (String, Value)>,
    {
        let mut map = Map::new();
        map.extend(self);
        map
    }
}

impl<I: IntoIterator> SmallCollect for I {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library(items in proptest::collection::vec(0..50u8, 0..80)) {
            let numbered: Vec<(u8, usize)> = items.iter().copied().zip(0..).collect();
            let (mut ours, mut theirs) = (numbered.clone(), numbered.clone());
            ours.small_sort_by_key(|(item, _)| *item);
            theirs.sort_by_key(|(item, _)| *item);
            prop_assert_eq!(&ours, &theirs);
            ours.small_sort_by(|a, b| b.1.cmp(&a.1));
            theirs.sort_by_key(|item| std::cmp::Reverse(item.1));
            prop_assert_eq!(&ours, &theirs);
            ours.small_sort_by_cached_key(|(item, _)| *item);
            theirs.sort_by_cached_key(|(item, _)| *item);
            prop_assert_eq!(&ours, &theirs);
            ours.small_sort();
            theirs.sort_unstable();
            prop_assert_eq!(&ours, &theirs);
            prop_assert_eq!(numbered.clone().collect_map(), numbered.into_iter().collect());
            prop_assert_eq!(items.clone().collect_set(), items.iter().copied().collect());
            let field = |(item, value): (u8, usize)| (item.to_string(), Value::from(value));
            let fields = || items.iter().copied().zip(0..).map(field);
            prop_assert_eq!(fields().collect_object(), fields().collect::<Map<_, _>>());
        }
    }
}
