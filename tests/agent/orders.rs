//! `mirrorlet restart`, `stop` and `start`: users' orders beside the manifests.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::proxy::{Fault, Proxy};
use crate::common::registry::Registry;
use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent, eventually, sleeper, sleeper_of};
use mirrorlet::server::view::{Order, Verb, ViewError};
use mirrorlet_core::api::report::PodReport;

fn order(pod: &str, verb: Verb) -> Order {
    Order {
        pod: pod.to_owned(),
        verb,
        container: None,
        pull: false,
    }
}

async fn give(agent: &TestAgent, order: Order) -> Result<Vec<String>, ViewError> {
    let answer = agent.view().order(&order).await?;
    Ok(answer.containers)
}

fn backed_off(agent: &TestAgent, pod: &str) -> bool {
    let events = agent.events(pod);
    events.iter().any(|event| event.starts_with("BackOff"))
}

/// Two containers and an init container.
fn pair() -> String {
    let app = sleeper("a");
    let other = app
        .split_once("  - name")
        .unwrap()
        .1
        .replace("name: a", "name: b");
    let other = format!("  - name{}", other.replacen(": a", ": b", 1));
    let init = "  initContainers:\n  - {name: init, image: mirrorlet.test/busybox:1, command: [\"true\"]}\n";
    app.replacen("name: a", "name: pair", 1).replacen(
        "  containers:",
        &format!("{init}  containers:"),
        1,
    ) + &other
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_makes_new_instances_without_back_off() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("pair.yaml", &pair());
    agent.until_running("pair").await;
    let sandbox = bed.running_id("POD");
    let events = bed.record();
    for restarts in [2, 4, 6] {
        let done = give(&agent, order("pair", Verb::Restart)).await;
        assert_eq!(done.unwrap(), ["a", "b"]);
        let again = |pod: &PodReport| pod.restarts == restarts && pod.ready == 2;
        agent.until_pod("pair", again).await;
    }
    let one = Order {
        container: Some("b".to_owned()),
        ..order("pair", Verb::Restart)
    };
    assert_eq!(give(&agent, one).await.unwrap(), ["b"]);
    let again = |pod: &PodReport| pod.restarts == 7 && pod.ready == 2;
    agent.until_pod("pair", again).await;
    assert!(!backed_off(&agent, "pair-box"));
    agent
        .until_event("pair-box", "PodRestarted A user restarted the pod")
        .await;
    assert_eq!(bed.running_id("POD"), sandbox);
    assert_eq!(
        (events.most_at_once("k8s_a_"), events.most_at_once("k8s_b_")),
        (1, 1)
    );
    for (container, words) in [
        ("init", "container init is an init container"),
        ("c", "no container"),
    ] {
        let wrong = Order {
            container: Some(container.to_owned()),
            ..order("pair", Verb::Restart)
        };
        let error = give(&agent, wrong).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    agent.stop().await;
}

/// A sleeper that ends only once its file `/end` is there, or its grace is over.
fn stubborn(name: &str) -> String {
    sleeper(name)
        .replace(
            "'exit 0'",
            "'until test -e /end; do sleep 0.1; done; exit 0'",
        )
        .replace("PeriodSeconds: 1", "PeriodSeconds: 600")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_not_ready_from_an_order_on_until_it_is_executed() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", stubborn("web"))]).await;
    bed.until_traps("web").await;
    let id = bed.running_id("web");
    assert!(agent.pod("web").unwrap().is_ready());
    let end = |id: &str| bed.docker(&["exec", id, "touch", "/end"]);
    give(&agent, order("web", Verb::Restart)).await.unwrap();
    // Its worker may not have seen the order yet.
    let pod = agent.pod("web").unwrap();
    assert_eq!((pod.status.as_str(), pod.is_ready()), ("Restarting", false));
    assert_eq!(bed.running_id("web"), id);
    end(&id);
    let pod = agent.until_pod("web", PodReport::is_ready).await;
    assert_eq!((pod.status.as_str(), pod.restarts), ("Running", 1));
    let second = bed.running_id("web");
    assert_ne!(second, id);
    bed.until_traps("web").await;
    give(&agent, order("web", Verb::Stop)).await.unwrap();
    let pod = agent.pod("web").unwrap();
    assert_eq!((pod.status.as_str(), pod.is_ready()), ("Stopping", false));
    end(&second);
    let stopped = |pod: &PodReport| pod.status == "Stopped";
    agent.until_pod("web", stopped).await;
    give(&agent, order("web", Verb::Start)).await.unwrap();
    assert_ne!(agent.pod("web").unwrap().status, "Stopped");
    agent.until_pod("web", PodReport::is_ready).await;
    assert!(![id, second].contains(&bed.running_id("web")));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_restarts_nothing() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // There is no such registry.
    bed.write(
        "web.yaml",
        &sleeper("web").replace("image:", "imagePullPolicy: Never\n    image:"),
    );
    agent.until_running("web").await;
    let id = bed.running_id("web");
    let pull = Order {
        pull: true,
        ..order("web", Verb::Restart)
    };
    let error = give(&agent, pull).await.unwrap_err().to_string();
    assert!(error.starts_with("nothing was restarted: "), "{error}");
    assert_eq!(bed.running_id("web"), id);
    assert_eq!(agent.pod("web").unwrap().restarts, 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_after_a_long_pull_is_one_of_what_runs_then() {
    let registry = Registry::open().await;
    let proxy = Proxy::to(&registry).await;
    let image = proxy.image("a/app:1");
    registry.removes(&image);
    registry.push("a/app:1");
    let bed = Bed::new();
    let agent = bed
        .agent_running(&[("web", sleeper_of("web", &image))])
        .await;
    bed.until_traps("web").await;
    let first = bed.running_id("web");
    let before = bed.inspect(&first)["Image"].clone();
    // On the Engine the tag means the image before still, which the agent has pulled.
    registry.push_large("a/app:1");
    proxy.set(Fault::Slow(Duration::from_secs(5)));
    let pull = Order {
        pull: true,
        ..order("web", Verb::Restart)
    };
    let view = agent.view();
    let ordered = tokio::spawn(async move { view.order(&pull).await });
    agent
        .until("the pull", |report| {
            report.pulls.iter().any(|pull| pull.image == image)
        })
        .await;
    bed.docker(&["kill", "--signal", "TERM", &first]);
    agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    assert!(!ordered.is_finished(), "the pull was too fast");
    proxy.set(Fault::None);
    ordered.await.unwrap().unwrap();
    agent
        .until_pod("web", |pod| pod.restarts == 2 && pod.ready == 1)
        .await;
    let third = bed.running_id("web");
    // box 13
    assert_ne!(bed.inspect(&third)["Image"], before);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_its_image_stops_nothing() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let image = format!("mirrorlet-test-restart:{}", std::process::id());
    bed.docker(&["tag", IMAGE, &image]);
    let of_image =
        sleeper_of("web", &image).replace("image:", "imagePullPolicy: Never\n    image:");
    bed.write("web.yaml", &of_image);
    agent.until_running("web").await;
    let id = bed.running_id("web");
    // An agent that has not seen the image yet.
    agent.stop().await;
    bed.docker(&["rmi", &image]);
    let agent = bed.agent().await;
    agent.until_running("web").await;
    let error = give(&agent, order("web", Verb::Restart)).await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("nothing was restarted: ErrImageNeverPull"),
        "{error}"
    );
    assert_eq!(bed.running_id("web"), id);
    assert_eq!(agent.pod("web").unwrap().restarts, 0);
    agent.stop().await;
}

/// Containers of the pod, without the instances' ends.
fn states(pod: &PodReport) -> BTreeMap<String, String> {
    let all = pod.containers.iter();
    all.map(|c| (c.name.clone(), format!("{} {}", c.state, c.reason)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_pod_stays_stopped_until_it_is_started_or_edited() {
    let bed = Bed::new();
    let once = sleeper("once").replace("spec:", "spec:\n  restartPolicy: Never");
    let agent = bed
        .agent_running(&[("web", sleeper("web")), ("once", once)])
        .await;
    for pod in ["web", "once"] {
        give(&agent, order(pod, Verb::Stop)).await.unwrap();
        let stopped = |pod: &PodReport| pod.status == "Stopped";
        agent.until_pod(pod, stopped).await;
    }
    let web = agent.pod("web").unwrap();
    assert_eq!(states(&web)["web"], "waiting Stopped");
    assert_eq!((web.phase.as_str(), web.ready), ("Running", 0));
    let again = agent.view().order(&order("web", Verb::Stop)).await.unwrap();
    assert!(again.is_unchanged);
    let error = give(&agent, order("web", Verb::Restart)).await.unwrap_err();
    assert_eq!(error.to_string(), "pod default/web-box is stopped");
    agent
        .until_event("web-box", "PodStopped A user stopped the pod")
        .await;
    assert!(bed.running().is_empty(), "{:?}", bed.running());
    agent.kill();
    let agent = bed.agent().await;
    bed.write("mark.yaml", &sleeper("mark"));
    agent.until_running("mark").await;
    for pod in ["web", "once"] {
        // box 13
        assert_eq!(agent.pod(pod).unwrap().status, "Stopped");
    }
    let running = bed.running().into_keys();
    assert!(running.into_iter().all(|name| name.contains("mark-box")));
    for pod in ["web", "once"] {
        give(&agent, order(pod, Verb::Start)).await.unwrap();
        agent.until_running(pod).await;
    }
    assert!(!backed_off(&agent, "web-box"));
    // An edit ends it, too.
    give(&agent, order("web", Verb::Stop)).await.unwrap();
    let stopped = |pod: &PodReport| pod.status == "Stopped";
    agent.until_pod("web", stopped).await;
    bed.write("web.yaml", &sleeper_of("web", IMAGE_2));
    agent.until_running("web").await;
    eventually("the new image", || {
        let image = bed.inspect(&bed.running_id("web"))["Config"]["Image"].to_string();
        image.contains("busybox:2").then_some(())
    })
    .await;
    let again = agent
        .view()
        .order(&order("web", Verb::Start))
        .await
        .unwrap();
    assert!(again.is_unchanged);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_while_it_stops_a_pod_is_followed_by_one_that_does() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    give(&agent, order("web", Verb::Stop)).await.unwrap();
    agent.kill();
    let agent = bed.agent().await;
    let stopped = |pod: &PodReport| pod.status == "Stopped";
    let pod = agent.until_pod("web", stopped).await;
    // box 13
    assert_eq!(pod.ready, 0);
    assert!(bed.running().is_empty());
    give(&agent, order("web", Verb::Start)).await.unwrap();
    agent.until_running("web").await;
    agent.stop().await;
}
