//! The remembered state of one full name between two checks.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::attempt::Failure;
use super::causes::Cause;
use super::{Obstacle, ProblemKind, Timestamp, Verdict, hash, occurrences};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::mirror::{MirrorProblem, retry_after};
use mirrorlet_host::telemetry::Telemetry;

/// Mirrors of one version made within that time of one another are counted.
const CHURN_WITHIN: Duration = Duration::from_secs(10);
/// So many are created immediately; after that, because another client keeps deleting them, with
/// pauses.
const CHURN_FREE: u32 = 5;

/// One full name.
#[derive(Default)]
pub(super) struct Name {
    /// The mirror that we created, until the watch reports it.
    pub made: Option<Made>,
    /// When an attempt may follow on a failed one.
    not_before: Option<Instant>,
    churn: Churn,
    trouble: Option<ReportedProblem>,
}

/// A mirror that the watch has not reported yet.
pub(super) struct Made {
    pub uid: PodUid,
    pub mirror: Arc<Pod>,
    /// Until when it counts.
    pub until: Instant,
}

/// How often a mirror of one version had to be made.
#[derive(Default)]
struct Churn {
    version: String,
    /// When the next one may be made.
    until: Option<Instant>,
    count: u32,
}

/// A problem, and since when.
struct ReportedProblem {
    problem: MirrorProblem,
    since: Instant,
    cause: Option<Cause>,
    /// The version that was refused.
    version: String,
    /// The UID it was reported for, and its kind.
    reported: Option<(PodUid, ProblemKind)>,
}

impl Name {
    pub(super) fn problem(&self) -> Option<&MirrorProblem> {
        self.trouble.as_ref().map(|trouble| &trouble.problem)
    }

    pub(super) fn cause(&self) -> Option<&Cause> {
        self.trouble.as_ref().and_then(|t| t.cause.as_ref())
    }

    /// When the next attempt may begin, if not immediately.
    pub(super) fn ready_at(&self) -> Option<Instant> {
        self.not_before.max(self.churn.until)
    }

    /// Nothing remains that must wait.
    pub(super) fn done(&mut self) {
        self.not_before = None;
    }

    /// An attempt panicked.
    pub(super) fn panicked(&mut self) {
        self.not_before = Some(Instant::now() + CHURN_WITHIN);
    }

    /// Retries immediately the attempts that failed because the API server was unreachable.
    pub(super) fn api_is_back(&mut self) {
        if self.kind() == Some(ProblemKind::ApiAway) {
            self.not_before = None;
        }
    }

    /// Retries immediately the attempts that a rule about our Node rejected.
    pub(super) fn node_changed(&mut self) {
        if self.kind() == Some(ProblemKind::NodeRestriction) {
            self.not_before = None;
        }
    }

    pub(super) fn cause_changed(&mut self, cause: &Cause) {
        if self.cause() == Some(cause) {
            self.not_before = None;
        }
    }

    fn kind(&self) -> Option<ProblemKind> {
        self.problem().map(|problem| problem.kind)
    }

    /// Processes a decision: records new obstacles, and clears resolved ones.
    pub(super) fn judge(
        &mut self,
        full_name: &FullName,
        verdict: &Verdict,
        is_busy: bool,
        telemetry: &Telemetry,
    ) {
        match verdict {
            // The result of an attempt that made it is reported first.
            Verdict::Synced { .. } if is_busy => {}
            Verdict::Synced { .. } => {
                self.not_before = None;
                self.mended(full_name, telemetry);
            }
            Verdict::Wait | Verdict::Delete { .. } => {}
            Verdict::Blocked(obstacle) => {
                let (kind, message) = match obstacle {
                    Obstacle::NodeMissing => (
                        ProblemKind::NodeMissing,
                        "the Node is not registered".to_owned(),
                    ),
                    Obstacle::NameTaken { by } => (
                        ProblemKind::NameTaken,
                        format!("the name is in use by a pod on this node; its UID is {by}"),
                    ),
                };
                self.not_before = None;
                self.blocked(kind, message);
                self.report(full_name, &PodUid::default(), telemetry);
            }
            Verdict::Create { pod } | Verdict::Replace { pod, .. } => {
                let version = hash(pod).unwrap_or_default();
                let other_version = self.trouble.as_ref().is_some_and(|t| t.version != version);
                let was_blocked = self.kind() == Some(ProblemKind::NodeMissing)
                    || self.problem().is_some_and(|p| p.next_try.is_none());
                // Another version may be welcome, and what was in the way by itself is gone.
                if other_version || was_blocked {
                    self.not_before = None;
                }
            }
        }
    }

