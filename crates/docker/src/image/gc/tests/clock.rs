//! Passes of a collection on a clock that is set.

use super::*;

#[tokio::test]
async fn a_pass_after_the_clock_was_set_forward_removes_nothing_for_its_age() {
    let policy = ImageGcPolicy {
        max_age: Some(Duration::from_hours(1)),
        ..ImageGcPolicy::default()
    };
    let mut bed = bed(false, policy);
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
