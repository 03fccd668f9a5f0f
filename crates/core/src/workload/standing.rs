//! The progress of workloads with permanent pods: counts and conditions.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{RECREATE, ROLLING_DEFAULT, WorkloadKind};
use crate::api::report::{
    PodReport, RolloutPhase, RolloutReport, SetRevisions, WorkloadCondition, WorkloadReport,
};
use crate::api::{PodUid, split_name};
use crate::desired::{SourcePod, SourceWorkload};
use crate::rollout::group::{FAILED_ELSEWHERE, fenceposts, number, short_hash, template_hash};
use crate::rollout::{History, Revision};

/// The counts and settings that the conditions of a Deployment are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress<'a> {
    /// The number of pods that it wants.
    pub wanted: u32,
    /// The number that are not being stopped.
    pub live: u32,
    /// The number of pods that run the version of the document, with the newest objects that are part
    /// of it.
    pub updated: u32,
    /// The number that serve.
    pub available: u32,
    /// How many may be unavailable.
    pub unavailable_max: u32,
    /// Whether no pod is updated.
    pub paused: bool,
    /// Whether its rollout was complete: every pod that isn't being stopped runs the version of the
    /// document, which was judged healthy.
    pub was_complete: bool,
    /// The older version that all its pods run because a user wants it, if there is one.
    pub undone: Option<&'a str>,
    /// Why the version of the document doesn't run, if it can't.
    pub failed: Option<&'a str>,
}

impl Progress<'_> {
    /// The conditions `Available` and `Progressing`.
    ///
    /// Upstream: `pkg/controller/deployment/progress.go` (`syncRolloutStatus`) and `sync.go`
    /// (`calculateStatus`, `checkPausedConditions`).
    pub fn conditions(&self) -> [WorkloadCondition; 2] {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| WorkloadCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let available = if self.available >= self.wanted.saturating_sub(self.unavailable_max) {
            let message = "Deployment has minimum availability.";
            condition("Available", "True", "MinimumReplicasAvailable", message)
        } else {
            let message = "Deployment does not have minimum availability.";
            condition("Available", "False", "MinimumReplicasUnavailable", message)
        };
        let complete = self.updated == self.wanted
            && self.live == self.wanted
            && self.available >= self.wanted;
        // Upstream: `isCompleteDeployment` of `syncRolloutStatus`, which estimates no progress then.
        let was_complete = self.was_complete && self.updated == self.live;
        let progressing =
            |status, reason, message| condition("Progressing", status, reason, message);
        let progressing = match self.failed {
            // The word by which `kubectl rollout status` ends.
            Some(why) => progressing("False", "ProgressDeadlineExceeded", why),
            None if self.paused => {
                progressing("Unknown", "DeploymentPaused", "Deployment is paused")
            }
            // It would wait forever for pods that will not be updated.
            None if let Some(undone) = self.undone => {
                progressing("False", "ProgressDeadlineExceeded", undone)
            }
            None if complete || was_complete => {
                let message = "All pods run the version of the document.";
                progressing("True", "NewReplicaSetAvailable", message)
            }
            None => progressing("True", "ReplicaSetUpdated", "Pods are being updated."),
        };
        [available, progressing]
    }
}

/// The settings of a document that concern its pods together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesiredPods {
    /// How many there are to be.
    pub pods: u32,
    /// How many may be unavailable.
    pub unavailable_max: u32,
    /// Whether none is updated.
    pub paused: bool,
}

impl DesiredPods {
    /// The wish of a workload's document.
    pub fn of(document: &Value) -> Self {
        let spec = &document["spec"];
        let pods = spec["replicas"].as_i64().unwrap_or(1).max(0);
        let strategy = &spec["strategy"];
        let total = i32::try_from(pods).unwrap_or(i32::MAX);
        let limit = |key: &str| {
            let written = &strategy["rollingUpdate"][key];
            let written: Option<IntOrString> = serde_json::from_value(written.clone()).ok();
            written.unwrap_or_else(|| IntOrString::String(ROLLING_DEFAULT.to_owned()))
        };
        let is_rolling = strategy["type"] != RECREATE && total > 0;
        let (_, unavailable) = fenceposts(&limit("maxSurge"), &limit("maxUnavailable"), total);
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        Self {
            pods,
            // Upstream: `MaxUnavailable` of `deployment/util`.
            unavailable_max: if is_rolling { unavailable.min(pods) } else { 0 },
            paused: spec["paused"] == true,
        }
    }
}

