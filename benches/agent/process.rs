//! CPU time and memory of processes, from /proc.

use std::fs;

/// Kernel clock ticks a second, as /proc counts processor time: fixed on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor seconds, user and system, of a process; 0 of one that is gone.
pub fn cpu_seconds(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / TICKS_PER_SECOND
}

/// A field of /proc/PID/status in MiB.
pub fn memory_mib(pid: i32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / 1024.0)
}

/// The threads of a process.
pub fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The Engine's own processes: who listens on the socket, and the containerd it uses, which is
/// its child or the machine's.
pub async fn engine_pids(docker: &str) -> anyhow::Result<Vec<i32>> {
    let Some(path) = docker.strip_prefix("unix://") else {
        return Ok(Vec::new());
    };
    let socket = tokio::net::UnixStream::connect(path).await?;
    let Some(dockerd) = socket.peer_cred()?.pid() else {
        return Ok(Vec::new());
    };
    let mut containerds = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.trim() == "containerd" {
            containerds.push((pid, parent(pid)));
        }
    }
    let own: Vec<_> = containerds
        .iter()
        .filter(|(_, parent)| *parent == Some(dockerd))
        .collect();
    let mut pids = vec![dockerd];
    if own.is_empty() {
        pids.extend(containerds.iter().map(|(pid, _)| *pid));
    } else {
        pids.extend(own.iter().map(|(pid, _)| *pid));
    }
    Ok(pids)
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
