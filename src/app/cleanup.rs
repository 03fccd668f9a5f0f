//! Removes what an agent that has ended left on this machine: containers, volumes, rules.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;

use anyhow::Context as _;

use super::host::is_apart_from;
use super::lock::RootLock;
use super::owner::owner_id;
use super::used_engine::UsedEngine;
use crate::config::Config;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_docker::engine::{Engine, EngineError};
use mirrorlet_docker::translate::labels::Labels;
use mirrorlet_docker::translate::{Kind, parse_ours};
use mirrorlet_docker::{BollardEngine, host_ports_table, remove_dead_log_links, remove_running};
use mirrorlet_host::volume::{HostFiles, VolumeError, VolumeManager};
use mirrorlet_host::{disk, nat};

/// The things to remove, or that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Ids of containers, sandboxes included, with their names.
    pub containers: Vec<(String, String)>,
    /// Names of containers that have the agent's label and are no pod's. They stay.
    pub others: Vec<String>,
    /// Pods that have directories.
    pub pods: BTreeSet<PodUid>,
    /// Why cgroups of pods were not removed. They hold nothing, and are gone after the next boot.
    pub kept_cgroups: Vec<String>,
}

/// Finds what an agent has left, and with `remove` removes it: its containers on the Engine, the
/// volumes and cgroups of its pods, links to their logs, and its rules for host ports. Manifests,
/// images, containers that only have its label and the rest of the root directory stay. None if no agent
/// has used the root directory.
///
/// # Errors
/// The root directory can't be read, an agent runs, the Engine doesn't answer or is not the one that the
/// agent used, or something other than a cgroup can't be removed: all else is then removed, but for the
/// volumes and cgroups of pods that still have a container. If the Engine goes away meanwhile, all else
/// stays, too.
pub async fn cleanup(config: &Config, remove: bool) -> anyhow::Result<Option<Leftovers>> {
    let root: &Path = &config.root;
    let known = root.join("owner").try_exists();
    if !known.map_err(|error| unreadable(root, error))? {
        return Ok(None);
    }
    let _lock = RootLock::acquire(root).context("the agent has to be stopped first")?;
    let owner = owner_id(root)?;
    let engine = BollardEngine::connect(&config.docker)?;
    let asked = UsedEngine {
        address: config.docker.clone(),
        id: engine.info().await?.id.unwrap_or_default(),
        owner: owner.clone(),
    };
    if let Some(refusal) = UsedEngine::read(root)?.and_then(|used| used.refusal(&asked, root)) {
        anyhow::bail!("nothing was removed: {refusal}");
    }
    let listed = engine.list_containers(&owner).await?.into_iter();
    let listed = listed.filter_map(|container| {
        let (names, labels) = (container.names, container.labels);
        Some((
            container.id?,
            names.unwrap_or_default(),
            labels.unwrap_or_default(),
        ))
    });
    let Labelled { ours, others } = sorted_out(&owner, listed);
    let volumes = VolumeManager::new(root);
    let containers = ours.iter();
    let mut left = Leftovers {
        containers: containers
            .map(|ours| (ours.id.clone(), ours.name.clone()))
            .collect(),
        others,
        pods: volumes.list_pod_dirs()?.into_iter().collect_set(),
        kept_cgroups: Vec::new(),
    };
    if !remove {
        return Ok(Some(left));
    }
    let mut uids = left.pods.clone();
    uids.extend(ours.iter().map(|ours| ours.uid.clone()));
    let config = config.clone();
    let files = HostFiles::new(config.host_root.clone());
    files.set_apart(is_apart_from(&config.docker).await);
    let rest = move |failed: &mut Failed, uids: &BTreeSet<PodUid>| {
        // Before anything that may be busy: while they are there, connections lead nowhere.
        failed.note("the rules for host ports", remove_rules(&owner));
        failed.files(&config, files, &volumes, uids);
    };
    let Failed { cgroups, others } = Failed::removing(&engine, &ours, uids, rest).await?;
    if others.is_empty() {
        left.kept_cgroups = cgroups;
        return Ok(Some(left));
    }
    let all: Vec<String> = others.into_iter().chain(cgroups).collect();
    anyhow::bail!("failed to remove: {}", all.join("; "))
}

/// Removes the rules for host ports. Blocks for a moment.
fn remove_rules(owner: &str) -> io::Result<()> {
    let table = host_ports_table(owner);
    nat::remove(&table).and_then(|()| nat::release(&table))
}

/// The containers with an agent's label.
#[derive(Debug, Default)]
struct Labelled {
    /// Those of its pods, in the order in which they are removed: a sandbox has the network of its
    /// pod's containers, so sandboxes come last.
    ours: Vec<Ours>,
    /// Names of the others. A container inherits the labels of its image, which may have been made of a
    /// pod's container.
    others: Vec<String>,
}

/// A container of a pod.
#[derive(Debug, PartialEq, Eq)]
struct Ours {
    id: String,
    name: String,
    uid: PodUid,
    is_sandbox: bool,
}

