//! Costs of probes, and the time from a failed probe to its consequences.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use mirrorlet_docker::BollardEngine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Settings;
use crate::agent::Agent;
use crate::bed::{Bed, IMAGE};
use crate::events::Events;
use crate::figures::now_nanos;
use crate::floor::{Floor, millis};
use crate::process::cpu_seconds;
use crate::report::{Figure, median};

/// Most CPU that the probes of all pods may use, in percent of a core.
const CPU_PERCENT: f64 = 3.0;
/// Most time that the agent may add to a restart.
const NEWS_MILLIS: f64 = 50.0;
/// A time that has not come.
const NEVER: i64 = i64::MAX;

/// Measures a window in which every pod is probed over HTTP once a second.
pub async fn idle(settings: &Settings) -> anyhow::Result<Vec<Figure>> {
    let bed = Bed::new(&settings.docker)?;
    let agent = Agent::start(settings, &bed).await?;
    for pod in 0..settings.pods {
        let name = format!("probed{pod:02}");
        bed.prepare_as(&name, &server(&name))?;
        bed.save(&name)?;
    }
    while agent.probed_well().await? < settings.pods {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let before = agent.quiet().await?;
    let window = Duration::from_secs(settings.idle_seconds);
    let (pid, seconds) = (agent.pid()?, window.as_secs_f64());
    let cpu = cpu_seconds(pid);
    tokio::time::sleep(window).await;
    let percent = (cpu_seconds(pid) - cpu) / seconds * 100.0;
    // The seldom list is not the probes'.
    let after = agent.engine_calls().await?;
    let calls: u64 = after
        .iter()
        .filter(|(operation, _)| *operation != "list_containers")
        .map(|(operation, count)| count - before.get(operation).unwrap_or(&0))
        .sum();
    let note = format!("{} pods, {seconds} s", settings.pods);
    Ok(vec![
        Figure::new(
            "an HTTP probe a second each: CPU of the agent",
            percent,
            "%",
            "below 3 % of a core",
            CPU_PERCENT,
            note.clone(),
        ),
        Figure::new(
            "an HTTP probe a second each: Engine calls",
            f64::from(u32::try_from(calls)?),
            "calls",
            "0",
            0.0,
            note,
        ),
    ])
}

/// Measures from the answer that fails a liveness probe to the replacement's start, beside a raw
/// stop, create and start.
pub async fn restarts(settings: &Settings, floor: &Arc<Floor>) -> anyhow::Result<Figure> {
    let bed = Bed::new(&settings.docker)?;
    let agent = Agent::start(settings, &bed).await?;
    let engine = BollardEngine::connect(&settings.docker)?;
    let events = Events::of(&engine, &bed.owner()?).await?;
    let (mut agents, mut floors) = (Vec::new(), Vec::new());
    for round in 0..settings.rounds {
        let target = Target::start().await?;
        let name = format!("failing{round:02}");
        bed.prepare_as(&name, &probed_elsewhere(&name, target.port))?;
        bed.save(&name)?;
        let starts = format!("k8s_app_{name}-");
        events.one("start", &starts).await?;
        while agent.probed_well().await? < 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let failed = target.fail().await;
        let again = events.last_of(2, "start of a replacement", |h| {
            h.action == "start" && h.name.starts_with(&starts)
        });
        agents.push(millis(failed, &again.await?));
        bed.remove(&name)?;
        events.one("destroy", &format!("k8s_POD_{name}-")).await?;
        agent.quiet().await?;
        floors.push(floor.timed_restart().await?);
        floor.sweep(&settings.docker);
    }
    let floor = median(&floors);
    Ok(Figure {
        name: "liveness probe failed → container restarted",
        value: median(&agents),
        unit: "ms",
        floor: Some(floor),
        target: "raw stop, create and start + 50 ms",
        limit: floor + NEWS_MILLIS,
        note: format!("all: {agents:.0?}"),
    })
}

/// A server that the probe asks, and that gives one bad answer when it is told to.
struct Target {
    port: u16,
    /// From when on an answer is bad, and when one was given; in nanoseconds since 1970.
    bad_from: Arc<AtomicI64>,
    given: Arc<AtomicI64>,
    task: JoinHandle<()>,
}

impl Target {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let bad_from = Arc::new(AtomicI64::new(NEVER));
        let given = Arc::new(AtomicI64::new(NEVER));
        let (from, told) = (Arc::clone(&bad_from), Arc::clone(&given));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 1024];
                let now = now_nanos().unwrap_or_default();
                let is_bad = now >= from.load(Ordering::SeqCst);
                let status = if is_bad { "500 Bad" } else { "200 OK" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                if stream.read(&mut head).await.is_ok() {
                    if is_bad {
                        // One is enough: the replacement is well.
                        from.store(NEVER, Ordering::SeqCst);
                        told.store(now_nanos().unwrap_or_default(), Ordering::SeqCst);
                    }
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
        Ok(Self {
            port,
            bad_from,
            given,
            task,
        })
    }

    /// Has the next answer be a bad one, and returns when it was given.
    async fn fail(&self) -> i64 {
        self.bad_from.store(0, Ordering::SeqCst);
        loop {
            let given = self.given.load(Ordering::SeqCst);
            if given != NEVER {
                return given;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A pod of one web server that is asked for its page once a second.
fn server(pod: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {pod}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: {IMAGE}
    command: ["sh", "-c", "mkdir /tmp/www; touch /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"]
    readinessProbe:
      httpGet: {{path: /, port: 8080}}
      periodSeconds: 1
"#
    )
}

/// A pod of one container that stops at once, whose liveness a server on this machine decides.
fn probed_elsewhere(pod: &str, port: u16) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {pod}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
    livenessProbe:
      httpGet: {{path: /, host: 127.0.0.1, port: {port}}}
      periodSeconds: 1
      failureThreshold: 1
"#
    )
}

impl Floor {
    /// Starts a pod and, when its container runs, stops that and starts another in its place;
    /// milliseconds of the latter.
    async fn timed_restart(&self) -> anyhow::Result<f64> {
        let (pod, _) = self.timed_start().await?;
        let began = now_nanos()?;
        self.restart(&pod)
            .await
            .context("can't restart a raw container")
            .map(|ran| millis(began, &ran))
    }
}
