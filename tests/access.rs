//! `mirrorlet exec`, `attach` and `port-forward` as people use them, on the real Engine: a whole
//! agent in this process, the program as its client.

#![cfg(feature = "daemon")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Bed, PATIENCE, TestAgent, eventually};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

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
        // Who ends before it has read everything is asserted on elsewhere.
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

/// A child that is killed when a test ends before it does.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guarded {
    /// Its exit code, once it has ended.
    async fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the command's end", || {
            status = self.0.try_wait().unwrap();
            status.map(drop)
        })
        .await;
        status.unwrap().code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_run_as_if_it_were_here() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let done = sh(
        &bed,
        "default/web",
        r"printf '\000\001\002no newline'; printf '\002err' >&2; exit 3",
    );
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    assert_eq!(done.stdout, b"\0\x01\x02no newline");
    assert_eq!(done.stderr, b"\x02err");
    assert_eq!(sh(&bed, "web", "true").status.code(), Some(0));
    assert_eq!(sh(&bed, "web", "no-such-program").status.code(), Some(127));
    // Its user, environment and directory are the container's; flags after -- are the command's.
    let done = ask(&bed, &["exec", "web", "-c", "c", "--", "env", "-i", "pwd"]);
    assert_eq!(text(&done.stdout), "/\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_entered_is_told_with_what_to_do() {
    let bed = Bed::new();
    let more = format!(
        "  - name: other\n    image: {}\n    command: [\"true\"]\n",
        common::IMAGE
    );
    bed.write("two.yaml", &pod("two", &more, SLEEPS));
    let agent = bed.agent().await;
    agent
        .until_container("two", "other", |c| c.exit_code == Some(0))
        .await;
    for (args, words) in [
        (
            &["exec", "two", "--", "true"][..],
            "name one of c, other with -c",
        ),
        (
            &["exec", "tow", "--", "true"],
            "did you mean default/two-box?",
        ),
        (
            &["exec", "two", "-c", "other", "--", "true"],
            "container \"other\" does not run: it ended with exit code 0; mirrorlet explain tells why",
        ),
        (
            &["exec", "two", "-c", "nope", "--", "true"],
            "has no container \"nope\"",
        ),
        (
            &["attach", "two", "-c", "c", "-i"],
            "its manifest does not say stdin: true",
        ),
    ] {
        let done = ask(&bed, args);
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        let said = text(&done.stderr);
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let long = "x".repeat(100_000);
    let done = ask(&bed, &["exec", "two", "-c", "c", "--", "echo", &long]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        text(&done.stderr).contains("too long"),
        "{}",
        text(&done.stderr)
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_reaches_its_end_and_the_answer_comes_after_it() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let input: Vec<u8> = (0..64 << 20).map(|i: u32| (i % 251) as u8).collect();
    let here = sha1(&input);
    let script = "sha1sum; echo after";
    let args = ["exec", "web", "-i", "--", "sh", "-c", script];
    let done = fed(&bed, &args, input);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), format!("{here}  -\nafter\n"));
    // Without -i there is no input; and who reads none of it does not hold us up.
    assert_eq!(ask(&bed, &["exec", "web", "--", "cat"]).stdout, b"");
    let args = ["exec", "web", "-i", "--", "sh", "-c", "exit 4"];
    let done = fed(&bed, &args, vec![0; 4 << 20]);
    assert_eq!(done.status.code(), Some(4));
    agent.stop().await;
}

