//! The rollout of a workload: its pods are updated one after another, and a version that fails in one
//! pod is run by no other.
//!
//! Each pod has its own [`History`], and is prepared, switched and judged by itself. The decisions here
//! depend only on the histories of all pods of a workload and its [`Updates`], so a restarted agent
//! makes the same ones: which pods may be updated now, and which ones roll back to an older version
//! because the document's version failed in one of them.
//!
//! Upstream: `pkg/controller/deployment/util/deployment_util.go` (`ResolveFenceposts`),
//! `pkg/controller/statefulset/stateful_set_control.go` (`updateStatefulSet`).

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};

use super::{Cause, History, Outcome, Revision, RolloutStrategy, Settings};
use crate::api::{FullName, Pod, PodUid, keys};
use crate::objects::Config;
use crate::small::SmallSort;

mod command;
mod steps;

pub use command::{obey_all, try_again};
pub use steps::{Steps, steps};

/// Reason of a pod whose version failed in another pod of its workload.
pub const FAILED_ELSEWHERE: &str = "FailedAtAnotherPod";
/// Reason of a pod that waits for updates of other pods of its workload.
pub const WAITS: &str = "WaitsForItsTurn";
/// Letters of a template's hash in the name of a revision.
const HASH_LETTERS: usize = 10;

/// The order in which the pods of a workload are updated, and how many at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum UpdatePolicy {
    /// Within limits, those that are not available first.
    RollingUpdate {
        /// How many new versions run beside others at a time; a percentage is rounded up.
        max_surge: IntOrString,
        /// How many pods may be unavailable; a percentage is rounded down.
        max_unavailable: IntOrString,
    },
    /// All at the same time.
    Recreate,
    /// From the highest number to the lowest, each once those above it are available.
    Ordered {
        /// Pods of lower numbers keep their version.
        partition: i32,
        /// How many pods may be unavailable; a percentage is rounded down, 0 is 1.
        max_unavailable: IntOrString,
    },
}

/// The update settings of a workload's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Updates {
    /// Whether no pod is updated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// In which order, and how many at a time.
    pub policy: UpdatePolicy,
}

impl Updates {
    /// Returns the update settings of a pod's workload; none for a pod that is updated by itself.
    pub fn of(pod: &Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.as_ref()?;
        serde_json::from_str(annotations.get(keys::UPDATES)?).ok()
    }

    /// The value of [`keys::UPDATES`] on the workload's pods.
    pub fn annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether a pod may be updated now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Turn {
    /// It may.
    #[default]
    Now,
    /// Other pods of its workload come first.
    Waits(Cause),
    /// The workload's document pauses updates.
    Paused,
}

/// A pod of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: FullName,
    /// Its number in the workload.
    pub number: u32,
    /// Its revisions, with the one that its document currently describes.
    pub history: History,
    /// Whether its current revision is ready.
    pub ready: bool,
}

