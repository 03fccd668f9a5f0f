//! Users' orders for static pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{View, rollouts};
use crate::jobs::{self, OrderError};
use crate::rollout::{CommandError, RolloutTarget};
use crate::server::view::{Order, OrderAnswer, Verb, ViewError, ViewErrorKind};
use crate::store::board::PodView;
use mirrorlet_core::api::keys::DEFAULT_NAMESPACE;
use mirrorlet_core::api::{ContainerId, FullName, Pod, Timestamp, split_name};
use mirrorlet_core::job::JobName;
use mirrorlet_core::observed::Role;
use mirrorlet_core::rollout::{Command, Refused};
use mirrorlet_core::select::choose_container;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::spec;
use mirrorlet_core::workload::WorkloadKind;
use mirrorlet_runtime::{PullWhen, SyncErrorReason};

impl View {
    /// See [`AgentView::order`](crate::server::view::AgentView::order).
    pub(super) async fn obey(&self, order: &Order) -> Result<OrderAnswer, ViewError> {
        if order.verb == Verb::Run {
            return self.run_job(&order.pod).await;
        }
        if let Some(job) = self.job(&order.pod)? {
            return self.restart_job(job, order).await;
        }
        let name = self.static_pod(&order.pod);
        let name = name.map_err(|error| run_instead(&order.pod).unwrap_or(error))?;
        let (pod, view) = self.current(&name)?;
        let mut containers = concerned(&pod, order)?;
        let mut instances = newest_instances(&view, &containers);
        if let Some(when) = pulls(order, !instances.is_empty()) {
            self.pull(&pod, &containers, when, order.verb).await?;
            if order.verb != Verb::Pull {
                // That may have taken minutes: an instance may have ended, and another one runs.
                let (pod, view) = self.current(&name)?;
                containers = concerned(&pod, order)?;
                instances = newest_instances(&view, &containers);
            }
        }
        let answer = OrderAnswer {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            containers,
            is_job: false,
            is_unchanged: false,
        };
        let command = match order.verb {
            Verb::Pull | Verb::Run => return Ok(answer),
            Verb::Stop => Command::Stop,
            Verb::Evict => Command::Evict { instances },
            Verb::Start => Command::Start {
                instances,
                at: Timestamp::now(),
            },
            Verb::Restart if instances.is_empty() => {
                return Err(ViewErrorKind::Conflict
                    .error(format!("no container of pod {name} was started yet"))
                    .help(explained(&name)));
            }
            Verb::Restart => Command::Restart {
                instances,
                at: Timestamp::now(),
            },
        };
        let target = RolloutTarget::Pod(name);
        let Err(refused) = self.rollouts.command(target.clone(), command).await else {
            return Ok(answer);
        };
        match (order.verb, refused) {
            (Verb::Stop, CommandError::Refused(Refused::Stopped))
            | (Verb::Start, CommandError::Refused(Refused::NotStopped)) => Ok(OrderAnswer {
                is_unchanged: true,
                ..answer
            }),
            (_, refused) => Err(rollouts::view_error(refused, &target)),
        }
    }

    /// Pulls the images of these containers, before anything is stopped for an order.
    async fn pull(
        &self,
        pod: &Arc<Pod>,
        containers: &[String],
        when: PullWhen,
        verb: Verb,
    ) -> Result<(), ViewError> {
        match self.runtime.pull_images(pod, containers, when).await {
            Ok(()) => Ok(()),
            // The order is executed once the runtime is back.
            Err(error)
                if when == PullWhen::Policy
                    && error.reason == SyncErrorReason::RuntimeUnavailable =>
            {
                Ok(())
            }
            Err(error) => {
                let so = if verb == Verb::Pull {
                    ""
                } else {
                    "nothing was restarted: "
                };
                let (reason, message) = (error.reason, error.message);
                Err(ViewErrorKind::Failed.error(format!("{so}{reason}: {message}")))
            }
        }
    }

    /// The Job that a text means: `job/backup`, or its bare name where no pod has it.
    fn job(&self, text: &str) -> Result<Option<JobName>, ViewError> {
        let stripped = name_after(text, WorkloadKind::Job);
        if stripped.is_none() && self.static_pod(text).is_ok() {
            return Ok(None);
        }
        let states = self.jobs.states();
        let named = states.jobs.iter().map(|job| (&job.namespace, &job.name));
        let found = one_named(stripped.unwrap_or(text), "job", named)?;
        // A Job whose state can't be read is none of them, but may be ordered anyway.
        Ok(found.or_else(|| stripped.map(job_name)))
    }

