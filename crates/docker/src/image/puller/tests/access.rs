//! Access of pods to images that are on the node.

use std::fs;
use std::path::Path;

use super::*;
use mirrorlet_core::credentials::{Keyring, RegistryAuth, SecretUse};
use mirrorlet_core::image_access::VerificationPolicy;
use tempfile::TempDir;

/// The pull secret of that name in that namespace, with that password.
fn owned(namespace: &str, name: &str, password: &str) -> PullSecrets {
    let auth = RegistryAuth {
        username: "me".into(),
        password: password.into(),
        ..RegistryAuth::default()
    };
    let keyring = Keyring::of([("docker.io".to_owned(), auth)].into());
    let secret = SecretUse {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("{namespace}/{name}"),
        credential_hash: String::new(),
    };
    PullSecrets {
        sources: vec![(secret, keyring.clone())],
        keyring,
        ..PullSecrets::default()
    }
}

struct Stand {
    engine: Arc<FakeEngine>,
    root: TempDir,
}

impl Stand {
    /// The registry gives the image to those with the right password.
    fn new() -> Self {
        let engine = Arc::new(FakeEngine::new());
        let script = PullScript {
            password: Some("right".into()),
            ..works()
        };
        engine.script_pull("app:1", script);
        Self {
            engine,
            root: tempfile::tempdir().unwrap(),
        }
    }

    fn record(&self) -> std::path::PathBuf {
        self.root.path().join("image-access.json")
    }

    /// An agent's puller; the next one is that of its successor.
    fn puller(&self, policy: VerificationPolicy) -> ImagePuller {
        let options = PullerOptions {
            access_record: Some(self.record()),
            verification: Verification {
                policy,
                allowlist: Vec::new(),
            },
            ..PullerOptions::default()
        };
        ImagePuller::new(self.engine.clone(), options)
    }
}

/// Whether an image was pulled for a pod, or why there is none.
async fn ensure(
    puller: &ImagePuller,
    policy: PullPolicy,
    secrets: &PullSecrets,
) -> Result<bool, SyncErrorReason> {
    let pod = uid("u");
    // Without the back-off of another's failure.
    puller.failures.lock().last.clear();
    puller.failures.lock().backoff.reset(&"u_app:1".to_owned());
    let image = puller.ensure_image(&pod, "app:1", policy, secrets, at(0), || {});
    let image = image.await.map(|image| image.pulled);
    image.map_err(|error| {
        if error.reason == SyncErrorReason::ErrImageNeverPull {
            // Not that it is here.
            let words = "Container image \"app:1\" is not present with pull policy of Never";
            assert_eq!(error.message, words);
        }
        error.reason
    })
}

