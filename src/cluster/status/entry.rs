//! The remembered state of one object's status.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{SETTLE, SETTLE_STEP, occurrences, seen_of};
use crate::cluster::error::ApiError;
use crate::store::board::PodView;
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp, core};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::status::merge::{
    MergeInput, StatusAction, deed, is_urgent, may_delete, repeats,
};
use mirrorlet_host::telemetry::Telemetry;

/// Pauses after failed writes.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// Pauses before the same is written again: an API server, or another client, keeps reverting it, and
/// will continue.
const REPEAT: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// A write that the API server ignores counts as this many writes without effect.
const REPEATS_OF_REST: u32 = 5;

/// How long an object may be missing that the watch shows, until a list corrects the watch.
const MISSING_MAX: Duration = Duration::from_mins(1);

/// Both sides of one comparison.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The API server's copy.
    pub api: Arc<Pod>,
    /// The pod's own UID.
    pub uid: PodUid,
    pub full_name: FullName,
    pub pod: Arc<Pod>,
    pub status: Arc<core::PodStatus>,
    pub may_run: bool,
    pub finished: bool,
}

/// How long an answer to our own call takes precedence over an older object of the watch. That lags by
/// milliseconds; one that is being reopened, by at most half a minute. Versions that stay behind are
/// those of an API server that was restored from a backup.
const ANSWER_COUNTS: Duration = Duration::from_secs(30);

/// The digest of a patch, which is stored instead of it: there are many ended pods, and the patch that
/// ended one is larger than all other stored data of it.
type Digest = [u8; 32];

/// The version of an object.
fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

fn digest(patch: &Value) -> Digest {
    Sha256::digest(patch.to_string()).into()
}

impl Seen {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.api, &other.api)
            && Arc::ptr_eq(&self.status, &other.status)
            && Arc::ptr_eq(&self.pod, &other.pod)
            && (self.may_run, self.finished) == (other.may_run, other.finished)
    }

    pub(super) fn deed(&self) -> StatusAction {
        let input = MergeInput {
            api: &self.api,
            pod: &self.pod,
            computed: &self.status,
            may_run: self.may_run,
            now: Timestamp::now(),
        };
        deed(&input, self.finished)
    }
}

/// One object.
#[derive(Default)]
pub(super) struct Entry {
    /// The values compared last.
    seen: Option<Seen>,
    /// When what is to be written has settled.
    settled: Option<Instant>,
    /// When a write may follow on one that failed.
    not_before: Option<Instant>,
    failures: u32,
    /// The object in the last answer, to a write or a read, while the watch shows an older one, and until
    /// when it counts.
    answer: Option<(Arc<Pod>, Instant)>,
    /// The version of the object in the answer to our last write.
    answered: Option<String>,
    /// The digest of the last written patch, and its time.
    sent: Option<(Digest, Instant)>,
    /// How often that was written again, for nothing.
    repeats: u32,
    /// When the patch that is due may be written, if it repeats the last one.
    repeat_at: Option<Instant>,
    /// The last written patch, until the object is compared again.
    written: Option<Value>,
    /// The problem reported last.
    reported: Option<String>,
    /// Set once it was deleted or found missing: until when the watch may still show it.
    deleted: Option<Instant>,
    /// Since when it is missing, though the watch shows it.
    missing: Option<Instant>,
}

impl Entry {
    /// Compares again, if anything has changed. Not while a write is in progress.
    pub(super) fn look(
        &mut self,
        watched: Arc<Pod>,
        view: &PodView,
        telemetry: &Telemetry,
        now: Instant,
    ) {
        let api = self.newest(watched, now);
        let Some(seen) = seen_of(view, api) else {
            return;
        };
        if self.is_deleted(&seen.api, now)
            || self.seen.as_ref().is_some_and(|known| known.is(&seen))
        {
            return;
        }
        let written = self.written.take();
        self.repeat_at = None;
        let deed = seen.deed();
        let illegal = match &deed {
            StatusAction::Illegal(why) => Some(why.clone()),
            StatusAction::Nothing
            | StatusAction::Patch(_)
            | StatusAction::DeleteObject
            | StatusAction::DeleteMirror => None,
        };
        if illegal.is_some() && illegal != self.reported {
            let why = illegal.clone().unwrap_or_default();
            occurrences::status_failed(telemetry.pod(&seen.full_name, &seen.uid), &why);
            self.reported = illegal;
        }
        let settles = match deed {
            StatusAction::Nothing | StatusAction::Illegal(_) => None,
            StatusAction::Patch(patch) => {
                // The last write of a pod that is being deleted waits for nothing.
                let is_last = may_delete(&seen.api, seen.finished);
                let version = &seen.api.metadata.resource_version;
                let is_answer = self.answered.is_some() && self.answered == *version;
                let digest = digest(&patch);
                if is_answer && written.is_some_and(|written| repeats(&patch, &written)) {
                    // The API server took our write, and not this part of it.
                    self.repeats = self.repeats.max(REPEATS_OF_REST);
                    self.sent = Some((digest, now));
                }
                if let Some((sent, at)) = &self.sent
                    && *sent == digest
                    && !is_last
                {
                    let pause = REPEAT.after(self.repeats.saturating_add(1));
                    self.repeat_at = Some(*at + pause);
                }
                let urgent = is_last || is_urgent(&seen.api, &patch);
                Some(now + if urgent { SETTLE } else { SETTLE_STEP })
            }
            StatusAction::DeleteObject | StatusAction::DeleteMirror => Some(now),
        };
        self.settled = settles.map(|at| self.settled.map_or(at, |known| known.min(at)));
        self.seen = Some(seen);
    }

