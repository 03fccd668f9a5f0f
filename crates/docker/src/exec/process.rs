//! Kills the process of an exec, which the Engine can start but not stop.
//!
//! The Engine returns its process id in the host's PID namespace. If the agent is in the same
//! namespace, the process is found under `/proc`, verified to belong to its container by its control
//! group, and killed through a pidfd, so that a reused id hits no other process. The Engine starts
//! every exec in its own session, which its children inherit: all of the session is killed, including
//! processes that no longer descend from the command. Processes that created a session of their own
//! and left their parent are not found; nor would a terminal's hang-up reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use mirrorlet_core::small::SmallCollect;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Maximum number of passes over the processes: killed ones may have started others meanwhile.
const ROUNDS_MAX: usize = 20;
/// Pause between two rounds, within which the killed ones go.
const ROUND_PAUSE: Duration = Duration::from_millis(5);

/// The fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Proc {
    parent: i32,
    session: i32,
    /// Whether only its entry is left.
    dead: bool,
}

impl Proc {
    /// Reads the line; the name in it is in parentheses and may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Self {
            parent,
            session,
            dead: matches!(state, "Z" | "X"),
        })
    }
}

/// Living processes of `leader`'s session, and its descendants, sorted. Visits each process once: a
/// container may have a chain of tens of thousands.
fn members(processes: &BTreeMap<i32, Proc>, leader: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, process) in processes {
        children.entry(process.parent).or_default().push(*pid);
    }
    let in_session = processes.iter().filter(|(_, p)| p.session == leader);
    let mut members: BTreeSet<i32> = in_session.map(|(pid, _)| *pid).collect_set();
    members.insert(leader);
    let mut next = vec![leader];
    while let Some(parent) = next.pop() {
        // Removed: a circle of parents ends, too.
        for child in children.remove(&parent).unwrap_or_default() {
            members.insert(child);
            next.push(child);
        }
    }
    let lives = |pid: &i32| processes.get(pid).is_some_and(|process| !process.dead);
    members.into_iter().filter(lives).collect()
}

/// All processes that can be seen.
fn processes(proc: &Path) -> BTreeMap<i32, Proc> {
    let Ok(entries) = fs::read_dir(proc) else {
        return BTreeMap::new();
    };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // Skips a process that ended meanwhile.
            let stat = fs::read(proc.join(format!("{pid}/stat"))).ok()?;
            Some((pid, Proc::parse(&String::from_utf8_lossy(&stat))?))
        })
        .collect_map()
}

/// Whether a process is in the control group of a container: its path contains the container's id with
/// every driver, also as seen from another control group.
pub(crate) fn is_of_container(pid: i32, container: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .is_ok_and(|text| !container.is_empty() && text.contains(container))
}

/// Kills the process and its session, as far as they belong to that container. Returns the number of
/// killed processes; with none, the process can't be seen from here, or has ended.
pub(super) fn kill_session(leader: i32, container: &str) -> usize {
    let mut killed = 0;
    for round in 0..ROUNDS_MAX {
        if round > 0 {
            std::thread::sleep(ROUND_PAUSE);
        }
        let members = members(&processes(Path::new("/proc")), leader);
        let before = killed;
        killed += members
            .into_iter()
            .filter(|pid| kill(*pid, container))
            .count();
        if killed == before {
            break;
        }
    }
    killed
}

/// Kills one process, if it is of that container.
fn kill(pid: i32, container: &str) -> bool {
    let Some(pid_given) = Pid::from_raw(pid) else {
        return false;
    };
    // Opened first and checked then: the signal goes to the process that has the id now.
    let Ok(descriptor) = pidfd_open(pid_given, PidfdFlags::empty()) else {
        return false;
    };
    is_of_container(pid, container) && pidfd_send_signal(&descriptor, Signal::KILL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(parent: i32, session: i32) -> Proc {
        Proc {
            parent,
            session,
            dead: false,
        }
    }

    #[test]
    fn a_stat_line_is_read_whatever_the_program_is_called() {
        for name in ["sh", "a b", "x) S 1 1 1", ")"] {
            let line = format!("42 ({name}) S 7 41 40 0 -1 4194560 1 2");
            assert_eq!(Proc::parse(&line), Some(proc(7, 40)), "{name}");
        }
        let dead = Proc::parse("42 (sh) Z 7 41 40 0").unwrap();
        assert!(dead.dead);
        for bad in ["", "42 (sh", "42 (sh) S", "42 (sh) S x y z"] {
            assert_eq!(Proc::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_session_is_its_leader_its_members_and_all_descendants() {
        let dead = Proc {
            dead: true,
            ..proc(10, 10)
        };
        let processes = BTreeMap::from([
            (1, proc(0, 1)),
            (10, proc(1, 10)),
            (11, proc(10, 10)),
            // Its parent is gone, but it is still in the session.
            (12, proc(1, 10)),
            // A session of its own, started from within.
            (13, proc(11, 13)),
            (14, dead),
            (20, proc(1, 20)),
            (21, proc(20, 20)),
        ]);
        assert_eq!(members(&processes, 10), [10, 11, 12, 13]);
        assert_eq!(members(&processes, 99), [] as [i32; 0]);
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let processes = BTreeMap::from([(1, proc(2, 1)), (2, proc(1, 1))]);
        assert_eq!(members(&processes, 9), [] as [i32; 0]);
        assert_eq!(members(&processes, 1), [1, 2]);
    }

    /// One look at each process; a look at all ancestors of each would be more than a billion.
    #[test]
    fn a_long_chain_of_processes_is_found() {
        let chain = (10..50_010).map(|pid| (pid, proc(pid - 1, pid)));
        let processes: BTreeMap<i32, Proc> = chain.collect_map();
        assert_eq!(members(&processes, 10).len(), 50_000);
        assert_eq!(members(&processes, 50_009), [50_009]);
    }

    #[test]
    fn a_process_of_nobody_we_know_is_left_alone() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(kill_session(pid, "no-such-container"), 0);
        assert_eq!(kill_session(pid, ""), 0);
        assert_eq!(child.try_wait().unwrap(), None, "it runs on");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
