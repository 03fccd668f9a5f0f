//! A whole agent, in this process, on the real Engine: what the integration tests share.
//!
//! Every agent has its own root directory and so its own owner id: tests run side by side on one
//! Engine and assert only on what their own agent owns. What a test leaves behind is removed by
//! its label, however the test ends; what a program leaves that is killed, by its [`reaper`].
#![allow(
    unreachable_pub,
    dead_code,
    clippy::duration_suboptimal_units,
    reason = "helpers of tests; each test program uses another part of this"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]

pub mod alone;
pub mod cgroups;
pub mod cluster;
pub mod confined;
pub mod disk;
pub mod dockerd;
pub mod engine;
pub mod history;
pub mod http;
pub mod image;
pub mod intercept;
pub mod link;
pub mod network;
pub mod node;
pub mod proxy;
pub mod reaper;
pub mod recorder;
pub mod registry;
pub mod said;
pub mod terminal;
pub mod traffic;
pub mod writes;

use std::collections::{BTreeMap, HashMap};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mirrorlet::app::Agent;
use mirrorlet::config::{Ambient, Resolved, resolve};
use mirrorlet::server::NodeStats;
use mirrorlet::server::view::AgentView;
use mirrorlet_core::api::FullName;
use mirrorlet_core::api::report::{ContainerReport, PodReport, StatusReport};
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::SharedEngine;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_host::telemetry::journal::Kind;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use self::recorder::Recorder;

/// The image of the tests; made by `hack/images.sh` from local files.
pub const IMAGE: &str = "mirrorlet.test/busybox:1";
/// The same program under another tag and id.
pub const IMAGE_2: &str = "mirrorlet.test/busybox:2";
/// The same with kubectl in it.
pub const IMAGE_KUBECTL: &str = "mirrorlet.test/kubectl:1";
/// Longest wait for something that must come: reached only by a defect. On two cores with twenty
/// busy programs a command of Docker's takes seconds, and some tests wait for fifty of them.
pub const PATIENCE: Duration = Duration::from_mins(4);
/// Address of the Engine under test: the machine's own, or the one that `DOCKER_HOST` names.
pub fn docker_host() -> String {
    std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned())
}

/// The docker client, which gives up an Engine that doesn't answer: a test that hangs says nothing.
pub fn docker_client() -> Command {
    let mut command = Command::new("timeout");
    command.args(["300", "docker"]);
    command
}

/// A root directory with its manifests, and what an agent on it owns.
pub struct Bed {
    pub root: TempDir,
    pub docker: String,
    /// The agents that were started here, to be stopped before what they own is removed.
    agents: Mutex<Vec<Arc<Life>>>,
}

impl Default for Bed {
    fn default() -> Self {
        Self::new()
    }
}

impl Bed {
    /// A fresh bed. Fails where no Engine answers: nothing is tested without one.
    pub fn new() -> Self {
        Self::on(&docker_host())
    }

    /// A fresh bed on that Engine.
    pub fn on(docker: &str) -> Self {
        Self::at(docker, directory())
    }

    /// A fresh bed whose root has the same path in every run, which only one run on a machine can have.
    /// Waits until the path is free. Below /tmp, wherever other beds are.
    pub async fn at_fixed_path(name: &str) -> Self {
        let directory = eventually(&format!("/tmp/{name} to be free"), || {
            let mut directory = tempfile::Builder::new();
            directory.prefix(name).rand_bytes(0).tempdir_in("/tmp").ok()
        })
        .await;
        let (path, program) = (directory.path(), std::process::id().to_string());
        std::fs::write(path.join("program"), &program).unwrap();
        reaper::remember("reused", &[&path.display().to_string(), &program]);
        Self::at(&docker_host(), directory)
    }

    /// A fresh bed whose root is a file system of its own, in memory, of that size.
    pub fn with_disk(size: &str) -> Self {
        Self::on_disk(&format!("size={size}"))
    }

