//! An edit of a workload does to its pods what `mirrorlet plan` said before.

use std::collections::{BTreeMap, BTreeSet};

use crate::apps_workloads::{deployment, until_alone, workload};
use crate::common::recorder::Recorder;
use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent};
use crate::edits_rollouts::{mirrorlet, rollout};
use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::report::{
    Downtime, OrderedChange, PlanAction, PlanReport, PlannedPod, PodReport, RolloutPhase,
    StatusReport,
};
use mirrorlet_core::rollout::group::WAITS;

/// The UIDs of the pods that run, by their names.
fn uids(report: &StatusReport) -> BTreeMap<String, PodUid> {
    let pods = report.pods.iter();
    pods.map(|pod| (pod.name.clone(), pod.uid.clone()))
        .collect()
}

/// Whether a pod keeps its version for the reason that a plan says. One that couldn't be started may
/// wait for another one of which that is known.
fn is_held_as_planned(planned: &PlannedPod, pod: &PodReport) -> bool {
    pod.rollout.as_ref().is_some_and(|rollout| {
        let is_told = rollout.reason == planned.reason && rollout.message == planned.message;
        let waits = rollout.phase == RolloutPhase::Waiting;
        is_told || (waits && planned.reason != WAITS)
    })
}

/// Whether the pods are those that a plan says.
fn is_as_planned(
    plan: &PlanReport,
    before: &BTreeMap<String, PodUid>,
    report: &StatusReport,
) -> bool {
    plan.pods.iter().all(|planned| {
        let found = report.pods.iter().find(|pod| *pod.name == *planned.name);
        let Some(pod) = found else {
            return planned.action == PlanAction::Remove;
        };
        let is_same = before.get(&planned.name) == Some(&pod.uid);
        let as_planned = match planned.action {
            PlanAction::Create => true,
            PlanAction::Replace => !is_same && pod.rollout.is_none(),
            PlanAction::Held => is_same && is_held_as_planned(planned, pod),
            PlanAction::None => is_same && pod.rollout.is_none(),
            PlanAction::Remove => false,
        };
        as_planned && pod.is_ready()
    })
}

/// Sees that pods changed in the order that a plan says.
async fn in_planned_order(plan: &PlanReport, events: &Recorder) {
    for order in &plan.orders {
        let action = match order.change {
            OrderedChange::Start | OrderedChange::Update => "start",
            OrderedChange::Stop => "die",
        };
        let mut last = 0;
        for step in &order.steps {
            let mut ends = last;
            for pod in step {
                let event = events.until(action, &format!("k8s_web_{pod}_")).await;
                assert!(last < event.at, "{pod} in {order:?}");
                ends = ends.max(event.at);
            }
            last = ends;
        }
    }
}

/// Sees that a pod was replaced with the gap that a plan says.
async fn with_planned_gap(planned: &PlannedPod, old: &PodUid, events: &Recorder) {
    let started = format!("k8s_web_{}_", planned.name);
    let started = events.until("start", &started).await.at;
    let ended = format!("k8s_web_{}_default_{old}_", planned.name);
    let ended = events.until("die", &ended).await.at;
    let is_beside = planned.downtime == Downtime::None;
    assert_eq!(started < ended, is_beside, "{planned:?}");
}

/// Plans an edit, makes it, and sees that what was planned happens, and nothing else. Returns the
/// actions, by the names of the pods.
async fn plan_and_edit(
    bed: &Bed,
    agent: &TestAgent,
    document: &str,
) -> BTreeMap<String, PlanAction> {
    // What was replaced before has stopped: each pod has a row, a container and a sandbox.
    let report = agent
        .until("nothing but the pods to run", |report| {
            let names: BTreeSet<&String> = report.pods.iter().map(|pod| &pod.name).collect();
            names.len() == report.pods.len() && bed.running().len() == 2 * names.len()
        })
        .await;
    let (before, running) = (uids(&report), bed.running());
    let next = tempfile::tempdir().unwrap();
    let file = next.path().join("web.yaml");
    std::fs::write(&file, document).unwrap();
    let args = ["plan", "-o", "json", file.to_str().unwrap()];
    let (code, text) = mirrorlet(bed, &args).await;
    assert!(code == Some(0) || code == Some(2), "{text}");
    let plan: PlanReport = serde_json::from_str(&text).unwrap();
    // workloads 24
    assert_eq!(bed.running(), running, "a plan changes nothing");
    let events = bed.record();
    bed.write("web.yaml", document);
    agent
        .until(&format!("what was planned: {plan:#?}"), |report| {
            is_as_planned(&plan, &before, report)
        })
        .await;
    // workloads 24
    in_planned_order(&plan, &events).await;
    let of = |wanted: PlanAction| plan.pods.iter().filter(move |pod| pod.action == wanted);
    for planned in of(PlanAction::Replace) {
        with_planned_gap(planned, &before[&planned.name], &events).await;
    }
    for (action, event) in [(PlanAction::Create, "start"), (PlanAction::Remove, "die")] {
        for planned in of(action) {
            let name = format!("k8s_web_{}_", planned.name);
            events.until(event, &name).await;
        }
    }
    let touched = |action: &str| -> BTreeSet<String> {
        let events = events.events().into_iter();
        let on = events.filter(|e| e.action == action && e.container.contains("k8s_web_"));
        let pods = on.filter_map(|e| e.container.split('_').nth(2).map(str::to_owned));
        pods.collect()
    };
    let names = |actions: [PlanAction; 2]| -> BTreeSet<String> {
        let pods = actions.into_iter().flat_map(of);
        pods.map(|pod| pod.name.clone()).collect()
    };
    // workloads 24
    assert_eq!(
        touched("start"),
        names([PlanAction::Create, PlanAction::Replace])
    );
    assert_eq!(
        touched("die"),
        names([PlanAction::Remove, PlanAction::Replace])
    );
    plan.pods
        .into_iter()
        .map(|pod| (pod.name, pod.action))
        .collect()
}

