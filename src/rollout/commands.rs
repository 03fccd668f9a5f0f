//! Users' commands.

use super::Rollouts;
use super::handle::{Answering, CommandError, Obeyed, Request, RolloutTarget};
use mirrorlet_core::api::FullName;
use mirrorlet_core::rollout::group::{Member, obey_all, try_again};
use mirrorlet_core::rollout::{Command, Refused};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;

impl Rollouts {
    /// Obeys a command, which the next merge acts on.
    pub(super) fn obey(&mut self, request: Request) {
        let Request {
            target,
            command,
            answer,
        } = request;
        let (obeyed, pods) = match target {
            RolloutTarget::Pod(name) => (self.obey_of_pod(&name, &command), vec![name]),
            RolloutTarget::Workload(key) => {
                let members = self.members(&key);
                let pods = members.iter().map(|member| member.name.clone()).collect();
                (self.obey_of_workload(members, &command), pods)
            }
        };
        self.published.publish(self.histories.clone());
        self.answers.push(Answering {
            answer,
            obeyed,
            pods,
        });
    }

    /// Answers commands. An executed command that isn't on disk is an error: the next agent won't know
    /// about it.
    pub(super) fn answer(&mut self) {
        for answering in self.answers.drain(..) {
            let unkept = self.store.unkept(&answering.pods, &self.histories);
            let answer = match (answering.obeyed, unkept) {
                (Ok(_), Some(why)) => Err(CommandError::NotKept(why.to_owned())),
                (obeyed, _) => obeyed.map_err(CommandError::Refused),
            };
            // The caller may be gone.
            let _ = answering.answer.send(answer);
        }
    }

    fn obey_of_pod(&mut self, name: &FullName, command: &Command) -> Obeyed {
        let history = self.histories.get_mut(name).ok_or(Refused::NotStarted)?;
        let current = history.current.as_ref();
        if let Some(view) = current.and_then(|(uid, _)| self.options.board.get(uid)) {
            let there = view.observed.containers.iter();
            history.forget_restarts(&there.map(|seen| seen.id.clone()).collect_set());
        }
        let number = history.obey(command.clone())?;
        self.report_obeyed(name, command, number);
        // A version that failed in one pod of a workload is tried in no other, unless a user asks for
        // it.
        if let Command::Undo { .. } | Command::Retry = command
            && let Some(key) = self.workload_of(name)
        {
            let mut members = self.members(&key);
            try_again(&mut members, name);
            self.take_members(members);
        }
        Ok(number)
    }

    fn obey_of_workload(&mut self, mut members: Vec<Member>, command: &Command) -> Obeyed {
        let number = obey_all(&mut members, command)?;
        let changed = |member: &&Member| self.histories.get(&member.name) != Some(&member.history);
        let changed: Vec<(FullName, u64)> = members
            .iter()
            .filter(changed)
            .map(|member| {
                let target = member.history.target().map(|target| target.number);
                (member.name.clone(), target.unwrap_or(number))
            })
            .collect();
        self.take_members(members);
        for (name, number) in changed {
            self.report_obeyed(&name, command, number);
        }
        Ok(number)
    }

    fn take_members(&mut self, members: Vec<Member>) {
        for member in members {
            self.histories.insert(member.name, member.history);
        }
    }

    fn report_obeyed(&mut self, name: &FullName, command: &Command, number: u64) {
        if *command == Command::Retry {
            self.preparations.end(name);
        }
        let current = self
            .histories
            .get(name)
            .and_then(|one| one.current.as_ref());
        if let Some((uid, _)) = current {
            let (reason, message) = words(command)(number);
            let telemetry = &self.options.telemetry;
            occurrences::rollout_commanded(telemetry.pod(name, uid), reason, message);
        }
    }
}

/// The Event of a command that was obeyed, by the number of the revision.
fn words(command: &Command) -> fn(u64) -> (&'static str, String) {
    match command {
        Command::Undo { .. } => |n| ("RolloutUndone", format!("switching to revision {n}")),
        Command::Retry => |n| ("RolloutRetried", format!("retrying revision {n}")),
        Command::Pause => |n| {
            (
                "RolloutPaused",
                format!("rollouts paused, revision {n} keeps running"),
            )
        },
        Command::Resume => |n| {
            (
                "RolloutResumed",
                format!("rollouts resumed, switching to revision {n}"),
            )
        },
        Command::Stop => |_| ("PodStopped", "A user stopped the pod".to_owned()),
        Command::Start { .. } => |_| ("PodStarted", "A user started the pod".to_owned()),
        Command::Evict { .. } => |_| {
            (
                "PodEvicted",
                "The pod was evicted; it waits until the node is uncordoned".to_owned(),
            )
        },
        Command::Debug(_) => |_| {
            (
                "ContainerAdded",
                "A user added a container for debugging".to_owned(),
            )
        },
        Command::Restart { .. } => |_| ("PodRestarted", "A user restarted the pod".to_owned()),
    }
}
