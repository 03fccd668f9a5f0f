//! Garbage collection of containers on the real Engine: what an agent left behind is collected,
//! and nothing else.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, IMAGE, eventually};
use mirrorlet_core::api::PodUid;
use mirrorlet_core::gc::{Cause, ContainerGcPolicy, PodLife};
use mirrorlet_docker::engine::Engine as _;
use mirrorlet_docker::translate::HostFacts;
use mirrorlet_docker::{
    BollardEngine, DockerManager, DockerManagerOptions, ImagePuller, PullerOptions,
};
use mirrorlet_host::telemetry::{Metrics, Telemetry};
use mirrorlet_runtime::Runtime;
use mirrorlet_runtime::gc::{ContainerGc, PodStateProvider};
use mirrorlet_runtime::objects::{ManifestObjects, PodObjects};

/// A pod whose container ends again and again.
fn crasher(bed: &Bed, name: &str) -> String {
    let uid = bed.uid(name);
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  uid: {uid}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: {name}\n    image: {IMAGE}\n    command: [sh, -c, \"echo said by {name}; exit 1\"]\n"
    )
}

/// States of pods; those that aren't named are unknown.
struct States(BTreeMap<PodUid, PodLife>);

impl PodStateProvider for States {
    fn life(&self, uid: &PodUid) -> PodLife {
        self.0.get(uid).copied().unwrap_or(PodLife::Gone)
    }

    fn all_sources_ready(&self) -> bool {
        true
    }
}

/// A collector of what the bed's last agent left, and the metrics of its Engine.
async fn collector(
    bed: &Bed,
    policy: ContainerGcPolicy,
    known: &[(&str, PodLife)],
) -> (ContainerGc, Metrics) {
    let telemetry = Telemetry::new();
    let engine = Arc::new(BollardEngine::connect(&bed.docker).unwrap());
    let metrics = telemetry.metrics.clone();
    engine.meter().count_in(metrics.clone(), None);
    let manager = DockerManager::new(
        engine.clone(),
        Arc::new(ImagePuller::new(engine, PullerOptions::default())),
        telemetry,
        DockerManagerOptions {
            owner: bed.owner().unwrap(),
            root: bed.path().to_owned(),
            node: HostFacts::default(),
            pod_infra_image: None,
            engine_concurrency: 4,
            objects: PodObjects::new(Arc::new(ManifestObjects::none())),
            host_files: mirrorlet_host::volume::HostFiles::default(),
            pod_logs_dir: None,
        },
    );
    manager.get_pods(true).await.unwrap();
    let known = known
        .iter()
        .map(|(pod, life)| (PodUid::from(bed.uid(pod).as_str()), *life));
    let states = Arc::new(States(known.collect()));
    (ContainerGc::new(Arc::new(manager), policy, states), metrics)
}

/// Runs crashing pods until each has that many instances, and leaves them all dead: one that the agent
/// made, and whose start it may have asked for when it was stopped, is started here.
async fn leave(bed: &Bed, pods: &[&str], dead: usize) {
    let mut resolved = bed.resolved();
    resolved.config.max_container_backoff = Duration::from_secs(1);
    resolved.config.maximum_dead_containers_per_container = -1;
    let agent = bed.agent_as(resolved).await;
    for name in pods {
        bed.write(&format!("{name}.yaml"), &crasher(bed, name));
    }
    for name in pods {
        eventually(&format!("{dead} dead instances of {name}"), || {
            (bed.instances(name).len() >= dead).then_some(())
        })
        .await;
    }
    agent.stop().await;
    let created = eventually("every instance to be found", || {
        let ids = pods
            .iter()
            .flat_map(|name| bed.instances(name).into_values());
        let states = ids.map(|id| {
            let is_created = bed.look(&id)?["State"]["Status"] == "created";
            Some(is_created.then_some(id))
        });
        states.collect::<Option<Vec<_>>>()
    })
    .await;
    for id in created.into_iter().flatten() {
        bed.docker(&["start", &id]);
    }
    eventually("the last instances to end", || {
        let runs = |name: &&str| {
            bed.running()
                .keys()
                .any(|c| c.starts_with(&format!("k8s_{name}_")))
        };
        (!pods.iter().any(runs)).then_some(())
    })
    .await;
}

fn counts(bed: &Bed, name: &str) -> Vec<u32> {
    let mut counts: Vec<u32> = bed.instances(name).into_keys().collect();
    counts.sort_unstable();
    counts
}

