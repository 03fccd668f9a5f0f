//! A person's commands.

use super::Rollouts;
use super::handle::Request;
use mirrorlet_core::rollout::{Command, Refused};
use mirrorlet_host::telemetry::occurrences;

impl Rollouts {
    /// Obeys a command, which the next merge acts on.
    pub(super) fn obey(&mut self, request: Request) {
        let Request {
            name,
            command,
            answer,
        } = request;
        let history = self.histories.get_mut(&name);
        let retries = command == Command::Retry;
        let obeyed = history.map_or(Err(Refused::NotStarted), |history| {
            let words = words(&command);
            let number = history.obey(command)?;
            if let Some((uid, _)) = &history.current {
                let (reason, message) = words(number);
                let telemetry = &self.options.telemetry;
                occurrences::rollout_commanded(telemetry, &name, uid, reason, message);
            }
            Ok(number)
        });
        if obeyed.is_ok() && retries {
            self.preparations.end(&name);
        }
        self.published.publish(self.histories.clone());
        self.answers.push((answer, obeyed));
    }
}

/// The Event of a command that was obeyed, by the number of the revision.
fn words(command: &Command) -> fn(u64) -> (&'static str, String) {
    match command {
        Command::Undo { .. } => |n| ("RolloutUndone", format!("revision {n} is to run")),
        Command::Retry => |n| ("RolloutRetried", format!("revision {n} is tried again")),
        Command::Pause => |n| ("RolloutPaused", format!("revision {n} runs on")),
        Command::Resume => |n| ("RolloutResumed", format!("revision {n} is to run")),
        Command::Stop => |_| ("PodStopped", "A person stopped the pod".to_owned()),
        Command::Start { .. } => |_| ("PodStarted", "A person started the pod".to_owned()),
        Command::Evict { .. } => |_| {
            (
                "PodEvicted",
                "The pod was evicted; it waits until the node is uncordoned".to_owned(),
            )
        },
        Command::Debug(_) => |_| {
            (
                "ContainerAdded",
                "A person added a container for debugging".to_owned(),
            )
        },
        Command::Restart { .. } => |_| ("PodRestarted", "A person restarted the pod".to_owned()),
    }
}
