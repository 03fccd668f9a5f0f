//! An Engine that loses, doubles, delays and reorders events, fails, hangs and lies about what it
//! did. Whatever it does: no container runs twice, restart counts are right, and nothing that is
//! not concerned waits.
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::history::History;
use crate::common::intercept::{After, Before, Call, Script, ScriptedEngine};
use crate::common::traffic::{self, Traffic};
use crate::common::{
    self, Bed, IMAGE, IMAGE_2, TestAgent, ask, eventually, free_port, sleeper, sleeper_of,
};
use async_trait::async_trait;
use bollard::models::EventMessage;
use futures::future::ready;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use mirrorlet_docker::Operation;
use mirrorlet_docker::engine::{EngineError, Result};
use tokio::sync::Notify;

/// The error of an Engine that isn't there.
fn unavailable() -> EngineError {
    EngineError::Unavailable {
        endpoint: "unix:///var/run/docker.sock".to_owned(),
        cause: "the test says so".to_owned(),
        is_shortage: false,
    }
}

fn timeout(operation: &'static str) -> EngineError {
    EngineError::Timeout {
        operation,
        after: Duration::from_secs(20),
    }
}

/// Waits until the container's last start is told, then checks how often it was started.
async fn assert_starts(history: &History, container: &str, starts: usize) {
    eventually("the last start to be told", || {
        (history.starts(container) >= starts).then_some(())
    })
    .await;
    assert_eq!(history.starts(container), starts, "{:#?}", history.all());
}

// ---- events -------------------------------------------------------------------------------

/// The fate of the event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Events {
    Lost,
    HalfLost,
    Doubled,
    Delayed,
    Reordered,
    Cut,
}

type Stream = BoxStream<'static, Result<EventMessage>>;

impl Script for Events {
    fn events(&self, stream: Stream) -> Stream {
        match self {
            Self::Lost => stream.filter(|event| ready(event.is_err())).boxed(),
            Self::HalfLost => stream
                .enumerate()
                .filter_map(|(i, event)| ready((i % 2 == 1).then_some(event)))
                .boxed(),
            Self::Doubled => stream
                .flat_map(|event| stream::iter([event.clone(), event]))
                .boxed(),
            Self::Delayed => stream
                .then(|event| tokio::time::sleep(Duration::from_millis(150)).map(|()| event))
                .boxed(),
            Self::Reordered => reordered(stream),
            Self::Cut => stream.take(3).boxed(),
        }
    }
}

/// Swaps every two events that come within a short time.
fn reordered(stream: Stream) -> Stream {
    stream::unfold(stream, |mut stream| async {
        let first = stream.next().await?;
        let second = tokio::time::timeout(Duration::from_millis(300), stream.next()).await;
        let events = match second {
            Ok(Some(second)) => vec![second, first],
            Ok(None) | Err(_) => vec![first],
        };
        Some((stream::iter(events), stream))
    })
    .flatten()
    .boxed()
}

