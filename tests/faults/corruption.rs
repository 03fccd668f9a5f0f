//! A bad edit never hurts: the example manifests are truncated and corrupted a thousand times, in
//! place, while their pods run. Every one is reported; no container is touched.
//!
//! A seeded generator decides how a mutation changes the text. The seed is printed, so that a
//! failure can be repeated with `TEST_SEED`. A corrupted text that happens to be a valid manifest
//! of another pod is an edit, not a corruption; it is counted and left out. No truncation is left
//! out: a half-written file must never be believed at once.
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::{self, Bed, TestAgent};
use mirrorlet_core::api::report::StatusReport;
use mirrorlet_core::api::{Diagnostic, NodeName, PodUid};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{
    Accepted, Document, DocumentKey, ParseContext, Parsed, parse_manifest,
};
use mirrorlet_core::workload::WorkloadKind;

/// Bad texts written.
const MUTATIONS: usize = 1000;
/// `completions` of the Job among the examples.
const JOB_COMPLETIONS: usize = 5;
/// Every so many, the Engine is asked whether anything was touched.
const LOOK_EVERY: usize = 25;
/// One in so many comes on the heels of another one that nobody waits for.
const HURRIED: usize = 8;

/// Knuth's 64-bit linear congruential generator: repeatable, and good enough to pick places.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound.max(1)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| u8::try_from(self.next() & 0xff).unwrap())
            .collect()
    }
}

/// A change to a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mutation {
    Truncated,
    Nuls,
    RandomBytes,
    NotUtf8,
    DuplicatedChunk,
    RemovedChunk,
    SwappedLines,
    Tabs,
}

impl Mutation {
    /// Truncations as often as everything else together.
    fn pick(random: &mut Random) -> Self {
        match random.below(14) {
            0 => Self::Nuls,
            1 => Self::RandomBytes,
            2 => Self::NotUtf8,
            3 => Self::DuplicatedChunk,
            4 => Self::RemovedChunk,
            5 => Self::SwappedLines,
            6 => Self::Tabs,
            _ => Self::Truncated,
        }
    }

    fn of(self, good: &[u8], random: &mut Random) -> Vec<u8> {
        let at = random.below(good.len());
        let end = (at + 1 + random.below(60)).min(good.len());
        let mut text = good.to_vec();
        match self {
            Self::Truncated => text.truncate(at),
            Self::Nuls => text[at..end].fill(0),
            Self::RandomBytes => text[at..end].copy_from_slice(&random.bytes(end - at)),
            Self::NotUtf8 => text.insert(at, 0xc3),
            Self::DuplicatedChunk => {
                let chunk = text[at..end].to_vec();
                text.splice(end..end, chunk);
            }
            Self::RemovedChunk => {
                text.drain(at..end);
            }
            Self::SwappedLines => {
                let mut lines: Vec<&[u8]> = good.split_inclusive(|b| *b == b'\n').collect();
                let (a, b) = (random.below(lines.len()), random.below(lines.len()));
                lines.swap(a, b);
                text = lines.concat();
            }
            Self::Tabs => {
                let lines: Vec<usize> = good
                    .windows(3)
                    .enumerate()
                    .filter(|(_, window)| *window == b"\n  ")
                    .map(|(i, _)| i + 1)
                    .collect();
                let indent = lines[random.below(lines.len())];
                text.splice(indent..indent + 2, [b'\t']);
            }
        }
        text
    }
}

/// An example that runs.
struct Example {
    path: PathBuf,
    good: Vec<u8>,
}

/// The examples, with a name of this bed's own where the host would notice two of them.
fn examples(bed: &Bed) -> Vec<Example> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut examples = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let good = std::fs::read_to_string(&path).unwrap();
        // A loaded machine may take long to answer a probe: no reason to restart anything here.
        let good = good.replace(
            "        failureThreshold:",
            "        timeoutSeconds: 240\n        failureThreshold:",
        );
        // No run may begin on the way, at whatever time of day.
        let good = good.replace("schedule: \"30 2 * * *\"", "schedule: \"30 2 29 2 *\"");
        // Their claims are volumes of the Engine, which exist already for a user who tries the
        // examples.
        let own =
            |text: String, name: &str| text.replace(name, &format!("{name}{}", std::process::id()));
        let good = ["counted", "orders", "stock"].into_iter().fold(good, own);
        let good = good.into_bytes();
        let path = bed.manifest(&path.file_name().unwrap().to_string_lossy());
        examples.push(Example { path, good });
    }
    assert!(!examples.is_empty());
    examples.sort_by(|a, b| a.path.cmp(&b.path));
    examples
}

impl Example {
    /// Writes over the file as a careless program does: opened, cut to nothing, written.
    fn write(&self, text: &[u8]) {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = options.open(&self.path).unwrap();
        file.write_all(text).unwrap();
    }

    /// A text in the place of the file, as the agent reads it.
    fn parsed(&self, text: &[u8], node: &NodeName) -> Parsed {
        let location = self.path.to_string_lossy();
        let context = ParseContext {
            node_name: node,
            source: PodSource::File,
            location: &location,
        };
        parse_manifest(text, &context)
    }

    /// The pods of the good text.
    fn pods(&self, node: &NodeName) -> Vec<PodUid> {
        pods(&self.parsed(&self.good, node))
    }

    /// How many pods there are when all is done: a Job has one for each of its completions, a CronJob
    /// none before its time.
    fn pods_in_the_end(&self, node: &NodeName) -> usize {
        let parsed = self.parsed(&self.good, node);
        let documents = parsed.documents.iter();
        let pods = documents.map(|document| match &document.key {
            Some(DocumentKey::Workload(key)) if key.kind == WorkloadKind::Job => JOB_COMPLETIONS,
            Some(DocumentKey::Workload(key)) if key.kind == WorkloadKind::CronJob => 0,
            Some(_) | None => document.pods().len(),
        });
        pods.sum()
    }

