//! The actions of `mirrorlet plan` are those that follow.

use std::collections::BTreeMap;
use std::sync::Arc;

use mirrorlet::jobs::JobStates;
use mirrorlet::rollout::{CommandError, RolloutHandle, RolloutOptions, RolloutTarget, Rollouts};
use mirrorlet::store::board::board;
use mirrorlet::store::cell::cell;
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::report::{OrderedChange, PlanAction, PlannedOrder, PlannedRun, RunAction};
use mirrorlet_core::api::{FullName, NodeName, Pod, PodUid, Timestamp};
use mirrorlet_core::cron::Runs;
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::hold::{NewFile, with_files};
use mirrorlet_core::job::Known;
use mirrorlet_core::merge::{Merged, SourceName, merge_sources};
use mirrorlet_core::observed::{Pods, RunningPod};
use mirrorlet_core::rollout::Command;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::{Runtime, SyncError, SyncErrorReason};
use mirrorlet_testing::fake_runtime::FakeRuntime;
use proptest::prelude::*;
use tokio::sync::watch;

/// Edits planned and made in each case.
const EDITS: usize = 8;

pub(super) fn pod(name: u8, version: u8) -> SourcePod {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": format!("pod{name}"), "namespace": "default",
            "uid": format!("{name}-{version}"),
        },
        "spec": {"containers": [{"name": "c", "image": format!("image:{version}")}]},
    }))
    .unwrap();
    SourcePod::new(
        Arc::new(pod),
        Origin::whole(PodSource::File, format!("/m/{name}.yaml")),
    )
}

fn merged(wanted: &BTreeMap<u8, u8>, before: &Merged) -> Merged {
    let pods = wanted.iter().map(|(name, version)| pod(*name, *version));
    merged_of(pods.collect(), before)
}

pub(super) fn merged_of(pods: Vec<SourcePod>, before: &Merged) -> Merged {
    let set = SourceSet {
        pods,
        ..SourceSet::default()
    };
    let name = SourceName::new(PodSource::File, "/m");
    let states = BTreeMap::from([(name, SourceState::Synced(Arc::new(set)))]);
    merge_sources(&states, &before.incumbents(), &before.objects)
}

/// The runtime's pods when all wanted ones run.
pub(super) fn listed(merged: &Merged) -> Pods {
    let pods = merged.pods.values().map(|pod| RunningPod {
        uid: pod.uid(),
        full_name: pod.full_name(),
        ..RunningPod::default()
    });
    Pods(pods.collect())
}

fn runs(merged: &Merged) -> BTreeMap<FullName, PodUid> {
    let pods = merged.pods.values();
    pods.map(|pod| (pod.full_name(), pod.uid())).collect()
}

/// One edit: which file gets which text, or none; which version can't be prepared; and a command
/// before it.
type Edit = (u8, Option<u8>, Option<(u8, u8)>, Option<Command>);

fn edit() -> impl Strategy<Value = Edit> {
    let command = prop_oneof![
        Just(Command::Pause),
        Just(Command::Resume),
        Just(Command::Retry),
        Just(Command::Undo { to_revision: None }),
    ];
    (
        0u8..3,
        prop::option::weighted(0.85, 0u8..4),
        prop::option::of((0u8..3, 0u8..4)),
        prop::option::weighted(0.3, command),
    )
}

pub(super) fn options(fake: &FakeRuntime) -> RolloutOptions {
    let clock = fake.clone();
    RolloutOptions {
        node_edits: mirrorlet::store::node_edits::NodeEditsHandle::none(),
        runtime: Arc::new(fake.clone()) as Arc<dyn Runtime>,
        objects: Arc::default(),
        salt: String::new(),
        board: board().1,
        node: cell(AdmitNode::default()).1,
        restore: true,
        needed_images: watch::Sender::default(),
        telemetry: Telemetry::new(),
        clock: Arc::new(move || clock.now()),
    }
}

