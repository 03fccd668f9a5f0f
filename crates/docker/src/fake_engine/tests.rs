//! The fake answers as the real Engine does.

use std::collections::HashMap;
use std::sync::Arc;

use bollard::models::{ContainerStateStatusEnum, HostConfig};

use super::*;
use crate::engine::PullProgress;
use crate::image::{ImagePuller, PullerOptions};
use crate::sandbox_image::{SANDBOX_IMAGE, ensure_sandbox_image};
use mirrorlet_core::api::keys;

fn body(image: &str, owner: &str, network: Option<&str>) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(image.to_owned()),
        labels: Some(HashMap::from([(keys::OWNER.to_owned(), owner.to_owned())])),
        host_config: network.map(|network| HostConfig {
            network_mode: Some(network.to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

fn engine() -> FakeEngine {
    let engine = FakeEngine::new();
    engine.add_image("app:1", FakeImage::default());
    engine
}

async fn actions(
    stream: &mut BoxStream<'static, Result<EventMessage>>,
    count: usize,
) -> Vec<String> {
    let events: Vec<_> = stream.take(count).collect().await;
    let action = |e: Result<EventMessage>| e.unwrap().action.unwrap();
    events.into_iter().map(action).collect()
}

#[tokio::test]
async fn a_container_lives_and_is_told_of() {
    let engine = engine();
    let mut events = engine.events("me", None).await.unwrap();
    let id = engine
        .create_container("a", body("app:1", "me", None))
        .await
        .unwrap();
    engine
        .create_container("other", body("app:1", "you", None))
        .await
        .unwrap();
    engine.start_container(&id).await.unwrap();
    engine.start_container("a").await.unwrap();
    let seen = engine.inspect_container("a").await.unwrap();
    let networks = seen.network_settings.unwrap().networks.unwrap();
    assert!(
        networks["bridge"]
            .ip_address
            .as_ref()
            .unwrap()
            .starts_with("172.17.")
    );
    engine.stop_container(&id, Duration::ZERO).await.unwrap();
    engine.stop_container(&id, Duration::ZERO).await.unwrap();
    let state = engine.inspect_container(&id).await.unwrap().state.unwrap();
    assert_eq!(state.status, Some(ContainerStateStatusEnum::EXITED));
    assert_eq!(state.exit_code, Some(137));
    assert_eq!(engine.list_containers("me").await.unwrap().len(), 1);
    engine.remove_container(&id, false).await.unwrap();
    assert!(
        engine
            .inspect_container(&id)
            .await
            .unwrap_err()
            .is_not_found()
    );
    assert_eq!(
        actions(&mut events, 4).await,
        ["create", "start", "die", "destroy"]
    );
}

#[tokio::test]
async fn collisions_and_absences_are_answered_in_the_engines_words() {
    let engine = engine();
    let id = engine
        .create_container("a", body("app:1", "me", None))
        .await
        .unwrap();
    let taken = engine
        .create_container("a", body("app:1", "me", None))
        .await
        .unwrap_err();
    assert!(taken.is_conflict() && taken.to_string().contains(&format!("container \"{id}\"")));
    let absent = engine
        .create_container("b", body("no:1", "me", None))
        .await
        .unwrap_err();
    assert_eq!(
        (absent.status(), absent.to_string().as_str()),
        (Some(404), "No such image: no:1")
    );
    engine.start_container(&id).await.unwrap();
    assert!(
        engine
            .remove_container(&id, false)
            .await
            .unwrap_err()
            .is_conflict()
    );
    for result in [
        engine.start_container("zz").await,
        engine.stop_container("zz", Duration::ZERO).await,
        engine.remove_container("zz", true).await,
    ] {
        assert!(result.unwrap_err().is_not_found());
    }
}

#[tokio::test]
async fn a_joined_network_needs_its_sandbox_to_run() {
    let engine = engine();
    let sandbox = engine
        .create_container("s", body("app:1", "me", None))
        .await
        .unwrap();
    let network = format!("container:{sandbox}");
    let app = engine
        .create_container("a", body("app:1", "me", Some(&network)))
        .await
        .unwrap();
    assert!(
        engine
            .start_container(&app)
            .await
            .unwrap_err()
            .is_conflict()
    );
    engine.start_container(&sandbox).await.unwrap();
    engine.start_container(&app).await.unwrap();
}

#[tokio::test]
async fn faults_strike_once_before_or_after_the_effect() {
    let engine = engine();
    let lost = EngineError::Timeout {
        operation: "create",
        after: Duration::from_secs(1),
    };
    engine.fail(
        Operation::CreateContainer,
        Some("b"),
        FaultPoint::Before,
        lost.clone(),
    );
    engine.fail(
        Operation::CreateContainer,
        None,
        FaultPoint::After,
        lost.clone(),
    );
    assert_eq!(
        engine
            .create_container("a", body("app:1", "me", None))
            .await,
        Err(lost.clone())
    );
    assert!(engine.inspect_container("a").await.is_ok());
    assert_eq!(
        engine
            .create_container("b", body("app:1", "me", None))
            .await,
        Err(lost)
    );
    assert!(engine.inspect_container("b").await.is_err());
    assert!(
        engine
            .create_container("b", body("app:1", "me", None))
            .await
            .is_ok()
    );
    assert_eq!(engine.count(Operation::CreateContainer), 3);
}

#[tokio::test]
async fn events_can_be_lost_doubled_cut_and_asked_for_again() {
    let engine = engine();
    let mut events = engine.events("me", None).await.unwrap();
    engine
        .create_container("a", body("app:1", "me", None))
        .await
        .unwrap();
    engine.drop_events(1);
    engine.start_container("a").await.unwrap();
    engine.oom("a");
    engine.repeat_last_event();
    assert_eq!(
        actions(&mut events, 4).await,
        ["create", "oom", "die", "die"]
    );
    engine.cut_events();
    assert!(events.next().await.unwrap().is_err());
    assert!(events.next().await.is_none());
    let mut again = engine
        .events("me", Some(Timestamp::UNIX_EPOCH))
        .await
        .unwrap();
    assert_eq!(
        actions(&mut again, 4).await,
        ["create", "start", "oom", "die"]
    );
    assert_eq!(engine.subscribers(), 1);
}

#[tokio::test]
async fn a_crash_loses_exits_and_an_absent_engine_refuses_everything() {
    let engine = engine();
    engine
        .create_container("a", body("app:1", "me", None))
        .await
        .unwrap();
    engine.start_container("a").await.unwrap();
    engine.set_available(false);
    assert!(matches!(
        engine.version().await,
        Err(EngineError::Unavailable { .. })
    ));
    engine.crash();
    engine.set_available(true);
    let state = engine.inspect_container("a").await.unwrap().state.unwrap();
    assert_eq!(state.exit_code, Some(255));
}

#[tokio::test]
async fn starts_can_fail_or_end_at_once() {
    let engine = engine();
    engine.script_start(
        "app:1",
        StartScript::Fails {
            status: 400,
            exit_code: 127,
            message: "exec: \"x\": executable file not found in $PATH".to_owned(),
        },
    );
    engine
        .create_container("a", body("app:1", "me", None))
        .await
        .unwrap();
    assert_eq!(
        engine.start_container("a").await.unwrap_err().status(),
        Some(400)
    );
    let state = engine.inspect_container("a").await.unwrap().state.unwrap();
    assert_eq!(state.status, Some(ContainerStateStatusEnum::CREATED));
    assert_eq!(state.exit_code, Some(127));
    engine.script_start("app:1", StartScript::Exits(3));
    engine.start_container("a").await.unwrap();
    assert_eq!(engine.containers(), [("a".to_owned(), "exited".to_owned())]);
}

#[tokio::test]
async fn a_held_call_waits_for_its_release() {
    let engine = engine();
    engine.hold(Operation::Version);
    let mut call = Box::pin(engine.version());
    assert!(futures::poll!(&mut call).is_pending());
    engine.info().await.unwrap();
    engine.release(Operation::Version);
    call.await.unwrap();
}

#[tokio::test]
async fn the_sandbox_image_is_loaded_or_pulled() {
    let engine = Arc::new(engine());
    let images = ImagePuller::new(engine.clone(), PullerOptions::default());
    assert_eq!(
        ensure_sandbox_image(&*engine, &images, None).await.unwrap(),
        SANDBOX_IMAGE
    );
    assert!(engine.inspect_image(SANDBOX_IMAGE).await.is_ok());
    assert_eq!(
        ensure_sandbox_image(&*engine, &images, Some("app:1"))
            .await
            .unwrap(),
        "app:1"
    );
    assert!(
        ensure_sandbox_image(&*engine, &images, Some("no:1"))
            .await
            .is_err()
    );
    engine.script_pull(
        "new:latest",
        PullScript {
            messages: vec![
                Ok(PullProgress {
                    status: "Status: Downloaded newer image".to_owned(),
                    ..PullProgress::default()
                }),
                Err(api_error(500, "bytes remaining on stream")),
            ],
            image: Some(FakeImage::default()),
            ..PullScript::default()
        },
    );
    assert_eq!(
        ensure_sandbox_image(&*engine, &images, Some("new"))
            .await
            .unwrap(),
        "new:latest"
    );
}