    /// Whether a text is a manifest in good order that says something else, or the same; or, of several
    /// documents, has one in good order that the good text has not: fewer replicas, beside a Service
    /// that is none any more.
    fn is_an_edit(&self, text: &[u8], node: &NodeName) -> bool {
        let parsed = self.parsed(text, node);
        let problems = parsed
            .documents
            .iter()
            .flat_map(|document| &document.problems)
            .chain(&parsed.problems);
        let has_errors = problems.into_iter().any(Diagnostic::is_error);
        let good = self.pods(node);
        let is_new = pods(&parsed).iter().any(|pod| !good.contains(pod));
        let known = self.parsed(&self.good, node).documents;
        let is_known =
            |accepted: &Accepted| known.iter().any(|d| d.accepted.as_ref() == Some(accepted));
        let mut accepted = parsed.documents.iter().filter_map(|d| d.accepted.as_ref());
        let says_else = accepted.any(|accepted| !is_known(accepted));
        is_new
            || says_else
            || (!has_errors && parsed.documents.iter().any(|d| d.accepted.is_some()))
    }

    /// Whether a text describes exactly what the good one does.
    fn means_the_same(&self, text: &[u8], node: &NodeName) -> bool {
        let meaning = |text: &[u8]| -> Vec<Option<Accepted>> {
            let documents = self.parsed(text, node).documents.into_iter();
            documents.map(|document| document.accepted).collect()
        };
        meaning(text) == meaning(&self.good)
    }

    /// Whether a report names a problem with the file.
    fn is_reported(&self, report: &StatusReport) -> bool {
        let here = self.path.to_string_lossy();
        let held = report.pods.iter().filter(|pod| pod.source == here);
        held.clone().any(|pod| pod.held && !pod.problems.is_empty())
            || report
                .problems
                .iter()
                .any(|p| p.is_error() && *p.file == *here)
    }

    fn is_clean(&self, report: &StatusReport) -> bool {
        let here = self.path.to_string_lossy();
        let mut pods = report.pods.iter().filter(|pod| pod.source == here);
        let has_its_pods = pods.clone().count() > 0 || self.pods_in_the_end(&"box".into()) == 0;
        has_its_pods && pods.all(|pod| !pod.held) && !self.is_reported(report)
    }
}

fn pods(parsed: &Parsed) -> Vec<PodUid> {
    let pods = parsed.documents.iter().flat_map(Document::pods);
    pods.map(|pod| PodUid::of(pod)).collect()
}

/// Everything that would show a restart: which containers there are, dead ones too.
fn untouched(bed: &Bed) -> BTreeMap<String, String> {
    bed.containers().into_iter().collect()
}

async fn until_settled(agent: &TestAgent, pods: usize) {
    agent
        .until("all examples to run or be done", |report| {
            report.pods.len() == pods
                && report.pods.iter().all(|pod| {
                    pod.status == "Completed"
                        || (pod.status == "Running" && pod.ready == pod.containers_total)
                })
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_corruptions_of_running_manifests_do_no_harm() {
    let seed = std::env::var("TEST_SEED").map_or_else(
        |_| u64::from(std::process::id()) ^ 0x5eed_0000,
        |seed| seed.parse().unwrap(),
    );
    println!("seed: {seed}");
    let mut random = Random(seed);
    let bed = Bed::new();
    let agent = bed.agent().await;
    let examples = examples(&bed);
    for example in &examples {
        example.write(&example.good);
    }
    let node = bed.resolved().config.node_name;
    let pods = examples
        .iter()
        .map(|example| example.pods_in_the_end(&node));
    until_settled(&agent, pods.sum()).await;
    let before = untouched(&bed);

    let mut done: BTreeMap<Mutation, usize> = BTreeMap::new();
    let mut edits = 0;
    while done.values().sum::<usize>() < MUTATIONS {
        let example = &examples[random.below(examples.len())];
        let mutation = Mutation::pick(&mut random);
        let text = mutation.of(&example.good, &mut random);
        // A cut that leaves the same pod (the last newline, a comment) is no corruption either,
        // but must do no harm all the same.
        let is_edit = example.is_an_edit(&text, &node);
        if is_edit && mutation != Mutation::Truncated {
            edits += 1;
            continue;
        }
        if random.below(HURRIED) == 0 {
            example.write(&example.good[..random.below(example.good.len())]);
        }
        example.write(&text);
        let what = format!(
            "{mutation:?} to be reported in {}:\n{}",
            example.path.display(),
            String::from_utf8_lossy(&text)
        );
        if is_edit && example.means_the_same(&text, &node) {
            edits += 1;
        } else {
            agent
                .until(&what, |report| example.is_reported(report))
                .await;
            *done.entry(mutation).or_default() += 1;
        }
        example.write(&example.good);
        // Seen clean, the next report is of the next text.
        agent
            .until("the report to be clean", |report| example.is_clean(report))
            .await;
        if done.values().sum::<usize>() % LOOK_EVERY == 0 {
            assert_eq!(untouched(&bed), before, "after {what}");
        }
    }
    common::tell(&format!(
        "corruptions: {done:?} reported; valid manifests left out: {edits}; seed {seed}"
    ));
    assert_eq!(untouched(&bed), before);
    let report = agent.status();
    assert!(
        examples.iter().all(|example| example.is_clean(&report)),
        "{report:#?}"
    );
    assert!(
        report.pods.iter().all(|pod| pod.restarts == 0),
        "{report:#?}"
    );
    agent.stop().await;
}