    /// A bed with its root on a file system of its own, of that many inodes.
    pub fn with_inodes(inodes: u32) -> Self {
        Self::on_disk(&format!("nr_inodes={inodes}"))
    }

    fn on_disk(limit: &str) -> Self {
        let root = directory();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("mode=0700,{limit}")])
            .arg("mirrorlet-test")
            .arg(root.path())
            .output()
            .unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        Self::at(&docker_host(), root)
    }

    fn at(docker: &str, root: TempDir) -> Self {
        reaper::remember("bed", &[docker, &root.path().display().to_string()]);
        std::fs::create_dir(root.path().join("manifests")).unwrap();
        let bed = Self {
            root,
            docker: docker.to_owned(),
            agents: Mutex::default(),
        };
        engine::get(docker, "/version", engine::PATIENCE).unwrap();
        bed
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// A UID for that pod which no other bed has: names of containers are made of it.
    pub fn uid(&self, pod: &str) -> String {
        let root = self.path().file_name().unwrap().to_string_lossy();
        format!("uid-{pod}-{}", root.rsplit('-').next().unwrap())
    }

    pub fn manifest(&self, file: &str) -> PathBuf {
        self.path().join("manifests").join(file)
    }

    /// Writes a manifest next door and renames it in.
    pub fn write(&self, file: &str, content: &str) {
        let next_door = self.path().join(format!("{file}.new"));
        std::fs::write(&next_door, content).unwrap();
        std::fs::rename(next_door, self.manifest(file)).unwrap();
    }

    /// Waits until that many pods have a healthy version to go back to.
    pub async fn until_healthy(&self, pods: usize) {
        eventually("healthy versions", || {
            let kept = std::fs::read_dir(self.path().join("rollouts")).ok()?;
            let texts =
                kept.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default());
            let healthy = texts.filter(|text| text.contains(r#""outcome":"healthy""#));
            (healthy.count() == pods).then_some(())
        })
        .await;
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.manifest(file)).unwrap();
    }

    /// The configuration of an agent on this bed.
    pub fn resolved(&self) -> Resolved {
        let mut resolved = resolve(&BTreeMap::new(), None, &Ambient::default()).unwrap();
        let config = &mut resolved.config;
        self.path().clone_into(&mut config.root);
        config.manifests = self.path().join("manifests");
        config.docker.clone_from(&self.docker);
        config.node_name = "box".into();
        config.metrics_address = None;
        config.node_api_port = None;
        config.api_address = None;
        // However full the machine is that tests run on.
        config.eviction_hard = Vec::new();
        resolved
    }

    /// The value of the ownership label; none before the first agent.
    pub fn owner(&self) -> Option<String> {
        Some(
            std::fs::read_to_string(self.path().join("owner"))
                .ok()?
                .trim()
                .to_owned(),
        )
    }

    /// Starts an agent over the real Engine.
    pub async fn agent(&self) -> TestAgent {
        let engine = Arc::new(BollardEngine::connect(&self.docker).unwrap());
        self.agent_over(engine).await
    }

    /// Starts an agent over the real Engine, and waits until these pods, by name, run.
    pub async fn agent_running(&self, manifests: &[(&str, String)]) -> TestAgent {
        let agent = self.agent().await;
        for (name, manifest) in manifests {
            self.write(&format!("{name}.yaml"), manifest);
        }
        for (name, _) in manifests {
            agent.until_running(name).await;
        }
        agent
    }

    /// Starts an agent over that Engine.
    pub async fn agent_over(&self, engine: SharedEngine) -> TestAgent {
        self.agent_with(self.resolved(), engine).await
    }

    /// Starts an agent with that configuration over the real Engine.
    pub async fn agent_as(&self, resolved: Resolved) -> TestAgent {
        let engine = Arc::new(BollardEngine::connect(&self.docker).unwrap());
        self.agent_with(resolved, engine).await
    }

    /// Starts an agent with that configuration.
    pub async fn agent_with(&self, resolved: Resolved, engine: SharedEngine) -> TestAgent {
        let cancel = CancellationToken::new();
        let end = Instant::now() + PATIENCE;
        let agent = loop {
            match Agent::start(resolved.clone(), Arc::clone(&engine), &cancel).await {
                Ok(agent) => break agent,
                // Programs started by other threads of this process hold a copy of a killed
                // agent's lock for the moment between fork and exec.
                Err(error) if error.to_string().contains("another mirrorlet") => {
                    assert!(Instant::now() < end, "{error:#}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error:#}"),
            }
        };
        let agent = TestAgent {
            view: Arc::clone(&agent.view),
            stats: Arc::clone(&agent.stats),
            telemetry: agent.telemetry.clone(),
            life: Arc::new(Life {
                agent: Mutex::new(Some(agent)),
                cancel,
                runtime: Handle::current(),
            }),
        };
        let mut agents = self.agents.lock().unwrap();
        agents.retain(|life| life.lasts());
        agents.push(Arc::clone(&agent.life));
        agent
    }

    /// Runs the docker client against this bed's Engine; fails when it fails.
    pub fn docker(&self, args: &[&str]) -> String {
        let output = docker_client()
            .arg("-H")
            .arg(&self.docker)
            .args(args)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "docker {args:?} failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let printed = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        match args {
            ["create", ..] | ["run", "-d", ..] => {
                reaper::remember("container", &[&self.docker, &printed]);
            }
            ["tag" | "commit" | "import" | "pull", .., image] => {
                reaper::remember("image", &[&self.docker, image]);
            }
            ["volume", "create", .., name] => {
                reaper::remember("volume", &[&self.docker, name]);
            }
            _ => {}
        }
        printed
    }

    /// Ids of all containers this bed's agents own, by name.
    pub fn containers(&self) -> HashMap<String, String> {
        self.list(true)
    }

    /// Ids of the running containers this bed's agents own, by name.
    pub fn running(&self) -> HashMap<String, String> {
        self.list(false)
    }

    /// Names of the containers this bed's agents own that were created and never started.
    pub fn created(&self) -> Vec<String> {
        let owner = self.owner().unwrap();
        engine::created(&self.docker, &owner, engine::PATIENCE).unwrap()
    }

    fn list(&self, all: bool) -> HashMap<String, String> {
        let Some(owner) = self.owner() else {
            return HashMap::new();
        };
        let listed = engine::containers(&self.docker, &owner, all, engine::PATIENCE);
        listed.unwrap().into_iter().collect()
    }

    /// Id of the running instance of a container, by its name in the spec.
    pub fn running_id(&self, container: &str) -> String {
        let prefix = format!("k8s_{container}_");
        let found: Vec<_> = self
            .running()
            .into_iter()
            .filter(|(name, _)| name.starts_with(&prefix))
            .collect();
        assert_eq!(
            found.len(),
            1,
            "running instances of {container}: {found:?}"
        );
        found.into_iter().next().unwrap().1
    }

    /// All instances of a container that are there, running or not, by restart count; with `POD`
    /// the sandboxes by attempt.
    pub fn instances(&self, container: &str) -> BTreeMap<u32, String> {
        let prefix = format!("k8s_{container}_");
        self.containers()
            .into_iter()
            .filter(|(name, _)| name.starts_with(&prefix))
            .map(|(name, id)| (name.rsplit('_').next().unwrap().parse().unwrap(), id))
            .collect()
    }

    /// Runs a shell command in the running instance of a container; its output, trimmed.
    pub fn exec(&self, container: &str, command: &str) -> String {
        self.docker(&["exec", &self.running_id(container), "sh", "-c", command])
    }

    /// Waits until the running instance of a container has set its trap for SIGTERM: before, as
    /// the first process of its namespace, it would not notice one.
    pub async fn until_traps(&self, container: &str) {
        let pid = self.inspect(&self.running_id(container))["State"]["Pid"].to_string();
        eventually(&format!("{container} to trap SIGTERM"), || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"))?;
            let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
            (caught & (1 << 14) != 0).then_some(())
        })
        .await;
    }

    /// Returns the host path of the root directory of the running instance of a container. An absolute
    /// symlink below it resolves on the host.
    pub fn inside(&self, container: &str) -> PathBuf {
        let pid = &self.inspect(&self.running_id(container))["State"]["Pid"];
        PathBuf::from(format!("/proc/{pid}/root"))
    }

    /// Returns the trimmed content of a file in the running instance of a container, if it is there.
    pub fn file(&self, container: &str, path: &str) -> Option<String> {
        let path = self.inside(container).join(path.trim_start_matches('/'));
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns the standard output of an instance that has no terminal, trimmed.
    pub fn output(&self, id: &str) -> String {
        let output = engine::output(&self.docker, id, engine::PATIENCE).unwrap();
        output.trim().to_owned()
    }

    /// Begins to record what happens to the containers of this bed's agents.
    pub fn record(&self) -> Recorder {
        Recorder::start(self)
    }

    /// All that the Engine says about a container, by id or name.
    pub fn inspect(&self, id: &str) -> serde_json::Value {
        self.look(id).unwrap()
    }

    /// The same, or `None` where there is no such container, or not yet: the Engine lists one that it is
    /// creating a moment before it finds it by id.
    pub fn look(&self, id: &str) -> Option<serde_json::Value> {
        let path = format!("/containers/{id}/json");
        engine::find(&self.docker, &path, engine::PATIENCE).unwrap()
    }
}

