//! Parses the files of a cgroup, of version 1 and 2.
//!
//! Both versions are in one file: each figure is read from one or the other, side by side.
//!
//! Upstream: cAdvisor's `container/libcontainer/handler.go` (`setCPUStats`, `setMemoryStats`) and
//! `container/common/helpers.go`, and the library below it, `github.com/opencontainers/cgroups`.

use super::weight;

/// Length of a tick in nanoseconds, in which version 1 counts user and system time: the kernel's
/// `USER_HZ` is 100 on every platform of the Docker Engine.
pub const TICK_NANOS: u64 = 10_000_000;

/// A limit above this means unlimited: the kernel rounds its maximum down to a page.
pub const UNLIMITED: u64 = 1 << 62;

/// The cgroup version of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy.
    V2,
}

crate::words! {
    /// A cgroup controller.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Controller {
        /// Shares and quotas of processor time.
        Cpu = "cpu",
        /// Used processor time.
        Cpuacct = "cpuacct",
        /// Memory.
        Memory = "memory",
        /// Processes.
        Pids = "pids",
        /// Disk traffic.
        Blkio = "blkio",
    }
    /// Directory of its hierarchy in version 1.
    pub fn directory;
}

/// The files of one cgroup.
pub trait Files {
    /// Text of a file; none if it is missing.
    fn read(&mut self, controller: Controller, file: &str) -> Option<&str>;
}

/// Processor time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// All of it, in nanoseconds.
    pub usage_nanos: u64,
    /// Outside the kernel; in version 1 only for [`Detail`]ed readings.
    pub user_nanos: u64,
    /// In the kernel; in version 1 only for [`Detail`]ed readings.
    pub system_nanos: u64,
    /// How often it was throttled; none without a quota.
    pub throttling: Option<Throttling>,
}

/// How often a quota held something back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods that passed.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled: u64,
    /// How long, in nanoseconds.
    pub nanos: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it, the page cache too.
    pub usage: u64,
    /// The working set: usage without inactive file pages.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Files that are mapped.
    pub mapped_file: u64,
    /// Files used of late.
    pub active_file: u64,
    /// Files not used of late.
    pub inactive_file: u64,
    /// Kernel memory; only version 2 reports it here.
    pub kernel: u64,
    /// Swapped memory.
    pub swap: u64,
    /// How much more could be, where that is limited.
    pub swap_limit: Option<u64>,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that read from a disk.
    pub major_page_faults: u64,
    /// Its limit; none if it is unlimited.
    pub limit: Option<u64>,
}

impl Memory {
    /// The available memory; `None` without a limit.
    pub fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set))
    }

    /// The available swap; `None` without a limit.
    pub fn swap_available(&self) -> Option<u64> {
        Some(self.swap_limit?.saturating_sub(self.swap))
    }

    /// The sum of both; with a limit only if both have one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Self {
            usage: self.usage.saturating_add(other.usage),
            working_set: self.working_set.saturating_add(other.working_set),
            rss: self.rss.saturating_add(other.rss),
            cache: self.cache.saturating_add(other.cache),
            mapped_file: self.mapped_file.saturating_add(other.mapped_file),
            active_file: self.active_file.saturating_add(other.active_file),
            inactive_file: self.inactive_file.saturating_add(other.inactive_file),
            kernel: self.kernel.saturating_add(other.kernel),
            swap: self.swap.saturating_add(other.swap),
            swap_limit: both(self.swap_limit, other.swap_limit),
            page_faults: self.page_faults.saturating_add(other.page_faults),
            major_page_faults: self
                .major_page_faults
                .saturating_add(other.major_page_faults),
            limit: both(self.limit, other.limit),
        }
    }
}

/// Disk traffic of one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Io {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// How long tasks waited for a resource, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// While at least one task waited.
    pub some_micros: u64,
    /// While all waited.
    pub full_micros: u64,
}

