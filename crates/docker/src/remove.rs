//! Removing containers and what they leave behind.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::containers::{Containers, Turn};
use super::engine::{Engine, EngineError};
use super::files::PodFiles;
use super::index::Record;
use super::log_links::ContainerLogs;
use super::translate::Kind;
use mirrorlet_core::api::PodUid;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::Result;

/// How long to wait for a removal of a container that is already in progress, and the interval of
/// checks: only the Engine's event stream reports its end.
const REMOVAL_WAIT: Duration = Duration::from_secs(10);
const REMOVAL_POLL: Duration = Duration::from_millis(100);

/// The remains of pods and containers that have ended.
pub(super) struct Remains {
    pub(super) containers: Arc<Containers>,
    pub(super) files: Arc<PodFiles>,
    pub(super) logs: Arc<ContainerLogs>,
}

impl Remains {
    /// Removes the cgroups that were left behind for a pod. They contain nothing, so a failure, for
    /// example in a container that does not see them, is only logged.
    pub(super) async fn remove_cgroups(&self, uid: &PodUid) {
        let (root, for_disk) = (self.files.node.cgroup_root.clone(), uid.clone());
        if let Err(error) = self
            .files
            .on_disk(move |volumes| volumes.remove_pod_cgroups(&root, &for_disk))
            .await
        {
            occurrences::cgroups_left(uid, &error.to_string());
        }
    }

    /// Removes a container that is not running. Success if it is gone; if a removal is already in
    /// progress, for example by an earlier agent, waits for it.
    pub(super) async fn remove(&self, id: &str) -> Result<()> {
        let record = self.containers.index.get(id);
        let began = Instant::now();
        loop {
            let mut turn = Turn::begin(&self.containers.changes).await;
            let removing = self.containers.engine.remove_container(id, false);
            let removed = turn.bound(removing).await;
            drop(turn);
            match removed {
                Ok(()) => {
                    self.containers.index.removed(id);
                    break;
                }
                Err(error) if error.is_not_found() => {
                    let asked = record.as_ref().map_or(0, |record| record.touched);
                    self.containers.index.not_found(id, asked);
                    break;
                }
                Err(error) if is_waited_for(&error, began) => {
                    tokio::time::sleep(REMOVAL_POLL).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(record) = record {
            self.logs.unlink_log(id, &record.ours).await;
            self.remove_termination_log(record).await;
        }
        Ok(())
    }

    /// Removes the termination message of a container that is gone.
    async fn remove_termination_log(&self, record: Record) {
        let Kind::Container { name, .. } = &record.ours.kind else {
            return;
        };
        if let Some(path) = record.termination_log {
            self.remove_message(&record.ours.uid, name, path).await;
        }
    }

    /// Removes a termination message's file that no container mounts. If that fails, the file is
    /// removed with its pod.
    pub(super) async fn remove_message(&self, uid: &PodUid, name: &str, path: PathBuf) {
        let (uid, name) = (uid.clone(), name.to_owned());
        let removed = self
            .files
            .on_disk(move |volumes| volumes.remove_termination_log(&uid, &name, &path))
            .await;
        if let Err(error) = removed {
            tracing::debug!(error = %error, "failed to remove a termination message");
        }
    }
}

/// Removes a container that may be running, and its anonymous volumes. Success if it is gone; if a
/// removal is already in progress, waits for it.
///
/// # Errors
/// The Engine doesn't remove it.
pub async fn remove_running(engine: &dyn Engine, id: &str) -> Result<(), EngineError> {
    let began = Instant::now();
    loop {
        match engine.remove_container(id, true).await {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if is_waited_for(&error, began) => tokio::time::sleep(REMOVAL_POLL).await,
            removed => return removed,
        }
    }
}

/// Whether the container is being removed already, and that removal, first requested then, is still
/// awaited.
fn is_waited_for(error: &EngineError, began: Instant) -> bool {
    error.is_conflict()
        && error.to_string().contains("is already in progress")
        && began.elapsed() < REMOVAL_WAIT
}