/// A new directory of a bed.
fn directory() -> TempDir {
    let mut directory = tempfile::Builder::new();
    directory.prefix("mirrorlet-test-").tempdir().unwrap()
}

/// A new directory that goes with the test, or with its program when that is killed.
pub fn tempdir() -> TempDir {
    let directory = directory();
    reaper::remember("dir", &[&directory.path().display().to_string()]);
    directory
}

impl Drop for Bed {
    fn drop(&mut self) {
        // One that still works would start anew what is removed here.
        for life in self.agents.lock().unwrap().drain(..) {
            life.end();
        }
        if let Some(owner) = self.owner() {
            // A create that was under way may be carried out after this: found when the program ends.
            reaper::remember("owner", &[&self.docker, &owner]);
            remove_containers(&self.docker, &owner);
            // They outlive containers and agents.
            let _ = mirrorlet_host::nat::remove(&mirrorlet_docker::host_ports_table(&owner));
        }
        unmount_all(self.path());
    }
}

/// Removes what an owner has on that Engine: its containers, then the volumes of its claims, and the
/// cgroups of its pods.
fn remove_containers(docker: &str, owner: &str) {
    /// An Engine that a failing test leaves stopped must not hang its report.
    const ANSWER: Duration = Duration::from_secs(30);
    /// Containers at a time, as many as the docker client removes.
    const AT_A_TIME: usize = 50;
    let listed = engine::containers(docker, owner, true, ANSWER).unwrap_or_default();
    for some in listed.chunks(AT_A_TIME) {
        std::thread::scope(|scope| {
            for (_, id) in some {
                let path = format!("/containers/{id}?force=1&v=1");
                scope.spawn(move || engine::delete(docker, &path, ANSWER));
            }
        });
    }
    for volume in engine::volumes(docker, owner, ANSWER).unwrap_or_default() {
        let _ = engine::delete(docker, &format!("/volumes/{volume}"), ANSWER);
    }
    cgroups::remove(listed.iter().filter_map(|(name, _)| cgroups::pod_uid(name)));
}

