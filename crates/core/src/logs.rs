//! Selects the container instance of a log request.
//!
//! Upstream: `validateContainerLogStatus` of `pkg/kubelet/kubelet_pods.go`, with its words.

use crate::api::{ContainerId, core};
use crate::ending::is_over;
use crate::status::all_container_statuses;

/// Why there is no log to read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoLog {
    /// The container has no status yet.
    #[error("container {container:?} in pod {pod:?} is not available")]
    NotAvailable {
        /// The container.
        container: String,
        /// Its pod.
        pod: String,
    },
    /// There is no instance before the present one.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// The container.
        container: String,
        /// Its pod.
        pod: String,
    },
    /// It has ended, and its container is removed.
    #[error("container {container:?} in pod {pod:?} is terminated")]
    Terminated {
        /// The container.
        container: String,
        /// Its pod.
        pod: String,
    },
    /// It ended, and was removed with its log.
    #[error(
        "container {container:?} in pod {pod:?} has ended, and was removed from the Engine with its log"
    )]
    Removed {
        /// The container.
        container: String,
        /// Its pod.
        pod: String,
    },
    /// It never ran.
    #[error("container {container:?} in pod {pod:?} is waiting to start{}", waits_for(.reason))]
    Waiting {
        /// The container.
        container: String,
        /// Its pod.
        pod: String,
        /// The reason in its status; empty if there is none.
        reason: String,
    },
}

fn waits_for(reason: &str) -> String {
    match reason {
        "ErrImagePull" => ": image can't be pulled".to_owned(),
        "ImagePullBackOff" => ": trying and failing to pull image".to_owned(),
        "" => " - no logs yet".to_owned(),
        reason => format!(": {reason}"),
    }
}

/// The instance of a container whose log is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instance<'a> {
    /// The running one, otherwise the one that ended last.
    Newest,
    /// The one that ended before that.
    Previous,
    /// The one with that id (`docker://…`), if it is one of these two.
    WithId(&'a str),
}

/// Returns the id of the instance whose log is requested.
///
/// # Errors
/// There is no such instance.
pub fn choose_log_instance(
    status: &core::PodStatus,
    pod: &str,
    container: &str,
    instance: Instance<'_>,
) -> Result<ContainerId, NoLog> {
    let named = || (container.to_owned(), pod.to_owned());
    let mut all = all_container_statuses(status);
    let Some(found) = all.find(|status| status.name == container) else {
        let (container, pod) = named();
        return Err(NoLog::NotAvailable { container, pod });
    };
    let ended = |state: Option<&core::ContainerState>| {
        let terminated = state?.terminated.as_ref()?;
        Some(terminated.container_id.as_deref().and_then(parse))
    };
    let last = ended(found.last_state.as_ref());
    let state = found.state.as_ref();
    let is_running = state.is_some_and(|state| state.running.is_some());
    let id = found.container_id.as_deref().and_then(parse);
    let running = id.filter(|_| is_running);
    let (container, pod) = named();
    match instance {
        Instance::Newest => {}
        Instance::Previous => {
            let missing = NoLog::NoPrevious { container, pod };
            return last.flatten().ok_or(missing);
        }
        Instance::WithId(wanted) => {
            let all = [running, ended(state).flatten(), last.flatten()];
            let found = all
                .into_iter()
                .flatten()
                .find(|id| id.to_string() == wanted);
            return found.ok_or(NoLog::NotAvailable { container, pod });
        }
    }
    if let Some(id) = running {
        return Ok(id);
    }
    match (ended(state), last) {
        (Some(Some(id)), _) | (_, Some(Some(id))) => Ok(id),
        (Some(None), _) | (_, Some(None)) => Err(NoLog::Terminated { container, pod }),
        // It has no instance any more. A reason is that of a pod whose containers may never have run.
        (None, None) if is_over(Some(status)) && status.reason.is_none() => {
            Err(NoLog::Removed { container, pod })
        }
        (None, None) => {
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let reason = waiting.and_then(|waiting| waiting.reason.clone());
            Err(NoLog::Waiting {
                container,
                pod,
                reason: reason.unwrap_or_default(),
            })
        }
    }
}

