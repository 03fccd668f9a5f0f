//! `mirrorlet logs` of several pods: named, selected by labels, or all of them.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use super::{SLEEPS, ask, mirrorlet, pod, started, text};
use crate::common::{Bed, eventually};

/// A pod with that label, whose container `c` runs that script.
fn labelled(name: &str, app: &str, script: &str) -> String {
    pod(name, "", script).replace(
        &format!("metadata: {{name: {name}}}"),
        &format!("metadata: {{name: {name}, labels: {{app: {app}}}}}"),
    )
}

/// Waits until the command prints exactly that.
async fn until_printed(bed: &Bed, args: &[&str], expected: &str) {
    let what = format!("{args:?} to print {expected:?}");
    eventually(&what, || {
        (text(&ask(bed, args).stdout) == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_several_pods_are_printed_pod_by_pod() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    for name in ["db", "web"] {
        // The last line is not complete; the Engine has it when the container has ended.
        let script = format!("echo {name} 1; printf '{name} 2'");
        bed.write(&format!("{name}.yaml"), &labelled(name, name, &script));
    }
    for name in ["db", "web"] {
        let ended = agent.until_container(name, "c", |c| c.state == "terminated");
        assert_eq!(ended.await.exit_code, Some(0));
    }
    let (db, web) = ("db 1\ndb 2\n", "web 1\nweb 2\n");
    for (args, expected) in [
        (&["logs", "web", "db"][..], format!("{web}{db}")),
        (&["logs", "db", "web", "db-box"], format!("{db}{web}")),
        (&["logs", "-l", "app=web"], web.to_owned()),
        (&["logs", "-l", "app!=web", "-c", "c"], db.to_owned()),
        (&["logs", "-l", "app in (web,db)", "--tail=1"], "db 2\nweb 2\n".to_owned()),
        (
            &["logs", "--all-pods"],
            "[pod/db-box/c] db 1\n[pod/db-box/c] db 2\n[pod/web-box/c] web 1\n[pod/web-box/c] web 2\n"
                .to_owned(),
        ),
    ] {
        // docker 52
        until_printed(&bed, args, &expected).await;
    }
    let none = ask(&bed, &["logs", "-l", "app=cache"]);
    assert_eq!(
        (none.status.code(), text(&none.stderr)),
        (Some(0), "No logs found.\n".to_owned())
    );
    for (args, words) in [
        (&["logs", "web", "nobody"][..], "pod \"nobody\" not found"),
        (
            &["logs", "web", "db", "-c", "x"],
            "no container \"x\" in these pods: web, db",
        ),
        (
            &["logs", "--all-pods", "-f", "--max-log-requests=1"],
            "attempted to follow 2 containers, but the maximum is 1; use --max-log-requests to raise it",
        ),
        (
            &["logs", "web", "db", "-f", "--max-log-requests=1"],
            "attempted to follow 2 containers, but the maximum is 1; use --max-log-requests to raise it",
        ),
    ] {
        let refused = ask(&bed, args);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    agent.stop().await;
}

/// A client that follows logs; killed when dropped.
struct Follower {
    client: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Follower {
    fn start(bed: &Bed, args: &[&str]) -> Self {
        let mut client = mirrorlet(bed, args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(client.stdout.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });
        Self { client, lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    async fn until(&self, line: &str, times: usize) {
        let what = format!("{times} times {line:?} in {:#?}", self.lines());
        eventually(&what, || {
            let found = self.lines().into_iter().filter(|found| found == line);
            (found.count() == times).then_some(())
        })
        .await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_logs_are_followed_over_restarts_and_new_pods() {
    let bed = Bed::new();
    let words = |word: &str| format!("echo {word}; {SLEEPS}");
    let lasting =
        |manifest: String| manifest.replace("restartPolicy: Never", "restartPolicy: Always");
    let web = lasting(labelled("web", "web", &words("old")));
    let agent = started(&bed, &web, "web").await;
    let all = Follower::start(&bed, &["logs", "--all-pods", "-f"]);
    let some = Follower::start(&bed, &["logs", "-l", "app=web", "-f", "--prefix"]);
    let followers = [&all, &some];
    for follower in followers {
        follower.until("[pod/web-box/c] old", 1).await;
    }
    bed.docker(&["kill", &bed.running_id("c")]);
    for follower in followers {
        follower.until("[pod/web-box/c] old", 2).await;
    }
    bed.write("web.yaml", &web.replace("echo old", "echo new"));
    bed.write("db.yaml", &labelled("db", "db", &words("db")));
    for follower in followers {
        // docker 52
        follower.until("[pod/web-box/c] new", 1).await;
    }
    all.until("[pod/db-box/c] db", 1).await;
    // Nothing twice, and of the other pod nothing.
    let count = |follower: &Follower| follower.lines().len();
    assert_eq!((count(&all), count(&some)), (4, 3));
    agent.stop().await;
    let mut all = all;
    // Its agent has stopped.
    assert_eq!(all.client.wait().unwrap().code(), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_several_logs_are_never_mixed() {
    let bed = Bed::new();
    // Each line is written in two parts, with a pause between them.
    let script = "i=0; while [ $i -lt 40 ]; do printf \"$(hostname) \"; sleep 0.02; \
                  echo $i end; i=$((i+1)); done";
    bed.write("a.yaml", &pod("a", "", script));
    bed.write("b.yaml", &pod("b", "", script));
    let agent = bed.agent().await;
    let both = |name: &'static str| agent.until_container(name, "c", |c| c.id.is_some());
    both("a").await;
    both("b").await;
    let done = ask(&bed, &["logs", "a", "b", "-f"]);
    let printed = text(&done.stdout);
    let lines: BTreeSet<String> = printed.lines().map(str::to_owned).collect();
    let expected = ["a-box", "b-box"].into_iter();
    let expected = expected.flat_map(|pod| (0..40).map(move |i| format!("{pod} {i} end")));
    let expected: BTreeSet<String> = expected.collect();
    // docker 52
    assert_eq!(lines, expected);
    assert_eq!(printed.lines().count(), 80);
    agent.stop().await;
}
