//! Turns of the pods of several namespaces.

use futures::future::join_all;

use super::*;
use mirrorlet_core::credentials::Keyring;

/// A puller with three turns, on an Engine where the pulls of these images hang.
fn hanging(images: &[&str]) -> (Arc<FakeEngine>, ImagePuller) {
    let engine = Arc::new(FakeEngine::new());
    for image in ["a:1", "b:1", "c:1", "d:1"] {
        engine.script_pull(image, works());
    }
    for image in images {
        engine.hold_of(Operation::PullImage, image);
    }
    let options = PullerOptions {
        pulls: 3,
        ..PullerOptions::default()
    };
    let puller = ImagePuller::new(engine.clone(), options);
    (engine, puller)
}

/// An image for a pod of a namespace.
async fn ensure(puller: &ImagePuller, namespace: &str, image: &str) -> Result<bool, SyncError> {
    let uid = uid("u");
    let pod = ForPod {
        uid: &uid,
        namespace,
    };
    let ensured = puller.ensure_image(pod, image, PullPolicy::Always, &NONE, at(0), || {});
    ensured.await.map(|image| image.pulled)
}

#[tokio::test(start_paused = true)]
async fn pulls_of_one_namespace_leave_a_turn_for_others() {
    let (engine, puller) = hanging(&["a:1", "b:1", "c:1"]);
    let mut slow = ["a:1", "b:1", "c:1"].map(|image| Box::pin(ensure(&puller, "slow", image)));
    for pull in &mut slow {
        assert!(futures::poll!(pull).is_pending());
    }
    let phases = puller.progress().into_iter().map(|pull| pull.phase);
    let waiting = phases.filter(|phase| *phase == PullPhase::Waiting).count();
    // tenants S3
    assert_eq!((engine.count(Operation::PullImage), waiting), (2, 1));
    // tenants S3
    assert_eq!(ensure(&puller, "other", "d:1").await, Ok(true));
    engine.release(Operation::PullImage);
    let all = join_all(slow).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(engine.count(Operation::PullImage), 4);
    assert!(puller.progress().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_turn_of_another_namespace_at_the_same_image() {
    let (engine, puller) = hanging(&["a:1", "b:1"]);
    let mut slow = ["a:1", "b:1", "c:1"].map(|image| Box::pin(ensure(&puller, "slow", image)));
    for pull in &mut slow {
        assert!(futures::poll!(pull).is_pending());
    }
    // tenants S3
    assert_eq!(engine.count(Operation::PullImage), 2);
    // tenants S3
    assert_eq!(ensure(&puller, "other", "c:1").await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn pods_that_share_a_pull_take_one_turn_of_their_namespace() {
    let (engine, puller) = hanging(&["a:1", "b:1"]);
    let images = ["a:1", "a:1", "a:1", "b:1"];
    let mut pulls = images.map(|image| Box::pin(ensure(&puller, "shop", image)));
    let mut other = Box::pin(ensure(&puller, "other", "a:1"));
    for pull in &mut pulls {
        assert!(futures::poll!(pull).is_pending());
    }
    assert!(futures::poll!(&mut other).is_pending());
    // tenants S3
    assert_eq!(engine.count(Operation::PullImage), 2);
    engine.release(Operation::PullImage);
    let (all, other) = futures::join!(join_all(pulls), other);
    assert!(all.iter().all(Result::is_ok) && other.is_ok());
    assert_eq!(engine.count(Operation::PullImage), 2);
}

#[tokio::test(start_paused = true)]
async fn pulls_of_several_namespaces_that_take_long_leave_turns_for_others() {
    let (engine, puller) = hanging(&["a:1", "b:1", "c:1"]);
    let slow = [("one", "a:1"), ("one", "b:1"), ("two", "c:1")];
    let mut slow = slow.map(|(namespace, image)| Box::pin(ensure(&puller, namespace, image)));
    for pull in &mut slow {
        assert!(futures::poll!(pull).is_pending());
    }
    let began = Instant::now();
    let mut slow = Box::pin(join_all(slow));
    let mut other = Box::pin(ensure(&puller, "other", "d:1"));
    assert!(futures::poll!(&mut other).is_pending());
    assert_eq!(engine.count(Operation::PullImage), 3);
    let done = tokio::select! {
        done = &mut other => done,
        _ = &mut slow => panic!("they hang"),
    };
    // tenants S3
    assert_eq!(done, Ok(true));
    assert_eq!(began.elapsed(), Duration::from_mins(10));
    // The slow ones go on.
    engine.release(Operation::PullImage);
    let all = slow.await;
    // tenants S3
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(engine.count(Operation::PullImage), 4);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_comes_while_a_pod_waits_for_its_turn_is_used() {
    for is_reported in [true, false] {
        let (engine, puller) = hanging(&["a:1", "b:1"]);
        let mut slow = ["a:1", "b:1"].map(|image| Box::pin(ensure(&puller, "slow", image)));
        for pull in &mut slow {
            assert!(futures::poll!(pull).is_pending());
        }
        let uid = uid("u");
        let pod = ForPod {
            uid: &uid,
            namespace: "slow",
        };
        let policy = PullPolicy::IfNotPresent;
        let mut waiting = Box::pin(puller.ensure_image(pod, "c:1", policy, &NONE, at(0), || {}));
        assert!(futures::poll!(&mut waiting).is_pending());
        engine.add_image("c:1", FakeImage::default());
        let image = if is_reported {
            puller.forget_all();
            waiting.await
        } else {
            engine.release(Operation::PullImage);
            let (all, image) = futures::join!(join_all(slow), waiting);
            assert!(all.iter().all(Result::is_ok), "{all:?}");
            image
        };
        let was_pulled = image.map(|image| image.pulled);
        // tenants S3
        assert_eq!(was_pulled, Ok(false), "{is_reported}");
        assert_eq!(engine.count(Operation::PullImage), 2);
    }
}

/// With credentials of its own, a pod doesn't share the pull of another one.
#[tokio::test(start_paused = true)]
async fn an_image_that_another_pull_brings_while_a_pod_waits_for_any_turn_is_used() {
    for (policy, is_pulled) in [
        (PullPolicy::IfNotPresent, false),
        (PullPolicy::Always, true),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("a:1", works());
        engine.hold(Operation::PullImage);
        let options = PullerOptions {
            pulls: 1,
            ..PullerOptions::default()
        };
        let puller = ImagePuller::new(engine.clone(), options);
        let auth = RegistryAuth {
            username: "me".into(),
            password: "right".into(),
            ..RegistryAuth::default()
        };
        let secrets = PullSecrets {
            keyring: Keyring::of([("docker.io".to_owned(), auth)].into()),
            ..PullSecrets::default()
        };
        let uid = uid("u");
        let pod = |namespace| ForPod {
            uid: &uid,
            namespace,
        };
        let always = PullPolicy::Always;
        let first = puller.ensure_image(pod("one"), "a:1", always, &secrets, at(0), || {});
        let second = puller.ensure_image(pod("two"), "a:1", policy, &NONE, at(0), || {});
        let (mut first, mut second) = (Box::pin(first), Box::pin(second));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        engine.release(Operation::PullImage);
        let (first, second) = futures::join!(first, second);
        assert!(first.is_ok());
        // tenants S3
        assert_eq!(second.map(|image| image.pulled), Ok(is_pulled));
        let pulls = 1 + usize::from(is_pulled);
        assert_eq!(engine.count(Operation::PullImage), pulls);
    }
}

/// A pod joins a pull that was begun while the pod waited for its turn.
#[tokio::test(start_paused = true)]
async fn a_pod_with_a_turn_does_not_hold_up_the_pull_that_it_joins() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("a:1", works());
    engine.script_pull("b:1", works());
    engine.hold(Operation::PullImage);
    let options = PullerOptions {
        pulls: 1,
        ..PullerOptions::default()
    };
    let puller = ImagePuller::new(engine.clone(), options);
    let mut first = Box::pin(ensure(&puller, "one", "a:1"));
    let mut pod = Box::pin(ensure(&puller, "two", "b:1"));
    let mut own = Box::pin(puller.pull("b:1", &NONE));
    assert!(futures::poll!(&mut first).is_pending());
    assert!(futures::poll!(&mut pod).is_pending());
    assert!(futures::poll!(&mut own).is_pending());
    engine.release(Operation::PullImage);
    let all = async { futures::join!(first, pod, own) };
    let ended = tokio::time::timeout(Duration::from_mins(5), all).await;
    // tenants S3
    assert!(ended.is_ok_and(|(first, pod, own)| first.is_ok() && pod.is_ok() && own.is_ok()));
    assert_eq!(engine.count(Operation::PullImage), 2);
}

/// The keys have credentials in them.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_pulls_that_nobody_waits_for() {
    let (engine, puller) = hanging(&["a:1", "b:1", "c:1"]);
    let kept = || {
        let shop = &puller.shop;
        let turns = shop.for_namespaces.lock().len() + shop.for_all.lock().len();
        turns + shop.under_way.lock().len()
    };
    let mut pulls = ["a:1", "b:1", "c:1"].map(|image| Box::pin(ensure(&puller, "slow", image)));
    for pull in &mut pulls {
        assert!(futures::poll!(pull).is_pending());
    }
    assert!(kept() > 0);
    let [first, given_up, waiting] = pulls;
    drop((given_up, waiting));
    engine.release(Operation::PullImage);
    assert_eq!(first.await, Ok(true));
    assert_eq!(kept(), 0);
}
