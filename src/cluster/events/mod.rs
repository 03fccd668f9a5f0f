//! The event recorder: writes the journal's entries for users to the API server as Events.
//!
//! One at a time, oldest first, so that an object's events are written in their order. During an outage
//! of the API server they wait, and repeated ones only increase a count. Nothing waits for this task:
//! excess events are dropped, oldest first, and counted.
//!
//! Upstream: `recordToSink` and `recordEvent` of `client-go/tools/record/event.go`.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use tokio::time::Instant;

use super::client::{ADMISSION_DEADLINE, ClusterClient};
use super::error::ApiError;
use super::limit::WriteLimit;
use mirrorlet_core::api::{NodeName, Timestamp, core};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::events::{Correlator, EventQueue, Write};
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::journal::{Entry, Submissions};
use mirrorlet_host::telemetry::{EventOutcome, Telemetry, occurrences};

/// Pauses after failures. Upstream waits 10 s each time; its server is hardly ever away for less.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Tries of one event that the API server itself fails on, or doesn't answer while it answers others:
/// a webhook that can't be reached, or hangs, say.
const TRIES_MAX: u32 = 3;
/// Maximum number of kinds of rejections remembered as reported.
const REPORTED_MAX: usize = 100;

/// How an event was written.
type Written = Result<EventOutcome, ApiError>;

/// Writes what the journal submits until cancelled.
pub struct EventTask {
    client: ClusterClient,
    telemetry: Telemetry,
    node: NodeName,
    submissions: Submissions,
    correlator: Correlator,
    spool: EventQueue,
    /// A separate rate limit, so that events and other writes don't delay each other; it equals
    /// upstream's `eventRecordQPS` and `eventBurst`.
    limit: Arc<WriteLimit>,
    backoff: ExponentialBackoff,
    tries: u32,
    /// Refusals that were logged, by namespace and kind.
    reported: BTreeSet<(String, String)>,
    is_losing: bool,
}

/// The present turn: a write, or a pause before the next.
enum Turn {
    Writing(Box<Write>, BoxFuture<'static, Written>),
    Pause {
        until: Instant,
        /// Whether the API server is away: then its return ends the pause.
        away: bool,
    },
    Idle,
}

impl EventTask {
    /// Returns a task that writes the events of that node's agent. The journal keeps them from now on.
    pub fn new(client: ClusterClient, telemetry: Telemetry, node: NodeName) -> Self {
        Self {
            client,
            submissions: telemetry.journal.subscribe(),
            correlator: Correlator::new(node.as_str()),
            telemetry,
            node,
            spool: EventQueue::default(),
            limit: Arc::default(),
            backoff: PAUSES,
            tries: 0,
            reported: BTreeSet::new(),
            is_losing: false,
        }
    }

    /// Runs until cancelled. Waiting events are lost then.
    pub async fn run(mut self) {
        let mut reach = self.client.reach();
        let mut turn = Turn::Idle;
        loop {
            if matches!(turn, Turn::Idle)
                && let Some(write) = self.spool.pop()
            {
                let writing = self.writing(&write);
                turn = Turn::Writing(Box::new(write), writing);
            }
            tokio::select! {
                (entries, lost) = self.submissions.next() => self.take(&entries, lost),
                written = outcome(&mut turn) => turn = self.settle(turn, written),
                back = reach.wait_for(super::ApiReach::is_up), if waits_for_return(&turn) => {
                    // There is no publisher any more: the agent ends.
                    if back.is_err() { return }
                    turn = Turn::Idle;
                }
            }
        }
    }

    /// Processes the entries from the journal.
    fn take(&mut self, entries: &[Entry], lost: u64) {
        self.lost(lost);
        for entry in entries {
            let Some(happening) = entry.happening(&self.node) else {
                continue;
            };
            match self.correlator.correlate(&happening, Timestamp::now()) {
                Some(write) => {
                    let lost = self.spool.push(write);
                    self.lost(u64::try_from(lost).unwrap_or(u64::MAX));
                }
                None => occurrences::events(&self.telemetry, EventOutcome::HeldBack, 1),
            }
        }
    }

    fn lost(&mut self, number: u64) {
        if number == 0 {
            return;
        }
        occurrences::events(&self.telemetry, EventOutcome::Lost, number);
        if !std::mem::replace(&mut self.is_losing, true) {
            occurrences::events_lost();
        }
    }

