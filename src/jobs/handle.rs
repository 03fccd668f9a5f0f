//! The interface of Jobs: their states, and orders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::store::cell::Reader;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::report::{CronJobReport, JobReport};
use mirrorlet_core::job::{JobName, Known};

/// Most orders that wait.
const REQUESTS_MAX: usize = 16;
/// The deadline of an order: it waits for a merge and a write to disk.
const DEADLINE: Duration = Duration::from_secs(10);

/// A user's order about Jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// A Job runs again from its beginning.
    Restart(JobName),
    /// A run of a CronJob begins now.
    Run(JobName),
    /// The remains of an ended pod of a Job are removed; it still counts.
    Forget(JobName, PodUid),
    /// A Job that is a run of a CronJob ends, and is forgotten; its time does not become due again.
    Delete(JobName),
}

impl Order {
    /// The Job or CronJob that it is about.
    pub(super) fn job(&self) -> &JobName {
        match self {
            Self::Restart(job) | Self::Run(job) | Self::Forget(job, _) | Self::Delete(job) => job,
        }
    }
}

/// The answer to an order: the Job that runs.
pub(super) type Answer = Result<JobName, OrderError>;

/// An order on its way.
pub(super) struct Request {
    pub(super) order: Order,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// All Jobs and CronJobs, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobStates {
    /// The Jobs, those of CronJobs included.
    pub jobs: Vec<JobReport>,
    /// The CronJobs.
    pub cron_jobs: Vec<CronJobReport>,
    /// The newest run of each Job.
    pub known: BTreeMap<JobName, Known>,
}

/// Why an order came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// No manifest describes it.
    #[error("no manifest defines a Job or CronJob {0}")]
    Unknown(JobName),
    /// Its record can't be read.
    #[error("the progress of {0} can't be read; see mirrorlet status")]
    Unreadable(JobName),
    /// Its record can't be read, and pods of it may run that this agent has not seen yet.
    #[error(
        "it is not known yet whether pods of {0} run: try again once the Engine has listed all pods"
    )]
    Unseen(JobName),
    /// A Job from another document has the name of the run.
    #[error("another Job is named {0}")]
    Taken(JobName),
    /// It may run by a document of a source that was not read yet.
    #[error(
        "another document may define {0}, in a source that has not been read; see mirrorlet status"
    )]
    Awaited(JobName),
    /// The disk doesn't take its record.
    #[error("the record of the Job can't be written: {0}")]
    Disk(String),
    /// There was no answer in time, or too many orders wait.
    #[error("the agent did not execute the command within {} s", DEADLINE.as_secs())]
    Busy,
}

/// Reads the Jobs of this agent, and orders runs.
#[derive(Clone)]
pub struct JobHandle {
    states: Reader<JobStates>,
    requests: mpsc::Sender<Request>,
}

impl JobHandle {
    pub(super) fn new(states: Reader<JobStates>) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        (Self { states, requests }, receiver)
    }

    /// A reader of the states of all Jobs.
    pub fn reader(&self) -> Reader<JobStates> {
        self.states.clone()
    }

    /// The states of all Jobs at the last decision.
    pub fn states(&self) -> Arc<JobStates> {
        self.states.get()
    }

    /// Executes an order. Returns its Job once the disk has the change, and the merge with it is
    /// published.
    ///
    /// # Errors
    /// There is no such Job or CronJob, its record can't be read or written, or the agent is too busy.
    pub async fn order(&self, order: Order) -> Answer {
        let (answer, answered) = oneshot::channel();
        let request = Request { order, answer };
        let asked = async {
            let sent = self.requests.send(request).await;
            sent.map_err(|_| OrderError::Busy)?;
            answered.await.map_err(|_| OrderError::Busy)
        };
        let answer = tokio::time::timeout(DEADLINE, asked).await;
        answer.map_err(|_| OrderError::Busy)??
    }
}