    /// Whether it was deleted, and the watch may not show that yet, or finalizers keep it.
    fn is_deleted(&self, api: &Pod, now: Instant) -> bool {
        let is_kept = api.metadata.deletion_grace_period_seconds == Some(0);
        self.deleted.is_some_and(|until| is_kept || now < until)
    }

    /// The object as the watch shows it, unless the last answer is newer and counts still.
    fn newest(&mut self, watched: Arc<Pod>, now: Instant) -> Arc<Pod> {
        self.answer
            .take_if(|(answer, until)| *until <= now || version(answer) <= version(&watched));
        let answer = self.answer.as_ref();
        answer.map_or(watched, |(answer, _)| Arc::clone(answer))
    }

    /// When the last answer, and a deletion, no longer count, if the watch doesn't show them before.
    pub(super) fn lapses(&self) -> impl Iterator<Item = Instant> {
        let answer = self.answer.as_ref().map(|(_, until)| *until);
        answer.into_iter().chain(self.deleted)
    }

    /// When the next write is to begin.
    pub(super) fn due(&self) -> Option<Instant> {
        let settled = self.settled?;
        Some(settled).max(self.not_before).max(self.repeat_at)
    }

    /// The values that a write is about.
    pub(super) fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()
    }

    /// A write panicked.
    pub(super) fn panicked(&mut self) {
        self.retry(None);
    }

    /// Retries immediately the writes that failed because the API server was unreachable.
    pub(super) fn api_is_back(&mut self) {
        if self.failures > 0 {
            self.not_before = None;
        }
    }

    /// A write is complete, or was unnecessary: later changes are compared now.
    pub(super) fn done(&mut self) {
        self.settled = None;
        self.seen = None;
        self.failures = 0;
        self.not_before = None;
        self.reported = None;
    }

    /// `patch` made the object what it is now.
    pub(super) fn written(&mut self, patch: Value, object: Arc<Pod>) {
        self.done();
        let digest = digest(&patch);
        let again = self.sent.is_some_and(|(sent, _)| sent == digest);
        self.repeats = if again {
            self.repeats.saturating_add(1)
        } else {
            0
        };
        self.sent = Some((digest, Instant::now()));
        self.answered.clone_from(&object.metadata.resource_version);
        self.keep_answer(object);
        self.written = Some(patch);
    }

    /// Records the object's state in the API server. Returns whether that is older than the compared
    /// one: the server was restored from a backup, and the watch doesn't show that.
    pub(super) fn read(&mut self, object: Arc<Pod>) -> bool {
        let compared = self.seen.as_ref().and_then(|seen| version(&seen.api));
        let versions = version(&object).zip(compared);
        self.keep_answer(object);
        versions.is_some_and(|(read, compared)| read < compared)
    }

    /// Until a list corrects the watch, each comparison finds a difference that doesn't exist: after
    /// `failures` of them, the next write waits longer.
    pub(super) fn set_back(&mut self, failures: u32) {
        self.failures = failures;
        self.retry(None);
    }

    fn keep_answer(&mut self, object: Arc<Pod>) {
        self.missing = None;
        self.answer = Some((object, Instant::now() + ANSWER_COUNTS));
    }

    /// Records that the API server doesn't have the object. Returns whether that was also the case a
    /// minute ago, so that the watch doesn't correct it; at most once a minute.
    pub(super) fn found_missing(&mut self) -> bool {
        let now = Instant::now();
        let since = *self.missing.get_or_insert(now);
        let is_long = now.duration_since(since) >= MISSING_MAX;
        if is_long {
            self.missing = Some(now);
        }
        is_long
    }

    /// A write found no object.
    pub(super) fn not_found(&mut self) {
        self.seen = None;
        self.retry(None);
    }

    /// The failures so far, and the problem that was reported last.
    pub(super) fn failures(&self) -> (u32, Option<String>) {
        (self.failures, self.reported.clone())
    }

    /// Restores the failures from before a write that succeeded: the deletion after it failed again.
    pub(super) fn failed_before(&mut self, (failures, reported): (u32, Option<String>)) {
        self.failures = failures;
        self.reported = reported;
    }

    pub(super) fn deleted(&mut self) {
        self.done();
        self.deleted = Some(Instant::now() + ANSWER_COUNTS);
    }

    /// Records a failure. Returns whether it was reported before.
    pub(super) fn failed(&mut self, error: &ApiError) -> bool {
        self.seen = None;
        let wished = match error {
            ApiError::TooManyRequests { retry_after, .. } => *retry_after,
            _ => None,
        };
        self.retry(wished);
        let words = error.to_string();
        let reported = self.reported.as_ref() == Some(&words);
        self.reported = Some(words);
        reported
    }

    fn retry(&mut self, wished: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        let pause = RETRY.after(self.failures);
        let pause = wished.map_or(pause, |wished| wished.max(pause));
        self.not_before = Some(Instant::now() + pause);
    }
}
