//! The agent is killed before, during and after the Engine calls of a pod's start, restart, restart in
//! place, update, in-place change, failed edit and stop, of a Job and of a `StatefulSet`, and started
//! again: no duplicate, no orphan, no needless restart, no index twice, no pod out of turn, no failed
//! request while a host port goes to the next version, under either order.
//!
//! A dry run counts the calls of each scenario; then numbers are kill points. *Before*: the call is
//! never made. *After*: it is made, and its answer is lost, which is no point of its own for a call
//! that only reads. *During*: it reaches the Engine while the next agent is already at work. Between two
//! calls that change something only containers and the agent's files go on, so each run tries *before* at
//! a part of the calls.
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::history::History;
use crate::common::intercept::{After, Before, Call, Script, ScriptedEngine};
use crate::common::traffic::{self, Traffic};
use crate::common::{self, Bed, IMAGE, IMAGE_2, TestAgent, eventually};
use async_trait::async_trait;
use futures::StreamExt;
use mirrorlet_docker::engine::EngineError;
use tokio::sync::{Notify, Semaphore};

/// Beds at a time, of all tests here together: the Engine, not the agent, is what takes time, and three
/// times as many have it start containers for minutes.
const BEDS: usize = 6;
static FREE_BEDS: Semaphore = Semaphore::const_new(BEDS);
/// How late calls reach the Engine that were under way when the agent was killed: the next agent
/// has listed by then, and is about to act.
const LATE: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(80)];
/// The same where nothing is wanted any more: the next agent has stopped and removed what it found,
/// and has nothing left to do.
const TOO_LATE: Duration = Duration::from_secs(3);

/// The fate of the call that is the kill point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    During(Duration),
    After,
}

#[derive(Debug, Clone, Copy)]
enum Scenario {
    /// A start of a pod whose startup probe runs a command, once.
    Start,
    Restart,
    /// An edit whose version takes the old one's place and its host port: connections wait.
    Update,
    ImageChange,
    Stop,
    /// An edit that fails: the version before runs again.
    Restore,
    /// An edit whose version is started beside the old one, and gets its host port.
    HandOver,
    /// A start whose manifest is removed while no agent runs.
    Withdraw,
    /// A Job of three indexes, two at a time, which are to succeed once each.
    Job,
    /// An exit that restarts all containers of a pod that is not restarted otherwise.
    RestartAll,
    /// A row of two pods, of which the second one becomes the first: one more starts, one stops.
    Row,
}

/// Ends the world at one call: it and all later ones never answer.
#[derive(Default)]
struct Doom {
    /// How many calls were made since the scenario began, once it has.
    began: AtomicBool,
    calls: AtomicUsize,
    changes: Mutex<Vec<usize>>,
    at: Mutex<Option<(usize, When)>>,
    dead: AtomicBool,
    killed: Notify,
    /// The number of the doomed call among all.
    doomed: AtomicUsize,
}

impl Doom {
    fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.killed.notify_one();
    }
}

#[async_trait]
impl Script for Doom {
    async fn before(&self, call: &Call) -> Before {
        if self.dead.load(Ordering::SeqCst) {
            return Before::Hang;
        }
        if !self.began.load(Ordering::SeqCst) {
            return Before::Proceed;
        }
        let number = 1 + self.calls.fetch_add(1, Ordering::SeqCst);
        if call.changes() {
            self.changes.lock().unwrap().push(number);
        }
        match *self.at.lock().unwrap() {
            Some((at, when)) if at == number => match when {
                When::Before => {
                    self.die();
                    Before::Hang
                }
                When::During(late) => {
                    self.die();
                    Before::Orphan(late)
                }
                When::After => {
                    self.doomed.store(call.number, Ordering::SeqCst);
                    Before::Proceed
                }
            },
            _ => Before::Proceed,
        }
    }

    async fn after(&self, call: &Call, _error: Option<&EngineError>) -> After {
        if self.doomed.load(Ordering::SeqCst) == call.number {
            self.die();
        }
        if self.dead.load(Ordering::SeqCst) {
            return After::Hang;
        }
        After::Pass
    }
}

