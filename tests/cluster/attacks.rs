//! Tenants attack the program itself, with as much memory as the chart gives it: it lives on, and
//! serves others.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, GetParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::client::ConfigExt as _;
use mirrorlet::config::node::ApiAccess;
use mirrorlet_core::api::keys;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::common::cluster::unique;
use crate::common::confined::Confined;
use crate::common::image::image_archive;
use crate::common::node::{NodeBed, QUIET, bound, is_ready, uid, until};
use crate::common::reaper;
use crate::common::{IMAGE, eventually, free_port, tell};

/// The limit of memory in the chart, in MiB.
const LIMIT_MIB: u64 = 256;
/// Links in a volume: their names alone don't fit into the limit.
const LINKS: u32 = 900_000;
/// The most memory that their removal may take beside what the agent has before, in MiB.
const REMOVAL_MIB: u64 = 32;
/// Pods that are refused, and the bytes of an annotation of each.
const REFUSED: usize = 320;
/// How many of them come at once.
const BATCH: usize = 32;
const ANNOTATION_BYTES: usize = 250_000;
/// Pods with long lists, and the length of each.
const LONG: usize = 12;
const VARIABLES: usize = 90_000;
/// Large Secrets, and how often one of them is mounted.
const SECRETS: usize = 64;
/// Pods as large as may be.
const LARGE: usize = 80;
/// Mirrors as large as may be.
const MIRRORS: usize = 160;
/// The size of a label of an image.
const LABEL_BYTES: usize = 20 << 20;
/// Connections with a message that never ends, and its bytes so far.
const CONNECTIONS: usize = 9;
const MESSAGE_BYTES: usize = 30 << 20;
/// Connections of strangers, the requests that each sends at once, and the bytes of a head: just what is
/// read of one. All heads together don't fit into the limit. A connection without a bound of ours would take
/// 200 requests, hyper's default.
const STRANGERS: usize = 100;
const HEADS: usize = 190;
const HEAD_BYTES: usize = 15 << 10;
/// How many answers each of them waits for, and how many all of them get at least: a third of what the limits
/// let through at once.
const ANSWERS: usize = 47;
const ANSWERED_MIN: usize = 500;
/// How long each of them waits for its connection and its answers.
const STRANGER_WAITS: Duration = Duration::from_mins(3);

struct Victim {
    bed: NodeBed,
    agent: Confined,
    port: u16,
    /// The container of a pod that has nothing to do with any attack.
    bystander: String,
}

impl Victim {
    async fn new() -> Self {
        let bed = NodeBed::new().await;
        let port = free_port();
        let resolved = bed.resolved().config;
        let ApiAccess::Kubeconfig(kubeconfig) = resolved.kubeconfig else {
            panic!("a bed without a kubeconfig");
        };
        let path = |path: PathBuf| path.display().to_string();
        let args = [
            ("--root", path(resolved.root)),
            ("--manifests", path(resolved.manifests)),
            ("--docker", resolved.docker),
            ("--node-name", bed.node.clone()),
            ("--kubeconfig", path(kubeconfig)),
            ("--client-ca-file", path(bed.cluster.authority())),
            ("--node-api-address", "127.0.0.1".to_owned()),
            ("--node-api-port", port.to_string()),
            ("--metrics-address", "none".to_owned()),
            ("--eviction-hard", "none".to_owned()),
        ];
        let args = args.map(|(flag, value)| format!("{flag}={value}"));
        let args: Vec<String> = std::iter::once("run".to_owned()).chain(args).collect();
        let program = env!("CARGO_BIN_EXE_mirrorlet");
        let agent = Confined::start(program, &args, bed.path(), LIMIT_MIB);
        bed.sleeper("bystander");
        bed.until_mirrored("bystander").await;
        let bystander = bed.running_id("bystander");
        Self {
            bed,
            agent,
            port,
            bystander,
        }
    }

