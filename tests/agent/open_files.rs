//! The limit of open files of the program, started as from a shell.

use std::fs;
use std::process::{Command, Stdio};

use crate::binary::{Running, ask, mirrorlet};
use crate::common::{Bed, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_open_files_is_raised_to_the_hard_one() {
    let bed = Bed::new();
    let agent = mirrorlet(
        &bed,
        &["run", "--node-name", "box", "--docker", &bed.docker],
    );
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\""])
        .arg(agent.get_program())
        .args(agent.get_args())
        .args(["--metrics-address", "none"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for (name, _) in agent.get_envs().filter(|(_, value)| value.is_none()) {
        limited.env_remove(name);
    }
    let running = Running(limited.spawn().unwrap());
    eventually("the agent", || {
        ask(&bed, &["status"]).status.success().then_some(())
    })
    .await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", running.0.id())).unwrap();
    let of_files = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"));
    let of_files: Vec<&str> = of_files.unwrap().split_whitespace().collect();
    // agent 10
    assert_eq!(of_files[0], of_files[1], "{limits}");
    // A machine that allows no more than the test begins with would show nothing.
    assert_ne!(of_files[0], "256", "{limits}");
}