/// A container that ends at once when told to.
fn container(name: &str, image: &str) -> String {
    format!(
        "  - name: {name}\n    image: {image}\n    command: [\"sh\", \"-c\", \"trap 'exit 0' TERM; sleep 100000 & wait $!\"]\n"
    )
}

/// A UID no other bed uses: container names are made of it.
fn uid(bed: &Bed) -> String {
    let owner = bed.owner().unwrap();
    let part = |range: std::ops::Range<usize>| owner[range].to_owned();
    [
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32),
    ]
    .join("-")
}

/// The same pod as [`manifest`] makes it, as an edit that crashes.
fn failing(manifest: &str) -> String {
    manifest
        .replace("exit 0' TERM; sleep 100000 & wait $!", "exit 3'; exit 3")
        .replace(
            "spec:",
            "  annotations: {mirrorlet.dev/max-restarts: \"1\"}\nspec:",
        )
}

/// The pod with a network of its own instead: what stops, and what is created late, has one.
fn networked(manifest: &str) -> String {
    manifest.replacen("  hostNetwork: true\n", "", 1)
}

/// In the network of the host: for one of a sandbox's own the Engine starts itself twice more. Those of
/// [`probed`], [`row`], the stop, the withdrawal and the web servers have one.
fn manifest(uid: Option<String>, init: bool, containers: &[(&str, &str)]) -> String {
    let mut text = String::from("apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n");
    if let Some(uid) = uid {
        text += &format!("  uid: {uid}\n");
    }
    text += "spec:\n  hostNetwork: true\n  terminationGracePeriodSeconds: 2\n";
    if init {
        text += &format!(
            "  initContainers:\n  - name: prepare\n    image: {IMAGE}\n    command: [\"true\"]\n"
        );
    }
    text += "  containers:\n";
    for (name, image) in containers {
        text += &container(name, image);
    }
    text
}

/// A pod of an init container and two containers, one of them with a startup probe. It succeeds at its
/// first attempt, so its exec happens once.
fn probed() -> String {
    let probe =
        r#"    startupProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 60}"#;
    let name = "  - name: one\n";
    let manifest = manifest(None, true, &[("one", IMAGE), ("two", IMAGE)]);
    let manifest = networked(&manifest);
    manifest.replacen(name, &format!("{name}{probe}\n"), 1)
}

/// A pod whose container `one` exits with 42 on SIGUSR1, which restarts all.
fn asking(uid: String) -> String {
    let rules = "    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
    command: [\"sh\", \"-c\", \"trap 'exit 42' USR1; trap";
    manifest(Some(uid), true, &[("one", IMAGE), ("two", IMAGE)])
        .replacen("    command: [\"sh\", \"-c\", \"trap", rules, 1)
        .replacen("spec:", "spec:\n  restartPolicy: Never", 1)
}

/// A Job of three indexes, of which one waits for the end of another; each start of one is a line in
/// `data/runs` below the bed.
fn job(bed: &Bed) -> String {
    format!(
        r#"apiVersion: batch/v1
kind: Job
metadata: {{name: work}}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      hostNetwork: true
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: one
        image: {IMAGE}
        command: ["sh", "-c", "echo $JOB_COMPLETION_INDEX >> /data/runs"]
        volumeMounts: [{{name: data, mountPath: /data}}]
      volumes:
      - name: data
        hostPath: {{path: {}, type: DirectoryOrCreate}}
"#,
        bed.path().join("data").display()
    )
}

/// A `StatefulSet` of two pods. What each does is a line in `data/log` below the bed. The probe is no
/// exec, which would be two more kill points a second.
fn row(bed: &Bed, first: u32) -> String {
    let log = |word: &str| format!("echo {word}-${{HOSTNAME#web-}} >>/data/log");
    let (up, ready, down, gone) = (log("up"), log("ready"), log("down"), log("gone"));
    format!(
        r#"apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: web}}
spec:
  replicas: 2
  ordinals: {{start: {first}}}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 60
      containers:
      - name: one
        image: {IMAGE}
        command: ["sh", "-c", "trap 'trap : TERM; {down}; sleep 0.2; {gone}; exit 0' TERM; {up}; sleep 0.2; {ready}; httpd -f -p 8080 -h /tmp & while :; do sleep 1 & wait $!; done"]
        readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 60}}
        volumeMounts: [{{name: data, mountPath: /data}}]
      volumes:
      - name: data
        hostPath: {{path: {}, type: DirectoryOrCreate}}
"#,
        bed.path().join("data").display()
    )
}

