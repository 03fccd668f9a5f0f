use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn image(id: &str) -> SeenImage {
    SeenImage {
        id: id.into(),
        size_bytes: 100,
        since: None,
        is_in_use: false,
        is_kept: false,
    }
}

fn used(id: &str) -> SeenImage {
    SeenImage {
        is_in_use: true,
        ..image(id)
    }
}

fn ids(images: &[Evictable]) -> Vec<&str> {
    images.iter().map(|image| image.id.as_str()).collect()
}

#[test]
fn space_is_freed_from_the_high_threshold_down_to_the_low_one() {
    let policy = ImageGcPolicy::default();
    for (available, used, to_free) in [
        (100, 0, 0),
        (16, 84, 0),
        // Upstream's rounding: 15 free of 100 are 85 used.
        (15, 85, 5),
        (10, 90, 10),
        (0, 100, 20),
    ] {
        let disk = DiskUsage {
            capacity_bytes: 100 * GIB,
            available_bytes: available * GIB,
        };
        assert_eq!(disk.used_percent(), Ok(used), "{available}");
        assert_eq!(
            disk.bytes_to_free(&policy),
            Ok(to_free * GIB),
            "{available}"
        );
    }
    let none = DiskUsage {
        capacity_bytes: 0,
        available_bytes: 0,
    };
    assert_eq!(none.bytes_to_free(&policy), Err(InvalidCapacity));
    // More free than there is: reserved blocks are counted oddly by some file systems.
    let odd = DiskUsage {
        capacity_bytes: 10,
        available_bytes: u64::MAX,
    };
    assert_eq!(odd.bytes_to_free(&policy), Ok(0));
}

#[test]
fn what_is_used_kept_or_unknown_stays() {
    let mut records = ImageRecords::new(at(0));
    let kept = SeenImage {
        is_kept: true,
        ..image("kept")
    };
    let seen = [image("free"), used("used"), kept];
    records.detect(&seen, at(0));
    // docker 51
    assert_eq!(ids(&records.eviction_order(&seen)), ["free"]);
    // One that came between the two looks.
    let more = [image("free"), image("new")];
    assert_eq!(ids(&records.eviction_order(&more)), ["free"]);
}

#[test]
fn what_was_used_longest_ago_goes_first_then_what_was_there_first() {
    let mut records = ImageRecords::new(at(0));
    records.detect(&[used("late"), used("early"), image("never")], at(0));
    records.detect(
        &[used("late"), image("early"), image("never"), image("new")],
        at(300),
    );
    let seen = [image("new"), image("late"), image("early"), image("never")];
    records.detect(&seen, at(600));
    let order = records.eviction_order(&seen);
    // docker 51
    assert_eq!(ids(&order), ["never", "new", "early", "late"]);
    // A removed image is forgotten: pulled again, it is new.
    records.detect(&[image("new")], at(900));
    records.detect(&[image("new"), image("never")], at(1200));
    let order = records.eviction_order(&[image("new"), image("never")]);
    assert_eq!(ids(&order), ["new", "never"]);
}

#[test]
fn the_young_are_spared_and_those_of_the_first_look_are_not_young() {
    let policy = ImageGcPolicy::default();
    let mut records = ImageRecords::new(at(0));
    records.detect(&[image("a")], at(0));
    let seen = [image("a"), image("b")];
    records.detect(&seen, at(300));
    let order = records.eviction_order(&seen);
    let enough = |now| ImageRecords::old_enough(&order, &policy, at(now));
    assert_eq!(ids(&enough(300)), ["a"]);
    assert_eq!(ids(&enough(419)), ["a"]);
    // docker 51
    assert_eq!(ids(&enough(420)), ["a", "b"]);
    // Of one that came a moment ago, the first look knows.
    let mut records = ImageRecords::new(at(0));
    let fresh = SeenImage {
        since: Some(at(290)),
        ..image("fresh")
    };
    records.detect(&[image("a"), fresh.clone()], at(300));
    let order = records.eviction_order(&[image("a"), fresh]);
    let enough = |now| ImageRecords::old_enough(&order, &policy, at(now));
    assert_eq!(ids(&enough(300)), ["a"]);
    assert_eq!(ids(&enough(410)), ["a", "fresh"]);
    // The first image of an Engine that had none is young too.
    let mut records = ImageRecords::new(at(0));
    records.detect(&[], at(0));
    records.detect(&[image("a")], at(300));
    let order = records.eviction_order(&[image("a")]);
    assert!(ImageRecords::old_enough(&order, &policy, at(300)).is_empty());
}

