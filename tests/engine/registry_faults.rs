//! A whole agent whose images come from a real registry, and what can go wrong on the way: the
//! credentials, the tag, the connection, the content.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::proxy::{Fault, Proxy};
use crate::common::registry::{PASSWORD, Registry};
use crate::common::{self, Bed, TestAgent, sleeper_of};
use mirrorlet_core::api::report::{ContainerReport, PullPhase};

/// Waits until the pod's container can't start for want of its image; why not.
async fn until_refused(agent: &TestAgent, pod: &str) -> ContainerReport {
    let reasons = ["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"];
    let failed = |container: &ContainerReport| reasons.contains(&container.reason.as_str());
    let status = agent
        .until_pod(pod, |pod| pod.containers.iter().any(failed))
        .await;
    let mut containers = status.containers.into_iter();
    containers.find(|container| failed(container)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_in_trouble_is_told_and_tried_again() {
    let registry = Registry::open().await;
    registry.push("a/app:1");
    let proxy = Proxy::to(&registry).await;
    let image = proxy.image("a/app:1");
    registry.removes(&image);
    proxy.set(Fault::Busy);
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper_of("web", &image));
    let refused = until_refused(&agent, "web").await;
    let words = format!("Failed to pull image {image:?}: RegistryUnavailable: ");
    // docker 49
    assert!(refused.message.contains(&words), "{}", refused.message);
    proxy.set(Fault::None);
    agent.until_running("web").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_is_not_there_is_told_in_the_registrys_words() {
    let registry = Registry::open().await;
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write(
        "web.yaml",
        &sleeper_of("web", &registry.image("a/app:none")),
    );
    let refused = until_refused(&agent, "web").await;
    // A current Engine has words of its own for that.
    let said = |words: &str| refused.message.contains(words);
    // docker 49
    assert!(
        said("manifest unknown") || said("a/app:none: not found"),
        "{}",
        refused.message
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_download_is_followed_and_one_that_is_cut_goes_on() {
    let registry = Registry::open().await;
    registry.push_large("a/slow:1");
    registry.push_large("a/cut:1");
    let proxy = Proxy::to(&registry).await;
    let (slow, cut) = (proxy.image("a/slow:1"), proxy.image("a/cut:1"));
    registry.removes(&slow);
    registry.removes(&cut);
    let bed = Bed::new();
    let agent = bed.agent().await;

    proxy.set(Fault::Slow(Duration::from_secs(1)));
    let mut changes = agent.view().changed();
    bed.write("slow.yaml", &sleeper_of("slow", &slow));
    // The report's watchers see every step.
    let mut steps = BTreeSet::new();
    while steps.len() < 3 {
        let change = tokio::time::timeout(common::PATIENCE, changes.changed());
        change.await.expect("nothing is told").unwrap();
        let report = agent.status();
        if let Some(pull) = report.pulls.iter().find(|pull| pull.image == slow)
            && pull.phase == PullPhase::Downloading
            && pull.bytes_done > 0
        {
            // docker 49
            assert!(pull.bytes_done <= pull.bytes_total);
            steps.insert(pull.bytes_done);
        }
    }
    proxy.set(Fault::None);
    agent.until_running("slow").await;
    assert!(agent.status().pulls.is_empty());

    // The Engine itself asks for the rest.
    proxy.set(Fault::CutOnce);
    bed.write("cut.yaml", &sleeper_of("cut", &cut));
    agent.until_running("cut").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_not_what_its_digest_says_is_refused() {
    let registry = Registry::open().await;
    registry.push_large("a/app:1");
    let proxy = Proxy::to(&registry).await;
    let image = proxy.image("a/app:1");
    registry.removes(&image);
    proxy.set(Fault::WrongDigest);
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper_of("web", &image));
    // docker 49
    until_refused(&agent, "web").await;
    assert!(
        bed.running()
            .keys()
            .all(|name| !name.starts_with("k8s_web_"))
    );
    proxy.set(Fault::None);
    agent.until_running("web").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_docker_config_counts_and_is_read_anew() {
    let registry = Registry::private().await;
    let image = registry.push("a/app:1");
    let bed = Bed::new();
    let directory = crate::common::tempdir();
    let config = directory.path().join("config.json");
    let mut resolved = bed.resolved();
    resolved.config.docker_config = Some(directory.path().to_owned());
    let agent = bed.agent_as(resolved).await;
    std::fs::write(&config, registry.config_json("wrong")).unwrap();
    bed.write("web.yaml", &sleeper_of("web", &image));
    let refused = until_refused(&agent, "web").await;
    assert!(!refused.message.contains("wrong"), "{}", refused.message);
    std::fs::write(&config, registry.config_json(PASSWORD)).unwrap();
    // docker 50
    agent.until_running("web").await;
    let report = serde_json::to_string(&agent.status()).unwrap();
    assert!(!report.contains(PASSWORD));

    // By its digest, which the first pull told.
    let id = bed.docker(&[
        "image",
        "inspect",
        "--format",
        "{{index .RepoDigests 0}}",
        &image,
    ]);
    assert!(id.contains("@sha256:"), "{id}");
    bed.write("pinned.yaml", &sleeper_of("pinned", &id));
    agent.until_running("pinned").await;
    agent.stop().await;
}