    async fn restart_job(&self, job: JobName, order: &Order) -> Result<OrderAnswer, ViewError> {
        if let Some(refused) = refused_of_job(&job, order) {
            return Err(refused);
        }
        answer_of(self.jobs.order(jobs::Order::Restart(job)).await)
    }

    /// Has a run of a CronJob begin, named as `backup` or `cronjob/backup`.
    async fn run_job(&self, text: &str) -> Result<OrderAnswer, ViewError> {
        let text = name_after(text, WorkloadKind::CronJob).unwrap_or(text);
        let states = self.jobs.states();
        let named = states.cron_jobs.iter();
        let named = named.map(|cron| (&cron.namespace, &cron.name));
        let cron = one_named(text, "cronjob", named)?;
        let cron = cron.unwrap_or_else(|| job_name(text));
        answer_of(self.jobs.order(jobs::Order::Run(cron)).await)
    }

    /// The version of a static pod that runs, and what is known of it.
    fn current(&self, name: &FullName) -> Result<(Arc<Pod>, PodView), ViewError> {
        let histories = self.rollouts.histories();
        let current = histories.get(name).and_then(|history| history.current());
        let view = current.and_then(|current| self.board.get(&current.uid()));
        let found = current.zip(view);
        let (current, view) = found.ok_or_else(|| {
            ViewErrorKind::Conflict
                .error(format!("pod {name} was not started yet"))
                .help(explained(name))
        })?;
        Ok((Arc::clone(&current.pod), view))
    }
}

/// The command that explains the state of a pod.
fn explained(name: &FullName) -> String {
    format!("see mirrorlet explain {}/{}", name.namespace, name.name)
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
            return Err(ViewErrorKind::Invalid
                .error(format!("container {asked} is an init container"))
                .help("it runs again when the whole pod is stopped and started"));
        }
    }
    Ok(names)
}

/// The newest instance of each of these containers that was ever started.
fn newest_instances(view: &PodView, containers: &[String]) -> BTreeSet<ContainerId> {
    let newest = |name: &String| view.observed.find_container_status_by_name(name);
    let newest = containers.iter().filter_map(newest);
    newest.map(|instance| instance.id.clone()).collect_set()
}

/// The name, or namespace and name, that follows a word for the kind.
fn name_after(text: &str, kind: WorkloadKind) -> Option<&str> {
    let (word, name) = text.split_once('/')?;
    (WorkloadKind::of_word(word) == Some(kind)).then_some(name)
}

/// The error for an order for a `CronJob`, which has no pods of its own.
fn run_instead(text: &str) -> Option<ViewError> {
    let name = name_after(text, WorkloadKind::CronJob)?;
    let error = ViewErrorKind::Invalid.error(format!("CronJob {name} can only be run"));
    Some(error.help(format!(
        "use mirrorlet run-job {name}; spec.suspend of its document stops new runs"
    )))
}

/// The error for an order that a Job as a whole doesn't take.
fn refused_of_job(job: &JobName, order: &Order) -> Option<ViewError> {
    let newer_images = || {
        format!(
            "pull its images with docker pull, or set imagePullPolicy: Always in its document; then use mirrorlet restart job/{job}"
        )
    };
    let (message, help) = if order.verb == Verb::Pull {
        (format!("pull can't be used with Job {job}"), newer_images())
    } else if order.verb != Verb::Restart {
        let message = format!("Job {job} as a whole can only be restarted");
        (message, "spec.suspend of its document stops it".to_owned())
    } else if order.pull {
        (
            format!("--pull can't be used with Job {job}"),
            newer_images(),
        )
    } else if order.container.is_some() {
        let message = format!("-c can't be used with Job {job}, which runs again as a whole");
        (message, format!("use mirrorlet restart job/{job}"))
    } else {
        return None;
    };
    Some(ViewErrorKind::Invalid.error(message).help(help))
}

/// The name, or namespace and name, that a text is.
fn job_name(text: &str) -> JobName {
    let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
    JobName::new(namespace, name)
}