async fn plan_and_do(edits: Vec<Edit>) -> Result<(), TestCaseError> {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let mut wanted = BTreeMap::new();
    let mut before = Merged::default();
    for (name, version, fault, command) in edits {
        if let Some((name, version)) = fault {
            let error = SyncError::new(SyncErrorReason::ErrImagePull, "not found");
            let uid = PodUid::from(format!("{name}-{version}"));
            fake.set_preparation_fault(&uid, Some(error));
        }
        if let Some(command) = command {
            let name = FullName::new(format!("pod{name}"), "default");
            let (obeyed, ()) =
                tokio::join!(handle.command(RolloutTarget::Pod(name), command), async {
                    rollouts.changed().await;
                    rollouts.keep().await;
                });
            drop(obeyed);
        }
        match version {
            Some(version) => wanted.insert(name, version),
            None => wanted.remove(&name),
        };
        let newest = merged(&wanted, &before);
        fake.clear_calls();
        let plan = handle.plan(&newest, &before, false).await;
        let calls = fake.called_functions();
        prop_assert!(calls.iter().all(|call| call == "check_pod"), "{calls:?}");

        let listed = listed(&before);
        let mut after = newest.clone();
        rollouts.apply(&mut after, &before, &listed).await;
        // Preparations come to their end; what can't be prepared is tried again and again.
        for _ in 0..4 {
            let pause = std::time::Duration::from_millis(100);
            let _ = tokio::time::timeout(pause, rollouts.changed()).await;
            after = newest.clone();
            rollouts.apply(&mut after, &before, &listed).await;
        }
        rollouts.keep().await;
        let (ran, run) = (runs(&before), runs(&after));
        for planned in &plan {
            let name = FullName::new(planned.name.as_str(), planned.namespace.as_str());
            let (ran, runs) = (ran.get(&name), run.get(&name));
            let as_planned = match planned.action {
                PlanAction::Create => ran.is_none() && runs.is_some(),
                PlanAction::Replace => runs.is_some() && ran != runs,
                PlanAction::Held | PlanAction::None => runs.is_some() && ran == runs,
                PlanAction::Remove => ran.is_some() && runs.is_none(),
            };
            prop_assert!(as_planned, "{planned:?}: {ran:?}, then {runs:?}");
        }
        let names = |runs: &BTreeMap<FullName, PodUid>| runs.keys().cloned().collect::<Vec<_>>();
        let mut all = [names(&ran), names(&run)].concat();
        all.sort();
        all.dedup();
        prop_assert_eq!(all.len(), plan.len(), "each pod is in the plan once");
        before = after;
    }
    rollouts.shut_down().await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_planned_is_what_is_done(edits in prop::collection::vec(edit(), EDITS..=EDITS)) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        let done = runtime.block_on(plan_and_do(edits));
        // rollouts 21
        prop_assert!(done.is_ok(), "{done:?}");
    }
}

/// A version of a pod with that host port.
fn with_port(name: u8, port: u16) -> SourcePod {
    let mut with = pod(name, u8::try_from(port).unwrap());
    let spec = Arc::make_mut(&mut with.pod).spec.as_mut().unwrap();
    let ports = serde_json::json!([{"containerPort": 80, "hostPort": port}]);
    spec.containers[0].ports = serde_json::from_value(ports).unwrap();
    with
}

/// Applies what sources want until every preparation has come to its end, also one that failed before.
async fn apply(rollouts: &mut Rollouts, newest: &Merged, before: &Merged) -> Merged {
    let listed = listed(before);
    for _ in 0..4 {
        rollouts.apply(&mut newest.clone(), before, &listed).await;
        let pause = std::time::Duration::from_secs(11);
        let _ = tokio::time::timeout(pause, rollouts.changed()).await;
    }
    let mut after = newest.clone();
    rollouts.apply(&mut after, before, &listed).await;
    after
}