impl Scenario {
    /// Those first that wait for servers to end and to be ready, while other tests keep the processors
    /// busy: in the end this test runs alone.
    const PODS: [Self; 8] = [
        Self::HandOver,
        Self::Update,
        Self::Withdraw,
        Self::Restore,
        Self::Start,
        Self::Restart,
        Self::ImageChange,
        Self::Stop,
    ];

    /// The set-up that runs before.
    fn before(self, bed: &Bed) -> Option<String> {
        match self {
            Self::Start | Self::Withdraw | Self::Job => None,
            Self::Stop => Some(networked(&manifest(
                Some(uid(bed)),
                false,
                &[("one", IMAGE), ("two", IMAGE)],
            ))),
            Self::Restart | Self::ImageChange => Some(manifest(
                Some(uid(bed)),
                false,
                &[("one", IMAGE), ("two", IMAGE)],
            )),
            Self::Row => Some(row(bed, 0)),
            Self::RestartAll => Some(asking(uid(bed))),
            Self::Update | Self::HandOver => Some(self.web(bed, IMAGE)),
            // Healthy at once.
            Self::Restore => Some(manifest(None, false, &[("one", IMAGE)]).replace(
                "spec:",
                "  annotations: {mirrorlet.dev/min-ready-seconds: \"0\"}\nspec:",
            )),
        }
    }

    /// The web server whose host port goes from one version to the next.
    fn web(self, bed: &Bed, image: &str) -> String {
        let (port, script) = (host_port(bed), traffic::server("x"));
        let order = match self {
            Self::HandOver => "StartFirst",
            _ => "Recreate",
        };
        format!(
            r#"apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: {{mirrorlet.dev/min-ready-seconds: "0", mirrorlet.dev/rollout: {order}}}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: one
    image: {image}
    command: ["sh", "-c", {script:?}]
    ports: [{{containerPort: 8080, hostPort: {port}}}]
    readinessProbe: {{httpGet: {{path: /x, port: 8080}}, periodSeconds: 1}}
"#
        )
    }

    /// Requests to the host port that goes from one version to the next.
    fn traffic(self, bed: &Bed) -> Option<Traffic> {
        let at = || (Ipv4Addr::LOCALHOST, host_port(bed)).into();
        matches!(self, Self::Update | Self::HandOver).then(|| Traffic::to(at()))
    }

    /// The action while the agent may be killed.
    fn act(self, bed: &Bed, before: &HashMap<String, String>) {
        match self {
            Self::Start => bed.write("web.yaml", &probed()),
            Self::Withdraw => bed.write(
                "web.yaml",
                &networked(&manifest(None, true, &[("one", IMAGE), ("two", IMAGE)])),
            ),
            Self::Restart => {
                bed.docker(&["kill", id(before, "one")]);
            }
            Self::Update | Self::HandOver => bed.write("web.yaml", &self.web(bed, IMAGE_2)),
            Self::ImageChange => bed.write(
                "web.yaml",
                &manifest(Some(uid(bed)), false, &[("one", IMAGE_2), ("two", IMAGE)]),
            ),
            Self::Stop => bed.remove("web.yaml"),
            Self::Job => bed.write("web.yaml", &job(bed)),
            Self::Row => bed.write("web.yaml", &row(bed, 1)),
            Self::RestartAll => {
                // The command has ended by then.
                bed.exec("one", "(sleep 0.2; kill -USR1 1) >/dev/null 2>&1 &");
            }
            Self::Restore => bed.write(
                "web.yaml",
                &failing(&manifest(None, false, &[("one", IMAGE)])),
            ),
        }
    }

