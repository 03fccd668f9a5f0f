//! `mirrorlet restart`, `pull`, `stop`, `start` and `run-job`.

use std::path::Path;

use super::logs::escape;
use super::table::one_line;
use super::{Outcome, client, print};
use crate::config::args::{OrderArgs, RestartArgs, RunJobArgs};
use crate::server::admin::OrderAnswer;

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