/// The number at the end of a pod's name, without the node's suffix; 0 if there is none.
pub fn number(manifest_name: &str) -> u32 {
    let last = manifest_name.rsplit('-').next();
    last.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Identifies a version across all pods of a workload: the template, and the objects that are part of
/// it.
#[derive(Debug, Clone)]
pub struct Key {
    template: String,
    config: Option<Arc<Config>>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let same_objects = match (&self.config, &other.config) {
            (None, None) => true,
            (Some(one), Some(other)) => one.has_objects_of(other),
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.template == other.template && same_objects
    }
}

impl Key {
    /// The version of a pod's revision. A revision that was stored by an agent that didn't record the
    /// template equals no other.
    pub fn of(revision: &Revision) -> Self {
        let annotations = revision.pod.metadata.annotations.as_ref();
        let template = annotations.and_then(|all| all.get(keys::TEMPLATE));
        Self {
            template: template.map_or_else(|| revision.uid().to_string(), Clone::clone),
            config: revision.config.clone(),
        }
    }
}

/// Decides for each pod of a workload whether it may be updated now. A version that failed in one pod
/// counts as failed in all of them. Pods that run it roll back to the last good one, as by an undo,
/// unless `restore` or the pod declines that.
pub fn turns(members: &mut [Member], updates: &Updates, restore: bool) -> Vec<Turn> {
    pause_newcomers(members);
    forget_replaced(members);
    go_back(members, restore);
    let total = i32::try_from(members.len()).unwrap_or(i32::MAX);
    let mut turns = match &updates.policy {
        UpdatePolicy::RollingUpdate {
            max_surge,
            max_unavailable,
        } => rolling(members, fenceposts(max_surge, max_unavailable, total)),
        UpdatePolicy::Recreate => vec![Turn::Now; members.len()],
        UpdatePolicy::Ordered {
            partition,
            max_unavailable,
        } => {
            let limit = scaled(max_unavailable, total, false).max(1);
            ordered(members, *partition, limit)
        }
    };
    if updates.paused {
        for (member, turn) in members.iter().zip(&mut turns) {
            // A version that failed isn't kept for a pause.
            if !member.returns() {
                *turn = Turn::Paused;
            }
        }
    }
    turns
}

/// Maximum number of new versions beside others and of unavailable pods, of `total`. At least one is
/// allowed.
///
/// Upstream: `ResolveFenceposts`.
pub fn fenceposts(
    max_surge: &IntOrString,
    max_unavailable: &IntOrString,
    total: i32,
) -> (u32, u32) {
    let surge = scaled(max_surge, total, true);
    let unavailable = scaled(max_unavailable, total, false);
    if surge == 0 && unavailable == 0 {
        (0, 1)
    } else {
        (surge, unavailable)
    }
}

/// A number, or a percentage of `total`; 0 of any other text.
///
/// Upstream: `GetScaledValueFromIntOrPercent` of `k8s.io/apimachinery/pkg/util/intstr`.
fn scaled(value: &IntOrString, total: i32, up: bool) -> u32 {
    let scaled = match value {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
            let percent: u32 = percent.unwrap_or(0);
            let hundredths = i64::from(percent).saturating_mul(i64::from(total));
            hundredths.saturating_add(if up { 99 } else { 0 }) / 100
        }
    };
    u32::try_from(scaled.max(0)).unwrap_or(u32::MAX)
}

impl Member {
    /// Whether another revision runs than the target, which isn't known to fail.
    fn wants_update(&self) -> bool {
        let (Some(current), Some(target)) = (self.history.current(), self.history.target()) else {
            return false;
        };
        current.uid() != target.uid()
            && self.history.beside.is_none()
            && !self.history.paused
            && !is_failed(target)
    }

    /// Whether the target replaced its predecessor, or runs beside it, and is not judged yet. False for
    /// a pod that a user stopped.
    fn is_under_way(&self) -> bool {
        !self.history.stopped && (self.history.beside.is_some() || self.is_unproven())
    }

    /// Whether the target took its place and is not judged yet.
    fn is_unproven(&self) -> bool {
        let (current, target) = (self.history.current(), self.history.target());
        let (Some(current), Some(target)) = (current, target) else {
            return false;
        };
        current.outcome == Outcome::Open && current.uid() == target.uid()
    }

    /// Whether it serves. One that a user stopped is not counted as missing.
    fn is_available(&self) -> bool {
        self.history.stopped || (self.ready && !self.is_unproven())
    }

    /// Whether its target is to start beside the revision that runs.
    fn starts_first(&self) -> bool {
        let target = self.history.target();
        target.is_some_and(|t| Settings::of(&t.pod).strategy == RolloutStrategy::StartFirst)
    }

    /// Whether it goes back to an older revision because the newest one failed.
    fn returns(&self) -> bool {
        let newest = self.history.newest.as_ref();
        let newest = newest.and_then(|uid| self.history.get(uid));
        self.history.undone_to.is_some() && newest.is_some_and(is_failed)
    }
}

fn is_failed(revision: &Revision) -> bool {
    matches!(revision.outcome, Outcome::Failed(_))
}

/// Has a pod that is added to a paused workload be paused, too.
fn pause_newcomers(members: &mut [Member]) {
    let mut known = members.iter().filter(|m| m.history.current.is_some());
    let all_paused =
        known.next().is_some_and(|one| one.history.paused) && known.all(|one| one.history.paused);
    if all_paused {
        for member in members {
            member.history.paused = true;
        }
    }
}

