//! Sets of completion indexes, in upstream's format: `0,3-5,7`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A set of completion indexes. Displays as `0,3-5,7`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndexSet(Vec<(u32, u32)>);

impl IndexSet {
    /// Adds an index.
    pub fn insert(&mut self, index: u32) {
        let place = self.0.partition_point(|(first, _)| *first <= index);
        let before = place.checked_sub(1).and_then(|at| self.0.get(at).copied());
        if before.is_some_and(|(_, last)| last >= index) {
            return;
        }
        let joins_before = before.is_some_and(|(_, last)| last + 1 == index);
        let after = self.0.get(place).copied();
        let joins_after = after.is_some_and(|(first, _)| first == index + 1);
        match (joins_before, joins_after) {
            (true, true) => {
                self.0[place - 1].1 = after.map_or(index, |(_, last)| last);
                self.0.remove(place);
            }
            (true, false) => self.0[place - 1].1 = index,
            (false, true) => self.0[place].0 = index,
            (false, false) => self.0.insert(place, (index, index)),
        }
    }

    /// Whether an index is in it.
    pub fn contains(&self, index: u32) -> bool {
        let place = self.0.partition_point(|(first, _)| *first <= index);
        place
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .is_some_and(|(_, last)| *last >= index)
    }

    /// The number of its indexes.
    pub fn len(&self) -> u32 {
        let lengths = self.0.iter().map(|(first, last)| last - first + 1);
        lengths.fold(0, u32::saturating_add)
    }

    /// Whether no index is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The greatest index in it.
    pub fn greatest(&self) -> Option<u32> {
        self.0.last().map(|(_, last)| *last)
    }

    /// The number of indexes that are in both sets.
    pub fn shared(&self, other: &Self) -> u32 {
        let (mut ours, mut theirs) = (0, 0);
        let mut shared = 0_u32;
        while let Some((one, two)) = self.0.get(ours).zip(other.0.get(theirs)) {
            let (first, last) = (one.0.max(two.0), one.1.min(two.1));
            if first <= last {
                shared = shared.saturating_add(last - first + 1);
            }
            if one.1 <= two.1 {
                ours += 1;
            } else {
                theirs += 1;
            }
        }
        shared
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// The text is not a set of indexes in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotIndexes;

impl FromStr for IndexSet {
    type Err = NotIndexes;

    /// Upstream: `validateIndexesFormat` of `pkg/apis/batch/validation/validation.go`.
    fn from_str(text: &str) -> Result<Self, NotIndexes> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        if text.is_empty() {
            return Ok(Self(ranges));
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let number = digits.then(|| text.parse::<u32>().ok()).flatten();
                number.filter(|number| *number < u32::MAX).ok_or(NotIndexes)
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last || ranges.last().is_some_and(|(_, before)| *before >= first) {
                return Err(NotIndexes);
            }
            match ranges.last_mut() {
                Some((_, before)) if *before + 1 == first => *before = last,
                _ => ranges.push((first, last)),
            }
        }
        Ok(Self(ranges))
    }
}

impl Serialize for IndexSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IndexSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = |_| serde::de::Error::custom("not a set of indexes");
        text.parse().map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_upstream_writes_them() {
        for (indexes, words) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[5, 3, 4, 0], "0,3-5"),
            (&[1, 0, 1, 2, 7, 9, 8], "0-2,7-9"),
        ] {
            let mut set = IndexSet::default();
            for index in indexes {
                set.insert(*index);
            }
            assert_eq!(set.to_string(), words);
            assert_eq!(words.parse(), Ok(set.clone()));
            let all: std::collections::BTreeSet<u32> = indexes.iter().copied().collect();
            assert!((0..12).all(|index| set.contains(index) == all.contains(&index)));
            assert_eq!(set.len() as usize, all.len());
        }
        for wrong in [
            "a",
            "1-",
            "-1",
            "3,1",
            "5-2",
            "1,,2",
            "1,1",
            "+1",
            "4294967295",
        ] {
            assert_eq!(wrong.parse::<IndexSet>(), Err(NotIndexes), "{wrong}");
        }
    }

    #[test]
    fn indexes_of_two_sets_are_counted_by_ranges() {
        for (one, two, shared) in [
            ("", "", 0),
            ("", "0-9", 0),
            ("0-4,6", "3,5-9", 2),
            ("0,2-3", "1,3", 1),
            ("0-2147483646", "5,7-8,2147483646", 4),
            ("0-2147483646", "0-2147483646", i32::MAX.unsigned_abs()),
        ] {
            let set = |text: &str| text.parse::<IndexSet>().unwrap();
            // workloads 4a
            assert_eq!(set(one).shared(&set(two)), shared, "{one} and {two}");
            assert_eq!(set(two).shared(&set(one)), shared, "{two} and {one}");
        }
    }
}