#[tokio::test(start_paused = true)]
async fn pods_that_swap_host_ports_are_updated_together_or_not_at_all() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let none = Merged::default();
    let mut before = merged_of(vec![with_port(0, 1), with_port(1, 2)], &none);
    rollouts.apply(&mut before, &none, &Pods::default()).await;
    let error = SyncError::new(SyncErrorReason::ErrImagePull, "not found");
    fake.set_preparation_fault(&"1-1".into(), Some(error));
    let newest = merged_of(vec![with_port(0, 2), with_port(1, 1)], &before);
    let after = apply(&mut rollouts, &newest, &before).await;
    // rollouts 31
    assert_eq!(runs(&after), runs(&before));
    let problems = |after: &Merged| -> Vec<String> {
        let pods = after.pods.values().flat_map(|pod| &pod.problems);
        pods.map(|problem| problem.message.clone()).collect()
    };
    let told = problems(&after);
    assert!(
        told[0].contains("pod default/pod1 can't be updated yet: ErrImagePull: not found"),
        "{told:?}"
    );
    assert!(told[1].contains("ErrImagePull: not found"), "{told:?}");
    fake.set_preparation_fault(&"1-1".into(), None);
    // One that is to be started first can't be.
    let mut first = with_port(1, 1);
    let annotations = &mut Arc::make_mut(&mut first.pod).metadata.annotations;
    annotations
        .get_or_insert_default()
        .insert("mirrorlet.dev/rollout".into(), "StartFirst".into());
    let start_first = merged_of(vec![with_port(0, 2), first], &before);
    let after = apply(&mut rollouts, &start_first, &before).await;
    // rollouts 31
    assert_eq!(runs(&after), runs(&before));
    let told = problems(&after);
    assert!(
        told[1].contains("set mirrorlet.dev/rollout: Recreate"),
        "{told:?}"
    );
    let plan = handle.plan(&start_first, &before, false).await;
    assert!(
        plan.iter().all(|pod| pod.action == PlanAction::Held),
        "{plan:?}"
    );
    let after = apply(&mut rollouts, &newest, &before).await;
    // rollouts 31
    assert_eq!(runs(&after), runs(&newest));
    assert_eq!(problems(&after), [""; 0]);
    rollouts.shut_down().await;
}

/// A version of a pod with emptyDir volumes of these names.
fn with_empty_dirs(name: u8, version: u8, volumes: &[&str]) -> SourcePod {
    let mut with = pod(name, version);
    let spec = Arc::make_mut(&mut with.pod).spec.as_mut().unwrap();
    let volume = |name: &&str| serde_json::json!({"name": name, "emptyDir": {}});
    let mut volumes: Vec<_> = volumes.iter().map(volume).collect();
    volumes.push(serde_json::json!({"name": "host", "hostPath": {"path": "/srv"}}));
    spec.volumes = serde_json::from_value(volumes.into()).unwrap();
    with
}

