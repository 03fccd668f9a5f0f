//! Passes of a collection on a clock that is set.

use super::*;

#[tokio::test]
async fn a_pass_after_the_clock_was_set_forward_removes_nothing_for_its_age() {
    let mut bed = aging_bed();
    bed.pull("a:1", 60).await;
    bed.pass(0, 1000).await;
    let timer = Instant::now();
    // The clock was a year behind, and is set right within five minutes.
    let year = bed.began + Duration::from_hours(365 * 24);
    for (now, timer, is_left) in [
        (year, timer + PERIOD, true),
        (
            year + Duration::from_hours(2),
            timer + PERIOD + Duration::from_hours(2),
            false,
        ),
    ] {
        bed.gc.look_at_clock(now, timer);
        bed.gc.collect(now, false).await;
        // docker 51
        assert_eq!(!bed.names().await.is_empty(), is_left);
    }
}

#[tokio::test]
async fn an_image_that_was_noted_while_a_pass_ran_is_not_old_once_the_clock_is_set_forward() {
    let mut bed = aging_bed();
    // They are older than an image may be unused.
    bed.gc.records = ImageRecords::new(bed.began - Duration::from_hours(3));
    bed.pull("a:1", 60).await;
    // The clock was read before the pull was noted.
    bed.pass(0, 1000).await;
    let (_, timer) = bed.gc.clock;
    let year = bed.began + Duration::from_hours(365 * 24);
    for (later, is_left) in [(Duration::ZERO, true), (Duration::from_hours(2), false)] {
        bed.gc.look_at_clock(year + later, timer + PERIOD + later);
        bed.gc.collect(year + later, false).await;
        // docker 51
        assert_eq!(!bed.names().await.is_empty(), is_left, "{later:?}");
    }
}

#[test]
fn an_image_came_before_the_pass_that_finds_it_unless_the_clock_was_set_back() {
    let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).unwrap();
    for (noted, expected) in [(-10, -10), (0, 0), (10, 0), (301, 301)] {
        // docker 51
        assert_eq!(came(at(noted), at(0)), at(expected));
    }
}