/// A pod's life: started, one container killed, another's image changed in place, removed.
async fn life_with(events: Events) {
    let bed = Bed::new();
    let history = History::of(&bed).await;
    let uid = bed.owner().unwrap();
    let manifest = |image: &str| {
        let two = sleeper_of("two", image);
        let (_, two) = two.split_once("containers:\n").unwrap();
        let one = sleeper("one").replace(
            "name: one\nspec",
            &format!("name: life\n  uid: {uid}\nspec"),
        );
        one + two
    };
    bed.write("life.yaml", &manifest(common::IMAGE));
    let mut resolved = bed.resolved();
    // A change without an event is found by the sweep.
    resolved.config.sweep_period = Duration::from_secs(2);
    let engine = ScriptedEngine::new(&bed.docker, events);
    let agent = bed.agent_with(resolved, engine).await;
    let pod = agent.until_running("life").await;
    // Where the Engine may not lower the OOM score, an agent learns it from the first start: of what
    // was created for that one, an instance may be counted. What was started is counted below.
    let refused = pod.restarts;
    assert_eq!(pod.ready, 2, "{events:?}: {pod:?}");
    let (one, two) = (bed.running_id("one"), bed.running_id("two"));

    bed.docker(&["kill", &one]);
    agent
        .until_pod("life", |pod| pod.restarts == refused + 1 && pod.ready == 2)
        .await;
    assert_eq!(bed.running_id("two"), two, "{events:?}");

    bed.write("life.yaml", &manifest(IMAGE_2));
    let old = format!("docker://{two}");
    let pod = agent
        .until_pod("life", |pod| {
            pod.ready == 2 && pod.containers.iter().all(|c| c.id.as_ref() != Some(&old))
        })
        .await;
    assert_eq!(pod.restarts, refused + 2, "{events:?}");
    for (name, starts) in [("POD", 1), ("one", 2), ("two", 2)] {
        // pods 55
        assert_starts(&history, name, starts).await;
    }

    bed.remove("life.yaml");
    agent.until_gone("life").await;
    eventually("the containers to be gone", || {
        bed.containers().is_empty().then_some(())
    })
    .await;
    // docker 61
    history.assert_nothing_ran_twice();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_events_are_made_up_for() {
    life_with(Events::Lost).await;
    life_with(Events::HalfLost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doubled_and_late_events_do_no_harm() {
    life_with(Events::Doubled).await;
    life_with(Events::Delayed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_out_of_order_and_cut_streams_do_no_harm() {
    life_with(Events::Reordered).await;
    life_with(Events::Cut).await;
}

// ---- calls --------------------------------------------------------------------------------

/// Fails the first calls of one operation.
struct Failing {
    operation: Operation,
    /// Part of the target's name, where it is told by name.
    target: &'static str,
    left: AtomicUsize,
    /// Whether the call is made all the same.
    made: bool,
    error: EngineError,
}

impl Failing {
    fn takes(&self, call: &Call) -> bool {
        call.operation == self.operation
            && call.target.contains(self.target)
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }
}

#[async_trait]
impl Script for Failing {
    async fn before(&self, call: &Call) -> Before {
        if !self.made && self.takes(call) {
            return Before::Fail(self.error.clone());
        }
        Before::Proceed
    }

    async fn after(&self, call: &Call, _error: Option<&EngineError>) -> After {
        if self.made && self.takes(call) {
            return After::Fail(self.error.clone());
        }
        After::Pass
    }
}

/// Starts a pod over that Engine, and checks that each of its containers was made and started
/// once. Returns what is there then.
async fn starts_once(script: Failing) -> (Bed, TestAgent) {
    let bed = Bed::new();
    let history = History::of(&bed).await;
    bed.write("web.yaml", &sleeper("web"));
    let agent = bed
        .agent_over(ScriptedEngine::new(&bed.docker, script))
        .await;
    let pod = agent.until_running("web").await;
    assert_eq!(pod.restarts, 0);
    assert_starts(&history, "web", 1).await;
    // docker 63
    assert_starts(&history, "POD", 1).await;
    // docker 57
    history.assert_nothing_ran_twice();
    assert_eq!(bed.running().len(), 2);
    (bed, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_times_out_and_takes_effect_is_found() {
    for target in ["k8s_web_", "k8s_POD_"] {
        let (bed, agent) = starts_once(Failing {
            operation: Operation::CreateContainer,
            target,
            left: AtomicUsize::new(1),
            made: true,
            error: timeout("create"),
        })
        .await;
        eventually("whatever was made in vain to be gone", || {
            (bed.containers().len() == 2).then_some(())
        })
        .await;
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_once_is_tried_again() {
    let error = EngineError::Api {
        status: 500,
        message: "the test says so".to_owned(),
    };
    // The sandbox is the first to be started, its container the second: one fails each time.
    let (_bed, agent) = starts_once(Failing {
        operation: Operation::StartContainer,
        target: "",
        left: AtomicUsize::new(2),
        made: false,
        error,
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_not_given_up_because_the_engine_is_slow() {
    /// Of the starts since it was set to 0, the second and the third fail: the latter is held back.
    struct Slow(Arc<AtomicUsize>);

    #[async_trait]
    impl Script for Slow {
        async fn before(&self, call: &Call) -> Before {
            if call.operation == Operation::StartContainer
                && (1..=2).contains(&self.0.fetch_add(1, Ordering::SeqCst))
            {
                return Before::Fail(timeout("start"));
            }
            Before::Proceed
        }
    }

    let bed = Bed::new();
    let manifest = |image: &str| {
        sleeper_of("web", image).replace(
            "\nspec:",
            "\n  annotations: {mirrorlet.dev/min-ready-seconds: \"1\"}\nspec:",
        )
    };
    bed.write("web.yaml", &manifest(common::IMAGE));
    let starts = Arc::new(AtomicUsize::new(usize::MAX / 2));
    let engine = ScriptedEngine::new(&bed.docker, Slow(Arc::clone(&starts)));
    let agent = bed.agent_over(engine).await;
    let old = agent.until_running("web").await;
    bed.until_healthy(1).await;
    // The first start is that of the new sandbox, the others are those of the new container.
    starts.store(0, Ordering::SeqCst);
    bed.write("web.yaml", &manifest(IMAGE_2));
    // rollouts M7
    agent
        .until_pod("web", |pod| {
            pod.uid != old.uid && pod.ready == 1 && pod.rollout.is_none()
        })
        .await;
    assert!(starts.load(Ordering::SeqCst) > 3);
    agent.stop().await;
}

/// A web server that answers `says`, with a host port.
fn web(says: &str, port: u16, annotations: &str) -> String {
    let script = traffic::server(says);
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: {{mirrorlet.dev/min-ready-seconds: "0"{annotations}}}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: web
    image: {IMAGE}
    command: ["sh", "-c", {script:?}]
    ports: [{{containerPort: 8080, hostPort: {port}}}]
    readinessProbe: {{httpGet: {{path: /x, port: 8080}}, periodSeconds: 1}}
"#
    )
}

/// As where a security module forbids the Engine to send signals.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_can_not_be_stopped_serves_on() {
    /// What fails of each attempt: the stop of the container, and that of the sandbox.
    const STOPS: usize = 2;
    let (bed, port) = (Bed::new(), free_port());
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let script = Failing {
        operation: Operation::StopContainer,
        target: "",
        left: AtomicUsize::new(0),
        made: false,
        error: EngineError::Api {
            status: 500,
            message: "cannot stop container: permission denied".to_owned(),
        },
    };
    let engine = ScriptedEngine::new(&bed.docker, script);
    let agent = bed.agent_over(engine.clone()).await;
    bed.write("web.yaml", &web("one", port, ""));
    bed.until_healthy(1).await;
    let traffic = Traffic::to(at);
    // The pauses between the first attempts are shorter than a successor is waited for.
    let stops = 5 * STOPS;
    engine.script.left.store(stops, Ordering::SeqCst);
    bed.write("web.yaml", &web("two", port, ""));
    let fails = || (engine.script.left.load(Ordering::SeqCst) < stops).then_some(());
    eventually("a stop to fail", fails).await;
    // rollouts S11
    assert_eq!(ask(at).as_deref(), Ok("one"));
    eventually("the new version to answer", || {
        ask(at).ok().filter(|says| says == "two")
    })
    .await;
    // rollouts S11
    assert_eq!(traffic.failures(), [""; 0]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_keeps_failing_ends_and_the_old_version_serves() {
    /// Where a sandbox is can't be asked for once that many containers were started.
    struct Lost {
        left: AtomicUsize,
    }

    #[async_trait]
    impl Script for Lost {
        async fn before(&self, call: &Call) -> Before {
            if call.operation == Operation::InspectNetwork && self.left.load(Ordering::SeqCst) == 0
            {
                return Before::Fail(EngineError::Api {
                    status: 500,
                    message: "the test says so".to_owned(),
                });
            }
            Before::Proceed
        }

        async fn after(&self, call: &Call, _error: Option<&EngineError>) -> After {
            if call.operation == Operation::StartContainer {
                let one_less = |left: usize| Some(left.saturating_sub(1));
                let _ = self
                    .left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
            }
            After::Pass
        }
    }

    let (bed, port) = (Bed::new(), free_port());
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let settings =
        ", mirrorlet.dev/rollout: StartFirst, mirrorlet.dev/progress-deadline-seconds: \"30\"";
    let left = AtomicUsize::new(usize::MAX);
    let engine = ScriptedEngine::new(&bed.docker, Lost { left });
    let agent = bed.agent_over(engine.clone()).await;
    bed.write("web.yaml", &web("one", port, settings));
    bed.until_healthy(1).await;
    let traffic = Traffic::to(at);
    // Its sandbox and its container.
    engine.script.left.store(2, Ordering::SeqCst);
    bed.write("web.yaml", &web("two", port, settings));
    // rollouts S14
    agent
        .until_pod("web", |pod| {
            let mut problems = pod.problems.iter();
            pod.held && problems.any(|p| p.message.contains("retries ended after 30 s"))
        })
        .await;
    eventually("the new version to be gone", || {
        (bed.running().len() == 2).then_some(())
    })
    .await;
    // rollouts S14
    assert_eq!(ask(at).as_deref(), Ok("one"));
    assert_eq!(traffic.failures(), [""; 0]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_times_out_and_takes_effect_is_not_repeated() {
    /// Lets the sandbox start and loses the answer of the next start.
    struct SecondStart(AtomicUsize);

    #[async_trait]
    impl Script for SecondStart {
        async fn after(&self, call: &Call, _error: Option<&EngineError>) -> After {
            if call.operation == Operation::StartContainer
                && self.0.fetch_add(1, Ordering::SeqCst) == 1
            {
                return After::Fail(timeout("start"));
            }
            After::Pass
        }
    }

    let bed = Bed::new();
    let history = History::of(&bed).await;
    bed.write("web.yaml", &sleeper("web"));
    let script = SecondStart(AtomicUsize::new(0));
    let agent = bed
        .agent_over(ScriptedEngine::new(&bed.docker, script))
        .await;
    assert_eq!(agent.until_running("web").await.restarts, 0);
    assert_starts(&history, "web", 1).await;
    assert_starts(&history, "POD", 1).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_fail_for_a_while_only_delay() {
    let (_bed, agent) = starts_once(Failing {
        operation: Operation::ListContainers,
        target: "",
        left: AtomicUsize::new(4),
        made: false,
        error: EngineError::Api {
            status: 500,
            message: "the test says so".to_owned(),
        },
    })
    .await;
    // pods 55
    assert!(agent.status().engine.reachable);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_is_under_way_is_waited_for() {
    let (bed, agent) = starts_once(Failing {
        operation: Operation::RemoveContainer,
        target: "",
        left: AtomicUsize::new(5),
        made: false,
        error: EngineError::Api {
            status: 409,
            message: "removal of container 0123 is already in progress".to_owned(),
        },
    })
    .await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    // docker 58
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    agent.stop().await;
}

/// Holds back the inspects of one container, then fails them as an Engine does that is stuck.
#[derive(Default)]
struct StuckInspect {
    id: Mutex<Option<String>>,
    asked: Notify,
    release: Notify,
}

#[async_trait]
impl Script for StuckInspect {
    async fn before(&self, call: &Call) -> Before {
        let stuck = call.operation == Operation::InspectContainer
            && self.id.lock().unwrap().as_ref() == Some(&call.target);
        if !stuck {
            return Before::Proceed;
        }
        self.asked.notify_one();
        self.release.notified().await;
        Before::Fail(timeout("inspect"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_inspect_holds_back_its_own_pod_only() {
    let bed = Bed::new();
    let history = History::of(&bed).await;
    bed.write("stuck.yaml", &sleeper("stuck"));
    bed.write("other.yaml", &sleeper("other"));
    let engine = ScriptedEngine::new(&bed.docker, StuckInspect::default());
    let agent = bed.agent_over(engine.clone()).await;
    agent.until_running("stuck").await;
    agent.until_running("other").await;
    let stuck = bed.running_id("stuck");
    *engine.script.id.lock().unwrap() = Some(stuck.clone());
    bed.docker(&["kill", &stuck]);
    engine.script.asked.notified().await;

    bed.write("new.yaml", &sleeper("new"));
    // docker 60
    agent.until_running("new").await;
    bed.docker(&["kill", &bed.running_id("other")]);
    // pods 42
    agent
        .until_pod("other", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    bed.remove("new.yaml");
    agent.until_gone("new").await;
    assert_eq!(
        history.starts("stuck"),
        1,
        "what can't be seen is left alone"
    );

    *engine.script.id.lock().unwrap() = None;
    engine.script.release.notify_one();
    agent
        .until_pod("stuck", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    assert_starts(&history, "stuck", 2).await;
    history.assert_nothing_ran_twice();
    agent.stop().await;
}

/// An Engine that goes away and comes back.
#[derive(Default)]
struct Away {
    now: AtomicBool,
    changed: std::sync::Arc<Notify>,
}

#[async_trait]
impl Script for Away {
    async fn before(&self, _call: &Call) -> Before {
        if self.now.load(Ordering::SeqCst) {
            return Before::Fail(unavailable());
        }
        Before::Proceed
    }

    fn events(&self, stream: Stream) -> Stream {
        let changed = std::sync::Arc::clone(&self.changed);
        stream
            .take_until(async move { changed.notified().await })
            .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_away_is_waited_for() {
    let bed = Bed::new();
    let history = History::of(&bed).await;
    bed.write("web.yaml", &sleeper("web"));
    bed.write("calm.yaml", &sleeper("calm"));
    let engine = ScriptedEngine::new(&bed.docker, Away::default());
    let agent = bed.agent_over(engine.clone()).await;
    agent.until_running("web").await;
    agent.until_running("calm").await;
    let calm = bed.running_id("calm");

    engine.script.now.store(true, Ordering::SeqCst);
    engine.script.changed.notify_waiters();
    let report = agent
        .until("the loss to be told", |report| {
            let error = report.engine.error.as_deref().unwrap_or_default();
            !report.engine.reachable && error.contains("the test says so")
        })
        .await;
    assert!(report.engine.unreachable_since.is_some());
    let pod = agent.pod("web").unwrap();
    // pods 55
    assert!(
        pod.message.contains("waiting for the Docker Engine"),
        "{pod:?}"
    );
    // Life goes on behind its back.
    bed.docker(&["kill", &bed.running_id("web")]);
    bed.write("new.yaml", &sleeper("new"));
    agent
        .until_pod("new", |pod| {
            pod.message.contains("waiting for the Docker Engine")
        })
        .await;

    engine.script.now.store(false, Ordering::SeqCst);
    agent
        .until("the return to be told", |report| report.engine.reachable)
        .await;
    agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    agent.until_running("new").await;
    let pod = agent.until_running("calm").await;
    assert_eq!((pod.restarts, bed.running_id("calm")), (0, calm));
    assert_starts(&history, "web", 2).await;
    assert_starts(&history, "new", 1).await;
    history.assert_nothing_ran_twice();
    agent.stop().await;
}
