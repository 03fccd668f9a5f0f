//! Shells as programs.

use std::path::Path;

use super::*;

const LIMITS: Limits = Limits {
    deadline: Duration::from_mins(2),
    output_max: 1 << 10,
};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stderr(Stdio::null());
    command
}

/// The standard output of a script and its exit code, or the error.
async fn answer_of(script: &str, input: &str) -> Result<(String, Option<i32>), String> {
    let ended = run(&mut shell(script), input.as_bytes(), LIMITS).await;
    let ended = ended.map_err(|error| error.to_string())?;
    let output = String::from_utf8(ended.output).unwrap();
    Ok((output, ended.status.code()))
}

#[tokio::test]
async fn a_program_answers_to_its_input() {
    for (script, input, expected) in [
        ("cat", "asked", ("asked", Some(0))),
        ("exec <&-; echo a; exit 3", "asked", ("a\n", Some(3))),
        // Nothing on its input is the end of it.
        ("cat; echo b", "", ("b\n", Some(0))),
    ] {
        let answer = answer_of(script, input).await;
        let expected = (expected.0.to_owned(), expected.1);
        // node 6o
        assert_eq!(answer, Ok(expected), "{script}");
    }
    let absent = run(&mut Command::new("/nonexistent/program"), b"", LIMITS).await;
    let absent = absent.err().map(|error| error.to_string());
    let absent = absent.unwrap_or_default();
    assert!(
        absent.starts_with("can't be started: No such file"),
        "{absent}"
    );
}

#[tokio::test]
async fn of_a_program_that_writes_without_end_only_the_beginning_is_read() {
    let (output, code) = answer_of("exec yes", "").await.unwrap();
    // node 6o
    assert_eq!(output.len(), 1 << 10);
    assert_ne!(code, Some(0), "its output was closed");
}

/// A script that notes the process id of what it starts there, and waits for it.
fn with_child(noted: &Path) -> String {
    format!(
        "sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait",
        noted.display()
    )
}

/// Whether the process whose id is noted there runs: it is not gone, nor dead and unburied.
fn runs(noted: &Path) -> bool {
    let pid = std::fs::read_to_string(noted).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

async fn until_ended(noted: &Path) {
    while runs(noted) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_program_that_nobody_waits_for_ends_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let noted = directory.path().join("pid");
    let mut command = shell(&with_child(&noted));
    let mut asking = Box::pin(run(&mut command, b"", LIMITS));
    while !noted.exists() {
        assert!(futures::poll!(&mut asking).is_pending());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(runs(&noted));
    drop(asking);
    // node 6o
    until_ended(&noted).await;
}

/// The program is gone, and what it started holds its output open.
#[tokio::test]
async fn a_program_that_is_late_ends_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let noted = directory.path().join("pid");
    let script = with_child(&noted).replace("; wait", "");
    // Time enough for a shell to start another program on a busy machine.
    let limits = Limits {
        deadline: Duration::from_secs(1),
        ..LIMITS
    };
    let late = loop {
        let late = run(&mut shell(&script), b"", limits).await.err();
        if noted.exists() {
            break late;
        }
    };
    let late = late.map(|error| error.to_string());
    // node 6o
    assert_eq!(late.as_deref(), Some("gave no answer within 1 s"));
    // node 6o
    until_ended(&noted).await;
}