    /// Waits until the Engine is as it should be in the end.
    async fn settled(self, bed: &Bed, agent: &TestAgent, before: &HashMap<String, String>) {
        match self {
            Self::Start => {
                agent.until_running("web").await;
            }
            Self::Restart => {
                agent
                    .until_pod("web", |pod| pod.ready == 2 && pod.restarts == 1)
                    .await;
            }
            Self::RestartAll => {
                agent
                    .until_pod("web", |pod| {
                        pod.ready == 2 && pod.containers.iter().all(|c| c.restarts == 1)
                    })
                    .await;
            }
            Self::ImageChange => {
                agent
                    .until_pod("web", |pod| {
                        pod.ready == 2
                            && pod
                                .containers
                                .iter()
                                .all(|c| c.id.as_deref() != Some(&docker_id(before, "one")))
                    })
                    .await;
            }
            Self::Update | Self::HandOver => {
                let old = docker_id(before, "one");
                agent
                    .until("the new pod alone", |report| {
                        report.pods.len() == 1
                            && report.pods[0].ready == 1
                            && report.pods[0].containers[0].id.as_deref() != Some(&old)
                    })
                    .await;
            }
            Self::Stop => agent.until_gone("web").await,
            Self::Restore => {
                agent
                    .until("the healthy version alone", |report| {
                        report.pods.len() == 1
                            && report.pods[0].held
                            && report.pods[0].ready == 1
                            && !report.pods[0].problems.is_empty()
                    })
                    .await;
            }
            Self::Job => {
                agent
                    .until("the Job to be complete", |report| {
                        report.jobs.iter().any(|job| job.condition == "Complete")
                    })
                    .await;
            }
            Self::Row => {
                agent
                    .until("the two pods", |report| {
                        let ready = report.pods.iter().filter(|pod| pod.is_ready());
                        let names = ready.map(|pod| pod.manifest_name.as_str());
                        names.eq(["web-1", "web-2"]) && report.pods.len() == 2
                    })
                    .await;
            }
            Self::Withdraw if bed.manifest("web.yaml").exists() => {
                agent.until_running("web").await;
            }
            Self::Withdraw => {
                agent.until_gone("web").await;
                eventually("everything to be gone", || {
                    bed.containers().is_empty().then_some(())
                })
                .await;
            }
        }
        if matches!(self, Self::Update | Self::HandOver | Self::Stop) {
            eventually("the old pod's containers to be gone", || {
                let left = bed.containers();
                before
                    .values()
                    .all(|id| !left.values().any(|other| other == id))
                    .then_some(())
            })
            .await;
        }
    }

