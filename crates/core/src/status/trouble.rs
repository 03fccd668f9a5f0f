//! The failures of a pod's probes and hooks, which a status doesn't contain.

use std::sync::Arc;

use crate::api::core::{ContainerStatus, PodStatus};
use crate::api::{Timestamp, core};

use super::{container_statuses, is_ready, phase};

/// The part of a container that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// An attempt of a probe.
    Probe,
    /// Its `postStart` hook.
    PostStart,
}

/// A failed probe or hook of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The name of the container.
    pub container: Arc<str>,
    /// The part that failed.
    pub what: Failed,
    /// The time of the failure.
    pub at: Timestamp,
    /// The message of its event.
    pub message: Arc<str>,
}

/// Returns why the last attempt of a probe of a container's running instance failed; `troubles` has the
/// oldest first.
pub fn failed_attempt<'a>(
    troubles: &'a [Trouble],
    container: &ContainerStatus,
) -> Option<&'a Trouble> {
    let running = container.state.as_ref()?.running.as_ref()?;
    let since = running.started_at.as_ref()?.0;
    newest(troubles, Failed::Probe, &container.name, since)
}

/// Whether the last ended instance of a container was stopped because of its `postStart` hook.
pub fn hook_has_failed(troubles: &[Trouble], container: &ContainerStatus) -> bool {
    let ended = |state: &core::ContainerState| state.terminated.clone();
    let ended = container.last_state.as_ref().and_then(ended);
    let started = ended.and_then(|ended| ended.started_at);
    started.is_some_and(|started| {
        newest(troubles, Failed::PostStart, &container.name, started.0).is_some()
    })
}

fn newest<'a>(
    troubles: &'a [Trouble],
    what: Failed,
    container: &str,
    since: Timestamp,
) -> Option<&'a Trouble> {
    let mut newest = troubles.iter().rev();
    newest.find(|trouble| {
        trouble.what == what && *trouble.container == *container && trouble.at >= since
    })
}

/// Adds the failure to the message of a printed status: of the `postStart` hook of a container that
/// waits after it was stopped, or of the probe of one that runs and isn't ready.
pub fn with_troubles(status: &PodStatus, message: String, troubles: &[Trouble]) -> String {
    if is_ready(status) || phase::terminal(status.phase.as_deref()).is_some() {
        return message;
    }
    let mut all = container_statuses(status);
    if message.is_empty() {
        let attempt = all.find_map(|container| {
            let attempt = failed_attempt(troubles, container)?;
            let unready = !container.ready || container.started != Some(true);
            unready.then(|| format!("container {}: {}", container.name, attempt.message))
        });
        return attempt.unwrap_or(message);
    }
    let hooked = all.find(|container| {
        let state = container.state.as_ref();
        let waiting = state.and_then(|state| state.waiting.as_ref()?.message.as_deref());
        waiting.is_some_and(|why| message.starts_with(why) && !why.contains("postStart hook"))
            && hook_has_failed(troubles, container)
    });
    match hooked {
        Some(container) => format!(
            "{message}; the postStart hook of container {} failed",
            container.name
        ),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn trouble(what: Failed, at: &str, message: &str) -> Trouble {
        Trouble {
            container: "web".into(),
            what,
            at: at.parse().unwrap(),
            message: message.into(),
        }
    }

    fn status(container: &Value) -> PodStatus {
        let mut container = container.clone();
        for (key, value) in [("name", "web"), ("image", "i"), ("imageID", "")] {
            container[key] = json!(value);
        }
        container["restartCount"] = json!(3);
        let status = json!({"phase": "Running", "containerStatuses": [container]});
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_pod_that_is_not_ready_says_what_its_probe_said_last() {
        let runs = |ready: bool| {
            json!({"ready": ready, "started": true,
                "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}}})
        };
        let old = trouble(
            Failed::Probe,
            "2026-01-01T00:00:09Z",
            "Readiness probe failed: old",
        );
        let new = trouble(
            Failed::Probe,
            "2026-01-01T00:00:20Z",
            "Readiness probe failed: 503",
        );
        let hook = trouble(
            Failed::PostStart,
            "2026-01-01T00:00:21Z",
            "PostStartHook failed",
        );
        let said = "container web: Readiness probe failed: 503";
        for (ready, message, troubles, expected) in [
            (false, "", &[old.clone(), new.clone(), hook][..], said),
            (false, "", &[old], ""),
            (
                false,
                "a user stopped it",
                std::slice::from_ref(&new),
                "a user stopped it",
            ),
            (true, "", std::slice::from_ref(&new), ""),
        ] {
            let shown = with_troubles(&status(&runs(ready)), message.to_owned(), troubles);
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn a_container_that_waits_says_that_its_hook_failed() {
        let waits = json!({"ready": false,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:10Z"}}});
        let failed = |at| [trouble(Failed::PostStart, at, "PostStartHook failed")];
        let now = failed("2026-01-01T00:00:10Z");
        let earlier = failed("2026-01-01T00:00:05Z");
        let said = "back-off 10s; last exit code 0; the postStart hook of container web failed";
        for (message, troubles, expected) in [
            ("back-off 10s; last exit code 0", &now, said),
            ("back-off 10s", &earlier, "back-off 10s"),
            ("a user stopped it", &now, "a user stopped it"),
        ] {
            let shown = with_troubles(&status(&waits), message.to_owned(), troubles);
            assert_eq!(shown, expected);
        }
    }
}
