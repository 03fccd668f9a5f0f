//! The order in which pods of a `StatefulSet` would start and stop, if each became Ready.

use std::collections::{BTreeMap, BTreeSet};

use super::{Member, StatefulSet, turns};
use crate::api::Timestamp;
use crate::small::SmallCollect;

/// The order in which pods start and stop: the ordinals of each step. A step begins once the pods of
/// earlier steps are Ready, or have stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// The pods that start.
    pub starts: Vec<Vec<i32>>,
    /// The pods that stop.
    pub stops: Vec<Vec<i32>>,
}

/// Computes the order in which pods of a set start and stop, using [`turns`], if these ordinals exist.
pub fn steps(set: &StatefulSet, there: &BTreeSet<i32>) -> Steps {
    // Ready for longer than anybody waits.
    let (ready, now) = (Member::Started(Some(Timestamp::MIN)), Timestamp::MAX);
    let mut members: BTreeMap<i32, Member> =
        there.iter().map(|ordinal| (*ordinal, ready)).collect_map();
    let mut found = Steps::default();
    loop {
        let runs = turns(set, &members, now).runs;
        let is_new = |ordinal: &&i32| !members.contains_key(*ordinal);
        let starts: Vec<i32> = runs.iter().filter(is_new).copied().collect();
        let goes = |ordinal: &&i32| !runs.contains(*ordinal);
        let stops: Vec<i32> = members.keys().filter(goes).copied().collect();
        if starts.is_empty() && stops.is_empty() {
            return found;
        }
        members.retain(|ordinal, _| runs.contains(ordinal));
        members.extend(starts.iter().map(|ordinal| (*ordinal, ready)));
        if !starts.is_empty() {
            found.starts.push(starts);
        }
        if !stops.is_empty() {
            found.stops.push(stops);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Ordinals of the pods of a set, those that there are, and the steps.
    #[test]
    fn pods_start_and_stop_in_the_order_that_is_said() {
        for (ordered, ordinals, there, starts, stops) in [
            (true, 0..3, vec![], vec![vec![0], vec![1], vec![2]], vec![]),
            (true, 0..3, vec![0, 2], vec![vec![1]], vec![]),
            (true, 0..1, vec![0, 1, 2], vec![], vec![vec![2], vec![1]]),
            (true, 5..7, vec![0, 5], vec![vec![6]], vec![vec![0]]),
            (true, 0..0, vec![0, 1], vec![], vec![vec![1], vec![0]]),
            (
                false,
                0..3,
                vec![7, 8],
                vec![vec![0, 1, 2]],
                vec![vec![7, 8]],
            ),
            (true, 0..2, vec![0, 1], vec![], vec![]),
        ] {
            let set = StatefulSet {
                namespace: "default".to_owned(),
                name: "db".to_owned(),
                ordinals,
                ordered,
                min_ready: Duration::from_secs(5),
                claims: Vec::new(),
                claim_templates: Vec::new(),
            };
            let found = steps(&set, &there.iter().copied().collect());
            // workloads 24
            assert_eq!(found, Steps { starts, stops }, "{there:?}");
        }
    }
}