    /// Checks what there is in the end, and what happened on the way.
    async fn check(self, bed: &Bed, history: &History, before: &HashMap<String, String>) {
        if matches!(self, Self::Job) {
            let runs = std::fs::read_to_string(bed.path().join("data/runs")).unwrap();
            let mut runs: Vec<&str> = runs.lines().collect();
            runs.sort_unstable();
            // workloads 8
            assert_eq!(runs, ["0", "1", "2"], "{:#?}", history.all());
            return history.assert_nothing_ran_twice();
        }
        if matches!(self, Self::Row) {
            let log = std::fs::read_to_string(bed.path().join("data/log")).unwrap();
            // workloads 20
            assert_eq!(
                log.split_whitespace().collect::<Vec<_>>(),
                [
                    "up-0", "ready-0", "up-1", "ready-1", "up-2", "ready-2", "down-0", "gone-0"
                ],
                "{:#?}",
                history.all()
            );
            return history.assert_nothing_ran_twice();
        }
        let expected: &[(&str, usize)] = match self {
            Self::Start => &[("POD", 1), ("prepare", 1), ("one", 1), ("two", 1)],
            Self::Restart | Self::ImageChange => &[("POD", 1), ("one", 2), ("two", 1)],
            Self::RestartAll => &[("POD", 1), ("prepare", 2), ("one", 2), ("two", 2)],
            Self::Update | Self::HandOver => &[("POD", 2), ("one", 2)],
            Self::Stop => &[("POD", 1), ("one", 1), ("two", 1)],
            // The healthy version, the edit and the healthy version again.
            Self::Restore => &[("POD", 3)],
            Self::Withdraw | Self::Job | Self::Row => &[],
        };
        for (name, starts) in expected {
            eventually("the last start to be told", || {
                (history.starts(name) >= *starts).then_some(())
            })
            .await;
            // docker 5b
            assert_eq!(
                history.starts(name),
                *starts,
                "starts of {name}: {:#?}",
                history.all()
            );
        }
        // docker 12, docker 57
        history.assert_nothing_ran_twice();

        let running = bed.running();
        let mut names: Vec<&str> = running.keys().map(|name| spec_name(name)).collect();
        names.sort_unstable();
        match self {
            Self::Start | Self::Restart | Self::ImageChange | Self::RestartAll => {
                assert_eq!(names, ["POD", "one", "two"], "{running:?}");
            }
            // rollouts 16
            Self::Update | Self::HandOver => assert_eq!(names, ["POD", "one"], "{running:?}"),
            Self::Restore => {
                assert_eq!(names, ["POD", "one"], "{running:?}");
                for container in running.keys() {
                    // rollouts 16
                    assert!(before.contains_key(container), "{running:?}, {before:?}");
                }
                // Of the edit: one restart, and one more by a new agent, which knows of no back-off. An
                // instance that the killed agent created and didn't start is a restart, too, and the next
                // agent may give the edit up at once.
                let starts = eventually("the last start of a container to be reported", || {
                    let not_started = history.not_started("one").into_iter();
                    let given_up = not_started.filter(|id| running.values().all(|one| one != id));
                    let starts = history.starts("one");
                    (starts + given_up.count() >= 4).then_some(starts)
                })
                .await;
                assert!(starts <= 5, "{starts}: {:#?}", history.all());
                // Never two versions at a time.
                history.assert_one_at_a_time("one");
            }
            Self::Stop | Self::Withdraw | Self::Job | Self::Row => {
                assert!(bed.containers().is_empty(), "{:?}", bed.containers());
            }
        }
        if matches!(self, Self::Restart | Self::ImageChange) {
            assert_eq!(id(&running, "two"), id(before, "two"));
            assert_eq!(id(&running, "POD"), id(before, "POD"));
            assert!(
                running
                    .keys()
                    .any(|name| name.starts_with("k8s_one_") && name.ends_with("_1")),
                "{running:?}"
            );
        }
        if matches!(self, Self::RestartAll) {
            assert_eq!(id(&running, "POD"), id(before, "POD"));
        }
        // One pod is left, and nothing but its containers: no orphans of any UID, nothing that
        // was only created.
        let all = bed.containers();
        let uids: std::collections::HashSet<&str> = all
            .keys()
            .map(|name| name.split('_').nth(4).unwrap())
            .collect();
        assert!(uids.len() <= 1, "{all:?}");
        eventually("what was only created to be gone", || {
            bed.created().is_empty().then_some(())
        })
        .await;
        if all.is_empty() {
            eventually("the directories to be gone", || {
                let left = std::fs::read_dir(bed.path().join("pods"));
                left.map_or(true, |mut left| left.next().is_none())
                    .then_some(())
            })
            .await;
        }
        // It still is the same that runs.
        assert_eq!(running, bed.running());
    }
}

/// The host port of a bed's pod, the same at every call.
fn host_port(bed: &Bed) -> u16 {
    let file = bed.path().join("port");
    let known = std::fs::read_to_string(&file).ok();
    known.and_then(|port| port.parse().ok()).unwrap_or_else(|| {
        let port = common::free_port();
        std::fs::write(&file, port.to_string()).unwrap();
        port
    })
}

fn spec_name(name: &str) -> &str {
    name.split('_').nth(1).unwrap()
}

/// Id of the container of that name in the spec.
fn id<'a>(containers: &'a HashMap<String, String>, name: &str) -> &'a str {
    let found = containers.iter().find(|(full, _)| spec_name(full) == name);
    found.unwrap().1
}

fn docker_id(containers: &HashMap<String, String>, name: &str) -> String {
    format!("docker://{}", id(containers, name))
}

/// The findings of one run.
#[derive(Debug)]
struct Ran {
    /// Calls from the beginning of the scenario.
    calls: usize,
    /// Those among them that change something.
    changes: Vec<usize>,
    /// Whether the kill point was reached.
    killed: bool,
}