/// Additional statistics for dashboards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// Quota in microseconds a period; none without.
    pub cpu_quota: Option<u64>,
    /// Length of a period in microseconds.
    pub cpu_period: u64,
    /// Shares, on the scale of version 1.
    pub cpu_shares: u64,
    /// Memory limit of this very cgroup; 0 for none.
    pub memory_limit: u64,
    /// Limit of memory and swap (version 1) or of swap; 0 for none.
    pub swap_limit: u64,
    /// Memory reservation under pressure; 0 for none.
    pub memory_reservation: u64,
    /// Most memory used so far.
    pub memory_max_usage: u64,
    /// How often a limit was hit.
    pub memory_failures: u64,
    /// How often something was killed for its memory.
    pub oom_kills: u64,
    /// Memory of the kernel's own.
    pub kernel_memory: u64,
    /// Threads now.
    pub threads: u64,
    /// Most threads; 0 for no limit.
    pub threads_max: u64,
    /// Disk traffic by device.
    pub io: Vec<Io>,
    /// Pressure stall times of CPU, memory and I/O; only in version 2.
    pub pressure: Option<[Pressure; 3]>,
}

/// The number in a text with one; none for `max` and anything else.
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A limit; none if it is unlimited.
fn limit(text: &str) -> Option<u64> {
    number(text).filter(|bytes| *bytes < UNLIMITED)
}

/// Lines of a key and a number.
fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, number(value)?))
    })
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    pairs(text).find_map(|(name, value)| (name == key).then_some(value))
}

/// CPU time. With `detailed`, version 1 reads more than the total.
pub fn cpu(version: Version, files: &mut impl Files, detailed: bool) -> Option<Cpu> {
    match version {
        Version::V2 => files.read(Controller::Cpu, "cpu.stat").and_then(cpu_v2),
        Version::V1 => {
            let usage_nanos = number(files.read(Controller::Cpuacct, "cpuacct.usage")?)?;
            let mut cpu = Cpu {
                usage_nanos,
                ..Cpu::default()
            };
            if detailed {
                let split = files.read(Controller::Cpuacct, "cpuacct.stat");
                for (key, ticks) in split.into_iter().flat_map(pairs) {
                    match key {
                        "user" => cpu.user_nanos = ticks.saturating_mul(TICK_NANOS),
                        "system" => cpu.system_nanos = ticks.saturating_mul(TICK_NANOS),
                        _ => {}
                    }
                }
                let held = files.read(Controller::Cpu, "cpu.stat");
                cpu.throttling = held.and_then(throttling);
            }
            Some(cpu)
        }
    }
}

fn cpu_v2(text: &str) -> Option<Cpu> {
    let micros = |key| keyed(text, key).map(|micros| micros.saturating_mul(1000));
    Some(Cpu {
        usage_nanos: micros("usage_usec")?,
        user_nanos: micros("user_usec").unwrap_or_default(),
        system_nanos: micros("system_usec").unwrap_or_default(),
        throttling: throttling(text),
    })
}

fn throttling(text: &str) -> Option<Throttling> {
    let nanos = keyed(text, "throttled_time")
        .or_else(|| keyed(text, "throttled_usec").map(|micros| micros.saturating_mul(1000)));
    Some(Throttling {
        periods: keyed(text, "nr_periods")?,
        throttled: keyed(text, "nr_throttled")?,
        nanos: nanos?,
    })
}

/// Memory, by the same formulas as cAdvisor's and the Docker client's.
pub fn memory(version: Version, files: &mut impl Files) -> Option<Memory> {
    let mut memory = Memory::default();
    match version {
        Version::V1 => {
            memory.usage = number(files.read(Controller::Memory, "memory.usage_in_bytes")?)?;
            memory_stat_v1(files.read(Controller::Memory, "memory.stat")?, &mut memory);
        }
        Version::V2 => {
            memory.usage = number(files.read(Controller::Memory, "memory.current")?)?;
            memory_stat_v2(files.read(Controller::Memory, "memory.stat")?, &mut memory);
            let read = files.read(Controller::Memory, "memory.max");
            memory.limit = read.and_then(limit);
            // Without swap on the machine there are no such files.
            let read = files.read(Controller::Memory, "memory.swap.current");
            if let Some(swap) = read.and_then(number) {
                memory.swap = swap;
                let read = files.read(Controller::Memory, "memory.swap.max");
                memory.swap_limit = read.and_then(limit);
            }
        }
    }
    memory.working_set = memory.usage.saturating_sub(memory.inactive_file);
    Some(memory)
}