#[tokio::test(start_paused = true)]
async fn a_plan_names_the_empty_dirs_that_lose_their_files() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let none = Merged::default();
    let old = [
        with_empty_dirs(0, 1, &["cache", "tmp"]),
        with_empty_dirs(1, 1, &["cache"]),
        with_empty_dirs(2, 1, &[]),
        with_empty_dirs(3, 1, &["cache"]),
    ];
    let mut before = merged_of(old.to_vec(), &none);
    rollouts.apply(&mut before, &none, &Pods::default()).await;
    let new = vec![
        with_empty_dirs(0, 2, &["cache"]),
        old[1].clone(),
        with_empty_dirs(2, 2, &["new"]),
        with_empty_dirs(4, 1, &["cache"]),
    ];
    let newest = merged_of(new, &before);
    let plan = handle.plan(&newest, &before, false).await;
    let emptied: Vec<_> = plan
        .iter()
        .map(|pod| (pod.name.as_str(), pod.emptied.join(" ")))
        .filter(|(_, emptied)| !emptied.is_empty())
        .collect();
    // box 21
    assert_eq!(emptied, [("pod0", "cache tmp".to_owned())]);
    rollouts.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_port_that_another_pod_gives_up_is_planned_as_free() {
    use PlanAction::{Create, Held, None, Remove, Replace};
    /// Pods with their ports.
    type Ports = &'static [(u8, u16)];
    let cases: [(&str, Ports, Ports, &[PlanAction]); 8] = [
        (
            "from one that goes to a new one",
            &[(0, 1)],
            &[(1, 1)],
            &[Remove, Create],
        ),
        (
            "from one that goes to another",
            &[(0, 1), (1, 2)],
            &[(1, 1)],
            &[Remove, Replace],
        ),
        (
            "from one that is edited",
            &[(0, 1), (1, 2)],
            &[(0, 3), (1, 1)],
            &[Replace, Replace],
        ),
        (
            "along a chain",
            &[(0, 1), (1, 2), (2, 3)],
            &[(0, 2), (1, 3), (2, 4)],
            &[Replace, Replace, Replace],
        ),
        (
            "in a circle",
            &[(0, 1), (1, 2)],
            &[(0, 2), (1, 1)],
            &[Replace, Replace],
        ),
        (
            "from a circle and along a chain",
            &[(0, 1), (1, 2), (2, 3), (3, 4)],
            &[(0, 2), (1, 1), (2, 4), (3, 5)],
            &[Replace, Replace, Replace, Replace],
        ),
        (
            "in a circle that another pod keeps a port from",
            &[(0, 1), (1, 2), (2, 3)],
            &[(0, 2), (1, 3), (2, 3)],
            &[Held, Held, None],
        ),
        (
            "from one that keeps it",
            &[(0, 1), (1, 2)],
            &[(0, 1), (1, 1)],
            &[None, Held],
        ),
    ];
    for (case, old, new, expected) in cases {
        let root = tempfile::tempdir().unwrap();
        let fake = FakeRuntime::new();
        let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
        let pods = |all: Ports| {
            all.iter()
                .map(|(name, port)| with_port(*name, *port))
                .collect()
        };
        let none = Merged::default();
        let mut before = merged_of(pods(old), &none);
        rollouts.apply(&mut before, &none, &Pods::default()).await;
        let plan = handle
            .plan(&merged_of(pods(new), &before), &before, false)
            .await;
        let actions: Vec<PlanAction> = plan.iter().map(|planned| planned.action).collect();
        // rollouts 31b
        assert_eq!(actions, expected, "{case}: {plan:?}");
        let words = plan.iter().filter(|planned| planned.action != Held);
        let words: String = words.map(|planned| planned.message.as_str()).collect();
        assert_eq!(words, "", "{case}");
        rollouts.shut_down().await;
    }
}

/// Applies what sources want as the agent does, pass after pass. Between two of them every preparation ends.
async fn follow(rollouts: &mut Rollouts, newest: &Merged, before: &Merged) -> Merged {
    let mut before = before.clone();
    for _ in 0..4 {
        let mut after = newest.clone();
        let listed = listed(&before);
        rollouts.apply(&mut after, &before, &listed).await;
        tokio::time::sleep(std::time::Duration::from_secs(11)).await;
        before = after;
    }
    before
}