    /// Fails unless the agent that was started is unharmed and serves others.
    fn assert_serves(&mut self, attack: &str) {
        self.agent.assert_unharmed();
        let served = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
            .args(["exec", "bystander", "--root"])
            .arg(self.bed.path())
            .args(["--", "echo", "served"])
            .output()
            .unwrap();
        // tenants R1
        assert_eq!(
            String::from_utf8_lossy(&served.stdout),
            "served\n",
            "{attack}"
        );
        assert_eq!(self.bed.running_id("bystander"), self.bystander, "{attack}");
        tell(&format!("after {attack}: {}", self.agent.memory()));
    }

    /// Applies a pod, and waits until it is ready.
    async fn ready(&self, pod: &Value) -> Value {
        self.bed.cluster.apply(&pod.to_string());
        let name = pod["metadata"]["name"].as_str().unwrap();
        self.bed.until_pod(name, is_ready).await
    }

    /// The directory of an emptyDir.
    fn volume(&self, pod: &Value, name: &str) -> PathBuf {
        let volumes = format!("pods/{}/volumes/kubernetes.io~empty-dir", uid(pod));
        self.bed.path().join(volumes).join(name)
    }

    /// Begins an exec in the pod `shell`, over TLS to the node API itself, and a message that
    /// doesn't end.
    fn unfinished(&self, number: usize) -> Unfinished {
        let taken = MESSAGE_BYTES - 1;
        let script = format!("head -c {taken} > /dev/null; touch /tmp/took-{number}; sleep 100000");
        let command = ["sh", "-c", &script].map(|word| ("command", word));
        let streams = [("input", "1"), ("output", "1")];
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(command.into_iter().chain(streams))
            .finish();
        let path = format!("/exec/{}/shell/shell?{query}", self.bed.namespace);
        let certificate = self.bed.cluster.authority().with_file_name("admin");
        let mut client = Command::new("openssl")
            .args(["s_client", "-quiet", "-connect"])
            .arg(format!("127.0.0.1:{}", self.port))
            .arg("-cert")
            .arg(certificate.with_extension("crt"))
            .arg("-key")
            .arg(certificate.with_extension("key"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl is installed");
        let stdin = client.stdin.as_mut().unwrap();
        write!(
            stdin,
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        let mut stdout = BufReader::new(client.stdout.take().unwrap());
        stdout.read_line(&mut answer).unwrap();
        assert!(answer.contains(" 101 "), "{answer}");
        let mut stdin = client.stdin.take().unwrap();
        let writing = std::thread::spawn(move || {
            /// The second byte of a fragment's head: that its payload is masked (by zeros), and
            /// that its length is in the next two bytes.
            const MASKED: u8 = 0x80;
            const TWO_BYTES: u8 = 0x7e;
            // Fragments of one message, none of which is the last; the first byte is the channel.
            let mut fragment = vec![0_u8; 32 << 10];
            let mut opcode = 2;
            for _ in 0..MESSAGE_BYTES / fragment.len() {
                let mut head = vec![opcode, MASKED | TWO_BYTES];
                head.extend(u16::try_from(fragment.len()).unwrap().to_be_bytes());
                head.extend([0; 4]);
                stdin.write_all(&head)?;
                stdin.write_all(&fragment)?;
                fragment[0] = b'x';
                opcode = 0;
            }
            stdin.flush()?;
            std::io::Result::Ok(stdin)
        });
        Unfinished {
            client,
            _writing: writing,
            _stdout: stdout,
        }
    }
}

/// A connection whose client waits with the rest of its message.
struct Unfinished {
    client: Child,
    _writing: std::thread::JoinHandle<std::io::Result<std::process::ChildStdin>>,
    _stdout: BufReader<std::process::ChildStdout>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// Sends requests with large heads on a connection of its own, each with another token, and returns how
/// many were read and answered in time, [`ANSWERS`] at most. None may be let in.
async fn send_heads(port: u16, stranger: usize) -> anyhow::Result<usize> {
    let until = Instant::now() + STRANGER_WAITS;
    let mut access = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    access.accept_invalid_certs = true;
    let mut tls = access.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let connecting = TcpStream::connect(("127.0.0.1", port));
    let stream = timeout_at(until, connecting).await??;
    let name = "127.0.0.1".to_owned().try_into()?;
    let connecting = TlsConnector::from(Arc::new(tls)).connect(name, stream);
    let stream = TokioIo::new(timeout_at(until, connecting).await??);
    let shaking = http2::handshake(TokioExecutor::new(), stream);
    let (client, connection) = timeout_at(until, shaking).await??;
    let driving = tokio::spawn(connection);
    let large = HeaderValue::from_str(&"x".repeat(HEAD_BYTES))?;
    let requests = (0..HEADS).map(|number| {
        let token = format!("Bearer forged-{stranger}-{number}");
        let request = Request::get("https://node/pods")
            .header("authorization", token)
            .header("x-large", large.clone())
            .body(Empty::<Bytes>::new())
            .unwrap();
        let mut client = client.clone();
        async move { timeout_at(until, client.send_request(request)).await }
    });
    // Before the server's settings come, more are sent than it takes: those fail.
    let answers = requests
        .collect::<FuturesUnordered<_>>()
        .filter_map(|answer| std::future::ready(answer.ok().and_then(Result::ok)));
    let answered: Vec<_> = answers.take(ANSWERS).collect().await;
    driving.abort();
    Ok(answered
        .iter()
        .inspect(|answer| assert!(!answer.status().is_success(), "{}", answer.status()))
        .filter(|answer| answer.status() != StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
        .count())
}

/// Has strangers send large heads all at once, and returns how many were read. A connection may be ended
/// before all of its own were.
async fn flood_with_heads(port: u16) -> usize {
    let mut sending = JoinSet::new();
    for stranger in 0..STRANGERS {
        sending.spawn(send_heads(port, stranger));
    }
    let answered = sending.join_all().await;
    answered.into_iter().flatten().sum()
}

/// Fills a directory with links of names as long as they may be.
fn link(dir: &Path) {
    let file = dir.join("file");
    std::fs::write(&file, "").unwrap();
    for number in 0..LINKS {
        std::fs::hard_link(&file, dir.join(format!("{number:0>255}"))).unwrap();
    }
}

/// Loads an image with a large label, and returns its name.
fn load_labelled(bed: &NodeBed) -> String {
    let image = format!("mirrorlet.test/{}:1", unique("labelled"));
    reaper::remember("image", &[&bed.docker, &image]);
    let config = json!({"Labels": {"of.image": "x".repeat(LABEL_BYTES)}});
    let archive = bed.path().join("labelled.tar");
    std::fs::write(&archive, image_archive(&image, &config).unwrap()).unwrap();
    bed.docker(&["load", "-i", archive.to_str().unwrap()]);
    std::fs::remove_file(archive).unwrap();
    image
}

/// Returns the metadata of a pod as the API server's cache has it; empty if the pod isn't there yet.
/// Without the cache, each look would read the whole object from etcd.
async fn cached(pods: &Api<Pod>, name: &str) -> ObjectMeta {
    let found = pods.get_metadata_opt_with(name, &GetParams::any()).await;
    found.unwrap().map(|pod| pod.metadata).unwrap_or_default()
}

/// Waits until a pod is as wanted whose object is so large that only one that has changed is looked at.
async fn until_large(pods: &Api<Pod>, name: &str, wanted: impl Fn(&Pod) -> bool) {
    let mut seen = None;
    until(&format!("pod {name}"), async || {
        let version = cached(pods, name).await.resource_version;
        if seen == version {
            return Err(version);
        }
        let pod = pods.get(name).await.unwrap();
        seen.clone_from(&version);
        wanted(&pod).then_some(()).ok_or(version)
    })
    .await;
}

/// Creates pods that the node refuses, each batch after the one before was.
async fn create_refused(victim: &mut Victim) {
    let bed = &victim.bed;
    let pods: Api<Pod> = Api::namespaced(bed.cluster.admin().await, &bed.namespace);
    let note = "x".repeat(ANNOTATION_BYTES);
    let rest = ListParams::default()
        .labels("is=refused")
        .fields("status.phase!=Failed")
        .limit(1);
    for batch in 0..REFUSED / BATCH {
        let mut creating = JoinSet::new();
        for number in 0..BATCH {
            let bed = &victim.bed;
            let mut pod = bound(bed, &format!("refused-{batch}-{number}"), IMAGE, QUIET);
            pod["metadata"]["labels"] = json!({"is": "refused"});
            pod["metadata"]["annotations"] = json!({"note": note});
            pod["spec"]["nodeSelector"] = json!({"no": "such"});
            let (pods, pod) = (pods.clone(), serde_json::from_value(pod).unwrap());
            creating.spawn(async move { pods.create(&PostParams::default(), &pod).await });
        }
        for created in creating.join_all().await {
            created.unwrap();
        }
        let agent = &mut victim.agent;
        until("all of them to be refused", async || {
            agent.assert_unharmed();
            let rest = pods.list_metadata(&rest).await.unwrap().items;
            rest.is_empty().then_some(()).ok_or(rest.len())
        })
        .await;
    }
}

/// Creates Secrets as large as may be, and a pod that mounts them all; then another pod that mounts one of
/// them many times.
async fn create_secrets(victim: &Victim) {
    let bed = &victim.bed;
    let admin = bed.cluster.admin().await;
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), &bed.namespace);
    let pods: Api<Pod> = Api::namespaced(admin, &bed.namespace);
    let value = "QUFB".repeat(340_000);
    for number in 0..SECRETS {
        let secret = json!({"metadata": {"name": format!("large-{number}")}, "data": {"k": value}});
        let secret = serde_json::from_value(secret).unwrap();
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
    }
    let mounting = |name: &str, secret: &dyn Fn(usize) -> usize| {
        let mut pod = bound(bed, name, IMAGE, QUIET);
        let all = 0..SECRETS;
        let volumes = all.clone().map(|n| {
            let source = json!({"secretName": format!("large-{}", secret(n))});
            json!({"name": format!("v{n}"), "secret": source})
        });
        pod["spec"]["volumes"] = volumes.collect();
        let mounts = all.map(|n| json!({"name": format!("v{n}"), "mountPath": format!("/v{n}")}));
        pod["spec"]["containers"][0]["volumeMounts"] = mounts.collect();
        pod
    };
    for (pod, words) in [
        (
            mounting("secrets", &|n| n),
            "refer to on this node would take",
        ),
        (mounting("copies", &|_| 0), "take more than 16 MiB"),
    ] {
        bed.cluster.apply(&pod.to_string());
        let name = pod["metadata"]["name"].as_str().unwrap();
        let uid = pods.get_metadata(name).await.unwrap().metadata.uid.unwrap();
        // tenants M9
        eventually("what is too much to be told", || {
            let mut events = bed.events(&uid).into_iter();
            events.find(|(reason, message)| reason == "FailedMount" && message.contains(words))
        })
        .await;
        bed.delete_pod(name, false).await;
    }
}

/// Creates pods with as many bytes as the API server stores, which wait for their image.
async fn create_large(victim: &mut Victim) {
    let bed = &victim.bed;
    let pods: Api<Pod> = Api::namespaced(bed.cluster.admin().await, &bed.namespace);
    for number in 0..LARGE {
        let mut pod = bound(
            bed,
            &format!("large-{number}"),
            "mirrorlet.test/none:1",
            QUIET,
        );
        pod["metadata"]["labels"] = json!({"is": "large"});
        pod["spec"]["containers"][0]["args"] = json!(["x".repeat(1_300_000)]);
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    // Behind them all, and of the same namespace: it is its turn once they are gone.
    bed.cluster
        .apply(&bound(bed, "behind", IMAGE, QUIET).to_string());
    until_large(&pods, "large-0", |pod| {
        let status = pod.status.as_ref();
        status.is_some_and(|status| status.container_statuses.is_some())
    })
    .await;
    victim.agent.assert_unharmed();
    for number in 0..LARGE {
        let name = format!("large-{number}");
        pods.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    let rest = ListParams::default().limit(1).labels("is=large");
    let agent = &mut victim.agent;
    until("all of them to be gone", async || {
        agent.assert_unharmed();
        let rest = pods.list_metadata(&rest).await.unwrap().items;
        rest.is_empty().then_some(()).ok_or(rest.len())
    })
    .await;
    // tenants M8
    bed.until_pod("behind", is_ready).await;
}

/// Creates mirrors that no agent made, with as many bytes as the API server stores, and has them stay.
async fn create_mirrors(victim: &mut Victim) {
    let bed = &victim.bed;
    let pods: Api<Pod> = Api::namespaced(bed.cluster.admin().await, &bed.namespace);
    for number in 0..MIRRORS {
        let mut pod = bound(bed, &format!("mirror-{number}"), IMAGE, QUIET);
        pod["metadata"]["annotations"] = json!({keys::CONFIG_MIRROR: "forged"});
        pod["metadata"]["finalizers"] = json!(["mirrorlet.dev/test"]);
        pod["spec"]["containers"][0]["args"] = json!(["x".repeat(1_300_000)]);
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let last = format!("mirror-{}", MIRRORS - 1);
    // tenants M5
    until("the last mirror to be deleted", async || {
        let metadata = cached(&pods, &last).await;
        let deleted = metadata.deletion_timestamp.is_some();
        deleted.then_some(()).ok_or(metadata.resource_version)
    })
    .await;
    victim.agent.assert_unharmed();
    // Behind all of them.
    bed.sleeper("own");
    bed.until_mirrored("own").await;
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    for number in 0..MIRRORS {
        let name = format!("mirror-{number}");
        let params = PatchParams::default();
        let freed = pods.patch_metadata(&name, &params, &free);
        freed.await.unwrap();
    }
}

/// Creates pods with as many variables as the API server stores.
async fn create_long(victim: &mut Victim) {
    let bed = &victim.bed;
    let pods: Api<Pod> = Api::namespaced(bed.cluster.admin().await, &bed.namespace);
    for number in 0..LONG {
        let mut pod = bound(bed, &format!("long-{number}"), IMAGE, QUIET);
        pod["metadata"]["labels"] = json!({"is": "long"});
        pod["spec"]["containers"][0]["env"] = json!(vec![json!({"name": "a"}); VARIABLES]);
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let failed = ListParams::default().labels("is=long");
    let failed = failed.fields("status.phase=Failed");
    let agent = &mut victim.agent;
    until("all of them to be refused", async || {
        agent.assert_unharmed();
        let failed = pods.list_metadata(&failed).await.unwrap().items.len();
        (failed == LONG).then_some(()).ok_or(failed)
    })
    .await;
    let last = pods.get(&format!("long-{}", LONG - 1)).await.unwrap();
    // tenants M8
    assert_eq!(last.status.unwrap().reason.as_deref(), Some("PodTooLarge"));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_as_large_as_may_be_leave_the_program_serving_others() {
    let mut victim = Victim::new().await;

    create_secrets(&victim).await;
    victim.assert_serves("Secrets that are large");

    create_large(&mut victim).await;
    victim.assert_serves("pods that are large");

    create_mirrors(&mut victim).await;
    victim.assert_serves("mirrors that no agent made");

    create_long(&mut victim).await;
    victim.assert_serves("pods with long lists");

    create_refused(&mut victim).await;
    victim.assert_serves("pods that are refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attack_of_a_tenant_leaves_the_program_serving_others() {
    let mut victim = Victim::new().await;
    let bed = &victim.bed;

    let mut links = bound(bed, "links", IMAGE, QUIET);
    links["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    links["spec"]["containers"][0]["volumeMounts"] = mounts;
    let links = victim.ready(&links).await;
    let dir = victim.volume(&links, "v");
    let linking = tokio::task::spawn_blocking({
        let dir = dir.clone();
        move || link(&dir)
    });

    // Five variables, each 56 times the one before.
    let mut greedy = bound(bed, "greedy", IMAGE, QUIET);
    let variable = |number: u32| {
        let value = match number {
            0 => "x".to_owned(),
            number => format!("$(V{})", number - 1).repeat(56),
        };
        json!({"name": format!("V{number}"), "value": value})
    };
    let variables: Vec<Value> = (0..=5).map(variable).collect();
    greedy["spec"]["containers"][0]["env"] = json!(variables);
    bed.cluster.apply(&greedy.to_string());
    bed.until_pod("greedy", |pod| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
    })
    .await;
    victim.assert_serves("variables that expand");

    // An image whose labels, in a list of ten of its containers, don't fit into the limit.
    let bed = &victim.bed;
    let image = load_labelled(bed);
    let owner = format!("{}={}", keys::OWNER, bed.owner().unwrap());
    // As an earlier release may have left them.
    let create = ["create", "--label", &owner, &image, "/busybox", "true"];
    let unknown: Vec<String> = (0..10).map(|_| bed.docker(&create)).collect();
    let mut heavy = bound(bed, "heavy", &image, QUIET);
    let one = heavy["spec"]["containers"][0].clone();
    let ten = (0..10).map(|number| {
        let mut container = one.clone();
        container["name"] = json!(format!("c{number}"));
        container
    });
    heavy["spec"]["containers"] = ten.collect();
    bed.cluster.apply(&heavy.to_string());
    bed.until_pod("heavy", |pod| {
        let all = pod["status"]["containerStatuses"].as_array();
        let waiting = |status: &Value| status["state"]["waiting"]["message"].is_string();
        all.is_some_and(|all| all.len() == 10 && all.iter().all(waiting))
    })
    .await;
    for id in &unknown {
        bed.docker(&["rm", id]);
    }
    bed.docker(&["rmi", &image]);
    victim.assert_serves("an image with large labels");

    let bed = &victim.bed;
    victim.ready(&bound(bed, "shell", IMAGE, QUIET)).await;
    let unfinished: Vec<Unfinished> = (0..CONNECTIONS).map(|n| victim.unfinished(n)).collect();
    let took = bed.inside("shell").join("tmp");
    eventually("all that was sent to arrive", || {
        let mut all = (0..CONNECTIONS).map(|n| took.join(format!("took-{n}")));
        all.all(|file| file.exists()).then_some(())
    })
    .await;
    victim.assert_serves("messages that don't end");
    drop(unfinished);

    let answered = flood_with_heads(victim.port).await;
    // tenants R1
    assert!(
        answered >= ANSWERED_MIN,
        "{answered} heads of strangers were read"
    );
    victim.assert_serves("large heads of strangers");

    // Larger than the limit many times over, and read when other pods come.
    let bed = &victim.bed;
    bed.exec("shell", "truncate -s 3G /etc/hosts");
    bed.sleeper("full");
    bed.until_mirrored("full").await;
    bed.exec("full", "truncate -s 3G /etc/hosts");
    bed.sleeper("later");
    bed.until_mirrored("later").await;
    let name = bed.name("later");
    eventually("names to be written", || {
        let hosts = bed.file("bystander", "/etc/hosts")?;
        hosts.contains(&name).then_some(())
    })
    .await;
    victim.assert_serves("hosts files that are filled");

    linking.await.unwrap();
    let before = victim.agent.forget_peak();
    victim.bed.delete_pod("links", false).await;
    victim.bed.until_pod_gone("links").await;
    eventually("the volume to be removed", || (!dir.exists()).then_some(())).await;
    let most = victim.agent.peak_mib();
    // tenants H2
    assert!(most < before + REMOVAL_MIB, "{before} MiB, then {most} MiB");
    victim.assert_serves("links in a volume");
}