fn memory_stat_v1(text: &str, memory: &mut Memory) {
    let mut with_swap = None;
    for (key, value) in pairs(text) {
        match key {
            "total_rss" => memory.rss = value,
            "total_cache" => memory.cache = value,
            "total_mapped_file" => memory.mapped_file = value,
            "total_active_file" => memory.active_file = value,
            "total_inactive_file" => memory.inactive_file = value,
            "total_swap" => memory.swap = value,
            "pgfault" => memory.page_faults = value,
            "pgmajfault" => memory.major_page_faults = value,
            "hierarchical_memory_limit" => memory.limit = Some(value).filter(|b| *b < UNLIMITED),
            "hierarchical_memsw_limit" => with_swap = Some(value).filter(|b| *b < UNLIMITED),
            _ => {}
        }
    }
    let swap_limit = with_swap.zip(memory.limit);
    memory.swap_limit = swap_limit.map(|(both, limit)| both.saturating_sub(limit));
}

fn memory_stat_v2(text: &str, memory: &mut Memory) {
    for (key, value) in pairs(text) {
        match key {
            "anon" => memory.rss = value,
            "file" => memory.cache = value,
            "file_mapped" => memory.mapped_file = value,
            "active_file" => memory.active_file = value,
            "inactive_file" => memory.inactive_file = value,
            "kernel" => memory.kernel = value,
            "pgfault" => memory.page_faults = value,
            "pgmajfault" => memory.major_page_faults = value,
            _ => {}
        }
    }
}

/// How many processes are in the cgroup itself.
pub fn processes(files: &mut impl Files) -> Option<u64> {
    let pids = files.read(Controller::Memory, "cgroup.procs")?;
    u64::try_from(pids.lines().count()).ok()
}

/// The first process of the cgroup; none if it has none, or none that is visible.
pub fn first_process(files: &mut impl Files) -> Option<u32> {
    let pids = files.read(Controller::Memory, "cgroup.procs")?;
    let first = pids.lines().next()?.parse::<u32>().ok();
    first.filter(|pid| *pid > 0)
}

/// Additional statistics for dashboards. `shares` are those that a container was created with, where
/// they are known: a weight of version 2 doesn't determine them.
pub fn detail(version: Version, files: &mut impl Files, shares: Option<u64>) -> Detail {
    use Controller::{Cpu as C, Memory as M, Pids as P};
    let mut get = |controller, file| files.read(controller, file).and_then(number);
    let none_as_zero = |read: Option<u64>| read.filter(|b| *b < UNLIMITED).unwrap_or_default();
    let mut detail = Detail {
        threads: get(P, "pids.current").unwrap_or_default(),
        threads_max: get(P, "pids.max").unwrap_or_default(),
        ..Detail::default()
    };
    match version {
        Version::V1 => {
            // -1 means no quota.
            detail.cpu_quota = get(C, "cpu.cfs_quota_us").filter(|quota| *quota > 0);
            detail.cpu_period = get(C, "cpu.cfs_period_us").unwrap_or_default();
            detail.cpu_shares = get(C, "cpu.shares").unwrap_or_default();
            detail.memory_limit = none_as_zero(get(M, "memory.limit_in_bytes"));
            detail.swap_limit = none_as_zero(get(M, "memory.memsw.limit_in_bytes"));
            detail.memory_reservation = none_as_zero(get(M, "memory.soft_limit_in_bytes"));
            detail.memory_max_usage = get(M, "memory.max_usage_in_bytes").unwrap_or_default();
            detail.memory_failures = get(M, "memory.failcnt").unwrap_or_default();
            detail.kernel_memory = get(M, "memory.kmem.usage_in_bytes").unwrap_or_default();
            let oom_control = files.read(M, "memory.oom_control");
            detail.oom_kills = oom_control
                .and_then(|text| keyed(text, "oom_kill"))
                .unwrap_or(0);
            detail.io = io_v1(files);
        }
        Version::V2 => {
            detail.cpu_shares = get(C, "cpu.weight").map_or(0, |w| weight::shares(w, shares));
            detail.memory_limit = none_as_zero(get(M, "memory.max"));
            detail.swap_limit = none_as_zero(get(M, "memory.swap.max"));
            detail.memory_reservation = none_as_zero(get(M, "memory.low"));
            detail.memory_max_usage = get(M, "memory.peak").unwrap_or_default();
            if let Some((quota, period)) = files.read(C, "cpu.max").and_then(cpu_max) {
                (detail.cpu_quota, detail.cpu_period) = (quota, period);
            }
            for (key, count) in files.read(M, "memory.events").into_iter().flat_map(pairs) {
                match key {
                    "max" => detail.memory_failures = count,
                    "oom_kill" => detail.oom_kills = count,
                    _ => {}
                }
            }
            let stat = files.read(M, "memory.stat");
            detail.kernel_memory = stat.and_then(|text| keyed(text, "kernel")).unwrap_or(0);
            detail.io = files
                .read(Controller::Blkio, "io.stat")
                .map_or_else(Vec::new, io_v2);
            detail.pressure = pressures(files);
        }
    }
    detail
}