#[tokio::test(start_paused = true)]
async fn of_two_edits_to_one_host_port_the_second_is_held() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let none = Merged::default();
    let mut before = merged_of(vec![with_port(0, 1), with_port(1, 2)], &none);
    rollouts.apply(&mut before, &none, &Pods::default()).await;
    let newest = merged_of(vec![with_port(0, 3), with_port(1, 3)], &before);
    let plan = handle.plan(&newest, &before, false).await;
    let actions: Vec<PlanAction> = plan.iter().map(|planned| planned.action).collect();
    // rollouts 8
    assert_eq!(actions, [PlanAction::Replace, PlanAction::Held], "{plan:?}");
    let after = follow(&mut rollouts, &newest, &before).await;
    let of = |merged: &Merged| -> Vec<String> {
        let uids = runs(merged).into_values();
        uids.map(|uid| uid.to_string()).collect()
    };
    // rollouts 8
    assert_eq!(of(&after), ["0-3", "1-2"], "the second one runs on");
    let held = &after.pods[&PodUid::from("1-2")];
    assert!(held.held && held.problems[0].message.contains("3/tcp"));
    // Once the port is free, it goes on by itself.
    let newest = merged_of(vec![with_port(0, 4), with_port(1, 3)], &after);
    let after = follow(&mut rollouts, &newest, &after).await;
    assert_eq!(of(&after), ["0-4", "1-3"]);
    rollouts.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_until_the_source_of_the_pod_that_runs_has_delivered() {
    const URL: &str = "http://a/pods";
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let served = SourcePod::new(pod(0, 1).pod, Origin::whole(PodSource::Http, URL));
    let set = |pods: Vec<SourcePod>| {
        SourceState::Synced(Arc::new(SourceSet {
            pods,
            ..SourceSet::default()
        }))
    };
    let merge = |url: SourceState, files: Vec<SourcePod>, before: &Merged| {
        let states = BTreeMap::from([
            (SourceName::new(PodSource::Http, URL), url),
            (SourceName::new(PodSource::File, "/m"), set(files)),
        ]);
        merge_sources(&states, &before.incumbents(), &before.objects)
    };
    let of = |merged: &Merged| -> Vec<String> {
        let uids = runs(merged).into_values();
        uids.map(|uid| uid.to_string()).collect()
    };
    let (mut rollouts, _handle) = Rollouts::load(root.path(), options(&fake));
    let none = Merged::default();
    let newest = merge(set(vec![served.clone()]), vec![pod(1, 1)], &none);
    let left = follow(&mut rollouts, &newest, &none).await;
    rollouts.keep().await;
    rollouts.shut_down().await;
    // The next agent hears the directory first: with a duplicate, and an edit of its own pod.
    let files = vec![pod(0, 2), pod(1, 2)];
    let (mut rollouts, _handle) = Rollouts::load(root.path(), options(&fake));
    let newest = merge(SourceState::NotSynced, files.clone(), &left);
    let early = follow(&mut rollouts, &newest, &left).await;
    // pods 13
    assert_eq!(of(&early), ["0-1", "1-2"]);
    let told = &early.conflicts[0].message;
    assert!(told.contains("already defined by http://a/pods"), "{told}");
    let newest = merge(set(vec![served]), files.clone(), &early);
    assert_eq!(newest.conflicts.len(), 1, "{:?}", newest.conflicts);
    let late = follow(&mut rollouts, &newest, &early).await;
    assert_eq!(of(&late), ["0-1", "1-2"]);
    // Where its source wants it no longer, the other one runs.
    let newest = merge(set(Vec::new()), files, &late);
    let after = follow(&mut rollouts, &newest, &late).await;
    assert_eq!(of(&after), ["0-2", "1-2"]);
    rollouts.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_version_is_looked_at_once_for_each_change_of_the_node() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut writer, node) = cell(AdmitNode::default());
    let options = RolloutOptions {
        node,
        ..options(&fake)
    };
    let (mut rollouts, _handle) = Rollouts::load(root.path(), options);
    let empty = Merged::default();
    let mut before = merged(&BTreeMap::from([(0, 0)]), &empty);
    rollouts.apply(&mut before, &empty, &Pods::default()).await;
    let error = SyncError::new(SyncErrorReason::ErrImagePull, "not found");
    fake.set_preparation_fault(&"0-1".into(), Some(error));
    let newest = merged(&BTreeMap::from([(0, 1)]), &before);
    let after = apply(&mut rollouts, &newest, &before).await;
    assert!(after.pods[&PodUid::from("0-0")].held, "{after:?}");
    let second = std::time::Duration::from_secs(1);
    for pods_max in [9, 10] {
        let changed = AdmitNode {
            pods_max: Some(pods_max),
            ..AdmitNode::default()
        };
        assert!(writer.publish(changed));
        let looked = tokio::time::timeout(second, rollouts.changed()).await;
        // rollouts S2a
        assert!(looked.is_ok(), "the change is not looked at");
        let again = tokio::time::timeout(second, rollouts.changed()).await;
        // rollouts S2a
        assert!(again.is_err(), "one change is looked at again and again");
    }
    rollouts.shut_down().await;
}

/// A version of a pod that asks for that much memory.
fn with_memory(name: u8, version: u8, memory: &str, strategy: &str) -> SourcePod {
    let mut with = pod(name, version);
    let pod = Arc::make_mut(&mut with.pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("mirrorlet.dev/rollout".to_owned(), strategy.to_owned());
    let resources = serde_json::json!({"requests": {"memory": memory}});
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].resources = serde_json::from_value(resources).unwrap();
    with
}

