//! Looks at a machine made of files.

use std::fs;
use std::path::Path;

use futures::StreamExt;

use super::look::{Asked, UsageReader};
use super::*;
use crate::store::board::{Phase, PodView, board};
use mirrorlet_core::api::{ContainerId, FullName, PodUid};
use mirrorlet_core::observed::{ContainerState, ContainerStatus, PodStatus, Role, SandboxStatus};

/// An Engine whose machine's files are seen below that directory.
struct Engine {
    host: PathBuf,
}

#[async_trait]
impl EngineDisk for Engine {
    async fn dirs(&self) -> Option<EngineDirs> {
        None
    }

    fn seen(&self, path: &Path) -> Option<PathBuf> {
        Some(self.host.join(path.strip_prefix("/").ok()?))
    }

    fn image_bytes(&self) -> Option<u64> {
        None
    }
}

/// A machine with version 2, and what is looked at it with.
struct Machine {
    dir: tempfile::TempDir,
    options: Arc<StatsOptions>,
    disks: Disks,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Arc::new(StatsOptions {
            node_name: "box".to_owned(),
            root: dir.path().join("root"),
            cgroup_root: "kubepods".to_owned(),
            sandbox_image: "pause".to_owned(),
            engine_name: |container, pod, _, attempt| format!("{container}_{}_{attempt}", pod.name),
            engine: Arc::new(Engine {
                host: dir.path().join("host"),
            }),
            now: || at(0),
            kernel: Kernel {
                proc: dir.path().join("proc"),
                cgroup: dir.path().join("cgroup"),
            },
        });
        let machine = Self {
            dir,
            options,
            disks: Disks::new(|| at(0)),
        };
        machine.write("cgroup/cgroup.controllers", "cpu memory\n");
        machine.write("proc/stat", "cpu  100 0 100 0 0 0 0 0 0 0\nbtime 1000\n");
        machine.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\n");
        machine.write("root/x", "");
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A cgroup at that path, which has used so many microseconds.
    fn cgroup(&self, path: &str, micros: u64, pid: u32) {
        let write = |file: &str, text: &str| self.write(&format!("cgroup/{path}/{file}"), text);
        write("cpu.stat", &format!("usage_usec {micros}\n"));
        write("memory.current", "5000\n");
        write("memory.stat", "anon 1000\ninactive_file 2000\n");
        write("memory.max", "max\n");
        write("cgroup.procs", &format!("{pid}\n{}\n", pid + 1));
        let mounts = "1 1 0:1 / / rw - overlay overlay rw,upperdir=/upper\n";
        self.write(&format!("proc/{pid}/mountinfo"), mounts);
        let header = "a\nb\n";
        let net_dev = format!("{header}  eth0: {pid} 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n");
        self.write(&format!("proc/{pid}/net/dev"), &net_dev);
    }

    fn looker(&self) -> UsageReader {
        UsageReader::new(&self.options, FRESH)
    }

    fn look(
        &self,
        looker: &mut UsageReader,
        scope: Scope,
        second: i64,
        views: &[PodView],
    ) -> Result<Reading, StatsError> {
        let asked = Asked {
            options: &self.options,
            disks: &self.disks,
            scope,
            engine_dirs: None,
            now: at(second),
        };
        looker.look(&asked, views)
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.dir.path().join(path)).unwrap();
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_763_700_000 + second).unwrap()
}

fn id(letter: char) -> String {
    letter.to_string().repeat(64)
}

fn container(name: &str, letter: char, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        by_hand: None,
        id: ContainerId {
            kind: "docker".into(),
            id: id(letter).into(),
        },
        name: name.into(),
        role: Role::App,
        state,
        created_at: at(-10),
        started_at: Some(at(-9)),
        finished_at: None,
        exit_code: None,
        image: "web:1".into(),
        image_id: "".into(),
        hash: mirrorlet_core::observed::ContainerHash(1),
        restart_count: 3,
        pod_restarts: 0,
        reason: "".into(),
        message: "".into(),
    }
}

fn view(containers: Vec<ContainerStatus>) -> PodView {
    let full_name = FullName::new("web", "shop");
    let uid = PodUid::from("u");
    let sandbox = SandboxStatus {
        by_hand: None,
        id: ContainerId {
            kind: "docker".into(),
            id: id('a').into(),
        },
        attempt: 1,
        state: ContainerState::Running,
        created_at: at(-20),
        pod_started_at: None,
        host_network: false,
        ips: Vec::new(),
    };
    PodView {
        uid: uid.clone(),
        full_name: full_name.clone(),
        pod: None,
        phase: Phase::Syncing,
        status: None,
        observed: Arc::new(PodStatus {
            uid,
            full_name,
            ips: Vec::new(),
            containers,
            sandboxes: vec![sandbox],
        }),
        error: "".into(),
        failed_probe: None,
        awaits: Arc::default(),
    }
}

