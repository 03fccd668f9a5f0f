//! Ports of pods, from here.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Guarded, SLEEPS, ask, mirrorlet, pod, sh, started, text};
use crate::common::{Bed, PATIENCE, eventually};

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

/// Listeners on the loopback addresses of a pod's own network, one of each family.
fn listeners_within(bed: &Bed) -> [TcpListener; 2] {
    let sandbox = bed.running_id("POD");
    let pid = bed.inspect(&sandbox)["State"]["Pid"].to_string();
    // A thread of its own: it stays in the network that it enters.
    let made = std::thread::spawn(move || {
        let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        // The Engine switches IPv6 off in its containers, loopback included.
        std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0").unwrap();
        ["127.0.0.1:8004", "[::1]:8006"].map(|address| TcpListener::bind(address).unwrap())
    });
    made.join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_on_loopback_addresses_of_both_families_are_reached() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    for listener in listeners_within(&bed) {
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(address.to_string().as_bytes()).unwrap();
        });
        let got = Forward::of(&bed, "web", address.port()).exchange(b"");
        // docker 55
        assert_eq!(text(&got.unwrap()), address.to_string());
        serving.join().unwrap();
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_bytes_are_whole_both_ways_and_half_closed() {
    let bed = Bed::new();
    let script = "while :; do nc -ll -p 7 -e cat; done";
    let agent = started(&bed, &pod("web", "", script), "web").await;
    let listens = || {
        let shown = sh(&bed, "web", "netstat -ltn");
        text(&shown.stdout).contains(":7 ").then_some(())
    };
    eventually("the listener", listens).await;
    let forward = Forward::of(&bed, "web", 7);
    let sent: Vec<u8> = (0..32 << 20).map(|i: u32| (i % 253) as u8).collect();
    let got = forward.exchange(&sent).unwrap();
    // docker 55
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
        said.contains("failed to connect to localhost:80 inside the pod")
            .then_some(())
    })
    .await;
    assert!(sh(&bed, "web", "touch /go").status.success());
    eventually("the listener", || {
        let shown = sh(&bed, "web", "netstat -ltn");
        text(&shown.stdout).contains(":80 ").then_some(())
    })
    .await;
    // docker 55
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
    // docker 55
    assert_eq!(forward.exchange(b"").unwrap(), b"of the host");
    serving.join().unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_run_has_no_ports() {
    let bed = Bed::new();
    let waits = "until [ -e /tmp/end ]; do sleep 0.1; done";
    bed.write("over.yaml", &pod("over", "", waits));
    let agent = bed.agent().await;
    agent.until_running("over").await;
    let forward = Forward::of(&bed, "over", 80);
    bed.exec("c", "touch /tmp/end");
    agent
        .until_pod("over", |pod| pod.phase == "Succeeded")
        .await;
    // It is over a moment before its sandbox is stopped, and that is removed some time after.
    eventually("words", || {
        let refused = forward.exchange(b"x");
        // docker 55
        assert!(refused.is_err() || refused.unwrap().is_empty());
        let said = forward.said.lock().unwrap().clone();
        (said.contains("container not running (") || said.contains("has no sandbox")).then_some(())
    })
    .await;
    let refused = ask(&bed, &["port-forward", "over", ":80"]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("not running: its phase is Succeeded"),
        "{said}"
    );
    agent.stop().await;
}
