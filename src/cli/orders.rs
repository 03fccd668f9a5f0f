//! `mirrorlet restart`, `pull`, `stop`, `start` and `run-job`.

use std::io::Write as _;
use std::path::Path;

use super::logs::escape;
use super::status::watch_reports;
use super::table::one_line;
use super::{Failure, Outcome, client, error_text, print};
use crate::config::args::{OrderArgs, RestartArgs, RunJobArgs};
use crate::server::admin::OrderAnswer;
use mirrorlet_core::api::report::PodReport;
use mirrorlet_core::select::{PodNotFound, find_pod, find_pods};
use mirrorlet_core::workload::WorkloadKind;

/// Restarts containers of pods.
pub async fn restart(args: &RestartArgs, root: &Path) -> Outcome {
    let container = args.container.as_deref();
    let container = container.map(|name| format!("&container={}", escape(name)));
    let more = format!("&pull={}{}", args.pull, container.unwrap_or_default());
    let done = |answer: &OrderAnswer| {
        if answer.is_job {
            "restarted".to_owned()
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
        if answer.is_unchanged {
            format!("stopped already, until: {start}")
        } else {
            format!("stopping, until: {start}")
        }
    };
    order(args, root, "stop", done).await
}

/// Starts pods that were stopped.
pub async fn start(args: &OrderArgs, root: &Path) -> Outcome {
    let done = |answer: &OrderAnswer| {
        let words = if answer.is_unchanged {
            "was not stopped"
        } else {
            "starting"
        };
        words.to_owned()
    };
    order(args, root, "start", done).await
}

/// Starts a run of CronJobs.
pub async fn run_job(args: &RunJobArgs, root: &Path) -> Outcome {
    let done = |_: &OrderAnswer| "run started".to_owned();
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
    let pods = ordered(&args.pods, root).await?;
    order_each(&pods, root, verb, done).await
}

/// The pods of these names, each once, those of each workload in its place. A Job is ordered as one.
async fn ordered(names: &[String], root: &Path) -> Result<Vec<String>, Failure> {
    let report = watch_reports(root, true).await?.next().await?;
    Ok(each_once(&report.pods, names)?)
}

fn each_once(pods: &[PodReport], names: &[String]) -> Result<Vec<String>, PodNotFound> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        let found = pods_of(pods, name)?.into_iter();
        let mut meant: Vec<String> = found
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect();
        if meant.is_empty() {
            meant.push(name.clone());
        }
        for name in meant {
            if !all.contains(&name) {
                all.push(name);
            }
        }
    }
    Ok(all)
}

/// The pods for a text: one pod, or those of a workload that aren't being stopped; none if it is a Job,
/// or may be one.
fn pods_of<'a>(pods: &'a [PodReport], text: &str) -> Result<Vec<&'a PodReport>, PodNotFound> {
    let word = text.split_once('/').map(|(word, _)| word);
    let kind = word.and_then(WorkloadKind::of_word);
    if matches!(kind, Some(WorkloadKind::Job | WorkloadKind::CronJob)) {
        return Ok(Vec::new());
    }
    let of_job = |pod: &&PodReport| {
        let owner = pod.workload.as_deref();
        owner.is_some_and(|owner| owner.starts_with("Job/"))
    };
    let is_pod = find_pod(pods, text).is_ok();
    match find_pods(pods, text) {
        Ok(found) if !is_pod && found.iter().any(of_job) => Ok(Vec::new()),
        Ok(mut found) if !is_pod => {
            found.retain(|pod| !pod.is_ending());
            Ok(found)
        }
        // The agent may know a Job of that name that has no pods.
        Err(PodNotFound::Unknown { .. }) if kind.is_none() => Ok(Vec::new()),
        found => found,
    }
}

/// Gives the order to each, also after one that can't be carried out.
async fn order_each(
    names: &[String],
    root: &Path,
    verb: &str,
    done: impl Fn(&OrderAnswer) -> String,
) -> Outcome {
    let mut has_failed = false;
    for pod in names {
        let path = format!("/v1/orders?pod={}&verb={verb}", escape(pod));
        let answered = client::post_patiently(root, &path).await;
        let body = match (answered, names) {
            (Ok(body), _) => body,
            (Err(Failure::Failed(error)), [_, _, ..]) => {
                let mut stderr = anstream::stderr().lock();
                // Standard error gone as well: the exit code must do.
                let _ = stderr.write_all(error_text(&error).as_bytes());
                has_failed = true;
                continue;
            }
            (Err(failure), _) => return Err(failure),
        };
        let answer: OrderAnswer = client::parse(&body)?;
        let (namespace, name) = (one_line(&answer.namespace), one_line(&answer.name));
        let kind = if answer.is_job { "job" } else { "pod" };
        print(&format!("{kind} {namespace}/{name}: {}\n", done(&answer)))?;
    }
    if has_failed {
        return Err(Failure::Problems);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, status: &str, owner: Option<&str>) -> PodReport {
        let pod = json!({
            "name": name, "manifestName": name, "namespace": "default",
            "uid": format!("{name}-{status}"), "source": "/m", "status": status,
            "phase": "Running", "ready": 1, "containersTotal": 1, "restarts": 0,
            "containers": [], "held": false, "workload": owner,
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn an_order_for_a_workload_is_for_each_of_its_pods_once() {
        let (web, night) = (Some("Deployment/web"), Some("Job/night"));
        let pods = [
            // The old version of an edited pod comes first.
            pod("web-0", "Terminating", web),
            pod("web-0", "Running", web),
            pod("web-1", "Stopped", web),
            // The workload has fewer pods than before.
            pod("web-2", "Terminating", web),
            pod("gone-0", "Terminating", Some("Deployment/gone")),
            pod("night-x", "Running", night),
        ];
        for (typed, expected) in [
            ("deployment/web", "default/web-0 default/web-1"),
            ("web", "default/web-0 default/web-1"),
            ("web-1 web web-0", "default/web-1 default/web-0"),
            ("deploy/web Deployment/web", "default/web-0 default/web-1"),
            // The agent says what is wrong with it.
            ("web-2", "default/web-2"),
            ("deployment/gone", "deployment/gone"),
            ("job/night night other", "job/night night other"),
            ("night-x", "default/night-x"),
        ] {
            let names: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            let ordered = each_once(&pods, &names).unwrap();
            // box 13
            assert_eq!(ordered.join(" "), expected, "{typed}");
        }
    }
}