/// A wanted pod of a workload, with data that its own report doesn't contain.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// Its report.
    pub pod: &'a PodReport,
    /// The UID of the manifest whose version runs.
    pub runs: PodUid,
    /// The hash of that version's template; empty if there is none.
    pub template_hash: &'a str,
    /// The UID of the manifest in its rollout, once there is one. Just after an edit it is that of the
    /// previous document.
    pub newest: Option<PodUid>,
    /// Whether the objects that are part of the newest version have changed since the running version,
    /// though both are of the same manifest.
    pub config_is_old: bool,
}

impl<'a> Member<'a> {
    /// The member for a pod's report: `runs` is the running version, `history` its versions.
    pub fn of(pod: &'a PodReport, runs: &'a SourcePod, history: Option<&History>) -> Self {
        let newest = history.and_then(History::newest_revision);
        let manifest = runs.manifest_uid();
        let is_old =
            |newest: &Revision| newest.manifest_uid() == manifest && newest.uid() != runs.uid();
        Self {
            pod,
            template_hash: template_hash(&runs.pod),
            config_is_old: newest.is_some_and(is_old),
            newest: newest.map(Revision::manifest_uid),
            runs: manifest,
        }
    }
}

/// The report of a workload with these pods, and others that wait for their turn: `waits` has the
/// reasons. A pod that is being stopped doesn't count, even if it is wanted again and starts later.
/// `clash` is the reason why one of its pods can't run at all.
pub fn report(
    document: &SourceWorkload,
    members: &[Member<'_>],
    waits: &[String],
    clash: Option<&str>,
) -> WorkloadReport {
    let wish = DesiredPods::of(&document.document);
    let row = Row { document, members };
    let mut report = WorkloadReport {
        namespace: document.namespace.clone(),
        owner: document.owner.clone(),
        source: document.origin.location.clone(),
        wanted: wish.pods,
        pods: row.count(|member| !member.pod.is_ending()),
        ready: row.count(|member| member.pod.is_ready()),
        updated: row.count(|member| row.is_updated(member) && !member.pod.is_ending()),
        available: row.count(|member| is_available(document, member)),
        progress: String::new(),
        message: String::new(),
        revisions: None,
        conditions: Vec::new(),
    };
    let key = document.key();
    let failed = row.failed().or_else(|| clash.map(str::to_owned));
    let undone = row.undone();
    let is_paused = !members.is_empty() && members.iter().all(is_paused);
    let kind = key.as_ref().map(|key| key.kind);
    if let Some(key) = key.filter(|key| key.kind == WorkloadKind::StatefulSet) {
        report.revisions = Some(row.revisions(&key.name));
    }
    if kind == Some(WorkloadKind::Deployment) {
        let progress = Progress {
            wanted: wish.pods,
            live: report.pods,
            updated: report.updated,
            available: report.available,
            unavailable_max: wish.unavailable_max,
            paused: wish.paused || is_paused,
            was_complete: row.was_complete(),
            undone: undone.as_deref(),
            failed: failed.as_deref(),
        };
        let conditions = progress.conditions();
        report.progress.clone_from(&conditions[1].reason);
        report.conditions = conditions.to_vec();
        if failed.is_none() && undone.is_some() {
            UNDONE.clone_into(&mut report.progress);
        }
        report.message = failed.or(undone).unwrap_or_default();
        return report;
    }
    let (word, message) = if let Some(why) = failed {
        (FAILED, why)
    } else if let Some(undone) = undone {
        (UNDONE, undone)
    } else if is_paused && report.updated < report.pods {
        (PAUSED, "its rollouts are paused".to_owned())
    } else {
        row.progress(&report, waits)
    };
    word.clone_into(&mut report.progress);
    report.message = message;
    report
}

/// Whether a text refers to a workload: `statefulset/web`, `sts/web`, with its namespace,
/// `sts/default/web`, or without its kind, `web` and `default/web`.
pub fn is_named(report: &WorkloadReport, text: &str) -> bool {
    let is_in = |namespace: Option<&str>| namespace.is_none_or(|one| one == report.namespace);
    if let Some((namespace, owner)) = WorkloadKind::named(text) {
        return owner == report.owner && is_in(namespace);
    }
    let (namespace, name) = split_name(text);
    let own = report.owner.split_once('/').map(|(_, own)| own);
    own == Some(name) && is_in(namespace)
}

/// Every pod runs the version of the document, and is available.
pub const COMPLETE: &str = "Complete";
/// Pods with lower numbers keep their version because of the document's partition.
pub const PARTITIONED: &str = "Partitioned";
/// Pods start or stop.
pub const SCALING: &str = "Scaling";
/// Pods are being updated.
const UPDATING: &str = "Updating";
/// A pod is not available.
pub const NOT_READY: &str = "NotReady";
/// No pod is updated, because a user paused the rollout.
const PAUSED: &str = "Paused";
/// Versions older than the document's run, because a user ran `mirrorlet rollout undo`.
pub const UNDONE: &str = "Undone";
/// The version of the document can't be started, or failed.
pub const FAILED: &str = "Failed";

/// The words for that.
const UNDONE_WORDS: &str =
    "all pods run an older version, because a user ran `mirrorlet rollout undo`";

/// The name of a workload's version with that template, as upstream's controllers name a `ReplicaSet`
/// and a `ControllerRevision`: `web-6d4b75cb6d`.
pub fn revision_name(workload: &str, template_hash: &str) -> String {
    format!("{workload}-{}", short_hash(template_hash))
}

/// A workload's pods beside its document.
struct Row<'a> {
    document: &'a SourceWorkload,
    members: &'a [Member<'a>],
}

