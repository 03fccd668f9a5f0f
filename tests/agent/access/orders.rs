//! `mirrorlet restart`, `stop`, `start` and `wait` as people use them: output and exit codes.

use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};

use super::{SLEEPS, ask, mirrorlet, pod, started, text};
use crate::common::registry::Registry;
use crate::common::{Bed, sleeper, sleeper_of};

/// Asserts on what a command printed, and on its exit code.
fn prints(output: &Output, stdout: &str) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        (output.status.code(), out.as_str()),
        (Some(0), stdout),
        "{err}"
    );
    assert_eq!(err, "");
}

/// Asserts that a command failed with these words alone.
fn fails(output: &Output, code: i32, words: &str) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert_eq!(out, "");
    assert!(err.contains(words), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_say_what_is_done_or_fail() {
    let bed = Bed::new();
    bed.write("db.yaml", &sleeper("db"));
    let agent = started(&bed, &sleeper("web"), "web").await;
    agent.until_running("db").await;
    let both = ask(&bed, &["restart", "web", "db"]);
    prints(
        &both,
        "pod default/web-box: restarting web\npod default/db-box: restarting db\n",
    );
    for name in ["web", "db"] {
        agent
            .until_pod(name, |pod| pod.restarts == 1 && pod.ready == 1)
            .await;
    }
    fails(
        &ask(&bed, &["restart", "web", "-c", "x"]),
        1,
        "pod default/web-box has no container \"x\"; its containers are web",
    );
    prints(
        &ask(&bed, &["start", "web"]),
        "pod default/web-box: was not stopped\n",
    );
    let stopped = ask(&bed, &["stop", "web"]);
    prints(
        &stopped,
        "pod default/web-box: stopping, until: mirrorlet start default/web-box\n",
    );
    // box 13
    prints(
        &ask(&bed, &["wait", "web", "--for", "stopped", "--timeout", "0"]),
        "pod/web-box condition met\n",
    );
    // box 13
    prints(
        &ask(&bed, &["stop", "web", "web-box"]),
        "pod default/web-box: stopped already, until: mirrorlet start default/web-box\n",
    );
    // One that can't be had keeps no other from its order.
    let both = ask(&bed, &["restart", "web", "db"]);
    assert_eq!(both.status.code(), Some(1));
    let words = String::from_utf8_lossy(&both.stderr);
    assert!(words.contains("pod default/web-box is stopped"), "{words}");
    let words = String::from_utf8_lossy(&both.stdout);
    assert_eq!(words, "pod default/db-box: restarting db\n");
    agent
        .until_pod("db", |pod| pod.restarts == 2 && pod.ready == 1)
        .await;
    prints(
        &ask(&bed, &["start", "default/web-box"]),
        "pod default/web-box: starting\n",
    );
    prints(
        &ask(&bed, &["wait", "web", "pod/db", "--timeout", "0"]),
        "pod/web-box condition met\npod/db-box condition met\n",
    );
    for verb in ["restart", "stop", "start"] {
        fails(&ask(&bed, &[verb, "nobody"]), 1, "pod \"nobody\" not found");
        fails(&ask(&bed, &[verb]), 2, "required arguments");
    }
    agent.stop().await;
    fails(
        &ask(&bed, &["stop", "web"]),
        3,
        "start one with: mirrorlet run --root",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_state_or_with_its_time() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let begin = |args: &[&str]| {
        let command = [&["wait"], args, &["--timeout", "0"]].concat();
        let mut command = mirrorlet(&bed, &command);
        let piped = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        piped.spawn().unwrap()
    };
    let ready = begin(&["web", "--for=condition=Ready"]);
    let healthy = begin(&["web", "--for", "healthy"]);
    bed.write("web.yaml", &sleeper("web"));
    let met = "pod/web-box condition met\n";
    prints(&ready.wait_with_output().unwrap(), met);
    prints(&healthy.wait_with_output().unwrap(), met);
    // One that runs, but is never ready.
    let probe = "    readinessProbe: {exec: {command: [\"false\"]}}\n";
    bed.write("slow.yaml", &pod("slow", probe, SLEEPS));
    agent.until_pod("slow", |pod| pod.status == "Running").await;
    for (states, wanted) in [
        (&["slow"][..], "slow-box to be ready"),
        (&["slow", "--for", "healthy"], "slow-box to be healthy"),
        (&["web", "--for", "stopped"], "web-box to be stopped"),
        (&["web", "--for", "deleted"], "web to be deleted"),
        (&["nobody"], "nobody to be ready"),
    ] {
        let args = [&["wait"], states, &["--timeout", "300ms"]].concat();
        let words = format!("timed out after 0.3 s waiting for pod/{wanted}; see mirrorlet status");
        fails(&ask(&bed, &args), 1, &words);
    }
    // Those that are as wanted are reported, too.
    for pods in [["web", "slow"], ["slow", "web"]] {
        let some = ask(&bed, &[&["wait"], &pods[..], &["--timeout", "5s"]].concat());
        assert_eq!(
            (some.status.code(), text(&some.stdout).as_str()),
            (Some(1), met)
        );
    }
    // It waits for the second one for ever.
    let mut left = begin(&["web", "nobody"]);
    let mut line = String::new();
    let mut out = BufReader::new(left.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, met);
    let deleted = begin(&["web", "--for", "delete"]);
    bed.remove("web.yaml");
    prints(
        &deleted.wait_with_output().unwrap(),
        "pod/web condition met\n",
    );
    // box 13
    assert!(
        !bed.containers()
            .keys()
            .any(|name| name.contains("_web-box_"))
    );
    fails(
        &ask(&bed, &["wait", "web", "--for", "gone"]),
        2,
        "invalid value 'gone'",
    );
    agent.stop().await;
    fails(&left.wait_with_output().unwrap(), 3, "has stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_pull_runs_the_image_that_has_the_tag_now() {
    let registry = Registry::open().await;
    let image = registry.push("a/app:1");
    let bed = Bed::new();
    let agent = started(&bed, &sleeper_of("web", &image), "web").await;
    let image_of = || {
        let id = bed.running_id("web");
        let image = bed.inspect(&id)["Image"].to_string();
        (id, image)
    };
    let (first, before) = image_of();
    // Another image with the same tag.
    assert_eq!(registry.push("a/app:1"), image);
    // Here the tag still means the first.
    bed.docker(&["tag", before.trim_matches('"'), &image]);
    prints(
        &ask(&bed, &["restart", "web"]),
        "pod default/web-box: restarting web\n",
    );
    agent
        .until_pod("web", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    let (second, same) = image_of();
    assert!(second != first && same == before, "{same} {before}");
    // A pull restarts nothing; the tag has the other image from now on.
    prints(
        &ask(&bed, &["pull", "web"]),
        "pod default/web-box: pulled the images of web\n",
    );
    assert_eq!(image_of(), (second, same));
    let tagged = bed.docker(&["image", "inspect", "--format", "{{json .Id}}", &image]);
    assert_ne!(tagged, before);
    prints(
        &ask(&bed, &["restart", "web", "--pull"]),
        "pod default/web-box: restarting web\n",
    );
    agent
        .until_pod("web", |pod| pod.restarts == 2 && pod.ready == 1)
        .await;
    let (third, after) = image_of();
    // box 13
    assert_ne!(after, before);
    drop(registry);
    fails(&ask(&bed, &["pull", "web"]), 1, "mirrorlet: ErrImagePull: ");
    // An order waits for no back-off.
    for _ in 0..2 {
        let failed = ask(&bed, &["restart", "web", "--pull"]);
        fails(
            &failed,
            1,
            "mirrorlet: nothing was restarted: ErrImagePull: ",
        );
        assert!(!text(&failed.stderr).contains("imagePullPolicy"));
    }
    assert_eq!(image_of().0, third);
    agent.stop().await;
}
