//! Execs of the fake Engine: their output and exit codes are scripted by program.

use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncWriteExt, DuplexStream as Pipe};

use super::super::engine::{ExecState, Result};
use super::state::{Phase, State, api_error};
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{ExecOptions, LogChunk};

/// The behaviour of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecScript {
    /// Its output, in this order.
    pub output: Vec<LogChunk>,
    /// Its exit code.
    pub exit_code: i32,
    /// Whether it ends only with its container after that.
    pub hangs: bool,
    /// Its process id; none if the fake has no process to show.
    pub pid: Option<i32>,
}

/// Everything about execs that the fake holds.
#[derive(Debug, Default)]
pub(super) struct Execs {
    pub(super) scripts: BTreeMap<String, ExecScript>,
    made: Vec<FakeExec>,
}

#[derive(Debug)]
struct FakeExec {
    /// Id of its container.
    container: String,
    options: ExecOptions,
    script: ExecScript,
    state: ExecState,
    started: bool,
    /// The command's end of a stream that stays open.
    held: Option<Pipe>,
}

impl State {
    pub(super) fn create_exec(&mut self, id: &str, options: &ExecOptions) -> Result<String> {
        let container = self.known(id)?;
        if container.phase != Phase::Running {
            let id = &container.id;
            return Err(api_error(409, format!("Container {id} is not running")));
        }
        let container = container.id.clone();
        let program = options.command.first().cloned().unwrap_or_default();
        self.execs.made.push(FakeExec {
            container,
            options: options.clone(),
            script: self
                .execs
                .scripts
                .get(&program)
                .cloned()
                .unwrap_or_default(),
            state: ExecState::default(),
            started: false,
            held: None,
        });
        Ok(format!("{:064x}", self.execs.made.len()))
    }

    fn exec(&mut self, exec: &str) -> Result<&mut FakeExec> {
        usize::from_str_radix(exec, 16)
            .ok()
            .and_then(|number| self.execs.made.get_mut(number.checked_sub(1)?))
            .ok_or_else(|| api_error(404, format!("No such exec instance: {exec}")))
    }

    /// Starts it; returns its output, and the pipe for it.
    pub(super) fn start_exec(&mut self, exec: &str) -> Result<(BytesMut, Pipe, DuplexStream)> {
        let found = self.exec(exec)?;
        if std::mem::replace(&mut found.started, true) {
            return Err(api_error(
                409,
                format!("Error: Exec command {exec} is already running"),
            ));
        }
        found.state = ExecState {
            running: found.script.hangs,
            exit_code: (!found.script.hangs).then_some(found.script.exit_code),
            pid: found.script.pid,
        };
        let wire = wire(&found.script.output, found.options.streams.tty);
        let (ours, theirs) = tokio::io::duplex(wire.len().max(1));
        Ok((wire, ours, Box::new(theirs)))
    }

    /// The output of a container so far, as if it ended now.
    pub(super) fn attach(&mut self, id: &str) -> Result<(BytesMut, Pipe, DuplexStream)> {
        let container = self.known(id)?;
        if container.phase != Phase::Running {
            let id = &container.id;
            return Err(api_error(
                409,
                format!("You cannot attach to {id}: it is stopped"),
            ));
        }
        let wire = wire(&container.logs, container.body.tty.unwrap_or(false));
        let (ours, theirs) = tokio::io::duplex(wire.len().max(1));
        Ok((wire, ours, Box::new(theirs)))
    }

    /// Containers of the fake have no files.
    pub(super) fn no_file<T>(&self, id: &str, path: &str) -> Result<T> {
        let id = &self.known(id)?.id;
        let words = format!("Could not find the file {path} in container {id}");
        Err(api_error(404, words))
    }

    /// Ends what was written, or leaves the stream open.
    pub(super) fn written(&mut self, exec: &str, pipe: Pipe) {
        if let Ok(found) = self.exec(exec)
            && found.state.running
        {
            found.held = Some(pipe);
        }
    }

    /// Ends the execs in a container that has ended.
    pub(super) fn end_execs(&mut self, container: &str) {
        let made = self.execs.made.iter_mut();
        for exec in made.filter(|exec| exec.state.running && exec.container == container) {
            exec.state = ExecState {
                running: false,
                exit_code: Some(137),
                pid: None,
            };
            exec.held = None;
        }
    }

    pub(super) fn exec_state(&mut self, exec: &str) -> Result<ExecState> {
        self.exec(exec).map(|found| found.state)
    }
}

/// The output of a command as the Engine sends it.
fn wire(output: &[LogChunk], tty: bool) -> BytesMut {
    let mut wire = BytesMut::new();
    for chunk in output {
        let (kind, data) = match chunk {
            LogChunk::Stdout(data) => (1, data),
            LogChunk::Stderr(data) => (2, data),
        };
        if !tty {
            wire.put_u32(kind << 24);
            wire.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
        }
        wire.put_slice(data);
    }
    wire
}

/// Writes everything; the pipe has room for all of it.
pub(super) async fn write(pipe: &mut Pipe, wire: &[u8]) {
    // A reader that has gone already needs nothing.
    let _ = pipe.write_all(wire).await;
}