/// Quota (none for `max`) and period of `cpu.max`.
fn cpu_max(text: &str) -> Option<(Option<u64>, u64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((number(quota), number(period)?))
}

fn pressures(files: &mut impl Files) -> Option<[Pressure; 3]> {
    let mut get = |controller, file| files.read(controller, file).map(pressure);
    Some([
        get(Controller::Cpu, "cpu.pressure")?,
        get(Controller::Memory, "memory.pressure")?,
        get(Controller::Blkio, "io.pressure")?,
    ])
}

/// A text of pressure stall information.
pub fn pressure(text: &str) -> Pressure {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        number(line.rsplit_once("total=")?.1)
    };
    Pressure {
        some_micros: total("some ").unwrap_or_default(),
        full_micros: total("full ").unwrap_or_default(),
    }
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn io_v1(files: &mut impl Files) -> Vec<Io> {
    let mut all: Vec<Io> = Vec::new();
    for (file, is_bytes) in [
        ("blkio.throttle.io_service_bytes_recursive", true),
        ("blkio.throttle.io_serviced_recursive", false),
    ] {
        let text = files.read(Controller::Blkio, file).unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let Some((device, kind, count)) = words
                .next()
                .and_then(device)
                .zip(words.next())
                .zip(words.next().and_then(number))
                .map(|((device, kind), count)| (device, kind, count))
            else {
                continue;
            };
            let io = entry(&mut all, device);
            match (kind, is_bytes) {
                ("Read", true) => io.read_bytes = count,
                ("Write", true) => io.write_bytes = count,
                ("Read", false) => io.reads = count,
                ("Write", false) => io.writes = count,
                _ => {}
            }
        }
    }
    all
}

fn io_v2(text: &str) -> Vec<Io> {
    let mut all = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some(device) = words.next().and_then(device) else {
            continue;
        };
        let io = entry(&mut all, device);
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let count = number(value).unwrap_or_default();
            match key {
                "rbytes" => io.read_bytes = count,
                "wbytes" => io.write_bytes = count,
                "rios" => io.reads = count,
                "wios" => io.writes = count,
                _ => {}
            }
        }
    }
    all
}

/// The entry of a device: there are a few at most.
fn entry(all: &mut Vec<Io>, device: (u32, u32)) -> &mut Io {
    let known = all.iter().position(|io| io.device == device);
    let at = known.unwrap_or_else(|| {
        all.push(Io {
            device,
            ..Io::default()
        });
        all.len() - 1
    });
    &mut all[at]
}