/// Sorts listed containers, each given by its id, its names and its labels.
fn sorted_out(
    owner: &str,
    listed: impl IntoIterator<Item = (String, Vec<String>, Labels)>,
) -> Labelled {
    let mut found = Labelled::default();
    for (id, names, labels) in listed {
        let name = names.first().unwrap_or(&id);
        let name = name.trim_start_matches('/').to_owned();
        match parse_ours(owner, names.iter().map(String::as_str), &labels) {
            Some(ours) => found.ours.push(Ours {
                id,
                name,
                uid: ours.uid,
                is_sandbox: matches!(ours.kind, Kind::Sandbox { .. }),
            }),
            None => found.others.push(name),
        }
    }
    let place = |ours: &Ours| (ours.is_sandbox, ours.name.clone());
    found.ours.small_sort_by_cached_key(place);
    found.others.small_sort();
    found
}

/// The error for a root directory of which can't be told whether an agent has used it.
fn unreadable(root: &Path, error: io::Error) -> anyhow::Error {
    let root = root.display();
    if error.kind() == io::ErrorKind::PermissionDenied {
        anyhow::anyhow!("not allowed to read {root}: try sudo")
    } else {
        anyhow::Error::new(error).context(format!("failed to read {root}"))
    }
}

/// Whether a call failed because the Engine is away. One that hung for a container, as behind a start of
/// it that hangs, says nothing of the others: the Engine is asked something that needs no container.
async fn is_away(engine: &dyn Engine, error: &EngineError) -> bool {
    match error {
        EngineError::Unavailable { .. } => true,
        EngineError::Timeout { .. } => engine.info().await.is_err(),
        EngineError::Api { .. } | EngineError::Decode { .. } | EngineError::TooLarge { .. } => {
            false
        }
    }
}

/// Why things are still there. What can't be removed keeps nothing else from being removed.
#[derive(Debug, Default)]
struct Failed {
    cgroups: Vec<String>,
    others: Vec<String>,
}

impl Failed {
    fn note(&mut self, what: impl fmt::Display, removed: Result<(), impl fmt::Display>) {
        if let Err(error) = removed {
            self.others.push(format!("{what}: {error}"));
        }
    }

    /// Removes containers, then all else by `rest`, which may block, for those of the pods `uids` that
    /// have no container any more. An Engine that goes away is an error, and `rest` isn't called.
    async fn removing(
        engine: &dyn Engine,
        ours: &[Ours],
        mut uids: BTreeSet<PodUid>,
        rest: impl FnOnce(&mut Self, &BTreeSet<PodUid>) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut failed = Self::default();
        failed.containers(engine, ours, &mut uids).await?;
        let removing = move || {
            rest(&mut failed, &uids);
            failed
        };
        Ok(disk::blocking(removing).await)
    }

    /// Removes containers in this order. Takes pods that still have one out of `uids`, so that they keep
    /// their volumes and cgroups.
    ///
    /// # Errors
    /// The Engine went away. The containers after that one were not removed.
    async fn containers(
        &mut self,
        engine: &dyn Engine,
        ours: &[Ours],
        uids: &mut BTreeSet<PodUid>,
    ) -> anyhow::Result<()> {
        for (at, Ours { id, name, uid, .. }) in ours.iter().enumerate() {
            let removed = remove_running(engine, id).await;
            if let Err(error) = &removed {
                if is_away(engine, error).await {
                    let left = ours.len() - at + self.others.len();
                    anyhow::bail!(
                        "failed to remove container {name}: {error}; containers left: {left}. Their volumes and the rules for host ports stay, too: once the Engine answers, run the command again"
                    );
                }
                uids.remove(uid);
            }
            self.note(format_args!("container {name}"), removed);
        }
        Ok(())
    }

    /// Removes what an agent made on disk for these pods, of which nothing runs: cgroups, volumes, links to
    /// logs.
    fn files(
        &mut self,
        config: &Config,
        files: HostFiles,
        volumes: &VolumeManager,
        uids: &BTreeSet<PodUid>,
    ) {
        self.pods(
            uids,
            |uid| volumes.remove_pod_cgroups(&config.cgroup_root, uid),
            |uid| volumes.remove_pod(uid),
        );
        if let Some(dir) = &config.pod_logs_dir {
            let what = format!("links to logs in {}", dir.display());
            self.note(what, remove_dead_log_links(dir, files));
        }
    }

    /// Removes cgroups and volumes of these pods.
    fn pods(
        &mut self,
        uids: &BTreeSet<PodUid>,
        remove_cgroups: impl Fn(&PodUid) -> Result<(), VolumeError>,
        remove_volumes: impl Fn(&PodUid) -> Result<(), VolumeError>,
    ) {
        for uid in uids {
            if let Err(error) = remove_cgroups(uid) {
                self.cgroups.push(format!("pod {uid}: {error}"));
            }
            self.note(format_args!("pod {uid}"), remove_volumes(uid));
        }
    }
}

#[cfg(test)]
mod tests {
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
}