/// Unmounts `root` and what is mounted below it, so that the directory can be removed. Files that are
/// still open in there, of an agent that a failing test leaves, don't keep it.
pub fn unmount_all(root: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // The last mount is unmounted first.
    for target in mounts
        .lines()
        .rev()
        .filter_map(|line| line.split(' ').nth(1))
    {
        if Path::new(target).starts_with(root) {
            let _ = Command::new("umount").args(["--lazy", target]).output();
        }
    }
}

/// A line for each pod that says why it isn't as it should be.
fn explained(report: &StatusReport) -> Vec<String> {
    let pods = report.pods.iter().filter(|pod| !pod.message.is_empty());
    pods.map(|pod| format!("{}: {}: {}", pod.name, pod.status, pod.message))
        .collect()
}

/// The life of an agent: the test ends it, or the bed when the test doesn't.
struct Life {
    agent: Mutex<Option<Agent>>,
    cancel: CancellationToken,
    runtime: Handle,
}

impl Life {
    /// Longest wait for an agent to end: its own bound, many times.
    const END: Duration = Duration::from_secs(20);

    fn take(&self) -> Option<Agent> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.take()
    }

    fn lasts(&self) -> bool {
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.is_some()
    }

    /// Stops the agent, unless it has been, and waits for its end.
    fn end(&self) {
        self.cancel.cancel();
        let Some(mut agent) = self.take() else { return };
        let runtime = self.runtime.clone();
        let (ended, end) = std::sync::mpsc::channel();
        // This may be a thread of that runtime, which must not wait for a task.
        std::thread::spawn(move || {
            runtime.block_on(agent.drain());
            drop(agent);
            let _ = ended.send(());
        });
        let _ = end.recv_timeout(Self::END);
    }
}

