//! Commands on a terminal.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{SLEEPS, fed, mirrorlet, pod, started, text};
use crate::common::terminal::Terminal;
use crate::common::{Bed, PATIENCE, eventually};

/// A terminal with a command of ours in its foreground.
pub(super) fn terminal_with(bed: &Bed, args: &[&str]) -> Terminal {
    Terminal::with(&mirrorlet(bed, args))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_byte_exact_at_once_and_follows_its_size() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let script = r"printf '\001\000\002at once'; while read line; do stty size; done; exit 5";
    let args = ["exec", "web", "-it", "--", "sh", "-c", script];
    let mut terminal = terminal_with(&bed, &args);
    // docker 54
    terminal.until_shown(b"\x01\0\x02at once").await;
    assert!(!terminal.is_restored(), "it is raw meanwhile");
    terminal.types("\r");
    terminal.until_shown(b"24 80\r\n").await;
    terminal.resize(101, 33);
    // The news travels on its own way: asked again until it has come.
    let end = Instant::now() + PATIENCE;
    while !terminal.shows(b"33 101\r\n") {
        assert!(Instant::now() < end, "the size never changed");
        terminal.types("\r");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Ctrl-D goes to the other side, and is the end of input there.
    terminal.types("\x04");
    assert_eq!(terminal.child.ended().await, Some(5));
    assert!(terminal.is_restored());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ages_go_on_while_nothing_happens() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let terminal = terminal_with(&bed, &["status", "web", "--watch"]);
    let ages = |screen: &str| -> BTreeSet<String> {
        let rows = screen.lines().filter(|line| line.contains("web-box"));
        let ages = rows.filter_map(|row| row.split_whitespace().last());
        ages.map(str::to_owned).collect()
    };
    eventually("the age to change twice", || {
        (ages(&terminal.screen()).len() > 2).then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_put_back_however_the_session_ends() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let args = [
        "exec",
        "web",
        "-it",
        "--",
        "sh",
        "-c",
        "echo ready; exec cat",
    ];
    // Ctrl-C is the command's.
    let mut terminal = terminal_with(&bed, &args);
    terminal.until_shown(b"ready").await;
    terminal.types("\x03");
    assert_eq!(terminal.child.ended().await, Some(130));
    // docker 54
    assert!(terminal.is_restored());
    // A signal is ours.
    let mut terminal = terminal_with(&bed, &args);
    terminal.until_shown(b"ready").await;
    let pid = terminal.child.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(terminal.child.ended().await, Some(128 + 15));
    assert!(terminal.is_restored());
    // And the agent may go.
    let mut terminal = terminal_with(&bed, &args);
    terminal.until_shown(b"ready").await;
    agent.stop().await;
    assert_eq!(terminal.child.ended().await, Some(1));
    assert!(terminal.is_restored());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_none_is_told_and_done_without() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let args = ["exec", "web", "-it", "--", "sh", "-c", "cat; tty"];
    let done = fed(&bed, &args, b"piped\n".to_vec());
    assert_eq!(text(&done.stdout), "piped\nnot a tty\n");
    let said = text(&done.stderr);
    // docker 54
    assert!(
        said.contains("Unable to use a TTY - input is not a terminal"),
        "{said}"
    );
    agent.stop().await;
}
