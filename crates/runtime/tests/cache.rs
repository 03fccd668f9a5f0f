//! `RuntimeCache` over the runtime in memory, by a paused clock.

use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::FullName;
use mirrorlet_core::observed::{Pods, RunningPod};
use mirrorlet_runtime::RuntimeError;
use mirrorlet_runtime::cache::{PERIOD, RuntimeCache};
use mirrorlet_testing::FakeRuntime;
use tokio::time::Instant;

fn pods(uid: &str) -> Pods {
    Pods(vec![RunningPod {
        uid: uid.into(),
        full_name: FullName::new("p", "ns"),
        ..RunningPod::default()
    }])
}

fn bed() -> (FakeRuntime, RuntimeCache) {
    let fake = FakeRuntime::new();
    let cache = RuntimeCache::new(Arc::new(fake.clone()));
    (fake, cache)
}

#[tokio::test(start_paused = true)]
async fn a_list_is_good_for_three_seconds() {
    let (fake, cache) = bed();
    fake.set_pod_list(pods("a"));
    assert_eq!(*cache.get_pods().await.unwrap(), pods("a"));
    fake.set_pod_list(pods("b"));
    tokio::time::advance(PERIOD).await;
    assert_eq!(*cache.get_pods().await.unwrap(), pods("a"));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(*cache.get_pods().await.unwrap(), pods("b"));
    fake.assert_call_counts("get_pods", 2);
}

#[tokio::test(start_paused = true)]
async fn an_update_is_forced_by_when_the_last_list_was_asked_for() {
    let (fake, cache) = bed();
    fake.set_latency(Duration::from_secs(1));
    cache.get_pods().await.unwrap();
    // The list took a second: what happened in it may not be in it.
    let meanwhile = Instant::now()
        .checked_sub(Duration::from_millis(500))
        .unwrap();
    cache.force_update_if_older(meanwhile).await.unwrap();
    fake.assert_call_counts("get_pods", 2);
    cache.force_update_if_older(meanwhile).await.unwrap();
    fake.assert_call_counts("get_pods", 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_leaves_what_was_known_and_many_who_ask_share_one() {
    let (fake, cache) = bed();
    fake.set_pod_list(pods("a"));
    cache.get_pods().await.unwrap();
    let refused = RuntimeError::Local("no".to_owned());
    fake.refuse_next("get_pods", 1, refused);
    let forced = cache.force_update_if_older(Instant::now() + PERIOD).await;
    assert!(forced.is_err());
    assert_eq!(*cache.get_pods().await.unwrap(), pods("a"));
    fake.assert_call_counts("get_pods", 2);
    fake.set_latency(Duration::from_secs(1));
    tokio::time::advance(PERIOD * 2).await;
    let all = futures::future::join_all((0..5).map(|_| cache.get_pods())).await;
    assert!(all.iter().all(Result::is_ok));
    fake.assert_call_counts("get_pods", 3);
}