#[tokio::test(start_paused = true)]
async fn versions_beside_others_take_room_and_an_edit_waits_for_it() {
    // Whether both edits come at a time.
    for at_once in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let fake = FakeRuntime::new();
        let node =
            serde_json::json!({"status": {"allocatable": {"memory": "350Mi", "pods": "10"}}});
        let node = AdmitNode::of(&serde_json::from_value(node).unwrap());
        let options = RolloutOptions {
            node: cell(node).1,
            ..options(&fake)
        };
        let (mut rollouts, handle) = Rollouts::load(root.path(), options);
        let web = |version| with_memory(0, version, "100Mi", "StartFirst");
        let db = |version, memory| with_memory(1, version, memory, "Recreate");
        let empty = Merged::default();
        let mut before = merged_of(vec![web(1), db(1, "100Mi")], &empty);
        rollouts.apply(&mut before, &empty, &Pods::default()).await;
        if !at_once {
            let newest = merged_of(vec![web(2), db(1, "100Mi")], &before);
            before = follow(&mut rollouts, &newest, &before).await;
            assert!(before.beside.contains_key(&"0-2".into()));
        }
        let newest = merged_of(vec![web(2), db(2, "200Mi")], &before);
        if !at_once {
            let plan = handle.plan(&newest, &before, false).await;
            assert_eq!(plan[1].action, PlanAction::Held, "{plan:?}");
        }
        let after = follow(&mut rollouts, &newest, &before).await;
        assert!(after.beside.contains_key(&"0-2".into()));
        // rollouts S2a
        assert!(after.pods.contains_key(&"1-1".into()), "{at_once}");
        let problems = &after.pods[&PodUid::from("1-1")].problems;
        let told = &problems[0].message;
        assert!(told.contains("OutOfmemory"), "{told}");
        // The version beside ends; the edit goes on by itself.
        let newest = merged_of(vec![web(1), db(2, "200Mi")], &after);
        let after = follow(&mut rollouts, &newest, &after).await;
        assert!(after.beside.is_empty());
        assert!(after.pods.contains_key(&"1-2".into()), "{at_once}");
        rollouts.shut_down().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_restarts_nothing_is_no_change() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let planned = async |handle: &RolloutHandle, pod: SourcePod, before: &Merged| {
        let plan = handle
            .plan(&merged_of(vec![pod], before), before, false)
            .await;
        (plan[0].action, plan[0].changes.join(" "))
    };
    let mut before = merged(&BTreeMap::from([(0, 0)]), &Merged::default());
    rollouts
        .apply(&mut before, &Merged::default(), &Pods::default())
        .await;
    // A pod's first annotation about rollouts: its UID stays.
    let mut annotated = pod(0, 0);
    let metadata = &mut Arc::make_mut(&mut annotated.pod).metadata;
    metadata.annotations = Some([("mirrorlet.dev/max-restarts".into(), "1".into())].into());
    let none = (PlanAction::None, String::new());
    assert_eq!(planned(&handle, annotated, &before).await, none);
    // A manifest with a UID of its own is edited in place.
    let mut edited = pod(0, 0);
    let spec = Arc::make_mut(&mut edited.pod).spec.as_mut().unwrap();
    spec.containers[0].image = Some("image:9".to_owned());
    let image = (PlanAction::Replace, "spec.containers[c].image".to_owned());
    assert_eq!(planned(&handle, edited, &before).await, image);
    // The same manifest under another file name has another UID.
    let mut renamed = pod(0, 0);
    Arc::make_mut(&mut renamed.pod).metadata.uid = Some("renamed".to_owned());
    let name = (PlanAction::Replace, "(file name)".to_owned());
    assert_eq!(planned(&handle, renamed, &before).await, name);
    rollouts.shut_down().await;
}

