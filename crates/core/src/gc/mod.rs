//! Decides which dead containers and sandboxes are removed.
//!
//! A dead instance is kept for its data: its state, its log, its restart count. So the newest instance
//! of a container always stays while its pod is known, regardless of the limits: without it, a
//! completed job would look like one that never ran. The [policy](ContainerGcPolicy) limits the number
//! of older ones. The planner prunes by the same rule after each round (`to_prune`), so that the two
//! never disagree.
//!
//! An instance also stays while it may be the only evidence that all containers of its pod must be
//! restarted ([`PodStatus::shows_pod_restart`]).
//!
//! Two rules differ from upstream, where the removal of a sandbox includes its containers: a dead
//! sandbox with a successor is removed immediately, and one that was created but not started yet is
//! left to the start in progress.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_gc.go`, `pkg/kubelet/container/container_gc.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::keys::SANDBOX_NAME;
use crate::api::{ContainerId, FullName, PodUid, Timestamp};
use crate::clock::since;
use crate::observed::{ContainerState, ContainerStatus, PodStatus};
use crate::small::{SmallCollect, SmallSort};

#[cfg(test)]
mod tests;

/// How many dead containers are kept, and for how long.
///
/// Upstream: `ContainerGCPolicy` of `pkg/kubelet/container/container_gc.go`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerGcPolicy {
    /// Instances younger than this stay, counted from their creation.
    pub min_age: Duration,
    /// Number of dead instances that are kept of each container; none for any number.
    pub max_per_pod_container: Option<usize>,
    /// Number of dead instances that are kept on the whole node; none for any number.
    pub max_containers: Option<usize>,
}

impl ContainerGcPolicy {
    /// Returns a policy from the kubelet's flags: a negative maximum means any number.
    pub fn new(min_age: Duration, max_per_pod_container: i32, max_containers: i32) -> Self {
        Self {
            min_age,
            max_per_pod_container: usize::try_from(max_per_pod_container).ok(),
            max_containers: usize::try_from(max_containers).ok(),
        }
    }

    /// Whether an instance created then is old enough to go.
    fn is_old_enough(&self, created_at: Timestamp, now: Timestamp) -> bool {
        since(created_at, now) >= self.min_age
    }
}

/// Upstream's defaults: no least age, one dead instance a container, any number on the node.
impl Default for ContainerGcPolicy {
    fn default() -> Self {
        Self::new(Duration::ZERO, 1, -1)
    }
}

/// The state of a pod, as far as it matters for its remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodLife {
    /// It is wanted, or being stopped and removed.
    Known,
    /// It has ended, and its object at the API server has its final state: its remains are kept for
    /// their logs only.
    Over,
    /// It is unknown.
    Gone,
}

/// The input of a decision.
#[derive(Debug, Clone, Copy)]
pub struct GcInput<'a> {
    /// The policy.
    pub policy: ContainerGcPolicy,
    /// All pods with containers, newest instances first.
    pub pods: &'a [PodStatus],
    /// The state of each; a missing pod counts as [`PodLife::Gone`].
    pub lives: &'a BTreeMap<PodUid, PodLife>,
    /// Whether every source has delivered; before, a missing pod may still exist.
    pub all_sources_ready: bool,
    /// Whether the remains of ended pods are removed too, because disk space is needed.
    pub evict_non_deleted: bool,
    /// The present time.
    pub now: Timestamp,
}

crate::words! {
    /// Why something goes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
    pub enum Cause {
        /// Nobody knows its pod.
        #[error("its pod is unknown")]
        PodGone = "pod_gone",
        /// Its pod is over, and the space is needed.
        #[error("its pod has ended and disk space is low")]
        PodOver = "pod_over",
        /// Its container has more dead instances than are kept of each.
        #[error("its container has more dead instances than allowed")]
        PerContainer = "per_container",
        /// The node has more dead instances than it keeps.
        #[error("the node has more dead containers than allowed")]
        Total = "total",
        /// The pod has a newer sandbox.
        #[error("the pod has a newer sandbox")]
        Replaced = "replaced",
    }
    /// The cause as a label of a series.
    pub fn as_str;
}

