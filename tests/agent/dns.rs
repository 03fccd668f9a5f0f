//! Names of pods by DNS, under the program itself.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binary::{Running, ask, mirrorlet, until_running};
use crate::common::network::Network;
use crate::common::{Bed, IMAGE, eventually, own_loopback};
use mirrorlet_core::api::report::StatusReport;

/// The only name that it knows, and the address of that.
const KNOWN: (&str, [u8; 4]) = ("known.test", [192, 0, 2, 80]);
/// The pod of the DNS server.
const SERVER: &str = "mirrorlet-dns";

/// The address of the node's DNS server, in place of a real one.
fn upstream_address() -> String {
    own_loopback(154)
}

/// Answers queries for the one name that it knows, on a thread, until the process ends.
fn upstream() {
    let socket = UdpSocket::bind((upstream_address(), 53)).unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            let (name, kind) = question(&query[..length]);
            let is_known = name == KNOWN.0 && kind == 1;
            let mut answer = query[..2].to_vec();
            answer.extend([0x81, if name == KNOWN.0 { 0x80 } else { 0x83 }]);
            answer.extend([0, 1, 0, u8::from(is_known), 0, 0, 0, 0]);
            answer.extend(&query[12..12 + name.len() + 2 + 4]);
            if is_known {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(KNOWN.1);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// The name and the type of a query's question.
fn question(query: &[u8]) -> (String, u8) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
        at = end;
    }
    (labels.join("."), query[at + 2])
}

/// The program with its own copy, its network, port 53 of whose gateway is the test's own, and a file
/// that names the servers of the node.
struct Machine {
    bed: Bed,
    network: Network,
    resolv_conf: PathBuf,
}

impl Machine {
    fn new(number: u32) -> Self {
        let (bed, network) = (Bed::new(), Network::new(&format!("dns-{number}")));
        let resolv_conf = bed.path().join("resolv.conf");
        let servers = format!("nameserver {}\n", upstream_address());
        fs::write(&resolv_conf, servers).unwrap();
        Self {
            bed,
            network,
            resolv_conf,
        }
    }

    fn run(&self, program: &Path, args: &[&str]) -> Running {
        let of_bed = mirrorlet(&self.bed, &["run"]);
        let mut command = Command::new(program);
        command.args(of_bed.get_args());
        for (name, _) in of_bed.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        command
            .args(["--node-name", "box", "--docker", &self.bed.docker])
            .args(["--metrics-address", "none", "--network", &self.network.name])
            .arg("--resolv-conf")
            .arg(&self.resolv_conf)
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    fn status(&self) -> Option<StatusReport> {
        let told = ask(&self.bed, &["status", "-o", "json"]);
        serde_json::from_slice(&told.stdout).ok()
    }

    /// The addresses that the DNS server answers a container with.
    fn lookup(&self, container: &str, name: &str) -> Vec<String> {
        let asked = format!("nslookup -retry=1 -type=a {name} 2>&1; true");
        let said = self.bed.exec(container, &asked);
        let answer = said.split("\nName:").skip(1);
        let lines = answer.flat_map(str::lines);
        let found = lines.filter_map(|line| line.strip_prefix("Address: "));
        found.map(|address| address.trim().to_owned()).collect()
    }

    async fn until_found(&self, container: &str, name: &str, wanted: &[&str]) {
        let what = format!("{name} to lead to {wanted:?} in {container}");
        eventually(&what, || {
            (self.lookup(container, name) == wanted).then_some(())
        })
        .await;
    }
}

fn pod(name: &str, namespace: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}\n\
         spec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: {name}\n    image: {IMAGE}\n    \
         command: [\"sh\", \"-c\", \"trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done\"]\n"
    )
}