impl Row<'_> {
    fn count(&self, is: impl Fn(&Member<'_>) -> bool) -> u32 {
        let number = self.members.iter().filter(|member| is(member)).count();
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Whether the version of the document runs, with its newest objects, rather than one in its place.
    fn is_updated(&self, member: &Member<'_>) -> bool {
        self.document.pods.contains(&member.runs) && !member.config_is_old
    }

    /// Why the version of the document doesn't run: the message of the pod where it failed. A version
    /// that a newer document has replaced doesn't count.
    fn failed(&self) -> Option<String> {
        let is_of_document = |member: &&Member<'_>| {
            let newest = member.newest.as_ref();
            newest.is_some_and(|uid| self.document.pods.contains(uid))
        };
        let setbacks = self
            .members
            .iter()
            .filter(is_of_document)
            .filter_map(|member| {
                let rollout = member.pod.rollout.as_ref()?;
                let is_setback = matches!(
                    rollout.phase,
                    RolloutPhase::Held
                        | RolloutPhase::Failed
                        | RolloutPhase::Restoring
                        | RolloutPhase::Restored
                );
                is_setback.then(|| {
                    let name = &member.pod.name;
                    let words = format!("pod {name}: {}: {}", rollout.reason, rollout.message);
                    (rollout.reason == FAILED_ELSEWHERE, words)
                })
            });
        setbacks.min().map(|(_, words)| words)
    }

    /// Whether every pod that isn't being stopped runs the version of the document, which has passed its
    /// judgement there.
    fn was_complete(&self) -> bool {
        let is_done = |member: &Member<'_>| {
            let rollout = member.pod.rollout.as_ref();
            self.is_updated(member) && rollout.is_none_or(|rollout| !is_target_judged(rollout))
        };
        let mut live = self.members.iter().filter(|member| !member.pod.is_ending());
        live.clone().next().is_some() && live.all(is_done)
    }

    /// The message about pods that run an older version because of an undo, if all do and it is
    /// complete: nothing will be updated until the document changes.
    fn undone(&self) -> Option<String> {
        let is_undone = |member: &Member<'_>| {
            let rollout = member.pod.rollout.as_ref();
            rollout.is_some_and(|rollout| {
                rollout.phase == RolloutPhase::Undone && rollout.revision == rollout.target
            })
        };
        let all = !self.members.is_empty() && self.members.iter().all(is_undone);
        all.then(|| UNDONE_WORDS.to_owned())
    }

    /// The versions that run, of a set of a name. The one that is being replaced is that of the pod with
    /// the lowest number among those that are not updated: it is the last to be.
    fn revisions(&self, name: &str) -> SetRevisions {
        let update = &self.document.template_hash;
        let old = self
            .members
            .iter()
            .filter(|member| !self.is_updated(member));
        let old = old.min_by_key(|member| number(&member.pod.manifest_name));
        let current = old.map_or(update.as_str(), |member| member.template_hash);
        SetRevisions {
            current: revision_name(name, current),
            update: revision_name(name, update),
            current_pods: self
                .count(|member| member.template_hash == current && !member.pod.is_ending()),
        }
    }

    /// The progress of a workload without conditions, in one word, and the condition that it waits for.
    fn progress(&self, report: &WorkloadReport, waits: &[String]) -> (&'static str, String) {
        if let Some(first) = waits.first() {
            return (SCALING, first.clone());
        }
        if report.pods != report.wanted {
            let words = format!("{} of {} pods exist", report.pods, report.wanted);
            return (SCALING, words);
        }
        let partition = &self.document.document["spec"]["updateStrategy"]["rollingUpdate"];
        let partition = partition["partition"].as_i64().unwrap_or(0);
        let is_kept = |member: &Member<'_>| {
            !self.is_updated(member) && i64::from(number(&member.pod.manifest_name)) < partition
        };
        let is_due = |member: &Member<'_>| {
            !is_kept(member) && (!self.is_updated(member) || self.is_judged_in_place(member))
        };
        if let Some(words) = self.under_way(is_due) {
            return (UPDATING, words);
        }
        let mut members = self.members.iter();
        if let Some(missing) = members.find(|member| !is_available(self.document, member)) {
            let pod = missing.pod;
            let why = match pod.message.as_str() {
                "" => String::new(),
                message => format!(": {message}"),
            };
            return if is_first(missing) {
                (SCALING, format!("pod {} is being started{why}", pod.name))
            } else {
                (NOT_READY, format!("pod {} is not Ready{why}", pod.name))
            };
        }
        if self.members.iter().any(is_kept) {
            let words = format!("pods with an ordinal below {partition} keep their version");
            return (PARTITIONED, words);
        }
        (COMPLETE, String::new())
    }

    /// Whether a version is still judged that took the place of another.
    fn is_judged_in_place(&self, member: &Member<'_>) -> bool {
        is_judged(self.document, member) && !is_first(member)
    }

    /// The message of the pod that is being updated; otherwise of one that waits for its turn.
    fn under_way(&self, is_due: impl Fn(&Member<'_>) -> bool) -> Option<String> {
        let due = self.members.iter().filter(|member| is_due(member));
        let candidates = due.map(|member| {
            let rollout = member.pod.rollout.as_ref();
            let phase = rollout.map(|rollout| rollout.phase);
            let words = match (phase, rollout) {
                (Some(RolloutPhase::Waiting), Some(rollout)) => {
                    format!("waits: {}", rollout.message)
                }
                (Some(RolloutPhase::Undone), _) => "runs an older version after an undo".to_owned(),
                (Some(RolloutPhase::Paused), _) => "is paused".to_owned(),
                _ => "is being updated".to_owned(),
            };
            let words = format!("pod {} {words}", member.pod.name);
            (phase == Some(RolloutPhase::Waiting), words)
        });
        candidates
            .min_by_key(|(waits, _)| *waits)
            .map(|(_, words)| words)
    }
}

