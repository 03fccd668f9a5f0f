//! The stored state of a Job: the pods that were started, and their ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{IndexSet, JobName};
use crate::api::{PodUid, Timestamp, hex};

/// First line of the hashed bytes of a pod's UID, which must never change.
const ENCODING: &str = "mirrorlet pod of a job 1";

/// Bytes of the SHA-256 that are kept, as of a manifest's pod.
const UID_BYTES: usize = 16;

/// Maximum number of ended pods of one outcome that stay for their logs.
pub const KEPT_MAX: usize = 10;

/// The state of a Job besides its document: the started pods, and their ends.
///
/// Nothing is started or removed before the record is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    /// The hash of the part of the document that identifies the run.
    pub content: String,
    /// When this run of the Job began: distinguishes its pods from those of other runs.
    pub created: Timestamp,
    /// Since when its pods may run; none while it is suspended or waits for the previous run's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// The indexes that have succeeded.
    #[serde(default)]
    pub succeeded: IndexSet,
    /// The indexes that have failed for good.
    #[serde(default)]
    pub failed: IndexSet,
    /// The number of pods that have failed.
    #[serde(default)]
    pub failures: u32,
    /// The number of failed pods by index, for indexes with failures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub index_failures: BTreeMap<u32, u32>,
    /// The number of an index's next pod, unless it is the first one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u32, u32>,
    /// The pods that should run: attempts by their index.
    #[serde(default)]
    pub active: BTreeMap<u32, u32>,
    /// Pods that should no longer run, but may do so until they have stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<Leaving>,
    /// Ended pods that stay for their logs, oldest first.
    #[serde(default)]
    pub over: Vec<Over>,
    /// Number of failures since the last success, and the time of the last failure; by index if each
    /// has its own limit.
    #[serde(default)]
    pub waits: BTreeMap<u32, Wait>,
    /// The end of the Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// A pod that is being stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leaving {
    /// Its UID.
    pub uid: PodUid,
    /// Its index, if it is a pod of the current run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
}

/// An ended pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Over {
    /// Its index.
    pub index: u32,
    /// Its number among the pods of the index.
    pub attempt: u32,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Whether the end of the Job stopped it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// Failures that the next attempt waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// Their number, one after the other.
    pub failures: u32,
    /// When the last one was.
    pub last: Timestamp,
}

/// The end of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Whether it is complete; otherwise it has failed.
    pub complete: bool,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

impl End {
    /// The condition for that.
    pub fn condition(&self) -> &'static str {
        if self.complete { "Complete" } else { "Failed" }
    }
}

impl JobRecord {
    /// That of a Job that begins now.
    pub fn new(content: &str, now: Timestamp) -> Self {
        Self {
            content: content.to_owned(),
            created: now,
            started: None,
            succeeded: IndexSet::default(),
            failed: IndexSet::default(),
            failures: 0,
            index_failures: BTreeMap::new(),
            attempts: BTreeMap::new(),
            active: BTreeMap::new(),
            leaving: Vec::new(),
            over: Vec::new(),
            waits: BTreeMap::new(),
            end: None,
        }
    }

    /// The record of the next run, which begins now, while pods of this one may still run.
    pub(super) fn successor(&self, job: &JobName, content: &str, now: Timestamp) -> Self {
        Self {
            leaving: self.left(job),
            ..Self::new(content, now)
        }
    }

    /// The record of a Job without a document, while any of its pods may still run: a new Job with that
    /// name is another run, and waits for them.
    pub fn removed(&self, job: &JobName, may_run: &dyn Fn(&PodUid) -> bool) -> Option<Self> {
        let mut before = self.clone();
        before.let_go(may_run);
        let leaving = before.left(job);
        (!leaving.is_empty()).then(|| Self {
            leaving,
            ..Self::new("", self.created)
        })
    }

    /// The record of a Job of which only these pods, which may run, are known.
    pub fn unknown(pods: impl IntoIterator<Item = PodUid>, now: Timestamp) -> Self {
        let leaving = pods.into_iter().map(|uid| Leaving { uid, index: None });
        Self {
            leaving: leaving.collect(),
            ..Self::new("", now)
        }
    }

