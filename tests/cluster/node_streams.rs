//! `kubectl exec`, `attach`, `port-forward` and `cp` on a pod of ours, through a real API server,
//! over SPDY and over WebSockets; and the same by kube-rs, which speaks WebSockets of its own kind.

use std::process::{Output, Stdio};

use crate::common::cluster::Cluster;
use crate::common::cluster::programs::version;
use crate::common::node::{NodeBed, is_ready};
use crate::common::terminal::Terminal;
use crate::common::{self, IMAGE, PATIENCE, eventually};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess, LogParams};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How kubectl is told which carrier to use, for commands and for ports.
const WEBSOCKETS: [&str; 2] = [
    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS",
    "KUBECTL_PORT_FORWARD_WEBSOCKETS",
];

/// Serves two ports: the one echoes, the other greets. Its main process repeats what it is told.
const SCRIPT: &str = "nc -ll -p 7000 -e cat & nc -ll -p 7001 -e echo hello & while read -r line; do echo heard $line; done; wait";

struct Kubectl<'a> {
    bed: &'a NodeBed,
    websockets: bool,
}

impl Kubectl<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let admin = self.bed.cluster.admin_kubeconfig();
        let mut command = Command::from(self.bed.cluster.kubectl_command(&admin));
        for name in WEBSOCKETS {
            command.env(name, self.websockets.to_string());
        }
        command
            .args(["-n", &self.bed.namespace])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().await.unwrap()
    }

    async fn run_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feed = async move {
            // One that takes no more has ended.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let output = async { child.wait_with_output().await.unwrap() };
        tokio::join!(output, feed).0
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pod(bed: &NodeBed, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": bed.namespace},
        "spec": {
            "nodeName": bed.node, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "stdin": true,
                "command": ["sh", "-c", SCRIPT],
            }],
        },
    })
}

/// Bytes that are not the same anywhere.
fn many() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..32 << 20).map(|_| next()).collect()
}

async fn until_port(child: &mut Child) -> u16 {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let line = lines.next_line().await.unwrap().expect("a local port");
    // Forwarding from 127.0.0.1:40001 -> 7000
    let port = line.split(" -> ").next().unwrap().rsplit(':').next();
    port.unwrap()
        .parse()
        .unwrap_or_else(|_| panic!("no port in {line:?}"))
}

/// Until the ports are listened on: in the words of the kernel, 7000 and 7001.
async fn until_served(kubectl: &Kubectl<'_>) {
    common::node::until("the servers in the pod", async || {
        let script = "cat /proc/net/tcp /proc/net/tcp6";
        let output = kubectl
            .run(&["exec", "web", "--", "sh", "-c", script])
            .await;
        let listening = text(&output.stdout);
        let ports = [":1B58 ", ":1B59 "];
        let served = ports.iter().all(|port| listening.contains(port));
        served.then_some(()).ok_or(listening)
    })
    .await;
}