fn is_paused(member: &Member<'_>) -> bool {
    let rollout = member.pod.rollout.as_ref();
    rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Paused)
}

/// Whether the running version is not judged yet, and is the pod's first, which replaced no other.
fn is_first(member: &Member<'_>) -> bool {
    let rollout = member.pod.rollout.as_ref();
    rollout.is_some_and(|rollout| rollout.revision == 1 && is_target_judged(rollout))
}

fn is_target_judged(rollout: &RolloutReport) -> bool {
    rollout.phase == RolloutPhase::Judging && rollout.revision == rollout.target
}

/// Whether the running version must be Ready for longer before it counts: it replaced another one, or
/// its document has `minReadySeconds`.
fn is_judged(document: &SourceWorkload, member: &Member<'_>) -> bool {
    let min_ready = document.document["spec"]["minReadySeconds"].as_i64();
    let counts_at_once = is_first(member) && min_ready.unwrap_or(0) <= 0;
    let rollout = member.pod.rollout.as_ref();
    rollout.is_some_and(is_target_judged) && !counts_at_once
}

/// Whether a pod serves: it is Ready, and for long enough if its version is judged.
pub(super) fn is_available(document: &SourceWorkload, member: &Member<'_>) -> bool {
    member.pod.is_ready() && !is_judged(document, member)
}

#[cfg(test)]
mod tests;
