//! The program itself, with as much memory as a container of it has.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::cluster::process::Program;
use super::reaper;

/// A running program in a control group of its own, with a limit of memory.
pub struct Confined {
    program: Program,
    group: Group,
}

impl Confined {
    /// Starts that program with those arguments and that many MiB, its words going to a log in
    /// `dir`.
    pub fn start(program: &str, args: &[String], dir: &Path, mebibytes: u64) -> Self {
        let group = Group::new(mebibytes << 20);
        let procs = group.path.join("cgroup.procs").display().to_string();
        // It joins before it becomes the program, with the allocator's settings of the unit and the image.
        let script = r#"echo $$ > "$0" && export MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=131072 && exec "$@""#;
        let shell = ["-c", script, &procs, program].map(str::to_owned);
        let args: Vec<String> = shell.into_iter().chain(args.iter().cloned()).collect();
        let program = Program::start(Path::new("/bin/sh"), &args, dir);
        Self { program, group }
    }

    /// Fails if it has ended, or if the kernel has killed something in its group.
    pub fn assert_unharmed(&mut self) {
        self.program.assert_alive();
        assert_eq!(self.group.kills(), 0, "{}", self.program.last_words());
    }

    /// Forgets how much memory it has had at most, and returns how much it has now, in MiB.
    pub fn forget_peak(&self) -> u64 {
        self.program.forget_peak();
        self.program.peak_mib()
    }

    /// The most memory that it has had since [`Self::forget_peak`], in MiB.
    pub fn peak_mib(&self) -> u64 {
        self.program.peak_mib()
    }

    /// Its memory in words: now, and at most so far.
    pub fn memory(&self) -> String {
        let (now, most) = (self.program.resident_mib(), self.program.peak_mib());
        format!("{now} MiB, at most {most} MiB")
    }
}

/// A control group of memory, removed when dropped: the program has ended by then.
struct Group {
    path: PathBuf,
    /// The file that counts what was killed.
    counts: &'static str,
}

impl Group {
    /// Makes one with that limit. Fails where this machine lets nobody limit memory.
    fn new(bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mirrorlet-test-{}-{number}", std::process::id());
        let (hierarchy, is_v2) = hierarchy();
        let path = hierarchy.join(name);
        if is_v2 {
            let control = hierarchy.join("cgroup.subtree_control");
            std::fs::write(control, "+memory").unwrap();
        }
        std::fs::create_dir(&path).unwrap();
        reaper::remember("cgroup", &[&path.display().to_string()]);
        let write = |file: &str, value: u64| {
            let file = path.join(file);
            std::fs::write(&file, value.to_string()).unwrap();
        };
        let (limit, swap, counts) = if is_v2 {
            ("memory.max", ("memory.swap.max", 0), "memory.events")
        } else {
            let swap = ("memory.memsw.limit_in_bytes", bytes);
            ("memory.limit_in_bytes", swap, "memory.oom_control")
        };
        write(limit, bytes);
        // A kernel that doesn't count swap doesn't have the file.
        if path.join(swap.0).exists() {
            write(swap.0, swap.1);
        }
        Self { path, counts }
    }

    /// How much was killed in it for its memory.
    fn kills(&self) -> u64 {
        let text = std::fs::read_to_string(self.path.join(self.counts)).unwrap();
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .unwrap_or_else(|| panic!("no count of kills in {}: {text}", self.counts));
        count.trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Where memory is limited, and whether that is the second version of control groups.
fn hierarchy() -> (PathBuf, bool) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        let has = |list: &str, word: &str| list.split([',', ' ', '\n']).any(|item| item == word);
        let path = PathBuf::from(path);
        match kind {
            "cgroup" if has(options, "memory") => Some((path, false)),
            "cgroup2" => {
                let controllers = std::fs::read_to_string(path.join("cgroup.controllers")).ok()?;
                has(&controllers, "memory").then_some((path, true))
            }
            _ => None,
        }
    });
    found.expect("no control groups of memory, of either version, are mounted on this machine")
}
