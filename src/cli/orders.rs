//! `mirrorlet restart`, `pull`, `stop`, `start` and `run-job`.

use std::path::Path;

use super::logs::escape;
use super::status::watch_reports;
use super::table::one_line;
use super::{Failure, Outcome, client, print};
use crate::config::args::{OrderArgs, RestartArgs, RunJobArgs};
use crate::server::admin::OrderAnswer;
use mirrorlet_core::select::find_pods;
use mirrorlet_core::workload::WorkloadKind;

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
    let pods = pods_of(&args.pods, root).await?;
    order_each(&pods, root, verb, done).await
}

/// The pods of these names, those of each workload in its place. A Job is ordered as one.
async fn pods_of(names: &[String], root: &Path) -> Result<Vec<String>, Failure> {
    let has_many = |name: &String| {
        let word = name.split_once('/').map(|(word, _)| word);
        let kind = word.and_then(WorkloadKind::of_word);
        kind.is_some_and(|kind| !matches!(kind, WorkloadKind::Job | WorkloadKind::CronJob))
    };
    if !names.iter().any(has_many) {
        return Ok(names.to_vec());
    }
    let report = watch_reports(root, true).await?.next().await?;
    let mut all = Vec::new();
    for name in names {
        if has_many(name) {
            let pods = find_pods(&report.pods, name).map_err(anyhow::Error::from)?;
            all.extend(
                pods.iter()
                    .map(|pod| format!("{}/{}", pod.namespace, pod.name)),
            );
        } else {
            all.push(name.clone());
        }
    }
    Ok(all)
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
