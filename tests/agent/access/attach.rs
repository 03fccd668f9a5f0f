//! Being where a container's main process is.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::terminal::terminal_with;
use super::{fed, mirrorlet, pod, sh, started, text};
use crate::common::{Bed, PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn attaching_shows_what_comes_and_the_containers_end() {
    let bed = Bed::new();
    let script =
        "echo before; until [ -e /go ]; do sleep 0.1; done; printf now; echo err >&2; exit 4";
    let agent = started(&bed, &pod("web", "", script), "web").await;
    let id = bed.running_id("c");
    // Output from before an attachment is not shown by it.
    eventually("the first line", || {
        (bed.output(&id) == "before").then_some(())
    })
    .await;
    let attached = mirrorlet(&bed, &["attach", "web"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The Engine counts who is attached by nothing that can be seen, so the event is waited for.
    eventually("the attachment", || {
        let since = [
            "events",
            "--since",
            "1m",
            "--until",
            "0s",
            "--filter",
            "event=attach",
        ];
        let filter = format!("container={id}");
        let events = bed.docker(&[&since[..], &["--filter", &filter]].concat());
        (!events.is_empty()).then_some(())
    })
    .await;
    assert!(sh(&bed, "web", "touch /go").status.success());
    let done = attached.wait_with_output().unwrap();
    // docker 54a
    assert_eq!(text(&done.stdout), "now");
    assert_eq!(text(&done.stderr), "err\n");
    assert_eq!(done.status.code(), Some(4));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_input_ends_once() {
    let bed = Bed::new();
    let more = "    stdin: true\n    stdinOnce: true\n";
    let manifest = pod("web", more, "cat; echo and its end");
    let agent = started(&bed, &manifest, "web").await;
    let done = fed(&bed, &["attach", "web", "-i"], b"\0\x01typed".to_vec());
    // docker 54a
    assert_eq!(done.stdout, b"\0\x01typedand its end\n");
    assert_eq!(done.status.code(), Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_to_a_terminal_is_being_there() {
    let bed = Bed::new();
    let more = "    stdin: true\n    tty: true\n";
    let agent = started(&bed, &pod("web", more, "exec sh"), "web").await;
    let mut terminal = terminal_with(&bed, &["attach", "web", "-it"]);
    // Sent again until it is there: what is typed before is the local terminal's.
    let end = Instant::now() + PATIENCE;
    while !terminal.shows(b"42\r\n") {
        assert!(Instant::now() < end, "{:?}", terminal.screen());
        terminal.types("echo $((6*7))\r");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    terminal.types("stty size\r");
    terminal.until_shown(b"24 80\r\n").await;
    terminal.types("exit 9\r");
    // docker 54a
    assert_eq!(terminal.child.ended().await, Some(9));
    assert!(terminal.is_restored());
    agent.stop().await;
}
