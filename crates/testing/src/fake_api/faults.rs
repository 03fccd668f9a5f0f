//! Faults of the network, of single calls and of watches.

use std::time::Duration;

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::resources::CONFIG_MAPS;
use serde_json::json;
use tokio::time::Instant;

use super::{FakeApi, State};

/// Changes after which a watch that is behind finds its place in the history lost.
const FORGETS_AFTER: usize = 1001;

/// The time after which the last fault has no effect any more.
const CALM: Duration = Duration::from_mins(2);

/// Whether clients reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// They do.
    Up,
    /// Connections are refused, and those there were are reset.
    Refused,
    /// Nothing gets through, in either direction. Calls in progress fail when the server is back.
    Silent,
}

/// The way a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiFault {
    /// The call is refused with that code, and not executed.
    Refused(u16),
    /// The call is executed, and the connection is reset before the answer.
    AnswerLost,
    /// The call is executed and answered after that time, though its caller may be gone by then.
    Late(Duration),
}

/// The next calls of a name that fail.
pub(super) struct Rule {
    call: String,
    left: usize,
    fault: ApiFault,
}

impl FakeApi {
    /// Whether clients reach the server from now on.
    pub fn set_reach(&self, reach: Reach) {
        self.change(|state| {
            state.reach = reach;
            state.troubled = Instant::now();
        });
    }

    /// The next `count` calls of that name fail; see [`call_count`](Self::call_count) for names.
    pub fn fail_next_calls(&self, call: &str, count: usize, fault: ApiFault) {
        let rule = Rule {
            call: call.to_owned(),
            left: count,
            fault,
        };
        self.change(|state| state.faults.push(rule));
    }

    /// Watches end where they are.
    pub fn break_watches(&self) {
        self.change(State::break_watches);
    }

    /// Watches deliver that late from now on.
    pub fn set_lag(&self, lag: Duration) {
        self.change(|state| {
            state.lag = lag;
            state.troubled = Instant::now();
        });
    }

    /// Makes all resource versions expire, so that no watch can resume: clients must list.
    pub fn forget_history(&self) {
        self.change(|state| {
            let key = Key::new(&CONFIG_MAPS, "default", "busy");
            for number in 0..FORGETS_AFTER {
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": "busy", "namespace": "default"},
                    "data": {"number": number.to_string()},
                });
                state.cache.put(key.clone(), object);
            }
            state.break_watches();
        });
    }

    /// Calls work again, and watches deliver at once.
    pub fn end_faults(&self) {
        self.change(|state| {
            state.reach = Reach::Up;
            state.faults.clear();
            state.lag = Duration::ZERO;
            state.troubled = Instant::now();
        });
    }
}

impl State {
    /// Takes the fault of a call, if one is due.
    pub(super) fn take_fault(&mut self, call: &str) -> Option<ApiFault> {
        let mut rules = self.faults.iter_mut();
        let rule = rules.find(|rule| rule.left > 0 && rule.call == call)?;
        rule.left -= 1;
        self.troubled = Instant::now();
        Some(rule.fault)
    }

    fn break_watches(&mut self) {
        self.watches_broken += 1;
        self.troubled = Instant::now();
    }

    /// Whether clients have received all answers and events for a while.
    pub(super) fn is_calm(&self) -> bool {
        let is_fine = self.reach == Reach::Up && self.lag.is_zero();
        is_fine && self.troubled.elapsed() > CALM
    }

    /// Records when watches deliver the changes after a revision: late, and in order.
    pub(super) fn note_lag(&mut self, before: u64) {
        let now = Instant::now();
        self.late.retain(|(_, at)| *at > now);
        let at = self.late.last().map_or(now, |(_, last)| *last);
        let at = at.max(now + self.lag);
        if self.cache.revision() > before && at > now {
            self.late.push((before, at));
        }
    }

    /// The newest revision that watches deliver now, and when they deliver the following ones.
    pub(super) fn delivered(&self) -> (u64, Option<Instant>) {
        let now = Instant::now();
        match self.late.iter().find(|(_, at)| *at > now) {
            Some((before, at)) => (*before, Some(*at)),
            None => (self.cache.revision(), None),
        }
    }
}
