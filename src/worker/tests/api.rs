//! Pods of the API server, from their start to the end of their object.

use serde_json::json;
use tokio::time::Instant;

use super::super::*;
use super::bed::{
    Bed, SWEEP, UNSUPPORTED, api, changed, deleted, left_behind, named, phase_of, runs,
};
use crate::store::settled::Left;
use mirrorlet_core::api::core;
use mirrorlet_core::observed::ContainerState;
use mirrorlet_host::telemetry::journal::Kind;
use mirrorlet_testing::fake_runtime::FakeRuntime;

const A: &str = "aaaa0000-0000-4000-8000-000000000001";
const B: &str = "bbbb0000-0000-4000-8000-000000000002";

fn status(view: &PodView) -> &core::PodStatus {
    view.status.as_deref().unwrap()
}

fn is_finished(view: Option<&PodView>) -> bool {
    view.is_some_and(|v| v.phase == Phase::Finished)
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_stops_within_its_grace_and_waits_for_its_object_to_go() {
    let bed = Bed::start();
    bed.fake.set_stop_takes(Duration::from_hours(1));
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let began = Instant::now();
    let a = deleted(&a, 15);
    bed.want(&[&a]);
    bed.until_view(A, |v| v.is_some_and(|v| v.phase == Phase::Terminating))
        .await;
    bed.until_view(A, is_finished).await;
    let took = began.elapsed().as_secs();
    // api 2
    assert!((15..=16).contains(&took), "{took}");
    assert!(bed.fake.pod(&A.into()).is_empty(), "all of it is removed");
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Failed"), "{:?}", view.status);
    // The status that was written comes back with the object: nothing is started again.
    let a = changed(&a, json!({"status": {"phase": "Failed"}}));
    bed.want(&[&a]);
    tokio::time::sleep(SWEEP).await;
    bed.until_view(A, is_finished).await;
    bed.want(&[]);
    bed.until_view(A, |v| v.is_none()).await;
    bed.fake.assert_started_pods(&[A]);
    bed.fake.assert_killed_pods(&[A]);
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn the_containers_of_a_deleted_pod_stay_until_its_object_shows_how_they_ended() {
    for is_away in [false, true] {
        let bed = Bed::start();
        bed.takes_ends.send_replace(false);
        let a = api(A, json!({}));
        bed.want(&[&a]);
        bed.until_runs(A).await;
        bed.want(&[&deleted(&a, 15)]);
        bed.until_view(A, |v| v.is_some_and(|v| phase_of(v) == Some("Failed")))
            .await;
        let began = Instant::now();
        assert!(!bed.fake.pod(&A.into()).is_empty(), "they are there");
        bed.takes_ends.send_replace(!is_away);
        bed.until_view(A, is_finished).await;
        // Not for ever, if the API server is away.
        assert_eq!(began.elapsed().as_secs() >= 10, is_away);
        assert!(bed.fake.pod(&A.into()).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_cuts_the_stop_short_and_a_longer_one_does_not_lengthen_it() {
    for (asked, takes) in [(5, 10 + 5), (60, 30), (0, 10 + 1)] {
        let bed = Bed::start();
        bed.fake.set_stop_takes(Duration::from_hours(1));
        let a = api(A, json!({}));
        bed.want(&[&a]);
        bed.until_runs(A).await;
        let began = Instant::now();
        bed.want(&[&deleted(&a, 30)]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        bed.want(&[&deleted(&a, asked)]);
        bed.until_view(A, is_finished).await;
        let took = began.elapsed().as_secs();
        // pods 44
        assert!((takes..=takes + 1).contains(&took), "{asked}: {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_cuts_a_stop_of_a_round_short() {
    for outlives in [false, true] {
        let fake = FakeRuntime::new();
        if outlives {
            fake.let_calls_outlive_callers();
        }
        let bed = Bed::on(fake);
        bed.fake.set_stop_takes(Duration::from_hours(1));
        let a = api(A, json!({}));
        bed.want(&[&a]);
        bed.until_runs(A).await;
        let began = Instant::now();
        // Another image: its container is stopped, with the pod's thirty seconds.
        let edited = changed(
            &a,
            json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}}),
        );
        bed.want(&[&edited]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        bed.want(&[&deleted(&edited, 2)]);
        bed.until_view(A, is_finished).await;
        let took = began.elapsed().as_secs();
        // pods 44
        assert!((12..=13).contains(&took), "{took}");
        assert_eq!(bed.fake.started_containers().len(), 1);
        // What goes on without its caller does no harm.
        tokio::time::sleep(Duration::from_mins(1)).await;
        bed.fake.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_force_deleted_pod_stops_with_its_own_grace() {
    let bed = Bed::start();
    bed.fake.set_stop_takes(Duration::from_hours(1));
    bed.want(&[&api(A, json!({}))]);
    bed.until_runs(A).await;
    let began = Instant::now();
    bed.want(&[]);
    bed.until_gone(A).await;
    let took = began.elapsed().as_secs();
    assert!((30..=31).contains(&took), "{took}");
    bed.until_view(A, |v| v.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_force_deleted_while_it_is_being_deleted_goes_on_with_the_grace_it_had() {
    let bed = Bed::start();
    bed.fake.set_stop_takes(Duration::from_hours(1));
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let began = Instant::now();
    bed.want(&[&deleted(&a, 20)]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    bed.want(&[]);
    bed.until_gone(A).await;
    let took = began.elapsed().as_secs();
    assert!((20..=21).contains(&took), "{took}");
    bed.fake.assert_killed_pods(&[A]);
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_keeps_its_containers_until_it_is_deleted() {
    let bed = Bed::start();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let without_pods = tasks();
    let a = api(A, json!({"spec": {"restartPolicy": "OnFailure"}}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    bed.fake.exit_container(&A.into(), "app", 1);
    bed.until("it runs again", |fake| {
        fake.started_containers().len() == 2 && runs(fake, A)
    })
    .await;
    bed.fake.exit_container(&A.into(), "app", 0);
    bed.until_view(A, is_finished).await;
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Succeeded"));
    let seen = bed.fake.pod(&A.into());
    assert!(!seen.anything_running());
    // api 8
    assert!(!seen.containers.is_empty(), "for its logs");
    // Its volumes are given back, though.
    // docker 44
    bed.until("its volumes are released", |fake| {
        fake.call_count("release_volumes") == 1
    })
    .await;
    let a = changed(&a, json!({"status": {"phase": "Succeeded"}}));
    bed.want(&[&a]);
    tokio::time::sleep(SWEEP * 2).await;
    assert!(!bed.fake.pod(&A.into()).containers.is_empty());
    bed.fake.assert_call_counts("release_volumes", 1);
    assert_eq!(tasks(), without_pods, "a worker that rests has no task");
    bed.want(&[&deleted(&a, 30)]);
    bed.until_gone(A).await;
    bed.until_view(A, is_finished).await;
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Succeeded"), "as it was");
    bed.want(&[]);
    bed.until_view(A, |v| v.is_none()).await;
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_over_is_left_to_its_source_until_it_is_deleted() {
    for deletes_at_once in [true, false] {
        let bed = Bed::start();
        bed.takes_ends.send_replace(false);
        let settled = bed.settled();
        let a = api(A, json!({"spec": {"restartPolicy": "Never"}}));
        bed.want(&[&a]);
        bed.until_runs(A).await;
        bed.fake.exit_container(&A.into(), "app", 3);
        bed.until_view(A, is_finished).await;
        let view = bed.board.get(&A.into()).unwrap();
        let over = changed(&a, json!({"status": status(&view)}));
        bed.want(&[&over]);
        // node 6k
        assert_eq!(settled.next().await, [(A.into(), Left::Containers)].into());

        bed.keep_finished(&[&over]);
        bed.until_view(A, |v| v.is_none()).await;
        // Neither a list nor a change has it observed again, and its containers stay.
        tokio::time::sleep(SWEEP * 3).await;
        assert!(bed.cache.all().is_empty());
        assert!(!bed.fake.pod(&A.into()).containers.is_empty());
        assert!(bed.board.all().is_empty());
        bed.fake.assert_call_counts("delete_pod", 0);

        if !deletes_at_once {
            bed.want(&[&deleted(&over, 30)]);
            bed.until_view(A, is_finished).await;
            let view = bed.board.get(&A.into()).unwrap();
            assert_eq!(phase_of(&view), Some("Failed"), "as it was");
            assert!(bed.fake.pod(&A.into()).is_empty());
        }
        bed.want(&[]);
        bed.until_gone(A).await;
        bed.until_view(A, |v| v.is_none()).await;
        bed.fake.assert_started_pods(&[A]);
        bed.fake.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_that_finalizers_keep_is_left_to_its_source() {
    let bed = Bed::start();
    let settled = bed.settled();
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    bed.want(&[&deleted(&a, 5)]);
    bed.until_view(A, is_finished).await;
    let waited = tokio::time::timeout(SWEEP, settled.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    // As the agent's own deletion leaves the object.
    let failed = json!({"status": {"phase": "Failed"}});
    bed.want(&[&changed(&deleted(&a, 0), failed)]);
    let waited = tokio::time::timeout(SWEEP, settled.next()).await;
    // node 6i
    assert_eq!(waited.unwrap(), [(A.into(), Left::Nothing)].into());
    bed.want(&[]);
    bed.until_view(A, |v| v.is_none()).await;
    bed.fake.assert_started_pods(&[A]);
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_pod_for_good() {
    let bed = Bed::start();
    bed.want(&[&api(A, json!({"spec": {"activeDeadlineSeconds": 60}}))]);
    bed.until_runs(A).await;
    let began = Instant::now();
    bed.until_view(A, is_finished).await;
    let took = began.elapsed().as_secs();
    assert!((59..=62).contains(&took), "{took}");
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Failed"));
    // api 4
    assert_eq!(status(&view).reason.as_deref(), Some("DeadlineExceeded"));
    assert!(!bed.fake.pod(&A.into()).anything_running());
    tokio::time::sleep(SWEEP).await;
    assert!(is_finished(bed.board.get(&A.into()).as_ref()));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_over_is_not_started_by_the_next_agent() {
    for phase in ["Succeeded", "Failed"] {
        for (what, pod) in [
            ("wanted", api(A, json!({"status": {"phase": phase}}))),
            (
                "being deleted",
                deleted(&api(A, json!({"status": {"phase": phase}})), 30),
            ),
        ] {
            let bed = Bed::start();
            bed.want(&[&pod]);
            bed.until_view(A, is_finished).await;
            let view = bed.board.get(&A.into()).unwrap();
            assert_eq!(phase_of(&view), Some(phase), "{what}");
            // pods 46
            bed.fake.assert_started_pods(&[]);
            bed.fake.assert_killed_pods(&[]);
            bed.want(&[]);
            bed.until_view(A, |v| v.is_none()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_agent_goes_on_where_the_last_one_was() {
    let begin = || {
        let fake = FakeRuntime::new();
        left_behind(&fake, &api(A, json!({})));
        let clock = fake.clone();
        Bed::with(fake, Clock::new(move || clock.now()))
    };
    // Killed while it ran: adopted as it is.
    let bed = begin();
    bed.want(&[&api(A, json!({"status": {"phase": "Running"}}))]);
    tokio::time::sleep(SWEEP).await;
    bed.fake.assert_call_counts("sync_pod", 0);
    // Killed while it was being stopped.
    let bed = begin();
    bed.want(&[&deleted(&api(A, json!({})), 30)]);
    // pods 53
    bed.until_gone(A).await;
    bed.until_view(A, is_finished).await;
    bed.fake.assert_killed_pods(&[A]);
    // Killed after the final status, before the containers were all stopped.
    let bed = begin();
    bed.want(&[&api(A, json!({"status": {"phase": "Failed"}}))]);
    bed.until_view(A, is_finished).await;
    assert!(!bed.fake.pod(&A.into()).anything_running());
    // Killed after everything was removed, before the object was.
    let bed = Bed::start();
    let over = json!({"status": {"phase": "Running"}});
    bed.want(&[&deleted(&api(A, over), 30)]);
    bed.until_view(A, is_finished).await;
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Failed"));
    // api 10
    bed.fake.assert_started_pods(&[]);
    // The object went while no agent was there.
    let bed = begin();
    bed.want(&[]);
    bed.until_gone(A).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_interrupts_a_start_that_hangs() {
    let bed = Bed::start();
    let mut hold = bed.fake.block("sync_pod", None);
    let a = api(A, json!({}));
    bed.want(&[&a]);
    hold.arrived(1).await;
    bed.want(&[&deleted(&a, 30)]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    hold.release();
    bed.until_view(A, is_finished).await;
    bed.fake.assert_started_containers(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_updated_image_is_taken_up_in_place() {
    let bed = Bed::start();
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let spec = json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}});
    bed.want(&[&changed(&a, spec)]);
    // api 9
    bed.until("the new image runs", |fake| {
        fake.pod(&A.into())
            .running_containers()
            .any(|c| &*c.image == "app:2")
    })
    .await;
    let newest = &bed.fake.pod(&A.into()).containers[0];
    assert_eq!(newest.restart_count, 1);
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_manifest_has_is_no_obstacle() {
    let bed = Bed::start();
    let name = json!({"metadata": {"name": "web"}});
    bed.want(&[&named("static", "web"), &api(A, name.clone())]);
    bed.until_runs("static").await;
    // api 16
    bed.until_runs(A).await;
    // Nor is a pod of the API server that nobody knows of yet.
    let fake = FakeRuntime::new();
    left_behind(&fake, &api(B, name));
    let clock = fake.clone();
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.tell(&[&named("static", "web")], Delivered::MANIFESTS);
    bed.until_runs("static").await;
    assert!(runs(&bed.fake, B));
}

#[tokio::test(start_paused = true)]
async fn fields_that_cannot_be_honoured_are_named_and_nothing_is_started() {
    let bed = Bed::start();
    let over = json!({"metadata": {"annotations": {UNSUPPORTED: "spec.runtimeClassName"}}});
    let a = api(A, over);
    bed.want(&[&a]);
    bed.until_view(A, |v| v.is_some_and(|v| v.status.is_some()))
        .await;
    // Told again and again, it says so once.
    bed.want(&[&changed(&a, json!({"metadata": {"labels": {"a": "b"}}}))]);
    tokio::time::sleep(SWEEP * 2).await;
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Pending"));
    let container = &status(&view).container_statuses.as_ref().unwrap()[0];
    let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(
        waiting.reason.as_deref(),
        Some("CreateContainerConfigError")
    );
    let message = waiting.message.as_deref().unwrap();
    // api 11
    assert!(message.contains("spec.runtimeClassName"), "{message}");
    bed.fake.assert_call_counts("sync_pod", 0);
    let story = bed.telemetry.journal.story(&view.full_name);
    let warnings: Vec<_> = story.iter().filter(|e| e.kind == Kind::Warning).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    bed.want(&[&deleted(&a, 30)]);
    bed.until_view(A, is_finished).await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_does_not_keep_a_finished_pod_alive() {
    let bed = Bed::start();
    let spec = json!({"spec": {
        "restartPolicy": "Never",
        "initContainers": [{"name": "side", "image": "side:1", "restartPolicy": "Always"}],
    }});
    bed.want(&[&api(A, spec)]);
    bed.until("both run", |fake| {
        fake.pod(&A.into()).running_containers().count() == 2
    })
    .await;
    bed.fake.exit_container(&A.into(), "app", 0);
    bed.until_view(A, is_finished).await;
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Succeeded"), "{:#?}", view.status);
    let seen = bed.fake.pod(&A.into());
    assert!(
        seen.containers
            .iter()
            .all(|c| c.state == ContainerState::Exited)
    );
}

/// Its status says in the meantime that containers have exited that its policy doesn't restart.
#[tokio::test(start_paused = true)]
async fn an_exit_that_restarts_all_containers_ends_no_pod() {
    let bed = Bed::start();
    let rules = json!([{
        "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]},
    }]);
    let a = api(
        A,
        json!({"spec": {
            "restartPolicy": "Never",
            "initContainers": [{"name": "init", "image": "init:1"}],
            "containers": [
                {"name": "app", "image": "app:1"},
                {"name": "asks", "image": "app:1", "restartPolicy": "Never", "restartPolicyRules": rules},
            ],
        }}),
    );
    bed.want(&[&a]);
    let initialized = async |count: usize| {
        let started = |fake: &FakeRuntime| {
            let containers = fake.started_containers();
            containers.iter().filter(|name| *name == "init").count() == count
        };
        bed.until("the init container runs", started).await;
        bed.fake.exit_container(&A.into(), "init", 0);
        bed.until("both run", |fake| {
            fake.pod(&A.into()).running_containers().count() == 2
        })
        .await;
    };
    initialized(1).await;
    // What had ended for good starts again with the others.
    bed.fake.exit_container(&A.into(), "app", 0);
    bed.fake.exit_container(&A.into(), "asks", 42);
    initialized(2).await;
    let seen = bed.fake.pod(&A.into());
    let newest = |name| seen.find_container_status_by_name(name).unwrap();
    for name in ["init", "app", "asks"] {
        let newest = newest(name);
        // docker 5a
        assert_eq!(
            (newest.restart_count, newest.pod_restarts),
            (1, 1),
            "{name}"
        );
    }
    assert_eq!(seen.sandboxes.len(), 1);
    bed.until_view(A, |view| {
        view.is_some_and(|view| phase_of(view) == Some("Running"))
    })
    .await;
    bed.fake.exit_container(&A.into(), "asks", 1);
    bed.fake.exit_container(&A.into(), "app", 0);
    bed.until_view(A, is_finished).await;
    let view = bed.board.get(&A.into()).unwrap();
    assert_eq!(phase_of(&view), Some("Failed"), "{:#?}", view.status);
    bed.fake.assert_no_violations();
}