/// Runs a scenario, killing the agent at that point.
async fn run(scenario: Scenario, at: Option<(usize, When)>) -> Ran {
    let bed = Bed::new();
    let history = History::of(&bed).await;
    let engine = ScriptedEngine::new(&bed.docker, Doom::default());
    let doom = &engine.script;
    *doom.at.lock().unwrap() = at;
    let (mut before, mut traffic) = (HashMap::new(), None);
    let mut agent = if let Some(manifest) = scenario.before(&bed) {
        bed.write("web.yaml", &manifest);
        let agent = bed.agent_over(engine.clone()).await;
        if matches!(scenario, Scenario::Row) {
            agent.until_running("web-1").await;
        } else {
            agent.until_running("web").await;
        }
        if matches!(
            scenario,
            Scenario::Update | Scenario::Restore | Scenario::HandOver
        ) {
            bed.until_healthy(1).await;
        }
        if matches!(scenario, Scenario::RestartAll) {
            bed.until_traps("one").await;
        }
        before = bed.running();
        traffic = scenario.traffic(&bed);
        doom.began.store(true, Ordering::SeqCst);
        scenario.act(&bed, &before);
        agent
    } else {
        // From the very first call of an agent on.
        doom.began.store(true, Ordering::SeqCst);
        scenario.act(&bed, &before);
        bed.agent_over(engine.clone()).await
    };
    let killed = tokio::select! {
        () = doom.killed.notified() => true,
        () = scenario.settled(&bed, &agent, &before) => false,
    };
    if killed {
        agent.kill();
        if matches!(scenario, Scenario::Withdraw) {
            bed.remove("web.yaml");
        }
        agent = bed.agent().await;
        scenario.settled(&bed, &agent, &before).await;
        // It settles once more after the last late call of the killed agent.
        engine.orphans_made().await;
        scenario.settled(&bed, &agent, &before).await;
    }
    if killed || !matches!(scenario, Scenario::Withdraw) {
        scenario.check(&bed, &history, &before).await;
    }
    if let Some(traffic) = traffic {
        // rollouts S1, rollouts S8
        assert_eq!(traffic.failures(), Vec::<String>::new(), "killed at {at:?}");
    }
    let mut ran = Ran {
        calls: doom.calls.load(Ordering::SeqCst),
        changes: doom.changes.lock().unwrap().clone(),
        killed,
    };
    ran.changes.sort_unstable();
    agent.stop().await;
    tokio::task::block_in_place(|| drop(bed));
    ran
}

/// Whether a point is in this program's sample of one in `part`: each program has another sample.
fn is_taken(number: usize, part: usize) -> bool {
    let offset = usize::try_from(std::process::id()).unwrap();
    (number + offset).is_multiple_of(part)
}

/// The first change, and one of the calls up to it, and of those from each change up to the next one, at
/// all of which the Engine is the same: each program takes another.
fn one_a_gap(dry: &Ran) -> Vec<usize> {
    let turn = usize::try_from(std::process::id()).unwrap();
    let first = dry.changes[0];
    let ends = dry.changes.iter().copied().chain([dry.calls]);
    let mut before = 0;
    let of_gaps = ends.filter_map(|end| {
        let mut gap = before + 1..=end;
        before = end;
        let calls = gap.clone().count();
        gap.nth(turn.checked_rem(calls)?)
    });
    let mut calls: Vec<usize> = [first].into_iter().chain(of_gaps).collect();
    calls.sort_unstable();
    calls.dedup();
    calls
}