/// A container or sandbox that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// UID of its pod.
    pub uid: PodUid,
    /// Full name of its pod.
    pub full_name: FullName,
    /// The instance.
    pub id: ContainerId,
    /// Its name in the pod's spec; `POD` for a sandbox.
    pub name: Arc<str>,
    /// Whether it may be running, as far as is known, and must be stopped first.
    pub stop_first: bool,
    /// Why it goes.
    pub cause: Cause,
}

/// The instances of one container of a pod beyond `keep` dead ones, given all of them, newest first.
/// The newest instance is never among them, unless the `whole` pod is removed; one that was created but
/// not started doesn't count, and is removed when a newer one replaces it.
pub(super) fn surplus<'a>(
    instances: &[&'a ContainerStatus],
    keep: Option<usize>,
    whole: bool,
) -> Vec<&'a ContainerStatus> {
    let mut kept = 0;
    let mut surplus = Vec::new();
    for (index, seen) in instances.iter().enumerate() {
        let is_newest = index == 0 && !whole;
        match seen.state {
            ContainerState::Running => {}
            // It may be about to run, or may run as far as is known.
            ContainerState::Created | ContainerState::Unknown if is_newest => {}
            ContainerState::Created => surplus.push(*seen),
            ContainerState::Exited | ContainerState::Unknown => {
                let has_room = !whole && keep.is_none_or(|keep| kept < keep);
                if is_newest || has_room {
                    kept += 1;
                } else {
                    surplus.push(*seen);
                }
            }
        }
    }
    surplus
}

/// The surplus instances by a policy at that time, for the planner, which itself stops those that may
/// be running.
pub(super) fn to_prune<'a>(
    instances: &[&'a ContainerStatus],
    policy: ContainerGcPolicy,
    now: Timestamp,
) -> impl Iterator<Item = &'a ContainerStatus> {
    surplus(instances, policy.max_per_pod_container, false)
        .into_iter()
        .filter(|seen| seen.state != ContainerState::Unknown)
        .filter(move |seen| policy.is_old_enough(seen.created_at, now))
}

/// One container of a pod: the unit that limits are about.
struct Unit<'a> {
    pod: &'a PodStatus,
    instances: Vec<&'a ContainerStatus>,
    whole: Option<Cause>,
}

/// Decides what is removed: first containers, then sandboxes, each pod's oldest first. Never running
/// ones.
pub fn compute_container_gc(input: &GcInput<'_>) -> Vec<Removal> {
    let mut units = units(input);
    let mut removals = Vec::new();
    for unit in &mut units {
        let cause = unit.whole.unwrap_or(Cause::PerContainer);
        trim(
            input,
            unit,
            input.policy.max_per_pod_container,
            cause,
            &mut removals,
        );
    }
    if let Some(max) = input.policy.max_containers {
        enforce_total(input, &mut units, max, &mut removals);
    }
    removals.extend(sandboxes(input, &removals));
    removals
}

/// Why all of a pod's remains go, if they do.
fn whole(input: &GcInput<'_>, uid: &PodUid) -> Option<Cause> {
    if !input.all_sources_ready {
        return None;
    }
    match input.lives.get(uid).copied().unwrap_or(PodLife::Gone) {
        PodLife::Gone => Some(Cause::PodGone),
        PodLife::Over if input.evict_non_deleted => Some(Cause::PodOver),
        PodLife::Known | PodLife::Over => None,
    }
}

fn units<'a>(input: &GcInput<'a>) -> Vec<Unit<'a>> {
    let mut units = Vec::new();
    for pod in input.pods {
        let mut by_name: BTreeMap<&str, Vec<&ContainerStatus>> = BTreeMap::new();
        for seen in &pod.containers {
            by_name.entry(&seen.name).or_default().push(seen);
        }
        let whole = whole(input, &pod.uid);
        units.extend(by_name.into_values().map(|instances| Unit {
            pod,
            instances,
            whole,
        }));
    }
    units
}

