//! Whether a runtime was restarted so fast that it answered all the same.

use std::collections::HashSet;

use mirrorlet_core::api::ContainerId;
use mirrorlet_core::observed::{Container, ContainerState, Pods};
use mirrorlet_runtime::{Runtime, Version};

/// Whether the runtime was restarted between two lists: it has another version, or all sandboxes have ended.
pub(super) async fn was_restarted(
    runtime: &dyn Runtime,
    known: Option<&Version>,
    before: Option<&Pods>,
    now: &Pods,
) -> bool {
    if before.is_some_and(|before| have_all_ended(before, now)) {
        return true;
    }
    let Some(known) = known else { return false };
    let version = runtime.version().await;
    version.is_ok_and(|version| version != *known)
}

/// Whether there are sandboxes that ran, and all of them have ended. Containers end by themselves, sandboxes
/// don't; those that are gone were removed on purpose.
fn have_all_ended(before: &Pods, now: &Pods) -> bool {
    let ran: HashSet<&ContainerId> = sandboxes(before)
        .filter(|sandbox| runs(sandbox))
        .map(|sandbox| &sandbox.id)
        .collect();
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
            // docker 61
            assert_eq!(
                have_all_ended(&pods(&before), &pods(&now)),
                expected,
                "{before:?} {now:?}"
            );
        }
    }
}