/// Points *before* the first change, and before a sample of those calls.
fn never_made(
    scenario: Scenario,
    dry: &Ran,
    calls: impl IntoIterator<Item = usize>,
) -> Vec<(Scenario, usize, When)> {
    /// A third is enough: the Engine is as it is *after* the change that precedes the call.
    const PART: usize = 3;
    let first = dry.changes.first().copied();
    let calls = calls.into_iter();
    let calls = calls.filter(|number| Some(*number) == first || is_taken(*number, PART));
    calls
        .map(|number| (scenario, number, When::Before))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn the_agent_may_be_killed_at_every_call() {
    let mut points = Vec::new();
    let dry_runs = Scenario::PODS.map(|scenario| async move {
        let _bed = FREE_BEDS.acquire().await.unwrap();
        (scenario, tokio::spawn(run(scenario, None)).await.unwrap())
    });
    for (scenario, dry) in futures::future::join_all(dry_runs).await {
        println!(
            "{scenario:?}: {} calls, {} of them change something",
            dry.calls,
            dry.changes.len()
        );
        // A withdrawal matters for the calls that come late, an edit that fails for
        // what has changed and who knows of it.
        match scenario {
            Scenario::Withdraw => {}
            Scenario::Restore | Scenario::HandOver => {
                let after = |&number: &usize| (scenario, number, When::After);
                points.extend(dry.changes.iter().map(after));
            }
            _ => {
                // Between two calls of an edit the rules of its host port change, which are no calls.
                if matches!(scenario, Scenario::Update) {
                    points.extend(never_made(scenario, &dry, 1..=dry.calls));
                } else {
                    let before = one_a_gap(&dry).into_iter();
                    points.extend(before.map(|number| (scenario, number, When::Before)));
                }
                let after = dry.changes.iter();
                points.extend(after.map(|&number| (scenario, number, When::After)));
            }
        }
        for (i, number) in dry.changes.into_iter().enumerate() {
            // Each program takes every other change; the simulation plays all of them by the thousand.
            if !is_taken(i, 2) {
                continue;
            }
            points.push((scenario, number, When::During(LATE[(i / 2) % LATE.len()])));
            if matches!(scenario, Scenario::Withdraw) {
                points.push((scenario, number, When::During(TOO_LATE)));
            }
        }
    }
    kill_at(points).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn the_agent_may_be_killed_at_every_call_of_a_job() {
    let scenario = Scenario::Job;
    let dry = run(scenario, None).await;
    // Each change may be the last one; that it isn't made at all is the case of the one before it.
    // Its pods are alike, so a part of the late ones will do.
    let mut points = Vec::new();
    for (i, number) in dry.changes.into_iter().enumerate() {
        points.push((scenario, number, When::After));
        if i % 3 == 0 {
            points.push((scenario, number, When::During(LATE[i % LATE.len()])));
        }
    }
    kill_at(points).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn the_agent_may_be_killed_at_every_call_while_all_containers_are_restarted() {
    let scenario = Scenario::RestartAll;
    let dry = run(scenario, None).await;
    let mut points = never_made(scenario, &dry, dry.changes.iter().copied());
    for (i, number) in dry.changes.into_iter().enumerate() {
        points.push((scenario, number, When::After));
        points.push((scenario, number, When::During(LATE[i % LATE.len()])));
    }
    kill_at(points).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn the_agent_may_be_killed_at_every_call_while_pods_take_turns() {
    let scenario = Scenario::Row;
    let dry = run(scenario, None).await;
    // A pod may have become Ready since the change before.
    let mut points = never_made(scenario, &dry, dry.changes.iter().copied());
    // Each change may be the last one.
    let after = |number| (scenario, number, When::After);
    points.extend(dry.changes.into_iter().map(after));
    kill_at(points).await;
}

/// Runs scenarios, each with the agent killed at a point. A run may have fewer calls than the dry one:
/// not all points are reached.
async fn kill_at(points: Vec<(Scenario, usize, When)>) {
    assert!(!points.is_empty(), "no call was counted");
    // Of each scenario, how many points there were, and how many were reached.
    let reached = Mutex::new(BTreeMap::<String, (usize, usize)>::new());
    futures::stream::iter(points)
        .map(|(scenario, number, when)| async move {
            let bed = FREE_BEDS.acquire().await.unwrap();
            let ran = tokio::spawn(run(scenario, Some((number, when)))).await;
            drop(bed);
            (scenario, number, when, ran)
        })
        .buffer_unordered(BEDS)
        .for_each(|(scenario, number, when, ran)| {
            assert!(
                ran.is_ok(),
                "killed {when:?} call {number} of {scenario:?}: {ran:?}"
            );
            let was_killed = ran.is_ok_and(|ran| ran.killed);
            let mut reached = reached.lock().unwrap();
            let (points, killed) = reached.entry(format!("{scenario:?}")).or_default();
            *points += 1;
            *killed += usize::from(was_killed);
            async {}
        })
        .await;
    let reached = reached.into_inner().unwrap();
    common::tell(&format!("kill points, and those reached: {reached:?}"));
    for (scenario, (points, killed)) in &reached {
        assert!(2 * *killed >= *points, "{scenario}: {reached:?}");
    }
}
