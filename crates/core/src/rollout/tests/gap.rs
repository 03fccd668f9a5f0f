use std::time::Duration;

use crate::rollout::Gap;

#[test]
fn connections_wait_while_nobody_would_accept_them() {
    let ms = Duration::from_millis;
    let stopping = |since, left, accepts| Gap::Stopping {
        since: ms(since),
        left: ms(left),
        overdue: ms(0),
        accepts,
    };
    // It had a grace of 30 s.
    let hanging = |overdue, accepts| Gap::Stopping {
        since: ms(30_000 + overdue),
        left: ms(0),
        overdue: ms(overdue),
        accepts,
    };
    let unstopped = |since, accepts| Gap::Unstopped {
        since: ms(since),
        accepts,
    };
    let starting = |since| Gap::Starting { since: ms(since) };
    // rollouts S6
    for (gap, waits, is_over) in [
        // Nobody knows whether it was told to end.
        (Gap::Serving, false, false),
        // What is told to end mostly does.
        (stopping(0, 30_000, true), true, false),
        (stopping(1_999, 28_001, true), true, false),
        // It doesn't listen to the signal, and serves on until it is killed.
        (stopping(2_000, 28_000, true), false, false),
        (stopping(28_999, 1_001, true), false, false),
        (stopping(29_000, 1_000, true), true, false),
        // It is being killed.
        (hanging(0, true), true, false),
        (hanging(4_999, true), true, false),
        // Nobody kills it, and it serves.
        (hanging(5_000, true), false, false),
        (hanging(90_000, true), false, false),
        (hanging(90_000, false), true, false),
        // The stop failed, and it serves, or may have closed its port.
        (unstopped(0, true), false, true),
        (unstopped(0, false), true, false),
        (unstopped(9_999, false), true, false),
        (unstopped(10_000, false), false, true),
        // It finishes what it has begun.
        (stopping(20_000, 10_000, false), true, false),
        (starting(0), true, false),
        (starting(9_999), true, false),
        // It may never listen there: people are to know.
        (starting(10_000), false, true),
        (Gap::Over, false, true),
    ] {
        // rollouts S11
        assert_eq!((gap.waits(), gap.is_over()), (waits, is_over), "{gap:?}");
    }
}
