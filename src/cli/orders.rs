//! `mirrorlet restart`, `pull`, `stop`, `start` and `wait`.

use std::path::Path;
use std::time::Duration;

use super::logs::escape;
use super::status::watch_reports;
use super::table::one_line;
use super::{Failure, Outcome, client, print};
use crate::config::args::{OrderArgs, RestartArgs, WaitArgs, WaitFor};
use crate::server::admin::OrderAnswer;
use mirrorlet_core::api::report::{STOPPED, StatusReport};
use mirrorlet_core::select::{PodNotFound, find_pod};

/// Restarts containers of pods.
pub async fn restart(args: &RestartArgs, root: &Path) -> Outcome {
    let container = args.container.as_deref();
    let container = container.map(|name| format!("&container={}", escape(name)));
    let more = format!("&pull={}{}", args.pull, container.unwrap_or_default());
    let done = |answer: &OrderAnswer| format!("restarting {}", containers(answer));
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

/// Gives an order for each pod. The agent answers once the order is on its disk; images are pulled
/// before that, for as long as it takes.
async fn order(
    args: &OrderArgs,
    root: &Path,
    verb: &str,
    done: impl Fn(&OrderAnswer) -> String,
) -> Outcome {
    for pod in &args.pods {
        let path = format!("/v1/orders?pod={}&verb={verb}", escape(pod));
        let answer: OrderAnswer = client::parse(&client::post_patiently(root, &path).await?)?;
        let (namespace, name) = (one_line(&answer.namespace), one_line(&answer.name));
        print(&format!("pod {namespace}/{name}: {}\n", done(&answer)))?;
    }
    Ok(())
}

/// Waits until pods are as wanted.
pub async fn wait(args: &WaitArgs, root: &Path) -> Outcome {
    let follow = follow(args, root);
    if args.timeout.is_zero() {
        return follow.await;
    }
    let followed = tokio::time::timeout(args.timeout, follow).await;
    followed.unwrap_or_else(|_| Err(not_in_time(args.timeout)))
}

fn not_in_time(limit: Duration) -> Failure {
    let limit = limit.as_secs_f64();
    Failure::Failed(anyhow::anyhow!("timed out after {limit} s"))
}

async fn follow(args: &WaitArgs, root: &Path) -> Outcome {
    let mut reports = watch_reports(root).await?;
    let mut waiting: Vec<&String> = args.pods.pods.iter().collect();
    while !waiting.is_empty() {
        let report = reports.next().await?;
        let mut missing = Vec::new();
        for pod in waiting {
            if is_there(&report, pod, args.state)? {
                print(&format!("pod {}: {}\n", one_line(pod), word(args.state)))?;
            } else {
                missing.push(pod);
            }
        }
        waiting = missing;
    }
    Ok(())
}

fn word(state: WaitFor) -> &'static str {
    match state {
        WaitFor::Ready => "ready",
        WaitFor::Healthy => "healthy",
        WaitFor::Stopped => "stopped",
        WaitFor::Deleted => "deleted",
    }
}

/// Whether the pod is as wanted. One that isn't there yet may come.
fn is_there(report: &StatusReport, pod: &str, state: WaitFor) -> Result<bool, Failure> {
    if state == WaitFor::Deleted {
        return Ok(matches!(
            find_pod(&report.pods, pod),
            Err(PodNotFound::Unknown { .. })
        ));
    }
    let pod = match find_pod(&report.pods, pod) {
        Ok(pod) if !pod.is_ending() => pod,
        Ok(_) | Err(PodNotFound::Unknown { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    Ok(match state {
        WaitFor::Ready => pod.is_ready(),
        WaitFor::Healthy => pod.is_ready() && !pod.held && pod.rollout.is_none(),
        WaitFor::Stopped => pod.status == STOPPED,
        WaitFor::Deleted => false,
    })
}
