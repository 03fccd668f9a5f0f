//! The interface of Jobs: their states, and orders.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::store::cell::Reader;
use mirrorlet_core::api::report::JobReport;
use mirrorlet_core::job::JobName;

/// Most orders that wait.
const REQUESTS_MAX: usize = 16;
/// How long an order may take: it waits for a merge and a write to disk.
const DEADLINE: Duration = Duration::from_secs(10);

/// An order on its way.
pub(super) struct Request {
    pub(super) job: JobName,
    pub(super) answer: oneshot::Sender<Result<(), OrderError>>,
}

/// Why an order came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// No manifest describes the Job.
    #[error("no manifest describes Job {0}")]
    Unknown(JobName),
    /// The disk doesn't take its ledger.
    #[error("the ledger of the Job can't be written: {0}")]
    Disk(String),
    /// There was no answer in time, or too many wait.
    #[error("the agent did not get to the order within {} s", DEADLINE.as_secs())]
    Busy,
}

/// Reads the Jobs of this agent, and has them run.
#[derive(Clone)]
pub struct JobHandle {
    states: Reader<Vec<JobReport>>,
    requests: mpsc::Sender<Request>,
}

impl JobHandle {
    pub(super) fn new(states: Reader<Vec<JobReport>>) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        (Self { states, requests }, receiver)
    }

    /// The states of all Jobs as of the last decision, by namespace and name.
    #[must_use]
    pub fn states(&self) -> Arc<Vec<JobReport>> {
        self.states.get()
    }

    /// Has a Job run again from its beginning. Returns once the disk says so.
    ///
    /// # Errors
    /// There is no such Job, its ledger can't be written, or the agent is too busy.
    pub async fn restart(&self, job: JobName) -> Result<(), OrderError> {
        let (answer, answered) = oneshot::channel();
        let request = Request { job, answer };
        let asked = async {
            let sent = self.requests.send(request).await;
            sent.map_err(|_| OrderError::Busy)?;
            answered.await.map_err(|_| OrderError::Busy)
        };
        let answer = tokio::time::timeout(DEADLINE, asked).await;
        answer.map_err(|_| OrderError::Busy)??
    }
}
