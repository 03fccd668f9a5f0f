//! `mirrorlet restart`, `pull`, `stop`, `start`, `run-job` and `wait`.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use super::logs::escape;
use super::status::watch_reports;
use super::table::one_line;
use super::{Failure, Outcome, client, print};
use crate::config::args::{OrderArgs, RestartArgs, RunJobArgs, WaitArgs, WaitFor};
use crate::server::admin::OrderAnswer;
use mirrorlet_core::api::keys::DEFAULT_NAMESPACE;
use mirrorlet_core::api::report::{STOPPED, StatusReport};
use mirrorlet_core::select::{PodNotFound, find_pod, without_kind};

/// Restarts containers of pods.
pub async fn restart(args: &RestartArgs, root: &Path) -> Outcome {
    let container = args.container.as_deref();
    let container = container.map(|name| format!("&container={}", escape(name)));
    let more = format!("&pull={}{}", args.pull, container.unwrap_or_default());
    let done = |answer: &OrderAnswer| {
        if answer.is_job {
            "it runs again".to_owned()
        } else {
            format!("restarting {}", containers(answer))
        }
    };
    order(&args.pods, root, &format!("restart{more}"), done).await
}

/// Pulls the images of pods.
pub async fn pull(args: &OrderArgs, root: &Path) -> Outcome {
    let done = |answer: &OrderAnswer| format!("pulled the images of {}", containers(answer));
    order(args, root, "pull", done).await
}

fn containers(answer: &OrderAnswer) -> String {
    let names = answer.containers.iter().map(|name| one_line(name));
    names.collect::<Vec<_>>().join(", ")
}

/// Stops pods.
pub async fn stop(args: &OrderArgs, root: &Path) -> Outcome {
    let done = |answer: &OrderAnswer| {
        let start = format!("mirrorlet start {}/{}", answer.namespace, answer.name);
        format!("stopping, until: {start}")
    };
    order(args, root, "stop", done).await
}

/// Starts pods that were stopped.
pub async fn start(args: &OrderArgs, root: &Path) -> Outcome {
    order(args, root, "start", |_| "starting".to_owned()).await
}

/// Starts a run of CronJobs.
pub async fn run_job(args: &RunJobArgs, root: &Path) -> Outcome {
    let done = |_: &OrderAnswer| "it runs".to_owned();
    order_each(&args.cron_jobs, root, "run", done).await
}

/// Gives an order for each pod. The agent answers once the order is on its disk; images are pulled
/// before that, for as long as it takes.
async fn order(
    args: &OrderArgs,
    root: &Path,
    verb: &str,
    done: impl Fn(&OrderAnswer) -> String,
) -> Outcome {
    order_each(&args.pods, root, verb, done).await
}

async fn order_each(
    names: &[String],
    root: &Path,
    verb: &str,
    done: impl Fn(&OrderAnswer) -> String,
) -> Outcome {
    for pod in names {
        let path = format!("/v1/orders?pod={}&verb={verb}", escape(pod));
        let answer: OrderAnswer = client::parse(&client::post_patiently(root, &path).await?)?;
        let (namespace, name) = (one_line(&answer.namespace), one_line(&answer.name));
        let kind = if answer.is_job { "job" } else { "pod" };
        print(&format!("{kind} {namespace}/{name}: {}\n", done(&answer)))?;
    }
    Ok(())
}

/// Waits until pods are as wanted, one after another, and says so in their order, as kubectl does.
/// After the time, those that are as wanted are named, too.
pub async fn wait(args: &WaitArgs, root: &Path) -> Outcome {
    let mut waiting: VecDeque<Awaited> =
        args.pods.pods.iter().map(|pod| Awaited::new(pod)).collect();
    let follow = follow(&mut waiting, args.state, root);
    if args.timeout.is_zero() {
        return follow.await;
    }
    let followed = tokio::time::timeout(args.timeout, follow).await;
    followed.unwrap_or_else(|_| not_in_time(args.timeout, &waiting))
}

fn not_in_time(limit: Duration, waiting: &VecDeque<Awaited>) -> Outcome {
    for pod in waiting.iter().filter(|pod| pod.met) {
        print(&pod.line())?;
    }
    let missing = waiting.iter().filter(|pod| !pod.met).map(Awaited::name);
    let missing = missing.collect::<Vec<_>>().join(", ");
    let limit = limit.as_secs_f64();
    Err(Failure::Failed(anyhow::anyhow!(
        "timed out after {limit} s waiting for the condition on {missing}; see mirrorlet status"
    )))
}

async fn follow(waiting: &mut VecDeque<Awaited>, state: WaitFor, root: &Path) -> Outcome {
    let mut reports = watch_reports(root, true).await?;
    while !waiting.is_empty() {
        let report = reports.next().await?;
        for pod in waiting.iter_mut() {
            pod.look(&report, state)?;
        }
        while let Some(pod) = waiting.pop_front_if(|pod| pod.met) {
            print(&pod.line())?;
        }
    }
    Ok(())
}

/// A pod that is waited for.
#[derive(Debug)]
struct Awaited {
    /// As the user typed it.
    typed: String,
    /// Its namespace, if known, and its name.
    name: (Option<String>, String),
    /// Whether it is as wanted, by the newest report.
    met: bool,
}

impl Awaited {
    fn new(typed: &str) -> Self {
        let named = without_kind(typed);
        let name = match named.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name.to_owned()),
            None => (None, named.to_owned()),
        };
        Self {
            typed: typed.to_owned(),
            name,
            met: false,
        }
    }

    /// Takes in a report. A pod that isn't there yet may come. One that is to be gone keeps the
    /// name that the user typed: whether it was seen before is chance.
    fn look(&mut self, report: &StatusReport, state: WaitFor) -> Result<(), Failure> {
        let pod = match find_pod(&report.pods, &self.typed) {
            Ok(pod) => Some(pod),
            Err(PodNotFound::Unknown { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(pod) = pod.filter(|_| state != WaitFor::Deleted) {
            self.name = (Some(pod.namespace.clone()), pod.name.clone());
        }
        self.met = match (state, pod) {
            (WaitFor::Deleted, pod) => pod.is_none(),
            (_, None) => false,
            (_, Some(pod)) if pod.is_ending() => false,
            (WaitFor::Ready, Some(pod)) => pod.is_ready(),
            (WaitFor::Healthy, Some(pod)) => pod.is_ready() && !pod.held && pod.rollout.is_none(),
            (WaitFor::Stopped, Some(pod)) => pod.status == STOPPED,
        };
        Ok(())
    }

    fn name(&self) -> String {
        format!("pod/{}", one_line(&self.name.1))
    }

    /// As kubectl prints it, with the namespace where it isn't the default one.
    fn line(&self) -> String {
        let namespace = self.name.0.as_deref();
        let namespace = namespace.filter(|namespace| *namespace != DEFAULT_NAMESPACE);
        let namespace = namespace.map_or_else(String::new, |namespace| {
            format!(" in namespace {}", one_line(namespace))
        });
        format!("{} condition met{namespace}\n", self.name())
    }
}

#[cfg(test)]
mod tests;
