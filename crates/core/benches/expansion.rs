//! Time to expand 1,000 documents of workloads, of one pod and of three: what reading them takes
//! longer than reading the same documents with `replicas: 0`. Prints each, and whether the target is
//! met.

#![expect(clippy::print_stdout, reason = "the figures are its output")]
#![expect(clippy::expect_used, reason = "a bench fails loudly")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use mirrorlet_core::api::NodeName;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{ParseContext, parse_manifest};

/// Documents of each kind.
const DOCUMENTS: usize = 1000;
/// Documents of a file: one with all of them has more values than a file may have.
const OF_FILE: usize = 500;
/// Pods of each workload, and the target for its expansion: none where the figure is for comparison.
const ROWS: [(usize, Option<Duration>); 2] = [(1, Some(Duration::from_millis(50))), (3, None)];
/// Rounds, of which the shortest counts: the work is the same in each, and others only add to it.
const ROUNDS: usize = 30;

/// The spec of each document's pods.
const TEMPLATE: &str = "\
metadata: {labels: {app: web}}
spec:
  containers:
  - name: web
    image: registry.example/web:1
    ports: [{containerPort: 8080}]
    env: [{name: A, value: b}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
";

/// The files of all documents.
fn workloads(replicas: usize) -> Vec<String> {
    let numbers: Vec<usize> = (0..DOCUMENTS).collect();
    let files = numbers.chunks(OF_FILE);
    files.map(|numbers| file(numbers, replicas)).collect()
}

fn file(numbers: &[usize], replicas: usize) -> String {
    let mut text = String::new();
    for number in numbers {
        let _ = write!(
            text,
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web-{number}}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n"
        );
        for line in TEMPLATE.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// How long it takes to read the files once, and the number of pods in them.
fn read(files: &[String]) -> (Duration, usize) {
    let node_name = NodeName::from("box");
    let context = ParseContext {
        node_name: &node_name,
        source: PodSource::File,
        location: "/m/a.yaml",
    };
    let parse = |text: &String| black_box(parse_manifest(text.as_bytes(), &context));
    let start = Instant::now();
    let parsed: Vec<_> = files.iter().map(parse).collect();
    let took = start.elapsed();
    let documents = parsed.iter().flat_map(|file| &file.documents);
    (took, documents.map(|document| document.pods().len()).sum())
}

fn shortest(times: &[Duration]) -> Duration {
    times.iter().min().copied().expect("rounds")
}

fn main() {
    // `cargo test --all-targets` runs bench programs too, without this flag.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    for (replicas, target) in ROWS {
        let (expanded, unexpanded) = (workloads(replicas), workloads(0));
        let (mut whole, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            // In turns, so that a busy machine hurts both.
            let (took, count) = read(&expanded);
            assert_eq!(count, DOCUMENTS * replicas, "every document is accepted");
            whole.push(took);
            floor.push(read(&unexpanded).0);
        }
        let (whole, floor) = (shortest(&whole), shortest(&floor));
        let expansion = whole.saturating_sub(floor);
        let verdict = target.map_or_else(String::new, |target| {
            let word = if expansion < target { "met" } else { "MISSED" };
            format!("; target < {target:?}: {word}")
        });
        println!(
            "{DOCUMENTS} Deployments of {replicas} pods: read {floor:.1?}, read and expanded {whole:.1?}, ratio {:.2}: expansion {expansion:.1?}{verdict}",
            whole.as_secs_f64() / floor.as_secs_f64()
        );
    }
}
