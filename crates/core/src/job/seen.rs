//! The observed state of a Job's pod.

use crate::api::Timestamp;
use crate::api::core::{ContainerStatus, PodStatus};

/// The known state of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seen {
    /// It has not started yet, or can't run now.
    #[default]
    Nothing,
    /// It is starting or running, with this number of container restarts.
    Runs {
        /// The number of times.
        restarts: u32,
    },
    /// All its containers have ended well.
    Succeeded,
    /// It has failed.
    Failed(Failure),
}

/// The failure of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// Its containers that ended badly, with their exit codes.
    pub exits: Vec<(String, i32)>,
    /// Its conditions, with their statuses.
    pub conditions: Vec<(String, String)>,
    /// When its last container ended.
    pub at: Option<Timestamp>,
}

impl Seen {
    /// Reads a pod's status; `ended` says that none of its containers runs any more. A pod that the
    /// node refuses waits: it is tried again when there are resources.
    pub fn of(status: Option<&PodStatus>, ended: bool) -> Self {
        let Some(status) = status else {
            return Self::Nothing;
        };
        let inits = status.init_container_statuses.iter().flatten();
        let containers = || {
            let apps = status.container_statuses.iter().flatten();
            apps.chain(inits.clone())
        };
        match status.phase.as_deref() {
            Some("Succeeded") if ended => Self::Succeeded,
            Some("Failed") if is_refused(status) => Self::Nothing,
            Some("Failed") if ended => Self::Failed(Failure {
                exits: containers().filter_map(exit).collect(),
                conditions: status
                    .conditions
                    .iter()
                    .flatten()
                    .map(|condition| (condition.type_.clone(), condition.status.clone()))
                    .collect(),
                at: containers().filter_map(ended_at).max(),
            }),
            _ => {
                let restarts = containers().map(|c| u32::try_from(c.restart_count).unwrap_or(0));
                Self::Runs {
                    restarts: restarts.fold(0, u32::saturating_add),
                }
            }
        }
    }
}

/// A pod that was refused never had a container.
fn is_refused(status: &PodStatus) -> bool {
    let is_empty = |list: &Option<Vec<ContainerStatus>>| list.iter().flatten().next().is_none();
    let has_reason = status.reason.as_deref().is_some_and(|r| !r.is_empty());
    has_reason && is_empty(&status.container_statuses) && is_empty(&status.init_container_statuses)
}

fn exit(container: &ContainerStatus) -> Option<(String, i32)> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    (ended.exit_code != 0).then(|| (container.name.clone(), ended.exit_code))
}

fn ended_at(container: &ContainerStatus) -> Option<Timestamp> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some(ended.finished_at.as_ref()?.0)
}
