//! The Engine's version, cached for a while.
//!
//! Upstream: `pkg/kubelet/util/cache/object_cache.go` as dockershim used it
//! (`docker_service.go`, `versionCacheTTL`), cri-dockerd `core/docker_service.go`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::engine::{EngineVersion, Result, SharedEngine};

/// How long an answer is remembered, beside the time that it took: an Engine that is slow to
/// answer is asked less often.
const TTL: Duration = Duration::from_mins(1);

/// An answer.
struct Known {
    version: EngineVersion,
    until: Instant,
    /// Number of reconnects before it was read.
    reconnects: u64,
}

/// The Engine's version. Concurrent callers share one request; failures are not cached.
pub(super) struct VersionCache {
    engine: SharedEngine,
    reconnects: AtomicU64,
    /// Held while the Engine is asked, which is bounded by the call's own deadline.
    known: Mutex<Option<Known>>,
}

impl VersionCache {
    pub(super) fn new(engine: SharedEngine) -> Self {
        Self {
            engine,
            reconnects: AtomicU64::new(0),
            known: Mutex::default(),
        }
    }

    /// The version, of a minute ago at most.
    pub(super) async fn get(&self) -> Result<EngineVersion> {
        let mut known = self.known.lock().await;
        let reconnects = self.reconnects.load(Ordering::Acquire);
        let began = Instant::now();
        if let Some(known) = &*known
            && known.reconnects == reconnects
            && began < known.until
        {
            return Ok(known.version.clone());
        }
        let version = self.engine.version().await?;
        let took = began.elapsed();
        *known = Some(Known {
            version: version.clone(),
            until: began + took + TTL + took,
            reconnects,
        });
        Ok(version)
    }

    /// Another Engine may answer from now on.
    pub(super) fn forget(&self) {
        self.reconnects.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::EngineError;
    use crate::fake_engine::{FakeEngine, FaultPoint};
    use crate::operation::Operation;

    fn bed() -> (Arc<FakeEngine>, VersionCache) {
        let engine = Arc::new(FakeEngine::new());
        (Arc::clone(&engine), VersionCache::new(engine))
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_is_remembered_for_a_minute_or_until_a_reconnect() {
        let (engine, cache) = bed();
        let asked = || engine.count(Operation::Version);
        let version = cache.get().await.unwrap();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(cache.get().await.unwrap(), version);
        assert_eq!(asked(), 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        cache.get().await.unwrap();
        assert_eq!(asked(), 2);
        cache.forget();
        cache.get().await.unwrap();
        assert_eq!(asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_meanwhile_shares_the_answer() {
        let (engine, cache) = bed();
        engine.hold(Operation::Version);
        let asking = futures::future::join_all((0..5).map(|_| cache.get()));
        let release = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            engine.release(Operation::Version);
        };
        let (answers, ()) = futures::future::join(asking, release).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(engine.count(Operation::Version), 1);
        // It took five seconds, and is remembered for five more.
        tokio::time::advance(Duration::from_secs(64)).await;
        cache.get().await.unwrap();
        assert_eq!(engine.count(Operation::Version), 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        cache.get().await.unwrap();
        assert_eq!(engine.count(Operation::Version), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_not_remembered() {
        let (engine, cache) = bed();
        let refused = EngineError::Api {
            status: 500,
            message: "not now".to_owned(),
        };
        engine.fail(Operation::Version, None, FaultPoint::Before, refused);
        assert!(cache.get().await.is_err());
        assert!(cache.get().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_from_before_a_reconnect_is_not_remembered() {
        let (engine, cache) = bed();
        engine.hold(Operation::Version);
        let reconnect = async {
            tokio::task::yield_now().await;
            cache.forget();
            engine.release(Operation::Version);
        };
        let (answer, ()) = futures::future::join(cache.get(), reconnect).await;
        answer.unwrap();
        cache.get().await.unwrap();
        assert_eq!(engine.count(Operation::Version), 2);
    }
}