/// Prevents a pod that is added again from rolling back to versions that were meanwhile replaced in all
/// other pods: it is treated as one that knows no other version. An undo may still select them.
fn forget_replaced(members: &mut [Member]) {
    let returned = |member: &Member| member.history.returned;
    if !members.iter().any(returned) {
        return;
    }
    let others = members.iter().filter(|member| !returned(member));
    let kept = others.filter_map(|other| other.history.healthy().first().map(|one| Key::of(one)));
    let kept: Vec<Key> = kept.collect();
    for member in members.iter_mut().filter(|member| returned(member)) {
        member.history.returned = false;
        let newest = member.history.newest.clone();
        let healthy = member.history.healthy().into_iter();
        let replaced = healthy.filter(|revision| !kept.contains(&Key::of(revision)));
        let replaced: Vec<PodUid> = replaced.map(Revision::uid).collect();
        for uid in replaced {
            if !kept.is_empty() && Some(&uid) != newest.as_ref() {
                member.history.set_outcome(&uid, Outcome::Open);
            }
        }
    }
}

/// Decides which pods may be updated within the limits for new versions beside others and for
/// unavailable pods. Pods that are unavailable anyway come first, and don't count.
fn rolling(members: &[Member], (surge, unavailable): (u32, u32)) -> Vec<Turn> {
    let (surge, unavailable) = (surge.max(1), unavailable.max(1));
    let mut under_way: Vec<&Member> = members.iter().filter(|m| m.is_under_way()).collect();
    let mut missing: Vec<&Member> = members.iter().filter(|m| !m.is_available()).collect();
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.small_sort_by_key(|at| (members[*at].is_available(), members[*at].number));
    let mut turns = vec![Turn::Now; members.len()];
    for at in order {
        let member = &members[at];
        // Nothing is started of a pod that a user stopped.
        if !member.wants_update() || member.history.stopped {
            continue;
        }
        let limit = if member.starts_first() {
            surge
        } else {
            unavailable
        };
        let costs = !member.starts_first() && member.is_available();
        let is_full = |pods: &[&Member], limit: u32| pods.len() >= limit as usize;
        turns[at] = if is_full(&under_way, limit) {
            waits_for(&under_way, "is being updated")
        } else if costs && is_full(&missing, unavailable) {
            waits_for(&missing, "is not available")
        } else {
            under_way.push(member);
            if costs {
                missing.push(member);
            }
            Turn::Now
        };
    }
    turns
}

/// From the highest number to the lowest, as long as not too many are unavailable.
fn ordered(members: &[Member], partition: i32, limit: u32) -> Vec<Turn> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.small_sort_by_key(|at| std::cmp::Reverse(members[*at].number));
    let mut missing: Vec<&Member> = Vec::new();
    let mut turns = vec![Turn::Now; members.len()];
    for at in order {
        let member = &members[at];
        let wants = member.wants_update();
        let is_kept = i64::from(member.number) < i64::from(partition) && !member.returns();
        if wants && is_kept {
            let words = format!("the partition of its workload is {partition}");
            turns[at] = Turn::Waits(Cause::new(WAITS, words));
        } else if wants && missing.len() >= limit as usize {
            turns[at] = waits_for(&missing, "is being updated");
        } else if (wants && !member.history.stopped)
            || member.is_under_way()
            || !member.is_available()
        {
            missing.push(member);
        }
    }
    turns
}

fn waits_for(pods: &[&Member], what: &str) -> Turn {
    let name = pods.first().map(|pod| pod.name.name.to_string());
    let words = format!("pod {} {what}", name.unwrap_or_default());
    Turn::Waits(Cause::new(WAITS, words))
}

/// A version that failed at one pod is failed at all of them, and those that run it go back.
fn go_back(members: &mut [Member], restore: bool) {
    let failed = failed(members);
    if failed.is_empty() {
        return;
    }
    let good = last_good(members, &failed);
    for member in members {
        member.go_back(&failed, good.as_ref(), restore);
    }
}

