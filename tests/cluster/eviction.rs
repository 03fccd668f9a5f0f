//! Pods of an API server on a node that runs short.

use crate::common::IMAGE;
use crate::common::node::{NodeBed, QUIET, bound, condition, is_ready};
use mirrorlet_core::eviction::{Amount, Signal};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn under_memory_pressure_pods_are_evicted_and_best_effort_ones_are_not_taken() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.cluster
        .apply(&bound(&bed, "early", IMAGE, QUIET).to_string());
    bed.until_pod("early", is_ready).await;
    bed.sleeper("static");
    agent.until_running("static").await;
    let running = bed.running_id("static");
    agent.stop().await;

    // No machine has all of its memory left.
    let mut resolved = bed.resolved();
    let all = Amount::parse("99.9%").unwrap();
    resolved.config.eviction_hard = vec![(Signal::MemoryAvailable, all)];
    let agent = bed.bed.agent_as(resolved).await;
    let evicted = bed
        .until_pod("early", |pod| pod["status"]["phase"] == "Failed")
        .await;
    // eviction 9
    assert_eq!(evicted["status"]["reason"], "Evicted");
    let message = evicted["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. Threshold quantity: "));
    assert_eq!(condition(&evicted, "DisruptionTarget"), Some("True"));
    // eviction 3
    bed.until_node("MemoryPressure", |node| {
        condition(node, "MemoryPressure") == Some("True")
    })
    .await;

    bed.cluster
        .apply(&bound(&bed, "late", IMAGE, QUIET).to_string());
    let refused = bed
        .until_pod("late", |pod| pod["status"]["phase"] == "Failed")
        .await;
    // eviction 10
    assert_eq!(refused["status"]["reason"], "Evicted");
    assert_eq!(
        refused["status"]["message"],
        "Pod was rejected: The node had condition: [MemoryPressure]. "
    );
    let mut wanted = bound(&bed, "spared", IMAGE, QUIET);
    wanted["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": "1Gi"}});
    bed.cluster.apply(&wanted.to_string());
    // It requests memory, so it is taken, and is the next to go.
    let evicted = bed
        .until_pod("spared", |pod| pod["status"]["phase"] == "Failed")
        .await;
    // eviction 10
    let message = evicted["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("The node was low on resource: memory. "),
        "{message}"
    );
    // eviction 5
    assert_eq!(bed.running_id("static"), running);
    agent.stop().await;
}
