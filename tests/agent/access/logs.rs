//! Logs: every driver that can be read, rotated ones, terminals', all containers of a pod.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;

use futures::StreamExt as _;
use mirrorlet_core::api::Timestamp;
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::logs::container_logs;
use mirrorlet_runtime::{LogChunk, LogOptions};

use super::{SLEEPS, ask, mirrorlet, pod, started, text};
use crate::common::{self, Bed, eventually};

/// A container beside all pods, for what a manifest can't say.
struct Plain<'a> {
    bed: &'a Bed,
    id: String,
}

impl<'a> Plain<'a> {
    fn run(bed: &'a Bed, flags: &[&str], script: &str) -> Self {
        let begin = ["run", "-d", "--network", "none"];
        let end = [common::IMAGE, "sh", "-c", script];
        let id = bed.docker(&[&begin[..], flags, &end[..]].concat());
        Self { bed, id }
    }

    async fn ended(&self) {
        eventually("its end", || {
            let state = &self.bed.inspect(&self.id)["State"]["Status"];
            (state == "exited").then_some(())
        })
        .await;
    }

    /// Standard output and standard error of the log.
    async fn log(&self, options: &LogOptions, tty: bool) -> (String, String) {
        let engine = Arc::new(BollardEngine::connect(&self.bed.docker).unwrap());
        let log = container_logs(&*engine, &self.id, options, tty);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut log = log.await.unwrap();
        while let Some(chunk) = log.next().await {
            match chunk.unwrap() {
                LogChunk::Stdout(bytes) => out.extend(bytes),
                LogChunk::Stderr(bytes) => err.extend(bytes),
            }
        }
        (text(&out), text(&err))
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        self.bed.docker(&["rm", "-fv", &self.id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_read_and_followed_across_its_rotations() {
    let bed = Bed::new();
    // About 200 KiB in lines of 100 bytes. After each 200 of them, which are less than a file, it
    // waits for the reader to have seen them.
    let script = "i=0; while [ $i -lt 2000 ]; do
        printf '%05d %094d\\n' $i 0; i=$((i+1));
        if [ $((i % 200)) = 0 ]; then until [ -e /seen-$i ]; do sleep 0.05; done; fi; done";
    let flags = [
        "--log-driver=json-file",
        "--log-opt=max-size=50k",
        "--log-opt=max-file=3",
    ];
    let container = Plain::run(&bed, &flags, script);
    let follow = LogOptions {
        follow: true,
        ..LogOptions::default()
    };
    let engine = BollardEngine::connect(&bed.docker).unwrap();
    let log = container_logs(&engine, &container.id, &follow, false);
    let (mut log, mut followed, mut seen) = (log.await.unwrap(), Vec::new(), 0);
    while let Some(chunk) = log.next().await {
        let (LogChunk::Stdout(bytes) | LogChunk::Stderr(bytes)) = chunk.unwrap();
        followed.extend(bytes);
        let awaited = format!("\n{:05} ", seen + 199).into_bytes();
        let end = &followed[followed.len().saturating_sub(1 << 15)..];
        if end.ends_with(b"\n") && end.windows(7).any(|part| part == awaited) {
            seen += 200;
            let file = format!("/seen-{seen}");
            // Detached: the container may end before a client has the exit code of its last `touch`.
            bed.docker(&["exec", "-d", &container.id, "touch", &file]);
        }
    }
    let followed = text(&followed);
    let numbers = |log: &str| -> Vec<u32> {
        log.lines()
            .map(|line| line.split_once(' ').unwrap().0.parse().unwrap())
            .collect()
    };
    let all: Vec<u32> = (0..2000).collect();
    // Engine 20.10 repeats some lines when it turns to the next file; it loses none.
    let mut seen = numbers(&followed);
    assert_eq!(seen.last(), Some(&1999));
    seen.sort_unstable();
    seen.dedup();
    // docker 52
    assert!(seen == all, "{} of {} lines", seen.len(), all.len());
    container.ended().await;
    let (kept, _) = container.log(&LogOptions::default(), false).await;
    let kept = numbers(&kept);
    // One file holds at most 50 KiB, so what is there comes from more than one of them.
    assert!(kept.len() > 512, "{} lines", kept.len());
    assert!(kept[0] > 0, "something was rotated away");
    assert_eq!(kept[..], all[2000 - kept.len()..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containers_log_is_rotated_while_it_is_followed() {
    let bed = Bed::new();
    let mut resolved = bed.resolved();
    resolved.config.container_log_max_size = Some(64 << 10);
    resolved.config.container_log_max_files = 3;
    // As above: 300 KiB of lines, each 200 of them read before the next.
    let script = "i=0; while [ $i -lt 3000 ]; do
        printf '%05d %094d\n' $i 0; i=$((i+1));
        if [ $((i % 200)) = 0 ]; then until [ -e /seen-$i ]; do sleep 0.05; done; fi; done";
    bed.write("web.yaml", &pod("web", "", script));
    let agent = bed.agent_as(resolved).await;
    agent.until_running("web").await;
    let id = bed.running_id("c");
    let mut follower = mirrorlet(&bed, &["logs", "web", "-f"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BTreeSet::new();
    let out = BufReader::new(follower.stdout.take().unwrap());
    for line in out.lines().map(Result::unwrap) {
        let number: u32 = line.split_once(' ').unwrap().0.parse().unwrap();
        // The Engine may repeat lines when it turns to the next file.
        if seen.insert(number) && (number + 1).is_multiple_of(200) {
            bed.docker(&["exec", "-d", &id, "touch", &format!("/seen-{}", number + 1)]);
        }
    }
    assert!(follower.wait().unwrap().success());
    // tenants M6
    assert!(seen.into_iter().eq(0..3000));
    let log = bed.inspect(&id)["LogPath"].as_str().unwrap().to_owned();
    let files: Vec<u64> = ["", ".1", ".2", ".3"]
        .iter()
        .filter_map(|end| std::fs::metadata(format!("{log}{end}")).ok())
        .map(|file| file.len())
        .collect();
    // The Engine rotates a file once it is larger: by one line.
    assert!(
        files.len() == 3 && files.iter().all(|size| *size <= (64 << 10) + 256),
        "{files:?}"
    );
    let kept = text(&ask(&bed, &["logs", "web"]).stdout);
    let kept: Vec<u32> = kept
        .lines()
        .map(|line| line[..5].parse().unwrap())
        .collect();
    assert!(kept.len() > 700 && kept.iter().copied().eq(kept[0]..3000));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_pod_goes_on_with_its_next_instance() {
    let bed = Bed::new();
    let image = common::IMAGE;
    let init = format!("  initContainers: [{{name: i, image: {image}, command: [\"true\"]}}]\n");
    let manifest = pod("web", &init, &format!("echo begun; {SLEEPS}"));
    let manifest = manifest.replace("restartPolicy: Never", "restartPolicy: Always");
    let agent = started(&bed, &manifest, "web").await;
    let mut follower = mirrorlet(&bed, &["logs", "web", "-f"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    bed.docker(&["kill", &bed.running_id("c")]);
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    assert!(ask(&bed, &["stop", "web"]).status.success());
    // Each instance once.
    assert!(lines.next().is_none());
    assert!(follower.wait().unwrap().success());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_the_agents_stop_cuts_off_is_not_complete() {
    let bed = Bed::new();
    for name in ["a", "b"] {
        let script = format!("echo begun; {SLEEPS}");
        bed.write(&format!("{name}.yaml"), &pod(name, "", &script));
    }
    // 6 MB: many times what the buffers on the way to a client hold that doesn't read.
    let lines = 6000;
    let script = format!("yes $(printf %0999d 0) | head -n {lines}");
    bed.write("large.yaml", &pod("large", "", &script));
    let agent = bed.agent().await;
    for name in ["a", "b"] {
        agent.until_running(name).await;
    }
    let ended = agent.until_container("large", "c", |c| c.state == "terminated");
    assert_eq!(ended.await.exit_code, Some(0));
    let mut reading = Vec::new();
    for (args, begun) in [(&["logs", "large"][..], 1), (&["logs", "a", "b", "-f"], 2)] {
        let mut client = mirrorlet(&bed, args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(client.stdout.take().unwrap());
        for _ in 0..begun {
            assert!(out.read_line(&mut String::new()).unwrap() > 0);
        }
        reading.push((client, out));
    }
    agent.stop().await;
    for (client, out) in reading {
        let left = out.lines().map(Result::unwrap).count();
        let ended = client.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        // docker 52
        assert_eq!(ended.status.code(), Some(3), "{said}");
        let words = "mirrorlet: the agent closed the log before its end; ";
        assert_eq!(said.matches(words).count(), 1, "{said}");
        assert!(left < lines - 1, "{left} lines");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_driver_is_read_as_well() {
    let bed = Bed::new();
    let script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done; printf end";
    let container = Plain::run(&bed, &["--log-driver=local"], script);
    container.ended().await;
    let (out, err) = container.log(&LogOptions::default(), false).await;
    // docker 52
    assert_eq!(
        out,
        "out 1\nout 2\nout 3\nout 4\nout 5\nend\n".trim_end_matches('\n')
    );
    assert_eq!(err, "err 1\nerr 2\nerr 3\nerr 4\nerr 5\n");
    // Of one stream: which of two streams came last is nobody's to say.
    let script = "for i in 1 2 3; do echo out $i; done; printf end";
    let container = Plain::run(&bed, &["--log-driver=local"], script);
    container.ended().await;
    let tail = LogOptions {
        tail: Some(1),
        ..LogOptions::default()
    };
    assert_eq!(container.log(&tail, false).await.0, "end");
}

#[tokio::test(flavor = "multi_thread")]
async fn since_counts_fractions_of_a_second() {
    let bed = Bed::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.05; done";
    let container = Plain::run(&bed, &[], script);
    container.ended().await;
    let stamped = LogOptions {
        timestamps: true,
        ..LogOptions::default()
    };
    let (all, _) = container.log(&stamped, false).await;
    let fifth = all.lines().nth(4).unwrap().split_once(' ').unwrap().0;
    let since = LogOptions {
        since: Some(fifth.parse::<Timestamp>().unwrap()),
        ..LogOptions::default()
    };
    // docker 52
    assert_eq!(container.log(&since, false).await.0, "5\n6\n7\n8\n9\n");
    let both = LogOptions {
        tail: Some(2),
        limit_bytes: Some(3),
        ..since
    };
    assert_eq!(container.log(&both, false).await.0, "8\n9");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminals_log_is_whole() {
    let bed = Bed::new();
    let script = r"printf '\001\000\002first'; echo; printf '\002no end'";
    let container = Plain::run(&bed, &["-t"], script);
    container.ended().await;
    let (out, err) = container.log(&LogOptions::default(), true).await;
    // docker 54
    assert_eq!(out, "\x01\0\x02first\r\n\x02no end");
    assert_eq!(err, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_containers_of_a_pod_are_shown_with_their_names() {
    let bed = Bed::new();
    let more = format!(
        "  - name: other\n    image: {}\n    command: [sh, -c, \"echo of other; echo err >&2; {SLEEPS}\"]\n",
        common::IMAGE
    );
    let manifest = pod("web", &more, &format!("echo of c; {SLEEPS}"));
    let manifest = manifest.replace("restartPolicy: Never", "restartPolicy: Always");
    let agent = started(&bed, &manifest, "web").await;
    let all = ["logs", "web", "--all-containers"];
    eventually("all words", || {
        let done = ask(&bed, &all);
        let (shown, err) = (text(&done.stdout), text(&done.stderr));
        (shown.contains("of other") && shown.contains("of c") && err.contains("err")).then_some(())
    })
    .await;
    let done = ask(&bed, &[&all[..], &["--prefix"]].concat());
    // docker 52
    assert_eq!(
        text(&done.stdout),
        "[pod/web-box/c] of c\n[pod/web-box/other] of other\n"
    );
    assert_eq!(text(&done.stderr), "[pod/web-box/other] err\n");
    // Both of its lines: which of two streams came last is nobody's to say.
    let one = ask(
        &bed,
        &["logs", "web", "-c", "other", "--prefix", "--tail=2"],
    );
    assert_eq!(text(&one.stdout), "[pod/web-box/other] of other\n");
    assert_eq!(text(&one.stderr), "[pod/web-box/other] err\n");
    // Followed side by side, over a restart, until the pod is stopped.
    let mut following = mirrorlet(&bed, &[&all[..], &["-f", "--prefix"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut line = || lines.next().map(Result::unwrap);
    let mut both = [line(), line()];
    both.sort();
    let [of_c, of_other] = ["[pod/web-box/c] of c", "[pod/web-box/other] of other"];
    assert_eq!(both.map(Option::unwrap), [of_c, of_other]);
    bed.docker(&["kill", &bed.running_id("c")]);
    // docker 52
    assert_eq!(line().as_deref(), Some(of_c));
    assert!(ask(&bed, &["stop", "web"]).status.success());
    assert_eq!(line(), None);
    assert!(following.wait().unwrap().success());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_pod_says_which_containers_have_no_log() {
    let bed = Bed::new();
    let more =
        "  - name: other\n    image: mirrorlet.test/no-such-image:1\n    imagePullPolicy: Never\n";
    bed.write(
        "web.yaml",
        &pod("web", more, &format!("echo of c; {SLEEPS}")),
    );
    let agent = bed.agent().await;
    agent
        .until_container("web", "other", |c| c.reason == "ErrImageNeverPull")
        .await;
    agent.until_container("web", "c", |c| c.id.is_some()).await;
    let mut following = mirrorlet(&bed, &["logs", "web", "--all-containers", "-f"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut line = || lines.next().map(Result::unwrap);
    assert_eq!(line().as_deref(), Some("of c"));
    assert!(ask(&bed, &["stop", "web"]).status.success());
    assert_eq!(line(), None);
    let ended = following.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    let words = "container \"other\" in pod \"web-box\" is waiting to start: ErrImageNeverPull";
    // docker 52
    assert_eq!(said.matches(words).count(), 1, "{said}");
    // It could still have started.
    assert!(ended.status.success(), "{said}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_never_ran_has_upstreams_words_for_a_log() {
    let bed = Bed::new();
    let manifest = pod("web", "    imagePullPolicy: Never\n", SLEEPS)
        .replace(common::IMAGE, "mirrorlet.test/no-such-image:1");
    bed.write("web.yaml", &manifest);
    let agent = bed.agent().await;
    agent
        .until_container("web", "c", |c| c.reason == "ErrImageNeverPull")
        .await;
    let done = ask(&bed, &["logs", "web"]);
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stderr);
    let words = "container \"c\" in pod \"web-box\" is waiting to start: ErrImageNeverPull";
    // docker 52
    assert!(said.contains(words), "{said}");
    let done = ask(&bed, &["logs", "web", "--previous"]);
    let said = text(&done.stderr);
    let words = "previous terminated container \"c\" in pod \"web-box\" not found";
    assert!(said.contains(words), "{said}");
    agent.stop().await;
}

/// Links below a directory, with what is read through them.
fn links(dir: &std::path::Path) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        // A container that is removed meanwhile has no logs.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(found_there) = std::fs::symlink_metadata(&path) else {
                continue;
            };
            if found_there.is_dir() {
                left.push(path);
            } else {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                found.push((name, std::fs::read_to_string(&path).ok()));
            }
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn links_to_logs_come_with_a_start_and_go_with_the_container() {
    let bed = Bed::new();
    let dir = crate::common::tempdir();
    let mut resolved = bed.resolved();
    let pods = dir.path().join("pods");
    resolved.config.pod_logs_dir = Some(pods.clone());
    // One that runs, and one whose start fails.
    bed.write(
        "web.yaml",
        &pod("web", "", &format!("echo hello; {SLEEPS}")),
    );
    let broken = pod("broken", "", "").replace("[sh, -c, \"\"]", "[/no/such/program]");
    bed.write("broken.yaml", &broken);
    let agent = bed.agent_as(resolved).await;
    let web = agent.until_running("web").await;
    let log = pods.join(format!("default_web-box_{}/c/0.log", web.uid));
    let text = eventually("the log behind the link", || {
        std::fs::read_to_string(&log)
            .ok()
            .filter(|text| !text.is_empty())
    })
    .await;
    assert!(text.contains(r#""log":"hello\n""#), "{text}");
    let flat = dir.path().join("containers");
    let name = format!("web-box_default_c-{}.log", bed.running_id("c"));
    let through = eventually("the second link", || {
        let all = links(&flat);
        all.into_iter().find(|(found, _)| *found == name)
    })
    .await;
    // docker 52
    assert_eq!(through.1.as_deref(), Some(text.as_str()));
    eventually("the link of the failed start", || {
        let all = links(&flat);
        let broken = |name: &str| name.starts_with("broken-box_default_c-");
        all.iter().any(|(name, _)| broken(name)).then_some(())
    })
    .await;
    bed.remove("web.yaml");
    bed.remove("broken.yaml");
    agent.until_gone("web").await;
    agent.until_gone("broken").await;
    // Directories go too.
    eventually("no link and no directory", || {
        let directories = std::fs::read_dir(&pods).unwrap().count();
        (links(&flat).is_empty() && directories == 0).then_some(())
    })
    .await;
    agent.stop().await;
}
