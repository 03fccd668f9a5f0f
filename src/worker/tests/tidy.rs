//! The removal of what is left of unknown pods, on a disk that doesn't answer.

use super::bed::{Bed, SWEEP, pod, runs};
use super::*;

#[tokio::test(start_paused = true)]
async fn remains_that_take_long_to_remove_keep_only_their_own_pod_waiting() {
    let bed = Bed::start();
    bed.fake.leave_orphan(&"left".into());
    let mut hold = bed.fake.block("delete_pod", Some(&"left".into()));
    bed.want(&[&pod("a")]);
    hold.arrived(1).await;
    bed.until_runs("a").await;
    bed.want(&[&pod("b"), &pod("left")]);
    bed.until_runs("b").await;
    bed.until_gone("a").await;
    tokio::time::sleep(SWEEP).await;
    // docker 44
    assert!(!runs(&bed.fake, "left"), "it would find old volumes");
    hold.release();
    bed.until_runs("left").await;
    tokio::time::sleep(SWEEP).await;
    assert!(runs(&bed.fake, "left") && runs(&bed.fake, "b"));
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn an_agent_ends_while_remains_are_being_removed() {
    let mut bed = Bed::start();
    bed.fake.leave_orphan(&"left".into());
    let mut hold = bed.fake.block("delete_pod", Some(&"left".into()));
    bed.want(&[&pod("a")]);
    hold.arrived(1).await;
    bed.until_runs("a").await;
    bed.cancel.cancel();
    let ended = async { while bed.parts.join_next().await.is_some() {} };
    let ended = tokio::time::timeout(Duration::from_mins(1), ended).await;
    // docker 44
    assert!(ended.is_ok(), "the workers don't end");
}
