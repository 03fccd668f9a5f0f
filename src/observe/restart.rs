//! Whether a runtime was restarted so fast that it never seemed unavailable.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::cache::Entry;
use mirrorlet_core::api::ContainerId;
use mirrorlet_core::observed::{Container, ContainerState, Pods, UserAction, UserActionRecord};
use mirrorlet_runtime::{Runtime, Version};

/// Longest time from the end of a container to that of the runtime that ended it. dockerd gives
/// containers 15 s to stop when it ends.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Minimum number of ended containers from which a restart is concluded: a single one may have been
/// killed.
const ENDED_MIN: usize = 2;

/// The containers, including sandboxes, that a runtime whose events have just ended may have ended:
/// those that ran, and those that ran in the last list and were stopped a moment ago, but not by this
/// agent, because a runtime that ends reports its stops like those of a user. Others ended by
/// themselves, were stopped by the agent, as those of an ended pod, or ended before. A container that
/// had ended in that list has ended, even if its status has not been read since.
pub(super) fn ran_lately(
    seen: &[Entry],
    listed: Option<&Pods>,
    now: Instant,
) -> HashSet<ContainerId> {
    let listed: HashMap<&ContainerId, bool> = listed
        .into_iter()
        .flat_map(containers)
        .map(|container| (&container.id, runs(container)))
        .collect();
    let of_entry = |entry: &Entry| {
        let is_new = entry.modified.is_none_or(|at| now < at + ENDS_WITHIN);
        let sandboxes = entry.status.sandboxes.iter();
        let sandboxes = sandboxes.map(|found| (&found.id, found.state, found.by_hand));
        let others = entry.status.containers.iter();
        let others = others.map(|found| (&found.id, found.state, found.by_hand));
        let ran = sandboxes.chain(others).filter(|(id, state, by_hand)| {
            let is_running = *state == ContainerState::Running;
            match listed.get(*id) {
                Some(ran) => *ran && (is_running || (is_new && was_stopped(*by_hand))),
                None => is_running,
            }
        });
        ran.map(|(id, ..)| id.clone()).collect::<Vec<_>>()
    };
    seen.iter().flat_map(of_entry).collect()
}

/// Whether a container was stopped by others than this agent.
fn was_stopped(by_hand: Option<UserActionRecord>) -> bool {
    by_hand.is_some_and(|by| matches!(by.what, UserAction::Signalled | UserAction::Stopped))
}

/// Whether the runtime was restarted before a list: it has another version, or all containers that ran
/// have ended.
pub(super) async fn was_restarted(
    runtime: &dyn Runtime,
    known: Option<&Version>,
    ran: &HashSet<ContainerId>,
    now: &Pods,
) -> bool {
    if have_all_ended(ran, now) {
        return true;
    }
    let Some(known) = known else { return false };
    let version = runtime.version().await;
    version.is_ok_and(|version| version != *known)
}

/// Whether there are containers that ran, and all of them have ended. Missing ones were removed on
/// purpose. A killed sandbox leaves the containers of its pod running.
fn have_all_ended(ran: &HashSet<ContainerId>, now: &Pods) -> bool {
    let left = containers(now).filter(|container| ran.contains(&container.id));
    let left: Vec<&Container> = left.collect();
    left.len() >= ENDED_MIN && !left.into_iter().any(runs)
}

/// Sandboxes and the containers in them.
fn containers(pods: &Pods) -> impl Iterator<Item = &Container> {
    let pods = pods.0.iter();
    pods.flat_map(|pod| pod.sandboxes.iter().chain(&pod.containers))
}

fn runs(container: &Container) -> bool {
    container.state == ContainerState::Running
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::api::Timestamp;
    use mirrorlet_core::observed::{ContainerHash, RunningPod};

    /// Pods of one container, with whether their sandbox runs, and whether the container does.
    fn pods(pods: &[(&str, bool, bool)]) -> Pods {
        let container = |id: String, runs: bool| Container {
            id: ContainerId::docker(id),
            name: "c".into(),
            image: "i".into(),
            image_id: "".into(),
            hash: ContainerHash(0),
            created_at: Timestamp::UNIX_EPOCH,
            state: if runs {
                ContainerState::Running
            } else {
                ContainerState::Exited
            },
        };
        let pod = |(id, sandbox, app): &(&str, bool, bool)| RunningPod {
            uid: (*id).into(),
            sandboxes: vec![container(format!("{id}-sandbox"), *sandbox)],
            containers: vec![container(format!("{id}-app"), *app)],
            ..RunningPod::default()
        };
        Pods(pods.iter().map(pod).collect())
    }

    #[test]
    fn a_runtime_all_of_whose_containers_have_ended_was_restarted() {
        let up = |id| (id, true, true);
        let ended = |id| (id, false, false);
        for (before, now, expected) in [
            (vec![], vec![], false),
            (vec![], vec![ended("a")], false),
            (vec![up("a")], vec![up("a")], false),
            (vec![up("a")], vec![ended("a")], true),
            (vec![ended("a")], vec![ended("a")], false),
            // Its sandbox was killed.
            (vec![up("a")], vec![("a", false, true)], false),
            (vec![("a", true, false)], vec![ended("a")], false),
            // One was deleted.
            (vec![up("a")], vec![], false),
            (vec![up("a"), up("b")], vec![ended("b")], true),
            // One was stopped.
            (vec![up("a"), up("b")], vec![ended("a"), up("b")], false),
            // They were made anew.
            (vec![up("a")], vec![ended("a"), up("b")], true),
        ] {
            let was = pods(&before);
            let running = containers(&was).filter(|container| runs(container));
            let ran = running.map(|container| container.id.clone()).collect();
            // docker 61
            assert_eq!(
                have_all_ended(&ran, &pods(&now)),
                expected,
                "{before:?} {now:?}"
            );
        }
    }
}