    /// The call that writes it.
    fn writing(&self, write: &Write) -> BoxFuture<'static, Written> {
        let (client, limit) = (self.client.clone(), Arc::clone(&self.limit));
        let api: Api<core::Event> = Api::namespaced(client.client(), write.namespace());
        let write = write.clone();
        async move {
            if write.update {
                let (patch, params) = (Patch::Merge(write.patch()), PatchParams::default());
                let call = api.patch(write.name(), &params, &patch);
                match client.write_within(&limit, ADMISSION_DEADLINE, call).await {
                    Ok(_) => return Ok(EventOutcome::Updated),
                    // It ran out, or its create never arrived.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
            let params = PostParams::default();
            let call = api.create(&params, &write.event);
            match client.write_within(&limit, ADMISSION_DEADLINE, call).await {
                // Ours, from a call whose answer was lost: no two have the same name.
                Ok(_) | Err(ApiError::AlreadyExists(_)) => Ok(EventOutcome::Created),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    /// Decides what to do after a write, or a pause.
    fn settle(&mut self, turn: Turn, written: Option<Written>) -> Turn {
        let (Turn::Writing(write, _), Some(written)) = (turn, written) else {
            return Turn::Idle;
        };
        match written {
            Ok(outcome) => {
                occurrences::events(&self.telemetry, outcome, 1);
                self.backoff.reset();
                self.tries = 0;
                self.is_losing = false;
                self.reported
                    .retain(|(namespace, _)| namespace != write.namespace());
                Turn::Idle
            }
            Err(error) => self.failed(*write, &error),
        }
    }

    fn failed(&mut self, write: Write, error: &ApiError) -> Turn {
        let asked = match error {
            // It has answered others meanwhile: the Lease is renewed more often than a call may
            // take. A namespace that is known for it gets no second try, so that each of its events
            // keeps others waiting for one deadline only.
            ApiError::Away { .. } if self.client.reach().get().is_up() => {
                self.tries += 1;
                if self.tries >= TRIES_MAX || self.reported.contains(&refusal(&write, error)) {
                    return self.drop_it(&write, error);
                }
                None
            }
            ApiError::Away { .. } | ApiError::Unauthorized(_) => None,
            ApiError::TooManyRequests { retry_after, .. } => *retry_after,
            ApiError::Internal(_) | ApiError::Undecodable { .. } => {
                self.tries += 1;
                if self.tries >= TRIES_MAX {
                    return self.drop_it(&write, error);
                }
                None
            }
            // The namespace doesn't exist, or there is no permission to write there. A retry helps only
            // after a change, and others' events must not wait for it.
            ApiError::Forbidden(_)
            | ApiError::NotFound(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Conflict(_)
            | ApiError::Invalid(_)
            | ApiError::Expired(_)
            | ApiError::Refused(_) => return self.drop_it(&write, error),
        };
        let lost = self.spool.put_back(write);
        self.lost(u64::try_from(lost).unwrap_or(u64::MAX));
        let pause = match asked {
            Some(asked) => asked.min(PAUSES.longest()),
            None => spread(self.backoff.pause()),
        };
        Turn::Pause {
            until: Instant::now() + pause,
            away: !self.client.reach().get().is_up(),
        }
    }

    /// Gives one up. The reason is logged once, until an event gets through to the namespace.
    fn drop_it(&mut self, write: &Write, error: &ApiError) -> Turn {
        self.tries = 0;
        occurrences::events(&self.telemetry, EventOutcome::Dropped, 1);
        if self.reported.len() < REPORTED_MAX && self.reported.insert(refusal(write, error)) {
            occurrences::events_refused(write.namespace(), &error.to_string());
        }
        Turn::Idle
    }
}

/// The key under which a refusal is remembered: the namespace and the reason of the answer, if there was one.
fn refusal(write: &Write, error: &ApiError) -> (String, String) {
    let answer = error.answer();
    let reason = answer.map_or("", |answer| answer.reason.as_str());
    (write.namespace().to_owned(), reason.to_owned())
}

fn waits_for_return(turn: &Turn) -> bool {
    matches!(turn, Turn::Pause { away: true, .. })
}

/// Returns the outcome of a turn: of a write how it went, of a pause nothing. Cancel-safe.
async fn outcome(turn: &mut Turn) -> Option<Written> {
    match turn {
        Turn::Writing(_, writing) => Some(writing.await),
        Turn::Pause { until, .. } => {
            tokio::time::sleep_until(*until).await;
            None
        }
        Turn::Idle => std::future::pending().await,
    }
}
