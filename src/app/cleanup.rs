//! Removes what an agent that has ended left on this machine: containers, volumes, rules.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use anyhow::Context as _;

use super::lock::RootLock;
use super::owner::owner_id;
use super::used_engine::UsedEngine;
use crate::config::Config;
use mirrorlet_core::api::{PodUid, keys};
use mirrorlet_docker::engine::Engine as _;
use mirrorlet_docker::{BollardEngine, host_ports_table, remove_dead_log_links};
use mirrorlet_host::volume::{HostFiles, VolumeManager};
use mirrorlet_host::{disk, nat};

/// The things to remove, or that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Ids of containers, sandboxes included, with their names.
    pub containers: Vec<(String, String)>,
    /// Pods that have directories.
    pub pods: BTreeSet<PodUid>,
}

/// Finds what an agent has left, and with `remove` removes it: its containers on the Engine, the
/// volumes and cgroups of its pods, links to their logs, and its rules for host ports. Manifests,
/// images and the rest of the root directory stay. None if no agent has used the root directory.
///
/// # Errors
/// An agent runs, the Engine doesn't answer or is not the one that the agent used, or something can't
/// be removed.
pub async fn cleanup(config: &Config, remove: bool) -> anyhow::Result<Option<Leftovers>> {
    let root: &Path = &config.root;
    if !root.join("owner").exists() {
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
    let listed = engine.list_containers(&owner).await?;
    let volumes = VolumeManager::new(root);
    let of_container = |labels: &HashMap<String, String>| {
        let uid = labels.get(keys::POD_UID)?;
        Some(PodUid::from(uid.as_str()))
    };
    let labels = listed.iter().filter_map(|one| one.labels.as_ref());
    let mut uids: BTreeSet<PodUid> = labels.filter_map(of_container).collect();
    let mut left = Leftovers {
        containers: listed
            .into_iter()
            .filter_map(|container| {
                let id = container.id?;
                let name = container.names.into_iter().flatten().next();
                let name = name.unwrap_or_else(|| id.clone());
                Some((id, name.trim_start_matches('/').to_owned()))
            })
            .collect(),
        pods: volumes.list_pod_dirs()?.into_iter().collect(),
    };
    left.containers.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
    if !remove {
        return Ok(Some(left));
    }
    for (id, name) in &left.containers {
        let removed = engine.remove_container(id, true).await;
        removed.with_context(|| {
            format!(
                "failed to remove container {name} ({}={owner})",
                keys::OWNER
            )
        })?;
    }
    uids.extend(left.pods.iter().cloned());
    let config = config.clone();
    disk::blocking(move || remove_files(&config, &volumes, &uids)).await?;
    let table = host_ports_table(&owner);
    let removed =
        disk::blocking(move || nat::remove(&table).and_then(|()| nat::release(&table))).await;
    removed.context("failed to remove the rules for host ports")?;
    Ok(Some(left))
}

/// Removes what an agent made on disk for these pods, of which nothing runs: cgroups, volumes, links to
/// logs.
fn remove_files(
    config: &Config,
    volumes: &VolumeManager,
    uids: &BTreeSet<PodUid>,
) -> anyhow::Result<()> {
    for uid in uids {
        volumes
            .remove_pod_cgroups(&config.cgroup_root, uid)
            .and_then(|()| volumes.remove_pod(uid))
            .with_context(|| format!("pod {uid}"))?;
    }
    if let Some(dir) = &config.pod_logs_dir {
        let removed = remove_dead_log_links(dir, HostFiles::new(config.host_root.clone()));
        removed.with_context(|| format!("failed to remove links to logs in {}", dir.display()))?;
    }
    Ok(())
}
