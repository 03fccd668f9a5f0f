//! The commands that look at pods, images and usage, and completion in a shell.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use crate::binary::{ask, mirrorlet, run, said, until_running};
use crate::common::{Bed, IMAGE, PATIENCE, sleeper};
use mirrorlet_core::api::report::{EventReport, ImagesReport, JournalReport, TopReport};

/// A command that goes on; killed when dropped.
struct Following {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Following {
    fn start(bed: &Bed, args: &[&str]) -> Self {
        let mut command = mirrorlet(bed, args);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line that contains `text`.
    fn until(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no {text}: {error}"));
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The candidates that a shell gets for the last of these words, but for flags.
fn candidates(bed: &Bed, words: &[&str]) -> Vec<String> {
    let root = bed.path().display().to_string();
    let last = words.len();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mirrorlet"));
    command.env("_MIRRORLET_COMPLETE", "bash");
    command.env("_CLAP_COMPLETE_INDEX", (last + 2).to_string());
    command.env("_CLAP_IFS", "\n");
    command.args(["--", "mirrorlet"]);
    let (verb, rest) = words.split_first().unwrap();
    command.args([*verb, "--root", &root]).args(rest);
    let output = command.output().unwrap();
    let said = said(&output);
    let names = said.lines().filter(|name| !name.starts_with('-'));
    names.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_looking_at_pods() {
    let bed = Bed::new();
    bed.write("web.yaml", &sleeper("web"));
    bed.write("db.yaml", &sleeper("db"));
    let _agent = run(&bed);
    until_running(&bed, "web").await;
    until_running(&bed, "db").await;

    let names = said(&ask(&bed, &["status", "-o", "name"]));
    assert_eq!(names, "default/db-box\ndefault/web-box\n");
    said(&ask(&bed, &["status", "--exit-code"]));
    assert_eq!(candidates(&bed, &["explain", "w"]), ["web"]);
    assert_eq!(candidates(&bed, &["stop", ""]), ["db", "web"]);
    assert_eq!(candidates(&bed, &["exec", "web", "-c", ""]), ["web"]);

    let images = said(&ask(&bed, &["images", "-o", "json"]));
    let images: ImagesReport = serde_json::from_str(&images).unwrap();
    let used = images
        .images
        .iter()
        .find(|image| image.names.iter().any(|name| name == IMAGE));
    assert_eq!(used.unwrap().pods, ["default/db-box", "default/web-box"]);
    let unused = said(&ask(&bed, &["images", "--unused"]));
    assert!(!unused.contains(IMAGE), "{unused}");

    let top = said(&ask(&bed, &["top", "web", "-o", "json"]));
    let top: TopReport = serde_json::from_str(&top).unwrap();
    let [pod] = &top.pods[..] else {
        panic!("{top:?}")
    };
    let usage = (pod.name.as_str(), pod.containers[0].name.as_str());
    assert_eq!(usage, ("web-box", "web"));
    assert!(pod.usage.cpu_nanos.is_some() && pod.usage.memory_bytes > Some(0));
    assert!(top.node_usage.memory_bytes > pod.usage.memory_bytes);
    let watched = Following::start(&bed, &["top", "--watch", "--containers"]);
    for _ in 0..2 {
        watched.until("default/web-box ");
    }

    let known = said(&ask(&bed, &["events", "web", "-o", "json"]));
    let known: Vec<EventReport> = serde_json::from_str(&known).unwrap();
    let reasons: Vec<&str> = known.iter().map(|event| &*event.entry.reason).collect();
    assert_eq!(reasons, ["Pulled", "Created", "Started"]);
    assert!(known.iter().all(|event| event.name == "web-box"));
    let events = Following::start(&bed, &["events", "-w", "--tail", "0"]);
    let story = Following::start(&bed, &["explain", "web", "-f", "--tail=1", "-o", "json"]);
    events.until("MESSAGE");
    story.until("{");
    said(&ask(&bed, &["stop", "web"]));
    let line = events.until("PodStopped");
    // agent 9
    assert!(line.contains("default/web-box"), "{line}");
    let entry: JournalReport = serde_json::from_str(&story.until("PodStopped")).unwrap();
    assert_eq!(entry.reason, "PodStopped");

    bed.write("bad.yaml", "kind: Pod\n");
    crate::common::eventually("the bad manifest to be told", || {
        let status = ask(&bed, &["status", "--exit-code"]);
        (status.status.code() == Some(1)).then_some(())
    })
    .await;
}
