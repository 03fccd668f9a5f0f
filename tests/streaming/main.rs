//! The streams of exec, attach and port-forward with client-go at the other end, over SPDY and over
//! WebSockets: what it accepts, kubectl and API servers accept.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail loudly, as tests do"
)]

#[path = "../common/mod.rs"]
mod common;
#[expect(unreachable_pub, reason = "a module of this program alone")]
mod server;

use std::io;
use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use common::cluster::programs::stream_client;
use common::eventually;
use server::Server;

const CARRIERS: [&str; 2] = ["spdy", "websocket"];
const OUTPUTS: &str = "output=1&error=1";
const ALL: &str = "input=1&output=1&error=1";

/// The client's exit status when a stream failed, and not its command.
const FAILED: i32 = 250;

fn client(args: &[&str]) -> Command {
    let mut command = Command::new(stream_client());
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn run(args: &[&str]) -> Output {
    client(args).output().await.unwrap()
}

/// Runs with this standard input.
async fn run_with(args: &[&str], input: &[u8]) -> Output {
    let mut child = client(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = async { child.wait_with_output().await.unwrap() };
    let feed = async move {
        // One that takes no more has ended.
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    tokio::join!(output, feed).0
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_exit_codes_arrive() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        for code in [0, 1, 7, 137, 255] {
            let script = format!("echo out; echo err >&2; exit {code}");
            let url = server.command("exec", &script, OUTPUTS);
            let output = run(&["exec", "-url", &url, "-over", carrier]).await;
            let got = (
                text(&output.stdout),
                text(&output.stderr),
                output.status.code(),
            );
            let wanted = ("out\n".to_owned(), "err\n".to_owned(), Some(code));
            // A code of its own may not be taken for the client's.
            assert_ne!(code, FAILED);
            // streams 9
            assert_eq!(got, wanted, "{carrier}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_can_not_start_says_why() {
    let server = Server::start().await;
    let wanted =
        "Internal error occurred: error executing command in container: container not running";
    for carrier in CARRIERS {
        let url = server.command("exec", "refuse", OUTPUTS);
        let output = run(&["exec", "-url", &url, "-over", carrier]).await;
        assert_eq!(output.status.code(), Some(FAILED), "{carrier}");
        assert!(
            text(&output.stderr).contains(wanted),
            "{carrier}: {output:?}"
        );
    }
}

/// Upstream tells nobody how a container ended that was attached to.
#[tokio::test(flavor = "multi_thread")]
async fn an_attach_ends_well_whatever_the_container_did() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        let url = server.command("attach", "echo out; exit 7", OUTPUTS);
        let output = run(&["exec", "-url", &url, "-over", carrier]).await;
        assert_eq!(text(&output.stdout), "out\n", "{carrier}");
        assert_eq!(output.status.code(), Some(0), "{carrier}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_standard_input_arrives() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        let url = server.command("exec", "cat; echo end", ALL);
        let output = run_with(
            &["exec", "-url", &url, "-over", carrier, "-stdin"],
            b"hello\n",
        )
        .await;
        // streams 9
        assert_eq!(text(&output.stdout), "hello\nend\n", "{carrier}");
        assert_eq!(output.status.code(), Some(0), "{carrier}: {output:?}");
    }
}

/// The client still sends when the command has ended: what it said must not be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_may_end_before_its_input() {
    let server = Server::start().await;
    let input = vec![b'x'; 8 << 20];
    for carrier in CARRIERS {
        let url = server.command("exec", "head -c 5; seq 1 100000; exit 3", ALL);
        let args = ["exec", "-url", &url, "-over", carrier, "-stdin"];
        let output = run_with(&args, &input).await;
        let seq: Vec<String> = (1..=100_000).map(|at| format!("{at}\n")).collect();
        let seq = seq.concat();
        // streams 9
        assert!(
            text(&output.stdout) == format!("xxxxx{seq}"),
            "{carrier}: output was lost"
        );
        assert_eq!(
            output.status.code(),
            Some(3),
            "{carrier}: {}",
            text(&output.stderr)
        );
    }
}

/// Older clients, and what they are told on a plain error stream.
#[tokio::test(flavor = "multi_thread")]
async fn all_protocols_of_client_go_are_spoken() {
    let server = Server::start().await;
    for protocol in ["v4", "v3", "v2"] {
        let offered = format!("{protocol}.channel.k8s.io");
        let url = server.command("exec", "cat; echo err >&2; exit 7", ALL);
        let args = ["exec", "-url", &url, "-protocols", &offered, "-stdin"];
        let output = run_with(&args, b"in\n").await;
        // streams 9
        assert_eq!(text(&output.stdout), "in\n", "{protocol}");
        if protocol == "v4" {
            assert_eq!(
                (output.status.code(), text(&output.stderr).as_str()),
                (Some(7), "err\n")
            );
        } else {
            let told = "err\nerror executing remote command: command terminated with non-zero exit code: exit status 7\n";
            assert_eq!(text(&output.stderr), told, "{protocol}");
        }
    }
    // The first version knows no end of the input.
    let url = server.command("exec", "echo out; echo err >&2", OUTPUTS);
    let output = run(&["exec", "-url", &url, "-protocols", "channel.k8s.io"]).await;
    let got = (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    );
    assert_eq!(got, ("out\n".to_owned(), "err\n".to_owned(), Some(0)));
    // Over a WebSocket an older server is met by a newer client, too.
    for offered in ["v4.channel.k8s.io", "v5.channel.k8s.io,v4.channel.k8s.io"] {
        let url = server.command("exec", "echo out; exit 7", OUTPUTS);
        let args = [
            "exec",
            "-url",
            &url,
            "-over",
            "websocket",
            "-protocols",
            offered,
        ];
        let output = run(&args).await;
        assert_eq!(
            (text(&output.stdout).as_str(), output.status.code()),
            ("out\n", Some(7))
        );
    }
    let url = server.command("exec", "true", OUTPUTS);
    let output = run(&["exec", "-url", &url, "-protocols", "v9.channel.k8s.io"]).await;
    assert_eq!(output.status.code(), Some(FAILED));
    assert!(
        text(&output.stderr).contains("unable to negotiate protocol"),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_of_a_terminal_arrive() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        server.sizes.lock().unwrap().clear();
        // Ends when the test has seen the last size.
        let url = server.command("exec", "read line; echo $line", "input=1&output=1&tty=1");
        let sizes = "0x0,80x24,100x30";
        let args = [
            "exec", "-url", &url, "-over", carrier, "-stdin", "-tty", "-sizes", sizes,
        ];
        let mut child = client(&args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        eventually("the last size", || {
            let sizes = server.sizes.lock().unwrap();
            let last = sizes
                .last()
                .filter(|last| (last.width, last.height) == (100, 30));
            // streams 9
            last.map(|_| assert!(sizes.iter().all(|size| size.is_usable()), "{sizes:?}"))
        })
        .await;
        stdin.write_all(b"bye\n").await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        assert_eq!(text(&output.stdout), "bye\n", "{carrier}");
        assert_eq!(output.status.code(), Some(0), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn much_goes_both_ways_unchanged() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        let url = server.command("exec", "cat", "input=1&output=1");
        // More than any buffer or window on its way.
        let bytes = "150000000";
        let output = run(&["echo", "-url", &url, "-over", carrier, "-bytes", bytes]).await;
        // streams 9
        assert_eq!(text(&output.stdout), "the same\n", "{carrier}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_go_at_once() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        let url = server.command("exec", "cat", "input=1&output=1");
        let args = [
            "-url",
            &url,
            "-over",
            carrier,
            "-bytes",
            "262144",
            "-parallel",
            "100",
        ];
        let output = run(&[&["echo"], &args[..]].concat()).await;
        // streams 9
        assert_eq!(text(&output.stdout), "the same\n", "{carrier}: {output:?}");
    }
}

/// Starts a command that tells its process id first, and never ends; the id.
async fn started(args: &[&str], input: Stdio) -> (Child, String) {
    let mut child = client(args).stdin(input).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid = lines.next_line().await.unwrap().expect("a process id");
    (child, pid)
}

async fn until_gone(pid: &str) {
    let stat = format!("/proc/{pid}/stat");
    eventually("the command to be ended", || {
        // Its parent may not have reaped it yet.
        let state = std::fs::read_to_string(&stat).ok();
        let over = state.is_none_or(|stat| stat.rsplit(") ").next().unwrap().starts_with('Z'));
        over.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_gone_ends_its_command() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        let url = server.command("exec", "echo $$; exec sleep 1000", OUTPUTS);
        let args = ["exec", "-url", &url, "-over", carrier];
        let (mut child, pid) = started(&args, Stdio::null()).await;
        child.kill().await.unwrap();
        // streams 10
        until_gone(&pid).await;
    }
}

/// Nobody reads from a client whose input nobody takes; that it is gone is noticed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_gone_with_its_input_not_taken_ends_its_command() {
    let server = Server::start().await;
    for carrier in CARRIERS {
        let url = server.command("exec", "echo $$; exec sleep 1000", ALL);
        let args = ["exec", "-url", &url, "-over", carrier, "-stdin"];
        let zeroes = std::fs::File::open("/dev/zero").unwrap();
        let (mut child, pid) = started(&args, zeroes.into()).await;
        // Until the client can't send any more, as far as its kernel tells.
        let id = child.id().unwrap();
        let mut before = None;
        eventually("the client to be held up", || {
            let io = std::fs::read_to_string(format!("/proc/{id}/io")).unwrap();
            let sent = io
                .lines()
                .find(|line| line.starts_with("wchar:"))
                .map(str::to_owned);
            let held = sent == before && sent.is_some();
            before = sent;
            held.then_some(())
        })
        .await;
        child.kill().await.unwrap();
        // streams 10
        until_gone(&pid).await;
    }
}

/// A forwarder, and the local ports it listens on. Closing its standard input ends it.
async fn forwarder(url: &str, carrier: &str, ports: &[u16]) -> (Child, Vec<u16>) {
    let asked: Vec<_> = ports.iter().map(|port| format!("0:{port}")).collect();
    let args = [
        "forward",
        "-url",
        url,
        "-over",
        carrier,
        "-ports",
        &asked.join(","),
    ];
    let mut child = client(&args).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut local = Vec::new();
    for _ in ports {
        let line = lines.next_line().await.unwrap().expect("a port");
        local.push(line.parse().unwrap());
    }
    (child, local)
}

/// A server of one kind of connection.
async fn listener<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (u16, JoinSet<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(stream));
        }
    });
    (port, tasks)
}

/// Errors of a connection that the other side has closed.
const CLOSED: [io::ErrorKind; 3] = [
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::NotConnected,
];

/// Sends back what comes, once all of it has come.
async fn echo(mut stream: TcpStream) {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    stream.write_all(&all).await.unwrap();
}

async fn asked(port: u16, question: &[u8]) -> Vec<u8> {
    try_ask(port, question).await.unwrap()
}

async fn try_ask(port: u16, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut read, mut write) = stream.split();
    let mut answer = Vec::new();
    let ask = async {
        write.write_all(question).await?;
        // Half of the connection ends; the answer comes on the other.
        write.shutdown().await
    };
    tokio::try_join!(ask, read.read_to_end(&mut answer))?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_with_half_closes() {
    let server = Server::start().await;
    let (port, _echo) = listener(echo).await;
    let (greeting, _greet) = listener(async |mut stream: TcpStream| {
        stream.write_all(b"hello").await.unwrap();
    })
    .await;
    for carrier in CARRIERS {
        let (mut child, local) = forwarder(&server.forward(), carrier, &[port, greeting]).await;
        let question: Vec<u8> = (0..3_000_000_u32)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        assert!(asked(local[0], &question).await == question, "{carrier}");
        assert_eq!(asked(local[1], b"").await, b"hello", "{carrier}");
        // Many at once, on the one connection.
        let mut many = JoinSet::new();
        for at in 0..100_u8 {
            let local = local[0];
            many.spawn(async move {
                let question = vec![at; 20_000];
                // streams 9
                assert!(asked(local, &question).await == question, "connection {at}");
            });
        }
        many.join_all().await;
        drop(child.stdin.take());
        let ended = child.wait_with_output().await.unwrap();
        assert_eq!(text(&ended.stderr), "", "{carrier}");
        assert_eq!(ended.status.code(), Some(0), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_nobody_listens_on_is_told_as_an_error() {
    let server = Server::start().await;
    // Nobody listens on it, as nobody else is given it while it is bound.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = bound.local_addr().unwrap().port();
    for carrier in CARRIERS {
        let (child, local) = forwarder(&server.forward(), carrier, &[port]).await;
        match try_ask(local[0], b"hello").await {
            Ok(answer) => assert_eq!(answer, b"", "{carrier}"),
            // The client closes the connection, and may not have read the question by then.
            Err(error) => assert!(CLOSED.contains(&error.kind()), "{carrier}: {error}"),
        }
        let ended = child.wait_with_output().await.unwrap();
        let wanted = format!(
            "an error occurred forwarding {} -> {port}: error forwarding port {port}: ",
            local[0]
        );
        // streams 9
        assert!(
            text(&ended.stderr).contains(&wanted),
            "{carrier}: {ended:?}"
        );
    }
}