/// The versions that failed at a pod, each with the cause for the others.
fn failed(members: &[Member]) -> Vec<(Key, Cause)> {
    let mut failed: Vec<(Key, Cause)> = Vec::new();
    for member in members {
        for revision in &member.history.revisions {
            let Outcome::Failed(cause) = &revision.outcome else {
                continue;
            };
            let key = Key::of(revision);
            let is_own = &*cause.reason != FAILED_ELSEWHERE;
            let cause = if is_own {
                let words = format!(
                    "it failed at pod {}: {}: {}",
                    member.name.name, cause.reason, cause.message
                );
                Cause::new(FAILED_ELSEWHERE, words).of_field(cause.field.clone())
            } else {
                cause.clone()
            };
            match failed.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) if is_own => *known = cause,
                Some(_) => {}
                None => failed.push((key, cause)),
            }
        }
    }
    failed
}

/// The version that was healthy in every pod with a healthy one: of several, the one that ran last in
/// the first of these pods.
fn last_good(members: &[Member], failed: &[(Key, Cause)]) -> Option<Key> {
    let good = |member: &Member| -> Vec<Key> {
        let healthy = member.history.healthy().into_iter().map(Key::of);
        healthy
            .filter(|key| !failed.iter().any(|(known, _)| known == key))
            .collect()
    };
    let good: Vec<Vec<Key>> = members
        .iter()
        .map(good)
        .filter(|all| !all.is_empty())
        .collect();
    let (first, others) = good.split_first()?;
    let everywhere = |key: &&Key| others.iter().all(|other| other.contains(key));
    first.iter().find(everywhere).cloned()
}

impl Member {
    fn go_back(&mut self, failed: &[(Key, Cause)], good: Option<&Key>, restore: bool) {
        let Some(target) = self.history.target() else {
            return;
        };
        let restore = Settings::of(&target.pod).restore.unwrap_or(restore);
        let (target, key) = (target.uid(), Key::of(target));
        let good = self.good(&target, good);
        let current = self.history.current.as_ref().map(|(uid, _)| uid.clone());
        if let Some((_, cause)) = failed.iter().find(|(known, _)| *known == key) {
            // A pod that knows no other version keeps the one it has.
            let Some(good) = good else { return };
            if !restore && current.as_ref() == Some(&target) {
                return;
            }
            let stays = !restore || self.runs_well(failed);
            if !self.history.get(&target).is_some_and(is_failed) {
                self.history
                    .set_outcome(&target, Outcome::Failed(cause.clone()));
            }
            self.history.beside = None;
            if !stays && current.as_ref() != Some(&good) {
                let is_newest = self.history.newest.as_ref() == Some(&good);
                self.history.undone_to = (!is_newest).then_some(good);
                self.history.goes_back = !is_newest;
            }
        } else if self.returns()
            && self.history.goes_back
            && self.history.beside.is_none()
            && current == self.history.undone_to
            && good == current
        {
            // It is back.
            (self.history.undone_to, self.history.goes_back) = (None, false);
        }
    }

    /// Whether a healthy version runs that failed at no pod.
    fn runs_well(&self, failed: &[(Key, Cause)]) -> bool {
        self.history.current().is_some_and(|revision| {
            let key = Key::of(revision);
            revision.outcome == Outcome::Healthy && failed.iter().all(|(known, _)| *known != key)
        })
    }

    /// The revision to go back to: the workload's last good one, or this pod's.
    fn good(&self, failed: &PodUid, good: Option<&Key>) -> Option<PodUid> {
        let newest_first = || self.history.revisions.iter().rev();
        let of_workload = newest_first().find(|revision| good == Some(&Key::of(revision)));
        let of_workload = of_workload.map(Revision::uid);
        of_workload.or_else(|| self.history.last_healthy(failed))
    }
}

/// The hash of a pod's template; empty if it has none.
pub fn template_hash(pod: &Pod) -> &str {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(keys::TEMPLATE))
        .map_or("", String::as_str)
}

/// The letters of a template's hash in the names of its revisions.
pub fn short_hash(template_hash: &str) -> &str {
    template_hash.get(..HASH_LETTERS).unwrap_or(template_hash)
}

#[cfg(test)]
mod tests;
