//! The puller against the Engine in memory, on paused time.

mod access;
mod credentials;
mod silence;
mod turns;

use std::sync::LazyLock;
use std::time::Duration;

use super::*;
use crate::engine::{Engine, PullProgress};
use crate::fake_engine::{FakeEngine, FakeImage, FaultPoint, PullScript};
use crate::image::PullPhase;
use crate::operation::Operation;

/// Of a pod without pull secrets.
static NONE: LazyLock<PullSecrets> = LazyLock::new(PullSecrets::default);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn uid(text: &str) -> PodUid {
    text.into()
}

fn message(layer: &str, status: &str) -> PullProgress {
    PullProgress {
        layer: layer.into(),
        status: status.into(),
        ..PullProgress::default()
    }
}

fn api(status: u16, message: &str) -> EngineError {
    EngineError::Api {
        status,
        message: message.into(),
    }
}

fn works() -> PullScript {
    PullScript {
        messages: vec![
            Ok(message("l1", "Downloading")),
            Ok(message("", "Status: Downloaded newer image")),
        ],
        image: Some(FakeImage {
            user: "1000".into(),
            size: 77,
            repo_digest: Some("docker.io/library/app@sha256:1".into()),
            ..FakeImage::default()
        }),
        ..PullScript::default()
    }
}

fn fails(error: EngineError) -> PullScript {
    PullScript {
        messages: vec![Ok(message("l1", "Downloading")), Err(error)],
        ..PullScript::default()
    }
}

fn puller(engine: &Arc<FakeEngine>) -> ImagePuller {
    ImagePuller::new(engine.clone(), PullerOptions::default())
}