/// Whoever stopped a pod must know if the next agent starts it again.
#[tokio::test(start_paused = true)]
async fn an_order_that_the_disk_does_not_take_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let mut before = merged(&BTreeMap::from([(0, 0)]), &Merged::default());
    let none = Merged::default();
    rollouts.apply(&mut before, &none, &Pods::default()).await;
    let pod = RolloutTarget::Pod(FullName::new("pod0", "default"));
    let mut order = async |command: Command| {
        let (answer, ()) = tokio::join!(handle.command(pod.clone(), command), async {
            rollouts.changed().await;
            rollouts.keep().await;
        });
        answer
    };
    // A file in the place of the directory.
    let directory = root.path().join("rollouts");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::write(&directory, "").unwrap();
    let error = order(Command::Stop).await.unwrap_err();
    assert!(matches!(error, CommandError::NotKept(_)), "{error}");
    let problem = (*handle.unkept().get()).clone().unwrap();
    assert!(problem.is_error(), "{problem}");
    std::fs::remove_file(&directory).unwrap();
    order(Command::Pause).await.unwrap();
    assert_eq!(*handle.unkept().get(), None);
    rollouts.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_another_one_after_a_while() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let name = FullName::new("pod0", "default");
    let files = || std::fs::read_dir(root.path().join("rollouts")).map_or(0, Iterator::count);
    // How long the manifest is away, whether the agent is restarted meanwhile, and the revision after.
    for (minutes, restarts, number) in [(9, false, 2), (9, true, 2), (10, false, 1), (10, true, 1)]
    {
        let (mut rollouts, mut handle) = Rollouts::load(root.path(), options(&fake));
        let mut before = merged(&BTreeMap::from([(0, 0)]), &Merged::default());
        let none = Merged::default();
        rollouts.apply(&mut before, &none, &Pods::default()).await;
        let mut gone = merged(&BTreeMap::new(), &before);
        rollouts.apply(&mut gone, &before, &Pods::default()).await;
        rollouts.keep().await;
        assert_eq!(files(), 1);
        if restarts {
            rollouts.shut_down().await;
            (rollouts, handle) = Rollouts::load(root.path(), options(&fake));
        }
        tokio::time::advance(std::time::Duration::from_mins(minutes)).await;
        let mut other = merged(&BTreeMap::from([(0, 1)]), &gone);
        rollouts.apply(&mut other, &gone, &Pods::default()).await;
        let histories = handle.histories();
        // rollouts M4
        assert_eq!(
            histories[&name].current().unwrap().number,
            number,
            "{minutes} {restarts}"
        );
        let mut gone = merged(&BTreeMap::new(), &other);
        rollouts.apply(&mut gone, &other, &Pods::default()).await;
        tokio::time::advance(std::time::Duration::from_mins(10)).await;
        // It is looked at again by itself.
        rollouts.changed().await;
        let mut still = merged(&BTreeMap::new(), &gone);
        rollouts.apply(&mut still, &gone, &Pods::default()).await;
        rollouts.keep().await;
        // rollouts M4
        assert_eq!((handle.histories().len(), files()), (0, 0));
        rollouts.shut_down().await;
    }
}

/// The merged state with this as the only file.
fn of_file(text: &str, before: &Merged) -> Merged {
    let file = NewFile {
        location: "/m/a.yaml".to_owned(),
        bytes: text.as_bytes().to_vec(),
    };
    let files: &[NewFile] = if text.is_empty() { &[] } else { &[file] };
    let set = with_files(&SourceSet::default(), files, true, &NodeName::from("box"));
    assert_eq!(set.problems, []);
    let name = SourceName::new(PodSource::File, "/m");
    let states = BTreeMap::from([(name, SourceState::Synced(Arc::new(set)))]);
    merge_sources(&states, &before.incumbents(), &before.objects)
}

/// A `StatefulSet` of three pods, with more of its spec.
fn set(image: &str, more: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db}}\nspec:\n  selector: {{matchLabels: {{app: db}}}}\n  {more}\n  template:\n    metadata: {{labels: {{app: db}}}}\n    spec: {{containers: [{{name: db, image: {image}}}]}}\n"
    )
}

fn steps(change: OrderedChange, names: &[&str]) -> Vec<PlannedOrder> {
    vec![PlannedOrder {
        kind: "StatefulSet".to_owned(),
        namespace: "default".to_owned(),
        name: "db".to_owned(),
        change,
        steps: names
            .iter()
            .map(|name| vec![format!("{name}-box")])
            .collect(),
    }]
}

