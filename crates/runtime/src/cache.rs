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
use mirrorlet_core::observed::Pods;

/// How old a list may be (upstream `runtimeCacheRefreshPeriod`).
pub const PERIOD: Duration = Duration::from_secs(3);

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