/// Waits until the rollouts of a workload are over, and its pods can be edited again.
async fn until_over(bed: &Bed, name: &str) {
    let (code, text) = rollout(bed, &["status", name, "--timeout", "3m"]).await;
    assert_eq!(code, Some(0), "{text}");
}

fn actions(pods: &[(&str, PlanAction)]) -> BTreeMap<String, PlanAction> {
    let pods = pods.iter();
    pods.map(|(name, action)| (format!("{name}-box"), *action))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_edit_of_a_stateful_set_comes_true() {
    use PlanAction::{Create, Held, None, Remove, Replace};
    let set = |replicas: u32, image: &str, partition: u32| {
        let more = format!(
            "replicas: {replicas}\n  updateStrategy: {{rollingUpdate: {{partition: {partition}}}}}"
        );
        workload("StatefulSet", image, &more)
    };
    let bed = Bed::new();
    let agent = bed.agent().await;
    let new = plan_and_edit(&bed, &agent, &set(3, IMAGE, 0)).await;
    let all = [("web-0", Create), ("web-1", Create), ("web-2", Create)];
    assert_eq!(new, actions(&all));
    until_over(&bed, "statefulset/web").await;
    // One keeps its version, two are updated, one is new.
    let edited = plan_and_edit(&bed, &agent, &set(4, IMAGE_2, 1)).await;
    let mixed = [
        ("web-0", Held),
        ("web-1", Replace),
        ("web-2", Replace),
        ("web-3", Create),
    ];
    assert_eq!(edited, actions(&mixed));
    until_over(&bed, "statefulset/web").await;
    // The one that kept its version is updated, and two stop.
    let fewer = plan_and_edit(&bed, &agent, &set(2, IMAGE_2, 0)).await;
    let fewer_planned = [
        ("web-0", Replace),
        ("web-1", None),
        ("web-2", Remove),
        ("web-3", Remove),
    ];
    assert_eq!(fewer, actions(&fewer_planned));
    until_alone(&agent, &["web-0", "web-1"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_edit_of_a_deployment_comes_true() {
    use PlanAction::{Create, Held, None, Remove, Replace};
    let bed = Bed::new();
    let agent = bed.agent().await;
    let document = |replicas: u32, image: &str| deployment(replicas, image, "RollingUpdate");
    let new = plan_and_edit(&bed, &agent, &document(3, IMAGE)).await;
    let all = [("web-0", Create), ("web-1", Create), ("web-2", Create)];
    assert_eq!(new, actions(&all));
    until_over(&bed, "deployment/web").await;
    // Each new version starts beside the old one; the last pod is one too many.
    let edited = plan_and_edit(&bed, &agent, &document(2, IMAGE_2)).await;
    let fewer = [("web-0", Replace), ("web-1", Replace), ("web-2", Remove)];
    assert_eq!(edited, actions(&fewer));
    until_over(&bed, "deployment/web").await;
    let same = plan_and_edit(&bed, &agent, &document(2, IMAGE_2)).await;
    assert_eq!(same, actions(&[("web-0", None), ("web-1", None)]));
    // An image that isn't there is run by none.
    let nowhere = "mirrorlet.test/nowhere:1\n        imagePullPolicy: Never";
    let held = plan_and_edit(&bed, &agent, &document(2, nowhere)).await;
    assert_eq!(held, actions(&[("web-0", Held), ("web-1", Held)]));
    // Under Recreate each is stopped first.
    let all_at_once = deployment(2, IMAGE, "Recreate");
    let replaced = plan_and_edit(&bed, &agent, &all_at_once).await;
    assert_eq!(replaced, actions(&[("web-0", Replace), ("web-1", Replace)]));
    agent.stop().await;
}
