//! Which instance of a container somebody means who wants to enter it or read it.

use super::View;
use crate::api::{ContainerId, PodUid};
use crate::pod::observed::{ContainerState, ContainerStatus};
use crate::pod::select::choose_container;
use crate::server::view::ViewError;

impl View {
    /// The running instance of a container; with none named, of the pod's only or default one.
    pub(super) fn running_instance(
        &self,
        uid: &PodUid,
        container: Option<&str>,
    ) -> Result<ContainerId, ViewError> {
        let pod = self.wanted_pod(uid)?;
        let name = choose_container(&pod, container)?;
        let entry = self.cache.get(uid);
        let of_name = |c: &&ContainerStatus| *c.name == *name;
        let instances: Vec<&ContainerStatus> =
            entry.status.containers.iter().filter(of_name).collect();
        running(&instances, &name)
    }
}

/// The newest of them, if it runs.
fn running(instances: &[&ContainerStatus], name: &str) -> Result<ContainerId, ViewError> {
    match instances.first() {
        Some(newest) if newest.state == ContainerState::Running => Ok(newest.id.clone()),
        newest => Err(ViewError::Conflict {
            message: match newest.and_then(|newest| newest.exit_code) {
                Some(code) => {
                    format!("container {name:?} does not run: it ended with exit code {code}")
                }
                None => format!("container {name:?} does not run yet"),
            },
            help: Some("mirrorlet explain tells why".to_owned()),
        }),
    }
}
