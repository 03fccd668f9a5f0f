//! The revisions of one pod: the outcome of each, and which one runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::held::{Hold, Refusal};
use super::{Cause, Life, Settings, Version};
use crate::api::core::{EphemeralContainer, PodStatus};
use crate::api::{ContainerId, Pod, PodUid, Timestamp, keys};
use crate::clock::since;
use crate::desired::{Origin, SourcePod};
use crate::objects::Config;
use crate::small::{SmallCollect, SmallSort};
use crate::spec;

/// Most revisions of a pod that are kept.
pub const REVISIONS_MAX: usize = 10;
/// How long the revisions of a pod are kept after its manifest was removed. A manifest that is moved
/// away and back within this time counts as an edit: `kubeadm upgrade` moves one back after at most 5
/// minutes.
pub const GONE_KEPT: Duration = Duration::from_mins(10);
/// Maximum size of the object data that is kept with revisions, in bytes. Revisions that may still be
/// started keep theirs regardless.
const CONFIG_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The result of judging a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It was not run yet, or is being judged.
    Open,
    /// It passed its judgement.
    Healthy,
    /// It has done its work and ended well. There is no rollback to it: that would do the work again.
    /// If a user runs it again, it is open.
    Ended,
    /// It failed its judgement.
    Failed(Cause),
}

/// One revision of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Its number: higher than that of every earlier revision.
    pub number: u64,
    /// When its source wanted it first.
    pub wanted_at: Timestamp,
    /// The pod.
    #[serde(deserialize_with = "crate::api::shared")]
    pub pod: Arc<Pod>,
    /// The data of the objects that are part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Arc<Config>>,
    /// The template of its workload in its original form, if the workload's pods are updated together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Arc<Value>>,
    /// Where it came from.
    pub origin: Origin,
    /// The result of its judgement.
    pub outcome: Outcome,
    /// Its position among revisions that ran and no longer run: the last one has the highest. 0 if it
    /// has not run, or the file is from an agent that didn't record it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ran: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(ran: &u64) -> bool {
    *ran == 0
}

impl Revision {
    /// Its UID.
    pub fn uid(&self) -> PodUid {
        PodUid::of(&self.pod)
    }

    /// Its UID without the objects that are part of it: that of its manifest.
    pub fn manifest_uid(&self) -> PodUid {
        let config = self.config.as_ref();
        config.map_or_else(|| self.uid(), |config| config.manifest.clone())
    }

    /// It as something to compare.
    pub fn version(&self) -> Version<'_> {
        (&self.pod, self.config.as_deref())
    }
}

/// The revisions of one pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is set and cleared by itself, and the file on disk has each by its name"
)]
pub struct History {
    /// The revisions known, the newest last.
    pub revisions: Vec<Revision>,
    /// The one that is run, and since when.
    pub current: Option<(PodUid, Timestamp)>,
    /// The one that runs beside the current one until it is judged, and since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<(PodUid, Timestamp)>,
    /// The one that its source currently describes.
    pub newest: Option<PodUid>,
    /// The older one that `rollout undo` selected, until the source changes.
    pub undone_to: Option<PodUid>,
    /// Whether that is the workload's last good version because the newest failed, rather than a user's
    /// choice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_back: bool,
    /// Whether no other revision may replace the running one.
    pub paused: bool,
    /// Whether a user stopped the pod, until it is started or its source changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Whether it is stopped because the Node is cordoned, until the Node is uncordoned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// The ephemeral containers that were added to the running revision, with its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<(PodUid, Vec<EphemeralContainer>)>,
    /// The instances that a user ordered to be replaced last.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub restart: BTreeSet<ContainerId>,
    /// The current or last lives of the revisions that were judged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lives: BTreeMap<PodUid, Life>,
    /// Whether a manifest of the pod was added again, until its workload has processed that.
    #[serde(skip)]
    pub returned: bool,
    /// The hold of the target, while it can't be started.
    #[serde(skip)]
    pub held: Option<Hold>,
    /// The node's last refusal of a revision.
    #[serde(skip)]
    pub refused: Option<Refusal>,
    /// Since when the pod has no manifest, if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Timestamp>,
}

impl History {
    /// A revision by its UID.
    pub fn get(&self, uid: &PodUid) -> Option<&Revision> {
        let mut revisions = self.revisions.iter();
        revisions.find(|revision| revision.uid() == *uid)
    }

    /// The revision that its source wants.
    pub fn newest_revision(&self) -> Option<&Revision> {
        self.newest.as_ref().and_then(|uid| self.get(uid))
    }

