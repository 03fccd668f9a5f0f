//! Removes what a test program leaves, however it ends: after a failure, a Ctrl-C, a `kill -9`.
//!
//! A shell script is told of everything that a test makes outside its process, and waits for the end
//! of the program, in a session of its own that no Ctrl-C reaches. What the tests have removed
//! themselves, it doesn't find. `hack/left.sh` waits for it before it looks what is left.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex};

/// The script, and the name by which `hack/left.sh` finds it.
const SCRIPT: &str = include_str!("reaper.sh");
const NAME: &str = "mirrorlet-reaper";

/// Open as long as this program lives.
static TOLD: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    let mut reaper = Command::new("setsid");
    reaper.args(["bash", "-c", SCRIPT, NAME]);
    let reaper = reaper
        .arg0(NAME)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Mutex::new(reaper.unwrap().stdin.take().unwrap())
});

/// Has that removed at the end of this program; the script says what it knows.
pub fn remember(kind: &str, words: &[&str]) {
    let line = format!("{kind}\t{}\n", words.join("\t"));
    // After a poisoning panic more than ever.
    let mut told = TOLD
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    told.write_all(line.as_bytes()).unwrap();
}