    fn blocked(&mut self, kind: ProblemKind, message: String) {
        let same = self.trouble.take_if(|t| t.problem.kind == kind);
        let reported = self.trouble.take().and_then(|t| t.reported);
        self.trouble = Some(match same {
            Some(mut same) => {
                same.problem.message = message;
                same.problem.next_try = None;
                same.cause = None;
                same
            }
            None => ReportedProblem {
                problem: MirrorProblem {
                    kind,
                    message,
                    since: Timestamp::now(),
                    attempts: 0,
                    next_try: None,
                },
                since: Instant::now(),
                cause: None,
                version: String::new(),
                reported,
            },
        });
    }

    /// Records a failed attempt, and when the next one may begin.
    pub(super) fn failed(
        &mut self,
        full_name: &FullName,
        failure: Failure,
        cause: Option<Cause>,
        watched: bool,
        version: Option<&str>,
    ) {
        let Failure {
            kind,
            message,
            retry_after: wished,
        } = failure;
        self.blocked(kind, message);
        let Some(trouble) = &mut self.trouble else {
            return;
        };
        trouble.problem.attempts = trouble.problem.attempts.saturating_add(1);
        trouble.cause = cause;
        version.unwrap_or_default().clone_into(&mut trouble.version);
        let age = trouble.since.elapsed();
        let attempts = trouble.problem.attempts;
        let pause = retry_after(kind, attempts, age, watched, share(full_name));
        let pause = wished.map_or(pause, |wished| wished.max(pause));
        trouble.problem.next_try = Timestamp::now().checked_add(pause).ok();
        self.not_before = Some(Instant::now() + pause);
    }

    /// Reports a refusal, once for each kind.
    pub(super) fn report(&mut self, full_name: &FullName, uid: &PodUid, telemetry: &Telemetry) {
        let Some(trouble) = &mut self.trouble else {
            return;
        };
        let kind = trouble.problem.kind;
        let reported = trouble
            .reported
            .as_ref()
            .is_some_and(|(_, reported)| *reported == kind);
        if kind.is_refusal() && !reported {
            let message = &trouble.problem.message;
            occurrences::mirror_refused(telemetry.pod(full_name, uid), kind.as_str(), message);
            trouble.reported = Some((uid.clone(), kind));
        }
    }

    fn mended(&mut self, full_name: &FullName, telemetry: &Telemetry) {
        if let Some((uid, kind)) = self.trouble.take().and_then(|t| t.reported) {
            occurrences::mirror_mended(telemetry.pod(full_name, &uid), kind.as_str());
        }
    }

    /// Records that the mirror exists. If it has to be created repeatedly, pauses follow, because
    /// another client deletes it each time.
    pub(super) fn made(&mut self, mirror: Arc<Pod>, until: Instant) {
        let now = Instant::now();
        let version = hash(&mirror).unwrap_or_default();
        let recent = self
            .churn
            .until
            .is_some_and(|until| now < until + CHURN_WITHIN);
        let again = recent && self.churn.version == version;
        let count = if again { self.churn.count + 1 } else { 0 };
        let beyond = count.saturating_sub(CHURN_FREE);
        let pause = retry_after(ProblemKind::Other, beyond, Duration::ZERO, false, 0.0);
        self.churn = Churn {
            count,
            version: version.to_owned(),
            until: Some(if beyond > 0 { now + pause } else { now }),
        };
        self.not_before = None;
        self.made = Some(Made {
            uid: PodUid::of(&mirror),
            mirror,
            until,
        });
    }
}

/// A share from 0 to 1 that differs from name to name.
fn share(full_name: &FullName) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(full_name);
    f64::from(u16::try_from(hash & 0xffff).unwrap_or(0)) / f64::from(u16::MAX)
}