    /// The revision that is run.
    pub fn current(&self) -> Option<&Revision> {
        self.current.as_ref().and_then(|(uid, _)| self.get(uid))
    }

    /// Whether the current revision replaced another one, and hasn't ended.
    pub fn has_taken_over(&self) -> bool {
        let is_over = |revision: &Revision| revision.outcome == Outcome::Ended;
        let current = self.current().filter(|revision| !is_over(revision));
        let others = |current: &Revision| {
            let mut all = self.revisions.iter();
            all.any(|revision| revision.ran > 0 && revision.uid() != current.uid())
        };
        !self.stopped && current.is_some_and(others)
    }

    /// Whether the current revision is not judged yet.
    pub fn is_open(&self) -> bool {
        let current = self.current();
        current.is_some_and(|revision| revision.outcome == Outcome::Open)
    }

    /// The target: the newest revision, or the one selected by an undo.
    pub fn target(&self) -> Option<&Revision> {
        let undone_to = self.undone_to.as_ref().and_then(|uid| self.get(uid));
        undone_to.or_else(|| self.newest_revision())
    }

    /// The target once `wanted` is the source's pod.
    pub fn target_of(&self, wanted: &SourcePod) -> (Arc<Pod>, Option<Arc<Config>>) {
        let edited = self.newest.as_ref() != Some(&wanted.uid());
        let undone_to = self.undone_to.as_ref().filter(|_| !edited);
        let undone_to = undone_to.and_then(|uid| self.get(uid));
        match undone_to {
            Some(revision) => (Arc::clone(&revision.pod), revision.config.clone()),
            None => (Arc::clone(&wanted.pod), wanted.config.clone()),
        }
    }

    /// The healthy revision that ran last, except `uid`: the target of a restore.
    pub(super) fn last_healthy(&self, uid: &PodUid) -> Option<PodUid> {
        let mut healthy = self.healthy().into_iter().map(Revision::uid);
        healthy.find(|healthy| healthy != uid)
    }

    /// The revision that replaces the current one if that fails: the last healthy one. None if the
    /// current one is judged already, or a restore is declined; `restore` is the node's default.
    pub fn fallback(&self, restore: bool) -> Option<&Revision> {
        let current = self.current().filter(|_| self.is_open())?;
        let restore = Settings::of(&current.pod).restore.unwrap_or(restore);
        self.get(&self.last_healthy(&current.uid()).filter(|_| restore)?)
    }

    /// The healthy revisions: first the running one, then those that ran last. After an undo that isn't
    /// the order of their numbers.
    pub(super) fn healthy(&self) -> Vec<&Revision> {
        let healthy = |revision: &&Revision| revision.outcome == Outcome::Healthy;
        let mut found: Vec<&Revision> = self.revisions.iter().rev().filter(healthy).collect();
        let current = self.current.as_ref().map(|(uid, _)| uid);
        found.small_sort_by_key(|revision| {
            let runs = Some(&revision.uid()) == current;
            std::cmp::Reverse((runs, revision.ran))
        });
        found
    }

    /// Notes that the current revision has run, before another takes its place.
    fn leave_current(&mut self) {
        let last = self.revisions.iter().map(|revision| revision.ran).max();
        let Some((current, _)) = &self.current else {
            return;
        };
        let mut revisions = self.revisions.iter_mut();
        if let Some(revision) = revisions.find(|revision| revision.uid() == *current) {
            revision.ran = last.unwrap_or(0) + 1;
        }
    }

    /// The revisions that may still be started: the running one, the newest, the target, and the target
    /// of a restore.
    fn needed(&self) -> BTreeSet<PodUid> {
        let target = self.target().map(Revision::uid);
        let healthy = target.as_ref().and_then(|uid| self.last_healthy(uid));
        let current = self.current.as_ref().map(|(uid, _)| uid.clone());
        let needed = [current, self.newest.clone(), target, healthy];
        needed.into_iter().flatten().collect_set()
    }

    /// The images of the revisions that may still be started.
    pub fn needed_images(&self) -> BTreeSet<String> {
        let needed = self.needed();
        let revisions = needed.iter().filter_map(|uid| self.get(uid));
        let images = revisions.flat_map(|revision| spec::image_names(&revision.pod));
        images.map(ToOwned::to_owned).collect_set()
    }

