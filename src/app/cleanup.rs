//! Removes what a stopped agent left on this machine: containers, volumes, rules.

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
    /// Names of containers with the agent's label that don't belong to a pod. They stay.
    pub others: Vec<String>,
    /// Pods that have directories.
    pub pods: BTreeSet<PodUid>,
    /// Why cgroups of pods were not removed. They are empty, and disappear at the next boot.
    pub kept_cgroups: Vec<String>,
}

/// Finds everything that an agent has left, and with `remove` removes it: its containers on the Engine,
/// the volumes and cgroups of its pods, links to their logs, and its rules for host ports. Manifests,
/// images, other containers with its label and the rest of the root directory stay. None if no agent
/// has used the root directory.
///
/// # Errors
/// The root directory can't be read, an agent runs, the Engine doesn't answer or is not the one that
/// the agent used, or something other than a cgroup can't be removed: everything else is removed then,
/// except for the volumes and cgroups of pods that still have a container. If the Engine goes away
/// meanwhile, everything else stays, too.
pub async fn cleanup(config: &Config, remove: bool) -> anyhow::Result<Option<Leftovers>> {
    let root: &Path = &config.root;
    let known = root.join("owner").try_exists();
    if !known.map_err(|error| unreadable(root, error))? {
        return Ok(None);
    }
    let _lock = RootLock::acquire(root).context("stop the agent first")?;
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
        // Removed before anything that may be busy: while they exist, connections fail.
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
    /// The containers of its pods, in the order of removal: a sandbox has the network of its pod's
    /// containers, so sandboxes come last.
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

/// The error if it is unknown whether an agent has used a root directory.
fn unreadable(root: &Path, error: io::Error) -> anyhow::Error {
    let root = root.display();
    if error.kind() == io::ErrorKind::PermissionDenied {
        anyhow::anyhow!("not allowed to read {root}: try sudo")
    } else {
        anyhow::Error::new(error).context(format!("failed to read {root}"))
    }
}

/// Whether a call failed because the Engine is away. A call that hung because of its container, as
/// behind a hanging start, says nothing about the others: so the Engine gets a call that needs no
/// container.
async fn is_away(engine: &dyn Engine, error: &EngineError) -> bool {
    match error {
        EngineError::Unavailable { .. } => true,
        EngineError::Timeout { .. } => engine.info().await.is_err(),
        EngineError::Api { .. } | EngineError::Decode { .. } | EngineError::TooLarge { .. } => {
            false
        }
    }
}

/// Why things were not removed. A failed removal doesn't prevent the others.
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

    /// Removes containers, then everything else with `rest`, which may block, for those of the pods
    /// `uids` that have no container any more. If the Engine goes away, that is an error, and `rest`
    /// isn't called.
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

    /// Removes containers in this order. Removes pods that still have one from `uids`, so that they
    /// keep their volumes and cgroups.
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

    /// Removes the files of an agent for these pods, which don't run: cgroups, volumes, links to logs.
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
mod tests;
