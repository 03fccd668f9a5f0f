//! A user's `docker restart`, `docker stop` and `docker start` on containers of pods, told apart from
//! crashes.

use crate::common::recorder::Recorder;
use crate::common::{Bed, TestAgent, eventually, sleeper};
use mirrorlet_core::api::report::PodReport;

/// Waits until the pod runs in its only running instance, with that restart count.
async fn until_settled(bed: &Bed, agent: &TestAgent, name: &str, restarts: u32) -> PodReport {
    let settled = |pod: &PodReport| pod.restarts == restarts && pod.status == "Running";
    let pod = agent.until_pod(name, settled).await;
    let prefix = format!("k8s_{name}_");
    eventually("one running instance", || {
        let running = bed.running().into_keys();
        (running.filter(|n| n.starts_with(&prefix)).count() == 1).then_some(())
    })
    .await;
    // A pod that is new to the agent has been through its rounds by then, and so has this one.
    bed.write("mark.yaml", &sleeper("mark"));
    agent.until_running("mark").await;
    bed.remove("mark.yaml");
    agent.until_gone("mark").await;
    assert_eq!(agent.until_pod(name, settled).await.uid, pod.uid);
    pod
}

fn backed_off(agent: &TestAgent, pod: &str) -> bool {
    let events = agent.events(pod);
    events.iter().any(|event| event.starts_with("BackOff"))
}

