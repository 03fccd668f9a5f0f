//! The embedded API of the real program under load: killed while it writes, watched by many.

use std::path::Path;
use std::time::Duration;

use crate::common::Bed;
use crate::common::alone::Alone;
use crate::common::writes::{Kills, Load, watch_changes, write_and_kill};

const BINARY: &str = env!("CARGO_BIN_EXE_mirrorlet");

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_killed_has_all_that_it_acknowledged() {
    let bed = Bed::new();
    let options = Kills {
        kills: 5,
        writes: 30,
    };
    let outcome = write_and_kill(Path::new(BINARY), &bed, options).await;
    // embedded 34
    assert_eq!(outcome.faults(), 0, "{outcome:#?}");
    assert!(outcome.acknowledged >= options.kills * options.writes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_watches_see_every_change_once_and_in_order() {
    let bed = Bed::new();
    let agent = Alone::serve(Path::new(BINARY), &bed);
    let load = Load {
        watches: 100,
        changes: 100,
        pause: Duration::ZERO,
    };
    let seen = watch_changes(agent.client().await, load).await;
    // embedded 35
    assert_eq!(
        (seen.lost, seen.out_of_order, seen.doubled),
        (0, 0, 0),
        "{seen:?}"
    );
}
