//! The program as a user sees it: exit codes, and whether output goes to stdout or stderr.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use mirrorlet::app::lock::RootLock;

fn mirrorlet(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MIRRORLET_") || name == "DOCKER_HOST" {
            command.env_remove(name);
        }
    }
    command.args(args).output().unwrap()
}

fn code_and_stderr(args: &[&str]) -> (i32, String) {
    let output = mirrorlet(args);
    assert!(
        output.stdout.is_empty(),
        "{args:?} wrote to standard output"
    );
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), stderr)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn usage_errors_exit_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, "settle: 10ms\nsetle: 1ms\n").unwrap();
    let root = text(dir.path());
    for (args, words) in [
        (&["status", "--bogus"][..], "--bogus"),
        (&["exec", "--bogus", "web", "--", "ls"], "--bogus"),
        (
            &["exec", "web", "ls", "-la"],
            "exec POD COMMAND is not supported. Use exec POD -- COMMAND instead",
        ),
        (
            &["run", "web", "migrate"],
            "run starts the agent and takes only flags. To run a command in a pod, use exec POD -- COMMAND",
        ),
        (
            &["exec", "-it", "web", "sh"],
            "Usage: mirrorlet exec [OPTIONS] <POD> -- <COMMAND>...",
        ),
        (
            &["run", "--root", root, "--settle", "3s"],
            "--settle: 3s is out of bounds",
        ),
        (
            &["run", "--root", root, "--log-level", "a=loud"],
            "log level",
        ),
        (
            &["run", "--root", root, "--config", text(&file)],
            "c.yaml:2: ",
        ),
        (
            &["status", "--root", root, "--config", "/nowhere"],
            "failed to read the config file /nowhere",
        ),
    ] {
        let (code, stderr) = code_and_stderr(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn every_fault_of_the_configuration_is_an_error_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    let lines = "logLevel: warning\nsetle: 1ms\napiAddress: 0.0.0.0:80\n";
    std::fs::write(&file, lines).unwrap();
    let args = ["run", "--root", text(dir.path()), "--config", text(&file)];
    let (code, stderr) = code_and_stderr(&args);
    assert_eq!(code, 2, "{stderr}");
    let starts = (1..=3).map(|line| format!("mirrorlet: {}:{line}: ", file.display()));
    for (line, start) in stderr.lines().zip(starts) {
        assert!(line.starts_with(&start), "{stderr}");
    }
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
}

#[test]
fn a_reader_that_has_gone_ends_a_command_silently() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.yaml");
    std::fs::write(&file, "kind: Pod\n").unwrap();
    for args in [
        &["validate", "-o", "json", text(&file)][..],
        &["validate", text(&file)],
        &["version", "-o", "json"],
        &["config", "schema"],
        &["config", "show", "-o", "json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
        let output = command.args(args).stdout(writer).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, "", "{args:?}");
    }
}

#[test]
fn no_agent_exits_with_3_and_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = text(dir.path());
    for command in [&["status"][..], &["logs", "web"], &["explain", "web"]] {
        let args: Vec<&str> = command.iter().copied().chain(["--root", root]).collect();
        let (code, stderr) = code_and_stderr(&args);
        assert_eq!(code, 3, "{stderr}");
        let words = format!("start one with: mirrorlet run --root {root}");
        assert!(stderr.contains(&words), "{stderr}");
    }
}

#[test]
fn a_second_agent_exits_with_1_and_names_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let _held = RootLock::acquire(dir.path()).unwrap();
    let (code, stderr) = code_and_stderr(&["run", "--root", text(dir.path())]);
    assert_eq!(code, 1, "{stderr}");
    let words = format!(
        "another mirrorlet (pid {}) is using {}",
        std::process::id(),
        dir.path().display()
    );
    // agent 8
    assert!(stderr.contains(&words), "{stderr}");
    assert_eq!(stderr.matches("another mirrorlet").count(), 1, "{stderr}");
    assert!(stderr.contains("systemctl stop mirrorlet"), "{stderr}");
    assert!(stderr.contains("with --root DIR"), "{stderr}");
}