    /// Processes the source's current pod. An edit is a new attempt, also of a failed revision, and
    /// ends an undo.
    pub fn take_newest(&mut self, pod: &SourcePod, now: Timestamp) {
        let uid = pod.uid();
        let edited = self.newest.as_ref() != Some(&uid);
        let next = self.revisions.iter().map(|known| known.number).max();
        let next = next.map_or(1, |number| number + 1);
        let known = self.revisions.iter().position(|known| known.uid() == uid);
        let known = known.map(|at| self.revisions.remove(at));
        // A pod with a UID of its own keeps it over edits.
        if edited || known.as_ref().is_some_and(|known| known.pod != pod.pod) {
            // On a cordoned Node an edit starts nothing.
            self.stopped = self.cordoned;
            self.refused = None;
        }
        // A pod of a set that stays until its turn to stop is in no document.
        let of_known = known.as_ref().and_then(|known| known.template.clone());
        let template = pod.template.clone().or(of_known);
        let ran = known.as_ref().map_or(0, |known| known.ran);
        let (number, wanted_at, outcome) = match known {
            Some(known) if !edited => (known.number, known.wanted_at, known.outcome),
            Some(Revision {
                outcome: Outcome::Failed(_),
                ..
            })
            | None => (next, now, Outcome::Open),
            Some(known) => (next, now, known.outcome),
        };
        self.revisions.push(Revision {
            number,
            wanted_at,
            pod: Arc::clone(&pod.pod),
            config: pod.config.clone(),
            template,
            origin: pod.origin.clone(),
            outcome,
            ran,
        });
        if edited {
            (self.undone_to, self.goes_back) = (None, false);
        }
        self.newest = Some(uid);
        self.returned |= self.gone_since.take().is_some();
    }

    /// Makes a revision current that is found running at the agent's start: the previous agent ended
    /// before it could record the switch. A failed one does not become current: the previous agent
    /// ended before it could stop its containers.
    pub fn take_running(&mut self, uid: &PodUid) {
        let known = self.get(uid);
        let failed = known.is_some_and(|known| matches!(known.outcome, Outcome::Failed(_)));
        if failed {
            return;
        }
        self.leave_current();
        if let Some((current, _)) = &mut self.current {
            current.clone_from(uid);
        }
    }

    pub(super) fn switch(&mut self, uid: &PodUid, now: Timestamp) {
        self.leave_current();
        self.current = Some((uid.clone(), now));
        self.beside = None;
        self.reopen(now);
    }

    /// Restarts the time for which a revision has run, if the clock was set back. A deadline must
    /// neither pass immediately nor wait until the clock has caught up.
    pub(super) fn take_clock(&mut self, now: Timestamp) {
        for (_, since) in self.current.iter_mut().chain(&mut self.beside) {
            *since = (*since).min(now);
        }
    }

    /// Since when the target, whose UID is `uid`, runs beside the current revision, if it does. A
    /// former target no longer counts.
    pub(super) fn beside_since(&mut self, uid: &PodUid) -> Option<Timestamp> {
        let is_current = self
            .current
            .as_ref()
            .is_some_and(|(current, _)| current == uid);
        self.beside = self
            .beside
            .take()
            .filter(|(beside, _)| !is_current && beside == uid);
        self.beside.as_ref().map(|(_, since)| *since)
    }

    pub(super) fn set_outcome(&mut self, uid: &PodUid, outcome: Outcome) {
        let mut revisions = self.revisions.iter_mut();
        if let Some(revision) = revisions.find(|revision| revision.uid() == *uid) {
            revision.outcome = outcome;
        }
    }

    /// The life of a running revision since then, updated from its status.
    pub(super) fn live(
        &mut self,
        uid: &PodUid,
        since: Timestamp,
        status: &PodStatus,
        now: Timestamp,
    ) -> Life {
        let ran = self.get(uid).is_some_and(|revision| revision.ran > 0);
        let known = self.lives.remove(uid);
        let again = ran || known.is_some();
        let known = known.filter(|life| life.since == since);
        let life = known.unwrap_or_else(|| Life::new(since, again));
        let life = life.seen(status, now);
        self.lives.insert(uid.clone(), life.clone());
        life
    }

    fn config_bytes(&self) -> usize {
        let configs = self
            .revisions
            .iter()
            .filter_map(|revision| revision.config.as_ref());
        configs.map(|config| config.bytes()).sum()
    }

    /// The newest revision of a manifest, with the objects that are part of it.
    pub fn of_manifest(&self, uid: &PodUid) -> Option<(Arc<Pod>, Arc<Config>)> {
        self.revisions.iter().rev().find_map(|revision| {
            let config = revision.config.as_ref()?;
            let same = config.manifest == *uid;
            same.then(|| (Arc::clone(&revision.pod), Arc::clone(config)))
        })
    }

