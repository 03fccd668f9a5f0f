//! Whether a runtime was restarted so fast that it answered all the same.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::cache::Entry;
use mirrorlet_core::api::ContainerId;
use mirrorlet_core::observed::{Container, ContainerState, Pods};
use mirrorlet_runtime::{Runtime, Version};

/// Longest time from the end of a container to that of the runtime that ended it. dockerd gives
/// containers 15 s to stop when it ends.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// The sandboxes that a runtime whose events have just ended may have ended: those that ran, and those
/// that the last list had running and whose end was seen a moment ago. Others ended before, as that of
/// a pod that is over does. What that list had ended is ended, also where the look that it asked for
/// is still to come.
pub(super) fn ran_lately(
    seen: &[Entry],
    listed: Option<&Pods>,
    now: Instant,
) -> HashSet<ContainerId> {
    let listed: HashMap<&ContainerId, bool> = listed
        .into_iter()
        .flat_map(sandboxes)
        .map(|sandbox| (&sandbox.id, runs(sandbox)))
        .collect();
    let of_entry = |entry: &Entry| {
        let is_new = entry.modified.is_none_or(|at| now < at + ENDS_WITHIN);
        let ran = entry.status.sandboxes.iter().filter(|sandbox| {
            let is_running = sandbox.state == ContainerState::Running;
            match listed.get(&sandbox.id) {
                Some(ran) => *ran && (is_running || is_new),
                None => is_running,
            }
        });
        ran.map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>()
    };
    seen.iter().flat_map(of_entry).collect()
}

/// Whether the runtime was restarted before a list: it has another version, or all sandboxes that ran have
/// ended.
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

/// Whether there are sandboxes that ran, and all of them have ended. Those that are gone were removed on
/// purpose.
fn have_all_ended(ran: &HashSet<ContainerId>, now: &Pods) -> bool {
    let mut left = sandboxes(now)
        .filter(|sandbox| ran.contains(&sandbox.id))
        .peekable();
    left.peek().is_some() && !left.any(runs)
}

fn sandboxes(pods: &Pods) -> impl Iterator<Item = &Container> {
    pods.0.iter().flat_map(|pod| &pod.sandboxes)
}

fn runs(sandbox: &Container) -> bool {
    sandbox.state == ContainerState::Running
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::api::Timestamp;
    use mirrorlet_core::observed::{ContainerHash, RunningPod};

    /// A pod for each sandbox, which runs or has ended.
    fn pods(sandboxes: &[(&str, bool)]) -> Pods {
        let pod = |(id, runs): &(&str, bool)| RunningPod {
            uid: (*id).into(),
            sandboxes: vec![Container {
                id: ContainerId::docker(*id),
                name: "POD".into(),
                image: "pause".into(),
                image_id: "".into(),
                hash: ContainerHash(0),
                created_at: Timestamp::UNIX_EPOCH,
                state: if *runs {
                    ContainerState::Running
                } else {
                    ContainerState::Exited
                },
            }],
            ..RunningPod::default()
        };
        Pods(sandboxes.iter().map(pod).collect())
    }

    #[test]
    fn a_runtime_all_of_whose_sandboxes_have_ended_was_restarted() {
        for (before, now, expected) in [
            (vec![], vec![], false),
            (vec![], vec![("a", false)], false),
            (vec![("a", true)], vec![("a", true)], false),
            (vec![("a", true)], vec![("a", false)], true),
            (vec![("a", false)], vec![("a", false)], false),
            // One was deleted.
            (vec![("a", true)], vec![], false),
            (vec![("a", true), ("b", true)], vec![("b", false)], true),
            // One was stopped.
            (
                vec![("a", true), ("b", true)],
                vec![("a", false), ("b", true)],
                false,
            ),
            // They were made anew.
            (vec![("a", true)], vec![("a", false), ("b", true)], true),
        ] {
            let running = before.iter().filter(|(_, runs)| *runs);
            let ran = running.map(|(id, _)| ContainerId::docker(*id)).collect();
            // docker 61
            assert_eq!(
                have_all_ended(&ran, &pods(&now)),
                expected,
                "{before:?} {now:?}"
            );
        }
    }
}