/// The one workload of a kind that has a name, or a namespace and a name.
fn one_named<'a>(
    text: &str,
    kind: &str,
    known: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<Option<JobName>, ViewError> {
    let (namespace, name) = split_name(text);
    let mut meant = known
        .filter(|(of, known)| *known == name && namespace.is_none_or(|namespace| namespace == *of))
        .map(|(namespace, name)| JobName::new(namespace, name));
    match (meant.next(), meant.next()) {
        (Some(first), Some(second)) => Err(ViewErrorKind::Invalid
            .error(format!("{text} may be {first} or {second}"))
            .help(format!("write {kind}/NAMESPACE/{name}"))),
        (found, _) => Ok(found),
    }
}

pub(super) fn answer_of(obeyed: Result<JobName, OrderError>) -> Result<OrderAnswer, ViewError> {
    match obeyed {
        Ok(job) => Ok(OrderAnswer {
            namespace: job.namespace,
            name: job.name,
            containers: Vec::new(),
            is_job: true,
            is_unchanged: false,
        }),
        Err(error @ OrderError::Unknown(_)) => Err(ViewErrorKind::NotFound
            .error(error.to_string())
            .help("list them with: mirrorlet status")),
        Err(
            error @ (OrderError::Unreadable(_)
            | OrderError::Unseen(_)
            | OrderError::Taken(_)
            | OrderError::Awaited(_)),
        ) => Err(ViewErrorKind::Conflict.error(error.to_string())),
        Err(error @ (OrderError::Disk(_) | OrderError::Busy)) => {
            Err(ViewErrorKind::Failed.error(error.to_string()))
        }
    }
}

/// When the images of the affected containers are pulled. A restart needs them: the stopped containers
/// have to start again.
fn pulls(order: &Order, is_started: bool) -> Option<PullWhen> {
    if order.pull || order.verb == Verb::Pull {
        return Some(PullWhen::Now);
    }
    (order.verb == Verb::Restart && is_started).then_some(PullWhen::Policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_takes_a_job_as_it_is_shown() {
        for (text, job, cron_job) in [
            ("job/backup", Some("backup"), None),
            ("Job/backup", Some("backup"), None),
            ("job.batch/shop/backup", Some("shop/backup"), None),
            ("CronJob/backup", None, Some("backup")),
            ("cj/shop/backup", None, Some("shop/backup")),
            ("shop/backup", None, None),
            ("backup", None, None),
        ] {
            // workloads 27
            assert_eq!(name_after(text, WorkloadKind::Job), job, "{text}");
            assert_eq!(name_after(text, WorkloadKind::CronJob), cron_job, "{text}");
        }
    }

    #[test]
    fn a_cron_job_is_run_and_not_restarted() {
        let error = run_instead("cronjob/every").unwrap();
        assert_eq!(error.to_string(), "CronJob every can only be run");
        let help = "use mirrorlet run-job every; spec.suspend of its document stops new runs";
        assert_eq!(error.help.as_deref(), Some(help));
        assert_eq!(run_instead("deployment/web"), None);
        assert_eq!(run_instead("web"), None);
    }

    #[test]
    fn an_order_that_a_job_does_not_take_is_named() {
        let order = |verb, pull, container: Option<&str>| Order {
            pod: "job/migrate".to_owned(),
            verb,
            container: container.map(str::to_owned),
            pull,
        };
        let job = JobName::new("default", "migrate");
        for (order, words, help) in [
            (
                order(Verb::Restart, true, None),
                "--pull can't be used with Job default/migrate",
                "docker pull",
            ),
            (
                order(Verb::Restart, false, Some("app")),
                "-c can't be used with Job default/migrate, which runs again as a whole",
                "use mirrorlet restart job/default/migrate",
            ),
            (
                order(Verb::Pull, false, None),
                "pull can't be used with Job default/migrate",
                "then use mirrorlet restart job/default/migrate",
            ),
            (
                order(Verb::Stop, false, None),
                "Job default/migrate as a whole can only be restarted",
                "spec.suspend",
            ),
        ] {
            let refused = refused_of_job(&job, &order).unwrap();
            assert_eq!(refused.to_string(), words);
            assert!(refused.help.unwrap().contains(help), "{words}");
        }
        let restart = order(Verb::Restart, false, None);
        assert_eq!(refused_of_job(&job, &restart), None);
    }
}
