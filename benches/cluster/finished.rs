//! Pods that are over: what each of them costs the agent.

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

/// Measures what pods that the node refused take: while they come, and of an agent that finds them.
pub async fn measure(settings: &Settings, cluster: &Cluster) -> anyhow::Result<[Figure; 2]> {
    const NODE: &str = "bench-finished";
    let pods = settings.finished;
    let of_each = |more: f64| more * 1024.0 / pods as f64;
    let (agent, _engine) = Agent::start(settings, cluster, NODE).await?;
    tokio::time::sleep(REST).await;
    let none = agent.memory_mib("RssAnon")?;
    create(&agent, cluster, pods).await?;
    let came = agent.memory_mib("RssAnon")?;
    drop(agent);
    let (agent, _engine) = Agent::start(settings, cluster, NODE).await?;
    tokio::time::sleep(REST).await;
    let found = agent.memory_mib("RssAnon")?;
    let figure = |name, all| {
        let remark =
            format!("{none:.1} MiB anonymous without, {all:.1} with {pods} that were refused");
        Figure::new(name, of_each(all - none), "KiB", "below 2 KiB", 2.0, remark)
    };
    Ok([
        figure("a pod that is over, found at the start: memory", found),
        figure("… that came while the agent ran", came),
    ])
}

/// Creates that many pods, and returns once all of them are over and nothing is left to do.
async fn create(agent: &Agent, cluster: &Cluster, number: usize) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.admin().await, "default");
    let note = "x".repeat(2_000);
    let created = stream::iter(0..number).map(async |number| {
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
