//! `RuntimeCache`: the running pods, at most a few seconds old.
//!
//! The status cache (`store::cache`) has the status of each pod; this one is for callers that need to
//! know which pods exist at all, from the runtime itself, before they do something irreversible. The
//! seeds' double (`FakeRuntimeCache`) is not needed: tests use this cache on top of a `FakeRuntime`, on
//! a paused clock.
//!
//! Upstream: `pkg/kubelet/container/runtime_cache.go`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Result, Runtime};
use mirrorlet_core::observed::Pods;

/// How old a list may be (upstream `runtimeCacheRefreshPeriod`).
pub const PERIOD: Duration = Duration::from_secs(3);

/// A list of the pods that run.
#[derive(Default)]
struct Listed {
    /// When it was requested: later changes may be missing.
    asked_at: Option<Instant>,
    pods: Arc<Pods>,
}

impl Listed {
    fn is_older_than(&self, time: Instant) -> bool {
        self.asked_at.is_none_or(|asked_at| asked_at < time)
    }
}

/// The running pods; listed again when the cached list is too old. A failed list leaves the cached one.
pub struct RuntimeCache {
    runtime: Arc<dyn Runtime>,
    /// Locked during a call to the runtime, which has its own deadline: concurrent callers share the
    /// answer.
    listed: Mutex<Listed>,
}

impl RuntimeCache {
    /// Returns an empty cache over that runtime.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            runtime,
            listed: Mutex::default(),
        }
    }

    /// Returns the running pods, at most three seconds old.
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

    /// Lists the running pods, unless the cached list was requested at `time` or later.
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