#[tokio::test(start_paused = true)]
async fn a_plan_has_the_order_of_a_workloads_pods() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut rollouts, handle) = Rollouts::load(root.path(), options(&fake));
    let planned = async |text: &str, before: &Merged| {
        let newest = of_file(text, before);
        let mut plan = handle.plan(&newest, before, false).await;
        let orders = handle.orders(&newest, before, &mut plan);
        let held = plan.iter().filter(|pod| pod.action == PlanAction::Held);
        let held: Vec<String> = held
            .map(|pod| format!("{}: {}", pod.name, pod.message))
            .collect();
        (orders, held)
    };
    let none = Merged::default();
    let new = planned(&set("db:1", "replicas: 3"), &none).await;
    let in_turn = steps(OrderedChange::Start, &["db-0", "db-1", "db-2"]);
    // workloads 24
    assert_eq!(new, (in_turn, vec![]));
    let parallel = "{replicas: 3, podManagementPolicy: Parallel}";
    let parallel = parallel.trim_matches(['{', '}']).replace(", ", "\n  ");
    let (orders, _) = planned(&set("db:1", &parallel), &none).await;
    assert_eq!(orders, [], "all start at the same time");

    let mut before = of_file(&set("db:1", &parallel), &none);
    rollouts.apply(&mut before, &none, &Pods::default()).await;
    let edited = planned(&set("db:2", "replicas: 3"), &before).await;
    let in_turn = steps(OrderedChange::Update, &["db-2", "db-1", "db-0"]);
    assert_eq!(edited, (in_turn, vec![]));
    let partition = "replicas: 3\n  updateStrategy: {rollingUpdate: {partition: 1}}";
    let (orders, held) = planned(&set("db:2", partition), &before).await;
    assert_eq!(orders, steps(OrderedChange::Update, &["db-2", "db-1"]));
    assert_eq!(held, ["db-0-box: the partition of its workload is 1"]);
    let (orders, _) = planned(&set("db:1", "replicas: 1"), &before).await;
    assert_eq!(orders, steps(OrderedChange::Stop, &["db-2", "db-1"]));
    rollouts.shut_down().await;
}

#[test]
fn a_plan_has_the_jobs_that_would_run() {
    let documents = |schedule: &str, image: &str| {
        format!(
            "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: backup}}\nspec:\n  schedule: \"{schedule}\"\n  jobTemplate: {{spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: i}}]}}}}}}}}\n---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: import}}\nspec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: {image}}}]}}}}}}\n"
        )
    };
    let none = Merged::default();
    let present = of_file(&documents("0 3 * * *", "a"), &none);
    let mut states = JobStates::default();
    let planned = |states: &JobStates, newest: &Merged, present: &Merged| {
        let runs = states.plan(newest, present, Timestamp::UNIX_EPOCH);
        let of = |run: PlannedRun| {
            let next = run.next_schedule.map(|next| next.to_string());
            (
                format!("{}/{}", run.kind, run.name),
                run.action,
                next.unwrap_or_default(),
            )
        };
        runs.into_iter().map(of).collect::<Vec<_>>()
    };
    let row = |name: &str, action, next: &str| (name.to_owned(), action, next.to_owned());
    // workloads 25
    assert_eq!(
        planned(&states, &present, &none),
        [
            row("CronJob/backup", RunAction::Create, "1970-01-01T03:00:00Z"),
            row("Job/import", RunAction::Run, ""),
        ]
    );
    for pod in present.pods.values() {
        if let Some(Runs::Job(job)) = pod.runs.as_deref() {
            let (content, complete) = (job.content.clone(), Some(true));
            let known = Known::Run { content, complete };
            states.known.insert(job.name.clone(), known);
        }
    }
    assert_eq!(
        planned(&states, &present, &present),
        [
            row("CronJob/backup", RunAction::None, "1970-01-01T03:00:00Z"),
            row("Job/import", RunAction::None, ""),
        ]
    );
    let edited = of_file(&documents("0 4 * * *", "b"), &present);
    assert_eq!(
        planned(&states, &edited, &present),
        [
            row("CronJob/backup", RunAction::Change, "1970-01-01T04:00:00Z"),
            row("Job/import", RunAction::RunAgain, ""),
        ]
    );
    let gone = of_file("", &present);
    assert_eq!(
        planned(&states, &gone, &present),
        [
            row("CronJob/backup", RunAction::Remove, ""),
            row("Job/import", RunAction::Remove, ""),
        ]
    );
}
