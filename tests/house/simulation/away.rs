//! A story without dice: a manifest is removed while the runtime is away.

use std::time::Duration;

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::PODS;
use mirrorlet_runtime::RuntimeError;

use super::story::Story;
use super::versions::{NAMESPACE, Temper};
use super::world::World;

/// A life with an API server and without restores.
const SEED: u64 = 2;
/// Longer than a start, a stop with its grace, and every pause between two attempts.
const LONG: Duration = Duration::from_mins(30);

async fn a_removal_while_the_runtime_is_away() {
    let mut world = World::new(SEED, Story::default());
    let api = world.api.clone().expect("an API server");
    let number = world.throw(0, Temper::Good);
    world.write(number);
    tokio::time::sleep(LONG).await;
    let (uid, full_name) = (world.ever[number].uid(), world.ever[number].full_name());
    let mirror = || api.get(&PODS, NAMESPACE, &full_name.name);
    let before = mirror().expect("a mirror");
    assert_eq!(before["status"]["phase"], "Running", "{before:#}");

    let gone = RuntimeError::Unavailable("gone".to_owned());
    world.fake.set_err(Some(gone));
    world.fake.break_watches();
    world.remove(0);
    tokio::time::sleep(LONG).await;
    let during = mirror().expect("a mirror while its containers run");
    assert!(world.fake.pod(&uid).anything_running());
    // pods 33
    assert_eq!(meta::uid(&during), meta::uid(&before));
    let deleted = &during["metadata"]["deletionTimestamp"];
    assert!(deleted.is_null(), "{during:#}");

    world.fake.set_err(None);
    tokio::time::sleep(LONG).await;
    assert!(world.fake.pod(&uid).is_empty(), "the stop goes on");
    assert_eq!(mirror(), None, "the mirror goes after its containers");
    world.check_now();
    world.end().await;
}

#[test]
fn a_mirror_stays_while_the_runtime_is_away() {
    super::panics::begin();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(a_removal_while_the_runtime_is_away());
}