#[tokio::test(start_paused = true)]
async fn an_image_of_anothers_secret_is_not_there_for_who_has_none() {
    use PullPolicy::{IfNotPresent, Never};
    use SyncErrorReason::{ErrImageNeverPull, ErrImagePull};
    let stand = Stand::new();
    let puller = stand.puller(VerificationPolicy::default());
    let tenant = owned("a", "s", "right");
    assert_eq!(
        ensure(&puller, Never, &tenant).await,
        Err(ErrImageNeverPull)
    );
    assert_eq!(ensure(&puller, IfNotPresent, &tenant).await, Ok(true));
    for (who, policy, secrets, expected) in [
        ("its tenant", IfNotPresent, &tenant, Ok(false)),
        ("its tenant", Never, &tenant, Ok(false)),
        ("nobody's pod", IfNotPresent, &*NONE, Err(ErrImagePull)),
        ("nobody's pod", Never, &*NONE, Err(ErrImageNeverPull)),
        (
            "another",
            IfNotPresent,
            &owned("b", "s", "wrong"),
            Err(ErrImagePull),
        ),
        (
            "another",
            Never,
            &owned("b", "s", "wrong"),
            Err(ErrImageNeverPull),
        ),
        (
            "the same credentials",
            Never,
            &owned("b", "s", "right"),
            Ok(false),
        ),
        (
            "the changed secret",
            Never,
            &owned("a", "s", "new"),
            Ok(false),
        ),
    ] {
        // docker 67
        assert_eq!(
            ensure(&puller, policy, secrets).await,
            expected,
            "{who} {policy:?}"
        );
    }
    // The record of pulls is on disk, the credentials are not.
    let text = fs::read_to_string(stand.record()).unwrap();
    assert!(
        text.contains("\"namespace\":\"a\"") && !text.contains("right"),
        "{text}"
    );
    // Once anybody may pull it, anybody may use it.
    stand.engine.script_pull("app:1", works());
    assert_eq!(ensure(&puller, IfNotPresent, &NONE).await, Ok(true));
    assert_eq!(ensure(&puller, Never, &NONE).await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn the_next_agent_knows_who_may_and_a_lost_record_is_upstreams() {
    use PullPolicy::{IfNotPresent, Never};
    use VerificationPolicy::{AlwaysVerify, NeverVerify, NeverVerifyPreloadedImages};
    let stand = Stand::new();
    let tenant = owned("a", "s", "right");
    let first = stand.puller(NeverVerifyPreloadedImages);
    assert_eq!(ensure(&first, IfNotPresent, &tenant).await, Ok(true));
    let keep = || {};
    let remove = || fs::remove_file(stand.record()).unwrap();
    let spoil = || fs::write(stand.record(), "{").unwrap();
    let steps: [(&dyn Fn(), VerificationPolicy, bool, bool); 7] = [
        (&keep, NeverVerifyPreloadedImages, true, false),
        (&keep, NeverVerify, true, true),
        (&keep, AlwaysVerify, true, false),
        // Unreadable: any image may have been pulled by anybody.
        (&spoil, NeverVerifyPreloadedImages, false, false),
        (&keep, NeverVerifyPreloadedImages, false, false),
        // Gone: as if it had been there before the agent.
        (&remove, NeverVerifyPreloadedImages, true, true),
        (&keep, AlwaysVerify, false, false),
    ];
    for (step, (change, policy, for_tenant, for_others)) in steps.into_iter().enumerate() {
        change();
        let next = stand.puller(policy);
        // docker 67
        assert_eq!(
            ensure(&next, Never, &tenant).await.is_ok(),
            for_tenant,
            "{step}"
        );
        assert_eq!(
            ensure(&next, Never, &NONE).await.is_ok(),
            for_others,
            "{step}"
        );
    }
    assert!(Path::new(&format!("{}.set-aside", stand.record().display())).exists());
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_nobody_saw_end_is_nobodys() {
    use PullPolicy::{IfNotPresent, Never};
    for is_killed in [true, false] {
        let stand = Stand::new();
        let policy = VerificationPolicy::default();
        let tenant = owned("a", "s", "right");
        let mut puller = stand.puller(policy);
        stand.engine.hold(Operation::PullImage);
        {
            let mut pulling = Box::pin(ensure(&puller, IfNotPresent, &tenant));
            for _ in 0..100 {
                assert!(futures::poll!(&mut pulling).is_pending());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        stand.engine.release(Operation::PullImage);
        // It came all the same.
        stand.engine.add_image("app:1", FakeImage::default());
        if is_killed {
            puller = stand.puller(policy);
        }
        // docker 67
        assert!(ensure(&puller, Never, &NONE).await.is_err(), "{is_killed}");
        // A failed pull doesn't open the image to everyone.
        for policy in [IfNotPresent, PullPolicy::Always, Never] {
            assert!(ensure(&puller, policy, &NONE).await.is_err(), "{policy:?}");
        }
        assert_eq!(ensure(&puller, IfNotPresent, &tenant).await, Ok(true));
        assert_eq!(ensure(&puller, Never, &tenant).await, Ok(false));
        assert!(ensure(&puller, Never, &NONE).await.is_err(), "{is_killed}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_noted_is_not_pulled() {
    let engine = Arc::new(FakeEngine::new());
    engine.script_pull("app:1", works());
    let options = PullerOptions {
        access_record: Some("/proc/no/such/file".into()),
        ..PullerOptions::default()
    };
    let puller = ImagePuller::new(engine.clone(), options);
    let refused = ensure(&puller, PullPolicy::IfNotPresent, &NONE).await;
    // docker 67
    assert_eq!(refused, Err(SyncErrorReason::ErrImagePull));
    assert_eq!(engine.count(Operation::PullImage), 0);
}
