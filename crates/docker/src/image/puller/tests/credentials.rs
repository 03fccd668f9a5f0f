//! Credentials of pulls.

use super::*;
use mirrorlet_core::credentials::{Keyring, MalformedConfig, RegistryAuth};

/// A pod's secrets with those passwords, in order, for any image of the tests.
fn secrets(passwords: &[&str]) -> PullSecrets {
    let mut keyring = Keyring::default();
    for password in passwords {
        let auth = RegistryAuth {
            username: "me".into(),
            password: (*password).into(),
            ..RegistryAuth::default()
        };
        keyring.add([("docker.io".to_owned(), auth)].into());
    }
    PullSecrets {
        keyring,
        ..PullSecrets::default()
    }
}

fn guarded() -> PullScript {
    PullScript {
        password: Some("right".into()),
        ..works()
    }
}

async fn ensure(
    puller: &ImagePuller,
    secrets: &PullSecrets,
    now: Timestamp,
) -> Result<bool, SyncError> {
    let pod = uid("u");
    let image = puller.ensure_image(&pod, "app", PullPolicy::Always, secrets, now, || {});
    image.await.map(|image| image.pulled)
}

#[tokio::test(start_paused = true)]
async fn each_credential_is_tried_until_one_does() {
    for (passwords, works, tries) in [
        (&["right"][..], true, 1),
        (&["wrong", "right"], true, 2),
        (&["wrong", "worse", "right", "never asked"], true, 3),
        (&["wrong", "worse"], false, 2),
        // Without credentials only where there are none.
        (&[], false, 1),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("app:latest", guarded());
        let pulled = ensure(&puller(&engine), &secrets(passwords), at(0)).await;
        assert_eq!(pulled.is_ok(), works, "{passwords:?}: {pulled:?}");
        // docker 50
        assert_eq!(engine.count(Operation::PullImage), tries, "{passwords:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_failures_are_told_each_once() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:latest", guarded());
    let puller = puller(&engine);
    let told = ensure(&puller, &secrets(&["wrong", "worse"]), at(0)).await;
    assert_eq!(
        told.unwrap_err().message,
        "Failed to pull image \"app\": unauthorized: app:latest: authentication required"
    );
    engine.fail(
        Operation::PullImage,
        None,
        FaultPoint::Before,
        api(500, "first"),
    );
    let told = ensure(&puller, &secrets(&["wrong", "other"]), at(0)).await;
    // docker 50
    assert_eq!(
        told.unwrap_err().message,
        "Failed to pull image \"app\": [first, unauthorized: app:latest: authentication required]"
    );
}

#[tokio::test(start_paused = true)]
async fn no_credential_mends_an_engine_or_a_registry_that_is_away() {
    for error in [
        api(503, "later"),
        EngineError::Timeout {
            operation: "pull",
            after: Duration::from_mins(2),
        },
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("app:latest", fails(error));
        ensure(&puller(&engine), &secrets(&["a", "b"]), at(0))
            .await
            .unwrap_err();
        assert_eq!(engine.count(Operation::PullImage), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn other_credentials_do_not_wait_for_the_back_off() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:latest", guarded());
    let puller = puller(&engine);
    let reason = async |passwords: &[&str], now| {
        let ensured = ensure(&puller, &secrets(passwords), at(now)).await;
        ensured.err().map(|error| (error.reason, error.retry_after))
    };
    let failed = |seconds| {
        let wait = Duration::from_secs(seconds);
        Some((SyncErrorReason::ErrImagePull, Some(wait)))
    };
    assert_eq!(reason(&[], 0).await, failed(10));
    let waits = reason(&[], 1).await.unwrap();
    assert_eq!(waits.0, SyncErrorReason::ImagePullBackOff);
    // A secret has appeared, a wrong one; then it is mended.
    assert_eq!(reason(&["wrong"], 2).await, failed(10));
    assert_eq!(
        reason(&["wrong"], 3).await.unwrap().0,
        SyncErrorReason::ImagePullBackOff
    );
    assert_eq!(reason(&["wrong"], 12).await, failed(20));
    assert_eq!(reason(&["right"], 13).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_secret_fails_the_pull_until_it_is_mended() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:latest", works());
    let puller = puller(&engine);
    let mut malformed = secrets(&["right"]);
    malformed.malformed = Some(MalformedSecret {
        name: "s".into(),
        key: ".dockerconfigjson",
        cause: MalformedConfig::Syntax { line: 1, column: 2 },
    });
    let failed = ensure(&puller, &malformed, at(0)).await.unwrap_err();
    assert_eq!(failed.reason, SyncErrorReason::ErrImagePull);
    assert_eq!(
        failed.message,
        "Failed to pull image \"app\": pull secret \"s\", key \".dockerconfigjson\": not valid \
         JSON (line 1, column 2)"
    );
    assert_eq!(engine.count(Operation::PullImage), 0);
    assert_eq!(ensure(&puller, &secrets(&["right"]), at(1)).await, Ok(true));
    // An image that is there needs nobody's secret.
    let pod = uid("u");
    let there = puller.ensure_image(
        &pod,
        "app",
        PullPolicy::IfNotPresent,
        &malformed,
        at(2),
        || {},
    );
    assert!(!there.await.unwrap().pulled);
}

#[tokio::test(start_paused = true)]
async fn pods_with_credentials_of_their_own_do_not_share_a_pull() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:latest", guarded());
    engine.hold(Operation::PullImage);
    let puller = puller(&engine);
    let (right, wrong) = (secrets(&["right"]), secrets(&["wrong"]));
    let mut first = Box::pin(ensure(&puller, &wrong, at(0)));
    let mut second = Box::pin(ensure(&puller, &right, at(0)));
    assert!(futures::poll!(&mut first).is_pending());
    assert!(futures::poll!(&mut second).is_pending());
    assert_eq!(puller.progress().len(), 2);
    engine.release(Operation::PullImage);
    let (first, second) = futures::join!(first, second);
    assert_eq!(first.unwrap_err().reason, SyncErrorReason::ErrImagePull);
    assert_eq!(second, Ok(true));
    assert!(puller.progress().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_nodes_configuration_counts_after_the_pods_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(directory.path().join("config.json"), text).unwrap();
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:latest", guarded());
    let options = PullerOptions {
        docker_config: Some(directory.path().to_owned()),
        ..PullerOptions::default()
    };
    let puller = ImagePuller::new(engine.clone(), options);
    let hub = |password: &str| {
        format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"username": "me", "password": "{password}"}}}}}}"#
        )
    };
    write(&hub("right"));
    // docker 50
    assert_eq!(ensure(&puller, &secrets(&["wrong"]), at(0)).await, Ok(true));
    assert_eq!(engine.count(Operation::PullImage), 2);
    write(&hub("stale"));
    ensure(&puller, &NONE, at(1)).await.unwrap_err();
    write("no json");
    let told = ensure(&puller, &NONE, at(2)).await.unwrap_err().message;
    assert!(
        told.contains("authentication required (") && told.ends_with("(line 1, column 2))"),
        "{told}"
    );
    // A helper that isn't there is told of where all else failed too.
    write(r#"{"credHelpers": {"docker.io": "no-such-helper"}}"#);
    let told = ensure(&puller, &NONE, at(3)).await.unwrap_err().message;
    assert!(
        told.contains("credential helper \"no-such-helper\""),
        "{told}"
    );
}
