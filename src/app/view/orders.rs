//! A person's orders for static pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{View, rollouts};
use crate::server::view::{Order, OrderAnswer, Verb, ViewError};
use crate::store::board::PodView;
use mirrorlet_core::api::{ContainerId, FullName, Pod, Timestamp};
use mirrorlet_core::observed::Role;
use mirrorlet_core::rollout::Command;
use mirrorlet_core::select::choose_container;
use mirrorlet_core::spec;

impl View {
    /// See [`AgentView::order`](crate::server::view::AgentView::order).
    pub(super) async fn obey(&self, order: &Order) -> Result<OrderAnswer, ViewError> {
        let name = self.static_pod(&order.pod)?;
        let (pod, view) = self.current(&name)?;
        let containers = concerned(&pod, order)?;
        if order.pull || order.verb == Verb::Pull {
            let pulled = self.runtime.pull_images(&pod, &containers).await;
            pulled.map_err(|error| {
                let so = if order.verb == Verb::Pull {
                    ""
                } else {
                    "nothing was restarted: "
                };
                ViewError::Failed(format!("{so}{}: {}", error.reason, error.message))
            })?;
        }
        let instances: BTreeSet<ContainerId> = containers
            .iter()
            .filter_map(|name| view.observed.find_container_status_by_name(name))
            .map(|newest| newest.id.clone())
            .collect();
        let answer = OrderAnswer {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            containers,
        };
        let command = match order.verb {
            Verb::Pull => return Ok(answer),
            Verb::Stop => Command::Stop,
            Verb::Start => Command::Start {
                instances,
                at: Timestamp::now(),
            },
            Verb::Restart if instances.is_empty() => {
                return Err(ViewError::Conflict {
                    message: format!("no container of pod {name} was started yet"),
                    help: Some("see mirrorlet explain".to_owned()),
                });
            }
            Verb::Restart => Command::Restart { instances },
        };
        let obeyed = self.rollouts.command(name, command).await;
        obeyed.map_err(rollouts::view_error)?;
        Ok(answer)
    }

    /// The version of a static pod that runs, and what is known of it.
    fn current(&self, name: &FullName) -> Result<(Arc<Pod>, PodView), ViewError> {
        let histories = self.rollouts.histories();
        let current = histories.get(name).and_then(|history| history.current());
        let view = current.and_then(|current| self.board.get(&current.uid()));
        let found = current.zip(view);
        let (current, view) = found.ok_or_else(|| ViewError::Conflict {
            message: format!("pod {name} was not started yet"),
            help: Some("see mirrorlet explain".to_owned()),
        })?;
        Ok((Arc::clone(&current.pod), view))
    }
}

/// The containers that an order concerns: regular ones and sidecars, as init containers run with
/// each new sandbox alone; of a pull, all.
fn concerned(pod: &Pod, order: &Order) -> Result<Vec<String>, ViewError> {
    let is_concerned = |role: Role| role != Role::Init || order.verb == Verb::Pull;
    let concerned = spec::containers(pod).filter(|(role, _)| is_concerned(*role));
    let mut names: Vec<String> = concerned.map(|(_, c)| c.name.clone()).collect();
    if let Some(asked) = &order.container {
        let asked = choose_container(pod, Some(asked))?;
        names.retain(|name| *name == asked);
        if names.is_empty() {
            return Err(ViewError::Invalid {
                message: format!("container {asked} is an init container"),
                help: Some("it runs again when the whole pod is stopped and started".to_owned()),
            });
        }
    }
    Ok(names)
}
