//! `RuntimeCache`: the pods that run, as of a few seconds ago.
//!
//! The status cache (`store::cache`) says what each pod does; this is for those few who need to
//! know which pods there are at all, from the runtime itself, before they do something that can't
//! be undone. Its seeds' double (`FakeRuntimeCache`) is not needed: over a `FakeRuntime`, on a
//! paused clock, this very cache is what tests use.
//!
//! Upstream: `pkg/kubelet/container/runtime_cache.go`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Result, Runtime};
use crate::pod::observed::Pods;

/// How old a list may be (upstream `runtimeCacheRefreshPeriod`).
const PERIOD: Duration = Duration::from_secs(3);

/// A list of the pods that run.
#[derive(Default)]
struct Listed {
    /// When it was asked for: what has happened since may not be in it.
    asked_at: Option<Instant>,
    pods: Arc<Pods>,
}

impl Listed {
    fn is_older_than(&self, time: Instant) -> bool {
        self.asked_at.is_none_or(|asked_at| asked_at < time)
    }
}

/// The pods that run, listed anew when what is known is too old. A list that fails leaves what
/// was known.
pub struct RuntimeCache {
    runtime: Arc<dyn Runtime>,
    /// Held while the runtime is asked, which is bounded by the call's own deadline: who comes
    /// meanwhile shares the answer.
    listed: Mutex<Listed>,
}

impl RuntimeCache {
    /// A cache over that runtime, which holds nothing yet.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            runtime,
            listed: Mutex::default(),
        }
    }

    /// The pods that run, as of three seconds ago at most.
    pub async fn get_pods(&self) -> Result<Arc<Pods>> {
        let mut listed = self.listed.lock().await;
        let is_old = listed
            .asked_at
            .is_none_or(|asked_at| asked_at.elapsed() > PERIOD);
        if is_old {
            self.update(&mut listed).await?;
        }
        Ok(Arc::clone(&listed.pods))
    }

    /// Lists the pods that run, unless what is known was asked for at `time` or later.
    pub async fn force_update_if_older(&self, time: Instant) -> Result<()> {
        let mut listed = self.listed.lock().await;
        if listed.is_older_than(time) {
            self.update(&mut listed).await?;
        }
        Ok(())
    }

    async fn update(&self, listed: &mut Listed) -> Result<()> {
        let asked_at = Instant::now();
        let pods = Arc::new(self.runtime.get_pods(false).await?);
        *listed = Listed {
            asked_at: Some(asked_at),
            pods,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FullName;
    use crate::pod::observed::RunningPod;
    use crate::runtime::RuntimeError;
    use crate::runtime::fake::FakeRuntime;

    fn pods(uid: &str) -> Pods {
        Pods(vec![RunningPod {
            uid: uid.into(),
            full_name: FullName::new("p", "ns"),
            ..RunningPod::empty()
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
}
