//! Pods that are over: what each of them costs the agent.

use std::ops::Range;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::Settings;
use crate::common::IMAGE;
use crate::common::cluster::Cluster;
use crate::node::Agent;
use crate::report::Figure;

/// Pods that are created at a time.
const AT_A_TIME: usize = 8;
/// How long the agent does what is left to do once the last pod is over.
const REST: Duration = Duration::from_secs(20);

/// Measures what pods that the node refused take: those of a burst, each of as many further ones, and
/// all of them in an agent that finds them.
pub async fn measure(settings: &Settings, cluster: &Cluster) -> anyhow::Result<[Figure; 3]> {
    const NODE: &str = "bench-finished";
    let pods = settings.finished;
    let (agent, _engine) = Agent::start(settings, cluster, NODE).await?;
    tokio::time::sleep(REST).await;
    let none = agent.memory_mib("RssAnon")?;
    create(&agent, cluster, 0..pods).await?;
    // What so many take while they are refused stays with the allocator, and serves the next ones.
    let burst = agent.memory_mib("RssAnon")?;
    create(&agent, cluster, pods..2 * pods).await?;
    let further = agent.memory_mib("RssAnon")?;
    drop(agent);
    let (agent, _engine) = Agent::start(settings, cluster, NODE).await?;
    tokio::time::sleep(REST).await;
    let found = agent.memory_mib("RssAnon")?;
    let each = |name, before: f64, after: f64, number: usize| {
        let remark = format!("{before:.1} MiB anonymous before, {after:.1} with {number} more");
        let more = (after - before) * 1024.0 / number as f64;
        Figure::new(name, more, "KiB", "below 2 KiB", 2.0, remark)
    };
    let remark =
        format!("{none:.1} MiB anonymous before, {burst:.1} with {pods} that were refused");
    let target = "a tenth of the chart's memory limit";
    let name = "a burst of pods that are refused: memory";
    Ok([
        each(
            "a pod that is over, found at the start: memory",
            none,
            found,
            2 * pods,
        ),
        Figure::new(name, burst - none, "MiB", target, 25.6, remark),
        each("… each that came after the burst", burst, further, pods),
    ])
}

/// Creates pods of these numbers, and returns once all of them are over and nothing is left to do.
async fn create(agent: &Agent, cluster: &Cluster, numbers: Range<usize>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.admin().await, "default");
    let note = "x".repeat(2_000);
    let created = stream::iter(numbers).map(async |number| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("refused-{number}"),
                "labels": {"is": "refused"}, "annotations": {"note": note},
            },
            "spec": {
                "nodeName": agent.node, "nodeSelector": {"no": "such"},
                "containers": [{"name": "c", "image": IMAGE}],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        anyhow::Ok(())
    });
    let created: Vec<_> = created.buffer_unordered(AT_A_TIME).collect().await;
    created.into_iter().collect::<anyhow::Result<()>>()?;
    let rest = ListParams::default()
        .labels("is=refused")
        .fields("status.phase!=Failed")
        .limit(1);
    while !pods.list_metadata(&rest).await?.items.is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(REST).await;
    Ok(())
}