/// The chart's `helm test` relies on it.
#[tokio::test]
async fn images_are_listed_only_while_the_engine_answers() {
    let engine = Arc::new(FakeEngine::new());
    engine.add_image("app:latest", FakeImage::default());
    let puller = puller(&engine);
    assert_eq!(puller.list_all().await.unwrap().len(), 1);
    engine.set_available(false);
    assert!(puller.list_all().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_is_asked() {
    use Operation::{InspectImage, PullImage};
    use PullPolicy::{Always, IfNotPresent, Never, Ordered};
    for (policy, present, expected, calls) in [
        (Always, false, None, vec![PullImage, InspectImage]),
        (Ordered, true, None, vec![PullImage, InspectImage]),
        (Always, true, None, vec![PullImage, InspectImage]),
        (
            IfNotPresent,
            false,
            None,
            vec![InspectImage, PullImage, InspectImage],
        ),
        (IfNotPresent, true, None, vec![InspectImage]),
        (Never, true, None, vec![InspectImage]),
        (
            Never,
            false,
            Some(SyncErrorReason::ErrImageNeverPull),
            vec![InspectImage],
        ),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("app:latest", works());
        if present {
            engine.add_image("app:latest", FakeImage::default());
        }
        let result = puller(&engine)
            .ensure_image(&uid("u"), "app", policy, &NONE, at(0), || {})
            .await;
        assert_eq!(
            result.as_ref().err().map(|e| e.reason),
            expected,
            "{policy:?} {present}"
        );
        let seen: Vec<Operation> = engine.calls().into_iter().map(|c| c.operation).collect();
        // docker 47
        assert_eq!(seen, calls, "{policy:?} {present}");
        if let Ok(image) = result {
            assert_eq!(image.reference, "app:latest");
        }
        // Never an all-tags pull.
        assert!(engine.calls().iter().all(|c| c.target == "app:latest"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_only_the_policy_makes_necessary_says_so() {
    use PullPolicy::{Always, IfNotPresent, Ordered};
    let denied = "pull access denied for app, repository does not exist or may require 'docker login': denied: requested access to the resource is denied";
    let no_host = "dial tcp: lookup registry: no such host";
    let no_answer = EngineError::Timeout {
        operation: "pull",
        after: Duration::from_mins(2),
    };
    for (policy, present, error, hint) in [
        (Always, true, api(404, "manifest unknown"), true),
        (Always, true, api(404, denied), true),
        (Always, true, api(500, no_host), true),
        (Always, true, api(503, "later"), true),
        (Always, false, api(404, denied), false),
        (IfNotPresent, false, api(404, denied), false),
        // A user ordered it, not the policy.
        (Ordered, true, api(404, denied), false),
        // The error is in the credentials.
        (Always, true, api(401, "login"), false),
        (Always, true, api(500, "unauthorized: bad password"), false),
        (Always, true, no_answer, false),
    ] {
        let engine = Arc::new(FakeEngine::new());
        let row = format!("{policy:?} {present} {error}");
        engine.script_pull("app:latest", fails(error));
        if present {
            engine.add_image("app:latest", FakeImage::default());
        }
        let puller = puller(&engine);
        let uid = uid("u");
        let ensure = puller.ensure_image(&uid, "app", policy, &NONE, at(0), || {});
        let message = ensure.await.unwrap_err().message;
        let hinted = message.ends_with("set imagePullPolicy to IfNotPresent to use it");
        assert_eq!(hinted, hint, "{row}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_known_image_costs_nothing_until_it_is_forgotten() {
    let engine = Arc::new(FakeEngine::new());
    engine.add_image(
        "app:1",
        FakeImage {
            user: "nobody".into(),
            ..FakeImage::default()
        },
    );
    let puller = puller(&engine);
    for _ in 0..3 {
        let image = puller
            .ensure_image(
                &uid("u"),
                "app:1",
                PullPolicy::IfNotPresent,
                &NONE,
                at(0),
                || {},
            )
            .await
            .unwrap();
        assert_eq!(image.facts.user.as_deref(), Some("nobody"));
    }
    assert_eq!(engine.calls().len(), 1);
    engine.prune_image("app:1");
    puller.forget("app:1");
    engine.script_pull("app:1", works());
    let image = puller
        .ensure_image(
            &uid("u"),
            "app:1",
            PullPolicy::IfNotPresent,
            &NONE,
            at(0),
            || {},
        )
        .await
        .unwrap();
    assert!(image.pulled);
    assert_eq!(
        image.facts.image_id(),
        "docker-pullable://docker.io/library/app@sha256:1"
    );
    puller.forget_all();
    assert!(
        puller
            .ensure_image(&uid("u"), "app:1", PullPolicy::Never, &NONE, at(0), || {})
            .await
            .is_ok()
    );
    assert_eq!(engine.count(Operation::InspectImage), 4);
}

#[tokio::test(start_paused = true)]
async fn failures_have_upstreams_reasons_and_words() {
    let unknown = "manifest for app:1 not found: manifest unknown";
    for (error, reason, text) in [
        (
            api(500, unknown),
            SyncErrorReason::ErrImagePull,
            "Failed to pull image \"app:1\": manifest for app:1 not found: manifest unknown",
        ),
        (
            api(503, "slow down"),
            SyncErrorReason::RegistryUnavailable,
            "Failed to pull image \"app:1\": RegistryUnavailable: slow down",
        ),
        (
            api(500, "received unexpected HTTP status: 502 Bad Gateway"),
            SyncErrorReason::RegistryUnavailable,
            "Failed to pull image \"app:1\": RegistryUnavailable: received unexpected HTTP status: 502 Bad Gateway",
        ),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("app:1", fails(error));
        let failed = puller(&engine)
            .ensure_image(
                &uid("u"),
                "app:1",
                PullPolicy::IfNotPresent,
                &NONE,
                at(0),
                || {},
            )
            .await
            .unwrap_err();
        // docker 49
        assert_eq!((failed.reason, failed.message.as_str()), (reason, text));
        assert_eq!(failed.retry_after, Some(Duration::from_secs(10)));
    }
}

#[tokio::test(start_paused = true)]
async fn bad_names_and_failing_inspects_are_told_apart() {
    let engine = Arc::new(FakeEngine::new());
    let puller = puller(&engine);
    let ensure = |image: &'static str| {
        let puller = &puller;
        async move {
            puller
                .ensure_image(
                    &uid("u"),
                    image,
                    PullPolicy::IfNotPresent,
                    &NONE,
                    at(0),
                    || {},
                )
                .await
                .unwrap_err()
        }
    };
    let bad = ensure("App:1").await;
    assert_eq!(bad.reason, SyncErrorReason::InvalidImageName);
    assert!(
        bad.message
            .starts_with("Failed to apply default image tag \"App:1\"")
    );
    assert!(engine.calls().is_empty());
    engine.fail(
        Operation::InspectImage,
        None,
        FaultPoint::Before,
        api(500, "disk"),
    );
    let inspect = ensure("app:1").await;
    // docker 47
    assert_eq!(inspect.reason, SyncErrorReason::ImageInspectError);
    assert_eq!(inspect.message, "Failed to inspect image \"app:1\": disk");
    engine.set_available(false);
    assert_eq!(
        ensure("app:1").await.reason,
        SyncErrorReason::RuntimeUnavailable
    );
}

#[tokio::test(start_paused = true)]
async fn failing_pulls_back_off_per_pod_and_tell_why() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:1", fails(api(500, "denied")));
    let puller = puller(&engine);
    let ensure = |pod: &'static str, now| {
        let puller = &puller;
        async move {
            let pod = uid(pod);
            let image =
                puller.ensure_image(&pod, "app:1", PullPolicy::IfNotPresent, &NONE, now, || {});
            image.await.map(|i| i.pulled)
        }
    };
    let first = ensure("u", at(0)).await.unwrap_err();
    assert_eq!(first.retry_after, Some(Duration::from_secs(10)));
    let waiting = ensure("u", at(4)).await.unwrap_err();
    assert_eq!(waiting.reason, SyncErrorReason::ImagePullBackOff);
    assert_eq!(
        waiting.message,
        "Back-off pulling image \"app:1\": ErrImagePull: Failed to pull image \"app:1\": denied"
    );
    assert_eq!(waiting.retry_after, Some(Duration::from_secs(6)));
    // Another pod is not held up by the first one's failures.
    assert_eq!(
        ensure("v", at(4)).await.unwrap_err().reason,
        SyncErrorReason::ErrImagePull
    );
    assert_eq!(engine.count(Operation::PullImage), 2);
    let second = ensure("u", at(10)).await.unwrap_err();
    assert_eq!(second.retry_after, Some(Duration::from_secs(20)));
    let mut now = 30;
    let mut delay = Duration::ZERO;
    for _ in 0..6 {
        delay = ensure("u", at(now)).await.unwrap_err().retry_after.unwrap();
        now += i64::try_from(delay.as_secs()).unwrap();
    }
    assert_eq!(delay, Duration::from_mins(5));
    engine.script_pull("app:1", works());
    assert_eq!(ensure("u", at(now)).await, Ok(true));
    // A success ends the sequence.
    puller.forget("app:1");
    engine.prune_image("app:1");
    engine.script_pull("app:1", fails(api(500, "denied")));
    let again = ensure("u", at(now)).await.unwrap_err();
    assert_eq!(again.retry_after, Some(Duration::from_secs(10)));
}

#[tokio::test(start_paused = true)]
async fn an_absent_engine_is_not_the_images_fault() {
    let engine = Arc::new(FakeEngine::new());
    let puller = puller(&engine);
    engine.set_available(false);
    let always = |now| puller.ensure_image_reason(now);
    assert_eq!(
        always(at(0)).await,
        Some(SyncErrorReason::RuntimeUnavailable)
    );
    engine.set_available(true);
    engine.script_pull("app:latest", works());
    assert_eq!(always(at(1)).await, None);
}

impl ImagePuller {
    async fn ensure_image_reason(&self, now: Timestamp) -> Option<SyncErrorReason> {
        let pod = uid("u");
        let image = self.ensure_image(&pod, "app", PullPolicy::Always, &NONE, now, || {});
        image.await.err().map(|e| e.reason)
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_download_is_given_up_and_a_silent_extraction_is_not() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull(
        "app:latest",
        PullScript {
            stalls: true,
            image: None,
            ..works()
        },
    );
    let puller = puller(&engine);
    let began = Instant::now();
    let error = puller
        .ensure_image(&uid("u"), "app", PullPolicy::Always, &NONE, at(0), || {})
        .await
        .unwrap_err();
    assert_eq!(began.elapsed(), Duration::from_mins(1));
    // docker 49
    assert!(
        error
            .message
            .ends_with("was cancelled: no progress for 60 s"),
        "{}",
        error.message
    );
    // The back-off counts from the failure, a minute later.
    let waiting = puller
        .ensure_image(&uid("u"), "app", PullPolicy::Always, &NONE, at(65), || {})
        .await
        .unwrap_err();
    assert_eq!(waiting.retry_after, Some(Duration::from_secs(5)));

    let mut silent = works();
    silent.messages.push(Ok(message("l1", "Extracting")));
    silent.stalls = true;
    engine.script_pull("app:latest", silent);
    let other = uid("v");
    let patient = puller.ensure_image(&other, "app", PullPolicy::Always, &NONE, at(100), || {});
    let waited = tokio::time::timeout(Duration::from_hours(1), patient).await;
    assert!(waited.is_err(), "a silent extraction was given up");
    assert!(
        puller.progress().is_empty(),
        "a pull nobody waits for is still reported"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_broken_after_its_last_message_is_a_success_and_before_it_is_not() {
    let engine = Arc::new(FakeEngine::new());
    let puller = puller(&engine);
    let broken = EngineError::Decode {
        operation: "pull",
        cause: "cut".into(),
    };
    let mut script = works();
    script.messages.push(Err(broken.clone()));
    engine.script_pull("app:latest", script.clone());
    assert_eq!(puller.ensure_image_reason(at(0)).await, None);
    // The image is there from before: still a failure, since Always means the newest.
    script.messages = vec![script.messages.remove(0), Err(broken)];
    engine.script_pull("app:latest", script);
    assert_eq!(
        puller.ensure_image_reason(at(0)).await,
        Some(SyncErrorReason::ErrImagePull)
    );
}

#[tokio::test(start_paused = true)]
async fn an_image_is_pulled_once_for_all_who_wait() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:latest", works());
    engine.hold(Operation::PullImage);
    let puller = puller(&engine);
    let (a, b) = (uid("a"), uid("b"));
    let mut first =
        Box::pin(puller.ensure_image(&a, "app", PullPolicy::Always, &NONE, at(0), || {}));
    let mut second =
        Box::pin(puller.ensure_image(&b, "app", PullPolicy::Always, &NONE, at(0), || {}));
    assert!(futures::poll!(&mut first).is_pending());
    assert!(futures::poll!(&mut second).is_pending());
    assert_eq!(engine.count(Operation::PullImage), 1);
    // The one that began it goes away; the other one carries it on.
    drop(first);
    engine.release(Operation::PullImage);
    assert!(second.await.unwrap().pulled);
    assert_eq!(engine.count(Operation::PullImage), 1);
    assert!(
        puller
            .ensure_image(&a, "app", PullPolicy::Always, &NONE, at(1), || {})
            .await
            .unwrap()
            .pulled
    );
    assert_eq!(engine.count(Operation::PullImage), 2);
}

#[tokio::test(start_paused = true)]
async fn pulls_wait_for_their_turn() {
    let engine = Arc::new(FakeEngine::new());
    for image in ["a:latest", "b:latest"] {
        engine.script_pull(image, works());
    }
    engine.hold(Operation::PullImage);
    let puller = ImagePuller::new(
        engine.clone(),
        PullerOptions {
            pulls: 1,
            ..PullerOptions::default()
        },
    );
    let pod = uid("u");
    let mut a = Box::pin(puller.ensure_image(&pod, "a", PullPolicy::Always, &NONE, at(0), || {}));
    let mut b = Box::pin(puller.ensure_image(&pod, "b", PullPolicy::Always, &NONE, at(0), || {}));
    assert!(futures::poll!(&mut a).is_pending());
    assert!(futures::poll!(&mut b).is_pending());
    let phases: Vec<PullPhase> = puller.progress().into_iter().map(|p| p.phase).collect();
    assert_eq!(phases, [PullPhase::Downloading, PullPhase::Waiting]);
    assert_eq!(engine.count(Operation::PullImage), 1);
    engine.release(Operation::PullImage);
    let (a, b) = futures::join!(a, b);
    assert!(a.is_ok() && b.is_ok());
    assert!(puller.progress().is_empty());
    assert!(engine.inspect_image("b:latest").await.is_ok());
}
