//! Commands about all pods of a workload.

use super::{Key, Member, is_failed};
use crate::api::FullName;
use crate::rollout::{Command, Outcome, Refused};
use crate::small::SmallSort;

/// Executes a command for all pods of a workload. Returns the number of the affected revision of the
/// pod with the lowest number that obeyed.
///
/// # Errors
/// It would change none of them.
pub fn obey_all(members: &mut [Member], command: &Command) -> Result<u64, Refused> {
    members.small_sort_by_key(|member| member.number);
    let command_of = match command {
        Command::Undo { to_revision } => undo_of(members, *to_revision)?,
        other => {
            let other = other.clone();
            Box::new(move |_: &Member| Some(other.clone()))
        }
    };
    let mut answer: Option<Result<u64, Refused>> = None;
    for member in members.iter_mut() {
        let Some(command) = command_of(member) else {
            continue;
        };
        let obeyed = member.history.obey(command);
        let is_first = answer.as_ref().is_none_or(Result::is_err) && obeyed.is_ok();
        if answer.is_none() || is_first {
            answer = Some(obeyed);
        }
    }
    let answer = answer.unwrap_or(Err(Refused::NotStarted))?;
    if let Command::Undo { .. } | Command::Retry = command {
        let names: Vec<FullName> = members.iter().map(|member| member.name.clone()).collect();
        for name in names {
            try_again(members, &name);
        }
    }
    Ok(answer)
}

type CommandOf = Box<dyn Fn(&Member) -> Option<Command>>;

/// Undoes each pod to the version that an undo of the first one selects.
fn undo_of(members: &[Member], to_revision: Option<u64>) -> Result<CommandOf, Refused> {
    let first = members
        .iter()
        .find(|member| member.history.current.is_some());
    let first = first.ok_or(Refused::NotStarted)?;
    let number = first.history.clone().obey(Command::Undo { to_revision })?;
    let mut revisions = first.history.revisions.iter();
    let revision = revisions.find(|revision| revision.number == number);
    let key = Key::of(revision.ok_or(Refused::NotStarted)?);
    Ok(Box::new(move |member| {
        let mut revisions = member.history.revisions.iter().rev();
        let revision = revisions.find(|revision| Key::of(revision) == key)?;
        Some(Command::Undo {
            to_revision: Some(revision.number),
        })
    }))
}

/// Retries a pod's target version in every pod of its workload, on a user's order.
pub fn try_again(members: &mut [Member], name: &FullName) {
    let asked = members.iter().find(|member| member.name == *name);
    let Some(key) = asked.and_then(|one| one.history.target()).map(Key::of) else {
        return;
    };
    for member in members {
        let mut revisions = member.history.revisions.iter_mut();
        let same = revisions.find(|revision| is_failed(revision) && Key::of(revision) == key);
        let Some(revision) = same else { continue };
        revision.outcome = Outcome::Open;
        let uid = revision.uid();
        // It was going back.
        if member.history.newest.as_ref() == Some(&uid) {
            (member.history.undone_to, member.history.goes_back) = (None, false);
        }
    }
}
