//! Commands in containers: created, started, read to their end, and killed when they are abandoned.
//!
//! An exec costs three Engine calls: create, start, inspect. The create fails if the container is not
//! running, unless that is known already.

mod command;
pub(super) mod process;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::containers::Containers;
use super::engine::{EngineError, SharedEngine};
use super::persist::persist;
use mirrorlet_core::api::ContainerId;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{ExecOptions, Result, RuntimeError};

/// Pauses between inspects of an exec whose streams have ended: the Engine notices the end of a process
/// after that of its streams, usually at once.
const LOOKS: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(2), Duration::from_secs(1));
/// How long after the end of its streams an exec may still count as running.
const END_WAIT: Duration = Duration::from_secs(10);
/// How long an abandoned start may take to become visible.
const START_WAIT: Duration = Duration::from_secs(2);

/// Name of the call in errors.
const EXEC: &str = "exec";
/// The same of a command that outlived its time and could not be ended.
const EXEC_GOES_ON: &str = "exec, whose process could not be killed and keeps running,";

/// The task that waits for execs to end, so that a caller that drops one need not wait until its
/// process is gone.
#[derive(Debug, Clone, Default)]
pub struct ExecSessions {
    tracker: TaskTracker,
}

impl ExecSessions {
    /// Waits for `cancel`, and then until every exec in progress has been ended.
    pub async fn run(self, cancel: CancellationToken) {
        cancel.cancelled().await;
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// An exec that was created, and may run. Dropped before its end, its process is ended.
struct Exec {
    engine: SharedEngine,
    /// Its id.
    id: String,
    /// Id of its container.
    container: String,
    sessions: ExecSessions,
    /// Counts it among those that are waited for.
    token: Option<TaskTrackerToken>,
    runtime: Handle,
    /// Whether its end was noticed, or is being awaited elsewhere.
    over: AtomicBool,
    /// Whether the Engine was asked something and has not answered yet.
    asking: AtomicBool,
    /// Until when calls that fail for a shortage of this machine are made again.
    until: Instant,
}

/// The result of ending an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It never had a process: the Engine answers a start before there is a process.
    NeverBegan,
    /// Its process has ended, or is gone with its container.
    Ended,
    /// Its process could not be ended.
    GoesOn,
}

/// The state of an exec's process, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// It runs, and has that id.
    Runs(i32),
    Ended,
}

/// Commands in containers, and attaching to them.
pub(super) struct Execs {
    containers: Arc<Containers>,
    sessions: ExecSessions,
}

impl Execs {
    pub(super) fn new(containers: Arc<Containers>) -> Self {
        Self {
            containers,
            sessions: ExecSessions::default(),
        }
    }

    /// Returns the task that waits for execs to end.
    pub(super) fn sessions(&self) -> ExecSessions {
        self.sessions.clone()
    }

    /// Makes an exec in a container that is not known not to run. Calls that fail for a shortage of this
    /// machine are made again `until` then.
    async fn create_exec(
        &self,
        id: &ContainerId,
        options: &ExecOptions,
        until: Instant,
    ) -> Result<Exec> {
        self.containers.check_running(id)?;
        let engine = &self.containers.engine;
        let create = || engine.create_exec(&id.id, options);
        let exec = persist(until, EngineError::is_shortage, create).await?;
        Ok(Exec {
            engine: engine.clone(),
            id: exec,
            container: id.id.to_string(),
            token: Some(self.sessions.tracker.token()),
            sessions: self.sessions.clone(),
            runtime: Handle::current(),
            over: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            until,
        })
    }
}

impl Exec {
    /// Awaits an answer of the Engine.
    async fn answer<T, C>(&self, call: impl FnMut() -> C) -> Result<T>
    where
        C: Future<Output = Result<T, EngineError>>,
    {
        self.asking.store(true, Ordering::Relaxed);
        let answer = persist(self.until, EngineError::is_shortage, call).await;
        self.asking.store(false, Ordering::Relaxed);
        Ok(answer?)
    }

    /// Waits until the Engine has noticed the command's end; returns its exit code.
    async fn ended(&self) -> Result<i32> {
        let look = || async {
            let state = self.answer(|| self.engine.inspect_exec(&self.id)).await?;
            Ok::<_, RuntimeError>(state.exit_code.filter(|_| !state.running))
        };
        let state = found_within(END_WAIT, look).await?;
        self.over.store(true, Ordering::Release);
        match state {
            Some(code) => Ok(code),
            None => Err(RuntimeError::Local(format!(
                "the command's streams have ended, but after {} s the Docker Engine still reports it as running",
                END_WAIT.as_secs()
            ))),
        }
    }

    /// Ends the command's process.
    async fn end(&self) -> End {
        self.over.store(true, Ordering::Release);
        end(&self.engine, &self.id, &self.container).await
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if self.over.load(Ordering::Acquire) {
            return;
        }
        let (engine, id) = (self.engine.clone(), std::mem::take(&mut self.id));
        let container = std::mem::take(&mut self.container);
        let token = self.token.take();
        let ending = async move {
            end(&engine, &id, &container).await;
            drop(token);
        };
        self.sessions.tracker.spawn_on(ending, &self.runtime);
    }
}

/// Calls `look`, at growing intervals, until it finds something; none if that takes too long.
async fn found_within<T, E, L>(wait: Duration, mut look: impl FnMut() -> L) -> Result<Option<T>, E>
where
    L: Future<Output = Result<Option<T>, E>>,
{
    let began = Instant::now();
    let mut looks = LOOKS;
    loop {
        let found = look().await?;
        if found.is_some() || began.elapsed() >= wait {
            return Ok(found);
        }
        sleep(looks.pause()).await;
    }
}

/// Kills the process of an exec, and waits until the Engine has noticed its end. Fails if it continues.
async fn end(engine: &SharedEngine, exec: &str, container: &str) -> End {
    let why = match try_end(engine, exec, container).await {
        Ok(End::GoesOn) => "its process is not visible from here, or does not exit".to_owned(),
        Ok(end) => return end,
        // It is gone with its container.
        Err(error) if error.is_not_found() => return End::Ended,
        Err(error) => error.to_string(),
    };
    occurrences::exec_goes_on(&ContainerId::docker(container), &why);
    End::GoesOn
}

async fn try_end(engine: &SharedEngine, exec: &str, container: &str) -> Result<End, EngineError> {
    let pid = match process_of(engine, exec).await? {
        None => return Ok(End::NeverBegan),
        Some(Process::Ended) => return Ok(End::Ended),
        Some(Process::Runs(pid)) => pid,
    };
    let began = Instant::now();
    let mut looks = LOOKS;
    loop {
        let container = container.to_owned();
        // Reads files and sleeps; a panic in there kills no process, and is retried.
        let _ = tokio::task::spawn_blocking(move || process::kill_session(pid, &container)).await;
        sleep(looks.pause()).await;
        if !engine.inspect_exec(exec).await?.running {
            return Ok(End::Ended);
        }
        if began.elapsed() >= END_WAIT {
            return Ok(End::GoesOn);
        }
    }
}

/// The process of an exec; none if there is none after a while.
async fn process_of(engine: &SharedEngine, exec: &str) -> Result<Option<Process>, EngineError> {
    let look = || async {
        let state = engine.inspect_exec(exec).await?;
        if !state.running && state.exit_code.is_some() {
            return Ok(Some(Process::Ended));
        }
        // One without an id was started a moment ago, or not at all.
        Ok(state.pid.map(Process::Runs))
    };
    found_within(START_WAIT, look).await
}
