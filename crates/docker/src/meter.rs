//! Counts and times every Engine call in the agent's metrics, and logs it at debug level.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::operation::Operation;
use mirrorlet_host::telemetry::{Metrics, calls};

/// Called when an answer is late: triggers a check whether the Engine answers at all. Must not wait.
pub(crate) type LivenessCheck = Arc<dyn Fn() + Send + Sync>;

/// How long a call may take before it is asked whether the Engine answers at all. Honest calls
/// that take longer (pulls, stops) cost a question each time.
const DOUBT_AFTER: Duration = Duration::from_secs(5);

/// Measures the calls to one Engine, once it has metrics. For streams, measures the time until they are
/// open.
#[derive(Default)]
pub struct CallMeter(RwLock<Option<Counted>>);

#[derive(Clone)]
struct Counted {
    metrics: Metrics,
    doubt: Option<LivenessCheck>,
}

impl CallMeter {
    /// Counts calls in `metrics` from now on. A call that waits long for its answer calls `doubt`
    /// repeatedly until it has one.
    pub fn count_in(&self, metrics: Metrics, doubt: Option<LivenessCheck>) {
        let counted = Counted { metrics, doubt };
        *self.0.write() = Some(counted);
    }

    /// Makes a call. Its target is an id or a name, never a body.
    ///
    /// # Errors
    /// The error of the call.
    pub async fn call<T, E: fmt::Display>(
        &self,
        operation: Operation,
        target: &str,
        call: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let counted = self.0.read().clone();
        let Some(Counted { metrics, doubt }) = counted else {
            return call.await;
        };
        let began = Instant::now();
        let result = match doubt.filter(|_| operation != Operation::Version) {
            None => call.await,
            Some(doubt) => answer(call, &doubt).await,
        };
        let took = began.elapsed();
        metrics.engine_call(operation.as_str(), took, result.is_ok());
        calls::note(operation.as_str(), took, result.is_ok());
        let error = result.as_ref().err().map(tracing::field::display);
        let milliseconds = took.as_secs_f64() * 1e3;
        tracing::debug!(%operation, target_id = target, milliseconds, error, "engine call");
        result
    }
}

mirrorlet_core::partial_debug!(CallMeter);

/// Waits for the answer to a call, with doubts.
async fn answer<T>(call: impl Future<Output = T>, doubt: &LivenessCheck) -> T {
    let mut call = std::pin::pin!(call);
    loop {
        match tokio::time::timeout(DOUBT_AFTER, &mut call).await {
            Ok(answer) => return answer,
            Err(_) => doubt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine as _;
    use crate::fake_engine::{FakeEngine, FakeImage};

    #[tokio::test]
    async fn calls_and_errors_are_counted_per_operation() {
        let engine = FakeEngine::new();
        engine.add_image("a:1", FakeImage::default());
        let metrics = Metrics::new();
        engine.inspect_image("a:1").await.unwrap();
        engine.meter().count_in(metrics.clone(), None);
        engine.inspect_image("a:1").await.unwrap();
        engine.inspect_image("b:1").await.unwrap_err();
        engine.version().await.unwrap();
        let text = metrics.encode();
        for line in [
            "operations_total{operation=\"inspect_image\"} 2",
            "operations_total{operation=\"version\"} 1",
            "operation_errors_total{operation=\"inspect_image\"} 1",
        ] {
            let line = format!("mirrorlet_engine_{line}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("create_container"), "{text}");
    }
}
