//! Scripted faults of a [`FakeRuntime`](super::FakeRuntime).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use mirrorlet_core::api::PodUid;
use mirrorlet_runtime::RuntimeError;

/// The fate of an event on its way to the watchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFate {
    /// It is lost.
    Lost,
    /// It arrives twice.
    Doubled,
    /// It arrives after that time, and so perhaps after later events.
    Late(Duration),
}

/// How a call fails.
#[derive(Debug, Clone)]
pub enum CallFault {
    /// Before it has any effect.
    Refused(RuntimeError),
    /// After its effect: only the answer is lost. A call that only reads is refused.
    AnswerLost(RuntimeError),
    /// Before it has any effect, and only after that time.
    Hangs(Duration),
}

/// The next calls that fail.
#[derive(Debug)]
pub(super) struct CallRule {
    pub(super) call: String,
    pub(super) left: usize,
    pub(super) fault: CallFault,
}

/// Holds back matching calls until released or dropped.
///
/// Made by [`FakeRuntime::block`](super::FakeRuntime::block).
#[derive(Debug)]
#[must_use = "dropping it releases the calls"]
pub struct Hold {
    gate: Arc<Semaphore>,
    arrivals: watch::Receiver<usize>,
}

impl Hold {
    /// Waits until `calls` calls in total have arrived at the hold.
    pub async fn arrived(&mut self, calls: usize) {
        // The sender lives as long as the rule, which ends with this hold.
        let _ = self.arrivals.wait_for(|seen| *seen >= calls).await;
    }

    /// Releases all calls, future ones included.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gate.close();
    }
}

/// The runtime's side of a [`Hold`].
#[derive(Debug, Clone)]
pub(super) struct HoldRule {
    call: String,
    uid: Option<PodUid>,
    gate: Arc<Semaphore>,
    arrivals: Arc<watch::Sender<usize>>,
}

impl HoldRule {
    pub(super) fn new(call: &str, uid: Option<&PodUid>) -> (Self, Hold) {
        let gate = Arc::new(Semaphore::new(0));
        let (sender, arrivals) = watch::channel(0);
        let rule = Self {
            call: call.to_owned(),
            uid: uid.cloned(),
            gate: Arc::clone(&gate),
            arrivals: Arc::new(sender),
        };
        (rule, Hold { gate, arrivals })
    }

    pub(super) fn concerns(&self, call: &str, uid: Option<&PodUid>) -> bool {
        self.call == call && (self.uid.is_none() || self.uid.as_ref() == uid)
    }

    pub(super) fn is_over(&self) -> bool {
        self.gate.is_closed()
    }

    /// Waits for the release.
    pub(super) async fn pass(&self) {
        self.arrivals.send_modify(|seen| *seen += 1);
        // No permit is ever given: this ends, with an error, when the hold closes the gate.
        let _ = self.gate.acquire().await;
    }
}