#[test]
fn what_was_read_is_told_again_for_a_while_and_gives_a_rate() {
    let machine = Machine::new();
    let slice = "kubepods.slice/kubepods-podu.slice";
    let place = |letter| format!("{slice}/docker-{}.scope", id(letter));
    machine.cgroup(&place('a'), 10, 5);
    machine.cgroup(&place('b'), 1_000_000, 7);
    machine.cgroup(slice, 1_000_010, 0);
    let views = [view(vec![
        container("web", 'b', ContainerState::Running),
        container("web", 'c', ContainerState::Exited),
    ])];
    let mut looker = machine.looker();
    let mut look = |second, scope| machine.look(&mut looker, scope, second, &views).unwrap();

    let first = look(0, Scope::CpuAndMemory);
    let [pod] = &first.pods[..] else {
        panic!("{first:?}")
    };
    let [web] = &pod.containers[..] else {
        panic!("{pod:?}")
    };
    assert_eq!(web.usage.cpu.unwrap().usage_nanos, 1_000_000_000);
    assert_eq!(web.usage.memory.unwrap().working_set, 3000);
    assert_eq!(web.usage.nano_cores, None);
    assert_eq!(web.cgroup, format!("/{}", place('b')));
    // A pod's own cgroup knows more than the sum.
    assert_eq!(pod.cgroup.as_deref(), Some(&*format!("/{slice}")));
    assert_eq!(pod.usage.cpu.unwrap().usage_nanos, 1_000_010_000);
    assert_eq!((&pod.network, &pod.sandbox), (&None, &None));
    // Without a status its sandbox tells when it was started.
    assert_eq!(pod.started_at, Some(at(-20)));
    assert_eq!(first.node.usage.cpu.unwrap().usage_nanos, 2_000_000_000);

    machine.cgroup(&place('b'), 6_000_000, 7);
    let again = look(4, Scope::CpuAndMemory);
    assert_eq!(again.pods[0].containers[0], *web);

    let later = look(10, Scope::CpuAndMemory);
    let usage = &later.pods[0].containers[0].usage;
    // usage 35c
    assert_eq!(usage.nano_cores, Some(500_000_000));
    assert_eq!(usage.time, at(10));

    // Somebody who asks for more is answered anew, and the window goes on.
    machine.cgroup(&place('b'), 7_000_000, 7);
    let whole = look(11, Scope::Detailed);
    let pod = &whole.pods[0];
    let usage = &pod.containers[0].usage;
    assert_eq!(usage.cpu.unwrap().usage_nanos, 7_000_000_000);
    assert_eq!(usage.nano_cores, Some(500_000_000));
    assert_eq!((usage.processes, pod.usage.processes), (Some(2), Some(4)));
    assert_eq!(pod.containers[0].engine_name, "web_web_3");
    let sandbox = pod.sandbox.as_ref().unwrap();
    assert_eq!(
        (&*sandbox.name, &*sandbox.engine_name),
        ("POD", "POD_web_1")
    );
    let network = pod.network.as_ref().unwrap();
    assert_eq!(network.interfaces[0].received.bytes, 5);
    assert!(whole.node.fs.is_some());
    // Nobody has measured it yet.
    assert_eq!(pod.containers[0].rootfs, None);

    machine.cgroup(&place('b'), 12_000_000, 7);
    let later = look(20, Scope::CpuAndMemory);
    let usage = &later.pods[0].containers[0].usage;
    assert_eq!(usage.nano_cores, Some(600_000_000));
}