fn parse(id: &str) -> Option<ContainerId> {
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Instance::{Newest, Previous, WithId};
    use super::*;

    fn chosen(
        state: &serde_json::Value,
        last: &serde_json::Value,
        instance: Instance<'_>,
    ) -> String {
        let status: core::PodStatus = serde_json::from_value(serde_json::json!({
            "initContainerStatuses": [{
                "name": "init", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "containerID": "docker://init"}},
            }],
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": "docker://now", "state": state, "lastState": last,
            }],
        }))
        .unwrap();
        match choose_log_instance(&status, "p", "c", instance) {
            Ok(id) => id.id.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_pod_that_is_over_has_lost_the_log_of_a_container_that_was_removed() {
        let chosen = |pod: serde_json::Value| {
            let mut status = serde_json::json!({"containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}},
            }]});
            status
                .as_object_mut()
                .unwrap()
                .extend(pod.as_object().unwrap().clone());
            let status: core::PodStatus = serde_json::from_value(status).unwrap();
            choose_log_instance(&status, "p", "c", Newest)
                .unwrap_err()
                .to_string()
        };
        let removed =
            "container \"c\" in pod \"p\" has ended, and was removed from the Engine with its log";
        let waits = "container \"c\" in pod \"p\" is waiting to start: ContainerCreating";
        for (pod, words) in [
            (serde_json::json!({"phase": "Succeeded"}), removed),
            (serde_json::json!({"phase": "Failed"}), removed),
            // It was never started.
            (
                serde_json::json!({"phase": "Failed", "reason": "OutOfcpu"}),
                waits,
            ),
            (serde_json::json!({"phase": "Pending"}), waits),
        ] {
            assert_eq!(chosen(pod), words);
        }
    }

    #[test]
    fn the_log_that_is_meant_or_upstreams_words_why_there_is_none() {
        let none = serde_json::json!({});
        let running = serde_json::json!({"running": {}});
        let ended =
            |id: &str| serde_json::json!({"terminated": {"exitCode": 1, "containerID": id}});
        let lost = serde_json::json!({"terminated": {"exitCode": 1}});
        let waits = |reason: &str| serde_json::json!({"waiting": {"reason": reason}});
        let before = ended("docker://before");
        for (state, last, instance, wanted) in [
            (&running, &none, Newest, "now"),
            (&running, &before, Newest, "now"),
            (&running, &before, Previous, "before"),
            (
                &running,
                &none,
                Previous,
                "previous terminated container \"c\" in pod \"p\" not found",
            ),
            (&ended("docker://now"), &before, Newest, "now"),
            (&lost, &before, Newest, "before"),
            (
                &lost,
                &none,
                Newest,
                "container \"c\" in pod \"p\" is terminated",
            ),
            // In a crash loop both are the one that crashed last.
            (&waits("CrashLoopBackOff"), &before, Newest, "before"),
            (&waits("CrashLoopBackOff"), &before, Previous, "before"),
            (
                &waits("ErrImagePull"),
                &none,
                Newest,
                "container \"c\" in pod \"p\" is waiting to start: image can't be pulled",
            ),
            (
                &waits("ImagePullBackOff"),
                &none,
                Newest,
                "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image",
            ),
            (
                &waits("PodInitializing"),
                &none,
                Newest,
                "container \"c\" in pod \"p\" is waiting to start: PodInitializing",
            ),
            (
                &none,
                &none,
                Newest,
                "container \"c\" in pod \"p\" is waiting to start - no logs yet",
            ),
            (&running, &before, WithId("docker://now"), "now"),
            (&running, &before, WithId("docker://before"), "before"),
            (&ended("docker://now"), &none, WithId("docker://now"), "now"),
            (
                &running,
                &before,
                WithId("docker://long-gone"),
                "container \"c\" in pod \"p\" is not available",
            ),
        ] {
            // docker 52
            assert_eq!(
                chosen(state, last, instance),
                wanted,
                "{state} {last} {instance:?}"
            );
        }
        let empty = core::PodStatus::default();
        let error = choose_log_instance(&empty, "p", "c", Newest).unwrap_err();
        assert_eq!(
            error.to_string(),
            "container \"c\" in pod \"p\" is not available"
        );
    }
}