/// A running agent.
pub struct TestAgent {
    view: Arc<dyn AgentView>,
    stats: Arc<dyn NodeStats>,
    telemetry: Telemetry,
    life: Arc<Life>,
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        // The bed waits for its end. One that was killed is told nothing.
        if self.life.lasts() {
            self.life.cancel.cancel();
        }
    }
}

impl TestAgent {
    pub fn status(&self) -> StatusReport {
        self.view.status()
    }

    pub fn view(&self) -> Arc<dyn AgentView> {
        Arc::clone(&self.view)
    }

    /// The pod of that manifest name, if there is one.
    pub fn pod(&self, name: &str) -> Option<PodReport> {
        self.status()
            .pods
            .into_iter()
            .find(|pod| pod.manifest_name == name)
    }

    /// Waits until the report is as wanted, and returns it.
    pub async fn until(&self, what: &str, wanted: impl Fn(&StatusReport) -> bool) -> StatusReport {
        let mut changed = self.view.changed();
        let end = Instant::now() + PATIENCE;
        loop {
            changed.borrow_and_update();
            let report = self.status();
            if wanted(&report) {
                return report;
            }
            assert!(
                Instant::now() < end,
                "{}\nwaited in vain for: {what}\n{}",
                serde_json::to_string_pretty(&report).unwrap(),
                explained(&report).join("\n")
            );
            // A change is news; the pause covers what the report derives from elsewhere.
            let _ = tokio::time::timeout(Duration::from_millis(200), changed.changed()).await;
        }
    }

    /// Waits until the pod of that manifest name is as wanted, and returns it.
    pub async fn until_pod(&self, name: &str, wanted: impl Fn(&PodReport) -> bool) -> PodReport {
        let found = |report: &StatusReport| {
            report
                .pods
                .iter()
                .find(|pod| pod.manifest_name == name && wanted(pod))
                .cloned()
        };
        let report = self
            .until(&format!("pod {name}"), |report| found(report).is_some())
            .await;
        found(&report).unwrap()
    }

    /// Waits until every container of the pod is ready.
    pub async fn until_running(&self, name: &str) -> PodReport {
        self.until_pod(name, |pod| {
            pod.status == "Running" && pod.ready == pod.containers_total && pod.ready > 0
        })
        .await
    }

