//! Why a mirror can't be created, classified by the remedy, and when to try again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{FullName, MirrorPodUid, Timestamp};
use crate::backoff::ExponentialBackoff;

/// Pauses after refusals.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// Pause while a user may be about to remove the cause, and the agent may not watch it.
const PAUSE_EAGER: Duration = Duration::from_secs(2);
/// How long that is assumed.
const EAGER: Duration = Duration::from_mins(1);

crate::words! {
    /// The kind of problem that prevents a mirror pod, by the remedy.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum ProblemKind {
        /// The namespace doesn't exist, or is being deleted. Create it.
        NamespaceMissing = "NamespaceMissing",
        /// RBAC doesn't allow it, or our credentials aren't accepted. Grant the permission.
        Forbidden = "Forbidden",
        /// `NodeRestriction` doesn't allow it to a node identity. The message names the rule.
        NodeRestriction = "NodeRestriction",
        /// The namespace's `PodSecurity` level forbids it. Relax the level, or change the pod.
        PodSecurity = "PodSecurity",
        /// A `ResourceQuota` is exceeded, or requires requests and limits.
        Quota = "Quota",
        /// A `LimitRange` forbids the pod's requests or limits.
        LimitRange = "LimitRange",
        /// A webhook or an admission policy denied it, or the webhook doesn't answer.
        Webhook = "Webhook",
        /// The pod's priority class doesn't exist. Create it; an API server that has just started
        /// creates those of the system within seconds.
        PriorityClassMissing = "PriorityClassMissing",
        /// Another pod has the name. Delete it, or rename the static pod.
        NameTaken = "NameTaken",
        /// The API server doesn't answer, or throttles requests.
        ApiAway = "ApiAway",
        /// Our Node isn't registered, or is being deleted.
        NodeMissing = "NodeMissing",
        /// The API server doesn't find the pod valid.
        Invalid = "Invalid",
        /// Something else; the message says what.
        Other = "Other",
    }
    /// The kind as a reason word and label value.
    pub fn as_str;
    impl Display;
}

impl ProblemKind {
    /// Whether it is about this mirror, and not about the whole connection: a user must fix it, and the
    /// Node's status reports it.
    pub fn is_refusal(self) -> bool {
        !matches!(self, Self::ApiAway | Self::NodeMissing)
    }

    /// Whether a user who notices the missing pod, or the API server itself, resolves it within
    /// seconds, without a notification.
    fn is_soon_mended(self) -> bool {
        matches!(
            self,
            Self::NamespaceMissing | Self::PriorityClassMissing | Self::NameTaken
        )
    }
}

/// Why a pod has no mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorProblem {
    /// The kind, by the remedy.
    pub kind: ProblemKind,
    /// The API server's words, or ours.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
    /// Attempts made since then.
    pub attempts: u32,
    /// When the next attempt is made at the latest; none if the cause must be removed first.
    pub next_try: Option<Timestamp>,
}

/// How a pod stands with its mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MirrorState {
    /// It exists.
    Synced {
        /// The UID that the API server gave it.
        uid: MirrorPodUid,
    },
    /// It is being created or replaced, or waits for its turn.
    Pending,
    /// It can't be made.
    Problem(MirrorProblem),
}

/// The problems that a user must fix, one line each, sorted by name, for the Node's condition about
/// its mirrors.
pub fn problem_lines(states: &BTreeMap<FullName, MirrorState>) -> Vec<String> {
    let problems = states.iter().filter_map(|(name, state)| match state {
        MirrorState::Problem(problem) if problem.kind.is_refusal() => Some((name, problem)),
        MirrorState::Problem(_) | MirrorState::Pending | MirrorState::Synced { .. } => None,
    });
    problems
        .map(|(name, problem)| {
            let MirrorProblem { kind, message, .. } = problem;
            format!("{}/{}: {kind}: {message}", name.namespace, name.name)
        })
        .collect()
}

/// The API server's rejection of a mirror pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusal<'a> {
    /// HTTP status code.
    pub code: u16,
    /// Resource or kind that the answer is about.
    pub kind: &'a str,
    /// Its words.
    pub message: &'a str,
}

/// Determines a refusal's kind from its message: the API server has one code for most of them.
pub fn classify(refusal: Refusal<'_>) -> ProblemKind {
    let Refusal {
        code,
        kind,
        message,
    } = refusal;
    let says = |words: &str| message.contains(words);
    // A webhook or a policy chooses its code, so its words come first.
    if says("admission webhook \"")
        || says("failed calling webhook")
        || (says("ValidatingAdmissionPolicy '") && says("denied request"))
    {
        return ProblemKind::Webhook;
    }
    match code {
        404 if kind == "namespaces" || says("namespaces \"") => ProblemKind::NamespaceMissing,
        401 => ProblemKind::Forbidden,
        403 => forbidden(message),
        409 if says("resourcequotas") || kind == "resourcequotas" => ProblemKind::Quota,
        400 | 413 | 415 | 422 => ProblemKind::Invalid,
        429 | 502..=504 => ProblemKind::ApiAway,
        500 if says("exceeded quota") || says("resource quota") => ProblemKind::Quota,
        _ => ProblemKind::Other,
    }
}

fn forbidden(message: &str) -> ProblemKind {
    let says = |words: &str| message.contains(words);
    if says("because it is being terminated") {
        ProblemKind::NamespaceMissing
    } else if says("cannot create resource")
        || says("cannot delete resource")
        || says("cannot get resource")
    {
        ProblemKind::Forbidden
    } else if says("no PriorityClass with name") {
        ProblemKind::PriorityClassMissing
    } else if says("violates PodSecurity") {
        ProblemKind::PodSecurity
    } else if says("exceeded quota") || says("failed quota") || says("status unknown for quota") {
        ProblemKind::Quota
    } else if says(" usage per ") || says(" max limit to request ratio per ") {
        ProblemKind::LimitRange
    } else if says("can only create")
        || says("can only delete")
        || says("can not create pods that reference")
        || says("must not set blockOwnerDeletion")
        || says("UID mismatch")
        || says("error looking up node")
    {
        ProblemKind::NodeRestriction
    } else if says("a mirror pod may not") {
        ProblemKind::Invalid
    } else {
        ProblemKind::Other
    }
}

/// When to try again after the `attempts`th refusal in a row of this kind, `age` after the first.
/// `watched` says that the end of the cause will be noticed. `share`, from 0 to 1, differs from pod to
/// pod, so that pods refused together don't retry together.
pub fn retry_after(
    kind: ProblemKind,
    attempts: u32,
    age: Duration,
    watched: bool,
    share: f64,
) -> Duration {
    if kind.is_soon_mended() && !watched && age < EAGER {
        return PAUSE_EAGER;
    }
    let pause = PAUSES.after(attempts);
    pause.mul_f64(1.0 - 0.2 * share.clamp(0.0, 1.0))
}