fn sha1(bytes: &[u8]) -> String {
    let mut child = Command::new("sha1sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    text(&output.stdout)[..40].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gigabyte_comes_through_whole() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let makes = "yes mirrorlet | head -c 1000000000";
    let mut child = mirrorlet(&bed, &["exec", "web", "--", "sh", "-c", makes])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sum = Command::new("sha1sum")
        .stdin(child.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(child.wait().unwrap().success());
    let inside = sh(&bed, "web", &format!("{makes} | sha1sum"));
    assert_eq!(text(&sum.stdout)[..40], text(&inside.stdout)[..40]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_command() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let script = "trap '' HUP INT TERM; sleep 74747 & while :; do sleep 74747; done";
    let mut child = mirrorlet(&bed, &["exec", "web", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    eventually("the command", || {
        (processes(&bed, "c", "74747") > 1).then_some(())
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("its end", || {
        (processes(&bed, "c", "74747") == 0).then_some(())
    })
    .await;
    assert_eq!(processes(&bed, "c", "1000000"), 1, "the container runs on");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_ends_what_was_run_through_it() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let mut child = Guarded(
        mirrorlet(&bed, &["exec", "web", "--", "sleep", "75757"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    eventually("the command", || {
        (processes(&bed, "c", "75757") == 1).then_some(())
    })
    .await;
    agent.stop().await;
    assert_eq!(child.ended().await, Some(1));
    let mut said = String::new();
    let stderr = child.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("the agent broke off the session"), "{said}");
    eventually("its end", || {
        (processes(&bed, "c", "75757") == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_killed_ends_the_session() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let mut child = Guarded(
        mirrorlet(&bed, &["exec", "web", "--", "sleep", "76767"])
            .spawn()
            .unwrap(),
    );
    eventually("the command", || {
        (processes(&bed, "c", "76767") == 1).then_some(())
    })
    .await;
    bed.docker(&["kill", &bed.running_id("c")]);
    assert_eq!(child.ended().await, Some(137));
    agent.stop().await;
}

/// A terminal with a program on it.
struct Terminal {
    master: File,
    slave: File,
    child: Guarded,
    shown: Arc<Mutex<Vec<u8>>>,
    before: Termios,
}

impl Terminal {
    fn size(width: u16, height: u16) -> Winsize {
        Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        }
    }

    /// A terminal of 80 to 24, with a command of ours in its foreground.
    fn with(bed: &Bed, args: &[&str]) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        tcsetwinsize(&master, Self::size(80, 24)).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let ours = mirrorlet(bed, args);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(ours.get_program());
        command.args(ours.get_args());
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end());
        let child = Guarded(child.spawn().unwrap());
        let master = File::from(master);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reading, sink) = (master.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reading.read(&mut buffer) {
                sink.lock().unwrap().extend(&buffer[..read]);
            }
        });
        Self {
            master,
            slave,
            child,
            shown,
            before,
        }
    }

    fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn shows(&self, wanted: &[u8]) -> bool {
        let shown = self.shown.lock().unwrap();
        shown.windows(wanted.len()).any(|part| part == wanted)
    }

    async fn until_shown(&self, wanted: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while !self.shows(wanted) {
            let shown = text(&self.shown.lock().unwrap());
            assert!(
                Instant::now() < end,
                "waited for {:?} in {shown:?}",
                text(wanted)
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether the terminal is as it was before the program.
    fn is_restored(&self) -> bool {
        let now = tcgetattr(&self.slave).unwrap();
        now.local_modes == self.before.local_modes
            && now.input_modes == self.before.input_modes
            && now.output_modes == self.before.output_modes
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_byte_exact_at_once_and_follows_its_size() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let script = r"printf '\001\000\002at once'; while read line; do stty size; done; exit 5";
    let args = ["exec", "web", "-it", "--", "sh", "-c", script];
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"\x01\0\x02at once").await;
    assert!(!terminal.is_restored(), "it is raw meanwhile");
    terminal.types("\r");
    terminal.until_shown(b"24 80\r\n").await;
    tcsetwinsize(&terminal.master, Terminal::size(101, 33)).unwrap();
    // The news travels on its own way: asked again until it has come.
    let end = Instant::now() + PATIENCE;
    while !terminal.shows(b"33 101\r\n") {
        assert!(Instant::now() < end, "the size never changed");
        terminal.types("\r");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Ctrl-D goes to the other side, and is the end of input there.
    terminal.types("\x04");
    assert_eq!(terminal.child.ended().await, Some(5));
    assert!(terminal.is_restored());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_put_back_however_the_session_ends() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let args = [
        "exec",
        "web",
        "-it",
        "--",
        "sh",
        "-c",
        "echo ready; exec cat",
    ];
    // Ctrl-C is the command's.
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"ready").await;
    terminal.types("\x03");
    assert_eq!(terminal.child.ended().await, Some(130));
    assert!(terminal.is_restored());
    // A signal is ours.
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"ready").await;
    let pid = terminal.child.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(terminal.child.ended().await, Some(128 + 15));
    assert!(terminal.is_restored());
    // And the agent may go.
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"ready").await;
    agent.stop().await;
    assert_eq!(terminal.child.ended().await, Some(1));
    assert!(terminal.is_restored());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_none_is_told_and_done_without() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let args = ["exec", "web", "-it", "--", "sh", "-c", "cat; tty"];
    let done = fed(&bed, &args, b"piped\n".to_vec());
    assert_eq!(text(&done.stdout), "piped\nnot a tty\n");
    let said = text(&done.stderr);
    assert!(
        said.contains("Unable to use a TTY - input is not a terminal"),
        "{said}"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_shows_what_comes_and_the_containers_end() {
    let bed = Bed::new();
    let script =
        "echo before; until [ -e /go ]; do sleep 0.1; done; printf now; echo err >&2; exit 4";
    let agent = started(&bed, &pod("web", "", script), "web").await;
    let id = bed.running_id("c");
    let attached = mirrorlet(&bed, &["attach", "web"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The Engine counts who is attached by nothing that can be seen, so the event is waited for.
    eventually("the attachment", || {
        let since = [
            "events",
            "--since",
            "1m",
            "--until",
            "0s",
            "--filter",
            "event=attach",
        ];
        let filter = format!("container={id}");
        let events = bed.docker(&[&since[..], &["--filter", &filter]].concat());
        (!events.is_empty()).then_some(())
    })
    .await;
    assert!(sh(&bed, "web", "touch /go").status.success());
    let done = attached.wait_with_output().unwrap();
    assert_eq!(text(&done.stdout), "now");
    assert_eq!(text(&done.stderr), "err\n");
    assert_eq!(done.status.code(), Some(4));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_input_ends_once() {
    let bed = Bed::new();
    let more = "    stdin: true\n    stdinOnce: true\n";
    let manifest = pod("web", more, "cat; echo and its end");
    let agent = started(&bed, &manifest, "web").await;
    let done = fed(&bed, &["attach", "web", "-i"], b"\0\x01typed".to_vec());
    assert_eq!(done.stdout, b"\0\x01typedand its end\n");
    assert_eq!(done.status.code(), Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_to_a_terminal_is_being_there() {
    let bed = Bed::new();
    let more = "    stdin: true\n    tty: true\n";
    let agent = started(&bed, &pod("web", more, "exec sh"), "web").await;
    let mut terminal = Terminal::with(&bed, &["attach", "web", "-it"]);
    // Sent again until it is there: what is typed before is the local terminal's.
    let end = Instant::now() + PATIENCE;
    while !terminal.shows(b"42\r\n") {
        assert!(
            Instant::now() < end,
            "{:?}",
            text(&terminal.shown.lock().unwrap())
        );
        terminal.types("echo $((6*7))\r");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    terminal.types("stty size\r");
    terminal.until_shown(b"24 80\r\n").await;
    terminal.types("exit 9\r");
    assert_eq!(terminal.child.ended().await, Some(9));
    assert!(terminal.is_restored());
    agent.stop().await;
}

/// A running `port-forward` of one port of a pod.
struct Forward {
    _child: Guarded,
    local: u16,
    said: Arc<Mutex<String>>,
}

impl Forward {
    fn of(bed: &Bed, pod: &str, remote: u16) -> Self {
        let ports = format!(":{remote}");
        let mut child = mirrorlet(
            bed,
            &["port-forward", pod, &ports, "--address", "127.0.0.1"],
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let local = line
            .strip_prefix("Forwarding from 127.0.0.1:")
            .and_then(|rest| rest.split_once(" -> "))
            .unwrap_or_else(|| panic!("{line:?}"))
            .0
            .parse()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (sink, stderr) = (
            Arc::clone(&said),
            BufReader::new(child.stderr.take().unwrap()),
        );
        std::thread::spawn(move || for _ in stdout.lines() {});
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().unwrap().push_str(&line);
            }
        });
        Self {
            _child: Guarded(child),
            local,
            said,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.local)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends everything, ends, and reads everything.
    fn exchange(&self, sent: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = self.connect();
        let (mut write, sent) = (stream.try_clone()?, sent.to_vec());
        let writing = std::thread::spawn(move || {
            write.write_all(&sent)?;
            write.shutdown(Shutdown::Write)
        });
        let mut got = Vec::new();
        stream.read_to_end(&mut got)?;
        writing.join().unwrap()?;
        Ok(got)
    }

    fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        text(&got)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_on_loopback_addresses_of_both_families_are_reached() {
    let bed = Bed::new();
    let script = "echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6 || exit 1
        mkdir /4 /6; echo four > /4/x; echo six > /6/x
        httpd -p 127.0.0.1:8004 -h /4; exec httpd -f -p '[::1]:8006' -h /6";
    let manifest = pod("web", "    securityContext: {privileged: true}\n", script);
    let agent = started(&bed, &manifest, "web").await;
    eventually("both listeners", || {
        let listening = sh(&bed, "web", "netstat -ltn");
        let shown = text(&listening.stdout);
        (shown.contains(":8004") && shown.contains(":8006")).then_some(())
    })
    .await;
    for (port, word) in [(8004, "four\n"), (8006, "six\n")] {
        let got = Forward::of(&bed, "web", port).get("/x");
        assert!(got.ends_with(word), "{port}: {got}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_bytes_are_whole_both_ways_and_half_closed() {
    let bed = Bed::new();
    let script = "while :; do nc -l -p 7 -s 127.0.0.1 -e cat; done";
    let agent = started(&bed, &pod("web", "", script), "web").await;
    let listens = || {
        let shown = sh(&bed, "web", "netstat -ltn");
        text(&shown.stdout).contains(":7 ").then_some(())
    };
    eventually("the listener", listens).await;
    let forward = Forward::of(&bed, "web", 7);
    let sent: Vec<u8> = (0..32 << 20).map(|i: u32| (i % 253) as u8).collect();
    let got = forward.exchange(&sent).unwrap();
    assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_ends_its_own_connection_only() {
    let bed = Bed::new();
    let script = "mkdir /w; echo open > /w/x; until [ -e /go ]; do sleep 0.1; done; exec httpd -f -p 127.0.0.1:80 -h /w";
    let agent = started(&bed, &pod("web", "", script), "web").await;
    let forward = Forward::of(&bed, "web", 80);
    let refused = forward.exchange(b"GET /x HTTP/1.0\r\n\r\n");
    assert!(refused.is_err() || refused.unwrap().is_empty());
    eventually("words", || {
        let said = forward.said.lock().unwrap().clone();
        said.contains("failed to connect to localhost:80 inside of the pod")
            .then_some(())
    })
    .await;
    assert!(sh(&bed, "web", "touch /go").status.success());
    eventually("the listener", || {
        let shown = sh(&bed, "web", "netstat -ltn");
        text(&shown.stdout).contains(":80 ").then_some(())
    })
    .await;
    assert!(
        forward.get("/x").ends_with("open\n"),
        "the same forwarder goes on"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_a_pod_on_the_hosts_network_are_the_hosts() {
    let bed = Bed::new();
    let manifest = pod("web", "", SLEEPS).replace("spec:\n", "spec:\n  hostNetwork: true\n");
    let agent = started(&bed, &manifest, "web").await;
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"of the host").unwrap();
    });
    let forward = Forward::of(&bed, "web", port);
    assert_eq!(forward.exchange(b"").unwrap(), b"of the host");
    serving.join().unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_run_has_no_ports() {
    let bed = Bed::new();
    bed.write("over.yaml", &pod("over", "", "exit 0"));
    let agent = bed.agent().await;
    agent
        .until_pod("over", |pod| pod.phase == "Succeeded")
        .await;
    let forward = Forward::of(&bed, "over", 80);
    let refused = forward.exchange(b"x");
    assert!(refused.is_err() || refused.unwrap().is_empty());
    eventually("words", || {
        let said = forward.said.lock().unwrap().clone();
        said.contains("container not running (").then_some(())
    })
    .await;
    agent.stop().await;
}
