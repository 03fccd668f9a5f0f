//! A person's orders for static pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{View, rollouts};
use crate::jobs::OrderError;
use crate::server::view::{Order, OrderAnswer, Verb, ViewError};
use crate::store::board::PodView;
use mirrorlet_core::api::report::JobReport;
use mirrorlet_core::api::{ContainerId, FullName, Pod, Timestamp};
use mirrorlet_core::job::JobName;
use mirrorlet_core::observed::Role;
use mirrorlet_core::rollout::Command;
use mirrorlet_core::select::choose_container;
use mirrorlet_core::spec;

impl View {
    /// See [`AgentView::order`](crate::server::view::AgentView::order).
    pub(super) async fn obey(&self, order: &Order) -> Result<OrderAnswer, ViewError> {
        if let Some(job) = self.job(&order.pod)? {
            return self.obey_for_job(job, order).await;
        }
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
            is_job: false,
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

    /// The Job that a text means: `job/backup`, or its bare name where no pod has it.
    fn job(&self, text: &str) -> Result<Option<JobName>, ViewError> {
        let kind = ["job/", "jobs/", "job.batch/"];
        let stripped = kind.iter().find_map(|kind| text.strip_prefix(kind));
        let named = stripped.unwrap_or(text);
        let (namespace, name) = match named.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, named),
        };
        let states = self.jobs.states();
        let mut meant = states.iter().filter(|job| {
            job.name == name && namespace.is_none_or(|namespace| namespace == job.namespace)
        });
        if stripped.is_none() && self.static_pod(text).is_ok() {
            return Ok(None);
        }
        let (first, second) = (meant.next(), meant.next());
        let name = |job: &JobReport| JobName {
            namespace: job.namespace.clone(),
            name: job.name.clone(),
        };
        match (first, second) {
            (Some(job), None) => Ok(Some(name(job))),
            (Some(job), Some(other)) => Err(ViewError::Invalid {
                message: format!("{named} may be Job {} or {}", name(job), name(other)),
                help: Some(format!("write job/NAMESPACE/{}", job.name)),
            }),
            (None, _) if stripped.is_some() => Err(ViewError::NotFound {
                message: format!("no manifest describes Job {named}"),
                help: Some("list the Jobs with: mirrorlet status".to_owned()),
            }),
            (None, _) => Ok(None),
        }
    }

    async fn obey_for_job(&self, job: JobName, order: &Order) -> Result<OrderAnswer, ViewError> {
        if order.verb != Verb::Restart || order.pull || order.container.is_some() {
            return Err(ViewError::Invalid {
                message: format!("Job {job} as a whole can only be restarted"),
                help: Some("spec.suspend of its document stops it".to_owned()),
            });
        }
        let answer = OrderAnswer {
            namespace: job.namespace.clone(),
            name: job.name.clone(),
            containers: Vec::new(),
            is_job: true,
        };
        self.jobs.restart(job).await.map_err(|error| match error {
            OrderError::Unknown(_) => ViewError::NotFound {
                message: error.to_string(),
                help: None,
            },
            OrderError::Disk(_) | OrderError::Busy => ViewError::Failed(error.to_string()),
        })?;
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
