//! The commands undo, retry, pause and resume, which behave like `kubectl rollout`, including its
//! refusals; and stop, start and restart.

use std::collections::BTreeSet;

use super::{History, Outcome, Revision};
use crate::api::core::{ContainerStatus, EphemeralContainer, PodStatus};
use crate::api::{ContainerId, Timestamp};
use crate::spec;

/// Most containers that are added to a revision: each stays until the pod goes.
const ADDED_MAX: usize = 32;

/// A command about one pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Stop the pod, until it is started or its source changes.
    Stop,
    /// End that.
    Start {
        /// The newest instances of its containers, all of which are replaced.
        instances: BTreeSet<ContainerId>,
        /// The present time.
        at: Timestamp,
    },
    /// Stop the pod until the Node is uncordoned, and start new instances then.
    Evict {
        /// The newest instances of its containers.
        instances: BTreeSet<ContainerId>,
    },
    /// Add an ephemeral container to the running revision, for debugging.
    Debug(Box<EphemeralContainer>),
    /// Replace instances of containers.
    Restart {
        /// The instances.
        instances: BTreeSet<ContainerId>,
        /// The present time.
        at: Timestamp,
    },
    /// Run an older revision until the source changes; by default, the previous one.
    Undo {
        /// Its number.
        to_revision: Option<u64>,
    },
    /// Retry a revision that failed, or can't be prepared.
    Retry,
    /// Let no other revision replace the running one.
    Pause,
    /// End a pause.
    Resume,
}

/// Why a command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nothing of the pod runs yet.
    #[error("the pod has no running revision yet")]
    NotStarted,
    /// No revision has that number.
    #[error("revision {number} not found; the stored revisions are: {known}")]
    UnknownRevision {
        /// The number.
        number: u64,
        /// The numbers that are known, with commas.
        known: String,
    },
    /// There is no revision to go back to.
    #[error("no revision older than revision {newest} is stored")]
    NoneBefore {
        /// The newest one.
        newest: u64,
    },
    /// That revision runs, and stays.
    #[error("revision {number} is already running")]
    RunsAlready {
        /// Its number.
        number: u64,
    },
    /// Nothing failed.
    #[error("no revision has failed: revision {number} is running, as requested")]
    NothingFailed {
        /// Its number.
        number: u64,
    },
    /// No revision takes another's place now.
    #[error("the rollouts of the pod are paused")]
    Paused,
    /// They are paused already.
    #[error("the rollouts of the pod are already paused")]
    AlreadyPaused,
    /// They are not paused.
    #[error("the rollouts of the pod are not paused")]
    NotPaused,
    /// A container with that name exists.
    #[error("the pod already has a container {name}")]
    ContainerExists {
        /// The name.
        name: String,
    },
    /// No more containers are added.
    #[error(
        "{ADDED_MAX} containers, the maximum, were already added to the pod; restart it to remove them"
    )]
    TooManyAdded,
    /// A user stopped the pod.
    #[error("the pod is stopped")]
    Stopped,
    /// It is not stopped.
    #[error("the pod is not stopped")]
    NotStopped,
}

impl History {
    /// Executes a command. Returns the number of the affected revision.
    ///
    /// # Errors
    /// The pod has no such revision, or the command would change nothing.
    pub fn obey(&mut self, command: Command) -> Result<u64, Refused> {
        let (Some(running), Some(target)) = (self.current(), self.target()) else {
            return Err(Refused::NotStarted);
        };
        let (running, wanted) = (running.number, target.number);
        match command {
            Command::Evict { .. } if self.cordoned => Ok(running),
            Command::Stop | Command::Restart { .. } | Command::Debug(_) if self.stopped => {
                Err(Refused::Stopped)
            }
            Command::Start { .. } if !self.stopped => Err(Refused::NotStopped),
            Command::Stop => {
                self.stopped = true;
                Ok(running)
            }
            Command::Start { instances, at } => {
                (self.stopped, self.cordoned) = (false, false);
                self.restart = instances;
                self.begin(at);
                self.reopen(at);
                Ok(running)
            }
            Command::Evict { instances } => {
                self.hold_back();
                self.restart = instances;
                Ok(running)
            }
            Command::Debug(container) => self.add(*container).map(|()| running),
            Command::Restart { instances, at } => {
                self.restart.extend(instances);
                self.reopen(at);
                Ok(running)
            }
            Command::Undo { .. } | Command::Retry if self.paused => Err(Refused::Paused),
            Command::Undo { to_revision } => self.undo(to_revision, running),
            Command::Retry if running == wanted => Err(Refused::NothingFailed { number: running }),
            Command::Retry => {
                let uid = target.uid();
                self.set_outcome(&uid, Outcome::Open);
                (self.held, self.refused) = (None, None);
                Ok(wanted)
            }
            Command::Pause if self.paused => Err(Refused::AlreadyPaused),
            Command::Resume if !self.paused => Err(Refused::NotPaused),
            Command::Pause => {
                self.paused = true;
                Ok(running)
            }
            Command::Resume => {
                self.paused = false;
                Ok(wanted)
            }
        }
    }