    /// Waits until the container of the pod is as wanted, and returns it.
    pub async fn until_container(
        &self,
        pod: &str,
        container: &str,
        wanted: impl Fn(&ContainerReport) -> bool,
    ) -> ContainerReport {
        let found = |pod: &PodReport| {
            let is_it = |c: &&ContainerReport| c.name == container && wanted(c);
            pod.containers.iter().find(is_it).cloned()
        };
        let pod = self.until_pod(pod, |pod| found(pod).is_some()).await;
        found(&pod).unwrap()
    }

    /// The events of a pod so far, each as `reason message`, by its name with the node's suffix.
    pub fn events(&self, pod: &str) -> Vec<String> {
        let journal = &self.telemetry.journal;
        let story = journal.story(&FullName::new(pod, "default"));
        let told = story.iter().filter(|entry| entry.kind != Kind::Trace);
        told.map(|entry| format!("{} {}", entry.reason, entry.message))
            .collect()
    }

    /// Waits until the pod has had that event.
    pub async fn until_event(&self, pod: &str, event: &str) {
        eventually(&format!("the event {event:?} of {pod}"), || {
            let events = self.events(pod);
            events.iter().any(|told| told == event).then_some(())
        })
        .await;
    }

    /// Returns the usage of its pods and its machine.
    pub fn stats(&self) -> Arc<dyn NodeStats> {
        Arc::clone(&self.stats)
    }

    /// Returns the metrics, as they are served.
    pub fn metrics(&self) -> String {
        self.telemetry.metrics.encode()
    }

    /// Waits until no pod of that manifest name is left.
    pub async fn until_gone(&self, name: &str) {
        self.until(&format!("{name} to be gone"), |report| {
            report.pods.iter().all(|pod| pod.manifest_name != name)
        })
        .await;
    }

    /// Stops the agent as SIGTERM does: containers keep running.
    pub async fn stop(self) {
        self.life.cancel.cancel();
        if let Some(mut agent) = self.life.take() {
            agent.drain().await;
        }
    }

    /// Ends the agent as `kill -9` does: no task of it gets another word in.
    pub fn kill(self) {
        drop(self.life.take());
    }
}

/// A manifest of one container that runs until it is told to stop.
pub fn sleeper(name: &str) -> String {
    sleeper_of(name, IMAGE)
}

/// The same with another image.
pub fn sleeper_of(name: &str, image: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: {name}
    image: {image}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"]
"#
    )
}

/// Time until the next look at something that must come, after one that took `look`. Looks that cost
/// much, such as those by programs, leave most of the processors to what is waited for.
pub fn pause_after(look: Duration) -> Duration {
    (3 * look).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

/// Waits until `found` finds something.
pub async fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain for: {what}");
        tokio::time::sleep(pause_after(began.elapsed())).await;
    }
}

/// The answer of the server at `at` to a request for `/x`, on a connection of its own.
///
/// A connection that waits during an edit is tried again by the kernel after 1, 3, 7, 15 s: on a
/// busy machine that is long, and how long is not a test's matter.
pub fn ask(at: std::net::SocketAddr) -> Result<String, String> {
    http::ask(at, PATIENCE)
}

/// A loopback address that ends in `last`, and that other runs of the tests on this machine don't have.
pub fn own_loopback(last: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{high}.{low}.{last}")
}

/// A port of the host that nobody has, and that nobody is given who doesn't ask for it by number:
/// one below those that the kernel hands out by itself.
pub fn free_port() -> u16 {
    /// The first of them, and how many there are.
    const FIRST: u16 = 20_000;
    const PORTS: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs that run side by side begin in different places.
    let mine = u16::try_from(std::process::id() % 97).unwrap() * 101;
    loop {
        let port = FIRST + (mine + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// Prints a figure that a passing test is asked for: past the test runner's capture.
pub fn tell(figure: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{figure}");
}
