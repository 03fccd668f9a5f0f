use std::collections::BTreeMap;

use bollard::models::ContainerCreateBody;
use mirrorlet_core::api::keys;
use mirrorlet_docker::Operation;
use mirrorlet_testing::FakeEngine;
use mirrorlet_testing::fake_engine::{FakeImage, FaultPoint};

use super::*;
use crate::config::{Ambient, resolve};

#[tokio::test]
async fn a_root_that_cant_be_read_is_no_unused_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("file");
    std::fs::write(&root, "").unwrap();
    let mut config = resolve(&BTreeMap::new(), None, &Ambient::default())
        .unwrap()
        .config;
    config.root.clone_from(&root);
    let error = cleanup(&config, false).await.unwrap_err().to_string();
    // rollouts S5
    assert_eq!(error, format!("failed to read {}", root.display()));
    let refused = unreadable(&root, io::ErrorKind::PermissionDenied.into());
    let words = format!("not allowed to read {}: try sudo", root.display());
    assert_eq!(refused.to_string(), words);
}

#[test]
fn a_container_that_only_has_the_label_is_not_the_agents() {
    let labels = |owner: &str| -> Labels {
        let labels = [
            (keys::OWNER, owner),
            (keys::KIND, keys::KIND_CONTAINER),
            (keys::CONTAINER_NAME, "app"),
            (keys::POD_NAME, "web"),
            (keys::POD_NAMESPACE, "default"),
            (keys::POD_UID, "u"),
            (keys::ATTEMPT, "0"),
            (keys::RESTART_COUNT, "0"),
            (keys::ROLE, "app"),
            (keys::SANDBOX_ID, "s"),
        ];
        let labels = labels.into_iter();
        labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let container = |id: &str, name: &str, owner: &str| {
        let names = vec![format!("/{name}")];
        (id.to_owned(), names, labels(owner))
    };
    let sandbox = |id: &str, name: &str| {
        let mut labels = labels("o");
        for (key, value) in [
            (keys::KIND, keys::KIND_SANDBOX),
            (keys::CONTAINER_NAME, keys::SANDBOX_NAME),
            (keys::NETWORK, "pod"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        (id.to_owned(), vec![format!("/{name}")], labels)
    };
    let (pod, name) = ("k8s_POD_web_default_u_0", "k8s_app_web_default_u_0");
    let found = sorted_out(
        "o",
        [
            sandbox("0", pod),
            container("1", name, "o"),
            // Of an image that was made of it.
            container("2", "mine", "o"),
            container("3", "k8s_app_web_default_v_0", "o"),
            // As listed of another agent by mistake.
            container("4", name, "other"),
            ("5".to_owned(), Vec::new(), labels("o")),
        ],
    );
    let last = Ours {
        is_sandbox: true,
        ..ours("0", pod, "u")
    };
    // rollouts S5
    assert_eq!(found.ours, [ours("1", name, "u"), last]);
    assert_eq!(found.others, ["5", name, "k8s_app_web_default_v_0", "mine"]);
}

fn ours(id: &str, name: &str, uid: &str) -> Ours {
    Ours {
        id: id.to_owned(),
        name: name.to_owned(),
        uid: uid.into(),
        is_sandbox: false,
    }
}

/// Pods of one container each, with a directory below `root`.
async fn pods(root: &Path, uids: &[&str]) -> (FakeEngine, Vec<Ours>, BTreeSet<PodUid>) {
    let engine = FakeEngine::new();
    engine.add_image("image", FakeImage::default());
    let mut containers = Vec::new();
    for uid in uids {
        let body = ContainerCreateBody {
            image: Some("image".to_owned()),
            ..ContainerCreateBody::default()
        };
        let id = engine.create_container(uid, body).await.unwrap();
        containers.push(ours(&id, uid, uid));
        let dir = root.join("pods").join(uid).join("volumes");
        std::fs::create_dir_all(dir).unwrap();
    }
    let uids = uids.iter().map(|uid| PodUid::from(*uid)).collect();
    (engine, containers, uids)
}

/// Removes containers, then the directories of their pods.
async fn remove(
    engine: &FakeEngine,
    containers: &[Ours],
    uids: BTreeSet<PodUid>,
    volumes: &VolumeManager,
) -> anyhow::Result<Failed> {
    let volumes = volumes.clone();
    let rest = move |failed: &mut Failed, uids: &BTreeSet<PodUid>| {
        failed.pods(uids, |_| Ok(()), |uid| volumes.remove_pod(uid));
    };
    Failed::removing(engine, containers, uids, rest).await
}

fn timeout() -> EngineError {
    EngineError::Timeout {
        operation: "RemoveContainer",
        after: std::time::Duration::from_mins(2),
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_goes_away_ends_the_removal() {
    let unavailable = EngineError::Unavailable {
        endpoint: "unix:///e".to_owned(),
        cause: "connection refused".to_owned(),
        is_shortage: false,
    };
    // What a removal answers, and a question that needs no container.
    for (error, of_info) in [(unavailable, None), (timeout(), Some(timeout()))] {
        let root = tempfile::tempdir().unwrap();
        let volumes = VolumeManager::new(root.path());
        let all = ["a", "b", "c"];
        let (engine, containers, uids) = pods(root.path(), &all).await;
        let words = format!("failed to remove container a: {error}; containers left: 3. ");
        engine.fail(Operation::RemoveContainer, None, FaultPoint::Before, error);
        if let Some(error) = of_info {
            engine.fail(Operation::Info, None, FaultPoint::Before, error);
        }
        let ended = remove(&engine, &containers, uids, &volumes).await;
        let said = ended.unwrap_err().to_string();
        // rollouts S5
        assert!(said.starts_with(&words), "{said}");
        assert_eq!(engine.count(Operation::RemoveContainer), 1);
        assert_eq!(volumes.list_pod_dirs().unwrap(), all.map(PodUid::from));
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_hangs_for_one_container_ends_no_other() {
    let root = tempfile::tempdir().unwrap();
    let volumes = VolumeManager::new(root.path());
    let (engine, containers, uids) = pods(root.path(), &["a", "b"]).await;
    let words = format!("container a: {}", timeout());
    engine.fail(
        Operation::RemoveContainer,
        None,
        FaultPoint::Before,
        timeout(),
    );
    let removed = remove(&engine, &containers, uids, &volumes).await;
    // rollouts S5
    assert_eq!(removed.unwrap().others, [words]);
    assert_eq!(engine.count(Operation::RemoveContainer), 2);
    assert_eq!(volumes.list_pod_dirs().unwrap(), [PodUid::from("a")]);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_cant_be_removed_keeps_its_pods_files_alone() {
    let root = tempfile::tempdir().unwrap();
    let volumes = VolumeManager::new(root.path());
    let all = ["broken", "endless", "gone", "leaving", "plain"];
    let (engine, containers, uids) = pods(root.path(), &all).await;
    let refuse = |index: usize, status: u16, message: &str| {
        let message = message.to_owned();
        let error = EngineError::Api { status, message };
        let id = Some(&*containers[index].id);
        engine.fail(Operation::RemoveContainer, id, FaultPoint::Before, error);
    };
    let removed_already = "removal of container 0123 is already in progress";
    refuse(0, 500, "driver failed");
    for _ in 0..1000 {
        refuse(1, 409, removed_already);
    }
    engine
        .remove_container(&containers[2].id, true)
        .await
        .unwrap();
    refuse(3, 409, removed_already);
    let removed = remove(&engine, &containers, uids, &volumes).await;
    // rollouts S5
    assert_eq!(
        removed.unwrap().others,
        [
            "container broken: driver failed".to_owned(),
            format!("container endless: {removed_already}"),
        ]
    );
    let stay = ["broken", "endless"];
    let there = engine.containers().into_iter().map(|(name, _)| name);
    assert_eq!(there.collect::<Vec<_>>(), stay);
    assert_eq!(volumes.list_pod_dirs().unwrap(), stay.map(PodUid::from));
}

fn busy() -> VolumeError {
    VolumeError::Busy {
        path: "/busy".into(),
        cause: "in use".to_owned(),
    }
}

#[test]
fn what_cant_be_removed_keeps_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let volumes = VolumeManager::new(root.path());
    let uids: BTreeSet<PodUid> = ["a", "b", "c"].map(PodUid::from).into();
    for uid in &uids {
        let dir = root.path().join("pods").join(uid.as_str());
        std::fs::create_dir_all(dir.join("volumes")).unwrap();
    }
    assert_eq!(volumes.list_pod_dirs().unwrap().len(), 3);
    let busy_at = |busy_one: &'static str| {
        move |uid: &PodUid| {
            if uid.as_str() == busy_one {
                Err(busy())
            } else {
                Ok(())
            }
        }
    };
    let mut failed = Failed::default();
    failed.pods(&uids, busy_at("a"), |uid| {
        busy_at("b")(uid)?;
        volumes.remove_pod(uid)
    });
    // rollouts S5
    assert_eq!(volumes.list_pod_dirs().unwrap(), [PodUid::from("b")]);
    let words = |uid: &str| format!("pod {uid}: {}", busy());
    assert_eq!(
        (failed.cgroups, failed.others),
        (vec![words("a")], vec![words("b")])
    );
}