    /// Judges the running revision again, if it has ended: it is run again.
    pub(super) fn reopen(&mut self, now: Timestamp) {
        let ended = self.current().filter(|one| one.outcome == Outcome::Ended);
        let Some(uid) = ended.map(Revision::uid) else {
            return;
        };
        self.set_outcome(&uid, Outcome::Open);
        self.current = Some((uid, now));
    }

    /// Whether a status is that of instances that had to be replaced: their end is not that of their
    /// successors.
    pub(super) fn is_of_replaced(&self, status: &PodStatus) -> bool {
        let containers = status.container_statuses.iter().flatten();
        let id = |one: &ContainerStatus| one.container_id.as_deref()?.parse::<ContainerId>().ok();
        containers
            .filter_map(id)
            .any(|id| self.restart.contains(&id))
    }

    /// Drops the replacement orders of instances that are gone. `there` are the instances of the
    /// running revision; if it is empty, they may just not have been read yet.
    pub fn forget_restarts(&mut self, there: &BTreeSet<ContainerId>) {
        if !there.is_empty() {
            self.restart.retain(|id| there.contains(id));
        }
    }

    /// Adds a container to the revision that runs; those of another one are forgotten.
    fn add(&mut self, container: EphemeralContainer) -> Result<(), Refused> {
        let revision = self.current().ok_or(Refused::NotStarted)?;
        let uid = revision.uid();
        let known = self.added.as_ref().filter(|(of, _)| *of == uid);
        let mut added = known.map(|(_, added)| added.clone()).unwrap_or_default();
        let of_pod = spec::all_container_names(&revision.pod);
        let of_person = added.iter().map(|known| known.name.as_str());
        if of_pod.chain(of_person).any(|name| name == container.name) {
            let name = container.name;
            return Err(Refused::ContainerExists { name });
        }
        if added.len() >= ADDED_MAX {
            return Err(Refused::TooManyAdded);
        }
        added.push(container);
        self.added = Some((uid, added));
        Ok(())
    }

    fn undo(&mut self, to_revision: Option<u64>, running: u64) -> Result<u64, Refused> {
        let newest = self.newest_revision().ok_or(Refused::NotStarted)?.number;
        let number = match to_revision {
            Some(number) => number,
            // The undo of an undo.
            None if self.undone_to.is_some() => newest,
            // The newest one doesn't run: what runs in its place stays.
            None if running != newest => running,
            None => self.before(newest).ok_or(Refused::NoneBefore { newest })?,
        };
        let found = self.revisions.iter().find(|known| known.number == number);
        let found = found.ok_or_else(|| {
            let known = self.revisions.iter().map(|known| known.number.to_string());
            Refused::UnknownRevision {
                number,
                known: known.collect::<Vec<_>>().join(", "),
            }
        })?;
        let uid = found.uid();
        let undone_to = (number != newest).then(|| uid.clone());
        if undone_to == self.undone_to && number == running {
            return Err(Refused::RunsAlready { number });
        }
        (self.undone_to, self.goes_back) = (undone_to, false);
        // A revision that was named explicitly is tried again.
        self.refused = None;
        if matches!(found.outcome, Outcome::Failed(_)) {
            self.set_outcome(&uid, Outcome::Open);
        }
        Ok(number)
    }

    /// The newest healthy revision before that one; else the one just before it.
    fn before(&self, number: u64) -> Option<u64> {
        let before = || self.revisions.iter().filter(|known| known.number < number);
        let newest = |known: &mut dyn Iterator<Item = &Revision>| known.map(|r| r.number).max();
        let healthy = |known: &&Revision| known.outcome == Outcome::Healthy;
        newest(&mut before().filter(healthy)).or_else(|| newest(&mut before()))
    }
}