    /// Forgets the oldest revisions that are not needed.
    pub(super) fn trim(&mut self) {
        let needed = self.needed();
        while self.revisions.len() > REVISIONS_MAX || self.config_bytes() > CONFIG_BYTES_MAX {
            let unneeded = |revision: &Revision| !needed.contains(&revision.uid());
            let Some(at) = self.revisions.iter().position(unneeded) else {
                break;
            };
            self.revisions.remove(at);
        }
        let known = self.revisions.iter().map(Revision::uid);
        let known: BTreeSet<PodUid> = known.collect_set();
        self.lives.retain(|uid, _| known.contains(uid));
    }

    /// Handles a removed manifest: nothing runs, and nothing is wanted. Healthy revisions are kept for
    /// a while.
    pub fn end(&mut self, now: Timestamp) {
        self.leave_current();
        (self.current, self.newest, self.undone_to) = (None, None, None);
        self.beside = None;
        (self.paused, self.stopped, self.cordoned) = (false, false, false);
        self.goes_back = false;
        self.added = None;
        self.restart.clear();
        self.gone_since.get_or_insert(now);
    }

    /// How long a pod without a manifest is kept; none for one with a manifest. A later manifest with
    /// the same name is a different pod, which neither continues its numbers nor is restored to it.
    pub fn forgotten_in(&self, now: Timestamp) -> Option<Duration> {
        Some(GONE_KEPT.saturating_sub(since(self.gone_since?, now)))
    }

    /// Holds back a pod that doesn't run yet, because the Node is cordoned.
    pub fn hold_back(&mut self) {
        (self.stopped, self.cordoned) = (true, true);
    }

    /// Starts a pod that was held back or evicted while the Node was cordoned.
    pub fn uncordon(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.cordoned) {
            self.stopped = false;
            self.begin(now);
            self.reopen(now);
        }
    }

    /// Restarts the deadlines of the running versions, because they were stopped.
    pub(super) fn begin(&mut self, now: Timestamp) {
        for (_, since) in self.current.iter_mut().chain(&mut self.beside) {
            *since = now;
        }
    }

    /// Restarts the deadlines of versions that are being judged, including the time for which they must
    /// be ready: the Engine was away, and an earlier status says nothing about that time.
    pub fn engine_is_back(&mut self, now: Timestamp) {
        let of = |revision: &Option<(PodUid, Timestamp)>| {
            let (uid, _) = revision.as_ref()?;
            (self.get(uid)?.outcome == Outcome::Open).then(|| (uid.clone(), now))
        };
        let (current, beside) = (of(&self.current), of(&self.beside));
        self.current = current.or(self.current.take());
        self.beside = beside.or(self.beside.take());
        for (uid, since) in self.current.iter().chain(&self.beside) {
            if self.get(uid).map(|revision| &revision.outcome) == Some(&Outcome::Open) {
                self.lives.insert(uid.clone(), Life::anew(*since));
            }
        }
    }

    /// Restarts the deadlines of versions that are judged or held: the clock was set forward, and the
    /// elapsed time is unknown.
    pub fn clock_is_ahead(&mut self, now: Timestamp) {
        self.engine_is_back(now);
        self.held = self.held.take().filter(|held| held.overdue);
    }

    /// Adds users' orders, and the containers that were added to it, to the pod that the workers get.
    pub(super) fn annotate(&self, pod: &mut Arc<Pod>) {
        if let Some((uid, containers)) = &self.added
            && *uid == PodUid::of(pod)
        {
            let spec = Arc::make_mut(pod).spec.get_or_insert_default();
            spec.ephemeral_containers = Some(containers.clone());
        }
        let ids = self.restart.iter().map(ToString::to_string);
        let restart = Some(ids.collect::<Vec<_>>().join(",")).filter(|ids| !ids.is_empty());
        let stopped = match (self.stopped, self.cordoned) {
            (true, true) => Some(keys::CORDONED),
            (true, false) => Some("true"),
            (false, _) => None,
        };
        let orders = [
            (keys::STOPPED, stopped.map(str::to_owned)),
            (keys::RESTART, restart),
        ];
        for (key, order) in orders {
            if let Some(order) = order {
                let annotations = &mut Arc::make_mut(pod).metadata.annotations;
                annotations
                    .get_or_insert_default()
                    .insert(key.to_owned(), order);
            }
        }
    }
}
