//! Selects the container instance of an exec, attach or log request.

use super::View;
use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid, core};
use mirrorlet_core::logs::{Instance, NoLog, choose_log_instance};
use mirrorlet_core::observed::{ContainerState, ContainerStatus, PodStatus};
use mirrorlet_core::pressure::EVICTED;
use mirrorlet_core::select::choose_container;
use mirrorlet_core::status::all_container_statuses;

impl View {
    /// See [`AgentView::instance`](crate::server::view::AgentView::instance).
    pub(super) fn newest_instance(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        must_run: bool,
    ) -> Result<ContainerId, ViewError> {
        let (name, newest) = self.newest(uid, container)?;
        match newest {
            Some(newest) if !must_run => Ok(newest.id),
            newest => running(newest.as_ref(), &name),
        }
    }

    /// Selects the instance of a log request, by the pod's status.
    pub(super) fn log_instance(
        &self,
        pod: &Pod,
        uid: &PodUid,
        container: &str,
        instance: Instance<'_>,
    ) -> Result<ContainerId, ViewError> {
        let status = self.pod_view(uid).and_then(|view| view.status);
        let empty = core::PodStatus::default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let status = status.as_deref().unwrap_or(&empty);
        choose_log_instance(status, name, container, instance).map_err(|error| {
            let message = error.to_string();
            match error {
                NoLog::NotAvailable { .. } | NoLog::NoPrevious { .. } => {
                    ViewErrorKind::NotFound.error(message)
                }
                NoLog::Terminated { .. } | NoLog::Removed { .. } | NoLog::Waiting { .. } => {
                    let error = ViewErrorKind::Conflict.error(message);
                    error.help("see mirrorlet explain")
                }
            }
        })
    }

    fn newest(
        &self,
        uid: &PodUid,
        container: Option<&str>,
    ) -> Result<(String, Option<Newest>), ViewError> {
        let pod = self.pod(uid)?;
        let name = choose_container(&pod, container)?;
        let entry = self.cache.get(uid);
        let observed = entry.status.find_container_status_by_name(&name);
        let newest = observed.map(Newest::observed).or_else(|| {
            let finished = self.finished_pod(uid)?;
            Newest::reported(finished.status.as_ref()?, &name)
        });
        Ok((name, newest))
    }
}

/// The newest instance of a container.
struct Newest {
    id: ContainerId,
    runs: bool,
    exit_code: Option<i32>,
}

impl Newest {
    fn observed(status: &ContainerStatus) -> Self {
        Self {
            id: status.id.clone(),
            runs: status.state == ContainerState::Running,
            exit_code: status.exit_code,
        }
    }

    /// The instance of an ended pod, from its last status.
    fn reported(status: &core::PodStatus, name: &str) -> Option<Self> {
        let status = all_container_statuses(status).find(|status| status.name == name)?;
        let ended = status.state.as_ref()?.terminated.as_ref();
        Some(Self {
            id: status.container_id.as_ref()?.parse().ok()?,
            runs: false,
            exit_code: ended.map(|ended| ended.exit_code),
        })
    }
}

/// The error for a log whose container no longer exists on the Engine.
pub(super) fn removed(pod: &Pod, status: Option<&core::PodStatus>, container: &str) -> ViewError {
    let name = FullName::of(pod);
    let (namespace, name) = (&name.namespace, &name.name);
    let evicted = status.and_then(|status| status.reason.as_deref()) == Some(EVICTED);
    let message = if evicted {
        format!(
            "pod {namespace}/{name} was evicted: its container {container:?} and the log were removed"
        )
    } else {
        format!(
            "container {container:?} of pod {namespace}/{name} was removed, and its log with it"
        )
    };
    ViewErrorKind::NotFound
        .error(message)
        .help(format!("see mirrorlet explain {namespace}/{name}"))
}

/// The newest instance, if it runs.
fn running(newest: Option<&Newest>, name: &str) -> Result<ContainerId, ViewError> {
    match newest {
        Some(newest) if newest.runs => Ok(newest.id.clone()),
        newest => Err(ViewErrorKind::Conflict
            .error(match newest.and_then(|newest| newest.exit_code) {
                Some(code) => {
                    format!("container {name:?} is not running: it exited with code {code}")
                }
                None => format!("container {name:?} has not started yet"),
            })
            .help("see mirrorlet explain")),
    }
}

/// A pod from the Engine's data, with its running containers; none if none runs.
///
/// Upstream: `ToAPIPod` of `pkg/kubelet/container/runtime.go`.
pub(super) fn running_pod(status: &PodStatus) -> Option<Pod> {
    let running = status.containers.iter();
    let running = running.filter(|container| container.state == ContainerState::Running);
    let containers: Vec<_> = running
        .map(|container| core::Container {
            name: container.name.to_string(),
            image: Some(container.image.to_string()),
            ..core::Container::default()
        })
        .collect();
    (!containers.is_empty()).then(|| Pod {
        metadata: mirrorlet_core::api::meta::ObjectMeta {
            name: Some(status.full_name.name.to_string()),
            namespace: Some(status.full_name.namespace.to_string()),
            uid: Some(status.uid.to_string()),
            ..Default::default()
        },
        spec: Some(core::PodSpec {
            containers,
            ..core::PodSpec::default()
        }),
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_of_a_finished_pod_is_that_of_its_last_status() {
        let status = serde_json::json!({
            "phase": "Failed",
            "containerStatuses": [{
                "name": "app", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "containerID": "docker://0123",
                "state": {"terminated": {"exitCode": 3}},
            }],
        });
        let status: core::PodStatus = serde_json::from_value(status).unwrap();
        let newest = Newest::reported(&status, "app").unwrap();
        assert_eq!(newest.id, ContainerId::docker("0123"));
        assert!(Newest::reported(&status, "other").is_none());
        let error = running(Some(&newest), "app").unwrap_err();
        assert_eq!(
            error.to_string(),
            "container \"app\" is not running: it exited with code 3"
        );
    }

    #[test]
    fn a_log_whose_container_was_removed_is_told_why() {
        let pod = serde_json::json!({"metadata": {"name": "logger", "namespace": "default"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let evicted = core::PodStatus {
            reason: Some("Evicted".to_owned()),
            ..core::PodStatus::default()
        };
        for (status, words) in [
            (
                Some(&evicted),
                "pod default/logger was evicted: its container \"app\" and the log were removed",
            ),
            (
                None,
                "container \"app\" of pod default/logger was removed, and its log with it",
            ),
        ] {
            let error = removed(&pod, status, "app");
            assert_eq!(error.to_string(), words);
            assert_eq!(
                error.help.as_deref(),
                Some("see mirrorlet explain default/logger")
            );
        }
    }
}
