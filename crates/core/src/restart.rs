//! Whether a container that ended is started again: by its own rules, its own policy, its pod's.
//!
//! Upstream: `pkg/api/v1/pod/util.go` (`ContainerShouldRestart`, `IsContainerRestartable`).

use crate::api::Pod;
use crate::api::core::{Container, ContainerRestartRule};
use crate::spec::{self, RestartPolicy};

/// The only action of a rule that is known.
pub const ACTION_RESTART: &str = "Restart";
/// Operator of a rule: the exit code is one of the values.
pub const IN: &str = "In";
/// Operator of a rule: it is none of them.
pub const NOT_IN: &str = "NotIn";

/// The policy that holds for a container: its own, else its pod's. Its rules are asked before it,
/// where there is an exit code.
pub fn policy(pod: &Pod, container: &Container) -> RestartPolicy {
    match container.restart_policy.as_deref() {
        Some("Always") => RestartPolicy::Always,
        Some("OnFailure") => RestartPolicy::OnFailure,
        Some("Never") => RestartPolicy::Never,
        _ => spec::restart_policy(pod),
    }
}

/// Whether a container that ended with that code is started again. The first of its rules that
/// fits decides; without one its policy does. Rules count only beside a policy of its own.
pub fn should_restart(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    let rules = container
        .restart_policy
        .as_ref()
        .and(container.restart_policy_rules.as_ref());
    let fitting = rules.into_iter().flatten().find(|r| fits(r, exit_code));
    if fitting.is_some_and(|rule| rule.action == ACTION_RESTART) {
        return true;
    }
    match policy(pod, container) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
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
}