#[test]
fn the_old_go_once_the_records_is_as_old() {
    let mut policy = ImageGcPolicy::default();
    let mut records = ImageRecords::new(at(0));
    let seen = [image("never"), image("once")];
    records.detect(&[image("never"), used("once")], at(0));
    records.detect(&[image("never"), used("once")], at(300));
    records.detect(&seen, at(600));
    let order = records.eviction_order(&seen);
    assert!(records.too_old(&order, &policy, at(1_000_000)).is_empty());
    policy.max_age = Some(Duration::from_secs(1000));
    let old = |now| records.too_old(&order, &policy, at(now));
    assert!(old(1000).is_empty());
    assert_eq!(ids(&old(1001)), ["never"]);
    assert_eq!(ids(&old(1300)), ["never"]);
    assert_eq!(ids(&old(1301)), ["never", "once"]);
}

#[test]
fn no_image_stays_until_a_clock_that_was_set_back_has_caught_up() {
    const YEAR: i64 = 365 * 24 * 3600;
    let policy = ImageGcPolicy {
        max_age: Some(Duration::from_secs(1000)),
        ..ImageGcPolicy::default()
    };
    let mut records = ImageRecords::new(at(YEAR));
    records.detect(&[image("old"), used("used")], at(YEAR));
    records.detect(&[image("old"), used("used"), image("new")], at(YEAR + 300));
    let pulled = |id, since| SeenImage {
        since: Some(at(since)),
        ..image(id)
    };
    let seen = [
        image("old"),
        image("used"),
        image("new"),
        pulled("pulled", YEAR - 10),
        // The clock was set back by little: it came a moment ago.
        pulled("just", 1),
    ];
    records.detect(&seen, at(0));
    let order = records.eviction_order(&seen);
    let enough = ImageRecords::old_enough(&order, &policy, at(0));
    // docker 51
    assert_eq!(ids(&enough), ["old", "pulled", "new", "used"]);
    assert!(records.too_old(&order, &policy, at(1000)).is_empty());
    let too_old = records.too_old(&order, &policy, at(1001));
    // docker 51
    assert_eq!(ids(&too_old), ["old", "pulled", "new", "used"]);
}

#[test]
fn a_clock_that_was_behind_for_one_look_makes_no_image_old() {
    const YEAR: i64 = 365 * 24 * 3600;
    let policy = ImageGcPolicy {
        max_age: Some(Duration::from_secs(1000)),
        ..ImageGcPolicy::default()
    };
    let pulled = SeenImage {
        since: Some(at(YEAR - 10)),
        ..image("pulled")
    };
    for began in [YEAR, -YEAR] {
        let mut records = ImageRecords::new(at(began));
        records.detect(&[used("used"), pulled.clone()], at(YEAR));
        records.detect(&[used("used"), pulled.clone(), image("seen")], at(0));
        let seen = [image("used"), pulled.clone(), image("seen")];
        records.detect(&seen, at(YEAR + 300));
        let order = records.eviction_order(&seen);
        // docker 51
        assert_eq!(ids(&order), ["pulled", "seen", "used"], "{began}");
        let enough = ImageRecords::old_enough(&order, &policy, at(YEAR + 300));
        // docker 51
        assert_eq!(ids(&enough), ["pulled", "used"], "{began}");
        let too_old = |now| records.too_old(&order, &policy, at(now));
        // docker 51
        assert!(too_old(YEAR + 990).is_empty(), "{began}");
        // docker 51
        assert_eq!(ids(&too_old(YEAR + 1001)), ["pulled"], "{began}");
        assert_eq!(too_old(YEAR + 1301).len(), 3, "{began}");
    }
}