fn ip_of(report: &StatusReport, name: &str) -> String {
    let mut pods = report.pods.iter();
    let found = pods.find(|pod| pod.manifest_name == name).unwrap();
    found.ips.first().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_served_by_dns_without_an_agent_and_through_an_upgrade() {
    upstream();
    let own = Machine::new(1);
    let first = PathBuf::from(env!("CARGO_BIN_EXE_mirrorlet"));
    let agent = own.run(&first, &["--dns"]);
    own.bed.write("shop.yaml", &pod("shop", "default"));
    own.bed.write("client.yaml", &pod("client", "default"));
    own.bed.write("stranger.yaml", &pod("stranger", "other"));
    for name in ["shop", "client", "stranger", SERVER] {
        until_running(&own.bed, name).await;
    }
    let report = own.status().unwrap();
    let shop = ip_of(&report, "shop");
    let conf = own.bed.exec("client", "cat /etc/resolv.conf");
    // names 14
    assert!(
        conf.contains(&format!("nameserver {}\n", own.network.gateway)),
        "{conf}"
    );
    let full = "shop.default.svc.cluster.local";
    own.until_found("client", full, &[&shop]).await;
    own.until_found("stranger", full, &[&shop]).await;
    // A program that has no search list asks for the short name, which depends on the namespace.
    let bare = |container: &str| own.lookup(container, "shop.");
    // names 14
    assert_eq!(bare("client"), [&*shop]);
    // names 14
    assert_eq!(bare("stranger"), Vec::<String>::new());
    let said = own
        .bed
        .exec("stranger", "nslookup -retry=1 -type=a shop. 2>&1; true");
    assert!(said.contains("NXDOMAIN"), "{said}");
    // The node's server is asked for all others.
    own.until_found("client", KNOWN.0, &["192.0.2.80"]).await;

    // The agent's own manifest is none of the directory.
    let directory = own.bed.path().join("manifests");
    let plan = ask(&own.bed, &["plan", directory.to_str().unwrap()]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    // names 20
    assert!(
        plan.contains("0 to remove") && !plan.contains(SERVER),
        "{plan}"
    );

    drop(agent);
    // names 15
    assert_eq!(own.lookup("client", full), [&*shop]);

    // Another program with the same names: its server takes the place of the first without a gap.
    let second = own.bed.path().join("another-mirrorlet");
    fs::copy(&first, &second).unwrap();
    let count = "cd /tmp; while [ ! -e enough ]; do nslookup -retry=1 -type=a shop.default.svc.cluster.local >answer 2>&1 && grep -q 'Name:' answer || echo lost >>lost; echo asked >>asked; done";
    own.bed
        .exec("client", &format!("({count}) >/dev/null 2>&1 & true"));
    let server = |report: &StatusReport| {
        let mut pods = report.pods.iter();
        let found = pods.find(|pod| pod.manifest_name == SERVER && pod.ready == 1);
        found.map(|pod| pod.uid.clone())
    };
    let before = server(&report).unwrap();
    let agent = own.run(&second, &["--dns"]);
    eventually("the server of the other program", || {
        let report = own.status()?;
        let servers = report.pods.iter().filter(|pod| pod.manifest_name == SERVER);
        let is_alone = servers.count() == 1;
        server(&report).filter(|uid| *uid != before && is_alone)
    })
    .await;
    let told = own.bed.exec(
        "client",
        "touch /tmp/enough; cd /tmp; wc -l <asked; cat lost 2>/dev/null | wc -l",
    );
    let counts: Vec<u32> = told
        .lines()
        .map(|line| line.trim().parse().unwrap())
        .collect();
    // names 16
    assert!(
        counts[0] > 0 && counts[1] == 0,
        "asked and lost: {counts:?}"
    );
    drop(agent);

    // Without the flag the server stays as long as pods query it, and goes with the last of them.
    let agent = own.run(&second, &[]);
    own.bed.remove("shop.yaml");
    eventually("the shop to be gone", || {
        let report = own.status()?;
        let is_gone = !report.pods.iter().any(|pod| pod.manifest_name == "shop");
        (is_gone && server(&report).is_some()).then_some(())
    })
    .await;
    // names 17
    own.until_found("client", full, &[]).await;
    own.until_found("client", KNOWN.0, &["192.0.2.80"]).await;
    own.bed.remove("client.yaml");
    own.bed.remove("stranger.yaml");
    eventually("the clients to be gone", || {
        (own.status()?.pods.len() == 1).then_some(())
    })
    .await;
    drop(agent);
    let agent = own.run(&second, &[]);
    eventually("the server to be gone", || {
        let is_written = own.bed.path().join("dns/pod.yaml").exists();
        let is_gone = !is_written && own.status()?.pods.is_empty();
        // names 17
        is_gone.then_some(())
    })
    .await;
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dns_server_that_can_not_listen_is_told() {
    let own = Machine::new(2);
    let other = UdpSocket::bind((own.network.gateway.as_str(), 53)).unwrap();
    let agent = own.run(env!("CARGO_BIN_EXE_mirrorlet").as_ref(), &["--dns"]);
    let expected = format!("port 53 of {} is in use", own.network.gateway);
    eventually("the taken port to be told", || {
        let told = ask(&own.bed, &["status"]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        told.contains(&expected).then_some(())
    })
    .await;
    // Manifests are served all the same.
    own.bed.write("web.yaml", &pod("web", "default"));
    until_running(&own.bed, "web").await;
    own.bed.remove("web.yaml");
    eventually("the pod to be gone", || {
        own.status()?.pods.is_empty().then_some(())
    })
    .await;
    let still = String::from_utf8_lossy(&ask(&own.bed, &["status"]).stdout).into_owned();
    // names 18
    assert!(still.contains(&expected), "{still}");
    drop(other);
    until_running(&own.bed, SERVER).await;
    drop(agent);
}