/// Takes what is more than `keep` out of a unit, oldest first.
fn trim(
    input: &GcInput<'_>,
    unit: &mut Unit<'_>,
    keep: Option<usize>,
    cause: Cause,
    removals: &mut Vec<Removal>,
) {
    let mut gone = surplus(&unit.instances, keep, unit.whole.is_some());
    gone.retain(|seen| {
        let stays = unit.whole.is_none() && unit.pod.shows_pod_restart(seen);
        input.policy.is_old_enough(seen.created_at, input.now) && !stays
    });
    unit.instances
        .retain(|seen| !gone.iter().any(|gone| gone.id == seen.id));
    removals.extend(gone.iter().rev().map(|seen| removal(unit.pod, seen, cause)));
}

/// Brings the number of all dead instances down to `max`: each container is left its fair share
/// first, then the oldest of all go.
fn enforce_total(
    input: &GcInput<'_>,
    units: &mut [Unit<'_>],
    max: usize,
    removals: &mut Vec<Removal>,
) {
    if dead(input, units) <= max {
        return;
    }
    let with_dead = units
        .iter()
        .filter(|unit| unit.instances.iter().any(|seen| counts(input, seen)))
        .count();
    let share = (max / with_dead.max(1)).max(1);
    for unit in &mut *units {
        trim(input, unit, Some(share), Cause::Total, removals);
    }
    let over = dead(input, units).saturating_sub(max);
    let mut rest: Vec<(&PodStatus, &ContainerStatus)> = units
        .iter()
        .flat_map(|unit| {
            surplus(&unit.instances, Some(0), false)
                .into_iter()
                .filter(|seen| counts(input, seen) && !unit.pod.shows_pod_restart(seen))
                .map(|seen| (unit.pod, seen))
        })
        .collect();
    rest.small_sort_by_key(|(_, seen)| (seen.created_at, seen.id.clone()));
    removals.extend(
        rest.into_iter()
            .take(over)
            .map(|(pod, seen)| removal(pod, seen, Cause::Total)),
    );
}

/// Whether an instance counts as dead. A young one doesn't: it must not be removed.
fn counts(input: &GcInput<'_>, seen: &ContainerStatus) -> bool {
    let is_dead = match seen.state {
        ContainerState::Exited | ContainerState::Unknown => true,
        ContainerState::Created | ContainerState::Running => false,
    };
    is_dead && input.policy.is_old_enough(seen.created_at, input.now)
}

fn dead(input: &GcInput<'_>, units: &[Unit<'_>]) -> usize {
    let all = units.iter().flat_map(|unit| &unit.instances);
    all.filter(|seen| counts(input, seen)).count()
}

fn removal(pod: &PodStatus, seen: &ContainerStatus, cause: Cause) -> Removal {
    Removal {
        uid: pod.uid.clone(),
        full_name: pod.full_name.clone(),
        id: seen.id.clone(),
        name: Arc::clone(&seen.name),
        stop_first: seen.state == ContainerState::Unknown,
        cause,
    }
}

/// Sandboxes that go with or after those containers. No limit and no age counts for them: they
/// have nothing to report.
fn sandboxes(input: &GcInput<'_>, containers: &[Removal]) -> Vec<Removal> {
    let going: BTreeSet<&ContainerId> = containers.iter().map(|removal| &removal.id).collect_set();
    let mut removals = Vec::new();
    for pod in input.pods {
        let is_empty = pod.containers.iter().all(|seen| going.contains(&seen.id));
        let whole = whole(input, &pod.uid).filter(|_| is_empty);
        for (index, sandbox) in pod.sandboxes.iter().enumerate().rev() {
            let cause = match whole {
                Some(cause) => cause,
                None if index > 0 => Cause::Replaced,
                None => continue,
            };
            let stop_first = match sandbox.state {
                ContainerState::Running => continue,
                ContainerState::Unknown => true,
                ContainerState::Created | ContainerState::Exited => false,
            };
            removals.push(Removal {
                uid: pod.uid.clone(),
                full_name: pod.full_name.clone(),
                id: sandbox.id.clone(),
                name: SANDBOX_NAME.into(),
                stop_first,
                cause,
            });
        }
    }
    removals
}
