//! The life of pods under a whole agent, on a real Engine.

mod common;

use common::{Bed, sleeper};

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_becomes_a_running_pod_and_its_removal_ends_it() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    let pod = agent.until_running("web").await;
    assert_eq!(pod.restarts, 0);
    assert_eq!(pod.ips.len(), 1, "{pod:?}");
    assert_eq!(bed.running().len(), 2, "a sandbox and a container");
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    assert!(!bed.path().join("pods").join(pod.uid.as_str()).exists());
    agent.stop().await;
}