#[test]
fn what_was_asked_for_goes_to_standard_output() {
    for args in [
        &["version"][..],
        &["version", "-o", "json"],
        &["completions", "bash"],
        &["completions", "fish"],
        &["completions", "zsh"],
        &["config", "schema"],
        &["config", "show"],
        &["config", "show", "-o", "json", "--settle", "5ms"],
        &["config", "show", "-o", "yaml"],
        &["--help"],
    ] {
        let output = mirrorlet(args);
        assert!(output.status.success(), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(!stdout.is_empty() && !stdout.contains('\u{1b}'), "{args:?}");
        if args.contains(&"json") {
            serde_json::from_str::<serde_json::Value>(&stdout).unwrap();
        }
    }
}

#[test]
fn an_import_writes_manifests_and_lists_what_they_leave_out() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let file = at("compose.yaml");
    let compose = "services: {web: {image: 'img:1', privileged: true, secrets: [s], ulimits: {core: 1}}}\n\
                   secrets: {s: {environment: IMPORT_SECRET}}\n";
    std::fs::write(&file, compose).unwrap();
    let import = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
        command.args(["import", "compose"]).args(args);
        command
            .env("IMPORT_SECRET", "hunter2")
            .current_dir(dir.path());
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, stdout, stderr) = import(&["compose.yaml"]);
    assert_eq!(code, 0, "{stderr}");
    let documents = serde_saphyr::from_multiple::<serde_json::Value>(&stdout).unwrap();
    let kinds: Vec<_> = documents
        .iter()
        .map(|d| d["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["Deployment", "Service", "Secret"]);
    let words = "warning: compose.yaml:1:66: services.web.ulimits: not carried over: ";
    // box 14
    assert!(stderr.contains(words), "{stderr}");
    let sum = "\n3 manifests of 1 service, 1 warning\n";
    assert!(stderr.ends_with(sum), "{stderr}");
    assert!(!stderr.contains("hunter2"));
    // A directory is a project; manifests are printed even where a warning fails the command.
    let (code, of_directory, _) = import(&[".", "--strict"]);
    assert_eq!((code, of_directory), (1, stdout));
    let (code, stdout, stderr) = import(&["compose.yaml", "-o", "out"]);
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    let name = dir
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .to_lowercase();
    let project: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c))
        .collect();
    let secrets = at("out").join(format!("{project}.secrets.yaml"));
    let found =
        std::fs::metadata(&secrets).unwrap_or_else(|e| panic!("{}: {e}", secrets.display()));
    assert_eq!(found.permissions().mode() & 0o077, 0);
    // An existing file stays, unless it is to be overwritten.
    std::fs::write(at("out/web.yaml"), "mine").unwrap();
    std::fs::remove_file(&secrets).unwrap();
    let (code, _, stderr) = import(&["compose.yaml", "-o", "out"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("out/web.yaml exists; use --force"),
        "{stderr}"
    );
    assert!(!secrets.exists());
    let (code, _, stderr) = import(&["compose.yaml", "-o", "out", "--force"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        std::fs::read_to_string(at("out/web.yaml"))
            .unwrap()
            .contains("kind: Deployment")
    );
    // A service that is gone leaves its file, which is named.
    let fewer = compose.replace("web:", "app:");
    std::fs::write(at("compose.yaml"), &fewer).unwrap();
    let (code, _, stderr) = import(&["compose.yaml", "-o", "out", "--force"]);
    // box 14
    assert!(
        code == 0 && stderr.contains("warning: out/web.yaml: left from an earlier import"),
        "{stderr}"
    );
    // A project without an active service makes no directory.
    let idle = "services: {web: {image: 'img:1', profiles: [p]}}\n";
    std::fs::write(at("idle.yaml"), idle).unwrap();
    let (code, _, stderr) = import(&["idle.yaml", "-o", "none"]);
    // box 14
    assert!(code == 0 && !stderr.contains("os error"), "{stderr}");
    assert!(!at("none").exists());
    let mut from_stdin = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
    let from_stdin = from_stdin.args(["import", "compose", "-"]);
    let from_stdin = from_stdin.stdin(std::fs::File::open(&file).unwrap());
    let printed = from_stdin.env("IMPORT_SECRET", "hunter2").output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    assert!(String::from_utf8_lossy(&printed.stdout).contains("kind: Deployment"));
    for (args, code, words) in [
        (&["gone.yaml"][..], 2, "gone.yaml does not exist"),
        (&["out"], 2, "has no compose.yaml"),
        (&["compose.yaml", "--force"], 2, "--output-dir"),
        (&["compose.yaml", "--env-file", "gone.env"], 1, "gone.env"),
    ] {
        let (found, stdout, stderr) = import(args);
        assert_eq!((found, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn the_override_file_of_a_directory_is_merged_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("compose.yaml"), "services: {web: {image: 'img:1'}}\n").unwrap();
    let over = "services: {web: {environment: {FROM: override}}}\n";
    std::fs::write(at("docker-compose.override.yml"), over).unwrap();
    let import = |path: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
            .args(["import", "compose", path])
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let note = "note: docker-compose.override.yml: ignored: only compose.yaml is named";
    let (stdout, stderr) = import(".");
    // box 14
    assert!(stdout.contains("value: override"), "{stdout}");
    assert!(!stderr.contains("docker-compose.override.yml"), "{stderr}");
    // As with docker compose -f.
    let (stdout, stderr) = import("compose.yaml");
    assert!(!stdout.contains("value: override"), "{stdout}");
    assert!(stderr.contains(note), "{stderr}");
    // Of several, Docker Compose reads one.
    std::fs::write(at("compose.override.yml"), "services: {}\n").unwrap();
    let (stdout, stderr) = import(".");
    assert!(!stdout.contains("value: override"), "{stdout}");
    let note = "note: docker-compose.override.yml: ignored: compose.override.yml in the same";
    assert!(stderr.contains(note), "{stderr}");
}

/// A program that runs; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// What the kernel says of it.
    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).unwrap()
    }
}

#[test]
fn the_approver_raises_its_limit_of_open_files_to_the_hard_one() {
    /// Longer than the start of a program takes.
    const PATIENCE: Duration = Duration::from_mins(2);
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(
        &kubeconfig,
        "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\n",
    )
    .unwrap();
    let approver = Command::new("sh")
        .args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\""])
        .args([env!("CARGO_BIN_EXE_mirrorlet"), "approve-certificates"])
        .args(["--service-account", "ns/agents"])
        .args(["--kubeconfig", text(&kubeconfig)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let approver = Running(approver.unwrap());
    let began = Instant::now();
    let (soft, hard) = loop {
        // Before that it is the shell.
        let is_approver = approver.proc("comm").trim() == "mirrorlet";
        let limits = approver.proc("limits");
        let of_files = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let mut of_files = of_files.unwrap().split_whitespace().map(str::to_owned);
        let (soft, hard) = (of_files.next().unwrap(), of_files.next().unwrap());
        if is_approver && soft == hard || began.elapsed() > PATIENCE {
            break (soft, hard);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // agent 10
    assert_eq!(soft, hard);
    // A machine that allows no more than the test begins with would show nothing.
    assert_ne!(soft, "256");
}