/// API servers from 1.36 on believe that our Node speaks WebSockets, and pass them on as they are;
/// older ones make SPDY of them.
fn assert_passed_on(cluster: &Cluster) {
    let version = version();
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
    if minor < 36 {
        return;
    }
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
    let counted: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_websocket_streaming_requests_total{"))
        .collect();
    for way in ["exec", "attach", "portforward"] {
        let way = format!("subresource=\"{way}\"");
        let passed = |line: &&str| line.contains(&way) && line.contains("proxied_to_kubelet");
        assert!(counted.iter().any(passed), "{counted:#?}");
    }
    assert!(
        !counted.iter().any(|line| line.contains("translated")),
        "{counted:#?}"
    );
}

async fn streams_work(websockets: bool) {
    let bed = NodeBed::on(Cluster::shared().await, common::node::Identity::Node).await;
    let agent = bed.joined().await;
    bed.cluster.apply(&pod(&bed, "web").to_string());
    bed.until_pod("web", is_ready).await;
    let kubectl = Kubectl {
        bed: &bed,
        websockets,
    };

    for code in [0, 7, 137] {
        let script = format!("echo out; echo err >&2; exit {code}");
        let output = kubectl
            .run(&["exec", "web", "--", "sh", "-c", &script])
            .await;
        assert_eq!(text(&output.stdout), "out\n", "{output:?}");
        assert!(text(&output.stderr).starts_with("err\n"), "{output:?}");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let input = many();
    let output = kubectl
        .run_with(&["exec", "-i", "web", "--", "cat"], &input)
        .await;
    // streams 13
    assert!(
        output.stdout == input,
        "not the same: {}",
        text(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(0));
    let output = kubectl
        .run(&["exec", "web", "-c", "nobody", "--", "true"])
        .await;
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("nobody"), "{output:?}");

    until_served(&kubectl).await;

    // Copies go through tar in the container, both ways.
    let files = tempfile::TempDir::new().unwrap();
    let (there, back) = (files.path().join("there"), files.path().join("back"));
    std::fs::write(&there, &input).unwrap();
    let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
    let output = kubectl.run(&["cp", there, "web:/tmp/there"]).await;
    assert!(output.status.success(), "{output:?}");
    let output = kubectl.run(&["cp", "web:/tmp/there", back]).await;
    assert!(output.status.success(), "{output:?}");
    assert!(
        std::fs::read(back).unwrap() == input,
        "the copy is not the same"
    );

    // The main process hears us, and goes on without us.
    let mut attached = kubectl
        .command(&["attach", "-i", "-q", "web"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = attached.stdin.take().unwrap();
    let mut lines = BufReader::new(attached.stdout.take().unwrap()).lines();
    stdin.write_all(b"one\n").await.unwrap();
    assert_eq!(
        lines.next_line().await.unwrap().as_deref(),
        Some("heard one")
    );
    attached.kill().await.unwrap();

    for (port, question, wanted) in [
        ("7000", &b"echo me"[..], &b"echo me"[..]),
        ("7001", b"", b"hello\n"),
    ] {
        let asked = format!(":{port}");
        let mut forwarder = kubectl
            .command(&["port-forward", "pod/web", &asked, "--address", "127.0.0.1"])
            .spawn()
            .unwrap();
        let local = until_port(&mut forwarder).await;
        let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
        stream.write_all(question).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(text(&answer), text(wanted));
        forwarder.kill().await.unwrap();
    }

    // A terminal, and its size.
    let script = "echo begun; while read line; do stty size; done; exit 5";
    let args = ["exec", "-it", "web", "--", "sh", "-c", script];
    let mut terminal = Terminal::with(kubectl.command(&args).as_std());
    terminal.until_shown(b"begun\r\n").await;
    // A size travels on its own way, the first one too: asked again until it has come.
    eventually("the first size", || {
        terminal.types("\r");
        terminal.shows(b"24 80\r\n").then_some(())
    })
    .await;
    terminal.resize(101, 33);
    eventually("the new size", || {
        terminal.types("\r");
        terminal.shows(b"33 101\r\n").then_some(())
    })
    .await;
    // Ctrl-D goes to the other side, and is the end of input there.
    terminal.types("\x04");
    assert_eq!(
        terminal.child.ended().await,
        Some(5),
        "{}",
        terminal.screen()
    );

    // A client that is gone ends what it ran.
    let script = "echo begun; exec sleep 54321";
    let mut child = kubectl
        .command(&["exec", "web", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("begun"));
    child.kill().await.unwrap();
    eventually("the command to be ended", || {
        let ps = bed
            .cluster
            .try_kubectl(&["-n", &bed.namespace, "exec", "web", "--", "ps"]);
        ps.is_ok_and(|ps| !ps.contains("54321")).then_some(())
    })
    .await;
    assert_passed_on(&bed.cluster);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_streams_over_websockets() {
    let working = streams_work(true);
    Box::pin(working).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_streams_over_spdy() {
    let working = streams_work(false);
    Box::pin(working).await;
}

/// All that a process of kube-rs's says, once its input is given: standard output and error, and how
/// it ended.
async fn told(mut process: AttachedProcess, input: &[u8]) -> (Vec<u8>, String, Status) {
    let status = process.take_status().unwrap();
    let stdin = process.stdin();
    let (mut stdout, mut stderr) = (process.stdout().unwrap(), process.stderr().unwrap());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            stdin.write_all(input).await.unwrap();
            stdin.shutdown().await.unwrap();
        }
    };
    let (mut out, mut err) = (Vec::new(), String::new());
    let all = async {
        tokio::join!(
            feed,
            async { stdout.read_to_end(&mut out).await.unwrap() },
            async { stderr.read_to_string(&mut err).await.unwrap() },
            status,
        )
    };
    let (.., status) = tokio::time::timeout(PATIENCE, all).await.unwrap();
    (out, err, status.expect("a status"))
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_streams() {
    let bed = NodeBed::on(Cluster::shared().await, common::node::Identity::Node).await;
    let agent = bed.joined().await;
    bed.cluster.apply(&pod(&bed, "web").to_string());
    bed.until_pod("web", is_ready).await;
    let pods: Api<Pod> = Api::namespaced(bed.cluster.admin().await, &bed.namespace);

    // Its output, and its exit status.
    let quiet = AttachParams::default();
    for code in [0, 7, 137] {
        let script = format!("echo out; echo err >&2; exit {code}");
        let process = pods.exec("web", ["sh", "-c", &script], &quiet).await;
        let (out, err, status) = told(process.unwrap(), b"").await;
        assert_eq!((text(&out).as_str(), err.as_str()), ("out\n", "err\n"));
        let status = serde_json::to_value(status).unwrap();
        if code == 0 {
            assert_eq!(status["status"], "Success", "{status}");
        } else {
            assert_eq!(status["reason"], "NonZeroExitCode", "{status}");
            let cause = &status["details"]["causes"][0];
            assert_eq!(cause["message"], code.to_string(), "{status}");
        }
    }
    let refused = pods
        .exec(
            "web",
            ["true"],
            &AttachParams::default().container("nobody"),
        )
        .await
        .err()
        .expect("a container that is not there");
    assert!(refused.to_string().contains("nobody"), "{refused}");

    // The end of its input comes to a command, which goes on after it.
    let input = many();
    let input = &input[..10 << 20];
    let mut fed = AttachParams::default().stdin(true);
    // It takes 1 KiB at a time otherwise.
    (fed.max_stdin_buf_size, fed.max_stdout_buf_size) = (Some(64 << 10), Some(64 << 10));
    let script = ["sh", "-c", "cat; echo over >&2; exit 3"];
    let process = pods.exec("web", script, &fed).await.unwrap();
    let (out, err, status) = told(process, input).await;
    assert!(out == input, "{} bytes came back, not the same", out.len());
    assert_eq!(err, "over\n");
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));

    // The main process hears us, and its log has what it answered.
    let params = AttachParams::default().stdin(true).stderr(false);
    let mut attached = pods.attach("web", &params).await.unwrap();
    let mut stdin = attached.stdin().unwrap();
    let mut lines = BufReader::new(attached.stdout().unwrap()).lines();
    stdin.write_all(b"one\n").await.unwrap();
    let answer = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    assert_eq!(answer.unwrap().unwrap().as_deref(), Some("heard one"));
    drop(attached);
    common::node::until("the log of it", async || {
        let log = pods.logs("web", &LogParams::default()).await.unwrap();
        (log == "heard one\n").then_some(()).ok_or(log)
    })
    .await;

    // Two ports over one connection, and back what was sent.
    let admin = Kubectl {
        bed: &bed,
        websockets: true,
    };
    until_served(&admin).await;
    let mut forwarder = pods.portforward("web", &[7000, 7001]).await.unwrap();
    let (mut from, mut to) = tokio::io::split(forwarder.take_stream(7000).unwrap());
    let mut greeting = forwarder.take_stream(7001).unwrap();
    let mut back = vec![0; input.len()];
    let mut hello = [0; 6];
    let all = async {
        tokio::join!(
            async { to.write_all(input).await.unwrap() },
            async { from.read_exact(&mut back).await.unwrap() },
            async { greeting.read_exact(&mut hello).await.unwrap() },
        )
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    assert!(back == input, "what came back is not the same");
    assert_eq!(&hello, b"hello\n");
    drop((from, to, greeting));
    let ended = tokio::time::timeout(PATIENCE, forwarder.join()).await;
    ended.unwrap().unwrap();

    // A port that nobody listens on is told as that.
    let mut forwarder = pods.portforward("web", &[7002]).await.unwrap();
    let problem = forwarder.take_error(7002).unwrap();
    let problem = tokio::time::timeout(PATIENCE, problem).await.unwrap();
    let problem = problem.expect("a word of why");
    assert!(problem.contains("7002"), "{problem}");
    agent.stop().await;
}
