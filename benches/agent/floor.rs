//! The same containers, by raw Engine calls.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::Engine;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::events::{Events, Happened};
use crate::figures::now_nanos;

/// A create's body, as JSON.
type Body = serde_json::Map<String, Value>;

/// Makes pods as the agent does, one raw call after the other.
pub struct Floor {
    engine: Arc<BollardEngine>,
    /// Its events.
    pub events: Events,
    /// Its ownership label.
    pub owner: String,
    sandbox: Body,
    app: Body,
    count: AtomicUsize,
}

/// A pod made raw.
#[derive(Debug, Clone)]
pub struct RawPod {
    sandbox: String,
    app: String,
    name: String,
}

impl Floor {
    /// A floor whose bodies are those of a pod that an agent made.
    pub async fn like(
        engine: Arc<BollardEngine>,
        sandbox_id: &str,
        app_id: &str,
    ) -> anyhow::Result<Self> {
        let owner = format!("bench-floor-{}", std::process::id());
        let events = Events::of(&engine, &owner).await?;
        let mut sandbox = body_of(&engine, sandbox_id, &owner)?;
        let mut app = body_of(&engine, app_id, &owner)?;
        sandbox.remove("Domainname");
        // They are the sandbox's, and refused beside its network.
        for field in ["Hostname", "Domainname", "ExposedPorts"] {
            app.remove(field);
        }
        Ok(Self {
            engine,
            events,
            owner,
            sandbox,
            app,
            count: AtomicUsize::new(0),
        })
    }

    /// Create sandbox, start, inspect, create app, start: one after the other.
    pub async fn start_pod(&self) -> anyhow::Result<RawPod> {
        let name = format!("floor-{}", self.count.fetch_add(1, Ordering::Relaxed));
        let sandbox = self
            .create(&format!("{name}-POD"), self.sandbox.clone())
            .await?;
        self.engine.start_container(&sandbox).await?;
        self.engine.inspect_container(&sandbox).await?;
        let app = self.start_app(&format!("{name}-app"), &sandbox).await?;
        Ok(RawPod { sandbox, app, name })
    }

    async fn start_app(&self, name: &str, sandbox: &str) -> anyhow::Result<String> {
        let mut body = self.app.clone();
        let joined = Value::String(format!("container:{sandbox}"));
        if let Some(Value::Object(host)) = body.get_mut("HostConfig") {
            for field in ["NetworkMode", "IpcMode", "PidMode"] {
                let joins = host.get(field).and_then(Value::as_str);
                if joins.is_some_and(|mode| mode.starts_with("container:")) {
                    host.insert(field.to_owned(), joined.clone());
                }
            }
        }
        let app = self.create(name, body).await?;
        self.engine.start_container(&app).await?;
        Ok(app)
    }

    async fn create(&self, name: &str, body: Body) -> anyhow::Result<String> {
        let body = serde_json::from_value(Value::Object(body))?;
        Ok(self.engine.create_container(name, body).await?)
    }

    /// Starts a pod; milliseconds until its container ran.
    pub async fn timed_start(&self) -> anyhow::Result<(RawPod, f64)> {
        let began = now_nanos()?;
        let pod = self.start_pod().await?;
        let ran = self
            .events
            .one("start", &format!("{}-app", pod.name))
            .await?;
        Ok((pod, millis(began, &ran)))
    }

    /// Starts a pod of that many containers, one call after the other; milliseconds until the last
    /// one ran.
    pub async fn timed_start_of(&self, containers: usize) -> anyhow::Result<f64> {
        let began = now_nanos()?;
        let pod = self.start_pod().await?;
        let mut last = format!("{}-app", pod.name);
        for number in 1..containers {
            last = format!("{}-app{number}", pod.name);
            self.start_app(&last, &pod.sandbox).await?;
        }
        let ran = self.events.one("start", &last).await?;
        Ok(millis(began, &ran))
    }

    /// Kills the pod's container, and when it is dead creates and starts another; milliseconds
    /// until that ran.
    pub async fn timed_replace(&self, pod: &RawPod) -> anyhow::Result<f64> {
        let pid = pid_of(&self.engine, &pod.app).await?;
        let began = now_nanos()?;
        kill(pid)?;
        self.events.one("die", &format!("{}-app", pod.name)).await?;
        let name = format!("{}-again", pod.name);
        self.start_app(&name, &pod.sandbox).await?;
        let ran = self.events.one("start", &name).await?;
        Ok(millis(began, &ran))
    }

    /// Stops the pod's container, and creates and starts another; the latter's start.
    pub async fn restart(&self, pod: &RawPod) -> anyhow::Result<Happened> {
        self.engine
            .stop_container(&pod.app, Duration::from_secs(1))
            .await?;
        let name = format!("{}-anew", pod.name);
        self.start_app(&name, &pod.sandbox).await?;
        self.events.one("start", &name).await
    }

    /// Starts many pods, `at_once` at a time; milliseconds until all ran.
    pub async fn timed_many(self: &Arc<Self>, pods: usize, at_once: usize) -> anyhow::Result<f64> {
        let room = Arc::new(Semaphore::new(at_once));
        let began = now_nanos()?;
        let mut tasks = JoinSet::new();
        for _ in 0..pods {
            let (floor, room) = (Arc::clone(self), Arc::clone(&room));
            tasks.spawn(async move {
                let _permit = room.acquire().await?;
                floor.start_pod().await
            });
        }
        while let Some(started) = tasks.join_next().await {
            started??;
        }
        let ran = self.events.last_of(pods, "start of a raw container", |h| {
            h.action == "start" && h.name.ends_with("-app") && h.nanos >= began
        });
        Ok(millis(began, &ran.await?))
    }

    /// Removes what it made.
    pub fn sweep(&self, docker: &str) {
        crate::bed::sweep(docker, &self.owner);
    }
}

/// Milliseconds from `began` to that event.
#[expect(clippy::cast_precision_loss, reason = "spans of minutes at most")]
pub fn millis(began: i64, then: &Happened) -> f64 {
    (then.nanos - began) as f64 / 1e6
}

/// Ends a process as a crash would.
pub fn kill(pid: i32) -> anyhow::Result<()> {
    let pid = rustix::process::Pid::from_raw(pid).context("not a process id")?;
    Ok(rustix::process::kill_process(
        pid,
        rustix::process::Signal::KILL,
    )?)
}

/// The process of a running container.
pub async fn pid_of(engine: &BollardEngine, id: &str) -> anyhow::Result<i32> {
    let state = engine.inspect_container(id).await?.state;
    let pid = state.and_then(|state| state.pid).unwrap_or_default();
    Ok(i32::try_from(pid)?)
}

/// The body that would create a container like that one, for another owner. By the Engine's own
/// client: the agent's reads only what the agent needs.
fn body_of(engine: &BollardEngine, id: &str, owner: &str) -> anyhow::Result<Body> {
    let mut docker = Command::new("docker");
    docker.args(["-H", engine.endpoint(), "inspect", "--format", "{{json .}}"]);
    let inspected = docker.arg(id).output()?.stdout;
    let mut found: Value = serde_json::from_slice(&inspected).context("docker inspect")?;
    let Value::Object(mut body) = found["Config"].take() else {
        anyhow::bail!("a container without configuration");
    };
    let labels = body
        .entry("Labels")
        .or_insert_with(|| Value::Object(Body::new()));
    labels["mirrorlet.dev/owner"] = Value::from(owner);
    body.insert("HostConfig".to_owned(), found["HostConfig"].take());
    Ok(body)
}