fn assert_never_two(events: &Recorder, container: &str) {
    let most = events.most_at_once(&format!("k8s_{container}_"));
    assert!(most <= 1, "{:#?}", events.events());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_docker_restart_is_no_crash_and_ends_in_one_instance() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    let events = bed.record();
    let sandbox = bed.running_id("POD");
    for restarts in 1..=3 {
        bed.docker(&["restart", &bed.running_id("web")]);
        until_settled(&bed, &agent, "web", restarts).await;
    }
    assert_never_two(&events, "web");
    // box 12
    assert!(!backed_off(&agent, "web-box"));
    let told = agent.events("web-box");
    let restarted = "ByHand A user restarted container web with docker";
    assert!(told.iter().any(|event| event == restarted), "{told:#?}");
    assert_eq!(bed.running_id("POD"), sandbox);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_container_comes_back_as_its_policy_says() {
    let bed = Bed::new();
    let once = sleeper("once").replace("spec:", "spec:\n  restartPolicy: Never");
    let agent = bed
        .agent_running(&[("web", sleeper("web")), ("once", once)])
        .await;
    for restarts in 1..=2 {
        bed.docker(&["stop", &bed.running_id("web")]);
        until_settled(&bed, &agent, "web", restarts).await;
    }
    assert!(!backed_off(&agent, "web-box"));
    let stopped = "ByHand A user stopped container web with docker";
    agent.until_event("web-box", stopped).await;
    bed.docker(&["stop", &bed.running_id("once")]);
    let over = |pod: &PodReport| pod.phase == "Succeeded";
    // box 12
    assert_eq!(agent.until_pod("once", over).await.restarts, 0);
    let stopped = "ByHand A user stopped container once with docker";
    agent.until_event("once-box", stopped).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_instance_that_is_started_again_is_stopped() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    bed.docker(&["kill", &bed.running_id("web")]);
    until_settled(&bed, &agent, "web", 1).await;
    let instances = bed.instances("web");
    bed.docker(&["start", &instances[&0]]);
    eventually("the start to be noticed", || {
        let mut events = agent.events("web-box").into_iter();
        events.find(|event| event.starts_with("ByHand A user "))
    })
    .await;
    until_settled(&bed, &agent, "web", 1).await;
    // box 12
    assert_eq!(bed.running_id("web"), instances[&1]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_stopped_or_restarted_is_replaced_with_its_containers() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    let events = bed.record();
    for (restarts, verb, told) in [
        (
            1,
            "restart",
            "ByHand A user restarted the sandbox with docker",
        ),
        (2, "stop", "ByHand A user stopped the sandbox with docker"),
    ] {
        bed.docker(&[verb, &bed.running_id("POD")]);
        until_settled(&bed, &agent, "web", restarts).await;
        agent.until_event("web-box", told).await;
        bed.running_id("POD");
    }
    assert_never_two(&events, "web");
    assert_never_two(&events, "POD_web-box");
    // box 12
    assert!(!backed_off(&agent, "web-box"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_that_no_agent_saw_are_found_by_the_next() {
    let bed = Bed::new();
    let agent = bed
        .agent_running(&[("a", sleeper("a")), ("b", sleeper("b"))])
        .await;
    let sandboxes = bed.running();
    let sandbox = sandboxes
        .iter()
        .find(|(n, _)| n.starts_with("k8s_POD_b-box"));
    agent.kill();
    let events = bed.record();
    bed.docker(&["restart", &bed.running_id("a")]);
    bed.docker(&["restart", sandbox.unwrap().1]);
    let agent = bed.agent().await;
    until_settled(&bed, &agent, "a", 1).await;
    until_settled(&bed, &agent, "b", 1).await;
    for container in ["a", "b", "POD_a-box", "POD_b-box"] {
        // box 12
        assert_never_two(&events, container);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_cut_from_its_network_is_made_anew() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    agent.until_running("web").await;
    let before = bed.running_id("POD");
    let networks = bed.inspect(&before)["NetworkSettings"]["Networks"].clone();
    for network in networks.as_object().unwrap().keys() {
        bed.docker(&["network", "disconnect", network, &before]);
    }
    agent
        .until_pod("web", |pod| {
            pod.restarts == 1 && pod.is_ready() && pod.ips.len() == 1
        })
        .await;
    // box 12
    assert_ne!(bed.running_id("POD"), before);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_policy_given_to_docker_lasts_as_long_as_its_instance() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    let before = bed.running_id("web");
    bed.docker(&["update", "--restart=always", &before]);
    let process = bed.inspect(&before)["State"]["Pid"].to_string();
    let ended = std::process::Command::new("kill")
        .args(["-KILL", &process])
        .status();
    assert!(ended.unwrap().success());
    until_settled(&bed, &agent, "web", 1).await;
    let after = bed.running_id("web");
    // box 12
    assert_ne!(after, before);
    let policy = &bed.inspect(&after)["HostConfig"]["RestartPolicy"]["Name"];
    assert_eq!(policy, "no");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_a_person_paused_is_reported_until_it_is_unpaused() {
    let bed = Bed::new();
    let agent = bed.agent_running(&[("web", sleeper("web"))]).await;
    let (container, sandbox) = (bed.running_id("web"), bed.running_id("POD"));
    let paused = |pod: &PodReport| pod.status == "Paused";
    for (id, named) in [(&container, "container web"), (&sandbox, "the sandbox")] {
        bed.docker(&["pause", id]);
        let message = agent.until_pod("web", paused).await.message;
        let expected = format!("a user paused {named} with docker at ");
        assert!(message.starts_with(&expected), "{message}");
        let help = format!("; unpause it with: docker unpause {}", &id[..12]);
        // box 12
        assert!(message.ends_with(&help), "{message}");
        let told = format!("ByHand A user paused {named} with docker");
        agent.until_event("web-box", &told).await;
        bed.docker(&["unpause", id]);
        until_settled(&bed, &agent, "web", 0).await;
        let told = format!("ByHand A user unpaused {named} with docker");
        agent.until_event("web-box", &told).await;
    }
    agent.kill();
    bed.docker(&["pause", &container]);
    let agent = bed.agent().await;
    let uid = agent.until_pod("web", paused).await.uid;
    // A paused container can be stopped.
    bed.write("web.yaml", &sleeper("web").replace("sleep 1", "sleep 2"));
    let replaced = |pod: &PodReport| pod.uid != uid && pod.is_ready();
    agent.until_pod("web", replaced).await;
    agent.stop().await;
}