#[test]
fn a_clock_that_is_set_forward_makes_no_image_old() {
    const YEAR: i64 = 365 * 24 * 3600;
    let policy = ImageGcPolicy {
        max_age: Some(Duration::from_secs(1000)),
        ..ImageGcPolicy::default()
    };
    // It is behind for longer than an image may be unused.
    let mut records = ImageRecords::new(at(-YEAR));
    records.detect(&[image("never"), used("used")], at(-YEAR));
    records.detect(&[image("never"), used("used")], at(1500 - YEAR));
    let pulled = SeenImage {
        since: Some(at(1700 - YEAR)),
        ..image("pulled")
    };
    let seen = [image("never"), image("used"), pulled];
    records.set_forward(at(1500 - YEAR), Duration::from_hours(365 * 24));
    records.detect(&seen, at(1800));
    let order = records.eviction_order(&seen);
    let too_old = |now| records.too_old(&order, &policy, at(now));
    // docker 51
    assert_eq!(ids(&too_old(1800)), ["never"]);
    assert_eq!(ids(&too_old(2500)), ["never"]);
    // docker 51
    assert_eq!(ids(&too_old(2501)), ["never", "pulled", "used"]);
}

proptest! {
    #[test]
    fn nothing_in_use_kept_or_young_is_ever_removed(
        looks in prop::collection::vec(prop::collection::vec((0_u8..6, any::<bool>(), any::<bool>()), 0..8), 1..6),
        max_age in prop::option::of(0_u64..2000),
    ) {
        let policy = ImageGcPolicy { max_age: max_age.map(Duration::from_secs), ..ImageGcPolicy::default() };
        let mut records = ImageRecords::new(at(0));
        let mut first_seen: BTreeMap<String, i64> = BTreeMap::new();
        for (look, images) in looks.iter().enumerate() {
            let now = i64::try_from(look).unwrap() * 100;
            let mut seen: Vec<SeenImage> = Vec::new();
            for (id, is_in_use, is_kept) in images {
                let id = id.to_string();
                if seen.iter().all(|image| image.id != id) {
                    seen.push(SeenImage { id, size_bytes: 1, since: None, is_in_use: *is_in_use, is_kept: *is_kept });
                }
            }
            let was_empty = look == 0;
            first_seen.retain(|id, _| seen.iter().any(|image| image.id == *id));
            for image in &seen {
                first_seen.entry(image.id.clone()).or_insert(if was_empty { i64::MIN / 2 } else { now });
            }
            records.detect(&seen, at(now));
            let order = records.eviction_order(&seen);
            for image in &order {
                let of = seen.iter().find(|seen| seen.id == image.id).unwrap();
                prop_assert!(!of.is_in_use && !of.is_kept);
            }
            for image in ImageRecords::old_enough(&order, &policy, at(now)) {
                // docker 51
                prop_assert!(now - first_seen[&image.id] >= 120);
            }
            for image in records.too_old(&order, &policy, at(now)) {
                prop_assert!(u64::try_from(now).unwrap() > max_age.unwrap(), "{}", image.id);
            }
        }
    }

    #[test]
    fn what_is_freed_reaches_the_low_threshold_and_no_number_overflows(
        capacity in 1_u64.., available: u64, high in 0_u8..=100, low in 0_u8..=100,
    ) {
        let policy = ImageGcPolicy {
            high_threshold_percent: high,
            low_threshold_percent: low.min(high),
            ..ImageGcPolicy::default()
        };
        let disk = DiskUsage { capacity_bytes: capacity, available_bytes: available.min(capacity) };
        let to_free = disk.bytes_to_free(&policy).unwrap();
        if to_free > 0 {
            let after = DiskUsage { available_bytes: disk.available_bytes + to_free, ..disk };
            prop_assert!(after.bytes_to_free(&policy).unwrap() == 0 || low.min(high) == high);
        }
    }
}
