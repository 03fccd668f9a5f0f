//! Runs programs of the node that answer on standard output: credential plug-ins and helpers.
//!
//! Each has a deadline, and leads a process group of its own. Dropping the future kills the program and
//! everything that it started in that group.

#[cfg(test)]
mod tests;

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The limits of a program.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time from its start to its end.
    pub deadline: Duration,
    /// Maximum number of bytes of its output. The output of a program that writes more is closed.
    pub output_max: u64,
}

/// A program that has ended.
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, which may be secret.
    pub output: Vec<u8>,
}

/// Why a program gave no answer. Contains nothing of its input or output.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It was not started.
    #[error("can't be started: {0}")]
    Start(io::Error),
    /// Its output broke off.
    #[error("can't be read from: {0}")]
    Read(io::Error),
    /// Its end was not seen.
    #[error("can't be waited for: {0}")]
    Wait(io::Error),
    /// It was given up.
    #[error("gave no answer within {} s", .0.as_secs())]
    Late(Duration),
}

/// Runs a program to its end, with `input` on its standard input; without input, that is empty.
///
/// # Errors
/// It can't be started or read from, or has not ended by its deadline.
///
/// # Cancel safety
/// The program is killed, with all it started in its process group.
pub async fn run(
    command: &mut Command,
    input: &[u8],
    limits: Limits,
) -> Result<Ended, ProgramError> {
    let ended = timeout(limits.deadline, answer(command, input, limits.output_max));
    ended
        .await
        .unwrap_or(Err(ProgramError::Late(limits.deadline)))
}

async fn answer(
    command: &mut Command,
    input: &[u8],
    output_max: u64,
) -> Result<Ended, ProgramError> {
    let child = command
        .stdin(if input.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(ProgramError::Start)?;
    let mut program = Running(child);
    let (stdin, stdout) = (program.0.stdin.take(), program.0.stdout.take());
    let asked = async {
        if let Some(mut stdin) = stdin {
            // One that asks nothing may have closed it.
            let _ = stdin.write_all(input).await;
        }
    };
    let answered = async {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(output_max).read_to_end(&mut output).await?;
        }
        Ok::<_, io::Error>(output)
    };
    let ((), answered) = futures::future::join(asked, answered).await;
    let output = answered.map_err(ProgramError::Read)?;
    let status = program.0.wait().await.map_err(ProgramError::Wait)?;
    Ok(Ended { status, output })
}

/// A program that runs, with all it started; killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(group) = pid.and_then(rustix::process::Pid::from_raw) {
            // One that has ended already needs no ending.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}
