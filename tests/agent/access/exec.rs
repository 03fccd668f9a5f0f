//! Commands: their bytes, their exit codes, their ends.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use super::{Guarded, SLEEPS, ask, fed, mirrorlet, pod, processes, sh, started, text};
use crate::common::{self, Bed, eventually};

fn sha1(bytes: &[u8]) -> String {
    let mut child = Command::new("sha1sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    text(&output.stdout)[..40].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_run_as_if_it_were_here() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let done = sh(
        &bed,
        "default/web",
        r"printf '\000\001\002no newline'; printf '\002err' >&2; exit 3",
    );
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    assert_eq!(done.stdout, b"\0\x01\x02no newline");
    // docker 53
    assert_eq!(done.stderr, b"\x02err");
    assert_eq!(sh(&bed, "web", "true").status.code(), Some(0));
    assert_eq!(sh(&bed, "web", "no-such-program").status.code(), Some(127));
    // Its user, environment and directory are the container's; flags after -- are the command's.
    let done = ask(&bed, &["exec", "web", "-c", "c", "--", "env", "-i", "pwd"]);
    assert_eq!(text(&done.stdout), "/\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_entered_is_told_with_what_to_do() {
    let bed = Bed::new();
    let more = format!(
        "  - name: other\n    image: {}\n    command: [\"true\"]\n",
        common::IMAGE
    );
    bed.write("two.yaml", &pod("two", &more, SLEEPS));
    let agent = bed.agent().await;
    agent
        .until_container("two", "other", |c| c.exit_code == Some(0))
        .await;
    for (args, words) in [
        (
            &["exec", "two", "--", "true"][..],
            "choose one with -c: c, other",
        ),
        (
            &["exec", "twoo", "--", "true"],
            "did you mean default/two-box?",
        ),
        (
            &["exec", "two", "-c", "other", "--", "true"],
            "container \"other\" is not running: it exited with code 0; see mirrorlet explain",
        ),
        (
            &["exec", "two", "-c", "nope", "--", "true"],
            "has no container \"nope\"",
        ),
        (
            &["attach", "two", "-c", "c", "-i"],
            "its manifest does not set stdin: true",
        ),
    ] {
        let done = ask(&bed, args);
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        let said = text(&done.stderr);
        // docker 53
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let long = "x".repeat(100_000);
    let done = ask(&bed, &["exec", "two", "-c", "c", "--", "echo", &long]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        text(&done.stderr).contains("too long"),
        "{}",
        text(&done.stderr)
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_reaches_its_end_and_the_answer_comes_after_it() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let input = (0..251_u8).collect::<Vec<_>>().repeat((64 << 20) / 251);
    let here = sha1(&input);
    let script = "sha1sum; echo after";
    let args = ["exec", "web", "-i", "--", "sh", "-c", script];
    let done = fed(&bed, &args, input);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    // docker 53
    assert_eq!(text(&done.stdout), format!("{here}  -\nafter\n"));
    // Without -i there is no input; and who reads none of it does not hold us up.
    assert_eq!(ask(&bed, &["exec", "web", "--", "cat"]).stdout, b"");
    let args = ["exec", "web", "-i", "--", "sh", "-c", "exit 4"];
    let done = fed(&bed, &args, vec![0; 4 << 20]);
    assert_eq!(done.status.code(), Some(4));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_comes_through_whole() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    // More than any buffer or window on its way.
    let makes = "yes mirrorlet | head -c 150000000";
    let mut child = mirrorlet(&bed, &["exec", "web", "--", "sh", "-c", makes])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sum = Command::new("sha1sum")
        .stdin(child.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(child.wait().unwrap().success());
    let inside = sh(&bed, "web", &format!("{makes} | sha1sum"));
    // docker 53
    assert_eq!(text(&sum.stdout)[..40], text(&inside.stdout)[..40]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_command() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let script = "trap '' HUP INT TERM; sleep 74747 & while :; do sleep 74747; done";
    let mut child = mirrorlet(&bed, &["exec", "web", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    eventually("the command", || {
        (processes(&bed, "c", "74747") > 1).then_some(())
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("its end", || {
        (processes(&bed, "c", "74747") == 0).then_some(())
    })
    .await;
    // docker 53
    assert_eq!(processes(&bed, "c", "1000000"), 1, "the container runs on");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_ends_what_was_run_through_it() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let mut child = Guarded(
        mirrorlet(&bed, &["exec", "web", "--", "sleep", "75757"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    eventually("the command", || {
        (processes(&bed, "c", "75757") == 1).then_some(())
    })
    .await;
    agent.stop().await;
    assert_eq!(child.ended().await, Some(1));
    let mut said = String::new();
    let stderr = child.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    // docker 53
    assert!(
        said.contains("the agent closed the session; it probably"),
        "{said}"
    );
    eventually("its end", || {
        (processes(&bed, "c", "75757") == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_killed_ends_the_session() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let mut child = Guarded(
        mirrorlet(&bed, &["exec", "web", "--", "sleep", "76767"])
            .spawn()
            .unwrap(),
    );
    eventually("the command", || {
        (processes(&bed, "c", "76767") == 1).then_some(())
    })
    .await;
    bed.docker(&["kill", &bed.running_id("c")]);
    // docker 53
    assert_eq!(child.ended().await, Some(137));
    agent.stop().await;
}
