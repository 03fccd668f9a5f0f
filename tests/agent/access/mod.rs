//! `mirrorlet exec`, `attach`, `port-forward`, `cp`, `logs`, `restart`, `stop`, `start` and `wait` as people use them, on the real
//! Engine: a whole agent in this process, the program as its client.

mod attach;
mod cp;
mod exec;
mod logs;
mod logs_of_many;
mod orders;
mod ports;
mod terminal;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::common::terminal::Guarded;
use crate::common::{self, Bed, TestAgent};

/// A pod of one container, `c`, that runs that script.
fn pod(name: &str, more: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  restartPolicy: Never\n  containers:\n  - name: c\n    \
         image: {}\n    command: [sh, -c, {script}]\n{more}",
        common::IMAGE
    )
}

const SLEEPS: &str = "exec sleep 1000000";

async fn started(bed: &Bed, manifest: &str, name: &str) -> TestAgent {
    bed.write(&format!("{name}.yaml"), manifest);
    let agent = bed.agent().await;
    agent.until_running(name).await;
    agent
}

fn mirrorlet(bed: &Bed, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MIRRORLET_") {
            command.env_remove(name);
        }
    }
    let verb = args[0];
    command.arg(verb).arg("--root").arg(bed.path());
    command.args(&args[1..]);
    command
}

/// Runs a command of ours to its end, with something on its standard input.
fn fed(bed: &Bed, args: &[&str], input: Vec<u8>) -> Output {
    let mut child = mirrorlet(bed, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || {
        // Another test covers a process that ends before it has read everything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    feeding.join().unwrap();
    output
}

fn ask(bed: &Bed, args: &[&str]) -> Output {
    mirrorlet(bed, args).stdin(Stdio::null()).output().unwrap()
}

fn sh(bed: &Bed, pod: &str, script: &str) -> Output {
    ask(bed, &["exec", pod, "--", "sh", "-c", script])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Processes in a container whose command line holds a text.
fn processes(bed: &Bed, container: &str, holding: &str) -> usize {
    let top = bed.docker(&["top", &bed.running_id(container), "-eo", "pid,args"]);
    top.lines().filter(|line| line.contains(holding)).count()
}
