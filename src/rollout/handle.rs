//! The interface of rollouts: the histories, and commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::RolloutOptions;
use crate::store::cell::Reader;
use crate::store::node_edits::NodeEditsHandle;
use mirrorlet_core::api::{Diagnostic, FullName, Pod, PodUid};
use mirrorlet_core::rollout::{Command, History, Refused};
use mirrorlet_core::workload::WorkloadKey;

/// The histories of all static pods.
pub type Histories = BTreeMap<FullName, History>;

/// Most commands that wait.
const REQUESTS_MAX: usize = 16;
/// How long a command may take: it waits for a merge and a write to disk.
const DEADLINE: Duration = Duration::from_secs(10);

/// The result of a command: the number of the affected revision.
pub(super) type Obeyed = Result<u64, Refused>;

/// The answer to a command: its result, once it is on disk.
pub(super) type Answer = Result<u64, CommandError>;

/// The pod or workload that a command is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutTarget {
    /// A pod.
    Pod(FullName),
    /// All pods of a workload.
    Workload(WorkloadKey),
}

/// A command on its way.
pub(super) struct Request {
    pub(super) target: RolloutTarget,
    pub(super) command: Command,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// An executed or refused command whose answer waits for the disk.
pub(super) struct Answering {
    pub(super) answer: oneshot::Sender<Answer>,
    pub(super) obeyed: Obeyed,
    /// The pods whose histories it may have changed.
    pub(super) pods: Vec<FullName>,
}

/// Why a command came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// There was no answer in time, or too many commands wait.
    #[error("the agent did not execute the command within {} s", DEADLINE.as_secs())]
    Busy,
    /// It was obeyed, and the disk doesn't have it.
    #[error(
        "the command was executed, but its effect is lost if the agent restarts, because it could not be saved: {0}; saving is retried every {retry} s",
        retry = super::KEEP_RETRY.as_secs()
    )]
    NotKept(String),
}

/// Reads the rollouts of this agent, and commands them.
#[derive(Clone)]
pub struct RolloutHandle {
    pub(super) options: Arc<RolloutOptions>,
    histories: Reader<Histories>,
    unkept: Reader<Option<Diagnostic>>,
    requests: mpsc::Sender<Request>,
}

impl RolloutHandle {
    pub(super) fn new(
        histories: Reader<Histories>,
        unkept: Reader<Option<Diagnostic>>,
        options: Arc<RolloutOptions>,
    ) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let handle = Self {
            options,
            histories,
            unkept,
            requests,
        };
        (handle, receiver)
    }

    /// The changes that users made to the Node.
    pub fn node_edits(&self) -> &NodeEditsHandle {
        &self.options.node_edits
    }

    /// A reader of all histories.
    pub fn reader(&self) -> Reader<Histories> {
        self.histories.clone()
    }

    /// The histories as of the last decision.
    pub fn histories(&self) -> Arc<Histories> {
        self.histories.get()
    }

    /// Returns the version of a pod with that UID, also for a pod whose manifest was removed recently.
    pub fn version(&self, name: &FullName, uid: &PodUid) -> Option<Arc<Pod>> {
        let histories = self.histories.get();
        let revision = histories.get(name)?.get(uid)?;
        Some(Arc::clone(&revision.pod))
    }

    /// Returns why histories can't be written to disk; none if all are written.
    pub fn unkept(&self) -> Reader<Option<Diagnostic>> {
        self.unkept.clone()
    }

    /// Executes a command; returns the number of the affected revision.
    ///
    /// # Errors
    /// It was refused, it can't be written to disk, or the agent is too busy.
    pub async fn command(
        &self,
        target: RolloutTarget,
        command: Command,
    ) -> Result<u64, CommandError> {
        let (answer, answered) = oneshot::channel();
        let request = Request {
            target,
            command,
            answer,
        };
        let asked = async {
            self.requests
                .send(request)
                .await
                .map_err(|_| CommandError::Busy)?;
            answered.await.map_err(|_| CommandError::Busy)?
        };
        let answer = tokio::time::timeout(DEADLINE, asked).await;
        answer.map_err(|_| CommandError::Busy)?
    }
}