#[test]
fn a_cgroup_anywhere_is_found_and_one_that_is_gone_is_no_zero() {
    let machine = Machine::new();
    let odd = format!("user.slice/user@1000.service/x/docker-{}.scope", id('b'));
    machine.cgroup(&odd, 1, 7);
    machine.cgroup("user.slice/other", 1, 9);
    let running = |letter| view(vec![container("web", letter, ContainerState::Running)]);
    let mut looker = machine.looker();
    let mut look = |second, views: &[PodView]| {
        let reading = machine.look(&mut looker, Scope::Everything, second, views);
        reading.unwrap().pods
    };
    let pods = look(0, &[running('b')]);
    // usage 35b
    assert_eq!(pods[0].containers[0].cgroup, format!("/{odd}"));
    assert_eq!(pods[0].cgroup, None, "no pod has one of another name");
    // The sum, as far as there is something to add.
    assert_eq!(pods[0].usage.cpu, pods[0].containers[0].usage.cpu);

    // It ended, and nobody has seen that yet.
    machine.remove(&format!("cgroup/{odd}"));
    assert!(
        look(10, &[running('b')])
            .iter()
            .all(|pod| pod.containers.is_empty())
    );

    // A missing cgroup is looked up at most once a minute.
    let late = format!("late/{}", id('d'));
    machine.cgroup(&late, 1, 11);
    assert!(look(20, &[running('d')]).is_empty());
    let pods = look(80, &[running('d')]);
    assert_eq!(pods[0].containers[0].cgroup, format!("/{late}"));
    // A pod of which nothing runs has nothing to tell.
    let over = view(vec![container("web", 'd', ContainerState::Exited)]);
    assert!(look(90, &[over]).is_empty());
}

/// Engines with another version of runc make another weight of them.
#[test]
fn shares_of_a_container_are_those_of_its_pod() {
    let machine = Machine::new();
    let path = format!("docker/{}", id('b'));
    machine.cgroup(&path, 1, 7);
    let mut pod = view(vec![container("web", 'b', ContainerState::Running)]);
    let shares = |pod: &PodView, weight: &str| {
        machine.write(&format!("cgroup/{path}/cpu.weight"), weight);
        let mut looker = machine.looker();
        let reading = machine.look(&mut looker, Scope::Detailed, 0, std::slice::from_ref(pod));
        let reading = reading.unwrap();
        let container = &reading.pods[0].containers[0];
        container.usage.detail.as_ref().unwrap().cpu_shares
    };
    assert_eq!(shares(&pod, "100\n"), 2597);
    pod.pod = Some(Arc::new(
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"containers": [
                {"name": "other"}, {"name": "web", "resources": {"requests": {"cpu": "1"}}},
            ]},
        }))
        .unwrap(),
    ));
    for (weight, expected) in [("39\n", 1024), ("100\n", 1024), ("101\n", 2623)] {
        // usage 35a
        assert_eq!(shares(&pod, weight), expected, "{weight}");
    }
}

#[test]
fn a_sandbox_is_read_seldom_once_its_pod_has_a_rate() {
    let machine = Machine::new();
    let place = |letter| format!("docker/{}", id(letter));
    let used = |sandbox, web| {
        machine.cgroup(&place('a'), sandbox, 5);
        machine.cgroup(&place('b'), web, 7);
    };
    let views = [view(vec![container("web", 'b', ContainerState::Running)])];
    let mut looker = machine.looker();
    let mut rate = |second| {
        let reading = machine.look(&mut looker, Scope::CpuAndMemory, second, &views);
        reading.unwrap().pods[0].usage.nano_cores
    };
    used(0, 0);
    assert_eq!(rate(0), None);
    used(10, 1_000_000);
    assert_eq!(rate(10), Some(100_001_000));
    used(1_000_000, 2_000_000);
    assert_eq!(rate(20), Some(100_001_000));
}

#[test]
fn a_pod_in_the_hosts_network_has_none_of_its_own() {
    let machine = Machine::new();
    machine.cgroup(&format!("docker/{}", id('a')), 1, 5);
    let mut pod = view(Vec::new());
    let look = |pod: &PodView| {
        let views = [pod.clone()];
        let mut looker = machine.looker();
        let reading = machine.look(&mut looker, Scope::Everything, 0, &views);
        reading.unwrap().pods[0].network.is_some()
    };
    assert!(look(&pod));
    Arc::make_mut(&mut pod.observed).sandboxes[0].host_network = true;
    assert!(!look(&pod));
}

