//! Faults of calls, events, containers and the clock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mirrorlet_core::api::{ContainerId, PodUid};
use mirrorlet_runtime::{PodEvent, PodEventKind, Result, RuntimeError};

use super::{CallFault, CallRule, Crash, EventFate, FakeRuntime, State, Witness};

impl FakeRuntime {
    /// Makes the next `count` calls of that name fail. Besides the calls of a runtime there is
    /// `"step"`, for single steps of `sync_pod`.
    pub fn fail_next_calls(&self, call: &str, count: usize, fault: CallFault) {
        let rule = CallRule {
            call: call.to_owned(),
            left: count,
            fault,
        };
        self.change(|s| s.call_rules.push(rule));
    }

    /// Makes all removals of containers fail from now on. Each attempt is recorded as a call of
    /// `"remove_container"`.
    pub fn refuse_removals(&self) {
        self.change(|s| s.removals_fail = true);
    }

    /// Whether a plan can't remove a container.
    pub(super) fn refuses_removal(&self) -> bool {
        self.change(|s| {
            if s.removals_fail {
                s.called_functions.push("remove_container".to_owned());
            }
            s.removals_fail
        })
    }

    /// Ends all faults: calls work, events arrive unchanged, and containers start and are removed.
    pub fn end_faults(&self) {
        self.change(|s| {
            s.err = None;
            s.call_rules.clear();
            s.start_faults.clear();
            s.plan_faults.clear();
            s.event_fates.clear();
            s.removals_fail = false;
        });
    }

    /// Sets the fates of the next events, in order. Replaces fates that were set before.
    pub fn script_events(&self, fates: impl IntoIterator<Item = EventFate>) {
        self.change(|s| s.event_fates = fates.into_iter().collect());
    }

    /// Delays the effect of every step of a plan by that time.
    pub fn set_step_takes(&self, time: Duration) {
        self.change(|s| s.step_takes = time);
    }

    /// Makes steps and stops in progress complete although their caller is gone, as with an Engine that
    /// has received the request; and the start of a running container succeeds, as container names
    /// guarantee.
    pub fn let_calls_outlive_callers(&self) {
        self.change(|s| {
            s.calls_outlive_callers = true;
            s.model.starts_are_idempotent = true;
        });
    }

    /// Makes each instance of that container of that pod exit by itself after that time, from its next
    /// start on.
    pub fn set_crash(&self, uid: &PodUid, container: &str, after: Duration, exit_code: i32) {
        let crash = Crash {
            container: container.to_owned(),
            after,
            exit_code,
        };
        self.change(|s| s.crashes.insert(uid.clone(), crash));
    }

    /// Sets a function that gets a line for each step, stop and removal.
    pub fn set_witness(&self, witness: impl Fn(&str) + Send + Sync + 'static) {
        self.change(|s| s.witness = Witness(Some(Arc::new(witness))));
    }

    /// Restarts the runtime: every container and sandbox ends, no event is sent, and the watch streams
    /// end.
    pub fn restart(&self) {
        let now = self.now();
        self.change(|s| {
            s.model.end_everything(now);
            s.watchers.clear();
        });
    }

    /// Moves the clock by so many seconds, forward or back.
    pub fn jump_clock(&self, seconds: i64) {
        self.shared
            .clock_jumps
            .fetch_add(seconds, Ordering::Relaxed);
    }

    /// How many watch streams there are.
    pub fn watch_count(&self) -> usize {
        self.change(|s| {
            s.watchers.retain(|watcher| !watcher.is_closed());
            s.watchers.len()
        })
    }

    /// Fails a call that is set to fail before it has any effect.
    pub(super) async fn refuse(&self, call: &str) -> Result<()> {
        let fault = self.change(|s| s.take_fault(call, |fault| !is_answer_lost(fault)));
        match fault {
            Some(CallFault::Refused(error)) => Err(error),
            Some(CallFault::Hangs(after)) => {
                tokio::time::sleep(after).await;
                Err(RuntimeError::Timeout {
                    operation: "call",
                    after,
                })
            }
            Some(CallFault::AnswerLost(_)) | None => {
                let err = self.shared.state.lock().err.clone();
                err.map_or(Ok(()), Err)
            }
        }
    }

    /// The error of a call that has had its effect, if its answer is lost.
    pub(super) fn lost_answer(&self, call: &str) -> Option<RuntimeError> {
        match self.change(|s| s.take_fault(call, is_answer_lost))? {
            CallFault::Refused(error) | CallFault::AnswerLost(error) => Some(error),
            CallFault::Hangs(_) => None,
        }
    }

    /// Called after a container has started: makes it crash if that is set.
    pub(super) fn crash_later(&self, uid: &PodUid, name: &str) {
        let state = self.shared.state.lock();
        let crash = state.crashes.get(uid).filter(|c| c.container == name);
        let Some(crash) = crash.cloned() else { return };
        let of_name = |pod: &mirrorlet_core::observed::PodStatus| {
            let mut running = pod.running_containers();
            running.find(|c| &*c.name == name).map(|c| c.id.clone())
        };
        let Some(id) = state.model.pods.get(uid).and_then(of_name) else {
            return;
        };
        drop(state);
        let (fake, uid) = (self.clone(), uid.clone());
        tokio::spawn(async move {
            tokio::time::sleep(crash.after).await;
            fake.end_instance(&uid, &id, crash.exit_code);
        });
    }

    fn end_instance(&self, uid: &PodUid, id: &ContainerId, exit_code: i32) {
        let now = self.now();
        self.change(|s| {
            if s.model.end(uid, id, exit_code, now) {
                s.witness(&format!("{uid}: a container crashes"));
                s.emit(uid, PodEventKind::ContainerDied);
            }
        });
    }
}

fn is_answer_lost(fault: &CallFault) -> bool {
    matches!(fault, CallFault::AnswerLost(_))
}

impl State {
    fn take_fault(&mut self, call: &str, is_due: impl Fn(&CallFault) -> bool) -> Option<CallFault> {
        let is_next = |rule: &&mut CallRule| rule.call == call && is_due(&rule.fault);
        let mut rules = self.call_rules.iter_mut().filter(|rule| rule.left > 0);
        let rule = rules.find(is_next)?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    pub(super) fn send(&mut self, event: &PodEvent) {
        match self.event_fates.pop_front() {
            None => self.deliver(event),
            Some(EventFate::Lost) => {}
            Some(EventFate::Doubled) => {
                self.deliver(event);
                self.deliver(event);
            }
            Some(EventFate::Late(by)) => {
                let (watchers, event) = (self.watchers.clone(), event.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(by).await;
                    for watcher in watchers {
                        // The receiver may be gone.
                        let _ = watcher.send(event.clone());
                    }
                });
            }
        }
    }

    fn deliver(&mut self, event: &PodEvent) {
        self.watchers.retain(|w| w.send(event.clone()).is_ok());
    }
}
