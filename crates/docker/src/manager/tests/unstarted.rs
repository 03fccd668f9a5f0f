//! Containers that were created and never started.

use futures::future::join;

use super::*;
use mirrorlet_core::api::core::ConfigMap;
use mirrorlet_core::objects::{KnownObjects, Object};

/// Publishes the `ConfigMap` from which the pods here have their variable `K`.
fn publish(objects: &ManifestObjects, value: &str) {
    let map = json!({"metadata": {"name": "settings", "namespace": "ns"}, "data": {"K": value}});
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    let object = Object::ConfigMap(Arc::new(map));
    objects.publish(KnownObjects {
        objects: [(object.key(), object)].into(),
        complete: true,
        ..KnownObjects::default()
    });
}

fn reader(uid: &str) -> Arc<Pod> {
    let key = json!({"name": "settings", "key": "K"});
    let app = json!({
        "name": "app", "image": "app:1", "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "K", "valueFrom": {"configMapKeyRef": key}}],
    });
    pod(uid, &json!({"containers": [app]}))
}

/// The next agent on the bed's Engine and root.
fn next_agent(bed: &Bed, objects: &Arc<ManifestObjects>) -> DockerManager {
    let options = DockerManagerOptions {
        objects: PodObjects::new(objects.clone()),
        ..options(bed.root.path(), HostFacts::default())
    };
    manager_with(&bed.engine, options)
}

/// Whether that container has the variable `K` with that value.
fn has_value(bed: &Bed, name: &str, value: &str) -> bool {
    let variables = bed.engine.created(name).unwrap().env.unwrap_or_default();
    variables.contains(&format!("K={value}"))
}

/// Waits until an operation was called so often.
async fn until_called(engine: &FakeEngine, operation: Operation, times: usize) {
    while engine.count(operation) < times {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_never_started_is_made_anew() {
    let mut bed = Bed::warm().await;
    let objects = Arc::new(ManifestObjects::default());
    publish(&objects, "old");
    bed.manager = next_agent(&bed, &objects);
    let pod = reader("a");
    // The agent is killed before the start, and the ConfigMap is edited.
    bed.engine
        .hold_of(Operation::StartContainer, &app_name(&pod));
    tokio::select! {
        _ = bed.round(&pod) => panic!("its start is held"),
        () = until_called(&bed.engine, Operation::StartContainer, 2) => {}
    }
    assert!(has_value(&bed, &app_name(&pod), "old"));
    bed.engine.release(Operation::StartContainer);
    publish(&objects, "new");
    bed.manager = next_agent(&bed, &objects);
    bed.up(&pod).await;
    let up = [running(pause_name(&pod)), running(app_name(&pod))];
    // docker 57
    assert_eq!(bed.containers(), up);
    assert!(has_value(&bed, &app_name(&pod), "new"));

    // The Engine gives up the start of the next instance.
    bed.engine.exit(&app_name(&pod), 1);
    bed.manager = next_agent(&bed, &objects);
    let given_up = api_error(500, "context canceled");
    let start = Operation::StartContainer;
    bed.engine.fail(start, None, FaultPoint::Before, given_up);
    let failed = bed.round(&pod).await;
    assert_eq!(failures(&failed), [SyncErrorReason::RunContainerError]);
    publish(&objects, "newer");
    bed.up(&pod).await;
    let again = container_name("app", &FullName::of(&pod), &PodUid::of(&pod), 1);
    // docker 57
    assert!(bed.containers().contains(&running(again.clone())));
    assert!(has_value(&bed, &again, "newer"));
}

/// On an Engine whose creates always take longer than a call may, each new one would be too late.
#[tokio::test(start_paused = true)]
async fn a_container_that_was_created_too_late_is_started_as_it_is_once() {
    for (is_edited, is_given_up) in [(false, false), (false, true), (true, false)] {
        let mut bed = Bed::warm().await;
        let objects = Arc::new(ManifestObjects::default());
        publish(&objects, "old");
        bed.manager = next_agent(&bed, &objects);
        let late = EngineError::Timeout {
            operation: "create_container",
            after: Duration::from_mins(2),
        };
        let create = Operation::CreateContainer;
        bed.engine
            .fail(create, Some("k8s_app"), FaultPoint::After, late);
        let pod = reader("a");
        let failed = bed.round(&pod).await;
        assert_eq!(failures(&failed), [SyncErrorReason::CreateContainerError]);
        if is_edited {
            publish(&objects, "new");
        }
        if is_given_up {
            let start = Operation::StartContainer;
            let given_up = api_error(500, "context canceled");
            bed.engine.fail(start, None, FaultPoint::Before, given_up);
        }
        let second = bed.round(&pod).await;
        assert_eq!(second.error().is_some(), is_given_up);
        let removed = || bed.engine.count(Operation::RemoveContainer);
        // docker 57
        assert_eq!(removed(), usize::from(is_edited));
        let value = if is_edited { "new" } else { "old" };
        // docker 57
        assert!(has_value(&bed, &app_name(&pod), value));
        bed.up(&pod).await;
        let up = [running(pause_name(&pod)), running(app_name(&pod))];
        assert_eq!(bed.containers(), up);
        // docker 57
        assert_eq!(removed(), usize::from(is_edited || is_given_up));
    }
}

/// Two agents, the first of which is about to end: its start is still under way.
#[tokio::test(start_paused = true)]
async fn a_container_whose_start_is_under_way_runs_once() {
    for is_started_first in [true, false] {
        let bed = Bed::warm().await;
        let next = Bed {
            manager: manager(&bed.engine, bed.root.path()),
            engine: Arc::clone(&bed.engine),
            root: tempfile::tempdir().unwrap(),
        };
        let (pod, engine) = (pod("a", &json!({})), &bed.engine);
        engine.hold_of(Operation::StartContainer, &app_name(&pod));
        engine.hold(Operation::RemoveContainer);
        let first = Box::pin(bed.round(&pod));
        let second = Box::pin(async {
            until_called(engine, Operation::StartContainer, 2).await;
            next.round(&pod).await
        });
        let order = async {
            until_called(engine, Operation::RemoveContainer, 1).await;
            if is_started_first {
                engine.release(Operation::StartContainer);
                while !bed.containers().contains(&running(app_name(&pod))) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                engine.release(Operation::RemoveContainer);
            } else {
                engine.release(Operation::RemoveContainer);
                until_called(engine, Operation::StartContainer, 3).await;
                engine.release(Operation::StartContainer);
            }
        };
        let (results, ()) = join(join(first, second), order).await;
        let (winner, loser) = if is_started_first {
            results
        } else {
            (results.1, results.0)
        };
        assert_eq!(winner.error(), None);
        assert!(loser.errors().next().is_some_and(|error| error.passing));
        next.up(&pod).await;
        let up = [running(pause_name(&pod)), running(app_name(&pod))];
        // docker 57
        assert_eq!(bed.containers(), up, "started first: {is_started_first}");
    }
}