/// The agent may be in a container, where the host's files are elsewhere.
#[tokio::test]
async fn what_containers_wrote_is_measured_where_the_hosts_files_are_seen() {
    let machine = Machine::new();
    machine.cgroup(&format!("docker/{}", id('a')), 1, 5);
    machine.cgroup(&format!("docker/{}", id('b')), 1, 7);
    machine.write("host/upper/file", &"x".repeat(1 << 20));
    let views = [view(vec![container("web", 'b', ContainerState::Running)])];
    let mut looker = machine.looker();
    let looking = async {
        loop {
            let reading = machine.look(&mut looker, Scope::Everything, 0, &views);
            if let Some(rootfs) = reading.unwrap().pods[0].containers[0].rootfs {
                // eviction 7
                assert!(rootfs.used_bytes >= Some(1 << 20), "{rootfs:?}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = machine.disks.run(CancellationToken::new()) => panic!("measuring has ended"),
        () = looking => {}
    }
}

/// A static pod keeps its UID, and so do the paths of its volumes.
#[tokio::test]
async fn volumes_are_measured_anew_once_their_pod_is_started_again() {
    let machine = Machine::new();
    for letter in ['a', 'd'] {
        machine.cgroup(&format!("docker/{}", id(letter)), 1, 5);
    }
    let volume = "root/pods/u/volumes/kubernetes.io~empty-dir/data";
    machine.write(&format!("{volume}/file"), &"x".repeat(1 << 20));
    let mut pod = view(Vec::new());
    let volumes = serde_json::json!([{"name": "data", "emptyDir": {}}]);
    let spec = serde_json::json!({"spec": {"containers": [], "volumes": volumes}});
    pod.pod = Some(serde_json::from_value(spec).unwrap());
    let mut looker = machine.looker();
    let mut look = |pod: &PodView| {
        let views = [pod.clone()];
        let reading = machine.look(&mut looker, Scope::Everything, 0, &views);
        let volumes = reading.unwrap().pods[0].volumes.clone();
        volumes.first().and_then(|volume| volume.disk.used_bytes)
    };
    let looking = async {
        let full = loop {
            if let Some(bytes) = look(&pod) {
                break bytes;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert!(full >= 1 << 20, "{full}");
        machine.remove(volume);
        machine.write(&format!("{volume}/file"), "");
        // Measured at most once a minute.
        assert_eq!(look(&pod), Some(full));
        Arc::make_mut(&mut pod.observed).sandboxes[0].id.id = id('d').into();
        // eviction 7
        assert_eq!(look(&pod), None);
        loop {
            if let Some(bytes) = look(&pod) {
                assert!(bytes < 1 << 20, "{bytes}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = machine.disks.run(CancellationToken::new()) => panic!("measuring has ended"),
        () = looking => {}
    }
}

#[test]
fn a_machine_that_cannot_be_read_is_no_answer() {
    let machine = Machine::new();
    machine.remove("proc");
    let mut looker = machine.looker();
    let answer = machine.look(&mut looker, Scope::CpuAndMemory, 0, &[]);
    assert_eq!(answer, Err(StatsError::Machine("/proc/stat")));
}

#[tokio::test]
async fn every_form_is_served() {
    let machine = Machine::new();
    let path = format!("docker/{}", id('b'));
    machine.cgroup(&path, 1, 7);
    let (writer, board) = board();
    writer.publish(view(vec![container("web", 'b', ContainerState::Running)]));
    let options = StatsOptions {
        now: Timestamp::now,
        ..Arc::into_inner(machine.options).unwrap()
    };
    let provider = StatsProvider::new(options, board);
    let whole = provider.summary(false).await.unwrap();
    let whole: serde_json::Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(whole["pods"][0]["containers"][0]["name"], "web");
    assert!(whole["node"]["fs"].is_object());
    let less = provider.summary(true).await.unwrap();
    assert!(!less.contains("\"fs\""), "{less}");
    let page = provider.resource_metrics().await;
    assert!(page.contains("pod_memory_working_set_bytes{pod=\"web\",namespace=\"shop\"} 3000 "));
    // usage 37
    assert!(page.contains("\nresource_scrape_error 0\n"), "{page}");
    let page = provider.cadvisor_metrics().await;
    assert!(
        page.contains("container=\"web\",id=\"/docker/bbb"),
        "{page}"
    );
    let provider = Arc::new(provider);
    let mut samples = Box::pin(Arc::clone(&provider).samples());
    let sample = samples.next().await.unwrap().unwrap();
    assert_eq!(sample.pods[0].containers[0].usage.nano_cores, Some(0));
    remove_all(&machine.dir.path().join("proc"));
    assert!(samples.next().await.unwrap().is_err());
    assert!(provider.summary(false).await.is_err());
    let page = provider.resource_metrics().await;
    assert!(page.contains("\nresource_scrape_error 1\n"), "{page}");
}

fn remove_all(path: &Path) {
    fs::remove_dir_all(path).unwrap();
}