    /// Whether it only has pods that may still run, and no run of the Job.
    pub fn is_removed(&self) -> bool {
        self.content.is_empty()
    }

    /// Whether the Job has ended, and none of its pods runs any more.
    pub fn is_over(&self) -> bool {
        self.end.is_some() && self.leaving.is_empty()
    }

    /// The pods that may still run when the next run begins.
    fn left(&self, job: &JobName) -> Vec<Leaving> {
        let leaving = self.leaving.iter().map(|pod| pod.uid.clone());
        let active = self.active.iter();
        let active = active.map(|(index, attempt)| self.uid(job, *index, *attempt));
        let all = leaving.chain(active);
        all.map(|uid| Leaving { uid, index: None }).collect()
    }

    /// The number of earlier runs' pods that may still run: no pod of this run is started before they
    /// stop.
    pub(super) fn awaited(&self) -> usize {
        let of_before = self.leaving.iter().filter(|pod| pod.index.is_none());
        of_before.count()
    }

    /// Forgets the pods that have stopped.
    pub(super) fn let_go(&mut self, may_run: &dyn Fn(&PodUid) -> bool) {
        self.leaving.retain(|pod| may_run(&pod.uid));
    }

    /// Whether a pod of an index is being stopped.
    pub(super) fn is_leaving(&self, index: u32) -> bool {
        self.leaving.iter().any(|pod| pod.index == Some(index))
    }

    /// UID of one of its pods: different for each attempt of each run.
    pub fn uid(&self, job: &JobName, index: u32, attempt: u32) -> PodUid {
        // No part has a line break in it.
        let text = format!(
            "{ENCODING}\n{}\n{}\n{}\n{}\n{index}\n{attempt}\n",
            job.namespace, job.name, self.content, self.created
        );
        let digest = Sha256::digest(text.as_bytes());
        PodUid::from(hex(&digest[..UID_BYTES]))
    }

    /// The number of the next pod of an index.
    pub fn attempt(&self, index: u32) -> u32 {
        self.attempts.get(&index).copied().unwrap_or(0)
    }

    /// Ends a pod that should run: it stays for its logs, and a replacement for its index is a
    /// different pod.
    pub(super) fn close(&mut self, index: u32, succeeded: bool) {
        let Some(attempt) = self.active.remove(&index) else {
            return;
        };
        self.attempts.insert(index, attempt.saturating_add(1));
        self.over.push(Over {
            index,
            attempt,
            succeeded,
            stopped: false,
        });
        let same = |over: &&Over| over.succeeded == succeeded;
        if self.over.iter().filter(same).count() > KEPT_MAX
            && let Some(oldest) = self
                .over
                .iter()
                .position(|over| over.succeeded == succeeded)
        {
            self.over.remove(oldest);
        }
        if succeeded {
            self.attempts.remove(&index);
        }
    }

    /// Ends a running pod when its Job fails: it is stopped, and stays for its log.
    pub(super) fn stop(&mut self, job: &JobName, index: u32) {
        self.leave(job, index);
        self.close(index, false);
        if let Some(over) = self.over.last_mut() {
            over.stopped = true;
        }
    }

    /// Forgets an ended pod that stayed for its logs; it still counts. Returns whether there was one
    /// with that UID.
    pub fn forget(&mut self, job: &JobName, uid: &PodUid) -> bool {
        let found = |over: &Over| self.uid(job, over.index, over.attempt) == *uid;
        let Some(place) = self.over.iter().position(found) else {
            return false;
        };
        self.over.remove(place);
        true
    }

    /// Ends a pod that should run, without keeping it.
    pub(super) fn drop(&mut self, job: &JobName, index: u32) {
        self.leave(job, index);
        if let Some(attempt) = self.active.remove(&index) {
            self.attempts.insert(index, attempt.saturating_add(1));
        }
    }

    /// Notes that the pod of an index, if one runs, is being stopped.
    fn leave(&mut self, job: &JobName, index: u32) {
        if let Some(attempt) = self.active.get(&index) {
            let uid = self.uid(job, index, *attempt);
            self.leaving.push(Leaving {
                uid,
                index: Some(index),
            });
        }
    }
}
