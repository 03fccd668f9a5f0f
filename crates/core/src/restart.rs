//! Whether an ended container is restarted, alone or with all others of its pod: by its own rules, its
//! own policy, or its pod's.
//!
//! Upstream: `pkg/api/v1/pod/util.go` (`ContainerShouldRestart`, `FindMatchingContainerRestartRule`,
//! `AllContainersCouldRestart`).

use crate::api::Pod;
use crate::api::core::{Container, ContainerRestartRule};
use crate::spec::{self, RestartPolicy};

/// Action of a rule: the container is started again.
pub const ACTION_RESTART: &str = "Restart";
/// Action of a rule: all containers of the pod are restarted in place, init containers first.
pub const ACTION_RESTART_ALL: &str = "RestartAllContainers";
/// Operator of a rule: the exit code is one of the values.
pub const IN: &str = "In";
/// Operator of a rule: the exit code is not one of the values.
pub const NOT_IN: &str = "NotIn";

/// The restart policy of a container: its own, otherwise its pod's. If there is an exit code, its rules
/// are evaluated first.
pub fn policy(pod: &Pod, container: &Container) -> RestartPolicy {
    match container.restart_policy.as_deref() {
        Some("Always") => RestartPolicy::Always,
        Some("OnFailure") => RestartPolicy::OnFailure,
        Some("Never") => RestartPolicy::Never,
        _ => spec::restart_policy(pod),
    }
}

/// Whether a container that ended with that code is restarted. The first matching rule decides; without
/// one its policy does. Rules only apply beside a container-level policy.
pub fn should_restart(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    let action = fitting_rule(container, exit_code).map(|rule| rule.action.as_str());
    if matches!(action, Some(ACTION_RESTART | ACTION_RESTART_ALL)) {
        return true;
    }
    match policy(pod, container) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Whether all containers of the pod are restarted in place because that one ended with that code:
/// whatever their own policies, and also those that had ended before.
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    fitting_rule(container, exit_code).is_some_and(|rule| rule.action == ACTION_RESTART_ALL)
}

/// Whether an exit of one of the pod's containers can restart all of them.
pub fn could_restart_all(pod: &Pod) -> bool {
    let mut rules = spec::containers(pod).flat_map(|(_, container)| rules(container));
    rules.any(|rule| rule.action == ACTION_RESTART_ALL)
}

/// The first of a container's rules that fits.
fn fitting_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    rules(container).find(|rule| fits(rule, exit_code))
}

/// The rules of a container: none without a policy of its own.
fn rules(container: &Container) -> impl Iterator<Item = &ContainerRestartRule> {
    let policy = container.restart_policy.as_ref();
    let rules = policy.and(container.restart_policy_rules.as_ref());
    rules.into_iter().flatten()
}

fn fits(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else {
        return false;
    };
    let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
    match codes.operator.as_str() {
        IN => listed,
        NOT_IN => !listed,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(policy: &str, container: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"restartPolicy": policy, "containers": [container]},
        }))
        .unwrap()
    }

    #[test]
    fn rules_come_before_the_containers_policy_and_that_before_the_pods() {
        let rule = |operator: &str, values: &[i32], action: &str| json!({"action": action, "exitCodes": {"operator": operator, "values": values}});
        let plain = json!({"name": "c"});
        let own = |policy: &str| json!({"name": "c", "restartPolicy": policy});
        let ruled = |policy: &str, rules: &[serde_json::Value]| json!({"name": "c", "restartPolicy": policy, "restartPolicyRules": rules});
        let lawless = json!({"name": "c", "restartPolicyRules": [rule("In", &[7], "Restart")]});
        // Pod's policy, container, exit code, started again.
        for (policy, container, code, expected) in [
            ("Always", plain.clone(), 0, true),
            ("OnFailure", plain.clone(), 0, false),
            ("OnFailure", plain.clone(), 1, true),
            ("Never", plain.clone(), 1, false),
            ("Never", own("Always"), 0, true),
            ("Never", own("OnFailure"), 0, false),
            ("Never", own("OnFailure"), 3, true),
            ("Always", own("Never"), 3, false),
            (
                "Never",
                ruled("Never", &[rule("In", &[42], "Restart")]),
                42,
                true,
            ),
            (
                "Never",
                ruled("Never", &[rule("In", &[42], "Restart")]),
                1,
                false,
            ),
            (
                "Never",
                ruled("Never", &[rule("NotIn", &[42], "Restart")]),
                1,
                true,
            ),
            (
                "Never",
                ruled("Never", &[rule("NotIn", &[42], "Restart")]),
                42,
                false,
            ),
            // The first that fits decides, and an action nobody knows leaves it to the policy.
            (
                "Never",
                ruled(
                    "Never",
                    &[rule("In", &[1], "Else"), rule("In", &[1], "Restart")],
                ),
                1,
                false,
            ),
            (
                "Never",
                ruled("Always", &[rule("In", &[1], "Else")]),
                1,
                true,
            ),
            // Without a policy of its own a container has no rules.
            ("Never", lawless, 7, false),
            // It is among those that are restarted.
            (
                "Never",
                ruled("Never", &[rule("In", &[42], "RestartAllContainers")]),
                42,
                true,
            ),
            (
                "Never",
                ruled("Never", &[rule("In", &[42], "RestartAllContainers")]),
                0,
                false,
            ),
        ] {
            let pod = pod(policy, &container);
            let first = &spec::spec(&pod).containers[0];
            assert_eq!(
                should_restart(&pod, first, code),
                expected,
                "{policy} {container} {code}"
            );
        }
    }

    #[test]
    fn the_first_rule_that_fits_says_whether_all_are_restarted() {
        let rule = |operator: &str, values: &[i32], action: &str| json!({"action": action, "exitCodes": {"operator": operator, "values": values}});
        let ruled = |rules: &[serde_json::Value]| json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": rules});
        let all = ACTION_RESTART_ALL;
        let lawless = json!({"name": "c", "restartPolicyRules": [rule("In", &[7], all)]});
        let later = ruled(&[rule("In", &[1], "Restart"), rule("NotIn", &[0], all)]);
        // Container, exit code, all restarted, could be.
        for (container, code, expected, could) in [
            (json!({"name": "c"}), 1, false, false),
            (ruled(&[rule("In", &[1], "Restart")]), 1, false, false),
            (ruled(&[rule("In", &[1], all)]), 1, true, true),
            (ruled(&[rule("In", &[1], all)]), 2, false, true),
            (later.clone(), 1, false, true),
            (later.clone(), 2, true, true),
            (later, 0, false, true),
            (lawless, 7, false, false),
        ] {
            let pod = pod("Always", &container);
            let first = &spec::spec(&pod).containers[0];
            // docker 5a
            assert_eq!(restarts_all(first, code), expected, "{container} {code}");
            assert_eq!(could_restart_all(&pod), could, "{container}");
        }
    }
}