/// How many dead instances there are.
fn dead(bed: &Bed, name: &str) -> usize {
    let instances = bed.instances(name);
    let is_dead = |id: &&String| bed.inspect(id)["State"]["Status"] == "exited";
    instances.values().filter(is_dead).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn old_instances_are_collected_and_restart_counts_go_on() {
    let bed = Bed::new();
    leave(&bed, &["loop"], 4).await;
    let before = dead(&bed, "loop");
    let newest = *counts(&bed, "loop").last().unwrap();
    let known = [("loop", PodLife::Known)];
    let (gc, metrics) = collector(&bed, ContainerGcPolicy::default(), &known).await;
    let outcome = gc.garbage_collect().await;
    assert_eq!(outcome.error(), None);
    assert_eq!(outcome.removed[&Cause::PerContainer], before - 1);
    // docker 56
    assert_eq!(dead(&bed, "loop"), 1);
    assert_eq!(counts(&bed, "loop").last(), Some(&newest));
    // With nothing left to collect, nothing is asked.
    let calls = || {
        let text = metrics.encode();
        let is_asked = |line: &&str| {
            let operations = ["list_containers", "remove_container"];
            line.contains("operations_total{") && operations.iter().any(|one| line.contains(one))
        };
        text.lines()
            .filter(is_asked)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = calls();
    assert!(gc.garbage_collect().await.removed.is_empty());
    assert!(before.len() == 2 && calls() == before, "{before:?}");
    // The next agent goes on counting where the last one was.
    let agent = bed.agent().await;
    agent.until_pod("loop", |pod| pod.restarts > newest).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_node_are_shared_fairly() {
    let bed = Bed::new();
    leave(&bed, &["many", "few"], 4).await;
    let known = [("many", PodLife::Known), ("few", PodLife::Known)];
    let policy = ContainerGcPolicy::new(Duration::ZERO, -1, 4);
    let (gc, _) = collector(&bed, policy, &known).await;
    assert_eq!(gc.garbage_collect().await.error(), None);
    // docker 56
    assert_eq!((dead(&bed, "many"), dead(&bed, "few")), (2, 2));
    // Nothing is old enough for a policy that keeps everything for an hour.
    let policy = ContainerGcPolicy::new(Duration::from_hours(1), 0, 0);
    let (gc, _) = collector(&bed, policy, &known).await;
    assert!(gc.garbage_collect().await.removed.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn remains_of_pods_that_are_gone_or_over_go_and_foreign_containers_stay() {
    let bed = Bed::new();
    leave(&bed, &["gone", "over", "kept"], 2).await;
    // Sandboxes of an agent that was stopped still run: they are stopped as a worker would.
    for id in bed.running().values() {
        bed.docker(&["stop", "-t", "0", id]);
    }
    let foreign = format!("foreign-{}", bed.owner().unwrap());
    bed.docker(&[
        "create",
        "--name",
        &foreign,
        "--label",
        "mirrorlet.dev/owner=x",
        IMAGE,
        "true",
    ]);
    let known = [("over", PodLife::Over), ("kept", PodLife::Known)];
    let (gc, _) = collector(&bed, ContainerGcPolicy::default(), &known).await;
    let outcome = gc.garbage_collect().await;
    assert_eq!(outcome.error(), None);
    assert!(outcome.removed[&Cause::PodGone] >= 3, "{outcome:?}");
    assert!(counts(&bed, "gone").is_empty());
    assert_eq!(dead(&bed, "over"), 1);
    let outcome = gc.delete_all_unused_containers().await;
    assert!(outcome.removed[&Cause::PodOver] >= 2, "{outcome:?}");
    // docker 56
    assert!(counts(&bed, "over").is_empty());
    assert_eq!(dead(&bed, "kept"), 1);
    let there = Command::new("docker")
        .args(["inspect", &foreign])
        .output()
        .unwrap();
    bed.docker(&["rm", &foreign]);
    assert!(there.status.success(), "the foreign container is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_keeps_as_many_dead_instances_as_it_is_told() {
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    resolved.config.max_container_backoff = Duration::from_secs(1);
    resolved.config.maximum_dead_containers_per_container = 2;
    let agent = bed.agent_as(resolved).await;
    bed.write("loop.yaml", &crasher(&bed, "loop"));
    // docker 56
    agent.until_pod("loop", |pod| pod.restarts >= 4).await;
    eventually("the old instances to go", || {
        let counts = counts(&bed, "loop");
        (counts.len() <= 3 && !counts.contains(&0)).then_some(())
    })
    .await;
    agent.stop().await;
}
